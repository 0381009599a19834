"""Other compilers, each with the weights and in the precision of the model: plans of one backend and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torchwise.bench.contenders.contender import Setting
from torchwise.compile.compiled_plan import compile_plan
from torchwise.plan import Plan, PlanSpace
from torchwise.plan.choice import load_choices
from torchwise.plan.effort import MOST
from torchwise.workload import Workload


@dataclass(frozen=True, slots=True)
class Backend:
    """A backend of plans, by its name."""

    name: str

    def missing(self, setting: Setting) -> str | None:
        """Return why it cannot run here, or None."""
        choice = load_choices()["backend", self.name]
        traits = frozenset(choice.required_traits)
        return PlanSpace(setting.device, setting.mode, traits, choice.numerics, MOST).excludes(choice)

    def build(self, workload: Workload, setting: Setting) -> Callable[..., Any]:
        """Return the model by the plan, which compiles on its first call."""
        plan, example = Plan(backend=self.name), workload.examples[0]
        return compile_plan(workload.call, plan, example, device=setting.device, mode=setting.mode).call
