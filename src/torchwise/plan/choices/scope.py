"""How much of the model is compiled at once."""

from torchwise.plan.choice import Choice, register
from torchwise.plan.legality import Legality

register(
    Choice(
        "scope",
        "regional",
        Legality.REORDERED,
        complexity=1,
        summary="each repeated block is compiled once and shared, which cuts compile time, not steady time",
        needs=("repeated_blocks",),
        on=(("backend", "inductor"), ("mode", "default")),
        compile_factor=0.4,
        acts="compile",
    )
)
