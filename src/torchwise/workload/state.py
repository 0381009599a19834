"""The state of a module, kept over calls that are made only to learn something."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from torchwise.workload import trees

if TYPE_CHECKING:
    import torch


@contextmanager
def kept_buffers(module: torch.nn.Module | None) -> Iterator[None]:
    """Put a module's buffers back afterwards (batch-norm statistics): those that changed, so that versions stay.

    Parameters and other state are not looked at. A buffer that took another shape or dtype meanwhile is a cache that
    grew, and is left.
    """
    import torch

    kept = {name: b.detach().clone() for name, b in module.named_buffers()} if module is not None else {}
    try:
        yield
    finally:
        with torch.no_grad():
            for name, buffer in module.named_buffers() if module is not None else ():
                saved = kept.get(name)
                if saved is None or saved.shape != buffer.shape or saved.dtype != buffer.dtype:
                    continue
                if not trees.equal(buffer, saved):  # which takes NaN for equal: a buffer of NaN is not written anew
                    buffer.copy_(saved)
