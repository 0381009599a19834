"""A sweep as a TOML file: which targets are tuned, where and how.

TOML, because Python reads it without a dependency, and the suites of `torchwise bench` are written in it, too.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec

from torchwise import parsing
from torchwise.errors import InputError
from torchwise.parsing import parse_toml, shown
from torchwise.plan import Legality, Plan
from torchwise.records import codec
from torchwise.study import Request
from torchwise.workload import DEFAULT_CALLS, WorkloadSpec
from torchwise.workload.target import check_form


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """The options of `torchwise tune` that a manifest may give, each as it is there."""

    objective: str = "latency"
    calls: int = DEFAULT_CALLS
    restarts: int = 1
    allow: str = "reordered"
    effort: str = "standard"
    budget: float | None = None
    memory_limit: float | None = None
    seed: int = 0
    plan: tuple[str, ...] = ()
    cold: bool = False


class Task(Options, frozen=True):
    """One study of a sweep."""

    target: str
    device: str = ""
    mode: str = "inference"

    @property
    def name(self) -> str:
        """What tells it from the others of its sweep, for a person."""
        return f"{self.target} on {self.device}"

    def request(self, *, fresh: bool = False) -> Request:
        """Return what is asked of a study.

        Args:
            fresh: forget what is stored.

        Raises:
            InputError: naming the value and the rule.
        """
        check_form(self.target)
        workload = WorkloadSpec(
            self.target,
            self.device,  # type: ignore[arg-type]
            self.mode,  # type: ignore[arg-type]
            self.objective,  # type: ignore[arg-type]
            self.calls,
            self.restarts,
            self.seed,
            None if self.memory_limit is None else _bytes(self.memory_limit),
        )
        plans = tuple(map(Plan.from_json, self.plan)) or None
        return Request(workload, Legality.of(self.allow), self.effort, self.budget, plans, fresh=fresh, cold=self.cold)

    def words(self) -> list[str]:
        """Return what `torchwise` is called with for it."""
        given = {name: value for name, value in msgspec.structs.asdict(self).items() if value not in (None, "")}
        target, plans, cold = given.pop("target"), given.pop("plan"), given.pop("cold")
        options = [f"--{name.replace('_', '-')}={value}" for name, value in given.items()]
        options += ["--cold"] if cold else []
        return ["tune", *options, *(f"--plan={plan}" for plan in plans), "--", target]


Some = Annotated[tuple[str, ...], msgspec.Meta(min_length=1)]
"""With none of them, the table would mean no study."""


class Entry(Options, frozen=True, kw_only=True):
    """A table of a manifest; its lists multiply."""

    targets: tuple[str, ...] = ()
    sizes: Some = ("",)
    devices: Some = ("",)
    modes: Some = ("inference",)

    def tasks(self) -> Iterator[Task]:
        """Yield each study."""
        options: dict[str, Any] = {name: getattr(self, name) for name in Options.__struct_fields__}
        for target, size, device, mode in itertools.product(self.targets, self.sizes, self.devices, self.modes):
            yield Task(_sized(target, size), device, mode, **options)


class Sweep(msgspec.Struct):
    """A manifest's tables."""

    studies: tuple[Entry, ...]


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a sweep tunes, in order; each study once."""

    tasks: tuple[Task, ...]

    def on(self, device: str) -> Manifest:
        """Return it with `device` where it names none."""
        return Manifest(tuple(msgspec.structs.replace(task, device=task.device or device) for task in self.tasks))


def read_manifest(file: Path) -> Manifest:
    """Read a manifest: `[[studies]]`, which take from the head of the file what they do not give; or the head alone.

    Raises:
        InputError: it cannot be read, a key is unknown or of another type, it names no targets, or `tune` would refuse
            a study of it.
    """
    return parsing.read(file, _parsed)


def _parsed(text: bytes) -> Manifest:
    head = parse_toml(text)
    tables = head.pop("studies", []) or [{}]
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise InputError(f"studies is {shown(tables)}, but must be tables: [[studies]]")
    entries = codec.from_builtins({"studies": [{**head, **table} for table in tables]}, Sweep).studies
    for place, entry in enumerate(entries):
        if not entry.targets:
            raise InputError('it has no targets, but a sweep needs some: targets = ["zoo:tutorial.fusion_demo"]')
        for task in entry.tasks():
            _check(task, place)
    return Manifest(tuple(dict.fromkeys(task for entry in entries for task in entry.tasks())))


def _check(task: Task, place: int) -> None:
    """Refuse what `tune` would refuse, as far as that can be said of any device."""
    try:
        msgspec.structs.replace(task, device=task.device or "cpu").request()
    except InputError as error:
        raise type(error)(f"$.studies[{place}]: {error}") from None


def _bytes(gib: float) -> int:
    """Return the bytes of a memory limit, which is given in GiB.

    Raises:
        InputError: they are none, or no number; it speaks of what was given.
    """
    if not 1 <= gib * 2**30 < math.inf:
        raise InputError(f"memory limit is {gib:g} GiB, but must be a finite size of at least one byte")
    return int(gib * 2**30)


def _sized(target: str, size: str) -> str:
    """Return a target of the zoo in a size, where it names none itself."""
    return f"{target}@{size}" if size and target.startswith("zoo:") and "@" not in target else target
