"""The model's own form with static shapes."""

from torchwise.plan.choice import Choice, Stage, register
from torchwise.plan.numerics import Numerics
from torchwise.plan.trait import Trait

register(
    Choice(
        "transforms",
        "static_form",
        Numerics.SAME_PRECISION,
        complexity=1,
        summary="the model's own form with static shapes replaces it: without waits for sizes that depend on "
        "data, it can be compiled whole and captured",
        required_traits=(Trait.STATIC_FORM,),
        # Alone it may be slower, as it computes more. Its gain is that the gaps between kernels can be closed.
        implies=(("capture", "call"),),
        effort="quick",
        compile_factor=0.0,
        realized_by="torchwise.compile.transforms.static_form:take_static_form",
        stage=Stage.FORM,
    )
)
