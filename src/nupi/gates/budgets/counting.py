"""How large the network is for given gates: a differentiable function, computed without loops over layers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nupi.gates.budgets.parts import Network


class Widths:
    """The number of channels that go into and come out of every part, given the gates.

    Args:
        network: the parts and their conditions.
    """

    def __init__(self, network: Network) -> None:
        self._evaluation = network.conditions.evaluation()
        vectors: dict[tuple[int, ...], int] = {}
        places = [
            [
                vectors.setdefault(tuple(side.tolist()), len(vectors))
                for side in (each.incoming, each.outgoing)
            ]
            for each in network.parts
        ]
        self._count = len(vectors)
        # A harvest leaves one channel in every layer, which may be several positions, as those of a head are.
        self._least = torch.tensor([vector.count(vector[0]) for vector in vectors])
        self._positions = torch.tensor([condition for vector in vectors for condition in vector])
        self._vectors = torch.tensor([number for vector, number in vectors.items() for _ in vector])
        self._places = torch.tensor(places).T

    def __call__(self, gates: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Channels in and out of each part: for gates that are open or closed, or open with a probability."""
        self._to(gates.device)
        alive = self._evaluation(gates)[self._positions]
        widths = gates.new_zeros(self._count).index_add(0, self._vectors, alive)
        widths = widths.maximum(self._least.to(widths.dtype))
        incoming, outgoing = widths[self._places]
        return incoming, outgoing

    def _to(self, device: torch.device) -> None:
        if self._places.device != device:
            self._least, self._positions, self._vectors, self._places = (
                each.to(device) for each in (self._least, self._positions, self._vectors, self._places)
            )


class Count:
    """The share of parameters, or of FLOPs, that is left: 1 for the network with all gates open.

    Args:
        network: the parts and their conditions.
        costs: of each part, (pair, single).
        total: the cost of the whole network with all gates open; what the parts do not explain is constant.
        gates: how many there are.
    """

    def __init__(
        self, network: Network, costs: Sequence[tuple[float, float]], total: float, gates: int
    ) -> None:
        self.widths = Widths(network)
        self._costs = torch.tensor(costs, dtype=torch.float64).T / total
        self._rest = 0.0
        self._rest = 1.0 - float(self(torch.ones(gates, dtype=torch.float64)))

    def __call__(self, gates: torch.Tensor) -> torch.Tensor:
        """The share that is left for these gates, or expected to be for these probabilities."""
        incoming, outgoing = self.widths(gates)
        pair, single = self._costs.to(gates)
        left: torch.Tensor = ((pair * incoming + single) * outgoing).sum() + self._rest
        return left
