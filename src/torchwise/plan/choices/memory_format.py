"""How images lie in memory."""

from torchwise.plan.choice import Choice, register
from torchwise.plan.numerics import Legality

register(
    Choice(
        "memory_format",
        "channels_last",
        Legality.REORDERED,
        complexity=1,
        summary="4-D weights and inputs are laid out with channels innermost; outputs keep the strides promised",
        needs=("conv",),
        compile_factor=0.0,
        acts="conv",
        keeps=0.3,
    )
)
