"""How images lie in memory."""

from torchwise.plan.choice import Choice, register
from torchwise.plan.numerics import Numerics
from torchwise.plan.trait import Trait

register(
    Choice(
        "memory_format",
        "channels_last",
        Numerics.SAME_PRECISION,
        complexity=1,
        summary="4-D weights and inputs are stored with channels innermost, and outputs keep their strides",
        required_traits=(Trait.CONV,),
        compile_factor=0.0,
        target_cost="conv",
        min_remaining_fraction=0.3,
    )
)
