"""What a plan wrote before it failed, put back, so that the original starts from what the call was given."""

from __future__ import annotations

import logging
from typing import Any

import torch

from torchwise.workload import trees

logger = logging.getLogger("torchwise")


class Undo:
    """Copies of a call's inputs and of the model's buffers, taken before it.

    A plan of several pieces may fail at a later one, when an earlier one has written already. Only first calls of a
    signature are kept so: copying on each call would cost more than most plans gain. What cannot be copied is left out.
    """

    def __init__(self, args: tuple[Any, ...], kwargs: dict[str, Any], module: torch.nn.Module | None) -> None:
        buffers = module.buffers() if module is not None else ()
        self._kept: list[tuple[torch.Tensor, torch.Tensor, int | None]] = []
        try:
            for tensor in (*trees.tensors((args, kwargs)), *buffers):
                self._kept.append((tensor, tensor.detach().clone(), _version(tensor)))
        except Exception as error:  # an input may be of any kind, and memory may be short: the call goes on without
            logger.debug("torchwise: what a first call writes could not be put back", exc_info=error)
            self._kept.clear()

    def __call__(self) -> None:
        """Put back what was written since, and let go of the copies."""
        kept, self._kept = self._kept, []
        for tensor, before, version in kept:
            try:
                if _version(tensor) != version or (version is None and not trees.equal(tensor, before)):
                    trees.write(tensor, before)
            except Exception as error:  # a tensor may have become of any kind; the original must answer nevertheless
                logger.warning("torchwise: what a plan wrote before it failed cannot be put back", exc_info=error)


def _version(tensor: torch.Tensor) -> int | None:
    """Count the writes to a tensor; None for one of inference mode, without a count."""
    return None if tensor.is_inference() else tensor._version
