"""Run a program by the decisions of the store, without a change to it: each is found by its module's structure."""

from __future__ import annotations

import functools
import logging
import weakref
from collections.abc import Callable
from typing import Any, Self

import torch

from torchwise._torch.modules import CallHook, call_with_parts_apart, set_call_hook
from torchwise.plan.workload_spec import LIVE
from torchwise.records import Decision
from torchwise.runtime.components.component import Component
from torchwise.runtime.program.decisions import explain_eager, read_decisions
from torchwise.runtime.program.placement import config_of, place_decision, workload_of
from torchwise.runtime.program.recorder import autocast_dtype, original_of, watched_compile
from torchwise.runtime.staleness import stale_because

logger = logging.getLogger("torchwise")


OTHER_SIZES = "/other-sizes"
"""Ends the name in the store of the decision for the sizes that a module's plan does not answer."""


def name_of(thing: Any) -> str:
    """Return the name of a module's class, or of a function."""
    original = original_of(thing)
    return getattr(original, "__qualname__", None) or type(original).__qualname__


def target_of(program: str, thing: Any) -> str:
    """Return the name in the store of a module or function of a program."""
    return f"{LIVE}{program}/{name_of(thing)}"


class StoredPlans:
    """Places a stored plan in front of each module of a program that was tuned, at its first call.

    Attributes:
        placed: the name of each module that was called first in its place, with its component.
        notes: why a tuned module runs as written.
    """

    def __init__(self, program: str, store: str | None = None) -> None:
        """Read the decisions of a program.

        Raises:
            StorageError: the store does not exist, or cannot be read.
        """
        self.placed: list[tuple[str, Component]] = []
        self.notes: dict[str, None] = {}
        self._store = store
        self._seen: dict[int, weakref.ref[Any]] = {}
        self._decisions = read_decisions(program, store)
        self._former: CallHook | None = None
        self._compile: Any = None

    def __enter__(self) -> Self:
        self._former = set_call_hook(self._answer)
        self._compile, torch.compile = torch.compile, watched_compile(torch.compile)
        return self

    def __exit__(self, *_error: object) -> None:
        torch.compile = self._compile
        set_call_hook(self._former)

    def _answer(self, thing: Any, run: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        known = self._seen.get(id(thing))
        if known is None or known() is not thing:
            self._seen[id(thing)] = weakref.ref(thing, functools.partial(self._forget, id(thing)))
            name = name_of(thing)
            if (decisions := self._decisions.get(name)) is not None:
                component = self._place(thing, name, decisions)
                if component is not None:
                    return component.answer(run, args, kwargs)
            else:  # its parts may have been tuned in its place
                return call_with_parts_apart(run, args, kwargs)
        return run(*args, **kwargs)

    def _forget(self, key: int, _reference: object) -> None:
        self._seen.pop(key, None)

    def _find_others(self, name: str, decision: Decision) -> Decision | None:
        """Return the decision for other sizes that was made with a decision, if there is one."""
        others = self._decisions.get(name + OTHER_SIZES, ())
        return next((one for one in others if one.structure == decision.structure), None)

    def _place(self, thing: Any, name: str, decisions: list[Decision]) -> Component | None:
        try:
            config = config_of(thing, autocast_dtype(thing), self._store)
            workload = workload_of(thing, config)
            reasons = []
            for decision in decisions:
                if (stale := stale_because(workload, decision)) is None:
                    others = self._find_others(name, decision)
                    component = place_decision(thing, name, decision, config, others=others)
                    if component is None:
                        self.notes[explain_eager(name, decision)] = None
                    else:
                        self.placed.append((name, component))
                    return component
                reasons.append(stale)
            self.notes[f"{name} runs as written, as it was tuned in another form: {reasons[0]}"] = None
        except Exception as error:  # the program must go on as written, whatever is wrong with a plan
            self.notes[f"{name} runs as written: {type(error).__name__}: {error}"] = None
            logger.warning("torchwise: %s runs as written", name, exc_info=error)
        return None
