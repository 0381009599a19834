"""The request to benchmark, the jobs of its workers, and suites of targets from TOML files."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta

from torchwise import parsing
from torchwise.bench import contenders
from torchwise.bench.contenders import Setting
from torchwise.errors import InputError, did_you_mean
from torchwise.parsing import parse_toml
from torchwise.plan import Numerics, Plan
from torchwise.plan.workload_spec import DEFAULT_CALLS, WorkloadSpec, check_form, choose_tolerance
from torchwise.records import codec
from torchwise.records.benchmark import TORCHWISE
from torchwise.study import Request
from torchwise.study.request import check_times_calls
from torchwise.trial import DerivedJob, Job
from torchwise.zoo.catalogue import SIZES
from torchwise.zoo.registry import DEFAULT_SIZE, Zoo, load_zoo

LIMIT_S = 300.0
"""Time limit for one contender on one target. The longest compilation of a reference workload took 238 s."""


@dataclass(frozen=True, slots=True)
class BenchRequest:
    """One request to benchmark.

    Attributes:
        contenders: names, as `torchwise.bench.contenders.find` takes them.
        effort: sets the width of intervals and the extent of Torchwise's search.
        calls: expected number of calls, for Torchwise's decision.
        allow: the loosest numerics that Torchwise may use.
        limit_s: time limit for one contender on one target.
        budget_s: seconds of the whole benchmark, or None for no limit. A row that they end is left open.
        warm: whether to measure the first call with warm caches, too, in a second process.
        plans: plans for Torchwise to choose from without a search, or empty for a search.
        cold: whether to time contenders with cold processor caches, too.
        search_s: seconds of each search of Torchwise, or None for those of its effort.
        tolerance: what numbers of fewer bits and other operators may change, as in `WorkloadSpec`.
    """

    targets: tuple[str, ...]
    contenders: tuple[str, ...]
    device: str = "cpu"
    mode: str = "inference"
    objective: str = "latency"
    effort: str = "standard"
    calls: int = DEFAULT_CALLS
    allow: Numerics = Numerics.SAME_PRECISION
    seed: int = 0
    limit_s: float = LIMIT_S
    budget_s: float | None = None
    warm: bool = True
    plans: tuple[Plan, ...] = ()
    cold: bool = False
    search_s: float | None = None
    tolerance: float | None = None

    def __post_init__(self) -> None:
        if not self.targets:
            raise InputError("no target is given, but a benchmark needs at least one: a family, a name or a suite")
        if self.objective not in ("latency", "throughput"):
            raise InputError(f"objective is {self.objective!r}, but must be latency or throughput")
        if self.cold:
            check_times_calls(self.objective)
        for name, word in (("limit_s", "limit"), ("budget_s", "budget"), ("search_s", "search budget")):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise InputError(f"{word} is {value!r} s, but must be above 0")
        if self.search_s is not None and self.plans:
            raise InputError("a search budget and plans are given, but with plans nothing is searched: leave one out")
        if self.plans and TORCHWISE not in self.contenders:
            raise InputError(
                f"plans are for the contender torchwise, but the contenders are {', '.join(self.contenders)}"
            )
        # Refuse invalid values and plans before the hardware is measured.
        self.study(self.workload(self.targets[0]))

    def study(self, workload: WorkloadSpec) -> Request:
        """Return the request for Torchwise's study of one target."""
        limit_s = self.limit_s if self.plans else None  # a search has its effort's limits
        plans = self.plans or None
        return Request(workload, self.allow, self.effort, self.search_s, plans=plans, limit_s=limit_s)

    def workload(self, target: str) -> WorkloadSpec:
        """Return the specification of the workload for one target."""
        return WorkloadSpec(
            target,
            device=self.device,  # type: ignore[arg-type]
            mode=self.mode,  # type: ignore[arg-type]
            objective=self.objective,  # type: ignore[arg-type]
            calls=self.calls,
            seed=self.seed,
            tolerance=choose_tolerance(self.allow, self.mode) if self.tolerance is None else self.tolerance,
        )


Step = Literal["contend", "warm", "duel"]


@dataclass(frozen=True, slots=True)
class ContenderJob(DerivedJob):
    """The job of timing one contender: first, again from warm caches, or in a duel with `rival`.

    Attributes:
        decision: Torchwise's, as JSON, or empty for other contenders.
    """

    FUNCTION = "torchwise.bench.contender_worker:{0.step}"
    step: Step
    job: Job
    contender: str
    decision: str = ""
    rival: str = ""

    @property
    def setting(self) -> Setting:
        """The conditions of the contender's run."""
        return Setting(self.job.workload.device, self.job.workload.mode, self.decision)


@dataclass(frozen=True, slots=True)
class HardwareSurvey(DerivedJob):
    """The job of measuring the hardware peaks of its device."""

    FUNCTION = "torchwise.bench.contender_worker:survey"
    job: Job


@dataclass(frozen=True, slots=True)
class Suite:
    """A list of targets with the settings of their benchmark.

    Attributes:
        targets: as `resolve_targets` takes them.
        sizes: sizes for targets of the zoo that name none.
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
        """Refuse names that do not exist. The message names similar ones."""
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
