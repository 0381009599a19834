"""Name the reasons for which the original answers a call, and make sentences of them for people.

Metrics and counts use `FallbackReason`, so their number is bounded. Logs and alerts use the sentence of a `Fallback`,
which also names shapes, classes and errors.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple


class FallbackReason(StrEnum):
    """Why the original answers in place of a plan: one member for each response of a user."""

    EAGER_DECISION = "eager_decision"
    STALE_DECISION = "stale_decision"
    PLAN_REFUSED = "plan_refused"
    CLOSED = "closed"
    CANARY_MISMATCH = "canary_mismatch"
    PLAN_FAILED = "plan_failed"
    CIRCUIT_OPEN = "circuit_open"
    OUT_OF_MEMORY = "out_of_memory"
    RECOMPILE_LIMIT = "recompile_limit"
    MODEL_CHANGED = "model_changed"
    FROZEN = "frozen"
    FROZEN_FREED = "frozen_freed"
    FROZEN_CHANGED = "frozen_changed"

    INPUTS_NOT_VERIFIED = "inputs_not_verified"
    INPUTS_UNREADABLE = "inputs_unreadable"
    INPUTS_SHARE_MEMORY = "inputs_share_memory"
    OTHER_DEVICE = "other_device"
    FORWARD_CALLED = "forward_called"

    GRADIENTS_ENABLED = "gradients_enabled"
    AUTOCAST_ENABLED = "autocast_enabled"
    TRANSFORM_ACTIVE = "transform_active"
    DISPATCH_MODE_ACTIVE = "dispatch_mode_active"
    GLOBAL_HOOK = "global_hook"
    HOOKS_CHANGED = "hooks_changed"
    TRAINING_MODE_CHANGED = "training_mode_changed"
    COMPILE_CHANGED = "compile_changed"
    CODE_REPLACED = "code_replaced"

    ABOVE_BUCKETS = "above_buckets"
    BELOW_BUCKETS = "below_buckets"
    EAGER_BUCKET = "eager_bucket"
    PADDING_NOT_VERIFIED = "padding_not_verified"
    PADDING_OUTDATED = "padding_outdated"
    PADDING_UNFIT = "padding_unfit"
    PADDING_FAILED = "padding_failed"

    STEP_CHANGED = "step_changed"
    OTHER_RANK = "other_rank"
    RANKS_DISAGREE = "ranks_disagree"
    NOT_FOR_RANKS = "not_for_ranks"

    TUNING_IN_BACKGROUND = "tuning_in_background"
    BACKGROUND_TUNING_ENDED = "background_tuning_ended"

    FIRST_CALL = "first_call"
    SEARCH_RUNNING = "search_running"
    SEARCH_POSTPONED = "search_postponed"
    SEARCH_FAILED = "search_failed"
    NOT_FAST_ENOUGH = "not_fast_enough"
    NESTED_COMPONENT = "nested_component"
    SWITCHED_OFF = "switched_off"
    DISABLED = "disabled"


class _Words(NamedTuple):
    """The words for a reason.

    Attributes:
        fact: the reason. A detail follows in parentheses.
        remedy: the way out, or "".
        is_replaced: whether a detail is a whole sentence, and takes the place of fact and remedy.
    """

    fact: str
    remedy: str = ""
    is_replaced: bool = False


_WORDS = {
    FallbackReason.EAGER_DECISION: _Words("the decision is to stay with eager"),
    FallbackReason.STALE_DECISION: _Words("the decision is stale", "tune again"),
    FallbackReason.PLAN_REFUSED: _Words("the plan is refused", is_replaced=True),
    FallbackReason.CLOSED: _Words("it was closed", is_replaced=True),
    FallbackReason.CANARY_MISMATCH: _Words("the canary found other answers than the original's"),
    FallbackReason.PLAN_FAILED: _Words("the plan failed"),
    FallbackReason.CIRCUIT_OPEN: _Words("the plan failed on calls of this signature, and is tried again later"),
    FallbackReason.OUT_OF_MEMORY: _Words("the GPU ran out of memory under the plan, which is tried again later"),
    FallbackReason.RECOMPILE_LIMIT: _Words("the plan was compiled again too often", is_replaced=True),
    FallbackReason.MODEL_CHANGED: _Words("the model changed, and the plan is compiled again", is_replaced=True),
    FallbackReason.FROZEN: _Words(
        "the plan is frozen, and has not answered such a call before", "call it so before the freeze"
    ),
    FallbackReason.FROZEN_FREED: _Words("the plan is frozen, and its memory was freed", "unfreeze it"),
    FallbackReason.FROZEN_CHANGED: _Words(
        "the plan is frozen, and would be compiled or captured again, as the model, its mode or a setting of PyTorch "
        "changed",
        "change it back, or unfreeze it",
    ),
    FallbackReason.INPUTS_NOT_VERIFIED: _Words(
        "the plan was not verified on inputs of this shape, type or value", "tune with such an example, too"
    ),
    FallbackReason.INPUTS_UNREADABLE: _Words("an input cannot be described"),
    FallbackReason.INPUTS_SHARE_MEMORY: _Words(
        "inputs share memory in an unverified way, with each other or with the model, and the call may write there"
    ),
    FallbackReason.OTHER_DEVICE: _Words("an input lies on another device than the plan's"),
    FallbackReason.FORWARD_CALLED: _Words(
        "forward was called directly, and the plan does all that a call of the model does", "call the model"
    ),
    FallbackReason.GRADIENTS_ENABLED: _Words(
        "gradients are enabled, and the plan was verified without", "call it under torch.no_grad()"
    ),
    FallbackReason.AUTOCAST_ENABLED: _Words("autocast is enabled, and the plan was verified without"),
    FallbackReason.TRANSFORM_ACTIVE: _Words("a transform of functions (vmap, jvp, grad) is active"),
    FallbackReason.DISPATCH_MODE_ACTIVE: _Words("a mode that watches or replaces operators is active"),
    FallbackReason.GLOBAL_HOOK: _Words("a hook for all modules is registered"),
    FallbackReason.HOOKS_CHANGED: _Words("a hook was registered or removed since the plan was applied"),
    FallbackReason.TRAINING_MODE_CHANGED: _Words(
        "the model changed between train() and eval() since the plan was applied"
    ),
    FallbackReason.COMPILE_CHANGED: _Words(
        "model.compile() was called, or its code removed, since the plan was applied", is_replaced=True
    ),
    FallbackReason.CODE_REPLACED: _Words("code of the model was replaced since the plan was applied"),
    FallbackReason.ABOVE_BUCKETS: _Words("the inputs are larger than the largest bucket"),
    FallbackReason.BELOW_BUCKETS: _Words("the inputs are smaller than the smallest size that padding is verified for"),
    FallbackReason.EAGER_BUCKET: _Words(
        "the decision for this bucket is to stay with eager, where padding would only cost time"
    ),
    FallbackReason.PADDING_NOT_VERIFIED: _Words(
        "padding was verified on calls with other arguments, types or values", "verify it with such an example"
    ),
    FallbackReason.PADDING_OUTDATED: _Words("the model changed since padding was verified", "verify it again"),
    FallbackReason.PADDING_UNFIT: _Words("the inputs do not fit the rule for padding"),
    FallbackReason.PADDING_FAILED: _Words("padding failed"),
    FallbackReason.STEP_CHANGED: _Words("an attribute of the step was set after the decision for the plan"),
    FallbackReason.OTHER_RANK: _Words("another rank cannot take the plan, so none does"),
    FallbackReason.RANKS_DISAGREE: _Words("rank 0 has another decision"),
    FallbackReason.NOT_FOR_RANKS: _Words("the plan works in one process only", is_replaced=True),
    FallbackReason.TUNING_IN_BACKGROUND: _Words("tuning goes on in the background"),
    FallbackReason.BACKGROUND_TUNING_ENDED: _Words("tuning in the background is over, and no plan was swapped in"),
    FallbackReason.FIRST_CALL: _Words("it was the first call, whose inputs the search then uses"),
    FallbackReason.SEARCH_RUNNING: _Words("a search is going on"),
    FallbackReason.SEARCH_POSTPONED: _Words(
        "a CUDA graph is being recorded, or a transform of functions is active, and no search can start now"
    ),
    FallbackReason.SEARCH_FAILED: _Words("the search for a plan failed"),
    FallbackReason.NOT_FAST_ENOUGH: _Words("the low end of the plan's speed-up interval is below minimum_speedup"),
    FallbackReason.NESTED_COMPONENT: _Words(
        "a component around it runs by a plan, which was verified with the original code of this one"
    ),
    FallbackReason.SWITCHED_OFF: _Words("it is switched off"),
    FallbackReason.DISABLED: _Words("TORCHWISE_DISABLE is set"),
}


@dataclass(frozen=True, slots=True)
class Fallback:
    """One fallback to the original: its reason, and details such as names and figures.

    Its `str()` is the sentence for people.

    Attributes:
        reason: the reason, which counts and metrics use.
        detail: the detail in words, or "".
    """

    reason: FallbackReason
    detail: str = ""

    def __str__(self) -> str:
        words = _WORDS[self.reason]
        if self.detail and words.is_replaced:
            return self.detail
        fact = f"{words.fact} ({self.detail})" if self.detail else words.fact
        return f"{fact}: {words.remedy}" if words.remedy else fact


FORMER_EAGER_DECISION = "the decision is to stay with eager"
"""The sentence by which pickles of earlier versions say that a decision is for eager."""


def read_fallback(stored: Fallback | str | None) -> Fallback | None:
    """Return the fallback of a pickle. Pickles of earlier versions hold a sentence."""
    if not isinstance(stored, str):
        return stored
    if stored == FORMER_EAGER_DECISION:
        return Fallback(FallbackReason.EAGER_DECISION)
    return Fallback(FallbackReason.CLOSED, stored)
