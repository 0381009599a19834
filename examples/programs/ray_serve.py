"""Answer requests with a model behind Ray Serve.

python examples/programs/ray_serve.py [REQUESTS]                            replica and client in one process
serve run --app-dir examples/programs ray_serve:app                         a server, on a cluster of Ray
"""

from __future__ import annotations

import logging
import sys

import torch
from ray import serve
from torch import nn

FEATURES = 64


@serve.deployment
class Scorer:
    """One replica of the model."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(FEATURES, 256), nn.GELU(), nn.Linear(256, 1), nn.Sigmoid()).eval()

    def __call__(self, row: list[float]) -> float:
        """Return the score of one row."""
        with torch.inference_mode():
            return float(self.model(torch.tensor([row])))


app = Scorer.bind()


def main(requests: int = 50) -> None:
    """Send requests all at once, and print the last score."""
    logging.getLogger("ray.serve").setLevel(logging.ERROR)
    scorer = serve.run(app, _local_testing_mode=True)
    rows = [[(number % 5 + column) % 7 / 7 for column in range(FEATURES)] for number in range(requests)]
    answers = [answer.result() for answer in [scorer.remote(row) for row in rows]]
    print(f"score {answers[-1]:.4f} after {requests} requests")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
