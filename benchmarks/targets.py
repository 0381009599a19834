"""Targets of benchmarks that are no size of the zoo: torchwise bench benchmarks/targets.py:field_million"""

from __future__ import annotations

import torch

from torchwise.workload import Workload
from torchwise.zoo.draws import Request
from torchwise.zoo.ivhl import build_field_superposition


def field_million() -> Workload:
    """Build the field of 100 sources at 1 048 576 points, float32: 1 GB of intermediate values in eager."""
    request = Request("ivhl.field_superposition@1048576x100", "cpu", torch.float32, 0)
    return build_field_superposition(request, grid=1_048_576, sources=100)
