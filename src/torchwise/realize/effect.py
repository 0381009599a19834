"""A plan that pretends would be timed as what it is not: what it asks for must change something."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from torchwise.errors import UnsupportedError


@contextlib.contextmanager
def effective(what: str, changed: Callable[[], int], reasons: list[str]) -> Iterator[None]:
    """Watch a first call.

    Args:
        what: what is asked for, for the error.
        changed: counts the graphs that were changed so far.
        reasons: why others were not; graphs that are compiled meanwhile add theirs.

    Raises:
        UnsupportedError (on leaving): graphs were compiled and none was changed, now or ever; that none is compiled
            now is no fault, as Dynamo may know the code from before.
    """
    before, known = changed(), len(reasons)
    yield
    if changed() == before and (len(reasons) > known or not before):
        told = reasons[known:] or reasons[-1:] or ["no graph was compiled"]
        raise UnsupportedError(f"{what} changes nothing here: {'; '.join(told)}")
