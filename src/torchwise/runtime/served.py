"""One contract for all that answers in place of an original: `can_run`, a call, and `close`.

A plan (`Dispatcher`), the plans of several sizes (`Buckets`) and a training step (`StepDispatcher`) keep it. A program
holds a wrapper around one of them. The wrapper looks like the original, and knows nothing of what it holds.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from torchwise.compile import Backend, CompiledPlan, compile_plan
from torchwise.compile.cuda_graphs.compile_freeze import forbid_compile
from torchwise.compile.guards.varying_values import VaryingValue
from torchwise.compile.recompiles import Price, Recompiles
from torchwise.errors import InputError, StalePlanError
from torchwise.records import Decision
from torchwise.runtime.fallback_reason import Fallback, FallbackReason, read_fallback
from torchwise.runtime.staleness import find_other_weights, stale_because
from torchwise.runtime.statistics import EAGER_DECISION, MIN_CALLS, Fallbacks, Statistics
from torchwise.workload import Example
from torchwise.workload.identity import specify_inputs

logger = logging.getLogger("torchwise")

CLOSED = Fallback(FallbackReason.CLOSED)
NOT_VERIFIED = Fallback(FallbackReason.INPUTS_NOT_VERIFIED)
FROZEN = Fallback(FallbackReason.FROZEN)
FREED = Fallback(FallbackReason.FROZEN_FREED)
MIN_PRICE_S, AS_AT_FIRST = 60.0, 2.0
"""Seconds that compilations after the first calls may take in any case, and as a multiple of those of the decision.

They may also take as long as the plan has saved so far.
"""
Recipe = tuple[Callable[..., "Served"], tuple[Any, ...]]
"""A function that makes a served callable again in a copy or from a pickle, and its arguments."""


class Served(ABC):
    """Answers calls by a plan where the plan was verified, and by the original otherwise.

    A call never fails because of a plan: the original answers, and the call is counted with the reason. Only a training
    step among several ranks fails with its plan (`StepDispatcher`). If the original raises as well, its error is the
    caller's. `torchwise.testing.served` has the contract as tests.

    Calls do not ask `can_run`, as they find the same reasons on their way. It is for programs, which may ask before a
    call: to send a request elsewhere, or to show who would answer it (`docs/monitoring.md`).

    Args:
        original: the module, function or training step.
        decision: the decision for it.
        refusal: why no plan may answer at all, or None.
        statistics: counts calls, if several share it.
        happens: the beginning of the log's line about a call that the original answers.
        min_calls: calls before an alert says that the original answers too many of them.
        answer_instead: answers in place of the plan, by default the original.

    Attributes:
        is_step: whether it takes training steps.
        is_frozen: whether nothing more may be compiled and captured.
        is_eager_only: whether the original answers every call, as a decision for eager says, and that was logged.
    """

    is_step: ClassVar[bool] = False

    def __init__(
        self,
        original: Callable[..., Any],
        decision: Decision,
        refusal: Fallback | None,
        statistics: Statistics | None = None,
        *,
        happens: str = "the original answers",
        min_calls: int = MIN_CALLS,
        answer_instead: Callable[..., Any] | None = None,
    ) -> None:
        self.original = original
        self._answer_instead = answer_instead or original
        self.decision = decision
        self.statistics = Statistics() if statistics is None else statistics
        self.is_frozen = False
        self.is_eager_only = False
        self._refusal = refusal if refusal or not decision.plan.is_eager else EAGER_DECISION
        self._fallbacks = Fallbacks(decision, happens, min_calls)
        self._fallbacks.begin(self.statistics)

    @abstractmethod
    def can_run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Fallback | None:
        """Return why the original would answer such a call now, or None if a plan may. Nothing is counted."""

    @abstractmethod
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Answer as the original does."""

    @abstractmethod
    def forget(self) -> None:
        """Free the memory of all that was compiled and captured. The calls that need it compile again."""

    @abstractmethod
    def get_recipe(self) -> Recipe:
        """Return how a copy or a pickle makes it again: code is compiled anew, and what was refused stays refused."""

    def describe(self) -> str:
        """Name the plan, for the `repr` of a wrapper."""
        return f"plan: {self.decision.plan}"

    def close(self, fallback: Fallback = CLOSED) -> None:
        """Disable the plans and free their memory. The original answers from now on, with this reason."""
        self._refusal, self.is_eager_only = fallback, False
        self.forget()

    def freeze(self) -> None:
        """Compile and capture nothing more: the original answers every call that needs it.

        Such calls have signatures that the plan never answered, or follow a change of the model or of PyTorch's
        settings that the plan does not follow. If that changes back, the plan answers again.

        Raises:
            UnsupportedError: this torch does not say when it compiles.
        """
        forbid_compile(self.original)  # which raises
        self.set_frozen(True)
        self.statistics.freeze()

    def unfreeze(self) -> None:
        """Compile and capture again, on the calls that need it."""
        self.set_frozen(False)
        self.statistics.unfreeze()

    def set_frozen(self, frozen: bool) -> None:
        """Say whether nothing more may be compiled and captured. `freeze` and `unfreeze` count as well."""
        self.is_frozen = frozen

    def count_in(self, statistics: Statistics) -> None:
        """Count the calls that come from now on in these statistics."""
        self.statistics = statistics
        self._fallbacks.begin(statistics)

    @property
    def decisions(self) -> tuple[Decision, ...]:
        """The decisions of all plans that may answer."""
        return (self.decision,)

    @property
    def counts(self) -> Statistics:
        """The counts of the calls so far."""
        return self.statistics

    @property
    def plan_name(self) -> str:
        """The plan, as text."""
        return str(self.decision.plan)

    @property
    def refusal(self) -> Fallback | None:
        """Why no plan may answer at all, if that is so: it was refused, or closed since."""
        return self._refusal

    @property
    def active_plan(self) -> CompiledPlan | None:
        """The one compiled plan, if there is one."""
        return None

    def log_unverified(self, level: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Log for which inputs the plan was verified, and which came, if that is the first time."""
        if not self._fallbacks.is_said(NOT_VERIFIED):
            came = specify_inputs(Example(args, kwargs))
            logger.log(level, "torchwise: the plan was verified on %s, and not on %s", self.decision.inputs, came)

    def make_price(self) -> Price:
        """Return the price of compilations after the first calls: they may take as long as they can still pay."""
        return Price(self._limit_of_price_s, self._pay_compilation)

    def _limit_of_price_s(self) -> float:
        decision, speedup = self.decision, self.decision.speedup
        per_call_s = decision.baseline_s * (1 - 1 / speedup.mid) if speedup is not None else 0.0
        saved_s = self.statistics.optimized * per_call_s
        return max(MIN_PRICE_S, AS_AT_FIRST * decision.cold_s, saved_s)

    def _pay_compilation(self, seconds: float) -> None:
        self.statistics.later_compiles += 1
        self.statistics.later_compiles_s += seconds

    def answer_by_original(self, fallback: Fallback, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Answer a call that no plan may answer, count it, and log the reason if it is new."""
        # Another thread may have closed it.
        self.is_eager_only = fallback.reason is FallbackReason.EAGER_DECISION and fallback is self._refusal
        self._fallbacks.count(fallback, self.statistics)
        return self._answer_instead(*args, **kwargs)


class UnjudgedWeightsError(StalePlanError):
    """The user's tolerance judged a plan on other weights than the model has now."""


class LivePlan:
    """The code of a plan: compiled for the first call that needs it, and again after it was forgotten.

    Attributes:
        original: the module, function or training step that it is compiled of.
        compiled: the compiled plan, or None.
        changed_since: the change after which the plan must be compiled again, or None.
    """

    def __init__(
        self,
        original: Callable[..., Any],
        decision: Decision,
        recompiles: Recompiles,
        *,
        borrow: bool = False,
        backend: Backend | None = None,
    ) -> None:
        self.original, self._decision, self._recompiles = original, decision, recompiles
        self._borrow, self._backend = borrow, backend
        self.compiled: CompiledPlan | None = None
        self.changed_since: VaryingValue | None = None

    def compile(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> CompiledPlan:
        """Return the compiled plan.

        Raises:
            UnjudgedWeightsError: its error was not judged on the weights that the model has now.
        """
        compiled = self.compiled
        if compiled is None:
            if why := find_other_weights(self.original, self._decision):
                raise UnjudgedWeightsError(why)
            if self.changed_since is not None:
                self._recompiles.again([self.changed_since], at_start=True)
            workload = self._decision.workload
            self.compiled = compiled = compile_plan(
                self.original,
                self._decision.plan,
                Example(args, kwargs),
                device=workload.device,
                mode=workload.mode,
                borrow=self._borrow,
                backend=self._backend,
                recompiles=self._recompiles,
                inputs=self._decision.inputs,
            )
            self.changed_since = None
        return compiled

    def forget(self) -> None:
        """Free the plan's memory."""
        compiled, self.compiled = self.compiled, None
        if compiled is not None:
            compiled.close()


class Wrapper:
    """What a program holds in place of an original. It has few names of its own, as a model may have any."""

    _torchwise: Served

    @classmethod
    def _wrap(cls, served: Served) -> Any:
        """Return a wrapper of this class around a served callable."""
        made = cls.__new__(cls, served.original)  # type: ignore[call-arg]
        made._hold(served)
        return made

    def _hold(self, served: Served) -> None:
        object.__setattr__(self, "_torchwise", served)  # by which Python makes no dict, and reads it faster

    @property
    def _dispatcher(self) -> Any:
        return self._torchwise

    @property
    def decision(self) -> Decision:
        """The decision for the original."""
        decision: Decision = self._dispatcher.decision
        return decision

    @property
    def statistics(self) -> Statistics:
        """The counts of the calls so far."""
        statistics: Statistics = self._dispatcher.statistics
        return statistics

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy and pickle as the original and its decision: code is compiled again."""
        kind: type = vars(type(self)).get("_copied_as", type(self))
        return rebuild, (kind, *self._dispatcher.get_recipe(), self._own_state())

    def _own_state(self) -> dict[str, Any]:
        """Return the attributes that a copy takes along."""
        return {}


def rebuild(
    wrapper: type[Wrapper], make: Callable[..., Served], parts: tuple[Any, ...], own: Mapping[str, Any] | None = None
) -> Any:
    """Make a wrapper again from a copy or a pickle."""
    made = wrapper._wrap(make(*parts))
    if own:
        vars(made).update(own)  # the very dictionaries of hooks, by which copied handles know theirs
    return made


def refusal_of_copy(original: Any, decision: Decision, refusal: Fallback | str | None) -> Fallback | None:
    """Return why a plan may not answer in a copy, which may have come to another machine: stale is never trusted.

    A plan that was refused or disabled is so in a copy as well.
    """
    stale = stale_because(original, decision)
    return Fallback(FallbackReason.STALE_DECISION, stale) if stale else read_fallback(refusal)


def served_of(wrapper: Any) -> Served | None:
    """Return what answers for a wrapper, or None for any other object."""
    # By the real type, as a module's `__class__` is the original's. `functools.wraps` copies attributes to others.
    found = getattr(wrapper, "__dict__", {}).get("_torchwise") if issubclass(type(wrapper), Wrapper) else None
    return found if isinstance(found, Served) else None


def dispatcher_of(wrapper: Any) -> Served | None:
    """Return what answers for an optimised module or function, or None for any other object, steps included."""
    found = served_of(wrapper)
    return None if found is None or found.is_step else found


def unwrap(optimized: Any) -> Any:
    """Return the original behind an optimised module, function or step, or any other object as it is."""
    found = served_of(optimized)
    return optimized if found is None else found.original


def swap(optimized: Any, served: Served) -> None:
    """Have `served` answer the calls that come from now on. Calls under way end as they began.

    One reference replaces another, which no thread can see half done. The former one frees itself when the last of its
    calls is over.

    Raises:
        InputError: it is nothing that Torchwise optimised.
    """
    if dispatcher_of(optimized) is None:
        raise InputError(
            f"it is a {type(optimized).__name__}, but only a module or function from torchwise.apply can be swapped"
        )
    object.__setattr__(optimized, "_torchwise", served)
