"""Alerts: faults that people should know of at once, logged and passed to callbacks."""

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
]


@dataclass(frozen=True, slots=True)
class Alert:
    """A fault while a plan was served. Every call was still answered.

    Attributes:
        kind: the kind of fault. "canary_mismatch": the plan answered otherwise than the original. "plan_failed": it
            failed often enough to be left alone for a time. "out_of_memory": the plan's memory was freed.
            "recompile_limit": the plan was compiled anew as often as it may be, because something varies from call to
            call. "fallback_rate": the original answers too many calls. "slow_down": the plan takes longer than at the
            time of the decision. "background_failed": no better plan comes from the search in the background.
        message: the fault and the response to it, for people.
        facts: the same as plain data, with the plan.
    """

    kind: Kind
    message: str
    facts: dict[str, Any] = field(default_factory=dict)


_callbacks: list[Callable[[Alert], object]] = []


def on_alert(callback: Callable[[Alert], object]) -> Callable[[], None]:
    """Have `callback` called with every alert of this process, in the thread that raises it.

    An error that it raises is logged and goes no further.

    Returns:
        A function that removes the callback.

    Raises:
        InputError: it cannot be called.
    """
    if not callable(callback):
        raise InputError(f"callback is {callback!r}, but must be a function of an Alert")
    _callbacks.append(callback)

    def remove() -> None:
        with contextlib.suppress(ValueError):  # it was removed before
            _callbacks.remove(callback)

    return remove


def alert(kind: Kind, message: str, error: BaseException | None = None, **facts: Any) -> None:
    """Log an alert, and hand it to every callback."""
    raised = Alert(kind, message, facts)
    logger.warning("torchwise: %s", message, exc_info=error, extra={"torchwise": {"alert": kind, **facts}})
    for callback in list(_callbacks):
        try:
            callback(raised)
        except Exception:  # a callback may raise anything, and the call that met the fault must still be answered
            logger.exception("torchwise: a callback for alerts failed on %s", kind)


@contextlib.contextmanager
def heard() -> Iterator[list[Alert]]:
    """Collect the alerts that are raised meanwhile."""
    alerts: list[Alert] = []
    remove = on_alert(alerts.append)
    try:
        yield alerts
    finally:
        remove()
