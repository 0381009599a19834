"""The compiler that turns the model into kernels."""

from torchwise.plan.choice import Choice, register
from torchwise.plan.numerics import Numerics

register(
    Choice(
        "backend",
        "inductor",
        Numerics.SAME_PRECISION,
        complexity=2,
        summary="torch.compile with Inductor: fuses pointwise work and reductions into its own kernels",
        effort="quick",
        realized_by="torchwise.compile.backends.inductor:compile",
    )
)
