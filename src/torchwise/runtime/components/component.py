"""One component of a program: it runs its original code unless it has a plan that is faster and allowed."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from torchwise import environment
from torchwise._torch.dispatch import is_transforming
from torchwise.errors import TorchwiseError
from torchwise.plan.workload_spec import LIVE, WorkloadSpec
from torchwise.records import Decision, Interval
from torchwise.runtime.components.config import CompileConfig, is_disabled
from torchwise.runtime.components.program import autocast_of, device_of, wrap_in_autocast
from torchwise.runtime.fallback_reason import Fallback, FallbackReason
from torchwise.runtime.statistics import Statistics, add_bounded
from torchwise.workload import Example, pytree

logger = logging.getLogger("torchwise")

FIRST = Fallback(FallbackReason.FIRST_CALL)
BUSY = Fallback(FallbackReason.SEARCH_RUNNING)
DISABLED = Fallback(FallbackReason.DISABLED)
SWITCHED_OFF = Fallback(FallbackReason.SWITCHED_OFF)
WITHIN = Fallback(FallbackReason.NESTED_COMPONENT)
UNUSUAL = Fallback(FallbackReason.SEARCH_POSTPONED)

Find = Callable[[Callable[..., Any], Sequence[Example], CompileConfig], Decision]
"""Decides how to run a callable on such inputs. The config's `training` is already resolved."""

_searching = threading.Lock()
"""Allows one search at a time per process: two would disturb each other's timings. The original answers meanwhile."""
_here = threading.local()
"""`within`: this thread is inside a component that runs by a plan. `first`: it is inside a component's first call."""


@dataclass(frozen=True, slots=True)
class Found:
    """The result of a search: a callable that runs by the plan, or why the original keeps answering."""

    optimized: Callable[..., Any] | None
    reason: str
    fallback: Fallback | None = None
    decision: Decision | None = None
    error: Exception | None = None
    seconds: float = 0.0
    verified: bool = True


def tune_in_workers(original: Callable[..., Any], examples: Sequence[Example], config: CompileConfig) -> Decision:
    """Tune in worker processes, and wait for the decision.

    Raises:
        InputError: the component or its inputs cannot be sent to a worker.
        BaselineError: the component raises in a worker, on inputs that it answered here.
    """
    from torchwise.runtime.api import tune

    keywords = config.tune_keywords()
    keywords["examples"] = examples
    return tune(original, **keywords).decision


def decide_unverified(original: Callable[..., Any], examples: Sequence[Example], config: CompileConfig) -> Decision:
    """Decide for the plan that the config names. Nothing is run, verified or timed."""
    from torchwise.workload.identity import describe_example, structure

    assert config.plans is not None, "the config refuses verify=False without a plan"
    (plan,) = config.plans
    mode, device = "training" if config.training else "inference", device_of(config)
    return Decision(
        plan=plan,
        reason=f"{plan} is used unverified and untimed, as verify=False asks",
        speedup=None,
        break_even_calls=None,
        saved_s=0.0,
        baseline_s=0.0,
        cold_s=0.0,
        warm_s=None,
        workload=WorkloadSpec(f"{LIVE}component", device=device, mode=mode, calls=config.calls),  # type: ignore[arg-type]
        identity="",
        structure=structure(original),
        inputs=tuple(describe_example(example) for example in examples),
        environment=environment.detect(device),
    )


def apply_if_faster(original: Callable[..., Any], decision: Decision, config: CompileConfig) -> Found:
    """Apply a decision if its speed-up surely reaches the config's minimum, or if nothing is to be verified."""
    from torchwise.runtime.api import apply

    if not config.verify:
        logger.warning("torchwise: %s", decision.reason)
        return Found(apply(original, decision, store=config.store), decision.reason, decision=decision, verified=False)
    speedup = decision.speedup
    if decision.plan.is_eager:
        return Found(None, decision.reason, Fallback(FallbackReason.EAGER_DECISION), decision)
    if speedup is None or speedup.low < config.minimum_speedup:
        reason = (
            f"{decision.plan} is {speedup} times as fast, surely less than minimum_speedup {config.minimum_speedup}"
        )
        return Found(None, reason, Fallback(FallbackReason.NOT_FAST_ENOUGH, f"{speedup}"), decision)
    return Found(apply(original, decision, store=config.store), decision.reason, decision=decision)


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
        verified: whether the plan in use was verified, or None if no plan is in use.
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
    verified: bool | None = None


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
        """Create a component without a plan. The fields in `changes` differ from the manager's config."""
        self.name = name
        self.changes = dict(changes or {})
        self.original = original
        self.config = config.of_size(_count_parameters(original))
        self._find = find
        self._examples = tuple(examples)
        self.clear()

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle as disabled: a worker must run the original code, and a copy does not belong to the program."""
        return Component, (self.name, self.original, CompileConfig.of("development", autocast=self.config.autocast))

    def configure(self, config: CompileConfig) -> None:
        """Change the settings. A change of mode forgets the plan of the earlier mode."""
        config = config.of_size(_count_parameters(self.original))
        before, self.config = self.config, config
        if (before.plans, before.verify) != (config.plans, config.verify):
            self.clear()

    def clear(self) -> None:
        """Forget the plan, failures and statistics, so that the next call searches again."""
        self._found: Found | None = None
        self._counts = Statistics()  # of calls that no plan was asked for

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
            self._raise_unless_fallback(found)
            fallback = found.fallback
        assert fallback is not None
        return self._plainly(fallback, plain, args, kwargs)

    def close(self) -> None:
        """Free the plan's memory. The original answers from now on, until `clear`."""
        if self._found is not None and self._found.optimized is not None:
            optimized: Any = self._found.optimized
            optimized._torchwise.close()

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
        found, original, sentences = self._found, self._counts.original, self._counts.sentences
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
            found.verified if found.optimized else None,
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
        counts, config, begun = self._counts, self.config, time.perf_counter()
        find = self._find if config.verify else decide_unverified
        if config.verify:
            logger.info("torchwise: searching for a plan for component %s; the caller waits", self.name)
        try:
            original = wrap_in_autocast(self.original, config)
            trains = _trains(original, examples) if config.training is None else config.training
            found = apply_if_faster(original, find(original, examples, replace(config, training=trains)), config)
        except Exception as error:  # a failed search must not stop the program: log its error, keep it until clear()
            fallback = Fallback(FallbackReason.SEARCH_FAILED, f"{type(error).__name__}: {error}")
            found = Found(None, str(fallback), fallback, error=error)
            logger.warning("torchwise: component %s runs its original code until clear()", self.name, exc_info=error)
        if counts is self._counts:  # not cleared meanwhile
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
        self._counts.count(fallback)
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


def _count_parameters(original: Callable[..., Any]) -> int:
    """Count the parameters of a module. A function has none."""
    return sum(p.numel() for p in original.parameters()) if isinstance(original, torch.nn.Module) else 0


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
