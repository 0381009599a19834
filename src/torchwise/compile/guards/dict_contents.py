"""Find the entries of dicts that changed since a snapshot: the one comparison below all guards of this package.

Python counts the writes to a dict, and Dynamo reads the count, in some 30 ns. Only a dict that was written to is
compared, entry by entry: an attribute that was set and restored, such as `training`, is no change. Where not all writes
are counted, every dict is compared each time.
"""

from __future__ import annotations

import functools
import itertools
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import is_
from typing import Any

from torchwise._torch.dynamo import DICT_VERSION
from torchwise.compile.signature import is_equal
from torchwise.errors import UnsupportedError

MISSING = object()
"""Stands for the value of an entry that does not exist."""
_new_count: Callable[[object], int] = functools.partial(lambda count, _: next(count), itertools.count())


def _choose_version() -> Callable[[Any], int]:
    try:
        count_writes: Callable[[Any], int] = DICT_VERSION.get("watching dicts")
    except UnsupportedError:  # this torch has no dict versions: everything is compared each time
        return _new_count
    return count_writes if _counts_attributes(count_writes) else _new_count


class _Thing:
    """Has an attribute, whose value Python may keep outside of the dict until somebody reads it there."""

    def __init__(self) -> None:
        self.value = 0


def _counts_attributes(count_writes: Callable[[Any], int]) -> bool:
    """Whether a new value of an attribute is counted as a write to the object's dict. Python 3.13.0 tells of none."""
    thing = _Thing()
    before = count_writes(vars(thing))
    thing.value = 1
    return count_writes(vars(thing)) != before


version = _choose_version()
"""Returns a number that changes with each write to a dict."""


def _is_equal(_name: str, now: Any, before: Any) -> bool:
    return is_equal(now, before)


class DictContents:
    """The contents of a dict at a snapshot.

    Args:
        contents: the dict, or one of TorchScript's mappings, with as much as `keys` and `items`.
        names: the keys to compare, present or not. By default all that `counts`.
        owner: the owner of the dict, for messages.
        counts: whether an entry matters, by its name and value.
        is_same: whether two values under a name are the same, other than by identity.
        is_ordered: whether the order of the keys matters, as for the parts of a Sequential.
    """

    __slots__ = ("_counts", "_is_ordered", "_is_same", "_keys", "_names", "_values", "contents", "owner")

    def __init__(
        self,
        contents: Any,
        names: Iterable[str] | None = None,
        *,
        owner: str = "",
        counts: Callable[[str, Any], bool] | None = None,
        is_same: Callable[[str, Any, Any], bool] = _is_equal,
        is_ordered: bool = False,
    ) -> None:
        self.contents = contents
        self.owner = owner
        self._names = None if names is None else [*names]
        self._counts, self._is_same, self._is_ordered = counts, is_same, is_ordered
        self.take_snapshot()

    def take_snapshot(self) -> None:
        """Take the present contents as the reference."""
        self._keys = [*self.contents.keys()] if self._names is None else self._names
        self._values = self._read(self._keys)

    def get(self, name: str) -> Any:
        """Return the value of the snapshot under a name that it has, or `MISSING`."""
        return self._values[self._keys.index(name)] if name in self._keys else MISSING

    def get_now(self, name: str) -> Any:
        """Return the present value under a name, or `MISSING`."""
        return self._read([name])[0]

    def items(self) -> Iterable[tuple[str, Any]]:
        """Return the names and values of the snapshot."""
        return zip(self._keys, self._values, strict=True)

    def find_differences(self) -> list[str]:
        """List the names of entries that were added, removed or replaced, but not by equal ones."""
        keys = self._keys if self._names is not None else [*self.contents.keys()]
        now = self._read(keys)
        if keys == self._keys and all(map(is_, now, self._values)):
            return []
        before = dict(self.items())
        after = {**dict.fromkeys(before, MISSING), **dict(zip(keys, now, strict=True))}
        differing = [name for name, value in after.items() if self._differs(name, value, before.get(name, MISSING))]
        if not differing and self._is_ordered and keys != self._keys:
            return keys
        if not differing and self._is_same is _is_equal:  # other values may change inside, such as code
            self._keys, self._values = keys, now  # so that a comparison by identity is enough
        return differing

    def _differs(self, name: str, now: Any, before: Any) -> bool:
        if now is before:
            return False
        if self._counts is not None and not any(v is not MISSING and self._counts(name, v) for v in (before, now)):
            return False
        return not self._is_same(name, now, before)

    def _read(self, names: Iterable[str]) -> list[Any]:
        get = (self.contents if isinstance(self.contents, dict) else dict(self.contents.items())).get
        return [get(name, MISSING) for name in names]


Differences = Mapping[int, list[str]]
"""The names of differing entries, by the position of their dict."""


def watch(dicts: Sequence[DictContents]) -> Callable[[], Differences]:
    """Return a function that finds the differences of dicts from their snapshots. It may run on every call."""
    raw_dicts = [one.contents for one in dicts]
    count = version if all(isinstance(raw, dict) for raw in raw_dicts) else _new_count
    counts, uncounted = [*map(count, raw_dicts)], list_uncounted(raw_dicts)
    differences: dict[int, list[str]] = {}

    def find_differences() -> Differences:
        nonlocal counts, uncounted
        now = [*map(count, raw_dicts)]
        if now != counts or (uncounted and any(uncounted)):
            filled = {id(raw) for raw in uncounted if raw}
            for place, one in enumerate(dicts):
                if now[place] == counts[place] and id(raw_dicts[place]) not in filled:
                    continue
                if found := one.find_differences():
                    differences[place] = found
                    now[place] = -1  # compared again next time, as its snapshot may be another one then
                else:
                    differences.pop(place, None)
            counts, uncounted = now, list_uncounted(raw_dicts)
        return differences

    return find_differences


def list_uncounted(dicts: Iterable[Any]) -> list[Any]:
    """Return the empty dicts, whose next `update` is not counted from Python 3.12 on. Dynamo's code makes such updates.

    PyTorch counts the events of a watcher there, without the one by which an empty dict becomes the copy of another.
    """
    return [one for one in dicts if isinstance(one, dict) and not one] if sys.version_info >= (3, 12) else []


def count_dict_writes(dicts: Iterable[dict[str, Any]]) -> int:
    """Return a number that increases with each write to one of the dicts."""
    return sum(map(version, dicts))
