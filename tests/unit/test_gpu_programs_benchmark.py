"""The benchmark of programs on a GPU: plans are kept one by one, and one without a time is told as such."""

from __future__ import annotations

import importlib
import json
from argparse import Namespace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from sketches import FAILED, NOT_COMPARABLE, a_trial

from torchwise.errors import BaselineError
from torchwise.plan import Numerics, Plan
from torchwise.plan.space import numerics_of
from torchwise.records import Failure, FailureKind, TrialState, WorkerStage
from torchwise.workload.target import find_factory, load

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
OPTIONS = Namespace(timeout=60.0)
WHOLE = ["inductor, captured", "reduce-overhead", "max-autotune", "max-autotune, captured"]


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("gpu_programs")


def timed(speedup: float, **more: Any) -> dict[str, Any]:
    times = {"time_s": [0.9e-3, 1e-3, 1.1e-3], "busy_s": None, "cold_s": 5.0, "error": 1e-7, "processes": 2}
    return {"speedup": [speedup * 0.98, speedup, speedup * 1.02], **times, **more}


def cut_off(timeout_s: float = 60.0) -> dict[str, Any]:
    return {"said": "cut off", "why": "took too long in compile", "timeout_s": timeout_s}


def a_failure(kind: FailureKind, stage: WorkerStage = WorkerStage.COMPILE) -> Failure:
    return Failure(kind, stage, "a reason")


def answer(gpu: ModuleType, monkeypatch: pytest.MonkeyPatch, cells: dict[str, Any]) -> list[str]:
    """Have each plan measured as its cell in `cells`, by its name, and return the names of those that were."""
    measured: list[str] = []

    def measure(_target: str, plan: Plan, options: Namespace, _store: Path) -> tuple[dict[str, Any], float]:
        plans = gpu.list_plans("cuda", getattr(options, "allow", "same-precision"))
        measured.append(next(name for name, one in plans.items() if one == plan))
        return dict(cells.get(measured[-1], timed(2.0))), 1e-3

    monkeypatch.setattr(gpu, "measure", measure)
    return measured


def run(program: ModuleType, monkeypatch: pytest.MonkeyPatch, folder: Path, *words: str) -> None:
    given = ["--label", "x", "--date", "2026-11-29", "--out", str(folder), *words]
    monkeypatch.setattr("sys.argv", ["program.py", *given])
    program.main()


@pytest.mark.parametrize("allow", ["same-precision", "lower-precision"])
def test_all_plans_are_within_the_numerics_and_lower_ones_multiply_in_tf32(gpu: ModuleType, allow: str) -> None:
    plans = gpu.list_plans("cuda", allow)
    assert all(Numerics.of(allow).allows(numerics_of(plan)) for plan in plans.values())
    assert {plan.precision for plan in plans.values()} == {"tf32" if allow == "lower-precision" else "native"}
    assert len(set(plans.values())) == len(plans) == 8
    assert gpu.choose_plans(None, plans) == list(plans)


def test_a_cpu_has_the_plans_without_cuda_graphs(gpu: ModuleType) -> None:
    plans = gpu.list_plans("cpu", "same-precision")
    assert plans["row programs"] == Plan(backend="row_programs")
    assert "captured" not in plans
    assert "coordinate descent, captured" not in plans
    assert {(plan.capture, plan.is_eager) for plan in plans.values()} == {("none", False)}
    assert {plan.mode for plan in plans.values()} == {"default", "max-autotune-no-cudagraphs"}


def test_all_programs_exist_and_have_the_asked_device(gpu: ModuleType) -> None:
    for name in (*gpu.KNOWN, "neuron@small"):
        assert callable(find_factory(gpu.find_target(name)))
    workload = load(gpu.find_target("policy"), device="cpu")
    assert {tensor.device.type for tensor in workload.examples[0].tensors()} == {"cpu"}
    assert gpu.find_target("neuron@large") == "zoo:energy_flow.neuron@large"


def test_programs_without_products_are_left_out_of_lower_precision_unless_named(gpu: ModuleType) -> None:
    assert gpu.choose_programs(None, "same-precision") == list(gpu.KNOWN)
    lower = gpu.choose_programs(None, "lower-precision")
    assert [name for name in gpu.KNOWN if name not in lower] == ["scan", "monte_carlo", "particles"]
    assert gpu.choose_programs(["scan"], "lower-precision") == ["scan"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--programs", "policy", "polish"], "programs has 'polish', but there are neural_ode"),
        (["--programs", "policy@large"], "programs has 'policy@large'"),
        (["--plans", "compiled"], "plans has 'compiled', but on this device there are row-programs"),
        (["--plans", "captured", "--device", "cpu"], "plans has 'captured', but on this device there are row-programs"),
        (["--allow", "quantized"], "invalid choice: 'quantized'"),
    ],
)
def test_a_wrong_name_is_refused_with_those_there_are(
    gpu: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    message: str,
) -> None:
    with pytest.raises(SystemExit):
        run(gpu, monkeypatch, tmp_path, *words)
    assert message in capsys.readouterr().err


def test_a_plain_compile_that_is_cut_off_spares_others_of_the_same_graph(
    gpu: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured = answer(gpu, monkeypatch, {"inductor, captured": cut_off()})
    row: dict[str, Any] = {"eager_s": None, "plans": {}}
    plans = gpu.list_plans("cuda", "same-precision")
    assert list(gpu.measure_missing("zoo:a", row, plans, OPTIONS, float("inf"))) == list(plans)
    assert measured == ["row programs", "captured", "inductor, captured", "rolled, captured"]
    assert row["plans"]["max-autotune"]["said"] == "not begun"
    assert "inductor, captured was cut off" in row["plans"]["max-autotune"]["why"]
    assert row["eager_s"] == 1e-3
    del row["plans"]["max-autotune"]
    assert list(gpu.measure_missing("zoo:a", row, plans, OPTIONS, float("inf"))) == ["max-autotune"]
    assert row["eager_s"] == 1e-3, "a plan that is not begun has no time of eager"


def test_a_plan_is_tried_under_the_numerics_and_the_time_that_were_asked_for(
    gpu: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    given: dict[str, Any] = {}
    plan, eager = Plan(capture="call", precision="tf32"), SimpleNamespace(standing="baseline", plan=Plan())
    trial = a_trial(plan, 2.0)
    row = SimpleNamespace(plan=plan, standing="decided", trial=trial, speedup=trial.speedup, cold_s=1.0, error=0.0)
    eager.time = SimpleNamespace(mid=3e-3)
    monkeypatch.setattr(
        gpu.torchwise, "tune", lambda target, **how: given.update(how) or SimpleNamespace(record=target)
    )
    monkeypatch.setattr(gpu, "rows", lambda _: [row, eager])
    options = Namespace(device="cuda", allow="lower-precision", effort="quick", iterations=7, timeout=42.0)
    cell, eager_s = gpu.measure("zoo:a", plan, options, tmp_path)
    assert (cell["speedup"][1], eager_s) == (pytest.approx(2.0), 3e-3)
    asked = ("plans", "device", "allow", "effort", "iterations", "compile_timeout", "tolerance")
    assert [given[name] for name in asked] == [[plan], "cuda", "lower-precision", "quick", 7, 42.0, None]
    gpu.measure("zoo:a", plan, Namespace(**vars(options), tolerance=0.1), tmp_path)
    assert given["tolerance"] == 0.1


def test_a_longer_compile_that_is_cut_off_spares_nothing(gpu: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    row: dict[str, Any] = {"eager_s": None, "plans": {"max-autotune": cut_off()}}
    measured = answer(gpu, monkeypatch, {})
    list(gpu.measure_missing("zoo:a", row, gpu.list_plans("cuda", "same-precision"), OPTIONS, float("inf")))
    assert "max-autotune" not in measured
    assert set(WHOLE) - set(measured) == {"max-autotune"}


def test_more_time_tries_again_those_that_were_cut_off_and_no_others(
    gpu: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = {
        "row programs": timed(9.0),
        "captured": {"said": "refused", "why": "a reason", "timeout_s": 60.0},
        "inductor, captured": cut_off(),
        "reduce-overhead": {"said": "not begun", "why": "as another", "timeout_s": 60.0},
        "max-autotune": {"said": "disturbed", "why": "not tried"},
    }
    plans = {name: plan for name, plan in gpu.list_plans("cuda", "same-precision").items() if name in kept}
    measured, row = answer(gpu, monkeypatch, {}), {"eager_s": 1e-3, "plans": dict(kept)}
    list(gpu.measure_missing("zoo:a", row, plans, Namespace(timeout=60.0), float("inf")))
    assert (measured, row["plans"]["max-autotune"]["said"]) == ([], "not begun"), "it compiles what was cut off"
    list(gpu.measure_missing("zoo:a", row, plans, Namespace(timeout=120.0), float("inf")))
    assert measured == ["inductor, captured", "reduce-overhead", "max-autotune"]


def test_a_plan_that_was_disturbed_is_tried_again(gpu: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    plans = {"captured": gpu.PLANS["captured"]}
    measured, row = answer(gpu, monkeypatch, {}), {"eager_s": 1e-3, "plans": {"captured": {"said": "disturbed"}}}
    list(gpu.measure_missing("zoo:a", row, plans, OPTIONS, float("inf")))
    assert (measured, "speedup" in row["plans"]["captured"]) == (["captured"], True)


def test_nothing_starts_after_the_end(gpu: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    measured, row = answer(gpu, monkeypatch, {}), {"eager_s": None, "plans": {}}
    assert list(gpu.measure_missing("zoo:a", row, gpu.list_plans("cuda", "same-precision"), OPTIONS, 0.0)) == []
    assert (measured, row["plans"]) == ([], {})


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"failure": a_failure(FailureKind.TIMED_OUT)}, "cut off"),
        ({"failure": a_failure(FailureKind.TIMED_OUT, WorkerStage.WARM_COMPILE)}, "cut off"),
        ({"failure": a_failure(FailureKind.TIMED_OUT, WorkerStage.VERIFY)}, "timed out"),
        ({"failure": a_failure(FailureKind.UNSUPPORTED)}, "refused"),
        ({"failure": a_failure(FailureKind.INTERFERED, WorkerStage.MEASURE)}, "disturbed"),
        ({"failure": a_failure(FailureKind.OUT_OF_MEMORY)}, "out of memory"),
        ({"verdict": FAILED, "state": TrialState.COMPLETE}, "wrong"),
        ({"verdict": NOT_COMPARABLE, "state": TrialState.COMPLETE}, "not comparable"),
        ({"state": TrialState.RUNNING}, "disturbed"),
    ],
)
def test_a_plan_that_is_not_verified_has_no_time_but_a_word(
    gpu: ModuleType, changes: dict[str, Any], said: str
) -> None:
    trial = a_trial(Plan(capture="call"), 3.0, **{"state": TrialState.FAIL, **changes})  # although it was timed
    row = SimpleNamespace(trial=trial, speedup=trial.speedup, why="a reason", cold_s=1.0, error=None)
    assert gpu.read_row(row, 60.0) == {"said": said, "why": "a reason", "timeout_s": 60.0}


def test_a_verified_plan_has_its_own_times_over_all_processes(gpu: ModuleType) -> None:
    trial = a_trial(Plan(capture="call"), 2.0)
    row = SimpleNamespace(trial=trial, speedup=trial.speedup, why="", cold_s=1.0, error=1e-7)
    found = gpu.read_row(row, 60.0)
    assert found["speedup"] == pytest.approx([trial.speedup.low, 2.0, trial.speedup.high])
    assert found["time_s"][1] == pytest.approx(0.5)
    assert found["processes"] == 5


def test_the_table_names_each_plan_without_a_time(gpu: ModuleType) -> None:
    plans = {"row programs": timed(12.0), "captured": timed(3.0), "reduce-overhead": cut_off(90.0)}
    row, names = {"eager_s": 2e-3, "plans": plans}, [*plans, "max-autotune"]
    line = gpu.write_row("neural_ode", row, names)
    assert line.startswith(
        "| neural_ode | 2000 | 12.0× [11.8, 12.2] | 3.00× [2.94, 3.06] | cut off at 90 s | not tried |"
    )
    assert line.endswith("(captured, 2 of 3 others without a time) |")
    assert "slower" not in line
    lines = gpu.summarize(
        {"neural_ode": row}, names, Namespace(device="cpu", date="2026-11-29", allow="same-precision")
    )
    assert "- neural_ode, reduce-overhead: took too long in compile" in lines
    assert any("may be faster" in line for line in lines)


def test_no_ratio_is_told_without_a_time_of_row_programs(gpu: ModuleType) -> None:
    plans = {"row programs": cut_off(), "captured": timed(3.0)}
    assert gpu.write_row("gru", {"eager_s": 1e-3, "plans": plans}, [*plans]).endswith("| 3.00× [2.94, 3.06] | – |")


def test_a_later_run_adds_plans_to_a_row_and_each_numerics_has_its_file(
    gpu: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    measured = answer(gpu, monkeypatch, {"row programs": timed(8.0)})
    run(gpu, monkeypatch, tmp_path, "--programs", "policy", "--plans", "row-programs", "captured")
    run(gpu, monkeypatch, tmp_path, "--programs", "policy", "--plans", "captured", "max-autotune-captured")
    assert measured == ["row programs", "captured", "max-autotune, captured"]
    file = tmp_path / "2026-11-29-x-gpu-programs-same-precision"
    assert list(json.loads(file.with_suffix(".json").read_text())["policy"]["plans"]) == measured
    assert "| policy | 1000 | 8.00×" in file.with_suffix(".md").read_text()
    run(gpu, monkeypatch, tmp_path, "--programs", "policy", "--plans", "captured", "--allow", "lower-precision")
    assert measured[3:] == ["captured"], "other numerics, so it is another result"
    lower = tmp_path / "2026-11-29-x-gpu-programs-lower-precision.md"
    assert "products in TF32" in lower.read_text()


def test_a_program_that_fails_is_told_and_the_others_are_measured(
    gpu: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def measure(target: str, *_: object) -> tuple[dict[str, Any], float]:
        if target.endswith(":policy"):
            raise BaselineError("no memory")
        return timed(2.0), 1e-3

    monkeypatch.setattr(gpu, "measure", measure)
    with pytest.raises(SystemExit) as exited:
        run(gpu, monkeypatch, tmp_path, "--programs", "policy", "gru")
    assert exited.value.code == 1
    assert "policy: no memory" in capsys.readouterr().err
    assert list(json.loads(next(tmp_path.glob("*.json")).read_text())) == ["gru"]
