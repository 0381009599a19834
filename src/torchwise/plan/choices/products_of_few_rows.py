"""Products of few rows with large weights, by kernels of our own that read the weights as fast as a copy."""

from torchwise.plan.choice import Choice, Stage, register
from torchwise.plan.numerics import Numerics
from torchwise.plan.trait import Trait

WHERE = "torchwise.compile.transforms.function_graphs.products_of_few_rows"

register(
    Choice(
        "transforms",
        "products_of_few_rows",
        Numerics.SAME_PRECISION,
        complexity=2,
        summary="products of at most 8 rows with large weights, as in decoding one token, are kernels of Torchwise, "
        "which only read the weights. In float32, or with weights of 8 bits, they have at most 128 rows. Products of "
        "the same rows are one kernel, with their RMS norm, activation, gate and residual. Weights of 8 bits are read "
        "as such. Attention of at most 16 rows is such a kernel as well",
        devices=("cuda",),
        modes=("inference",),
        required_traits=(Trait.GEMM, Trait.FEW_ROWS),
        detectors=((Trait.FEW_ROWS, f"{WHERE}:multiplies_few_rows"),),
        requires=(("backend", "inductor"),),
        implies=(("backend", "inductor"),),
        effort="quick",
        compile_factor=1.0,
        # Reading the weights remains, and libraries read them at some half of that rate.
        min_remaining_fraction=0.3,
        not_ahead="code of another process has the operator of its kernels only after Torchwise has defined it, and "
        "these kernels are compiled and chosen by time where they run",
        ahead_instead=(),
        realized_by=f"{WHERE}:rewrite",
        stage=Stage.TRACE,
    )
)
