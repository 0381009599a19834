"""A program that knows nothing of Torchwise: two models, inputs of two sizes, and a report at the end.

torchwise run examples/program.py
"""

import argparse

import torch


class Encoder(torch.nn.Module):
    """Six layers with a gate each."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(width, width) for _ in range(6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return rows of the shape of `x`."""
        for layer in self.layers:
            x = x + torch.tanh(layer(x)) * torch.sigmoid(x)
        return x


class Head(torch.nn.Module):
    """Three numbers from the mean row."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.out = torch.nn.Linear(width, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return three numbers for `x` of shape (rows, width)."""
        return self.out(x.mean(dim=0))


def main() -> None:
    """Score batches of random rows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batches", type=int, default=300)
    batches = parser.parse_args().batches
    torch.manual_seed(0)
    encoder, head = Encoder().eval(), Head().eval()
    total = torch.zeros(3)
    with torch.inference_mode():
        for number in range(batches):
            total += head(encoder(torch.randn(64 if number % 3 else 16, 64)))
    print([round(value, 2) for value in total.tolist()])


if __name__ == "__main__":
    main()
