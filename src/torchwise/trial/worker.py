"""The child's side: do one job, report each stage, answer with one record, and end.

Messages to the parent are pairs of strings:

- ("stage", name).
- ("waits", stage) and ("goes on", stage) around a wait for the device.
- ("result", JSON).
- ("failure", JSON of a `Failure`).
- ("error", "ClassName|message") for an error of the user's that ends the whole study.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import importlib
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any, Protocol

from torchwise.errors import BaselineError, InputError, TorchwiseError, UnsupportedError, format_error
from torchwise.measure import device_lock
from torchwise.records import Failure, FailureKind, WorkerStage, codec

Stage = Callable[[str], None]
TRACEBACK_LINES = 40
TELL_WHERE = signal.SIGUSR1
"""Makes a worker write the activity of each of its threads to its log, even if it hangs outside Python."""
TASKS = {
    "inspect": "torchwise.trial.inspection:inspect",
    "check": "torchwise.trial.error_origin:check",
    "try": "torchwise.trial.candidate:attempt",
    "warm": "torchwise.trial.candidate:start_warm",
    "duel": "torchwise.trial.candidate:duel",
}
"""The function of each job's task. Any other task names its function itself, as `module:function`."""


class Assignment(Protocol):
    """An order for a worker: a picklable record that names its task."""

    @property
    def task(self) -> str:
        """A key of `TASKS`, or `module:function`, which takes the assignment and a callback for its stages."""
        ...

    def variables(self) -> dict[str, Any]:
        """Return every environment variable that the worker must see."""
        ...


def main(job: Assignment, connection: Connection, log: str) -> None:
    """Run `job` in this process, which is the worker's own, with all its output in the file `log`."""
    _become_leader()
    threading.Thread(target=_follow_parent, args=(connection,), daemon=True).start()
    os.environ.update(job.variables())
    try:
        _redirect_output(log)
    except FileNotFoundError:  # its folder went with the parent, and there is nobody left to tell
        os._exit(1)
    faulthandler.register(TELL_WHERE)
    stage = ["load"]

    def enter(name: str) -> None:
        stage[0] = name
        connection.send(("stage", name))

    device_lock.configure_lock(lambda waits: connection.send(("waits" if waits else "goes on", stage[0])))
    try:
        connection.send(("result", codec.to_json(_run(job, enter))))
    except BaseException as error:  # an exception of a candidate is this trial's result, and nobody else's problem
        connection.send(_report(error, stage[0]))
    sys.stdout.flush()
    # Interpreter shutdown after CUDA graphs and compile pools can crash or hang, and there is nothing left to save.
    os._exit(0)


def _run(job: Assignment, stage: Stage) -> Any:
    module, _, function = TASKS.get(job.task, job.task).partition(":")
    return getattr(importlib.import_module(module), function)(job, stage)


def _report(error: BaseException, stage: str) -> tuple[str, str]:
    if isinstance(error, (InputError, BaselineError)):
        return ("error", f"{type(error).__name__}|{error}")
    text = "".join(traceback.format_exception(error)[-TRACEBACK_LINES:])
    failure = Failure(_kind(error), WorkerStage(stage), format_error(error)[:2000], text[-8000:])
    if isinstance(error, TorchwiseError):
        failure = Failure(_kind(error), WorkerStage(stage), str(error), no_effect=getattr(error, "part", None))
    return ("failure", codec.to_json(failure))


def _kind(error: BaseException) -> FailureKind:
    if isinstance(error, UnsupportedError):
        return FailureKind.UNSUPPORTED
    # The CPU's allocator raises a plain RuntimeError, CUDA's its own OutOfMemoryError.
    names = {cls.__name__ for cls in type(error).__mro__}
    if "OutOfMemoryError" in names or isinstance(error, MemoryError) or "can't allocate memory" in str(error):
        return FailureKind.OUT_OF_MEMORY
    return FailureKind.RAISED


def _become_leader() -> None:
    """Head a process group, so that the parent's kill takes compilers along, and never outlive the parent."""
    with contextlib.suppress(OSError):  # already a leader
        os.setsid()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which then ends this process
    if sys.platform == "linux":
        pr_set_pdeathsig = 1
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)
        # If memory runs out, let the kernel end the candidate and not the user's program.
        with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
            file.write("1000")


def _follow_parent(connection: Connection) -> None:
    """End with the parent, which never sends anything: when its end of the pipe closes, it is gone.

    The kernel's signal alone is not enough, as it comes when the workers' server ends. multiprocessing gives each
    worker a hold on the server, so that neither would end while the other lives.
    """
    with contextlib.suppress(EOFError, OSError):
        connection.recv()
    os.killpg(0, signal.SIGKILL)


def _redirect_output(log: str) -> None:
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)
