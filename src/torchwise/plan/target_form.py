"""The form of a target: which module or scheme it names, and which factory in it.

A target is `SCHEME:name[@size]` with a scheme that a plug-in provides (entry-point group `torchwise.targets`, such as
`zoo`), `package.module:factory`, or `path/file.py:factory`.
"""

from __future__ import annotations

import importlib.metadata
from pathlib import Path

from torchwise.errors import TargetError

FORMS = (
    "use zoo:family.name[@size], timm:NAME, torchvision:NAME, hf:NAME or diffusers:NAME[@options], "
    "package.module:factory or path/file.py:factory"
)


def check_form(target: str) -> None:
    """Refuse a target that no form fits, without importing or running anything.

    Raises:
        TargetError: naming the target and the possible forms.
    """
    head, colon, name = split(target)
    if not (head and colon and name):
        raise TargetError(f"target is {target!r}, which names no factory: {FORMS}")
    if head.endswith(".py") and not Path(head).is_file():
        raise TargetError(f"target is {target!r}, but there is no file {head!r} in {Path.cwd()}")


def split(target: str) -> tuple[str, str, str]:
    """Split a target in three, as `str.partition` does: the scheme, module or file, the colon, and the name in it.

    The first colon divides. For a name in a file it is the last one, as a path may hold colons of its own.
    """
    first, last = target.partition(":"), target.rpartition(":")
    is_file = last != first and last[0].endswith(".py") and first[0] not in list_schemes()
    return last if is_file else first


def list_schemes() -> dict[str, importlib.metadata.EntryPoint]:
    """Return the schemes of the installed plug-ins, by name."""
    return {entry.name: entry for entry in importlib.metadata.entry_points(group="torchwise.targets")}
