"""Convolutions that cut patches, as matrix products."""

from torchwise.plan.choice import Choice, Stage, register
from torchwise.plan.numerics import Numerics
from torchwise.plan.trait import Trait

register(
    Choice(
        "transforms",
        "patch_matmul",
        Numerics.SAME_PRECISION,
        complexity=1,
        summary="convolutions whose windows do not overlap, as those that cut an image into patches, are one matrix "
        "product each",
        required_traits=(Trait.PATCHES,),
        requires=(("backend", "inductor"),),
        implies=(("backend", "inductor"),),
        compile_factor=1.0,
        # Of other convolutions it takes nothing away.
        target_cost="conv",
        realized_by="torchwise.compile.transforms.patch_matmul:multiply",
        stage=Stage.MODEL,
    )
)
