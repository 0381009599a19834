"""One thing that was looked at, what was found, and what to do."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Status(StrEnum):
    """How it stands."""

    OK = "ok"
    WARN = "warn"
    """Works, but slower, noisier or with less to try than it could."""
    BAD = "bad"
    """Compiled plans cannot work, or what is measured means nothing."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at.

    Attributes:
        topic: what was looked at.
        status: how it stands.
        found: what was seen, in words.
        advice: what to do; empty where there is nothing to do.
    """

    topic: str
    status: Status
    found: str
    advice: str = ""


def ok(topic: str, found: str) -> Finding:
    """Make a finding that needs nothing."""
    return Finding(topic, Status.OK, found)


def warn(topic: str, found: str, advice: str) -> Finding:
    """Make a finding that costs speed, precision of timing, or choice."""
    return Finding(topic, Status.WARN, found, advice)


def bad(topic: str, found: str, advice: str) -> Finding:
    """Make a finding that must be mended."""
    return Finding(topic, Status.BAD, found, advice)
