"""Copy violations and multipliers at every `ascend`, with one copy; turn many steps at once into rows of the record."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

from nupi.monitor import statistics
from nupi.monitor.buffer import Buffer
from nupi.monitor.worst import Worst
from nupi.rule import widened

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Protocol

    from nupi.monitor.columns import Columns, Group

    class Move(Protocol):
        """One group of multipliers after a step, and the error of that step."""

        @property
        def name(self) -> str: ...  # noqa: D102
        @property
        def multiplier(self) -> torch.Tensor: ...  # noqa: D102
        @property
        def error(self) -> torch.Tensor: ...  # noqa: D102
        @property
        def rows(self) -> torch.Tensor | None: ...  # noqa: D102


# Processing a block takes about a millisecond, whatever its size, so a block has many steps. The first one is shorter,
# so that an early problem is warned of early.
FIRST_BLOCK, BLOCK = 256, 512  # steps in a block,
_VALUES = 2**20  # or fewer, so that at most this many numbers wait,
_PARTS = 512  # and at most this many parts of groups


class Part(NamedTuple):
    """Some rows of a group, in one step."""

    name: str
    rows: torch.Tensor
    errors: torch.Tensor
    multipliers: torch.Tensor


class Sample(NamedTuple):
    """The copied values of one step."""

    step: int
    names: tuple[str, ...]  # the groups of which the step had all constraints,
    values: torch.Tensor | None  # and all their errors, followed by all their multipliers
    parts: tuple[Part, ...]


class Plan(NamedTuple):
    """Which values of samples go to which columns; the same for all samples with the same names."""

    size: int  # the number of all errors
    source: torch.Tensor  # the positions of the errors that are recorded constraint by constraint
    violations: torch.Tensor  # and their columns
    multipliers: torch.Tensor
    larger: tuple[tuple[Group, slice], ...]  # the groups that have statistics, and their positions


class Sampler:
    """Collects samples of steps, and makes rows of them in blocks."""

    def __init__(self, columns: Columns) -> None:
        self.columns = columns
        self.waiting: list[Sample] = []
        self._worst: dict[str, Worst] = {}
        self._last: dict[str, torch.Tensor] = {}  # the multipliers of larger groups after the last block
        self._plans: dict[tuple[tuple[str, ...], torch.device], Plan] = {}
        self._room, self._block = _VALUES, FIRST_BLOCK
        self._buffer: Buffer | None = None  # samples with one group wait here instead
        # Kept from block to block, because new memory costs more than the work in it.
        self._scratch = torch.empty(0)

    @property
    def empty(self) -> bool:
        """Whether no sample waits."""
        return not self.waiting and (self._buffer is None or not self._buffer.steps)

    def take(self, step: int, moves: Sequence[Move]) -> bool:
        """Copy the values of a step. Returns whether there are enough samples for a block of rows."""
        if len(moves) == 1:
            (move,) = moves
            if move.rows is None and move.error.dim() == 1:
                buffer = self._buffer or self._begin_buffer(move)
                if buffer.name == move.name and buffer.put(step, move.error, move.multiplier):
                    self._room -= buffer.width
                    return len(buffer.steps) + len(self.waiting) >= self._block or self._room < 0
                if buffer.name == move.name:  # its type has changed
                    self._drop_buffer()
        names, found, parts = _sorted_out(moves)
        values = torch.cat(found) if found else None
        self.waiting.append(Sample(step, names, values, parts))
        if values is not None:
            self._room -= values.numel()
        waiting = len(self.waiting) + (len(self._buffer.steps) if self._buffer else 0)
        return waiting >= self._block or self._room < 0 or len(parts) * waiting > _PARTS

    def rows(self) -> tuple[list[int], torch.Tensor]:
        """The rows of all waiting samples, on their device, and their steps (in no particular order)."""
        samples, self.waiting = self.waiting, []
        self._room, self._block = _VALUES, BLOCK
        by_names: dict[tuple[str, ...], list[Sample]] = {}
        for sample in samples:
            by_names.setdefault(sample.names, []).append(sample)
        ordered = [sample for same in by_names.values() for sample in same]
        steps = [sample.step for sample in ordered]
        blocks = [(names, _joined(same)) for names, same in by_names.items()]
        buffer = self._buffer
        if buffer is not None:
            steps += buffer.steps
            blocks.append(((buffer.name,), buffer.written()))
        device = _device(ordered[0]) if ordered else blocks[-1][1].device
        # Apple's devices have no float64.
        dtype = torch.float32 if device.type == "mps" else torch.float64
        out = torch.full((len(steps), self.columns.count), torch.nan, dtype=dtype, device=device)
        start = 0
        for names, values in blocks:
            if names and len(values):
                # Statistics in double would take twice the time for large groups; only the rows are double.
                self._fill(out[start : start + len(values)], names, values.to(widened(values.dtype)))
            start += len(values)
        self._fill_parts(out, ordered)
        if buffer is not None and not buffer.steps:
            self._buffer = None  # the loop now has other groups
        elif buffer is not None:
            buffer.steps = []
        return steps, out

    def _begin_buffer(self, move: Move) -> Buffer:
        values = torch.cat((move.error, move.multiplier))
        rows = min(BLOCK, _VALUES // max(1, len(values)) + 1)
        self._buffer = Buffer(move.name, values, rows)
        return self._buffer

    def _drop_buffer(self) -> None:
        """Move the samples of the buffer to the other waiting samples, before the next one."""
        buffer, self._buffer = self._buffer, None
        if buffer is not None:
            rows = zip(buffer.steps, buffer.written(), strict=True)
            self.waiting += [Sample(step, (buffer.name,), row, ()) for step, row in rows]

    def _fill(self, out: torch.Tensor, names: tuple[str, ...], values: torch.Tensor) -> None:
        plan = self._plan(names, values.device)
        both = values.view(len(values), 2, plan.size)
        errors, multipliers = both.unbind(1)
        if len(plan.source):
            out.index_copy_(1, plan.violations, errors.index_select(1, plan.source).to(out.dtype))
            out.index_copy_(1, plan.multipliers, multipliers.index_select(1, plan.source).to(out.dtype))
        for group, place in plan.larger:
            e, theta = errors[:, place], multipliers[:, place]
            assert group.statistics is not None
            scratch = self._scratch_for(e)
            moved = statistics.moved(theta, self._last.get(group.name), scratch)
            self._last[group.name] = theta[-1].clone()
            active = statistics.active(theta, scratch)
            rows = statistics.of_whole(both[:, :, place], active, moved)
            out[:, group.statistics : group.statistics + rows.shape[1]] = rows
            if group.indices is not None:
                seen = self._worst_of(group, out.device).see_whole(e, theta, out.dtype)
                out[:, group.violations : group.violations + seen.shape[1]] = seen

    def _scratch_for(self, like: torch.Tensor) -> torch.Tensor:
        """Memory for values of the same number, type and device."""
        scratch = self._scratch
        if scratch.numel() < like.numel() or scratch.dtype != like.dtype or scratch.device != like.device:
            self._scratch = scratch = like.new_empty(like.numel())
        return scratch[: like.numel()].view(like.shape)

    def _fill_parts(self, out: torch.Tensor, samples: Sequence[Sample]) -> None:
        by_name: dict[str, list[tuple[int, Part]]] = {}
        for row, sample in enumerate(samples):
            for part in sample.parts:
                by_name.setdefault(part.name, []).append((row, part))
        for name, parts in by_name.items():
            group = self.columns.groups[name]
            width = max(1, parts[0][1].errors[:1].numel())  # constraints per row of the group
            errors = torch.cat([part.errors.reshape(-1) for _, part in parts]).to(out)
            theta = torch.cat([part.multipliers.reshape(-1) for _, part in parts]).to(out)
            step = torch.cat(
                [torch.full((part.errors.numel(),), row, device=out.device) for row, part in parts]
            )
            inside = torch.arange(width, device=out.device)
            element = torch.cat([(part.rows[:, None] * width + inside).reshape(-1) for _, part in parts])
            if group.statistics is not None:
                rows = statistics.of_parts(errors, theta, step, len(out))
                place = out[:, group.statistics : group.statistics + rows.shape[1]]
                place.copy_(torch.where(rows[:, :1].isnan(), place, rows))
            if group.indices is not None:
                seen = self._worst_of(group, out.device).see_parts(errors, theta, element, step, len(out))
                place = out[:, group.violations : group.violations + seen.shape[1]]
                place.copy_(torch.where(place.isnan(), seen, place))
            else:
                for first, values in ((group.violations, errors), (group.multipliers, theta)):
                    out.index_put_((step, first + element), values)

    def _worst_of(self, group: Group, device: torch.device) -> Worst:
        worst = self._worst.get(group.name)
        if worst is None or worst.indices.device != device:
            worst = self._worst[group.name] = Worst(device)
        return worst

    def _plan(self, names: tuple[str, ...], device: torch.device) -> Plan:
        plan = self._plans.get((names, device))
        if plan is not None:
            return plan
        source, violations, multipliers, larger = [], [], [], []
        start = 0
        for name in names:
            group = self.columns.groups[name]
            stop = start + group.size
            if group.indices is None:
                source.append(torch.arange(start, stop, device=device))
                first, second = group.violations, group.multipliers
                violations.append(torch.arange(first, first + group.size, device=device))
                multipliers.append(torch.arange(second, second + group.size, device=device))
            if group.statistics is not None:
                larger.append((group, slice(start, stop)))
            start = stop
        none = [torch.arange(0, device=device)]
        plan = Plan(
            start,
            torch.cat(source or none),
            torch.cat(violations or none),
            torch.cat(multipliers or none),
            tuple(larger),
        )
        if len(self._plans) >= BLOCK:  # a loop with other groups in every step must not fill the memory
            self._plans.clear()
        self._plans[names, device] = plan
        return plan


def _sorted_out(
    moves: Sequence[Move],
) -> tuple[tuple[str, ...], list[torch.Tensor], tuple[Part, ...]]:
    """Separate groups that the step has as a whole, with their tensors, from those of which it has some rows."""
    whole = [move for move in moves if move.rows is None]
    names = tuple([move.name for move in whole])
    tensors = [move.error.reshape(-1) for move in whole]
    tensors += [move.multiplier.detach().reshape(-1) for move in whole]
    parts = tuple(
        Part(move.name, move.rows, move.error.clone(), move.multiplier.detach().index_select(0, move.rows))
        for move in moves
        if move.rows is not None
    )
    if len(whole) > 1 and len({tensor.device for tensor in tensors}) > 1:
        home = tensors[0].device
        tensors = [tensor.to(home, non_blocking=True) for tensor in tensors]
    return names, tensors, parts


def _joined(samples: Sequence[Sample]) -> torch.Tensor:
    """The values of samples with the same names, (samples, values); no values if all groups are in parts."""
    found = [sample.values for sample in samples if sample.values is not None]
    return torch.stack(found) if found else torch.empty(len(samples), 0)


def _device(sample: Sample) -> torch.device:
    return sample.values.device if sample.values is not None else sample.parts[0].errors.device
