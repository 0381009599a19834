"""Sparse, nested and quantized tensors are copied, compared, written and sized by their parts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import torchwise
from torchwise.records import Check, Outcome
from torchwise.verify import Subject, verify
from torchwise.verify.step import StepSubject, verify_step
from torchwise.verify.step_runner import StepRunner
from torchwise.workload import Example, Workload, layouts, pytree
from torchwise.workload.module_state import kept_state
from torchwise.workload.step_state import loss_of

pytestmark = pytest.mark.filterwarnings("ignore:.*(beta state|prototype stage|deprecated).*", "ignore::FutureWarning")

GRID = torch.tensor([[1.0, 0.0, 2.0, 0.0], [0.0, 0.0, 3.0, 0.0], [4.0, 0.0, 0.0, 0.0], [0.0, 5.0, 0.0, 6.0]])
Layout = Callable[[torch.Tensor], torch.Tensor]
SPARSE: dict[str, Layout] = {
    "coo": lambda x: x.to_sparse(),
    "hybrid": lambda x: x.to_sparse(1),
    "uncoalesced": lambda x: torch.sparse_coo_tensor(torch.tensor([[0, 0], [1, 1]]), x[0, [0, 2]], (4, 4)),
    "csr": lambda x: x.to_sparse_csr(),
    "csc": lambda x: x.to_sparse_csc(),
    "bsr": lambda x: x.to_sparse_bsr((2, 2)),
    "bsc": lambda x: x.to_sparse_bsc((2, 2)),
}
LAYOUTS: dict[str, Layout] = {
    **SPARSE,
    "jagged": lambda x: torch.nested.nested_tensor([x[0], x[1, :3]], layout=torch.jagged),
    "nested": lambda x: torch.nested.nested_tensor([x[0], x[1, :3]]),
    "mkldnn": lambda x: x.to_mkldnn(),
    "quantized": lambda x: torch.quantize_per_tensor(x, 0.1, 0, torch.qint8),
    "packed": lambda x: x.to(torch.uint8).view(torch.float4_e2m1fn_x2),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_values_layouts_and_patterns_tell_tensors_apart(name: str) -> None:
    tensor = LAYOUTS[name](GRID)
    assert pytree.equal(tensor, pytree.copy_of(tensor))
    assert not pytree.equal(tensor, LAYOUTS[name](GRID * 2))
    assert not pytree.equal(tensor, GRID)
    if name in SPARSE and name != "uncoalesced":
        assert not pytree.equal(tensor, LAYOUTS[name](GRID.flip(0)))
        assert not pytree.equal(tensor, LAYOUTS[name](torch.ones(4, 4)))


def test_a_large_sparse_matrix_is_compared_without_being_made_dense() -> None:
    size = 2_000_000  # whose square takes 16 TB
    matrix = torch.sparse_coo_tensor(torch.tensor([[0, size - 1], [1, 2]]), torch.ones(2), (size, size)).coalesce()
    assert pytree.equal(matrix, pytree.copy_of(matrix))
    assert layouts.size_of(matrix) == 2 * 2 * 8 + 2 * 4


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_buffer_is_put_back(name: str) -> None:
    module = torch.nn.Module()
    module.register_buffer("held", LAYOUTS[name](GRID))
    held = module.get_buffer("held")
    with kept_state(module):
        held.copy_(LAYOUTS[name](GRID * 2))
    assert module.get_buffer("held") is held
    assert pytree.equal(held, LAYOUTS[name](GRID))


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz])
def test_answers_of_one_byte_are_proven(dtype: torch.dtype) -> None:
    example = Example((torch.randn(64),))
    assert failures(lambda x: x.sin().to(dtype), lambda x: x.sin().to(dtype), example) == []
    (wrong,) = failures(lambda x: x.sin().to(dtype), lambda x: (x.sin() * 3).to(dtype), example)
    assert wrong.outcome is Outcome.FAIL
    (lost,) = failures(lambda x: x.sin().to(dtype), lambda x: (x.sin() / 0).to(dtype), example)
    assert "not finite" in lost.detail or "is off" in lost.detail


@pytest.mark.parametrize("name", SPARSE)
def test_what_is_sparse_enters_the_loss(name: str) -> None:
    weight = GRID.clone().requires_grad_()
    loss = loss_of({"matrix": LAYOUTS[name](weight)})
    assert loss is not None
    (gradient,) = torch.autograd.grad(loss, [weight])
    assert bool(gradient.to_dense().any())


def failures(model: Any, candidate: Any, *examples: Example) -> list[Check]:
    verdict = verify(Subject(Workload(model, examples), candidate, model), extra_draws=1)
    return [check for check in verdict.checks if check.outcome is not Outcome.PASS]


@pytest.mark.parametrize("name", LAYOUTS)
def test_an_answer_of_any_layout_is_proven_and_a_wrong_one_refused(name: str) -> None:
    made = LAYOUTS[name]

    def model(x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"answer": made(x.sin() * 3)}

    assert failures(model, model, Example((GRID,))) == []
    (wrong,) = failures(model, lambda x: {"answer": made(x.sin() * 9.1)}, Example((GRID,)))
    assert wrong.outcome is Outcome.FAIL
    (other,) = failures(model, lambda x: {"answer": x.sin() * 3}, Example((GRID,)))
    assert other.outcome is Outcome.FAIL
    assert "structure" in other.name


@pytest.mark.parametrize("name", ["coo", "uncoalesced", "csr", "csc", "bsr"])
def test_an_input_of_any_layout_is_no_obstacle(name: str) -> None:
    matrix, dense = LAYOUTS[name](GRID), torch.randn(4, 3)

    def model(matrix: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return matrix @ x

    assert failures(model, model, Example((matrix, dense))) == []
    (wrong,) = failures(model, lambda m, x: (m * 1.01) @ x, Example((matrix, dense)))
    assert wrong.outcome is Outcome.FAIL


@pytest.mark.parametrize("name", ["coo", "csr", "bsr", "quantized"])
def test_a_buffer_that_a_candidate_writes_otherwise_is_seen(name: str) -> None:
    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("held", LAYOUTS[name](GRID))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.get_buffer("held").copy_(LAYOUTS[name](GRID * 2))
            return x + 1

    model = Model()
    assert failures(model, model, Example((GRID,))) == []
    (wrong,) = failures(model, lambda x: x + 1, Example((GRID,)))
    assert "buffer held" in wrong.detail


class Diffusion(torch.nn.Module):
    """A step of a finite-element solver: its matrix is a sparse buffer."""

    def __init__(self, layout: Layout) -> None:
        super().__init__()
        self.register_buffer("matrix", layout(GRID))
        self.layer = torch.nn.Linear(3, 3)

    def forward(self, u: torch.Tensor) -> torch.Tensor:
        return u + 0.1 * self.get_buffer("matrix") @ torch.tanh(self.layer(u))


def a_step(layout: Layout) -> torchwise.TrainStep:
    model = Diffusion(layout)
    step = torchwise.TrainStep(model, torch.nn.functional.mse_loss, torch.optim.Adam(model.parameters(), 1e-2))
    step(torch.randn(4, 3), torch.randn(4, 3))  # the optimizer has its state
    return step


@pytest.mark.parametrize("name", ["coo", "uncoalesced", "csr", "csc"])
def test_a_training_step_with_a_sparse_buffer_is_proven(name: str) -> None:
    torch.manual_seed(0)
    step = a_step(LAYOUTS[name])
    example = Example((torch.randn(4, 3), torch.randn(4, 3)))

    def make(copy: torchwise.TrainStep) -> Any:
        return copy

    subject = StepSubject(Workload(step, (example,)), StepRunner(step, make), make)
    verdict = verify_step(subject, extra_draws=1, noise_budget_s=0.1)
    assert verdict.outcome is Outcome.PASS, verdict.reason
