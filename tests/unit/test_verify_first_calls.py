"""First calls: a plan that answers otherwise while it compiles serves a wrong answer, though never again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import torchwise
from torchwise.plan import Plan
from torchwise.plan.effort import EFFORTS
from torchwise.plan.workload_spec import WorkloadSpec
from torchwise.records import Check, Outcome, Verdict
from torchwise.trial import Job, ProcessSettings
from torchwise.trial.experiment import PlanCandidate, PlanExperiment
from torchwise.verify import StepSubject, Subject, observation_of, verify, verify_step
from torchwise.verify.spot_check import FirstAnswer
from torchwise.verify.step_runner import StepRunner
from torchwise.workload import Example, Workload

X = torch.randn(16, 8, generator=torch.Generator().manual_seed(0))


def first_call_checks(verdict: Verdict) -> list[Check]:
    return [check for check in verdict.checks if check.name == "first call"]


@pytest.mark.parametrize(
    ("answer", "outcome"),
    [
        (torch.tanh(X), Outcome.PASS),
        (torch.tanh(X.double()).float(), Outcome.PASS),
        (torch.tanh(X) * 1.01, Outcome.FAIL),
        (torch.tanh(X) + torch.nan, Outcome.FAIL),
        (torch.tanh(X).double(), Outcome.FAIL),
        (torch.tanh(X)[:8], Outcome.FAIL),
        (None, Outcome.FAIL),
    ],
)
def test_the_first_answer_is_held_against_later_ones(answer: Any, outcome: Outcome) -> None:
    workload = Workload(torch.tanh, (Example((X,)),))
    subject = Subject(workload, torch.tanh, torch.tanh, first=[observation_of(answer, ())])
    verdict = verify(subject, extra_draws=1)
    assert verdict.outcome is outcome
    assert [check.outcome for check in first_call_checks(verdict)] == [outcome], (
        "once, for the one example that was called"
    )


def iterate(x: torch.Tensor) -> torch.Tensor:
    for _ in range(60):
        x = 3.9 * x * (1 - x)
    return x


@pytest.mark.parametrize("wrong", [None, 0, 1])
def test_first_answers_are_compared_also_where_rounding_hides_all_else(wrong: int | None) -> None:
    draws = torch.Generator().manual_seed(0)
    inputs = [0.1 + 0.5 * torch.rand(100, 1, generator=draws) for _ in range(2)]

    def candidate(x: torch.Tensor) -> torch.Tensor:
        return iterate(x * 1.001)

    first = [observation_of(candidate(x) + (at == wrong), ()) for at, x in enumerate(inputs)]
    workload = Workload(iterate, tuple(Example((x,)) for x in inputs))
    verdict = verify(Subject(workload, candidate, iterate, first=first), extra_draws=1)
    assert verdict.outcome is (Outcome.NOT_COMPARABLE if wrong is None else Outcome.FAIL)
    assert verdict.is_hidden_by_rounding == (wrong is None)
    found = first_call_checks(verdict)
    assert [check.outcome for check in found] == [Outcome.PASS if at != wrong else Outcome.FAIL for at in range(2)][
        : len(found)
    ]
    assert wrong is None or "unlike those of later ones" in found[-1].detail


def test_only_the_first_answer_is_kept() -> None:
    answers = iter([X.clone(), X + 1, X + 2])
    kept = FirstAnswer(lambda: next(answers))
    assert kept.observation is None
    first = kept()
    kept()
    first.zero_()  # as a plan that reuses its memory does
    assert kept.observation is not None
    assert torch.equal(dict(kept.observation.leaves)["output"], X)


def wrong_at_first(times: int) -> Callable[[Callable[..., Any], Plan], Callable[..., Any]]:
    """Return a backend whose code is wrong for so many calls."""

    def backend(call: Callable[..., Any], plan: Plan) -> Callable[..., Any]:
        calls: list[int] = []

        def call_wrong_first(*args: Any, **kwargs: Any) -> Any:
            calls.append(0)
            return call(*args, **kwargs) * (1.1 if len(calls) <= times else 1)

        return call_wrong_first

    return backend


@pytest.mark.parametrize(("times", "outcome"), [(0, Outcome.PASS), (1, Outcome.FAIL)])
def test_a_trial_looks_at_first_calls(times: int, outcome: Outcome) -> None:
    settings = ProcessSettings("highest", "float32", torch.get_num_threads(), False, True, False)
    spec = WorkloadSpec("zoo:tutorial.fusion_demo@small", device="cpu")
    job = Job("try", spec, Plan(backend="inductor"), effort=EFFORTS["quick"], settings=settings)
    tried = PlanExperiment(job, PlanCandidate(job.plan, wrong_at_first(times)))
    with tried.harness.gradients():
        tried.build()
        tried.first_calls()
        verdict = tried.verify(lambda _stage: None)
    assert [check.outcome for check in first_call_checks(verdict)] == [outcome]
    assert verdict.outcome is outcome


@pytest.mark.parametrize(("factor", "outcome"), [(1.0, Outcome.PASS), (1.1, Outcome.FAIL)])
def test_the_first_step_is_held_against_later_ones(factor: float, outcome: Outcome) -> None:
    torch.manual_seed(0)
    net = torch.nn.Linear(8, 1)
    step = torchwise.TrainStep(net, torch.nn.functional.mse_loss, torch.optim.SGD(net.parameters(), lr=0.1))
    batch = X, X[:, :1]
    step(*batch)
    workload, runner = Workload(step, (Example(batch),)), StepRunner(step)
    loss = runner.take(workload.examples[0])
    runner.step.model.weight.grad.mul_(factor)  # type: ignore[operator, union-attr]
    first = 0, runner.observe_gradients(loss)
    verdict = verify_step(
        StepSubject(workload, runner, lambda copy: copy, first=first), extra_draws=1, noise_budget_s=0.1
    )
    assert [check.outcome for check in first_call_checks(verdict)] == [outcome]
    assert verdict.outcome is outcome


def test_what_compiled_code_gets_wrong_on_its_first_call_is_found() -> None:
    """Whether a version of PyTorch does so or not."""
    x = torch.randn(6, 4, dtype=torch.complex64, generator=torch.Generator().manual_seed(0))

    def weights(x: torch.Tensor) -> torch.Tensor:
        return torch.linalg.pinv(x).abs()

    def compile_weights() -> Any:
        torch.compiler.reset()
        return torch.compile(weights, backend="aot_eager")

    with torch.no_grad():
        is_right = torch.allclose(compile_weights()(x), weights(x), rtol=1e-4)
    verdict = verify(Subject(Workload(weights, (Example((x,)),)), compile_weights(), weights), extra_draws=0)
    assert verdict.outcome is (Outcome.PASS if is_right else Outcome.FAIL)
