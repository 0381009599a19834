"""The compiler Inductor: its modes in `torch.compile`, and the options that are worth a trial of their own."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

from torchwise.plan.choice import Choice, register
from torchwise.plan.numerics import Numerics
from torchwise.plan.trait import Trait

if TYPE_CHECKING:
    from torchwise.plan.plan import Plan

ON_INDUCTOR = (("backend", "inductor"),)
# Its kernels fuse and tile, so that sums are made in another order.
inductor_mode = partial(Choice, "mode", numerics=Numerics.SAME_PRECISION, requires=ON_INDUCTOR)
inductor_option = partial(Choice, "options", numerics=Numerics.SAME_PRECISION, requires=ON_INDUCTOR)
triton_option = partial(inductor_option, devices=("cuda",), complexity=1)


def find_problems_of_three_tf32(plan: Plan) -> Iterator[str]:
    """Yield the reasons why float32 products as three TF32 products mean nothing in a plan."""
    if plan.precision != "native":
        yield (
            f"max_autotune_gemm_backends has TF32X3, which computes float32 products, but precision is "
            f"{plan.precision!r}, in which there are none"
        )


register(
    Choice(
        "backend",
        "inductor",
        Numerics.SAME_PRECISION,
        complexity=2,
        summary="torch.compile with Inductor: fuses pointwise work and reductions into its own kernels",
        effort="quick",
        realized_by="torchwise.compile.backends.inductor:compile",
        dynamic_shapes=True,
    ),
    inductor_option(
        ("freezing", True),
        complexity=3,
        summary="weights are folded into the compiled code (batch-norm into convolutions, weights prepacked). "
        "When weights change, the plan is stale and eager answers",
        modes=("inference",),
        required_traits=(Trait.MODULE, Trait.GEMM),
        effort="quick",
        compile_factor=1.3,
        target_cost="gemm",
        min_remaining_fraction=0.5,
        freezes_weights=True,
        not_ahead="the weights are frozen into the code, which would not notice changed weights",
        ahead_instead=(),
    ),
)

# Compile time of max-autotune over that of a plain compile, on one H200 with torch 2.11: ManySmallOps 12 s over 3 s,
# the spinlock CNN 42 s over 5 s, ResNet-50 238 s over 20 s.
register(
    inductor_mode(
        "reduce-overhead",
        complexity=2,
        summary="Inductor inside CUDA graphs, with outputs copied out, so that callers may keep them",
        devices=("cuda",),
        target_cost="launch",
        not_ahead="mode 'reduce-overhead' records its CUDA graphs in the process that compiles",
        ahead_instead=(("capture", "call"),),
    ),
    inductor_mode(
        "max-autotune",
        complexity=3,
        summary="max-autotune inside CUDA graphs, with outputs copied out",
        devices=("cuda",),
        required_traits=(Trait.GEMM,),
        effort="thorough",
        compile_factor=9.0,
        target_cost="gemm",
        min_remaining_fraction=0.3,
        not_ahead="mode 'max-autotune' records its CUDA graphs in the process that compiles",
        ahead_instead=(("mode", "max-autotune-no-cudagraphs"), ("capture", "call")),
    ),
    inductor_mode(
        "max-autotune-no-cudagraphs",
        complexity=2,
        summary="Inductor picks each matrix product and convolution by timing several kernels",
        required_traits=(Trait.GEMM,),
        compile_factor=8.0,
        target_cost="gemm",
        min_remaining_fraction=0.3,
    ),
)

register(
    triton_option(
        ("max_autotune_gemm_backends", "ATEN,TRITON,CUTLASS"),
        summary="matrix products may also use CUTLASS kernels, if that library is installed",
        required_traits=(Trait.GEMM,),
        requires=(*ON_INDUCTOR, ("mode", "max-autotune-no-cudagraphs")),
        effort="thorough",
        compile_factor=2.0,
        target_cost="gemm",
        min_remaining_fraction=0.7,
    ),
    triton_option(
        ("max_autotune_gemm_backends", "ATEN,TRITON,TF32X3"),
        summary="Inductor picks each float32 product by timing kernels of libraries and of its own. Its own compute "
        "three TF32 products, which are as exact (3xTF32), and so does a kernel of Torchwise for large ones (Hopper)",
        required_traits=(Trait.FLOAT32, Trait.BUSY_PRODUCTS),
        excluded_by=(
            (Trait.HALF, "its weights have 16 bits already"),
            (Trait.ONE_ROW, "its products wait for the weights, and not for their arithmetic"),
            (Trait.FEW_ROWS, "its products wait for the weights, and not for their arithmetic"),
        ),
        find_problems=find_problems_of_three_tf32,
        effort="quick",  # nothing of the same precision is as much faster where float32 products take the time
        compile_factor=6.0,  # some 20 kernels are compiled for each product of another size
        target_cost="gemm",
        # Time over that of the best mode, measured on one H200: 0.47 (a radiance field), 0.53 and 0.54
        # (transformer_block and six_layer_transformer of the zoo, large): gpu-programs-twelfth of 2026-12-01 in
        # benchmarks/results. Products alone: 0.45 of cuBLAS's time for 4,096 cubed (three-tf32-parts).
        min_remaining_fraction=0.4,
    ),
    triton_option(
        ("autotune_cudagraph_benchmarking", True),
        summary="Inductor times kernels of matrix products inside CUDA graphs, where they are launched without gaps",
        required_traits=(Trait.GEMM,),
        requires=(*ON_INDUCTOR, ("mode", "max-autotune-no-cudagraphs")),
        effort="thorough",
        target_cost="gemm",
        min_remaining_fraction=0.7,
        torch_from="2.14",
    ),
    triton_option(
        ("max_autotune_pointwise", True),
        summary="Inductor times several launch parameters for each Triton kernel other than matrix products",
        compile_factor=1.5,
        min_remaining_fraction=0.8,
    ),
    triton_option(
        ("coordinate_descent_tuning", True),
        summary="Inductor tunes the launch parameters of each Triton kernel step by step",
        effort="thorough",
        # Then Inductor writes products with one row itself, instead of calling a library. A captured step of a Llama of
        # 1.2 billion parameters went from 1.68 to 1.47 ms on an H100.
        standard_with=(Trait.ONE_ROW,),
        # Measured on one H200: 1.3 (100 Gross-Pitaevskii steps) to 4.6 times a plain compile (relevance_amp, training);
        # speed between 0.86 of the plan without it and 1.06 (benchmarks/results/2026-11-23-h200-plan-kernels-*.txt).
        compile_factor=2.0,
        min_remaining_fraction=0.8,
    ),
    triton_option(
        ("combo_kernels", True),
        summary="Inductor merges independent small kernels into one launch",
        effort="thorough",
        target_cost="launch",
    ),
    triton_option(
        ("triton.enable_pdl", True),
        summary="a kernel is launched before the previous one has ended (programmatic dependent launch, from "
        "Hopper on)",
        required_traits=(Trait.DEPENDENT_LAUNCH,),
        # 16 steps of a controller with kernels for few rows: 1.64 ms without, 1.33 with (gpu-programs-fifteenth).
        quick_with=(Trait.FEW_ROWS,),
        # PyTorch leaves it off: of its own benchmarks some lost by it (pull request 167687). What it shortens is the
        # beginning and the end of each kernel, which a profile counts as work. Time with over time without, measured on
        # one H200: 0.74 and 0.80 (100 captured Gross-Pitaevskii steps of 2.7 µs: plan-kernels-gross-pitaevskii and
        # beyond-modes of 2026-11-23 in benchmarks/results), 0.95 (relevance_amp, training: plan-kernels-relevance-amp).
        # That was before each kernel waited first (`compile/inductor_patches.py`), which can only take from the gain.
        min_remaining_fraction=0.7,
    ),
    # What these four gain was not measured: thorough searches do, each on its own model.
    triton_option(
        ("use_fast_math", True),
        numerics=Numerics.LOWER_PRECISION,
        summary="divisions, roots, exponentials and the like are quick approximations of the GPU",
        effort="thorough",
        min_remaining_fraction=0.5,
    ),
    triton_option(
        ("triton.cooperative_reductions", True),
        summary="several blocks of threads share one long reduction, where there are few rows",
        effort="thorough",
        min_remaining_fraction=0.5,
    ),
    triton_option(
        ("split_reductions", False),
        summary="a reduction is one kernel, also where there are few rows",
        effort="thorough",
        # In decoding one token a softmax over some hundred places is split in two kernels for each of its reductions.
        standard_with=(Trait.FEW_ROWS,),
        min_remaining_fraction=0.5,
    ),
    triton_option(
        ("b2b_gemm_pass", True),
        summary="two matrix products in a row are one kernel, whose result in between is not written to memory",
        required_traits=(Trait.GEMM,),
        effort="thorough",
        compile_factor=2.0,
        target_cost="gemm",
        min_remaining_fraction=0.3,
    ),
    triton_option(
        ("conv_1x1_as_mm", True),
        summary="convolutions of one point are matrix products",
        required_traits=(Trait.CONV,),
        effort="thorough",
        target_cost="conv",
        min_remaining_fraction=0.3,
    ),
    inductor_option(
        ("cpp_wrapper", True),
        complexity=1,
        summary="the code around the kernels is C++ instead of Python",
        effort="thorough",
        compile_factor=2.0,
        target_cost="launch",
        min_remaining_fraction=0.3,
    ),
)

# Thorough searches measure it, each on its own model. `decompose_mem_bound_mm` is no choice, as nothing reads it (torch
# 2.11 to 2.13). The pass of that name has another option, and is for products of over 10,240 rows or of one row with
# small matrices, which row programs compute. Neither `cpp.enable_concat_linear` nor
# `cpp.enable_grouped_gemm_template` joined linear layers of one input on a CPU (torch 2.13, frozen or not), so they are
# no choices. On a GPU, freezing joins such layers by itself.
register(
    inductor_option(
        ("cpp.simdlen", 256),
        complexity=1,
        summary="vectors have 256 bits, with which some CPUs of 512 run at a higher clock",
        devices=("cpu",),
        effort="thorough",
        min_remaining_fraction=0.7,
    ),
)
