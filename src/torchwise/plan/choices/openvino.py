"""The compiler OpenVINO, for the CPU."""

from torchwise.plan.choice import Choice, register
from torchwise.plan.numerics import Numerics
from torchwise.plan.rules import find_export_problems
from torchwise.plan.trait import Trait

register(
    Choice(
        "backend",
        "openvino",
        Numerics.SAME_PRECISION,
        complexity=6,
        summary="OpenVINO compiles the graphs or their largest parts, with the weights as constants. "
        "When weights change, the plan is stale and eager answers",
        devices=("cpu",),
        modes=("inference",),
        excluded_by=(
            (Trait.STOCHASTIC, "the model draws random numbers, and OpenVINO would draw others"),
            (Trait.WRITES_INPUTS, "the model writes to its inputs, and OpenVINO only computes values"),
            (Trait.COMPLEX, "the model computes with complex numbers, which OpenVINO does not have"),
        ),
        effort="thorough",  # models without such work have gained nothing from it
        quick_with=(Trait.GEMM,),
        standard_with=(Trait.RNN,),
        # On two busy cores 3 s (OpenVINO) and 8 s (ONNX Runtime) where Inductor took 81 s: a network of 5 convolutions.
        compile_factor=0.3,
        realized_by="torchwise.compile.backends.openvino:compile",
        dynamic_shapes=True,
        find_problems=find_export_problems,
        not_ahead="OpenVINO has no code that is loaded without capturing the model again",
        ahead_instead=(("backend", "inductor"),),
        freezes_weights=True,
        packages=("openvino",),
    ),
)
