"""The program's side: receive a plan from the other process, load it in a thread, verify it again, and swap it in."""

from __future__ import annotations

import contextlib
import gc
import importlib
import logging
import shutil
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torchwise import environment
from torchwise._torch import aot_autograd, cpu_isa_cache, dynamo, inductor
from torchwise.alerts import alert
from torchwise.compile.aot import Loader
from torchwise.errors import StalePlanError, TorchwiseError, UnsupportedError
from torchwise.plan import EAGER
from torchwise.records import Decision, codec
from torchwise.runtime import Dispatcher, stale_because
from torchwise.runtime.background.first_call import answers_alike, warm_up_plan
from torchwise.runtime.background.protocol import Message, Order, read_code, write_order
from torchwise.runtime.fallback_reason import Fallback, FallbackReason
from torchwise.runtime.missed_inputs import Missed
from torchwise.runtime.served import Served, dispatcher_of, swap
from torchwise.runtime.sizes_dispatch import SizesDispatcher
from torchwise.study import Request
from torchwise.workload import Example, Workload
from torchwise.workload.other_sizes import make_example_like

logger = logging.getLogger("torchwise")

COMPILER = (
    dynamo.AOT_COMPILE_MODULE,
    inductor.COMPILER_MODULE,
    aot_autograd.RESULT_MODULE,
)
OrderAgain = Callable[[tuple[Example, ...]], tuple[Workload, Order]]
"""Makes the workload and the order of another search, on these examples."""
MAX_SIZES = 5
"""Sizes that a second search verifies and times plans at, the most frequent ones, besides those that it makes."""
ENDING_S = 10.0
TUNING_ENDED = Fallback(FallbackReason.BACKGROUND_TUNING_ENDED)
SWITCH_S = 1e-4
"""Switch interval of threads in seconds, while a plan is loaded."""


class Tuning:
    """A search in another process, for the result of `optimize(background=True)`.

    The program answers as before even if the search fails. Its state is then "failed", with the reason in `news`. If
    too many calls miss the plan by their sizes, a second search follows, and the state is "searching" again.

    Args:
        optimized: the wrapper that the program holds.
        workload: the model and its examples.
        folder: the folder of the order, which is removed once the search is over.
        canary: as for `apply`.
        turn: a lock that the caller holds. It is released once the search is over, and held again during a second one.
        order_again: makes the order of a second search from the sizes that came, or None to learn nothing.

    Attributes:
        news: messages so far, the oldest first.
        started: when it began, by `time.monotonic`.
    """

    def __init__(
        self,
        optimized: Any,
        workload: Workload,
        folder: Path,
        canary: int | None,
        turn: threading.Lock | None = None,
        order_again: OrderAgain | None = None,
    ) -> None:
        self.started = time.monotonic()
        self._turn = turn or threading.Lock()
        if turn is None:
            self._turn.acquire()
        self._order_again, self._learns = order_again, order_again is not None
        # End the search once `optimized` is gone.
        self._optimized = weakref.ref(optimized, lambda _: self._abandon())
        self.news: list[Message] = []
        self._canary = canary
        self._over = threading.Event()
        self._changed = threading.Condition()
        self._stopping = False
        self._latest: tuple[Decision, Loader | None] | None = None  # the plan that answers
        self._first: tuple[Decision, Loader | None] | None = None  # the plan that stays, for the sizes of its own
        self._begin(workload, folder)

    def _begin(self, workload: Workload, folder: Path) -> None:
        self._workload, self._folder = workload, folder
        self._told = len(self.news)  # by an earlier search
        self._process = subprocess.Popen(
            [sys.executable, "-m", "torchwise.runtime.background.search", str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        self._over.clear()
        self._thread = threading.Thread(target=self._follow, daemon=True, name="torchwise-background")
        try:
            self._thread.start()
        except RuntimeError:  # there are too many
            self._end()
            self._over.set()
            raise

    @property
    def state(self) -> str:
        """Return "searching", "done", "failed" or "stopped"."""
        if not self._over.is_set():
            return "searching"
        return "stopped" if self._stopping else "done" if self._last_kind == "done" else "failed"

    @property
    def _last_kind(self) -> str:
        """The kind of the last news of the latest search."""
        own = self.news[self._told :]
        return own[-1].kind if own else ""

    @property
    def is_promoted(self) -> bool:
        """Whether a plan answers now."""
        return any(news.kind == "promoted" for news in self.news)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until the search is over, and return whether it is."""
        return self._over.wait(timeout_s)

    def wait_for_plan(self, timeout_s: float | None = None) -> bool:
        """Wait until a plan answers or the search is over, and return whether a plan answers."""
        with self._changed:
            self._changed.wait_for(lambda: self.is_promoted or self._over.is_set(), timeout_s)
        return self.is_promoted

    def stop(self) -> None:
        """End the search if it is running. A plan that answers already stays in use, and nothing is learnt any more."""
        with self._changed:  # or a second search would begin just now
            self._order_again, self._learns = None, False
            if self._over.is_set():
                return
            self._stopping = True
        self._end()
        self._thread.join(ENDING_S)

    def __repr__(self) -> str:
        last = f": {self.news[-1].text}" if self.news else ""
        return f"<Tuning {self.state}{last}>"

    def _follow(self) -> None:
        try:
            assert self._process.stdout is not None
            for line in self._process.stdout:
                self._hear(codec.from_json(line, Message))
            if not self._stopping and self._last_kind not in ("done", "failed"):
                code = self._process.wait(ENDING_S)
                self._note(Message("failed", f"the process that tunes ended with exit code {code}"))
        except Exception as error:  # the program goes on after any failure of the search
            self._note(Message("failed", f"{type(error).__name__}: {error}"))
        finally:
            self._end()
            shutil.rmtree(self._folder, ignore_errors=True)
            answering = dispatcher_of(self._optimized())
            if answering is not None and not self.is_promoted:
                answering.close(TUNING_ENDED)  # otherwise calls would be counted as if the search were running
            with self._changed:
                self._over.set()
                self._changed.notify_all()
            self._turn.release()

    def learn(self, missed: Sequence[Missed]) -> None:
        """Search a plan for the sizes that came and were not verified, in a thread: no call may wait for it."""
        threading.Thread(target=self._search_again, args=(missed,), daemon=True, name="torchwise-learning").start()

    def _search_again(self, missed: Sequence[Missed]) -> None:
        """Search once more, after the first search. Its plan answers other sizes than the first one's, and only those.

        So a plan of all sizes never takes the place of a faster one of some.
        """
        self._turn.acquire()  # once the first search is over
        begins = False
        try:
            begins = self._begin_again(missed)
        finally:
            if not begins:
                self._turn.release()

    def _begin_again(self, missed: Sequence[Missed]) -> bool:
        """Begin a second search, unless nothing is to be learnt any more, and return whether it began."""
        with self._changed:
            order_again, self._order_again = self._order_again, None
        answering = dispatcher_of(self._optimized())
        if order_again is None or answering is None or answering.is_frozen or answering.refusal is not None:
            return False
        if self._latest is not None and self._latest[0].plan.shapes == "dynamic":  # a later tier's plan: it answers all
            return False
        first, folder = self._workload.examples[0], None
        often = sorted(missed, key=lambda kind: -kind.times)[:MAX_SIZES]
        logger.info("torchwise: searching in the background for other sizes: %s, and the like", often[0].difference)
        try:
            came = [make_example_like(first, kind.inputs, float(kind.times)) for kind in often]
            workload, order = order_again((replace(first, weight=1.0), *came))
            folder = write_order(workload, order)
            with self._changed:
                begins = self._learns and not self._stopping  # all this while
                if begins:
                    self._first = self._latest
                    self._begin(workload, folder)
        except Exception as error:  # as a failed search
            begins = False
            if self._learns:
                self._note(Message("failed", f"{type(error).__name__}: {error}"))
        if not begins and folder is not None:
            shutil.rmtree(folder, ignore_errors=True)
        if begins and self._stopping:  # as nobody holds it any more, meanwhile
            self._end()
        return begins

    def _hear(self, news: Message) -> None:
        if news.kind != "promoted":
            self._note(news)
            return
        start = time.monotonic()
        try:
            with _yielding():
                self._promote(news)
        except Exception as error:  # as above, and a later tier may succeed
            reason = str(error) if isinstance(error, TorchwiseError) else f"{type(error).__name__}: {error}"
            self._note(Message("left", f"{news.text}, and was not swapped in: {reason}"))
            return
        logger.info("torchwise: %s; it answers now, %.1f s after it was found", news.text, time.monotonic() - start)
        self._note(news)

    def _note(self, news: Message) -> None:
        if news.kind == "failed" and not self._stopping:
            alert("background_failed", f"tuning in the background failed, the program goes on as it is: {news.text}")
        with self._changed:
            self.news.append(news)
            self._changed.notify_all()

    def _promote(self, news: Message) -> None:
        """Load the plan, verify it on the example inputs again, and swap it in.

        Raises:
            StalePlanError: the model changed since, or the plan's outputs differ here.
        """
        decision, original = news.parse_decision(), self._workload.call
        if stale := stale_because(original, decision):
            raise StalePlanError(f"the model or machine changed since it was tuned ({stale})")
        backend = None
        if news.file:
            codes = read_code(Path(news.file), news.sha256)
            with contextlib.suppress(UnsupportedError):  # the checks then run again
                cpu_isa_cache.replay(news.checks)
            backend = Loader(codes)
            backend.load()  # also if the model may not be called yet: its first call must not wait for this
        # Other threads may not draw random numbers while a CUDA graph is recorded, so the program's own first call
        # records it.
        ready = replace(decision, plan=replace(decision.plan, capture="none"))
        if news.extra_calls == "any" and not ready.plan.is_eager:
            found = answers_alike(Dispatcher(original, ready, backend=backend), self._workload)
            if found:
                raise StalePlanError(found)
        elif news.extra_calls == "undrawn" and backend is not None:
            with contextlib.suppress(Exception):  # optional, it only makes the program's first call faster
                warm_up_plan(original, ready.plan, backend, self._workload, decision.workload.device)
        optimized = self._optimized()
        answering = dispatcher_of(optimized)
        if answering is not None and answering.is_frozen:
            raise StalePlanError("the program is frozen, and the plan's first call would record or compile")
        if answering is not None and not self._stopping:
            swap(optimized, self._make_served(decision, backend, answering))

    def _make_served(self, decision: Decision, backend: Loader | None, answering: Served) -> Served:
        """Return what answers by the plan, behind the one for the first sizes if it was found for others."""
        original = self._workload.call
        options: dict[str, Any] = {"canary": self._canary, "statistics": answering.statistics}  # which go on
        if self._first is None:
            self._latest = decision, backend
            learn = self.learn if self._learns else None
            return Dispatcher(original, decision, backend=backend, learn=learn, **options)
        first, backend_of_first = self._first
        return SizesDispatcher(
            original,
            first,
            decision,
            answering.refusal,
            backend=backend_of_first,
            backend_of_others=backend,
            **options,
        )

    def _abandon(self) -> None:
        self._stopping = True
        if self._process.stdin is not None:
            self._process.stdin.close()

    def _end(self) -> None:
        """End the other process. Its workers end with it."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            self._process.wait(ENDING_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def _import_compiler() -> None:
    """Import the modules for loading a plan now, before the program serves.

    Later, the import would take a thread seconds, and garbage collection of the new objects would stall every thread
    for 200 ms. So the collection also runs now.
    """
    for module in COMPILER:
        importlib.import_module(module)
    gc.collect()


@contextlib.contextmanager
def _yielding() -> Iterator[None]:
    """Make Python switch threads fifty times as often.

    A waiting thread requests the interpreter after five milliseconds. Loading code keeps Python busy for a second or
    two. The program's own thread releases the interpreter in every operator, so one call may wait a dozen times.
    """
    before = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_S)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def start(
    optimized: Any,
    workload: Workload,
    order: Order,
    canary: int | None,
    turn: threading.Lock | None = None,
    order_again: OrderAgain | None = None,
) -> Tuning:
    """Start to tune `workload` for `optimized`, which runs the original meanwhile.

    Args:
        optimized: the wrapper that the program holds.
        workload: the model and its examples.
        order: what to search. The location of the model is filled in here.
        canary: as for `apply`.
        turn: as for `Tuning`.
        order_again: makes the order of a second search from the sizes that came, or None to learn nothing.

    Raises:
        WorkloadError: the model cannot be sent to another process.
    """
    folder = write_order(workload, order)
    try:
        _import_compiler()
        return Tuning(optimized, workload, folder, canary, turn, order_again)
    except BaseException:  # raised again
        shutil.rmtree(folder, ignore_errors=True)
        raise


def initial_decision(workload: Workload, request: Request) -> Decision:
    """Return the decision to run the original until the search decides."""
    here = environment.detect(request.workload.device)
    reason = "tuning goes on in the background"
    return Decision(
        EAGER,
        reason,
        None,
        None,
        0.0,
        0.0,
        0.0,
        None,
        request.workload,
        "",
        request.structure or "",
        workload.inputs,
        here,
    )
