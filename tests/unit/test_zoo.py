"""The reference workloads: names, shapes, seeds, physics, noise, and agreement with float64."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys

import pytest
import torch

from torchwise.errors import TargetError, WorkloadError
from torchwise.workload import Workload
from torchwise.workload.target import load as load_target
from torchwise.workload.trees import tensors
from torchwise.zoo import list_workloads, load
from torchwise.zoo.ivhl import field_superposition
from torchwise.zoo.registry import Entry
from torchwise.zoo.spinlock import FIELDS, StochasticBlock

NAMES = [entry.name for entry in list_workloads()]

OUTPUTS = {
    "ivhl.field_superposition": ((512,), torch.complex64),
    "tutorial.fusion_demo": ((8, 32, 512), torch.float32),
    "tutorial.many_small_ops": ((4, 64), torch.float32),
    "spinlock.operator": ((2, FIELDS, 24, 24), torch.float32),
}


def run(workload: Workload, seed: int = 0) -> torch.Tensor:
    torch.manual_seed(seed)  # of the noise that a stochastic workload adds by itself
    with torch.no_grad():
        return workload.call(*workload.examples[0].args)


def numbers(workload: Workload) -> list[torch.Tensor]:
    weights = list(workload.call.parameters()) if isinstance(workload.call, torch.nn.Module) else []
    return [*weights, *tensors(workload.examples[0].args)]


def silence(workload: Workload) -> Workload:
    """Make a stochastic model deterministic, so that two precisions of it can be compared."""
    if isinstance(workload.call, torch.nn.Module):
        workload.call.eval()
        for module in workload.call.modules():
            if isinstance(module, StochasticBlock):
                torch.nn.init.zeros_(module.scale)
    return workload


@pytest.mark.parametrize("name", NAMES)
def test_small_runs_with_the_stated_shape_and_dtype(name: str) -> None:
    workload = load(f"{name}@small")
    out = run(workload)
    assert (tuple(out.shape), out.dtype) == OUTPUTS[name]
    assert torch.isfinite(torch.view_as_real(out) if out.is_complex() else out).all()
    assert out.abs().mean() > 0.05, "the signal has died on its way"
    assert workload.name == f"{name}@small"
    assert workload.roofline is not None
    assert workload.roofline.flops > 0
    moved = sum(t.numel() * t.element_size() for t in [*numbers(workload), out])
    assert workload.roofline.bytes >= moved


@pytest.mark.parametrize("name", NAMES)
def test_the_seed_decides_every_number(name: str) -> None:
    first, again, other = (load(f"{name}@small", seed=seed) for seed in (3, 3, 4))
    assert all(torch.equal(a, b) for a, b in zip(numbers(first), numbers(again), strict=True))
    assert not any(torch.equal(a, b) for a, b in zip(numbers(first), numbers(other), strict=True))
    assert torch.equal(run(first), run(again))
    assert not torch.allclose(run(first), run(other))
    assert not any((t == 0).all() for t in numbers(first)), "a weight or input of zeros hides mistakes"


@pytest.mark.parametrize("name", NAMES)
def test_reseed_draws_other_inputs_of_the_same_shape(name: str) -> None:
    workload = load(f"{name}@small", seed=3)
    assert workload.reseed is not None
    original = tensors(workload.examples[0].args)
    for seed, equal in ((3, True), (9, False)):
        drawn = tensors(workload.reseed(seed)[0].args)
        assert [t.shape for t in drawn] == [t.shape for t in original]
        assert all(torch.equal(a, b) is equal for a, b in zip(drawn, original, strict=True))


@pytest.mark.parametrize("name", NAMES)
def test_float32_agrees_with_float64(name: str) -> None:
    single, double = (silence(load(f"{name}@small", dtype=dtype)) for dtype in (torch.float32, torch.float64))
    out, reference = run(single), run(double)
    assert reference.dtype in (torch.float64, torch.complex128)
    error = (out.to(reference.dtype) - reference).abs().max() / reference.abs().max()
    assert 0 < error < 5e-6


@pytest.mark.parametrize("name", NAMES)
def test_a_loaded_workload_can_be_raised_to_float64(name: str) -> None:
    workload = silence(load(f"{name}@small"))
    call = copy.deepcopy(workload.call)
    if isinstance(call, torch.nn.Module):
        call.double()
    example = workload.examples[0].map_tensors(torch.Tensor.double)
    raised = run(Workload(call, (example,)))
    assert raised.dtype in (torch.float64, torch.complex128)
    assert (run(workload).to(raised.dtype) - raised).abs().max() < 5e-6 * raised.abs().max()


def test_the_global_generator_is_neither_read_nor_moved() -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()
    for name in NAMES:
        load(f"{name}@small")
    assert torch.equal(torch.get_rng_state(), before)


def test_the_field_of_one_source_is_a_spherical_wave() -> None:
    r = torch.tensor([[3.0, 4.0, 0.0], [0.0, 0.0, 0.5]], dtype=torch.float64)
    one = torch.ones(1, dtype=torch.float64)
    t = torch.tensor(0.25, dtype=torch.float64)
    field = field_superposition(r, torch.zeros(1, 3, dtype=torch.float64), 2.0 * one, 8.0 * one, 0.3 * one, 1.5, t)
    distance = torch.tensor([5.0, 0.5], dtype=torch.float64)
    expected = torch.polar(2.0 / (distance + 0.1), 1.5 * distance + 8.0 * 0.25 + 0.3)
    torch.testing.assert_close(field, expected)


def test_fields_superpose() -> None:
    args = load("ivhl.field_superposition@small", dtype=torch.float64).examples[0].args
    positions, sources, *drives, k, t = args
    each = [field_superposition(positions, sources[i, None], *(d[i, None] for d in drives), k, t) for i in range(10)]
    torch.testing.assert_close(torch.stack(each).sum(0), field_superposition(*args))


def test_fusion_demo_follows_its_formula() -> None:
    workload = load("tutorial.fusion_demo@small", dtype=torch.float64)
    x, norm = workload.examples[0].args[0], workload.call.norm
    centred = x - x.mean(-1, keepdim=True)
    normed = centred / (x.var(-1, unbiased=False, keepdim=True) + 1e-5).sqrt() * norm.weight + norm.bias
    expected = normed * 0.5 * (1 + torch.erf(normed / 2**0.5)) * 1.2 + 0.1
    torch.testing.assert_close(run(workload), expected.detach())


def test_many_small_ops_depends_on_its_input_through_every_layer() -> None:
    workload = load("tutorial.many_small_ops")
    (x,) = workload.examples[0].args
    assert len(workload.call.layers) == 20
    assert x.shape == (8, 256)
    with torch.no_grad():
        difference = workload.call(x) - workload.call(-x)
    assert difference.abs().mean() > 0.05


def test_the_noise_has_the_learned_scale_for_each_channel() -> None:
    block = StochasticBlock(3)
    with torch.no_grad():
        block.scale.copy_(torch.tensor([0.05, 0.1, 0.4]))
        noise = (
            block(
                torch.full((64, 3, 40, 40), 2.0),
            )
            - 2.0
        )
    count = 64 * 40 * 40  # the standard deviation is known to 1 in 450, the mean to scale / 320
    torch.testing.assert_close(noise.std(dim=(0, 2, 3)), block.scale.detach(), rtol=5 / (2 * count) ** 0.5, atol=0)
    assert (noise.mean(dim=(0, 2, 3)).abs() < 5 * block.scale / count**0.5).all()


def test_the_operator_is_random_in_inference_by_dropout_and_by_noise() -> None:
    workload = load("spinlock.operator@small")
    assert workload.call.training
    assert not torch.equal(run(workload, seed=1), run(workload, seed=2))
    workload.call.eval()
    assert not torch.equal(run(workload, seed=1), run(workload, seed=2)), "the noise stays on in eval()"
    silence(workload).call.train()
    assert not torch.equal(run(workload, seed=1), run(workload, seed=2)), "dropout alone is random"
    silence(workload)
    assert torch.equal(run(workload, seed=1), run(workload, seed=2))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("fusion_demo", "did you mean tutorial.fusion_demo"),
        ("tutoral.fusion_demo", "did you mean tutorial.fusion_demo"),
        ("tutorial.fusion_dmeo", "did you mean fusion_demo"),
        ("tutorial", "whole zoo family; choose one of tutorial.*tutorial.many_small_ops"),
        ("nothing.like_it", "There are .*ivhl.field_superposition.*tutorial.fusion_demo"),
        ("tutorial.fusion_demo@smal", "size is 'smal'; did you mean small"),
        ("tutorial.fusion_demo@huge", "There are small, medium, large, extreme"),
    ],
)
def test_a_wrong_name_is_answered_with_near_misses_and_the_list(name: str, message: str) -> None:
    with pytest.raises(TargetError, match=message):
        load(name)


def test_dtypes_without_meaning_are_refused() -> None:
    with pytest.raises(WorkloadError, match=r"float16, but ivhl.field_superposition@medium must be torch.float32"):
        load("ivhl.field_superposition", dtype=torch.float16)
    with pytest.raises(WorkloadError, match=r"int32, but must be a floating-point type"):
        load("tutorial.fusion_demo", dtype=torch.int32)
    assert run(load("tutorial.fusion_demo@small", dtype=torch.bfloat16)).dtype is torch.bfloat16


def test_the_default_size_is_medium_and_every_entry_can_be_built() -> None:
    assert load("ivhl.field_superposition").name == "ivhl.field_superposition@medium"
    assert load("spinlock.operator").examples[0].args[0].shape == (5, 3, 128, 128)
    for entry in list_workloads():
        assert entry.summary
        assert "\n" not in entry.summary
        work = [load(f"{entry.name}@{size}").roofline for size in ("small", "medium")]
        assert work[0].bytes < work[1].bytes


def test_an_entry_without_a_size_is_refused() -> None:
    with pytest.raises(ValueError, match="must have small, medium, large, extreme"):
        Entry("family.operation", "nothing", {"small": {}})


def test_zoo_is_a_target_scheme() -> None:
    workload = load_target("zoo:tutorial.many_small_ops@small", seed=3)
    assert torch.equal(run(workload), run(load("tutorial.many_small_ops@small", seed=3)))


def test_listing_loads_no_torch() -> None:
    code = "import sys, torchwise.zoo as zoo; zoo.list_workloads(); sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("name", NAMES)
def test_a_workload_survives_the_way_to_another_process(name: str) -> None:
    workload = load(f"{name}@small", seed=3)
    there: Workload = pickle.loads(pickle.dumps(workload))
    assert torch.equal(run(there), run(workload))
    assert there.reseed is not None
    assert workload.reseed is not None
    ours, theirs = (tensors(side.reseed(7)[0].args) for side in (workload, there))
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
