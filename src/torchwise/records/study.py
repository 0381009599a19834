"""A study: one request, its trials, and the decision, with the figures that its JSON derives from the samples."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from torchwise.environment import Environment
from torchwise.errors import InputError
from torchwise.parsing import short_repr
from torchwise.plan import Numerics
from torchwise.plan.effort import check_effort
from torchwise.plan.workload_spec import WorkloadSpec
from torchwise.records import codec
from torchwise.records.answer import Reliability, Trust, judge_trust
from torchwise.records.decision import Decision
from torchwise.records.measurement import Inspection, Measurement
from torchwise.records.shown import Shown
from torchwise.records.statistics import Amount, Count, Seconds
from torchwise.records.trial import CostModel, Trial, TrialState, eager_measured, eager_peak_memory

SCHEMA = "torchwise.study/1"


class StudyState(StrEnum):
    """Whether the search has ended."""

    RUNNING = "running"
    DECIDED = "decided"
    INTERRUPTED = "interrupted"


@dataclass(frozen=True, slots=True)
class Study(Shown):
    """One request, its trials, and the decision.

    Attributes:
        id: the store's key of the study.
        workload: the request.
        environment: machine and software.
        inspection: properties of the plain model.
        allow: the loosest numerics allowed.
        effort: "quick", "standard" or "thorough".
        state: whether the search has ended.
        trials: in the order in which they were proposed.
        excluded: choices that were not tried, each with the reason.
        decision: set once decided.
        created_at: seconds since the epoch.
        seconds: wall time spent on it over all sessions.
    """

    id: Count
    workload: WorkloadSpec
    environment: Environment
    inspection: Inspection
    allow: Numerics
    effort: str
    state: StudyState = StudyState.RUNNING
    trials: tuple[Trial, ...] = ()
    excluded: tuple[str, ...] = ()
    decision: Decision | None = None
    created_at: Amount = 0.0
    seconds: Seconds = 0.0

    def __repr__(self) -> str:
        reason = self.decision.reason if self.decision else f"{self.state}, {len(self.trials)} trials"
        return f"<Study {self.id} of {self.workload.target}: {reason}>"

    def check_read(self) -> None:
        """Raise an InputError for unknown words."""
        check_effort(self.effort)

    @property
    def eager(self) -> Measurement:
        """The measurement that gives eager's time: the one behind the decision, so that no report differs."""
        in_trials = [trial.measurement for trial in self.trials if trial.is_timed and trial.measurement]
        inspected = self.inspection.measurement
        decided_s = self.decision.baseline_s if self.decision else None
        timed = (measurement for measurement in (inspected, *in_trials) if measurement.baseline_s)
        went_by = (measurement for measurement in timed if measurement.baseline_time.mid == decided_s)
        return next(went_by, None) or eager_measured(inspected, in_trials)

    @property
    def is_timed(self) -> bool:
        """Whether any candidate was timed, so that there are ratios to trust or not."""
        return any(trial.is_timed for trial in self.trials)

    @property
    def cost_model(self) -> CostModel:
        """Costs on the scale of every time of this study: eager's time over the paired ratio."""
        asked = self.decision.workload if self.decision else self.workload
        return CostModel(self.eager.baseline_time.mid, asked.calls, asked.restarts)

    @property
    def eager_peak_memory(self) -> int | None:
        """Bytes at the peak of an eager call, to which all plans are compared, or None if unknown."""
        in_trials = (trial.costs.baseline_peak_memory for trial in self.trials if trial.costs)
        return eager_peak_memory(self.inspection.peak_memory, in_trials)

    @property
    def trust(self) -> Trust:
        """How far the figures can be trusted, without trials that were stopped early, which are wide by intent."""
        decided = self.decision.plan if self.decision else None
        timed = sorted(
            (trial for trial in self.trials if trial.is_timed and trial.state is TrialState.COMPLETE),
            key=lambda trial: trial.plan != decided,
        )
        own = self.inspection.measurement
        eager = [own.speedup] if own.candidate_s else []
        ratios = [*eager, *(trial.speedup for trial in timed if trial.speedup)]
        observed = [*eager, *(process.speedup for trial in timed for process in trial.processes)]
        found = (own, *(trial.measurement for trial in timed if trial.measurement))
        slowed = [] if self.eager is own else ["something slowed eager down while it was profiled"]
        notes = [note for measurement in found for note in measurement.notes]
        return judge_trust(ratios, [*notes, *slowed], observed)

    def to_json(self) -> str:
        """Return the data of `to_dict` as one line of JSON."""
        return codec.to_json(self.to_dict())

    @classmethod
    def from_json(cls, text: str | bytes) -> Study:
        """Read the output of `to_json`.

        Raises:
            InputError: it is no study, or has another schema.
        """
        return study_from_dict(codec.parse(text, cls))

    def to_dict(self) -> dict[str, Any]:
        """Return schema `torchwise.study/1`: raw samples, together with the statistics derived from them."""
        data: dict[str, Any] = codec.to_builtins(self)
        inspection = data.pop("inspection")
        data["baseline"] = {**inspection, "seconds_per_call": codec.to_builtins(self.eager.baseline_time)}
        for trial, row in zip(self.trials, data["trials"], strict=True):
            row["plan_id"] = trial.plan.id
            if trial.speedup:
                row["speedup"] = codec.to_builtins(trial.speedup)
                if self.eager.baseline_s:
                    row["seconds_per_call"] = codec.to_builtins(self.cost_model.seconds_per_call(trial))
            if trial.cold_speedup:
                row["cold_speedup"] = codec.to_builtins(trial.cold_speedup)
            if trial.duel and trial.duel.measurement:
                row["duel"]["speedup"] = codec.to_builtins(trial.duel.measurement.speedup)
            if trial.verdict:
                row["verdict"]["outcome"] = trial.verdict.outcome.value
        return {"schema": SCHEMA, **data, "trust": codec.to_builtins(self.trust)}


def study_from_dict(data: Any) -> Study:
    """Read the output of `Study.to_dict`. Derived values are checked against the samples, and never read.

    Raises:
        InputError: another schema, a field missing, unknown or of another type, or a derived figure that differs.
    """
    codec.check_schema(data, Study, SCHEMA)
    study = codec.from_builtins(_drop_derived(data), Study)
    try:
        _check_derived(data, study.to_dict())
    except ValueError as error:  # a measurement has no samples, or other figures than the stored ones
        raise InputError(f"this is no Study: {error}") from None
    return study


_OF_TRIALS = ("plan_id", "speedup", "cold_speedup", "seconds_per_call", "duel.speedup", "verdict.outcome")
"""Values that `to_dict` derives for each trial."""


def _drop_derived(data: dict[str, Any]) -> dict[str, Any]:
    """Return a study's data as the record has them: without the schema and all derived values."""
    plain = {name: value for name, value in data.items() if name not in ("schema", "baseline", "trust")}
    if "baseline" in data:
        plain["inspection"] = _drop_value(data["baseline"], "seconds_per_call")
    if isinstance(trials := data.get("trials"), (list, tuple)):
        plain["trials"] = [functools.reduce(_drop_value, _OF_TRIALS, trial) for trial in trials]
    return plain


def _drop_value(data: Any, path: str) -> Any:
    """Return data without the value at a path, such as "duel.speedup"."""
    if not isinstance(data, dict):
        return data
    first, _, rest = path.partition(".")
    if rest:
        return {**data, first: _drop_value(data[first], rest)} if first in data else data
    return {name: value for name, value in data.items() if name != first}


def _check_derived(data: dict[str, Any], derived: dict[str, Any]) -> None:
    """Refuse figures in data that do not follow from its samples, from which `Study.to_dict` derives them."""
    for place, stored in _find_derived(data):
        if not _is_consistent(stored, _value_at(derived, place)):
            raise InputError(f"$.{place} is {short_repr(stored)}, but must follow from the samples")


def _find_derived(data: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the place and the value of each derived figure in the data."""
    trials = range(len(data.get("trials", ())))
    of_trials = (f"trials.{index}.{path}" for index in trials for path in _OF_TRIALS)
    for place in ("baseline.seconds_per_call", "trust", *of_trials):
        if (stored := _value_at(data, place)) is not _ABSENT:
            yield place, stored


def _value_at(data: Any, place: str) -> Any:
    for step in place.split("."):
        try:
            data = data[int(step) if isinstance(data, (list, tuple)) else step]
        except (KeyError, TypeError):
            return _ABSENT
    return data


_ABSENT = object()


def _is_consistent(stored: Any, derived: Any) -> bool:
    """Whether a stored value matches the derived one. NumPy draws an interval's ends, and its versions may differ."""
    if not isinstance(derived, dict):
        return bool(stored == derived)
    if "sentence" in derived:
        return (
            isinstance(stored, dict)
            and stored.keys() == derived.keys()
            # In the words, and by the rule, of the version that wrote it.
            and isinstance(stored["sentence"], str)
            and stored["reliability"] in list(Reliability)
            and all(_is_same(stored[name], derived[name]) for name in stored if name not in ("sentence", "reliability"))
        )
    if not isinstance(stored, dict) or stored.keys() != derived.keys() or not all(map(_is_number, stored.values())):
        return False
    if not math.isclose(stored["mid"], derived["mid"], rel_tol=1e-6):
        return False
    width = derived["high"] - derived["low"] + 1e-6 * abs(derived["mid"])
    return all(abs(stored[end] - derived[end]) <= width for end in ("low", "high"))


def _is_same(stored: Any, derived: Any) -> bool:
    if _is_number(stored) and _is_number(derived):
        return math.isclose(stored, derived, rel_tol=1e-6)
    return type(stored) is type(derived) and bool(stored == derived)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
