"""What a plan wrote before it failed, put back, so that the original starts from what the call was given."""

from __future__ import annotations

import logging
from typing import Any

import torch

from torchwise.workload import trees
from torchwise.workload.state import KeptBuffer, buffers_of

logger = logging.getLogger("torchwise")


class Undo:
    """Copies of a call's inputs and of the model's buffers, taken before it.

    A plan of several pieces may fail at a later one, when an earlier one has written already. Only first calls of a
    signature are kept so: copying on each call would cost more than most plans gain. What cannot be copied is left out.
    """

    def __init__(self, args: tuple[Any, ...], kwargs: dict[str, Any], module: torch.nn.Module | None) -> None:
        self._kept: list[_KeptInput | KeptBuffer] = []
        try:
            self._kept += map(_KeptInput, trees.tensors((args, kwargs)))
            self._kept += buffers_of(module) if module is not None else ()
        except Exception as error:  # an input may be of any kind, and memory may be short: the call goes on without
            logger.debug("torchwise: what a first call writes could not be put back", exc_info=error)
            self._kept.clear()

    def __call__(self) -> None:
        """Put back what was written since, and let go of the copies."""
        kept, self._kept = self._kept, []
        for tensor in kept:
            try:
                tensor.put_back()
            except Exception as error:  # a tensor may have become of any kind; the original must answer nevertheless
                logger.warning("torchwise: what a plan wrote before it failed cannot be put back", exc_info=error)


class _KeptInput:
    """A tensor that the call was given, as it was."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor, self._values, self._seen = tensor, tensor.detach().clone(), _version(tensor)

    def put_back(self) -> None:
        # Not every write is counted: eager batch norm's to its running statistics are not.
        if _version(self._tensor) != self._seen or not trees.equal(self._tensor, self._values):
            trees.write(self._tensor, self._values)


def _version(tensor: torch.Tensor) -> int | None:
    """Count the writes to a tensor; None for one of inference mode, without a count."""
    return None if tensor.is_inference() else tensor._version
