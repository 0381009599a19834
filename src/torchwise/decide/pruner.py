"""When to stop measuring a candidate: once even its best end could not lead."""

from __future__ import annotations

from torchwise.decide.history import History

MARGIN = 0.97
"""A candidate this much under the leader is measured to its end: ties go to the simpler plan, and it may be that."""


def prune_below(history: History) -> float:
    """Return the speed-up that a candidate must be able to reach, or else is stopped; 0 stops none.

    What leads is here the plan whose cost is surely the least, at the slow end of its interval: one that leads by noise
    would stop what is faster. Its cost includes its compiling; a slower candidate that compiled for nothing could still
    cost less. So the bound is the speed at which a candidate free of compiling would cost what that plan does.
    """
    economics = history.economics
    surely = min((economics.cost(trial).high for trial in history.paying()), default=None)
    if surely is not None and history.workload.objective != "memory":
        return MARGIN * economics.baseline_cost / surely
    # Whatever keeps a memory limit that eager does not is wanted, and what saves memory is slower as a rule; else not
    # to be slower than eager is enough.
    return MARGIN if history.eager_fits else 0.0
