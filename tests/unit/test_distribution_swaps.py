"""Other operators in a model that draws random numbers, judged by whether its outputs keep their distribution."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from sketches import an_inspection
from torch import nn
from typer.testing import CliRunner

import torchwise
from brief import BRIEF
from builders import a_study, a_trial
from torchwise.cli import app
from torchwise.compile.shared_copies import share
from torchwise.errors import InputError, WorkloadError
from torchwise.plan import Numerics, Plan, Trait
from torchwise.plan.choice import CHOICES, Choice, Stage
from torchwise.plan.workload_spec import TuneOptions, WorkloadSpec
from torchwise.records import Check, CheckName, Figure, Outcome, Verdict
from torchwise.report.facts import command_line, describe_request
from torchwise.report.study import plots
from torchwise.study.request import Request, check_metric
from torchwise.trial import Job
from torchwise.trial.experiment import Experiment, PlanCandidate
from torchwise.trial.inspection import inspect
from torchwise.trial.smaller_rewrites import make_judge
from torchwise.verify.distribution import find_still_problem
from torchwise.verify.stochastic import FALSE_ALARM_RATE
from torchwise.verify.substitution import check_distribution
from torchwise.workload import Example, Workload

EXAMPLES = [Example((torch.linspace(-1, 1, 96).reshape(8, 12),)), Example((torch.ones(8, 12),))]


def add_noise(x: torch.Tensor) -> torch.Tensor:
    return x + torch.randn_like(x)


def draw_in_another_order(x: torch.Tensor) -> torch.Tensor:
    return x + torch.randn(x.shape[1], x.shape[0]).T


def draw_the_same(x: torch.Tensor) -> torch.Tensor:
    return add_noise(x)


def shift_the_mean(x: torch.Tensor) -> torch.Tensor:
    return add_noise(x) + 0.3


def raise_the_variance(x: torch.Tensor) -> torch.Tensor:
    return x + 1.3 * torch.randn_like(x)


def share_noise_among_neighbours(x: torch.Tensor) -> torch.Tensor:
    return x + torch.randn(x.shape[0], x.shape[1] // 2).repeat_interleave(2, 1)


def drop_the_noise(x: torch.Tensor) -> torch.Tensor:
    return x.clone()


class CorrelatedNoise:
    """Noise of variance 1 that depends on that of the call before."""

    def __init__(self) -> None:
        self._last: torch.Tensor | None = None

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        fresh = torch.randn_like(x)
        self._last = fresh if self._last is None else 0.8 * self._last + 0.6 * fresh
        return x + self._last


class LastingNoise:
    """Noise that lasts for two calls, which begin at an even or an odd one."""

    def __init__(self, calls: int) -> None:
        self._calls, self._noise = calls, torch.zeros(8, 12)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        self._noise = self._noise if self._calls % 2 else torch.randn_like(x)
        self._calls += 1
        return x + self._noise


def judge(substituted: Callable[..., Any], original: Callable[..., Any] = add_noise) -> Check:
    return check_distribution(original, substituted, EXAMPLES, budget_s=1.0)


@pytest.mark.parametrize("substituted", [draw_in_another_order, draw_the_same])
def test_other_numbers_of_the_same_distribution_pass(substituted: Callable[..., Any]) -> None:
    found = judge(substituted)
    assert (found.name, found.outcome) == (CheckName.SUBSTITUTION, Outcome.PASS)
    assert found.detail.startswith("judged by the distribution of outputs: no difference over ")
    assert f"on 2 inputs, false-alarm rate {FALSE_ALARM_RATE:g}" in found.detail
    assert found.figures[Figure.LEVEL] == FALSE_ALARM_RATE


@pytest.mark.parametrize(
    ("substituted", "cause"),
    [
        (shift_the_mean, "distribution: mean differs"),
        (raise_the_variance, "distribution: mean square differs"),
        (share_noise_among_neighbours, "distribution: "),
        (CorrelatedNoise(), "independence: products of successive calls"),
        (drop_the_noise, "distribution: "),
    ],
)
def test_another_distribution_fails(substituted: Callable[..., Any], cause: str) -> None:
    found = judge(substituted)
    assert (found.name, found.outcome) == (CheckName.SUBSTITUTION, Outcome.FAIL)
    assert found.detail.startswith(f"judged by the distribution of outputs: {cause}")
    assert Verdict((found,)).is_change_refused


@pytest.mark.parametrize("calls", [0, 1])
def test_noise_that_lasts_for_two_calls_fails_wherever_they_begin(calls: int) -> None:
    found = check_distribution(add_noise, LastingNoise(calls), EXAMPLES[:1], budget_s=1.0)
    assert found.outcome is Outcome.FAIL
    assert "independence: products of successive calls" in found.detail


def test_each_input_counts_and_they_share_the_false_alarms() -> None:
    def wrong_on_the_second(x: torch.Tensor) -> torch.Tensor:
        return shift_the_mean(x) if float(x[0, 0]) == 1.0 else add_noise(x)

    found = judge(wrong_on_the_second)
    assert found.outcome is Outcome.FAIL
    alone = check_distribution(add_noise, shift_the_mean, EXAMPLES[1:], budget_s=1.0)
    assert found.figures[Figure.LEVEL] == pytest.approx(alone.figures[Figure.LEVEL] / 2)


def share_noise(shape: tuple[int, ...], *sizes: int) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda _: torch.randn(shape).expand(sizes).clone()


@pytest.mark.parametrize(
    ("fresh", "shared", "cause"),
    [
        (share_noise((2, 64), 2, 64), share_noise((64,), 2, 64), "products along dimension 0"),
        (share_noise((4, 3, 16), 4, 3, 16), share_noise((4, 1, 16), 4, 3, 16), "products along dimension 1"),
        (lambda _: (torch.randn(40), torch.randn(50)), lambda _: (torch.randn(50),) * 2, "products of tensors 0 and 1"),
    ],
    ids=["batch", "inner dimension", "outputs"],
)
def test_noise_that_outputs_share_fails(fresh: Any, shared: Any, cause: str) -> None:
    def cut(x: torch.Tensor) -> Any:
        found = shared(x)
        return (found[0][:40], found[1].clone()) if isinstance(found, tuple) else found

    assert judge(fresh, fresh).outcome is Outcome.PASS
    found = judge(cut, fresh)
    assert found.outcome is Outcome.FAIL
    assert cause in found.detail


INFINITE = torch.tensor([-torch.inf, 1.0, torch.nan])


@pytest.mark.parametrize(
    ("constant", "other", "said"),
    [
        (torch.tensor(31_999), torch.tensor(31_998), "is off by 1"),
        (torch.arange(5000), torch.arange(5000) + 1, "is off by 1"),
        (torch.ones(3), torch.ones(3) * 1.01, "is off by 0.01"),
        (INFINITE, torch.tensor([3.0, 1.0, torch.nan]), "has infinities or NaN in other places"),
        (INFINITE, torch.tensor([-torch.inf, torch.nan, torch.nan]), "has infinities or NaN in other places"),
        (INFINITE, torch.tensor([torch.inf, 1.0, torch.nan]), "has infinities or NaN in other places"),
        (1.0, 2.0, "is 2.0 in place of 1.0"),
        ("a", "b", "is 'b' in place of 'a'"),
    ],
)
def test_what_does_not_vary_stays_as_it_is(constant: Any, other: Any, said: str) -> None:
    assert judge(lambda x: (add_noise(x), constant), lambda x: (add_noise(x), constant)).outcome is Outcome.PASS
    found = judge(lambda x: (add_noise(x), other), lambda x: (add_noise(x), constant))
    assert found.outcome is Outcome.FAIL
    assert f"{said}, and does not vary in eager" in found.detail


def test_outputs_whose_form_or_size_is_drawn_have_no_still_places() -> None:
    def draw_few(*_: Any) -> Any:
        return [torch.ones(2)] * int(torch.randint(1, 4, ())), torch.ones(int(torch.randint(1, 4, ())))

    assert find_still_problem(draw_few, draw_few) == ""
    assert find_still_problem(lambda: (torch.ones(0), "a"), lambda: (torch.ones(0), "a")) == ""
    assert find_still_problem(lambda: draw_few()[1] + 1, lambda: draw_few()[1]) == ""


def test_rounding_of_what_does_not_vary_is_allowed() -> None:
    nearly = (torch.ones(3) * (1 + 1e-5), 1.0 + 1e-5)
    assert (
        judge(lambda x: (add_noise(x), nearly), lambda x: (add_noise(x), (torch.ones(3), 1.0))).outcome is Outcome.PASS
    )


def test_an_input_without_noise_is_compared_by_value() -> None:
    def draw_on_the_first(x: torch.Tensor) -> torch.Tensor:
        return x * 2 if float(x[0, 0]) == 1.0 else add_noise(x)

    assert judge(draw_on_the_first, draw_on_the_first).outcome is Outcome.PASS
    wrong = judge(lambda x: draw_on_the_first(x) + (float(x[0, 0]) == 1.0), draw_on_the_first)
    assert wrong.outcome is Outcome.FAIL
    assert "does not vary in eager" in wrong.detail


def test_words_that_vary_now_and_then_are_no_constants() -> None:
    """Nobody may count a token as still that is drawn at random, and the same in a few calls."""

    def draw_tokens(x: torch.Tensor) -> torch.Tensor:
        return (torch.rand(200) < 0.3).long()

    for seed in range(3):
        torch.manual_seed(seed)
        assert judge(lambda _: (torch.rand(200) > 0.7).long(), draw_tokens).outcome is Outcome.PASS


def test_another_form_fails_and_outputs_that_never_vary_cannot_be_compared() -> None:
    assert judge(lambda x: add_noise(x).double()).name == CheckName.STRUCTURE
    found = judge(torch.clone, torch.clone)
    assert found.outcome is Outcome.NOT_COMPARABLE
    assert "outputs do not vary" in found.detail


def test_a_model_with_state_starts_each_call_from_the_same() -> None:
    class Walk(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("place", torch.zeros(8, 12))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.place += 5.0
            return x + self.place + torch.randn_like(x)

    model = Walk()
    found = check_distribution(model, share(model), EXAMPLES, budget_s=1.0, is_stateful=True)
    assert found.outcome is Outcome.PASS, found.detail
    job = Job("try", WorkloadSpec("a:b", metric="distribution"), traits=frozenset({Trait.STATEFUL}))
    assert make_judge(job, Workload(model, tuple(EXAMPLES))).judge(share(model)).outcome is Outcome.PASS


# ---- a trial


class Noisy(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return add_noise(x)


class Transposed(Noisy):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return draw_in_another_order(x)


class Shifted(Noisy):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return shift_the_mean(x)


TARGET = f"{Path(__file__).with_name('noisy_target.py')}:make"


def replace_by(kind: type[nn.Module]) -> Callable[[Any], Any]:
    def rewrite(call: Any) -> Any:
        model = share(call)
        for part in model.modules():
            if type(part).__name__ == "AddNoise":
                part.__class__ = kind
        return model, lambda inner: inner

    return rewrite


@pytest.mark.parametrize(
    ("kind", "metric", "outcome"),
    [
        (Transposed, "distribution", Outcome.PASS),
        (Shifted, "distribution", Outcome.FAIL),
        (Transposed, None, Outcome.FAIL),
    ],
)
def test_a_registered_rewrite_is_judged_by_the_rule_of_the_request(
    kind: type[nn.Module], metric: str | None, outcome: Outcome, monkeypatch: pytest.MonkeyPatch
) -> None:
    swap = Choice(
        "transforms", "noise", Numerics.SUBSTITUTED, 1, "a test", realized_by=replace_by(kind), stage=Stage.MODEL
    )
    monkeypatch.setitem(CHOICES, swap.key, swap)
    plan, tolerance = Plan(transforms=("noise",)), None if metric else 0.1
    spec = WorkloadSpec(TARGET, metric=metric, tolerance=tolerance)
    job = Job("try", spec, plan, effort=BRIEF, traits=frozenset({Trait.STOCHASTIC}))
    trial = Experiment(job, PlanCandidate(plan))
    with trial.harness.gradients():
        trial.build()
        trial.first_calls()
        verdict = trial.verify(lambda _: None)
    assert verdict.outcome is outcome, verdict.reason
    assert verdict.checks[0].name == CheckName.SUBSTITUTION
    if outcome is Outcome.PASS:
        assert CheckName.INDEPENDENCE in {check.name for check in verdict.checks}, "the rest is verified as always"


# ---- a request


def test_a_model_that_draws_nothing_is_refused_before_any_trial() -> None:
    spec = WorkloadSpec("a:b", metric="distribution")
    with pytest.raises(InputError, match=r"metric is 'distribution', but the model draws no random numbers.*tolerance"):
        check_metric(spec, an_inspection())
    check_metric(spec, an_inspection(traits=frozenset({Trait.STOCHASTIC})))
    check_metric(WorkloadSpec("a:b"), an_inspection())
    with pytest.raises(InputError, match="the model draws no random numbers"):
        torchwise.tune(nn.Linear(2, 2), torch.ones(1, 2), metric="distribution", effort="quick", progress=False)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"tolerance": 0.1}, "a tolerance is given with metric 'distribution', but .* leave --tolerance"),
        ({"mode": "training"}, "metric is 'distribution' with mode 'training', but only outputs"),
    ],
)
def test_what_it_cannot_judge_is_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(WorkloadError, match=said):
        Request.from_options(TuneOptions(metric="distribution", **options), "zoo:any", "cpu")


def test_it_needs_no_tolerance_and_gets_none() -> None:
    request = Request.from_options(TuneOptions(metric="distribution", allow="quantized"), "zoo:any", "cpu")
    assert request.workload.tolerance is None
    assert request.workload.permits_change
    assert not WorkloadSpec("a:b").permits_change
    assert request.workload.list_rules() == ["metric distribution"]
    assert command_line("tune", request.workload).endswith("--metric distribution")


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        ({"metric": "distribution"}, ", changes judged by the distribution of outputs"),
        ({"tolerance": 0.01}, ", changes judged by the error of outputs, up to 1 %"),
        ({"tolerance": 0.01, "metric": "a.b:c"}, ", changes judged by a.b:c, of which they may lose 1 %"),
        ({}, "1 start"),
    ],
)
def test_a_report_names_the_rule(rule: dict[str, Any], said: str) -> None:
    assert describe_request(WorkloadSpec("a:b", **rule), "a:b").text.endswith(said)


def test_no_plot_shows_a_size_of_a_loss_that_has_none() -> None:
    check = Check(CheckName.SUBSTITUTION, Outcome.PASS, "judged")
    trial = a_trial(1, Plan(transforms=("no_dropout",)), 1.9, verdict=Verdict((check,)))
    spec = WorkloadSpec("zoo:tutorial.fusion_demo", metric="distribution")
    study = a_study((trial, a_trial(2, Plan(backend="inductor"), 1.2)), decided=1, workload=spec)
    drawn = {plot.key for plot in plots(study)}
    assert drawn
    assert "accuracy" not in drawn


def test_the_help_says_it() -> None:
    told = " ".join(CliRunner().invoke(app, ["tune", "--help"], env={"COLUMNS": "200"}).output.split())
    assert "distribution, without --tolerance" in told


def test_an_inspection_opens_such_operators_and_keeps_the_weights_that_were_judged() -> None:
    found = inspect(Job("inspect", WorkloadSpec(TARGET, metric="distribution"), effort=BRIEF), lambda _: None)
    assert {Trait.TOLERANT, Trait.STOCHASTIC} <= found.traits
    assert found.weights
