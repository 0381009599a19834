"""When code for a CPU computes on whole vectors, although the parts of complex numbers lie interleaved in memory.

Inductor leaves a loop to single numbers if many of its reads are not contiguous. Reads of interleaved parts never are.
Filling a vector number by number costs more than it saves for a few products and sums. But functions (`exp`, `log`, an
angle) take long, and several times as long for single numbers.

Time on vectors over time on single numbers, for 4096 x 64 complex numbers on one Xeon core with vectors of 64 bytes
(torch 2.13):

* exp 0.57, log 0.22, polar of a doubled angle 0.23, softplus of a real part 0.20, sin of a modulus 0.40.
* a product and a sum 1.13, one Gross-Pitaevskii step 1.8.
"""

from __future__ import annotations

from torchwise._torch.dispatch import OpOverload
from torchwise.compile.transforms.complex_to_real.rewrite import Rewriting

_EXPONENTIAL = (
    "exp",
    "exp2",
    "expm1",
    "log",
    "log2",
    "log10",
    "log1p",
    "sinh",
    "cosh",
    "tanh",
    "sigmoid",
    "erf",
    "erfc",
)
_OF_ANGLES = ("sin", "cos", "tan", "asin", "acos", "atan", "atan2", "asinh", "acosh", "atanh")


def pays_in_vectors(rewriting: Rewriting) -> bool:
    """Whether a rewritten graph reads interleaved numbers, and computes functions."""
    targets = (node.target for node in rewriting.module.graph.nodes)
    names = {target._opname for target in targets if isinstance(target, OpOverload)}
    return bool(rewriting.complex_inputs and names.intersection(_EXPONENTIAL + _OF_ANGLES))
