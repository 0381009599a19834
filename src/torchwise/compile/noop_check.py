"""A plan must change something: one that only pretends would be timed as something that it is not."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from torchwise.errors import NoEffectError


@contextlib.contextmanager
def effective(part: tuple[str, str], changed: Callable[[], int], reasons: list[str]) -> Iterator[None]:
    """Watch a first call.

    Args:
        part: the plan's field that must have an effect, and the value in it.
        changed: counts the graphs that were changed so far.
        reasons: why others were not. Graphs that are compiled meanwhile add theirs.

    Raises:
        NoEffectError (on leaving): graphs were compiled and none was changed, now or ever. It is no fault if none is
            compiled now, as Dynamo may know the code from before.
    """
    before, known = changed(), len(reasons)
    yield
    if changed() == before and (len(reasons) > known or not before):
        told = reasons[known:] or reasons[-1:] or ["no graph was compiled"]
        raise no_effect(part, "; ".join(told))


def no_effect(part: tuple[str, str], why: str) -> NoEffectError:
    """Return the error for a part of a plan, its field and the value in it, that changes nothing."""
    field, value = part
    what = value if field == "transforms" else f"{field} {value!r}"
    return NoEffectError(f"{what} changes nothing here: {why}", part)
