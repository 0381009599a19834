"""One component of a program: it runs its original code unless it has a plan that is faster and allowed."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any
from weakref import WeakSet

import torch

from torchwise._torch.dispatch import is_observed, is_transforming
from torchwise.alerts import alert
from torchwise.environment import available_cpus
from torchwise.errors import TorchwiseError
from torchwise.plan import EAGER
from torchwise.records import Decision
from torchwise.runtime.components.config import CompileConfig, is_disabled
from torchwise.runtime.components.find import (
    Find,
    Found,
    apply_if_faster,
    copy_example,
    decide_unverified,
    needs_gradients,
    permits,
    permits_search,
    read_background,
    search_in_background,
    tune_in_workers,
)
from torchwise.runtime.components.program import autocast_of, count_parameters, device_of, wrap_in_autocast
from torchwise.runtime.components.statistics import ComponentStatistics, Counted
from torchwise.runtime.fallback_reason import Fallback, FallbackReason
from torchwise.runtime.monitored import ITSELF
from torchwise.runtime.served import CLOSED, Served, served_of, swap
from torchwise.runtime.statistics import Statistics, add_bounded
from torchwise.workload import Example

logger = logging.getLogger("torchwise")

FIRST = Fallback(FallbackReason.FIRST_CALL)
BUSY = Fallback(FallbackReason.SEARCH_RUNNING)
DISABLED = Fallback(FallbackReason.DISABLED)
SWITCHED_OFF = Fallback(FallbackReason.SWITCHED_OFF)
WITHIN = Fallback(FallbackReason.NESTED_COMPONENT)
UNUSUAL = Fallback(FallbackReason.SEARCH_POSTPONED)
FROZEN = Fallback(FallbackReason.FROZEN, "it had no plan by then")

_searching = threading.Lock()
"""Allows one search at a time per process: two would disturb each other's timings. The original answers meanwhile."""
_components: WeakSet[Component] = WeakSet()
"""Every component of this process."""
_here = threading.local()
"""`within`: this thread is inside a component that runs by a plan. `first`: it is inside a component's first call."""


class Component(Counted):
    """Answers the calls of one component of a program.

    The original answers the first call, so its errors reach the caller and cost no search. Then a search begins with
    the call's inputs: in another process, while the original answers, or else while the caller waits. The result, or
    the failure of the search, is kept until `clear`.

    Attributes:
        counts: the counts of all calls, whoever answered.
        is_frozen: whether nothing is searched, compiled or captured.
    """

    def __init__(
        self,
        name: str,
        original: Callable[..., Any],
        config: CompileConfig,
        find: Find = tune_in_workers,
        examples: Sequence[Example] = (),
        changes: Mapping[str, Any] | None = None,
    ) -> None:
        """Create a component without a plan. The fields in `changes` differ from the manager's config."""
        self.name = name
        self.changes = dict(changes or {})
        self.original = original
        self.config = _choose_mode(config, original)
        self._find = find
        self._examples = tuple(examples)
        self.is_frozen = False
        _components.add(self)
        self.clear()

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle as disabled: a worker must run the original code, and a copy does not belong to the program."""
        return Component, (self.name, self.original, CompileConfig.of("development", autocast=self.config.autocast))

    def configure(self, config: CompileConfig) -> None:
        """Change the settings. A plan of another mode, or one that they do not permit, is forgotten."""
        config = _choose_mode(config, self.original)
        before, self.config = self.config, config
        found, is_other = self._found, (before.plans, before.verify) != (config.plans, config.verify)
        if is_other or (found is not None and not permits(config, found)):
            self.clear()
        elif found is not None and not permits_search(config, found):
            found.tuning.stop()  # or it may search again, for sizes that come

    def clear(self) -> None:
        """Forget the plan, failures and statistics, so that the next call searches again."""
        self._last: ComponentStatistics | None = None
        self._found: Found | None = None
        self.counts = Statistics()
        if self.is_frozen:
            self.counts.freeze()

    def answer(self, plain: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Answer a call by the plan, or by `plain`, which is the original as the program sees it.

        Raises:
            TorchwiseError: the config has no fallback, and the search or the plan failed.
        """
        if torch.compiler.is_compiling():
            return plain(*args, **kwargs)
        fallback, found = self._aside(), self._found
        if fallback is None and found is None:
            return self._first(plain, args, kwargs)
        if fallback is None and found is not None:
            if found.optimized is not None:
                return self._call_plan(found.optimized, args, kwargs)
            if found.waiting is not None and (found := self._read_background(found)).optimized is not None:
                return self._call_plan(found.optimized, args, kwargs)
            self._raise_unless_fallback(found)
            fallback = found.fallback
        assert fallback is not None
        return self._plainly(fallback, plain, args, kwargs)

    def close(self) -> None:
        """Free the plan's memory, or end the search for one. The original answers from now on, until `clear`."""
        found = self._found
        if found is None:
            return
        if found.tuning is not None:
            found.tuning.stop()  # first, as it would put its next plan in the place of the closed one
        if found.served is not None:
            found.served.close()
        elif found.waiting is not None:
            self._found = Found(None, str(CLOSED), CLOSED)

    def let_go(self) -> None:
        """Free the plan and the original, whose module is gone. The statistics stay.

        Nothing is closed: the module may go at any time, also while this thread holds a lock.
        """
        self._last = self.statistics
        self._found, self.original = None, _raise_gone

    @property
    def plan_name(self) -> str:
        """The plan in use, or "eager" if the original answers."""
        served = self._found.served if self._found else None
        return served.plan_name if served else str(EAGER)

    def freeze(self) -> None:
        """Search for nothing more, and have the plan compile and capture nothing more."""
        self._set_frozen(True)
        self.counts.freeze()

    def unfreeze(self) -> None:
        """Search, compile and capture again, on the calls that need it."""
        self._set_frozen(False)
        self.counts.unfreeze()

    def _set_frozen(self, frozen: bool) -> None:
        self.is_frozen, found = frozen, self._found
        if found is not None and found.waiting is not None:
            found = self._read_background(found)
        if found is not None and found.served is not None:
            found.served.set_frozen(frozen)
        elif frozen and found is not None and (waiting := served_of(found.waiting)) is not None:
            waiting.set_frozen(True)  # it may have a plan just now
            self._found = None  # which ends its search

    def _list_monitored(self) -> dict[str, Component]:
        return {ITSELF: self}

    def extend(self, make: Callable[[Served], Served]) -> None:
        """Have the result of `make`, which gets what answers calls now, answer those that come. Do it before any call.

        Nothing happens without a plan.
        """
        found = self._found
        if found is not None and found.served is not None:
            swap(found.optimized, make(found.served))
            found.served.count_in(self.counts)

    def seek(self, examples: Sequence[Example] = ()) -> None:
        """Search for a plan now, and wait for it. A running search of another thread is waited for, too.

        Raises:
            TorchwiseError: the config has no fallback, and the search failed.
        """
        if getattr(_here, "first", False):  # this thread would wait for itself, and its first call searches later
            return
        if not _searching.acquire(blocking=False):
            logger.info("torchwise: component %s waits until another component's search is over", self.name)
            _searching.acquire()
        try:
            if self._found is None and self._aside() is None and not self.is_frozen:
                self._seek(self._examples or tuple(examples))
        finally:
            _searching.release()

    def take(self, decision: Decision) -> None:
        """Use the plan of a known decision, if it is fast enough. Nothing is searched, so no search is waited for.

        Raises:
            TorchwiseError: the config has no fallback, and the plan cannot be used.
        """
        if self._found is None and self._aside() is None and not self.is_frozen:
            self._seek(self._examples, decision)

    @property
    def statistics(self) -> ComponentStatistics:
        """The component's statistics so far."""
        if self._last is not None:
            return self._last
        found, counts = self._found, self.counts
        failures = Counter(counts.failures)
        if found is None:
            return ComponentStatistics(original=counts.original, sentences=counts.sentences, counts=counts)
        if found.error is not None:
            add_bounded(failures, type(found.error).__name__)
        decision = found.served.decision if found.served else found.decision
        return ComponentStatistics(
            self.plan_name if found.optimized else None,
            found.reason if decision is found.decision or decision is None else decision.reason,
            counts.optimized,
            counts.original,
            decision.speedup if decision else None,
            counts.first_calls_s + counts.later_compiles_s,
            found.seconds,
            failures,
            counts.sentences,
            found.verified if found.optimized else None,
            counts,
        )

    def _aside(self) -> Fallback | None:
        """Return why no plan may answer now, even one that was found, or None."""
        if is_disabled():
            return DISABLED
        if not self.config.enabled:
            return SWITCHED_OFF
        return WITHIN if getattr(_here, "within", False) else None

    def _read_background(self, found: Found) -> Found:
        """Take over what the search in the background has found, if it has found anything."""
        now = read_background(found)
        if now is not found and self._found is found:
            self._keep(now)
        return now

    def _keep(self, found: Found) -> None:
        """Keep a result. All counts of the component go on in one place."""
        self._found = found
        if found.served is not None:
            found.served.count_in(self.counts)
            found.served.set_frozen(self.is_frozen)
        logger.info("torchwise: component %s: %s", self.name, found.reason)

    def _first(self, plain: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self.is_frozen:
            return self._plainly(FROZEN, plain, args, kwargs)
        if _is_unusual():
            return self._plainly(UNUSUAL, plain, args, kwargs)
        if not _searching.acquire(blocking=False):
            return self._plainly(BUSY, plain, args, kwargs)
        _here.first, goes_on = True, False
        try:
            if self._found is not None:  # another thread was faster
                return self._plainly(BUSY, plain, args, kwargs)
            given = self._examples or copy_example(args, kwargs)  # copy before the call, which may write to its inputs
            result = self._plainly(FIRST, plain, args, kwargs)
            goes_on = self._seek(given, may_go_on=True)
            return result
        finally:
            _here.first = False
            if not goes_on:
                _searching.release()

    def _seek(
        self, examples: tuple[Example, ...], decision: Decision | None = None, *, may_go_on: bool = False
    ) -> bool:
        """Search, and return whether the search goes on in another process, which is to release `_searching`."""
        counts, asked, begun = self.counts, self.config, time.perf_counter()
        goes_on = False
        try:
            original = wrap_in_autocast(self.original, self.config)
            config = replace(self.config, training=self._trains(original, examples))
            goes_on = may_go_on and self._may_search_aside(config)
            find = self._find if config.verify else decide_unverified
            waits = "the original answers meanwhile" if goes_on else "the caller waits"
            if config.verify and decision is None:
                logger.info("torchwise: searching for a plan for component %s; %s", self.name, waits)
            if goes_on:
                found = search_in_background(original, examples, config, _searching)
            else:
                found = apply_if_faster(original, decision or find(original, examples, config), config)
        except Exception as error:  # a failed search must not stop the program: log its error, keep it until clear()
            goes_on = False
            fallback = Fallback(FallbackReason.SEARCH_FAILED, f"{type(error).__name__}: {error}")
            found = Found(None, str(fallback), fallback, error=error)
            said = f"component {self.name} runs its original code until clear(): {found.reason}"
            alert("search_failed", said, component=self.name, failure=type(error).__name__)
            logger.debug("torchwise: how the search failed", exc_info=error)
        is_current = asked is self.config or permits(self.config, found)
        if counts is self.counts and is_current:  # neither cleared nor configured otherwise meanwhile
            self._keep(replace(found, seconds=time.perf_counter() - begun))
        self._raise_unless_fallback(found)
        return goes_on

    def _may_search_aside(self, config: CompileConfig) -> bool:
        """Whether another process can search: for inference, and beside the program on a processor of its own."""
        if config.training or not config.verify or self._find is not tune_in_workers:
            return False
        return config.background if config.background is not None else config.fallback and available_cpus() > 1

    def _trains(self, original: Callable[..., Any], examples: Sequence[Example]) -> bool:
        """Return whether a plan must support gradients. If that is the program's doing, say so."""
        if self.config.training is not None:
            return self.config.training
        trains = needs_gradients(original, examples)
        if trains:
            logger.warning(
                "torchwise: component %s is tuned for training, because gradients were enabled in its first call: "
                "for inference, call it under torch.no_grad() or register it with training=False",
                self.name,
            )
        return trains

    def _call_plan(self, optimized: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        _here.within = True
        try:
            if self.config.autocast is None:
                result = optimized(*args, **kwargs)
            else:  # the plan contains its autocast, and leaves calls under an outer autocast to the original
                with torch.autocast(device_of(self.config), enabled=False):
                    result = optimized(*args, **kwargs)
        finally:
            _here.within = False
        if not self.config.fallback and (failures := self.statistics.failures):
            raise TorchwiseError(
                f"the plan of component {self.name!r} failed ({', '.join(failures)}; the log says how): clear() "
                "searches again, and fallback=True lets the original answer"
            )
        return result

    def _plainly(
        self, fallback: Fallback, plain: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        self.counts.count(fallback)
        if self.config.autocast is None:
            return plain(*args, **kwargs)
        with autocast_of(self.config):
            return plain(*args, **kwargs)

    def _raise_unless_fallback(self, found: Found) -> None:
        if found.error is not None and not self.config.fallback:
            raise TorchwiseError(
                f"component {self.name!r}: {found.reason}: clear() searches again, and fallback=True lets the original "
                "answer"
            ) from found.error


def _raise_gone(*_args: Any, **_kwargs: Any) -> Any:
    raise RuntimeError("the module of this component is gone")


def _begin_anew() -> None:
    """Forget the searches of the parent process: nobody would tell a forked one that they are over."""
    global _searching  # a lock may be held by a thread that a fork does not copy
    _searching = threading.Lock()
    for component in list(_components):
        if component._found is not None and component._found.waiting is not None:
            component._found = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_anew)


def _choose_mode(config: CompileConfig, original: Callable[..., Any]) -> CompileConfig:
    return config.of_size(count_parameters(original)) if isinstance(config.mode, Mapping) else config


def _is_unusual() -> bool:
    """Return whether inputs may differ from their appearance, or may not be copied, right now."""
    captures = torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()
    return captures or is_transforming() or is_observed()
