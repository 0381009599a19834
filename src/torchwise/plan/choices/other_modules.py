"""Operators in place of the model's own, as modules or as functions."""

from torchwise.plan.choice import Choice, Stage, register
from torchwise.plan.numerics import Numerics
from torchwise.plan.trait import Trait

WHERE = "torchwise.compile.transforms.other_modules"
FUNCTIONS = "torchwise.compile.transforms.swapped_functions"
OWN_STEP = (Trait.TRAINING_STEP, "a whole training step is verified against the model's own operators")

register(
    Choice(
        "transforms",
        "group_norm",
        Numerics.SAME_PRECISION,
        complexity=1,
        summary="instance norms are group norms with a group for each channel, which have a kernel of their own",
        required_traits=(Trait.MODULE, Trait.INSTANCE_NORM),
        detectors=(
            (Trait.INSTANCE_NORM, f"{WHERE}:has_instance_norm"),
            (Trait.INSTANCE_NORM, f"{FUNCTIONS}:calls_instance_norm"),
        ),
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
        required_traits=(Trait.MODULE, Trait.EXACT_GELU, Trait.TOLERANT),
        excluded_by=(OWN_STEP,),
        detectors=((Trait.EXACT_GELU, f"{WHERE}:has_exact_gelu"), (Trait.EXACT_GELU, f"{FUNCTIONS}:calls_exact_gelu")),
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
        summary="dropout that is on in inference does nothing, for answers without its noise, but for dropout within "
        "nn.MultiheadAttention and recurrent layers",
        modes=("inference",),
        required_traits=(Trait.MODULE, Trait.DROPOUT, Trait.TOLERANT),
        detectors=((Trait.DROPOUT, f"{WHERE}:has_dropout"), (Trait.DROPOUT, f"{FUNCTIONS}:calls_dropout")),
        compile_factor=0.0,
        effort="quick",
        realized_by=f"{WHERE}:leave_dropout_out",
        stage=Stage.MODEL,
    ),
)
