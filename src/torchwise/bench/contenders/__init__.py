"""Everything a user could pick instead, by name. A plug-in adds its own under entry point `torchwise.contenders`."""

from __future__ import annotations

import difflib
import functools
import importlib.metadata
from collections.abc import Iterable

from torchwise.bench.contenders.compiled import Compiled
from torchwise.bench.contenders.contender import Contender, Setting
from torchwise.bench.contenders.eager import Eager
from torchwise.bench.contenders.exported import AOTInductor, OnnxRuntime
from torchwise.bench.contenders.others import OpenVINO, TensorRT, Thunder
from torchwise.bench.contenders.torchwise import Torchwise
from torchwise.errors import InputError

MODES = ("default", "reduce-overhead", "max-autotune")
BUILT_IN: tuple[Contender, ...] = (
    Eager(),
    *map(Compiled, MODES),
    AOTInductor(),
    OnnxRuntime(),
    OpenVINO(),
    TensorRT(),
    Thunder(),
    Torchwise(),
)
"""In the order in which they run: Torchwise last, as it is then held against the fastest of the others."""

DEFAULT = ("eager", *MODES, "torchwise")

__all__ = ["DEFAULT", "Contender", "Setting", "find", "known"]


@functools.cache
def known() -> dict[str, Contender]:
    """Return every contender by name; a plug-in's entry point gives an instance."""
    found = {contender.name: contender for contender in BUILT_IN}
    for entry in importlib.metadata.entry_points(group="torchwise.contenders"):
        found.setdefault(entry.name, entry.load())
    return found


def find(names: Iterable[str]) -> list[Contender]:
    """Return contenders by name, in the order in which they run; "all" means every one.

    Raises:
        InputError: there is no such contender; near misses are named.
    """
    wanted = list(names)
    if "all" in wanted:
        return list(known().values())
    for name in wanted:
        if name not in known():
            close = difflib.get_close_matches(name, known(), n=1)
            hint = f"; did you mean {close[0]}?" if close else ""
            raise InputError(f"contender is {name!r}{hint}, but there are {', '.join(known())}, all")
    return [contender for name, contender in known().items() if name in wanted]
