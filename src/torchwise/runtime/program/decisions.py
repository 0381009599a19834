"""The decisions of the store for a program. Reading them loads no torch."""

from __future__ import annotations

from torchwise.plan.workload_spec import LIVE
from torchwise.records import Decision
from torchwise.store import open_storage

Decisions = dict[str, list[Decision]]
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
