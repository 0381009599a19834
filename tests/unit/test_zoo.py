"""Rules for every reference workload: names, seeds, sizes, precision, gradients, randomness."""

from __future__ import annotations

import functools
import importlib
import inspect
import math
import pickle
import subprocess
import sys

import pytest
import torch

from torchwise.errors import TargetError, WorkloadError
from torchwise.verify.reference import as_reference, float64_of, widen
from torchwise.workload import Workload, pytree
from torchwise.workload.step_state import loss_of
from torchwise.workload.target import load as load_target
from torchwise.zoo import Entry, list_workloads, load
from torchwise.zoo.catalogue import SIZES
from torchwise.zoo.registry import load_zoo, select
from torchwise_models.zoo.ivhl import field_superposition
from zoo_checks import continuous, inputs, run, worst_error

ENTRIES = tuple(entry for entry in list_workloads() if not entry.is_step)
"""Those that answer. Whole training steps are tested in `test_zoo_training`."""
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)

every = pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
IN_PLACE = {"energy_flow.storage_in_place"}
"""Those that write to their inputs, and return how much they wrote."""
pure = pytest.mark.parametrize("entry", [e for e in ENTRIES if e.name not in IN_PLACE], ids=lambda entry: entry.name)
trained = pytest.mark.parametrize("entry", [e for e in ENTRIES if e.trains], ids=lambda entry: entry.name)


def small(entry: Entry, seed: int = 3, dtype: torch.dtype = torch.float32) -> Workload:
    return load(f"{entry.name}@small", seed=seed, dtype=dtype)


@functools.cache
def load_once(name: str) -> Workload:
    """Return a small workload for tests that leave it as it is."""
    return load(f"{name}@small", seed=3)


def state(workload: Workload) -> list[torch.Tensor]:
    """List parameters and buffers."""
    return list(workload.call.state_dict().values()) if isinstance(workload.call, torch.nn.Module) else []


def parameters(workload: Workload) -> list[torch.Tensor]:
    found = list(workload.call.parameters()) if isinstance(workload.call, torch.nn.Module) else []
    return [parameter for parameter in found if parameter.requires_grad]


def same(ours: list[torch.Tensor], theirs: list[torch.Tensor]) -> bool:
    return all(pytree.equal(a, b) for a, b in zip(ours, theirs, strict=True))


@every
def test_small_gives_finite_answers_that_are_not_all_zero(entry: Entry) -> None:
    workload = load_once(entry.name)
    outputs = run(workload)
    assert outputs
    for output in outputs:
        assert output.numel() > 0
        assert torch.isfinite(torch.view_as_real(output) if output.is_complex() else output).all()
    assert all((output != 0).any() for output in continuous(outputs)), "the signal has died on its way"
    assert workload.name == f"{entry.name}@small"


@every
def test_the_roofline_counts_at_least_what_must_be_moved(entry: Entry) -> None:
    workload = load_once(entry.name)
    assert workload.roofline is not None
    assert 0 < workload.roofline.flops < math.inf
    first = workload.examples[0].clone()
    outputs = pytree.tensors(workload.call(*first.args, **first.kwargs))
    # Whole numbers and masks may be read in part only, or stand for fewer bits. Shared memory moves once.
    moved = continuous([*pytree.tensors((first.args, dict(first.kwargs))), *parameters(workload), *outputs])
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in moved}
    assert workload.roofline.bytes >= sum(storages.values())


@every
def test_the_seed_decides_every_number(entry: Entry) -> None:
    first, again, other = (small(entry, seed) for seed in (3, 3, 4))
    for numbers in (state, inputs, run):
        assert same(numbers(first), numbers(again))
    if entry.name not in IN_PLACE:
        assert not same(run(first), run(other))
    assert not any(pytree.equal(a, b) for a, b in zip(parameters(first), parameters(other), strict=True))
    assert not same(inputs(first), inputs(other))


@every
def test_no_weight_and_no_input_is_all_zeros(entry: Entry) -> None:
    workload = load_once(entry.name)
    assert not any((t == 0).all() for t in continuous([*parameters(workload), *inputs(workload)]))


@every
def test_reseed_draws_other_inputs_of_the_same_kind(entry: Entry) -> None:
    workload = load_once(entry.name)
    assert workload.reseed is not None
    redrawn, other = (Workload(workload.call, workload.reseed(seed)) for seed in (3, 9))
    assert same(inputs(redrawn), inputs(workload))
    assert not same(inputs(other), inputs(workload))
    kinds = [[(t.shape, t.dtype, t.stride(), t.device) for t in inputs(which)] for which in (workload, other)]
    assert kinds[0] == kinds[1]
    assert [e.weight for e in other.examples] == [e.weight for e in workload.examples]


@pure
def test_a_call_changes_neither_its_inputs_nor_the_next_answer(entry: Entry) -> None:
    workload = small(entry)
    before = [t.clone() for t in inputs(workload)]
    torch.manual_seed(0)
    with torch.no_grad():
        outputs = pytree.tensors([workload.call(*e.args, **e.kwargs) for e in workload.examples])
    assert same(inputs(workload), before)
    assert same(run(workload), outputs)


@every
def test_float32_agrees_with_float64(entry: Entry) -> None:
    single, double = load_once(entry.name), small(entry, dtype=torch.float64)
    with as_reference():
        reference = run(double)
    assert worst_error(run(single), reference) < entry.tolerance


@every
def test_a_loaded_workload_can_be_raised_to_float64(entry: Entry) -> None:
    workload = load_once(entry.name)
    raised = Workload(float64_of(workload.call), tuple(map(widen, workload.examples)))
    with as_reference():
        reference = run(raised)
    assert worst_error(run(workload), reference) < entry.tolerance


@every
def test_what_is_random_by_design_says_so(entry: Entry) -> None:
    workload = load_once(entry.name)
    assert same(run(workload, seed=1), run(workload, seed=2)) is not entry.stochastic


@trained
def test_what_trains_gives_every_parameter_a_gradient(entry: Entry) -> None:
    workload = small(entry)
    example = workload.examples[0].clone()
    wanted = [*parameters(workload), *(t for t in pytree.tensors(example.args) if t.requires_grad)]
    loss = loss_of(workload.call(*example.args, **example.kwargs))
    assert loss is not None
    for gradient in torch.autograd.grad(loss, wanted):
        assert torch.isfinite(gradient).all()
        assert (gradient != 0).any()


@every
def test_every_floating_type_is_answered_in_or_refused(entry: Entry) -> None:
    for dtype in FLOATS:
        try:
            workload = small(entry, dtype=dtype)
        except WorkloadError as error:
            why = str(error)
        else:
            assert not any(torch.isnan(t).any() for t in run(workload))
            continue
        assert dtype not in (torch.float32, torch.float64)
        assert f"dtype is {dtype}, but" in why


@every
def test_the_builder_is_documented_and_takes_what_each_size_gives(entry: Entry) -> None:
    build = getattr(importlib.import_module(load_zoo().families[entry.family].module), f"build_{entry.operation}")
    assert inspect.getdoc(build)
    _, *keywords = inspect.signature(build).parameters.values()
    needed = {p.name for p in keywords if p.default is p.empty}
    for size in SIZES:
        assert needed <= set(entry.sizes[size]) <= {p.name for p in keywords}
        assert set(entry.sizes[size]) == set(entry.sizes["small"])
    assert entry.summary
    assert "\n" not in entry.summary


@every
@pytest.mark.slow  # the larger models have a hundred million weights to draw
def test_medium_is_more_work_than_small(entry: Entry) -> None:
    ours, theirs = load_once(entry.name).roofline, load(f"{entry.name}@medium").roofline
    assert ours.bytes < theirs.bytes
    assert ours.flops < theirs.flops


@every
def test_a_workload_survives_the_way_to_another_process(entry: Entry) -> None:
    workload = small(entry)
    there: Workload = pickle.loads(pickle.dumps(workload))
    assert same(run(there), run(workload))
    assert there.reseed is not None
    assert workload.reseed is not None
    ours, theirs = (inputs(Workload(side.call, side.reseed(7))) for side in (workload, there))
    assert same(ours, theirs)


def test_the_global_generator_is_neither_read_nor_moved() -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()
    for entry in ENTRIES:
        small(entry)
    assert torch.equal(torch.get_rng_state(), before)


def test_names_are_unique_and_families_stand_together() -> None:
    assert len({entry.name for entry in ENTRIES}) == len(ENTRIES)
    families = [entry.family for entry in ENTRIES]
    assert families == sorted(families, key=families.index)
    assert [e for family in dict.fromkeys(families) for e in select(family)] == list(ENTRIES)


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


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("fusion_demo", "did you mean tutorial.fusion_demo"),
        ("tutoral.fusion_demo", "did you mean tutorial.fusion_demo"),
        ("tutorial.fusion_dmeo", "did you mean fusion_demo.* There are fusion_demo, many_small_ops"),
        ("tutorial.", "has no operation ''. There are fusion_demo, many_small_ops"),
        ("tutorial", "whole zoo family; choose one of tutorial.*tutorial.many_small_ops"),
        ("tutoral", "did you mean tutorial or"),
        ("nothing.like_it", "no workload 'nothing.like_it'. `torchwise zoo` lists its families: .*ivhl.*tutorial"),
        ("tutorial.fusion_demo@smal", "size is 'smal'; did you mean small"),
        ("tutorial.fusion_demo@huge", "There are small, medium, large, extreme"),
    ],
)
def test_a_wrong_name_is_answered_with_near_misses_and_the_list(name: str, message: str) -> None:
    with pytest.raises(TargetError, match=message):
        load(name)


def test_the_default_size_is_medium() -> None:
    assert load("tutorial.branch").name == "tutorial.branch@medium"


def test_a_dtype_that_is_not_floating_is_refused() -> None:
    with pytest.raises(WorkloadError, match=r"int32, but must be a floating-point type"):
        load("tutorial.fusion_demo", dtype=torch.int32)


def test_an_entry_without_a_size_is_refused() -> None:
    with pytest.raises(ValueError, match="must have small, medium, large, extreme"):
        Entry("family.operation", "nothing", {"small": {}})


def test_zoo_is_a_target_scheme() -> None:
    workload = load_target("zoo:tutorial.many_small_ops@small", seed=3)
    assert same(run(workload), run(load("tutorial.many_small_ops@small", seed=3)))


def test_listing_loads_no_torch() -> None:
    code = "import sys, torchwise.zoo as zoo; zoo.list_workloads(); sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
