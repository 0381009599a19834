"""One speed-up from several fresh processes, with the spread between processes in its interval.

Within a process, a bootstrap gives the uncertainty of the samples' median. From one process to the next, that median
moves by more: memory lies elsewhere, threads run on other cores, other programs run. So processes are the unit that is
counted, and the log of each one's median ratio is one value. Their interval is Student's (the top level of
Kalibera & Jones, Rigorous benchmarking in reasonable time, ISMM 2013).

Few values hardly show their own spread, so a prior replaces the missing ones. It has the degrees of freedom that the
processes lack of `DEGREES`. Its variance is the one known from other studies plus the one within a process. The two are
pooled as in a moderated t (Smyth, Stat. Appl. Genet. Mol. Biol. 3(1), 2004). From `DEGREES` + 1 processes on, their own
spread alone counts. Then the interval covers its nominal share at any spread (`benchmarks/coverage.py`).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

from torchwise.records.answer import QUIET_HALF_WIDTH, Answer, exceeds
from torchwise.records.measurement import Measurement
from torchwise.records.statistics import CONFIDENCE, Interval

PROCESS_SPREAD = {"cpu": 0.06, "cuda": 0.025}
"""Relative standard deviation of a plan's speed-up from one process to another, beyond its interval's own width. Two
plans of one speed, in nine searches on two CPU cores: 9.8 % for their ratio, so 6.9 % for each. The intervals account
for some 3 of it (`benchmarks/duels.py`). One plan, in three times ten searches on an H200: 1.7 to 3.0 %
(`benchmarks/agreement.py`)."""
DEGREES = 4
"""Minimum degrees of freedom of every interval: those of five processes."""
NORMAL_95 = 1.959964
"""Standard deviations to either side that hold 95 % of a normal distribution."""

MAX_EXPONENT, MIN_RATIO = 700.0, 1e-300
"""Bounds for a float, since costs are divided by the ends of an interval."""


PLAIN = {1: math.inf, 2: 4.0}
"""Half-widths between a ratio and 1 from which on their order is plain, by the number of processes. A distance of one,
as at the end, would let the first processes that happen to agree decide. Looking after each of them is looking more
than once (Armitage, McPherson & Rowe, J. R. Stat. Soc. A 132, 1969)."""
PLAIN_LATER = 2.0
"""The same, from three processes on."""


def speedup_across(processes: Sequence[Measurement], device: str | None = None) -> Interval:
    """Return the speed-up that fresh processes agree on, with an interval for the mean over all processes.

    Processes that contradict each other give a wide interval. A single process claims no less than the prior spread.
    Give the device, "cpu" or "cuda", where the measurements do not say it themselves.
    """
    ratios = tuple(measurement.speedup for measurement in processes)
    return ratio_across(ratios, device or processes[0].device)


def cold_speedup_across(processes: Sequence[Measurement], device: str | None = None) -> Interval | None:
    """Return the speed-up with cold processor caches over the processes that timed it, or None if none did."""
    ratios = tuple(cold for process in processes if (cold := process.cold_speedup) is not None)
    return ratio_across(ratios, device or processes[0].device) if ratios else None


def raw_speedup_across(processes: Sequence[Measurement], device: str | None = None) -> Interval:
    """Return the speed-up as observed, which shows how disturbed measuring was.

    A single process keeps its own interval. Only `speedup_across` includes results that other processes might show.
    """
    return speedup_across(processes, device) if len(processes) > 1 else processes[0].speedup


def is_faster_across(processes: Sequence[Measurement], device: str | None = None) -> Answer:
    """Answer whether a plan is faster than the model or plan it was timed against.

    A single process may not say yes by itself. If it was quiet and plainly shows no gain, the answer is no, since there
    was no reason for more processes.
    """
    observed = raw_speedup_across(processes, device)
    is_quiet = observed.half_width <= QUIET_HALF_WIDTH
    if is_quiet and exceeds(observed) is Answer.NO:
        return Answer.NO
    return exceeds(speedup_across(processes, device))


def is_level_across(processes: Sequence[Measurement], device: str | None = None) -> bool:
    """Whether the observed ratio was quiet, and shows no difference either way. A single process may say so."""
    observed = raw_speedup_across(processes, device)
    if observed.half_width > QUIET_HALF_WIDTH:
        return False
    return exceeds(observed) is Answer.NO and exceeds(observed.inverse) is Answer.NO


def is_plain(ratio: Interval, distance: float, processes: int, half_width: float) -> bool:
    """Whether one more process would hardly change on which side of a bound a ratio lies.

    Args:
        distance: between the ratio and the bound, in half-widths.
        half_width: relative half-width that is narrow enough by itself.
    """
    if ratio.half_width <= half_width and processes > 1:
        return True
    return ratio.is_usable and distance > PLAIN.get(processes, PLAIN_LATER)


@functools.lru_cache(maxsize=2048)
def ratio_across(ratios: tuple[Interval, ...], device: str) -> Interval:
    """Return the ratio that fresh processes agree on, one ratio for each. See `speedup_across`."""
    if not all(ratio.low > 0 and math.isfinite(ratio.high) for ratio in ratios):  # beyond what a float can hold
        return ratios[0]
    values = [math.log(ratio.mid) for ratio in ratios]
    mean = math.fsum(values) / len(values)
    squares = math.fsum((value - mean) ** 2 for value in values)
    prior = max(DEGREES + 1 - len(values), 0)
    degrees = prior + len(values) - 1
    within = math.fsum(map(_variance, ratios)) / len(ratios)
    variance = (prior * (PROCESS_SPREAD[device] ** 2 + within) + squares) / degrees
    reach = _student(degrees) * math.sqrt(variance / len(values))
    mid = ratios[0].mid if len(ratios) == 1 else math.exp(mean)  # as it was measured, to the last digit
    return Interval(min(max(mid * _exp(-reach), MIN_RATIO), mid), mid, mid * _exp(reach))


def probability_below(ratio: Interval, bound: float) -> float:
    """Return the probability that the true ratio lies below a bound, as far as its interval tells.

    The log of a ratio has Student's distribution with the degrees of freedom of the fewest processes. Its scale is such
    that 2.5 % lie beyond each end of the interval.
    """
    from scipy.special import stdtr

    if bound <= 0:
        return 0.0
    distance = math.log(bound) - math.log(ratio.mid)
    reach = math.log(ratio.high / ratio.mid) if distance > 0 else math.log(ratio.mid) - math.log(ratio.low)
    if not reach:
        return 0.5 if not distance else float(distance > 0)
    return float(stdtr(DEGREES, distance / reach * _student(DEGREES)))


def _exp(value: float) -> float:
    return math.exp(min(max(value, -MAX_EXPONENT), MAX_EXPONENT))


def _variance(ratio: Interval) -> float:
    """Return the variance of the log of a median ratio, derived from the interval within its process."""
    return ((math.log(ratio.high) - math.log(ratio.low)) / 2 / NORMAL_95) ** 2


def _student(degrees: int) -> float:
    """Return the quantile of Student's t that leaves half of the error probability beyond it."""
    from scipy.special import stdtrit

    return float(stdtrit(degrees, (1 + CONFIDENCE) / 2))
