"""The file of the calls that no plan was verified on: beside the store, on this machine alone.

It holds as much as a recording does: numbers, and inputs or their stand-ins. Reading it runs no code.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from torchwise.errors import InputError, StorageError
from torchwise.records.missed_calls import MissedCalls, MissedKind, MissedModule
from torchwise.runtime.program.missed_recorder import KEPT_BYTES
from torchwise.runtime.program.recorder import bytes_of, tensors_of
from torchwise.store.location import default_url, file_of, place_of
from torchwise.workload import Example
from torchwise.workload.plain_inputs import from_plain, to_plain
from torchwise.workload.stand_in import without_values

Key = tuple[str, str]
"""The name of a module's class, or of a function, and its structure."""


@dataclass(slots=True)
class Missed:
    """Such calls of one kind, with their inputs, if they were kept."""

    kind: MissedKind
    example: Example | None


@dataclass(slots=True)
class StoredCalls:
    """The calls of one module over all runs."""

    runs: int = 0
    kinds: list[Missed] = field(default_factory=list)
    others: int = 0


Stored = dict[Key, StoredCalls]


def path_of(program: str, store: str | None) -> Path:
    """Return the file for a program: beside the file of a store, or in the user's data folder for a server."""
    url = store or default_url()
    name = hashlib.sha256(f"{place_of(url)}\n{program}".encode()).hexdigest()[:16] + ".pt"
    if (file := file_of(url)) is not None:
        return file.with_name(f"{file.name}.missed-calls") / name
    from platformdirs import user_data_dir

    return Path(user_data_dir("torchwise"), "missed-calls", name)


def read_missed(program: str, store: str | None) -> Stored:
    """Return the calls of a program that no plan was verified on, over all runs. It is empty if there are none.

    Raises:
        InputError: the file holds something else.
        StorageError: the file cannot be read, or has inputs on a GPU that is not there.
    """
    file = path_of(program, store)
    if not file.is_file():
        return {}
    try:
        data = torch.load(file, weights_only=True)
    except OSError as error:
        raise StorageError(f"{file} cannot be read: {error.strerror or error}") from None
    except Exception as error:  # of many classes
        if _is_readable_without_gpu(file):
            raise StorageError(f"{file} has inputs on a GPU that this process has not: {error}") from None
        raise InputError(f"{file} cannot be read: {type(error).__name__}: {error}") from None
    try:
        return _parse(data)
    except InputError as error:
        raise InputError(f"{file}: {error}") from None


def _is_readable_without_gpu(file: Path) -> bool:
    try:
        torch.load(file, map_location="cpu", weights_only=True)
    except Exception:  # as above: it is no such file
        return False
    return True


def _parse(data: Any) -> Stored:
    text, inputs = (data.get("record"), data.get("inputs")) if isinstance(data, dict) else (None, None)
    if not isinstance(text, str) or not isinstance(inputs, list):
        raise InputError("this is no file of calls: it must hold a record and inputs")
    record, given = MissedCalls.from_json(text), iter(inputs)
    if len(inputs) != sum(len(module.kinds) for module in record.modules):
        raise InputError("this is no file of calls: it must hold inputs, or None, for each kind")
    found: Stored = {}
    for module in record.modules:
        kinds = []
        for kind in module.kinds:
            plain = next(given)
            if kind.autocast and not isinstance(getattr(torch, kind.autocast, None), torch.dtype):
                raise InputError(f"autocast is {kind.autocast!r}, but must be a dtype of PyTorch, such as bfloat16")
            kinds.append(Missed(kind, None if plain is None else from_plain(plain)))
        found[module.key] = StoredCalls(module.runs, kinds, module.others)
    return found


def write_missed(program: str, store: str | None, stored: Stored) -> None:
    """Write the calls of all runs in place of those before.

    Raises:
        StorageError: the file cannot be written.
    """
    file, room = path_of(program, store), KEPT_BYTES
    modules, inputs = [], []
    for (name, structure), calls in stored.items():
        kinds = []
        for missed in calls.kinds:
            kind, plain, room = _to_file(missed, room)
            kinds.append(kind)
            inputs.append(plain)
        modules.append(MissedModule(name, structure, calls.runs, tuple(kinds), calls.others))
    draft = file.with_name(f".{file.name}.{secrets.token_hex(4)}.tmp")
    try:
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as stream:  # inputs may be private
            torch.save({"record": MissedCalls(program, tuple(modules)).to_json(), "inputs": inputs}, stream)
        draft.replace(file)
    except OSError as error:
        raise StorageError(f"{file} cannot be written: {error.strerror or error}") from None
    finally:
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)


def _to_file(missed: Missed, room: int) -> tuple[MissedKind, Any, int]:
    """Return a kind of calls, its inputs as they go to a file, and the bytes that are left for others."""
    kind, example = missed.kind, missed.example
    if example is None:
        return kind, None, room
    size = bytes_of(tensors_of(example)) if kind.kept == "real" else 0
    if size > room:
        try:
            size, kind, example = 0, replace(kind, kept="stand-in"), without_values(example)
        except Exception:  # such as an empty or a sparse tensor, of which there are no statistics
            return replace(kind, kept="none"), None, room
    return kind, to_plain(example), room - size
