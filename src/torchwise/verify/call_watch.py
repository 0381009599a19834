"""Watch single calls: a change that the judge's own contexts would undo or hide shows only right around a call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from torchwise.verify.leaves import leaves_of
from torchwise.verify.settings import AROUND, read_settings
from torchwise.verify.surroundings import list_differences, read_generators
from torchwise.workload import pytree

Loss = Callable[[Any], torch.Tensor | None]
DRAWS = "it draws random numbers"
WRITES_GRADIENT = "its backward pass writes to the gradient that comes in"


class CallWatch:
    """A call that notes what it changes besides its answer. The reference is watched, too, as it may do the same.

    Args:
        call: the callable.
        copies: whether to copy each answer at once, to see later whether it still changes.

    Attributes:
        faults: the changes in words.
        early: copies of the last answer's tensors.
    """

    def __init__(self, call: Callable[..., Any], *, copies: bool = False) -> None:
        self._call, self._copies = call, copies
        self._incoming: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._faults: list[str] = []
        self.early: list[torch.Tensor] = []

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Make the call."""
        tensors = pytree.tensors((args, kwargs))
        marks, generators, settings = _read_marks(tensors), read_generators(), read_settings(AROUND)
        outputs = self._call(*args, **kwargs)
        if self._copies:
            self.early = [tensor.detach().clone() for tensor in leaves_of(outputs).tensors]
        if read_generators() != generators:
            self._faults.append(DRAWS)
        self._faults += [f"it changes {text}" for text in list_differences(settings, read_settings(AROUND))]
        for number, (now, then) in enumerate(zip(_read_marks(tensors), marks, strict=True)):
            if now[0] != then[0]:
                self._faults.append(f"it changes whether input {number} requires gradients")
            if now[1] is not then[1]:
                self._faults.append(f"it writes to the gradient of input {number}")
        return outputs

    def watch_loss(self, loss: Loss) -> Loss:
        """Return the loss, for which the gradients that come into the call's backward pass are kept."""

        def loss_of(outputs: Any) -> torch.Tensor | None:
            for tensor in pytree.tensors(outputs):
                if tensor.requires_grad:
                    tensor.register_hook(self._keep)
            return loss(outputs)

        return loss_of

    @property
    def faults(self) -> tuple[str, ...]:
        """The changes that were noted so far, each once."""
        is_written = any(not pytree.equal(now, then) for now, then in self._incoming)
        return tuple(dict.fromkeys([*self._faults, *([WRITES_GRADIENT] if is_written else [])]))

    def _keep(self, gradient: torch.Tensor) -> None:
        self._incoming.append((gradient.detach(), gradient.detach().clone()))


def _read_marks(tensors: list[torch.Tensor]) -> list[tuple[bool, Any]]:
    return [(tensor.requires_grad, tensor.grad if tensor.is_leaf else None) for tensor in tensors]
