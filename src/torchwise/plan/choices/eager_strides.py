"""Outputs laid out as eager's."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from torchwise.plan.choice import Choice, Stage, register
from torchwise.plan.numerics import Numerics
from torchwise.plan.trait import Trait

if TYPE_CHECKING:
    from torchwise.plan.plan import Plan


WHERE = "torchwise.compile.transforms.eager_strides"


def find_problems(plan: Plan) -> Iterator[str]:
    """Yield the reasons why the rewrite cannot be part of a plan."""
    if plan.scope == "rolled":
        yield "transforms has 'eager_strides', but scope is 'rolled', whose parts lay out what they return"


register(
    Choice(
        "transforms",
        "eager_strides",
        Numerics.EXACT,
        complexity=1,
        summary="outputs have eager's strides if the compiler would choose others",
        required_traits=(Trait.RESTRIDED,),
        detectors=((Trait.RESTRIDED, f"{WHERE}:joins_one_to_empty"),),
        requires=(("backend", "inductor"),),
        implies=(("backend", "inductor"),),
        effort="quick",
        compile_factor=0.98,  # of a plain compile: it hardly adds anything, and as the cheapest it is tried first
        realized_by=f"{WHERE}:rewrite",
        stage=Stage.TRACE,
        find_problems=find_problems,
    )
)
