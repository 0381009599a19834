"""Start a study of a sweep even while the store's server is away."""

from __future__ import annotations

import time
from collections.abc import Callable

from torchwise.store import reconnect
from torchwise.store.db_errors import UnreachableError


def patient(command: Callable[[], None]) -> None:
    """Run `command`, and repeat it while the store is unreachable, within the limit of `outage`.

    Opening an unreachable store usually fails at once, as the address may be wrong. The address of a sweep worked when
    the sweep started.

    Raises:
        StorageError: the server stayed away.
    """
    begun, away = time.monotonic(), reconnect.Outage("of the sweep")
    while True:
        try:
            return command()
        except UnreachableError as error:
            if time.monotonic() - begun >= reconnect.PATIENCE_S:  # a running study has waited as long itself
                raise
            away.wait(error)
