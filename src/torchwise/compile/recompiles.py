"""How often a plan may compile or capture anew for calls that it answered before: counted, bounded, and named.

A program may set a number, a text or an object for each request, and compiled code may depend on it. Then every call is
compiled. PyTorch stops after eight times and runs the code eagerly, without a word. A plan stops as well. The original
answers then, and a message names the value that varies.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from typing import Any

from torchwise.compile.guards.varying_values import (
    CONTENT,
    FLAG,
    LENGTH,
    NUMBER,
    OBJECT,
    STATE,
    TENSOR,
    TEXT,
    VALUE,
    WEIGHT,
    VaryingValue,
)
from torchwise.errors import UnsupportedError

FIRST_WAIT_S, MAX_WAIT_S = 60.0, 3600.0
"""Seconds after which one more is permitted beyond the limit: twice as long each time, up to an hour.

After an hour in which nothing was to be made anew, all are permitted again.
"""
SHOWN = 4
"""Most values of a varying place that a message shows."""

_FEW = "where it has few values, raise `torch._dynamo.config.recompile_limit`; else leave it out of the compiled code"
_WORDS = {
    NUMBER: ("is another number on every call", "keep it in a tensor (`register_buffer`), which is an input"),
    TEXT: ("is another text on every call", _FEW),
    FLAG: ("changes from call to call", _FEW),
    VALUE: ("is another value on every call", _FEW),
    TENSOR: ("has other shapes or types from call to call", "bring it to one form before the call"),
    WEIGHT: ("is another tensor from call to call", "write to it in place, as `load_state_dict` does"),
    CONTENT: ("change from call to call", "tune without the option `freezing`, which writes them into the code"),
    LENGTH: ("has another length on every call", "keep what grows in a tensor of a fixed size"),
    STATE: ("changes from call to call", "set it once, before the plan is applied"),
    OBJECT: ("is another object on every call", "set it once, before the plan is applied"),
}
"""The words for each kind of variation, and the remedy."""


class RecompileLimitError(UnsupportedError):
    """A call for which a plan would be compiled or captured once more than it may be.

    Attributes:
        reason: the place that varies, and the remedy, the same for all values.
    """

    def __init__(self, message: str, reason: str) -> None:
        super().__init__(message)
        self.reason = reason


class Recompiles:
    """Counts recompiles and new captures for calls that were answered before, and says when it is enough.

    Args:
        most: how many are permitted, by default PyTorch's own `torch._dynamo.config.recompile_limit`.
        told: is called with the variation, each time that something is made anew.
        give_up: is called with the error that would be raised in the middle of a call that must go on: the plan is to
            answer no more. By default such a call raises, too.
        is_part: whether it counts a part of a call, before which other parts ran: the original cannot answer the call.
        clock: seconds that never go back.

    Attributes:
        count: how many there were.
    """

    def __init__(
        self,
        most: int | None = None,
        *,
        told: Callable[[str], None] | None = None,
        give_up: Callable[[RecompileLimitError], None] | None = None,
        is_part: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._most = most
        self._told, self._give_up = told or _untold, give_up
        self._is_part, self._clock = is_part, clock
        self._lock = threading.Lock()
        self._times: Counter[tuple[str, str]] = Counter()
        self._values: defaultdict[str, list[str]] = defaultdict(list)
        self._lately = 0  # since the last quiet hour
        self._last = -MAX_WAIT_S
        self._wait_s: float = FIRST_WAIT_S
        self._next: float | None = None  # None before the first refusal
        self.count = 0

    def again(self, varied: Sequence[VaryingValue], *, at_start: bool) -> None:
        """Count one more, before it is made.

        Args:
            varied: the differences from earlier compilations.
            at_start: whether nothing of the call ran so far, so that the original may answer it.

        Raises:
            RecompileLimitError: it is one more than is permitted. In the middle of a call it is permitted, and the plan
                is given up.
        """
        with self._lock:
            self._note(varied)
            error = None if self._admits() else self._error()
            if error is not None and (self._give_up is None or (at_start and not self._is_part)):
                raise error
            self.count += 1
        self._told(_now(varied))
        if error is not None and self._give_up is not None:
            self._give_up(error)

    def make_part_counter(self, *, is_told: bool = True) -> Recompiles:
        """Return the counter for one part of a call, which may be compiled anew as often.

        Args:
            is_told: whether it is told as well. Otherwise the report of the code around the part is enough.
        """
        told = self._told if is_told else _untold
        return Recompiles(self._most, told=told, give_up=self._give_up, is_part=True, clock=self._clock)

    def _note(self, varied: Sequence[VaryingValue]) -> None:
        for one in varied:
            self._times[one.place, one.kind] += 1
            if one.value and one.value not in (shown := self._values[one.place]):
                shown.append(one.value)
                del shown[:-SHOWN]

    def _admits(self) -> bool:
        now = self._clock()
        if now - self._last >= MAX_WAIT_S:
            self._lately, self._wait_s, self._next = 0, FIRST_WAIT_S, None
        if self._lately < (self._most if self._most is not None else _limit_of_pytorch()):
            is_permitted = True
        else:
            is_permitted = self._next is not None and now >= self._next
            if is_permitted:  # the varying value may have settled since
                self._wait_s = min(2 * self._wait_s, MAX_WAIT_S)
            if is_permitted or self._next is None:
                self._next = now + self._wait_s
        if is_permitted:
            self._lately += 1
        self._last = now
        return is_permitted

    def _error(self) -> RecompileLimitError:
        if not self._times:
            reason, values = "PyTorch compiles it anew from call to call, and does not say why", ""
        else:
            [((place, kind), _)] = self._times.most_common(1)
            what, remedy = _WORDS[kind]
            reason = f"{place} {what}, and the compiled code depends on it: {remedy}"
            values = f"; its last values are {', '.join(shown)}" if (shown := self._values[place]) else ""
        return RecompileLimitError(f"{reason} (it was made anew {self.count} times{values})", reason)


def _untold(_: str) -> None:
    """Tell nobody."""


def count_recompiles(made: Callable[..., Any], recompiles: Recompiles) -> Callable[..., Any]:
    """Have a backend's result count its recompiles there. One that never recompiles counts nothing."""
    if (count_in := getattr(made, "count_in", None)) is not None:
        count_in(recompiles)
    return made


def _now(varied: Sequence[VaryingValue]) -> str:
    return ", ".join(f"{one.place} is now {one.value or 'another'}" for one in varied) or "PyTorch does not say why"


def _limit_of_pytorch() -> int:
    from torch._dynamo import config

    return int(config.recompile_limit)
