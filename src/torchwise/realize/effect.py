"""A plan that pretends would be timed as what it is not: what it asks for must change something."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from torchwise.errors import NoEffectError


@contextlib.contextmanager
def effective(part: tuple[str, str], changed: Callable[[], int], reasons: list[str]) -> Iterator[None]:
    """Watch a first call.

    Args:
        part: what is asked for: the plan's field, and the value in it.
        changed: counts the graphs that were changed so far.
        reasons: why others were not; graphs that are compiled meanwhile add theirs.

    Raises:
        NoEffectError (on leaving): graphs were compiled and none was changed, now or ever; that none is compiled
            now is no fault, as Dynamo may know the code from before.
    """
    before, known = changed(), len(reasons)
    yield
    if changed() == before and (len(reasons) > known or not before):
        told = reasons[known:] or reasons[-1:] or ["no graph was compiled"]
        raise no_effect(part, "; ".join(told))


def no_effect(part: tuple[str, str], why: str) -> NoEffectError:
    """Return what to raise where a part of a plan, its field and the value in it, changes nothing."""
    field, value = part
    what = value if field == "transforms" else f"{field} {value!r}"
    return NoEffectError(f"{what} changes nothing here: {why}", part)
