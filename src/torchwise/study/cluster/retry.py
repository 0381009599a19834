"""Start a study of a sweep even while the store's server is unreachable."""

from __future__ import annotations

import time
from collections.abc import Callable

from torchwise.store import db_errors
from torchwise.store.db_errors import UnreachableError


def retry_while_unreachable(command: Callable[[], None]) -> None:
    """Run `command`, and repeat it while the store is unreachable, within the limit of `store.db_errors`.

    Elsewhere, opening an unreachable store fails at once, as the address may be wrong. The address of a sweep worked at
    its start.

    Raises:
        StorageError: the server did not return.
    """
    start, outage = time.monotonic(), db_errors.Outage("of the sweep")
    while True:
        try:
            return command()
        except UnreachableError as error:
            if time.monotonic() - start >= db_errors.PATIENCE_S:  # a running study has waited as long itself
                raise
            outage.wait(error)
