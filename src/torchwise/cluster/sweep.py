"""Many studies side by side, one a device: each is a process of `torchwise tune`, begun again where it is killed.

A study's trials follow each other, as each depends on those before it, and studies know nothing of each other; so
that a device is never idle as long as there are more studies than devices, and nothing has to be shared but the store.
"""

from __future__ import annotations

import contextlib
import signal
import subprocess
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
from torchwise.cluster.manifest import Task
from torchwise.records.answer import EXIT_INCONCLUSIVE
from torchwise.trial.launcher import signal_name

RETRIES = 2
"""Times that a study is begun again whose process was killed: it goes on from what is stored."""
GRACE_S = 30.0
"""Seconds that an interrupted study may take to store where it stands."""

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Slot:
    """One device for one study at a time.

    Attributes:
        devices: which studies fit: those on "cpu", on "cuda", or both.
        words: further options of `torchwise tune`.
        variables: of the environment, which give the device to the process.
    """

    devices: frozenset[str]
    words: tuple[str, ...] = ()
    variables: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Swept:
    """What became of one study.

    Attributes:
        task: what was asked.
        exit_code: of `torchwise tune`: 0 decided, 2 bad input, 3 the model itself fails, 4 inconclusive; below 0 the
            signal it died of.
        reason: the decision in a sentence, or the error.
        seconds: wall time, with whatever was begun again.
        study: schema `torchwise.study/1`; None where there is no decision.
    """

    task: Task
    exit_code: int
    reason: str
    seconds: float
    study: dict[str, Any] | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return it as one of the `studies` of schema `torchwise.sweep/1`."""
        found: dict[str, Any] = msgspec.to_builtins(self)
        return found


def run_sweep(
    tasks: Sequence[Task], slots: Sequence[Slot], command: Sequence[str], environment: dict[str, str], say: Say
) -> list[Swept]:
    """Tune every task, each slot one at a time, and return what became of them in the order of `tasks`.

    Args:
        tasks: what to tune; those of no slot's device must have been refused before.
        slots: the devices.
        command: what `torchwise` is called by, with the options for all, such as the store's.
        environment: variables of the processes.
        say: hears every line that a study says, and how each ends.

    Raises:
        KeyboardInterrupt: the user interrupted; the studies were, too, and keep what is finished.
    """
    sweep = _Sweep(command, environment, say)
    waiting = _Waiting(tasks)
    with ThreadPoolExecutor(max(1, len(slots))) as pool:
        working = [pool.submit(sweep.work, slot, waiting) for slot in slots]
        try:
            for each in working:
                each.result()
        except BaseException:  # raised again: whatever ends a sweep ends its studies
            sweep.interrupt()
            raise
    return [sweep.done[place] for place in range(len(tasks))]


class _Waiting:
    """Tasks that nobody took yet, in order."""

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
        self.done: dict[int, Swept] = {}

    def work(self, slot: Slot, waiting: _Waiting) -> None:
        """Tune one task after another."""
        while not self._is_stopped and (taken := waiting.take(slot.devices)):
            place, task = taken
            self.done[place] = swept = self._tune(task, slot)
            self._say(f"{task.name}: {swept.reason}")

    def interrupt(self) -> None:
        """Interrupt every study, and begin none; end those that do not heed it."""
        self._is_stopped = True
        self._send(signal.SIGINT)
        late = threading.Timer(GRACE_S, self._send, [signal.SIGKILL])
        late.daemon = True
        late.start()

    def _send(self, what: signal.Signals) -> None:
        for process in list(self._running):
            process.send_signal(what)

    def _tune(self, task: Task, slot: Slot) -> Swept:
        start, code, last = time.monotonic(), 0, ""
        with tempfile.TemporaryDirectory(prefix="torchwise-sweep-") as folder:
            file = Path(folder, "study.json")
            for _ in range(1 + RETRIES):
                code, last = self._run([*self._command, *_with(task, "--json", str(file), *slot.words)], task, slot)
                if code >= 0 or self._is_stopped:
                    break
                self._say(f"{task.name}: its process was ended by {signal_name(-code)}")
            seconds = time.monotonic() - start
            if code in (0, EXIT_INCONCLUSIVE) and file.exists():
                study = parsing.read(file, parsing.parse_json)
                return Swept(task, code, study["decision"]["reason"], seconds, study)
        return Swept(task, code, last.removeprefix("torchwise: ") or f"exit code {code}", seconds)

    def _run(self, words: list[str], task: Task, slot: Slot) -> tuple[int, str]:
        """Run one process; return its exit code and the last line of what it said on its way."""
        last = ""
        with (
            subprocess.Popen(
                words,
                env={**self._environment, **slot.variables},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,  # the study as a table; its decision is in the file
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
                start_new_session=True,  # Ctrl-C comes from us, once
            ) as process,
            self._known(process),
        ):
            assert process.stderr is not None
            for line in process.stderr:
                last = line.strip() or last
                self._say(f"{task.name}: {line.rstrip()}")
        return process.returncode, last

    @contextlib.contextmanager
    def _known(self, process: subprocess.Popen[str]) -> Iterator[None]:
        self._running.add(process)
        if self._is_stopped:
            process.send_signal(signal.SIGINT)
        try:
            yield
        finally:
            self._running.discard(process)


def _with(task: Task, *more: str) -> list[str]:
    first, *rest = task.words()
    return [first, *more, *rest]
