"""The example service that batches, as it stands in `examples/service/`: it answers, refuses, and counts."""

from __future__ import annotations

import functools
import importlib
import sys
from pathlib import Path

import pytest
import torch
from fastapi.testclient import TestClient

import torchwise
from torchwise.plan.workload_spec import BatchDim, WorkloadSpec

FOLDER = Path(__file__).parents[2] / "examples" / "service"


def test_the_service_answers_refuses_and_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))
    for name in ("app", "batched"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    module = importlib.import_module("batched")

    class Found(torch.nn.Module):
        """A model with the decision that a search, which is tested elsewhere, would have found."""

        def __init__(self, model: torch.nn.Module) -> None:
            super().__init__()
            self.model = model
            workload = WorkloadSpec("live:Scorer", batch=BatchDim(0, 4))
            self.decision = type("Decision", (), {"workload": workload})

        def forward(self, sequence: torch.Tensor) -> torch.Tensor:
            scores: torch.Tensor = self.model(sequence)
            return scores

    monkeypatch.setattr(torchwise, "optimize", lambda model, _args, **_options: Found(model))
    monkeypatch.setattr(torchwise, "serve_batched", functools.partial(torchwise.serve_batched, max_batch=4))
    with TestClient(module.app) as client:
        sequence = torch.ones(module.STEPS, module.FEATURES).tolist()
        answer = client.post("/score", json={"sequence": sequence})
        assert answer.status_code == 200
        assert 0 < answer.json()["score"] < 1
        assert client.post("/score", json={"sequence": [[1.0]]}).status_code == 422
        assert client.get("/health").json()["requests"] == 1
    for name in ("app", "batched"):
        sys.modules.pop(name, None)
