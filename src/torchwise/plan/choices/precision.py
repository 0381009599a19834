"""Lower precision, which is never tried unless the user allows it."""

from torchwise.plan.choice import Choice, register
from torchwise.plan.numerics import Legality

register(
    Choice(
        "precision",
        "tf32",
        Legality.REDUCED,
        complexity=1,
        summary="float32 matrix products and convolutions on TF32 tensor cores (10 bits of mantissa)",
        devices=("cuda",),
        needs=("gemm", "float32"),
        compile_factor=0.0,
        acts="gemm",
        keeps=0.1,
    ),
    Choice(
        "precision",
        "bf16",
        Legality.REDUCED,
        complexity=2,
        summary="weights and activations in bfloat16 (8 bits of mantissa); inputs and outputs keep their dtype",
        modes=("inference",),
        needs=("floating",),
        compile_factor=0.0,
    ),
    Choice(
        "precision",
        "autocast_bf16",
        Legality.REDUCED,
        complexity=2,
        summary="PyTorch's autocast to bfloat16 where it deems that safe",
        needs=("gemm", "float32"),
        effort="quick",  # users who allow reduced precision want it first of all, and it compiles nothing
        compile_factor=0.0,
    ),
    Choice(
        "precision",
        "autocast_fp16",
        Legality.REDUCED,
        complexity=2,
        summary="PyTorch's autocast to float16 where it deems that safe",
        devices=("cuda",),
        needs=("gemm", "float32"),
        effort="thorough",
        compile_factor=0.0,
    ),
)
