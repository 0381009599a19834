"""A program that serves while it is tuned in the background: its answers are checked, and what became of it is printed.

Run it: python serve.py STORE DEVICE CAPTURE
"""

from __future__ import annotations

import json
import sys
import time

import torch

import torchwise
from torchwise.plan import Plan


class Model(torch.nn.Module):
    """Of this script alone: no other process can import its class."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(64, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.layer(x)
        for _ in range(60):
            # Launches alone, on few elements: fused tens of times faster, so that no noise of a busy machine (its
            # interval was once 0.7 to 4 around a ratio of 2) can hide which is the faster.
            x = torch.relu(x * 1.1 - 0.01)
        return x


@torch.no_grad()
def main(store: str, device: str, capture: str) -> None:
    torch.manual_seed(0)
    model, x = Model().eval().to(device), torch.randn(8, 64).to(device)
    wrong, right = 0, model(x)
    plan = Plan(backend="inductor", capture=capture)  # type: ignore[arg-type]
    fast = torchwise.optimize(model, (x,), background=True, plans=[plan], calls=10**9, store=store, effort="quick")
    end = time.monotonic() + 240
    while fast.background.state == "searching" and time.monotonic() < end:
        wrong += not torch.allclose(fast(x), right, rtol=1e-3, atol=1e-3)
        time.sleep(0.01)
    for _ in range(20):
        wrong += not torch.allclose(fast(x), right, rtol=1e-3, atol=1e-3)
    from torch._dynamo.utils import counters

    found = {
        "state": fast.background.state,
        "news": [f"{news.kind}: {news.text}" for news in fast.background.news],
        "plan": str(fast.decision.plan),
        "wrong": wrong,
        "optimized": fast.statistics.optimized,
        "original": fast.statistics.original,
        "failures": fast.statistics.failures,
        "compiled here": counters["stats"]["unique_graphs"],
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
