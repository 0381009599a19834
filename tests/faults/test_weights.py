"""Right candidates whose weights have other names, or come with other objects, pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from faults.memory import make_norm_workload
from faults.test_faults import SEED
from torchwise.records import Outcome
from torchwise.verify.input_cases import cases_of_description, cases_of_examples, list_untried
from torchwise.verify.input_description import InputDescription
from torchwise.verify.pair import judge_pair
from torchwise.verify.pair_subject import PairFindings, PairSubject
from torchwise.verify.shared_weights import copy_weights, share_weights
from torchwise.verify.witness import LocalWitness
from torchwise.workload import Example, Workload


def make_layer() -> torch.nn.Linear:
    torch.manual_seed(1)
    return torch.nn.Linear(3, 2)


class Renamed(torch.nn.Module):
    """The same layer under another name."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = make_layer()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x)


class Total(torch.nn.Module):
    """Returns its own state, which the judge restores after each question."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.total.add_(x.sum())


def force(x: torch.Tensor) -> torch.Tensor:
    """Return a gradient, for which the input itself is made to require one."""
    with torch.enable_grad():
        return torch.autograd.grad((x.requires_grad_() ** 3).sum(), x)[0]


def draw_and_forget(x: torch.Tensor) -> torch.Tensor:
    torch.rand(3)
    return x * 2


def close_over() -> Callable[..., Any]:
    layer = make_layer()
    return lambda x: layer(x)


def judge(reference: Any, candidate: Any, workload: Workload, **options: Any) -> PairFindings:
    witness = LocalWitness(candidate)
    shares = share_weights(reference, witness, 3)
    subject = PairSubject(reference, witness, reference, shares_weights=shares, **options)
    return judge_pair(subject, cases_of_examples(workload, SEED))


def batch_of(call: Any) -> Workload:
    return Workload(call, (Example((torch.randn(4, 3),)),))


@pytest.mark.parametrize("make", [Renamed, close_over, lambda: torch.compile(make_layer(), backend="eager")])
def test_a_right_candidate_with_weights_of_its_own_passes(make: Callable[[], Any]) -> None:
    reference = make_layer()
    found = judge(reference, make(), batch_of(reference))
    assert {check.outcome for check in found.checks} == {Outcome.PASS}, found.checks


@pytest.mark.parametrize("make", [Total, lambda: force, lambda: draw_and_forget])
def test_what_the_reference_does_too_is_no_fault(make: Callable[[], Any]) -> None:
    reference = make()
    found = judge(reference, make(), batch_of(reference), stochastic=False)
    assert {check.outcome for check in found.checks} == {Outcome.PASS}, found.checks


def test_a_compiled_model_shares_weights_gradients_and_buffers() -> None:
    layer, wrapped = make_layer(), torch.compile(make_layer(), backend="eager")
    assert share_weights(layer, LocalWitness(wrapped), 1)
    copy_weights(layer, wrapped)
    assert torch.equal(wrapped.weight, layer.weight)
    workload = make_norm_workload()
    norm = torch.compile(type(workload.call)(), backend="eager")
    found = judge(workload.call, norm, workload, training=True)
    assert {check.outcome for check in found.checks} == {Outcome.PASS}, found.checks
    assert not found.notes, found.notes


def test_a_quantized_model_is_judged_with_its_own_weights() -> None:
    reference = torch.nn.Sequential(make_layer())
    quantized = torch.ao.quantization.quantize_dynamic(reference, {torch.nn.Linear}, dtype=torch.qint8)
    before = reference[0].weight.clone()
    found = judge(reference, quantized, batch_of(reference), tolerance=0.1)
    assert {check.outcome for check in found.checks} == {Outcome.PASS}, found.checks
    assert torch.equal(reference[0].weight, before)


def test_a_softmax_without_the_maximum_is_noted_beyond_an_example() -> None:
    def candidate(x: torch.Tensor) -> torch.Tensor:
        return x.exp() / x.exp().sum(dim=-1, keepdim=True)

    def reference(x: torch.Tensor) -> torch.Tensor:
        return x.softmax(dim=-1)

    found = judge(reference, candidate, batch_of(reference))
    assert found.checks[-1].outcome is Outcome.PASS, found.checks
    assert any("beyond the example's values it differs (an offset" in note for note in found.notes), found.notes
    assert not judge(reference, reference, batch_of(reference)).notes


def test_inputs_that_were_not_tried_are_noted() -> None:
    description = InputDescription.parse(["x: float32[n, 64] n=1..100000"])
    (note,) = list_untried(cases_of_description(description, 1), description)
    assert note.startswith("sizes of n above ")
    description = InputDescription.parse(["x: float32[n, 64] n=1..100"])
    assert not list_untried(cases_of_description(description, 1), description)
    for fixed, varied in ((torch.tensor([7, 7]), torch.tensor([7, 1])), (torch.ones(2), torch.randn(9))):
        assert list_untried(cases_of_examples(Workload(torch.neg, (Example((fixed,)),)), 1), None)
        assert not list_untried(cases_of_examples(Workload(torch.neg, (Example((varied,)),)), 5), None)


def test_offsets_stay_offsets_and_rows_keep_something_unmasked() -> None:
    offsets, mask = torch.tensor([0, 3, 4, 9]), torch.tensor([[True, False, False], [False, True, True]])
    for seed in range(9):
        cases = cases_of_examples(Workload(lambda a, b: (a, b), (Example((offsets, mask)),)), seed)
        for case in cases:
            a, b = case.example.args
            if "batch" not in case.name:
                assert (a.diff() >= 0).all(), case
                assert (a[0], a[-1]) == (0, 9), case
                assert b.sum(dim=-1).tolist() == [1, 2], case
