"""The compiler ONNX Runtime."""

from torchwise.plan.choice import Choice, register
from torchwise.plan.numerics import Numerics
from torchwise.plan.rules import find_export_problems
from torchwise.plan.trait import Trait

register(
    Choice(
        "backend",
        "onnxruntime",
        Numerics.SAME_PRECISION,
        complexity=6,
        summary="ONNX Runtime compiles the graphs or their largest parts, with the weights as constants. "
        "When weights change, the plan is stale and eager answers",
        modes=("inference",),
        excluded_by=(
            (Trait.STOCHASTIC, "the model draws random numbers, and ONNX Runtime would draw others"),
            (Trait.WRITES_INPUTS, "the model writes to its inputs, and ONNX Runtime only computes values"),
            (Trait.COMPLEX, "the model computes with complex numbers, which ONNX Runtime does not have"),
        ),
        effort="thorough",  # models without such work have gained nothing from it
        quick_with=(Trait.GEMM,),
        standard_with=(Trait.GEMM, Trait.RNN),
        quick_on=("cpu",),  # few installations have its CUDA provider
        # On two busy cores 3 s (OpenVINO) and 8 s (ONNX Runtime) where Inductor took 81 s: a network of 5 convolutions.
        compile_factor=0.3,
        realized_by="torchwise.compile.backends.onnx_runtime:compile",
        dynamic_shapes=True,
        find_problems=find_export_problems,
        not_ahead="ONNX Runtime has no code that is loaded without capturing the model again",
        ahead_instead=(("backend", "inductor"),),
        freezes_weights=True,
        packages=("onnxruntime", "onnx", "onnxscript"),
        builds=(("cuda", "capi/*onnxruntime_providers_cuda*", "onnxruntime-gpu"),),
    ),
)
