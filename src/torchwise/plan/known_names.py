"""Check the names in a plan when it is read, without torch: a misspelt one must not wait for a worker to be refused."""

from __future__ import annotations

import ast
import functools
import importlib.util
from collections.abc import Iterable, Iterator
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchwise.errors import PlanError, did_you_mean
from torchwise.plan.choice import find_choice, list_values
from torchwise.plan.plug_ins import WAY_OUT
from torchwise.plan.rules import find_choices

if TYPE_CHECKING:
    from torchwise.plan.plan import Plan

MAX_COUNT = 2**16
"""Threads, or microbatches: no machine has as many cores, and no batch is cut so small."""


def check_known(plan: Plan) -> None:
    """Refuse a plan that names an unknown backend, transform or option of Inductor, or a number beyond any machine."""
    for problem in _problems(plan):
        raise PlanError(problem)


def find_unknown_rewrite(plan: Plan) -> str | None:
    """Return, in words, which rewrite of a stored plan is unknown here, or None.

    No plug-in registers it, or it is a kernel of the user's whose code has changed since.
    """
    for name in plan.transforms:
        known = list_values("transforms")
        if find_choice("transforms", name) is None:
            return _unknown("transforms", name, known)
    return None


def find_unusable_part(plan: Plan) -> str | None:
    """Return, in words, which part of a stored plan cannot run here, or None: a package of it may be missing, too."""
    for choice in find_choices(plan):
        if lacking := choice.tell_missing_package():
            verb = "has" if choice.field in ("transforms", "options") else "is"
            return f"{choice.field} {verb} {choice.value!r}, but {lacking}"
    return find_unknown_rewrite(plan)


def _problems(plan: Plan) -> Iterator[str]:
    backends = ("eager", *list_values("backend"))
    if plan.backend not in backends:
        yield _unknown("backend", plan.backend, backends)
    if unknown := find_unknown_rewrite(plan):
        yield unknown
    if twice := next((name for name in plan.transforms if plan.transforms.count(name) > 1), None):
        yield f"transforms has {twice!r} twice, but a rewrite is made once"
    for name, number in (("threads", plan.threads), ("microbatches", plan.microbatches)):
        if (number or 1) > MAX_COUNT:
            yield f"{name} is {number}, but must be a whole number from 1 to {MAX_COUNT}"
    for name, value in plan.options:
        if isinstance(value, int) and abs(value) >= 2**63:
            yield f"option {name} is {value}, but must be a whole number of 64 bits"
    if plan.backend == "inductor":
        yield from _option_problems(dict(plan.options))


def _option_problems(options: dict[str, Any]) -> Iterator[str]:
    kinds = {name: type(value) for name, value in list_values("options")}
    for name, value in options.items():
        if name not in kinds and not is_option(name):
            near = did_you_mean(name, [*kinds, *list_declared_options()])
            yield f"options has {name!r}, but Inductor has no such option{near or f': leave it out, {WAY_OUT}'}"
        if name in kinds and type(value) is not kinds[name]:
            kind = {bool: "true or false", int: "a whole number"}.get(kinds[name], "text")
            yield f"option {name} is {value!r}, but must be {kind}"


def _unknown(field: str, name: str, known: Iterable[str]) -> str:
    near = did_you_mean(name, known) or f", {WAY_OUT}"
    return f"{field} has {name!r}, but there are {', '.join(known)}{near}"


def is_option(name: str) -> bool:
    """Whether Inductor has such an option, in a version that is supported or in the one that is installed."""
    return name in list_declared_options() or name in _read_options()


@functools.cache
def list_declared_options() -> frozenset[str]:
    """Return the options of Inductor in torch 2.11 to 2.14: a plan may be read on another machine than its maker's."""
    return frozenset(files("torchwise.plan").joinpath("inductor_options.txt").read_text(encoding="utf-8").split())


@functools.cache
def _read_options() -> frozenset[str]:
    """Return the options of the installed torch, which may be newer, from its source, or none without torch."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return frozenset()
    try:
        source = (Path(spec.origin).parent / "_inductor" / "config.py").read_text(encoding="utf-8")
    except OSError:
        return frozenset()
    return frozenset(_find_assigned_names(ast.parse(source).body))


def _find_assigned_names(body: list[ast.stmt]) -> Iterator[str]:
    """Yield the names that are assigned to, those in a class such as `triton.cudagraphs`."""
    for node in body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        yield from (target.id for target in targets if isinstance(target, ast.Name))
        if isinstance(node, ast.ClassDef):
            yield from (f"{node.name}.{name}" for name in _find_assigned_names(node.body))
