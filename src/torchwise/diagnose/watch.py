"""`torchwise.watch()`: watch PyTorch's compiler in a running program, and print one summary at its end."""

from __future__ import annotations

import atexit
import os
import sys
import threading
from typing import Self

from rich.console import Console

from torchwise.diagnose.trace import Trace
from torchwise.errors import InputError
from torchwise.records.compile_events import CompileEvents
from torchwise.report.compile_events import print_compile_events


class Watch:
    """Collects the compiler's events. `torchwise.watch()` returns a started one."""

    def __init__(self, *, print_summary: bool = True) -> None:
        self._trace = Trace()
        self._prints = print_summary
        self._stopped = False
        self._lock = threading.Lock()
        self._process = os.getpid()

    def start(self) -> Self:
        """Begin.

        Raises:
            UnsupportedError: this version of torch has no structured trace.
        """
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
            _report_error(error)


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


def _report_error(error: Exception) -> None:
    try:
        sys.stderr.write(f"torchwise: the summary could not be printed: {error}\n")
    except Exception:  # there is no other place to report it
        return
