"""Convolutions that cut their input into patches, run as matrix products."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from torchwise.compile import compile_plan
from torchwise.compile.transforms.patch_matmul import has_patches, multiply
from torchwise.errors import StalePlanError, UnsupportedError
from torchwise.plan import Plan
from torchwise.trial.error_origin import Instruments
from torchwise.trial.inspection import _traits
from torchwise.trial.plain_call import PlainCall
from torchwise.verify import Subject, verify
from torchwise.workload import Example, Workload
from torchwise.zoo.registry import load

PLAN = Plan(backend="counting", transforms=("patch_matmul",))


class Encoder(nn.Module):
    """Patches as rows, as a vision transformer has them, and one layer of work on each."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 8, 4, 4)
        self.layer = nn.Linear(8, 8)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.layer(self.patches(image).flatten(2).transpose(1, 2)))


@pytest.fixture
def encoder() -> Encoder:
    torch.manual_seed(0)
    return Encoder().eval()


@pytest.fixture
def image() -> torch.Tensor:
    torch.manual_seed(1)
    return torch.randn(2, 3, 16, 12)


def compile_call(call: Any, plan: Plan, *args: Any, mode: str = "inference") -> Any:
    return compile_plan(call, plan, Example(args), device="cpu", mode=mode).call


@pytest.mark.parametrize(
    ("convolution", "shape"),
    [
        (nn.Conv1d(3, 5, 4, 4), (2, 3, 12)),
        (nn.Conv2d(3, 5, (4, 2), (4, 2)), (2, 3, 8, 6)),
        (nn.Conv2d(3, 5, (4, 2), (4, 2)), (2, 3, 11, 7)),  # the remainder is not read
        (nn.Conv2d(3, 5, 4, 4, bias=False), (3, 8, 8)),  # without a batch
        (nn.Conv2d(1, 1, (1, 2), (1, 2), padding="valid"), (2, 1, 3, 4)),
        (nn.Conv3d(2, 4, (2, 3, 4), (2, 3, 4)), (2, 2, 4, 7, 8)),
    ],
)
def test_the_product_is_the_convolution_and_so_are_its_gradients(convolution: nn.Module, shape: Any) -> None:
    torch.manual_seed(0)
    convolution = convolution.double()
    product, _ = multiply(convolution)
    x = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    weights = torch.randn_like(convolution(x))
    found = []
    for module in (convolution, product):
        answer = module(x)
        torch.testing.assert_close(answer, convolution(x), rtol=1e-12, atol=1e-12)
        found.append(torch.autograd.grad((answer * weights).sum(), [x, *convolution.parameters()]))
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


@torch.no_grad()
def test_what_is_compiled_has_the_product_and_the_model_keeps_its_convolution(
    encoder: Encoder, image: torch.Tensor, graphs: list[list[str]]
) -> None:
    call = compile_call(encoder, PLAN, image)
    torch.testing.assert_close(call(image), encoder(image))
    assert graphs[0].count("linear") == 2
    assert "conv2d" not in graphs[0]
    assert type(encoder.patches) is nn.Conv2d


def test_gradients_reach_the_parameters_of_the_model(
    encoder: Encoder, image: torch.Tensor, graphs: list[list[str]]
) -> None:
    encoder.train()
    encoder(image).square().sum().backward()
    expected = [parameter.grad for parameter in encoder.parameters()]
    encoder.zero_grad()
    compile_call(encoder, PLAN, image, mode="training")(image).square().sum().backward()
    assert graphs
    for parameter, gradient in zip(encoder.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.grad, gradient)


@torch.no_grad()
@pytest.mark.usefixtures("graphs")
def test_weights_are_followed_and_another_structure_is_refused(encoder: Encoder, image: torch.Tensor) -> None:
    call = compile_call(encoder, PLAN, image)
    call(image)
    encoder.patches.weight.mul_(2)
    torch.testing.assert_close(call(image), encoder(image))
    encoder.patches = nn.Conv2d(3, 8, 4, 4)
    with pytest.raises(StalePlanError):
        call(image)


@torch.no_grad()
@pytest.mark.usefixtures("graphs")
@pytest.mark.parametrize("changed", [{"precision": "bf16"}, {"memory_format": "channels_last"}])
def test_it_goes_with_other_precisions_and_layouts(encoder: Encoder, image: torch.Tensor, changed: Any) -> None:
    call = compile_call(encoder, Plan(backend="counting", transforms=("patch_matmul",), **changed), image)
    call(image)
    encoder.patches.weight.mul_(2)
    tolerance = 0.05 if "precision" in changed else 1e-5
    torch.testing.assert_close(call(image), encoder(image), rtol=tolerance, atol=tolerance)


@torch.no_grad()
@pytest.mark.usefixtures("graphs")
def test_hooks_run_once(encoder: Encoder, image: torch.Tensor) -> None:
    seen: list[tuple[int, ...]] = []
    encoder.patches.register_forward_hook(lambda _module, _args, output: seen.append(tuple(output.shape)))
    compile_call(encoder, PLAN, image)(image)
    assert seen == [(2, 8, 4, 3)]


@torch.no_grad()
def test_the_features_of_a_patch_lie_side_by_side(image: torch.Tensor) -> None:
    product, _ = multiply(nn.Conv2d(3, 8, 4, 4))
    assert product(image).stride(1) == 1


def test_an_input_smaller_than_a_patch_is_refused_as_the_convolution_refuses_it(image: torch.Tensor) -> None:
    convolution = nn.Conv2d(3, 8, 14, 14)
    for module in (convolution, multiply(convolution)[0]):
        with pytest.raises(RuntimeError):
            module(image)


def test_a_model_whose_copy_is_itself_is_left_alone() -> None:
    class Single(nn.Conv2d):
        def __deepcopy__(self, _memo: object) -> Single:
            return self

    model = nn.Sequential(nn.Conv2d(3, 3, 4, 4), Single(3, 3, 1))
    with pytest.raises(UnsupportedError, match="copying 1 returns the original object"):
        multiply(model)


class Own(nn.Conv2d):
    pass


def with_own_forward() -> nn.Module:
    convolution = nn.Conv2d(3, 8, 4, 4)
    convolution.forward = lambda x: x  # type: ignore[method-assign]
    return convolution


@pytest.mark.parametrize(
    "module",
    [
        nn.Conv2d(3, 8, 4, 2),  # windows overlap
        nn.Conv2d(3, 8, 2, 4),  # they leave gaps
        nn.Conv2d(3, 8, 4, 4, padding=1),
        nn.Conv2d(4, 8, 4, 4, groups=2),
        nn.Conv2d(3, 8, 4, 4, dilation=2),
        nn.Conv2d(3, 8, 1),  # a product already
        nn.ConvTranspose2d(3, 8, 4, 4),
        Own(3, 8, 4, 4),  # whose forward may be another
        with_own_forward(),
        nn.Linear(3, 3),
    ],
)
def test_what_cuts_no_patches_is_refused(module: nn.Module) -> None:
    assert not has_patches(module)
    with pytest.raises(UnsupportedError, match="has no convolution whose stride is its kernel size"):
        multiply(nn.Sequential(module))


def test_a_function_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="'patch_matmul', but builtin_function_or_method has no convolution"):
        compile_call(torch.tanh, PLAN, torch.ones(2))


@pytest.mark.parametrize("kind", [nn.Conv1d, nn.Conv2d, nn.Conv3d])
def test_patches_of_any_dimension_are_a_trait_where_convolutions_take_time(kind: Any) -> None:
    convolution = kind(1, 2, 4, 4)
    x = torch.randn(1, 1, *[8] * len(convolution.kernel_size))
    workload = Workload(nn.Sequential(convolution), (Example((x,)),))

    once = PlainCall(writes=False, answers=True, moves=(), grows=False)

    def traits(share: float) -> list[str]:
        return _traits(workload, {}, {"conv": share}, once, Instruments(lambda: None), stochastic=False)

    assert "patches" in traits(0.9)
    assert "patches" not in traits(0.01)


@pytest.mark.slow
def test_an_encoder_compiled_by_inductor_passes(encoder: Encoder) -> None:
    check(Workload(encoder, (Example((torch.randn(2, 3, 8, 8),)),)))


@pytest.mark.usefixtures("plainly_compiled")
def test_the_vision_model_of_the_zoo_passes() -> None:
    check(load("arr_coc.model@small"))


@torch.no_grad()
def check(workload: Workload) -> None:
    plan = Plan(backend="inductor", transforms=("patch_matmul",))
    call = compile_plan(workload.call, plan, workload.examples[0], device="cpu", mode="inference").call
    verdict = verify(Subject(workload, call, workload.call))
    assert verdict.outcome == "pass", verdict
