"""The decisions of the store for a program. Reading them loads no torch."""

from __future__ import annotations

from torchwise.plan.workload_spec import LIVE
from torchwise.records import Decision
from torchwise.store import open_storage

Decisions = dict[str, list[Decision]]


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
    """Return whether no decision has a plan other than eager."""
    return all(decision.plan.is_eager for several in decisions.values() for decision in several)


def explain_eager(name: str, decision: Decision) -> str:
    """Say why a module runs as written."""
    return f"{name} runs as written: {decision.reason}"
