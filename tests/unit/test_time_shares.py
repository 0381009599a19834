"""The share of each kind of operator in a call's time, as PyTorch's profiler sees it."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from sketches import an_inspection

from torchwise.measure.profile import profile_of


def test_fused_attention_is_a_share_of_its_own_and_one_of_matrix_products() -> None:
    query, weights = torch.randn(4, 8, 256, 32), torch.randn(16, 16)

    def call() -> torch.Tensor:
        return torch.nn.functional.scaled_dot_product_attention(query, query, query).sum() + (weights @ weights).sum()

    # A thread that loses its core in the middle of the short product makes that look long. It does so in one of many.
    shares = max((profile_of(call, "cpu").shares for _ in range(5)), key=lambda one: one["attention"])
    assert 0.5 < shares["attention"] < 1
    assert shares["attention"] < shares["gemm"] <= 1
    assert shares["conv"] == 0
    parts = replace(an_inspection(1.0), shares=shares).time_by_kind
    assert parts["gemm"] + parts["attention"] == pytest.approx(shares["gemm"])
