"""Kernels of few rows that answer on a CPU, by Triton's interpreter."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor

from torchwise.compile.few_rows import operator, tuning
from torchwise.compile.transforms.function_graphs import products_of_few_rows


@contextmanager
def kernels_on_cpu(patch: pytest.MonkeyPatch) -> Iterator[None]:
    """Have the kernel answer on a CPU, also for small weights."""
    patch.setattr(operator, "runs_kernels", lambda _device: True)
    patch.setattr(tuning, "_chosen", {})
    patch.setattr(products_of_few_rows, "MIN_BYTES", 1)
    with torch.no_grad():
        yield
    torch.compiler.reset()


def draw(*sizes: int, seed: int = 0) -> Tensor:
    """Return normal numbers."""
    return torch.randn(*sizes, generator=torch.Generator().manual_seed(seed))
