"""Weights as constants of the compiled code."""

from torchwise.plan.choice import Choice, register
from torchwise.plan.numerics import Legality

register(
    Choice(
        "options",
        ("freezing", True),
        Legality.REORDERED,
        complexity=3,
        summary="weights are folded into the compiled code (batch-norm into convolutions, weights prepacked); "
        "the plan turns stale, and eager answers, when weights change",
        modes=("inference",),
        needs=("module", "gemm"),
        on=(("backend", "inductor"),),
        effort="quick",
        compile_factor=1.3,
        acts="gemm",
        keeps=0.5,
    )
)
