"""Which plan to time in one more fresh process: the leading one, until the choice between it and eager is plain.

A plan that leads by its trial may owe that to its process. So the likeliest plan is timed in more of them, until its
interval is narrow, or lies so far from eager's that no further process could turn the choice. Where all that it may
have has not told, the next likeliest has its turn.
"""

from __future__ import annotations

import math

from torchwise.decide.history import History
from torchwise.records import Trial
from torchwise.records.processes import is_plain


def next_repeat(history: History, most: int, half_width: float, plans: int) -> Trial | None:
    """Return the plan to be timed in one more process; None where the choice is plain, or nothing more can tell.

    Args:
        history: what is known.
        most: processes that a plan is timed in, its trial's own included.
        half_width: relative half-width of a speed-up's interval that is narrow enough.
        plans: how many plans may have more than their trial's own.
    """
    if history.workload.objective == "memory" or not history.eager_fits:
        return None  # there the choice hangs on bytes
    for trial in history.promising()[:plans]:
        if _is_plain(trial, history, half_width):
            return None
        if len(trial.processes) < most:
            return trial
    return None


def _is_plain(trial: Trial, history: History, half_width: float) -> bool:
    """Whether one more process would hardly change the choice between a promising plan and eager."""
    assert trial.speedup is not None, "a promising plan was timed"
    cost, eager = history.economics.cost(trial), history.economics.baseline_cost
    reach = cost.high - cost.mid
    distance = (eager - cost.mid) / reach if reach else math.copysign(math.inf, eager - cost.mid)
    return is_plain(trial.speedup, distance, len(trial.processes), half_width)
