"""A context that sets something in the whole process, around work that threads do at the same time."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any


class SharedContext:
    """A context of which only the first of overlapping uses enters it, and the last one leaves it.

    If each thread put back the setting that it found, that of another one would stay.

    Args:
        make: makes the context, such as a function decorated by `contextlib.contextmanager`.
    """

    def __init__(self, make: Callable[[], AbstractContextManager[Any]]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._inside = 0
        self._entered: AbstractContextManager[Any] | None = None

    def __enter__(self) -> None:
        with self._lock:
            if not self._inside:
                context = self._make()
                context.__enter__()
                self._entered = context
            self._inside += 1

    def __exit__(self, *_error: object) -> None:
        with self._lock:
            self._inside -= 1
            if not self._inside and self._entered is not None:
                self._entered.__exit__(None, None, None)

    def wrap(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """Return `call` within the context."""

        def call_within(*args: Any, **kwargs: Any) -> Any:
            with self:
                return call(*args, **kwargs)

        return call_within
