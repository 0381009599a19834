"""What is benchmarked: families, names and sizes turned into targets; suites of them in TOML files."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torchwise.errors import InputError, did_you_mean
from torchwise.workload.target import check_form
from torchwise.zoo import list_workloads
from torchwise.zoo.entry import SIZES
from torchwise.zoo.registry import DEFAULT_SIZE


@dataclass(frozen=True, slots=True)
class Suite:
    """A list of targets with what they are to be run for.

    Attributes:
        targets: as `resolve_targets` takes them.
        device: "cpu" or "cuda".
        sizes: for targets of the zoo that name none.
        mode: "inference" or "training".
        objective: "latency" or "throughput".
        contenders: names.
        about: what it is for, in a line.
    """

    targets: tuple[str, ...]
    device: str = ""
    sizes: tuple[str, ...] = (DEFAULT_SIZE,)
    mode: str = "inference"
    contenders: tuple[str, ...] = ()
    objective: str = "latency"
    about: str = ""


def resolve_targets(names: Iterable[str], sizes: Iterable[str]) -> list[str]:
    """Turn what the user names into targets, each once, in order.

    Args:
        names: a family of the zoo ("ivhl"), one of its workloads ("ivhl.mera_layer", with or without "zoo:" and a
            size), "zoo" for all of it, or any other target as it is.
        sizes: for workloads of the zoo that name no size.

    Raises:
        InputError: there is no such family, workload or size; near misses are named.
    """
    sizes = list(sizes)
    for size in sizes:
        if size not in SIZES:
            raise InputError(f"size is {size!r}, but must be one of {', '.join(SIZES)}")
    return list(dict.fromkeys(target for name in names for target in _targets(name, sizes)))


def read_suite(file: Path) -> Suite:
    """Read a suite from a TOML file, whose keys are the fields of `Suite`.

    Raises:
        InputError: it cannot be read, or a key is unknown, missing or of another type.
    """
    try:
        data = tomllib.loads(file.read_text())
    except OSError as error:
        raise InputError(f"{file} cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{file} holds no TOML: {error}") from None
    lists, texts = ("targets", "sizes", "contenders"), ("device", "mode", "objective", "about")
    for key, value in data.items():
        if key not in (*lists, *texts):
            raise InputError(f"{file} has a key {key!r}, but a suite has {', '.join((*lists, *texts))}")
        if not _is_list(value) if key in lists else not isinstance(value, str):
            needed = "a list of strings" if key in lists else "a string"
            raise InputError(f"{key} in {file} is {value!r}, but must be {needed}")
    if not data.get("targets"):
        raise InputError(f'{file} names no targets, but a suite needs some: targets = ["zoo"]')
    given: dict[str, Any] = {key: tuple(value) if key in lists else value for key, value in data.items()}
    return Suite(**given)


def _is_list(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def _targets(name: str, sizes: list[str]) -> list[str]:
    scheme, colon, rest = name.partition(":")
    if colon and scheme != "zoo":
        check_form(name)
        return [name]
    base, _, size = (rest if colon else name).partition("@")
    entries = {entry.name: entry.family for entry in list_workloads()}
    # Training steps are of another mode than the rest of the zoo, so that they must be meant.
    steps = {entry.name for entry in list_workloads() if entry.is_step}
    found = [n for n, family in entries.items() if base in (n, family) or (base == "zoo" and n not in steps)]
    if not found:
        near = did_you_mean(base, [*dict.fromkeys(entries.values()), *entries])
        families = ", ".join(dict.fromkeys(entries.values()))
        raise InputError(
            f"{name!r} is no family or workload of the zoo{near or '.'} Families are {families}; other targets are "
            "package.module:factory, path/file.py:factory or SCHEME:name"
        )
    if size and size not in SIZES:
        raise InputError(f"size is {size!r}, but must be one of {', '.join(SIZES)}")
    return [f"zoo:{full}@{chosen}" for full in found for chosen in ([size] if size else sizes)]
