"""Other operators in place of the model's own, judged by what the user allows."""

from __future__ import annotations

import copy
import json
import pickle
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from torchwise.cli import app
from torchwise.compile.shared_copies import share
from torchwise.compile.transforms import other_modules
from torchwise.compile.transforms.other_modules import (
    has_dropout,
    has_exact_gelu,
    has_instance_norm,
    leave_dropout_out,
    use_group_norm,
    use_tanh_gelu,
)
from torchwise.errors import UnsupportedError, WorkloadError
from torchwise.plan import EAGER, Numerics, Plan, PlanSpace, Trait
from torchwise.plan.choice import CHOICES, Choice, Stage, load_choices
from torchwise.plan.effort import EFFORTS
from torchwise.plan.workload_spec import TuneOptions, WorkloadSpec
from torchwise.records import CheckName, Outcome, Verdict
from torchwise.study.cluster import Task
from torchwise.study.request import Request
from torchwise.trial import Job
from torchwise.trial.experiment import Experiment, PlanCandidate
from torchwise.trial.inspection import inspect
from torchwise.verify.substitution import SubstitutionJudge, check_substitution
from torchwise.workload import Example, Workload

GELU = Plan(transforms=("tanh_gelu",))


# ---- the modules


@pytest.mark.parametrize(
    ("norm", "shape"),
    [
        (nn.InstanceNorm1d(6), (3, 6, 9)),
        (nn.InstanceNorm1d(6, affine=True), (6, 9)),
        (nn.InstanceNorm2d(6, affine=True, eps=1e-3), (3, 6, 5, 4)),
        (nn.InstanceNorm2d(6), (6, 5, 4)),
        (nn.InstanceNorm3d(6, affine=True), (2, 6, 3, 4, 5)),
        (nn.InstanceNorm2d(1), (2, 1, 5, 4)),
    ],
)
@pytest.mark.parametrize("training", [True, False])
def test_a_group_norm_is_the_same_function(norm: nn.Module, shape: tuple[int, ...], training: bool) -> None:
    model = nn.Sequential(copy.deepcopy(norm)).train(training)
    for parameter in model.parameters():
        nn.init.normal_(parameter)
    other, layer = use_group_norm(model)
    x = 3 * torch.randn(shape) + 1
    torch.testing.assert_close(other(x), model(x), rtol=1e-5, atol=1e-5)
    assert other(x).shape == model(x).shape
    assert type(model[0]) is type(norm), "the model keeps its own"
    assert all(ours is theirs for ours, theirs in zip(other.parameters(), model.parameters(), strict=True))
    assert layer(other) is other


@pytest.mark.parametrize("shape", [(2, 6, 1, 1), (2, 5, 4, 4), (6,)])
def test_inputs_that_the_norm_refuses_are_refused_alike(shape: tuple[int, ...]) -> None:
    model = nn.Sequential(nn.InstanceNorm2d(6, affine=True))
    errors = []
    for call in (model, use_group_norm(model)[0]):
        with pytest.raises((ValueError, RuntimeError)) as raised:
            call(torch.ones(shape))
        errors.append(str(raised.value))
    assert errors[0] == errors[1]


class Own(nn.InstanceNorm2d):
    pass


def test_other_modules_are_left_alone() -> None:
    assert not has_instance_norm(nn.Sequential(nn.InstanceNorm2d(4, track_running_stats=True), Own(4)))
    assert not has_instance_norm(torch.sin)
    assert not has_exact_gelu(nn.GELU(approximate="tanh"))
    with pytest.raises(UnsupportedError, match="has 'group_norm', but Linear has no instance norm"):
        use_group_norm(nn.Linear(2, 2))
    with pytest.raises(UnsupportedError, match=r"has 'tanh_gelu', but Linear has no nn\.GELU"):
        use_tanh_gelu(nn.Linear(2, 2))


@pytest.mark.parametrize("kind", [nn.Dropout, nn.Dropout2d, nn.AlphaDropout])
def test_dropout_that_is_on_is_left_out(kind: type[nn.Module]) -> None:
    model, x = nn.Sequential(nn.Linear(4, 4), kind(0.5)).train(), torch.randn(3, 2, 5, 4)
    other, _ = leave_dropout_out(model)
    assert torch.equal(other(x), model[0](x))
    assert type(model[1]) is kind, "the model keeps its own"
    assert has_dropout(model)
    assert not has_dropout(model.eval())
    assert not has_dropout(nn.Sequential(kind(0.0)))
    with pytest.raises(UnsupportedError, match="has 'no_dropout', but Sequential has no module of dropout that is on"):
        leave_dropout_out(model)


# ---- the verdict


def check(tolerance: float, metric: Any = None, original: nn.Module | None = None) -> Verdict:
    model = original or nn.Sequential(nn.GELU())
    other, _ = use_tanh_gelu(model)
    return Verdict(tuple(check_substitution(model, other, [Example((torch.randn(64),))], tolerance, metric)))


def test_the_error_that_the_user_allows_decides() -> None:
    passed, failed = check(1e-2), check(1e-6)
    assert (passed.outcome, failed.outcome) == (Outcome.PASS, Outcome.FAIL)
    assert 1e-6 < (passed.error or 0) < 1e-2
    assert failed.checks[0].name == CheckName.SUBSTITUTION
    assert "and 1e-06 is allowed" in failed.reason


def test_the_approximation_is_off_by_what_its_choice_says() -> None:
    x = torch.linspace(-8, 8, 100_001, dtype=torch.float64)
    off = (use_tanh_gelu(nn.Sequential(nn.GELU()))[0](x) - nn.GELU()(x)).abs().max()
    assert 1e-4 < off < 5e-4


def test_a_structure_that_changes_fails_at_any_tolerance() -> None:
    one, two = nn.GELU(), lambda x: x.double()
    (found,) = check_substitution(one, two, [Example((torch.ones(4),))], 10.0)
    assert (found.name, found.outcome) == (CheckName.STRUCTURE, Outcome.FAIL)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_numbers_that_are_none_fail_at_any_tolerance(value: float) -> None:
    (found,) = check_substitution(torch.sin, lambda x: x * value, [Example((torch.ones(4),))], 10.0)
    assert found.outcome is Outcome.FAIL


def test_whole_numbers_count_too() -> None:
    (found,) = check_substitution(torch.sign, lambda x: -torch.sign(x), [Example((torch.arange(4),))], 0.5)
    assert found.outcome is Outcome.FAIL


def judge_outputs(mine: Any, theirs: Any, tolerance: float, metric: Any = None) -> Verdict:
    examples = [Example((torch.ones(1),))]
    return Verdict(tuple(check_substitution(lambda _: theirs, lambda _: mine, examples, tolerance, metric)))


@pytest.mark.parametrize(
    ("mine", "theirs", "passes"),
    [
        ({"label": 3, "score": 0.5}, {"label": 4, "score": 0.5}, False),
        ({"label": 4, "score": 0.52}, {"label": 4, "score": 0.5}, True),
        ({"label": 4, "score": 0.8}, {"label": 4, "score": 0.5}, False),
        ([0.5, 0.0], [0.5, 0.01], False),
        ([0.5, float("nan")], [0.5, float("nan")], True),
        ([0.5, float("nan")], [0.5, 1.0], False),
        ("cat", "dog", False),
        (True, False, False),
        (1 + 1j, 1 + 1.01j, True),
    ],
)
def test_plain_answers_are_judged_too(mine: Any, theirs: Any, passes: bool) -> None:
    assert (judge_outputs(mine, theirs, 0.1).outcome is Outcome.PASS) is passes


def test_whole_numbers_must_be_equal_unless_a_metric_judges_them() -> None:
    labels, flipped = torch.arange(1000), torch.arange(1000)
    flipped[0] = 7
    refused = judge_outputs(flipped, labels, 0.5)
    assert refused.outcome is Outcome.FAIL
    assert "A metric can judge whole numbers" in refused.reason
    assert judge_outputs(labels.clone(), labels, 0.5).outcome is Outcome.PASS
    assert judge_outputs(flipped, labels, 0.5, lambda _: 1.0).outcome is Outcome.PASS
    assert judge_outputs({"label": 1}, {"label": 2}, 0.5, lambda _: 1.0).outcome is Outcome.PASS


@pytest.mark.parametrize("mask", [torch.finfo(torch.float32).min, -1e9])
def test_a_mask_does_not_hide_errors(mask: float) -> None:
    torch.manual_seed(0)
    theirs = torch.randn(100)
    mine = theirs * 1.5
    theirs[::3] = mine[::3] = mask
    found = judge_outputs(mine, theirs, 0.02)
    assert found.outcome is Outcome.FAIL
    assert found.error == pytest.approx(0.5, rel=1e-3)


def test_a_single_element_does_not_hide_in_the_mean() -> None:
    torch.manual_seed(0)
    theirs = torch.randn(1_000_000)
    mine = theirs * 1.001
    mine[5] += 3.0
    found = judge_outputs(mine, theirs, 0.02)
    assert found.outcome is Outcome.FAIL
    assert "of its root mean square in one element, and 0.2 is allowed" in found.reason
    assert found.error is not None
    assert found.error < 0.02


@pytest.mark.parametrize("mine", [torch.ones(2).double(), torch.ones(3), torch.tensor([1.0, float("nan")])])
def test_a_metric_permits_no_other_form_and_no_other_nan(mine: torch.Tensor) -> None:
    assert judge_outputs(mine, torch.ones(2), 0.5, lambda _: 1.0).outcome is Outcome.FAIL
    assert judge_outputs(torch.zeros(2), torch.ones(2), 0.5, lambda _: 1.0).outcome is Outcome.PASS


def test_the_metric_of_the_model_is_taken_once(tmp_path: Path) -> None:
    file = tmp_path / "counted.py"
    file.write_text("taken = []\ndef score(model):\n    taken.append(model)\n    return 1.0\n")
    model, spec = nn.Sequential(nn.GELU()), WorkloadSpec("a:b", tolerance=0.1, metric=f"{file}:score")
    judge = SubstitutionJudge(Workload(model, (Example((torch.randn(8),)),)), spec, 0)
    for _ in range(3):
        assert judge.judge(use_tanh_gelu(model)[0]).outcome is Outcome.PASS
    taken = judge._metric.__closure__[1].cell_contents.__globals__["taken"]  # type: ignore[union-attr]
    assert sum(one is model for one in taken) == 1
    assert len(taken) == 4


def test_other_inputs_count_if_the_workload_can_draw_them() -> None:
    def reseed(seed: int) -> tuple[Example, ...]:
        return (Example((torch.full((4,), float(seed)),)),)

    def substituted(x: torch.Tensor) -> torch.Tensor:
        return x * (1.5 if float(x[0]) > 2 else 1.0)

    spec, call = WorkloadSpec("a:b", tolerance=0.1), torch.clone
    workload = Workload(call, (Example((torch.ones(4),)),))
    assert SubstitutionJudge(workload, spec, 2).judge(substituted).outcome is Outcome.PASS
    drawn = replace(workload, reseed=reseed)
    assert SubstitutionJudge(drawn, spec, 2).judge(substituted).outcome is Outcome.FAIL
    assert SubstitutionJudge(drawn, spec, 0).judge(substituted).outcome is Outcome.PASS


def test_a_share_of_the_tolerance_may_be_kept_back() -> None:
    judge = SubstitutionJudge(
        Workload(torch.clone, (Example((torch.ones(4),)),)), WorkloadSpec("a:b", tolerance=0.1), 0
    )
    assert judge.judge(lambda x: x * 1.09).outcome is Outcome.PASS
    assert judge.judge(lambda x: x * 1.09, 0.8).outcome is Outcome.FAIL
    assert judge.judge(lambda x: x * 1.07, 0.8).outcome is Outcome.PASS


class Backwards(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.sin()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return 0.5 * grad


@pytest.mark.parametrize("metric", [None, lambda _: 1.0])
def test_a_model_to_be_trained_is_judged_by_its_gradients_too(metric: Any) -> None:
    examples = [Example((torch.randn(64, requires_grad=True),))]

    def judge(training: bool) -> Verdict:
        return Verdict(tuple(check_substitution(torch.sin, Backwards.apply, examples, 0.1, metric, training=training)))

    assert judge(training=False).outcome is Outcome.PASS
    judged = judge(training=True)
    assert judged.outcome is Outcome.FAIL
    assert "gradient" in judged.reason


def quality(call: Callable[..., Any]) -> float:
    return float(call(torch.linspace(-3, 3, 100)).sum())


def test_a_metric_of_the_user_decides_in_its_place() -> None:
    assert check(1e-3, quality).outcome is Outcome.PASS
    lossy = check(1e-3, lambda call: 1.0 if isinstance(call[0], nn.GELU) and type(call[0]) is nn.GELU else 0.9)
    assert lossy.outcome is Outcome.FAIL
    assert "the metric is 0.9 in place of 1: it loses 10 %, and 0.1 % is allowed" in lossy.reason
    assert check(0.2, lambda call: 1.0 if type(call[0]) is nn.GELU else 0.9).outcome is Outcome.PASS
    assert check(1e-3, lambda call: 1.0 if type(call[0]) is nn.GELU else 2.0).outcome is Outcome.PASS, "it is better"
    assert check(1e-3, lambda call: call.nothing).outcome is Outcome.NOT_COMPARABLE


def test_what_a_metric_permits_is_an_error_that_later_comparisons_expect() -> None:
    torch.manual_seed(0)
    permitted = check(1e-3, quality)
    torch.manual_seed(0)
    assert permitted.error == check(1e-2).error
    assert 1e-6 < (permitted.error or 0) < 1e-2
    assert check(1e-3, lambda call: 1.0 if type(call[0]) is nn.GELU else 0.9).error is None


# ---- a trial


@dataclass(frozen=True)
class Broken(PlanCandidate):
    """A plan whose compiled code is off by less than the user allows other operators."""

    def build(self, call: Callable[..., Any], harness: Any) -> Callable[..., Any]:
        right = super().build(call, harness)
        return lambda *args: right(*args) * 1.001


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> str:
    file = tmp_path_factory.mktemp("targets") / "gelu_model.py"
    file.write_text(
        "import torch\n"
        "def make():\n"
        "    return torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU()).eval(), (torch.randn(16, 8),)\n"
        "def find_loss(model):\n"
        "    return 1.0 if type(model[1]) is torch.nn.GELU else 0.5\n"
    )
    return f"{file}:make"


def test_training_with_another_gelu_is_judged_in_a_trial(target: str) -> None:
    assert judge_target(target, GELU, 0.05, mode="training").outcome is Outcome.PASS
    assert judge_target(target, GELU, 1e-6, mode="training").outcome is Outcome.FAIL


def test_dropout_is_left_out_where_a_metric_permits_it(tmp_path: Path) -> None:
    file = tmp_path / "noisy_model.py"
    file.write_text(
        "import torch\n"
        "def make():\n"
        "    return torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Dropout(0.3)), (torch.randn(16, 8),)\n"
        "def rate(model):\n"
        "    return 1.0\n"
    )
    plan, traits = Plan(transforms=("no_dropout",)), frozenset({Trait.STOCHASTIC})
    passed = judge_target(f"{file}:make", plan, 0.1, metric=f"{file}:rate", traits=traits)
    assert passed.outcome is Outcome.PASS
    assert judge_target(f"{file}:make", plan, 0.1, traits=traits).outcome is Outcome.FAIL, "the noise is an error"


Judge = Callable[..., Verdict]


@pytest.fixture
def judge(target: str) -> Judge:
    return lambda *args, **options: judge_target(target, *args, **options)


def judge_target(
    target: str,
    plan: Plan,
    tolerance: float | None,
    kind: type[PlanCandidate] = PlanCandidate,
    metric: str = "",
    mode: Any = "inference",
    traits: frozenset[Trait] = frozenset(),
) -> Verdict:
    spec = WorkloadSpec(target, tolerance=tolerance, metric=metric or None, mode=mode)
    trial = Experiment(Job("try", spec, plan, effort=EFFORTS["quick"], traits=traits), kind(plan))
    with trial.harness.gradients():
        trial.build()
        trial.first_calls()
        return trial.verify(lambda _: None)


def test_a_plan_is_judged_by_its_operators_and_the_rest_of_it_as_always(judge: Judge) -> None:
    assert judge(GELU, None).outcome is Outcome.FAIL, "nothing is allowed"
    passed = judge(GELU, 0.05)
    assert passed.outcome is Outcome.PASS
    assert passed.checks[0].name == CheckName.SUBSTITUTION
    assert {CheckName.VALUES, CheckName.RETAINED_OUTPUTS} <= {check.name for check in passed.checks}
    assert judge(GELU, 1e-6).outcome is Outcome.FAIL
    broken = judge(GELU, 0.05, Broken)
    assert (broken.outcome, broken.checks[-1].name) == (Outcome.FAIL, CheckName.VALUES)
    assert judge(EAGER, 0.05, Broken).outcome is Outcome.FAIL, "a tolerance is for other operators alone"


def test_a_metric_that_was_corrected_judges_anew(tmp_path: Path) -> None:
    file = tmp_path / "score.py"
    spec = WorkloadSpec("a:b", tolerance=0.1, metric=f"{file}:accuracy")
    identities = set()
    for text in ("def accuracy(model): return 1", "def accuracy(model): return 2"):
        file.write_text(text)
        identities.add(Job("inspect", spec).identity_of("0" * 16))
    assert len(identities) == 2


def test_a_metric_is_loaded_by_its_place(judge: Judge, target: str) -> None:
    metric = target.replace(":make", ":find_loss")
    assert judge(GELU, 0.6, metric=metric).outcome is Outcome.PASS
    assert judge(GELU, 0.05, metric=metric).outcome is Outcome.FAIL


def test_a_swap_that_is_registered_by_hand_can_pass(judge: Judge, monkeypatch: pytest.MonkeyPatch) -> None:
    def relu(call: Any) -> Any:
        model = share(call)
        for part in model.modules():
            if type(part) is nn.GELU:
                part.__class__ = Relu
        return model, lambda inner: inner

    swap = Choice("transforms", "relu", Numerics.SUBSTITUTED, 1, "a test", realized_by=relu, stage=Stage.MODEL)
    monkeypatch.setitem(CHOICES, swap.key, swap)
    plan = Plan(transforms=("relu",))
    assert judge(plan, 0.9).outcome is Outcome.PASS
    assert judge(plan, 0.01).outcome is Outcome.FAIL


class Relu(nn.GELU):
    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return input.relu()


# ---- a search


def test_such_operators_are_tried_if_an_error_is_allowed_and_never_else() -> None:
    traits = frozenset({Trait.EXACT_GELU, Trait.INSTANCE_NORM, Trait.MODULE})
    space = PlanSpace("cpu", "inference", traits, Numerics.SUBSTITUTED, "quick")
    gelu, norm = load_choices()["transforms", "tanh_gelu"], load_choices()["transforms", "group_norm"]
    assert space.excludes(gelu) == "it is for a model that may be changed, by --tolerance or --metric distribution"
    assert space.excludes(norm) is None
    tolerant = PlanSpace("cpu", "inference", traits | {Trait.TOLERANT}, Numerics.SUBSTITUTED, "quick")
    assert tolerant.excludes(gelu) is None
    trained = PlanSpace("cpu", "training", traits | {Trait.TOLERANT}, Numerics.SUBSTITUTED, "quick")
    assert trained.excludes(gelu) is None
    step = PlanSpace("cpu", "training", trained.traits | {Trait.TRAINING_STEP}, Numerics.SUBSTITUTED, "quick")
    assert step.excludes(gelu) == "a whole training step is verified against the model's own operators"
    careful = PlanSpace("cpu", "inference", traits | {Trait.TOLERANT}, Numerics.SAME_PRECISION, "quick")
    assert careful.excludes(gelu) == "it is substituted, and only up to same-precision is allowed"


def test_an_inspection_finds_what_can_be_replaced_and_makes_a_study_of_its_own(target: str) -> None:
    jobs = [Job("inspect", WorkloadSpec(target, tolerance=given)) for given in (None, 0.05, 0.1)]
    found = [inspect(job, lambda _: None) for job in jobs]
    assert Trait.EXACT_GELU in found[0].traits
    assert [Trait.TOLERANT in one.traits for one in found] == [False, True, True]
    assert len({one.identity for one in found}) == 3


@pytest.mark.slow
@pytest.mark.usefixtures("brief_searches")
@pytest.mark.parametrize(
    ("allowed", "expected"),
    [
        (("--tolerance", "0.02"), {"group_norm": "pass", "tanh_gelu": "pass"}),
        ((), {"tanh_gelu": "fail"}),
    ],
    ids=["an error", "no error"],
)
def test_a_command_judges_other_operators_by_the_error_that_is_allowed(
    tmp_path: Path, allowed: tuple[str, ...], expected: dict[str, str]
) -> None:
    file, told = tmp_path / "normed.py", tmp_path / "study.json"
    file.write_text(
        "import torch\n"
        "def make():\n"
        "    torch.manual_seed(0)\n"
        "    layers = torch.nn.Conv2d(2, 4, 3), torch.nn.InstanceNorm2d(4, affine=True), torch.nn.GELU()\n"
        "    return torch.nn.Sequential(*layers).eval(), (torch.randn(2, 2, 16, 16),)\n"
    )
    plans = [word for one in expected for word in ("--plan", Plan(transforms=(one,)).to_json())]
    words = ["tune", f"{file}:make", "--allow", "substituted", *allowed, *plans, "--effort", "quick", "--device", "cpu"]
    done = CliRunner().invoke(app, [*words, "--store", str(tmp_path / "s.db"), "--json", str(told)])
    assert done.exit_code in (0, 4), done.output  # whether one of them is faster is not the point
    verdicts = {
        trial["plan"]["transforms"][0]: {check["name"]: check["outcome"] for check in trial["verdict"]["checks"]}
        for trial in json.loads(told.read_text())["trials"]
    }
    assert {name: worst(checks) for name, checks in verdicts.items()} == expected
    assert ("substitution" in verdicts["tanh_gelu"]) is bool(allowed), "judged as another operator"


def worst(outcomes: dict[str, str]) -> str:
    return "pass" if set(outcomes.values()) == {"pass"} else "fail"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"tolerance": 0.0}, "tolerance is 0.0, but must be above 0 and finite"),
        ({"tolerance": -1.0}, "tolerance is -1.0, but must be above 0 and finite"),
        ({"tolerance": float("nan")}, "tolerance is nan, but must be above 0 and finite"),
        ({"metric": "a.b:c"}, "a metric is given, but no tolerance"),
    ],
)
def test_what_means_nothing_is_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(WorkloadError, match=said):
        Request.from_options(TuneOptions(**options), "zoo:any", "cpu")


def test_the_options_travel() -> None:
    task = Task("zoo:any", "cpu", tolerance=0.05, metric="a.b:c")
    spec = task.request().workload
    assert (spec.tolerance, spec.metric) == (0.05, "a.b:c")
    assert {"--tolerance=0.05", "--metric=a.b:c"} <= set(task.arguments())


def test_modules_without_dropout_can_be_stored() -> None:
    for kind in other_modules._DROPOUTS:
        model, _ = other_modules.leave_dropout_out(nn.Sequential(kind(0.5)).train())
        x = torch.randn(2, 3, 4)
        assert pickle.loads(pickle.dumps(model))(x).equal(x)
