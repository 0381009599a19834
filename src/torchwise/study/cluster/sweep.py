"""Run many studies at once, one per device, each as a process of `torchwise tune` that is restarted if killed.

A study is for one device, as each of its trials depends on earlier ones. Different studies are independent, and share
only the store. So no device is idle while there are more studies than devices.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from torchwise import parsing
from torchwise.errors import ERROR_FILE
from torchwise.records.answer import EXIT_INCONCLUSIVE
from torchwise.store import db_errors
from torchwise.store.db_errors import UnreachableError
from torchwise.study.cluster.manifest import Task
from torchwise.trial.launcher import signal_name

RETRIES = 2
"""Restarts of a study whose process was killed. It continues from its stored trials."""
GRACE_S = 30.0
"""Seconds that an interrupted study has to store its state."""

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Slot:
    """One device for one study at a time.

    Attributes:
        devices: the devices that it has: "cpu", "cuda" or both.
        options: additional options of `torchwise tune`.
        variables: environment variables that assign the device to the process.
    """

    devices: frozenset[str]
    options: tuple[str, ...] = ()
    variables: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SweepResult:
    """The result of one study.

    Attributes:
        exit_code: exit code of `torchwise tune`: 0 decided, 2 bad input, 3 the model itself fails, 4 inconclusive. A
            negative one is the signal that killed it.
        reason: the decision in a sentence, or the error. Without either it is the last line of the output.
        seconds: wall time, including restarts.
        study: the study in schema `torchwise.study/1`, or None without a decision.
    """

    task: Task
    exit_code: int
    reason: str
    seconds: float
    study: dict[str, Any] | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return an entry for `studies` of schema `torchwise.sweep/1`."""
        data: dict[str, Any] = msgspec.to_builtins(self)
        return data


def run_sweep(
    tasks: Sequence[Task], slots: Sequence[Slot], command: Sequence[str], environment: dict[str, str], say: Say
) -> list[SweepResult]:
    """Tune every task, one per slot at a time, and return the results in the order of `tasks`.

    Args:
        tasks: the studies. The caller must refuse those that fit no slot.
        command: the command `torchwise`, with options for all studies, such as the store's.
        environment: environment variables of the processes.
        say: receives every line of a study's output, and its result.

    Raises:
        KeyboardInterrupt: the user interrupted. The studies were interrupted, too, and saved finished work.
    """
    sweep = _Sweep(command, environment, say)
    queue = _TaskQueue(tasks)
    with ThreadPoolExecutor(max(1, len(slots))) as pool:
        working = [pool.submit(sweep.work, slot, queue) for slot in slots]
        try:
            for each in working:
                each.result()
        except BaseException:  # raised again, after interrupting the studies
            sweep.interrupt()
            raise
    return [sweep.done[place] for place in range(len(tasks))]


class _TaskQueue:
    """Tasks that have not started, in order."""

    def __init__(self, tasks: Sequence[Task]) -> None:
        self._tasks = list(enumerate(tasks))
        self._lock = threading.Lock()

    def take(self, devices: frozenset[str]) -> tuple[int, Task] | None:
        with self._lock:
            found = next((item for item in self._tasks if item[1].device in devices), None)
            if found:
                self._tasks.remove(found)
            return found


class _Sweep:
    def __init__(self, command: Sequence[str], environment: dict[str, str], say: Say) -> None:
        self._command, self._environment, self._say = list(command), environment, say
        self._running: set[subprocess.Popen[str]] = set()
        self._is_stopped = False
        self.done: dict[int, SweepResult] = {}

    def work(self, slot: Slot, queue: _TaskQueue) -> None:
        """Tune one task after another."""
        while not self._is_stopped and (taken := queue.take(slot.devices)):
            place, task = taken
            self.done[place] = swept = self._tune(task, slot)
            self._say(f"{task.name}: {swept.reason}")

    def interrupt(self) -> None:
        """Interrupt every study, start no further one, and kill those that ignore the interrupt."""
        self._is_stopped = True
        self._send(signal.SIGINT)
        timer = threading.Timer(GRACE_S, self._send, [signal.SIGKILL])
        timer.daemon = True
        timer.start()

    def _send(self, number: signal.Signals) -> None:
        for process in list(self._running):
            process.send_signal(number)

    def _tune(self, task: Task, slot: Slot) -> SweepResult:
        start, code, last = time.monotonic(), 0, ""
        with tempfile.TemporaryDirectory(prefix="torchwise-sweep-") as folder:
            file, error_file = Path(folder, "study.json"), Path(folder, "error")
            for _ in range(1 + RETRIES):
                command = [*self._command, *_add_options(task, "--json", str(file), *slot.options)]
                error_file.unlink(missing_ok=True)
                code, last = self._run(command, task, {**slot.variables, ERROR_FILE: str(error_file)})
                if code >= 0 or self._is_stopped:
                    break
                self._say(f"{task.name}: its process was killed by {signal_name(-code)}")
            seconds = time.monotonic() - start
            if code in (0, EXIT_INCONCLUSIVE) and file.exists():
                study = parsing.read(file, parsing.parse_json)
                return SweepResult(task, code, study["decision"]["reason"], seconds, study)
            if error_file.exists():
                last = error_file.read_text(encoding="utf-8", errors="replace")
        return SweepResult(task, code, last or f"exit code {code}", seconds)

    def _run(self, command: list[str], task: Task, variables: dict[str, str]) -> tuple[int, str]:
        """Run one process, and return its exit code and the last line of its progress output."""
        last = ""
        with (
            subprocess.Popen(
                command,
                env={**self._environment, **variables},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,  # the table of the study; the file has the decision
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
                start_new_session=True,  # so that Ctrl-C reaches it only through `interrupt`
            ) as process,
            self._register(process),
        ):
            assert process.stderr is not None
            for line in process.stderr:
                last = line.strip() or last
                self._say(f"{task.name}: {line.rstrip()}")
        return process.returncode, last

    @contextlib.contextmanager
    def _register(self, process: subprocess.Popen[str]) -> Iterator[None]:
        self._running.add(process)
        if self._is_stopped:
            process.send_signal(signal.SIGINT)
        try:
            yield
        finally:
            self._running.discard(process)


def _add_options(task: Task, *options: str) -> list[str]:
    *words, end, target = task.arguments()
    return [*words, *options, end, target]  # of an option that is given twice the last counts


def retry_while_unreachable(command: Callable[[], None]) -> None:
    """Run `command`, and repeat it while the store is unreachable, within the limit of `store.db_errors`.

    Elsewhere, opening an unreachable store fails at once, as the address may be wrong. The address of a sweep worked at
    its start.
    """
    start, outage = time.monotonic(), db_errors.Outage("of the sweep")
    while True:
        try:
            return command()
        except UnreachableError as error:
            if time.monotonic() - start >= db_errors.PATIENCE_S:  # a running study has waited as long itself
                raise
            outage.wait(error)


def follow(parent: int) -> None:
    """Interrupt this process when `parent`, which started it, ends.

    The signal is that of Ctrl-C, so that finished work is saved.
    """
    if sys.platform != "linux":
        return
    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGINT)
    if os.getppid() != parent:  # the parent ended before the call above
        os.kill(os.getpid(), signal.SIGINT)
