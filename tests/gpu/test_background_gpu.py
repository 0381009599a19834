"""Plans compiled ahead, and swapped in from the background, on a GPU."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from torchwise.realize import realize
from torchwise.realize.ahead import Code, Loader

pytestmark = pytest.mark.gpu

HERE = Path(__file__).parents[1] / "targets"
CHILD = """
import sys; sys.path.insert(0, {here!r})
import msgspec, torch
from pathlib import Path
import ahead_models
from torchwise.realize import realize
from torchwise.realize.ahead import Maker
for name, plan in ahead_models.CASES.items():
    call, inputs = ahead_models.build(name, "cuda")
    maker = Maker()
    realized = realize(call, plan, inputs[0], device="cuda", mode="inference", backend=maker)
    with torch.no_grad():
        for example in inputs:
            realized.call(*example.args)
    Path({folder!r}, name).write_bytes(msgspec.msgpack.encode(maker.made))
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Code]]:
    import msgspec

    folder = tmp_path_factory.mktemp("ahead")
    subprocess.run([sys.executable, "-c", CHILD.format(here=str(HERE), folder=str(folder))], check=True, timeout=300)
    return {file.name: msgspec.msgpack.decode(file.read_bytes(), type=list[Code]) for file in folder.iterdir()}


@pytest.mark.parametrize("capture", ["none", "call"])
@pytest.mark.parametrize("name", ["module", "function", "complex", "reduced", "shapes"])
def test_it_answers_as_the_original_without_compiling(
    made: dict[str, list[Code]], name: str, capture: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torch._dynamo.utils import counters

    monkeypatch.syspath_prepend(str(HERE))
    import ahead_models

    call, inputs = ahead_models.build(name, "cuda")
    plan = replace(ahead_models.CASES[name], capture=capture)
    realized = realize(call, plan, inputs[0], device="cuda", mode="inference", backend=Loader(made[name]))
    before = counters["stats"]["unique_graphs"]
    tolerance = 3e-2 if name == "reduced" else 1e-3
    with torch.no_grad():
        for _ in range(3):
            for example in inputs:
                right = call(*example.args)
                torch.testing.assert_close(realized.call(*example.args), right, atol=tolerance, rtol=tolerance)
                lean = realized.lean(example.args, {})
                torch.testing.assert_close(lean(*example.args), right, atol=tolerance, rtol=tolerance)
    assert counters["stats"]["unique_graphs"] == before
    realized.close()


def test_a_search_finds_proves_and_swaps(tmp_path: Path) -> None:
    script = tmp_path / "serve.py"
    script.write_text(SCRIPT)
    ran = subprocess.run(
        [sys.executable, str(script), str(tmp_path / "store.db")], capture_output=True, text=True, timeout=280
    )
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout.splitlines()[-1])
    assert found["state"] == "done", found
    assert "capture call" in found["plan"], found
    assert found["wrong"] == 0
    assert found["compiled here"] == 0
    assert found["optimized"] > 0
    assert not found["failures"]


SCRIPT = """
import json, sys, time
import torch, torchwise
from torchwise.plan import Plan

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(64, 64)

    def forward(self, x):
        x = self.layer(x)
        for _ in range(20):
            x = torch.cos(torch.sin(x) * 1.1)
        return x

if __name__ == "__main__":
    torch.manual_seed(0)
    model, x = Model().eval().cuda(), torch.randn(512, 64, device="cuda")
    wrong = 0
    with torch.no_grad():
        right = model(x)
        plans = [Plan(backend="inductor", capture="call")]
        options = {"plans": plans, "calls": 10**9, "store": sys.argv[1], "effort": "quick"}
        fast = torchwise.optimize(model, (x,), background=True, **options)
        end = time.monotonic() + 240
        while fast.background.state == "searching" and time.monotonic() < end:
            wrong += not torch.allclose(fast(x), right, atol=1e-3)
            time.sleep(0.002)
        for _ in range(20):
            wrong += not torch.allclose(fast(x), right, atol=1e-3)
    from torch._dynamo.utils import counters
    print(json.dumps({
        "state": fast.background.state, "news": [str(news)[:300] for news in fast.background.news],
        "plan": str(fast.decision.plan), "wrong": wrong, "optimized": fast.statistics.optimized,
        "original": fast.statistics.original, "failures": fast.statistics.failures,
        "compiled here": counters["stats"]["unique_graphs"],
    }))
"""
