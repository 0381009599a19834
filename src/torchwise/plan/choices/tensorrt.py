"""The compiler TensorRT, for NVIDIA GPUs."""

from torchwise.plan.choice import Choice, register
from torchwise.plan.numerics import Numerics
from torchwise.plan.rules import find_export_problems
from torchwise.plan.trait import Trait

register(
    Choice(
        "backend",
        "torch-tensorrt",
        Numerics.SAME_PRECISION,
        complexity=6,
        summary="TensorRT compiles the graphs, with the weights as constants. "
        "When weights change, the plan is stale and eager answers",
        devices=("cuda",),
        modes=("inference",),
        excluded_by=(
            (Trait.STOCHASTIC, "the model draws random numbers, and TensorRT would draw others"),
            (Trait.WRITES_INPUTS, "the model writes to its inputs, and TensorRT only computes values"),
            (Trait.COMPLEX, "the model computes with complex numbers, which TensorRT does not have"),
        ),
        compile_factor=4.0,
        realized_by="torchwise.compile.backends.tensorrt:compile",
        find_problems=find_export_problems,
        not_ahead="TensorRT compiles again in each process",
        ahead_instead=(("backend", "inductor"),),
        keeps_code=False,
        freezes_weights=True,
        packages=("torch_tensorrt",),
    ),
)
