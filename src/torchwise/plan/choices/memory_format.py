"""How images and volumes lie in memory."""

from functools import partial

from torchwise.plan.choice import Choice, register
from torchwise.plan.numerics import Numerics
from torchwise.plan.trait import Trait

memory_format = partial(
    Choice,
    "memory_format",
    numerics=Numerics.SAME_PRECISION,
    complexity=1,
    compile_factor=0.0,
    target_cost="conv",
    min_remaining_fraction=0.3,
)

register(
    memory_format(
        "channels_last",
        summary="4-D weights and inputs are stored with channels innermost, and outputs keep their strides",
        required_traits=(Trait.CONV,),
    ),
    memory_format(
        "channels_last_3d",
        summary="the same for 5-D weights and inputs, those of convolutions of volumes and videos",
        required_traits=(Trait.CONV3D,),
    ),
)
