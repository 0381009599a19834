"""Rewrites of the model by name, one file or folder each: Inductor's options → a backend for `torch.compile`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torchwise.realize.transforms import complex_to_real
from torchwise.realize.transforms.complex_to_real import ComplexToReal

Transform = Callable[[tuple[tuple[str, Any], ...]], ComplexToReal]

TRANSFORMS: dict[str, Transform] = {"complex_to_real": complex_to_real.backend_for}
"""How a plan's `transforms` are realised; every one compiles through Inductor."""
