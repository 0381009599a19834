"""Outputs laid out as eager's."""

from torchwise.plan.choice import Choice, Stage, register
from torchwise.plan.numerics import Numerics
from torchwise.plan.trait import Trait

WHERE = "torchwise.compile.transforms.eager_strides"


register(
    Choice(
        "transforms",
        "eager_strides",
        Numerics.EXACT,
        complexity=1,
        summary="outputs have eager's strides if the compiler would choose others",
        required_traits=(Trait.RESTRIDED,),
        detectors=((Trait.RESTRIDED, f"{WHERE}:joins_one_to_empty"),),
        requires=(("backend", "inductor"),),
        implies=(("backend", "inductor"),),
        effort="quick",
        compile_factor=0.98,  # of a plain compile: it hardly adds anything, and as the cheapest it is tried first
        realized_by=f"{WHERE}:rewrite",
        stage=Stage.TRACE,
    )
)
