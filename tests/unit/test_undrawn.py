"""Calling what draws random numbers without drawing any: the generator stays where it was, and forms are kept."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from torchwise.background.undrawn import Undrawn, call_undrawn
from torchwise.plan import Plan
from torchwise.realize import realize
from torchwise.realize.ahead import Loader, Maker
from torchwise.workload import Example, Workload

X = torch.randn(3, 8)
DRAWING: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "rand_like": torch.rand_like,
    "randn": lambda x: torch.randn(3, 8),
    "randint": lambda x: torch.randint(0, 5, (3, 8)),
    "randint into": lambda x: torch.randint(0, 5, (3, 8), out=torch.empty(3, 8, dtype=torch.int64)),
    "randperm": lambda x: torch.randperm(8),
    "dropout": lambda x: torch.nn.functional.dropout(x, 0.5, training=True),
    "bernoulli": lambda x: torch.bernoulli(x.sigmoid()),
    "multinomial": lambda x: torch.multinomial(x.sigmoid(), 2),
    "normal": lambda x: torch.normal(x, 1.0),
    "in place": lambda x: x.clone().uniform_(),
    "another dtype": lambda x: torch.rand(3, 8, dtype=torch.float64),
}


@pytest.mark.parametrize("name", DRAWING)
def test_nothing_is_drawn_and_forms_are_kept(name: str) -> None:
    right = DRAWING[name](X)
    before = torch.get_rng_state()
    with Undrawn():
        found = DRAWING[name](X)
    assert torch.equal(torch.get_rng_state(), before)
    assert (found.shape, found.dtype, found.device) == (right.shape, right.dtype, right.device)


def test_what_draws_nothing_is_as_it_is() -> None:
    with Undrawn():
        found = torch.nn.functional.gelu(X) @ X.T
    assert torch.equal(found, torch.nn.functional.gelu(X) @ X.T)


def noisy(x: torch.Tensor) -> torch.Tensor:
    return torch.sin(x) + torch.rand_like(x)


@pytest.mark.slow
def test_compiled_code_draws_nothing_either() -> None:
    plan, example, maker = Plan(backend="inductor"), Example((X,)), Maker()
    with torch.no_grad():
        realize(noisy, plan, example, device="cpu", mode="inference", backend=maker).call(X)
        loader = Loader(maker.made)
        ready = realize(noisy, plan, example, device="cpu", mode="inference", backend=loader)
        torch.manual_seed(5)
        before = torch.get_rng_state()
        call_undrawn(noisy, plan, loader, Workload(noisy, (example,)), "cpu")
        assert torch.equal(torch.get_rng_state(), before)
        ready.call(X)  # and it would have drawn
        assert not torch.equal(torch.get_rng_state(), before)
