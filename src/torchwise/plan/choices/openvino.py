"""The compiler OpenVINO, for the CPU."""

from torchwise.plan.choice import Choice, register
from torchwise.plan.numerics import Numerics
from torchwise.plan.trait import Trait

register(
    Choice(
        "backend",
        "openvino",
        Numerics.SAME_PRECISION,
        complexity=6,
        summary="OpenVINO compiles the graphs, with the weights as constants. "
        "When weights change, the plan is stale and eager answers",
        devices=("cpu",),
        modes=("inference",),
        excluded_by=(
            (Trait.STOCHASTIC, "the model draws random numbers, and OpenVINO would draw others"),
            (Trait.WRITES_INPUTS, "the model writes to its inputs, and OpenVINO only computes values"),
            (Trait.COMPLEX, "the model computes with complex numbers, which OpenVINO does not have"),
        ),
        compile_factor=0.5,
        realized_by="torchwise.compile.backends.openvino:compile",
        dynamic_shapes=True,
        not_ahead="OpenVINO compiles again in each process",
        ahead_instead=(("backend", "inductor"),),
        freezes_weights=True,
        packages=("openvino",),
    ),
)
