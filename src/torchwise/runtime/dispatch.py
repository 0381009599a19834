"""Which of two answers a call: the plan, where it was proven for such a call, or else the original."""

from __future__ import annotations

import logging
import re
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import is_autocast_enabled, is_grad_enabled
from torch._C._functorch import peek_interpreter_stack
from torch.autograd import forward_ad
from torch.nn.modules import module as modules

from torchwise.errors import UnsupportedError
from torchwise.realize import Realized, Recognizer, Signature, realize, signature_of
from torchwise.records import Decision
from torchwise.workload import Example, trees
from torchwise.workload.identity import describe_example

logger = logging.getLogger("torchwise")

NOT_PROVEN = "the plan was not proven on inputs of this shape, type or value: tune with such an example, too"
MOST_FAILURES = 3
"""Failures of the plan after which the original answers for good."""


@dataclass(slots=True)
class Statistics:
    """What became of the calls so far.

    Attributes:
        optimized: calls that the plan answered.
        original: calls that the original answered, by reason.
    """

    optimized: int = 0
    original: Counter[str] = field(default_factory=Counter)


class Dispatcher:
    """Answers calls by a decided plan where it is proven, and by the original everywhere else.

    The plan answers a call whose inputs have a signature it was proven on (a plan with dynamic shapes: the same dtypes
    and ranks), in the grad mode it was proven in. It is realised on the first such call. A failure of the plan answers
    from the original on that very call, is logged once, and after `MOST_FAILURES` the plan is given up. If the original
    raises as well, its error is the caller's.
    """

    def __init__(
        self, original: Callable[..., Any], decision: Decision, refusal: str | None = None, *, borrow: bool = False
    ) -> None:
        self.original = original
        self.borrow = borrow
        self.decision = decision
        self.statistics = Statistics()
        self._refusal = refusal if refusal or not decision.plan.is_eager else "the decision is to stay with eager"
        self._proven: dict[Signature, Callable[..., Any]] = {}
        self._last: tuple[Recognizer, Callable[..., Any]] | None = None  # of the last signature that was proven anew
        self._realized: Realized | None = None
        self._failures = 0
        self._lock = threading.Lock()
        self._logged: set[str] = set()
        self._device, self._inference = decision.workload.device, decision.workload.mode == "inference"
        self._module = original if isinstance(original, torch.nn.Module) else None
        self._state = vars(original) if self._module is not None else None
        self._training = getattr(original, "training", None)
        self._hooked_everywhere = bool(modules._has_any_global_hook())
        self._hooked = self._module is not None and bool(self._module._forward_hooks or self._module._forward_pre_hooks)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Answer as the original does; `benchmarks/dispatch.py` measures what that adds to the plan's own time."""
        refusal = self._refusal
        if refusal is not None:
            if refusal not in self._logged:
                return self._original(refusal, args, kwargs)
            self.statistics.original[refusal] += 1
            return self.original(*args, **kwargs)
        last, key = self._last, None
        call = last[1] if last is not None and not kwargs and last[0](args) else None
        if call is None:
            try:
                key = signature_of(args, kwargs)
            except Exception:  # an input may be of any kind, and refuse to be looked at
                return self._original("an input cannot be described", args, kwargs)
            call = self._proven.get(key)
        if call is None or is_grad_enabled() or is_autocast_enabled(self._device) or self._changed():
            return self._slow(key or signature_of(args, kwargs), args, kwargs)
        try:
            result = call(*args, **kwargs)
        except Exception as error:  # whatever the plan does, the call is answered; the failure is counted and logged
            return self._failed(error, args, kwargs)
        self.statistics.optimized += 1
        return result

    def _slow(self, key: Signature, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Answer a call whose signature is new or not proven, or whose state may not be that of the proof."""
        refusal = self._blocked(args, kwargs)
        if refusal is None and key not in self._proven:
            refusal = self._unproven(args, kwargs)
        if refusal is not None:
            return self._original(refusal, args, kwargs)
        try:
            with self._lock:  # two first calls at once would compile twice
                realized = self._realize(args, kwargs)
            result = realized.call(*args, **kwargs)
            lean = realized.lean(args, kwargs)
        except Exception as error:  # as above: compiling happens here too, and may fail in any way
            return self._failed(error, args, kwargs)
        # Another thread may have given the plan up, and the call may have changed what it was given.
        if self._refusal is None and signature_of(args, kwargs) == key:
            self._proven[key] = lean
            self._last = _recognized(args, kwargs, lean)
        self.statistics.optimized += 1
        return result

    def _failed(self, error: Exception, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Answer by the original; where that raises too, the fault was the call's, and is not the plan's."""
        result = self._original(f"the plan failed ({type(error).__name__})", args, kwargs)
        self._failures += 1
        if self._failures == 1:
            logger.warning("torchwise: plan %s failed, the original answers", self.decision.plan, exc_info=error)
        if self._failures >= MOST_FAILURES:
            self.close(f"the plan failed {self._failures} times, last with {type(error).__name__}")
        return result

    @property
    def realized(self) -> Realized | None:
        """What the plan became; None before the first call that it answers, and after it was given up."""
        return self._realized

    def close(self, reason: str = "it was closed") -> None:
        """Give up the plan and free what it holds; the original answers from now on."""
        self._refusal = reason
        self._proven.clear()
        self._last = None
        if self._realized is not None:
            self._realized.close()
            self._realized = None

    def _realize(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Realized:
        if self._realized is None:
            workload = self.decision.workload
            self._realized = realize(
                self.original,
                self.decision.plan,
                Example(args, kwargs),
                device=workload.device,
                mode=workload.mode,
                borrow=self.borrow,
            )
        return self._realized

    def _original(self, reason: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self.statistics.original[reason] += 1
        if reason not in self._logged:
            self._logged.add(reason)
            level = logging.INFO if self.decision.plan.is_eager else logging.WARNING
            logger.log(level, "torchwise: the original answers, because %s", reason)
        return self.original(*args, **kwargs)

    def _blocked(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
        """Return why the plan may not answer in the state that the process and the model are in, or None."""
        if is_grad_enabled() and self._inference and self._trains(args, kwargs):
            return "gradients are enabled, and the plan was proven without: call it under torch.no_grad()"
        if is_autocast_enabled(self._device):
            return "autocast is enabled, and the plan was proven without"
        return self._changed()

    def _changed(self) -> str | None:
        """Return how the module differs from when the plan was applied, or None. This runs on every call."""
        if forward_ad._current_level >= 0 or peek_interpreter_stack() is not None:
            return "a transform of functions (vmap, jvp, grad) is active"
        if modules._has_any_global_hook() and not self._hooked_everywhere:
            return "a hook for all modules was registered since the plan was applied"
        state = self._state
        if state is None:
            return None
        if state["training"] is not self._training:
            return "the model changed between train() and eval() since the plan was applied"
        if (state["_forward_hooks"] or state["_forward_pre_hooks"]) and not self._hooked:
            return "a hook was registered since the plan was applied"
        return None

    def _trains(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Whether an answer could need a gradient.

        What a function closes over cannot be seen; compiled code would carry its gradients, a captured graph would not.
        """
        if self._module is not None and any(p.requires_grad for p in self._module.parameters()):
            return True
        if self._module is None and self.decision.plan.capture != "none":
            return True
        return any(t.requires_grad for t in trees.tensors((args, kwargs)))

    def _unproven(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
        elsewhere = {t.device.type for t in trees.tensors((args, kwargs))} - {self.decision.workload.device}
        if elsewhere:
            return f"an input lies on {elsewhere.pop()}, and the plan was proven on {self.decision.workload.device}"
        given = describe_example(Example(args, kwargs))
        if given in self.decision.inputs:
            return None
        if self.decision.plan.shapes == "dynamic" and _ranks(given) in {_ranks(i) for i in self.decision.inputs}:
            return None
        if NOT_PROVEN not in self._logged:
            logger.info("torchwise: the plan was proven on %s, and is asked for %s", self.decision.inputs, given)
        return NOT_PROVEN


def _recognized(
    args: tuple[Any, ...], kwargs: dict[str, Any], call: Callable[..., Any]
) -> tuple[Recognizer, Callable[..., Any]] | None:
    if kwargs:
        return None
    try:
        return Recognizer(args), call
    except UnsupportedError:
        return None


def _ranks(description: str) -> str:
    """Blank out the sizes and strides of a description, keeping names, dtypes and ranks."""
    return re.sub(r"\d+(?=[,\]\)])", "·", description)
