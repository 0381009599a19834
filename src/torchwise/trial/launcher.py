"""The parent's side: start a worker, report its stages, and end it when its time or memory is used up.

Workers are forked from a server that has PyTorch loaded and has never touched CUDA. So a start costs milliseconds, and
the parent needs neither.
"""

from __future__ import annotations

import contextlib
import math
import multiprocessing
import os
import re
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from multiprocessing import forkserver, resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import ModuleType
from typing import Protocol

from torchwise._torch import debug_logs
from torchwise._torch.cpu_isa_cache import TimedCheck
from torchwise.errors import TorchwiseError
from torchwise.records import Failure, FailureKind, WorkerStage, codec
from torchwise.records.trial import WAITING
from torchwise.trial import preload, worker
from torchwise.trial.kept_worker import KeptWorker, is_settled, may_follow
from torchwise.trial.known_checks import add_checks, known_checks
from torchwise.trial.limits import Limits
from torchwise.trial.worker import Assignment, MessageKind, UserError
from torchwise.trial.worker_process import WorkerProcess, end_process, measure_resident

PRELOAD = ["torchwise.trial.server"]
SERVER_VARIABLES = {
    # Importing Inductor checks for a GPU. In torch 2.11 that alone initialises the driver, after which no fork of the
    # server can use CUDA. With this variable, PyTorch checks by NVML instead.
    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
    # A killed worker leaves its semaphores to Python's tracker, which removes them, and need not report it.
    "PYTHONWARNINGS": "ignore:resource_tracker:UserWarning",
    # Others' compiled code must not hide the cost of compiling.
    "TORCHINDUCTOR_FX_GRAPH_REMOTE_CACHE": "0",
    "TORCHINDUCTOR_AUTOGRAD_REMOTE_CACHE": "0",
    "TORCHINDUCTOR_AUTOTUNE_REMOTE_CACHE": "0",
}
POLL_S = 0.05
STARTS = 40
"""Times that a worker is started until a server that has ended is known to be gone."""
LOG_TAIL = 600
TELLING_S = 2.0
_INNERMOST = re.compile(
    r'^Current thread .*\n  File "(?P<file>[^"]*)", line (?P<line>\d+) in (?P<function>.*)$', re.MULTILINE
)
_INSTALLED = re.compile(r".*(?:site|dist)-packages/", re.DOTALL)
"""The folder of installed packages, which tells a reader less than their own names do."""
MAX_TRACEBACK = 8000

OnStage = Callable[[str], None]


class Launcher(Protocol):
    """Runs jobs somewhere else. A candidate's failure must never make it raise.

    An error in the worker, its death and its limits of time and memory are failures, with the stage and the reason. If
    the worker yielded a record before its limit of time, that is the answer. A worker that is ended takes its children
    along, and the next job runs. `torchwise.testing.launcher` has this contract as tests.
    """

    def run(self, job: Assignment, limits: Limits, on_stage: OnStage) -> str | Failure:
        """Run `job`, and return the worker's record as JSON, or the reason why there is none.

        `on_stage` is called with each stage when it begins.

        Raises:
            InputError: the user's target or inputs cannot be used.
            BaselineError: the plain model fails.
            StoppedError: the limits have a `stop`, and it is set.
        """
        ...


class ProcessLauncher:
    """Runs each job in a process of its own on this machine.

    Args:
        preloads: whether workers may find the libraries of the first job's target imported (`trial/preload.py`), as in
            a command, which ends before these libraries change. For a live model they always may.
    """

    def __init__(self, *, preloads: bool = False) -> None:
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(PRELOAD)
        self._preloads, self._may_import = preloads, True
        self._kept: list[KeptWorker] = []

    def run(self, job: Assignment, limits: Limits, on_stage: OnStage) -> str | Failure:
        """Run `job` in a new process; see `Launcher.run`."""
        begun = time.monotonic()
        answer = self._ask_kept(job, limits, on_stage, begun)
        if answer is not None:
            limits = replace(limits, time_s=limits.time_s - (time.monotonic() - begun))
            if is_settled(answer) or limits.time_s <= 0:
                return answer
        receiver, sender = self._context.Pipe()  # both ways, so that a worker notices when this process is gone
        folder = tempfile.TemporaryDirectory(prefix="torchwise-log-")
        with contextlib.ExitStack() as ending:
            ending.callback(folder.cleanup)
            process, has_begun = self._start(job, sender, Path(folder.name, "output"), begun + limits.end_s)
            sender.close()
            if not has_begun:
                receiver.close()
                return Failure(FailureKind.TIMED_OUT, WorkerStage.START, _tell_limit(limits.end_s))
            ending.pop_all()
        return self._converse(KeptWorker(process, receiver, folder, job), job, limits, on_stage, begun)

    def _converse(
        self, asked: KeptWorker, job: Assignment, limits: Limits, on_stage: OnStage, begun: float
    ) -> str | Failure:
        """Listen to a worker until it has answered or is ended, and keep one that stays."""
        conversation = _Conversation(asked.process, asked.receiver, limits, on_stage, asked.log)
        with contextlib.ExitStack() as ending:
            ending.callback(asked.close)
            ending.callback(_pass_on, asked.log, job)
            ending.callback(end_process, asked.process)
            answer = conversation.outcome(begun)
            if conversation.stays and isinstance(answer, str):
                ending.pop_all()
                self._kept.append(asked)
            return answer

    def _ask_kept(self, job: Assignment, limits: Limits, on_stage: OnStage, begun: float) -> str | Failure | None:
        """Have the worker that stayed do a job, or end that worker. Return None if it did not take the job."""
        try:
            kept = self._kept.pop()
        except IndexError:
            return None
        with contextlib.ExitStack() as ending:
            ending.callback(kept.end)  # the user may interrupt, too
            if not (may_follow(kept.job, job) and kept.hand_over(job)):
                return None
            ending.pop_all()
        try:
            return self._converse(kept, job, kept.grant_own_memory(limits), on_stage, begun)
        except TorchwiseError as error:  # perhaps only there
            return Failure(FailureKind.RAISED, WorkerStage.LOAD, str(error))

    def end_kept(self) -> None:
        """End a worker that has stayed for a job which never came."""
        while self._kept:
            self._kept.pop().end()

    def _start(self, job: Assignment, sender: Connection, log: Path, end: float) -> tuple[BaseProcess, bool]:
        """Start a worker, and return it, and whether it began by `end`.

        A server that libraries ended is started anew without them.
        """
        imports = preload.list_imports(job, in_command=self._preloads) if self._may_import else preload.NOTHING
        for left in reversed(range(1 if imports == preload.NOTHING else STARTS)):
            process = self._context.Process(target=worker.main, args=(job, sender, str(log), known_checks()))
            try:
                return process, _start(process, end, imports)
            except (EOFError, ConnectionError, FileNotFoundError):  # it has ended, or is about to
                if not left:
                    raise
                imports, self._may_import = preload.NOTHING, False
                time.sleep(POLL_S)
        raise AssertionError("the last start returns or raises")


def hold_conversation(
    process: WorkerProcess,
    receiver: Connection,
    limits: Limits,
    on_stage: OnStage,
    log: Path,
    job: Assignment,
    begun: float,
) -> str | Failure:
    """Listen to a worker until it has answered or is ended, and leave nothing of it. Its start began at `begun`."""
    try:
        return _Conversation(process, receiver, limits, on_stage, log).outcome(begun)
    finally:
        end_process(process)
        receiver.close()
        _pass_on(log, job)


class _Conversation:
    def __init__(
        self, process: WorkerProcess, receiver: Connection, limits: Limits, on_stage: OnStage, log: Path
    ) -> None:
        self._process = process
        self._receiver = receiver
        self._limits = limits
        self._on_stage = on_stage
        self._log = log
        self._stage = WorkerStage.START
        self._deadline = self._compile_deadline = math.inf
        self._waits_since: float | None = None
        self._so_far: str | None = None
        self.stays = False

    def outcome(self, begun: float) -> str | Failure:
        """Listen until the worker answers, dies, or passes a limit. Its start began at `begun`."""
        self._deadline, end = time.monotonic() + self._limits.time_s, begun + self._limits.end_s
        while True:
            self._limits.check_stop()
            if self._receiver.poll(POLL_S):
                try:
                    kind, payload = self._receiver.recv()
                except (EOFError, ConnectionResetError):
                    return self._make_exit_failure()
                answer = self._hear(kind, payload)
                if answer is not None:
                    return answer
                continue
            if time.monotonic() > end:
                return self._so_far or self._make_end_failure()
            if self._waits_since is None and time.monotonic() > min(self._deadline, self._compile_deadline):
                return self._so_far or self._make_timeout_failure()
            if (used := measure_resident(self._process.pid)) > self._limits.memory_bytes:
                message = f"used {used / 2**30:.1f} GiB, its limit is {self._limits.memory_bytes / 2**30:.1f} GiB"
                return Failure(FailureKind.OUT_OF_MEMORY, self._stage, message)

    def _hear(self, kind: MessageKind, payload: str) -> str | Failure | None:
        if kind is MessageKind.STAGE:
            self._stage = WorkerStage(payload)
            limit_s = self._limits.compile_s if self._stage.is_compiling else math.inf
            self._compile_deadline = time.monotonic() + limit_s
            self._on_stage(payload)
            return None
        if kind is MessageKind.WAITS:
            self._waits_since = time.monotonic()
            self._on_stage(WAITING)
            return None
        if kind is MessageKind.GOES_ON:
            if self._waits_since is not None:  # others' work does not count as this worker's
                waited_s = time.monotonic() - self._waits_since
                self._compile_deadline += waited_s
                self._deadline += waited_s
            self._waits_since = None
            self._on_stage(self._stage)
            return None
        if kind is MessageKind.CHECKS:
            add_checks(codec.from_json(payload, dict[str, TimedCheck]))
            return None
        if kind is MessageKind.STAYS:
            self.stays = True
            return None
        if kind is MessageKind.SO_FAR:
            self._so_far = payload
            return None
        if kind is MessageKind.FAILURE:
            return codec.from_json(payload, Failure)
        if kind is MessageKind.ERROR:
            raise codec.from_json(payload, UserError).to_error()
        return payload

    def _make_end_failure(self) -> Failure:
        if self._waits_since is None:
            return Failure(FailureKind.TIMED_OUT, self._stage, _tell_limit(self._limits.end_s))
        waited = f"waited {time.monotonic() - self._waits_since:.0f} s for another Torchwise process"
        return Failure(FailureKind.INTERFERED, self._stage, waited)

    def _make_timeout_failure(self) -> Failure:
        stacks = self._stacks()
        place = _describe_place(stacks)
        if self._compile_deadline < self._deadline:
            passed = f"passed the compile time-out of {self._limits.compile_s:g} s{self._limits.compile_note}"
        else:
            passed = _tell_limit(self._limits.time_s)
        return Failure(FailureKind.TIMED_OUT, self._stage, f"{passed}{place}", stacks)

    def _stacks(self) -> str:
        """Return the worker's stacks if it can write them: the request may end it, but it is to end anyway."""
        written, deadline = self._read_log(), time.monotonic() + TELLING_S
        if self._process.pid is not None:
            with contextlib.suppress(OSError):
                os.kill(self._process.pid, worker.TELL_WHERE)
        while time.monotonic() < deadline and self._process.is_alive() and self._read_log() == written:
            time.sleep(POLL_S)
        time.sleep(POLL_S)
        return self._read_log().removeprefix(written)[:MAX_TRACEBACK].strip()

    def _read_log(self) -> str:
        return self._log.read_text(errors="replace") if self._log.exists() else ""

    def _make_exit_failure(self) -> Failure:
        # A start asks every worker for its end, and of two threads that ask at once, one is told a wrong exit code.
        with _start_lock:
            self._process.join(10)
            code = self._process.exitcode
        name = f"exit code {code}" if code is None or code >= 0 else signal_name(-code)
        return Failure(FailureKind.DIED, self._stage, name, self._read_log()[-LOG_TAIL:].strip())


def signal_name(number: int) -> str:
    """Name a signal, including real-time signals, which have no names of their own."""
    return signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"


def _pass_on(log: Path, job: Assignment) -> None:
    """Print a worker's output on standard error if the user asked for the compiler's messages."""
    if os.environ.get(debug_logs.VARIABLE) and log.exists() and (text := log.read_text(errors="replace").strip()):
        plan = getattr(job, "plan", None)
        print(f"torchwise: output of {job.task}{f' {plan}' if plan else ''}:\n{text}", file=sys.stderr, flush=True)


def _start(process: BaseProcess, end: float, imports: str = preload.NOTHING) -> bool:
    """Start a worker, and return whether that was done by `end`. Its server may have to load PyTorch first.

    A server that does not run yet imports these modules, too (`preload.list_imports`).

    A worker that begins later finds nobody to answer to, and ends.
    """
    errors: list[BaseException] = []

    def start() -> None:
        try:
            process.start()
        except BaseException as error:  # raised again in the thread that waits
            errors.append(error)

    with _clean_start(imports):
        _start_server()
        if math.isinf(end):
            process.start()
            return True
        thread = threading.Thread(target=start, daemon=True, name="torchwise-start")
        thread.start()
        thread.join(max(end - time.monotonic(), 0.0))
    if errors:
        raise errors[0]
    return not thread.is_alive()


def _start_server() -> None:
    """Start the workers' server, if it does not run, deaf to Ctrl-C until it has loaded PyTorch. See `server`."""
    resource_tracker.ensure_running()  # or the server starts it, which unblocks the signal
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT,))
    try:
        forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


_start_lock = threading.Lock()


@contextlib.contextmanager
def _clean_start(imports: str) -> Iterator[None]:
    """Hide the user's script, and keep the workers' server from touching CUDA, while a worker starts.

    multiprocessing would run the script again in the worker. A script that calls `tune` without an `if __name__ ==
    "__main__"` guard would call it again there. The worker needs nothing of it, as models travel by value.

    The first start begins the server, whose environment has `SERVER_VARIABLES` besides the user's variables.
    """
    with _start_lock:
        main, nobody = sys.modules["__main__"], ModuleType("__main__")
        variables = {**SERVER_VARIABLES, preload.VARIABLE: imports}
        before = {name: os.environ.get(name) for name in variables}
        sys.modules["__main__"] = nobody
        os.environ.update(variables)
        try:
            yield
        finally:
            if sys.modules["__main__"] is nobody:  # Streamlit puts another there whenever a page is drawn
                sys.modules["__main__"] = main
            for name, value in before.items():
                os.environ.pop(name) if value is None else os.environ.update({name: value})


def _tell_limit(seconds: float) -> str:
    return f"passed its limit of {seconds:.0f} s" if seconds >= 10 else f"passed its limit of {seconds:.2g} s"


def _describe_place(stacks: str) -> str:
    """Return where a worker was by the stacks of its threads, or "" if these do not tell."""
    innermost = _INNERMOST.search(stacks)
    if innermost is None:
        return ""
    return f", in {innermost['function']} ({_INSTALLED.sub('', innermost['file'])}:{innermost['line']})"
