"""The launcher of this machine keeps the contract, and the suite sees those that do not."""

from __future__ import annotations

from pathlib import Path

import pytest
from broken import run_suite

from torchwise.records import Costs, Failure, FailureKind, WorkerStage, codec
from torchwise.testing.launcher import LauncherContract
from torchwise.trial import Limits, ProcessLauncher
from torchwise.trial.launcher import OnStage
from torchwise.trial.worker import Assignment


class TestProcessLauncher(LauncherContract):
    @pytest.fixture
    def launcher(self) -> ProcessLauncher:
        return ProcessLauncher()


class DeafLauncher:
    """Answers every job alike, and passes no stage on."""

    def run(self, job: Assignment, limits: Limits, on_stage: OnStage) -> str | Failure:
        failure = Failure(FailureKind.RAISED, WorkerStage.START, "something happened")
        return failure if "give_answer" in job.task else codec.to_json(Costs(2.0))


def test_a_launcher_that_breaks_the_contract_is_seen(tmp_path: Path) -> None:
    assert not any(run_suite(LauncherContract(), launcher=DeafLauncher(), tmp_path=tmp_path).values())
