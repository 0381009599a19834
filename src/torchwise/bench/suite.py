"""What is benchmarked: families, names and sizes turned into targets; suites of them in TOML files."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from msgspec import Meta

from torchwise import parsing
from torchwise.bench import contenders
from torchwise.bench.request import BenchRequest
from torchwise.errors import InputError, did_you_mean
from torchwise.parsing import parse_toml
from torchwise.records import codec
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

    targets: Annotated[tuple[str, ...], Meta(min_length=1)]
    device: str = ""
    sizes: tuple[str, ...] = (DEFAULT_SIZE,)
    mode: str = "inference"
    contenders: tuple[str, ...] = ()
    objective: str = "latency"
    about: str = ""

    def check_read(self) -> None:
        """Refuse names of what there is not.

        Raises:
            InputError: there is no such target, size, contender, device, mode or objective; near misses are named.
        """
        contenders.find(self.contenders)
        targets = tuple(resolve_targets(self.targets, self.sizes))
        BenchRequest(targets, self.contenders, self.device or "cpu", self.mode, self.objective)


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
        InputError: it cannot be read; a key is unknown, missing or of another type, or names what there is not.
    """
    return parsing.read(file, lambda text: codec.from_builtins(parse_toml(text), Suite))


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
