"""Suggested code against graph breaks, run on a copy of the model before it is shown.

The values on the line decide whether a suggestion fits: `torch.where(c, a, b)` takes no Python bool and no None. A
number that is kept a tensor may be the end of a loop further down.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from types import CodeType, FrameType
from typing import Any

import torch

from torchwise.diagnose.fixes.break_site import BreakSite
from torchwise.diagnose.fresh_code_copy import fresh_copy
from torchwise.diagnose.rewriting import rewritten
from torchwise.diagnose.settings import argument
from torchwise.diagnose.trace import Trace
from torchwise.records.compile_events import Break, CodeFix
from torchwise.trial.harness import Harness
from torchwise.verify import mismatch, observation_of

ROUNDS = 3
"""Calls of each example beside the unchanged model."""


@dataclass(frozen=True, slots=True)
class Checked:
    """Breaks whose fixes contain only code that was run.

    Attributes:
        breaks: in their order.
        rewritten: copies of the model with the line that a break's fix gives.
        names: the names within reach of a break's code, for settings that use some of them.
    """

    breaks: tuple[Break, ...]
    rewritten: dict[Break, Callable[..., Any]] = field(default_factory=dict)
    names: dict[str, dict[str, Any]] = field(default_factory=dict)


NOTHING = Checked(())


def check_suggestions(breaks: tuple[Break, ...], arena: Harness) -> Checked:
    """Run the lines that the fixes of these breaks suggest, and leave out those that do not work."""
    derived = [one for one in breaks if one.fix and (one.fix.line or one.fix.condition or _is_call(one.fix))]
    if not derived:
        return Checked(breaks)
    seen = _trace_lines(derived, arena)
    found: list[Break] = []
    copies: dict[Break, Callable[..., Any]] = {}
    names: dict[str, dict[str, Any]] = {}
    for one in breaks:
        mend = one.fix
        if one not in derived or mend is None:
            found.append(one)
            continue
        at = seen.get((one.file, one.line), _Seen())
        if _is_call(mend) and _can_name(mend.setting, at.names):
            names[mend.setting] = at.names
        elif _is_call(mend):
            mend = replace(mend, setting="", consequence="")
        if mend.condition and mend.condition not in at.conditions:
            mend = replace(mend, condition="")
        copied = _try_line(one, arena) if mend.line else None
        kept = replace(one, fix=mend if copied else replace(mend, line=""))
        if copied:
            copies[kept] = copied
        found.append(kept)
    return Checked(tuple(found), copies, names)


def _is_call(mend: CodeFix) -> bool:
    """Return whether the setting adds a value to a set.

    It needs a name for that value.
    """
    return bool(argument(mend.setting))


def _can_name(setting: str, names: dict[str, Any]) -> bool:
    """Return whether the added value can be named at the top of a module, where a program makes the setting."""
    try:
        return callable(eval(argument(setting), dict(names)))
    except Exception:  # somebody's names may be missing there, or be of any kind
        return False


@dataclass(slots=True)
class _Seen:
    """The values within reach of a line: global names, and which conditions were tensors with the line's own answer."""

    names: dict[str, Any] = field(default_factory=dict)
    conditions: set[str] = field(default_factory=set)


def _trace_lines(breaks: list[Break], arena: Harness) -> dict[tuple[str, int], _Seen]:
    """Run a copy of the unchanged model, and check the suggestion for each line when it is first reached."""
    found: dict[tuple[str, int], _Seen] = {}
    asked = {(one.file, one.line): one for one in breaks}

    def trace_line(frame: FrameType, event: str, _argument: Any) -> Any:
        place = (frame.f_code.co_filename, frame.f_lineno)
        if event == "line" and place in asked and place not in found:
            found[place] = _Seen(frame.f_globals)
            mend = asked[place].fix
            if mend and mend.condition and _answers(mend.condition, BreakSite(asked[place]).condition, frame):
                found[place].conditions.add(mend.condition)
        return trace_line

    files = {one.file for one in breaks}
    copied = fresh_copy(arena.workload.call)
    with (
        _traced(lambda code: code.co_filename in files, trace_line),
        contextlib.suppress(Exception),
    ):  # as it does for its user
        for call in arena.runners(copied):
            call()
    return found


@contextlib.contextmanager
def _traced(wanted: Callable[[CodeType], bool], trace: Callable[..., Any]) -> Iterator[None]:
    """Have `trace` see each line of some code, in this thread."""
    before = sys.gettrace()
    sys.settrace(lambda frame, *_: trace if wanted(frame.f_code) else None)
    try:
        yield
    finally:
        sys.settrace(before)


def _answers(condition: str, asked: str, frame: FrameType) -> bool:
    """Return whether a condition is a tensor in a frame, with the same answer as the line's own."""
    try:
        names = {**frame.f_globals, **frame.f_locals, "torch": torch}
        value = eval(condition, names)
        return isinstance(value, torch.Tensor) and value.numel() == 1 and bool(value) == bool(eval(asked, names))
    except Exception:  # it is code that nobody has run before
        return False


def _try_line(found: Break, arena: Harness) -> Callable[..., Any] | None:
    """Return a copy of the model with the fixed line, if it answers as before and no longer breaks there."""
    assert found.fix is not None
    try:
        copied, plain = _rewritten(found, arena), fresh_copy(arena.workload.call)
        if copied is None:
            return None
        for number in range(ROUNDS):
            for mine, theirs in zip(arena.runners(copied), arena.runners(plain), strict=True):
                if not _is_alike(mine, theirs, number):
                    return None
        with Trace() as trace:
            for call in arena.runners(torch.compile(_rewritten(found, arena), backend="eager")):
                call()
        places = {(one.file, one.line) for one in trace.breaks}
        return None if (found.file, found.line) in places else _rewritten(found, arena)
    except Exception:  # it is code that nobody has run before, in somebody's model
        return None


def _rewritten(found: Break, arena: Harness) -> Any:
    assert found.fix is not None
    return rewritten(arena.workload.call, found.file, found.line, found.fix.line)


def _is_alike(mine: Callable[[], Any], theirs: Callable[[], Any], seed: int) -> bool:
    answers = []
    for call in (mine, theirs):
        torch.manual_seed(seed)
        answers.append(observation_of(call(), ()))
    return mismatch(answers[0], answers[1], 0.0) is None
