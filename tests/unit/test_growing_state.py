"""State that grows on each call: a static plan compiles each call anew and says so. A dynamic one compiles once."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from torchwise.errors import UnsupportedError
from torchwise.plan import Plan
from torchwise.plan.effort import EFFORTS
from torchwise.plan.workload_spec import WorkloadSpec
from torchwise.trial.experiment import PlanCandidate, PlanExperiment
from torchwise.trial.job import Job
from torchwise.trial.plain_call import run_plainly
from torchwise.workload import Example, Workload

pytestmark = pytest.mark.usefixtures("dynamo_afresh", "only_traced")

WIDTH = 8


class Cache:
    def __init__(self) -> None:
        self.keys = torch.zeros(1, 1, WIDTH)


class Keeping(nn.Module):
    """Keeps the inputs of all calls in an object that it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor, cache: Cache) -> torch.Tensor:
        cache.keys = torch.cat([cache.keys, self.project(x)], 1)
        return nn.functional.scaled_dot_product_attention(x, cache.keys, cache.keys)


class Remembering(nn.Module):
    """Keeps the inputs of all calls in an attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(WIDTH, WIDTH)
        self.seen = torch.zeros(1, 1, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen = torch.cat([self.seen, self.project(x)], 1)
        return self.seen.mean(1) + x


class Buffered(nn.Module):
    """Keeps the inputs of all calls in a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(WIDTH, WIDTH)
        self.register_buffer("seen", torch.zeros(1, 1, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen = torch.cat([self.seen, self.project(x)], 1)
        return self.seen.amax(1) * x


def make_keeping() -> Any:
    return Keeping().eval(), (torch.rand(1, 1, WIDTH), Cache())


def make_remembering() -> Any:
    return Remembering().eval(), (torch.rand(1, 1, WIDTH),)


def make_buffered() -> Any:
    return Buffered().eval(), (torch.rand(1, 1, WIDTH),)


PLACES = {make_keeping: ".keys", make_remembering: "seen", make_buffered: "seen"}


class Selecting(nn.Module):
    """Works on the rows that its values select."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = x[x[:, 0] > 0]
        return torch.tanh(rows).sum(0) * len(rows)


def draw(seed: int, most: int = 100) -> tuple[Example, ...]:
    """Draw inputs of which as many rows are selected as the seed says."""
    x = -torch.ones(100, 4)
    x[: seed % most + 1] = 1.0
    return (Example((x,)),)


def make_selection() -> Workload:
    return Workload(Selecting().eval(), draw(0), reseed=draw)


def make_selection_of_few() -> Workload:
    return Workload(Selecting().eval(), draw(0), reseed=partial(draw, most=2))


def settle(factory: Any, shapes: Any) -> float:
    job = Job(
        "try",
        WorkloadSpec(f"{__file__}:{factory.__name__}", device="cpu"),
        Plan(backend="inductor", shapes=shapes),
        traits=frozenset({"stateful"}),
        effort=EFFORTS["quick"],
    )
    tried = PlanExperiment(job, PlanCandidate(job.plan))
    tried.build()
    tried.first_calls()
    return tried.settle()


@pytest.mark.parametrize("factory", PLACES)
def test_a_static_plan_names_what_grows_and_the_way_out(factory: Any) -> None:
    with pytest.raises(UnsupportedError, match="as each gives another shape to") as raised:
        settle(factory, "static")
    assert PLACES[factory] in str(raised.value)
    assert "shapes='dynamic'" in str(raised.value)


@pytest.mark.parametrize("factory", PLACES)
def test_a_dynamic_plan_settles(factory: Any) -> None:
    settle(factory, "dynamic")


def test_a_static_plan_that_compiles_for_every_number_of_rows_is_refused() -> None:
    with pytest.raises(UnsupportedError, match=r"5 calls on other values took .* to compile again") as raised:
        settle(make_selection, "static")
    assert "use masks over static sizes, or shapes='dynamic'" in str(raised.value)


@pytest.mark.parametrize(
    ("factory", "shapes"),
    [(make_selection, "dynamic"), (make_selection_of_few, "static"), (make_selection_of_few, "dynamic")],
)
def test_compilations_for_other_values_have_their_price_if_they_end(factory: Any, shapes: str) -> None:
    assert settle(factory, shapes) > 0


def test_values_that_need_no_other_code_cost_nothing() -> None:
    assert settle(make_remembering, "dynamic") == 0


class Window(nn.Module):
    """Keeps the last inputs, up to a number of them."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size
        self.seen = torch.zeros(1, 1, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen = torch.cat([self.seen, x], 1)[:, -self.size :]
        return self.seen.mean(1) + x


@pytest.mark.parametrize(("size", "grows"), [(2, False), (4, False), (16, False), (100, True)])
def test_a_window_of_the_last_inputs_is_full_after_a_few_calls(size: int, grows: bool) -> None:
    model = Window(size).eval()
    once = run_plainly(Workload(model, (Example((torch.rand(1, 1, WIDTH),)),)), "inference")
    assert once.grows is grows
    assert model.seen.shape[1] == 2, "all calls but the first are undone"


@pytest.mark.parametrize("factory", PLACES)
def test_other_state_grows_for_ever(factory: Any) -> None:
    model, args = factory()
    assert run_plainly(Workload(model, (Example(args),)), "inference").grows
