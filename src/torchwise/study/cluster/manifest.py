"""A sweep as a TOML file, with targets and their options.

The suites of `torchwise bench` use the same format.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec

from torchwise import parsing
from torchwise.errors import InputError
from torchwise.parsing import parse_toml, short_repr, to_bytes
from torchwise.plan import Plan
from torchwise.plan.workload_spec import DEFAULT_CALLS, TuneOptions, check_form
from torchwise.records import codec
from torchwise.study import Request


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """The options of `torchwise tune` that a manifest may set, with the same meaning."""

    objective: str = "latency"
    calls: float = DEFAULT_CALLS
    restarts: int = 1
    allow: str = "same-precision"
    effort: str = "standard"
    budget: float | None = None
    memory_limit: float | str | None = None
    latency_limit: float | str | None = None
    batch: str = "as-given"
    input_sizes: str = "as-given"
    tolerance: float | None = None
    metric: str | None = None
    require: tuple[str, ...] = ()
    seed: int = 0
    plan: tuple[str, ...] = ()
    cold: bool = False
    wait: bool = False
    compile_timeout: float | None = None
    iterations: int | None = None
    fullgraph: bool = False
    workers: int | None = 1


AS_THEY_ARE = (
    *("calls", "restarts", "allow", "effort", "budget", "objective", "latency_limit", "batch", "mode", "cold", "wait"),
    *("compile_timeout", "iterations", "fullgraph", "tolerance", "metric", "require", "workers"),
)
"""Options that a manifest writes as Python does. A plan is text. A limit of memory without a unit is in GiB.

The `sizes` of a manifest are those of the zoo.
"""


class Task(Options, frozen=True):
    """One study of a sweep."""

    target: str
    device: str = ""
    mode: str = "inference"

    @property
    def name(self) -> str:
        """A readable name that is unique in the sweep."""
        return f"{self.target} on {self.device}"

    def request(self, *, fresh: bool = False) -> Request:
        """Return the request for the study."""
        check_form(self.target)
        same = {name: getattr(self, name) for name in AS_THEY_ARE}
        options = TuneOptions(
            plans=tuple(map(Plan.from_json, self.plan)) or None,
            memory_limit=None if self.memory_limit is None else to_bytes(self.memory_limit, "memory limit", "GiB"),
            sizes=self.input_sizes,
            fresh=fresh,
            **same,
        )
        return Request.from_options(options, self.target, self.device, self.seed)

    def arguments(self) -> list[str]:
        """Return the arguments of `torchwise` for this study."""
        values = {name: value for name, value in msgspec.structs.asdict(self).items() if value not in (None, "")}
        target, values["sizes"] = values.pop("target"), values.pop("input_sizes")
        several = [f"--{name}={value}" for name in ("require", "plan") for value in values.pop(name)]
        flags = [f"--{name}" for name in ("cold", "wait", "fullgraph") if values.pop(name)]
        options = [f"--{name.replace('_', '-')}={value}" for name, value in values.items()]
        return ["tune", *options, *flags, *several, "--", target]


NonEmpty = Annotated[tuple[str, ...], msgspec.Meta(min_length=1)]
"""A list that may not be empty, as the table would have no studies."""


class Entry(Options, frozen=True, kw_only=True):
    """A table of a manifest. It has a study for every combination of its lists."""

    targets: tuple[str, ...] = ()
    sizes: NonEmpty = ("",)
    devices: NonEmpty = ("",)
    modes: NonEmpty = ("inference",)

    def tasks(self) -> Iterator[Task]:
        """Yield each study."""
        options: dict[str, Any] = {name: getattr(self, name) for name in Options.__struct_fields__}
        for target, size, device, mode in itertools.product(self.targets, self.sizes, self.devices, self.modes):
            yield Task(_add_size(target, size), device, mode, **options)


class Sweep(msgspec.Struct):
    """A manifest's tables."""

    studies: tuple[Entry, ...]


@dataclass(frozen=True, slots=True)
class Manifest:
    """The studies of a sweep in order, each once."""

    tasks: tuple[Task, ...]

    def with_device(self, device: str) -> Manifest:
        """Return the manifest with `device` for studies without a device."""
        return Manifest(tuple(msgspec.structs.replace(task, device=task.device or device) for task in self.tasks))


def read_manifest(file: Path) -> Manifest:
    """Read a manifest: the tables `[[studies]]`, with defaults from the top of the file, or only the top.

    Raises:
        InputError: the file cannot be read, a key is unknown or of another type, targets are missing, or `tune` would
            refuse a study.
    """
    return parsing.read(file, _parse_manifest)


def _parse_manifest(text: bytes) -> Manifest:
    head = parse_toml(text)
    tables = head.pop("studies", []) or [{}]
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise InputError(f"studies is {short_repr(tables)}, but must be tables: [[studies]]")
    entries = codec.from_builtins({"studies": [{**head, **table} for table in tables]}, Sweep).studies
    for place, entry in enumerate(entries):
        if not entry.targets:
            raise InputError('it has no targets, but must have at least one: targets = ["zoo:tutorial.fusion_demo"]')
        for task in entry.tasks():
            _check(task, place)
    return Manifest(tuple(dict.fromkeys(task for entry in entries for task in entry.tasks())))


def _check(task: Task, place: int) -> None:
    """Refuse a task that `tune` would refuse, except for reasons that depend on the device."""
    try:
        msgspec.structs.replace(task, device=task.device or "cpu").request()
    except InputError as error:
        raise type(error)(f"$.studies[{place}]: {error}") from None


def _add_size(target: str, size: str) -> str:
    """Add a size to a target of the zoo, unless it has one."""
    return f"{target}@{size}" if size and target.startswith("zoo:") and "@" not in target else target
