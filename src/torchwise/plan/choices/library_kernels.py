"""Other kernels of libraries for convolutions and attention."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from torchwise.plan.choice import Choice, Stage, register
from torchwise.plan.numerics import Numerics
from torchwise.plan.trait import Trait

if TYPE_CHECKING:
    from torchwise.plan.plan import Plan

WHERE = "torchwise.compile.transforms.library_kernels"
ATTENTION = {
    "flash_attention": ("put_flash_first", "FlashAttention is asked first for fused attention"),
    "cudnn_attention": ("put_cudnn_first", "cuDNN is asked first for fused attention"),
    "efficient_attention": ("put_efficient_first", "the memory-efficient kernel is asked first for fused attention"),
    "math_attention": ("take_products", "attention is separate products and a softmax, not a fused kernel"),
    "flash_attention_3": ("take_flash_3", "FlashAttention 3 is asked first for fused attention"),
    "flash_attention_4": ("take_flash_4", "FlashAttention 4 is asked first for fused attention"),
}
IN_PYTORCH: tuple[tuple[str, ...], str] = ((), "")
PACKAGES = {
    "flash_attention_3": (
        ("flash_attn_interface",),
        "--no-build-isolation 'git+https://github.com/Dao-AILab/flash-attention#subdirectory=hopper'",
    ),
    "flash_attention_4": (("flash_attn.cute",), "--pre flash-attn-4"),
}
"""The packages of kernels that do not come with PyTorch, by the names that are imported, and what installs them."""


def find_problems(plan: Plan) -> Iterator[str]:
    """Yield the reasons why the choice of a kernel cannot be part of a plan."""
    chosen = [name for name in plan.transforms if name in ATTENTION]
    if len(chosen) > 1:
        yield f"transforms has {' and '.join(map(repr, chosen))}, but only one kernel of attention can come first"


register(
    Choice(
        "transforms",
        "cudnn_benchmark",
        Numerics.SAME_PRECISION,
        complexity=1,
        summary="cuDNN times its kernels for each convolution and size, and keeps the fastest",
        devices=("cuda",),
        required_traits=(Trait.GUESSED_KERNELS,),
        detectors=((Trait.GUESSED_KERNELS, f"{WHERE}:guesses_kernels"),),
        # On an H200 with cuDNN 9.19 none of eight convolutions became faster than by its guess (`benchmarks/results/
        # 2026-11-29-h200-library-kernels.txt`).
        effort="thorough",
        compile_factor=0.0,
        target_cost="conv",
        realized_by=f"{WHERE}:time_convolutions",
        stage=Stage.SETTING,
    ),
    *(
        Choice(
            "transforms",
            name,
            Numerics.SAME_PRECISION,
            complexity=1,
            summary=summary,
            # On a CPU there is one fused kernel, which is the default.
            devices=("cpu", "cuda") if name == "math_attention" else ("cuda",),
            required_traits=(Trait.FUSED_ATTENTION,),
            detectors=((Trait.FUSED_ATTENTION, f"{WHERE}:calls_attention"),),
            # PyTorch's own order is the fastest, or within 7 % of it, in nine of ten cases on an H200. In the tenth, a
            # float32 query of one token, separate products have three times its speed (the same results).
            effort="thorough",
            compile_factor=0.0,
            target_cost="attention",
            realized_by=f"{WHERE}:{function}",
            stage=Stage.SETTING,
            find_problems=find_problems,
            not_ahead="PyTorch chooses the kernel of attention while the model runs",
            packages=PACKAGES.get(name, IN_PYTORCH)[0],
            install=PACKAGES.get(name, IN_PYTORCH)[1],
        )
        for name, (function, summary) in ATTENTION.items()
    ),
)
