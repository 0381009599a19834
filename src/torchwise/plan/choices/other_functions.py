"""Functions in place of others that a model writes out."""

from torchwise.plan.choice import Choice, Stage, register
from torchwise.plan.numerics import Numerics
from torchwise.plan.trait import Trait

WHERE = "torchwise.compile.transforms.function_graphs"

register(
    Choice(
        "transforms",
        "log_softmax",
        Numerics.SAME_PRECISION,
        complexity=1,
        summary="the logarithm of a softmax is PyTorch's log_softmax, which is finite where eager answers -inf",
        required_traits=(Trait.LOG_OF_SOFTMAX,),
        detectors=((Trait.LOG_OF_SOFTMAX, f"{WHERE}.log_softmax:rewrite"),),
        requires=(("backend", "inductor"),),
        implies=(("backend", "inductor"),),
        effort="standard",
        compile_factor=0.98,  # of a plain compile: it hardly adds anything
        min_remaining_fraction=0.5,
        realized_by=f"{WHERE}.log_softmax:rewrite",
        stage=Stage.TRACE,
    ),
    Choice(
        "transforms",
        "fft_sizes",
        Numerics.SAME_PRECISION,
        complexity=1,
        summary="convolutions by Fourier transforms are padded to a length that is quick to transform",
        required_traits=(Trait.FFT_CONVOLUTION,),
        detectors=((Trait.FFT_CONVOLUTION, f"{WHERE}.fft_sizes:rewrite"),),
        requires=(("backend", "inductor"),),
        implies=(("backend", "inductor"),),
        effort="quick",
        compile_factor=0.98,
        realized_by=f"{WHERE}.fft_sizes:rewrite",
        stage=Stage.TRACE,
    ),
    Choice(
        "transforms",
        "distance_products",
        Numerics.LOWER_PRECISION,
        complexity=2,
        summary="distances of all pairs of points are computed by a matrix product, with fewer digits for near points",
        modes=("inference",),  # the gradient of a distance of 0 is 0, and that of a root is not
        required_traits=(Trait.PAIR_DISTANCES,),
        detectors=((Trait.PAIR_DISTANCES, f"{WHERE}.pair_distances:rewrite"),),
        requires=(("backend", "inductor"),),
        implies=(("backend", "inductor"),),
        effort="quick",
        compile_factor=0.98,
        min_remaining_fraction=0.1,
        realized_by=f"{WHERE}.pair_distances:rewrite",
        stage=Stage.TRACE,
    ),
)
