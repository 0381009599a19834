"""A study: one request, its trials, and the decision."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from torchwise.environment import Environment
from torchwise.errors import InputError
from torchwise.plan import Numerics
from torchwise.plan.effort import check_effort
from torchwise.plan.workload_spec import WorkloadSpec
from torchwise.records import codec, derived
from torchwise.records.answer import Trust, judge_trust
from torchwise.records.cost_model import CostModel, eager_measured, eager_peak_memory
from torchwise.records.decision import Decision
from torchwise.records.inspection import Inspection
from torchwise.records.measurement import Measurement
from torchwise.records.statistics import Amount, Count, Seconds
from torchwise.records.trial import Trial, TrialState

SCHEMA = "torchwise.study/1"


class StudyState(StrEnum):
    """Whether the search has ended."""

    RUNNING = "running"
    DECIDED = "decided"
    INTERRUPTED = "interrupted"


@dataclass(frozen=True, slots=True)
class Study:
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

    def check_read(self) -> None:
        """Refuse unknown words.

        Raises:
            InputError: a word is unknown.
        """
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
        data["baseline"] = {
            **inspection,
            "seconds_per_call": _to_builtins(self.eager.baseline_time),
        }
        for trial, row in zip(self.trials, data["trials"], strict=True):
            row["plan_id"] = trial.plan.id
            if trial.speedup:
                row["speedup"] = _to_builtins(trial.speedup)
                if self.eager.baseline_s:
                    row["seconds_per_call"] = _to_builtins(self.cost_model.seconds_per_call(trial))
            if trial.cold_speedup:
                row["cold_speedup"] = _to_builtins(trial.cold_speedup)
            if trial.duel and trial.duel.measurement:
                row["duel"]["speedup"] = _to_builtins(trial.duel.measurement.speedup)
            if trial.verdict:
                row["verdict"]["outcome"] = trial.verdict.outcome.value
        return {"schema": SCHEMA, **data, "trust": codec.to_builtins(self.trust)}


def study_from_dict(data: Any) -> Study:
    """Read the output of `Study.to_dict`. Derived values are checked against the samples, and never read.

    Raises:
        InputError: another schema, a field missing, unknown or of another type, or a derived figure that differs.
    """
    codec.check_schema(data, Study, SCHEMA)
    study = codec.from_builtins(derived.drop_derived(data), Study)
    try:
        derived.check(data, study.to_dict())
    except ValueError as error:  # a measurement has no samples, or other figures than the stored ones
        raise InputError(f"this is no Study: {error}") from None
    return study


def _to_builtins(interval: object) -> Any:
    return codec.to_builtins(interval)
