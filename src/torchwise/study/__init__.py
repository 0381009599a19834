"""The loop of a study: ask for a plan, launch a trial, store it, and in the end decide and apply people's approvals.

Names are loaded on first use: a program that starts asks for `torchwise.study.apply_approvals` alone, and needs none of
the rest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchwise.former_packages import load_attributes

if TYPE_CHECKING:
    from torchwise.records.listener import Listener
    from torchwise.study.caches import Caches
    from torchwise.study.request import Request
    from torchwise.study.run import run_study

_HOMES = {
    "Caches": "caches",
    "Listener": "run",
    "Request": "request",
    "run_study": "run",
}

__all__ = ["Caches", "Listener", "Request", "run_study"]

__getattr__ = load_attributes(__name__, _HOMES, former={"Silent": "Listener"})
