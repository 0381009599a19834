"""Every error that Torchwise raises on purpose.

::

    TorchwiseError
    ├── InputError            the user's input cannot be used            (exit code 2)
    │   ├── TargetError       the target names nothing that can be run
    │   ├── WorkloadError     the factory or the inputs are malformed
    │   ├── PlanError         an illegal or meaningless combination
    │   └── StorageError      the store cannot be opened, read or written
    ├── BaselineError         the model itself fails on its own inputs   (exit code 3)
    ├── InternalError         Torchwise fails where the model does not
    ├── UnsupportedError      this torch or machine lacks what a plan needs
    │   └── NoEffectError     a part of a plan changes nothing in this model
    ├── StalePlanError        a plan no longer fits the live model
    └── RefusedPlanError      approvals permit no verified plan

A message gives the value and the rule, and the way out if there is one:
"calls is 0, but must be at least 1".
"""

from __future__ import annotations

import difflib
import re
import traceback
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


class TorchwiseError(Exception):
    """Base of every error raised on purpose. The command line returns `exit_code`."""

    exit_code = 1


class InputError(TorchwiseError, ValueError):
    """The user's input cannot be used. As it is a ValueError, msgspec adds its place when it makes a record."""

    exit_code = 2


class TargetError(InputError):
    """The target names nothing that can be run."""


class WorkloadError(InputError):
    """A factory, its result, or its inputs are malformed."""


class PlanError(InputError):
    """A plan combines choices that are illegal or mean nothing together."""


class StorageError(InputError):
    """The store cannot be opened, read or written."""


class BaselineError(TorchwiseError):
    """The model, run plainly, fails on its own example inputs: there is nothing to compare with."""

    exit_code = 3


class InternalError(TorchwiseError):
    """Torchwise itself fails on a model that runs by itself: that is a fault of Torchwise, and not the model's."""


class UnsupportedError(TorchwiseError):
    """This version of torch, or this machine, lacks a feature that a plan needs."""


class NoEffectError(UnsupportedError):
    """A part of a plan changes nothing in this model, so that the plan would be timed under a wrong name.

    Args:
        message: the part, and why.
        part: the plan's field, and the value in it that changes nothing.
    """

    def __init__(self, message: str, part: tuple[str, str]) -> None:
        super().__init__(message)
        self.part = part


class StalePlanError(TorchwiseError):
    """A plan was made for a model that has since changed (its weights, its structure, its mode)."""


class RefusedPlanError(TorchwiseError):
    """Approvals of plans (pinned, approved, rejected) permit none that is verified for this model."""


def format_error(error: BaseException) -> str:
    """Return an exception as Python prints it. If it has no message, add where it was raised."""
    name = type(error).__name__
    if str(error).strip():
        return f"{name}: {error}"
    frames = traceback.extract_tb(error.__traceback__)
    return f"{name} without a message" + (f", at {_place(frames[-1])}" if frames else "")


def first_line(text: str) -> str:
    """Return the first line of an error's text that says something.

    A compiler may wrap an error without a message, and add the user's line below: "NotImplementedError: ", then "from
    user code: …". That line is then the only information.
    """
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not lines or not _NAME_ALONE.search(lines[0]):
        return next(iter(lines), "")
    places = [f"{hit['file']}:{hit['line']}, in {hit['function']}" for hit in _FRAME.finditer(text)]
    return f"{lines[0].rstrip(': ')} without a message" + (f", at {places[-1]}" if places else "")


def _place(frame: traceback.FrameSummary) -> str:
    return f"{frame.filename}:{frame.lineno}, in {frame.name}"


_NAME_ALONE = re.compile(r"(?:^|\s)[\w.]*[A-Z]\w*(?:Error|Exception|Failed):$")
_FRAME = re.compile(r'File "(?P<file>[^"\n]+)", line (?P<line>\d+), in (?P<function>\S+)')


def is_positive(value: object) -> bool:
    """Whether it is a number above 0: text, which Python cannot compare with one, is none."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0


def is_count(value: object) -> bool:
    """Whether it is a whole number of at least 1. True and False are none."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def did_you_mean(word: str, known: Iterable[str], meaning: Callable[[str], str] = str) -> str:
    """Return the end of a message about an unknown word that asks for its near misses, or "" if there are none.

    Args:
        word: the unknown word.
        known: the known words.
        meaning: maps a known word to the name to show for it.
    """
    close = dict.fromkeys(map(meaning, difflib.get_close_matches(word, list(known), n=3)))
    return f"; did you mean {' or '.join(close)}?" if close else ""
