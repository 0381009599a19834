"""The LitServe and Ray Serve snippets of the page on batching: a plan gets the size it was verified for."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from coroutines import run_coroutine
from live_decisions import make_decision
from torchwise.plan import Plan

PAGE = Path(__file__).parents[2] / "docs/howto/batching.md"
THREADS = Plan(threads=torch.get_num_threads() + 1)


class Model(nn.Module):
    """Notes the sizes of its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 2)
        self.sizes: list[int] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.sizes.append(len(x))
        answer: torch.Tensor = self.linear(x)
        return answer


def run_snippet(start: str, model: Model) -> dict[str, Any]:
    """Run the snippet that has a line that begins so, with a decision at the batch size that the page has."""
    found = [code for code in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL) if start in code]
    assert len(found) == 1
    decision = make_decision(model, THREADS, torch.randn(32, 4))
    scope: dict[str, Any] = {"make_model": lambda: model, "text": decision.to_json(), "__name__": "snippet"}
    exec(found[0], scope)
    model.sizes.clear()
    return scope


def test_litserve_gets_the_size_of_the_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[Any] = []

    class LitAPI:
        def __init__(self, max_batch_size: int, batch_timeout: float) -> None:
            self.max_batch_size = max_batch_size

    server = SimpleNamespace(run=lambda port: None)
    module = SimpleNamespace(LitAPI=LitAPI, LitServer=lambda api: (started.append(api), server)[1])
    monkeypatch.setitem(sys.modules, "litserve", module)
    model = Model().eval()
    run_snippet("import litserve", model)
    [api] = started
    api.setup("cpu")
    requests = [{"x": [float(number)] * 4} for number in range(5)]
    answers = api.unbatch(api.predict(api.batch([api.decode_request(request) for request in requests])))
    found = [api.encode_response(answer)["y"] for answer in answers]
    torch.testing.assert_close(torch.tensor(found), model.linear(torch.tensor([r["x"] for r in requests])))
    assert model.sizes == [32]
    assert (api.max_batch_size, api.model.statistics.optimized) == (32, 1)


def test_ray_serve_gets_the_size_of_the_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, Any] = {}

    def batch(**options: Any) -> Any:
        given.update(options)
        return lambda method: method

    ray = SimpleNamespace(serve=SimpleNamespace(deployment=lambda scorer: scorer, batch=batch))
    monkeypatch.setitem(sys.modules, "ray", ray)
    model = Model().eval()
    scope = run_snippet("from ray import serve", model)
    scorer = scope["Scorer"](scope["text"])
    rows = [torch.full((4,), float(number)) for number in range(5)]
    answers = run_coroutine(scorer(rows))  # as Ray Serve calls it with the requests of a batch
    torch.testing.assert_close(torch.stack(answers), model.linear(torch.stack(rows)))
    assert model.sizes == [32]
    assert (given["max_batch_size"], scorer.model.statistics.optimized) == (32, 1)
