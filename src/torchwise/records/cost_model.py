"""What a plan costs over its life, from intervals rather than points.

    cost = cold compile + (restarts - 1) * warm compile + calls * seconds per call

The first process start pays the cold compile, and every later one the warm compile. Seconds per call are eager's
divided by the paired speed-up. Candidates were timed in different processes at different times, so only their ratio to
eager in the same minute compares them.

The formula stands here, below everything that uses it, so that decisions and reports share one formula.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from torchwise.records.measurement import INTERFERENCE_FACTOR, Measurement
from torchwise.records.statistics import Interval
from torchwise.records.trial import Trial


def eager_measured(inspected: Measurement, in_trials: Iterable[Measurement]) -> Measurement:
    """Return the measurement that gives eager's time.

    Args:
        inspected: from the inspection. It counts unless eager was far quicker in a trial: then it was disturbed.
        in_trials: from the trials. If the inspection was disturbed, the one in which eager was quickest counts.

    If threads wait for cores, eager's time varies from one moment to the next, and that is its real time. If they
    waited in most of the measurements, the median of those counts. If they waited in a few, the others count.
    """
    timed = [measurement for measurement in (inspected, *in_trials) if measurement.baseline_s]
    waited = sorted((m for m in timed if m.is_contended), key=lambda m: m.baseline_time.mid)
    if inspected.is_contended and 2 * len(waited) > len(timed):
        return waited[len(waited) // 2]
    timed = [measurement for measurement in timed if not measurement.is_contended] or timed
    quickest = min(timed, key=lambda measurement: measurement.baseline_time.mid, default=inspected)
    if not inspected.baseline_s or inspected.baseline_time.mid <= INTERFERENCE_FACTOR * quickest.baseline_time.mid:
        return inspected
    return quickest


def eager_peak_memory(inspected: int | None, in_trials: Iterable[int | None]) -> int | None:
    """Return the peak bytes of an eager call, or None if that was never measured.

    The peak is measured in the inspection and in every trial. The least counts, since anything else that a process does
    at that time can only add.

    Args:
        inspected: from the inspection.
        in_trials: from the trials.
    """
    return min((peak for peak in (inspected, *in_trials) if peak is not None), default=None)


@dataclass(frozen=True, slots=True)
class CostModel:
    """Costs of plans over a number of calls and restarts.

    Attributes:
        baseline_s: seconds per call of eager.
        calls: calls over the lifetime.
        restarts: process starts over the lifetime, at least 1.
    """

    baseline_s: float
    calls: int
    restarts: int = 1

    @property
    def baseline_cost(self) -> float:
        """Seconds that eager takes for all calls."""
        return self.calls * self.baseline_s

    def overhead(self, trial: Trial) -> float:
        """Return the seconds of compiling over all restarts. An unknown warm cost counts as cold."""
        assert trial.costs is not None, "only a compiled trial has costs"
        warm = trial.costs.cold_s if trial.costs.warm_s is None else trial.costs.warm_s
        return trial.costs.cold_s + (self.restarts - 1) * warm

    def seconds_per_call(self, trial: Trial) -> Interval:
        """Return the seconds per call of the plan, on the scale of the baseline."""
        speedup = trial.speedup
        assert speedup is not None, "only a timed trial has a speed"
        return Interval(*(self.baseline_s / factor for factor in (speedup.high, speedup.mid, speedup.low)))

    def cost(self, trial: Trial) -> Interval:
        """Return the expected seconds for everything: compiling, and all calls."""
        each, fixed = self.seconds_per_call(trial), self.overhead(trial)
        return Interval(*(fixed + self.calls * seconds for seconds in (each.low, each.mid, each.high)))

    def break_even_calls(self, trial: Trial) -> Interval | None:
        """Return the calls after which the plan has paid for its compilation, or None if it may never."""
        each, fixed = self.seconds_per_call(trial), self.overhead(trial)
        gains = [self.baseline_s - seconds for seconds in (each.low, each.mid, each.high)]
        if gains[-1] <= 0:
            return None
        return Interval(*(fixed / gain for gain in gains))

    def compute_saving(self, trial: Trial) -> float:
        """Return the seconds saved over all calls, or their lower bound if the speed-up names no figure."""
        assert trial.speedup is not None, "only a timed trial has a speed"
        cost = self.cost(trial)
        return self.baseline_cost - (cost.mid if trial.speedup.is_usable else cost.high)

    def surely_pays(self, trial: Trial) -> bool:
        """Whether the plan costs less than eager even at the slow end of its interval."""
        return self.cost(trial).high < self.baseline_cost
