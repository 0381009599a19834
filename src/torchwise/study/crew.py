"""Threads that work on one search at once, each in a lane of its own.

One of them decides at a time: it chooses the next plan, stores a result, or reports one. Only while a worker runs for
it does it leave the turn to the others. So each decision knows all earlier ones, as in a search of one thread.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from torchwise.records.trial import WAITING
from torchwise.study.lanes import Lane
from torchwise.trial.launcher import OnStage
from torchwise.trial.limits import StoppedError

WAIT_S = 1.0
"""Seconds after which a thread looks for results of other processes, of which nobody tells it."""
TURN = "wait for another trial"
"""Stage of a worker that waits for the device while other workers of the search go on."""


class Crew:
    """One thread for each lane. The caller's own thread has the first, so that a search of one lane is as ever.

    Attributes:
        lanes: the lanes, at least one.
        is_alone: whether one worker runs at a time: there is one lane, or the memory holds no more (`work_alone`).
        stop: set once an error or the user has ended the search. Workers then end, too (`Limits.stop`).
    """

    def __init__(self, lanes: Sequence[Lane], on_stage: OnStage) -> None:
        """Begin without threads. `on_stage` is called with the stages of all workers, one call at a time."""
        self.lanes = tuple(lanes)
        self.is_alone = len(self.lanes) == 1
        self.stop = threading.Event()
        self._on_stage = on_stage
        self._turn = threading.Condition(threading.Lock())
        self._without_turn: set[int] = set()
        self._stages: dict[int, str] = {}
        self._telling = threading.Lock()
        self._errors: list[BaseException] = []

    def work(self, search: Callable[[Lane], None]) -> None:
        """Call `search` in each lane at once, each with the turn, and return once all have returned.

        The first error of any of them, or an interruption by the user, ends all, and is raised.
        """
        first, *others = self.lanes
        threads = [
            threading.Thread(target=self._search, args=(search, lane), daemon=True, name=f"torchwise-{lane.number}")
            for lane in others
        ]
        try:
            for thread in threads:
                thread.start()
            self._search(search, first)
            for thread in threads:
                thread.join()
        except BaseException as error:  # raised again below, once the others have ended
            self._end(error)
            for thread in threads:
                if thread.ident is not None:
                    thread.join()
        for first_error in sorted(self._errors, key=lambda each: isinstance(each, StoppedError)):
            raise first_error  # which ended the others

    def wait(self) -> None:
        """Leave the turn to others until one of them has a result, or for a second."""
        self._turn.wait(WAIT_S)

    def wait_until_alone(self) -> None:
        """If one worker is to run at a time, leave the turn to others until none runs."""
        while self.is_alone and self._stages and not self.stop.is_set():
            self.wait()

    def work_alone(self) -> None:
        """Have one worker run at a time from now on, and wait until no other one runs."""
        self.is_alone = True
        self.wait_until_alone()

    @contextlib.contextmanager
    def running(self, lane: Lane) -> Iterator[OnStage]:
        """Leave the turn to others while a worker of this lane runs. Yield the function that hears of its stages.

        Raises:
            StoppedError: the search has ended.
        """
        if self.stop.is_set():
            raise StoppedError
        with self._telling:
            self._stages[lane.number] = ""
        self._turn.release()
        try:
            yield partial(self._enter, lane.number)
            self._turn.acquire()
        except BaseException:  # raised again: it ends the search, and must not wait for a thread that waits for a store
            self._without_turn.add(lane.number)
            self.stop.set()
            self._leave(lane.number)
            raise
        self._leave(lane.number)
        self._turn.notify_all()

    def _search(self, search: Callable[[Lane], None], lane: Lane) -> None:
        try:
            self._turn.acquire()
            try:
                search(lane)
            finally:
                if lane.number not in self._without_turn:
                    self._turn.release()
        except BaseException as error:  # `work` raises it in its own thread
            self._end(error)

    def _end(self, error: BaseException) -> None:
        self._errors.append(error)
        self.stop.set()

    def _enter(self, number: int, name: str) -> None:
        """Tell that a worker enters a stage. The search waits for other processes only if all its workers do."""
        with self._telling:
            self._stages[number] = name
            self._on_stage(TURN if name == WAITING and not self._all_wait() else name)

    def _leave(self, number: int) -> None:
        with self._telling:
            del self._stages[number]
            if self._all_wait():
                self._on_stage(WAITING)

    def _all_wait(self) -> bool:
        return bool(self._stages) and all(name == WAITING for name in self._stages.values())
