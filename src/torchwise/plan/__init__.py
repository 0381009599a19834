"""The possible ways to run a workload: plans, their numerics, and the space of them. Pure data, no torch."""

from typing import Any

from torchwise.former_packages import warn_once
from torchwise.plan.choice import CHOICES, Choice, register
from torchwise.plan.numerics import Numerics
from torchwise.plan.plan import EAGER, Plan, check_is_plan
from torchwise.plan.space import PlanSpace
from torchwise.plan.trait import Trait

__all__ = ["CHOICES", "EAGER", "Choice", "Numerics", "Plan", "PlanSpace", "Trait", "check_is_plan", "register"]


def __getattr__(name: str) -> Any:
    if name != "Legality":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    warn_once(f"{__name__}.{name}", f"{__name__}.Numerics")
    return Numerics
