"""Launches of clusters: programs of Triton that run at once, and can wait for each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from torchwise.errors import UnsupportedError


def launch_cluster(
    kernel: Any,
    programs: int,
    grid: tuple[int, int, int],
    given: Sequence[torch.Tensor],
    constants: Mapping[str, Any],
    settings: Mapping[str, Any],
) -> Any:
    """Launch a kernel with a cluster of programs in each place of a grid, and return it as Triton compiled it.

    Triton's own clusters (`num_ctas`) cut each tile among their programs. So the kernel is compiled for programs that
    are alone, and only its launch is told how many of them are a cluster. They need compute capability 9.0.

    Args:
        kernel: a function of Triton.
        programs: of a cluster.
        grid: the clusters.
        given: tensors.
        constants: the arguments that follow them, by name.
        settings: constants and options of Triton.

    Raises:
        UnsupportedError: Triton keeps the options of a launch otherwise.
    """
    compiled = kernel.warmup(*given, grid=grid, **settings)
    packed = getattr(compiled, "packed_metadata", None)
    if not isinstance(packed, tuple) or len(packed) != 3 or packed[1] not in (1, programs):
        raise UnsupportedError(f"Triton launches kernels by {packed}, where the size of a cluster is not known")
    compiled.packed_metadata = (packed[0], programs, packed[2])
    compiled[grid](*given, *constants.values())
    return compiled
