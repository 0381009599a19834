"""Further inputs to verify on: of the same kind, with other values if that is safe, for tensors of every sort."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from torchwise.records import Outcome
from torchwise.verify import Subject, verify
from torchwise.verify.observe import draws
from torchwise.verify.step import StepSubject, verify_step
from torchwise.verify.step_runner import StepRunner
from torchwise.workload import Example, Workload, pytree
from torchwise.workload.train_step import TrainStep


def draw_again(tensor: torch.Tensor) -> torch.Tensor:
    """Return the one further draw of `tensor`."""
    original, further = draws(Workload(lambda x: x, (Example((tensor,)),)), 1)
    assert original.args[0] is tensor
    return further.args[0]


SHUFFLED: dict[str, Callable[[], torch.Tensor]] = {
    "dense": lambda: torch.randn(8, 8),
    "transposed": lambda: torch.randn(8, 8).t(),
    "gaps": lambda: torch.randn(8, 16)[:, ::2],
    "expanded": lambda: torch.randn(64).expand(4, 64),
    "expanded inside": lambda: torch.randn(8, 1, 8).expand(8, 3, 8),
    "complex": lambda: torch.randn(64, dtype=torch.complex64),
    "float8": lambda: torch.randn(8, 8).to(torch.float8_e4m3fn),
    "bfloat16": lambda: torch.randn(64).bfloat16(),
    "to learn": lambda: torch.randn(64, requires_grad=True),
}

KEPT: dict[str, Callable[[], torch.Tensor]] = {
    "integers": lambda: torch.arange(8),
    "booleans": lambda: torch.ones(8) > 0,
    "one value": lambda: torch.ones(1),
    "one value, expanded": lambda: torch.tensor(2.0).expand(3),
    "nothing": lambda: torch.empty(0, 3),
    "nothing, expanded": lambda: torch.ones(1, 3).expand(0, 3),
    "sparse": lambda: torch.eye(3).to_sparse(),
    "sparse rows": lambda: torch.eye(3).to_sparse_csr(),
    "nested": lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
    "windows": lambda: torch.randn(8).unfold(0, 3, 1),
}


@pytest.mark.parametrize("make", SHUFFLED.values(), ids=SHUFFLED)
def test_values_are_shuffled_in_place_of_each_other(make: Callable[[], torch.Tensor]) -> None:
    tensor = make()
    other = draw_again(tensor)
    assert (other.shape, other.stride(), other.dtype) == (tensor.shape, tensor.stride(), tensor.dtype)
    assert (other.requires_grad, other.is_leaf) == (tensor.requires_grad, True)
    assert not pytree.equal(other, tensor)
    wide = torch.complex128 if tensor.is_complex() else torch.float64
    ours, theirs = (torch.view_as_real(t.detach().to(wide) + 0j).flatten(0, -2) for t in (other, tensor))
    assert sorted(ours.tolist()) == sorted(theirs.tolist())
    assert pytree.equal(draw_again(tensor), other)


@pytest.mark.parametrize("make", KEPT.values(), ids=KEPT)
def test_what_cannot_be_shuffled_stays_as_it_is(make: Callable[[], torch.Tensor]) -> None:
    tensor = make()
    assert pytree.equal(draw_again(tensor), tensor)


def test_a_workload_that_can_reseed_draws_its_own() -> None:
    def make_examples(seed: int) -> tuple[Example, ...]:
        return (Example((torch.full((1,), seed),)),)

    found = draws(Workload(abs, make_examples(0), reseed=make_examples), 2)
    assert [example.args[0].item() for example in found] == [0, 1001, 1002]


def draw_examples(call: Callable[..., object], *args: torch.Tensor, **more: object) -> list[Example]:
    return draws(Workload(call, (Example(args),), **more), 2)  # type: ignore[arg-type]


def test_tensors_stay_the_same_and_share_memory_in_further_draws() -> None:
    x = torch.randn(64)
    one, other, part = draw_examples(lambda *_: None, x, x, x[8:])[1].args
    assert one is other
    assert not torch.equal(one, x)
    assert torch.equal(part, one[8:])


def log_probabilities(probabilities: torch.Tensor) -> torch.Tensor:
    if not torch.allclose(probabilities.sum(-1), torch.ones(())):
        raise ValueError("probabilities must sum to 1")
    return probabilities.log()


def test_draws_that_the_model_refuses_are_left_out() -> None:
    assert len(draw_examples(log_probabilities, torch.rand(4, 3).softmax(-1))) == 1
    assert len(draw_examples(log_probabilities, torch.full((4, 4), 0.25))) == 3
    assert len(draw_examples(torch.linalg.cholesky, torch.eye(8) * 2 + 0.1)) == 1


class Rising(torch.nn.Module):
    """Takes times that rise, and counts its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, times: torch.Tensor) -> torch.Tensor:
        self.get_buffer("calls").add_(1)
        torch._assert(bool((times.diff(dim=0) > 0).all()), "times must rise")
        return self.layer(times)


def test_asking_changes_neither_model_nor_generators() -> None:
    model, state = Rising(), torch.get_rng_state()
    assert len(draw_examples(model, torch.arange(8.0)[:, None])) == 1
    assert model.get_buffer("calls") == 0
    assert torch.equal(torch.get_rng_state(), state)


def test_a_step_that_checks_its_batch_is_asked_on_a_copy() -> None:
    model = Rising()
    step = TrainStep(model, torch.nn.functional.mse_loss, torch.optim.SGD(model.parameters(), 0.1))
    before = pytree.clone(model.state_dict())
    assert len(draw_examples(step, torch.arange(8.0)[:, None], torch.zeros(8, 1))) == 1
    assert all(pytree.equal(now, then) for now, then in zip(model.state_dict().values(), before.values(), strict=True))


def test_what_a_workload_draws_itself_is_not_asked_about() -> None:
    x = torch.rand(4, 3)
    assert len(draw_examples(log_probabilities, x, reseed=lambda seed: (Example((x + seed,)),))) == 3


def test_a_model_and_a_step_that_check_their_inputs_are_proven() -> None:
    times, target = torch.arange(8.0)[:, None], torch.zeros(8, 1)
    model = Rising()
    verdict = verify(Subject(Workload(model, (Example((times,)),)), lambda x: model(x), model))
    assert verdict.outcome is Outcome.PASS, verdict.reason
    step = TrainStep(model, torch.nn.functional.mse_loss, torch.optim.SGD(model.parameters(), 0.1))
    subject = StepSubject(Workload(step, (Example((times, target)),)), StepRunner(step), lambda copy: copy)
    verdict = verify_step(subject, noise_budget_s=0.1)
    assert verdict.outcome is Outcome.PASS, verdict.reason
