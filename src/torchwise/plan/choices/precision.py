"""Lower precision, which is never tried unless the user allows it."""

from functools import partial

from torchwise.plan.choice import Choice, register
from torchwise.plan.numerics import Numerics
from torchwise.plan.trait import Trait

HALF = (Trait.HALF, "its weights have 16 bits already")
precision = partial(Choice, "precision", numerics=Numerics.LOWER_PRECISION, compile_factor=0.0)

register(
    precision(
        "tf32",
        complexity=1,
        summary="float32 matrix products and convolutions on TF32 tensor cores (10 bits of mantissa)",
        devices=("cuda",),
        required_traits=(Trait.GEMM, Trait.FLOAT32),
        target_cost="gemm",
        min_remaining_fraction=0.1,
    ),
    precision(
        "bf16",
        complexity=2,
        summary="weights and activations in bfloat16 (8 bits of mantissa), while inputs and outputs keep their dtype",
        modes=("inference",),
        required_traits=(Trait.FLOATING,),
        excluded_by=(HALF,),
    ),
    precision(
        "autocast_bf16",
        complexity=2,
        summary="PyTorch's autocast to bfloat16, for operators where that is safe",
        required_traits=(Trait.GEMM, Trait.FLOAT32),
        excluded_by=(HALF,),
        effort="quick",  # users who allow reduced precision want it first of all, and it compiles nothing
    ),
    precision(
        "autocast_fp16",
        complexity=2,
        summary="PyTorch's autocast to float16, for operators where that is safe",
        devices=("cuda",),
        required_traits=(Trait.GEMM, Trait.FLOAT32),
        excluded_by=(HALF,),
        effort="thorough",
    ),
)
