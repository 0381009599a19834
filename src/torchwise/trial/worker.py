"""The child's side: do one job, report each stage, answer with one record, and end.

Messages to the parent are pairs of a `MessageKind` and a text.
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
from collections.abc import Callable, Collection, Generator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from multiprocessing.connection import Connection
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, Protocol

from torchwise import errors
from torchwise._torch import cpu_isa_cache, debug_logs
from torchwise._torch.cpu_isa_cache import TimedCheck
from torchwise._torch.inductor import COMPILER_MODULE
from torchwise.errors import BaselineError, InputError, TorchwiseError, UnsupportedError, format_error
from torchwise.measure import device_lock
from torchwise.plan import Plan
from torchwise.records import Failure, FailureKind, WorkerStage, codec

Stage = Callable[[str], None]


class MessageKind(StrEnum):
    """Kinds of messages to the parent, by the text that comes with them."""

    STAGE = "stage"
    """The name of the stage that begins."""
    WAITS = "waits"
    """The stage in which the worker waits for the device."""
    GOES_ON = "goes on"
    """The stage that goes on after such a wait."""
    CHECKS = "checks"
    """A check of an instruction set that the worker made, as JSON, for the workers after it."""
    SO_FAR = "so far"
    """A record as JSON that is the answer if the worker is ended before it has a better one."""
    STAYS = "stays"
    """The worker does one more job after the record that follows, or has received that job."""
    RESULT = "result"
    """The record as JSON."""
    FAILURE = "failure"
    """A `Failure` as JSON."""
    ERROR = "error"
    """A `UserError` as JSON, which ends the whole study."""


@dataclass(frozen=True, slots=True)
class UserError:
    """An error of the user's target or inputs, by its class in `torchwise.errors`."""

    kind: str
    message: str

    @classmethod
    def from_error(cls, error: TorchwiseError) -> UserError:
        """Describe an error, by its closest class that the parent knows."""
        known = next(kind for kind in type(error).__mro__ if kind.__module__ == TorchwiseError.__module__)
        return cls(known.__name__, str(error))

    def to_error(self) -> TorchwiseError:
        """Return the error, to raise it in the parent."""
        error: TorchwiseError = getattr(errors, self.kind)(self.message)
        return error


TRACEBACK_LINES = 40
MAX_IDLE_S = 10.0
"""Seconds for which a worker that stays waits for its next job."""
TELL_WHERE = signal.SIGUSR1
"""Makes a worker write the activity of each of its threads to its log, even if it hangs outside Python."""
TASKS = {
    "inspect": "torchwise.trial.inspection:inspect",
    "check": "torchwise.trial.error_origin:check",
    "try": "torchwise.trial.experiment:attempt",
    "warm": "torchwise.trial.experiment:start_warm",
    "duel": "torchwise.trial.experiment:duel",
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


def main(job: Assignment, connection: Connection, log: str, checks: Mapping[str, TimedCheck]) -> None:
    """Run `job` in this process, which is the worker's own, with all its output in the file `log`.

    `checks` are those of the CPU's instruction sets that earlier workers made (`_torch/cpu_isa_cache.py`).
    """
    _become_leader()
    _take_cores(getattr(job, "cores", ()))
    later: SimpleQueue[Assignment] = SimpleQueue()
    threading.Thread(target=_follow_parent, args=(connection, later), daemon=True).start()
    os.environ.update(job.variables())
    try:
        _redirect_output(log)
    except FileNotFoundError:  # its folder was removed with the parent, and no process is left to report to
        os._exit(1)
    faulthandler.register(TELL_WHERE)
    if COMPILER_MODULE in sys.modules:
        cpu_isa_cache.SHARED.install()
    if _work(job, connection, checks):
        with contextlib.suppress(Empty):
            following = later.get(timeout=MAX_IDLE_S)
            connection.send((MessageKind.STAYS, ""))
            _change_variables(job, following)
            _work(following, connection, checks)
    sys.stdout.flush()
    # Interpreter shutdown after CUDA graphs and compile pools can crash or hang, and there is nothing left to save.
    os._exit(0)


def _work(job: Assignment, connection: Connection, checks: Mapping[str, TimedCheck]) -> bool:
    """Do a job, and send its answer. Return whether this process does one more."""
    stage = ["load"]

    def enter(name: str) -> None:
        stage[0] = name
        connection.send((MessageKind.STAGE, name))

    device_lock.configure_lock(
        lambda waits: connection.send((MessageKind.WAITS if waits else MessageKind.GOES_ON, stage[0]))
    )
    shared = cpu_isa_cache.SHARED
    shared.known, shared.is_warm = checks, _has_warm_cache()
    shared.tell = lambda made: connection.send((MessageKind.CHECKS, codec.to_json(made)))
    try:
        debug_logs.show_logs()
        record = _finish(_run(job, enter), lambda known: connection.send((MessageKind.SO_FAR, codec.to_json(known))))
        answer = codec.to_json(record)
        if stays := getattr(job, "stays", False) and _can_go_on():
            device_lock.leave()
            connection.send((MessageKind.STAYS, ""))
        connection.send((MessageKind.RESULT, answer))
    except BaseException as error:  # an exception of a candidate is this trial's result, and ends nothing else
        connection.send(_report(error, stage[0], getattr(job, "plan", None)))
        return False
    return bool(stays)


def _can_go_on() -> bool:
    """Return whether the model of this job is still as it was loaded."""
    can_go_on: Callable[[], bool] = importlib.import_module("torchwise.trial.loaded_model").can_go_on  # needs torch
    return can_go_on()


def _change_variables(before: Assignment, now: Assignment) -> None:
    """Have the environment of another job."""
    for name in before.variables().keys() - now.variables().keys():
        os.environ.pop(name, None)
    os.environ.update(now.variables())


def _has_warm_cache() -> bool:
    """Return whether an earlier process may have compiled into the folder of Inductor's cache."""
    folder = os.environ.get("TORCHINDUCTOR_CACHE_DIR")
    return folder is None or (Path(folder).is_dir() and any(Path(folder).iterdir()))


def _run(job: Assignment, stage: Stage) -> Any:
    module, _, function = TASKS.get(job.task, job.task).partition(":")
    return getattr(importlib.import_module(module), function)(job, stage)


def _finish(answer: Any, tell: Callable[[Any], None]) -> Any:
    """Return the record of a task. A generator yields records that are less complete, and returns the last one."""
    while isinstance(answer, Generator):
        try:
            tell(next(answer))
        except StopIteration as end:
            return end.value
    return answer


def _report(error: BaseException, stage: str, plan: Plan | None = None) -> tuple[MessageKind, str]:
    if isinstance(error, (InputError, BaselineError)):
        return (MessageKind.ERROR, codec.to_json(UserError.from_error(error)))
    text = "".join(traceback.format_exception(error)[-TRACEBACK_LINES:])
    failure = Failure(_kind(error), WorkerStage(stage), format_error(error)[:2000], text[-8000:])
    if isinstance(error, TorchwiseError):
        failure = Failure(_kind(error), WorkerStage(stage), str(error), about=_list_parts(error, plan))
    return (MessageKind.FAILURE, codec.to_json(failure))


def _list_parts(error: TorchwiseError, plan: Plan | None) -> tuple[tuple[str, Any], ...]:
    """Return the parts of the plan that an error is about, with the plan's values."""
    named = getattr(error, "about", ())
    if plan is None:
        return tuple(part for part in named if not isinstance(part, str))
    return tuple((part, getattr(plan, part)) if isinstance(part, str) else part for part in named)


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
    end_with_parent()
    if sys.platform == "linux":
        # If memory runs out, let the kernel end the candidate and not the user's program.
        with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
            file.write("1000")


def _take_cores(cores: Collection[int]) -> None:
    """Run on these CPU cores alone, with all threads and compilers that this process starts. None stands for all."""
    if cores:
        with contextlib.suppress(OSError):  # they were taken from this program meanwhile: it has the others
            os.sched_setaffinity(0, cores)


def end_with_parent() -> None:
    """Have the kernel end this process with its parent, where it can."""
    if sys.platform == "linux":
        pr_set_pdeathsig = 1
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)


def _follow_parent(connection: Connection, later: SimpleQueue[Assignment]) -> None:
    """Receive a further job, and end with the parent: when its end of the pipe closes, it is gone.

    The kernel's signal alone is not enough, as it comes when the workers' server ends. multiprocessing gives each
    worker a hold on the server, so that neither would end while the other lives.
    """
    try:
        while True:
            later.put(connection.recv())
    finally:  # a job that cannot be read is answered by an end, too
        os.killpg(0, signal.SIGKILL)


def _redirect_output(log: str) -> None:
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)
