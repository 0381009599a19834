"""The suite of captured calls sees one that breaks the contract. tests/gpu and test_capture_logic.py run it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from broken import run_suite

from torchwise.testing.cuda_graph import CudaGraphContract
from torchwise.workload import pytree


class StaleGraph:
    """Records the first call, gives its memory away, and answers everything with that."""

    def __init__(self, call: Callable[..., Any], _module: torch.nn.Module | None) -> None:
        self._call, self._outputs, self._calls = call, None, 0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._outputs is None:
            self._outputs = self._call(*pytree.map_tensors(torch.Tensor.clone, args), **kwargs)
        return self._outputs

    def get_bypass(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Callable[..., Any]:
        return self

    def close(self) -> None: ...


@torch.no_grad()
def test_a_capture_that_breaks_the_contract_is_seen() -> None:
    held: list[int] = []

    def count_held() -> int:
        held.append(len(held))
        return len(held)

    suite = CudaGraphContract()
    assert not any(run_suite(suite, capture=StaleGraph, device="cpu", count_held=count_held).values())
