"""A finding of the doctor: its topic, the observation, and advice."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Status(StrEnum):
    """The severity of a finding."""

    OK = "ok"
    WARN = "warn"
    """Plans work, but are slower or noisier than possible, or have fewer options."""
    BAD = "bad"
    """Compiled plans cannot work, or measurements are useless."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding.

    Attributes:
        topic: the subject of the check.
        status: the severity.
        found: the observation, as text.
        advice: advice for the user, or empty if none is needed.
    """

    topic: str
    status: Status
    found: str
    advice: str = ""


def ok(topic: str, found: str) -> Finding:
    """Make a finding that needs no action."""
    return Finding(topic, Status.OK, found)


def warn(topic: str, found: str, advice: str) -> Finding:
    """Make a finding that reduces speed, precision of timings, or the choice of plans."""
    return Finding(topic, Status.WARN, found, advice)


def bad(topic: str, found: str, advice: str) -> Finding:
    """Make a finding that needs a fix."""
    return Finding(topic, Status.BAD, found, advice)
