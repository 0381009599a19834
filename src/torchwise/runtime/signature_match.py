"""Whether one call is like another, as far as a plan goes."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any

import torch

from torchwise.compile import Recognizer, Signature, signature_of
from torchwise.plan import Plan
from torchwise.runtime.fallback_reason import Fallback, FallbackReason
from torchwise.workload import pytree
from torchwise.workload.input_spec import InputSpec, parse_inputs

Known = tuple[Recognizer, Callable[..., Any]]
"""Recognizes calls like one that was answered, with the function that answers them."""


def is_of(key: Signature, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a call still has this signature, and the signature is hashable."""
    try:
        return signature_of(args, kwargs) == key and hash(key) is not None
    except Exception:  # an input may be of any kind, and fail when it is described
        return False


def make_recognizer(args: tuple[Any, ...], kwargs: dict[str, Any], call: Callable[..., Any]) -> Known | None:
    """Return a recognizer of calls like this one that makes no signatures, or None if there can be none."""
    try:
        return Recognizer(args, kwargs), call
    except Exception:  # an input may be of any kind, and the call is answered already
        return None


class VerifiedInputs:
    """The inputs that a plan was verified on.

    Args:
        inputs: one line for each example, as a decision stores it.
        dynamic: whether the plan was verified for other sizes of the same ranks, too.
    """

    def __init__(self, inputs: Sequence[str], *, dynamic: bool) -> None:
        self._strips_sizes = dynamic
        specs = [*map(parse_inputs, inputs)]
        self._are_regular = all(spec.is_regular for spec in specs)
        self._forms = {self._form_of(spec) for spec in specs}
        self._memory = {(self._form_of(spec), spec.overlaps) for spec in specs}

    @staticmethod
    def find_other_device(args: tuple[Any, ...], kwargs: dict[str, Any], device: str) -> Fallback | None:
        """Return that an input lies on another device than the plan's, or None if none does."""
        elsewhere = {tensor.device.type for tensor in pytree.tensors((args, kwargs))} - {device}
        return Fallback(FallbackReason.OTHER_DEVICE, f"{elsewhere.pop()}, and not {device}") if elsewhere else None

    def cover(self, spec: InputSpec) -> bool:
        """Whether they have the same form: paths, dtypes, shapes and strides (or ranks), and other values.

        The memory that inputs share is left out.
        """
        return any(self._form_of(same) in self._forms for same in self._read_both_ways(spec))

    def cover_memory(self, spec: InputSpec) -> bool:
        """Whether they have the same form, and share memory in the same way."""
        return any((self._form_of(same), same.overlaps) in self._memory for same in self._read_both_ways(spec))

    def _form_of(self, spec: InputSpec) -> Hashable:
        return spec.strip_sizes() if self._strips_sizes else spec.leaves

    def _read_both_ways(self, spec: InputSpec) -> Iterator[InputSpec]:
        """Yield inputs as they are, and as their line is read: a printed form with unpaired quotes is cut elsewhere."""
        yield spec
        if not self._are_regular:
            yield parse_inputs(str(spec))


def may_need_gradients(
    module: torch.nn.Module | None, plan: Plan, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> bool:
    """Whether an answer could need a gradient.

    A function's closure cannot be searched. Compiled code would carry its gradients, and a captured graph would not.
    """
    if module is not None and any(p.requires_grad for p in module.parameters()):
        return True
    if module is None and plan.capture != "none":
        return True
    return any(t.requires_grad for t in pytree.tensors((args, kwargs)))
