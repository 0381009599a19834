"""Global variables with plain values that compiled code holds, and the check that they have them still."""

from __future__ import annotations

import re
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_IMPORTED = re.compile(r"G\['__import_(?P<module>\w+)'\]\.(?P<name>\w+)")
_OWN = re.compile(r"G\['(?P<own>\w+)'\](?:\.(?P<name>\w+))?")
_PLAIN = (bool, int, float, str, type(None))
_MISSING = object()


@dataclass(frozen=True, slots=True)
class Constant:
    """A global variable, and its value while compiling.

    Attributes:
        module: the variable's module, "" for the module of the compiled function.
        name: of the variable.
        value: a number, a text, or None.
    """

    module: str
    name: str
    value: bool | int | float | str | None

    @classmethod
    def from_guard(cls, place: str, value: Any, scope: Mapping[str, Any] | None = None) -> Constant | None:
        """Return the constant that a guard on `place` checks, or None if it is not a plain global variable.

        It may be one of a module that the globals `scope` of the compiled function have, such as `math.pi`.
        """
        if type(value) not in _PLAIN:
            return None
        if hit := _IMPORTED.fullmatch(place):
            return cls(hit["module"].replace("_dot_", "."), hit["name"], value)
        if (hit := _OWN.fullmatch(place)) is None:
            return None
        if hit["name"] is None:
            return cls("", hit["own"], value)
        module = (scope or {}).get(hit["own"])
        return cls(module.__name__, hit["name"], value) if isinstance(module, types.ModuleType) else None

    def holds(self, own: dict[str, Any]) -> bool:
        """Whether the variable has the same value now. `own` are the globals of the compiled function."""
        now = self._find_scope(own).get(self.name, self)
        return type(now) is type(self.value) and (now == self.value or now != now != self.value != self.value)

    def make_check(self, own: dict[str, Any]) -> tuple[dict[str, Any], str, Any]:
        """Return the dict in which the variable is, its name, and its present value."""
        scope = self._find_scope(own)
        return scope, self.name, scope.get(self.name, _MISSING)

    def _find_scope(self, own: dict[str, Any]) -> dict[str, Any]:
        if not self.module:
            return own
        return vars(sys.modules[self.module]) if self.module in sys.modules else {}


def find_constants(guards: Sequence[Any], scope: Mapping[str, Any]) -> dict[int, Constant]:
    """Return the constants that guards check, by the identity of the guard."""
    found = {id(guard): Constant.from_guard(str(guard.name), guard.value, scope) for guard in guards}
    return {key: constant for key, constant in found.items() if constant is not None}


def make_constants_check(constants: Sequence[Constant], own: dict[str, Any]) -> Callable[[], bool] | None:
    """Return a check that constants have the values that they have now, or None if there are none.

    It compares objects, and so may fail for an equal value.
    """
    places = [constant.make_check(own) for constant in constants]

    def hold() -> bool:
        return all(scope.get(name, _MISSING) is value for scope, name, value in places)

    return hold if places else None
