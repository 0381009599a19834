"""Run suggested code against graph breaks on a copy of the model, before it is shown.

The values on the line decide whether a suggestion works: `torch.where(c, a, b)` takes no Python bool and no None. A
number that stays a tensor may be the end of a later loop.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from types import CodeType, FrameType
from typing import Any

import torch

from torchwise.diagnose.break_fixes import BreakSite
from torchwise.diagnose.code_copies import fresh_copy, rewritten
from torchwise.diagnose.fix_trials import answers_alike, read_added_value
from torchwise.diagnose.trace import Trace
from torchwise.records.compile_events import Break, CodeFix
from torchwise.trial.harness import Harness

ROUNDS = 3
"""Calls of each example that are compared with the unchanged model."""


@dataclass(frozen=True, slots=True)
class Checked:
    """Breaks whose fixes contain only code that was run.

    Attributes:
        breaks: in their order.
        rewritten: copies of the model with the line from a break's fix.
        names: the global names at a break's code, for settings that use some of them.
    """

    breaks: tuple[Break, ...]
    rewritten: dict[Break, Callable[..., Any]] = field(default_factory=dict)
    names: dict[str, dict[str, Any]] = field(default_factory=dict)


NOTHING = Checked(())


def check_suggestions(breaks: tuple[Break, ...], harness: Harness) -> Checked:
    """Run the lines that the fixes of these breaks suggest, and leave out the lines that do not work."""
    checkable = [one for one in breaks if one.fix and (one.fix.line or one.fix.condition or _is_call(one.fix))]
    if not checkable:
        return Checked(breaks)
    reached = _trace_lines(checkable, harness)
    found: list[Break] = []
    copies: dict[Break, Callable[..., Any]] = {}
    names: dict[str, dict[str, Any]] = {}
    for one in breaks:
        fix = one.fix
        if one not in checkable or fix is None:
            found.append(one)
            continue
        at = reached.get((one.file, one.line), _Reached())
        if _is_call(fix) and _can_name(fix.setting, at.names):
            names[fix.setting] = at.names
        elif _is_call(fix):
            fix = replace(fix, setting="", consequence="")
        if fix.condition and fix.condition not in at.conditions:
            fix = replace(fix, condition="")
        copied = _try_line(one, harness) if fix.line else None
        kept = replace(one, fix=fix if copied else replace(fix, line=""))
        if copied:
            copies[kept] = copied
        found.append(kept)
    return Checked(tuple(found), copies, names)


def _is_call(fix: CodeFix) -> bool:
    """Return whether the setting adds a value to a set, and so needs a name for that value."""
    return bool(read_added_value(fix.setting))


def _can_name(setting: str, names: dict[str, Any]) -> bool:
    """Return whether the added value has a name at the top of a module, where a program applies the setting."""
    try:
        return callable(eval(read_added_value(setting), dict(names)))
    except Exception:  # the names may be missing there, or be of any kind
        return False


@dataclass(slots=True)
class _Reached:
    """A line when it is first reached: its global names, and the conditions that are tensors with the same value."""

    names: dict[str, Any] = field(default_factory=dict)
    conditions: set[str] = field(default_factory=set)


def _trace_lines(breaks: list[Break], harness: Harness) -> dict[tuple[str, int], _Reached]:
    """Run a copy of the unchanged model, and check the suggestion for each line when it is first reached."""
    reached: dict[tuple[str, int], _Reached] = {}
    break_at = {(one.file, one.line): one for one in breaks}

    def trace_line(frame: FrameType, event: str, _argument: Any) -> Any:
        place = (frame.f_code.co_filename, frame.f_lineno)
        if event == "line" and place in break_at and place not in reached:
            reached[place] = _Reached(frame.f_globals)
            fix = break_at[place].fix
            if fix and fix.condition and _answers(fix.condition, BreakSite(break_at[place]).condition, frame):
                reached[place].conditions.add(fix.condition)
        return trace_line

    files = {one.file for one in breaks}
    copied = fresh_copy(harness.workload.call)
    with (
        _traced(lambda code: code.co_filename in files, trace_line),
        contextlib.suppress(Exception),  # the model may raise, as it does for its user
    ):
        for call in harness.runners(copied):
            call()
    return reached


@contextlib.contextmanager
def _traced(is_traced: Callable[[CodeType], bool], trace: Callable[..., Any]) -> Iterator[None]:
    """Call `trace` for each line of some code, in this thread."""
    before = sys.gettrace()
    sys.settrace(lambda frame, *_: trace if is_traced(frame.f_code) else None)
    try:
        yield
    finally:
        sys.settrace(before)


def _answers(condition: str, original: str, frame: FrameType) -> bool:
    """Return whether a condition is a tensor in a frame, with the same value as the line's own condition."""
    try:
        names = {**frame.f_globals, **frame.f_locals, "torch": torch}
        value = eval(condition, names)
        return isinstance(value, torch.Tensor) and value.numel() == 1 and bool(value) == bool(eval(original, names))
    except Exception:  # the code was never run before
        return False


def _try_line(found: Break, harness: Harness) -> Callable[..., Any] | None:
    """Return a copy of the model with the fixed line, if it answers as before and no longer breaks there."""
    assert found.fix is not None
    try:
        copied, plain = _rewritten(found, harness), fresh_copy(harness.workload.call)
        if copied is None:
            return None
        for number in range(ROUNDS):
            for fixed_call, plain_call in zip(harness.runners(copied), harness.runners(plain), strict=True):
                if not answers_alike(fixed_call, plain_call, number):
                    return None
        with Trace() as trace:
            for call in harness.runners(torch.compile(_rewritten(found, harness), backend="eager")):
                call()
        places = {(one.file, one.line) for one in trace.breaks}
        return None if (found.file, found.line) in places else _rewritten(found, harness)
    except Exception:  # the code was never run before, and the model is the user's
        return None


def _rewritten(found: Break, harness: Harness) -> Any:
    assert found.fix is not None
    return rewritten(harness.workload.call, found.file, found.line, found.fix.line)
