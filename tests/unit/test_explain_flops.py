"""FLOPs of operators, fused and composite ones included, and none if they are unknown."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode, flop_registry

from torchwise.diagnose.op_trace import _register, observe
from torchwise.diagnose.work import KnownWork, is_operator

B, L, E, H = 2, 8, 16, 32


def lstm(layer: type[nn.Module], **options: Any) -> Callable[[], Any]:
    model = layer(E, H, batch_first=True, **options).eval()
    x = torch.randn(B, L, E)
    return lambda: model(x)


def encoder() -> Callable[[], Any]:
    model, x = nn.TransformerEncoderLayer(E, 2, H, batch_first=True).eval(), torch.randn(B, L, E)
    return lambda: model(x)


def attention() -> Callable[[], Any]:
    q = torch.randn(B, 2, L, E)
    return lambda: F.scaled_dot_product_attention(q, q, q)


def bind_inputs(
    call: Callable[..., Any], *shapes: tuple[int, ...], dtype: torch.dtype = torch.float32
) -> Callable[[], Any]:
    given = [torch.randn(shape, dtype=dtype) for shape in shapes]
    return lambda: call(*given)


PRODUCT = 2 * L * E * H
CASES: dict[str, tuple[Callable[[], Any], int]] = {
    "linear": (bind_inputs(F.linear, (L, E), (H, E), (H,)), PRODUCT),
    "linear of 3 dimensions": (bind_inputs(F.linear, (B, L, E), (H, E), (H,)), B * PRODUCT),
    "addmm": (bind_inputs(torch.addmm, (H,), (L, E), (E, H)), PRODUCT),
    "baddbmm": (bind_inputs(torch.baddbmm, (B, L, H), (B, L, E), (B, E, H)), B * PRODUCT),
    "addbmm": (bind_inputs(torch.addbmm, (L, H), (B, L, E), (B, E, H)), B * PRODUCT),
    "einsum": (bind_inputs(lambda x, y: torch.einsum("bij,bjk->bik", x, y), (B, L, E), (B, E, H)), B * PRODUCT),
    "matrix and vector": (bind_inputs(torch.mv, (L, E), (E,)), 2 * L * E),
    "dot": (bind_inputs(torch.dot, (E,), (E,)), 2 * E),
    "outer and sum": (bind_inputs(torch.addr, (L, E), (L,), (E,)), 2 * L * E),
    "complex product": (bind_inputs(torch.mm, (L, E), (E, H), dtype=torch.complex64), 4 * PRODUCT),
    "conv": (bind_inputs(F.conv1d, (B, E, L), (H, E, 3)), B * 2 * (L - 2) * E * H * 3),
    "attention": (attention(), 4 * B * 2 * L * L * E),
    "LSTM": (lstm(nn.LSTM), 2 * B * L * 4 * H * (E + H)),
    "LSTM of two layers, both ways": (
        lstm(nn.LSTM, num_layers=2, bidirectional=True),
        2 * B * L * 2 * 4 * H * ((E + H) + (2 * H + H)),
    ),
    "GRU": (lstm(nn.GRU), 2 * B * L * 3 * H * (E + H)),
    "encoder layer": (encoder(), B * (2 * L * (4 * E * E + 2 * E * H) + 4 * L * L * E)),
}

RECURRENT = [call for name, (call, _) in CASES.items() if "LSTM" in name or "GRU" in name]


@pytest.mark.parametrize(("call", "flops"), CASES.values(), ids=CASES)
def test_flops_are_counted_in_the_plain_model_and_in_its_profile(call: Callable[[], Any], flops: int) -> None:
    with torch.no_grad():
        seen = observe(call, "cpu")
        with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiled:
            call()
    known = KnownWork({}, seen.work)
    outermost = [one for one in profiled.events() or () if one.cpu_parent is None and is_operator(one.name)]
    works = [known.work_of(event) for event in outermost]
    assert sum(work.flops or 0 for work in works) == flops
    (main,) = [work for work in works if work.flops]
    is_told = hasattr(outermost[0], "structured_input_shapes")  # torch 2.11 reports neither shapes in lists nor dtypes
    assert main.nbytes or (call in RECURRENT and not is_told), "and so are its bytes"


def test_inference_mode_hides_no_product() -> None:
    call = CASES["linear"][0]
    with torch.inference_mode():
        seen = observe(call, "cpu")
    assert sum(work.flops or 0 for work in seen.work.values()) == PRODUCT


def test_an_operator_of_which_nobody_knows_has_no_flops_and_one_that_moves_data_has_none_to_make() -> None:
    x = torch.randn(64)
    with torch.no_grad():
        seen = observe(lambda: (x.sin(), x.clone()), "cpu")
    assert seen.work["aten::sin", ((64,),)].flops is None
    assert seen.work["aten::clone", ((64,),)].flops == 0.0


def test_a_compiled_convolution_without_its_bias_is_the_same_work() -> None:
    call = bind_inputs(F.conv1d, (B, E, L), (H, E, 3), (H,))
    with torch.no_grad():
        known = KnownWork({}, observe(call, "cpu").work)
        with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiled:
            bind_inputs(F.conv1d, (B, E, L), (H, E, 3))()
    (event,) = [one for one in profiled.events() or () if one.name == "aten::convolution"]
    assert known.work_of(event).flops == B * 2 * (L - 2) * E * H * 3


def test_a_formula_that_pytorch_has_is_left_as_it_is() -> None:
    before = dict(flop_registry)
    _register("mm", "mv")(lambda *_shapes: 1)
    assert dict(flop_registry) == before
    with FlopCounterMode(display=False) as counter:
        torch.mv(torch.ones(L, E), torch.ones(E))
    assert counter.get_total_flops() == 2 * L * E, "what was added is PyTorch's own to count"
