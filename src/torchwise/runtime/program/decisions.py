"""The decisions of the store for a program. Reading them loads no torch."""

from __future__ import annotations

import statistics

from torchwise.errors import StorageError
from torchwise.plan.workload_spec import LIVE
from torchwise.records import Decision
from torchwise.store import open_storage

Decisions = dict[str, list[Decision]]
MIN_MODELS = 3
"""Models that must have been tuned on a machine to expect anything of others."""
OTHER_SIZES = "/other-sizes"
"""Ends the name in the store of the decision for the sizes that a module's plan does not answer."""


def read_decisions(program: str, store: str | None = None) -> Decisions:
    """Return the decisions for each module and function of a program by its name, newest first.

    Raises:
        StorageError: the store does not exist, or cannot be read.
    """
    prefix, found = f"{LIVE}{program}/", Decisions()
    with open_storage(store, existing=True) as storage:
        for decision in storage.decisions():
            if decision.workload.target.startswith(prefix):
                found.setdefault(decision.workload.target.removeprefix(prefix), []).append(decision)
    return found


def find_expected_speedup(hardware: str, store: str | None = None) -> tuple[float, int] | None:
    """Return the geometric mean of the speed-ups on this machine, and of how many models, or None if of too few.

    Of each model the newest decision counts, as 1 if it is to stay with eager. So this is what a user may expect of a
    model that is not tuned yet.
    """
    newest: dict[str, float] = {}
    try:
        with open_storage(store, existing=True) as storage:
            for decision in storage.decisions():
                if decision.environment.hardware == hardware and not decision.workload.target.endswith(OTHER_SIZES):
                    speedup = decision.speedup.mid if decision.speedup and not decision.plan.is_eager else 1.0
                    newest.setdefault(decision.workload.target, speedup)
    except StorageError:  # there is no store yet
        return None
    if len(newest) < MIN_MODELS:
        return None
    return statistics.geometric_mean(newest.values()), len(newest)


def stays_as_written(decisions: Decisions) -> bool:
    """Return whether no decision has a plan other than eager.

    One for other sizes does not count, as it is used beside a plan alone.
    """
    own = [several for name, several in decisions.items() if not name.endswith(OTHER_SIZES)]
    return all(decision.plan.is_eager for several in own for decision in several)


def explain_eager(name: str, decision: Decision) -> str:
    """Say why a module runs as written, at all sizes or at those that were not recorded."""
    module = name.removesuffix(OTHER_SIZES)
    sizes = " at other sizes than those recorded" if module != name else ""
    return f"{module} runs as written{sizes}: {decision.reason}"
