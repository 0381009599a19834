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
from typing import IO, Any

from torchwise import environment
from torchwise.environment import Environment
from torchwise.errors import InputError, UnsupportedError
from torchwise.records import Failure
from torchwise.trial import worker
from torchwise.trial.launcher import SERVER_VARIABLES, OnStage, hold_conversation
from torchwise.trial.limits import Limits
from torchwise.trial.worker import Assignment, Stage

PACKAGE = Path(__file__).parents[1]
"""This Torchwise."""
_START = """
import importlib, sys
sys.path.insert(0, sys.argv[1])
module, name = sys.argv[3].split(":")
getattr(importlib.import_module(module), name)()
"""


class InterpreterLauncher:
    """Runs each job in a process of another interpreter on this machine. See `Launcher`.

    Args:
        python: the interpreter.

    Raises:
        InputError: there is no such program.
    """

    def __init__(self, python: str) -> None:
        if not is_program(python):
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
            log = Path(folder, "output")
            where = f"{__name__}:serve"
            with sender, open(log, "ab") as output:
                process = _Process(start_interpreter(self.python, folder, where, sender.fileno(), output, str(log)))
            with contextlib.suppress(OSError):  # it has ended already, which the conversation notices
                receiver.send(job)
            return hold_conversation(process, receiver, limits, on_stage, log, job, begun)


@dataclass(frozen=True, slots=True)
class EnvironmentJob:
    """The order to describe the software that a launcher's workers run with."""

    task: str = f"{__name__}:describe_environment"

    def variables(self) -> dict[str, Any]:
        """Return every environment variable that the worker must see."""
        return {}


def describe_environment(_order: EnvironmentJob, _stage: Stage) -> Environment:
    """Return the environment of this worker."""
    return environment.detect("cpu")


def is_program(python: str) -> bool:
    """Whether a path names a program."""
    return os.access(python, os.X_OK) and not os.path.isdir(python)


def start_interpreter(
    python: str, folder: str, where: str, descriptor: int, output: IO[bytes], *more: str
) -> subprocess.Popen[bytes]:
    """Start another interpreter that calls one function of this Torchwise.

    Args:
        python: the interpreter.
        folder: a folder of this process's own, in which Torchwise is linked.
        where: the function, as "module:name". It finds the descriptor in `sys.argv[2]`, and `more` from 4 on.
        descriptor: of the connection to pass on.
        output: the file for all that it prints.
    """
    packages = Path(folder, "packages")
    packages.mkdir(exist_ok=True)
    if not (link := packages / PACKAGE.name).exists():
        link.symlink_to(PACKAGE)
    words = [python, "-c", _START, str(packages), str(descriptor), where, *more]
    variables = {**os.environ, **SERVER_VARIABLES}
    return subprocess.Popen(
        words, pass_fds=[descriptor], env=variables, stdin=subprocess.DEVNULL, stdout=output, stderr=output
    )


class _Process:
    """A worker's process, with the methods of multiprocessing's."""

    def __init__(self, popen: subprocess.Popen[bytes]) -> None:
        self._popen = popen
        self.pid = popen.pid

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
    worker.main(job, connection, sys.argv[4], {})
