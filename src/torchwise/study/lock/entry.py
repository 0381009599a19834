"""One locked plan: collected from the store, and its section of the file. All fields are readable for reviewers.

Each section ends with a digest of all its contents. The digest detects accidental edits, and merges that mixed two
sections. So a plan is never used with the evidence of another. The digest is no signature: anybody can write a valid
one on purpose. Review can find that, and so does `check`, which verifies the plan again.
"""

from __future__ import annotations

import hashlib
import json
import math
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import TYPE_CHECKING, Any

from torchwise import environment
from torchwise.environment import Environment
from torchwise.errors import InputError
from torchwise.former_names import renamed_fields, with_current_names
from torchwise.plan import Numerics, Plan
from torchwise.plan.plan import SCHEMA as PLAN_SCHEMA
from torchwise.plan.space import numerics_of
from torchwise.plan.workload_spec import LIVE, WorkloadSpec
from torchwise.records import Decision, Interval, Study, StudyState, codec
from torchwise.records.shown import Shown

if TYPE_CHECKING:
    from torchwise.store import Storage

DIGITS = 4
"""Significant digits of stored figures, which is more than any measurement has."""
HARDWARE = ("device", "system", "cpu", "cpus", "cores_allowed", "gpu", "gpu_memory_mib", "gpu_capability")
"""Fields of an environment about the machine. A new section replaces one of equal hardware with any software."""
SOFTWARE = ("python", "torch", "triton", "cuda", "driver", "compilers")
"""Fields of an environment about software. The host's name is in neither, since equal machines share a section."""
Key = tuple[str, str, str]
Range = tuple[float, float, float]
"""Low, middle and high of an interval."""
_REQUESTED = (
    *("objective", "calls", "restarts", "seed", "memory_limit", "latency_limit", "batch"),
    *("sizes", "tolerance", "metric", "varying", "require"),
)
"""Fields of a section that its request has as well."""
_DECIDED = ("reason", "baseline_s", "saved_s", "cold_s", "warm_s", "error", "inputs", "identity", "structure")
"""Fields of a section that its decision has as well."""
_FINITE = ("baseline_s", "saved_s", "cold_s", "warm_s", "error")
"""Figures that must be finite. The calls until break-even may be infinite."""


@dataclass(frozen=True, slots=True)
class Entry(Shown):
    """One locked plan.

    Attributes:
        decision: the decision, its figures rounded to four digits. The environment has no host name.
        allow: the loosest numerics that were permitted.
        plan_s: seconds per call of the plan, in the process that timed it, or None for eager.
    """

    decision: Decision
    allow: Numerics
    verdict: str
    plan_s: Interval | None
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"<Entry for {self.decision.workload.target}: {self.decision.plan}>"

    @property
    def key(self) -> tuple[str, str, str]:
        """Target, mode and hardware: a file holds one section for each key."""
        return self.decision.workload.target, self.decision.workload.mode, self.hardware

    @property
    def hardware(self) -> str:
        """The machine as text, with the limit on its CPUs if there is one."""
        return self.decision.environment.limited_hardware


def is_same_hardware(one: Environment, other: Environment) -> bool:
    """Whether two machines are of one kind."""
    return not set(HARDWARE) & set(one.list_different_fields(other))


def entry_of(study: Study) -> Entry:
    """Return the entry to lock for a decided study."""
    decision = study.decision
    assert decision is not None, "only decided studies are locked"
    trial = next((t for t in study.trials if t.plan == decision.plan and t.is_verified), None)
    verdict = trial.verdict.reason if trial and trial.verdict else "the plan is eager"
    measurement = trial.measurement if trial else None
    plan_s, notes = (measurement.candidate_time, measurement.caveats) if measurement else (None, ())
    return Entry(_round_decision(decision), study.allow, verdict, _round_interval(plan_s), notes)


def _round_decision(decision: Decision) -> Decision:
    return replace(
        decision,
        speedup=_round_interval(decision.speedup),
        break_even_calls=_round_interval(decision.break_even_calls),
        saved_s=_round(decision.saved_s),
        baseline_s=_round(decision.baseline_s),
        cold_s=_round(decision.cold_s),
        warm_s=None if decision.warm_s is None else _round(decision.warm_s),
        error=None if decision.error is None or math.isnan(decision.error) else _round(decision.error),
        environment=replace(decision.environment, hostname=""),
    )


def _round_interval(interval: Interval | None) -> Interval | None:
    return None if interval is None else Interval(*map(_round, (interval.low, interval.mid, interval.high)))


def _round(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")


@renamed_fields(numerics="legality")
@dataclass(frozen=True, slots=True, kw_only=True)
class _Section:
    """The fields in the order of the file. Fields that are None are left out."""

    reason: str
    plan: dict[str, Any]
    verdict: str
    numerics: str
    allow: str
    objective: str
    calls: int
    restarts: int
    seed: int
    memory_limit: int | None = None
    latency_limit: float | None = None
    batch: dict[str, int] | None = None
    sizes: str | None = None
    tolerance: float | None = None
    metric: str | None = None
    varying: list[dict[str, Any]] | None = None
    require: list[str] | None = None
    speedup: Range | None = None
    plan_s: Range | None = None
    baseline_s: float
    break_even_calls: Range | None = None
    saved_s: float
    cold_s: float
    warm_s: float | None = None
    error: float | None = None
    notes: tuple[str, ...] | None = None
    inputs: tuple[str, ...]
    identity: str
    structure: str
    structure_details: str | None = None
    weights: str | None = None
    hardware: dict[str, str | int | float]
    software: dict[str, str | int]


def section_of(entry: Entry) -> dict[str, Any]:
    """Return the section of an entry, its digest last."""
    decision, environment = entry.decision, asdict(entry.decision.environment)
    plan = decision.plan.to_dict()
    del plan["schema"]  # the schema of the file stands for that of its plans
    values = {
        **{name: getattr(decision.workload, name) for name in _REQUESTED},
        **{name: getattr(decision, name) for name in _DECIDED},
        "batch": decision.workload.batch and asdict(decision.workload.batch),
        "sizes": None if decision.workload.sizes == "as-given" else decision.workload.sizes,
        "varying": [{**asdict(dim), "lengths": list(dim.lengths)} for dim in decision.workload.varying] or None,
        "require": list(map(str, decision.workload.require)) or None,
        "plan": plan,
        "verdict": entry.verdict,
        "numerics": numerics_of(decision.plan).value,
        "allow": str(entry.allow),
        "speedup": _range(decision.speedup),
        "plan_s": _range(entry.plan_s),
        "break_even_calls": _range(decision.break_even_calls),
        "notes": entry.notes or None,
        "structure_details": decision.structure_details or None,
        "weights": decision.weights or None,
        "hardware": {name: environment[name] for name in HARDWARE if environment[name] is not None},
        "software": {name: environment[name] for name in SOFTWARE if environment[name] is not None},
    }
    data = {field.name: values[field.name] for field in fields(_Section) if values[field.name] is not None}
    return {**data, "digest": _digest(entry.key, data)}


def entry_in(key: Key, data: Mapping[str, Any]) -> Entry:
    """Return the entry of a section."""
    data = dict(data)
    digest = data.pop("digest", None)
    if digest != (found := _digest(key, data)):
        raise InputError(
            f"it was edited: its digest is {digest!r}, but its contents have {found!r}, and a plan is used only with "
            "its own evidence"
        )
    section = codec.from_builtins(data, _Section)
    for name in _FINITE:
        if not math.isfinite(value := getattr(section, name) or 0.0):
            raise InputError(f"its {name} is {value}, but must be finite")
    plan = Plan.from_dict({"schema": PLAN_SCHEMA, **section.plan})
    if not Numerics.of(section.allow).allows(level := numerics_of(plan)):
        raise InputError(f"its plan {plan} is {level}, but must be at most {section.allow}")
    if plan.is_eager is not (section.speedup is None):
        raise InputError(f"its plan is {plan}, but eager must have no speedup, and any other plan must have one")
    time = _read_interval("plan_s", section.plan_s)
    entry = Entry(_decision(key, section, plan), Numerics.of(section.allow), section.verdict, time, section.notes or ())
    if entry.key != key:
        raise InputError(f"its hardware is {entry.hardware!r}, but its heading has {key[2]!r}")
    levels = {"numerics": Numerics.of(section.numerics).value, "allow": Numerics.of(section.allow).value}
    written = {**with_current_names(data), "plan": with_current_names(section.plan), **levels}
    if section_of(entry)["digest"] != _digest(key, written):  # an earlier version wrote former names
        raise InputError(f"it differs from the output of `torchwise lock`, by which {plan} is {level}")
    return entry


def _decision(key: Key, section: _Section, plan: Plan) -> Decision:
    request = {name: value for name in _REQUESTED if (value := getattr(section, name)) is not None}
    device = section.hardware.get("device")
    return Decision(
        plan=plan,
        speedup=_read_interval("speedup", section.speedup),
        break_even_calls=_read_interval("break_even_calls", section.break_even_calls),
        workload=codec.from_builtins({"target": key[0], "mode": key[1], "device": device, **request}, WorkloadSpec),
        structure_details=section.structure_details or "",
        weights=section.weights or "",
        environment=codec.from_builtins({"hostname": "", **section.hardware, **section.software}, Environment),
        **{name: getattr(section, name) for name in _DECIDED},
    )


def _digest(key: Key, data: Mapping[str, Any]) -> str:
    # TOML can have dates, but no section does.
    text = json.dumps([*key, data], sort_keys=True, ensure_ascii=False, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _range(interval: Interval | None) -> Range | None:
    return None if interval is None else (interval.low, interval.mid, interval.high)


def _read_interval(name: str, found: Range | None) -> Interval | None:
    if found is None:
        return None
    is_measured = name in ("speedup", "plan_s")
    if not 0 <= found[0] <= found[1] <= found[2] or (is_measured and not 0 < found[0] <= found[2] < math.inf):
        raise InputError(f"its {name} is {list(found)}, but must be low, middle and high, above 0")
    return Interval(*found)


def collect(storage: Storage, targets: Iterable[str], store: str | None = None) -> list[Entry]:
    """Return the entries of `targets`: the last decision of each target for each device and mode.

    Args:
        store: location of the store for commands in messages, or None for the default store.

    Raises:
        InputError: a target has no decision for this machine, or cannot be loaded by a command. The message has the
            command to run.
    """
    return [entry for target in dict.fromkeys(targets) for entry in _collect_entries(storage, target, store)]


def _collect_entries(storage: Storage, target: str, store: str | None) -> list[Entry]:
    if target.startswith(LIVE):
        raise InputError(
            f"{target} is a model of a running program, which `torchwise check` cannot load: tune and lock a factory, "
            "as package.module:factory or path/file.py:factory"
        )
    newest: dict[tuple[str, str], Decision] = {}
    differences: list[str] = []
    for decision in storage.decisions(target=target):
        device = decision.environment.device
        if different := decision.list_changes(environment.detect(device)):
            differences += different[:1]
        else:
            newest.setdefault((device, decision.workload.mode), decision)
    if not newest:
        other = f" (its decisions differ in {differences[0]})" if differences else ""
        raise InputError(
            f"{storage.place} has no decision for {target} on this machine and software{other}: {_tune(target, store)}"
        )
    return [entry_of(_study(storage, decision, store)) for decision in newest.values()]


def _study(storage: Storage, decision: Decision, store: str | None) -> Study:
    """Return the study behind a decision."""
    target = decision.workload.target
    decided = (summary.id for summary in storage.list_studies(target) if summary.plan is not None)
    found = (storage.get_study(study_id, target) for study_id in decided)
    study = next((study for study in found if study.decision == decision), None)
    if study is None:
        raise InputError(f"{storage.place} no longer has the study that decided for {target}: run the command again")
    if study.state is not StudyState.DECIDED:
        raise InputError(
            f"study {study.id} of {target} is {study.state}, so its decision may change: "
            f"{_tune(target, store)} continues it"
        )
    if decision.is_inconclusive or not (decision.speedup is None or decision.speedup.is_usable):
        result = (
            "inconclusive"
            if decision.is_inconclusive
            else f"{decision.speedup} times eager's speed, which is too uncertain"
        )
        raise InputError(
            f"the decision for {target} is {result}, but a lock needs reliable figures: run "
            f"{_tune(target, store)} --fresh while the machine is quieter"
        )
    return study


def _tune(target: str, store: str | None) -> str:
    return shlex.join(["torchwise", "tune", target, *(() if store is None else ("--store", store))])
