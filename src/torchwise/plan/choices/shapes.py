"""One compilation for every shape, or one for each."""

from torchwise.plan.choice import Choice, register
from torchwise.plan.numerics import Numerics

register(
    Choice(
        "shapes",
        "dynamic",
        Numerics.SAME_PRECISION,
        complexity=1,
        summary="one compilation serves all shapes of the mix, instead of one each",
        required_traits=("several_shapes",),
        requires=(("backend", "inductor"), ("mode", "default")),
        implies_for=(("grows", ("backend", "inductor")),),
        effort="quick",
    )
)
