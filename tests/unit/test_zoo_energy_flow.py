"""Family `energy_flow`: the same flows from both forms, births and deaths that really happen, robust decisions."""

from __future__ import annotations

import copy
import itertools
import pickle
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import torchwise_models.zoo.energy_flow as family
from torchwise.workload import Workload
from torchwise.workload.pytree import clone, equal, list_named_leaves, tensors
from torchwise.workload.step_state import loss_of
from torchwise.zoo.random_inputs import Request
from torchwise_models.zoo.catalogue.energy_flow import ENTRIES
from torchwise_models.zoo.energy_flow.carrier import STEEPNESS, STRIDE, Carried
from torchwise_models.zoo.energy_flow.life import CYCLE, DIVISION, FLOOR, LIFESPAN, MATURITY, MODES, RETENTION, level_of
from torchwise_models.zoo.energy_flow.storage import FREE, FlowState, FlowStorage, draw_state, draw_storage, take

OPERATIONS = [entry.operation for entry in ENTRIES]
SIZES = {entry.operation: entry.sizes for entry in ENTRIES}
OUTPUTS = {  # the shape of each output
    "neuron": [(8, 16)],
    "carrier": [(8, 32), (8, 3), (8,), (8, 2, 32)],
    "fused_step": [(8, 3), (8, 32), (8, 2, 32), (8,), (8,), (8,), (8, 3), (), (), ()],
    "storage": [(6, 3), (6, 32), (6, 2, 32), (6,), (8, 3), (8, 32), (8, 2, 32), (8,)],
    "processor": [(8, 3), (8, 32), (8, 2, 32), (8,), (8,), (8,), (), (), (), (), (), ()],
    "padded_processor": [(8, 3), (8, 32), (8, 2, 32), (8,), (8,), (8,), (), (), (), (), (), ()],
    "rollout": [(8, 3), (8, 32), (8, 2, 32), (8,), (8,), (8,), (), (6,), (6,), (6,)],
    "dynamic_rollout": [(8, 3), (8, 32), (8, 2, 32), (8,), (8,), (8,), (), (6,), (6,), (6,)],
    "embedding_mapper": [(8, 3), (8, 32)],
}
PURE = [operation for operation in OPERATIONS if operation != "storage_in_place"]
"""Those that leave their inputs alone. The other one returns a count, and has a test of its own."""
TRAINED = [operation for operation in OPERATIONS if not operation.startswith("storage")]


def build(operation: str, dtype: torch.dtype = torch.float32, seed: int = 0, **size: int) -> Workload:
    request = Request(f"energy_flow.{operation}", "cpu", dtype, seed)
    return getattr(family, f"build_{operation}")(request, **{**SIZES[operation]["small"], **size})


def storage_of(capacity: int, hidden: int = 8, dtype: torch.dtype = torch.float64, seed: int = 0) -> FlowStorage:
    return draw_storage(Request("storage", "cpu", dtype, seed), seed, capacity, hidden)


def run(workload: Workload) -> Any:
    with torch.no_grad():
        return workload.call(*workload.examples[0].args)


def numbers(workload: Workload) -> list[torch.Tensor]:
    weights = list(workload.call.parameters()) if isinstance(workload.call, torch.nn.Module) else []
    return [*weights, *tensors(workload.examples[0].args)]


def all_equal(first: Any, second: Any) -> bool:
    return all(equal(a, b) for a, b in zip(tensors(first), tensors(second), strict=True))


def assert_close(actual: Any, expected: Any, tolerance: float) -> None:
    for (name, a), (_, b) in zip(list_named_leaves(actual), list_named_leaves(expected), strict=True):
        size = float(b.double().abs().max())
        torch.testing.assert_close(a.to(b.dtype), b, rtol=tolerance, atol=tolerance * size, msg=name)


@pytest.mark.parametrize("operation", PURE)
def test_small_runs_with_the_stated_shapes_and_leaves_its_inputs_alone(operation: str) -> None:
    workload = build(operation)
    before = clone(workload.examples[0].args)
    out = tensors(run(workload))
    assert [tuple(t.shape) for t in out] == OUTPUTS[operation]
    assert all(torch.isfinite(t).all() for t in out)
    assert {t.dtype for t in out} <= {torch.float32, torch.int64, torch.bool}
    assert all_equal(before, workload.examples[0].args)
    assert not any((t == 0).all() for t in numbers(workload)), "a weight or input of zeros hides mistakes"


@pytest.mark.parametrize("operation", PURE)
def test_the_seed_decides_every_number(operation: str) -> None:
    first, again, other = (build(operation, seed=seed) for seed in (3, 3, 4))
    assert all_equal(numbers(first), numbers(again))
    assert not any(torch.equal(a, b) for a, b in zip(numbers(first), numbers(other), strict=True))
    assert all_equal(run(first), run(again))
    assert first.reseed is not None
    drawn = [tensors(first.reseed(seed)[0].args) for seed in (3, 9)]
    assert all_equal(drawn[0], first.examples[0].args)
    assert not any(torch.equal(a, b) for a, b in zip(*drawn, strict=True))


@pytest.mark.parametrize("operation", PURE)
def test_float32_agrees_with_float64(operation: str) -> None:
    single, double = build(operation), build(operation, torch.float64)
    assert tensors(run(double))[0].dtype is torch.float64
    assert_close(run(single), run(double), 5e-6)


@pytest.mark.parametrize("operation", TRAINED)
def test_a_model_can_be_raised_to_float64(operation: str) -> None:
    workload = build(operation)
    example = workload.examples[0].map_tensors(lambda t: t.double() if t.is_floating_point() else t)
    raised = Workload(copy.deepcopy(workload.call).double(), (example,))
    assert_close(run(workload), run(raised), 5e-6)
    assert not all_equal(tensors(run(workload))[0].double(), tensors(run(raised))[0])


@pytest.mark.parametrize("operation", OPERATIONS)
def test_half_precision_takes_the_same_decisions(operation: str) -> None:
    half, single = (tensors(run(build(operation, dtype))) for dtype in (torch.bfloat16, torch.float32))
    assert all(equal(a, b) for a, b in zip(half, single, strict=True) if not b.is_floating_point())


@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_workload_survives_the_way_to_another_process(operation: str) -> None:
    workload = build(operation, seed=3)
    there: Workload = pickle.loads(pickle.dumps(workload))
    assert all_equal(run(there), run(workload))
    assert there.reseed is not None
    assert workload.reseed is not None
    assert all_equal(there.reseed(7)[0].args, workload.reseed(7)[0].args)


@pytest.mark.parametrize("operation", PURE)
def test_the_roofline_counts_weights_inputs_and_outputs(operation: str) -> None:
    workload, larger = build(operation), build(operation, **_double_size(operation))
    assert workload.roofline is not None
    assert larger.roofline is not None
    moved = sum(t.numel() * t.element_size() for t in [*numbers(workload), *tensors(run(workload))])
    buffers = sum(t.numel() * 4 for t in workload.call.buffers()) if operation in TRAINED else 0
    assert workload.roofline.bytes == moved + buffers
    assert larger.roofline.flops == 2 * workload.roofline.flops


def _double_size(operation: str) -> dict[str, int]:
    first = next(iter(SIZES[operation]["small"]))
    return {first: 2 * SIZES[operation]["small"][first]}


def test_the_net_does_the_work_that_the_roofline_states() -> None:
    with FlopCounterMode(display=False) as counter:
        workload = build("embedding_mapper", batch=64, width=64, side=4)
        run(workload)
    assert workload.roofline is not None
    assert counter.get_total_flops() < workload.roofline.flops < 1.2 * counter.get_total_flops()
    carrier = build("carrier", batch=4, hidden=64)
    assert carrier.roofline is not None
    matrices = sum(p.numel() for p in carrier.call.parameters() if p.dim() > 1)
    assert 2 * 4 * matrices < carrier.roofline.flops < 1.15 * 2 * 4 * matrices
    neuron, step = build("neuron", batch=4).roofline, build("fused_step", batch=4, hidden=64).roofline
    assert neuron is not None
    assert step is not None
    products, vectors, norm_and_gelu = 3 * 8 + 40 * 16 + 16 * 16, 8 + 4 * 16, 11 * 16
    assert neuron.flops == 4 * (2 * products + vectors + norm_and_gelu)
    assert neuron.flops + carrier.roofline.flops < step.flops < 1.01 * (neuron.flops + carrier.roofline.flops)


def test_the_medium_model_has_the_reference_widths() -> None:
    model = family.FusedStep(1024)
    assert model.carrier.gru.num_layers == 2
    assert 900 < sum(p.numel() for p in model.neuron.parameters()) < 1100
    assert 9.5e6 < sum(p.numel() for p in model.carrier.parameters()) < 10.5e6
    medium = {operation: list(SIZES[operation]["medium"].values())[:2] for operation in ("carrier", "processor")}
    assert medium == {"carrier": [32, 1024], "processor": [32, 1024]}


@pytest.mark.parametrize("operation", TRAINED)
def test_gradients_reach_every_parameter_and_every_input(operation: str) -> None:
    workload = build(operation, torch.float64)
    example = workload.examples[0].map_tensors(lambda t: t.requires_grad_(t.is_floating_point()))
    loss = loss_of(workload.call(*example.args))
    assert loss is not None
    loss.backward()
    trained = [*workload.call.parameters(), *(t for t in tensors(example.args) if t.is_floating_point())]
    for tensor in trained:
        assert tensor.grad is not None
        assert torch.isfinite(tensor.grad).all()
        assert tensor.grad.abs().max() > 0


@pytest.mark.parametrize("operation", ["fused_step", "processor", "padded_processor"])
def test_gradients_agree_with_finite_differences(operation: str) -> None:
    size = {"batch": 4} if operation == "fused_step" else {"capacity": 4}
    workload = build(operation, torch.float64, hidden=4, **size)

    def floats_of(*floats: torch.Tensor) -> tuple[torch.Tensor, ...]:
        rest = iter(floats)
        example = workload.examples[0].map_tensors(lambda t: next(rest) if t.is_floating_point() else t)
        return tuple(t for t in tensors(workload.call(*example.args)) if t.is_floating_point())

    drawn = [t for t in tensors(workload.examples[0].args) if t.is_floating_point()]
    assert torch.autograd.gradcheck(floats_of, [t.clone().requires_grad_() for t in drawn])


def test_the_neuron_drops_out_in_training_only() -> None:
    workload = build("neuron")
    assert not workload.call.training
    workload.call.train()
    torch.manual_seed(0)
    assert not all_equal(run(workload), run(workload))


def test_the_neuron_follows_its_formula() -> None:
    workload = build("neuron", torch.float64)
    (positions, energies), net = workload.examples[0].args, workload.call
    joined = torch.cat((positions @ net.encoder.weight.T + net.encoder.bias, energies), dim=1)
    inner = joined @ net.inner.weight.T + net.inner.bias
    centred = inner - inner.mean(-1, keepdim=True)
    normed = centred / (inner.var(-1, unbiased=False, keepdim=True) + 1e-5).sqrt() * net.norm.weight + net.norm.bias
    activated = normed * 0.5 * (1 + torch.erf(normed / 2**0.5))
    torch.testing.assert_close(run(workload), (activated @ net.outer.weight.T + net.outer.bias).detach())


def gru_layer(net: torch.nn.GRU, layer: int, x: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
    weights = [getattr(net, f"{kind}_l{layer}") for kind in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")]
    ours, theirs = (x @ weights[0].T + weights[2]).chunk(3, -1), (h @ weights[1].T + weights[3]).chunk(3, -1)
    reset, update = (torch.sigmoid(ours[i] + theirs[i]) for i in (0, 1))
    return (1 - update) * torch.tanh(ours[2] + reset * theirs[2]) + update * h


def test_the_carrier_follows_its_formula() -> None:
    workload = build("carrier", torch.float64)
    (features, energies, hidden, ages), net = workload.examples[0].args, workload.call
    with torch.no_grad():
        first = gru_layer(
            net.gru, 0, torch.cat((features, energies, ages[:, None].double() / LIFESPAN), 1), hidden[:, 0]
        )
        second = gru_layer(net.gru, 1, first, hidden[:, 1])
        offered = torch.softmax(net.energy_head(second), 1) * MODES * (ages < MATURITY).double()[:, None]
        gained = RETENTION * energies + (1 - RETENTION) * offered
        charge = STEEPNESS * (gained.mean(1) - DIVISION) + torch.tanh(net.gate_head(second))[:, 0]
        moved = STRIDE * torch.tanh(net.position_head(second))
        expected = Carried(gained, moved, torch.sigmoid(charge), torch.stack((first, second), 1))
    assert_close(run(workload), expected, 1e-10)
    assert 0 < int((ages < MATURITY).sum()) < len(ages)


def test_the_carrier_answers_with_contiguous_tensors() -> None:
    assert all(t.is_contiguous() for t in tensors(run(build("carrier"))))


def test_a_step_moves_flows_and_divides_energy() -> None:
    workload = build("fused_step", torch.float64, batch=64)
    (state,), net = workload.examples[0].args, workload.call
    step = run(workload)
    with torch.no_grad():
        carried = net.carrier(net.neuron(*state[:2]), *state[1:])
    dividing = step.dividing
    assert 0 < int(dividing.sum()) < int(step.alive.sum()) < 64
    torch.testing.assert_close(step.state.energies[dividing], carried.energies[dividing] / 2)
    torch.testing.assert_close(step.state.energies[~dividing], carried.energies[~dividing])
    torch.testing.assert_close(step.state.positions, state.positions + carried.displacements)
    torch.testing.assert_close(step.births, state.positions - carried.gates[:, None] * carried.displacements)
    assert torch.equal(step.state.ages, state.ages + 1)
    assert torch.equal(dividing, step.alive & (carried.gates > 0.5))
    assert [int(n) for n in step.statistics] == [int(step.alive.sum()), int((~step.alive).sum()), 64]


def test_flows_die_of_hunger_and_of_age() -> None:
    workload = build("fused_step", batch=64)
    (state,), step = workload.examples[0].args, run(workload)
    hungry, old = level_of(step.state.energies) < FLOOR, state.ages + 1 >= LIFESPAN
    assert (hungry & ~old).any()
    assert (old & ~hungry).any()
    assert torch.equal(step.alive, ~(hungry | old))


def test_storage_fetches_and_updates_the_live_flows_only() -> None:
    workload = build("storage")
    state, active, fresh = workload.examples[0].args
    fetched, updated = run(workload)
    live = [slot for slot in range(8) if active[slot]]
    assert len(live) == 6
    for old, got, new, rows in zip(state, fetched, updated, fresh, strict=True):
        assert torch.equal(got, torch.stack([old[slot] for slot in live]))
        expected = [rows[live.index(slot)] if slot in live else old[slot] for slot in range(8)]
        assert torch.equal(new, torch.stack(expected))


def test_storage_is_updated_in_place_as_in_new_memory() -> None:
    for live in (8, 5, 0):
        storage, fresh = storage_of(8), draw_state(Request("fresh", "cpu", torch.float64, 3), 3, 8, 8)
        active = torch.arange(8).flip(0) < live
        first = FlowState(*(rows[:live] for rows in fresh))
        _, expected = family.fetch_and_update(storage.state, active, first)
        assert int(family.update_in_place(storage.state, active, fresh)) == live
        for ours, theirs in zip(storage.state, expected, strict=True):
            assert torch.equal(ours, theirs)


def sequential(net: family.FusedStep, storage: FlowStorage) -> tuple[FlowStorage, int, int]:
    """Process flow after flow, in plain Python: the rule that both forms must obey."""
    rows: dict[int, FlowState] = {}
    names: dict[int, int] = {}
    children = []
    for slot in storage.active.nonzero()[:, 0].tolist():
        step = net(take(storage.state, torch.tensor([slot])))
        if step.alive:
            rows[slot], names[slot] = step.state, int(storage.ids[slot])
        if step.dividing:
            children.append(step.state._replace(positions=step.births, ages=torch.zeros(1, dtype=torch.int64)))
    free = [slot for slot in range(len(storage.ids)) if slot not in rows]
    for order, (slot, child) in enumerate(zip(free, children, strict=False)):
        rows[slot], names[slot] = child, int(storage.next_id) + order
    born = min(len(free), len(children))
    state = FlowState(*(torch.zeros_like(values) for values in storage.state))
    for slot, row in rows.items():
        for values, value in zip(state, row, strict=True):
            values[slot] = value[0]
    active = torch.tensor([slot in rows for slot in range(len(storage.ids))])
    ids = torch.tensor([names.get(slot, FREE) for slot in range(len(storage.ids))])
    return FlowStorage(state, active, ids, storage.next_id + born), born, len(children) - born


def test_both_forms_follow_the_rule_through_births_deaths_and_overflow() -> None:
    storage = storage_of(24, seed=1)
    padded = build("padded_processor", torch.float64, hidden=8).call
    dynamic = family.DynamicProcessor(family.FusedStep(8)).double().eval()
    dynamic.load_state_dict(padded.state_dict())
    totals, populations = torch.zeros(3, dtype=torch.int64), []
    for _ in range(12):
        with torch.no_grad():
            expected, born, lost = sequential(padded.step, storage)
            answers = padded(storage), dynamic(storage)
        for answer in answers:
            assert_close(answer.storage, expected, 1e-10)
            alive, dead, processed = (int(count) for count in answer.statistics)
            assert (processed, alive + dead) == (int(storage.active.sum()), processed)
            assert (int(answer.born), int(answer.lost)) == (born, lost)
            assert int(expected.active.sum()) == alive + born
        storage = expected
        totals += torch.tensor([born, lost, dead])
        populations.append(alive + born)
    assert (totals > 3).all(), "births, losses and deaths must really happen"
    assert sum(a != b for a, b in itertools.pairwise(populations)) > 6
    assert len(set(storage.ids[storage.active].tolist())) == populations[-1]


@pytest.mark.parametrize("operation", ["processor", "dynamic_rollout"])
def test_the_dynamic_forms_declare_a_static_one_that_has_the_very_parameters(operation: str) -> None:
    workload = build(operation)
    generator = torch.get_rng_state()
    form = workload.call.static_form()
    assert torch.equal(torch.get_rng_state(), generator), "no weights are drawn that are not used"
    ours, theirs = dict(form.named_parameters()), dict(workload.call.named_parameters())
    assert list(ours) == list(theirs)
    assert all(ours[name] is theirs[name] for name in ours)
    assert form.static_form() is form
    with torch.no_grad():
        answer = form(*workload.examples[0].args)
    assert type(answer) is type(run(workload))
    assert_close(answer, run(workload), 1e-5)
    kinds = {type(part) for part in form.modules()}
    assert family.PaddedProcessor in kinds
    assert family.DynamicProcessor not in kinds


@pytest.mark.parametrize("operation", ["padded_processor", "rollout"])
def test_what_is_static_has_no_other_form(operation: str) -> None:
    model = build(operation).call
    assert model.static_form() is model


def test_what_free_slots_hold_has_no_meaning() -> None:
    workload = build("padded_processor")
    (storage,) = workload.examples[0].args
    spoiled = [values.clone() for values in storage.state]
    for values in spoiled[:3]:
        values[~storage.active] = float("nan")
    spoiled[3][~storage.active] = 1  # as young as can be, but not alive
    with torch.no_grad():
        answer = workload.call(storage._replace(state=FlowState(*spoiled)))
    assert all_equal(answer, run(workload))
    assert not answer.storage.active.all()
    assert all((values[~answer.storage.active] == 0).all() for values in answer.storage.state)


@pytest.mark.parametrize("make", [family.DynamicProcessor, family.PaddedProcessor])
@pytest.mark.parametrize("live", [0, 12])
def test_storage_may_be_empty_or_full(make: Any, live: int) -> None:
    storage = storage_of(12, dtype=torch.float32)
    storage = storage._replace(active=torch.full((12,), live > 0))
    with torch.no_grad():
        answer = make(family.FusedStep(8)).eval()(storage)
    assert int(answer.statistics.processed) == live
    assert int(answer.storage.active.sum()) == int(answer.statistics.alive + answer.born)
    assert int(answer.storage.next_id - storage.next_id) == int(answer.born)


def test_a_rollout_is_its_steps_in_a_row_in_both_forms() -> None:
    padded, dynamic = (build(name, torch.float64, capacity=16) for name in ("rollout", "dynamic_rollout"))
    (storage,) = padded.examples[0].args
    rolled = run(padded)
    assert_close(run(dynamic), rolled, 1e-10)
    populations = [int(storage.active.sum()), *rolled.population.tolist()]
    for step in range(6):
        with torch.no_grad():
            storage = padded.call.processor(storage).storage
        assert populations[step + 1] == populations[step] + rolled.births[step] - rolled.deaths[step]
        assert int(storage.active.sum()) == rolled.population[step]
    assert all_equal(storage, rolled.storage)


def margins(workload: Workload, steps: int) -> tuple[float, float, set[int]]:
    """Return how close a level comes to the floor and a gate to opening, and the populations on the way."""
    (storage,), step = workload.examples[0].args, workload.call.step
    floor, gate, populations = 1.0, 1.0, set()
    for _ in range(steps):
        live = take(storage.state, storage.active)
        with torch.no_grad():
            carried = step.carrier(step.neuron(*live[:2]), *live[1:])
            storage = workload.call(storage).storage
        floor = min(floor, float((level_of(carried.energies) - FLOOR).abs().min()))
        gate = min(gate, float((carried.gates - 0.5).abs().min()))
        populations.add(int(storage.active.sum()))
    return floor, gate, populations


def test_no_decision_is_close_so_that_rounding_decides_none() -> None:
    workload = build("padded_processor", capacity=4096, hidden=8)
    floor, gate, populations = margins(workload, steps=40)
    assert floor > 0.02
    assert gate > 0.15
    assert len(populations) > 3
    assert min(populations) > 2000


def test_many_flows_and_steps_keep_float32_on_the_path_of_float64() -> None:
    single, double = (
        run(build("rollout", dtype, capacity=512, hidden=16, steps=40)) for dtype in (torch.float32, torch.float64)
    )
    assert torch.equal(single.storage.ids, double.storage.ids)
    assert_close(single, double, 1e-5)


def test_the_cycle_returns_to_itself() -> None:
    level = CYCLE[0]
    for expected in (*CYCLE[1:], 2 * CYCLE[0]):
        level = RETENTION * level + 1 - RETENTION
        assert level == pytest.approx(expected, abs=1e-15)
    assert CYCLE[-1] < DIVISION < level


def test_drawn_storage_is_a_system_that_has_been_running() -> None:
    storage = storage_of(512)
    assert int(storage.active.sum()) == 384
    assert torch.equal(storage.ids == FREE, ~storage.active)
    live = storage.ids[storage.active]
    assert torch.equal(live, torch.arange(int(storage.next_id) - 384, int(storage.next_id)))
    assert set(storage.state.ages.tolist()) == set(range(LIFESPAN))
    levels = level_of(storage.state.energies)[:, None]
    nearest = (levels / torch.tensor(CYCLE, dtype=torch.float64) - 1).abs()
    assert (nearest.min(dim=1).values < 0.0201).all()
    assert set(nearest.argmin(dim=1).tolist()) == {0, 1, 2}
    assert (storage.state.energies > 0).all()


def test_the_mapper_starts_one_flow_in_each_cell_at_the_level_of_the_newborn() -> None:
    workload = build("embedding_mapper", torch.float64, batch=3, side=4)
    started = run(workload)
    torch.testing.assert_close(level_of(started.energies), torch.full((48,), CYCLE[0], dtype=torch.float64))
    assert started.energies.std(dim=1).min() > 0.05, "every flow spreads its energy in its own way"
    assert (started.positions[:, 2] == -1).all()
    plane = started.positions[:, :2].view(3, 16, 2)
    cells = ((plane + 1) * 2).floor().long()
    assert cells[0].tolist() == cells[1].tolist() == [[i, j] for i in range(4) for j in range(4)]
    one = build("embedding_mapper", torch.float64, batch=3, side=4)
    alone = one.call(one.examples[0].args[0][1:2])
    torch.testing.assert_close(alone.positions, started.positions[16:32])


def test_the_inputs_are_placed_and_rounded_last() -> None:
    request = Request("storage", "cpu", torch.float64, 2)
    single = draw_storage(replace(request, dtype=torch.bfloat16), 2, 64, 4)
    double = draw_storage(request, 2, 64, 4)
    assert all(equal(a, b.to(a.dtype)) for a, b in zip(tensors(single), tensors(double), strict=True))
