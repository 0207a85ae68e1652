"""A constrained LightningModule: the Trainer runs the loop, `training_step` ascends and returns the Lagrangian.

python examples/lightning_module.py
"""

from __future__ import annotations

from typing import Any

import pytorch_lightning as pl
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import nupi


class Classifier(pl.LightningModule):
    """A classifier that may call at most 30% of its inputs positive."""

    def __init__(self) -> None:
        super().__init__()
        # First, so that a checkpoint it refuses has loaded nothing else.
        self.lagrangian = nupi.Lagrangian({"rate": nupi.Inequality()}, reduce="mean")
        self.model = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 1))
        # Not among configure_optimizers: Lightning would step it, and ascend does.
        self.dual = nupi.NuPI(self.lagrangian.parameters(), ki=0.1, kp=1.0, nu=0.9)

    def training_step(self, batch: tuple[torch.Tensor, torch.Tensor], _: int) -> torch.Tensor:
        """One batch of the alternating update."""
        x, y = batch
        logits = self.model(x).squeeze(1)
        loss = nn.functional.binary_cross_entropy_with_logits(logits, y)
        violations = {"rate": logits.sigmoid().mean() - 0.3}
        self.lagrangian.ascend(self.dual, violations)
        self.log("rate", violations["rate"].detach() + 0.3, prog_bar=True)
        return self.lagrangian(loss, violations)  # type: ignore[no-any-return]

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """The model's optimizer; the multipliers have their own."""
        return torch.optim.Adam(self.model.parameters(), lr=1e-2)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """The multipliers are in the module's own state; the controller's is added."""
        checkpoint["dual"] = self.dual.state_dict()

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Take the controller's state up again."""
        self.dual.load_state_dict(checkpoint["dual"])


def data(rows: int = 1024, seed: int = 0) -> TensorDataset:
    """Rows of which three in four are positive."""
    x = torch.randn(rows, 4, generator=torch.Generator().manual_seed(seed))
    return TensorDataset(x, (x[:, 0] > -0.67).float())


def main() -> None:
    """Train, and print the rate of positive answers."""
    pl.seed_everything(0, verbose=False)
    module = Classifier()
    trainer = pl.Trainer(max_epochs=40, accelerator="cpu", logger=False, enable_checkpointing=False)
    trainer.fit(module, DataLoader(data(), batch_size=64, shuffle=True))
    with torch.no_grad():
        trained, new = (
            module.model(rows.tensors[0]).sigmoid().mean().item() for rows in (data(), data(4096, seed=1))
        )
    print(
        f"positive rate {trained:.3f} on the training rows (at most 0.3 was asked for), {new:.3f} on new ones"
    )
    print(module.lagrangian)


if __name__ == "__main__":
    main()
