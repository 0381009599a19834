"""Weights of fewer bits in the layers of GPT-2, whose weights are transposed, and in those of attention."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from torchwise.compile import compile_plan
from torchwise.compile.aot import Loader, Maker
from torchwise.compile.transforms import quantization
from torchwise.compile.transforms.quantization import formats, layers
from torchwise.errors import StalePlanError, UnsupportedError
from torchwise.plan import Plan
from torchwise.workload import Example

transformers = pytest.importorskip("transformers")
from transformers.pytorch_utils import Conv1D  # noqa: E402

FORMATS = {
    "int8_dynamic": 0.02,
    "int8_weights": 0.02,
    "int4_weights": 0.15,
    "fp8_weights": 0.05,
    "fp8_dynamic": 0.07,
    "fp8_per_tensor": 0.07,
}
"""Each format, and an error that layers and models stay below."""
OF_BLOCK = ("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj")
LAYERS = [*(f"transformer.h.{block}.{name}" for block in range(2) for name in OF_BLOCK), "lm_head"]


@pytest.fixture(autouse=True)
def _on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let formats for GPUs compute their reference on the CPU."""
    for kind in (formats.Float8Weights, formats.Float8Dynamic):
        monkeypatch.setattr(kind, "MULTIPLES", {"cpu": (16, 16)})


def make_gpt2() -> Any:
    torch.manual_seed(0)
    sizes = {"n_embd": 64, "n_layer": 2, "n_head": 2, "n_positions": 32, "vocab_size": 64}
    config = transformers.GPT2Config(bos_token_id=1, eos_token_id=2, use_cache=False, **sizes)
    return transformers.GPT2LMHeadModel(config).eval()


IDS = torch.arange(12).reshape(2, 6)


def list_layers(model: nn.Module, name: str) -> list[str]:
    return [*getattr(quantization, f"list_{name}_layers")(model)]


def rewrite(model: nn.Module, name: str) -> Any:
    return getattr(quantization, f"use_{name}")(model)[0]


def make_pair(dtype: torch.dtype = torch.float32) -> tuple[nn.Sequential, nn.Sequential]:
    """Return a layer of GPT-2's, and a linear one that computes the same function."""
    torch.manual_seed(0)
    ours, theirs = Conv1D(96, 64).to(dtype), nn.Linear(64, 96).to(dtype)
    nn.init.normal_(ours.weight)
    nn.init.normal_(ours.bias)
    theirs.weight, theirs.bias = nn.Parameter(ours.weight.detach().t().contiguous()), ours.bias
    return nn.Sequential(ours).eval(), nn.Sequential(theirs).eval()


def error_of(found: torch.Tensor, expected: torch.Tensor) -> float:
    exact = expected.detach().double()
    return float((found.detach().double() - exact).square().mean().sqrt() / exact.square().mean().sqrt())


def compiled(model: nn.Module, plan: Plan) -> Callable[..., Any]:
    return compile_plan(model, plan, Example((IDS,)), device="cpu", mode="inference").call


@pytest.mark.parametrize("name", [*FORMATS])
def test_all_layers_of_gpt2_are_rounded(name: str) -> None:
    model = make_gpt2()
    assert list_layers(model, name) == LAYERS
    copy = rewrite(model, name)
    with torch.no_grad():
        assert 1e-4 < error_of(copy(IDS).logits, model(IDS).logits) < FORMATS[name]
    for layer in LAYERS:
        part, own = copy.get_submodule(layer), model.get_submodule(layer)
        assert isinstance(part, type(own))
        assert type(own) in (Conv1D, nn.Linear), "the model keeps its own layers"
        assert part.weight is own.weight
        assert isinstance(part, formats.QuantizedLinear)
    assert list(copy.state_dict()) == list(model.state_dict())


@pytest.mark.parametrize("name", [*FORMATS])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [(64,), (1, 64), (3, 5, 64), (0, 64)])
def test_a_layer_is_rounded_as_a_linear_one_with_the_same_weights(
    name: str, dtype: torch.dtype, shape: tuple[int, ...]
) -> None:
    pair, x = make_pair(dtype), torch.randn(shape).to(dtype)
    ours, theirs = (rewrite(model, name) for model in pair)
    with torch.no_grad():
        for one, other in zip(ours.buffers(), theirs.buffers(), strict=True):
            assert torch.equal(one, other)
            assert one.is_contiguous()
        found = ours(x)
        assert torch.equal(found, theirs(x))
        assert (found.dtype, found.shape, found.stride()) == (dtype, pair[0](x).shape, pair[0](x).stride())
        assert not found.numel() or 1e-4 < error_of(found, pair[0](x)) < FORMATS[name]
        wide = ours.double()(x.double())
        assert wide.dtype is torch.float64
        assert torch.equal(wide, theirs.double()(x.double())), "the reference is the same function"


def test_weights_are_packed_from_rows_of_inputs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU packs no others."""
    pack, given = formats._pack_int4, list[torch.Tensor]()
    monkeypatch.setattr(formats, "_pack_int4", lambda whole: (given.append(whole), pack(whole))[1])
    rewrite(make_pair()[0], "int4_weights")
    assert [(one.shape, one.is_contiguous()) for one in given] == [((96, 64), True)]


@pytest.mark.parametrize("name", [*FORMATS])
def test_inputs_that_a_layer_refuses_are_refused_alike(name: str) -> None:
    model, _ = make_pair()
    for bad in (torch.ones(2, 96), torch.ones(2, 64, dtype=torch.float64), torch.ones(2, 64, dtype=torch.int64)):
        errors = []
        for call in (model, rewrite(model, name)):
            with pytest.raises(RuntimeError) as raised:
                call(bad)
            errors.append(str(raised.value))
        assert errors[0] == errors[1]


def test_under_autocast_the_output_has_its_dtype() -> None:
    model, _ = make_pair()
    x = torch.randn(4, 64)
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        found, expected = rewrite(model, "int8_dynamic")(x), model(x)
    assert found.dtype is expected.dtype is torch.bfloat16
    assert error_of(found, expected) < 0.03


@pytest.mark.parametrize("name", [*FORMATS])
def test_a_plan_is_stale_when_the_weights_change(name: str) -> None:
    model = make_gpt2()
    with torch.no_grad():
        call = compiled(model, Plan(transforms=(name,)))
        assert 1e-4 < error_of(call(IDS).logits, model(IDS).logits) < FORMATS[name]
        model.transformer.h[1].mlp.c_fc.weight.mul_(2.0)
        with pytest.raises(StalePlanError, match="the weights changed"):
            call(IDS)


def test_layers_are_left_out_by_their_names() -> None:
    model, skipped = make_gpt2(), ("transformer.h.0.attn.c_attn", "lm_head")
    copy = quantization.use_int8_dynamic(model, skipped)[0]
    rounded = [name for name, part in copy.named_modules() if isinstance(part, formats.QuantizedLinear)]
    assert rounded == [name for name in LAYERS if name not in skipped]
    assert all(type(copy.get_submodule(name)) is type(model.get_submodule(name)) for name in skipped)
    with torch.no_grad():
        call = compiled(model, Plan(transforms=(f"int8_dynamic@skip={','.join(skipped)}",)))
        assert torch.equal(call(IDS).logits, copy(IDS).logits)
    with pytest.raises(UnsupportedError, match=r"without 'h.0', but its layers are: transformer\.h\.0\.attn\.c_attn, "):
        compiled(model, Plan(transforms=("int8_dynamic@skip=h.0",)))


class Own(Conv1D):  # type: ignore[misc]
    pass


def test_layers_that_code_may_watch_or_change_are_left_alone() -> None:
    hooked, own_forward = Conv1D(64, 64), Conv1D(64, 64)
    hooked.register_forward_hook(lambda *_: None)
    own_forward.forward = lambda x: x
    parametrized = nn.utils.parametrizations.weight_norm(Conv1D(64, 64))
    others = [Own(64, 64), hooked, own_forward, parametrized, Conv1D(64, 64).double()]
    assert list_layers(nn.ModuleList([*others, Conv1D(64, 64)]), "int8_dynamic") == ["5"]


@pytest.mark.parametrize(("outputs", "inputs", "fits"), [(16, 64, True), (64, 16, False), (64, 48, False)])
def test_a_format_fits_some_sizes(outputs: int, inputs: int, fits: bool) -> None:
    assert list_layers(nn.Sequential(Conv1D(outputs, inputs)), "int4_weights") == ["0"] * fits


def test_transformers_is_never_imported_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Sequential(Conv1D(64, 64), nn.Linear(64, 64))
    monkeypatch.delitem(sys.modules, "transformers.pytorch_utils")
    assert list_layers(model, "int8_dynamic") == ["1"]
    assert "transformers.pytorch_utils" not in sys.modules


@pytest.mark.parametrize("kind", formats.FORMATS)
@pytest.mark.parametrize("layer", [Conv1D, nn.Linear])
def test_a_class_is_found_by_its_name_before_any_layer_has_it(kind: Any, layer: Any) -> None:
    """Code that was compiled ahead has the name, and is loaded before the model is rewritten."""
    layers.derive_class.cache_clear()
    made = getattr(layers, f"{kind.__name__}{layer.__name__}")
    assert pickle.loads(pickle.dumps(made)) is made is layers.derive_class(kind, layer)
    assert issubclass(made, kind)
    assert issubclass(made, layer)
    with pytest.raises(AttributeError, match="has no attribute 'Int8DynamicConv9D'"):
        _ = layers.Int8DynamicConv9D


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["fp8_weights", *(pytest.param(n, marks=pytest.mark.nightly) for n in ("int8_dynamic", "fp8_per_tensor"))]
)
def test_code_that_was_compiled_ahead_notices_other_weights(name: str) -> None:
    model, x = make_pair()[0], torch.randn(4, 64)
    plan = Plan(transforms=(name,), backend="inductor")
    with torch.no_grad():
        maker = Maker()
        compile_plan(model, plan, Example((x,)), device="cpu", mode="inference", backend=maker).call(x)
        loaded = compile_plan(model, plan, Example((x,)), device="cpu", mode="inference", backend=Loader(maker.made))
        assert 0 < error_of(loaded.call(x), model(x)) < FORMATS[name]
        model[0].weight.mul_(2.0)
        with pytest.raises(StalePlanError, match="the weights changed"):
            loaded.call(x)


@pytest.mark.parametrize("is_training", [False, True])
def test_attention_never_calls_its_last_layer(is_training: bool) -> None:
    """Another class of it would change nothing, so it is left alone."""
    block = nn.TransformerEncoderLayer(64, 4, batch_first=True).train(is_training)
    called: list[Any] = []
    block.self_attn.out_proj.register_forward_hook(lambda *_: called.append(1))
    block(torch.randn(2, 3, 64))
    block.self_attn(*[torch.randn(2, 3, 64)] * 3)
    assert called == []
    assert list_layers(block, "int8_dynamic") == ["linear1", "linear2"]
