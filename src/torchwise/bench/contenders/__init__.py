"""The contenders by name: the alternatives of a user.

Plug-ins add contenders by the entry point `torchwise.contenders`.
"""

from __future__ import annotations

import functools
import importlib.metadata
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from torchwise.bench.contenders.backend import Backend
from torchwise.bench.contenders.compiled import Compiled
from torchwise.bench.contenders.contender import Contender, Setting
from torchwise.bench.contenders.eager import Eager
from torchwise.bench.contenders.quantized import Int8Dynamic
from torchwise.bench.contenders.thunder import Thunder
from torchwise.bench.contenders.torchwise import Torchwise
from torchwise.errors import InputError, UnsupportedError, did_you_mean
from torchwise.workload import Workload

MODES = ("default", "reduce-overhead", "max-autotune")
BACKENDS = ("aot-inductor", "onnxruntime", "openvino", "torch-tensorrt")
BUILT_IN: tuple[Contender, ...] = (
    Eager(),
    *map(Compiled, MODES),
    *map(Backend, BACKENDS),
    Thunder(),
    Int8Dynamic(),
    Torchwise(),
)
"""The contenders in order of their runs. Torchwise is last, to be compared with the fastest of the others."""

DEFAULT = ("eager", *MODES, "torchwise")

__all__ = ["DEFAULT", "Contender", "Setting", "find", "load_contenders"]


@functools.cache
def load_contenders() -> dict[str, Contender]:
    """Return every contender by name. The entry point of a plug-in names an instance."""
    found = {contender.name: contender for contender in BUILT_IN}
    for entry in importlib.metadata.entry_points(group="torchwise.contenders"):
        found.setdefault(entry.name, _load_plugin(entry))
    return found


def _load_plugin(entry: importlib.metadata.EntryPoint) -> Contender:
    try:
        contender: Contender = entry.load()
    except Exception as error:  # importing a plug-in may raise any error, which must not affect the others
        return _Broken(entry.name, f"its plug-in {entry.value} cannot be loaded: {type(error).__name__}: {error}")
    return contender


@dataclass(frozen=True, slots=True)
class _Broken:
    """A plug-in that cannot be loaded."""

    name: str
    reason: str

    def missing(self, setting: Setting) -> str:  # noqa: ARG002 - unavailable everywhere
        return self.reason

    def build(self, workload: Workload, setting: Setting) -> Callable[..., Any]:  # noqa: ARG002
        raise UnsupportedError(self.reason)


def find(names: Iterable[str]) -> list[Contender]:
    """Return the named contenders in order of their runs. "all" means every one.

    Raises:
        InputError: there is no such contender. The message names similar ones.
    """
    requested = list(names)
    if "all" in requested:
        return list(load_contenders().values())
    for name in requested:
        if name not in load_contenders():
            hint = did_you_mean(name, load_contenders())
            raise InputError(f"contender is {name!r}, but there are {', '.join(load_contenders())}, all{hint}")
    return [contender for name, contender in load_contenders().items() if name in requested]
