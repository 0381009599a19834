"""Derived parts of a study's JSON: figures and ids that follow from its samples, for readers of JSON alone."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from typing import Any

from torchwise.errors import InputError
from torchwise.parsing import short_repr
from torchwise.records.answer import Reliability

_OF_TRIALS = ("plan_id", "speedup", "cold_speedup", "seconds_per_call", "duel.speedup", "verdict.outcome")
"""Values that `to_dict` derives for each trial."""


def drop_derived(data: dict[str, Any]) -> dict[str, Any]:
    """Return a study's data as the record has them: without the schema and all derived values."""
    plain = {name: value for name, value in data.items() if name not in ("schema", "baseline", "trust")}
    if "baseline" in data:
        plain["inspection"] = _drop_value(data["baseline"], "seconds_per_call")
    if isinstance(trials := data.get("trials"), (list, tuple)):
        plain["trials"] = [functools.reduce(_drop_value, _OF_TRIALS, trial) for trial in trials]
    return plain


def _drop_value(data: Any, path: str) -> Any:
    """Return data without the value at a path, such as "duel.speedup"."""
    if not isinstance(data, dict):
        return data
    first, _, rest = path.partition(".")
    if rest:
        return {**data, first: _drop_value(data[first], rest)} if first in data else data
    return {name: value for name, value in data.items() if name != first}


def check(data: dict[str, Any], derived: dict[str, Any]) -> None:
    """Refuse figures that do not follow from the samples in the same data.

    Args:
        data: the data read.
        derived: the data that `Study.to_dict` derives from them.

    Raises:
        InputError: a figure does not follow. The error names its place.
    """
    for place, stored in _find_derived(data):
        if not _is_consistent(stored, _value_at(derived, place)):
            raise InputError(f"$.{place} is {short_repr(stored)}, but must follow from the samples")


def _find_derived(data: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the place and the value of each derived figure in the data."""
    trials = range(len(data.get("trials", ())))
    of_trials = (f"trials.{index}.{path}" for index in trials for path in _OF_TRIALS)
    for place in ("baseline.seconds_per_call", "trust", *of_trials):
        if (stored := _value_at(data, place)) is not _ABSENT:
            yield place, stored


def _value_at(data: Any, place: str) -> Any:
    for step in place.split("."):
        try:
            data = data[int(step) if isinstance(data, (list, tuple)) else step]
        except (KeyError, TypeError):
            return _ABSENT
    return data


_ABSENT = object()


def _is_consistent(stored: Any, derived: Any) -> bool:
    """Whether a stored value matches the derived one. NumPy draws an interval's ends, and its versions may differ."""
    if not isinstance(derived, dict):
        return bool(stored == derived)
    if "sentence" in derived:
        return (
            isinstance(stored, dict)
            and stored.keys() == derived.keys()
            # In the words, and by the rule, of the version that wrote it.
            and isinstance(stored["sentence"], str)
            and stored["reliability"] in list(Reliability)
            and all(_is_same(stored[name], derived[name]) for name in stored if name not in ("sentence", "reliability"))
        )
    if not isinstance(stored, dict) or stored.keys() != derived.keys() or not all(map(_is_number, stored.values())):
        return False
    if not math.isclose(stored["mid"], derived["mid"], rel_tol=1e-6):
        return False
    width = derived["high"] - derived["low"] + 1e-6 * abs(derived["mid"])
    return all(abs(stored[end] - derived[end]) <= width for end in ("low", "high"))


def _is_same(stored: Any, derived: Any) -> bool:
    if _is_number(stored) and _is_number(derived):
        return math.isclose(stored, derived, rel_tol=1e-6)
    return type(stored) is type(derived) and bool(stored == derived)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
