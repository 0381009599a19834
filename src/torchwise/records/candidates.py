"""A study as table rows: eager and every candidate, best first. All outputs show the same rows, so they agree."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torchwise.plan import EAGER, Plan
from torchwise.records import format as show
from torchwise.records.decision import Decision
from torchwise.records.reasons import describe_decision, is_decided, why
from torchwise.records.statistics import Interval
from torchwise.records.study import Study
from torchwise.records.trial import Trial
from torchwise.records.verdict import Outcome, Verdict

Standing = Literal["decided", "baseline", "verified", "ineligible"]
_ORDER: tuple[Standing, ...] = ("decided", "baseline", "verified", "ineligible")

_VERDICTS = {Outcome.PASS: "passed", Outcome.FAIL: "failed", Outcome.NOT_COMPARABLE: "not comparable"}


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table of candidates.

    Attributes:
        number: of the trial, or None for eager, which has an inspection and no trial.
        standing: "decided", "baseline", "verified", or "ineligible" for a plan that cannot be chosen.
        is_decided: whether the decision is for this row. Eager can be both baseline and decided.
        state: of the trial, or "inspected" for eager.
        speedup: eager's time over the plan's.
        time: seconds per call. They are on the scale of eager's time in this study (`Study.cost_model`), so that times
            and speed-ups of one table agree.
        cold_s: cost of the first call with empty caches.
        warm_s: cost of the first call with full caches.
        peak_memory: bytes at the peak.
        baseline_peak_memory: the same for eager, one figure for all rows (`Study.eager_peak_memory`).
        verdict: the outcome for people: "passed", "failed", "not comparable", "reference" for eager, or empty if not
            verified.
        error: largest relative error against the reference.
        floor: eager's own error, the noise floor.
        why: why it won or lost.
        trial: the trial behind the row, or None for eager.
    """

    number: int | None
    plan: Plan
    name: str
    standing: Standing
    is_decided: bool = False
    state: str = ""
    speedup: Interval | None = None
    time: Interval | None = None
    cold_s: float | None = None
    warm_s: float | None = None
    peak_memory: int | None = None
    baseline_peak_memory: int | None = None
    verdict: str = ""
    error: float | None = None
    floor: float | None = None
    why: str = ""
    trial: Trial | None = None

    @property
    def outcome(self) -> Outcome | None:
        """The outcome of verification, or None for eager and for plans that were not verified."""
        return self.trial.verdict.outcome if self.trial and self.trial.verdict else None

    @property
    def memory(self) -> str:
        """Peak memory, and its comparison with eager's."""
        if self.peak_memory is None:
            return show.NONE
        factor = f" ({show.ratio(self.peak_memory / self.baseline_peak_memory)})" if self.baseline_peak_memory else ""
        return f"{show.size(self.peak_memory)}{factor}"


def rows(study: Study) -> list[Row]:
    """Return the decided plan, eager, the verified plans by speed-up, then the others in order of proposal.

    Verified plans whose speed-up is too uncertain come last among the verified plans.
    """
    candidates = [_candidate(trial, study) for trial in study.trials if not trial.plan.is_eager]
    return sorted([_baseline(study), *candidates], key=_rank)


def verdict_word(verdict: Verdict | None) -> str:
    """Return a verdict in a word or two, or an empty string if there is none."""
    if verdict and verdict.lacks_property_alone:
        return f"not {next(check.name for check in verdict.checks if check.lacks_property)}"
    return _VERDICTS[verdict.outcome] if verdict else ""


def _rank(row: Row) -> tuple[int, bool, float]:
    speed = row.speedup if row.standing == "verified" else None
    is_figure = speed is None or speed.is_usable
    return (_ORDER.index(row.standing), not is_figure, -speed.mid if speed and is_figure else 0.0)


def _baseline(study: Study) -> Row:
    inspection, decision = study.inspection, study.decision
    return Row(
        number=None,
        plan=EAGER,
        name=str(EAGER),
        standing="baseline",
        is_decided=_keeps_eager(decision),
        state="inspected",
        time=study.eager.baseline_time if study.eager.baseline_s else None,
        cold_s=inspection.first_call_s,
        peak_memory=study.eager_peak_memory,
        verdict="reference",
        why=describe_decision(decision) if decision and _keeps_eager(decision) else "the baseline: the original model",
    )


def _keeps_eager(decision: Decision | None) -> bool:
    return decision is not None and decision.plan.is_eager


def _candidate(trial: Trial, study: Study) -> Row:
    measurement, verdict, costs = trial.measurement, trial.verdict, trial.costs
    timed = measurement if measurement and measurement.candidate_s else None
    chosen = is_decided(trial, study.decision)
    return Row(
        number=trial.number,
        plan=trial.plan,
        name=show.one_line(str(trial.plan)),
        standing="decided" if chosen else "verified" if timed and trial.is_verified else "ineligible",
        is_decided=chosen,
        state=trial.state.value,
        speedup=trial.speedup,
        time=_time(trial, study) if timed and study.eager.baseline_s else None,
        cold_s=costs.cold_s if costs else None,
        warm_s=costs.warm_s if costs else None,
        peak_memory=costs.peak_memory if costs else None,
        baseline_peak_memory=study.eager_peak_memory,
        verdict=verdict_word(verdict),
        error=verdict.error if verdict else None,
        floor=_floor(verdict),
        why=show.one_line(why(trial, study)),
        trial=trial,
    )


def _time(trial: Trial, study: Study) -> Interval:
    """Return the time of a call. If eager's own time is too uncertain, its interval widens the result."""
    time, eager = study.cost_model.seconds_per_call(trial), study.eager.baseline_time
    if eager.is_usable:
        return time
    return Interval(time.low * eager.low / eager.mid, time.mid, time.high * eager.high / eager.mid)


def _floor(verdict: Verdict | None) -> float | None:
    """Return the noise floor of the check with the largest error, so that the two can be compared."""
    checks = [check for check in verdict.checks if check.error is not None] if verdict else []
    worst = max(checks, key=lambda check: check.error or 0.0, default=None)
    return worst.floor if worst else None
