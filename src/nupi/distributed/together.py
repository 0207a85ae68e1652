"""The violations of many processes, joined in one message.

Every rank turns what it saw of a constraint into values and weights that add up over ranks:

| violation                 | values      | weights     | joined                                      |
| ------------------------- | ----------- | ----------- | ------------------------------------------- |
| a tensor, reduce="mean"   | c           |             | sum of values / number of ranks that saw it |
| a tensor, reduce="sum"    | c           |             | sum of values                               |
| `Averaged(sums, counts)`  | sums        | counts      | sum of values / sum of weights              |
| `Indexed(values, indices)`| row by row  | times seen  | sum of values, in the rows that were seen   |
| absent                    | 0           | 0           |                                             |

All of it, with a header that says what each rank has and whether it refused its input, travels in one
all-reduce in double precision. Its layout is fixed by the constraints alone, so the order in which a rank
names its violations, and which it has, cannot put two ranks out of step. What all ranks then see is the same
to the bit: they move, or refuse, together. Only groups of more than `SMALL` multipliers, for which a fixed
place would waste bandwidth, travel in a second round, of exactly what the header announced.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from nupi.distributed import PeerRefusedError, Reduce, world_size
from nupi.distributed.drift import Vow
from nupi.distributed.seen import KINDS, Here, Seen
from nupi.violations.base import Move, averaged, gathered

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from torch.distributed import ProcessGroup

SMALL = 4096  # multipliers; a double each is no more than the latency of a message


class Joint:
    """The violations of one step of all ranks, joined. The ranks of `group` hold the same multipliers.

    Args:
        multipliers: every group of the problem by name, in an order that all ranks share.
        reduce: how plain tensors join.
        group: the process group, or None for the default one.
    """

    def __init__(
        self, multipliers: Mapping[str, torch.Tensor], reduce: Reduce, group: ProcessGroup | None
    ) -> None:
        self.multipliers, self.reduce, self.group = multipliers, reduce, group
        self.ranks = world_size(group)
        self.rank = torch.distributed.get_rank(group)
        self.small = {name: m for name, m in multipliers.items() if m.numel() <= SMALL}
        self.large = {name: m for name, m in multipliers.items() if m.numel() > SMALL}

    def join(self, look: Callable[[], Here], settle: Callable[[list[Vow]], None]) -> list[Move]:
        """Join what `look` finds here with what it finds elsewhere; if it raises anywhere, all ranks raise.

        Args:
            look: checks this rank's input, and returns it.
            settle: is called with the vows of all ranks, by rank; on all ranks, or, if one refused, on none.
        """
        mine = Here({}, set(), Vow(changed=False, options=0))
        refusal: Exception | None = None
        try:
            mine = look()
        except Exception as error:  # noqa: BLE001 - the others are waiting: tell them first, then raise
            refusal = error
        here = mine.seen
        header = self._header(mine, refused=refusal is not None)
        slots = [self._slot(multiplier, here.get(name)) for name, multiplier in self.small.items()]
        buffer = torch.cat([header.to(self._device()), *slots])
        torch.distributed.all_reduce(buffer, group=self.group)
        refused, vows, present, lengths = self._read(buffer[: len(header)].tolist())
        if refusal is not None:
            raise refusal
        if refused:
            who = ", ".join(map(str, refused))
            raise PeerRefusedError(
                f"rank {who} refused its own input, and its error says why; rank {self.rank} had nothing "
                "against its own. No multiplier and no state was changed on any rank"
            )
        self._check_kinds(present)
        settle(vows)
        moves = dict(self._small_moves(buffer[len(header) :], present))
        moves.update(self._large_moves(here, present, lengths))
        return [moves[name] for name in self.multipliers if name in moves]

    def _device(self) -> torch.device:
        return next(iter(self.multipliers.values())).device

    def _header(self, mine: Here, *, refused: bool) -> torch.Tensor:
        """Who refused, and each vow; how many ranks have a constraint in each kind and can move it; whose rows."""
        here, movable, vow = mine
        numbers = [0.0] * (
            3 * self.ranks
        )  # every rank has a place of its own: a sum with zeros is what it said
        numbers[3 * self.rank : 3 * self.rank + 3] = float(refused), float(vow.changed), float(vow.options)
        for name in self.multipliers:
            kind = here[name].kind if name in here else None
            numbers += [float(kind == each) for each in range(len(KINDS))]
            numbers.append(float(name in movable))
        for name in self.large:
            rows = len(here[name].values) if name in here and here[name].kind == 1 else 0
            numbers += [float(rows if rank == self.rank else 0) for rank in range(self.ranks)]
        return torch.tensor(numbers, dtype=torch.float64)

    def _read(
        self, header: list[float]
    ) -> tuple[list[int], list[Vow], dict[str, list[int]], dict[str, list[int]]]:
        """The ranks that refused; the vow of each; by constraint the ranks of each kind, and the rows of each rank."""
        whole = iter([int(number) for number in header])
        words = [_take(whole, 3) for _ in range(self.ranks)]
        refused = [rank for rank, (flag, _, _) in enumerate(words) if flag]
        vows = [Vow(bool(changed), options) for _, changed, options in words]
        present = {name: _take(whole, len(KINDS) + 1) for name in self.multipliers}
        return refused, vows, present, {name: _take(whole, self.ranks) for name in self.large}

    def _check_kinds(self, present: Mapping[str, Sequence[int]]) -> None:
        """Raise unless all who have a constraint have it in one kind, and all ranks can move it."""
        for name, (*kinds, movable) in present.items():
            came = [f"{kind} on {count}" for kind, count in zip(KINDS, kinds, strict=True) if count]
            if len(came) > 1:
                raise ValueError(
                    f"the violation of {name!r} came as {' and as '.join(came)} of {self.ranks} ranks; "
                    "give it as the same kind on all of them. No rank has moved"
                )
            if came and movable < self.ranks:
                raise ValueError(
                    f"only {movable} of {self.ranks} ranks have a dual that holds the multiplier of {name!r}; "
                    "call ascend with the same optimizer on all of them. No rank has moved"
                )

    def _slot(self, multiplier: torch.Tensor, seen: Seen | None, *, weighted: bool = True) -> torch.Tensor:
        """The place of a group in the message: its values, then a weight for each of its rows."""
        if seen is not None and not weighted:
            return seen.values.reshape(-1)
        size = multiplier.numel() + weighted * _rows(multiplier)
        slot = torch.zeros(size, dtype=torch.float64, device=multiplier.device)
        if seen is None:
            return slot
        values, weights = slot[: multiplier.numel()].view(multiplier.shape), slot[multiplier.numel() :]
        if seen.kind == 1 and seen.weights is not None:
            values.index_add_(0, seen.weights, seen.values)
            weights.index_add_(0, seen.weights, torch.ones_like(seen.weights, dtype=torch.float64))
            return slot
        values.copy_(seen.values)
        if seen.weights is not None:
            weights.copy_(seen.weights.view(-1))
        return slot

    def _small_moves(
        self, buffer: torch.Tensor, present: Mapping[str, Sequence[int]]
    ) -> Iterator[tuple[str, Move]]:
        start = 0
        for name, multiplier in self.small.items():
            middle, end = start + multiplier.numel(), start + multiplier.numel() + _rows(multiplier)
            values, weights = buffer[start:middle].view(multiplier.shape), buffer[middle:end]
            start = end
            if not present[name][1]:
                yield from self._dense_move(name, values, weights, present[name])
            elif len(rows := weights.nonzero().squeeze(1)):
                yield name, Move(name, multiplier, values.index_select(0, rows).to(multiplier.dtype), rows)

    def _dense_move(
        self, name: str, values: torch.Tensor, weights: torch.Tensor, present: Sequence[int]
    ) -> Iterator[tuple[str, Move]]:
        multiplier = self.multipliers[name]
        if present[0]:
            error = values / present[0] if self.reduce == "mean" else values
            yield name, Move(name, multiplier, error.to(multiplier.dtype), None)
        elif present[2]:
            move = averaged(name, multiplier, values, weights.view(multiplier.shape[:1]))
            if move is not None:
                yield name, move

    def _large_moves(
        self,
        here: Mapping[str, Seen],
        present: Mapping[str, Sequence[int]],
        lengths: Mapping[str, Sequence[int]],
    ) -> Iterator[tuple[str, Move]]:
        """The second round: dense groups in an all-reduce, rows in an all-gather, each if there are any."""
        dense = [name for name in self.large if present[name][0] or present[name][2]]
        rows = [name for name in self.large if any(lengths[name])]
        if dense:
            # By now it is known who needs its weights: plain tensors do not.
            slots = [
                self._slot(self.large[name], here.get(name), weighted=not present[name][0]) for name in dense
            ]
            buffer = torch.cat(slots)
            torch.distributed.all_reduce(buffer, group=self.group)
            for name, slot in zip(dense, buffer.split([len(slot) for slot in slots]), strict=True):
                size = self.large[name].numel()
                values = slot[:size].view(self.large[name].shape)
                yield from self._dense_move(name, values, slot[size:], present[name])
        if rows:
            yield from self._gather_rows(rows, here, lengths)

    def _gather_rows(
        self, names: Sequence[str], here: Mapping[str, Seen], lengths: Mapping[str, Sequence[int]]
    ) -> Iterator[tuple[str, Move]]:
        """Every rank's rows of every group in one message a rank, padded to the longest."""
        parts = []
        for name in names:
            multiplier, seen = self.large[name], here.get(name)
            longest = max(lengths[name])
            # A row's number is exact in a double up to 2^53.
            packed = multiplier.new_zeros((longest, 1 + _width(multiplier)), dtype=torch.float64)
            if seen is not None and seen.weights is not None:
                packed[: len(seen.values), 0] = seen.weights.double()
                packed[: len(seen.values), 1:] = seen.values.reshape(len(seen.values), _width(multiplier))
            parts.append(packed.view(-1))
        sizes, mine = [len(part) for part in parts], torch.cat(parts)
        everyone = [torch.empty_like(mine) for _ in range(self.ranks)]
        torch.distributed.all_gather(everyone, mine, group=self.group)
        by_name = zip(*(rank.split(sizes) for rank in everyone), strict=True)
        for name, ranks in zip(names, by_name, strict=True):
            multiplier = self.large[name]
            tables = [part.view(-1, 1 + _width(multiplier)) for part in ranks]
            table = torch.cat([each[:n] for each, n in zip(tables, lengths[name], strict=True)])
            values = table[:, 1:].reshape(-1, *multiplier.shape[1:])
            yield name, gathered(name, multiplier, values, table[:, 0].long())


def _take(numbers: Iterator[int], count: int) -> list[int]:
    return [next(numbers) for _ in range(count)]


def _rows(multiplier: torch.Tensor) -> int:
    return len(multiplier) if multiplier.dim() else 1


def _width(multiplier: torch.Tensor) -> int:
    """How many multipliers a row of the group has."""
    return multiplier.numel() // _rows(multiplier)
