"""The contract of a captured call (`torchwise.compile.cuda_graphs.CudaGraph`), the class behind a plan's `capture`."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from torchwise.compile.cuda_graphs import CudaGraph
from torchwise.errors import UnsupportedError
from torchwise.testing.models import add_and_scale, change_weights, make_net, make_rows

Capture = Callable[[Callable[..., Any], torch.nn.Module | None], CudaGraph]

CALLS = 6
"""Calls from the same memory, after which a capture may have recorded again to save copies."""


class CudaGraphContract:
    """A captured call answers as the call itself, for as many signatures as come, and without gradients.

    Answers are the caller's: later calls leave them as they are. Inputs that the call writes to are written to, or the
    call is refused with `UnsupportedError`. Weights that are changed in place take effect. The bypass of a signature
    answers as the captured call. `close` frees the memory of all graphs.
    """

    @pytest.fixture
    def capture(self) -> Capture:
        """Override it: return a function from a call, and the module behind it or None, to a captured call."""
        raise NotImplementedError("define a fixture `capture` that returns a function from a call and a module")

    @pytest.fixture
    def device(self) -> str:
        """Return the device of all tensors."""
        return "cuda"

    @pytest.fixture
    def count_held(self) -> Callable[[], int]:
        """Return a function that counts the memory in use, in any unit."""
        return torch.cuda.memory_allocated

    @pytest.fixture(autouse=True)
    def without_gradients(self) -> Iterator[None]:
        """Turn gradients off, which no captured call computes."""
        with torch.no_grad():
            yield

    def test_fresh_inputs_are_answered(self, capture: Capture, device: str) -> None:
        model = make_net(device)
        call = capture(model, model)
        for seed in range(3):
            x = make_rows(4, device, seed)
            torch.testing.assert_close(call(x), model(x))

    def test_inputs_from_the_same_memory_are_answered(self, capture: Capture, device: str) -> None:
        call, x, y = capture(add_and_scale, None), make_rows(4, device), make_rows(4, device, seed=2)
        for _ in range(CALLS):
            x.add_(0.5)
            torch.testing.assert_close(call(x, y, scale=0.5), add_and_scale(x, y, scale=0.5))

    def test_answers_are_kept(self, capture: Capture, device: str) -> None:
        call, x, y = capture(add_and_scale, None), make_rows(4, device), make_rows(4, device, seed=2)
        answers, right = [], []
        for _ in range(CALLS):
            x.add_(0.5)
            answers.append(call(x, y))
            right.append(add_and_scale(x, y))
        torch.testing.assert_close(answers, right)

    def test_inputs_are_written_back(self, capture: Capture, device: str) -> None:
        call, x, before = capture(lambda x: x.add_(1), None), make_rows(4, device), make_rows(4, device)
        for number in range(1, CALLS):
            try:
                call(x)
            except UnsupportedError:
                assert torch.equal(x, before)
                pytest.skip("it refuses calls that write to their inputs, and leaves those as they are")
            torch.testing.assert_close(x, before + number)

    def test_weights_changed_in_place_take_effect(self, capture: Capture, device: str) -> None:
        model, x = make_net(device), make_rows(4, device)
        call = capture(model, model)
        for _ in range(CALLS):
            torch.testing.assert_close(call(x), model(x))
            change_weights(model)

    def test_another_shape_is_answered(self, capture: Capture, device: str) -> None:
        model = make_net(device)
        call = capture(model, model)
        for rows in (4, 6, 1, 4):
            x = make_rows(rows, device)
            torch.testing.assert_close(call(x), model(x))

    def test_a_bypass_answers_alike(self, capture: Capture, device: str) -> None:
        call, x, y = capture(add_and_scale, None), make_rows(4, device), make_rows(4, device, seed=2)
        call(x, y)
        bypass = call.get_bypass((x, y), {})
        for seed in range(3):
            x = make_rows(4, device, seed)
            torch.testing.assert_close(bypass(x, y), add_and_scale(x, y))

    def test_close_frees_the_graphs(self, capture: Capture, device: str, count_held: Callable[[], int]) -> None:
        x = torch.zeros(1 << 20, device=device)
        gc.collect()
        before = count_held()
        call = capture(lambda x: x * 2 + 1, None)
        for _ in range(2):
            call(x)
        assert count_held() > before, "nothing is held, so nothing is shown"
        call.close()
        gc.collect()
        assert count_held() <= before
