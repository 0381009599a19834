"""Train and run a small network with Lightning.

python examples/programs/lightning_fit.py [EPOCHS]
"""

from __future__ import annotations

import logging
import sys

import pytorch_lightning as lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Regression(lightning.LightningModule):
    """Learns the sum of its inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(32, 128), nn.GELU(), nn.Linear(128, 128), nn.GELU(), nn.Linear(128, 1))

    def training_step(self, batch: list[torch.Tensor], _index: int) -> torch.Tensor:
        """Return the loss of a batch."""
        x, y = batch
        return nn.functional.mse_loss(self.net(x), y)

    def predict_step(self, batch: list[torch.Tensor], _index: int) -> torch.Tensor:
        """Return the sums of a batch."""
        return self.net(batch[0])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return the optimizer."""
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


def main(epochs: int = 5) -> None:
    """Train, and predict once."""
    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
    torch.manual_seed(0)
    x = torch.randn(512, 32)
    loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=32)
    trainer = lightning.Trainer(
        accelerator="cpu",
        max_epochs=epochs,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    model = Regression()
    trainer.fit(model, loader)
    predicted = torch.cat(trainer.predict(model, loader))
    print(f"error {nn.functional.mse_loss(predicted, x.sum(1, keepdim=True)):.3f} after {epochs} epochs")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
