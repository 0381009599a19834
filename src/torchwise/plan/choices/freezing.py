"""Weights as constants of the compiled code."""

from torchwise.plan.choice import Choice, register
from torchwise.plan.numerics import Numerics
from torchwise.plan.trait import Trait

register(
    Choice(
        "options",
        ("freezing", True),
        Numerics.SAME_PRECISION,
        complexity=3,
        summary="weights are folded into the compiled code (batch-norm into convolutions, weights prepacked). "
        "When weights change, the plan is stale and eager answers",
        modes=("inference",),
        required_traits=(Trait.MODULE, Trait.GEMM),
        requires=(("backend", "inductor"),),
        effort="quick",
        compile_factor=1.3,
        target_cost="gemm",
        min_remaining_fraction=0.5,
        not_ahead="the weights are frozen into the code, which would not notice changed weights",
        ahead_instead=(),
    )
)
