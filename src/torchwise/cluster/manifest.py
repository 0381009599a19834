"""A sweep as a TOML file: which targets are tuned, where and how.

TOML, because Python reads it without a dependency, and the suites of `torchwise bench` are written in it, too.
"""

from __future__ import annotations

import itertools
import tomllib
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from torchwise.errors import InputError
from torchwise.plan import Legality
from torchwise.study import Request
from torchwise.workload import DEFAULT_CALLS, WorkloadSpec
from torchwise.workload.target import check_form


@dataclass(frozen=True, slots=True)
class Task:
    """One study of a sweep: the options of `torchwise tune` that a manifest may give."""

    target: str
    device: str = ""
    mode: str = "inference"
    objective: str = "latency"
    calls: int = DEFAULT_CALLS
    restarts: int = 1
    allow: str = "reordered"
    effort: str = "standard"
    budget: float | None = None
    memory_limit: float | None = None
    seed: int = 0
    plan: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """What tells it from the others of its sweep, for a person."""
        return f"{self.target} on {self.device}"

    def check(self) -> None:
        """Refuse what `tune` would refuse, before anything runs.

        Raises:
            InputError: naming the value and the rule.
        """
        from torchwise.plan import Plan

        check_form(self.target)
        workload = WorkloadSpec(
            self.target,
            self.device,  # type: ignore[arg-type]
            self.mode,  # type: ignore[arg-type]
            self.objective,  # type: ignore[arg-type]
            self.calls,
            self.restarts,
            self.seed,
            None if self.memory_limit is None else int(self.memory_limit * 2**30),
        )
        plans = tuple(map(Plan.from_json, self.plan)) or None
        Request(workload, Legality.of(self.allow), self.effort, self.budget, plans)

    def words(self) -> list[str]:
        """Return what `torchwise` is called with for it."""
        given = {name: value for name, value in asdict(self).items() if value not in (None, "") and name != "target"}
        plans = given.pop("plan")
        options = [f"--{name.replace('_', '-')}={value}" for name, value in given.items()]
        return ["tune", *options, *(f"--plan={plan}" for plan in plans), "--", self.target]


class Entry(msgspec.Struct, forbid_unknown_fields=True):
    """A table of a manifest. Lists multiply; what is not given is as at the head of the file, else as `tune` has it."""

    targets: list[str] | None = None
    sizes: list[str] | None = None
    devices: list[str] | None = None
    modes: list[str] | None = None
    objective: str | None = None
    calls: int | None = None
    restarts: int | None = None
    allow: str | None = None
    effort: str | None = None
    budget: float | None = None
    memory_limit: float | None = None
    seed: int | None = None
    plan: list[str] | None = None


class _File(Entry, forbid_unknown_fields=True):
    studies: list[Entry] = []


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a sweep tunes, in order; each study once."""

    tasks: tuple[Task, ...]

    def on(self, device: str) -> Manifest:
        """Return it with `device` where it names none."""
        return Manifest(tuple(replace(task, device=task.device or device) for task in self.tasks))


def read_manifest(file: Path) -> Manifest:
    """Read a manifest.

    Raises:
        InputError: it cannot be read, a key is unknown or of another type, or it names no targets.
    """
    try:
        found = msgspec.convert(tomllib.loads(file.read_text()), _File)
    except OSError as error:
        raise InputError(f"{file} cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{file} holds no TOML: {error}") from None
    except msgspec.ValidationError as error:
        keys = ", ".join(Entry.__struct_fields__)
        raise InputError(f"{file} is no manifest ({error}); it has {keys}, and [[studies]] with the same") from None
    entries = found.studies or [found]
    tasks = tuple(dict.fromkeys(task for entry in entries for task in _tasks(entry, found, file)))
    return Manifest(tasks)


def _tasks(entry: Entry, head: Entry, file: Path) -> Iterator[Task]:
    given: dict[str, Any] = {}
    for name in Entry.__struct_fields__:
        value = getattr(entry, name) if getattr(entry, name) is not None else getattr(head, name)
        if value is not None:
            given[name] = value
    lists = [given.pop(name, default) for name, default in _LISTS.items()]
    if not lists[0]:
        raise InputError(f'{file} has no targets, but a sweep needs some: targets = ["zoo:tutorial.fusion_demo"]')
    given["plan"] = tuple(given.get("plan", ()))
    for target, size, device, mode in itertools.product(*lists):
        yield Task(_sized(target, size), device, mode, **given)


_LISTS: dict[str, list[str]] = {"targets": [], "sizes": [""], "devices": [""], "modes": ["inference"]}


def _sized(target: str, size: str) -> str:
    """Return a target of the zoo in a size, where it names none itself."""
    return f"{target}@{size}" if size and target.startswith("zoo:") and "@" not in target else target
