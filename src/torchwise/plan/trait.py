"""Traits of a workload: the facts that decide which choices are open, and how a candidate is verified and timed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Self

from torchwise.errors import PlanError, did_you_mean
from torchwise.former_names import OpenEnum


class Trait(OpenEnum):
    """A trait of a workload. Inspecting the plain model finds most of them.

    A training step has further ones. Trials find `NOISE_NOT_REPRODUCIBLE`, and `RESTRIDED` where it was not
    foreseen. The value of a trait is its name in records. Its summary completes the sentence "the model …".

    A plug-in may name traits of its own, with a dot in them, such as "mypackage.sparse".
    """

    _summary: str

    def __new__(cls, value: str, summary: str = "") -> Self:
        """Make a member of its value and its summary."""
        member = str.__new__(cls, value)
        member._value_ = value
        member._summary = summary
        return member

    MODULE = "module", "is an nn.Module"
    FLOATING = "floating", "has floating-point tensors"
    FLOAT32 = "float32", "computes in float32"
    HALF = "half", "has weights of 16 bits"
    GEMM = "gemm", "spends time in matrix products or convolutions"
    BUSY_PRODUCTS = "busy_products", "keeps a GPU busy with matrix products for a good part of a call"
    CONV = "conv", "spends time in convolutions of images"
    CONV3D = "conv3d", "spends time in convolutions of volumes"
    COMPLEX = "complex", "computes with complex numbers"
    RNN = "rnn", "has an nn.RNN, nn.GRU or nn.LSTM"
    COMPILABLE_RNN = "compilable_rnn", "has an nn.RNN, nn.GRU or nn.LSTM that may be part of a compiled graph"
    PATCHES = "patches", "has convolutions whose windows do not overlap"
    SHORT_ROWS = "short_rows", "reads points of a few coordinates again and again"
    ONE_ROW = "one_row", "multiplies its matrices by one row each"
    FEW_ROWS = "few_rows", "multiplies large weights by few rows"
    REPEATED_BLOCKS = "repeated_blocks", "has repeated blocks"
    STAGES = "stages", "is a row of blocks or stages"
    REPEATS = "repeats", "repeats the same operators"
    INDEPENDENT_REPEATS = (
        "independent_repeats",
        "repeats functions that do not wait for each other, as a loop over samples",
    )
    LONG = "long", "calls very many operators"
    SEVERAL_SHAPES = "several_shapes", "gets inputs of several shapes"
    SIZES_VARY = "sizes_vary", "gets inputs of sizes that no example has"
    SIZES_FIXED = "sizes_fixed", "gets inputs of the sizes of its examples alone"
    INSTANCE_NORM = "instance_norm", "has instance norms without running statistics"
    EXACT_GELU = "exact_gelu", "has GELU by the error function"
    DROPOUT = "dropout", "has dropout that is on"
    WRITTEN_ATTENTION = "written_attention", "writes attention out as products and a softmax"
    FUSED_ATTENTION = "fused_attention", "calls PyTorch's fused attention"
    GUESSED_KERNELS = "guessed_kernels", "has convolutions whose kernels cuDNN does not time"
    REPEATED_KEYS = "repeated_keys", "repeats keys and values for attention"
    SHARED_INPUTS = "shared_inputs", "multiplies one input by several weights"
    LOG_OF_SOFTMAX = "log_of_softmax", "takes the logarithm of a softmax"
    FFT_CONVOLUTION = "fft_convolution", "convolves by Fourier transforms whose length has a large prime factor"
    PAIR_DISTANCES = "pair_distances", "writes out the distances of all pairs of points"
    TOLERANT = "tolerant", "may be changed, by --tolerance or --metric distribution"
    LINEAR_LAYERS = "linear_layers", "has linear layers"
    FLOAT8 = "float8", "runs on a GPU that multiplies numbers of 8 bits with an exponent (float8)"
    STATIC_FORM = "static_form", "declares a form with static shapes"
    STOCHASTIC = "stochastic", "draws random numbers"
    NOISE_NOT_REPRODUCIBLE = "noise_not_reproducible", "draws other random numbers when it is compiled"
    STATEFUL = "stateful", "changes state that its next call starts from"
    GROWS = "grows", "keeps state whose shape changes with each call"
    WRITES_INPUTS = "writes_inputs", "writes to its inputs"
    PRINTS = "prints", "prints or logs in its call"
    READS_BOOL = "reads_bool", "asks the GPU for a yes or no, or for a count"
    READS_SCALAR = "reads_scalar", "reads floating-point numbers from the GPU"
    DEPENDENT_LAUNCH = "dependent_launch", "runs on a GPU that can start a kernel before the previous one has ended"
    SHORT_CALLS = "short_calls", "takes a few milliseconds on the CPU"
    ROW_REGIONS = "row_regions", "takes a few milliseconds, computes mostly number by number, or is many short kernels"
    CONTENDED_CORES = "contended_cores", "has threads that wait for a core"
    RESTRIDED = "restrided", "has outputs with another memory layout when it is compiled"
    TRAINING_STEP = "training_step", "is trained by a whole step"
    FUSABLE = "fusable", "has an optimizer with a fused form"
    FOREACHABLE = "foreachable", "has an optimizer with a foreach form"
    UNEVEN_MEAN = "uneven_mean", "takes a mean over labels that may count differently"
    DIVISIBLE_BY_2 = "divisible_by_2", "has a batch that can be cut into 2 equal parts"
    DIVISIBLE_BY_4 = "divisible_by_4", "has a batch that can be cut into 4 equal parts"

    @classmethod
    def former_values(cls) -> Mapping[str, str]:
        """Return the values of earlier versions."""
        return {"questions": "reads_bool", "numbers": "reads_scalar", "lstm": "compilable_rnn"}

    @property
    def summary(self) -> str:
        """The end of the sentence "the model …", or "" for a trait of a plug-in or of a later version."""
        return getattr(self, "_summary", "")

    @property
    def label(self) -> str:
        """Its value as words."""
        return self.value.replace("_", " ")


DIVISIBLE_BY = {2: Trait.DIVISIBLE_BY_2, 4: Trait.DIVISIBLE_BY_4}
"""The traits of batches that can be cut into microbatches, by their number."""


def check_trait(trait: str, field: str) -> Trait:
    """Return a trait that a choice names.

    Args:
        trait: a trait, its value, or a plug-in's own trait, which has a dot in it.
        field: the field of the choice, for the message.

    Raises:
        PlanError: there is no such trait, so that nothing could find it in a workload.
    """
    found = Trait(trait)
    if not found.is_known and "." not in found:
        known = [member.value for member in Trait]
        near = did_you_mean(trait, known) or f"; the traits are {', '.join(known)}"
        raise PlanError(
            f"{field} has {trait!r}, but there is no such trait, and one of your own has a dot, such as "
            f"mypackage.sparse{near}"
        )
    return found
