"""The state of a module, kept while a call of it is recorded, which is not to count as a call.

The state is the buffers, and the values of all tensors that existed before. Other state is left. A first call makes it
for good, such as a cache of positions. The graph that is being recorded reads it from then on.
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
    """A buffer as it was: its holder, its tensor, and its values.

    A model may write to the tensor, as batch-norm does, or assign another, `self.mean = 0.9 * self.mean + …`. Then the
    old tensor takes its place again, as somebody may know it by its address.
    """

    holder: torch.nn.Module
    name: str
    tensor: torch.Tensor
    values: torch.Tensor

    def put_back(self) -> None:
        """Put it back, and write only if something changed, so that versions stay.

        A buffer that is on another device, or took another shape or dtype meanwhile, is a cache that grew. It is left,
        as the model remembers elsewhere how far it goes.
        """
        now = getattr(self.holder, self.name, None)
        if now is None or any(getattr(now, a) != getattr(self.values, a) for a in ("shape", "dtype", "device")):
            return
        if now is not self.tensor:
            setattr(self.holder, self.name, self.tensor)
        if not pytree.equal(self.tensor, self.values):  # NaN counts as equal here, and is not written anew
            pytree.write(self.tensor, self.values)


def buffers_of(*modules: torch.nn.Module) -> Iterator[KeptBuffer]:
    """Copy the buffers of modules, a shared one only once. Parameters and other state are not looked at."""
    copies: dict[int, torch.Tensor] = {}
    for holder in dict.fromkeys(part for module in modules for part in module.modules()):
        for name, buffer in holder.named_buffers(recurse=False, remove_duplicate=False):
            if id(buffer) not in copies:
                copies[id(buffer)] = buffer.detach().clone()
            yield KeptBuffer(holder, name, buffer, copies[id(buffer)])


@contextmanager
def kept_buffers(module: torch.nn.Module | None) -> Iterator[None]:
    """Put a module's buffers back afterwards (batch-norm statistics)."""
    kept, state = list(buffers_of(module)) if module is not None else [], State.from_call(module)
    try:
        yield
    finally:
        with torch.no_grad():
            for buffer in kept:
                buffer.put_back()
        state.restore_values()
