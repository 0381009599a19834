"""Which plan to time in one more fresh process: the leading one, until the choice between it and eager is plain.

A plan that leads by its trial may owe that to its process. So the likeliest plan is timed in more of them. That ends
when its interval is narrow, or so far from eager's that no further process could change the choice. If all its allowed
processes have not told, the next likeliest has its turn.

Also here: when to stop measuring a candidate: once even the best end of its interval could not lead.
"""

from __future__ import annotations

import math

from torchwise.records import Trial
from torchwise.records.processes import PLAIN_LATER, is_plain
from torchwise.study.history import History
from torchwise.study.pairwise import cheapest


def next_repeat(history: History, most: int, half_width: float, plans: int) -> Trial | None:
    """Return the plan to time in one more process, or None if the choice is plain, or nothing more can tell.

    Args:
        history: the facts so far.
        most: processes that a plan is timed in, its trial's own included.
        half_width: relative half-width of a speed-up's interval that is narrow enough.
        plans: how many plans may have more than their trial's own.
    """
    if history.workload.objective == "memory" or not history.eager_fits:
        return None  # there bytes decide
    for trial in history.list_promising()[:plans]:
        if _is_plain(trial, history, half_width):
            return None
        if len(trial.processes) < most:
            return trial
    return None


def _is_plain(trial: Trial, history: History, half_width: float) -> bool:
    """Return whether one more process would hardly change the choice between a promising plan and eager."""
    assert trial.speedup is not None, "a promising plan was timed"
    cost, eager = history.economics.cost(trial), history.economics.baseline_cost
    reach = cost.high - cost.mid
    distance = (eager - cost.mid) / reach if reach else math.copysign(math.inf, eager - cost.mid)
    return is_plain(trial.speedup, distance, len(trial.processes), half_width)


def next_cold(history: History, most: int, half_width: float) -> Trial | None:
    """Return the chosen plan, to be timed with cold processor caches in one more process.

    It is None if no plan is chosen. It is also None if it is known whether the plan is then faster than eager, or if
    that cannot be known. This timing decides nothing, so a single process is enough if it tells by a margin.

    Args:
        history: the facts so far.
        most: processes that a plan is timed in with cold caches.
        half_width: relative half-width of the interval that is narrow enough.
    """
    trial = cheapest(history)
    if trial is None or len(trial.cold_speedups) >= most:
        return None
    if (ratio := trial.cold_speedup) is None:
        return trial
    reach = PLAIN_LATER * (math.log(ratio.high) - math.log(ratio.mid))
    return None if ratio.half_width <= half_width or abs(math.log(ratio.mid)) > reach else trial


MARGIN = 0.97
"""Share of the leader's speed from which a candidate is measured to its end: ties go to the simpler plan."""


def prune_below(history: History) -> float:
    """Return the speed-up that a candidate must be able to reach, or else is stopped, with 0 to stop none.

    The leader is the plan whose cost at the slow end of its interval is the least. A plan that leads by noise would
    stop faster ones. Its cost includes its compiling, and a slower candidate that compiled for nothing could still cost
    less. So the bound is the speed at which a candidate with no compile time would cost as much as the leader.
    """
    economics = history.economics
    surely = min((economics.cost(trial).high for trial in history.list_paying()), default=None)
    if surely is not None and history.workload.objective != "memory":
        return MARGIN * economics.baseline_cost / surely
    # Any plan that keeps a memory limit which eager exceeds is wanted, and saving memory usually takes time. Otherwise
    # it is enough not to be slower than eager.
    return MARGIN if history.eager_fits else 0.0
