"""The phases: the job of each worker, the use of its answer, and that nothing a worker does ends the whole."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import torchwise
from analysis_samples import CRASH, HANG, Heard, Workers, an_analysis
from builders import PASSED, WRONG, a_measurement, a_plan
from torchwise.diagnose.analyze import AnalyzeRequest, SteadyRun, run_analysis
from torchwise.diagnose.batches import Scaling
from torchwise.diagnose.requests import make_spec
from torchwise.errors import BaselineError, InputError, WorkloadError
from torchwise.plan import EAGER
from torchwise.plan.effort import EFFORTS
from torchwise.plan.workload_spec import WorkloadSpec
from torchwise.records import Costs, TrialState
from torchwise.records.analysis import Analysis
from torchwise.records.trial import WAITING
from torchwise.trial import Job
from torchwise.trial.job import Attempt
from torchwise.workload.target import read_workload

SPEC = WorkloadSpec("zoo:tutorial.fusion_demo@small")


def run(workers: Workers, **changes: Any) -> Analysis:
    return run_analysis(AnalyzeRequest(SPEC, **changes), workers, Heard())


def test_the_phases_come_in_order_and_end_in_advice() -> None:
    workers, heard = Workers(), Heard()
    found = run_analysis(AnalyzeRequest(SPEC, batches=(4, 1, 4)), workers, heard)
    assert workers.jobs == [
        "inspect",
        "try",
        "measure_steady",
        "find_batch_dim",
        "try at 4",
        "time_eager at 4",
        "try at 1",
        "time_eager at 1",
    ]
    assert heard.phases == [
        "profiling the model",
        "inductor, with empty caches",
        "inductor, with full caches",
        "the batch dimension",
        "batch 4",
        "batch 1",
    ]
    assert found.trial.is_verified
    assert found.trial.costs == Costs(38.2, 4.1, 312 << 20, 280 << 20)
    assert found.advice[0].text.startswith("Use inductor")
    assert found.batch_note == "dimension 0 of the inputs, of size 32 in the given inputs"
    assert found.seconds > 0


def test_the_second_start_finds_the_caches_of_the_first_and_no_batch_does() -> None:
    workers = Workers()
    run(workers, batches=(1, 2))
    _, cold, warm, found, *batches = workers.folders
    assert cold == warm != ""
    assert found == ""
    assert len({cold, *batches} - {""}) == 3  # eager at a size compiles nothing
    assert not any(Path(folder).exists() for folder in (cold, *filter(None, batches)))


def test_the_limit_reaches_every_worker() -> None:
    workers = Workers()
    run(workers, limit_s=7.0, batches=(1,))
    assert workers.limits == [7.0] * 6


def test_no_batch_is_tried_unless_asked_for() -> None:
    workers = Workers()
    assert run(workers).batches == ()
    assert workers.jobs == ["inspect", "try", "measure_steady"]


@pytest.mark.parametrize("failure", [HANG, CRASH])
def test_a_plan_that_fails_is_a_result(failure: Any) -> None:
    workers = Workers(cold=failure)
    found = run(workers, batches=(1,))
    assert workers.jobs == ["inspect", "try"]
    assert found.trial.state is TrialState.FAIL
    assert found.trial.failure == failure
    assert found.batch_note.startswith("not scaled")
    assert found.advice[0].text.startswith("Do not use inductor")


def test_a_plan_that_answers_wrongly_is_not_looked_at_further() -> None:
    workers = Workers(cold=Attempt(Costs(3.0), WRONG))
    found = run(workers)
    assert workers.jobs == ["inspect", "try"]
    assert found.trial.state is TrialState.COMPLETE
    assert not found.trial.is_verified
    assert found.advice[0].text.startswith("Do not use inductor: wrong answer")


def test_a_plan_that_fails_when_it_starts_again_is_a_plan_that_fails() -> None:
    found = run(Workers(steady=CRASH))
    assert found.steady is None
    assert found.trial.failure is not None
    assert found.trial.failure.message == "in a second process, from warm caches: SIGSEGV"
    assert found.advice[0].text.startswith("Do not use")


def test_a_batch_that_fails_hangs_or_cannot_be_sent_costs_itself_alone() -> None:
    wrong = Attempt(Costs(1.0), WRONG)
    lost = {1: HANG, 2: WorkloadError("the model cannot be sent"), 4: wrong}
    found = run(Workers(batches=lost), batches=(1, 2, 4, 8))
    assert [batch.measurement is None for batch in found.batches] == [True, True, True, False]
    reasons = [batch.reason for batch in found.batches]
    assert reasons[:2] == [str(HANG), "the model cannot be sent"]
    assert reasons[2].startswith("not verified: values")
    assert reasons[3] == ""


@pytest.mark.parametrize("found", [CRASH, WorkloadError("SIGSEGV")])
def test_where_there_is_no_batch_the_reason_is_said(found: Any) -> None:
    workers = Workers(found=found)
    analysis = run(workers, batches=(1, 2))
    assert analysis.batches == ()
    assert analysis.batch_note == "not scaled: SIGSEGV"
    assert workers.jobs[-1] == "find_batch_dim"


def test_the_batch_dimension_that_was_found_goes_to_every_batch() -> None:
    asked: list[int | None] = []

    class Watching(Workers):
        def run(self, job: Any, limits: Any, on_stage: Any) -> Any:
            if isinstance(job, Scaling):
                asked.append(job.dim)
            elif job.task == "try" and job.batch:
                asked.append(job.batch.dim)
            return super().run(job, limits, on_stage)

    run(Watching(), batches=(1, 2), batch_dim=-1)
    assert asked == [-1, 0, 0]  # the samples' worker finds 0


def test_what_the_trial_took_is_without_waiting(spent_clock: Any) -> None:
    class Waits(Workers):
        def run(self, job: Any, limits: Any, on_stage: Any) -> Any:
            for stage, seconds in ((WAITING, 1000), ("compile", 3)):
                on_stage(stage)
                spent_clock.now += seconds
            return super().run(job, limits, on_stage)

    assert run(Waits()).trial.seconds == 3


def test_a_model_that_fails_ends_it() -> None:
    class Broken(Workers):
        def run(self, job: Any, limits: Any, on_stage: Any) -> Any:
            return CRASH

    with pytest.raises(BaselineError, match="the original model, run without a plan, died in compile"):
        run(Broken())


def test_jobs_name_their_functions() -> None:
    job = Job("try", SPEC)
    assert SteadyRun(job).task == "torchwise.diagnose.analyze_worker:measure_steady"
    assert Scaling(job).task == "torchwise.diagnose.analyze_worker:find_batch_dim"
    assert Scaling(replace(job, cache_dir="/x")).variables()["TORCHINDUCTOR_CACHE_DIR"] == "/x"


def test_batches_are_tried_quickly_and_the_plan_as_carefully_as_asked() -> None:
    efforts: list[Any] = []

    class Watching(Workers):
        def run(self, job: Any, limits: Any, on_stage: Any) -> Any:
            efforts.append(getattr(job, "job", job).effort)
            return super().run(job, limits, on_stage)

    run(Watching(), batches=(1,), effort="thorough")
    assert efforts == [EFFORTS["thorough"]] * 4 + [EFFORTS["quick"]] * 2


def test_eager_is_put_on_the_scale_of_the_given_size_and_not_timed_there_again() -> None:
    workers = Workers()
    found = run(workers, batches=(32, 2))
    assert workers.jobs[-3:] == ["try at 32", "try at 2", "time_eager at 2"]
    assert [batch.eager is None for batch in found.batches] == [True, False]
    small, given = found.batch_figures
    assert small.is_comparable
    assert given.is_comparable
    assert small.eager_s == pytest.approx(found.cost_model.baseline_s * 1.3 / 32, rel=0.05)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"effort": "much"}, "effort is 'much', but must be one of quick, standard, thorough"),
        ({"limit_s": 0.0}, "limit is 0.0 s, but must be above 0"),
        ({"limit_s": "60"}, "limit is '60' s, but must be above 0"),
        ({"batches": (1, 0)}, "batch size is 0, but must be a whole number of at least 1"),
        ({"batches": (True,)}, "batch size is True, but must be a whole number of at least 1"),
    ],
)
def test_what_cannot_be_meant_is_refused_before_anything_runs(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        AnalyzeRequest(SPEC, **changes)


def test_another_plan_is_the_one_that_is_tried() -> None:
    quick = Attempt(Costs(0.0), PASSED, a_measurement(1.0))
    assert run(Workers(cold=quick), plan=EAGER).plan == EAGER
    assert run(Workers(), plan=a_plan(mode="max-autotune")).plan == an_analysis(a_plan(mode="max-autotune")).plan


def test_a_training_step_is_analyzed_for_training() -> None:
    model, x = torch.nn.Linear(4, 2), torch.ones(3, 4)
    step = torchwise.TrainStep(model, torch.nn.functional.mse_loss, torch.optim.SGD(model.parameters(), lr=0.1))
    of_step, of_model = read_workload(step, (x, torch.ones(3, 2)), None, None), read_workload(model, x, None, None)
    assert make_spec(step, of_step, None, mode="inference").mode == "training"
    assert make_spec(model, of_model, None, mode="inference").mode == "inference"
