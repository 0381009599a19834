"""Put a decided plan in the place of a recorded module or function, and take it away again."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import torch

from torchwise.records import Decision
from torchwise.runtime.bucketing import VerifiedPadding
from torchwise.runtime.bucketing.dispatch import Buckets
from torchwise.runtime.components.component import Component
from torchwise.runtime.components.config import CompileConfig
from torchwise.runtime.components.program import (
    copy_with_shared_dict,
    device_of,
    place,
    restore,
    wrap_in_autocast,
)
from torchwise.runtime.dispatch import Dispatcher
from torchwise.runtime.fallback_reason import Fallback, FallbackReason
from torchwise.runtime.program.calls import device_type_of
from torchwise.runtime.program.missed_recorder import MissedCallRecorder, Record
from torchwise.runtime.program.recorder import original_of
from torchwise.runtime.served import Served
from torchwise.runtime.sizes_dispatch import SizesDispatcher
from torchwise.runtime.staleness import stale_because
from torchwise.study.apply_approvals import apply_stored_approvals

logger = logging.getLogger("torchwise")


OTHER_AUTOCAST = Fallback(FallbackReason.AUTOCAST_DIFFERS)


class PlacedComponent(Component):
    """A component of a recorded program: its callers choose the autocast, and its plan answers under one of them.

    Attributes:
        find_successor: asked before each such call for the component that answers in its place from now on.
    """

    find_successor: Callable[[], Component | None] | None = None

    def answer(self, plain: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Answer a call by the plan if it is under the plan's autocast, or else by `plain` as it comes."""
        if torch.compiler.is_compiling():
            return super().answer(plain, args, kwargs)
        recorded = self.config.autocast
        if recorded is not None and _name_autocast(device_of(self.config)) != recorded:
            return self._plainly(OTHER_AUTOCAST, plain, args, kwargs)
        if self.find_successor is not None and (successor := self.find_successor()) is not None:
            return successor.answer(plain, args, kwargs)
        return super().answer(plain, args, kwargs)

    def _plainly(
        self, fallback: Fallback, plain: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        self.counts.count(fallback)
        return plain(*args, **kwargs)


def _name_autocast(device: str) -> str | None:
    found = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
    return None if found is None else str(found).removeprefix("torch.")


def config_of(thing: Any, autocast: torch.dtype | None, store: str | None = None) -> CompileConfig:
    """Return the settings of a component that runs by a decision of the store, under an autocast of its device."""
    name = None if autocast is None else str(autocast).removeprefix("torch.")
    device = None if autocast is None else device_type_of(thing)
    return CompileConfig.of(
        "production", minimum_speedup=1.0, autocast=name, device=device, store=store, progress=False
    )


def workload_of(thing: Any, config: CompileConfig) -> Any:
    """Return what is tuned for a module or a function: its form before `torch.compile`, in the config's autocast."""
    original = original_of(thing)
    if original is thing and isinstance(thing, torch.nn.Module):
        original = copy_with_shared_dict(thing)  # whose class stays when `place` changes that of the module
    return wrap_in_autocast(original, config)


def place_decision(
    thing: Any,
    name: str,
    decision: Decision,
    config: CompileConfig,
    *,
    others: Decision | None = None,
    padded: VerifiedPadding | None = None,
    find_successor: Callable[[], Component | None] | None = None,
    missed: MissedCallRecorder | None = None,
) -> Component | None:
    """Have the plan of a decision answer calls of a module or a recorded function, if it says more than eager.

    Args:
        thing: the module or function.
        name: its name in reports.
        decision: the decision.
        config: the settings of its component.
        others: the decision for calls of other sizes, whose plan has dynamic shapes.
        padded: the rule by which inputs are padded for the plan.
        find_successor: asked before each call of the plan's autocast for another component that answers from now on.
        missed: records the calls that no plan was verified on, or None.

    Raises:
        InputError: the class of the module cannot be changed.
    """
    if decision.plan.is_eager:
        return None
    original = original_of(thing)
    if original is thing and isinstance(thing, torch.nn.Module):
        original = copy_with_shared_dict(thing)
    config = config.changed(training=decision.workload.mode == "training")
    component = PlacedComponent(name, original, config, find=lambda *_: decision)
    component.find_successor = find_successor
    component.take(decision)
    if padded is not None:
        component.extend(lambda served: Buckets(served.original, [served.decision], padded))
    elif others is not None and others.plan.shapes == "dynamic":
        component.extend(lambda served: _answer_other_sizes(served, others, config))
    if missed is not None:
        autocast = None if config.autocast is None else getattr(torch, config.autocast)
        record = missed.watch(thing, name, decision.structure, autocast)
        component.extend(lambda served: _have_recorded(served, record))
    if isinstance(thing, torch.nn.Module):
        place(thing, component)
    else:
        thing.placed = component
    return component


def _answer_other_sizes(served: Served, others: Decision, config: CompileConfig) -> Served:
    """Return what answers by a second plan the calls whose sizes the first plan was not verified on."""
    if (stale := stale_because(served.original, others)) is not None:
        logger.warning("torchwise: calls of other sizes run as written, as the decision for them is stale: %s", stale)
        return served
    effective = apply_stored_approvals(others, config.store)
    refused = Fallback(FallbackReason.PLAN_REFUSED, effective.refusal) if effective.refusal else None
    return SizesDispatcher(served.original, served.decision, effective.decision, served.refusal, refused)


def _have_recorded(served: Served, record: Record) -> Served:
    """Have the calls that no plan was verified on recorded, and return the object that answers as before."""
    last = served.others if isinstance(served, SizesDispatcher) else served
    if isinstance(last, Dispatcher):
        last.missed.record = record
    return served


def take_away(thing: Any, component: Component) -> None:
    """Undo `place_decision`: the module has its own class again, and the plan's memory is freed."""
    if isinstance(thing, torch.nn.Module):
        restore(thing)
    else:
        thing.placed = None
    component.close()
