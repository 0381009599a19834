"""Products of one input with several weights, as one product."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from torchwise.plan.choice import Choice, Stage, register
from torchwise.plan.numerics import Numerics
from torchwise.plan.trait import Trait

if TYPE_CHECKING:
    from torchwise.plan.plan import Plan

WHERE = "torchwise.compile.transforms.function_graphs.joined_products"


def find_problems(plan: Plan) -> Iterator[str]:
    """Yield the reason why weights cannot be joined in a plan."""
    if ("freezing", True) in plan.options:
        yield (
            "transforms has 'joined_products', but options has freezing, with which no weight is an input of the code "
            "that could be joined: on a GPU, Inductor then joins such products itself. Choose one"
        )


register(
    Choice(
        "transforms",
        "joined_products",
        Numerics.SAME_PRECISION,
        complexity=2,
        summary="products of one input with several weights (queries, keys and values, or a gate and its other half) "
        "are one product. The weights are joined once, so they take memory twice. When weights change, the plan is "
        "stale and eager answers",
        modes=("inference",),
        required_traits=(Trait.MODULE, Trait.GEMM, Trait.SHARED_INPUTS),
        detectors=((Trait.SHARED_INPUTS, f"{WHERE}:rewrite"),),
        requires=(("backend", "inductor"),),
        implies=(("backend", "inductor"),),
        compile_factor=1.0,
        # A product less is a launch less, and the rows are read once: the work itself stays.
        min_remaining_fraction=0.5,
        derives_weights=True,
        not_ahead="the weights are joined in the process that compiles, and code of another one would not notice "
        "changed weights",
        ahead_instead=(),
        realized_by=f"{WHERE}:rewrite",
        stage=Stage.TRACE,
        find_problems=find_problems,
    )
)
