"""Conditions on the gates that say when a channel is alive, such as "gate 3 is open" or "gate 3 or gate 7 is open".

Conditions have numbers, so those of a tensor's channels are one vector. Equal conditions have the same number; 1 is
always true, 0 never. A condition is built of gates with `every` and `some` only, so closing a gate never makes a
channel alive.

    P(every) = product of P          P(some) = 1 - product of (1 - P)

These hold for independent conditions; gates are independent. With probabilities 0 and 1 they are always exact.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import torch

Kind: TypeAlias = Literal["gate", "every", "some"]
NEVER, ALWAYS = 0, 1


class Conditions:
    """All conditions of a network, each stored once."""

    def __init__(self) -> None:
        self._parts: list[tuple[Kind, frozenset[int]]] = [("some", frozenset()), ("every", frozenset())]
        self._numbers = {parts: number for number, parts in enumerate(self._parts)}

    def gate(self, index: int) -> int:
        """The condition that this gate is open."""
        return self._number("gate", frozenset([index]))

    def every(self, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        """The conditions "first and second", position by position."""
        return self._joined("every", first, second)

    def some(self, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        """The conditions "first or second", position by position."""
        return self._joined("some", first, second)

    def join(self, kind: Literal["every", "some"], first: int, second: int) -> int:
        """The number of "first and second" or "first or second", simplified."""
        deciding, neutral = (NEVER, ALWAYS) if kind == "every" else (ALWAYS, NEVER)
        if deciding in (first, second):
            return deciding
        parts = self._flat(kind, first) | self._flat(kind, second)
        parts -= {neutral}
        # a and (a or b) is a; a or (a and b) is a
        parts = frozenset(each for each in parts if not self._implied(each, parts, kind))
        return next(iter(parts)) if len(parts) == 1 else self._number(kind, parts) if parts else neutral

    def evaluation(self) -> Evaluation:
        """A function that computes the values of all conditions made so far."""
        return Evaluation(self._parts)

    def _joined(
        self, kind: Literal["every", "some"], first: torch.Tensor, second: torch.Tensor
    ) -> torch.Tensor:
        pairs, where = torch.stack([first, second]).unique(dim=1, return_inverse=True)
        joined = torch.tensor([self.join(kind, a, b) for a, b in pairs.T.tolist()], dtype=torch.long)
        return joined[where]

    def _flat(self, kind: Kind, number: int) -> frozenset[int]:
        own, parts = self._parts[number]
        return parts if own == kind and parts else frozenset([number])

    def _implied(self, number: int, others: frozenset[int], kind: Kind) -> bool:
        own, parts = self._parts[number]
        return own not in ("gate", kind) and not parts.isdisjoint(others)

    def _number(self, kind: Kind, parts: frozenset[int]) -> int:
        key = (kind, parts)
        if key not in self._numbers:
            self._numbers[key] = len(self._parts)
            self._parts.append(key)
        return self._numbers[key]


class Evaluation:
    """Computes the values of all conditions from the values of the gates. Differentiable, no loop over channels.

    Args:
        parts: the parts of every condition. A part has a smaller number than its condition.
    """

    def __init__(self, parts: list[tuple[Kind, frozenset[int]]]) -> None:
        depth: list[int] = []
        for kind, inside in parts:
            depth.append(0 if kind == "gate" or not inside else 1 + max(depth[each] for each in inside))
        leaves = [number for number in range(2, len(parts)) if depth[number] == 0]
        order = [NEVER, ALWAYS, *leaves]  # the conditions, in the order in which they are computed
        self._gates = torch.tensor([min(parts[number][1]) for number in leaves], dtype=torch.long)
        self._steps: list[tuple[Kind, torch.Tensor]] = []
        for level in range(1, max(depth) + 1):
            for kind, neutral in (("every", ALWAYS), ("some", NEVER)):
                here = [number for number, at in enumerate(depth) if at == level and parts[number][0] == kind]
                if here:
                    place = {number: position for position, number in enumerate(order)}
                    rows = [[place[each] for each in parts[number][1]] for number in here]
                    width = max(map(len, rows))
                    padded = [row + [neutral] * (width - len(row)) for row in rows]
                    self._steps.append((kind, torch.tensor(padded)))
                    order += here
        self._order = torch.tensor(order).argsort()

    def __call__(self, gates: torch.Tensor) -> torch.Tensor:
        """The value of every condition: 0 or 1 if gates are 0 or 1, a probability if they are probabilities."""
        self._to(gates.device)
        values = torch.cat([gates.new_tensor([0.0, 1.0]), gates[self._gates]])
        for kind, index in self._steps:
            picked = values[index]
            new = picked.prod(1) if kind == "every" else 1 - (1 - picked).prod(1)
            values = torch.cat([values, new])
        return values[self._order]

    def _to(self, device: torch.device) -> None:
        if self._order.device != device:
            self._gates, self._order = self._gates.to(device), self._order.to(device)
            self._steps = [(kind, index.to(device)) for kind, index in self._steps]
