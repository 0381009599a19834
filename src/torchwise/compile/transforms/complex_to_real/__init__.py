"""Complex → real: complex values are carried as real and imaginary parts, so that Inductor fuses operators on them.

`pairs` has the pair of parts, and `rules` the effect of each operator on pairs. `rewrite` turns a graph, and `compile`
is the entry point.
"""

from torchwise.compile.transforms.complex_to_real.compile import ComplexToReal, backend_for

__all__ = ["ComplexToReal", "backend_for"]
