"""The possible ways to run a workload: plans, their numerics, and the space of them. Pure data, no torch.

Its names are loaded on first use, as the command line reads a default from here to print its help.
"""

from typing import TYPE_CHECKING

from torchwise.former_packages import load_attributes

if TYPE_CHECKING:
    from torchwise.plan.choice import CHOICES, Choice, Stage, register
    from torchwise.plan.kernels import register_kernel
    from torchwise.plan.numerics import Numerics
    from torchwise.plan.plan import EAGER, Plan, check_is_plan
    from torchwise.plan.space import PlanSpace
    from torchwise.plan.trait import Trait

__all__ = [
    "CHOICES",
    "EAGER",
    "Choice",
    "Numerics",
    "Plan",
    "PlanSpace",
    "Stage",
    "Trait",
    "check_is_plan",
    "register",
    "register_kernel",
]

__getattr__ = load_attributes(
    __name__,
    {
        "CHOICES": "choice",
        "Choice": "choice",
        "Stage": "choice",
        "register": "choice",
        "register_kernel": "kernels",
        "Numerics": "numerics",
        "EAGER": "plan",
        "Plan": "plan",
        "check_is_plan": "plan",
        "PlanSpace": "space",
        "Trait": "trait",
    },
    {"Legality": "Numerics"},
)
