"""The gains of choices on models like this one: an order of trials, learned from past studies, and never evidence.

A past study is kept as the traits of its model and the gains of its trials, each over every plan that it builds on. The
gain of a change on another model is expected to be the mean over past ones, weighted by how alike the models are (the
kernel regression of Nadaraya and Watson, 1964), with a prior of no gain. Trials go first that are expected to save most
for their time: by expected improvement per second (Snoek et al., 2012, https://arxiv.org/abs/1206.2944).

`past_studies.json` holds studies of `benchmarks/learn_gains.py`. Those in the user's own store are added to them.
"""

from __future__ import annotations

import functools
import logging
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from statistics import NormalDist
from types import MappingProxyType

from torchwise.errors import TorchwiseError
from torchwise.plan import EAGER, Plan
from torchwise.plan.rules import iter_changes
from torchwise.plan.workload_spec import WorkloadSpec
from torchwise.records import FailureKind, Inspection, Study, Trial, codec
from torchwise.store import Storage
from torchwise.study.history import History

logger = logging.getLogger("torchwise")

SHIPPED = "past_studies.json"
MAX_OWN_STUDIES = 12
"""Newest studies of the user's store that are read, as decoding one takes up to a tenth of a second."""
MIN_WEIGHT = 0.1
"""Weight that all past studies together need for this model. With less, they say nothing of it."""
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
    """The result of one study, for other models.

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
        distances = [apart / TRAITS_APART, times / TIMES_APART, *(share / SHARES_APART for share in shares)]
        return math.exp(-math.fsum(distance**2 for distance in distances) / 2)


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
    """Return the gains of a study, or None if it timed no plan."""
    if not study.eager.baseline_s:
        return None
    seconds = {EAGER: study.eager.baseline_time.mid}
    seconds |= {t.plan: study.cost_model.seconds_per_call(t).mid for t in study.trials if t.is_timed}
    return _summarize(study.workload, study.inspection, seconds, study.trials)


def summarize_history(history: History) -> PastStudy | None:
    """Return the gains that the search at hand has shown so far, or None."""
    return _summarize(history.workload, history.inspection, _list_seconds(history), history.trials)


def _list_seconds(history: History) -> dict[Plan, float]:
    timed = {trial.plan: history.seconds_of(trial.plan) for trial in history.iter_timed()}
    return {EAGER: history.economics.baseline_s, **timed}


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


def read_past(storage: Storage, study_id: int) -> list[PastStudy]:
    """Return the past studies of the package, and those in a store that are older than a study, of other models.

    All processes that share a study find the same ones. A study that cannot be read is left out: another version or a
    plug-in may have written it, or somebody deleted it.
    """
    found, own = list(read_shipped()), storage.get_study(study_id)
    kind, inspection = (own.workload.device, own.workload.mode), own.inspection
    older = [one for one in storage.list_studies(limit=4 * MAX_OWN_STUDIES) if one.created_at < own.created_at]
    older = [one for one in older if one.target != own.workload.target]
    alike = [one for one in older if (one.device, one.mode) == kind and one.trials]
    for summary in alike[:MAX_OWN_STUDIES]:
        try:
            study = storage.get_study(summary.id)
            past = summarize_study(study) if study.inspection.identity != inspection.identity else None
        except (TorchwiseError, ValueError) as error:
            logger.debug("torchwise: study %s gives no order of trials", summary.id, exc_info=error)
            continue
        found += [past] if past else []
    return found


class GainModel:
    """Expects the gain of a plan. Without past studies of models like the one at hand it expects nothing.

    Args:
        past: studies of any device and mode.
    """

    def __init__(self, past: Iterable[PastStudy] = ()) -> None:
        self._past = tuple(past)

    def weigh_past(self, history: History) -> WeightedStudies:
        """Return the past studies of the workload's device and mode, each with its weight for this model.

        If they say anything of it, the trials of the search at hand count as well, as those of the very same model.
        """
        asked = history.workload
        alike = [past for past in self._past if (past.device, past.mode) == (asked.device, asked.mode)]
        weighted = [(past.weigh(history.inspection), past) for past in alike]
        if math.fsum(weight for weight, _ in weighted) < MIN_WEIGHT:
            return WeightedStudies()
        here = summarize_history(history)
        return WeightedStudies([*weighted, *([(1.0, here)] if here else [])], _list_seconds(history))


class WeightedStudies:
    """Past studies with their weights for one model.

    Args:
        weighted: the studies, each with its weight.
        seconds: seconds per call of the plans that were timed on this model, eager among them.
    """

    def __init__(
        self, weighted: Sequence[tuple[float, PastStudy]] = (), seconds: Mapping[Plan, float] = MappingProxyType({})
    ) -> None:
        self._weighted, self._seconds = weighted, seconds

    def __bool__(self) -> bool:
        """Whether there are any."""
        return bool(self._weighted)

    def expect_gain(self, change: str) -> tuple[float, float, float]:
        """Return mean and standard deviation of a change's gain, as logarithms of a speed-up, and its total weight."""
        seen = list(self._find(change))
        known = math.fsum(weight for weight, _ in seen)
        total = PRIOR + known
        mean = math.fsum(weight * gain for weight, gain in seen) / total
        square = PRIOR * (SPREAD**2 + mean**2) + math.fsum(weight * (gain - mean) ** 2 for weight, gain in seen)
        return mean, math.sqrt(square / total), known

    def _find(self, change: str) -> Iterator[tuple[float, float]]:
        for weight, past in self._weighted:
            if (gain := past.gains.get(change)) is not None:
                yield weight, gain

    def expect_saving_s(self, plan: Plan, best_s: float) -> float:
        """Return the seconds by which a plan is expected to improve on the best time of a call.

        The plan adds something to several timed plans, at least to eager. The base whose change is known best counts,
        and of several such ones the quickest.
        """
        bases = _list_bases(plan, self._seconds)
        gains = [(*self.expect_gain(name_change(base, plan)), self._seconds[base]) for base in bases]
        mean, deviation, _, base_s = min(gains, key=lambda gain: (-gain[2], gain[1], gain[3]))
        mean -= math.log(base_s / best_s)
        z = mean / deviation
        improvement = mean * _STANDARD.cdf(z) + deviation * _STANDARD.pdf(z)
        return best_s * -math.expm1(-improvement)
