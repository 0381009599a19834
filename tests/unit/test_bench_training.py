"""Contenders on a whole training step: each takes the step its own way, is verified to train, and is timed."""

from __future__ import annotations

import pytest
import torch
from step_samples import Net, a_step, batch

from brief import BRIEF
from live_decisions import make_decision
from torchwise.bench.contender_worker import ContenderCandidate, adapt_decision
from torchwise.bench.contenders import Setting, load_contenders
from torchwise.bench.contenders.contender import with_model
from torchwise.bench.contenders.torchwise import Torchwise, check_served
from torchwise.bench.request import ContenderJob
from torchwise.errors import StalePlanError
from torchwise.plan import Plan
from torchwise.plan.workload_spec import WorkloadSpec
from torchwise.records import Outcome, codec
from torchwise.records.benchmark import Performance
from torchwise.trial import Job, Limits, ProcessLauncher
from torchwise.trial.experiment import Experiment
from torchwise.verify.step_runner import quiet
from torchwise.workload import Example, Workload
from torchwise.zoo import load

GIB = 2**30


@pytest.mark.parametrize("name", ["eager", pytest.param("default", marks=pytest.mark.slow)])
def test_a_contender_trains_as_eager_does(name: str) -> None:
    spec = WorkloadSpec("zoo:training.carrier@small", mode="training")
    job = Job("try", spec, effort=BRIEF)
    answer = ProcessLauncher().run(ContenderJob("contend", job, name), Limits(250, 8 * GIB), lambda _stage: None)
    assert isinstance(answer, str), answer
    found = codec.from_json(answer, Performance)
    assert found.verdict.outcome is Outcome.PASS, found.verdict.reason
    assert {"gradients", "state", "trajectories"} <= {check.name for check in found.verdict.checks}
    assert found.measurement is not None


def test_a_loss_that_is_overwritten_is_said_apart_from_whether_it_is_right() -> None:
    spec = WorkloadSpec("zoo:training.carrier@small", mode="training")
    ring = Experiment(Job("try", spec, effort=BRIEF), ContenderCandidate("eager", Setting("cpu", "training")))
    ring.build()
    call, kept = ring.call, torch.zeros(())
    assert ring.step_runner is not None
    ring.step_runner.call = lambda *batch: kept.copy_(call(*batch))
    verdict = ring.verify(lambda _stage: None)
    assert verdict.outcome is Outcome.PASS, verdict.reason
    assert ring.overwrites_answers()


def test_a_decision_is_judged_on_copies_without_dropout_too() -> None:
    step = a_step(Net(0.2))
    decision = make_decision(step, Plan(optimizer="foreach"), *batch())
    setting = Setting("cpu", "training", decision.to_json())
    still, had_dropout = quiet(step)
    assert had_dropout
    workload = Workload(still, (Example(batch()),))
    with pytest.raises(StalePlanError):
        Torchwise().build(workload, setting)
    call = Torchwise().build(workload, adapt_decision(setting, still))
    call(*batch())
    check_served(call)


def test_a_contender_changes_the_model_of_the_step_and_nothing_else() -> None:
    workload, plain = load("training.operator@small"), load("training.operator@small")
    called: list[int] = []

    def count_calls(model: torch.nn.Module) -> object:
        def call(*args: torch.Tensor) -> torch.Tensor:
            called.append(1)
            answer: torch.Tensor = model(*args)
            return answer

        return call

    take = with_model(workload, count_calls)  # type: ignore[arg-type]
    batch = workload.examples[0].args
    torch.manual_seed(0)
    ours = [float(take(*batch)) for _ in range(3)]
    torch.manual_seed(0)
    theirs = [float(plain.call(*batch)) for _ in range(3)]
    assert ours == theirs
    assert len(called) == 3
    rates = [w.step.optimizer.param_groups[0]["lr"] for w in (workload, plain) if w.step]
    assert rates[0] == rates[1] < 1e-4


def test_what_has_no_backward_pass_takes_no_part() -> None:
    for name in ("aot-inductor", "onnxruntime"):
        reason = "it is for inference, and this is training"
        assert load_contenders()[name].missing(Setting("cpu", "training")) == reason
