"""The Lagrangian of a constrained problem: its value, and how a dual optimizer moves its multipliers."""

from __future__ import annotations

import warnings
from copy import deepcopy
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from nupi import distributed
from nupi.ascent import NonFiniteViolationError, Refusals, Repeat, expect, steps_in_graph, take_step
from nupi.ascent.listening import Ascent, Listener, explain
from nupi.constraints.checks import checked_penalty
from nupi.multipliers import MultiplierModule
from nupi.violations import Move, Target, Violation, as_violation
from nupi.violations.plain import plain_total
from nupi.violations.target import Written

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch.distributed import ProcessGroup

    from nupi.constraints import Constraint
    from nupi.distributed.drift import Drift
    from nupi.distributed.together import Together
    from nupi.violations.kind import Reduce

Violations: TypeAlias = "Mapping[str, torch.Tensor | Violation]"

_OWN = {"_observers": (), "_repeat": None, "_last": None}  # a copy starts without these


class Lagrangian(MultiplierModule):
    """L(x, theta) = f(x) + sum of theta . c(x), and the multipliers theta that weigh its constraints.

    `lagrangian(loss, violations)` returns an ordinary scalar; call `backward` on it.
    `lagrangian.ascend(dual, violations)` moves the multipliers. The order of the two lines in a loop is the update
    scheme. If a constraint is absent from a call, the call ignores it.

    Args:
        constraints: the groups of constraints by name. Any string is a name, dots included.
        penalty: for the augmented Lagrangian: a number > 0 for all constraints, or numbers by constraint name. With
            penalty c an equality adds theta h + c h^2 / 2, an inequality (max(0, theta + c g)^2 - theta^2) / (2 c).
        reduce: with many processes, how `ascend` joins the violations of the ranks: their "mean" or their "sum". With
            both, `Averaged` violations are joined by their counts, and `Indexed` ones are gathered. All ranks then
            have the same multipliers to the bit, and all must call `ascend`. With None every rank uses its own
            violations. With one process, `reduce` changes nothing and costs nothing.
        group: the process group to join; by default torch's default group.

    Example:
        >>> import nupi
        >>> lagrangian = Lagrangian({"norm": nupi.Inequality()})
        >>> dual = nupi.NuPI(lagrangian.parameters(), ki=0.1, kp=1.0)
        >>> x = torch.tensor([3.0, 4.0], requires_grad=True)
        >>> violations = {"norm": x.norm() - 1}  # keep x in the unit ball
        >>> lagrangian.ascend(dual, violations)
        >>> lagrangian(x.sum(), violations).backward()
        >>> lagrangian
        Lagrangian(norm: Inequality(1) at 0.4)
    """

    reduce: Reduce | None = None
    group: ProcessGroup | None = None
    _drift: Drift | None = (
        None  # made at the first step with many processes, after checking that they have the same constraints
    )

    _without_gradient: frozenset[str] = frozenset()  # constraints whose violation had no gradient

    _repeat: Repeat | None = None  # the last step, if the next one may be the same
    _last: tuple[Any, ...] | None = None  # whose step that was, with which gains, and over which constraints
    _observers: tuple[Any, ...] = ()  # the dual optimizers that need losses with their graph

    def __init__(
        self,
        constraints: Mapping[str, Constraint],
        *,
        penalty: float | Mapping[str, float] | None = None,
        reduce: Reduce | None = None,
        group: ProcessGroup | None = None,
    ) -> None:
        super().__init__(constraints)
        if reduce is not None and reduce not in distributed.REDUCES:
            raise ValueError(f'reduce must be "mean", "sum" or None, but {reduce!r} came')
        self.reduce, self.group = reduce, group
        self._penalties = checked_penalty(penalty, self.constraints)
        self._listeners: list[Listener] = []

    @property
    def penalties(self) -> dict[str, float]:
        """A copy of the penalties of the augmented Lagrangian, by constraint name. Assign a dict to change them."""
        return dict(self._penalties)

    @penalties.setter
    def penalties(self, penalty: float | Mapping[str, float] | None) -> None:
        self._penalties = checked_penalty(penalty, self.constraints)

    def forward(self, loss: torch.Tensor, violations: Violations) -> torch.Tensor:
        """The value of the Lagrangian, with the graph of `loss` and `violations`.

        Args:
            loss: the objective f(x), a scalar.
            violations: constraint name to c(x): a tensor of the group's shape, `Indexed`, `Averaged` or another kind.

        With `reduce` it does not communicate. Like the loss, the value is that of this rank alone.
        DistributedDataParallel and `fully_shard` average the gradients over ranks, and the average is the gradient of
        the Lagrangian of the joined batch. (For `Averaged` this is true if all ranks have equal counts;
        `nupi.distributed.total` makes it exact.) One exception communicates: a `SelfTuned` that measures the model
        joins the measurements of all ranks in this call.
        """
        if not isinstance(loss, torch.Tensor):
            raise TypeError(f"loss must be a scalar tensor, but a {type(loss).__name__} came")
        if loss.numel() != 1:
            raise ValueError(
                f"loss must be a scalar, but has shape {tuple(loss.shape)}; take its mean or sum"
            )
        if (
            type(violations) is dict
            and not self._observers
            and self.reduce is None
            and not self._penalties
            and not torch.compiler.is_compiling()
        ):
            plain = plain_total(loss, violations, self._parameters, self.constraints)
            if plain is not None:
                return plain
        total, paired = loss, self._paired(violations)
        for target, violation in paired:
            term = violation.term(target)
            if not term.requires_grad and loss.requires_grad and torch.is_grad_enabled():
                self._warn_of_no_gradient(target.name)
            if self.reduce is not None and violation.adds_up(self.reduce):
                term = term * distributed.world_size(self.group)
            total = total + term
        if self._observers:
            if torch.compiler.is_compiling():
                torch.compiler.disable(Lagrangian._show)(self, loss, violations)
            else:
                self._show(loss, violations, paired)
        return total

    def ascend(self, dual: torch.optim.Optimizer, violations: Violations) -> None:
        """Move the multipliers of these constraints by one step of `dual`, then project them.

        The step is all or nothing: if anything raises, every multiplier and all state are as before. With `reduce`
        all ranks move or all ranks raise.

        Args:
            dual: any torch optimizer that maximizes and has these multipliers as parameters.
            violations: constraint name to c(x), as for `lagrangian(loss, violations)`. They need no gradient, so
                decisions and other exact measures are possible too.
        """
        compiling, repeat = torch.compiler.is_compiling(), self._repeat
        if compiling and not steps_in_graph(dual):
            torch.compiler.disable(Lagrangian.ascend)(self, dual, violations)
            return
        if not self._refusals.silent:
            self._raise_refused(wait=False)
        elif repeat is not None and not compiling and (self.reduce is None or self._is_alone()):
            errors = repeat.take(dual, self._parameters, self.constraints, violations)
            if errors is not None:
                if self._listeners:
                    self._tell(dual, repeat.moves(errors))
                return
        if not compiling and dual not in self._observers and (self._observers or hasattr(dual, "observe")):
            self.show_losses_to(dual)
        together: Together | None = None
        with torch.set_grad_enabled(False):
            if self._is_alone():
                moves = []
                for target, violation in self._paired(violations, dual):
                    move = violation.error(target)
                    if move is not None:
                        moves.append(move)
            else:
                together, moves = self._join(dual, violations)
            if moves:
                take = self._take_and_explain if self._listeners else take_step
                finite = take(dual, moves, together)
                if finite is not None:
                    self._refusals.note(self._flags(), moves, finite)
                elif together is None:
                    self._expect_more(dual, moves, violations)
            if together is not None and self._drift is not None:
                multipliers: Any = {name: self._parameters[name] for name in self.constraints}
                self._drift.remember(multipliers, dual)
        if moves:
            self._tell(dual, moves)

    def show_losses_to(self, dual: torch.optim.Optimizer) -> None:
        """Show `dual` the losses with their graph from now on, if it measures by them; `ascend` calls this.

        An earlier optimizer of the same multipliers is shown none any more.
        """
        mine = {id(p) for group in dual.param_groups for p in group["params"]}
        others = tuple(
            one
            for one in self._observers
            if mine.isdisjoint(id(p) for group in one.param_groups for p in group["params"])
        )
        self._observers = (*others, dual) if hasattr(dual, "observe") else others

    def _show(
        self,
        loss: torch.Tensor,
        violations: Violations,
        paired: list[tuple[Target, Violation]] | None = None,
    ) -> None:
        """Show the loss and the violations to the dual optimizers that measure."""
        paired = self._paired(violations) if paired is None else paired
        for observer in self._observers:
            observer.observe(self, loss, paired)

    def _warn_of_no_gradient(self, name: str) -> None:
        """Warn once that a violation without a gradient cannot move the model."""
        if torch.compiler.is_compiling() or name in self._without_gradient:
            return
        self.__dict__["_without_gradient"] = self._without_gradient | {name}
        warnings.warn(
            f"the violation of {name!r} has no gradient, so this constraint does not move the model. Give a "
            "differentiable violation (without detach, no_grad or a comparison such as logits > 0); "
            "nupi.Measured(soft, hard) takes one for the model and another for the multiplier",
            stacklevel=5,
        )

    def _is_alone(self) -> bool:
        """Whether there is no other process to join violations with."""
        return self.reduce is None or distributed.world_size(self.group) == 1

    def _tell(self, dual: torch.optim.Optimizer, moves: Sequence[Move]) -> None:
        for listener in list(self._listeners) if self._listeners else ():
            listener.callback(Ascent(dual, moves))

    def _expect_more(self, dual: torch.optim.Optimizer, moves: list[Move], violations: Violations) -> None:
        """Prepare the fast path for more steps like this one, from the second one on."""
        if torch.compiler.is_compiling():
            return
        this = (id(dual), getattr(dual, "gains_seen", None), *violations)
        again = (
            self._last == this and len(moves) == len(violations) and all(move.rows is None for move in moves)
        )
        self.__dict__["_repeat"] = expect(dual, moves, self.constraints, violations) if again else None
        self.__dict__["_last"] = this

    def check(self) -> None:
        """Raise if the device has refused a violation and nobody has reported it yet. Waits for the device.

        An eager `ascend` on the CPU raises at once. On an accelerator, or when it is compiled, `ascend` does not wait,
        and a later eager call raises. Call `check` before you rely on the last steps, for example at a checkpoint.
        """
        self._raise_refused(wait=True)

    def listen(self, callback: Callable[[Ascent], object]) -> Listener:
        """Have `callback` called after every `ascend` that moved multipliers, with an `Ascent`.

        The step is finished then: an error in a callback reaches the caller of `ascend`, and undoes nothing. If
        violations are refused and the callback has a method `explain(names)`, its text is added to the error.
        """
        if not callable(callback):
            raise TypeError(f"callback must be a function of an Ascent, but a {type(callback).__name__} came")
        listener = Listener(self, callback)
        self._listeners.append(listener)
        return listener

    @property
    def many_ranks(self) -> bool:
        """Whether `ascend` joins the violations of several processes."""
        return self.reduce is not None and distributed.world_size(self.group) > 1

    def sum_over_ranks(self, numbers: torch.Tensor) -> None:
        """Add up numbers over the processes that `ascend` joins, in place."""
        if self.many_ranks:
            torch.distributed.all_reduce(numbers, group=self.group)

    def ranks_of(self, violation: Violation) -> int:
        """The number of processes over which a violation is summed; 1 if it is averaged."""
        adds_up = self.reduce is not None and violation.adds_up(self.reduce)
        return distributed.world_size(self.group) if adds_up else 1

    def _join(self, dual: torch.optim.Optimizer, violations: Violations) -> tuple[Together, list[Move]]:
        """The moves from the violations of all ranks. Every rank calls this in every step, and gets the same moves."""
        # Imported here: a run with one process does not need it.
        from nupi.distributed.drift import Drift, check_problem
        from nupi.distributed.together import Together

        assert self.reduce is not None
        if torch.compiler.is_compiling():
            raise RuntimeError(
                "with reduce, ascend communicates with other processes, which cannot be compiled; compile the model "
                "and the call of the Lagrangian, and leave ascend outside"
            )
        written = Written(self._parameters)
        targets = {name: self._target(name, written) for name in self.constraints}
        if self._drift is None:
            multipliers = {name: target.multiplier for name, target in targets.items()}
            check_problem(self.constraints, multipliers, self.reduce, self.group)
            self._drift = Drift()
        given: dict[str, Violation] = {}
        refusal: Exception | None = None
        try:
            given = {target.name: violation.moving() for target, violation in self._paired(violations)}
        except Exception as error:  # noqa: BLE001 - the other ranks must hear of it before it is raised
            refusal = error
        together = Together(targets, self.reduce, self.group)
        return together, together.join(dual, given, refusal, self._drift)

    def _raise_refused(self, *, wait: bool) -> None:
        """Raise if the device has refused a violation, as far as the host knows (or after waiting for the device)."""
        if torch.compiler.is_compiling():
            return
        names = self._refusals.report(self._flags(), wait=wait)
        if names:
            raise explain(NonFiniteViolationError(names), self._listeners)

    def _take_and_explain(
        self, dual: torch.optim.Optimizer, moves: Sequence[Move], together: Together | None
    ) -> list[torch.Tensor] | None:
        """`take_step`; if it refuses a violation, the error also has the texts of the listeners."""
        if torch.compiler.is_compiling():
            return take_step(dual, moves, together)
        try:
            return take_step(dual, moves, together)
        except NonFiniteViolationError as error:
            explain(error, self._listeners)
            raise

    def _target(self, name: str, written: Written) -> Target:
        penalty = self._penalties.get(name) if self._penalties else None
        multiplier: Any = self._parameters[name]
        return Target(name, self.constraints[name], multiplier, written, penalty)

    def _paired(self, violations: Violations, dual: Any = None) -> list[tuple[Target, Violation]]:
        """Each violation with its target; `dual` is the optimizer that will take a step on them."""
        try:
            written = Written(self._parameters, dual)
            return [
                (self._target(name, written), as_violation(name, given)) for name, given in violations.items()
            ]
        except AttributeError:
            if hasattr(violations, "items"):
                raise
            kind = type(violations).__name__
            raise TypeError(f"violations must map constraint names to tensors, but a {kind} came") from None
        except KeyError as unknown:
            known = ", ".join(repr(name) for name in self.constraints)
            raise KeyError(
                f"violations has {unknown}, which is not a constraint here; the constraints are {known}"
            ) from None

    def __deepcopy__(self, memo: dict[int, Any]) -> Lagrangian:
        """A copy with its own multipliers and without listeners. The process group is shared: it cannot be copied."""
        memo[id(self.group)] = self.group
        memo[id(self._listeners)] = []
        copied = type(self).__new__(type(self))
        memo[id(self)] = copied
        copied.__dict__.update(deepcopy({**self.__dict__, **_OWN}, memo))
        return copied

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_listeners": [], **_OWN}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore a pickle. A pickle of an older version gets the attributes that were added since."""
        added = {"_penalties": {}, "_listeners": [], "_refusals": Refusals(list(state["constraints"]))}
        super().__setstate__({**added, **state})  # type: ignore[no-untyped-call]
