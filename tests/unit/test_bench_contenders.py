"""Contenders in processes of their own, for real: a failing one costs its row and nothing else."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from brief import BRIEF
from live_decisions import make_decision
from torchwise import apply
from torchwise.bench import BenchRequest, contender_worker, run_benchmark
from torchwise.bench.contenders import BUILT_IN, Setting, find, load_contenders
from torchwise.bench.contenders.torchwise import Torchwise, check_served
from torchwise.bench.request import ContenderJob
from torchwise.errors import InputError, StalePlanError, StorageError, UnsupportedError
from torchwise.plan import Plan
from torchwise.plan.effort import EFFORTS
from torchwise.plan.workload_spec import WorkloadSpec
from torchwise.records import Failure, Outcome
from torchwise.records.benchmark import Benchmark, RowState
from torchwise.records.listener import Listener
from torchwise.records.scale import scale_of
from torchwise.trial import Limits, ProcessLauncher
from torchwise.trial.job import Job
from torchwise.trial.launcher import OnStage
from torchwise.trial.worker import Assignment
from torchwise.workload import Example, Workload
from torchwise.workload.target import load

PLUGIN = """
import ctypes, time

class Base:
    def __init__(self, name): self.name = name
    def missing(self, setting): return "there is no such chip" if self.name == "absent" else None
    def build(self, workload, setting):
        call = workload.call
        held = {}
        def crashes(x): ctypes.string_at(0)
        def hangs(x): time.sleep(1000)
        def wrong(x): return call(x) * 1.01
        def raises(x): raise RuntimeError("it does not feel like it")
        def overwrites(x):
            answer = call(x)
            return held.setdefault("out", answer).copy_(answer)
        return locals()[self.name]

crashes, hangs, wrong, raises, overwrites, absent = map(
    Base, ("crashes", "hangs", "wrong", "raises", "overwrites", "absent")
)
"""
NAMES = ("crashes", "hangs", "wrong", "raises", "overwrites", "absent")


class Workers(ProcessLauncher):
    """Workers that end sooner a contender that is known to hang."""

    def run(self, job: Assignment, limits: Limits, on_stage: OnStage) -> str | Failure:
        hangs = getattr(job, "contender", "") == "hangs"
        return super().run(job, replace(limits, time_s=3.0) if hangs else limits, on_stage)


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder: Path = tmp_path_factory.mktemp("plugin")
    (folder / "contenders_for_test.py").write_text(PLUGIN)
    info = folder / "contenders_for_test-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: contenders-for-test\nVersion: 1.0\n")
    lines = [f"{name} = contenders_for_test:{name}" for name in (*NAMES, "broken")]
    (info / "entry_points.txt").write_text("\n".join(["[torchwise.contenders]", *lines]) + "\n")
    names = ("eager", "broken", *NAMES)
    load_contenders.cache_clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)  # workers look for plug-ins there, too
        patch.setitem(EFFORTS, "quick", BRIEF)
        request = BenchRequest(("zoo:tutorial.many_small_ops@small",), names, effort="quick", limit_s=60, warm=False)
        benchmark = Benchmark.from_json(run_benchmark(request, Workers(), Listener()).to_json())
    load_contenders.cache_clear()
    assert benchmark.peaks is not None
    assert benchmark.peaks.bandwidth > 1e8
    assert set(benchmark.peaks.flops) == {"float32", "bfloat16", "float64"}
    return {row.contender: (row, benchmark) for row in benchmark.rows}


@pytest.mark.slow
def test_eager_against_itself_is_timed_right_and_holds_its_answers(rows: dict[str, Any]) -> None:
    row, benchmark = rows["eager"]
    assert row.state is RowState.TIMED
    assert row.is_right
    assert not row.performance.overwrites
    assert row.speedup.low < 1.5, "eager is as fast as itself, up to what else the machine does"
    assert row.speedup.high > 0.67
    scaled = scale_of(benchmark, row.workload).find_scaled(row)
    assert scaled is not None
    share = scaled.roofline_share(benchmark.peaks)
    assert share is None or 0 < share < 1.5, "none where the machine was too busy to time"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "reason"), [("crashes", "died in .*SIGSEGV"), ("hangs", "timed out"), ("raises", "does not feel like it")]
)
def test_a_contender_that_fails_costs_one_row(rows: dict[str, Any], name: str, reason: str) -> None:
    row, _ = rows[name]
    assert row.state is RowState.FAILED
    assert re.search(reason, row.reason)
    assert row.failure is not None


@pytest.mark.slow
def test_a_wrong_answer_is_timed_and_said(rows: dict[str, Any]) -> None:
    row, _ = rows["wrong"]
    assert row.state is RowState.TIMED
    assert not row.is_right
    assert "values" in row.performance.verdict.reason


@pytest.mark.slow
def test_a_right_answer_that_is_overwritten_is_right_and_said(rows: dict[str, Any]) -> None:
    row, _ = rows["overwrites"]
    assert row.is_right
    assert row.performance.overwrites


@pytest.mark.slow
def test_a_plug_in_that_cannot_be_loaded_is_missing(rows: dict[str, Any]) -> None:
    row, _ = rows["broken"]
    assert row.state is RowState.MISSING
    assert "cannot be loaded: AttributeError" in row.reason


@pytest.mark.slow
def test_what_is_missing_says_why(rows: dict[str, Any]) -> None:
    row, _ = rows["absent"]
    assert (row.state, row.reason) == (RowState.MISSING, "there is no such chip")


@pytest.mark.slow
@pytest.mark.parametrize(
    "contender",  # AOTInductor compiles for half a minute, and `test_exported_backends.py` runs it
    [c for c in BUILT_IN if c.name not in ("torchwise", "aot-inductor")],
    ids=lambda c: c.name,
)
def test_a_built_in_contender_answers_as_eager_does_or_says_what_it_lacks(contender: Any) -> None:
    setting = Setting("cpu", "inference")
    workload = load("zoo:tutorial.fusion_demo@small")
    if why := contender.missing(setting):
        assert any(words in why for words in ("pip install", "needs", "it is for"))
        return
    (x,) = workload.examples[0].args
    with torch.no_grad():
        answer = contender.build(workload, setting)(x)
        torch.testing.assert_close(answer, workload.call(x), atol=1e-5, rtol=1e-5)


def test_those_without_a_backward_pass_say_so() -> None:
    setting = Setting("cpu", "training")
    without = {c.name for c in BUILT_IN if c.missing(setting) == "it is for inference, and this is training"}
    assert without == {"aot-inductor", "onnxruntime", "openvino"}


def test_an_unknown_contender_is_answered_with_near_misses() -> None:
    with pytest.raises(InputError, match=r"contender is 'defualt', but there are .*, all; did you mean default\?$"):
        find(["defualt"])
    assert [c.name for c in find(["torchwise", "eager"])] == ["eager", "torchwise"], "Torchwise runs last"
    assert len(find(["all"])) >= len(BUILT_IN)


def test_torchwise_is_not_credited_with_the_originals_time() -> None:
    workload = load("zoo:tutorial.fusion_demo@small")
    elsewhere = make_decision(
        workload.call, Plan(precision="bf16"), torch.randn(2, 3, 512)
    )  # verified on another shape
    setting = Setting("cpu", "inference", elsewhere.to_json())
    call = Torchwise().build(workload, setting)
    with torch.no_grad():
        call(*workload.examples[0].args)
    with pytest.raises(StalePlanError, match="the original model ran instead of the plan"):
        check_served(call)
    check_served(workload.call)


def test_a_store_of_rulings_that_cannot_be_reached_costs_no_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHWISE_STORE", "postgresql://127.0.0.1:1/nothing")
    workload = load("zoo:tutorial.fusion_demo@small")
    decision = make_decision(workload.call, Plan(precision="bf16"), *workload.examples[0].args)
    with pytest.raises(StorageError, match="cannot be reached"):
        apply(workload.call, decision, strict=True)
    call = Torchwise().build(workload, Setting("cpu", "inference", decision.to_json()))
    with torch.no_grad():
        call(*workload.examples[0].args)
    check_served(call)


def test_rows_are_json(rows: dict[str, Any]) -> None:
    _, benchmark = rows["eager"]
    assert json.loads(benchmark.to_json())["schema"] == "torchwise.bench/1"


@pytest.mark.parametrize(("rounds", "tolerance"), [(True, 0.05), (True, None), (False, 0.05)])
def test_the_tolerance_judges_contenders_of_fewer_bits(
    rounds: bool, tolerance: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Torchwise's own plans are judged by it. So the same answers were right in one row and wrong in another."""
    contender = SimpleNamespace(rounds=True) if rounds else SimpleNamespace()
    monkeypatch.setattr(contender_worker, "load_contenders", lambda: {"mine": contender})
    model, x = torch.nn.Linear(4, 4).eval(), torch.randn(2, 4)
    workload = Workload(model, (Example((x,)),))
    trial = SimpleNamespace(
        call=lambda given: 1.01 * model(given), harness=SimpleNamespace(workload=workload), verify=lambda _: "verified"
    )
    spec = WorkloadSpec("live:model", device="cpu", tolerance=tolerance)
    job = ContenderJob("contend", Job("try", spec), "mine")
    with torch.no_grad():
        found = contender_worker._verify(job, trial, print)  # type: ignore[arg-type]
    if rounds and tolerance:
        assert found.outcome is Outcome.PASS
        trial.call = lambda given: 1.1 * model(given)
        with torch.no_grad():
            assert contender_worker._verify(job, trial, print).outcome is Outcome.FAIL  # type: ignore[arg-type]
    else:
        assert found == "verified"  # type: ignore[comparison-overlap]


def test_the_contender_of_fewer_bits_rounds_the_layers_of_a_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torchao")
    monkeypatch.setattr(torch, "compile", lambda model: model)
    contender, setting = load_contenders()["int8-dynamic"], Setting("cpu", "inference")
    model, x = torch.nn.Sequential(torch.nn.Linear(64, 64)).eval(), torch.randn(8, 64)
    with torch.no_grad():
        found, expected = contender.build(Workload(model, (Example((x,)),)), setting)(x), model(x)
    assert 1e-3 < float((found - expected).norm() / expected.norm()) < 0.05
    assert type(model[0].weight) is torch.nn.Parameter
    with pytest.raises(UnsupportedError, match="this is a function"):
        contender.build(Workload(torch.sin, (Example((x,)),)), setting)
    assert contender.missing(setting) is None
    assert "no backward pass" in str(contender.missing(Setting("cpu", "training")))
