"""How much of the model is compiled at once."""

from torchwise.plan.choice import Choice, register
from torchwise.plan.numerics import Numerics
from torchwise.plan.trait import Trait

register(
    Choice(
        "scope",
        "regional",
        Numerics.SAME_PRECISION,
        complexity=1,
        summary="each repeated block is compiled once and shared, which cuts compile time, not steady time",
        required_traits=(Trait.REPEATED_BLOCKS,),
        requires=(("backend", "inductor"), ("mode", "default")),
        compile_factor=0.4,
        target_cost="compile",
    ),
    Choice(
        "scope",
        "rolled",
        Numerics.SAME_PRECISION,
        complexity=2,
        summary="repeated parts of the graph (steps of a loop, equal layers) are compiled once and called each time",
        required_traits=(Trait.REPEATS,),
        requires=(("backend", "inductor"), ("mode", "default")),
        # So it is tried before the whole is compiled, which may take minutes.
        implies=(("backend", "inductor"), ("transforms", "complex_to_real")),
        effort="quick",
        # On two busy CPU cores 13 s where the whole takes 90 to 109 (100 Gross-Pitaevskii steps of 16³, complex numbers
        # rewritten); rounded up, as less of most programs repeats.
        compile_factor=0.2,
    ),
)
