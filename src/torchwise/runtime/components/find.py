"""Find a plan for a component: here while the caller waits, or in another process while the original answers."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from torchwise import environment
from torchwise.errors import PlanError, TorchwiseError
from torchwise.plan import Numerics
from torchwise.plan.space import numerics_of
from torchwise.plan.workload_spec import LIVE, WorkloadSpec
from torchwise.records import Decision
from torchwise.runtime.components.config import CompileConfig
from torchwise.runtime.components.program import device_of
from torchwise.runtime.fallback_reason import Fallback, FallbackReason
from torchwise.runtime.served import Served, served_of
from torchwise.workload import Example, pytree

logger = logging.getLogger("torchwise")

SEARCHING = Fallback(FallbackReason.TUNING_IN_BACKGROUND)

Find = Callable[[Callable[..., Any], Sequence[Example], CompileConfig], Decision]
"""Decides how to run a callable on such inputs. The config's `training` is already resolved."""


@dataclass(frozen=True, slots=True)
class Found:
    """The result of a search: a callable that runs by the plan, or why the original keeps answering.

    Attributes:
        optimized: runs by the plan, or None if the original answers.
        waiting: runs by a plan as soon as the search in the background has found one, or None without such a search.
        config: the settings of the search in the background, or None without such a search.
    """

    optimized: Callable[..., Any] | None
    reason: str
    fallback: Fallback | None = None
    decision: Decision | None = None
    error: Exception | None = None
    seconds: float = 0.0
    verified: bool = True
    waiting: Any = None
    config: CompileConfig | None = None

    @property
    def tuning(self) -> Any:
        """The search in the background, which may go on after a first plan, or None without such a search."""
        holder = self.optimized if self.waiting is None else self.waiting
        return vars(holder).get("background") if self.config is not None else None

    @property
    def served(self) -> Served | None:
        """What answers behind `optimized`. A search in the background may put a better plan in its place."""
        return served_of(self.optimized)


def copy_example(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Example, ...]:
    """Copy a call's inputs as the example of a search."""
    try:
        return (Example(args, kwargs).clone(),)
    except Exception:  # an input may be of any kind; the search then says what is wrong with it
        return (Example(args, kwargs),)


def needs_gradients(original: Callable[..., Any], examples: Sequence[Example]) -> bool:
    """Return whether a call with such inputs needs gradients."""
    tensors = pytree.tensors([(example.args, dict(example.kwargs)) for example in examples])
    tensors += list(original.parameters()) if isinstance(original, torch.nn.Module) else []
    return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)


def permits(config: CompileConfig, found: Found) -> bool:
    """Return whether the settings allow the plans in use, and any plan that a search that is under way may find."""
    if found.tuning is not None and found.tuning.state == "searching" and not permits_search(config, found):
        return False
    return found.served is None or all(_permits_plan(config, decision) for decision in found.served.decisions)


def permits_search(config: CompileConfig, found: Found) -> bool:
    """Return whether the settings allow any plan that the search in the background, if there is one, may find."""
    if (asked := found.config) is None:
        return True
    allows_all = Numerics.of(config.allow).allows(Numerics.of(asked.allow))
    return allows_all and asked.minimum_speedup >= config.minimum_speedup


def _permits_plan(config: CompileConfig, decision: Decision) -> bool:
    try:
        is_allowed = Numerics.of(config.allow).allows(numerics_of(decision.plan))
    except PlanError:  # of a plug-in that is not here: the original answers
        return True
    return is_allowed and (is_fast_enough(decision, config) or not config.verify)


def is_fast_enough(decision: Decision, config: CompileConfig) -> bool:
    """Whether a plan surely has the config's minimum speed-up, or was chosen for another reason than its speed."""
    is_fast = decision.speedup is not None and decision.speedup.low >= config.minimum_speedup
    return is_fast or decision.is_needed


def search_in_background(
    original: Callable[..., Any],
    examples: Sequence[Example],
    config: CompileConfig,
    turn: threading.Lock,
) -> Found:
    """Search in another process, while the original answers. `turn` is held, and released once the search is over.

    Raises:
        InputError: the component or its inputs cannot be sent to another process.
    """
    from torchwise.runtime.start_background import start_in_background

    options = config.tune_keywords()
    options["examples"] = examples
    waiting = start_in_background(
        original, **options, sizes=config.sizes, minimum_speedup=config.minimum_speedup, turn=turn
    )
    return Found(None, str(SEARCHING), SEARCHING, waiting=waiting, config=config)


def read_background(found: Found) -> Found:
    """Return the result of a search in the background: as it was if nothing is found yet."""
    tuning = found.waiting.background
    seconds = time.monotonic() - tuning.started
    if tuning.is_promoted:
        decision = found.waiting.decision
        return Found(found.waiting, decision.reason, decision=decision, seconds=seconds, config=found.config)
    if tuning.state == "searching":
        return found
    last = next((news for news in reversed(tuning.news) if news.kind != "done"), None)
    kind, text = (last.kind, last.text) if last else ("left", tuning.state)
    if kind == "failed":
        fallback = Fallback(FallbackReason.SEARCH_FAILED, text)
        return Found(None, str(fallback), fallback, error=TorchwiseError(text), seconds=seconds)
    if kind == "left" and last is not None and last.decision:
        decision = last.parse_decision()
        too_slow = Fallback(FallbackReason.NOT_FAST_ENOUGH, f"{decision.speedup}")
        return Found(None, text, too_slow, decision, seconds=seconds)
    reason = FallbackReason.EAGER_DECISION if kind == "stays" else FallbackReason.BACKGROUND_TUNING_ENDED
    return Found(None, text, Fallback(reason, text), seconds=seconds)


def tune_in_workers(original: Callable[..., Any], examples: Sequence[Example], config: CompileConfig) -> Decision:
    """Tune in worker processes, and wait for the decision.

    Raises:
        InputError: the component or its inputs cannot be sent to a worker.
        BaselineError: the component raises in a worker, on inputs that it answered here.
    """
    from torchwise.runtime.api import tune

    keywords = config.tune_keywords()
    keywords["examples"] = examples
    return tune(original, sizes=config.sizes, **keywords).decision


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
    if not is_fast_enough(decision, config):
        reason = (
            f"{decision.plan} is {speedup} times as fast, surely less than minimum_speedup {config.minimum_speedup}"
        )
        return Found(None, reason, Fallback(FallbackReason.NOT_FAST_ENOUGH, f"{speedup}"), decision)
    return Found(apply(original, decision, store=config.store), decision.reason, decision=decision)
