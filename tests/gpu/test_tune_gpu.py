"""Whole studies on a real GPU."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from torchwise.plan import Numerics, Plan  # noqa: E402
from torchwise.plan.workload_spec import WorkloadSpec  # noqa: E402
from torchwise.records import Outcome, TrialState  # noqa: E402
from torchwise.records.listener import Listener  # noqa: E402
from torchwise.store import open_storage  # noqa: E402
from torchwise.study import Request, run_study  # noqa: E402
from torchwise.trial import Job, Limits, ProcessLauncher, hold_duel  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.slow,
]


def study_of(tmp_path: Path, target: str, *plans: Plan, **options: object) -> object:
    spec = WorkloadSpec(target, device="cuda")
    with open_storage(str(tmp_path / "store.db")) as storage:
        request = Request(spec, plans=plans or None, effort="quick", **options)  # type: ignore[arg-type]
        return run_study(request, storage, ProcessLauncher(), Listener())


def test_a_search_tries_capture_and_proves_it(tmp_path: Path) -> None:
    """Benchmarks measure the speed-up. With four other programs on the GPU, eager may be decided for."""
    study = study_of(tmp_path, "zoo:tutorial.many_small_ops")
    passed = [t.plan for t in study.trials if t.verdict and t.verdict.outcome is Outcome.PASS]  # type: ignore[attr-defined]
    assert any(plan.capture == "call" for plan in passed)
    assert study.decision.plan in [Plan(), *passed]  # type: ignore[attr-defined]


def test_a_search_finds_questions_to_the_gpu_and_captures_between_them(tmp_path: Path) -> None:
    study = study_of(tmp_path, "zoo:tutorial.break_list")
    assert "reads_bool" in study.inspection.traits  # type: ignore[attr-defined]
    tried = {trial.plan: trial for trial in study.trials}[Plan(capture="branches")]  # type: ignore[attr-defined]
    assert tried.verdict.outcome is Outcome.PASS, tried.reason


def test_a_search_leaves_numbers_on_the_gpu_and_captures_the_call(tmp_path: Path) -> None:
    study = study_of(tmp_path, "zoo:tutorial.break_item")
    assert "reads_scalar" in study.inspection.traits  # type: ignore[attr-defined]
    plan = Plan(transforms=("numbers_on_gpu",), capture="call")
    tried = {trial.plan: trial for trial in study.trials}[plan]  # type: ignore[attr-defined]
    assert tried.verdict.outcome is Outcome.PASS, tried.reason


def test_noise_is_proven_under_capture_and_under_cuda_graph_modes(tmp_path: Path) -> None:
    plans = (Plan(capture="call"), Plan(backend="inductor", mode="reduce-overhead"))
    study = study_of(tmp_path, "zoo:spinlock.operator@small", *plans)
    assert [trial.plan for trial in study.trials] == list(plans)  # type: ignore[attr-defined]
    for trial in study.trials:  # type: ignore[attr-defined]
        assert trial.state is TrialState.COMPLETE, trial.reason
        assert trial.verdict.outcome is Outcome.PASS, trial.verdict.reason
        assert {"distribution", "independence"} <= {check.name for check in trial.verdict.checks}


def test_reduced_precision_is_proven_against_its_own_floor(tmp_path: Path) -> None:
    plans = (Plan(precision="tf32"), Plan(precision="bf16"))
    study = study_of(tmp_path, "zoo:tutorial.many_small_ops", *plans, allow=Numerics.LOWER_PRECISION)
    outcomes = [(trial.plan.precision, trial.verdict.outcome) for trial in study.trials]  # type: ignore[attr-defined]
    assert outcomes == [("tf32", Outcome.PASS), ("bf16", Outcome.PASS)]
    assert study.trials[1].verdict.error > 1e-3  # type: ignore[attr-defined]


def test_a_device_fault_ends_one_candidate_alone(tmp_path: Path) -> None:
    target = str(Path(__file__).parent.parent / "targets" / "gpu_faults.py")
    plans = (Plan(precision="tf32"), Plan(capture="call"))
    study = study_of(tmp_path, f"{target}:asserts", *plans, allow=Numerics.LOWER_PRECISION)
    first, second = study.trials  # type: ignore[attr-defined]
    assert first.state is TrialState.FAIL
    assert second.state is TrialState.COMPLETE
    hog = study_of(tmp_path, f"{target}:hogs", *plans, allow=Numerics.LOWER_PRECISION)
    assert hog.trials[0].failure.kind == "out of memory", hog.trials[0].reason  # type: ignore[attr-defined]
    assert hog.trials[1].state is TrialState.COMPLETE  # type: ignore[attr-defined]


def test_the_parent_never_creates_a_cuda_context(tmp_path: Path) -> None:
    code = f"""
import ctypes, sys
sys.argv = ["torchwise", "tune", "zoo:tutorial.many_small_ops", "--device", "cuda", "--effort", "quick",
            "--store", {str(tmp_path / "store.db")!r}]
from torchwise.cli import app
try:
    app()
except SystemExit as end:
    assert not end.code, end.code
assert "torch" not in sys.modules
driver = ctypes.CDLL("libcuda.so.1")
context = ctypes.c_void_p()
assert driver.cuCtxGetCurrent(ctypes.byref(context)) == 3, "CUDA was initialised"  # CUDA_ERROR_NOT_INITIALIZED
print("never initialised")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=False)
    assert "never initialised" in done.stdout, done.stderr[-2000:]


def test_a_live_model_on_the_gpu_is_tuned_and_applied(tmp_path: Path) -> None:
    import torchwise

    model = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(12)]).cuda().eval()
    given = torch.randn(8, 64, device="cuda")
    store = str(tmp_path / "store.db")
    fast = torchwise.optimize(model, (given,), effort="quick", store=store, progress=False)
    with torch.no_grad():
        assert torch.allclose(fast(given), model(given), atol=1e-5)
    assert fast.statistics.optimized == 1
    assert list(fast.state_dict()) == list(model.state_dict())


@pytest.mark.parametrize(
    ("target", "mode", "faster", "slower"),
    [
        ("zoo:tutorial.many_small_ops", "inference", Plan(capture="call"), Plan(backend="inductor")),
        ("zoo:training.carrier@small", "training", Plan(capture="step"), Plan(optimizer="foreach")),
    ],
    ids=["inference", "training"],
)
def test_two_plans_are_timed_beside_each_other(target: str, mode: str, faster: Plan, slower: Plan) -> None:
    job = Job("try", WorkloadSpec(target, device="cuda", mode=mode), faster)  # type: ignore[arg-type]
    found = hold_duel(ProcessLauncher(), job, slower, Limits(300, 2**35), lambda _stage: None)
    assert found.measurement is not None, found.failure
    assert found.measurement.speedup.low > 1.2
    assert found.measurement.candidate_device_s
