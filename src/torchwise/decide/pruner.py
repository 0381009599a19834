"""When to stop measuring a candidate: once even the best end of its interval could not lead."""

from __future__ import annotations

from torchwise.decide.history import History

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
