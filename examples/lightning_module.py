"""A LightningModule under a constraint: at most 30% of the answers are positive.

python examples/lightning_module.py
"""

from __future__ import annotations

from typing import Any

import pytorch_lightning as pl
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import nupi
from nupi.integrations.lightning import ConstrainedMixin


class Classifier(ConstrainedMixin, pl.LightningModule):
    """A classifier whose positive decisions are at most 30%."""

    def __init__(self, dual: Any = None) -> None:
        super().__init__(constraints={"rate": nupi.Inequality()}, dual=dual, tolerance=0.01)
        self.model = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 1))

    def training_step(self, batch: tuple[torch.Tensor, torch.Tensor], _: int) -> torch.Tensor:
        """Return the Lagrangian instead of the loss."""
        x, y = batch
        logits = self.model(x).squeeze(1)
        loss = nn.functional.binary_cross_entropy_with_logits(logits, y)
        return self.lagrangian(loss, {"rate": logits.sigmoid().mean() - 0.3})  # type: ignore[no-any-return]

    def validation_step(self, batch: tuple[torch.Tensor, torch.Tensor], number: int) -> None:
        """Call the Lagrangian here too: it gives `val_nupi_feasible`."""
        self.training_step(batch, number)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """The model's optimizer; the multipliers have their own."""
        return torch.optim.Adam(self.model.parameters(), lr=1e-2)


def data(rows: int = 1024, seed: int = 0) -> TensorDataset:
    """Rows of which three in four are positive."""
    x = torch.randn(rows, 4, generator=torch.Generator().manual_seed(seed))
    return TensorDataset(x, (x[:, 0] > -0.67).float())


def main() -> None:
    """Train, and print the results of a validation on new rows."""
    pl.seed_everything(0, verbose=False)
    module = Classifier()
    trainer = pl.Trainer(max_epochs=40, accelerator="cpu", logger=False, enable_checkpointing=False)
    new = DataLoader(data(4096, seed=1), batch_size=1024)
    trainer.fit(module, DataLoader(data(), batch_size=64, shuffle=True), new)
    trainer.validate(module, new)
    print(module.lagrangian)


if __name__ == "__main__":
    main()
