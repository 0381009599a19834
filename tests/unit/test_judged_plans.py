"""Plans that a tolerance judged: the weights that they hold for, and how their whole is verified."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from live_decisions import make_decision
from torchwise import apply
from torchwise.diagnose.bisect.probe import _verdict, build, load_subject
from torchwise.diagnose.bisect.probe_runner import Probe
from torchwise.errors import StalePlanError
from torchwise.plan import Plan, Trait
from torchwise.plan.effort import EFFORTS
from torchwise.plan.workload_spec import WorkloadSpec
from torchwise.records import Check, CheckCause, CheckName, Decision, Outcome, Verdict
from torchwise.records.structure_differences import OTHER_WEIGHTS
from torchwise.runtime.fallback_reason import FallbackReason as Fallback
from torchwise.runtime.staleness import stale_because
from torchwise.study.decision import decide
from torchwise.study.history import History
from torchwise.study.lock.entry import entry_in, entry_of, section_of
from torchwise.testing.records import make_study
from torchwise.trial import Job, experiment
from torchwise.trial.experiment import PlanCandidate, PlanExperiment
from torchwise.trial.inspection import inspect
from torchwise.workload import Example, Workload
from torchwise.workload.identity import identity
from torchwise.workload.target import find_factory
from torchwise.workload.weights import UNREADABLE, digest_if_judged, digest_weights

INT8 = Plan(transforms=("int8_dynamic",))


def make_model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 32, bias=False)).eval()


def error_of(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found - expected).norm() / expected.norm())


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> str:
    file = tmp_path_factory.mktemp("targets") / "linear_models.py"
    file.write_text(
        "import torch\n"
        "from torch import nn\n"
        "def make():\n"
        "    torch.manual_seed(0)\n"
        "    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64)).eval(), (torch.randn(16, 64),)\n"
    )
    return f"{file}:make"


def change_weights(model: nn.Module) -> None:
    with torch.no_grad():
        model.get_parameter("0.weight").mul_(2.0)


@pytest.mark.parametrize("calls_before", [0, 1])
def test_weights_that_nobody_judged_are_never_rounded_and_served(calls_before: int) -> None:
    model, x = make_model(), torch.randn(4, 64)
    served = apply(model, make_decision(model, INT8, x))
    with torch.no_grad():
        for _ in range(calls_before):
            served(x)
        change_weights(model)
        for _ in range(4):
            assert torch.equal(served(x), model(x))
        assert served.statistics.optimized == calls_before
    assert served._dispatcher.refusal.reason is Fallback.STALE_DECISION


def test_equal_weights_that_were_loaded_again_are_compiled_again() -> None:
    model, x = make_model(), torch.randn(4, 64)
    served = apply(model, make_decision(model, INT8, x))
    with torch.no_grad():
        served(x)
        model.load_state_dict({name: value.clone() for name, value in model.state_dict().items()})
        served(x)
        assert 0 < error_of(served(x), model(x)) < 0.02
    assert set(served.statistics.sentences) == {Fallback.MODEL_CHANGED}


def test_a_decision_holds_for_the_weights_that_it_was_judged_on() -> None:
    model, x = make_model(), torch.randn(4, 64)
    decision = make_decision(model, INT8, x)
    assert stale_because(model, decision) is None
    assert stale_because(model, Decision.from_json(decision.to_json())) is None
    change_weights(model)
    assert stale_because(model, decision) == OTHER_WEIGHTS
    assert stale_because(model, make_decision(model, INT8, x, weights="")) == OTHER_WEIGHTS, "of an earlier version"
    assert stale_because(model, replace(decision, plan=Plan(backend="inductor"))) is None
    with pytest.raises(StalePlanError, match="was not judged on these weights"):
        apply(model, decision, strict=True)


def test_the_identity_has_the_weights_only_where_a_tolerance_judges() -> None:
    model = make_model()
    model.register_buffer("cache", torch.ones(2), persistent=False)
    model.register_buffer("kept", torch.ones(2))
    judged, plain = WorkloadSpec("a:b", tolerance=0.02), WorkloadSpec("a:b")
    before = digest_if_judged(model, judged)
    model.cache.add_(1)
    assert digest_if_judged(model, judged) == before, "state of earlier calls is no weight"
    model.kept.add_(1)
    assert digest_if_judged(model, judged) != before
    assert digest_if_judged(model, plain) == digest_if_judged(model, replace(judged, mode="training")) == ""
    workload = Workload(model, (Example((torch.randn(4, 64),)),))
    assert identity(workload, "inference") == identity(workload, "inference", weights="")
    assert identity(workload, "inference") != identity(workload, "inference", weights=before)


def test_weights_of_every_dtype_and_layout_have_a_digest() -> None:
    def digest_of(tensor: torch.Tensor) -> str:
        model = nn.Module()
        model.register_buffer("one", tensor)
        return digest_weights(model)

    tensors = [torch.ones(3, dtype=dtype) for dtype in (torch.bfloat16, torch.complex64, torch.bool, torch.int8)]
    tensors += [torch.ones(()), torch.ones(0), torch.ones(2, 3).t(), torch.eye(3).to_sparse()]
    found = [digest_of(tensor) for tensor in tensors]
    assert UNREADABLE not in found
    assert len(set(found)) == len(found)
    assert digest_of(torch.ones(2, 3, device="meta")) == UNREADABLE


def test_a_search_keeps_the_digest_of_the_weights_that_it_judged(target: str) -> None:
    spec = WorkloadSpec(target, tolerance=0.02)
    inspection = inspect(Job("inspect", spec, effort=EFFORTS["quick"]), lambda _: None)
    assert inspection.weights == digest_weights(find_factory(target)()[0])
    study = make_study(workload=spec, inspection=inspection)
    decision = decide(History(spec, inspection, ()), study.environment)
    assert decision.weights == inspection.weights
    entry = entry_of(replace(study, decision=decision))
    assert entry_in(entry.key, section_of(entry)).decision.weights == inspection.weights


@pytest.mark.parametrize("can_reproduce", [True, False])
def test_a_model_that_draws_is_held_to_the_limit_as_a_whole_or_granted_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, can_reproduce: bool
) -> None:
    file = tmp_path / "noisy.py"
    file.write_text(
        "import torch\n"
        "from torch import nn\n"
        "def make():\n"
        "    return nn.Sequential(nn.Linear(64, 64), nn.Dropout(0.5)), (torch.randn(16, 64),)\n"
    )
    granted = []
    real = experiment.verify
    monkeypatch.setattr(
        experiment, "verify", lambda one, **how: (granted.append(one.is_quantized), real(one, **how))[1]
    )
    if not can_reproduce:
        monkeypatch.setattr(PlanCandidate, "build_reproducible", lambda *_: None)
    spec, traits = WorkloadSpec(f"{file}:make", tolerance=0.2), frozenset({Trait.STOCHASTIC})
    effort = replace(EFFORTS["quick"], reproduce_noise=True)
    trial = PlanExperiment(Job("try", spec, INT8, effort=effort, traits=traits), PlanCandidate(INT8))
    with trial.harness.gradients():
        trial.build()
        trial.first_calls()
        verdict = trial.verify(lambda _: None)
    assert granted[0] is can_reproduce
    if can_reproduce:
        assert verdict.outcome is Outcome.PASS, verdict.reason
        assert verdict.checks[-1].name == CheckName.SUBSTITUTION


def test_bisect_verifies_a_judged_plan_as_its_trial_did(target: str) -> None:
    def judge(tolerance: float | None) -> Outcome:
        probe = Probe(Job("try", WorkloadSpec(target, tolerance=tolerance), INT8), "plan")
        workload = load_subject(probe)
        return _verdict(workload, build(workload, probe), probe).outcome

    assert judge(0.02) is Outcome.PASS
    assert judge(None) is Outcome.FAIL


SENSITIVE = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(6))

    def forward(self, x):
        for layer in self.layers:
            y = layer((x + 65536.0) - 65536.0)
            x = torch.sin(2 * y / y.std(-1, keepdim=True))
        return x

def make():
    return Net().eval(), (torch.randn(16, 64),)

def judge(call):
    return 1.0
"""


def verify_sensitive(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    scale: float,
    metric: str | None,
    *,
    change: Callable[[Callable[..., Any]], Callable[..., Any]] | None = None,
    move: Callable[[torch.Tensor], torch.Tensor] = lambda x: x + 1e-3 * torch.sin(1000 * x),
    traits: frozenset[Trait] = frozenset(),
) -> Verdict:
    """Verify a plan with whole numbers of a model whose answers they move as much as other roundings would."""
    file = tmp_path / "sensitive.py"
    file.write_text(SENSITIVE)
    real = PlanCandidate.build

    def build_with_other_roundings(self: PlanCandidate, call: Callable[..., Any], harness: Any) -> Callable[..., Any]:
        inner = real(self, call, harness)
        changed = change(inner) if change else inner
        return lambda x: scale * changed(move(x))

    monkeypatch.setattr(PlanCandidate, "build", build_with_other_roundings)
    spec = WorkloadSpec(f"{file}:make", tolerance=0.6, metric=metric and f"{file}:{metric}")
    job = Job("try", spec, INT8, effort=EFFORTS["quick"], traits=traits)
    trial = PlanExperiment(job, PlanCandidate(INT8))
    with trial.harness.gradients():
        trial.build()
        trial.first_calls()
        return trial.verify(lambda _: None)


def test_where_rounding_hides_errors_the_tolerance_judges_the_whole_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = verify_sensitive(tmp_path, monkeypatch, 1.0, None)
    assert right.outcome is Outcome.PASS, right.reason
    (hidden,) = [check for check in right.checks if check.cause == CheckCause.HIDDEN_BY_ROUNDING]
    assert hidden.detail.startswith("left to the tolerance, which judges the whole plan")
    assert (hidden.error, hidden.floor) == (None, None), "it is that of rounding, and not of the plan"
    assert right.checks[-1].name == CheckName.SUBSTITUTION
    assert right.error is not None
    assert right.error < 0.6


@pytest.mark.parametrize("scale", [0.3, 1.7])
def test_a_wrong_plan_is_seen_by_the_tolerance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scale: float) -> None:
    wrong = verify_sensitive(tmp_path, monkeypatch, scale, None)
    assert wrong.outcome is Outcome.FAIL
    assert "0.6 is allowed" in wrong.reason


def test_a_metric_does_not_judge_what_rounding_hides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = verify_sensitive(tmp_path, monkeypatch, 1.0, "judge")
    assert found.outcome is Outcome.NOT_COMPARABLE
    assert "rounding" in found.reason
    assert found.is_hidden_by_rounding


def keep_first_answer(call: Callable[..., Any]) -> Callable[..., Any]:
    """Return a call that answers each later one as the first."""
    kept: list[torch.Tensor] = []

    def answer(x: torch.Tensor) -> torch.Tensor:
        if not kept:
            kept.append(call(x))
        return kept[0].clone()

    return answer


def test_an_answer_that_no_longer_depends_on_its_input_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = verify_sensitive(tmp_path, monkeypatch, 1.0, None, change=keep_first_answer)
    assert found.outcome is Outcome.FAIL
    assert "0.6 is allowed" in found.reason


def add_ripple(call: Callable[..., Any]) -> Callable[..., Any]:
    """Return a call with other answers, as far off as other roundings might be."""
    return lambda x: (answer := call(x)) + 0.1 * torch.sin(37 * answer)


def test_an_example_of_whole_numbers_alone_is_not_left_to_the_tolerance(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changed = SENSITIVE.replace("(torch.randn(16, 64),)", "(torch.arange(16),)")
    changed = changed.replace(
        "        for layer", "        x = torch.sin(x[:, None] * torch.arange(64) + 1.0)\n        for layer"
    )
    monkeypatch.setitem(globals(), "SENSITIVE", changed)
    found = verify_sensitive(tmp_path, monkeypatch, 1.0, None, move=lambda x: x, change=add_ripple)
    assert found.outcome is Outcome.NOT_COMPARABLE, found.reason


def test_a_model_that_keeps_state_is_not_left_to_the_tolerance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = verify_sensitive(tmp_path, monkeypatch, 1.0, None, traits=frozenset({Trait.STATEFUL}))
    assert found.outcome is Outcome.NOT_COMPARABLE
    assert found.is_hidden_by_rounding


def test_only_hidden_errors_are_left_to_the_tolerance() -> None:
    def make(*causes: CheckCause | None, outcome: Outcome = Outcome.NOT_COMPARABLE) -> Verdict:
        passed = Check(CheckName.STRUCTURE, Outcome.PASS, "")
        return Verdict((passed, *(Check(CheckName.VALUES, outcome, "", cause=cause) for cause in causes)))

    hidden = CheckCause.HIDDEN_BY_ROUNDING
    assert make(hidden).is_hidden_by_rounding
    assert not make().is_hidden_by_rounding
    assert not make(None).is_hidden_by_rounding
    assert not make(hidden, None).is_hidden_by_rounding
    assert not make(hidden, outcome=Outcome.FAIL).is_hidden_by_rounding
