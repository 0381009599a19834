"""How Inductor is called for graphs without complex numbers: its decompositions, and its limits for fusion."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import torch

from torchwise._torch import aot_autograd, dynamo, inductor
from torchwise._torch.dispatch import NO_AUTOCAST, NO_FAKES
from torchwise._torch.guards import TRACING_CONTEXT

FEATURE = "complex_to_real"
NAMES = (
    inductor.COMPILE_FX,
    inductor.COMPILE_FX_INNER,
    inductor.PROPAGATE_FAKES,
    inductor.DECOMPOSITIONS,
    inductor.CONFIG,
    aot_autograd.CONFIG,
    NO_AUTOCAST,
    NO_FAKES,
    TRACING_CONTEXT,
)
"""The private names that every compilation uses."""
AOT_NAMES = (*NAMES, inductor.OUTPUT_CODE, dynamo.SERIALIZABLE_CALLABLE, inductor.FX_GRAPH_CACHE)
"""The private names that code for another process uses."""
PATIENT_LIMITS = {"realize_acc_reads_threshold": 4 * 8, "realize_opcount_threshold": 4 * 30}
"""Four times Inductor's limits for real numbers, on a GPU."""


def decompositions() -> dict[Any, Any]:
    """Return Inductor's decompositions, but not the one that turns complex sums into views of doubled length."""
    table = inductor.DECOMPOSITIONS.get(FEATURE)()
    return {op: rule for op, rule in table.items() if getattr(op, "overloadpacket", op) is not torch.ops.aten.add}


def patient_fusion(*, vectors: bool = False) -> AbstractContextManager[None]:
    """Return a context in which Inductor fuses four times as much before it writes a value that is used once to memory.

    Inductor's limits count reads and operations. A complex product has four and six of them, and a real one has one
    each. `repeated_work` bounds the work that the limits do not count.

    Args:
        vectors: whether code for a CPU computes on whole vectors, however much it reads here and there.
    """
    config = inductor.CONFIG.get(FEATURE)
    known = vectors and hasattr(config.cpp, "enable_tiling_heuristics")  # a version may do without
    return inductor.patch_config({**PATIENT_LIMITS, **({"cpp.enable_tiling_heuristics": False} if known else {})})
