"""What the clock said: raw samples of a candidate and of the baseline, taken in alternation."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from torchwise.errors import InputError
from torchwise.records.bounds import Amount, Count, Duration, Positive
from torchwise.records.cores import CoreUse
from torchwise.records.statistics import Interval, median_interval, ratio_interval

HELD_UP = 1.5
"""Times its usual time from which eager counts as held up: another program on one core holds up what computes on all of
them, each of which waits for the last, and hardly what computes on one. So the ratio of a pair does not cancel it, and
a slower plan looks faster than eager."""

WIDE = "the interval is"
"""Begins the note that an interval is wider than was asked for: it says how far, and not what disturbed."""
NOT_COLD = "not timed with cold processor caches"
"""Begins the note that says why the caches could not be emptied: that disturbed nothing."""


def find_disturbances(notes: Iterable[str]) -> list[str]:
    """Return the notes of measurements that say what disturbed them."""
    return [note for note in notes if not note.startswith((WIDE, NOT_COLD))]


class Throttling(StrEnum):
    """Why a GPU holds its clocks back."""

    HARDWARE = "hardware slow-down"
    HARDWARE_THERMAL = "hardware thermal slow-down"
    POWER_BRAKE = "power brake"
    THERMAL = "thermal slow-down"
    POWER_CAP = "power cap"


@dataclass(frozen=True, slots=True)
class Measurement:
    """Paired samples; every statistic is derived from them.

    Attributes:
        candidate_s: seconds per call of the candidate, one value a round (a round may time several calls).
        baseline_s: seconds per call of eager in the same rounds, as many.
        calls_per_round: calls behind each value.
        candidate_device_s: seconds per call by CUDA events, from the first kernel to the last; empty on the CPU.
        baseline_device_s: likewise for eager.
        busy_s: seconds per call in which a GPU kernel of the candidate runs, by PyTorch's profiler; None if unknown.
        pruned: whether measuring stopped early because the candidate could no longer lead.
        notes: what the measurement says against itself: noise, drift, foreign load, throttling.
        sm_clock_mhz: least and greatest clock of the GPU's multiprocessors, as seen when measuring began and when it
            ended; empty on the CPU or where unknown.
        throttling: why the GPU held its clocks back at either of these times.
        cores: how the CPUs were shared meanwhile; None where that was not looked at.
        cold_candidate_s: seconds per call of the candidate with the processor's caches emptied before each call, in the
            same process; empty where that was not timed.
        cold_baseline_s: likewise for eager, in the same rounds.
    """

    candidate_s: tuple[Duration, ...]
    baseline_s: tuple[Duration, ...]
    calls_per_round: Positive = 1
    candidate_device_s: tuple[Amount, ...] = ()
    baseline_device_s: tuple[Amount, ...] = ()
    busy_s: Amount | None = None
    pruned: bool = False
    notes: tuple[str, ...] = ()
    sm_clock_mhz: tuple[Count, ...] = ()
    throttling: tuple[Throttling, ...] = ()
    cores: CoreUse | None = None
    cold_candidate_s: tuple[Duration, ...] = ()
    cold_baseline_s: tuple[Duration, ...] = ()

    def check_read(self) -> None:
        """Refuse rounds that are no pairs.

        Raises:
            InputError: they are not.
        """
        for cold in ("", "cold_"):
            ours, others = (len(getattr(self, f"{cold}{side}_s")) for side in ("candidate", "baseline"))
            if ours != others:
                raise InputError(
                    f"{cold}candidate_s has {ours} samples and {cold}baseline_s {others}, but must have as many"
                )

    @property
    def device(self) -> str:
        """Where it was measured, "cpu" or "cuda"."""
        return "cuda" if self.candidate_device_s else "cpu"

    @property
    def speedup(self) -> Interval:
        """Baseline time over candidate time, in this process: above 1 where the candidate is faster."""
        return ratio_interval(self.baseline_s, self.candidate_s)

    @property
    def cold_speedup(self) -> Interval | None:
        """The same with cold processor caches; None where that was not timed."""
        return ratio_interval(self.cold_baseline_s, self.cold_candidate_s) if self.cold_candidate_s else None

    @property
    def candidate_time(self) -> Interval:
        """Seconds per call of the candidate."""
        return median_interval(self.candidate_s)

    @property
    def baseline_time(self) -> Interval:
        """Seconds per call of eager."""
        return median_interval(self.baseline_s)

    def times_as_long(self, usual_s: tuple[float | None, float | None]) -> float:
        """Return how many times its usual seconds per call a side took: the one that was held up the most.

        Args:
            usual_s: of the candidate and of the baseline, at another time; None where unknown.
        """
        taken = self.candidate_time.mid, self.baseline_time.mid
        return max((now / usual for now, usual in zip(taken, usual_s, strict=True) if usual), default=1.0)

    @property
    def is_contended(self) -> bool:
        """Whether threads waited for a core meanwhile, as was seen."""
        return self.cores is not None and self.cores.is_contended

    @property
    def launch_share(self) -> float:
        """Share of the candidate's time in which the GPU waits for the host; 0 on the CPU or where unknown."""
        if self.busy_s is None:
            return 0.0
        return min(max(1.0 - self.busy_s / self.candidate_time.mid, 0.0), 1.0)
