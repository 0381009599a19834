"""Workers of another interpreter keep the contract of launchers, and say what is wrong with the interpreter."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from torchwise.errors import InputError
from torchwise.plan.workload_spec import WorkloadSpec
from torchwise.records import Failure, FailureKind
from torchwise.testing.launcher import LauncherContract
from torchwise.trial import Job, Launcher, Limits
from torchwise.trial.interpreter_launcher import InterpreterLauncher


@pytest.mark.slow
class TestContract(LauncherContract):
    @pytest.fixture
    def launcher(self) -> Launcher:
        return InterpreterLauncher(sys.executable)


def test_a_program_that_cannot_be_run_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "python", Path(__file__)):
        with pytest.raises(InputError, match=r"python is '.*', but must be an interpreter that can be run"):
            InterpreterLauncher(str(path))


def test_an_interpreter_without_the_packages_is_a_failure_that_says_so(tmp_path: Path) -> None:
    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S -I "$@"\n')
    bare.chmod(0o755)
    failure = InterpreterLauncher(str(bare)).run(Job("try", WorkloadSpec("a:b")), Limits(60.0, 2**33), lambda _: None)
    assert isinstance(failure, Failure)
    assert (failure.kind, failure.message) == (FailureKind.DIED, "exit code 1")
    assert "ModuleNotFoundError" in failure.traceback
