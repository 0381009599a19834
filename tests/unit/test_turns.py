"""Turns at a device: whoever measures is alone, the others wait, and no wait counts against a worker's time."""

from __future__ import annotations

import contextlib
import multiprocessing
import threading
import time
from multiprocessing.queues import Queue
from pathlib import Path

import pytest

from torchwise.measure import turns
from torchwise.study import Silent
from torchwise.study.run import _Loop
from torchwise.trial import WAITING, Job, Limits, ProcessLauncher
from torchwise.trial.job import EFFORTS
from torchwise.trial.loading import load
from torchwise.workload import WorkloadSpec

TARGET = f"{Path(__file__).parents[1] / 'targets' / 'misbehaving.py'}:wrong"
JOB = Job("inspect", WorkloadSpec(TARGET), effort=EFFORTS["quick"])


def _worker(folder: Path, heard: Queue[tuple[str, float, float]], share_s: float, alone_s: float) -> None:
    mine = turns.Turns("cpu", bool, folder)
    for _ in range(4):
        mine.share()
        start = time.monotonic()
        time.sleep(share_s)
        heard.put(("shared", start, time.monotonic()))
        with mine.alone():
            start = time.monotonic()
            time.sleep(alone_s)
            heard.put(("alone", start, time.monotonic()))


def test_whoever_measures_is_alone_and_the_others_share(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    heard: Queue[tuple[str, float, float]] = context.Queue()
    workers = [context.Process(target=_worker, args=(tmp_path, heard, 0.05, 0.02)) for _ in range(4)]
    for worker in workers:
        worker.start()
    spans = [heard.get(timeout=30) for _ in range(4 * 4 * 2)]
    for worker in workers:
        worker.join(10)
    assert sum(kind == "alone" for kind, *_ in spans) == 16
    for kind, start, end in spans:
        overlapping = [s for s in spans if s[1] < end and start < s[2] and s != (kind, start, end)]
        if kind == "alone":
            assert not overlapping
    shared = [(start, end) for kind, start, end in spans if kind == "shared"]
    assert any(a < d and c < b for a, b in shared for c, d in shared if (a, b) != (c, d)), "nobody worked side by side"


def test_two_that_want_to_be_alone_do_not_wait_for_each_other(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    heard: Queue[tuple[str, float, float]] = context.Queue()
    workers = [context.Process(target=_worker, args=(tmp_path, heard, 0.0, 0.0)) for _ in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(20)
        assert worker.exitcode == 0


def test_a_turn_ends_with_its_process(tmp_path: Path) -> None:
    def hold() -> None:
        turns.Turns("cpu", bool, tmp_path).share()
        holding.set()
        time.sleep(60)

    context = multiprocessing.get_context("fork")
    holding = context.Event()
    holder = context.Process(target=hold)
    holder.start()
    holding.wait(10)
    holder.kill()
    told: list[bool] = []
    mine = turns.Turns("cpu", told.append, tmp_path)
    mine.share()
    with mine.alone():
        pass
    holder.join(10)
    assert told in ([], [True, False])


def test_without_a_folder_for_locks_nobody_waits(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr(turns.tempfile, "gettempdir", lambda: str(tmp_path / "file"))
    turns.take_part(bool)
    turns.join("cpu")
    with turns.alone():
        pass
    assert turns._turns is None
    turns.take_part(None)


def test_a_program_that_is_no_worker_takes_no_part() -> None:
    """It may load a workload and measure it, and neither waits for others nor holds them up, however long it lives."""
    mine = turns.Turns("cpu", bool)
    mine.share()
    with mine.alone():
        load(JOB)
        with turns.alone():
            pass
    mine.leave()
    assert turns._turns is None


def test_waiting_is_not_on_the_workers_account() -> None:
    """A worker that may take five seconds waits for six: it is neither ended, nor is it silent."""
    other = turns.Turns("cpu", bool)
    heard: list[str] = []
    with contextlib.ExitStack() as held:
        held.callback(other.leave)  # whatever fails here: the workers of other tests would wait for ever
        held.enter_context(other.alone())

        def hear(stage: str) -> None:
            if stage == WAITING and WAITING not in heard:  # not before: a server of workers takes seconds to start
                threading.Timer(6, held.close).start()
            heard.append(stage)

        answer = ProcessLauncher().run(JOB, Limits(5, 8 * 2**30), hear)
        assert isinstance(answer, str), answer
    assert heard[0] == WAITING
    # Whoever else works on this machine may be waited for, too, and the stage is told again afterwards.
    assert list(dict.fromkeys(stage for stage in heard if stage != WAITING)) == ["start", "run eager", "measure"]


def test_a_search_does_not_pay_for_waiting() -> None:
    """The budget of a search is for its own work."""
    loop = object.__new__(_Loop)
    loop._listener, loop._start, loop._waited_s, loop._waits_since = Silent(), time.monotonic() - 10, 0.0, None
    loop._stage(WAITING)
    loop._waits_since = time.monotonic() - 7
    loop._stage("compile")
    assert 2.9 < loop._spent_s() < 4
