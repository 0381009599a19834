"""A plan must change something: one that only pretends would be timed as something that it is not."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from torchwise.errors import NoEffectError


@contextlib.contextmanager
def assert_transform_applied(part: tuple[str, str], changed: Callable[[], int], reasons: list[str]) -> Iterator[None]:
    """Check on a first call that a part of the plan had an effect.

    Args:
        part: the plan's field that must have an effect, and its value.
        changed: returns the number of graphs changed so far.
        reasons: why other graphs were not changed. Graphs that are compiled in this context add theirs.

    Raises:
        NoEffectError (on leaving): graphs were compiled, but none was ever changed. No error is raised if none is
            compiled now, as Dynamo may have the code already.
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
