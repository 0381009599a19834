"""A finding of the doctor: its topic, the observation, and advice."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Status(StrEnum):
    """The severity of a finding."""

    OK = "ok"
    WARN = "warn"
    """Plans work, but slower or noisier than possible, or with fewer options."""
    BAD = "bad"
    """Compiled plans cannot work, or measurements mean nothing."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding.

    Attributes:
        topic: the thing that was checked.
        status: the severity.
        found: the observation, in words.
        advice: the user's way out, or empty if nothing needs to be done.
    """

    topic: str
    status: Status
    found: str
    advice: str = ""


def ok(topic: str, found: str) -> Finding:
    """Make a finding that needs no action."""
    return Finding(topic, Status.OK, found)


def warn(topic: str, found: str, advice: str) -> Finding:
    """Make a finding that costs speed, precision of timing, or choice."""
    return Finding(topic, Status.WARN, found, advice)


def bad(topic: str, found: str, advice: str) -> Finding:
    """Make a finding that needs a fix."""
    return Finding(topic, Status.BAD, found, advice)
