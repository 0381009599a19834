"""Tricks of a whole process are found, and its judge stays clean."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import torch

from faults import process
from torchwise.errors import InputError
from torchwise.plan.effort import EFFORTS
from torchwise.plan.workload_spec import WorkloadSpec
from torchwise.records import Outcome
from torchwise.trial import Job
from torchwise.trial.pair import PairJob, PairJudgement, judge_job, time_job
from torchwise.verify.input_cases import cases_of_description
from torchwise.verify.input_description import InputDescription
from torchwise.verify.kept_answers import check_timed_answers
from torchwise.verify.pair import judge_pair
from torchwise.verify.pair_subject import PairSubject
from torchwise.verify.witness import LocalWitness, poison_memory
from torchwise.workload import Example

# The judge forks its candidates from this process, in which other tests may have started OpenMP's threads.
pytestmark = pytest.mark.usefixtures("one_thread")

FILE = str(Path(process.__file__).resolve())


def judge(
    candidate: str,
    inputs: tuple[str, ...] = (process.MATRIX,),
    reference: str = "softmax",
    *,
    shrink_s: float = 0.0,
) -> PairJudgement:
    job = Job("try", WorkloadSpec(f"{FILE}:{reference}"))
    limit_s = 1.0 if candidate == "call_that_hangs" else 60.0
    pair = PairJob(job, f"{FILE}:{candidate}", inputs=inputs, limit_s=limit_s, shrink_s=shrink_s)
    return judge_job(pair, lambda _stage: None)


@pytest.mark.parametrize("name", process.TRICKS)
def test_a_trick_is_found_and_the_judge_stays_clean(name: str) -> None:
    timer = time.perf_counter
    found = judge(name, (), "as_example") if name == "example_answered_beforehand" else judge(name)
    last = found.checks[-1]
    assert last.outcome is Outcome.FAIL, last
    assert last.name in process.TRICKS[name], last
    assert time.perf_counter is timer
    assert not torch.equal(torch.ones(1), torch.zeros(1))


def test_an_honest_candidate_passes_in_a_process_of_its_own() -> None:
    found = judge("softmax")
    assert {check.outcome for check in found.checks} == {Outcome.PASS}, found
    assert len(found.cases) > 25


def test_a_crash_names_the_signal_and_the_smallest_inputs() -> None:
    found = judge("process_killed", ("x: float32[n, 2] n=7..8",), shrink_s=20.0)
    assert "SIGKILL" in found.checks[-1].detail
    assert found.failing is not None
    assert found.failing.inputs == "float32[7, 1]", found.failing


def test_a_candidate_that_cannot_be_loaded_is_refused_as_input() -> None:
    with pytest.raises(InputError, match="candidate cannot be loaded"):
        judge("no_such_name")


def test_answers_kept_by_value_are_found_by_their_time() -> None:
    fresh = [Example((torch.randn(120, 120),)) for _ in range(2)]
    found = check_timed_answers(process.make_keeper(), torch.linalg.svdvals, fresh, "cpu")
    assert found.outcome is Outcome.FAIL, found
    assert "keeps answers" in found.detail
    assert check_timed_answers(torch.linalg.svdvals, torch.linalg.svdvals, fresh, "cpu").outcome is Outcome.PASS


def test_answers_kept_after_several_calls_are_found_by_their_time() -> None:
    fresh = [Example((torch.randn(120, 120),)) for _ in range(2)]
    found = check_timed_answers(process.make_keeper(after=4), torch.linalg.svdvals, fresh, "cpu", timed=fresh[1])
    assert found.outcome is Outcome.FAIL, found


def test_a_candidate_wrong_at_the_timed_size_alone_gets_no_time() -> None:
    job = Job("try", WorkloadSpec(f"{FILE}:softmax"), effort=EFFORTS["quick"])
    pair = PairJob(job, f"{FILE}:wrong_where_timed", "time_job", inputs=("x: float32[n, 64] n=1..4000",))
    found = time_job(pair, lambda _stage: None)
    assert found.check.outcome is Outcome.FAIL, found
    assert found.measurement is None


def test_answers_that_go_wrong_while_timed_are_found() -> None:
    call, fresh = process.make_tired(), [Example((torch.randn(5, 5),)) for _ in range(2)]
    assert check_timed_answers(call, torch.linalg.svdvals, fresh, "cpu").outcome is Outcome.PASS
    for _ in range(200):
        call(*fresh[0].args)
    found = check_timed_answers(call, torch.linalg.svdvals, fresh, "cpu")
    assert found.outcome is Outcome.FAIL, found
    assert "after it was timed" in found.detail


def test_memory_that_counts_for_nothing_until_it_holds_nan_is_found() -> None:
    def candidate(x: torch.Tensor) -> torch.Tensor:
        return x * 2 + 0 * torch.empty_like(x).clamp(-1, 1)

    cases = cases_of_description(InputDescription.parse(["x: float32[4, 5] in -1..1"]), 1)
    found = judge_pair(PairSubject(lambda x: x * 2, LocalWitness(candidate), lambda x: x * 2), cases[:1])
    assert found.checks[-1].outcome is Outcome.FAIL, found.checks
    with poison_memory():
        assert torch.empty(3).isnan().all()
    assert not torch.are_deterministic_algorithms_enabled()
