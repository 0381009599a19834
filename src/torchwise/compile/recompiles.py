"""Count and limit how often a plan compiles or captures again for known kinds of calls, and name the varying value.

A program may set a number, a string or an object for each request, and compiled code may depend on it. Then every call
is compiled. PyTorch stops after eight times and silently runs the code in eager. A plan stops as well: the original
model answers, and a message names the value that varies. `Pace` limits work that only saves time later.
"""

from __future__ import annotations

import math
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torchwise._torch import dynamo
from torchwise.compile.guards.varying_values import VaryingKind, VaryingValue
from torchwise.errors import UnsupportedError

FIRST_WAIT_S, MAX_WAIT_S = 60.0, 3600.0
"""Seconds after which one recompilation beyond the limit is permitted: twice as long each time, up to an hour.

After an hour without a recompilation, the count starts again.
"""
SHOWN = 4
"""Maximum number of varying values that a message shows."""
MAX_PLACES = 64
"""Maximum number of varying places that are counted. Each call may name others, such as entries of a growing list."""

_FEW = f"if it has few values, raise `{dynamo.CONFIG}.recompile_limit`, otherwise keep it out of the compiled code"
_WORDS = {
    VaryingKind.NUMBER: (
        "is another number on every call",
        "keep it in a tensor (`register_buffer`), which is an input",
    ),
    VaryingKind.TEXT: ("is another string on every call", _FEW),
    VaryingKind.FLAG: ("changes from call to call", _FEW),
    VaryingKind.VALUE: ("is another value on every call", _FEW),
    VaryingKind.TENSOR: (
        "has other shapes or types from call to call",
        "convert it to one shape and dtype before the call",
    ),
    VaryingKind.WEIGHT: ("is another tensor from call to call", "write to it in place, as `load_state_dict` does"),
    VaryingKind.CONTENT: (
        "change from call to call",
        "tune without the option `freezing`, which writes them into the code",
    ),
    VaryingKind.LENGTH: ("has another length on every call", "keep growing data in a tensor of a fixed size"),
    VaryingKind.BRANCH: ("differs from call to call", "keep sizes and branches independent of values"),
    VaryingKind.STATE: ("changes from call to call", "set it once, before the plan is applied"),
    VaryingKind.OBJECT: ("is another object on every call", "set it once, before the plan is applied"),
}
"""The description of each kind of variation, and the remedy."""


class RecompileLimitError(UnsupportedError):
    """A call would need one compilation or capture more than the plan may have.

    Attributes:
        reason: the place that varies, and the remedy, the same for all values.
    """

    def __init__(self, message: str, reason: str) -> None:
        super().__init__(message)
        self.reason = reason


@dataclass(slots=True)
class Price:
    """The seconds of the compilations in calls of known kinds, which all parts of a plan share.

    Attributes:
        limit_s: returns the seconds that they may take before the plan stops.
        told: called with the seconds of each.
        clock: monotonic seconds.
        spent_s: the seconds since the last hour without any.
    """

    limit_s: Callable[[], float] = lambda: math.inf
    told: Callable[[float], None] = lambda _: None
    clock: Callable[[], float] = time.monotonic
    spent_s: float = 0.0
    _last: float = -math.inf

    @property
    def is_too_high(self) -> bool:
        """Whether they took longer than they may."""
        return self.spent_s > self.limit_s() and self.clock() - self._last < MAX_WAIT_S

    def pay(self, seconds: float) -> None:
        """Count one more compilation."""
        now = self.clock()
        self.spent_s = seconds + (self.spent_s if now - self._last < MAX_WAIT_S else 0.0)
        self._last = now
        self.told(seconds)


class Recompiles:
    """Counts recompilations and new captures for known kinds of calls, and raises an error at the limit.

    Args:
        most: the limit, by default that of PyTorch.
        told: called with the variation, on each recompilation or new capture.
        give_up: called with the error if a call must continue, so that the plan answers no later call. By default such
            a call raises, too.
        is_part: whether it counts for a part of a call after other parts, so that the original cannot answer the call.
        clock: monotonic seconds.
        price: the seconds of all later compilations, and their limit. By default they have none.

    Attributes:
        count: the number of recompilations and new captures.
    """

    def __init__(
        self,
        most: int | None = None,
        *,
        told: Callable[[str], None] | None = None,
        give_up: Callable[[RecompileLimitError], None] | None = None,
        is_part: bool = False,
        clock: Callable[[], float] = time.monotonic,
        price: Price | None = None,
    ) -> None:
        self.price = price or Price()
        self._most = most
        self._told, self._give_up = told or _ignore, give_up
        self._is_part, self._clock = is_part, clock
        self._lock = threading.Lock()
        self._times: Counter[tuple[str, VaryingKind]] = Counter()
        self._values: defaultdict[str, list[str]] = defaultdict(list)
        self._lately = 0  # since the last quiet hour
        self._last = -MAX_WAIT_S
        self._wait_s: float = FIRST_WAIT_S
        self._next: float | None = None  # None before the first refusal
        self.count = 0

    def again(self, varied: Sequence[VaryingValue], *, at_start: bool) -> None:
        """Count one more, before the compilation.

        Args:
            varied: the differences from earlier compilations.
            at_start: whether nothing of the call ran so far, so that the original may answer it.

        Raises:
            RecompileLimitError: it exceeds the limit. In the middle of a call it is permitted, the plan ends.
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
        """Return the counter for one part of a call, with the same limit.

        Args:
            is_told: whether it reports as well. Otherwise the report of the code around the part is enough.
        """
        told = self._told if is_told else _ignore
        return Recompiles(
            self._most, told=told, give_up=self._give_up, is_part=True, clock=self._clock, price=self.price
        )

    def _note(self, varied: Sequence[VaryingValue]) -> None:
        for one in varied:
            self._times[one.place, one.kind] += 1
            if len(self._times) > MAX_PLACES:
                rarest = min(self._times, key=self._times.__getitem__)  # the oldest of them
                del self._times[rarest]
                self._values.pop(rarest[0], None)
            if one.value and one.value not in (shown := self._values[one.place]):
                shown.append(one.value)
                del shown[:-SHOWN]

    def _admits(self) -> bool:
        now = self._clock()
        if now - self._last >= MAX_WAIT_S:
            self._lately, self._wait_s, self._next = 0, FIRST_WAIT_S, None
        most = dynamo.get_recompile_limit() if self._most is None else self._most
        if self._lately < most and not self.price.is_too_high:
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
            reason, values = "PyTorch compiles it again from call to call, and reports no reason", ""
        else:
            [((place, kind), _)] = self._times.most_common(1)
            what, remedy = _WORDS[kind]
            reason = f"{place} {what}, and the compiled code depends on it: {remedy}"
            values = f", its last values are {', '.join(shown)}" if (shown := self._values[place]) else ""
        took = f", in {self.price.spent_s:.0f} s" if self.price.is_too_high else ""
        times = f"it was compiled or captured again {self.count} times{took}{values}"
        return RecompileLimitError(f"{reason} ({times})", reason)


def _ignore(_: str) -> None:
    """Report nothing."""


def count_recompiles(compiled: Callable[..., Any], recompiles: Recompiles) -> Callable[..., Any]:
    """Have a compiled callable count its recompilations there, unless it never recompiles."""
    if (count_in := getattr(compiled, "count_in", None)) is not None:
        count_in(recompiles)
    return compiled


def _now(varied: Sequence[VaryingValue]) -> str:
    return ", ".join(f"{one.place} is now {one.value or 'another'}" for one in varied) or "PyTorch reports no reason"


SHARE = 0.05
"""The share of the time that may be spent on it."""


class Pace:
    """Decides when work may be repeated: the first time at once, and then so that it takes only a share of the time.

        if pace.is_due():
            with pace:
                ...

    Args:
        clock: seconds that never go back.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._began = self._next = 0.0

    def is_due(self) -> bool:
        """Whether it may be done now."""
        return self._clock() >= self._next

    def __enter__(self) -> None:
        self._began = self._clock()

    def __exit__(self, *_error: object) -> None:
        now = self._clock()
        self._next = now + (now - self._began) / SHARE
