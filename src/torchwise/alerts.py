"""Alerts: faults that need attention, which are logged and passed to callbacks. Other messages are logged once."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from torchwise.errors import InputError

logger = logging.getLogger("torchwise")

Kind = Literal[
    "canary_mismatch",
    "plan_failed",
    "out_of_memory",
    "recompile_limit",
    "fallback_rate",
    "slow_down",
    "background_failed",
    "search_failed",
]


@dataclass(frozen=True, slots=True)
class Alert:
    """A fault of a plan in production. Every call still returned an answer.

    Attributes:
        kind: the kind of fault. "canary_mismatch": the plan's answer differed from the original model's. "plan_failed":
            the plan failed so often that it is disabled for a time. "out_of_memory": the plan's memory was freed.
            "recompile_limit": the plan reached its limit of recompilations, as its inputs vary too much.
            "fallback_rate": the original model runs too many calls. "slow_down": the plan is slower than at the time of
            the decision. "background_failed": the search in the background failed. "search_failed": the search for a
            component failed.
        message: the fault and the response to it, as text.
        facts: the same as data, with the plan.
    """

    kind: Kind
    message: str
    facts: dict[str, Any] = field(default_factory=dict)


_callbacks: list[Callable[[Alert], object]] = []


def on_alert(callback: Callable[[Alert], object]) -> Callable[[], None]:
    """Call `callback` with every alert of this process, in the thread of the alert.

    Errors of the callback are logged and not propagated.

    Returns:
        A function that removes the callback.

    Raises:
        InputError: `callback` is not callable.
    """
    if not callable(callback):
        raise InputError(f"callback is {callback!r}, but must be a function that takes an Alert")
    _callbacks.append(callback)

    def remove() -> None:
        with contextlib.suppress(ValueError):  # it was already removed
            _callbacks.remove(callback)

    return remove


def alert(kind: Kind, message: str, error: BaseException | None = None, **facts: Any) -> None:
    """Log an alert, and pass it to every callback."""
    raised = Alert(kind, message, facts)
    logger.warning("torchwise: %s", message, exc_info=error, extra={"torchwise": {"alert": kind, **facts}})
    for callback in list(_callbacks):
        try:
            callback(raised)
        except Exception:  # a callback may raise any error, but the call with the fault must still return an answer
            logger.exception("torchwise: a callback for alerts failed for %s", kind)


@contextlib.contextmanager
def heard() -> Iterator[list[Alert]]:
    """Collect the alerts within the context."""
    alerts: list[Alert] = []
    remove = on_alert(alerts.append)
    try:
        yield alerts
    finally:
        remove()


MAX_MESSAGES = 20
"""Maximum number of messages that one place logs, as their texts may hold names and figures without a bound."""


class OnceLog:
    """The messages that one place has logged."""

    def __init__(self, limit: int = MAX_MESSAGES) -> None:
        self._limit = limit
        self._messages: set[str] = set()

    def admit(self, message: str) -> bool:
        """Note a message that is about to be logged. Return False if it was logged before, or is one too many."""
        if message in self._messages or len(self._messages) >= self._limit:
            return False
        self._messages.add(message)
        return True
