"""Family `training`: whole steps that learn, the same in every precision, on batches of any seed."""

from __future__ import annotations

import importlib
import inspect
import pickle

import pytest
import torch

from torchwise.workload import Workload, pytree
from torchwise.workload.train_step import TrainStep
from torchwise.zoo import Entry, load
from torchwise.zoo.catalogue import SIZES
from torchwise.zoo.registry import select
from torchwise_models.zoo.training import diffuse
from zoo_checks import least_agreement, losses

ENTRIES = select("training")
every = pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)


def small(entry: Entry, seed: int = 3, dtype: torch.dtype = torch.float32) -> Workload:
    return load(f"{entry.name}@small", seed=seed, dtype=dtype)


@every
def test_it_learns(entry: Entry) -> None:
    workload = small(entry)
    assert workload.step is not None
    found = losses(workload, 60)
    assert sum(found[-5:]) < 0.95 * sum(found[:5])


@every
def test_every_parameter_is_trained_and_gets_a_gradient(entry: Entry) -> None:
    step = small(entry).step
    assert isinstance(step, TrainStep)
    assert {id(p) for p in step.trained()} == {id(p) for p in step.model.parameters()}
    step(*small(entry).examples[0].args)
    for parameter in step.model.parameters():
        assert parameter.grad is not None
        assert torch.isfinite(parameter.grad).all()
        assert (parameter.grad != 0).any()


@every
def test_float32_agrees_with_float64(entry: Entry) -> None:
    single, double = small(entry), small(entry, dtype=torch.float64)
    assert double.step is not None
    assert double.step.autocast is None
    assert losses(single, 2) == pytest.approx(losses(double, 2), rel=least_agreement(entry, single))


@every
def test_equal_seeds_give_equal_steps_and_others_other_ones(entry: Entry) -> None:
    assert losses(small(entry), 2) == losses(small(entry), 2)
    assert losses(small(entry), 1) != losses(small(entry, seed=4), 1)


@every
def test_it_draws_further_batches_of_the_same_form(entry: Entry) -> None:
    workload = small(entry)
    assert workload.reseed is not None
    (given,), (drawn,) = workload.examples, workload.reseed(99)
    ours, theirs = pytree.tensors(given.args), pytree.tensors(drawn.args)
    assert [(t.shape, t.dtype) for t in ours] == [(t.shape, t.dtype) for t in theirs]
    assert not torch.equal(ours[0], theirs[0])


@every
def test_it_travels_to_a_worker(entry: Entry) -> None:
    workload = small(entry)
    there = pickle.loads(pickle.dumps(workload.call))
    torch.manual_seed(0)
    assert float(there(*workload.examples[0].args)) == losses(workload, 1)[0]


@every
def test_the_builder_is_documented_and_takes_what_each_size_gives(entry: Entry) -> None:
    build = getattr(importlib.import_module("torchwise_models.zoo.training"), f"build_{entry.operation}")
    assert inspect.getdoc(build)
    _, *keywords = inspect.signature(build).parameters
    for size in SIZES:
        assert set(entry.sizes[size]) == set(keywords)


def test_diffusion_keeps_the_sum_and_flattens_the_field() -> None:
    field = torch.randn(2, 3, 8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    spread = diffuse(field)
    torch.testing.assert_close(spread.sum((-2, -1)), field.sum((-2, -1)))
    assert (spread.var((-2, -1)) < field.var((-2, -1))).all()
    torch.testing.assert_close(diffuse(torch.ones(4, 4)), torch.ones(4, 4))
