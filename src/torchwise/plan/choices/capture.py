"""What becomes one CUDA graph, replayed by a single launch."""

from torchwise.plan.choice import Choice, register
from torchwise.plan.legality import Legality

register(
    Choice(
        "capture",
        "call",
        Legality.EXACT,
        complexity=2,
        summary="the whole call is captured in one CUDA graph; inputs are copied in and outputs copied out",
        devices=("cuda",),
        modes=("inference",),
        effort="quick",
        compile_factor=0.0,
        acts="launch",
    )
)
