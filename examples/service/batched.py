"""The service of `app.py` with requests that share batches, so that it answers more of them within a limit.

    uvicorn --app-dir examples/service batched:app

The first start finds batch size and plan together. Later starts find them in the store.
"""

from __future__ import annotations

import gc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import torch
from app import FEATURES, STEPS, Request, Scorer
from fastapi import FastAPI, HTTPException

import torchwise
from torchwise.errors import QueueFullError

LIMIT = "50ms"


@asynccontextmanager
async def lifespan(service: FastAPI) -> AsyncIterator[None]:
    """Find batch size and plan before the first request, and answer all waiting requests at the end."""
    torch.manual_seed(0)  # in place of a checkpoint
    model = Scorer().eval()
    example = torch.randn(1, STEPS, FEATURES)
    fast = torchwise.optimize(
        model, (example,), objective="throughput", latency_limit=LIMIT, effort="quick", calls=10_000_000
    )
    size = fast.decision.workload.batch.size
    with torch.no_grad():
        fast(example.expand(size, -1, -1).contiguous())  # which compiles the plan
    gc.collect()
    gc.freeze()  # later collections do not look through torch again, which would stop all requests
    with torchwise.serve_batched(fast, max_wait_ms=2) as service.state.scorer:
        yield


app = FastAPI(title="Scorer in batches", lifespan=lifespan)


@app.post("/score")
async def score(request: Request) -> dict[str, float]:
    """Return the score of one sequence."""
    if [len(row) for row in request.sequence] != [FEATURES] * STEPS:
        raise HTTPException(422, f"sequence must have {STEPS} rows of {FEATURES} numbers")
    try:
        scores = await app.state.scorer.call_async(torch.tensor([request.sequence]))
    except QueueFullError as error:
        raise HTTPException(503, str(error)) from error
    return {"score": float(scores[0])}


@app.get("/health")
def health() -> dict[str, Any]:
    """Return the counts of requests and batches, and the latency that 99 % of the latest requests kept."""
    counts = app.state.scorer.statistics
    return {"requests": counts.requests, "batches": counts.batches, "p99_s": counts.latency_s()}
