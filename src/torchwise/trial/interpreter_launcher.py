"""Run jobs with another Python interpreter, whose environment has another PyTorch.

The worker is the same, of the same Torchwise, which comes first on its path. It comes alone: the folder that holds it
may have this environment's PyTorch as well. A worker is started anew for each job, as no server of another interpreter
can be forked from here.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import ClassVar

from torchwise import environment
from torchwise.environment import Environment
from torchwise.errors import InputError, UnsupportedError
from torchwise.records import Failure
from torchwise.trial import worker
from torchwise.trial.job import DerivedJob, Job
from torchwise.trial.launcher import SERVER_VARIABLES, Limits, OnStage, hold_conversation
from torchwise.trial.worker import Assignment, Stage

PACKAGE = Path(__file__).parents[1]
"""This Torchwise."""
_START = "import sys; sys.path.insert(0, sys.argv[1]); from torchwise.trial.interpreter_launcher import serve; serve()"


class InterpreterLauncher:
    """Runs each job in a process of another interpreter on this machine. See `Launcher`.

    Args:
        python: the interpreter.

    Raises:
        InputError: there is no such program.
    """

    def __init__(self, python: str) -> None:
        if not os.access(python, os.X_OK) or os.path.isdir(python):
            raise InputError(
                f"python is {python!r}, but must be an interpreter that can be run, such as env/bin/python"
            )
        self.python = python

    def run(self, job: Assignment, limits: Limits, on_stage: OnStage) -> str | Failure:
        """Run `job` in a new process; see `Launcher.run`.

        Raises:
            UnsupportedError: this platform passes no connection to another interpreter.
        """
        if sys.platform == "win32":
            raise UnsupportedError("another interpreter is asked for, but needs a platform that passes on descriptors")
        begun = time.monotonic()
        receiver, sender = Pipe()
        with tempfile.TemporaryDirectory(prefix="torchwise-log-") as folder:
            log, packages = Path(folder, "output"), Path(folder, "packages")
            packages.mkdir()
            (packages / PACKAGE.name).symlink_to(PACKAGE)
            with sender, open(log, "ab") as output:
                process = _Process(self.python, str(packages), sender.fileno(), str(log), output.fileno())
            with contextlib.suppress(OSError):  # it has ended already, which the conversation notices
                receiver.send(job)
            return hold_conversation(process, receiver, limits, on_stage, log, job, begun)


@dataclass(frozen=True, slots=True)
class EnvironmentJob(DerivedJob):
    """The order to describe the environment in which a launcher's workers run, for the device of a job."""

    job: Job
    FUNCTION: ClassVar[str] = f"{__name__}:describe_environment"


def describe_environment(order: EnvironmentJob, _stage: Stage) -> Environment:
    """Return the environment of this worker."""
    return environment.detect(order.job.workload.device)


class _Process:
    """A worker's process, with the methods of multiprocessing's."""

    def __init__(self, python: str, packages: str, descriptor: int, log: str, output: int) -> None:
        environment = {**os.environ, **SERVER_VARIABLES}
        words = [python, "-c", _START, packages, str(descriptor), log]
        self._popen = subprocess.Popen(
            words, pass_fds=[descriptor], env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output
        )
        self.pid = self._popen.pid

    @property
    def exitcode(self) -> int | None:
        """The code of its exit, or the signal's number below 0, or None while it runs."""
        return self._popen.poll()

    def is_alive(self) -> bool:
        """Whether it still runs."""
        return self.exitcode is None

    def join(self, timeout: float | None = None) -> None:
        """Wait for its end."""
        try:
            self._popen.wait(timeout)
        except subprocess.TimeoutExpired:
            return

    def kill(self) -> None:
        """End it at once."""
        self._popen.kill()


def serve() -> None:
    """Do the one job of this process, a worker of another interpreter."""
    connection: Connection = Connection(int(sys.argv[2]))
    job = connection.recv()
    worker.main(job, connection, sys.argv[3], {})
