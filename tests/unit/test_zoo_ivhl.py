"""Family `ivhl`: each operation against closed forms, conservation laws and slow, plain recomputation."""

from __future__ import annotations

import copy
import functools
import itertools
import math
import string
from collections import Counter
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
import torch

from torchwise.errors import WorkloadError
from torchwise.verify.reference import widen
from torchwise.workload import Workload
from torchwise.workload.pytree import tensors
from torchwise.zoo import list_workloads, load
from torchwise.zoo.random_inputs import Request
from torchwise_models.zoo import ivhl

NAMES = [entry.name for entry in list_workloads() if entry.family == "ivhl"]
REAL = ["ivhl.gru_step", "ivhl.pachner_moves"]
LOOP = "ivhl.gross_pitaevskii"

OUTPUTS = {
    "ivhl.field_superposition": [((512,), torch.complex64)],
    "ivhl.vortex_field": [((512,), torch.complex64)],
    "ivhl.intensity": [((512,), torch.float32)],
    "ivhl.mera_layer": [((16, 32), torch.complex64)],
    "ivhl.tensor_network": [((3,), torch.complex64)],
    "ivhl.gft_network": [((32,), torch.complex64)],
    "ivhl.entanglement_entropy": [((32,), torch.float32)],
    "ivhl.condensate_potential": [((16, 16, 16), torch.float32)],
    "ivhl.gross_pitaevskii_step": [((16, 16, 16), torch.complex64)],
    "ivhl.gross_pitaevskii": [((16, 16, 16), torch.complex64)],
    "ivhl.gru_step": [((32, 4), torch.float32), ((32, 128), torch.float32)],
    "ivhl.pachner_moves": [((1000,), torch.int64)],
}

double = torch.float64


def run(workload: Workload) -> list[torch.Tensor]:
    with torch.no_grad():
        return tensors(workload.call(*workload.examples[0].args))


def inputs(name: str, **options: object) -> tuple:
    return load(f"ivhl.{name}@small", dtype=double, **options).examples[0].args


def complex_normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.complex128, generator=torch.Generator().manual_seed(seed))


# Every workload


@pytest.mark.parametrize("name", NAMES)
def test_a_call_gives_the_stated_form_again_and_again_and_leaves_its_inputs_alone(name: str) -> None:
    workload = load(f"{name}@small")
    before = [t.clone() for t in tensors(workload.examples[0].args)]
    first, second = run(workload), run(workload)
    assert [(tuple(t.shape), t.dtype) for t in first] == OUTPUTS[name]
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    assert all(t.abs().double().mean() > 0.05 for t in first), "the signal has died on its way"
    after = tensors(workload.examples[0].args)
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


@pytest.mark.parametrize("name", NAMES)
def test_single_precision_agrees_with_double_drawn_or_widened(name: str) -> None:
    single, drawn = load(f"{name}@small"), load(f"{name}@small", dtype=double)
    call = copy.deepcopy(single.call)
    if isinstance(call, torch.nn.Module):
        call.double()
    widened = Workload(call, (widen(single.examples[0]),))
    for ours, *references in zip(run(single), run(drawn), run(widened), strict=True):
        for reference in references:
            assert reference.dtype in (torch.float64, torch.complex128, torch.int64)
            assert (ours.to(reference.dtype) - reference).abs().max() < 5e-6 * reference.abs().max()


@pytest.mark.parametrize("name", NAMES)
def test_the_bytes_are_inputs_and_outputs_and_a_field_in_every_step_of_a_loop(name: str) -> None:
    workload = load(f"{name}@small")
    weights = list(workload.call.parameters()) if isinstance(workload.call, torch.nn.Module) else []
    moved = sum(t.numel() * t.element_size() for t in [*weights, *tensors(workload.examples[0].args), *run(workload)])
    assert workload.roofline.bytes == moved * (100 if name == LOOP else 1)
    wide = load(f"{name}@small", dtype=double).roofline
    assert wide.bytes == workload.roofline.bytes * (1 if name == "ivhl.pachner_moves" else 2)
    assert wide.flops == workload.roofline.flops > 0


@pytest.mark.parametrize("name", [name for name in NAMES if name not in REAL])
def test_a_dtype_without_complex_numbers_is_refused(name: str) -> None:
    with pytest.raises(WorkloadError, match=rf"bfloat16, but {name}@small must be torch.float32 or torch.float64"):
        load(f"{name}@small", dtype=torch.bfloat16)


@pytest.mark.parametrize("name", [name for name in NAMES if name != "ivhl.pachner_moves"])
def test_every_input_and_weight_has_a_finite_gradient_that_is_not_zero(name: str) -> None:
    workload = load(f"{name}@small", dtype=double)
    example = workload.examples[0].map_tensors(lambda t: t.requires_grad_())
    outputs = tensors(workload.call(*example.args))
    sum(t.abs().square().mean() for t in outputs).backward()
    weights = list(workload.call.parameters()) if isinstance(workload.call, torch.nn.Module) else []
    for tensor in [*weights, *tensors(example.args)]:
        if name == "ivhl.vortex_field" and tensor is example.args[2]:
            continue  # a charge turns the phase, which no modulus sees
        assert tensor.grad.abs().isfinite().all()
        assert tensor.grad.abs().max() > 1e-9


def some_field(*args: torch.Tensor) -> torch.Tensor:
    return ivhl.field_superposition(*args[:-1], 12.5, args[-1])


DIFFERENTIABLE: dict[str, tuple[Callable[..., torch.Tensor], Callable[[], tuple[torch.Tensor, ...]]]] = {
    "field": (some_field, lambda: tuple(t[:3] if t.dim() else t for t in tensors(inputs("field_superposition")))),
    "vortices": (
        lambda *args: ivhl.vortex_field(*args, 0.125),
        lambda: tuple(t[:3] for t in tensors(inputs("vortex_field"))),
    ),
    "mera": (
        ivhl.mera_layer,
        lambda: (complex_normal(4, 1, 2), complex_normal(2, 4, 4, seed=1), complex_normal(2, 4, 3, seed=2)),
    ),
    "entropy": (lambda states: ivhl.entanglement_entropy(states, 3), lambda: (complex_normal(2, 12),)),
    "potential": (ivhl.condensate_potential, lambda: (complex_normal(3, 3, 3),)),
    "evolution": (lambda field: ivhl.gross_pitaevskii(field, 3), lambda: (complex_normal(3, 3, 3),)),
}


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_gradients_are_those_of_finite_differences(name: str) -> None:
    call, make = DIFFERENTIABLE[name]
    assert torch.autograd.gradcheck(call, tuple(t.requires_grad_() for t in make()))


# Fields


def test_the_intensity_is_that_of_the_field() -> None:
    args = inputs("intensity")
    field = ivhl.field_superposition(*args)
    torch.testing.assert_close(ivhl.intensity(*args), field.real**2 + field.imag**2)
    torch.testing.assert_close(ivhl.compute_intensity(field), ivhl.intensity(*args))
    vortices = ivhl.vortex_field(*inputs("vortex_field"))
    torch.testing.assert_close(ivhl.compute_intensity(vortices), vortices.real**2 + vortices.imag**2)


def test_two_sources_interfere() -> None:
    """At the same distance from both, waves in phase give four times the intensity of one, out of phase none."""
    point, one = torch.zeros(1, 3, dtype=double), torch.ones(2, dtype=double)
    sources = torch.tensor([[0.0, 0.0, 0.4], [0.0, 0.4, 0.0]], dtype=double)
    time = torch.tensor(0.5, dtype=double)
    for phases, factor in (([0.3, 0.3], 4.0), ([0.3, 0.3 + math.pi], 0.0), ([0.0, math.pi / 2], 2.0)):
        phase = torch.tensor(phases, dtype=double)
        got = ivhl.intensity(point, sources, 3.0 * one, 2.0 * one, phase, 12.5, time)
        torch.testing.assert_close(got, torch.tensor([factor * 3.0**2 / 0.5**2], dtype=double))


def circle(centre: tuple[float, float], radius: float) -> torch.Tensor:
    angle = torch.linspace(0, 2 * math.pi, 401, dtype=double)
    return torch.stack((centre[0] + radius * angle.cos(), centre[1] + radius * angle.sin()), dim=-1)


def count_windings(positions: torch.Tensor, centres: torch.Tensor, charges: torch.Tensor) -> float:
    field = ivhl.vortex_field(positions, centres, charges, 0.125)
    return float((field[1:] / field[:-1]).angle().sum()) / (2 * math.pi)


def test_the_phase_winds_around_a_vortex_as_often_as_its_charge_says() -> None:
    centres = torch.tensor([[0.3, 0.1], [-0.4, 0.2], [0.0, -0.5]], dtype=double)
    charges = torch.tensor([1.0, -1.0, 2.0], dtype=double)
    for centre, charge in zip(centres.tolist(), charges.tolist(), strict=True):
        assert count_windings(circle(tuple(centre), 0.05), centres, charges) == pytest.approx(charge, abs=1e-9)
    assert count_windings(circle((0.0, 0.0), 3.0), centres, charges) == pytest.approx(2.0, abs=1e-9)
    assert count_windings(circle((0.8, 0.8), 0.05), centres, charges) == pytest.approx(0.0, abs=1e-9)


def test_a_vortex_has_an_empty_core_and_several_multiply() -> None:
    one = torch.ones(1, dtype=double)
    points = torch.tensor([[0.0, 0.0], [0.25, 0.0], [0.0, 50.0]], dtype=double)
    core = ivhl.vortex_field(points, torch.zeros(1, 2, dtype=double), one, 0.125)
    # Two healing lengths away f = 2/√6. There the phase is that of the angle, 0 and then a quarter turn.
    torch.testing.assert_close(core, torch.tensor([0, 2 / 6**0.5, 1j], dtype=torch.complex128), atol=1e-5, rtol=0)
    positions, centres, charges, healing = inputs("vortex_field")
    each = [ivhl.vortex_field(positions, centres[i, None], charges[i, None], healing) for i in range(len(charges))]
    torch.testing.assert_close(torch.stack(each).prod(0), ivhl.vortex_field(positions, centres, charges, healing))
    assert set(charges.tolist()) <= {1.0, -1.0}


# Tensor networks


def test_a_mera_layer_disentangles_each_pair_and_projects_it() -> None:
    sites, disentanglers, isometries = inputs("mera_layer")
    out = ivhl.mera_layer(sites, disentanglers, isometries)
    for pair in (0, 7, 15):
        vector = torch.cat((sites[2 * pair].flatten(), sites[2 * pair + 1].flatten()))
        expected = isometries[pair].mH @ (disentanglers[pair] @ vector)
        torch.testing.assert_close(out[pair], expected)


def test_disentanglers_are_unitary_and_isometries_keep_norms() -> None:
    sites, disentanglers, isometries = inputs("mera_layer")
    ones = torch.eye(512, dtype=torch.complex128).expand(16, -1, -1)
    torch.testing.assert_close(disentanglers.mH @ disentanglers, ones)
    torch.testing.assert_close(isometries.mH @ isometries, ones[:, :32, :32])
    assert (disentanglers.abs() > 1e-4).double().mean() > 0.9, "a dense matrix, not a permutation"
    assert not torch.allclose(disentanglers[0], disentanglers[1])
    coarse = complex_normal(16, 32)
    fine = torch.einsum("nji,njk,nk->ni", disentanglers.conj(), isometries, coarse).reshape(32, 16, 16)
    torch.testing.assert_close(ivhl.mera_layer(fine, disentanglers, isometries), coarse)
    shorter = torch.linalg.vector_norm(ivhl.mera_layer(sites, disentanglers, isometries), dim=-1)
    assert (shorter < torch.linalg.vector_norm(sites.reshape(16, -1), dim=-1)).all()


def to_einsum(legs: tuple[tuple[int, ...], ...], open_legs: tuple[int, ...]) -> str:
    words = ["".join(string.ascii_letters[leg] for leg in some) for some in (*legs, open_legs)]
    return ",".join(words[:-1]) + "->" + words[-1]


def test_a_network_is_one_large_einsum() -> None:
    legs, open_legs = ivhl.happy_legs(6)
    operands = [complex_normal(*[2] * len(some), seed=seed) for seed, some in enumerate(legs)]
    network = ivhl.TensorNetwork(legs, open_legs, ivhl.greedy_path(legs, open_legs, dict.fromkeys(range(60), 2)))
    expected = np.einsum(to_einsum(legs, open_legs), *(t.numpy() for t in operands), optimize="greedy")
    torch.testing.assert_close(network(*operands), torch.from_numpy(expected))


def test_the_amplitude_of_a_simplex_does_not_depend_on_the_path() -> None:
    legs, open_legs = ivhl.gft_legs()
    operands = inputs("gft_network")
    expected = torch.einsum("zabcd,zaefg,zbehi,zcfhj,zdgij->z", *operands)
    torch.testing.assert_close(load("ivhl.gft_network@small", dtype=double).call(*operands), expected)
    for path in (((0, 1), (0, 1), (0, 1), (0, 1)), ((1, 3), (0, 2), (1, 2), (0, 1))):
        torch.testing.assert_close(ivhl.TensorNetwork(legs, open_legs, path)(*operands), expected)


def test_the_greedy_path_contracts_a_chain_from_its_thin_end() -> None:
    legs, sizes = ((0, 1), (1, 2), (2, 3)), {0: 100, 1: 50, 2: 100, 3: 1}
    path = ivhl.greedy_path(legs, (0, 3), sizes)
    assert path == ((1, 2), (0, 1))
    assert ivhl.flops_of(legs, (0, 3), path, sizes) == 8 * (50 * 100 + 100 * 50)
    assert ivhl.flops_of(legs, (0, 3), ((0, 1), (0, 1)), sizes) == 8 * (100 * 50 * 100 + 100 * 100)
    # The pair that frees the most room, not the one with the least result.
    assert ivhl.greedy_path(legs, (0, 3), {0: 1, 1: 2, 2: 10, 3: 20}) == ((1, 2), (0, 1))


def test_open_batches_and_parts_that_share_nothing_are_contracted_too() -> None:
    legs, open_legs, sizes = ((0, 1), (0, 2), (3,), (3,)), (2, 0), {0: 2, 1: 3, 2: 4, 3: 5}
    operands = [complex_normal(*(sizes[leg] for leg in some), seed=seed) for seed, some in enumerate(legs)]
    network = ivhl.TensorNetwork(legs, open_legs, ivhl.greedy_path(legs, open_legs, sizes))
    torch.testing.assert_close(network(*operands), torch.einsum("ab,ac,d,d->ca", *operands))


def test_a_path_that_ends_early_is_refused() -> None:
    with pytest.raises(WorkloadError, match="path has 1 pairs for 3 tensors, but must have one fewer"):
        ivhl.TensorNetwork(((0,), (0, 1), (1,)), (), ((0, 1),))


@pytest.mark.parametrize(
    ("equation", "shapes"),
    [
        ("ab,bc->ac", [(2, 3), (3, 4)]),
        ("ab, bc", [(2, 3), (3, 4)]),
        ("abc,bd,cde,ef->af", [(2, 3, 4), (3, 5), (4, 5, 2), (2, 3)]),
        ("zab,zbc,zca->z", [(6, 2, 3), (6, 3, 4), (6, 4, 2)]),
        ("aab,b->a", [(3, 3, 2), (2,)]),
        ("aa,bb->", [(3, 3), (2, 2)]),
        ("abca->cb", [(2, 3, 4, 2)]),
        ("abc->", [(2, 3, 4)]),
        ("a,b,c->ab", [(2,), (3,), (4,)]),
        ("abc,adx->dx", [(2, 3, 4), (2, 5, 2)]),
    ],
)
def test_any_network_is_contracted_as_by_einsum(equation: str, shapes: list[tuple[int, ...]]) -> None:
    operands = [complex_normal(*shape, seed=seed) for seed, shape in enumerate(shapes)]
    torch.testing.assert_close(ivhl.contract(equation, *operands), torch.einsum(equation, *operands))


def test_a_network_may_have_more_legs_than_there_are_letters() -> None:
    labels = [chr(0x4E00 + i) for i in range(101)]
    equation = ",".join(a + b for a, b in itertools.pairwise(labels)) + f"->{labels[0]}{labels[-1]}"
    matrices = [complex_normal(2, 2, seed=seed) for seed in range(100)]
    expected = functools.reduce(torch.matmul, matrices)
    torch.testing.assert_close(ivhl.contract(equation, *matrices), expected)


@pytest.mark.parametrize(
    ("equation", "message"),
    [
        ("ab,ac->bc", "label 'a' has the sizes 2 and 3, but must have one"),
        ("ab->a", "must have a label for each dimension: the tensors have 2, 2"),
        ("...b,bc->...c", "has an ellipsis"),
        ("ab,bc->aac", "has a label twice in its result"),
        ("ab,bc->ad", "has label 'd' in its result, but no tensor has it"),
    ],
)
def test_an_equation_that_does_not_fit_is_refused(equation: str, message: str) -> None:
    with pytest.raises(WorkloadError, match=message):
        ivhl.contract(equation, torch.ones(2, 3), torch.ones(3, 4))


def test_the_tiling_is_the_hyperbolic_one_of_pentagons_four_at_a_corner() -> None:
    edges = ivhl.happy_tiling(166)
    ring = {0: 0}
    for inner, outer in edges:
        assert ring.setdefault(outer, ring[inner] + 1) == ring[inner] + 1
    # Five times every second Fibonacci number: the growth by the square of the golden ratio of {5, 4}.
    assert sorted(Counter(ring.values()).items()) == [(0, 1), (1, 5), (2, 15), (3, 40), (4, 105)]
    sides = Counter(tile for edge in edges for tile in edge)
    assert {sides[tile] for tile in ring if ring[tile] < 4} == {5}
    assert {sides[tile] for tile in ring if ring[tile] == 4} == {1, 2}
    assert ivhl.happy_tiling(40) == tuple(edge for edge in edges if max(edge) < 40)


def test_every_leg_of_a_happy_network_joins_two_tensors_but_the_logical_one() -> None:
    legs, open_legs = ivhl.happy_legs(21)
    ends = Counter(leg for some in legs for leg in some)
    assert [leg for leg, count in ends.items() if count != 2] == list(open_legs)
    assert [len(some) for some in legs[:21]] == [6] + [5] * 20
    assert sorted(len(some) for some in legs[21:]) == [3] * 5 + [4] * 10  # five tiles have two sides inwards


def test_random_networks_have_mean_square_one() -> None:
    request = Request("network", "cpu", double, 0)
    happy = ivhl.build_tensor_network(request, tiles=6, bond=4), 500
    simplices = ivhl.build_gft_network(request, simplices=500, bond=3), 4
    for workload, times in (happy, simplices):
        drawn = torch.cat([workload.call(*workload.reseed(seed)[0].args) for seed in range(times)])
        assert float(drawn.abs().square().mean()) == pytest.approx(1.0, abs=0.2)


# Entanglement


def test_a_product_state_has_no_entropy_and_a_bell_pair_has_ln_2() -> None:
    product = torch.kron(complex_normal(3), complex_normal(4, seed=1))
    assert float(ivhl.entanglement_entropy(product, 3)) == pytest.approx(0.0, abs=1e-12)
    bell = torch.tensor([1, 0, 0, 1j], dtype=torch.complex128)  # not normalised, and with a phase
    assert float(ivhl.entanglement_entropy(bell, 2)) == pytest.approx(math.log(2))
    skew = torch.tensor([0.6, 0, 0, 0.8], dtype=double)
    expected = -(0.36 * math.log(0.36) + 0.64 * math.log(0.64))
    assert float(ivhl.entanglement_entropy(skew, 2)) == pytest.approx(expected)


def test_both_sides_of_a_cut_have_the_same_entropy() -> None:
    states = complex_normal(5, 3, 4)
    swapped = states.transpose(-1, -2).flatten(-2)
    left, right = ivhl.entanglement_entropy(states.flatten(-2), 3), ivhl.entanglement_entropy(swapped, 4)
    torch.testing.assert_close(left, right)


def test_random_states_have_the_entropy_of_page() -> None:
    """Page, Phys. Rev. Lett. 71, 1291 (1993): ⟨S⟩ = Σ_{k=n+1}^{mn} 1/k − (m − 1)/(2n) for dimensions m ≤ n."""
    m = n = 16
    expected = sum(1 / k for k in range(n + 1, m * n + 1)) - (m - 1) / (2 * n)
    entropies = ivhl.entanglement_entropy(*inputs("entanglement_entropy"))
    assert float(entropies.mean()) == pytest.approx(expected, abs=0.02)


# The condensate


def plane_wave(size: float, waves: tuple[int, int, int], grid: int = 8) -> tuple[torch.Tensor, float]:
    """Return a plane wave and the eigenvalue of −½∇² that it has on the lattice: Σ_a (1 − cos k_a)."""
    numbers = [2 * math.pi * n / grid for n in waves]
    axis = torch.arange(grid, dtype=double)
    x, y, z = torch.meshgrid(axis, axis, axis, indexing="ij")
    phase = numbers[0] * x + numbers[1] * y + numbers[2] * z
    return torch.polar(torch.full_like(phase, size), phase), sum(1 - math.cos(k) for k in numbers)


def test_the_laplacian_has_the_eigenvalues_of_the_lattice() -> None:
    for waves in ((1, 0, 0), (0, 2, 0), (0, 0, 3), (1, 2, 3)):
        field, kinetic = plane_wave(1.5, waves)
        torch.testing.assert_close(ivhl.laplacian(field), -2 * kinetic * field)


def test_the_potential_of_a_constant_and_of_a_plane_wave_are_known() -> None:
    for waves in ((0, 0, 0), (1, 2, 0)):
        field, kinetic = plane_wave(1.5, waves)
        expected = kinetic * 1.5**2 - 0.5 * 1.5**2 + 0.1 * 1.5**4
        torch.testing.assert_close(ivhl.condensate_potential(field), torch.full((8, 8, 8), expected, dtype=double))


def test_the_equation_of_motion_is_the_variation_of_the_energy() -> None:
    """PyTorch calls 2 ∂E/∂φ* the gradient, and i ∂φ/∂t = ∂E/∂φ* for the energy with λ/2."""
    field = complex_normal(4, 4, 4).requires_grad_()
    ivhl.condensate_potential(field, coupling=0.05).sum().backward()
    moved = ivhl.gross_pitaevskii_step(field.detach(), coupling=0.1, time_step=0.01)
    torch.testing.assert_close(1j * (moved - field.detach()) / 0.01, field.grad / 2)


def test_a_step_turns_a_plane_wave_and_leaves_the_vacuum_alone() -> None:
    field, kinetic = plane_wave(1.5, (1, 2, 0))
    frequency = kinetic - 0.5 + 0.1 * 1.5**2
    torch.testing.assert_close(ivhl.gross_pitaevskii_step(field), field * (1 - 0.01j * frequency))
    vacuum, _ = plane_wave(5**0.5, (0, 0, 0))
    torch.testing.assert_close(ivhl.gross_pitaevskii(vacuum, 10), vacuum)


def drift(time_step: float, steps: int) -> tuple[float, float]:
    """Return how far the norm, and a plane wave, have gone astray."""
    field, kinetic = plane_wave(1.5, (1, 2, 0))
    exact = field * np.exp(-1j * (kinetic - 0.5 + 0.1 * 1.5**2) * time_step * steps)
    noisy = inputs("gross_pitaevskii")[0]
    norm = float(noisy.abs().square().sum())
    for _ in range(steps):
        field, noisy = (ivhl.gross_pitaevskii_step(f, time_step=time_step) for f in (field, noisy))
    return float(noisy.abs().square().sum()) / norm - 1, float((field - exact).abs().max())


def test_norm_and_field_are_right_to_first_order_in_time() -> None:
    coarse, fine = drift(0.01, 20), drift(0.005, 40)
    assert coarse[0] > 0
    for far, near in zip(coarse, fine, strict=True):
        assert far / near == pytest.approx(2.0, rel=0.05)
    assert drift(0.01, 1)[0] / drift(0.005, 1)[0] == pytest.approx(4.0, rel=0.05)


@pytest.mark.parametrize("dimensions", [1, 2, 3, 4])
def test_a_plane_wave_is_known_in_any_number_of_dimensions(dimensions: int) -> None:
    grid, waves = 4, (1, 2, 0, 3)[:dimensions]
    axes = torch.meshgrid(*[torch.arange(grid, dtype=double)] * dimensions, indexing="ij")
    phase = sum((2 * math.pi * wave / grid * axis for wave, axis in zip(waves, axes, strict=True)), torch.zeros(()))
    field = torch.polar(torch.full_like(phase, 1.5), phase)
    kinetic = sum(1 - math.cos(2 * math.pi * wave / grid) for wave in waves)
    torch.testing.assert_close(ivhl.laplacian(field, dimensions), -2 * kinetic * field)
    energy = kinetic * 1.5**2 - 0.5 * 1.5**2 + 0.1 * 1.5**4
    torch.testing.assert_close(ivhl.condensate_potential(field, dimensions=dimensions), torch.full_like(phase, energy))
    turned = field * (1 - 0.01j * (kinetic - 0.5 + 0.1 * 1.5**2))
    torch.testing.assert_close(ivhl.gross_pitaevskii_step(field, dimensions=dimensions), turned)
    torch.testing.assert_close(ivhl.gross_pitaevskii(field, 1, dimensions), turned)
    batch = torch.stack((field, 2 * field))
    assert ivhl.laplacian(batch, dimensions)[0].equal(ivhl.laplacian(field, dimensions)), "each by itself"


@pytest.mark.parametrize("name", ["condensate_potential", "gross_pitaevskii_step", "gross_pitaevskii"])
def test_condensates_are_built_in_other_dimensions(name: str) -> None:
    build, more = getattr(ivhl, f"build_{name}"), {"steps": 2} if name == "gross_pitaevskii" else {}
    flat = build(Request(name, "cpu", torch.float32, 0), grid=8, dimensions=2, **more)
    cube = build(Request(name, "cpu", torch.float32, 0), grid=8, **more)
    (example,) = flat.examples
    assert flat.call(*example.args, **example.kwargs).shape == (8, 8)
    assert flat.roofline.flops < cube.roofline.flops / 8
    assert flat.roofline.bytes == cube.roofline.bytes / 8


def test_many_steps_are_steps_in_a_row() -> None:
    (field, steps) = inputs("gross_pitaevskii")
    assert steps == 100
    expected = field
    for _ in range(100):
        expected = ivhl.gross_pitaevskii_step(expected)
    assert torch.equal(ivhl.gross_pitaevskii(field, steps), expected)
    assert float((field - expected).abs().mean()) > 0.05
    assert load("ivhl.gross_pitaevskii_step@small", dtype=double).examples[0].args[0].equal(field)


# Trajectories


def test_a_step_of_trajectories_follows_the_formula_of_the_cell() -> None:
    workload = load("ivhl.gru_step@small", dtype=double)
    vortices, memory = workload.examples[0].args
    cell, head = workload.call.cell, workload.call.head
    with torch.no_grad():
        seen = (vortices @ cell.weight_ih.T + cell.bias_ih).chunk(3, -1)
        known = (memory @ cell.weight_hh.T + cell.bias_hh).chunk(3, -1)
        reset, keep = torch.sigmoid(seen[0] + known[0]), torch.sigmoid(seen[1] + known[1])
        after = (1 - keep) * torch.tanh(seen[2] + reset * known[2]) + keep * memory
        moved = vortices[:, :4] + after @ head.weight.T + head.bias
    for ours, expected in zip(run(workload), (moved, after), strict=True):
        torch.testing.assert_close(ours, expected)
    assert set(vortices[:, 4].tolist()) == {1.0, -1.0}
    assert run(load("ivhl.gru_step@small", dtype=torch.bfloat16))[0].dtype is torch.bfloat16


# Triangulations

PARTS = 2**20
G2 = Fraction(212_500, PARTS)


def weight(lengths: tuple[int, ...]) -> Fraction:
    """π(l) as the module states it: by counting triangulations, not by ratios."""
    total = Fraction(1)
    for t, length in enumerate(lengths):
        after = lengths[(t + 1) % len(lengths)]
        total *= length * Fraction(math.comb(length + after, length), length + after)
    return total * G2 ** sum(lengths)


def slowly(lengths: list[int], grow: list[bool], chances: list[int]) -> list[int]:
    """Take the slices one by one, the even ones first, with whole fractions of π."""
    for t in [*range(0, len(lengths), 2), *range(1, len(lengths), 2)]:
        tried = list(lengths)
        tried[t] += 1 if grow[t] else -1
        ratio = weight(tuple(tried)) / weight(tuple(lengths)) if tried[t] > 0 else Fraction(0)
        lengths = tried if Fraction(chances[t], PARTS) < ratio else lengths
    return lengths


def test_moves_are_those_of_metropolis_with_the_stated_weight() -> None:
    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(1, 6, (200, 6), generator=generator)
    grow = torch.rand(200, 6, generator=generator) < 0.5
    chances = torch.randint(0, PARTS, (200, 6), generator=generator)
    moved = ivhl.pachner_moves(lengths, grow, chances)
    rows = zip(lengths.tolist(), grow.tolist(), chances.tolist(), strict=True)
    assert moved.tolist() == [slowly(*row) for row in rows]
    assert not torch.equal(moved, lengths)


def acceptance(length: int, other: int, grow: bool) -> int:
    """Find by bisection how many of the 2²⁰ chances let slice 0 of (length, other) move."""
    low, high = 0, PARTS
    while low < high:
        middle = (low + high) // 2
        lengths = torch.tensor([length, other])
        moved = ivhl.pachner_moves(lengths, torch.tensor([grow, grow]), torch.tensor([middle, middle]))
        low, high = (middle + 1, high) if int(moved[0]) != length else (low, middle)
    return low


@pytest.mark.parametrize(("length", "other"), [(1, 1), (1, 4), (3, 2), (5, 40), (30, 30)])
def test_a_move_and_its_inverse_are_in_detailed_balance(length: int, other: int) -> None:
    up, down = acceptance(length, other, True), acceptance(length + 1, other, False)
    assert max(up, down) == PARTS, "the likelier way is always taken"
    flow = weight((length, other)) * up, weight((length + 1, other)) * down
    assert float(flow[0] / flow[1]) == pytest.approx(1.0, abs=1e-4)  # to the fineness of the chances
    assert acceptance(1, other, False) == 0, "a slice keeps its last edge"


def test_many_moves_reach_the_distribution_of_the_triangulations() -> None:
    generator = torch.Generator().manual_seed(0)
    lengths = torch.ones(20_000, 2, dtype=torch.int64)
    for _ in range(150):
        grow = torch.rand(lengths.shape, generator=generator) < 0.5
        chances = torch.randint(0, PARTS, lengths.shape, generator=generator)
        lengths = ivhl.pachner_moves(lengths, grow, chances)
    weights = {(a, b): float(weight((a, b))) for a in range(1, 60) for b in range(1, 60)}
    total = sum(weights.values())
    found = Counter(map(tuple, lengths.tolist()))
    for state in ((1, 1), (1, 2), (2, 1), (2, 2), (3, 3)):
        expected = weights[state] / total
        spread = (expected * (1 - expected) / len(lengths)) ** 0.5
        assert abs(found[state] / len(lengths) - expected) < 5 * spread


def test_the_triangulation_is_the_same_in_every_dtype() -> None:
    ours, theirs = (load("ivhl.pachner_moves@small", dtype=dtype) for dtype in (torch.float16, double))
    assert torch.equal(run(ours)[0], run(theirs)[0])
    lengths, grow, chances = ours.examples[0].args
    assert (lengths.dtype, grow.dtype, chances.dtype) == (torch.int64, torch.bool, torch.int64)
    assert (int(lengths.min()), int(lengths.max())) == (1, 50)
    changed = (run(ours)[0] - lengths).abs()
    assert int(changed.max()) == 1
    assert 0.2 < float(changed.double().mean()) < 0.95
