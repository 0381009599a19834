"""Workers of another interpreter keep the contract of launchers, and say what is wrong with the interpreter."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

from torchwise.errors import InputError
from torchwise.plan.workload_spec import WorkloadSpec
from torchwise.records import Failure, FailureKind
from torchwise.testing.launcher import LauncherContract
from torchwise.trial import Job, Launcher, Limits, interpreter_launcher
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


def test_no_other_package_of_this_environment_comes_first_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An installed Torchwise lies beside this environment's PyTorch, which the other interpreter must not find."""
    installed, found = tmp_path / "site-packages", tmp_path / "found"
    (installed / "torch").mkdir(parents=True)
    (installed / "torch" / "__init__.py").write_text("raise RuntimeError('the PyTorch of this environment')\n")
    (installed / "torchwise").symlink_to(interpreter_launcher.PACKAGE)
    monkeypatch.setattr(interpreter_launcher, "PACKAGE", installed / "torchwise")
    python = tmp_path / "python"
    look = (
        "import sys, importlib.util as u; sys.path.insert(0, sys.argv[1]); print(u.find_spec('torch').origin, "
        "u.find_spec('torchwise').origin, sep='\\n')"
    )
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -c "{look}" "$3" > {found}\n')
    python.chmod(0o755)
    InterpreterLauncher(str(python)).run(Job("try", WorkloadSpec("a:b")), Limits(60.0, 2**33), lambda _: None)
    torch, torchwise = map(Path, found.read_text().split())
    assert torch == Path(importlib.util.find_spec("torch").origin)  # type: ignore[union-attr, arg-type]
    assert torchwise.parent.name == "torchwise"
    assert not torchwise.is_relative_to(installed)
