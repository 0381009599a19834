"""PyTorch's structured trace, listened to in a live process: the compiler's actions as typed events.

PyTorch logs its compiler's actions to `torch.__trace` (the source of TORCH_TRACE and tlparse:
https://docs.pytorch.org/docs/stable/torch.compiler_troubleshooting.html). A handler of our own reads it there. It needs
no environment variable and no `torch._dynamo.reset`, and other listeners go on. Nothing is written in a call that
compiles nothing.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Collection, Iterator
from typing import Self

from torchwise.diagnose import private
from torchwise.diagnose.events import Artifact, Events, Span
from torchwise.records.compile_events import Break, Compilation, CompileEvents, Fallback, Frame, Recompile

__all__ = ["Artifact", "Break", "Compilation", "CompileEvents", "Fallback", "Frame", "Recompile", "Span", "Trace"]


class Trace:
    """Collects the compiler's actions, in any thread of this process, from `start` to `stop`.

        with Trace() as trace: model(x)
        trace.breaks

    Several may listen at once, nested or not. Each has all events of its own time. An error in here stays in here:
    `notes` reports it, and the program goes on.

    Args:
        artifacts: names of artifacts to keep, or True for all. They may take many megabytes, so that none is kept by
            default.
        spans: keep the steps of each compilation with their times.
    """

    def __init__(self, *, artifacts: bool | Collection[str] = False, spans: bool = False) -> None:
        self._handler = _Handler(Events(artifacts, spans))
        self._logger: logging.Logger | None = None
        self._skips_before = 0
        self._began = 0.0
        self._ended: float | None = None

    def start(self) -> Self:
        """Begin to listen.

        A second call does nothing.

        Raises:
            UnsupportedError: this version of torch has no structured trace.
        """
        if self._logger is None:
            self._logger = private.trace_logger()
            self._skips_before = private.cudagraph_skips()
            with self._handler.events() as events:
                events.trace_seconds = private.trace_seconds()
            self._began = time.perf_counter()
            _attach(self._logger, self._handler)
            self._note_if_deaf()
        return self

    def stop(self) -> None:
        """Stop listening.

        A second call does nothing. The collected events stay.
        """
        if self._logger is None or self._ended is not None:
            return
        self._ended = time.perf_counter()
        self._note_if_deaf()
        _detach(self._logger, self._handler)
        with self._handler.events() as events:
            events.add_skips(private.cudagraph_skips() - self._skips_before)
            if lost := events.count_unfinished():
                events.notes.append(f"PyTorch gave no metrics of {lost} compilation(s): their times are missing")

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_error: object) -> None:
        self.stop()

    @property
    def breaks(self) -> tuple[Break, ...]:
        """Graph breaks, each place and code once, with a fix if one is known."""
        with self._handler.events() as events:
            return tuple(events.breaks.values())

    @property
    def recompiles(self) -> tuple[Recompile, ...]:
        """Recompilations, each function and guard once."""
        with self._handler.events() as events:
            return tuple(events.recompiles.values())

    @property
    def compilations(self) -> tuple[Compilation, ...]:
        """Every compilation, in the order in which they ended."""
        with self._handler.events() as events:
            return tuple(events.compilations)

    @property
    def fallbacks(self) -> tuple[Fallback, ...]:
        """The parts of the program that do not run compiled, each once."""
        with self._handler.events() as events:
            return tuple(events.fallbacks.values())

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

    @property
    def trace_s(self) -> float:
        """Seconds of compile time that PyTorch's trace and its reading took."""
        return sum(one.trace_s for one in self.compilations)

    @property
    def notes(self) -> tuple[str, ...]:
        """Reasons why the collection may be incomplete."""
        with self._handler.events() as events:
            return tuple(dict.fromkeys(events.notes))

    def to_record(self) -> CompileEvents:
        """Return all of it, up to now, as one record."""
        ended = time.perf_counter() if self._ended is None else self._ended
        return CompileEvents(
            seconds=ended - self._began if self._began else 0.0,
            breaks=self.breaks,
            recompiles=self.recompiles,
            compilations=self.compilations,
            fallbacks=self.fallbacks,
            trace_s=self.trace_s,
            notes=self.notes,
        )

    def _note_if_deaf(self) -> None:
        """Add a note if the program's own logging keeps PyTorch's trace from us.

        That is the program's to decide.
        """
        logger = self._logger
        if logger is None:
            return
        if logger.disabled or not logger.isEnabledFor(logging.DEBUG):
            why = "the program's logging has switched PyTorch's trace off (disable_existing_loggers, logging.disable)"
        elif self._handler not in logger.handlers:
            why = "the program's logging has taken every listener from PyTorch's trace"
        else:
            return
        with self._handler.events() as events:
            events.notes.append(f"{why}, so that events are missing")


class _Handler(logging.Handler):
    """Hands every record on.

    Its lock guards the events.
    """

    def __init__(self, events: Events) -> None:
        super().__init__(logging.DEBUG)
        self._events = events

    def emit(self, record: logging.LogRecord) -> None:
        """Read one record."""
        try:
            self._events.hear(record.__dict__.get("metadata") or {}, record.__dict__.get("payload"))
        except Exception as error:  # records are PyTorch's: an odd one must not end the user's program
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


def _attach(logger: logging.Logger, handler: logging.Handler) -> None:
    # A new list, with ours at its head: a logger walks its list while it may change. PyTorch's own handler removes
    # itself during the walk, so that the next handler would be skipped.
    with _handlers:
        logger.handlers = [handler, *logger.handlers]


def _detach(logger: logging.Logger, handler: logging.Handler) -> None:
    with _handlers:
        logger.handlers = [one for one in logger.handlers if one is not handler]
    handler.close()


_handlers = threading.Lock()
