"""What becomes one CUDA graph, replayed by a single launch."""

from torchwise.plan.choice import Choice, register
from torchwise.plan.legality import Legality

PRINTS = ("prints", "the model prints or logs in its call, and a replay would not: take that out, or name the plan")

register(
    Choice(
        "capture",
        "call",
        Legality.EXACT,
        complexity=2,
        summary="the whole call is captured in one CUDA graph; inputs are copied in and outputs copied out",
        devices=("cuda",),
        modes=("inference",),
        unless=(PRINTS,),
        effort="quick",
        compile_factor=0.0,
        acts="launch",
    )
)
