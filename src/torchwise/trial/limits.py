"""The resources that a worker may use until it is ended."""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass, field

import psutil


class StoppedError(Exception):
    """A worker was ended with its search, which stopped for another reason. This error never leaves a search."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The resources of a worker until it is ended.

    Attributes:
        time_s: wall seconds, without those in which it waits for others.
        memory_bytes: resident memory, that of its children included.
        end_s: wall seconds after which it is ended in any case, its start and all its waits included.
        compile_s: wall seconds of one stage that compiles, without those in which it waits for others.
        compile_note: where that limit comes from if the user gave none, for the message of a worker that it ends.
        stop: set if the search has stopped, with all its workers, or None if it never is. Only for workers here.
    """

    time_s: float
    memory_bytes: int
    end_s: float = math.inf
    compile_s: float = math.inf
    compile_note: str = ""
    stop: threading.Event | None = field(default=None, compare=False)

    @classmethod
    def from_free_memory(cls, time_s: float) -> Limits:
        """Grant nine tenths of the memory that is free now, as the rest keeps the user's own program alive."""
        return cls(time_s, int(psutil.virtual_memory().available * 0.9))

    def check_stop(self) -> None:
        """Raise if the search has stopped.

        Raises:
            StoppedError: it has.
        """
        if self.stop is not None and self.stop.is_set():
            raise StoppedError
