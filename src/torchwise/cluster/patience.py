"""A study of a sweep that begins while the store's server is away."""

from __future__ import annotations

import time
from collections.abc import Callable

from torchwise.store import outage
from torchwise.store.trouble import UnreachableError


def patient(command: Callable[[], None]) -> None:
    """Run `command`, and run it again as long as the store cannot be reached, within the limit of `outage`.

    Whoever opens a store is told at once that it cannot be reached, as the address may be wrong. That of a sweep has
    answered when the sweep began.

    Raises:
        StorageError: the server stayed away.
    """
    begun, away = time.monotonic(), outage.Outage("of the sweep")
    while True:
        try:
            return command()
        except UnreachableError as error:
            if time.monotonic() - begun >= outage.PATIENCE_S:  # a study that was under way has waited as long itself
                raise
            away.wait(error)
