"""One component of a program: it runs its original code unless it has a plan that is faster and allowed.

Also here: autocast for components: the config's autocast holds for tuning, verifying and timing, and for the original.

Also here: a module's twin: an object of the original class that shares the module's `__dict__`, and so its attributes.
"""

from __future__ import annotations

import functools
import logging
import threading
import time
import types
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from torchwise._torch.dispatch import is_transforming
from torchwise.errors import TorchwiseError
from torchwise.records import Interval
from torchwise.runtime.components.config import CompileConfig, is_disabled
from torchwise.runtime.components.search import Find, Found, apply_if_faster, tune_in_workers
from torchwise.runtime.fallback_reason import Fallback, FallbackReason
from torchwise.runtime.statistics import add_bounded
from torchwise.workload import Example, pytree

logger = logging.getLogger("torchwise")

FIRST = Fallback(FallbackReason.FIRST_CALL)
BUSY = Fallback(FallbackReason.SEARCH_RUNNING)
DISABLED = Fallback(FallbackReason.DISABLED)
SWITCHED_OFF = Fallback(FallbackReason.SWITCHED_OFF)
WITHIN = Fallback(FallbackReason.NESTED_COMPONENT)
UNUSUAL = Fallback(FallbackReason.SEARCH_POSTPONED)

_searching = threading.Lock()
"""Allows one search at a time per process: two would disturb each other's timings. The original answers meanwhile."""
_here = threading.local()
"""`within`: this thread is inside a component that runs by a plan. `first`: it is inside a component's first call."""


@dataclass(frozen=True, slots=True)
class ComponentStatistics:
    """Statistics of a component, since it was registered or last cleared.

    Attributes:
        plan: the plan in use, or None if the original answers.
        reason: why that plan, or none, is in use, in a sentence.
        optimized: number of calls that the plan answered.
        original: number of calls that the original answered, by reason.
        sentences: the latest sentence for each of these reasons.
        speedup: the decision's speed-up, whether its plan was kept or not, or None if there is none.
        compile_s: seconds of the calls that compiled or captured the plan in this process.
        search_s: seconds of search.
        failures: number of failed searches and failed calls of the plan, by type of error.
    """

    plan: str | None = None
    reason: str = "no search has run yet"
    optimized: int = 0
    original: Mapping[FallbackReason, int] = field(default_factory=dict)
    speedup: Interval | None = None
    compile_s: float = 0.0
    search_s: float = 0.0
    failures: Mapping[str, int] = field(default_factory=dict)
    sentences: Mapping[FallbackReason, str] = field(default_factory=dict)


class Component:
    """Answers the calls of one component of a program.

    The original answers the first call, so its errors reach the caller and cost no search. Then the caller waits for a
    search with the call's inputs, while the original answers other threads. The result, or the failure of the search,
    is kept until `clear`.
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
        """Create a component without a plan.

        Args:
            name: the component's name in statistics and logs.
            original: the function or module to tune. It answers whenever the plan does not.
            config: the component's settings.
            find: the function that finds a plan.
            examples: inputs for the search, by default those of the first call.
            changes: fields of the config that differ from the manager's.
        """
        self.name = name
        self.changes = dict(changes or {})
        self.original = original
        self.config = config
        self._find = find
        self._examples = tuple(examples)
        self.clear()

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle as disabled: a worker must run the original code, and a copy does not belong to the program."""
        return Component, (self.name, self.original, CompileConfig.of("development", autocast=self.config.autocast))

    def configure(self, config: CompileConfig) -> None:
        """Change the settings. A change of mode forgets the plan of the earlier mode."""
        before, self.config = self.config, config
        if before.mode != config.mode:
            self.clear()

    def clear(self) -> None:
        """Forget the plan, failures and statistics, so that the next call searches again."""
        self._found: Found | None = None
        self._calls: Counter[FallbackReason] = Counter()  # a running search writes to the counter that it began with
        self._latest: dict[FallbackReason, Fallback] = {}

    def answer(self, plain: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Answer a call by the plan, or by the original.

        Args:
            plain: the original as the program sees it.
            args: positional arguments of the call.
            kwargs: keyword arguments of the call.

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
            self._raise_unless_fallback(found)
            fallback = found.fallback
        assert fallback is not None
        return self._plainly(fallback, plain, args, kwargs)

    def seek(self, examples: Sequence[Example] = ()) -> None:
        """Search for a plan now, and wait for it. A running search of another thread is waited for, too.

        Raises:
            TorchwiseError: the config has no fallback, and the search failed.
        """
        if getattr(_here, "first", False):  # this thread would wait for itself, and its first call searches later
            return
        with _searching:
            if self._found is None and self._aside() is None:
                self._seek(self._examples or tuple(examples))

    @property
    def statistics(self) -> ComponentStatistics:
        """The component's statistics so far."""
        found, original = self._found, Counter(self._calls)
        sentences = {reason: str(fallback) for reason, fallback in self._latest.copy().items()}
        if found is None:
            return ComponentStatistics(original=dict(original), sentences=sentences)
        served = getattr(found.optimized, "statistics", None)
        failures = Counter(served.failures) if served else Counter()
        if found.error is not None:
            add_bounded(failures, type(found.error).__name__)
        decision = found.decision
        return ComponentStatistics(
            str(decision.plan) if decision and found.optimized else None,
            found.reason,
            served.optimized if served else 0,
            dict(original + served.original if served else original),
            decision.speedup if decision else None,
            served.first_calls_s if served else 0.0,
            found.seconds,
            dict(failures),
            {**sentences, **served.sentences} if served else sentences,
        )

    def _aside(self) -> Fallback | None:
        """Return why no plan may answer now, even one that was found, or None."""
        if is_disabled():
            return DISABLED
        if not self.config.enabled:
            return SWITCHED_OFF
        return WITHIN if getattr(_here, "within", False) else None

    def _first(self, plain: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if _is_unusual():
            return self._plainly(UNUSUAL, plain, args, kwargs)
        if not _searching.acquire(blocking=False):
            return self._plainly(BUSY, plain, args, kwargs)
        _here.first = True
        try:
            if self._found is not None:  # another thread was faster
                return self._plainly(BUSY, plain, args, kwargs)
            given = self._examples or _copy_example(args, kwargs)  # copy before the call, which may write to its inputs
            result = self._plainly(FIRST, plain, args, kwargs)
            self._seek(given)
            return result
        finally:
            _here.first = False
            _searching.release()

    def _seek(self, examples: tuple[Example, ...]) -> None:
        calls, config, begun = self._calls, self.config, time.perf_counter()
        logger.info("torchwise: searching for a plan for component %s; the caller waits", self.name)
        try:
            original = wrap_in_autocast(self.original, config)
            trains = _trains(original, examples) if config.training is None else config.training
            found = apply_if_faster(original, self._find(original, examples, replace(config, training=trains)), config)
        except Exception as error:  # a failed search must not stop the program: log its error, keep it until clear()
            fallback = Fallback(FallbackReason.SEARCH_FAILED, f"{type(error).__name__}: {error}")
            found = Found(None, str(fallback), fallback, error=error)
            logger.warning("torchwise: component %s runs its original code until clear()", self.name, exc_info=error)
        if calls is self._calls:  # not cleared meanwhile
            self._found = replace(found, seconds=time.perf_counter() - begun)
            logger.info("torchwise: component %s: %s", self.name, found.reason)
        self._raise_unless_fallback(found)

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
        self._calls[fallback.reason] += 1
        self._latest[fallback.reason] = fallback
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


def _copy_example(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Example, ...]:
    try:
        return (Example(args, kwargs).clone(),)
    except Exception:  # an input may be of any kind; the search then says what is wrong with it
        return (Example(args, kwargs),)


def _trains(original: Callable[..., Any], examples: Sequence[Example]) -> bool:
    """Return whether a call with such inputs needs gradients."""
    tensors = pytree.tensors([(example.args, dict(example.kwargs)) for example in examples])
    tensors += list(original.parameters()) if isinstance(original, torch.nn.Module) else []
    return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)


def _is_unusual() -> bool:
    """Return whether inputs may differ from their appearance, or may not be copied, right now."""
    if torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing():
        return True
    return is_transforming()


def device_of(config: CompileConfig) -> str:
    """Return the device for components: "cuda" if there is a GPU, unless the config says otherwise."""
    return config.device or ("cuda" if torch.cuda.is_available() else "cpu")


def autocast_of(config: CompileConfig) -> AbstractContextManager[Any]:
    """Return the autocast context for a component, or a null context if the config has no autocast."""
    if config.autocast is None:
        return nullcontext()
    return torch.autocast(device_of(config), getattr(torch, config.autocast))


def wrap_in_autocast(original: Callable[..., Any], config: CompileConfig) -> Callable[..., Any]:
    """Wrap `original` in the config's autocast, to be tuned in its place, or return it unchanged without autocast.

    The wrapper enters the context itself, so compiled or captured code includes it.
    """
    if config.autocast is None:
        return original
    device, dtype = device_of(config), getattr(torch, config.autocast)
    if isinstance(original, torch.nn.Module):
        return _module_under(original, device, dtype)

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        with torch.autocast(device, dtype):
            return original(*args, **kwargs)

    del call.__wrapped__  # without the context, the function is another workload
    return call


def _module_under(original: torch.nn.Module, device: str, dtype: torch.dtype) -> torch.nn.Module:
    from torchwise.compile.forward_entry import calls_forward_alone
    from torchwise.runtime.components.component import copy_with_shared_dict

    cls = type(original)
    name = "forward" if calls_forward_alone(original) else "__call__"

    def call_in_autocast(self: Any, *args: Any, **kwargs: Any) -> Any:
        import torch  # also in a worker

        with torch.autocast(device, dtype):
            return getattr(cls, name)(self, *args, **kwargs)

    names = {"__module__": cls.__module__, "__qualname__": cls.__qualname__, name: call_in_autocast}
    return copy_with_shared_dict(
        original, types.new_class(cls.__name__, (cls,), exec_body=lambda own: own.update(names))
    )


def copy_with_shared_dict(module: torch.nn.Module, cls: type[torch.nn.Module] | None = None) -> torch.nn.Module:
    """Return an object that shares every attribute with `module`, of class `cls` or by default of the module's own."""
    cls = cls or type(module)
    twin: torch.nn.Module = object.__new__(cls)
    object.__setattr__(twin, "__dict__", module.__dict__)
    return twin
