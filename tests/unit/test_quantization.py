"""Linear layers with weights of fewer bits: the layers, the plans, the choice of layers, and the search."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils import parametrizations

from builders import a_trial
from live_decisions import make_decision
from torchwise import apply
from torchwise._torch.private_name import PrivateName
from torchwise.compile import compile_plan
from torchwise.compile.aot import Loader, Maker
from torchwise.compile.transforms import quantization
from torchwise.compile.transforms.quantization import formats
from torchwise.errors import InputError, PlanError, StalePlanError, UnsupportedError
from torchwise.plan import Numerics, Plan, PlanSpace, Trait
from torchwise.plan.choice import find_choice, load_choices, skip_parts
from torchwise.plan.effort import EFFORTS
from torchwise.plan.rules import freezes_weights, has_fixed_weights
from torchwise.plan.workload_spec import DEFAULT_TOLERANCE, TuneOptions, WorkloadSpec
from torchwise.records import CheckName, Outcome
from torchwise.runtime.fallback_reason import FallbackReason as Fallback
from torchwise.study.history import History
from torchwise.study.request import Request
from torchwise.testing.records import make_study
from torchwise.trial import Job
from torchwise.trial.experiment import PlanCandidate, PlanExperiment
from torchwise.trial.smaller_rewrites import find_smaller_rewrite
from torchwise.verify import sensitivity
from torchwise.verify.sensitivity import choose_skipped
from torchwise.workload import Example

FORMATS = ("int8_dynamic", "int8_weights", "int4_weights")
FLOAT8 = ("fp8_weights", "fp8_dynamic", "fp8_per_tensor")
"""Formats for GPUs, whose reference a CPU computes with the fixture `float8_on_cpu`."""
ERRORS = {"int8_dynamic": 0.02, "int8_weights": 0.01, "int4_weights": 0.15, **dict.fromkeys(FLOAT8, 0.06)}
Rewrite = Callable[..., tuple[nn.Module, Any]]


def rewrite_of(name: str) -> Rewrite:
    found: Rewrite = getattr(quantization, f"use_{name}")
    return found


@pytest.fixture
def float8_on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in (formats.Float8Weights, formats.Float8Dynamic):
        monkeypatch.setattr(kind, "MULTIPLES", {"cpu": (16, 16)})


def make_model(dtype: torch.dtype = torch.float32) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 32, bias=False)).eval().to(dtype)


def error_of(found: torch.Tensor, expected: torch.Tensor) -> float:
    exact = expected.detach().double()
    return float((found.detach().double() - exact).square().mean().sqrt() / exact.square().mean().sqrt())


class OnGpu(torch.Tensor):
    """Says that it is on a GPU."""

    @property
    def is_cuda(self) -> bool:
        return True


# ---- the layers


@pytest.mark.usefixtures("float8_on_cpu")
@pytest.mark.parametrize("name", [*FORMATS, *FLOAT8])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [(64,), (1, 64), (3, 5, 64)])
def test_a_layer_answers_nearly_as_the_original(name: str, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    model, x = make_model(dtype), torch.randn(shape).to(dtype)
    copy, layer = rewrite_of(name)(model)
    with torch.no_grad():
        found, expected = copy(x), model(x)
        assert (found.dtype, found.shape, found.stride()) == (dtype, expected.shape, expected.stride())
        assert 1e-4 < error_of(found, expected) < ERRORS[name]
    assert layer(copy) is copy
    assert type(model[0]) is nn.Linear, "the model keeps its own layers"
    assert all(ours is theirs for ours, theirs in zip(copy.parameters(), model.parameters(), strict=True))
    assert list(copy.state_dict()) == list(model.state_dict())


@pytest.mark.usefixtures("float8_on_cpu")
@pytest.mark.parametrize("name", [*FORMATS, *FLOAT8])
def test_in_float64_it_is_the_same_function(name: str) -> None:
    """The reference of a plan is its rewritten model in float64. It must not be the original."""
    model, x = make_model(), torch.randn(40, 64)
    copy, _ = rewrite_of(name)(model)
    with torch.no_grad():
        narrow = copy(x)
        wide = copy.double()(x.double())
        assert wide.dtype is torch.float64
        assert error_of(narrow, wide) < 0.006
        assert error_of(wide, model.double()(x.double())) > 2 * error_of(narrow, wide) or name == "int8_weights"


@pytest.mark.usefixtures("float8_on_cpu")
def test_float8_has_a_scale_for_each_row_or_one_for_the_tensor() -> None:
    model, x = make_model()[:1], torch.randn(4, 64)
    larger = torch.cat([x[:1] * 1e6, x[1:]])
    found = {name: rewrite_of(name)(model)[0][0] for name in FLOAT8}
    assert [layer.weight_scale.numel() for layer in found.values()] == [96, 96, 1]
    with torch.no_grad():
        for name in ("fp8_weights", "fp8_dynamic"):
            torch.testing.assert_close(found[name](larger)[1:], found[name](x)[1:])
        layer = found["fp8_per_tensor"]
        bias = layer.bias.expand(3, -1)
        torch.testing.assert_close(layer(larger)[1:], bias, msg="beside 1e6, the other rows are rounded to zero")
        assert float((layer(x)[1:] - bias).abs().max()) > 0.1


@pytest.mark.parametrize("kind", [formats.Float8Dynamic, formats.Float8PerTensor])
def test_the_product_of_float8_takes_the_scales_as_they_are(
    kind: type[formats.Float8Dynamic], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A GPU calls this product. The CPU has it, too, and a tensor without memory gets a GPU's checks of its sizes."""
    monkeypatch.setattr(kind, "MULTIPLES", {"cpu": (16, 16)})
    name = "fp8_per_tensor" if kind is formats.Float8PerTensor else "fp8_dynamic"
    layer, x = rewrite_of(name)(make_model()[:1])[0][0], torch.randn(4, 64)
    given: list[tuple[Any, ...]] = []
    monkeypatch.setattr(formats, "_multiply_float8", lambda *args, **_: given.append(args))
    layer.multiply(OnGpu(x))
    args = [one.as_subclass(torch.Tensor) for one in given[0]]
    assert torch._scaled_mm(*(one.to("meta") for one in args), out_dtype=torch.bfloat16).shape == (4, 96)
    with torch.no_grad():
        assert error_of(torch._scaled_mm(*args, out_dtype=torch.bfloat16), layer.multiply(x)) < 0.004
    layer.multiply(OnGpu(x.t().contiguous().t()))
    assert given[1][0].as_subclass(torch.Tensor).is_contiguous(), (
        "as the product wants rows, also of a transposed input"
    )


def test_float8_weights_leave_inputs_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(formats.Float8Weights, "MULTIPLES", {"cpu": (1, 1)})
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(7, 5)).eval(), torch.randn(3, 7)
    layer = rewrite_of("fp8_weights")(model)[0][0]
    with torch.no_grad():
        rounded = layer.dequantize(torch.float32)
        assert torch.equal(layer(x), functional.linear(x, rounded) + layer.bias)
        assert 0.01 < error_of(rounded, model[0].weight) < 0.04


def test_float16_holds_float8_weights_whose_scale_it_does_not_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(formats.Float8Weights, "MULTIPLES", {"cpu": (1, 1)})
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64, bias=False)).half()
    with torch.no_grad():
        model[0].weight.mul_(0.01)
        layer = rewrite_of("fp8_weights")(model)[0][0]
        assert float(layer.weight_scale.max()) < torch.finfo(torch.float16).tiny
        assert error_of(layer.dequantize(torch.float16), layer.dequantize(torch.float32)) < 1e-3


def test_rows_of_zeros_and_rows_that_are_not_finite_stay_apart() -> None:
    copy, _ = quantization.use_int8_dynamic(make_model()[:1])
    x = torch.randn(3, 64)
    x[0], x[2, 5] = 0.0, float("nan")
    found = copy(x)
    torch.testing.assert_close(found[0], copy[0].bias)
    assert bool(found[1].isfinite().all())
    assert bool(found[2].isnan().all())


@pytest.mark.parametrize("name", FORMATS)
def test_inputs_that_a_layer_refuses_or_that_are_empty_are_answered_alike(name: str) -> None:
    model = make_model()
    copy, _ = rewrite_of(name)(model)
    for bad in (torch.ones(2, 96), torch.ones(2, 64, dtype=torch.float64), torch.ones(2, 64, dtype=torch.int64)):
        errors = []
        for call in (model, copy):
            with pytest.raises(RuntimeError) as raised:
                call(bad)
            errors.append(str(raised.value))
        assert errors[0] == errors[1]
    assert copy(torch.ones(0, 64)).shape == (0, 32)
    across = torch.randn(64, 7).t()
    torch.testing.assert_close(copy(across), copy(across.contiguous()))


def test_under_autocast_the_output_has_its_dtype() -> None:
    model, x = make_model(), torch.randn(4, 64)
    copy, _ = quantization.use_int8_dynamic(model)
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        found, expected = copy(x), model(x)
    assert found.dtype is expected.dtype is torch.bfloat16
    assert error_of(found, expected) < 0.03


# ---- the layers that stay as they are


class Own(nn.Linear):
    pass


class Tied(nn.Module):
    """Its last layer has the weights of its embedding, and it reads a layer's weight itself."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head, self.one = nn.Embedding(48, 64), nn.Linear(64, 48, bias=False), nn.Linear(64, 64)
        self.head.weight = self.embed.weight
        self.two = nn.Linear(64, 64)
        self.two.weight = self.one.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        hidden = self.two(self.one(self.embed(ids)))
        return self.head(hidden) + self.one.weight.sum()


def list_layers(model: nn.Module, name: str = "int8_dynamic") -> list[str]:
    return [*getattr(quantization, f"list_{name}_layers")(model)]


def test_layers_that_code_may_watch_or_change_are_left_alone() -> None:
    hooked, own_forward = nn.Linear(64, 64), nn.Linear(64, 64)
    hooked.register_forward_hook(lambda *_: None)
    own_forward.forward = lambda x: x  # type: ignore[method-assign,assignment]
    parametrized = parametrizations.weight_norm(nn.Linear(64, 64))
    flat = nn.Linear(64, 1, bias=False)
    flat.weight = nn.Parameter(torch.ones(64))
    others = [Own(64, 64), hooked, own_forward, parametrized, nn.Linear(0, 4), nn.Linear(64, 64, device="meta"), flat]
    attention = nn.MultiheadAttention(64, 4)
    assert list_layers(nn.ModuleList([*others, attention, nn.Linear(64, 64).double()])) == []
    assert list_layers(nn.ModuleList([*others, nn.Linear(64, 64)])) == ["7"]
    assert list_layers(nn.ModuleDict({"a,b": nn.Linear(64, 64)})) == [], "a comma separates names in plans"


def test_layers_far_smaller_than_the_largest_are_left_alone() -> None:
    assert list_layers(nn.Sequential(nn.Linear(8, 8), nn.Linear(256, 256), nn.Linear(256, 10))) == ["1", "2"]


def test_many_layers_far_smaller_than_the_largest_have_fewer_bits_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside a last layer of many words, keys and values of a Llama are small. But there are as many as layers."""
    monkeypatch.setattr(quantization, "LARGE", 64 * 16)
    few, tiny = [nn.Linear(64, 16) for _ in range(2)], [nn.Linear(32, 16) for _ in range(40)]
    head = nn.Linear(64, 4096)
    assert list_layers(nn.Sequential(head, few[0], nn.Linear(64, 48))) == ["0", "2"]
    assert list_layers(nn.Sequential(head, *few, few[0], nn.Linear(64, 16))) == ["0", "1", "2", "4"]
    assert list_layers(nn.Sequential(head, *tiny)) == ["0"], "a kernel takes as long without reading them"


@pytest.mark.parametrize(
    ("name", "inputs", "outputs", "fits"),
    [
        ("int8_dynamic", 7, 5, True),
        ("int8_weights", 20, 5, False),  # a CPU's kernel reads beyond the end of such rows
        ("int8_weights", 48, 5, True),
        ("int4_weights", 48, 16, False),
        ("int4_weights", 64, 17, False),
        ("int4_weights", 64, 48, True),
        ("fp8_weights", 64, 64, False),  # on a CPU
        ("fp8_dynamic", 64, 64, False),
        ("fp8_per_tensor", 64, 64, False),
    ],
)
def test_a_format_fits_some_sizes(name: str, inputs: int, outputs: int, fits: bool) -> None:
    model = nn.Sequential(nn.Linear(inputs, outputs)).eval()
    assert list_layers(model, name) == ["0"] * fits
    if not fits:
        with pytest.raises(UnsupportedError, match=f"has '{name}', but Sequential has no linear layer for it"):
            rewrite_of(name)(model)
    elif name != "int4_weights":
        x = torch.randn(9, inputs)
        assert error_of(rewrite_of(name)(model)[0](x), model(x)) < 0.02


def test_weights_that_others_share_stay_theirs() -> None:
    model, ids = Tied().eval(), torch.arange(12)
    copy, _ = quantization.use_int8_dynamic(model)
    assert list_layers(model) == ["head", "one", "two"]
    assert copy.head.weight is copy.embed.weight is model.embed.weight
    with torch.no_grad():
        assert 0 < error_of(copy(ids), model(ids)) < 0.03


def test_functions_and_models_without_layers_are_refused() -> None:
    for model in (torch.sin, nn.ReLU()):
        assert not quantization.has_linear_layers(model)
        with pytest.raises(UnsupportedError, match="has no linear layer for it"):
            quantization.use_int8_dynamic(model)
    assert not quantization.multiplies_float8(make_model())


def test_numbers_beyond_those_of_float16_come_from_no_product_on_the_way() -> None:
    torch.manual_seed(0)
    layer, x = nn.Linear(512, 8, bias=False).half(), (40 * torch.randn(4, 512)).half()
    with torch.no_grad():
        layer.weight.mul_(10)
        copy = quantization.use_int8_weights(nn.Sequential(layer))[0][0]
        expected = functional.linear(x.float(), layer.weight.float())
        assert float(expected.abs().max()) > 100
        found = functional.linear(x.float(), copy.dequantize(torch.float16).float())
        assert error_of(found, expected) < 0.02
        assert bool(copy.dequantize(torch.float16).isfinite().all())
        assert error_of(functional.linear(x.double(), copy.dequantize(torch.float64)), expected) < 0.02


@pytest.mark.parametrize("name", FORMATS)
def test_a_torch_without_a_product_refuses_that_format_alone(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kind = {"int8_dynamic": formats.Int8Dynamic, "int8_weights": formats.Int8Weights}.get(name, formats.Int4Weights)
    gone = PrivateName("torch", "_no_such_product")
    monkeypatch.setattr(kind, "NAMES", {"cpu": (gone,)})
    assert formats._find(gone) is None
    with pytest.raises(UnsupportedError, match=f"a plan with {name} needs torch._no_such_product"):
        rewrite_of(name)(make_model())
    for other in {*FORMATS} - {name}:
        rewrite_of(other)(make_model())


def test_a_cpu_that_cuts_sums_of_products_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def saturate(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        return (one.int() @ other.int()).clamp(-(2**15), 2**15 - 1)

    assert formats.multiplies_exactly.__wrapped__()
    monkeypatch.setattr(formats, "_multiply_int8", saturate)
    assert not formats.multiplies_exactly.__wrapped__()
    monkeypatch.setattr(formats, "multiplies_exactly", lambda: False)
    with pytest.raises(UnsupportedError, match="adds products of 8 bits in 16"):
        quantization.use_int8_dynamic(make_model())


def test_whole_numbers_under_autocast_are_answered_alike() -> None:
    model = make_model()
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        for call in (model, quantization.use_int8_dynamic(model)[0]):
            with pytest.raises(RuntimeError):
                call(torch.ones(2, 64, dtype=torch.int32))


@pytest.mark.usefixtures("float8_on_cpu")
@pytest.mark.parametrize("name", [*FORMATS, *FLOAT8])
def test_a_transposed_weight_is_rounded_into_rows(name: str) -> None:
    model = nn.Sequential(nn.Linear(64, 96, bias=False)).eval()
    model[0].weight = nn.Parameter(model[0].weight.detach().t().contiguous().t())
    copy, x = rewrite_of(name)(model)[0], torch.randn(4, 64)
    assert all(buffer.is_contiguous() for buffer in copy.buffers())
    with torch.no_grad():
        assert error_of(copy(x), model(x)) < ERRORS[name]


def test_any_format_that_fits_opens_the_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(formats.Int8Dynamic, "MULTIPLES", {"cpu": (7, 7)})
    assert not quantization.list_int8_dynamic_layers(make_model())
    assert quantization.has_linear_layers(make_model())


# ---- plans


def compiled(model: nn.Module, plan: Plan) -> Callable[..., Any]:
    return compile_plan(model, plan, Example((torch.randn(4, 64),)), device="cpu", mode="inference").call


@pytest.mark.usefixtures("float8_on_cpu")
@pytest.mark.parametrize("name", [*FORMATS, *FLOAT8])
def test_a_plan_is_stale_when_the_weights_change(name: str) -> None:
    model, x = make_model(), torch.randn(4, 64)
    with torch.no_grad():
        call = compiled(model, Plan(transforms=(name,)))
        assert error_of(call(x), model(x)) < ERRORS[name]
        model[0].weight.mul_(2.0)
        with pytest.raises(StalePlanError, match="the weights changed"):
            call(x)


class Caching(nn.Module):
    """Writes to its own cache in each call, in place or by a new tensor, as a model that decodes does."""

    cache: torch.Tensor

    def __init__(self, *, in_place: bool) -> None:
        super().__init__()
        self.layer, self.in_place = nn.Linear(64, 64), in_place
        self.register_buffer("cache", torch.zeros(4, 64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        now = self.layer(x)
        if self.in_place:
            self.cache.mul_(0.5).add_(now)
        else:
            self.cache = self.cache * 0.5 + now
        return self.cache.clone()


@pytest.mark.parametrize("in_place", [True, False], ids=["in place", "anew"])
@pytest.mark.parametrize("precision", ["native", "tf32"])
def test_a_cache_that_calls_write_to_is_no_weight(in_place: bool, precision: str) -> None:
    torch.manual_seed(0)
    model, x = Caching(in_place=in_place).eval(), torch.randn(4, 64)
    reference = copy.deepcopy(model)
    with torch.no_grad():
        call = compiled(model, Plan(transforms=("int8_dynamic",), precision=precision))
        for _ in range(3):
            assert error_of(call(x), reference(x)) < 0.02
        for one in (model, reference):
            one.cache.zero_()
        assert error_of(call(x), reference(x)) < 0.02, "a cache that was emptied is read as it is now"
        assert error_of(model.cache, reference.cache) < 0.02
        model.layer.weight.mul_(2.0)
        with pytest.raises(StalePlanError, match="the weights changed"):
            call(x)


def test_buffers_that_a_plan_copies_are_weights() -> None:
    model, x = Caching(in_place=True).eval(), torch.randn(4, 64)
    with torch.no_grad():
        call = compiled(model, Plan(transforms=("int8_dynamic",), precision="bf16"))
        call(x)
        model.cache.zero_()
        with pytest.raises(StalePlanError):
            call(x)


def test_a_program_that_serves_such_a_plan_gets_the_model_wherever_the_plan_does_not_hold() -> None:
    model, x = make_model(), torch.randn(4, 64)
    served = apply(model, make_decision(model, Plan(transforms=("int8_dynamic",)), x))
    with torch.no_grad():
        assert 0 < error_of(served(x), model(x)) < 0.02
    assert torch.equal(served(x), model(x)), "a rounded weight has no gradient"
    with torch.no_grad():
        model[0].weight.mul_(2.0)
        assert torch.equal(served(x), model(x)), "the weights changed"
    assert set(served.statistics.sentences) == {Fallback.GRADIENTS_ENABLED, Fallback.STALE_DECISION}


@pytest.mark.slow
@pytest.mark.usefixtures("float8_on_cpu")
def test_inductor_compiles_every_format() -> None:
    torch.manual_seed(0)
    layers = [rewrite_of(name)(nn.Sequential(nn.Linear(64, 64)))[0] for name in (*FORMATS, *FLOAT8)]
    model, x = nn.Sequential(*layers, nn.ReLU()).eval(), torch.randn(4, 64)
    with torch.no_grad():
        assert error_of(torch.compile(model)(x), model(x)) < 0.01


@pytest.mark.slow
def test_code_that_was_compiled_ahead_notices_other_weights() -> None:
    model, x, plan = make_model(), torch.randn(4, 64), Plan(transforms=("int8_dynamic",), backend="inductor")
    with torch.no_grad():
        maker = Maker()
        compile_plan(model, plan, Example((x,)), device="cpu", mode="inference", backend=maker).call(x)
        loaded = compile_plan(model, plan, Example((x,)), device="cpu", mode="inference", backend=Loader(maker.made))
        assert 0 < error_of(loaded.call(x), model(x)) < 0.02
        model[0].weight.mul_(2.0)
        for call in (loaded.call, loaded.bypass((x,), {})):
            with pytest.raises(StalePlanError, match="the weights changed"):
                call(x)


def test_weights_are_no_constants_of_the_code() -> None:
    """The copy has rounded ones, which the code reads. So Inductor is not told to freeze them."""
    plan = Plan(transforms=("int8_dynamic",), backend="inductor")
    assert has_fixed_weights(plan)
    assert not freezes_weights(plan)
    assert replace(plan, scope="rolled").scope == "rolled"


@pytest.mark.usefixtures("float8_on_cpu")
def test_it_goes_with_a_lower_precision_and_a_part_of_the_layers() -> None:
    model, x = make_model(), torch.randn(4, 64)
    with torch.no_grad():
        for name in (*FORMATS, *FLOAT8):
            call = compiled(model, Plan(transforms=(name,), precision="bf16"))
            assert call(x).dtype is torch.float32
            assert error_of(call(x), model(x)) < ERRORS[name] + 0.01
        part = compiled(model, Plan(transforms=("int8_dynamic@skip=0",)))
        assert (
            0 < error_of(part(x), model(x)) < error_of(compiled(model, Plan(transforms=("int8_dynamic",)))(x), model(x))
        )


def test_a_plan_names_the_layers_that_it_leaves_out() -> None:
    plan = Plan(transforms=("int8_dynamic@skip=head,0.fc",))
    assert Plan.from_json(plan.to_json()) == plan
    assert str(plan) == "eager + int8_dynamic@skip=head,0.fc"
    choice = find_choice("transforms", plan.transforms[0])
    assert choice is not None
    assert (choice.numerics, choice.complexity) == (Numerics.QUANTIZED, 3)
    assert skip_parts(skip_parts("int8_dynamic", ["a"]), ["b", "c"]) == "int8_dynamic@skip=b,c"
    assert skip_parts("int8_dynamic@skip=a", []) == "int8_dynamic"
    with pytest.raises(UnsupportedError, match=r"has 'int8_dynamic' without 'head', but its layers are: 0, 2"):
        compiled(make_model(), plan)
    with pytest.raises(UnsupportedError, match="has no linear layer for it"):
        compiled(make_model(), Plan(transforms=("int8_dynamic@skip=0,2",)))


@pytest.mark.parametrize(
    ("transforms", "said"),
    [
        (["int8_dynamic", "int4_weights@skip=a"], "the weights of a layer have one format"),
        (["int8_dynamic", "fp8_weights"], "the weights of a layer have one format"),
        (["fp8_dynamic", "fp8_per_tensor@skip=a"], "the weights of a layer have one format"),
        (["int8_dynamics"], "did you mean int8_dynamic"),
        (["patch_matmul@skip=a"], "transforms has 'patch_matmul@skip=a'"),
    ],
)
def test_plans_that_mean_nothing_are_refused(transforms: list[str], said: str) -> None:
    with pytest.raises(PlanError, match=said):
        Plan.from_dict({"schema": "torchwise.plan/1", "transforms": transforms})


# ---- the choice of layers


class Uneven(nn.Module):
    """One of four layers gets numbers of very different sizes, which 8 bits for a row cannot hold."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        spread = torch.cat([x[:, :1] * 3000, x[:, 1:]], 1)
        first = self.layers[0](spread) - self.layers[0].weight[:, 0] * spread[:, :1]
        return first + sum(layer(x) for layer in [*self.layers][1:])


def test_the_layers_that_cost_the_most_error_stay_as_they_are() -> None:
    model, example = Uneven().eval(), Example((torch.randn(32, 64),))
    tried: list[Collection[str]] = []

    def rewrite(skip: Collection[str]) -> nn.Module:
        tried.append(skip)
        return quantization.use_int8_dynamic(model, skip)[0]

    def passes(call: Callable[..., Any]) -> bool:
        with torch.no_grad():
            return error_of(call(*example.args), model(*example.args)) < 0.02

    sizes = quantization.list_int8_dynamic_layers(model)
    assert not passes(rewrite(()))
    assert choose_skipped(model, rewrite, sizes, passes, example) == ("layers.0",)
    assert len(tried) == 1 + 4 + 2
    assert choose_skipped(model, rewrite, sizes, lambda _: False, example) is None
    assert choose_skipped(model, rewrite, sizes, passes, example, budget_s=0.0) is None, "there was no time"


def test_parts_that_there_was_no_time_for_stay_and_the_others_may_all_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([0.0, 1.0, 2.0, 9.0, 9.0, *[10.0] * 5])
    monkeypatch.setattr(sensitivity.time, "monotonic", lambda: next(times))

    def rewrite(skip: Collection[str]) -> Callable[..., Any]:
        return lambda x: x * (1 + 0.01 * (3 - len(skip)))

    sizes = {"third": 10, "first": 1000, "second": 100}
    example = Example((torch.ones(4),))
    assert choose_skipped(lambda x: x, rewrite, sizes, lambda _: True, example, budget_s=5.0) == ("third",)


def test_labels_beside_the_numbers_leave_the_order_of_layers_as_it_is() -> None:
    def rewrite(skip: Collection[str]) -> Callable[..., Any]:
        bad = 0.0 if "bad" in skip else 0.5
        return lambda x: (x * (1 + bad + 0.01 * (3 - len(skip))), torch.tensor(len(skip)))

    def passes(call: Callable[..., Any]) -> bool:
        return float(call(torch.ones(4))[0][0]) < 1.1

    def original(x: torch.Tensor) -> Any:
        return x.clone(), torch.tensor(9)

    sizes = dict.fromkeys(("bad", "good", "better"), 1)
    assert choose_skipped(original, rewrite, sizes, passes, Example((torch.ones(4),))) == ("bad",)


def test_selections_are_judged_until_the_time_is_over() -> None:
    judged: list[Any] = []

    def rewrite(skip: Collection[str]) -> Callable[..., Any]:
        return lambda x: x * (1 + 0.01 * (8 - len(skip)))

    def passes(call: Any) -> bool:
        judged.append(call)
        time.sleep(0.05)
        return True

    sizes = dict.fromkeys("abcdefgh", 1)
    found = choose_skipped(lambda x: x, rewrite, sizes, passes, Example((torch.ones(4),)), judge_s=0.02)
    assert len(judged) == 1
    assert found is not None
    assert len(found) == 4


def test_larger_layers_may_cause_more_error() -> None:
    """Among layers with the same error, that with the larger weight saves more."""

    def rewrite(skip: Collection[str]) -> Callable[..., Any]:
        return lambda x: x * (1 + 0.01 * math.sqrt(2 - len(skip)))

    sizes = {"small": 10, "large": 1000}
    found = choose_skipped(lambda x: x, rewrite, sizes, lambda _: True, Example((torch.ones(4),)))
    assert found == ("small",)


# ---- a trial


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> str:
    file = tmp_path_factory.mktemp("targets") / "linear_models.py"
    file.write_text(
        "import torch\n"
        "from torch import nn\n"
        "def make():\n"
        "    torch.manual_seed(0)\n"
        "    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64)).eval(), (torch.randn(16, 64),)\n"
    )
    return f"{file}:make"


def run_trial(target: str, plan: Plan, tolerance: float, kind: type[PlanCandidate] = PlanCandidate) -> Any:
    job = Job("try", WorkloadSpec(target, tolerance=tolerance), plan, effort=EFFORTS["quick"])
    trial = PlanExperiment(job, kind(plan))
    with trial.harness.gradients():
        trial.build()
        trial.first_calls()
        return (job, trial.harness.workload), trial.verify(lambda _: None)


INT8 = Plan(transforms=("int8_dynamic",))


@pytest.mark.parametrize("name", FORMATS)
def test_a_plan_is_judged_by_the_error_that_the_user_allows(target: str, name: str) -> None:
    _, passed = run_trial(target, Plan(transforms=(name,)), 0.2)
    assert passed.outcome is Outcome.PASS, passed.reason
    names = [check.name for check in passed.checks]
    assert names[0] == names[-1] == CheckName.SUBSTITUTION, "the rewritten model is judged, and the plan as a whole"
    assert CheckName.VALUES in names


def test_the_rest_of_a_plan_is_verified_against_the_rewritten_model(target: str) -> None:
    class Broken(PlanCandidate):
        def build(self, call: Callable[..., Any], harness: Any) -> Callable[..., Any]:
            right = super().build(call, harness)
            return lambda *args: right(*args) * 1.08

    _, broken = run_trial(target, INT8, 0.2, Broken)
    assert (broken.outcome, broken.checks[-1].name) == (Outcome.FAIL, CheckName.VALUES)
    assert not broken.is_change_refused


FEWER = (("int8_dynamic", "int8_dynamic@skip=0"), ("int8_dynamic", "int8_dynamic@skip=2"))


def test_a_plan_that_changes_too_much_names_the_layers_that_pass(target: str) -> None:
    trial, refused = run_trial(target, INT8, 0.008)
    assert refused.outcome is Outcome.FAIL
    assert refused.is_change_refused
    instead = find_smaller_rewrite(*trial)
    assert instead in FEWER
    _, passed = run_trial(target, Plan(transforms=(instead[1],)), 0.008)
    assert passed.outcome is Outcome.PASS, passed.reason
    tight = 1.1 * min(run_trial(target, Plan(transforms=(one,)), 0.5)[1].checks[0].error for _, one in FEWER)
    trial, refused = run_trial(target, INT8, tight)
    assert refused.is_change_refused
    assert find_smaller_rewrite(*trial) is None, "the rest of the tolerance is for the plan as a whole"
    trial, _ = run_trial(target, INT8, 1e-5)
    assert find_smaller_rewrite(*trial) is None


def test_a_smaller_rewrite_that_is_refused_as_well_leads_to_the_next() -> None:
    first, second, third = "int8_dynamic", "int8_dynamic@skip=0", "int8_dynamic@skip=0,2"
    trials = tuple(
        a_trial(number, Plan(transforms=(one,)), None, instead=(one, other))
        for number, (one, other) in enumerate(((first, second), (second, third)))
    )
    study = make_study()
    history = History(study.workload, study.inspection, trials)
    assert history.refine(Plan(transforms=(first,))).transforms == (third,)
    circle = (trials[0], a_trial(1, Plan(transforms=(second,)), None, instead=(second, second)))
    assert History(study.workload, study.inspection, circle).refine(Plan(transforms=(first,))).transforms == (second,)


# ---- a search

TRAITS = frozenset({Trait.MODULE, Trait.FLOATING, Trait.LINEAR_LAYERS, Trait.TOLERANT, Trait.GEMM, Trait.FLOAT32})


def test_it_is_tried_where_it_is_allowed_and_never_else() -> None:
    space = PlanSpace("cpu", "inference", TRAITS, Numerics.QUANTIZED)
    choices = {name: load_choices()["transforms", name] for name in (*FORMATS, *FLOAT8)}
    assert [name for name, choice in choices.items() if space.excludes(choice) is None] == [*FORMATS]
    lower = replace(space, allow=Numerics.LOWER_PRECISION)
    assert lower.excludes(choices["int8_dynamic"]) == "it is quantized, and only up to lower-precision is allowed"
    assert replace(space, mode="training").excludes(choices["int8_dynamic"]) is not None
    gpu = PlanSpace("cuda", "inference", TRAITS, Numerics.QUANTIZED)
    for name in FLOAT8:
        assert replace(space, traits=gpu.traits | {Trait.FLOAT8}).excludes(choices[name]) == (
            "it is for cuda, and this is cpu"
        )
        assert "multiplies numbers of 8 bits" in (gpu.excludes(choices[name]) or "")
        assert replace(gpu, traits=TRAITS | {Trait.FLOAT8}).excludes(choices[name]) is None


def test_a_tolerance_is_chosen_for_those_who_state_none() -> None:
    def tolerance_of(**options: Any) -> float | None:
        return Request.from_options(TuneOptions(**options), "zoo:any", "cpu").workload.tolerance

    assert tolerance_of(allow="quantized") == DEFAULT_TOLERANCE
    assert tolerance_of(allow="substituted") is None, "nothing but what a user states"
    assert tolerance_of(allow="substituted", tolerance=0.1) == 0.1
    assert tolerance_of(allow="quantized", tolerance=0.1) == 0.1
    assert tolerance_of(allow="lower-precision") is None
    assert tolerance_of(allow="substituted", mode="training") is None
    with pytest.raises(InputError, match="allow is 'quantized', but mode is 'training'"):
        tolerance_of(allow="quantized", mode="training")


def test_a_rewritten_model_is_told_from_the_original() -> None:
    assert not quantization.has_quantized_layers(make_model())
    assert quantization.has_quantized_layers(quantization.use_int8_dynamic(make_model())[0])
