"""The Lagrangian of a constrained problem: its multipliers, its value, and how a dual optimizer moves it."""

from __future__ import annotations

from copy import deepcopy
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import torch
from torch import nn

from nupi import distributed
from nupi.agreement import Seals, check_problem
from nupi.ascent import breaks_graph, check_dual, host_may_look, take_guarded_step, take_step
from nupi.checkpoints import check_multipliers, note_kinds, taken
from nupi.constraints import Constraint, check_constraints
from nupi.foreign import as_taken
from nupi.guard import Look, NonFiniteViolationError, refuse_non_finite
from nupi.joint import Joint
from nupi.seen import Here, seen_here
from nupi.violations import Move, Violation, as_move, weighted

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch.distributed import ProcessGroup

    from nupi.agreement import Vow

Violations: TypeAlias = "Mapping[str, Violation]"


class Lagrangian(nn.Module):
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
    _whole = False  # whether a checkpoint that is being loaded must have these constraints and no others

    def __init__(
        self,
        constraints: Mapping[str, Constraint],
        *,
        reduce: distributed.Reduce | None = None,
        group: ProcessGroup | None = None,
    ) -> None:
        super().__init__()
        check_constraints(constraints)
        if reduce is not None and reduce not in distributed.REDUCES:
            raise ValueError(f'reduce must be "mean", "sum" or None, but {reduce!r} came')
        self.reduce, self.group = reduce, group
        # Sorted, so that parameters() has one order however the mapping was written: an optimizer's
        # checkpoint knows its parameters by position alone.
        self.constraints: dict[str, Constraint] = dict(sorted(constraints.items()))
        self.register_buffer("_refused", torch.zeros(len(constraints), dtype=torch.bool), persistent=False)
        for name, constraint in self.constraints.items():
            # register_parameter refuses dots, and layer names have them. A multiplier's gradient is its
            # violation, which ascend hands over, so autograd need not track it.
            self._parameters[name] = nn.Parameter(constraint.start(), requires_grad=False)
        self._look: Look | None = None
        self._unheard = False  # whether a device may have refused something since the host last looked

    @property
    def multipliers(self) -> dict[str, torch.Tensor]:
        """The multipliers by constraint name. They are the live tensors: clone what you want to keep."""
        return {name: self._multiplier(name).detach() for name in self.constraints}

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

    def check(self) -> None:
        """Raise if a violation was refused that has not been reported yet; waits for the device.

        An eager `ascend` on the CPU raises at once. On an accelerator, and where it is compiled, `ascend` does not
        wait, and a later eager call reports; use this before trusting the last steps, as at a checkpoint.
        """
        self._report(wait=True)

    def extra_repr(self) -> str:
        """One line a group: its kind, its size, where its multipliers are."""
        return "\n".join(
            f"{name}: {constraint!r} at {_summary(self._multiplier(name))}"
            for name, constraint in self.constraints.items()
        )

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

    def __setattr__(self, name: str, value: Any) -> None:
        """Set a plain attribute: `Module` would take one for the multiplier of a constraint of its name."""
        object.__setattr__(self, name, value)

    def __deepcopy__(self, memo: dict[int, Any]) -> Lagrangian:
        """A copy with multipliers of its own and the same process group, which cannot be copied."""
        memo[id(self.group)] = self.group
        copied = type(self).__new__(type(self))
        memo[id(self)] = copied
        copied.__dict__.update(deepcopy(self.__dict__, memo))
        return copied

    def _flags(self) -> torch.Tensor:
        """Which constraints have been refused on the device, one boolean each."""
        return cast("torch.Tensor", self._buffers["_refused"])

    def _multiplier(self, name: str) -> torch.Tensor:
        return cast("torch.Tensor", self._parameters[name])

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

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> Lagrangian:  # noqa: FBT001, FBT002 - torch's signature
        """As for any module (`to`, `cuda`, `half`, …), but a multiplier is never narrowed below float32."""
        before = {name: self._multiplier(name).data for name in self.constraints}
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for name, data in before.items():
            multiplier = self._multiplier(name)
            if multiplier.dtype.itemsize < torch.float32.itemsize:
                multiplier.data = data.to(multiplier.device)
        self._clear_flags()  # to_empty leaves any bits in them
        return self

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:  # noqa: FBT001 - torch's
        super()._save_to_state_dict(destination, prefix, keep_vars)
        note_kinds(self.constraints, destination, prefix)

    def load_state_dict(
        self,
        state_dict: Mapping[str, Any],
        strict: bool = True,  # noqa: FBT001, FBT002 - torch's signature
        assign: bool = False,  # noqa: FBT001, FBT002 - torch's signature
    ) -> Any:
        """As for any module, but a checkpoint of another problem is refused before anything of it is loaded."""
        self._whole = strict
        try:
            return super().load_state_dict(state_dict, strict, assign)
        finally:
            self._whole = False

    def _load_from_state_dict(
        self,
        state_dict: dict[str, Any],
        prefix: str,
        local_metadata: dict[str, Any],
        strict: bool,  # noqa: FBT001 - torch's signature
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        """Load the multipliers that are there, or raise and load none of them.

        What is absent or unknown is for torch to judge, as with any part of a larger module: it alone knows whether
        the load is strict (`strict` is always True here), and says so once every part has been asked.
        """
        for hook in self._load_state_dict_pre_hooks.values():
            hook(state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs)
        # Taken out: torch would leave it there, and the next load of the same checkpoint would assign as well.
        assign = local_metadata.pop("assign_to_params_buffers", False)
        saved = {key.removeprefix(prefix): v for key, v in state_dict.items() if key.startswith(prefix)}
        check_multipliers(self.constraints, saved, local_metadata, whole=self._whole, within=bool(prefix))
        for name in (name for name in self.constraints if name in saved):
            self._parameters[name] = taken(name, self._multiplier(name), saved[name], assign=assign)
        missing_keys += [prefix + name for name in self.constraints if name not in saved]
        unexpected_keys += [prefix + name for name in saved if name not in self.constraints]
        self._clear_flags()

    def _clear_flags(self) -> None:
        """Have the flags where the multipliers are, and down unless some went up that nobody has heard of."""
        device = next(iter(self.multipliers.values())).device
        if self._flags().is_meta or not (self._unheard or self._look):
            self._buffers["_refused"] = torch.zeros(len(self.constraints), dtype=torch.bool, device=device)


def _summary(multiplier: torch.Tensor) -> str:
    """Where a group's multipliers are, in a few characters."""
    if multiplier.is_meta:
        return "meta"
    if multiplier.numel() == 1:
        return f"{multiplier.item():.4g}"
    low, high = torch.aminmax(multiplier)
    return f"{low.item():.4g} … {high.item():.4g}"
