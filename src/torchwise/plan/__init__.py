"""The possible ways to run a workload: plans, their numerics, and the space of them. Pure data, no torch."""

from torchwise.lazy import load_attributes
from torchwise.plan.choice import CHOICES, Choice, register
from torchwise.plan.numerics import Numerics
from torchwise.plan.plan import EAGER, Plan, check_is_plan
from torchwise.plan.space import PlanSpace
from torchwise.plan.trait import Trait

__all__ = ["CHOICES", "EAGER", "Choice", "Numerics", "Plan", "PlanSpace", "Trait", "check_is_plan", "register"]

__getattr__ = load_attributes(__name__, {}, {"Legality": "Numerics"})
