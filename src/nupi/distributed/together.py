"""One step of many processes: what each rank saw, joined in one message; all ranks move, or all refuse.

Every rank turns what it saw of a constraint into values and weights that add up over ranks (`Violation.parts`):

| violation                 | values      | weights     | joined                                      |
| ------------------------- | ----------- | ----------- | ------------------------------------------- |
| a tensor, reduce="mean"   | c           |             | sum of values / number of ranks that saw it |
| a tensor, reduce="sum"    | c           |             | sum of values                               |
| `Averaged(sums, counts)`  | sums        | counts      | sum of values / sum of weights              |
| `Indexed(values, indices)`| row by row  | times seen  | sum of values, in the rows that were seen   |
| absent                    | 0           | 0           |                                             |

All of it travels, behind a header, in one all-reduce in double precision. Its layout is fixed by the constraints alone,
so the order in which a rank names its violations, and which it has, cannot put two ranks out of step. What all ranks
then see is the same to the bit. Only groups of more than `SMALL` constraints, for which a fixed place would waste
bandwidth, travel in a second round, of exactly what the header announced.
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

SMALL = 4096  # constraints; a double each is no more than the latency of a message


class Together:
    """The ranks of one step.

    Args:
        targets: every group of the problem by name, in an order that all ranks share.
        reduce: how plain tensors join.
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
        """What all ranks saw, as moves; if any rank refuses, all raise.

        Args:
            dual: the optimizer that is to move them.
            given: this rank's violations.
            refusal: what is wrong with this rank's input, if something is known to be.
            drift: what this rank knows of being like the others.
        """
        # 1. What this rank brings. If that is nothing but an error, the others must hear of it before it is raised.
        brought = Brought()
        parts: dict[str, Parts] = {}
        try:
            if refusal is not None:
                raise refusal  # noqa: TRY301
            brought, parts = self._brought(dual, given, drift)
        except Exception as error:  # noqa: BLE001 - the others are waiting: tell them first, then raise
            refusal, brought = error, Brought(refused=True)

        # 2. One message for all that is small.
        names = list(self.targets)
        numbers = written(brought, names, self.large, self.rank, self.ranks)
        small = [name for name in names if name not in self.large]
        slots = [self._slot(self.targets[name], parts.get(name)) for name in small]
        device = next(iter(self.targets.values())).multiplier.device
        buffer = torch.cat([torch.tensor(numbers, dtype=torch.float64, device=device), *slots])
        torch.distributed.all_reduce(buffer, group=self.group)
        header = read(buffer[: len(numbers)].tolist(), names, self.large, self.ranks)

        # 3. All refuse, or all go on.
        self._refuse_together(header, refusal, brought)
        multipliers = {name: target.multiplier for name, target in self.targets.items()}
        if len(set(header.dual)) > 1:
            refuse_duals(described(dual, multipliers), self.group)
        if any(header.changed):
            compare(multipliers, dual, self.group)
        self._confirm = any(header.confirm)

        # 4. Totals become moves; what is large takes a second round.
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
        """After a step that could fail on one rank alone: raise on all if it failed on any."""
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
        """This rank's input, checked, in the form that adds up."""
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
        """Raise unless no rank refused, all who have a constraint have it in one kind, and all can move it."""
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
            f"rank {', '.join(map(str, ranks))} {did}, and its error says why; rank {self.rank} had nothing "
            "against its own. No multiplier and no state was changed on any rank"
        )

    def _refuse_kinds(self, name: str, brought: Brought) -> None:
        """Say who gave a violation as what. All ranks know that the kinds differ, and all come here."""
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
        """The kind of a violation that some rank has, by its code."""
        return next(kind for kind in Violation.registry.values() if code_of(kind) == header.code[name])

    def _slot(self, target: Target, parts: Parts | None) -> torch.Tensor:
        """The place of a group in a message: its values, then a weight for each of its rows."""
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
        """The totals of large groups, which travel whole."""
        if not names:
            return {}
        slots = [self._slot(self.targets[name], parts.get(name)) for name in names]
        buffer = torch.cat(slots)
        torch.distributed.all_reduce(buffer, group=self.group)
        return dict(zip(names, buffer.split([len(slot) for slot in slots]), strict=True))

    def _gather_rows(
        self, names: Sequence[str], given: Mapping[str, Violation], header: Header
    ) -> dict[str, Move | None]:
        """The moves of large groups of which some rows came: one message a rank, padded to the longest."""
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
