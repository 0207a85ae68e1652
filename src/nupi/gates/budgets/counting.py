"""The size of the network as a differentiable function of the gates, computed without loops over layers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nupi.gates.budgets.parts import Network


class Widths:
    """Computes the number of input and output channels of every part from the gates.

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
        # A harvest leaves at least one channel in every layer. A channel may be several positions, as in a head.
        self._least = torch.tensor([vector.count(vector[0]) for vector in vectors])
        self._positions = torch.tensor([condition for vector in vectors for condition in vector])
        self._vectors = torch.tensor([number for vector, number in vectors.items() for _ in vector])
        self._places = torch.tensor(places).T

    def __call__(self, gates: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The numbers of input and output channels of each part, for gates that are 0 or 1 or probabilities."""
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
        costs: the costs (pair, single) of each part.
        total: the cost of the whole network with all gates open. The rest beyond the parts is constant.
        gates: how many gates there are.
    """

    def __init__(
        self, network: Network, costs: Sequence[tuple[float, float]], total: float, gates: int
    ) -> None:
        self.widths = Widths(network)
        self._costs = torch.tensor(costs, dtype=torch.float64).T / total
        self._rest = 0.0
        self._rest = 1.0 - float(self(torch.ones(gates, dtype=torch.float64)))

    def __call__(self, gates: torch.Tensor) -> torch.Tensor:
        """The share left for these gates, or the expected share if they are probabilities."""
        incoming, outgoing = self.widths(gates)
        pair, single = self._costs.to(gates)
        left: torch.Tensor = ((pair * incoming + single) * outgoing).sum() + self._rest
        return left
