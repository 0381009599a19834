"""Restore the state that a failed plan wrote to, so that the original starts from the call's own inputs."""

from __future__ import annotations

import logging
from typing import Any

from torchwise.workload.module_state import State

logger = logging.getLogger("torchwise")


class InputSnapshot:
    """The state of the model and of a call's inputs, kept before the call.

    A plan of several pieces may fail at a later one, when an earlier one has written already. Only first calls of a
    signature are kept so: copying on each call would cost more than most plans gain.
    """

    def __init__(self, original: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._state: State | None = None
        try:
            self._state = State.from_call(original, args, kwargs)
        except Exception as error:  # an input may be of any kind, and memory may be short: the call goes on without
            logger.debug("torchwise: the inputs and state of a first call could not be copied", exc_info=error)

    def __call__(self) -> None:
        """Restore the places written to since, and release the copies."""
        state, self._state = self._state, None
        try:
            if state is not None:
                state.restore()
        except Exception as error:  # a tensor may have become of any kind, and the original must still answer
            logger.warning("torchwise: the writes of a plan before its failure cannot be undone", exc_info=error)
