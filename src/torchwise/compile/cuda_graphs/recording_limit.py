"""The limit on the graphs of one owner, as each keeps memory for its size."""

from __future__ import annotations

from collections.abc import Callable, Sized

MAX_SIGNATURES = 64
"""Maximum number of signatures that have graphs. The callable itself answers calls of others."""
FLUSH_AFTER = 100 * MAX_SIGNATURES
"""Calls without a graph after which all graphs make room for those of the sizes that come now.

To exchange graphs one by one would record at each call where more sizes than graphs come in turn.
"""


class RecordingLimit:
    """Decides whether calls of one more signature may be recorded."""

    def __init__(self) -> None:
        self._passed = 0  # calls that found no room for a graph

    def has_room(self, graphs: Sized, drop: Callable[[], None]) -> bool:
        """Return whether one more may join these graphs. After many that may not, all are dropped by `drop`."""
        if len(graphs) < MAX_SIGNATURES:
            return True
        self._passed += 1
        if self._passed < FLUSH_AFTER:
            return False
        self._passed = 0
        drop()
        return True
