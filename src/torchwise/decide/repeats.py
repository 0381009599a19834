"""Which plan to time in one more fresh process: the leading one, until the choice between it and eager is plain.

A plan that leads by its trial may owe that to its process. So the likeliest plan is timed in more of them, until its
interval is narrow, or lies so far from eager's that no further process could turn the choice. Where all that it may
have has not told, the next likeliest has its turn.
"""

from __future__ import annotations

import math

from torchwise.decide.history import History
from torchwise.records import Trial

PLAIN = {1: math.inf, 2: 4.0}
"""Half-widths between a plan's cost and eager's from which on the choice is plain, by the number of processes. One, as
at the end, would let the first that happen to agree decide: looking after each of them is looking more than once
(Armitage, McPherson & Rowe, J. R. Stat. Soc. A 132, 1969)."""
PLAIN_LATER = 2.0
"""The same, from three processes on."""


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
        if is_plain(trial, history, half_width):
            return None
        if len(trial.processes) < most:
            return trial
    return None


def is_plain(trial: Trial, history: History, half_width: float) -> bool:
    """Whether one more process would hardly change the choice between a promising plan and eager."""
    assert trial.speedup is not None, "a promising plan was timed"
    cost, eager = history.economics.cost(trial), history.economics.baseline_cost
    if trial.speedup.half_width <= half_width and len(trial.processes) > 1:
        return True
    reach = PLAIN.get(len(trial.processes), PLAIN_LATER)
    return trial.speedup.is_usable and eager - cost.mid > reach * (cost.high - cost.mid)
