"""Name the reasons for which the original answers a call, and make sentences of them for people.

Metrics and counts use `FallbackReason`, so their number is bounded. Logs and alerts use the sentence of a `Fallback`,
which also names shapes, classes and errors.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Self

FORMER_EAGER_DECISION = "the decision is to stay with eager"
"""The sentence by which pickles of earlier versions say that a decision is for eager."""

IS_REPLACED = True
"""The details of such a fallback are a whole sentence, and take the place of the reason's own words."""


class FallbackReason(StrEnum):
    """Why the original answers in place of a plan: one member for each response of a user.

    Attributes:
        fact: the reason in words. A detail follows in parentheses.
        remedy: the way out, or "".
        is_replaced: whether a detail is a whole sentence, and takes the place of fact and remedy.
    """

    fact: str
    remedy: str
    is_replaced: bool

    def __new__(cls, value: str, fact: str = "", remedy: str = "", is_replaced: bool = False) -> Self:
        """Make a member of its value, with its words."""
        member = str.__new__(cls, value)
        member._value_ = value
        member.fact, member.remedy, member.is_replaced = fact, remedy, is_replaced
        return member

    EAGER_DECISION = "eager_decision", "the decision is to stay with eager"
    STALE_DECISION = "stale_decision", "the decision is stale", "tune again"
    PLAN_REFUSED = "plan_refused", "the plan is refused", "", IS_REPLACED
    CLOSED = "closed", "it was closed", "", IS_REPLACED
    CANARY_MISMATCH = "canary_mismatch", "the canary found other answers than the original's"
    PLAN_FAILED = "plan_failed", "the plan failed"
    CIRCUIT_OPEN = "circuit_open", "the plan failed on calls of this signature, and is tried again later"
    OUT_OF_MEMORY = "out_of_memory", "the GPU ran out of memory under the plan, which is tried again later"
    RECOMPILE_LIMIT = "recompile_limit", "the plan was compiled again too often", "", IS_REPLACED
    MODEL_CHANGED = "model_changed", "the model changed, and the plan is compiled again", "", IS_REPLACED
    FROZEN = "frozen", "the plan is frozen, and has not answered such a call before", "call it so before the freeze"
    FROZEN_FREED = "frozen_freed", "the plan is frozen, and its memory was freed", "unfreeze it"
    FROZEN_CHANGED = (
        "frozen_changed",
        "the plan is frozen, and would be compiled or captured again, as the model, its mode or a setting of PyTorch "
        "changed",
        "change it back, or unfreeze it",
    )

    INPUTS_NOT_VERIFIED = (
        "inputs_not_verified",
        "the plan was not verified on inputs of this shape, type or value",
        'tune with such an example, too, or if sizes vary with sizes="varying"',
    )
    INPUTS_UNREADABLE = "inputs_unreadable", "an input cannot be described"
    INPUTS_SHARE_MEMORY = (
        "inputs_share_memory",
        "inputs share memory in an unverified way, with each other or with the model, and the call may write there",
    )
    OTHER_DEVICE = "other_device", "an input lies on another device than the plan's"
    FORWARD_CALLED = (
        "forward_called",
        "forward was called directly, and the plan does all that a call of the model does",
        "call the model",
    )

    GRADIENTS_ENABLED = (
        "gradients_enabled",
        "gradients are enabled, and the plan was verified without",
        "call it under torch.no_grad()",
    )
    AUTOCAST_ENABLED = "autocast_enabled", "autocast is enabled, and the plan was verified without"
    AUTOCAST_DIFFERS = (
        "autocast_differs",
        "the call is under another autocast than the plan was verified in, or under none",
        "tune the program with such calls alone",
    )
    TRANSFORM_ACTIVE = "transform_active", "a transform of functions (vmap, jvp, grad) is active"
    DISPATCH_MODE_ACTIVE = "dispatch_mode_active", "a mode that watches or replaces operators is active"
    GLOBAL_HOOK = "global_hook", "a hook for all modules is registered"
    HOOKS_CHANGED = "hooks_changed", "a hook was registered or removed since the plan was applied"
    TRAINING_MODE_CHANGED = (
        "training_mode_changed",
        "the model changed between train() and eval() since the plan was applied",
    )
    COMPILE_CHANGED = (
        "compile_changed",
        "model.compile() was called, or its code removed, since the plan was applied",
        "",
        IS_REPLACED,
    )
    CODE_REPLACED = "code_replaced", "code of the model was replaced since the plan was applied"

    ABOVE_BUCKETS = "above_buckets", "the inputs are larger than the largest bucket", "tune for such a size, too"
    BELOW_BUCKETS = (
        "below_buckets",
        "the inputs are smaller than the smallest size that padding is verified for",
        "set least of the rule lower",
    )
    EAGER_BUCKET = (
        "eager_bucket",
        "the decision for this bucket is to stay with eager, where padding would only cost time",
    )
    PADDING_NOT_VERIFIED = (
        "padding_not_verified",
        "padding was verified on calls with other arguments, types or values",
        "verify it with such an example",
    )
    PADDING_OUTDATED = "padding_outdated", "the model changed since padding was verified", "verify it again"
    PADDING_UNFIT = "padding_unfit", "the inputs do not fit the rule for padding"
    PADDING_FAILED = "padding_failed", "padding failed"

    STEP_CHANGED = "step_changed", "an attribute of the step was set after the decision for the plan"
    OTHER_RANK = "other_rank", "another rank cannot take the plan, so none does"
    RANKS_DISAGREE = "ranks_disagree", "rank 0 has another decision"
    NOT_FOR_RANKS = "not_for_ranks", "the plan works in one process only", "", IS_REPLACED

    TUNING_IN_BACKGROUND = "tuning_in_background", "tuning goes on in the background"
    BACKGROUND_TUNING_ENDED = "background_tuning_ended", "tuning in the background is over, and no plan was swapped in"

    FIRST_CALL = "first_call", "it was the first call, whose inputs the search then uses"
    SEARCH_RUNNING = "search_running", "a search is going on"
    SEARCH_POSTPONED = (
        "search_postponed",
        "a CUDA graph is being recorded, or a transform of functions is active, and no search can start now",
    )
    SEARCH_FAILED = "search_failed", "the search for a plan failed"
    NOT_FAST_ENOUGH = "not_fast_enough", "the low end of the plan's speed-up interval is below minimum_speedup"
    NESTED_COMPONENT = (
        "nested_component",
        "a component around it runs by a plan, which was verified with the original code of this one",
    )
    SWITCHED_OFF = "switched_off", "it is switched off"
    DISABLED = "disabled", "TORCHWISE_DISABLE is set"

    @property
    def is_choice(self) -> bool:
        """Whether no plan was to answer such a call, so that it does not count in a `fallback_rate`."""
        return self in CHOICES


CHOICES = frozenset(
    {
        FallbackReason.EAGER_DECISION,
        FallbackReason.EAGER_BUCKET,
        FallbackReason.TUNING_IN_BACKGROUND,
        FallbackReason.FIRST_CALL,
        FallbackReason.SEARCH_RUNNING,
        FallbackReason.SEARCH_POSTPONED,
        FallbackReason.NOT_FAST_ENOUGH,
        FallbackReason.NESTED_COMPONENT,
        FallbackReason.SWITCHED_OFF,
        FallbackReason.DISABLED,
    }
)
"""Reasons that were decided for, or that hold until something is decided."""


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
        reason = self.reason
        if self.detail and reason.is_replaced:
            return self.detail
        fact = f"{reason.fact} ({self.detail})" if self.detail else reason.fact
        return f"{fact}: {reason.remedy}" if reason.remedy else fact


def read_fallback(stored: Fallback | str | None) -> Fallback | None:
    """Return the fallback of a pickle. Pickles of earlier versions hold a sentence."""
    if not isinstance(stored, str):
        return stored
    if stored == FORMER_EAGER_DECISION:
        return Fallback(FallbackReason.EAGER_DECISION)
    return Fallback(FallbackReason.CLOSED, stored)
