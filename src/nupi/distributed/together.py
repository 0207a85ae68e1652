"""Join the violations of all ranks in one message. Then all ranks move, or all refuse.

Every rank turns its violation of a constraint into values and weights, which are summed over ranks
(`Violation.parts`):

| violation                 | values      | weights     | joined                                      |
| ------------------------- | ----------- | ----------- | ------------------------------------------- |
| a tensor, reduce="mean"   | c           |             | sum of values / number of ranks that had it |
| a tensor, reduce="sum"    | c           |             | sum of values                               |
| `Averaged(sums, counts)`  | sums        | counts      | sum of values / sum of weights              |
| `Indexed(values, indices)`| row by row  | occurrences | sum of values, in the rows that occurred    |
| absent                    | 0           | 0           |                                             |

A header and these numbers are sent in one all-reduce in double precision. The layout depends only on the constraints,
not on which violations a rank has, or in which order. So ranks cannot misread each other, and the result is the same
to the bit on all. For a group of more than `SMALL` constraints a fixed place would waste bandwidth, so these are sent
in a second round, with the sizes that the header has announced.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from nupi.ascent import check_dual
from nupi.distributed import PeerRefusedError, world_size
from nupi.distributed.drift import compare, described, refuse_duals
from nupi.distributed.fingerprint import of_text
from nupi.distributed.header import Brought, Header, code_of, read, written
from nupi.optim.base import DualOptimizer
from nupi.violations import Parts, Violation

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch.distributed import ProcessGroup

    from nupi.distributed.drift import Drift
    from nupi.violations import Move, Target
    from nupi.violations.kind import Reduce

SMALL = 4096  # constraints; to send a double for each takes no longer than the latency of a message


class Together:
    """Joins the violations of all ranks in one step.

    Args:
        targets: every group of the problem by name, in the same order on all ranks.
        reduce: how plain tensors are joined: "mean" or "sum".
        group: the process group, or None for the default one.
    """

    def __init__(self, targets: Mapping[str, Target], reduce: Reduce, group: ProcessGroup | None) -> None:
        self.targets, self.reduce, self.group = targets, reduce, group
        self.ranks, self.rank = world_size(group), torch.distributed.get_rank(group)
        self.large = [name for name, target in targets.items() if target.constraint.shape.numel() > SMALL]
        self._confirm = False

    def join(
        self,
        dual: torch.optim.Optimizer,
        given: Mapping[str, Violation],
        refusal: Exception | None,
        drift: Drift,
    ) -> list[Move]:
        """The joined violations as moves, equal on all ranks. If any rank refuses, all raise.

        Args:
            dual: the optimizer that will move them.
            given: this rank's violations.
            refusal: the error of this rank's input, if it already has one.
            drift: whether this rank has changed since the ranks were last compared.
        """
        # 1. This rank's input. If it is an error, the others must be told before it is raised.
        brought = Brought()
        parts: dict[str, Parts] = {}
        try:
            if refusal is not None:
                raise refusal  # noqa: TRY301
            brought, parts = self._brought(dual, given, drift)
        except Exception as error:  # noqa: BLE001 - the others are waiting: tell them first, then raise
            refusal, brought = error, Brought(refused=True)

        # 2. One message for all small groups.
        names = list(self.targets)
        numbers = written(brought, names, self.large, self.rank, self.ranks)
        small = [name for name in names if name not in self.large]
        slots = [self._slot(self.targets[name], parts.get(name)) for name in small]
        device = next(iter(self.targets.values())).multiplier.device
        buffer = torch.cat([torch.tensor(numbers, dtype=torch.float64, device=device), *slots])
        torch.distributed.all_reduce(buffer, group=self.group)
        header = read(buffer[: len(numbers)].tolist(), names, self.large, self.ranks)

        # 3. All ranks refuse, or all continue.
        self._refuse_together(header, refusal, brought)
        multipliers = {name: target.multiplier for name, target in self.targets.items()}
        if len(set(header.dual)) > 1:
            refuse_duals(described(dual, multipliers), self.group)
        if any(header.changed):
            compare(multipliers, dual, self.group)
        self._confirm = any(header.confirm)

        # 4. Totals become moves; large groups need a second round.
        totals = dict(zip(small, buffer[len(numbers) :].split([len(slot) for slot in slots]), strict=True))
        rows = [name for name in self.large if any(header.rows[name])]
        whole = [name for name in self.large if header.present[name] and not self._kind(header, name).by_rows]
        totals |= self._add_up(whole, parts)
        moves = {
            name: self._joined(name, total, header) for name, total in totals.items() if header.present[name]
        }
        moves |= self._gather_rows(rows, given, header)
        return [move for name in names if (move := moves.get(name)) is not None]

    def confirm(self, failure: Exception | None) -> None:
        """After a step that could fail on one rank only: raise on all ranks if it failed on any."""
        if self._confirm:
            failed = torch.zeros(self.ranks, device=next(iter(self.targets.values())).multiplier.device)
            failed[self.rank] = float(failure is not None)
            torch.distributed.all_reduce(failed, group=self.group)
            if failure is None and failed.any():
                self._raise_for(failed.nonzero().squeeze(1).tolist(), "could not take the step")
        if failure is not None:
            raise failure

    def _brought(
        self, dual: torch.optim.Optimizer, given: Mapping[str, Violation], drift: Drift
    ) -> tuple[Brought, dict[str, Parts]]:
        """This rank's input, checked, as parts that can be summed."""
        multipliers = {name: target.multiplier for name, target in self.targets.items()}
        check_dual(dual, [(name, multipliers[name]) for name in given])
        held = {id(param) for group in dual.param_groups for param in group["params"]}
        parts, rows = {}, {}
        for name, violation in given.items():
            if violation.by_rows and name in self.large:
                rows[name] = len(violation.checked(self.targets[name])[0])  # type: ignore[attr-defined]
            else:
                parts[name] = violation.parts(self.targets[name])
        brought = Brought(
            changed=drift.changed(multipliers, dual),
            confirm=not isinstance(dual, DualOptimizer) or dual.watched,
            dual=of_text(str(described(dual, multipliers))),
            kinds={name: type(violation) for name, violation in given.items()},
            movable={name for name, multiplier in multipliers.items() if id(multiplier) in held},
            rows=rows,
        )
        return brought, parts

    def _refuse_together(self, header: Header, refusal: Exception | None, brought: Brought) -> None:
        """Raise if a rank refused, if kinds of a violation differ, or if not all ranks can move a constraint."""
        if refusal is not None:
            raise refusal
        if any(header.refused):
            refused = [rank for rank, flag in enumerate(header.refused) if flag]
            self._raise_for(refused, "refused its own input")
        for name, present in header.present.items():
            if present and header.code[name] is None:
                self._refuse_kinds(name, brought)
            if present and header.movable[name] < self.ranks:
                raise ValueError(
                    f"only {header.movable[name]} of {self.ranks} ranks have a dual that holds the multiplier of "
                    f"{name!r}; call ascend with the same optimizer on all of them. No rank has moved"
                )

    def _raise_for(self, ranks: Sequence[int], did: str) -> None:
        raise PeerRefusedError(
            f"rank {', '.join(map(str, ranks))} {did}, and its error says why; the input of rank {self.rank} was "
            "valid. No multiplier and no state was changed on any rank"
        )

    def _refuse_kinds(self, name: str, brought: Brought) -> None:
        """Raise with the kind of the violation on each rank. All ranks call this, knowing that the kinds differ."""
        labels: list[str | None] = [None] * self.ranks
        mine = brought.kinds[name].label if name in brought.kinds else None
        torch.distributed.all_gather_object(labels, mine, group=self.group)
        kinds = sorted({label for label in labels if label}, key=str.lower)
        came = " and as ".join(f"{label} on {labels.count(label)}" for label in kinds)
        raise ValueError(
            f"the violation of {name!r} came as {came} of {self.ranks} ranks; "
            "give it as the same kind on all of them. No rank has moved"
        )

    def _kind(self, header: Header, name: str) -> type[Violation]:
        """The kind of a violation, found by the code in the header."""
        return next(kind for kind in Violation.registry.values() if code_of(kind) == header.code[name])

    def _slot(self, target: Target, parts: Parts | None) -> torch.Tensor:
        """The part of a message for one group: its values, then a weight for each row."""
        shape = target.constraint.shape
        size, rows = shape.numel(), shape[0] if shape else 1
        slot = torch.zeros(size + rows, dtype=torch.float64, device=target.multiplier.device)
        if parts is not None:
            slot[:size] = parts.values.reshape(-1)
            if parts.weights is not None:
                slot[size:] = parts.weights.reshape(-1)
        return slot

    def _joined(self, name: str, slot: torch.Tensor, header: Header) -> Move | None:
        """The move of a group from the total over ranks."""
        target, shape = self.targets[name], self.targets[name].constraint.shape
        values, weights = slot[: shape.numel()].view(shape), slot[shape.numel() :].view(shape[:1])
        kind = self._kind(header, name)
        return kind.joined(target, Parts(values, weights), header.present[name], self.reduce)

    def _add_up(self, names: Sequence[str], parts: Mapping[str, Parts]) -> dict[str, torch.Tensor]:
        """The totals over ranks of large groups whose values are sent as a whole."""
        if not names:
            return {}
        slots = [self._slot(self.targets[name], parts.get(name)) for name in names]
        buffer = torch.cat(slots)
        torch.distributed.all_reduce(buffer, group=self.group)
        return dict(zip(names, buffer.split([len(slot) for slot in slots]), strict=True))

    def _gather_rows(
        self, names: Sequence[str], given: Mapping[str, Violation], header: Header
    ) -> dict[str, Move | None]:
        """The moves of large groups of which only some rows are sent: one message per rank, padded to the longest."""
        if not names:
            return {}
        packed = []
        for name in names:
            target = self.targets[name]
            width = target.constraint.shape[1:].numel()
            # A row's number is exact in a double up to 2^53.
            table = target.multiplier.new_zeros((max(header.rows[name]), 1 + width), dtype=torch.float64)
            if name in given:
                values, rows = given[name].checked(target)  # type: ignore[attr-defined]
                table[: len(rows), 0] = rows.double()
                table[: len(rows), 1:] = values.detach().double().reshape(len(rows), width)
            packed.append(table)
        mine = torch.cat([table.view(-1) for table in packed])
        everyone = [torch.empty_like(mine) for _ in range(self.ranks)]
        torch.distributed.all_gather(everyone, mine, group=self.group)
        by_name = zip(*(rank.split([table.numel() for table in packed]) for rank in everyone), strict=True)
        moves = {}
        for name, table, ranks in zip(names, packed, by_name, strict=True):
            target = self.targets[name]
            tables = [part.view(table.shape)[:n] for part, n in zip(ranks, header.rows[name], strict=True)]
            joined = torch.cat(tables)
            values = joined[:, 1:].reshape(-1, *target.constraint.shape[1:])
            moves[name] = self._kind(header, name).added_up(target, values, joined[:, 0].long())  # type: ignore[attr-defined]
        return moves
