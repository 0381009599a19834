"""The modes of `torch.compile`, and the Inductor options that are worth a trial of their own."""

from torchwise.plan.choice import Choice, register
from torchwise.plan.numerics import Numerics
from torchwise.plan.trait import Trait

ON_INDUCTOR = (("backend", "inductor"),)

# Compile time of max-autotune over that of a plain compile, on one H200 with torch 2.11: ManySmallOps 12 s over 3 s,
# the spinlock CNN 42 s over 5 s, ResNet-50 238 s over 20 s.

register(
    Choice(
        "mode",
        "reduce-overhead",
        Numerics.SAME_PRECISION,
        complexity=2,
        summary="Inductor inside CUDA graphs, with outputs copied out, so that callers may keep them",
        devices=("cuda",),
        requires=ON_INDUCTOR,
        target_cost="launch",
        not_ahead="mode 'reduce-overhead' records its CUDA graphs in the process that compiles",
        ahead_instead=(("capture", "call"),),
    ),
    Choice(
        "mode",
        "max-autotune",
        Numerics.SAME_PRECISION,
        complexity=3,
        summary="max-autotune inside CUDA graphs, with outputs copied out",
        devices=("cuda",),
        required_traits=(Trait.GEMM,),
        requires=ON_INDUCTOR,
        effort="thorough",
        compile_factor=9.0,
        target_cost="gemm",
        min_remaining_fraction=0.3,
        not_ahead="mode 'max-autotune' records its CUDA graphs in the process that compiles",
        ahead_instead=(("mode", "max-autotune-no-cudagraphs"), ("capture", "call")),
    ),
    Choice(
        "mode",
        "max-autotune-no-cudagraphs",
        Numerics.SAME_PRECISION,
        complexity=2,
        summary="Inductor picks each matrix product and convolution by timing several kernels",
        required_traits=(Trait.GEMM,),
        requires=ON_INDUCTOR,
        compile_factor=8.0,
        target_cost="gemm",
        min_remaining_fraction=0.3,
    ),
    Choice(
        "options",
        ("max_autotune_gemm_backends", "ATEN,TRITON,CUTLASS"),
        Numerics.SAME_PRECISION,
        complexity=1,
        summary="matrix products may also use CUTLASS kernels, if that library is installed",
        devices=("cuda",),
        required_traits=(Trait.GEMM,),
        requires=(("backend", "inductor"), ("mode", "max-autotune-no-cudagraphs")),
        effort="thorough",
        compile_factor=2.0,
        target_cost="gemm",
        min_remaining_fraction=0.7,
    ),
    Choice(
        "options",
        ("max_autotune_pointwise", True),
        Numerics.SAME_PRECISION,
        complexity=1,
        summary="Inductor times several launch parameters for each Triton kernel other than matrix products",
        devices=("cuda",),
        requires=ON_INDUCTOR,
        compile_factor=1.5,
        min_remaining_fraction=0.8,
    ),
    Choice(
        "options",
        ("coordinate_descent_tuning", True),
        Numerics.SAME_PRECISION,
        complexity=1,
        summary="Inductor tunes the launch parameters of each Triton kernel step by step",
        devices=("cuda",),
        requires=ON_INDUCTOR,
        effort="thorough",
        # Measured on one H200: 1.3 (100 Gross-Pitaevskii steps) to 4.6 times a plain compile (relevance_amp, training);
        # speed between 0.86 of the plan without it and 1.06 (benchmarks/results/2026-11-23-h200-plan-kernels-*.txt).
        compile_factor=2.0,
        min_remaining_fraction=0.8,
    ),
    Choice(
        "options",
        ("combo_kernels", True),
        Numerics.SAME_PRECISION,
        complexity=1,
        summary="Inductor merges independent small kernels into one launch",
        devices=("cuda",),
        requires=ON_INDUCTOR,
        effort="thorough",
        target_cost="launch",
    ),
    Choice(
        "options",
        ("triton.enable_pdl", True),
        Numerics.SAME_PRECISION,
        complexity=1,
        summary="a kernel is launched before the previous one has ended (programmatic dependent launch, from "
        "Hopper on)",
        devices=("cuda",),
        required_traits=(Trait.DEPENDENT_LAUNCH,),
        requires=ON_INDUCTOR,
        # PyTorch leaves it off: of its own benchmarks some lost by it (pull request 167687). What it shortens is the
        # beginning and the end of each kernel, which a profile counts as work. Time with over time without, measured on
        # one H200: 0.74 and 0.80 (100 captured Gross-Pitaevskii steps of 2.7 µs: plan-kernels-gross-pitaevskii and
        # beyond-modes of 2026-11-23 in benchmarks/results), 0.95 (relevance_amp, training: plan-kernels-relevance-amp).
        # That was before each kernel waited first (`compile/inductor_patches.py`), which can only take from the gain.
        min_remaining_fraction=0.7,
    ),
    Choice(
        "options",
        ("cpp_wrapper", True),
        Numerics.SAME_PRECISION,
        complexity=1,
        summary="the code around the kernels is C++ instead of Python",
        requires=ON_INDUCTOR,
        effort="thorough",
        compile_factor=2.0,
        target_cost="launch",
        min_remaining_fraction=0.3,
    ),
)
