"""Plans compiled ahead of time, and swapped in from the background, on a GPU."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from torchwise.compile import compile_plan
from torchwise.compile.aot import Code, Loader

pytestmark = pytest.mark.gpu

HERE = Path(__file__).parents[1] / "targets"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Code]]:
    """Return everything that one other process compiled, by the name of the case."""
    with pytest.MonkeyPatch.context() as patched:
        patched.syspath_prepend(str(HERE))
        import ahead_models

        found: dict[str, list[Code]] = ahead_models.compile_in_subprocess(tmp_path_factory.mktemp("ahead"), "cuda")
    return found


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
    realized = compile_plan(call, plan, inputs[0], device="cuda", mode="inference", backend=Loader(made[name]))
    before = counters["stats"]["unique_graphs"]
    tolerance = 3e-2 if name == "reduced" else 1e-3
    with torch.no_grad():
        for _ in range(3):
            for example in inputs:
                right = call(*example.args)
                torch.testing.assert_close(realized.call(*example.args), right, atol=tolerance, rtol=tolerance)
                lean = realized.bypass(example.args, {})
                torch.testing.assert_close(lean(*example.args), right, atol=tolerance, rtol=tolerance)
    assert counters["stats"]["unique_graphs"] == before
    realized.close()


def test_a_search_finds_proves_and_swaps(tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, str(HERE / "serve.py"), str(tmp_path / "store.db"), "cuda", "call"],
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout.splitlines()[-1])
    assert found["state"] == "done", found
    assert "capture call" in found["plan"], found
    assert found["wrong"] == 0
    assert found["compiled here"] == 0
    assert found["optimized"] > 0
    assert not found["failures"]
