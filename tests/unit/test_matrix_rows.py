"""A model multiplies its matrices by one row each, or not."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from torchwise._torch.dispatch import TorchDispatchMode
from torchwise.trial.matrix_rows import MatrixRows


def layers() -> nn.Module:
    return nn.Sequential(nn.Linear(1024, 1024), nn.Tanh(), nn.Linear(1024, 1024))


def image_model() -> nn.Module:
    head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 2100))
    return nn.Sequential(nn.Conv2d(256, 512, 3), head)


@pytest.mark.parametrize(
    ("make", "shape", "is_single"),
    [
        (layers, (1024,), True),
        (layers, (1, 1024), True),
        (layers, (1, 1, 1024), True),
        (layers, (2, 1024), False),
        (layers, (1, 2, 1024), False),
        (layers, (2, 1, 1024), False),
        (layers, (0, 1024), False),
        (lambda: nn.Conv1d(1, 1024, 1100), (1, 1, 1100), False),
        (lambda: nn.Linear(64, 64), (1, 64), False),  # too small to matter
        (image_model, (1, 256, 4, 4), False),  # the kernel has more elements than the head
        (lambda: nn.Bilinear(1024, 1024, 4), None, False),
    ],
)
def test_most_elements_of_matrices_decide(make: Any, shape: tuple[int, ...] | None, is_single: bool) -> None:
    rows, model = MatrixRows(), make()
    inputs = (torch.randn(shape),) if shape else (torch.randn(2, 1024), torch.randn(2, 1024))

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            rows.count(func, args)
            return func(*args, **(kwargs or {}))

    with torch.no_grad(), Watch():
        model(*inputs)
    assert rows.are_single is is_single


def test_a_batch_of_matrices_meets_a_row_each() -> None:
    rows = MatrixRows()
    rows.count(torch.ops.aten.bmm.default, (torch.empty(8, 1, 512), torch.empty(8, 512, 512)))
    assert rows.are_single
    rows.count(torch.ops.aten.bmm.default, (torch.empty(8, 4, 512), torch.empty(8, 512, 1024)))
    assert not rows.are_single
