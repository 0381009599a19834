"""One compilation for every shape, or one for each."""

from torchwise.plan.choice import Choice, register
from torchwise.plan.numerics import Numerics
from torchwise.plan.trait import Trait

register(
    Choice(
        "shapes",
        "dynamic",
        Numerics.SAME_PRECISION,
        complexity=1,
        summary="one compilation serves all shapes of the mix, instead of one each",
        required_traits=(Trait.SEVERAL_SHAPES,),
        requires=(("backend", "inductor"), ("mode", "default")),
        implies_for=((Trait.GROWS, ("backend", "inductor")),),
        effort="quick",
    )
)
