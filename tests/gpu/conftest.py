"""Tests that need a GPU say so where there is none. With `-m gpu` they run all the same, and fail there."""

from __future__ import annotations

import pytest
import torch


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if torch.cuda.is_available() or config.option.markexpr == "gpu":
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="NOT TESTED: needs a CUDA device"))
