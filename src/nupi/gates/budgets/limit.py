"""A limit on the size of the harvested network: the violation, and how to meet the limit at the end."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import torch
from torch import nn

from nupi.gates.budgets.equal_widths import POINT, in_words
from nupi.gates.budgets.fitting import filled, strongest
from nupi.gates.densities import gated_layers

if TYPE_CHECKING:
    from collections.abc import Callable

    from nupi.gates.budgets.equal_widths import EqualWidths, Widths
    from nupi.gates.hard_concrete import HardConcrete


class Budget:
    """A limit on the size of the harvested network; call it for the violation. Made by `budget`.

    Attributes:
        unit: "parameters", "flops" or "latency".
        limit: the share of the whole network that may be left.
        smallest: the share that is left if all gates close.

    Let z be the gates, and share(p) the expected size of the network, as a share of the whole, if the gates are open
    with probabilities p. The violation and its gradient are

        value = share([median of z > 0]) - limit
        gradient = gradient of share(P(z > 0))

    Example:
        >>> import nupi
        >>> model = nn.Sequential(nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 2))
        >>> nupi.gates.attach(model, "0")
        ['0']
        >>> limit = nupi.gates.budget(model, torch.randn(16, 8), parameters=0.8)
        >>> limit().item()  # all gates are open: the whole network is 0.2 too large
        0.2
        >>> limit.fit()  # how many gates it closes
        1
        >>> limit.realised().item()  # 3 (8 + 1) and 3 * 2 + 2 of 46 parameters
        0.7609
    """

    def __init__(
        self,
        gates: list[HardConcrete],
        share: Callable[[torch.Tensor], torch.Tensor],
        *,
        unit: str,
        limit: float,
        model: nn.Module | None = None,
        equal: EqualWidths | None = None,
    ) -> None:
        self._gates = gates
        self._share = share
        self._unchecked = model
        self._equal = equal
        self.unit, self.limit = unit, limit
        with torch.no_grad():
            everything = torch.cat([gate.is_open() for gate in gates])
            self.smallest = float(share(torch.zeros_like(everything, dtype=torch.float64)))

    def __call__(self) -> torch.Tensor:
        """The violation: the share at test time minus the limit, with the gradient of the expected share."""
        # Checked once, at the first step of training: the model must still use its gates.
        if self._unchecked is not None:
            gated_layers(self._unchecked)
            self._unchecked = None
        expected = self.expected()
        return self.realised() - self.limit + (expected - expected.detach())

    def expected(self) -> torch.Tensor:
        """The expected share of the network that is left; differentiable in the gates."""
        return self._share(torch.cat([gate.probability() for gate in self._gates]))

    def realised(self) -> torch.Tensor:
        """The share of the network that a harvest would leave now."""
        return self._share(torch.cat([gate.is_open() for gate in self._gates]).to(torch.get_default_dtype()))

    def fit(self, *, uniform: bool = False) -> int:
        """Open and close gates until the size is just below the limit at test time; returns how many changed.

        Training ends near the budget, not exactly on it. Call this before the harvest. It switches the gates nearest to
        the point where they close. The size ends at most 0.1 percentage points below the limit, or the size of the
        smallest gate if that is more. An opened gate is only just open, so the outputs hardly change. It becomes useful
        if you train the harvested network further.

        Args:
            uniform: leave the same number of heads, and of MLP units, in all blocks of a transformer, so that its
                config can say them (docs/gates.md lists the models whose own config can). The size then ends further
                below the limit, by up to one unit in every block, and more gates change. A warning says if it ends more
                than one percentage point below, or if the model's class cannot build these widths from its config.
        """
        if not uniform:
            return self._leave(filled, opening=True)
        if self._equal is None:
            raise ValueError(
                "uniform=True needs a transformer with gates from nupi.gates.attach_transformer on all of its heads, "
                "on all of its MLPs, or on both"
            )
        changed = self._leave(self._uniform, opening=True)
        self._warn_of_the_config(self._equal)
        return changed

    def _uniform(self, order: torch.Tensor, share: Callable[..., torch.Tensor], limit: float) -> torch.Tensor:
        equal = self._equal
        assert equal is not None
        opened = [int(gate.is_open().sum()) for gate in self._gates]
        sizes = torch.tensor([len(gate.log_alpha) for gate in self._gates])
        of_layer = torch.arange(len(sizes)).repeat_interleave(sizes).to(order.device)
        layers = [order[of_layer[order] == i] for i in range(len(sizes))]
        within, above = equal.around(lambda counts: float(share(equal.strongest(layers, counts))), limit)
        if not within:
            least = min(
                above, key=lambda widths: widths.share, default="the config accepts no number of heads"
            )
            raise ValueError(
                f"uniform=True cannot keep {self.unit}={limit:g}: {least}; raise the limit, or call fit() without "
                f"uniform=True, which can go down to {self.smallest:.4f}"
            )
        chosen = equal.nearest(within, opened, limit)
        if chosen.share < limit - POINT:
            self._warn_of_the_gap(chosen, above)
        return equal.strongest(layers, chosen.counts)

    def _warn_of_the_gap(self, chosen: Widths, above: list[Widths]) -> None:
        more = min(above, key=lambda widths: widths.share, default=None)
        both = (
            " Gates on heads and MLPs both leave more widths to choose from."
            if len(chosen.counts) == 1
            else ""
        )
        warnings.warn(
            f"uniform=True ends {100 * (self.limit - chosen.share):.1f} points below {self.unit}={self.limit:g}: "
            f"{chosen}{f', and {more}' if more else ''}. Call fit() without uniform=True to use the budget up.{both}",
            stacklevel=6,
        )

    def _warn_of_the_config(self, equal: EqualWidths) -> None:
        counts = {
            kind: int(gate.is_open().sum()) for kind, gate in zip(equal.kinds, self._gates, strict=True)
        }
        if not equal.says(counts):
            other = (
                ", or gate its MLPs alone (attach_transformer(model, heads=None))"
                if "heads" in counts
                else ""
            )
            warnings.warn(
                f"uniform=True leaves {in_words(counts)} in every block, but this model's config has no fields for it: "
                "the class's own from_pretrained will not load the harvested model. So equal widths have no use here: "
                f"call fit() without uniform=True{other}",
                stacklevel=3,
            )

    def trim(self) -> int:
        """Close the weakest open gates until the budget is kept at test time; returns how many were closed.

        Unlike `fit` it opens no gate. Use it if the network may end below its budget (`Inequality`).
        """
        return self._leave(strongest, opening=False)

    @torch.no_grad()
    def _leave(self, choose: Callable[..., torch.Tensor], *, opening: bool) -> int:
        """Open and close gates as `choose` says, among all gates or, without `opening`, among the open ones."""
        margins = torch.cat([gate.margin() for gate in self._gates])
        order = margins.argsort(descending=True, stable=True)
        if not opening:
            order = order[margins[order] > 0]
        stays = self._mask(choose(order, lambda chosen: self._share(self._mask(chosen).double()), self.limit))
        for gate, part in zip(
            self._gates, stays.split([len(gate.log_alpha) for gate in self._gates]), strict=True
        ):
            gate.close_(~part)
            gate.open_(part)
        return int((stays != (margins > 0)).sum())

    def _mask(self, chosen: torch.Tensor) -> torch.Tensor:
        count = sum(len(gate.log_alpha) for gate in self._gates)
        mask = torch.zeros(count, dtype=torch.bool, device=chosen.device)
        mask[chosen] = True
        return mask

    def __repr__(self) -> str:
        return (
            f"Budget({self.unit}={self.limit:g}: {self.realised().item():.3f} at test time, "
            f"{self.expected().item():.3f} expected, at least {self.smallest:.3f})"
        )
