"""Fixes against recompilation, each tried on a copy of the model: its compilations, and its answers.

The printed code is the code that runs: a mark, a setting, or a buffer in the place of a number are executed as written.
"""

from __future__ import annotations

import contextlib
import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from torchwise.diagnose import private
from torchwise.diagnose.findings.evidence import Fix
from torchwise.diagnose.fresh_code_copy import fresh_copy
from torchwise.diagnose.kernels import PROFILED
from torchwise.diagnose.settings import patched
from torchwise.diagnose.trace import Trace
from torchwise.errors import UnsupportedError
from torchwise.records.compile_events import FallbackKind, Frame
from torchwise.trial.harness import Calls, Harness
from torchwise.verify import Observation, mismatch, observation_of
from torchwise.workload import Example, pytree

ROUNDS = 12
"""Calls of each example at most: some more than PyTorch's limit of compilations for one function."""
QUIET_ROUNDS = 4
"""Calls of each example without a compilation after which calling ends: a call counter has had its effect by then."""
_LOCAL = re.compile(r"\bL\['(\w+)'\]")


@dataclass(frozen=True, slots=True)
class Settled:
    """A copy of the model under a fix, after some calls of it.

    Attributes:
        calls: one for each example.
        compilations: of the function that the fix is for.
        is_steady: whether nothing is compiled any more, and the function was not given up.
        given_up: whether PyTorch gave it up.
        is_alike: whether it answers as the model by itself does, call by call.
    """

    calls: Calls
    compilations: int
    is_steady: bool
    given_up: bool
    is_alike: bool

    @property
    def in_words(self) -> str:
        """The observations, in words."""
        times = f"compiled {self.compilations} time{'s' * (self.compilations != 1)}"
        if self.given_up:
            return f"{times}, and then given up as well"
        if not self.is_steady:
            return f"{times}, and still not done"
        return times if self.is_alike else f"{times}, but the answers depend on it"


def settle(fix: Fix, arena: Harness) -> Settled:
    """Call a copy of the model under a fix, beside another that runs as written, until nothing is compiled any more.

    Raises:
        Exception: any error of the model under the fix.
    """
    private.forget_what_varied()  # in the explained run: a program that has the fix does not have that run
    model, plain = fresh_copy(arena.workload.call), fresh_copy(arena.workload.call)
    setting = patched(fix.code) if fix.kind == "setting" else contextlib.nullcontext()
    with setting, Trace() as trace:
        calls, eager = arena.runners(_compile_with_fix(fix, model, arena)), arena.runners(plain)
        quiet, alike = 0, True
        for number in range(ROUNDS):
            before = len(trace.compilations)
            for mine, theirs in zip(calls, eager, strict=True):
                alike = _answers_alike(mine, theirs, number) and alike
            quiet = quiet + 1 if len(trace.compilations) == before else 0
            if quiet == QUIET_ROUNDS:
                break
    seen = trace.to_record()
    given_up = any(one.kind is FallbackKind.RECOMPILE_LIMIT and _is(fix.of, one) for one in seen.fallbacks)
    again = sum(one.count for one in seen.recompiles if _is(fix.of, one))
    return Settled(calls, again + 1, quiet > 0 and not given_up, given_up, alike or fix.kind not in ("held", "tensor"))


def _is(of: Frame | None, one: Any) -> bool:
    return of is not None and (of.file, of.line, of.function) == (one.file, one.line, one.function)


def _answers_alike(mine: Callable[[], Any], theirs: Callable[[], Any], seed: int) -> bool:
    def answer(call: Callable[[], Any]) -> Observation:
        torch.manual_seed(seed)
        return observation_of(call(), ())

    return mismatch(answer(mine), answer(theirs), 0.0) is None


def _compile_with_fix(fix: Fix, model: Callable[..., Any], arena: Harness) -> Callable[..., Any]:
    options: dict[str, Any] = {PROFILED: True} if arena.device == "cpu" else {}
    if fix.kind == "held":
        options["guard_filter_fn"] = lambda guards: [not _asks_for(guard, fix.sources) for guard in guards]
    if fix.kind == "tensor":
        _make_tensor(fix, model)
    compiled = torch.compile(model, dynamic=True if fix.kind == "dynamic" else None, options=options or None)
    return _wrap_with_marks(compiled, fix.code, model) if fix.kind == "mark" else compiled


def _asks_for(guard: Any, sources: tuple[str, ...]) -> bool:
    """Return whether a guard checks one of these, or its contents.

    The form of tensors is checked in any case.
    """
    name = _LOCAL.sub(r"\1", guard.name)
    within = any(name == source or name.startswith((f"{source}.", f"{source}[")) for source in sources)
    return within and guard.guard_type != "TENSOR_MATCH"


def _make_tensor(fix: Fix, model: Callable[..., Any]) -> None:
    """Put a tensor in the place of a number, by the printed code, in every part that has the function.

    Raises:
        UnsupportedError: no part of the model holds the number.
    """
    root, _, path = fix.code.partition(".register_buffer(")[0].partition(".")
    name = fix.code.partition("(")[2].partition(",")[0].strip("'\"")
    holders = []
    for part in model.modules() if isinstance(model, torch.nn.Module) else ():
        code = getattr(type(part).forward, "__code__", None)
        if code and fix.of and (code.co_filename, code.co_firstlineno) == (fix.of.file, fix.of.line):
            with contextlib.suppress(AttributeError):  # a submodule that this part does not have
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
    """Return inputs by the names that the model's code has for them, or none if it names none."""
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
