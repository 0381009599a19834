"""The interface of a contender: its name, its missing requirements, and its build function."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from torchwise.workload import Workload


@dataclass(frozen=True, slots=True)
class Setting:
    """The conditions of a contender's run.

    Attributes:
        device: "cpu" or "cuda".
        mode: "inference" or "training".
        decision: Torchwise's decision as JSON, or "" for all others.
    """

    device: str
    mode: str
    decision: str = ""


class Contender(Protocol):
    """An alternative to run a model.

    A contender computes in the model's own precision. It disables any lower precision that is its default, so that
    ratios never mix precisions. One with numbers of fewer bits says so by an attribute `rounds` that is true: its error
    is judged by the tolerance of the request, if there is one. It must not import its library before `build`.
    """

    @property
    def name(self) -> str:
        """The name in tables."""
        ...

    def missing(self, setting: Setting) -> str | None:
        """Return why it cannot run here and how to change that, or None."""
        ...

    def build(self, workload: Workload, setting: Setting) -> Callable[..., Any]:
        """Return a callable with the model's signature, which may compile on its first call.

        For a training step, the callable runs one step. It may change the step in place.
        """
        ...


def with_model(workload: Workload, change: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Callable[..., Any]:
    """Apply a contender to the model, or to the model of the training step, as a user would write it."""
    if workload.step:
        return workload.step.taken_by(change(workload.step.model))
    return change(workload.call)


def lacks(module: str, package: str) -> str | None:
    """Return that a library is missing and how to install it, or None if it is installed."""
    if importlib.util.find_spec(module) is not None:
        return None
    return f"{package} is not installed: pip install {package}"
