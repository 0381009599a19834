"""A study: one request, the trials made for it, and what was decided."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from torchwise.environment import Environment
from torchwise.errors import InputError
from torchwise.plan import Legality
from torchwise.plan.space import EFFORTS
from torchwise.records import codec, derived
from torchwise.records.answer import Trust, judge_trust
from torchwise.records.bounds import Amount, Count, Seconds
from torchwise.records.decision import Decision
from torchwise.records.economics import Economics, eager_measured, eager_peak_memory
from torchwise.records.inspection import Inspection
from torchwise.records.measurement import Measurement, find_disturbances
from torchwise.records.trial import Trial, TrialState
from torchwise.workload import WorkloadSpec

SCHEMA = "torchwise.study/1"


class StudyState(StrEnum):
    """Whether the search has ended."""

    RUNNING = "running"
    DECIDED = "decided"
    INTERRUPTED = "interrupted"


@dataclass(frozen=True, slots=True)
class Study:
    """One request, the trials made for it, and what was decided.

    Attributes:
        id: the store's key of the study.
        workload: what was asked.
        environment: where.
        inspection: what the plain model is like.
        allow: the furthest legality allowed.
        effort: "quick", "standard" or "thorough".
        state: whether the search has ended.
        trials: in the order in which they were proposed.
        excluded: choices that were not tried, each with the reason.
        decision: set once decided.
        created_at: seconds since the epoch.
        seconds: wall time spent on it, all sessions together.
    """

    id: Count
    workload: WorkloadSpec
    environment: Environment
    inspection: Inspection
    allow: str
    effort: str
    state: StudyState = StudyState.RUNNING
    trials: tuple[Trial, ...] = ()
    excluded: tuple[str, ...] = ()
    decision: Decision | None = None
    created_at: Amount = 0.0
    seconds: Seconds = 0.0

    def check_read(self) -> None:
        """Refuse words that are none of ours.

        Raises:
            InputError: there is one.
        """
        Legality.of(self.allow)
        if self.effort not in EFFORTS:
            raise InputError(f"effort is {self.effort!r}, but must be one of {', '.join(EFFORTS)}")

    @property
    def eager(self) -> Measurement:
        """The measurement that tells what eager takes: that which the decision went by, so that no report differs."""
        beside = [trial.measurement for trial in self.trials if trial.is_timed and trial.measurement]
        looked_at = self.inspection.measurement
        decided_s = self.decision.baseline_s if self.decision else None
        timed = (measurement for measurement in (looked_at, *beside) if measurement.baseline_s)
        went_by = (measurement for measurement in timed if measurement.baseline_time.mid == decided_s)
        return next(went_by, None) or eager_measured(looked_at, beside)

    @property
    def is_timed(self) -> bool:
        """Whether any candidate was timed, so that there are ratios to trust or not."""
        return any(trial.is_timed for trial in self.trials)

    @property
    def economics(self) -> Economics:
        """Costs on the scale that every time of this study is shown on: what eager takes, over the paired ratio."""
        asked = self.decision.workload if self.decision else self.workload
        return Economics(self.eager.baseline_time.mid, asked.calls, asked.restarts)

    @property
    def eager_peak_memory(self) -> int | None:
        """Bytes that a call of eager takes at its peak, to which all plans are compared; None where unknown."""
        beside = (trial.costs.baseline_peak_memory for trial in self.trials if trial.costs)
        return eager_peak_memory(self.inspection.peak_memory, beside)

    @property
    def trust(self) -> Trust:
        """How far the figures can be trusted; trials that were stopped early, so wide by intent, are left out."""
        decided = self.decision.plan if self.decision else None
        timed = sorted(
            (trial for trial in self.trials if trial.is_timed and trial.state is TrialState.COMPLETE),
            key=lambda trial: trial.plan != decided,
        )
        own = self.inspection.measurement
        eager = [own.speedup] if own.candidate_s else []
        ratios = [*eager, *(trial.speedup for trial in timed if trial.speedup)]
        observed = [*eager, *(trial.observed for trial in timed if trial.observed)]
        found = (own, *(trial.measurement for trial in timed if trial.measurement))
        held_up = [] if self.eager is own else ["something held eager up while it was profiled"]
        notes = find_disturbances(note for measurement in found for note in measurement.notes)
        return judge_trust(ratios, [*notes, *held_up], observed)

    def to_json(self) -> str:
        """Return one line of JSON, as `to_dict` has it."""
        return codec.to_json(self.to_dict())

    @classmethod
    def from_json(cls, text: str | bytes) -> Study:
        """Read what `to_json` wrote.

        Raises:
            InputError: it is no study, or of another schema.
        """
        return study_from_dict(codec.parsed(text, cls))

    def to_dict(self) -> dict[str, Any]:
        """Return schema `torchwise.study/1`: raw samples, with the statistics derived from them beside."""
        data: dict[str, Any] = codec.to_builtins(self)
        inspection = data.pop("inspection")
        data["baseline"] = {
            **inspection,
            "seconds_per_call": _derived(self.eager.baseline_time),
        }
        for trial, row in zip(self.trials, data["trials"], strict=True):
            row["plan_id"] = trial.plan.id
            if trial.speedup:
                row["speedup"] = _derived(trial.speedup)
                if self.eager.baseline_s:
                    row["seconds_per_call"] = _derived(self.economics.seconds_per_call(trial))
            if trial.cold_speedup:
                row["cold_speedup"] = _derived(trial.cold_speedup)
            if trial.duel and trial.duel.measurement:
                row["duel"]["speedup"] = _derived(trial.duel.measurement.speedup)
            if trial.verdict:
                row["verdict"]["outcome"] = trial.verdict.outcome.value
        return {"schema": SCHEMA, **data, "trust": codec.to_builtins(self.trust)}


def study_from_dict(data: Any) -> Study:
    """Read what `Study.to_dict` wrote. What is derived there is held against the samples, and never read.

    Raises:
        InputError: another schema, a field missing, unknown or of another type, or a derived figure that is another.
    """
    codec.check_schema(data, Study, SCHEMA)
    study = codec.from_builtins(derived.without(data), Study)
    try:
        derived.check(data, study.to_dict())
    except ValueError as error:  # a measurement without samples has no figures, or they are others than are told
        raise InputError(f"this is no Study: {error}") from None
    return study


def _derived(interval: object) -> Any:
    return codec.to_builtins(interval)
