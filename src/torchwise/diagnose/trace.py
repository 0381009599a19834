"""Read PyTorch's structured trace in a live process, as typed events, or as the summary of `torchwise.watch()`.

PyTorch logs its compiler's actions to `torch.__trace` (the source of TORCH_TRACE and tlparse:
https://docs.pytorch.org/docs/stable/torch.compiler_troubleshooting.html). A logging handler reads it there. It needs no
environment variable and no reset of Dynamo, and other handlers keep working. A call that compiles nothing writes
nothing.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import sys
import threading
import time
from collections.abc import Collection, Iterator
from typing import Self

from rich.console import Console

from torchwise._torch import dynamo
from torchwise.diagnose.events import Artifact, Events, Span
from torchwise.errors import InputError
from torchwise.keywords import checked_keywords
from torchwise.records.compile_events import Break, Compilation, CompileEvents, Recompile, UncompiledPart
from torchwise.report.compile_events import print_compile_events

__all__ = ["Artifact", "Span", "Trace", "Watch", "watch"]

_handlers = threading.Lock()
"""Held while the handlers of PyTorch's trace change."""


class Trace:
    """Collects the compiler's actions, in any thread of this process, from `start` to `stop`.

        with Trace() as trace: model(x)
        trace.breaks

    Several traces may run at once, nested or not. Each has the events of its own time. An error here never reaches
    the program: `notes` reports it.

    Args:
        artifacts: names of artifacts to keep, or True for all. They may take many megabytes, so none is kept by
            default.
        spans: keep the steps of each compilation with their times.
    """

    def __init__(self, *, artifacts: bool | Collection[str] = False, spans: bool = False) -> None:
        self._handler = _Handler(Events(artifacts, spans))
        self._logger: logging.Logger | None = None
        self._skips_before = 0
        self._started_s = 0.0
        self._ended_s: float | None = None

    def start(self) -> Self:
        """Begin to collect events. A second call does nothing."""
        if self._logger is None:
            self._logger = dynamo.get_trace_logger()
            self._skips_before = dynamo.count_cudagraph_skips()
            with self._handler.events() as events:
                events.trace_seconds = dynamo.get_trace_seconds()
            self._started_s = time.perf_counter()
            # A new list with this handler first, as a logger iterates over the list while it may change. PyTorch's own
            # handler removes itself meanwhile, and the next handler would be skipped.
            with _handlers:
                self._logger.handlers = [self._handler, *self._logger.handlers]
            self._note_if_detached()
        return self

    def stop(self) -> None:
        """Stop collecting events. A second call does nothing. The collected events stay."""
        if self._logger is None or self._ended_s is not None:
            return
        self._ended_s = time.perf_counter()
        self._note_if_detached()
        with _handlers:
            self._logger.handlers = [one for one in self._logger.handlers if one is not self._handler]
        self._handler.close()
        with self._handler.events() as events:
            events.add_skips(dynamo.count_cudagraph_skips() - self._skips_before)
            if lost := events.count_unfinished():
                events.notes.append(f"PyTorch reported no metrics for {lost} compilation(s): their times are missing")

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_error: object) -> None:
        self.stop()

    @property
    def breaks(self) -> tuple[Break, ...]:
        """Graph breaks, each place and code once, with a fix if one is known."""
        return self.to_record().breaks

    @property
    def recompiles(self) -> tuple[Recompile, ...]:
        """Recompilations, each function and guard once."""
        return self.to_record().recompiles

    @property
    def compilations(self) -> tuple[Compilation, ...]:
        """Every compilation, in the order in which they ended."""
        return self.to_record().compilations

    @property
    def fallbacks(self) -> tuple[UncompiledPart, ...]:
        """The parts of the program that do not run compiled, each once."""
        return self.to_record().fallbacks

    @property
    def trace_s(self) -> float:
        """Seconds of compile time that PyTorch's trace and its reading took."""
        return self.to_record().trace_s

    @property
    def notes(self) -> tuple[str, ...]:
        """Reasons why the collection may be incomplete."""
        return self.to_record().notes

    @property
    def artifacts(self) -> tuple[Artifact, ...]:
        """The requested artifacts, in order."""
        with self._handler.events() as events:
            return tuple(events.artifacts)

    @property
    def spans(self) -> tuple[Span, ...]:
        """The steps of all compilations, in the order in which they ended, if requested."""
        with self._handler.events() as events:
            return tuple(events.spans)

    def to_record(self) -> CompileEvents:
        """Return all events up to now as one record."""
        ended = time.perf_counter() if self._ended_s is None else self._ended_s
        with self._handler.events() as events:
            return CompileEvents(
                seconds=ended - self._started_s if self._started_s else 0.0,
                breaks=tuple(events.breaks.values()),
                recompiles=tuple(events.recompiles.values()),
                compilations=tuple(events.compilations),
                fallbacks=tuple(events.fallbacks.values()),
                trace_s=sum(one.trace_s for one in events.compilations),
                notes=tuple(dict.fromkeys(events.notes)),
            )

    def _note_if_detached(self) -> None:
        """Add a note if the program's own logging configuration stops PyTorch's trace, which is left as it is."""
        logger = self._logger
        if logger is None:
            return
        if logger.disabled or not logger.isEnabledFor(logging.DEBUG):
            why = "the program's logging disables PyTorch's trace (disable_existing_loggers, logging.disable)"
        elif self._handler not in logger.handlers:
            why = "the program's logging removed every handler of PyTorch's trace"
        else:
            return
        with self._handler.events() as events:
            events.notes.append(f"{why}, so events are missing")


class _Handler(logging.Handler):
    """Passes every record on to the events, which its lock guards."""

    def __init__(self, events: Events) -> None:
        super().__init__(logging.DEBUG)
        self._events = events

    def emit(self, record: logging.LogRecord) -> None:
        """Read one record."""
        try:
            self._events.add(record.__dict__.get("metadata") or {}, record.__dict__.get("payload"))
        except Exception as error:  # the format is PyTorch's: an unknown record must not end the user's program
            self._events.notes.append(
                f"a record of PyTorch's trace could not be read ({type(error).__name__}: {error})"
            )

    @contextlib.contextmanager
    def events(self) -> Iterator[Events]:
        """The events, while no other thread adds to them."""
        self.acquire()
        try:
            yield self._events
        finally:
            self.release()


class Watch:
    """Collects the compiler's events. `torchwise.watch()` returns a started one."""

    def __init__(self, *, print_summary: bool = True) -> None:
        self._trace = Trace()
        self._prints = print_summary
        self._stopped = False
        self._lock = threading.Lock()
        self._process = os.getpid()

    def start(self) -> Self:
        """Begin, or raise UnsupportedError if this version of torch has no structured trace."""
        self._trace.start()
        atexit.register(self._stop_at_exit)
        return self

    def stop(self) -> CompileEvents:
        """End, print the summary (the first time), and return the record."""
        with self._lock:
            first, self._stopped = not self._stopped, True
        if first:
            self._trace.stop()
            atexit.unregister(self._stop_at_exit)
            if self._prints:
                self._print()
        return self.seen

    @property
    def seen(self) -> CompileEvents:
        """The record up to now."""
        return self._trace.to_record()

    def summary(self) -> str:
        """Return the summary up to now, as plain text."""
        console = Console(width=120, color_system=None, file=None)
        with console.capture() as captured:
            print_compile_events(self.seen, console)
        return captured.get()

    def to_json(self) -> str:
        """Return the record up to now, in schema `torchwise.watched/1`."""
        return self.seen.to_json()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.stop()

    def _stop_at_exit(self) -> None:
        if os.getpid() == self._process:  # a forked child has no events of its own
            self.stop()

    def _print(self) -> None:
        try:
            print_compile_events(self.seen, Console(stderr=True))
        except Exception as error:  # stderr may be closed or replaced, and the program must end as without Torchwise
            with contextlib.suppress(Exception):  # there is no other place to report it
                sys.stderr.write(f"torchwise: the summary could not be printed: {error}\n")


@checked_keywords()
def watch(*, print: bool = True) -> Watch:
    """Watch PyTorch's compiler from now on, in every thread of this process.

        with torchwise.watch(): train()

    or, without a block::

        seen = torchwise.watch()
        ...
        seen.stop()

    It collects graph breaks with their fixes, and recompilations with the failed guard and the varying value. It also
    collects the seconds of every compilation, and the code that unexpectedly runs uncompiled. It changes nothing in
    PyTorch and sets no environment variable. A call that compiles nothing takes no longer than before. One summary goes
    to stderr when it is stopped, or when the process ends.

    Args:
        print: whether to print the summary. `summary()`, `to_json()` and `seen` return it in any case.

    Raises:
        InputError: `print` is no bool.
        UnsupportedError: this version of torch has no structured trace.
    """
    if not isinstance(print, bool):
        raise InputError(f"print is {print!r}, but must be True or False")
    return Watch(print_summary=print).start()
