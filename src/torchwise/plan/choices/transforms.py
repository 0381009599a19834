"""Rewrites of the model, and of the compiler's input."""

from torchwise.plan.choice import Choice, register
from torchwise.plan.numerics import Numerics
from torchwise.plan.trait import Trait

register(
    Choice(
        "transforms",
        "complex_to_real",
        Numerics.SAME_PRECISION,
        complexity=2,
        summary="complex numbers are carried as real and imaginary parts through Inductor, which fuses only real ones",
        required_traits=(Trait.COMPLEX,),
        requires=(("backend", "inductor"),),
        implies=(("backend", "inductor"),),
        effort="quick",
        # Measured: 10.0 s, and 10.2 s for a plain compile (field 8192 × 50, CPU). As the cheapest it is tried first,
        # before plans that capture what it would change.
        compile_factor=0.98,
        # Time with over time without, measured: 0.02 to 0.03 (field 8192 × 50, CPU), 0.10 (the same, H200), 0.14 (field
        # 1 048 576 × 100, H200), 0.18 (Gross-Pitaevskii step 64³, CPU).
        min_remaining_fraction=0.02,
    ),
    Choice(
        "transforms",
        "structure_of_arrays",
        Numerics.SAME_PRECISION,
        complexity=1,
        summary="points with a few coordinates that are read repeatedly are stored coordinate by coordinate, so "
        "that loops read whole vectors",
        devices=("cpu",),
        required_traits=(Trait.SHORT_ROWS,),
        requires=(("backend", "inductor"), ("shapes", "static")),
        implies=(("backend", "inductor"),),
        effort="quick",
        # Time with over time without, on two CPU cores with vectors of 64 bytes: 0.37 (field 8192 × 50) and 0.23
        # (potential of 50 charges at 8192 points).
        min_remaining_fraction=0.2,
    ),
    Choice(
        "transforms",
        "isolate_rnn",
        # By itself it moves nothing: the RNN runs as in eager, and the compiler may only reorder the rest.
        Numerics.EXACT,
        complexity=1,
        summary="each nn.RNN, nn.GRU and nn.LSTM runs in eager between compiled graphs. Otherwise nothing after "
        "it in the same function is compiled",
        required_traits=(Trait.RNN,),
        requires=(("backend", "inductor"),),
        implies=(("backend", "inductor"),),
        effort="quick",
        # Measured: 0.7 to 1.7 of a plain compile. As the cheapest it is tried first, for without it little is compiled.
        compile_factor=0.98,
        # Time with over time without, measured: 0.69 (carrier), 0.80 (fused_step), 0.70 (padded rollout; all small, one
        # CPU thread), 1.0 where the RNN's own products are everything (carrier, 1024 units).
        min_remaining_fraction=0.3,
    ),
    Choice(
        "transforms",
        "patch_matmul",
        Numerics.SAME_PRECISION,
        complexity=1,
        summary="convolutions whose windows do not overlap, as those that cut an image into patches, are one matrix "
        "product each",
        required_traits=(Trait.PATCHES,),
        requires=(("backend", "inductor"),),
        implies=(("backend", "inductor"),),
        compile_factor=1.0,
        # Of other convolutions it takes nothing away.
        target_cost="conv",
    ),
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
    ),
    Choice(
        "transforms",
        "numbers_on_gpu",
        Numerics.SAME_PRECISION,
        complexity=1,
        summary="numbers that the model reads from the GPU (`.item()`) only to compute with them there stay on "
        "the GPU, so that the call can be captured",
        devices=("cuda",),
        modes=("inference",),
        required_traits=(Trait.READS_SCALAR,),
        requires=(("backend", "eager"),),
        # Alone it means nothing: what it gains is that the gaps between kernels can be closed. Not with branches, as no
        # verdict proves those that are met later.
        implies=(("capture", "call"),),
        effort="quick",
        compile_factor=0.0,
        target_cost="launch",
    ),
    Choice(
        "transforms",
        "eager_strides",
        Numerics.EXACT,
        complexity=1,
        summary="outputs have eager's strides if the compiler would choose others",
        required_traits=(Trait.RESTRIDED,),
        requires=(("backend", "inductor"),),
        implies=(("backend", "inductor"),),
        effort="quick",
        compile_factor=0.98,  # of a plain compile: it hardly adds anything, and as the cheapest it is tried first
    ),
)
