"""The contract of a launcher (`torchwise.trial.Launcher`), which runs jobs somewhere else."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Generator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import psutil
import pytest

from torchwise.errors import InputError
from torchwise.plan.workload_spec import WorkloadSpec
from torchwise.records import Costs, Failure, FailureKind, WorkerStage, codec
from torchwise.trial import Job, Launcher, Limits
from torchwise.trial.worker import Stage

LIMITS = Limits(60.0, 2**35)
STAGES = [WorkerStage.COMPILE, WorkerStage.VERIFY, WorkerStage.MEASURE]
HANG_S = 3.0
"""Seconds after which a job that hangs is to be ended: enough for it to begin on a busy machine."""
SECONDS_TO_END = 20.0
"""Seconds that may pass from a limit to the end of a worker and of its children."""


class LauncherContract:
    """A job ends with an answer or a failure, and a failure of the job never makes the launcher raise.

    The answer is the record that the job's function returns, as JSON. A function may yield less complete records
    before that. The last of them is the answer of a worker that its limit of time ended. Each stage is heard when it
    begins. An error in the worker, its death and its limit of time are failures, with the stage and the reason. A
    worker that is ended takes its children along. Only an error of the user's target or inputs is raised in the caller.
    After any of them the next job runs.
    """

    @pytest.fixture
    def launcher(self) -> Launcher:
        """Override it: return a launcher."""
        raise NotImplementedError("define a fixture `launcher` that returns a launcher")

    def test_an_answer_is_the_record_as_json(self, launcher: Launcher) -> None:
        answer, _ = run_job(launcher, "give_answer")
        assert isinstance(answer, str)
        assert codec.from_json(answer, Costs) == Costs(1.5)

    def test_each_stage_is_heard_in_order(self, launcher: Launcher) -> None:
        _, heard = run_job(launcher, "enter_stages")
        assert [stage for stage in heard if stage in STAGES] == STAGES

    def test_an_error_is_a_failure_with_its_stage(self, launcher: Launcher) -> None:
        failure, _ = run_job(launcher, "raise_error")
        assert isinstance(failure, Failure)
        assert (failure.kind, failure.stage) == (FailureKind.RAISED, WorkerStage.VERIFY)
        assert "ValueError: no such luck" in failure.message
        assert "raise_error" in failure.traceback

    def test_a_death_is_a_failure_with_the_name_of_the_signal(self, launcher: Launcher) -> None:
        failure, _ = run_job(launcher, "die")
        assert isinstance(failure, Failure)
        assert (failure.kind, failure.stage, failure.message) == (FailureKind.DIED, WorkerStage.COMPILE, "SIGKILL")
        assert isinstance(run_job(launcher, "give_answer")[0], str), "the next job runs"

    def test_a_hang_ends_at_its_limit_with_all_children(self, launcher: Launcher, tmp_path: Path) -> None:
        note = tmp_path / "pid of the child"
        start = time.monotonic()
        failure, _ = run_job(launcher, "hang", note, Limits(HANG_S, 2**35))
        assert isinstance(failure, Failure)
        assert (failure.kind, failure.stage) == (FailureKind.TIMED_OUT, WorkerStage.MEASURE)
        assert time.monotonic() - start < HANG_S + SECONDS_TO_END
        child = int(note.read_text())
        while is_running(child) and time.monotonic() - start < HANG_S + SECONDS_TO_END:
            time.sleep(0.05)
        assert not is_running(child), "a child of the worker lives on"

    def test_a_record_so_far_is_the_answer_of_a_worker_that_is_ended(self, launcher: Launcher) -> None:
        start = time.monotonic()
        answer, _ = run_job(launcher, "hang_after_a_record", limits=replace(LIMITS, time_s=HANG_S))
        assert isinstance(answer, str)
        assert codec.from_json(answer, Costs) == Costs(2.5)
        assert time.monotonic() - start < HANG_S + SECONDS_TO_END

    def test_an_error_of_the_user_s_is_raised(self, launcher: Launcher) -> None:
        with pytest.raises(InputError, match="x is a list, but must be a tensor"):
            run_job(launcher, "refuse_input")


def run_job(
    launcher: Launcher, function: str, note: Path | str = "nothing", limits: Limits = LIMITS
) -> tuple[str | Failure, list[str]]:
    """Run a function of this file as a job. Return its answer, and the stages that were heard."""
    heard: list[str] = []
    job = Job(cast(Any, f"{__name__}:{function}"), WorkloadSpec(f"contract:{note}"))
    return launcher.run(job, limits, heard.append), heard


def is_running(pid: int) -> bool:
    """Whether a process exists and has not ended."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


# The functions of the jobs, which run in a worker. None of them loads a model.


def give_answer(_job: Job, _enter: Stage) -> Costs:
    """Return a record."""
    return Costs(1.5)


def enter_stages(_job: Job, enter: Stage) -> Costs:
    """Enter every stage."""
    for stage in STAGES:
        enter(stage)
    return Costs(1.5)


def raise_error(_job: Job, enter: Stage) -> None:
    """Raise an error of the candidate's own."""
    enter(WorkerStage.VERIFY)
    raise ValueError("no such luck")


def die(_job: Job, enter: Stage) -> None:
    """Die without a word."""
    enter(WorkerStage.COMPILE)
    os.kill(os.getpid(), signal.SIGKILL)


def hang(job: Job, enter: Stage) -> None:
    """Start a child, note its process id in the file that the target names, and never return."""
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    Path(job.workload.target.removeprefix("contract:")).write_text(str(child.pid))
    enter(WorkerStage.MEASURE)
    time.sleep(600)


def hang_after_a_record(_job: Job, _enter: Stage) -> Generator[Costs, None, Costs]:
    """Yield a record, and sleep for longer than any limit."""
    yield Costs(2.5)
    time.sleep(3600)
    return Costs(3.5)


def refuse_input(_job: Job, _enter: Stage) -> None:
    """Refuse the user's input."""
    raise InputError("x is a list, but must be a tensor")
