"""The Lagrangian of a constrained problem: its value, and how a dual optimizer moves its multipliers."""

from __future__ import annotations

from copy import deepcopy
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import torch

from nupi import distributed
from nupi.agreement import Seals, check_problem
from nupi.ascent import breaks_graph, check_dual, host_may_look, take_guarded_step, take_step
from nupi.foreign import as_taken
from nupi.guard import Look, NonFiniteViolationError, refuse_non_finite
from nupi.joint import Joint
from nupi.multipliers import MultiplierModule
from nupi.seen import Here, seen_here
from nupi.violations import Move, Violation, as_move, weighted

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch.distributed import ProcessGroup

    from nupi.agreement import Vow
    from nupi.constraints import Constraint

Violations: TypeAlias = "Mapping[str, Violation]"


class Step(NamedTuple):
    """What a listener is told after an `ascend`: which optimizer moved which multipliers, and by what errors."""

    dual: torch.optim.Optimizer
    moves: Sequence[Move]


class Listener:
    """A callback of `Lagrangian.listen`, to be removed again."""

    def __init__(self, listeners: list[Callable[[Step], None]], callback: Callable[[Step], None]) -> None:
        self._listeners, self._callback = listeners, callback
        listeners.append(callback)

    def remove(self) -> None:
        """Stop the calls."""
        if self._callback in self._listeners:
            self._listeners.remove(self._callback)


class Lagrangian(MultiplierModule):
    """L(x, theta) = f(x) + sum of theta . c(x), and the multipliers theta that weigh its constraints.

    `lagrangian(loss, violations)` is an ordinary scalar to call `backward` on, and
    `lagrangian.ascend(dual, violations)` moves the multipliers; the order of the two lines in a loop is the
    update scheme. A constraint that is absent from a call is left alone by it.

    Args:
        constraints: the groups of constraints by name. Any string is a name, dots included.
        reduce: in a run of many processes, how `ascend` joins what each rank measured: the "mean" or the "sum"
            over ranks. `Averaged` violations are joined by their counts and `Indexed` ones gathered, under
            either. All ranks then hold the same multipliers to the bit, and all must call `ascend`. None takes
            what each rank gives; so does a run of one process, at no cost.
        group: the process group to join; the default one unless given.

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

    reduce: distributed.Reduce | None = None
    group: ProcessGroup | None = None
    _agreed = False  # whether all ranks are known to have the same constraints
    _seals: Seals | None = None  # by which it is known that nobody but ascend has written to what they hold

    def __init__(
        self,
        constraints: Mapping[str, Constraint],
        *,
        reduce: distributed.Reduce | None = None,
        group: ProcessGroup | None = None,
    ) -> None:
        super().__init__(constraints)
        if reduce is not None and reduce not in distributed.REDUCES:
            raise ValueError(f'reduce must be "mean", "sum" or None, but {reduce!r} came')
        self.reduce, self.group = reduce, group
        self._listeners: list[Callable[[Step], None]] = []

    def listen(self, callback: Callable[[Step], None]) -> Listener:
        """Call `callback(step)` after every `ascend` that moved something."""
        return Listener(self._listeners, callback)

    def _tell(self, dual: torch.optim.Optimizer, moves: Sequence[Move]) -> None:
        for callback in tuple(self._listeners):
            callback(Step(dual, moves))

    def forward(self, loss: torch.Tensor, violations: Violations) -> torch.Tensor:
        """The Lagrangian, differentiable in whatever `loss` and `violations` came from.

        Args:
            loss: the objective f(x), a scalar.
            violations: constraint name to c(x): a tensor of the group's shape, `Indexed` or `Averaged`.

        Under `reduce` it does not communicate: like the loss, the value is this rank's own, and what
        DistributedDataParallel and `fully_shard` make of it, the average over ranks, is the Lagrangian of the
        joined batch. (For `Averaged` that holds where counts are even; `nupi.distributed.total` makes it exact.)
        """
        if not isinstance(loss, torch.Tensor):
            raise TypeError(f"loss must be a scalar tensor, but a {type(loss).__name__} came")
        if loss.numel() != 1:
            raise ValueError(
                f"loss must be a scalar, but has shape {tuple(loss.shape)}; take its mean or sum"
            )
        total = loss
        for name, multiplier, violation in self._paired(violations):
            term = weighted(name, multiplier, violation)
            if self.reduce is not None:
                term = term * distributed.share(self.reduce, violation, self.group)
            total = total + term
        return total

    def ascend(self, dual: torch.optim.Optimizer, violations: Violations) -> None:
        """Move the multipliers of these constraints by one step of `dual`, then project them.

        Everything is checked before anything moves: an error leaves every multiplier and all state as it was.
        Under `reduce` all ranks move or all raise.

        Args:
            dual: any torch optimizer that maximizes and holds the multipliers to be moved.
            violations: constraint name to c(x), as for the call; exact or hard measures serve as well.
        """
        if self.reduce is not None and distributed.world_size(self.group) > 1:
            self._ascend_together(dual, violations)
            return
        if torch.compiler.is_compiling() and breaks_graph(dual):
            torch.compiler.disable(Lagrangian.ascend)(self, dual, violations)
            return
        if self._unheard or self._look is not None:
            self._report(wait=False)
        moves: list[Move] = []
        for pair in self._paired(violations):
            move = as_move(*pair)
            if move is not None:
                moves.append(move)
        if not moves:
            return
        check_dual(dual, moves)
        moves = as_taken(dual, moves)
        with torch.set_grad_enabled(False):
            if host_may_look(dual, moves):
                refuse_non_finite(moves)
                take_step(self.constraints, dual, moves)
            else:
                self._flag(moves, take_guarded_step(self.constraints, dual, moves))
        if self._listeners:
            self._tell(dual, moves)

    def check(self) -> None:
        """Raise if a violation was refused that has not been reported yet; waits for the device.

        An eager `ascend` on the CPU raises at once. On an accelerator, and where it is compiled, `ascend` does not
        wait, and a later eager call reports; use this before trusting the last steps, as at a checkpoint.
        """
        self._report(wait=True)

    @torch.no_grad()
    def _ascend_together(self, dual: torch.optim.Optimizer, violations: Violations) -> None:
        """The same step on what all ranks saw: every rank does this, whatever it has, and gets the same."""
        assert self.reduce is not None
        if torch.compiler.is_compiling():
            raise RuntimeError(
                "under reduce ascend talks to other processes, which cannot be compiled; compile the model and "
                "the call of the Lagrangian, and leave ascend outside"
            )
        multipliers = {name: self._multiplier(name) for name in self.constraints}
        if not self._agreed:
            check_problem(self.constraints, multipliers, self.reduce, self.group)
            self._agreed = True
        if self._seals is None:
            self._seals = Seals()
        seals = self._seals

        def look() -> Here:
            pairs = self._paired(violations)
            check_dual(dual, pairs)
            held = {id(param) for group in dual.param_groups for param in group["params"]}
            movable = {name for name, multiplier in multipliers.items() if id(multiplier) in held}
            seen = {pair[0]: seen_here(*pair) for pair in pairs}
            return Here(seen, movable, seals.vow(multipliers, dual))

        def settle(vows: list[Vow]) -> None:
            seals.settle(vows, multipliers, dual, self.group)

        moves = Joint(multipliers, self.reduce, self.group).join(look, settle)
        if moves:
            refuse_non_finite(moves)
            take_step(self.constraints, dual, as_taken(dual, moves))
        seals.seal(multipliers, dual)
        if moves and self._listeners:
            self._tell(dual, moves)

    def _flag(self, moves: Sequence[Move], finite: Sequence[torch.Tensor]) -> None:
        """Note on the device which constraints it has refused, for a later report."""
        position = {name: i for i, name in enumerate(self.constraints)}
        flags = self._flags()
        for move, fine in zip(moves, finite, strict=True):
            flags[position[move.name]] |= ~fine
        self._unheard = True

    def _report(self, *, wait: bool) -> None:
        """Raise what a device has refused, if it is known by now (or after waiting for it)."""
        if torch.compiler.is_compiling() or not (self._unheard or self._look):
            return
        flags = self._flags()
        if self._look is None or wait:
            self._look, self._unheard = Look(flags), False
        refused = self._look.result(wait=wait)
        if refused is None:
            return
        self._look = None
        if any(refused):
            # Only what is reported is cleared: more may have been refused while this was on its way.
            flags &= ~torch.tensor(refused, device=flags.device)
            raise NonFiniteViolationError(
                [n for n, bad in zip(self.constraints, refused, strict=True) if bad]
            )

    def __deepcopy__(self, memo: dict[int, Any]) -> Lagrangian:
        """A copy with multipliers of its own and the same process group, which cannot be copied."""
        memo[id(self.group)] = self.group
        copied = type(self).__new__(type(self))
        memo[id(self)] = copied
        memo[id(self._listeners)] = []  # a copy is another problem: nobody listens to it yet
        copied.__dict__.update(deepcopy(self.__dict__, memo))
        return copied

    def _paired(self, violations: Violations) -> list[tuple[str, torch.Tensor, Violation]]:
        """Each violation with its name and its multipliers."""
        try:
            held = self._parameters
            return [(name, held[name], violation) for name, violation in violations.items()]  # type: ignore[misc]
        except AttributeError:
            kind = type(violations).__name__
            raise TypeError(f"violations must map constraint names to tensors, but a {kind} came") from None
        except KeyError as unknown:
            known = ", ".join(repr(name) for name in self.constraints)
            raise KeyError(
                f"violations has {unknown}, which is no constraint here; they are {known}"
            ) from None
