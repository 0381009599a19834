"""The stochastic operators: their norms, their noise against theory, gradients, and one field at a time."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from scipy import stats
from torch.nn.functional import conv2d, gelu
from torch.utils.flop_counter import FlopCounterMode

from torchwise.workload import Workload
from torchwise.workload.step_state import loss_of
from torchwise.zoo import load
from torchwise.zoo.random_inputs import Request
from torchwise_models.zoo.spinlock import (
    DROPOUT,
    FIELDS,
    GROUPS,
    LAYERS,
    StochasticBlock,
    build_operator,
    build_operator_single,
)

NAMES = [f"spinlock.operator{form}" for form in ("", "_groupnorm", "_single", "_groupnorm_single")]
SIGMAS = 5.0
"""Standard errors granted to an estimate: a right one is further off in 1 of 1.7 million draws."""


def run(workload: Workload, seed: int = 0) -> torch.Tensor:
    torch.manual_seed(seed)
    with torch.no_grad():
        return workload.call(*workload.examples[0].args)


def silent(name: str, dtype: torch.dtype = torch.float32, noisy_layer: int | None = None) -> Workload:
    """Load it small, without dropout, and without noise except that of one layer, if given."""
    workload = load(f"{name}@small", dtype=dtype)
    for index, layer in enumerate(workload.call.eval().layers):
        if index != noisy_layer:
            torch.nn.init.zeros_(layer.noise.scale)
    return workload


def noise_of(block: StochasticBlock, shape: tuple[int, ...]) -> torch.Tensor:
    """Return the noise that a block adds to zeros, per channel in units of its scale."""
    with torch.no_grad():
        return block(torch.zeros(shape, dtype=torch.float64)) / block.scale[:, None, None]


@pytest.fixture
def block() -> StochasticBlock:
    torch.manual_seed(11)
    made = StochasticBlock(4).double()
    with torch.no_grad():
        made.scale.copy_(torch.tensor([0.02, 0.1, 0.3, 2.0]))
    return made


@pytest.mark.parametrize("name", NAMES)
def test_the_answer_has_the_form_of_the_fields(name: str) -> None:
    workload = load(f"{name}@small")
    (fields,) = workload.examples[0].args
    assert fields.shape == (1 if "single" in name else 2, FIELDS, 24, 24)
    out = run(workload)
    assert (out.shape, out.dtype) == (fields.shape, fields.dtype)
    assert out.std() > 0.1


@pytest.mark.parametrize("name", NAMES)
def test_the_norm_follows_its_formula(name: str) -> None:
    workload = silent(name, torch.float64)
    layer, x = workload.call.layers[0], workload.examples[0].args[0]
    before = conv2d(x, layer.conv.weight, layer.conv.bias, padding=1)
    groups = GROUPS if "groupnorm" in name else before.shape[1]
    assert groups == 8
    planes = before.unflatten(1, (groups, -1))
    centred = planes - planes.mean(dim=(2, 3, 4), keepdim=True)
    normed = (centred / (planes.var(dim=(2, 3, 4), unbiased=False, keepdim=True) + 1e-5).sqrt()).flatten(1, 2)
    expected = gelu(normed * layer.norm.weight[:, None, None] + layer.norm.bias[:, None, None])
    torch.testing.assert_close(layer(x), expected)


def test_groupnorm_is_another_operator_than_instancenorm() -> None:
    channels = load("spinlock.operator_groupnorm@small").call.projection.in_channels
    assert channels > GROUPS, "with a group for every channel the two would be one"


def test_one_field_at_a_time_is_the_operator_with_a_batch_of_one() -> None:
    request = Request("operator", "cpu", torch.float32, seed=5)
    one = build_operator_single(request, side=16, channels=8)
    batched = build_operator(request, batch=1, side=16, channels=8)
    assert torch.equal(run(one), run(batched))
    assert one.roofline == batched.roofline


@pytest.mark.parametrize("name", NAMES[:2])
def test_fields_of_a_batch_do_not_see_each_other(name: str) -> None:
    workload = silent(name, torch.float64)
    (fields,) = workload.examples[0].args
    with torch.no_grad():
        torch.testing.assert_close(workload.call(fields)[1:], workload.call(fields[1:]))


def test_the_noise_has_the_mean_and_the_variance_of_its_scale(block: StochasticBlock) -> None:
    noise = noise_of(block, (8, 4, 64, 64))
    count = 8 * 64 * 64
    assert (noise.mean(dim=(0, 2, 3)).abs() < SIGMAS / count**0.5).all()
    assert ((noise.var(dim=(0, 2, 3)) - 1).abs() < SIGMAS * (2 / count) ** 0.5).all()


def test_the_noise_is_normal(block: StochasticBlock) -> None:
    noise = noise_of(block, (2, 4, 64, 64))
    for channel in noise.transpose(0, 1):
        assert stats.kstest(channel.flatten().numpy(), "norm").pvalue > 1e-3
    kurtosis = (noise**4).mean()
    assert (kurtosis - 3).abs() < SIGMAS * (96 / noise.numel()) ** 0.5


def test_the_noise_does_not_depend_on_the_signal(block: StochasticBlock) -> None:
    signal = torch.randn(2, 4, 64, 64, dtype=torch.float64)
    with torch.no_grad():
        noise = (block(signal) - signal) / block.scale[:, None, None]
    count = signal.numel()
    assert (noise * signal).mean().abs() < SIGMAS / count**0.5
    assert (noise.square() * (signal.square() - 1)).mean().abs() < SIGMAS * (6 / count) ** 0.5


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(lambda first, second: second, id="the next call"),
        pytest.param(lambda first, second: first.roll(1, dims=0), id="another field of the batch"),
        pytest.param(lambda first, second: first.roll(1, dims=1), id="another channel"),
        pytest.param(lambda first, second: first.roll(1, dims=2), id="the row above"),
        pytest.param(lambda first, second: first.roll(1, dims=3), id="the element to the left"),
    ],
)
def test_the_noise_is_independent_of(
    block: StochasticBlock, other: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
) -> None:
    first, second = (noise_of(block, (4, 4, 32, 32)) for _ in range(2))
    against = other(first, second)
    count = first.numel()
    assert (first * against).mean().abs() < SIGMAS / count**0.5
    both = (first.square() - 1) * (against.square() - 1)  # equal up to a sign would be uncorrelated, but dependent
    assert both.mean().abs() < SIGMAS * 2 / count**0.5


@pytest.mark.parametrize("name", NAMES)
def test_the_noise_of_the_last_layer_reaches_the_answer_with_the_variance_of_theory(name: str) -> None:
    workload = silent(name, torch.float64, noisy_layer=3)
    still = run(silent(name, torch.float64))
    off = torch.stack([run(workload, seed) - still for seed in range(16)])
    weights, scale = workload.call.projection.weight[..., 0, 0], workload.call.layers[3].noise.scale
    expected = (weights.square() @ scale.square()).detach()
    count = off.numel() / FIELDS
    assert (off.mean(dim=(0, 1, 3, 4)).abs() < SIGMAS * (expected / count).sqrt()).all()
    assert ((off.var(dim=(0, 1, 3, 4)) / expected - 1).abs() < SIGMAS * (2 / count) ** 0.5).all()


@pytest.mark.parametrize("name", NAMES)
def test_dropout_is_on_and_keeps_the_mean(name: str) -> None:
    workload = silent(name, torch.float64)
    dropout = workload.call.train().layers[0].dropout
    torch.manual_seed(2)
    kept = dropout(torch.ones(100_000, dtype=torch.float64))
    assert (kept.unique() - torch.tensor([0, 1 / (1 - DROPOUT)], dtype=torch.float64)).abs().max() < 1e-12
    assert ((kept == 0).double().mean() - DROPOUT).abs() < SIGMAS * (DROPOUT * (1 - DROPOUT) / 100_000) ** 0.5
    assert not torch.equal(run(workload, seed=1), run(workload, seed=2))


@pytest.mark.parametrize("name", NAMES)
def test_calls_in_a_row_vary_independently(name: str) -> None:
    workload = load(f"{name}@small", dtype=torch.float64)
    assert workload.call.training
    torch.manual_seed(4)
    with torch.no_grad():
        answers = torch.stack([workload.call(*workload.examples[0].args) for _ in range(24)])
    correlations = torch.corrcoef((answers - answers.mean(dim=0)).flatten(1))
    assert correlations.fill_diagonal_(0).abs().max() < 0.3


@pytest.mark.parametrize("name", NAMES)
def test_float32_agrees_with_float64(name: str) -> None:
    single, double = silent(name), silent(name, torch.float64)
    raised = Workload(copy.deepcopy(single.call).double(), (single.examples[0].map_tensors(torch.Tensor.double),))
    for reference in (run(double), run(raised)):
        assert 0 < (run(single) - reference).norm() / reference.norm() < 1e-5


@pytest.mark.parametrize("name", NAMES)
def test_every_parameter_and_the_input_get_a_gradient(name: str) -> None:
    workload = load(f"{name}@small", dtype=torch.float64)
    x = workload.examples[0].args[0].clone().requires_grad_()
    loss = loss_of(workload.call(x))
    assert loss is not None
    loss.backward()
    assert torch.isfinite(x.grad).all()
    assert x.grad.norm() > 1e-4
    for parameter_name, parameter in workload.call.named_parameters():
        assert torch.isfinite(parameter.grad).all()
        removed = parameter_name.endswith("conv.bias") and "groupnorm" not in name
        # InstanceNorm takes the mean of each plane off, and with it the bias: its gradient is rounding, rightly.
        assert parameter.grad.norm() < 1e-12 if removed else parameter.grad.norm() > 1e-4, parameter_name


@pytest.mark.parametrize("name", NAMES[2:])
def test_the_gradient_is_that_of_finite_differences(name: str) -> None:
    model = silent(name, torch.float64).call
    x = torch.randn(1, FIELDS, 6, 6, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(model, (x,), fast_mode=True)


def test_the_roofline_grows_with_the_work() -> None:
    request = Request("operator", "cpu", torch.float32, seed=0)
    one, two = (build_operator(request, batch=batch, side=16, channels=8).roofline for batch in (1, 2))
    assert one is not None
    assert two is not None
    assert two.flops == 2 * one.flops
    assert one.bytes < two.bytes < 2 * one.bytes, "weights are read once, whatever the batch"
    double = build_operator(Request("operator", "cpu", torch.float64, seed=0), batch=1, side=16, channels=8).roofline
    assert double is not None
    assert (double.flops, double.bytes) == (one.flops, 2 * one.bytes)


@pytest.mark.parametrize("name", NAMES)
def test_the_roofline_counts_the_convolutions_and_each_layer_twice(name: str) -> None:
    workload = load(f"{name}@small")
    (fields,) = workload.examples[0].args
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        workload.call(fields)
    channels = workload.call.projection.in_channels
    layers = fields.numel() // FIELDS * channels * LAYERS
    assert workload.roofline is not None
    assert workload.roofline.flops == counter.get_total_flops() + 27 * layers
    weights = sum(parameter.numel() for parameter in workload.call.parameters())
    assert workload.roofline.bytes == 4 * (weights + 2 * fields.numel() + 2 * layers)
