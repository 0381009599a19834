"""Log each message once, and not more than some messages: their texts may hold names and figures without a bound."""

from __future__ import annotations

MAX_MESSAGES = 20
"""Maximum number of messages that one place logs."""


class OnceLog:
    """The messages that one place has logged.

    Args:
        limit: maximum number of messages.
    """

    def __init__(self, limit: int = MAX_MESSAGES) -> None:
        self._limit = limit
        self._messages: set[str] = set()

    def admit(self, message: str) -> bool:
        """Note a message that is about to be logged. Return False if it was logged before, or is one too many."""
        if message in self._messages or len(self._messages) >= self._limit:
            return False
        self._messages.add(message)
        return True
