"""Loops over independent samples that run at once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from torchwise.plan.choice import Choice, Stage, register
from torchwise.plan.numerics import Numerics
from torchwise.plan.trait import Trait

if TYPE_CHECKING:
    from torchwise.plan.plan import Plan

WHERE = "torchwise.compile.transforms.function_graphs"


def find_problems(plan: Plan) -> Iterator[str]:
    """Yield the reasons why the rewrite cannot be part of a plan."""
    if plan.backend not in ("eager", "inductor"):
        yield f"transforms has 'batched_loop', but backend is {plan.backend!r}: it must be eager or inductor"
    if "numbers_on_gpu" in plan.transforms:
        yield "transforms has 'batched_loop' and 'numbers_on_gpu', which replaces numbers only in a call without Dynamo"


register(
    Choice(
        "transforms",
        "batched_loop",
        Numerics.SAME_PRECISION,
        complexity=2,
        summary="repetitions that do not depend on each other, such as a loop over the samples of a batch, run at once",
        required_traits=(Trait.INDEPENDENT_REPEATS,),
        detectors=((Trait.INDEPENDENT_REPEATS, f"{WHERE}.batched_loop:has_loops"),),
        # Inductor computes more of it at once, and in eager nothing has to be compiled: both are tried.
        implies=(("backend", "inductor"),),
        # One call in the place of many is a multiple of the speed, which no other choice finds.
        effort="quick",
        # At least a quarter of the functions becomes a quarter of them or less.
        compile_factor=0.8,
        realized_by=f"{WHERE}.batched_loop:rewrite",
        stage=Stage.TRACE,
        find_problems=find_problems,
    )
)
