"""Every error that Torchwise raises on purpose.

::

    TorchwiseError
    ├── InputError            the user's input is invalid                (exit code 2)
    │   ├── TargetError       the target cannot be found or run
    │   ├── WorkloadError     the factory or the inputs are malformed
    │   ├── PlanError         a plan combines incompatible choices
    │   └── StorageError      the store cannot be opened, read or written
    ├── BaselineError         the model itself fails on its own inputs   (exit code 3)
    ├── BudgetError           the budget ends before there is a result   (exit code 4)
    ├── GraphBreakError       the model is no single graph, which was asked for
    ├── InternalError         Torchwise fails, but the model does not
    ├── UnsupportedError      this torch or machine lacks a feature
    │   └── NoEffectError     a part of a plan changes nothing in this model
    ├── QueueFullError        too many requests wait for a batch
    ├── StalePlanError        the model changed since the decision
    └── RefusedPlanError      approvals permit no verified plan

A message has the value, the rule and, if possible, a solution: "calls is 0, but must be at least 1".
"""

from __future__ import annotations

import difflib
import re
import traceback
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any


ERROR_FILE = "TORCHWISE_ERROR_FILE"
"""Environment variable that names a file for the message of the error that ends a command."""


class TorchwiseError(Exception):
    """Base of every error raised on purpose. The command line returns `exit_code`."""

    exit_code = 1


class InputError(TorchwiseError, ValueError):
    """The user's input is invalid. As it is a ValueError, msgspec adds the location in a record."""

    exit_code = 2


class TargetError(InputError):
    """The target cannot be found or run."""


class WorkloadError(InputError):
    """A factory, its result, or its inputs are malformed."""


class PlanError(InputError):
    """A plan combines choices that are invalid or useless together."""


class StorageError(InputError):
    """The store cannot be opened, read or written."""


class BaselineError(TorchwiseError):
    """The original model fails on its own example inputs, so there is no baseline."""

    exit_code = 3


class BudgetError(TorchwiseError):
    """The budget of a command is spent before there is any result. So nothing is known, as in an inconclusive one."""

    exit_code = 4


class GraphBreakError(TorchwiseError):
    """PyTorch cannot capture the model as one graph, which the user asked for with `fullgraph`."""


class InternalError(TorchwiseError):
    """Torchwise fails on a model that runs without it. This is a bug in Torchwise."""


class UnsupportedError(TorchwiseError):
    """This version of torch, this machine, or this model lacks a feature that a plan needs.

    Args:
        message: the feature, and the reason.
        about: the parts of the plan that are the reason, whatever else the plan has: fields, which stand for their
            values in it, or pairs of a field and a value. A search tries no other plan that has all of them. Empty says
            that the whole plan may be the reason.
    """

    def __init__(self, message: str = "", about: tuple[str | tuple[str, Any], ...] = ()) -> None:
        super().__init__(message)
        self.about = about


class NoEffectError(UnsupportedError):
    """A part of a plan changes nothing in this model, so the plan equals a simpler one.

    Args:
        message: the part, and the reason.
        part: the field of the plan, and its value that changes nothing.
    """

    def __init__(self, message: str, part: tuple[str, str]) -> None:
        super().__init__(message, (part,))
        self.part = part


class QueueFullError(TorchwiseError):
    """Too many requests wait for a batch, so a further one is refused. A service answers it with status 503."""


class StalePlanError(TorchwiseError):
    """The model changed since the decision: its weights, its structure or its mode."""


class RefusedPlanError(TorchwiseError):
    """Approvals of plans (pinned, approved, rejected) permit none that is verified for this model."""


def format_error(error: BaseException) -> str:
    """Return an exception as Python prints it. If it has no message, add the line that raised it."""
    name = type(error).__name__
    if str(error).strip():
        return f"{name}: {error}"
    frames = traceback.extract_tb(error.__traceback__)
    return f"{name} without a message" + (f", at {_place(frames[-1])}" if frames else "")


def first_line(text: str) -> str:
    """Return the first informative line of an error's text.

    A compiler may wrap an error without a message, and add the user's line below: "NotImplementedError: ", then "from
    user code: …". Then that line is the only information.
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
    """Whether the value is a number above 0. True and text are not."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0


def is_count(value: object) -> bool:
    """Whether the value is an integer of at least 1. True and False are not."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def to_count(value: object) -> object:
    """Return a whole number for text or a float that is one, such as "1e6" or 1e6. Return other values as they are."""
    if isinstance(value, str):
        try:
            return int(value)
        except ValueError:
            try:
                number = float(value)
            except ValueError:
                return value
            return int(number) if number.is_integer() else value
    return int(value) if isinstance(value, float) and value.is_integer() else value


def did_you_mean(word: str, known: Iterable[str], meaning: Callable[[str], str] = str) -> str:
    """Return the end of a message about an unknown word, with similar known words, or "" if there are none.

    Each known word is shown by its meaning.
    """
    close = dict.fromkeys(map(meaning, difflib.get_close_matches(word, list(known), n=3)))
    return f"; did you mean {' or '.join(close)}?" if close else ""


def pop_traceback(error: BaseException) -> str:
    """Take the frames from an error and from its causes. Return their traceback as text, for a log.

    Frames hold tensors, and the code that was run, with weights that may be frozen into it.
    """
    text = "\n" + "".join(traceback.format_exception(error))
    current: BaseException | None = error
    while current is not None:
        next_error = current.__cause__ or current.__context__
        current.__traceback__ = current.__cause__ = current.__context__ = None  # so that a circle ends, too
        current = next_error
    return text
