"""Cells of recurrent nets in row programs: PyTorch's own operators for them on a GPU are plain operators there."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

from torchwise.compile import compile_plan
from torchwise.compile.recurrent_cells import decompose_gru_cell, decompose_lstm_cell
from torchwise.plan import Plan
from torchwise.workload import Example

BATCH, INPUTS, HIDDEN = 5, 7, 6


@pytest.fixture(autouse=True)
def no_grad() -> Iterator[None]:
    torch.manual_seed(0)
    with torch.no_grad():
        yield


def draw(*sizes: int) -> Tensor:
    return torch.randn(*sizes)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_a_gru_cell_is_the_same(dtype: torch.dtype, bias: bool) -> None:
    cell, x, h = nn.GRUCell(INPUTS, HIDDEN, bias=bias).to(dtype), draw(BATCH, INPUTS).to(dtype), draw(BATCH, HIDDEN)
    h = h.to(dtype)
    biases = (cell.bias_ih, cell.bias_hh) if bias else (None, None)
    found, kept = decompose_gru_cell(x @ cell.weight_ih.t(), h @ cell.weight_hh.t(), h, *biases)
    assert (found.dtype, kept.dtype, kept.shape) == (dtype, dtype, (BATCH, 5 * HIDDEN))
    torch.testing.assert_close(found, cell(x, h), **({"rtol": 2e-2, "atol": 2e-2} if dtype is torch.bfloat16 else {}))


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_an_lstm_cell_is_the_same(dtype: torch.dtype, bias: bool) -> None:
    cell = nn.LSTMCell(INPUTS, HIDDEN, bias=bias).to(dtype)
    x, h, c = (draw(BATCH, size).to(dtype) for size in (INPUTS, HIDDEN, HIDDEN))
    biases = (cell.bias_ih, cell.bias_hh) if bias else (None, None)
    output, memory, gates = decompose_lstm_cell(x @ cell.weight_ih.t(), h @ cell.weight_hh.t(), c, *biases)
    assert (output.dtype, memory.dtype, gates.shape) == (dtype, dtype, (BATCH, 4 * HIDDEN))
    tolerance = {"rtol": 2e-2, "atol": 2e-2} if dtype is torch.bfloat16 else {}
    torch.testing.assert_close((output, memory), cell(x, (h, c)), **tolerance)


def test_a_region_has_the_operators_that_a_gpu_has() -> None:
    """A CPU has no such operators, so this test lends it some."""
    gru, lstm = nn.GRUCell(INPUTS, HIDDEN), nn.LSTMCell(INPUTS, HIDDEN)

    def call(x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        gates = x @ gru.weight_ih.t(), h @ gru.weight_hh.t()
        first = torch.ops.aten._thnn_fused_gru_cell(*gates, h, gru.bias_ih, gru.bias_hh)[0]
        gates = x @ lstm.weight_ih.t(), first @ lstm.weight_hh.t()
        return (first, *torch.ops.aten._thnn_fused_lstm_cell(*gates, c, lstm.bias_ih, lstm.bias_hh)[:2])

    given = draw(BATCH, INPUTS), draw(BATCH, HIDDEN), draw(BATCH, HIDDEN)
    first = gru(*given[:2])
    expected = (first, *lstm(given[0], (first, given[2])))
    with torch.library._scoped_library("aten", "IMPL") as lent:
        lent.impl("_thnn_fused_gru_cell", lambda *given: decompose_gru_cell(*given), "CPU")
        lent.impl("_thnn_fused_lstm_cell", lambda *given: decompose_lstm_cell(*given), "CPU")
        plan = Plan(backend="row_programs")
        compiled = compile_plan(call, plan, Example(given), device="cpu", mode="inference")
        torch.testing.assert_close(compiled.call(*given), expected)
    # Nothing of the operators is left that the region would call.
    torch.testing.assert_close(compiled.call(*given), expected)
    compiled.close()
