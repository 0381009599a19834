"""When to stop measuring a candidate: once even its best end could not lead."""

from __future__ import annotations

from torchwise.decide.history import History
from torchwise.plan import EAGER

MARGIN = 0.97
"""A candidate this much under the leader is measured to its end: ties go to the simpler plan, and it may be that."""


def prune_below(history: History) -> float:
    """Return the speed-up that a candidate must be able to reach, or else is stopped; 0 stops none.

    The leader's cost includes its compiling; a slower candidate that compiled for nothing could still cost less. So the
    bound is the speed at which a candidate free of compiling would cost what the leader does.
    """
    incumbent = history.incumbent()
    if not history.eager_fits and (incumbent == EAGER or history.workload.objective == "memory"):
        return 0.0  # whatever keeps the memory limit is wanted, and what saves memory is slower as a rule
    if incumbent == EAGER or history.workload.objective == "memory":  # for memory, not slower than eager is enough
        return MARGIN
    trial = history.tried(incumbent)
    assert trial is not None, "a leading plan was tried"
    economics = history.economics
    return MARGIN * economics.baseline_cost / economics.cost(trial).mid
