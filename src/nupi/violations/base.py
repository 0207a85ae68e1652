"""The two basic kinds of violations, for a whole group and for some of its rows, and the checks of both."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import torch

from nupi.rule import rows_like, widened
from nupi.violations.kind import Move, Parts, Reduce, Violation

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from nupi.constraints import Constraint


class Written:
    """The tensors that a step may write to, and their storages (found once, on first use).

    Args:
        multipliers: all multipliers of the problem.
        dual: the optimizer that will move them, or None.
    """

    def __init__(self, multipliers: Mapping[str, torch.Tensor | None], dual: object = None) -> None:
        self._multipliers, self._dual = multipliers, dual
        self._storages: set[int] | None = None

    def shares(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor shares its storage with a multiplier, or with state of the dual optimizer."""
        if self._storages is None:
            self._storages = storages(self._multipliers.values())
            for state in getattr(self._dual, "state", _NO_STATE).values():
                self._storages |= storages(state.values())
        return tensor.untyped_storage().data_ptr() in self._storages


_NO_STATE: dict[object, dict[str, object]] = {}


def storages(held: Iterable[object]) -> set[int]:
    """The storages of tensors, also of tensors in nested lists and dictionaries.

    Sparse tensors are left out: no step writes to them.
    """
    found = set()
    for each in held:
        if isinstance(each, torch.Tensor):
            if not each.is_sparse:
                found.add(each.untyped_storage().data_ptr())
        elif isinstance(each, (list, tuple, dict)):
            found |= storages(each.values() if isinstance(each, dict) else each)
    return found


class Target(NamedTuple):
    """The group of constraints that a violation belongs to; the Lagrangian passes it to `term` and `error`.

    Attributes:
        name: the name of the group.
        constraint: its kind, such as a `nupi.Inequality`.
        multiplier: its multipliers.
        written: the tensors that the next step may write to.
        penalty: the penalty of the augmented Lagrangian, or None.

    Example:
        >>> import nupi
        >>> theta = torch.tensor([2.0])
        >>> target = Target("rate", nupi.Inequality(), theta, Written({"rate": theta}))
        >>> Dense(torch.tensor([0.5])).term(target)  # theta c
        tensor(1.)
        >>> target.move(torch.tensor([0.5])).error
        tensor([0.5000])
    """

    name: str
    constraint: Constraint
    multiplier: torch.Tensor
    written: Written
    penalty: float | None = None

    def move(
        self,
        error: torch.Tensor,
        rows: torch.Tensor | None = None,
        mask: torch.Tensor | None = None,
        *,
        partial: bool = False,
        fresh: bool = False,
    ) -> Move:
        """The move of this group by an error, in the multipliers' dtype.

        If the error shares its storage with a multiplier or with state of the dual optimizer, it is copied: otherwise
        it would change while it is read. `fresh` says that it was just computed, so that no copy is needed.
        """
        if error.dtype != self.multiplier.dtype:
            error = error.to(self.multiplier.dtype)
        # A compiled step copies every error before it writes.
        elif not fresh and not torch.compiler.is_compiling() and self.written.shares(error):
            error = error.clone()
        return Move(self.name, self.multiplier, error, self.constraint.bounds, rows, mask, partial)


class Dense(Violation):
    """A tensor with one violation for each constraint of a group; a plain tensor is wrapped in it.

    It is c in L(x, theta) = f(x) + sum of theta_i c_i. Your own kind of violation can make a `Dense`, and use its
    `term` and `error`.

    Example:
        >>> import nupi
        >>> lagrangian = nupi.Lagrangian({"rate": nupi.Inequality(2)})
        >>> dual = nupi.NuPI(lagrangian.parameters(), ki=0.1)
        >>> lagrangian.ascend(dual, {"rate": Dense(torch.tensor([0.5, -0.5]))})
        >>> lagrangian.multipliers["rate"]
        tensor([0.0500, 0.0000])
    """

    label: ClassVar[str] = "a tensor"

    def __init__(self, values: torch.Tensor) -> None:
        self.values = values

    def term(self, target: Target) -> torch.Tensor:
        """The term theta . c(x), or its augmented form."""
        return target.constraint.term(
            target.multiplier, target.constraint.errors(self.checked(target)), target.penalty
        )

    def error(self, target: Target) -> Move:
        """The violation itself."""
        values = self.checked(target)
        error = target.constraint.errors(values.detach())
        return target.move(error, fresh=values.requires_grad and not values.is_leaf)

    def measured(self, constraint: Constraint) -> torch.Tensor:  # noqa: ARG002
        """The violations of the whole group."""
        return self.values.detach()

    def adds_up(self, reduce: Reduce) -> bool:
        """Decided by `reduce`."""
        return reduce == "sum"

    def detached(self) -> Dense:
        """The values without their graph."""
        return Dense(self.values.detach())

    @classmethod
    def average(cls, several: Sequence[Dense], batches: int, constraint: Constraint | None) -> Dense:  # noqa: ARG003
        """The mean over the micro-batches that had it."""
        return Dense(torch.stack([wide(each.values) for each in several]).mean(0))

    def parts(self, target: Target) -> Parts:
        """The values."""
        return Parts(exact(self.checked(target)))

    @classmethod
    def joined(cls, target: Target, total: Parts, ranks: int, reduce: Reduce) -> Move:
        """The sum or the mean over the processes that had this violation."""
        return target.move(
            target.constraint.errors(total.values / ranks if reduce == "mean" else total.values)
        )

    def checked(self, target: Target) -> torch.Tensor:
        """The values, refused unless they have the group's shape; a scalar may stand for a single constraint."""
        values, shape = self.values, target.constraint.shape
        if values.layout != torch.strided:
            raise TypeError(
                f"the violation of {target.name!r} is a sparse tensor; give its parts as Indexed(values, indices)"
            )
        if values.dtype != target.multiplier.dtype or values.device != target.multiplier.device:
            check_values(target, values)
        if values.shape == shape:
            return values
        if values.dim() == 0 and shape.numel() == 1:
            return values.reshape(shape)
        raise ValueError(
            f"the violation of {target.name!r} has shape {tuple(values.shape)}, but its group has shape "
            f"{tuple(shape)}; {target.constraint.shapes}"
        )


@dataclass(frozen=True, eq=False)
class Indexed(Violation):
    """Violations of some constraints of a group, such as those of a batch. A step costs what the batch costs.

    With v_k the values and i_k the indices,

        L(x, theta) = f(x) + sum over k of theta[i_k] v_k

    Args:
        values: the violations of these constraints, one for each: shaped like `group[indices]`.
        indices: the numbers of these constraints: a 1-D integer tensor. If an index occurs twice, both values are added
            to that constraint's violation, as they are in the gradient of the Lagrangian.

    Example:
        >>> Indexed(torch.tensor([0.5, -0.1]), torch.tensor([7, 2]))
        Indexed(2 values at [7, 2])
    """

    by_rows: ClassVar[bool] = True

    values: torch.Tensor
    indices: torch.Tensor

    def __post_init__(self) -> None:
        if not isinstance(self.values, torch.Tensor) or not isinstance(self.indices, torch.Tensor):
            raise TypeError(
                f"Indexed takes two tensors, but values is a {type(self.values).__name__} and indices a "
                f"{type(self.indices).__name__}; wrap them in torch.tensor"
            )
        if self.indices.dtype == torch.bool:
            raise TypeError(
                "indices is a boolean mask; pass the positions instead: mask.nonzero().squeeze(1), "
                "with values[mask] if the values are of the whole group"
            )
        if self.indices.is_floating_point() or self.indices.is_complex():
            raise TypeError(f"indices must be integers, but they are {self.indices.dtype}; use .long()")
        if self.indices.dim() != 1 or self.values.dim() < 1 or len(self.values) != len(self.indices):
            raise ValueError(
                f"indices has shape {tuple(self.indices.shape)} and values {tuple(self.values.shape)}; "
                "there must be one row of values per index"
            )

    def __repr__(self) -> str:
        few = self.indices[:8].tolist()
        more = ", …" if len(self.indices) > len(few) else ""
        return f"Indexed({len(self.indices)} values at [{', '.join(map(str, few))}{more}])"

    def term(self, target: Target) -> torch.Tensor:
        """The sum of theta . c(x) over these rows."""
        values, rows = self.checked(target)
        theta = target.multiplier.index_select(0, rows)
        return target.constraint.term(theta, target.constraint.errors(values), target.penalty)

    def error(self, target: Target) -> Move:
        """The errors of these rows; the errors of a row that occurs several times are added."""
        values, rows = self.checked(target)
        return self.added_up(target, values.detach(), rows)

    def measured(self, constraint: Constraint) -> torch.Tensor | None:
        """The values, if every row of the group is among them."""
        return self.values.detach() if len(self.indices.unique()) == constraint.shape[0] else None

    def adds_up(self, reduce: Reduce) -> bool:  # noqa: ARG002
        """Rows of all processes are added, with either value of `reduce`."""
        return True

    def detached(self) -> Indexed:
        """The values without their graph."""
        return Indexed(self.values.detach(), self.indices)

    @classmethod
    def average(
        cls, several: Sequence[Indexed], batches: int, constraint: Constraint | None
    ) -> Indexed | None:
        """All rows, divided by the number of micro-batches; None if the errors are not the violations themselves."""
        if constraint is not None and constraint.multiplier_shape != constraint.shape:
            return None
        values = torch.cat([wide(each.values) for each in several]) / batches
        return Indexed(values, torch.cat([each.indices for each in several]))

    def parts(self, target: Target) -> Parts:
        """The values added into a tensor of the group's shape, and how often each row occurs."""
        values, rows = self.checked(target)
        values, shape = exact(values), target.constraint.shape
        whole, count = values.new_zeros(shape), values.new_zeros(shape[:1])
        whole.index_add_(0, rows, values)
        count.index_add_(0, rows, torch.ones_like(rows, dtype=values.dtype))
        return Parts(whole, count)

    @classmethod
    def joined(cls, target: Target, total: Parts, ranks: int, reduce: Reduce) -> Move | None:  # noqa: ARG003
        """The errors of the rows that any process had."""
        assert total.weights is not None
        rows = total.weights.nonzero().squeeze(1)
        if not len(rows):
            return None
        values = total.values.index_select(0, rows)
        # An error is affine in the violation: the total of n values has its constant part once, but needs it n times.
        missing = target.constraint.errors(torch.zeros_like(values))
        times = total.weights.index_select(0, rows) - 1
        return target.move(target.constraint.errors(values) + rows_like(times, missing) * missing, rows)

    @classmethod
    def added_up(cls, target: Target, values: torch.Tensor, rows: torch.Tensor) -> Move:
        """The errors of rows that may occur several times, with one total for each row."""
        error = target.constraint.errors(values).to(target.multiplier.dtype)
        if torch.compiler.is_compiling():
            error, rows = _totals(error, rows)
        else:
            whole = torch.sparse_coo_tensor(
                rows.unsqueeze(0), error, target.multiplier.shape, check_invariants=False
            ).coalesce()
            error, rows = whole.values(), whole.indices()[0]
        return target.move(error, rows)

    def checked(self, target: Target) -> tuple[torch.Tensor, torch.Tensor]:
        """Values and int64 indices; refused unless the indices are in the group and the values fit its rows."""
        values, rows, shape = self.values, self.indices, target.constraint.shape
        check_values(target, values)
        check_device(f"the indices of {target.name!r}", rows, target)
        if not shape or values.shape[1:] != shape[1:]:
            raise ValueError(
                f"the values of {target.name!r} have shape {tuple(values.shape)}, which are not rows of its group of "
                f"shape {tuple(shape)}; give one row of the group per index"
            )
        rows = rows.to(torch.int64)
        if host_may_read(rows):
            low, high = torch.aminmax(rows) if len(rows) else (0, 0)
            if low < 0 or high >= shape[0]:
                raise IndexError(
                    f"the indices of {target.name!r} run from {int(low)} to {int(high)}, but its constraints are "
                    f"numbered 0 to {shape[0] - 1}; check them, or make the group larger"
                )
            return values, rows
        # If the host may not read values, a wrong index becomes a violation that is not finite, which is refused.
        inside = (rows >= 0) & (rows < shape[0])
        return torch.where(rows_like(inside, values), values, torch.nan), torch.where(inside, rows, 0)


def as_violation(name: str, given: Any) -> Violation:
    """The violation itself, or a plain tensor wrapped in `Dense`.

    Example:
        >>> type(as_violation("rate", torch.tensor([0.5]))).__name__
        'Dense'
    """
    if isinstance(given, torch.Tensor):
        return Dense(given)
    if isinstance(given, Violation):
        return given
    fix = "give the tensor itself, without .item() or .numpy(), so that gradients reach the model"
    if callable(given):
        fix = "call it, and give the tensor that it returns"
    raise TypeError(
        f"the violation of {name!r} must be a tensor, Indexed, Averaged or Measured, but it is a "
        f"{type(given).__name__}; {fix}"
    )


def wide(values: torch.Tensor) -> torch.Tensor:
    """Values in float32 or wider, so that they can be added."""
    return values.to(widened(values.dtype))


def exact(values: torch.Tensor) -> torch.Tensor:
    """Values in float64 without their graph; in float32 on Apple's devices, which have no float64."""
    return values.detach().to(torch.float32 if values.device.type == "mps" else torch.float64)


def host_may_read(tensor: torch.Tensor) -> bool:
    """Whether the host can read this tensor's values without waiting for a device or breaking a compiled graph."""
    return tensor.is_cpu and not torch.compiler.is_compiling()


def check_values(target: Target, values: torch.Tensor) -> None:
    """Refuse values that are not real numbers, or are on another device than the multipliers."""
    if not values.is_floating_point():
        fix = "take its real part" if values.is_complex() else "use .float()"
        raise TypeError(f"the violation of {target.name!r} is {values.dtype}, not floating-point; {fix}")
    check_device(f"the violation of {target.name!r}", values, target)


def check_device(what: str, tensor: torch.Tensor, target: Target) -> None:
    """Refuse a tensor that is on another device than the multipliers."""
    if tensor.device != target.multiplier.device:
        raise ValueError(
            f"{what} is on {tensor.device}, but its multiplier is on {target.multiplier.device}; "
            f"move the multipliers with lagrangian.to({str(tensor.device)!r})"
        )


def _totals(error: torch.Tensor, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The total of a row, at each place where the row occurs. These shapes do not depend on values (for compiling)."""
    rows, order = torch.sort(rows, stable=True)
    new = torch.ones_like(rows)
    new[1:] = rows[1:] != rows[:-1]
    number = new.cumsum(0) - 1
    totals = torch.zeros_like(error).index_add(0, number, error.index_select(0, order))
    return totals.index_select(0, number), rows
