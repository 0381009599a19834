"""The example service as it stands in `examples/`: it answers, refuses, and reports on itself."""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from fastapi.testclient import TestClient

import torchwise
from torchwise.plan import Plan

FOLDER = Path(__file__).parents[2] / "examples" / "service"

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ModuleType, TestClient]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCHWISE_STORE", str(tmp_path_factory.mktemp("store") / "store.db"))
        patch.setenv("TORCHWISE_CANARY", "4")
        patch.syspath_prepend(str(FOLDER))  # as `uvicorn --app-dir` does: workers must find the model's class
        module = importlib.import_module("app")
        # A search of one plan, which compiles nothing: the search itself is tested elsewhere.
        patch.setattr(torchwise, "optimize", functools.partial(torchwise.optimize, plans=[Plan(threads=1)]))
        with TestClient(module.app) as client:
            yield module, client
        sys.modules.pop("app")


def a_sequence(module: ModuleType) -> list[list[float]]:
    return [[(row * column) % 7 / 7 for column in range(module.FEATURES)] for row in range(module.STEPS)]


def test_it_answers_as_the_plain_model_does(service: tuple[ModuleType, TestClient]) -> None:
    import torch

    module, client = service
    sequence = a_sequence(module)
    with torch.no_grad():
        expected = float(module.torchwise.unwrap(module.app.state.scorer)(torch.tensor([sequence])))
    for _ in range(12):
        answer = client.post("/score", json={"sequence": sequence})
        assert answer.status_code == 200
        assert answer.json()["score"] == pytest.approx(expected, abs=1e-4)
    health = client.get("/health").json()
    assert health["calls"] >= 12
    assert health["mismatched"] == 0
    if health["plan"] != "eager":  # which on a busy machine may be the right decision
        assert health["compared"] >= 3
        assert health["first_calls"] == 1


@pytest.mark.parametrize("sequence", [[], [[1.0]], [[1.0], [1.0, 2.0]], "words"])
def test_what_is_no_sequence_is_refused(service: tuple[ModuleType, TestClient], sequence: object) -> None:
    _, client = service
    answer = client.post("/score", json={"sequence": sequence})
    assert answer.status_code == 422
    assert answer.json()["detail"]


def test_its_metrics_can_be_scraped(service: tuple[ModuleType, TestClient]) -> None:
    _, client = service
    text = client.get("/metrics").text
    assert 'torchwise_frozen{model="scorer"' in text
    assert "torchwise_optimized_calls_total" in text
