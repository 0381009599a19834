"""Modules in place of the model's own."""

from torchwise.plan.choice import Choice, Stage, register
from torchwise.plan.numerics import Numerics
from torchwise.plan.trait import Trait

WHERE = "torchwise.compile.transforms.other_modules"
OWN_STEP = (Trait.TRAINING_STEP, "a whole training step is verified against the model's own operators")

register(
    Choice(
        "transforms",
        "group_norm",
        Numerics.SAME_PRECISION,
        complexity=1,
        summary="instance norms are group norms with a group for each channel, which have a kernel of their own",
        required_traits=(Trait.INSTANCE_NORM,),
        detectors=((Trait.INSTANCE_NORM, f"{WHERE}:has_instance_norm"),),
        compile_factor=0.0,
        effort="quick",
        realized_by=f"{WHERE}:use_group_norm",
        stage=Stage.MODEL,
    ),
    Choice(
        "transforms",
        "tanh_gelu",
        Numerics.SUBSTITUTED,
        complexity=1,
        summary="GELU is approximated by tanh, which is off by up to 5e-4",
        required_traits=(Trait.EXACT_GELU, Trait.TOLERANT),
        excluded_by=(OWN_STEP,),
        detectors=((Trait.EXACT_GELU, f"{WHERE}:has_exact_gelu"),),
        compile_factor=0.0,
        effort="quick",
        realized_by=f"{WHERE}:use_tanh_gelu",
        stage=Stage.MODEL,
    ),
    Choice(
        "transforms",
        "no_dropout",
        Numerics.SUBSTITUTED,
        complexity=1,
        summary="modules of dropout that are on in inference do nothing, for answers without their noise",
        modes=("inference",),
        required_traits=(Trait.DROPOUT, Trait.TOLERANT),
        detectors=((Trait.DROPOUT, f"{WHERE}:has_dropout"),),
        compile_factor=0.0,
        effort="quick",
        realized_by=f"{WHERE}:leave_dropout_out",
        stage=Stage.MODEL,
    ),
)
