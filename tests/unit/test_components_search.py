"""A part that is tuned by workers, from its first call to the answers of its plan."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from torchwise.plan import EAGER
from torchwise.plan.requirements import Property
from torchwise.plan.workload_spec import WorkloadSpec
from torchwise.records import Interval
from torchwise.runtime.components import CompileConfig, CompileManager, component, find
from torchwise.runtime.components.config import VARIABLE
from torchwise.runtime.fallback_reason import FallbackReason
from torchwise.runtime.program.start_costs import WaitingPlan
from torchwise.testing.records import make_decision


def test_a_search_is_asked_for_what_the_config_says(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {}

    class Told(Exception):
        pass

    def tune(original: object, **options: Any) -> None:
        asked.update(options)
        raise Told

    monkeypatch.setattr("torchwise.runtime.api.tune", tune)
    changes = {
        "calls": 7,
        "restarts": 3,
        "allow": "lower-precision",
        "budget_s": 60,
        "compile_timeout_s": 9.5,
        "tolerance": 0.03,
        "metric": "quality.py:score",
        "require": ("deterministic",),
        "sizes": "varying",
        "memory_limit": "2GB",
        "iterations": 50,
        "fullgraph": True,
        "store": "here",
        "mode": "max-autotune",
    }
    config = CompileManager("research", training=True, progress=False, **changes).config
    with pytest.raises(Told):
        component.tune_in_workers(torch.tanh, (), config)
    assert asked == {
        "examples": (),
        "calls": 7,
        "restarts": 3,
        "allow": "lower-precision",
        "effort": "thorough",
        "budget": 60,
        "compile_timeout": 9.5,
        "tolerance": 0.03,
        "metric": "quality.py:score",
        "require": (Property.DETERMINISTIC,),
        "sizes": "varying",
        "memory_limit": "2GB",
        "iterations": 50,
        "fullgraph": True,
        "mode": "training",
        "plans": config.plans,
        "store": "here",
        "progress": False,
    }
    monkeypatch.setattr("torchwise.runtime.start_background.start_in_background", tune)
    asked.clear()
    with pytest.raises(Told):
        find.search_in_background(torch.tanh, (), CompileConfig(sizes="fixed", require=["bitwise"]), threading.Lock())
    assert (asked["sizes"], asked["require"]) == ("fixed", (Property.BITWISE,))


def test_no_minimum_speedup_and_no_wait_for_a_start_hold_for_a_plan_that_is_needed() -> None:
    slower, config = {"speedup": Interval(0.8, 0.9, 1.01)}, CompileConfig()
    for changes, is_needed in (
        ({}, False),
        ({"eager_fails": True}, True),
        ({"workload": WorkloadSpec("zoo:tutorial.fusion_demo", objective="memory")}, True),
        ({"workload": WorkloadSpec("zoo:tutorial.fusion_demo", require=(Property.BITWISE,))}, True),
    ):
        decision = make_decision(**slower, **changes)
        assert decision.is_needed is find.is_fast_enough(decision, config) is is_needed
        assert WaitingPlan(decision, None, config).is_due is is_needed
    assert not make_decision(EAGER, eager_fails=True).is_needed


@pytest.mark.slow
@torch.no_grad()
@pytest.mark.usefixtures("brief_searches")
def test_a_function_is_tuned_by_workers_and_then_answers_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    threads = torch.get_num_threads()

    def many(x: torch.Tensor) -> torch.Tensor:
        for _ in range(40):
            x = torch.sin(x) * 1.01 + 0.1
        return x

    manager = CompileManager("research", mode="default", store=str(tmp_path / "store.db"), progress=False, calls=10**9)
    call, x = (
        manager.register(many, "many"),
        torch.randn(512),
    )  # too few for threads: compiled code takes a tenth of eager
    for _ in range(3):
        torch.testing.assert_close(call(x), many(x))
    found = manager.statistics()["many"]
    assert (found.plan, found.optimized, found.original) == ("inductor", 2, {FallbackReason.FIRST_CALL: 1}), found
    assert found.speedup is not None
    assert found.speedup.low > 1.05
    assert found.compile_s > 0
    assert torch.get_num_threads() == threads


@pytest.mark.slow
@torch.no_grad()
@pytest.mark.usefixtures("brief_searches")
@pytest.mark.nightly
def test_a_module_within_a_program_is_tuned_by_workers_and_others_stay_plain(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)

    class Slow(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = torch.nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if not torch.compiler.is_compiling():
                time.sleep(0.02)  # many times what compiled code waits for a core on a busy machine
            return self.inner(x)

    program, x = torch.nn.Sequential(Slow(), torch.nn.Linear(4, 4)), torch.randn(2, 4)
    asked = {"store": str(tmp_path / "s.db"), "progress": False, "autocast": "bfloat16", "device": "cpu"}
    manager = CompileManager("research", **asked)
    manager.register(program[0], "slow", mode="default", calls=10**9)
    manager.register(program[1], "quick", budget_s=3.0, calls=10)
    for _ in range(3):
        program(x)
    statistics = manager.statistics()
    assert statistics["slow"].optimized == 2, statistics
    assert "Stay with eager" in statistics["quick"].reason
    assert program[0](x).dtype == torch.bfloat16
