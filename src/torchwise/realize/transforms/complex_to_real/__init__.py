"""Complex → real: complex values are carried as real and imaginary parts, so that Inductor fuses what it leaves alone.

`values` is the pair of parts, `rules` what each operator does to pairs, `rewrite` turns a graph, `compile` is the door.
"""

from torchwise.realize.transforms.complex_to_real.compile import ComplexToReal, backend_for

__all__ = ["ComplexToReal", "backend_for"]
