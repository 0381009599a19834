"""One compilation for every shape, or one for each."""

from torchwise.plan.choice import Choice, register
from torchwise.plan.numerics import Legality

register(
    Choice(
        "shapes",
        "dynamic",
        Legality.REORDERED,
        complexity=1,
        summary="one compilation serves all shapes of the mix, instead of one each",
        needs=("several_shapes",),
        on=(("backend", "inductor"), ("mode", "default")),
        brings_for=(("grows", ("backend", "inductor")),),
        effort="quick",
    )
)
