"""Restore the state of a module after its call was recorded, as a recording must not count as a call.

The state is the buffers, and the values of all tensors that existed before. Other state stays, such as a cache of
positions that the first call creates, because the recorded graph reads it from then on.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from torchwise.workload import pytree
from torchwise.workload.module_state import State


@dataclass(frozen=True, slots=True)
class KeptBuffer:
    """A buffer before the recording: its holder, its tensor, and its values.

    A model may write to the tensor, as batch-norm does, or assign another, `self.mean = 0.9 * self.mean + …`. Then the
    old tensor is set again, as other graphs may use its address.
    """

    holder: torch.nn.Module
    name: str
    tensor: torch.Tensor
    values: torch.Tensor

    def put_back(self) -> None:
        """Restore it, and write only if something changed, so that versions stay.

        A buffer with a new device, shape or dtype is a cache that grew. It stays, as the model keeps its length
        elsewhere.
        """
        now = getattr(self.holder, self.name, None)
        if now is None or any(getattr(now, a) != getattr(self.values, a) for a in ("shape", "dtype", "device")):
            return
        if now is not self.tensor:
            setattr(self.holder, self.name, self.tensor)
        if not pytree.equal(self.tensor, self.values):  # NaN counts as equal here, and is not written again
            pytree.write(self.tensor, self.values)


def buffers_of(*modules: torch.nn.Module) -> Iterator[KeptBuffer]:
    """Copy the buffers of modules, a shared one only once. Parameters and other state are ignored."""
    copies: dict[int, torch.Tensor] = {}
    for holder in dict.fromkeys(part for module in modules for part in module.modules()):
        for name, buffer in holder.named_buffers(recurse=False, remove_duplicate=False):
            if id(buffer) not in copies:
                copies[id(buffer)] = buffer.detach().clone()
            yield KeptBuffer(holder, name, buffer, copies[id(buffer)])


@contextmanager
def kept_buffers(module: torch.nn.Module | None) -> Iterator[None]:
    """Restore a module's buffers at the end, such as batch-norm statistics."""
    kept, state = list(buffers_of(module)) if module is not None else [], State.from_call(module)
    try:
        yield
    finally:
        with torch.no_grad():
            for buffer in kept:
                buffer.put_back()
        state.restore_values()
