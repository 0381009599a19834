"""Answer requests with a model behind FastAPI.

python examples/programs/fastapi_service.py [REQUESTS]      its own client sends them, in one process
uvicorn --app-dir examples/programs fastapi_service:app     a server
"""

from __future__ import annotations

import sys

import torch
from fastapi import FastAPI
from fastapi.testclient import TestClient
from torch import nn

FEATURES = 64


def build() -> nn.Module:
    """Return a scorer with random weights."""
    torch.manual_seed(0)
    layers = [layer for _ in range(6) for layer in (nn.Linear(FEATURES, FEATURES), nn.LayerNorm(FEATURES), nn.GELU())]
    return nn.Sequential(*layers, nn.Linear(FEATURES, 1), nn.Sigmoid()).eval()


app = FastAPI(title="Scorer")
model = build()


@app.post("/score")
def score(features: list[float]) -> float:
    """Return the score of one row of features."""
    with torch.inference_mode():
        return float(model(torch.tensor([features])))


def main(requests: int = 50) -> None:
    """Send requests, and print the last score."""
    with TestClient(app) as client:
        for number in range(requests):
            features = [(number % 5 + column) % 7 / 7 for column in range(FEATURES)]
            answer = client.post("/score", json=features).json()
    print(f"score {answer:.4f} after {requests} requests")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
