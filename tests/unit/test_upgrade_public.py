"""Public functions on another PyTorch: their answers are those of here, or they are wrong there, and they are timed."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from lock_samples import HERE
from test_upgrade_check import NEWER, Interpreter, drift
from typer.testing import CliRunner

from torchwise.cli import app
from torchwise.errors import BaselineError, InputError, InternalError, TorchwiseError
from torchwise.plan.workload_spec import WorkloadSpec
from torchwise.records import Check, CheckName, Failure, FailureKind, Outcome, codec
from torchwise.records.listener import Listener
from torchwise.records.pair import FailingInput
from torchwise.study.lock.check import CheckRequest
from torchwise.study.lock.check_results import Checked, State
from torchwise.study.lock.public import check_public
from torchwise.trial import Job, Limits
from torchwise.trial.pair import PairJob, PairJudgement, judge_job

SAME = PairJudgement((Check(CheckName.VALUES, Outcome.PASS, "no further off"),))


class Judging(Interpreter):
    """Workers of this environment, whose judge of a pair has this answer."""

    def __init__(self, judged: PairJudgement | Failure | TorchwiseError, **options: Any) -> None:
        super().__init__(HERE, drift(), **options)
        self.judged, self.asked = judged, list[PairJob]()

    def run(self, job: Any, limits: Limits, on_stage: object) -> str | Failure:
        if not isinstance(job, PairJob):
            return super().run(job, limits, on_stage)
        self.asked.append(job)
        if isinstance(self.judged, TorchwiseError):
            raise self.judged
        return self.judged if isinstance(self.judged, Failure) else codec.to_json(self.judged)


def check(here: Judging, factor: float = 1.0, **asked: Any) -> Checked:
    there = Interpreter(NEWER, here.machine, factor)
    (row,) = check_public(("m.py:make",), CheckRequest(**asked), here, there, Listener(), "other/python", NEWER).rows
    return row


@pytest.mark.parametrize(("factor", "state"), [(1.0, State.GOOD), (1.25, State.SLOWER), (0.75, State.FASTER)])
def test_a_function_is_compared_with_its_answers_here_and_timed(factor: float, state: State) -> None:
    here = Judging(SAME)
    row = check(here, factor)
    assert (row.state, row.target, row.against) == (state, "m.py:make", "torch 9.0.0"), row
    (job,) = here.asked
    assert (job.candidate, job.job.workload.target, job.python) == ("m.py:make", "m.py:make", "other/python")
    assert row.way_out == (f"pin torch=={HERE.torch}" if state is State.SLOWER else "")
    assert check(Judging(SAME), measure=False).detail.endswith("not timed")


@pytest.mark.parametrize(
    ("judged", "state", "words"),
    [
        (
            PairJudgement(
                (Check(CheckName.VALUES, Outcome.FAIL, "off by 0.3"),),
                failing=FailingInput("float32[1, 1]", "float32[9, 9]", "off", 3),
            ),
            State.WRONG,
            "smallest inputs: float32[1, 1]",
        ),
        (PairJudgement((Check(CheckName.ANSWER, Outcome.FAIL, "raised"),)), State.LOST, "raised"),
        (PairJudgement((Check(CheckName.ANSWER, Outcome.NOT_COMPARABLE, "refuses"),)), State.UNKNOWN, "refuses"),
        (Failure(FailureKind.TIMED_OUT, "verify", "…"), State.INCONCLUSIVE, "the comparison"),
        (Failure(FailureKind.DIED, "verify", "SIGSEGV"), State.UNKNOWN, "SIGSEGV"),
        (BaselineError("the reference raised"), State.UNKNOWN, "the reference raised"),
        (InternalError("a bug"), State.UNKNOWN, "a bug"),
    ],
)
def test_other_answers_are_wrong_and_no_answer_is_no_pass(judged: Any, state: State, words: str) -> None:
    row = check(Judging(judged))
    assert (row.state, words in row.detail) == (state, True), row
    assert row.way_out.startswith(f"pin torch=={HERE.torch}") is state.is_regression


def test_a_slowdown_must_hold_with_one_more_pair() -> None:
    class OnceMore(Interpreter):
        """Is slower in its first processes, and as fast as ever from then on."""

        def measure(self) -> Any:
            self.factor = 1.2 if sum(job.task != "inspect" for job in self.ran) <= 3 else 0.98
            return super().measure()

    here = Judging(SAME, spread=(1.0,))
    there = OnceMore(NEWER, here.machine, spread=(1.0,))
    (row,) = check_public(("m.py:make",), CheckRequest(), here, there, Listener(), "python", NEWER).rows
    assert row.state is State.INCONCLUSIVE, row


def test_the_command_refuses_public_functions_without_another_pytorch() -> None:
    found = CliRunner().invoke(app, ["check", "--public", "m.py:make"])
    assert "is only for --against-torch" in str(found.exception)
    found = CliRunner().invoke(app, ["check", "--public", "make", "--against-python", sys.executable])
    assert isinstance(found.exception, InputError)


STEP = """
import torch, torchwise

def make():
    net = torch.nn.Linear(2, 1)
    step = torchwise.TrainStep(net, torch.nn.functional.mse_loss, torch.optim.SGD(net.parameters(), 0.1))
    return step, (torch.ones(3, 2), torch.ones(3, 1))
"""


def test_a_training_step_is_refused_with_the_way_to_check_it(tmp_path: Path) -> None:
    (tmp_path / "step.py").write_text(STEP)
    target = f"{tmp_path}/step.py:make"
    job = PairJob(Job("try", WorkloadSpec(target)), target, python=sys.executable)
    with pytest.raises(InputError, match=r"step.py:make is a training step, .* tune and lock it"):
        judge_job(job, lambda _: None)


SIDES = """
import os

def double(x):
    return x * 2

def only_here(x):
    return x * (2.001 if "TORCHWISE_TEST_THERE" in os.environ and x.shape[0] > 3 else 2)

def dies(x):
    if x.shape[0] == 3:
        os._exit(7)
    return x * 2
"""


@pytest.mark.nightly
def test_a_candidate_runs_in_another_interpreter(tmp_path: Path, one_thread: None) -> None:
    (tmp_path / "sides.py").write_text(SIDES)
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nTORCHWISE_TEST_THERE=1 exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    job = PairJob(
        Job("try", WorkloadSpec(f"{tmp_path}/sides.py:double")),
        f"{tmp_path}/sides.py:only_here",
        inputs=("x: float32[n] n=0..5",),
        shrink_s=2.0,
    )
    assert {one.outcome for one in judge_job(job, lambda _: None).checks} == {Outcome.PASS}
    found = judge_job(replace(job, python=str(python)), lambda _: None)
    assert found.failing is not None
    assert found.failing.inputs == "float32[4]", found.failing
    dead = judge_job(replace(job, python=str(python), candidate=f"{tmp_path}/sides.py:dies"), lambda _: None)
    assert "ended its process (exit code 7)" in dead.checks[-1].detail, dead.checks
