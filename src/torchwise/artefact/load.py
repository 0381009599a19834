"""From an artefact to a decision whose plan is compiled already."""

from __future__ import annotations

import importlib
from pathlib import Path

from torchwise.artefact import caches, package
from torchwise.artefact.manifest import Info
from torchwise.errors import InputError, StalePlanError
from torchwise.realize import isa
from torchwise.records import Decision

COMPILER = ("torch._dynamo.convert_frame", "torch._inductor.compile_fx", "torchwise.runtime")
"""What the first call of a compiled plan would import otherwise, which takes seconds."""


def info(path: str | Path) -> Info:
    """Read what an artefact says of itself, and its decision; nothing in it is run, wherever it is from.

    Raises:
        InputError: there is no such file, it is damaged, or it is of another schema.
    """
    return package.read(Path(path)).info


def load(path: str | Path, *, trust: bool = False, sha256: str | None = None) -> Decision:
    """Put the code of an artefact where PyTorch looks for it, and return the decision, to be given to `apply`.

    The compiler is imported here, too. Load before the model's weights, and the first call has only to find what is
    compiled. Code that PyTorch does not take for its own there is compiled anew, and never used in its place.

    Args:
        path: what `save` wrote.
        trust: whether code from this file may run in this process.
        sha256: what the file must hash to, where that is known from elsewhere than the file's own source.

    Raises:
        InputError: it is not trusted, damaged, was tampered with, or is of another schema; or it cannot be unpacked.
        StalePlanError: the code was compiled on another machine or by other software; every factor is named.
        UnsupportedError: this torch keeps its code elsewhere.
    """
    found = package.read(Path(path), sha256)
    manifest = found.info.manifest
    if not found.code:  # the plan compiles nothing
        return found.info.decision
    if not trust:
        raise InputError(
            f"{path} holds compiled code, which runs in this process when it is loaded, but trust is False: give "
            "trust=True (--trust) if you know who made it, or read the decision alone by info"
        )
    if different := manifest.differences():
        raise StalePlanError(
            f"{path} is for another machine or software ({'; '.join(different)}): save one here, or go on without it"
        )
    caches.place(found.code)
    for module in COMPILER:
        importlib.import_module(module)
    isa.replay(manifest.checks)
    return found.info.decision
