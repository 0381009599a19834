"""Train a small network in a loop of its own, with Accelerate.

python examples/programs/accelerate_training.py [EPOCHS]
"""

from __future__ import annotations

import sys

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main(epochs: int = 5) -> None:
    """Train, and print the loss of the last batch."""
    torch.manual_seed(0)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    model = nn.Sequential(nn.Linear(32, 128), nn.LayerNorm(128), nn.GELU(), nn.Linear(128, 4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    x = torch.randn(512, 32)
    loader = DataLoader(TensorDataset(x, x[:, :4].argmax(1)), batch_size=32)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for _ in range(epochs):
        for inputs, classes in loader:
            with accelerator.accumulate(model):
                loss = nn.functional.cross_entropy(model(inputs), classes)
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
    print(f"loss {loss.item():.3f} after {epochs} epochs")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
