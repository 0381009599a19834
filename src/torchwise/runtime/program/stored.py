"""Run a program by the decisions of the store, without a change to it: each is found by its module's structure.

A plan takes seconds to start, for compiling, and a decision is for many calls. A run may be shorter than that. So a
module runs as written until its plan would have saved as much time as it takes to start. A run that ends before is as
quick as without plans, and a longer one loses at most about as many seconds for each module. If the search verified a
plan that starts sooner and pays within so few calls, that one answers until then, by the same rule.
"""

from __future__ import annotations

import functools
import logging
import threading
import time
import weakref
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field
from typing import Any, Self

import torch

from torchwise._torch.call_hook import CallHook, call_with_parts_apart, set_call_hook
from torchwise.plan.workload_spec import LIVE
from torchwise.records import Decision
from torchwise.runtime.components.component import Component
from torchwise.runtime.monitored import find_in_place
from torchwise.runtime.program.decisions import OTHER_SIZES, explain_eager, read_decisions, stays_as_written
from torchwise.runtime.program.missed_calls import PlacedPlans
from torchwise.runtime.program.missed_recorder import MissedCallRecorder
from torchwise.runtime.program.placement import config_of, place_decision, take_away, workload_of
from torchwise.runtime.program.recorder import autocast_dtype, original_of, watched_compile
from torchwise.runtime.program.start_costs import MIN_TOLD_S, WaitingPlan, explain_loss, find_first_decision
from torchwise.runtime.staleness import stale_because
from torchwise.store import read_storage

logger = logging.getLogger("torchwise")
BEFORE_START = "before the plan would have saved as much time as it takes to start"
OTHER_FORM = "in another form than that of the plan, before it was put in place"
"""Why a plan that was placed did not answer some calls: it came later, or did not hold for them."""


def name_of(thing: Any) -> str:
    """Return the name of a module's class, or of a function."""
    original = original_of(thing)
    return getattr(original, "__qualname__", None) or type(original).__qualname__


def target_of(program: str, thing: Any) -> str:
    """Return the name in the store of a module or function of a program."""
    return f"{LIVE}{program}/{name_of(thing)}"


@dataclass(slots=True)
class _Seen:
    """A module or function that was called: the plan for each form of its calls, and whether one is in its place.

    Attributes:
        unlike: the number of calls so far in a form without a plan.
    """

    weakly: weakref.ref[Any]
    name: str
    forms: dict[Hashable, WaitingPlan | None] = field(default_factory=dict)
    is_placed: bool = False
    note: str = ""
    unlike: int = 0

    def count_before(self, found: WaitingPlan) -> dict[Any, int]:
        """Return how many calls ran as written before the plan was put in place, by reason."""
        if found.before is not None:  # they are those of the plan before
            return {}
        waited = found.calls + sum(one.calls for one in self.forms.values() if one is not None)
        return {reason: calls for reason, calls in ((BEFORE_START, waited), (OTHER_FORM, self.unlike)) if calls}


def _form_of(thing: Any) -> Hashable:
    """Return in which mode and autocast a call is, which a plan may be bound to."""
    return getattr(thing, "training", False), autocast_dtype(thing)


class StoredPlans:
    """Places a stored plan in front of each module of a program that was tuned, once its start pays.

    Modules of classes without a plan are called as if there was no hook.

    Attributes:
        placed: the name of each module that was called first in its place, with its component.
        notes: why a tuned module runs as written.
        missed: the calls that a plan in place was not verified on.
        seconds: wall-clock time from the start to the end.
    """

    def __init__(self, program: str, store: str | None = None) -> None:
        """Read the decisions of a program.

        Raises:
            StorageError: the store does not exist, or cannot be read.
        """
        self.placed: list[tuple[str, Component]] = []
        self.notes: dict[str, None] = {}
        self.missed = MissedCallRecorder()
        self.seconds = 0.0
        self._begun = 0.0
        self._store = store
        self._seen: dict[int, _Seen] = {}
        self._decisions = read_decisions(program, store)
        self._classes = frozenset(
            name for name, several in self._decisions.items() if not stays_as_written({name: several})
        )
        for name in sorted(self._decisions.keys() - self._classes):
            if (newest := self._decisions[name][0]).plan.is_eager:
                self.notes[explain_eager(name, newest)] = None
        self._called: set[str] = set()
        self._placed_for: list[tuple[_Seen, WaitingPlan]] = []
        self._waiting: dict[str, WaitingPlan] = {}
        self._firsts: dict[int, Decision | None] = {}  # by the decision that each comes before
        self._lock = threading.Lock()
        self._former: CallHook | None = None
        self._compile: Any = None
        self._watched: Any = None

    def __enter__(self) -> Self:
        self._former = set_call_hook(CallHook(self._answer, self._classes))
        self._compile = torch.compile
        self._watched = torch.compile = watched_compile(torch.compile, self._is_planned)
        self._begun = time.perf_counter()
        return self

    def __exit__(self, *_error: object) -> None:
        self.seconds = time.perf_counter() - self._begun
        if torch.compile is self._watched:  # and not what a library has put in its place
            torch.compile = self._compile
        set_call_hook(self._former)
        in_use = {seen.name for seen, found in self._placed_for if found.later is None}
        for name, waiting in self._waiting.items():
            if name not in in_use:  # by another module of the class
                self.notes[waiting.explain(name)] = None
        for (name, component), (_, found) in self._pairs():
            if (loss := explain_loss(name, component.statistics, found.decision)) is not None:
                self.notes[loss] = None
        for name in sorted(self._classes - self._called):
            self.notes[f"{name} has a plan, but no call of it was seen in this process"] = None

    def list_calls(self) -> list[tuple[str, str | None, int, dict[Any, int]]]:
        """Return a row for each placed plan: its module, the plan, the calls that it answered, the others by reason.

        Calls before it was placed are among the others.
        """
        rows = []
        for (name, component), (seen, found) in self._pairs():
            told = component.statistics
            rows.append((name, told.plan, told.optimized, {**seen.count_before(found), **told.original}))
        return rows

    def list_placed(self) -> list[PlacedPlans]:
        """List the decided plans of modules that ran by one, once for each structure of these."""
        decided = [(name, one.later or one) for (name, _), (_, one) in self._pairs()]
        found = [PlacedPlans(name, one.decision, one.others) for name, one in decided]
        return list({plans.key: plans for plans in found}.values())

    def _pairs(self) -> Iterator[tuple[tuple[str, Component], tuple[_Seen, WaitingPlan]]]:
        return zip(self.placed, self._placed_for, strict=True)

    def _answer(self, thing: Any, run: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        attributes = vars(thing)  # those of the twin, too, which a plan may call as a module
        seen = self._seen.get(id(attributes))
        if seen is None or (live := seen.weakly()) is None or vars(live) is not attributes:
            weakly = weakref.ref(thing, functools.partial(self._forget, id(attributes)))
            seen = self._seen[id(attributes)] = _Seen(weakly, name_of(thing))
        if seen.name not in self._classes:  # its parts may have been tuned in its place
            return call_with_parts_apart(run, args, kwargs)
        self._called.add(seen.name)
        if not seen.is_placed and (component := self._place_if_due(thing, seen)) is not None:
            return component.answer(run, args, kwargs)
        return run(*args, **kwargs)

    def _place_if_due(self, thing: Any, seen: _Seen) -> Component | None:
        """Put the plan for such calls in place if it would have saved as much so far as it takes to start."""
        if (form := _form_of(thing)) not in seen.forms:
            seen.forms[form] = self._find(thing, seen)
        waiting = seen.forms[form]
        if waiting is None:
            seen.unlike += 1
            return None
        if not waiting.is_due:
            waiting.calls += 1
            self._waiting.setdefault(seen.name, waiting)
            return None
        with self._lock:
            if seen.is_placed or seen.forms[form] is None:  # by another thread meanwhile
                return None
            seen.forms[form] = None
            return self._place(thing, seen, waiting)

    def _succeed(self, weakly: weakref.ref[Any], seen: _Seen, first: WaitingPlan, form: Hashable) -> Component | None:
        """Put the later plan in the place of the first one if it would have saved as much so far as it takes to start.

        Calls in another form than that of the plans do not count. Those of other threads that are under way end by the
        first plan.
        """
        later, thing = first.later, weakly()
        if later is None or thing is None or _form_of(thing) != form:
            return None
        if not later.is_due:
            later.calls += 1
            return None
        with self._lock:
            if later.is_begun:  # by another thread meanwhile
                return None
            later.is_begun = True
            if (placed := find_in_place(thing) if isinstance(thing, torch.nn.Module) else thing.placed) is not None:
                take_away(thing, placed)
            return self._place(thing, seen, later)

    def _is_planned(self, model: Any) -> bool:
        return name_of(model) in self._classes

    def _forget(self, key: int, _reference: object) -> None:
        self._seen.pop(key, None)

    def _find_others(self, name: str, decision: Decision) -> Decision | None:
        """Return the decision for other sizes that was made with a decision, if there is one."""
        others = self._decisions.get(name + OTHER_SIZES, ())
        return next((one for one in others if one.structure == decision.structure), None)

    def _find(self, thing: Any, seen: _Seen) -> WaitingPlan | None:
        """Return the newest plan that holds for a module, or note why there is none."""
        name = seen.name
        try:
            config = config_of(thing, autocast_dtype(thing), self._store)
            workload = workload_of(thing, config)
            reasons = []
            for decision in self._decisions[name]:
                if (stale := stale_because(workload, decision)) is not None:
                    reasons.append(stale)
                elif decision.plan.is_eager:
                    self.notes[explain_eager(name, decision)] = None
                    return None
                else:
                    return self._add_first(WaitingPlan(decision, self._find_others(name, decision), config))
            seen.note = f"{name} runs as written, as it was tuned in another form: {reasons[0]}"
            self.notes[seen.note] = None
        except Exception as error:  # the program must go on as written, whatever is wrong with a plan
            self._note_error(name, error)
        return None

    def _add_first(self, waiting: WaitingPlan) -> WaitingPlan:
        """Return the plan to put in place first: one that starts sooner than a waiting plan, or that one itself."""
        if waiting.is_due or waiting.start_s < MIN_TOLD_S:
            return waiting
        key = id(waiting.decision)
        if key not in self._firsts:  # once for all modules of a structure, as reading a search takes milliseconds
            self._firsts[key] = self._find_first(waiting)
        if (first := self._firsts[key]) is None:
            return waiting
        waiting.before = first
        return WaitingPlan(first, None, waiting.config, later=waiting)

    def _find_first(self, waiting: WaitingPlan) -> Decision | None:
        try:
            if (storage := read_storage(self._store)) is None:
                return None
            with storage:
                return find_first_decision(waiting.decision, waiting.start_s, storage)
        except Exception as error:  # whatever is wrong with the store or a plug-in by now, the decided plan is known
            logger.debug("torchwise: no plan is looked for that starts sooner", exc_info=error)
            return None

    def _place(self, thing: Any, seen: _Seen, found: WaitingPlan) -> Component | None:
        if self._waiting.get(seen.name) is found:
            del self._waiting[seen.name]
        succeed = None
        if found.later is not None:
            succeed = functools.partial(self._succeed, weakref.ref(thing), seen, found, _form_of(thing))
        try:
            component = place_decision(
                thing,
                seen.name,
                found.decision,
                found.config,
                others=found.others,
                find_successor=succeed,
                # A later plan may have another one for these calls.
                missed=None if found.later is not None and found.later.others is not None else self.missed,
            )
        except Exception as error:  # as above
            self._note_error(seen.name, error)
            return None
        if component is not None:
            self.placed.append((seen.name, component))
            self._placed_for.append((seen, found))
            self.notes.pop(seen.note, None)
            seen.is_placed = True
            if found.later is not None:
                self._waiting.setdefault(seen.name, found.later)
        return component

    def _note_error(self, name: str, error: Exception) -> None:
        self.notes[f"{name} runs as written: {type(error).__name__}: {error}"] = None
        logger.warning("torchwise: %s runs as written", name, exc_info=error)
