"""Try fixes on a copy of the model before they are shown: the printed code is the code that runs.

Against recompilation that is a mark, a setting, or a buffer in place of a number: the compilations are counted, and the
answers compared. Against a graph break it is a line. The values on the line decide whether it works: `torch.where(c, a,
b)` takes no Python bool and no None. A number that stays a tensor may be the end of a later loop.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from types import CodeType, FrameType
from typing import Any

import torch

from torchwise._torch import dynamo
from torchwise.diagnose.break_fixes import BreakSite
from torchwise.diagnose.code_copies import copy_with_fresh_code, rewritten
from torchwise.diagnose.evidence import Fix
from torchwise.diagnose.kernels import profiler_options
from torchwise.diagnose.trace import Trace
from torchwise.errors import UnsupportedError
from torchwise.records.compile_events import Break, CodeFix, Frame, UncompiledKind
from torchwise.trial.harness import Calls, Harness
from torchwise.verify import Observation, mismatch, observation_of
from torchwise.workload import Example, pytree

ROUNDS = 12
"""Calls of each example at most: some more than PyTorch's limit of compilations for one function."""
QUIET_ROUNDS = 4
"""Calls of each example without a compilation after which the calls end: a call counter has had its effect by then."""
LINE_ROUNDS = 3
"""Calls of each example that are compared with the unchanged model."""
_LOCAL = re.compile(r"\bL\['(\w+)'\]")
_SETTING = re.compile(
    r"(?P<module>torch\.[\w.]*config)\.(?P<name>\w+)(?: = (?P<value>True|False)|\.add\((?P<added>.+)\))$"
)


@dataclass(frozen=True, slots=True)
class Settled:
    """A copy of the model under a fix, after some calls of it.

    Attributes:
        calls: one for each example.
        compilations: compilations of the function that the fix is for.
        is_steady: whether nothing is compiled any more, and the function still runs compiled.
        in_eager: whether PyTorch now runs the function in eager.
        is_alike: whether each call gives the same answer as the original model.
    """

    calls: Calls
    compilations: int
    is_steady: bool
    in_eager: bool
    is_alike: bool

    @property
    def in_words(self) -> str:
        """The result, in words."""
        times = f"compiled {self.compilations} time{'s' * (self.compilations != 1)}"
        if self.in_eager:
            return f"{times}, and then run in eager as well"
        if not self.is_steady:
            return f"{times}, and still recompiled"
        return times if self.is_alike else f"{times}, but the answers depend on the varying value"


def settle(fix: Fix, harness: Harness) -> Settled:
    """Call a copy of the model under a fix, and another copy in eager, until nothing is compiled any more."""
    dynamo.RESET_HISTORY.get("trying a fix")()  # a program with the fix does not run the explained run before
    model, plain = (copy_with_fresh_code(harness.workload.call, with_state=False) for _ in range(2))
    setting = patched(fix.code) if fix.kind == "setting" else contextlib.nullcontext()
    with setting, Trace() as trace:
        calls = harness.runners(_compile_with_fix(fix, model, harness), model)
        eager = harness.runners(plain, plain)
        quiet, alike = 0, True
        for number in range(ROUNDS):
            before = len(trace.compilations)
            for fixed_call, eager_call in zip(calls, eager, strict=True):
                alike = answers_alike(fixed_call, eager_call, number) and alike
            quiet = quiet + 1 if len(trace.compilations) == before else 0
            if quiet == QUIET_ROUNDS:
                break
    events = trace.to_record()
    in_eager = any(one.kind is UncompiledKind.RECOMPILE_LIMIT and _is(fix.of, one) for one in events.fallbacks)
    recompilations = sum(one.count for one in events.recompiles if _is(fix.of, one))
    return Settled(
        calls, recompilations + 1, quiet > 0 and not in_eager, in_eager, alike or fix.kind not in ("hoist", "tensor")
    )


def _is(of: Frame | None, one: Any) -> bool:
    return of is not None and (of.file, of.line, of.function) == (one.file, one.line, one.function)


def answers_alike(fixed_call: Callable[[], Any], plain_call: Callable[[], Any], seed: int) -> bool:
    """Return whether two calls give exactly the same answer under one seed."""

    def answer(call: Callable[[], Any]) -> Observation:
        torch.manual_seed(seed)
        return observation_of(call(), ())

    return mismatch(answer(fixed_call), answer(plain_call), 0.0) is None


def _compile_with_fix(fix: Fix, model: Callable[..., Any], harness: Harness) -> Callable[..., Any]:
    options = profiler_options(harness.device)
    if fix.kind == "hoist":
        options["guard_filter_fn"] = lambda guards: [not _checks_source(guard, fix.sources) for guard in guards]
    if fix.kind == "tensor":
        _make_tensor(fix, model)
    compiled = torch.compile(model, dynamic=True if fix.kind == "dynamic" else None, options=options or None)
    return _wrap_with_marks(compiled, fix.code, model) if fix.kind == "mark" else compiled


def _checks_source(guard: Any, sources: tuple[str, ...]) -> bool:
    """Return whether a guard checks one of these values, or its contents.

    Guards on the metadata of tensors are not counted, and stay.
    """
    name = _LOCAL.sub(r"\1", guard.name)
    within = any(name == source or name.startswith((f"{source}.", f"{source}[")) for source in sources)
    return within and guard.guard_type != "TENSOR_MATCH"


def _make_tensor(fix: Fix, model: Callable[..., Any]) -> None:
    """Replace a number by a tensor, with the printed code, in every submodule that has the function."""
    if fix.number is None:
        raise UnsupportedError("the fix names no number of the model")
    root, path, name = fix.number.root, fix.number.path, fix.number.name
    holders = []
    for part in model.modules() if isinstance(model, torch.nn.Module) else ():
        code = getattr(type(part).forward, "__code__", None)
        if code and fix.of and (code.co_filename, code.co_firstlineno) == (fix.of.file, fix.of.line):
            with contextlib.suppress(AttributeError):  # this module has no submodule of that path
                holders.append((part, part.get_submodule(path)))
    holders = [(part, holder) for part, holder in holders if name in vars(holder)]
    for part, holder in holders:
        number = vars(holder).pop(name)
        exec(fix.code, {root: part, "torch": torch})
        setattr(holder, name, getattr(holder, name).fill_(number).to(next(part.parameters(), torch.empty(0)).device))
    if not holders:
        raise UnsupportedError(f"no module of the model holds {name}")


def _wrap_with_marks(compiled: Callable[..., Any], code: str, model: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a call so that the printed code marks its inputs before it, each only once."""
    mark = compile(code, "<the marks>", "exec")
    marked: list[Any] = []

    def call(*args: Any, **kwargs: Any) -> Any:
        if not any(args is one for one in marked):
            marked.append(args)
            exec(mark, {"torch": torch, **name_inputs(model, args, kwargs)})
        return compiled(*args, **kwargs)

    return call


def name_inputs(model: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return inputs by their parameter names in the model's code, or an empty dict if they cannot be bound."""
    try:
        return dict(inspect.signature(getattr(model, "forward", model)).bind(*args, **kwargs).arguments)
    except (TypeError, ValueError):
        return {}


def find_varying_sizes(model: Callable[..., Any], examples: tuple[Example, ...]) -> tuple[tuple[str, int], ...]:
    """Return the sizes in which examples differ, each as a tensor and a dimension, as the model's code names them."""
    shapes: dict[str, set[tuple[int, ...]]] = {}
    for example in examples:
        for name, value in name_inputs(model, example.args, dict(example.kwargs)).items():
            for path, leaf in pytree.list_named_leaves(value, name):
                if isinstance(leaf, torch.Tensor):
                    shapes.setdefault(path, set()).add(tuple(leaf.shape))
    alike = {path: list(zip(*found, strict=True)) for path, found in shapes.items() if len({*map(len, found)}) == 1}
    return tuple((path, dim) for path, dims in alike.items() for dim, sizes in enumerate(dims) if len({*sizes}) > 1)


def read_added_value(setting: str) -> str:
    """Return the value that a setting such as Dynamo's "config.x.add(print)" adds to a set, or "" for a flag."""
    hit = _SETTING.match(setting)
    return (hit["added"] or "") if hit else ""


@contextlib.contextmanager
def patched(setting: str, names: dict[str, Any] | None = None) -> Iterator[None]:
    """Apply a setting of PyTorch as it is printed, such as Dynamo's "config.x = True" or "config.x.add(print)"."""
    hit = _SETTING.match(setting)
    if hit is None:
        raise ValueError(f"setting is {setting!r}, but must be such as {dynamo.CONFIG}.name = True")
    config = importlib.import_module(hit["module"])
    value = hit["value"] == "True"
    if hit["added"]:
        value = {*getattr(config, hit["name"]), eval(hit["added"], dict(names or {}))}
    with config.patch({hit["name"]: value}):
        yield


@dataclass(frozen=True, slots=True)
class Checked:
    """Breaks whose fixes contain only code that was run, rewritten models, and the names that settings may use."""

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
    with contextlib.suppress(Exception):  # the model may raise, as it does for its user, or have no copy
        copied = copy_with_fresh_code(harness.workload.call, with_state=False)
        with _traced(lambda code: code.co_filename in files, trace_line):
            for call in harness.runners(copied, copied):
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
        copied, plain = _rewritten(found, harness), copy_with_fresh_code(harness.workload.call, with_state=False)
        if copied is None:
            return None
        for number in range(LINE_ROUNDS):
            pairs = zip(harness.runners(copied, copied), harness.runners(plain, plain), strict=True)
            for fixed_call, plain_call in pairs:
                if not answers_alike(fixed_call, plain_call, number):
                    return None
        with Trace() as trace:
            again = _rewritten(found, harness)
            for call in harness.runners(torch.compile(again, backend="eager"), again):
                call()
        places = {(one.file, one.line) for one in trace.breaks}
        return None if (found.file, found.line) in places else _rewritten(found, harness)
    except Exception:  # the code was never run before, and the model is the user's
        return None


def _rewritten(found: Break, harness: Harness) -> Any:
    assert found.fix is not None
    return rewritten(harness.workload.call, found.file, found.line, found.fix.line)
