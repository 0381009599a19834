"""A small service around an optimised model, with requests, health and metrics.

It compiles nothing while it serves.

    pip install '.[metrics]' fastapi uvicorn
    uvicorn --app-dir examples/service app:app

The first start searches for a plan, which takes a minute or two. Later starts find it in the store. With
TORCHWISE_CANARY=1000 in the environment, the plain model also answers one request in a thousand, and the answers are
compared.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import prometheus_client
import torch
from fastapi import FastAPI, HTTPException, Response
from pydantic import BaseModel, Field

import torchwise

FEATURES, STEPS = 64, 32
logger = logging.getLogger("service")


class Scorer(torch.nn.Module):
    """Scores a sequence of `STEPS` vectors of `FEATURES` numbers."""

    def __init__(self) -> None:
        super().__init__()
        layer = torch.nn.TransformerEncoderLayer(FEATURES, 4, 256, batch_first=True)
        self.encoder = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = torch.nn.Linear(FEATURES, 1)

    def forward(self, sequence: torch.Tensor) -> torch.Tensor:
        """Return scores, 0 to 1, (batch,), for sequences, (batch, STEPS, FEATURES)."""
        return torch.sigmoid(self.head(self.encoder(sequence).mean(1)))[:, 0]


class Request(BaseModel):
    """The sequence to score."""

    sequence: list[list[float]] = Field(description=f"{STEPS} rows of {FEATURES} numbers")


def load() -> tuple[Any, torch.device]:
    """Build the model, find or look up its plan, and call it once, so that it is compiled."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(0)  # in place of a checkpoint
    model = Scorer().eval().to(device)
    example = torch.randn(1, STEPS, FEATURES, device=device)
    canary = int(os.environ.get("TORCHWISE_CANARY", "0")) or None
    fast = torchwise.optimize(model, (example,), calls=10_000_000, effort="quick", canary=canary)
    with torch.no_grad():
        fast(example)
    torchwise.freeze(fast)
    return fast, device


@asynccontextmanager
async def lifespan(service: FastAPI) -> AsyncIterator[None]:
    """Load before the first request, and export metrics and alerts while the service runs."""
    service.state.scorer, service.state.device = load()
    remove_metrics = torchwise.export_metrics(service.state.scorer, "scorer")
    remove_alerts = torchwise.on_alert(lambda alert: logger.error("%s: %s", alert.kind, alert.message))
    yield
    remove_alerts()
    remove_metrics()


app = FastAPI(title="Scorer", lifespan=lifespan)


@app.post("/score")
async def score(request: Request) -> dict[str, float]:
    """Return the score of one sequence."""
    try:
        sequence = torch.tensor([request.sequence], dtype=torch.float32, device=app.state.device)
    except ValueError as error:
        raise HTTPException(422, f"sequence has rows of unequal length: {error}") from error
    if sequence.shape != (1, STEPS, FEATURES):
        raise HTTPException(422, f"sequence is {list(sequence.shape[1:])}, but must be [{STEPS}, {FEATURES}]")
    return {"score": await asyncio.to_thread(_score, sequence)}


def _score(sequence: torch.Tensor) -> float:
    with torch.no_grad():
        return float(app.state.scorer(sequence)[0])


@app.get("/health")
def health() -> dict[str, Any]:
    """Return the service's plan and the statistics of its calls."""
    return {"plan": str(app.state.scorer.decision.plan), **app.state.scorer.statistics.snapshot()}


@app.get("/metrics")
def metrics() -> Response:
    """Return the metrics for Prometheus."""
    return Response(prometheus_client.generate_latest(), media_type=prometheus_client.CONTENT_TYPE_LATEST)
