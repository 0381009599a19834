"""What choices gained on models like this one: an order of trials, learned from past studies, and never evidence.

A past study is kept as the traits of its model and the gains of its trials, each over every plan that it builds on. The
gain of a change on another model is expected to be the mean over past ones, weighted by how alike the models are (the
kernel regression of Nadaraya and Watson, 1964), with a prior of no gain. Trials go first that are expected to save most
for their time: by expected improvement per second (Snoek et al., 2012, https://arxiv.org/abs/1206.2944).

`past_studies.json` holds studies of `benchmarks/learn_gains.py`. Those in the user's own store are added to them.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.resources import files
from statistics import NormalDist

from torchwise.plan import EAGER, Plan
from torchwise.plan.rules import iter_changes
from torchwise.plan.workload_spec import WorkloadSpec
from torchwise.records import FailureKind, Inspection, Study, Trial, codec
from torchwise.store import Storage
from torchwise.study.history import History

SHIPPED = "past_studies.json"
OWN = 40
"""Newest studies of the user's store that are read: decoding one takes some milliseconds."""
PRIOR = 0.5
"""Weight of the prior, in past studies of the same model."""
SPREAD = 0.25
"""Standard deviation of a gain that no past study tells of, as a logarithm of a speed-up."""
SHARES_APART = 0.3
"""Difference in the share of one kind of work that makes models as unlike as the two below."""
TRAITS_APART = 0.5
"""Share of all traits of two models that only one of them has."""
TIMES_APART = 1.0
"""Difference of eager's time in powers of ten."""
_STANDARD = NormalDist()


@dataclass(frozen=True, slots=True)
class PastStudy:
    """What one study showed.

    Attributes:
        device: "cpu" or "cuda".
        mode: "inference" or "training".
        traits: the traits of its model.
        shares: the shares of eager's time, as in `Inspection`.
        eager_s: seconds of a call of eager.
        gains: for each change from one timed plan to another, as `name_change` names it, the logarithm of the speed-up
            of the second over the first: their mean. A trial that failed gained nothing.
    """

    device: str
    mode: str
    traits: tuple[str, ...]
    shares: dict[str, float]
    eager_s: float
    gains: dict[str, float]

    def weigh(self, inspection: Inspection) -> float:
        """Return how like its model another is: 1 for the same properties, and towards 0 for others."""
        traits, others = set(self.traits), set(inspection.traits)
        apart = len(traits ^ others) / max(len(traits | others), 1)
        kinds = self.shares.keys() | inspection.shares.keys()
        shares = [self.shares.get(kind, 0.0) - inspection.shares.get(kind, 0.0) for kind in kinds]
        times = math.log10(self.eager_s / inspection.measurement.baseline_time.mid)
        squares = [apart / TRAITS_APART, times / TIMES_APART, *(share / SHARES_APART for share in shares)]
        return math.exp(-sum(square**2 for square in squares) / 2)


def name_change(base: Plan, plan: Plan) -> str:
    """Name the change from one plan to another, whatever both have. All numbers of threads have one name."""
    old, new = set(iter_changes(base)), set(iter_changes(plan))
    words = [f"{sign}{_name_part(*part)}" for sign, parts in (("+", new - old), ("-", old - new)) for part in parts]
    return " ".join(sorted(words))


def _name_part(field: str, value: object) -> str:
    if field == "threads":
        return field
    return f"{field}={value[0]}:{value[1]}" if isinstance(value, tuple) else f"{field}={value}"


def summarize_study(study: Study) -> PastStudy | None:
    """Return what a study showed, or None if it timed no plan."""
    seconds = {EAGER: study.eager.baseline_time.mid}
    seconds |= {t.plan: study.cost_model.seconds_per_call(t).mid for t in study.trials if t.is_timed}
    return _summarize(study.workload, study.inspection, seconds, study.trials)


def summarize_history(history: History) -> PastStudy | None:
    """Return what the search at hand has shown so far, or None."""
    seconds = {EAGER: history.economics.baseline_s}
    seconds |= {trial.plan: history.seconds_of(trial.plan) for trial in history.iter_timed()}
    return _summarize(history.workload, history.inspection, seconds, history.trials)


def _summarize(
    workload: WorkloadSpec, inspection: Inspection, seconds: dict[Plan, float], trials: Iterable[Trial]
) -> PastStudy | None:
    found: dict[str, list[float]] = {}
    for trial in trials:
        if trial.plan in seconds or _has_failed(trial):
            for base in _list_bases(trial.plan, seconds):
                gain = math.log(seconds[base] / seconds.get(trial.plan, seconds[base]))
                found.setdefault(name_change(base, trial.plan), []).append(gain)
    if not found:
        return None
    gains = {name: round(sum(several) / len(several), 4) for name, several in sorted(found.items())}
    shares = {kind: round(share, 4) for kind, share in sorted(inspection.shares.items())}
    traits = tuple(sorted(inspection.traits))
    return PastStudy(workload.device, workload.mode, traits, shares, float(f"{seconds[EAGER]:.4g}"), gains)


def _has_failed(trial: Trial) -> bool:
    """Whether a trial showed that its plan gains nothing: not if something from outside ended it."""
    return trial.failure is not None and trial.failure.kind not in (FailureKind.INTERFERED, FailureKind.OUT_OF_BUDGET)


def _list_bases(plan: Plan, timed: Iterable[Plan]) -> list[Plan]:
    """List the timed plans that a plan only adds to."""
    parts = set(iter_changes(plan))
    return [base for base in timed if set(iter_changes(base)) < parts]


@functools.cache
def read_shipped() -> tuple[PastStudy, ...]:
    """Read the past studies that come with the package."""
    return codec.from_json(files(__package__).joinpath(SHIPPED).read_bytes(), tuple[PastStudy, ...])


def read_past(storage: Storage, workload: WorkloadSpec, inspection: Inspection) -> list[PastStudy]:
    """Return the past studies of the package and of a store, but for those of the very same workload."""
    found = list(read_shipped())
    for summary in storage.list_studies(limit=OWN):
        if (summary.device, summary.mode) == (workload.device, workload.mode) and summary.trials:
            study = storage.get_study(summary.id)
            past = summarize_study(study) if study.inspection.identity != inspection.identity else None
            found += [past] if past else []
    return found


class GainModel:
    """Expects the gain of a change of plans. Without past studies it expects nothing.

    Args:
        past: studies of any device and mode.
    """

    def __init__(self, past: Iterable[PastStudy] = ()) -> None:
        self._past = tuple(past)

    def weigh_past(self, history: History) -> Kin:
        """Return the past studies of the workload's device and mode, each with its weight for this model.

        If there are any, the trials of the search at hand count as well, as those of the very same model.
        """
        workload = history.workload
        alike = [p for p in self._past if (p.device, p.mode) == (workload.device, workload.mode)]
        here = summarize_history(history) if alike else None
        return Kin([(past.weigh(history.inspection), past) for past in (*alike, *([here] if here else []))])


class Kin:
    """Past studies with their weights for one model."""

    def __init__(self, weighted: Sequence[tuple[float, PastStudy]] = ()) -> None:
        self._weighted = weighted

    def __bool__(self) -> bool:
        """Whether there are any."""
        return bool(self._weighted)

    def expect_gain(self, change: str) -> tuple[float, float]:
        """Return the mean and the standard deviation of a change's gain, as logarithms of a speed-up."""
        seen = list(self._find(change))
        total = PRIOR + sum(weight for weight, _ in seen)
        mean = sum(weight * gain for weight, gain in seen) / total
        square = PRIOR * (SPREAD**2 + mean**2) + sum(weight * (gain - mean) ** 2 for weight, gain in seen)
        return mean, math.sqrt(square / total)

    def _find(self, change: str) -> Iterator[tuple[float, float]]:
        for weight, past in self._weighted:
            if (gain := past.gains.get(change)) is not None:
                yield weight, gain

    def expect_saving_s(self, change: str, base_s: float, best_s: float) -> float:
        """Return the seconds by which a plan is expected to improve on the best one.

        Args:
            change: the plan's change from its base.
            base_s: seconds per call of its base.
            best_s: seconds per call of the best plan so far.
        """
        mean, deviation = self.expect_gain(change)
        mean -= math.log(base_s / best_s)
        z = mean / deviation
        improvement = mean * _STANDARD.cdf(z) + deviation * _STANDARD.pdf(z)
        return best_s * -math.expm1(-improvement)
