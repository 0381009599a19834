"""What a contender is: a name, what it lacks here, and how it makes a callable out of a model."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from torchwise.workload import Workload


@dataclass(frozen=True, slots=True)
class Setting:
    """Where a contender runs.

    Attributes:
        device: "cpu" or "cuda".
        mode: "inference" or "training".
        decision: for Torchwise, its decision as JSON; "" for all others.
    """

    device: str
    mode: str
    decision: str = ""


class Contender(Protocol):
    """One way to run a model that a user could pick.

    A contender computes in the model's own precision: what it would lower by default is switched off, so that one
    ratio never mixes precisions. It must not import its library before it is asked to build.
    """

    @property
    def name(self) -> str:
        """What tables call it."""
        ...

    def missing(self, setting: Setting) -> str | None:
        """Return why it cannot take part here, with the way out, or None."""
        ...

    def build(self, workload: Workload, setting: Setting) -> Callable[..., Any]:
        """Return a callable with the model's signature; compiling may wait for its first call.

        Of a training step, which may be changed, what takes that step.
        """
        ...


def with_model(workload: Workload, change: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Callable[..., Any]:
    """Return the model as a contender has it, or the training step with its model so, as a user would write it."""
    if workload.step:
        return workload.step.taken_by(change(workload.step.model))
    return change(workload.call)


def lacks(module: str, package: str) -> str | None:
    """Return that a library is not installed, and how to install it, or None where it is."""
    if importlib.util.find_spec(module) is not None:
        return None
    return f"{package} is not installed: pip install {package}"


def inference_only(setting: Setting, name: str) -> str | None:
    """Return that a contender has no backward pass, where one is asked for."""
    return f"{name} has no backward pass" if setting.mode == "training" else None
