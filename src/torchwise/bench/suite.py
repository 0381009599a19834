"""Resolve families, names and sizes to targets, and read suites from TOML files."""

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
from torchwise.plan.workload_spec import check_form
from torchwise.records import codec
from torchwise.zoo.catalogue import SIZES
from torchwise.zoo.registry import DEFAULT_SIZE, Zoo, load_zoo


@dataclass(frozen=True, slots=True)
class Suite:
    """A list of targets with the settings of their benchmark.

    Attributes:
        targets: as `resolve_targets` takes them.
        device: "cpu" or "cuda".
        sizes: sizes for targets of the zoo that name none.
        mode: "inference" or "training".
        objective: "latency" or "throughput".
        contenders: names of the contenders.
        about: the purpose of the suite, in one line.
    """

    targets: Annotated[tuple[str, ...], Meta(min_length=1)]
    device: str = ""
    sizes: tuple[str, ...] = (DEFAULT_SIZE,)
    mode: str = "inference"
    contenders: tuple[str, ...] = ()
    objective: str = "latency"
    about: str = ""

    def check_read(self) -> None:
        """Refuse names that do not exist.

        Raises:
            InputError: there is no such target, size, contender, device, mode or objective. The message names similar
                ones.
        """
        contenders.find(self.contenders)
        targets = tuple(resolve_targets(self.targets, self.sizes))
        BenchRequest(targets, self.contenders, self.device or "cpu", self.mode, self.objective)


def resolve_targets(names: Iterable[str], sizes: Iterable[str]) -> list[str]:
    """Resolve the user's names to targets, in order and without duplicates.

    Args:
        names: families of the zoo ("ivhl"), its workloads, "zoo" for all of it, or any other targets, unchanged. A
            workload is "ivhl.mera_layer", with or without "zoo:" and a size.
        sizes: sizes for workloads of the zoo that name none.

    Raises:
        InputError: there is no such family, workload or size. The message names similar ones.
    """
    sizes = list(sizes)
    for size in sizes:
        if size not in SIZES:
            raise InputError(f"size is {size!r}, but must be one of {', '.join(SIZES)}")
    zoo = load_zoo()
    return list(dict.fromkeys(target for name in names for target in _targets(name, sizes, zoo)))


def read_suite(file: Path) -> Suite:
    """Read a suite from a TOML file, whose keys are the fields of `Suite`.

    Raises:
        InputError: the file cannot be read, a key is unknown, missing or of another type, or a name does not exist.
    """
    return parsing.read(file, lambda text: codec.from_builtins(parse_toml(text), Suite))


def _targets(name: str, sizes: list[str], zoo: Zoo) -> list[str]:
    scheme, colon, rest = name.partition(":")
    if colon and scheme != "zoo":
        check_form(name)
        return [name]
    base, _, size = (rest if colon else name).partition("@")
    entries = {entry.name: entry.family for entry in zoo.entries}
    # Training steps need another mode than the rest of the zoo, so they must be named explicitly.
    steps = {entry.name for entry in zoo.entries if entry.is_step}
    found = [n for n, family in entries.items() if base in (n, family) or (base == "zoo" and n not in steps)]
    if not found:
        if reason := zoo.explain(base):
            raise InputError(reason)
        hint = did_you_mean(base, [*zoo.families, *entries])
        problem = f"{name!r} is no family or workload of the zoo{hint or '.'} Families are {', '.join(zoo.families)}"
        others = "other targets are package.module:factory, path/file.py:factory or SCHEME:name"
        raise InputError("; ".join([problem, *zoo.explain_rest(), others]))
    if size and size not in SIZES:
        raise InputError(f"size is {size!r}, but must be one of {', '.join(SIZES)}")
    return [f"zoo:{full}@{chosen}" for full in found for chosen in ([size] if size else sizes)]
