"""A rule for padding is verified or refused: every way in which padded places can leak into an answer is caught."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from torchwise.errors import BaselineError, InputError
from torchwise.runtime.bucketing import Padding, padding_check, verify_padding
from torchwise.verify.observe import Observation


class Attention(torch.nn.Module):
    """Self-attention. The optional mask is 1 for a token and 0 for none."""

    def __init__(self, penalty: float = float("-inf")) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.inner = torch.nn.Linear(8, 24)
        self.penalty = penalty

    def forward(self, x: Tensor, mask: Tensor | None = None) -> dict[str, Tensor]:
        q, k, v = self.inner(x).chunk(3, -1)
        scores = q @ k.transpose(1, 2)
        if mask is not None:
            scores = scores.masked_fill(mask[:, None] == 0, self.penalty)
        weights = scores.softmax(-1)
        return {"states": weights @ v, "weights": weights, "first": (weights @ v)[:, 0]}


BATCH, SEQUENCE = Padding({"x": 0}), Padding({"x": 1, "mask": 1})
X = torch.randn(2, 12, 8)
MASK = torch.ones(2, 12, dtype=torch.long)
BUCKETS = (4, 12)


class Net(torch.nn.Module):
    def __init__(self, forward: Callable[..., Any]) -> None:
        super().__init__()
        self.norm = torch.nn.BatchNorm1d(8)
        self.inner = forward

    def forward(self, x: Tensor) -> Any:
        return self.inner(self, x)


def net(forward: Callable[..., Any]) -> Net:
    return Net(forward).eval()


def test_a_mask_makes_padding_of_a_sequence_right_and_what_is_cut_is_found() -> None:
    proof = verify_padding(Attention().eval(), (X, MASK), padding=SEQUENCE, buckets=BUCKETS)
    assert proof.padding.outputs == {"['states']": (1,), "['weights']": (1, 2)}
    assert proof.in_float64
    assert proof.buckets == BUCKETS
    assert proof.cases == 8  # three sizes for each bucket (1, 2, 3 and 5, 8, 11), the smallest in float64 too


def test_a_batch_is_padded_to_more_rows() -> None:
    proof = verify_padding(net(lambda m, x: m.norm(x)), (torch.randn(6, 8),), padding=BATCH, buckets=(3, 6))
    assert proof.padding.outputs == {"": (0,)}


@pytest.mark.parametrize(
    ("model", "example", "padding", "said"),
    [
        (Attention(), (X,), SEQUENCE, r"from 1 to 4 changes the answer: output\['states'\] is off by"),
        (Attention(), (X, MASK), Padding({"x": 1, "mask": 1}, {"mask": 1}), "is off by"),
        (net(lambda _, x: x.mean(0)), (torch.randn(12, 8),), BATCH, "output is off by"),
        (net(lambda _, x: x.amax(0)), (torch.randn(12, 8) - 5,), BATCH, "output is off by"),
        (net(lambda _, x: x.flip(0)), (torch.randn(12, 8),), BATCH, "output is off by"),
        (net(lambda _, x: x.add_(1) * 2), (torch.randn(12, 8),), BATCH, "input after the call"),
        (net(lambda _, x: x), (torch.randn(12, 8),), BATCH, "share memory"),
        (net(lambda _, x: torch.dropout(x, 0.5, True)), (torch.randn(12, 8),), BATCH, "differ from call to call"),
        (net(lambda _, x: x[3:]), (torch.randn(12, 8),), BATCH, "only a dimension that is as long as the size"),
        (net(lambda _, x: x.flatten()), (torch.randn(12, 8),), BATCH, "has shape .88,. at size 11"),
        (net(lambda _, x: list(x)), (torch.randn(12, 8),), BATCH, "needs the same outputs at every size"),
        (net(lambda _, x: (x * 2, len(x))), (torch.randn(12, 8),), BATCH, "is 4, without padding 1"),
    ],
    ids=lambda value: None,
)
def test_a_rule_that_changes_an_answer_is_refused(model: Any, example: Any, padding: Padding, said: str) -> None:
    with pytest.raises(InputError, match=said):
        verify_padding(model, example, padding=padding, buckets=BUCKETS)


def test_only_outputs_are_searched_for_numbers_whatever_other_state_is_called() -> None:
    theirs = Observation((("answer", 1), ("output_count", 1)), frozenset(), outputs=frozenset({"answer"}))
    counted = replace(theirs, leaves=(("answer", 1), ("output_count", 4)))
    assert padding_check._plainly_differs(counted, theirs) is None
    longer = replace(theirs, leaves=(("answer", 4), ("output_count", 1)))
    assert padding_check._plainly_differs(longer, theirs) == "answer is 4, without padding 1"


def test_batch_norm_in_training_is_refused_with_the_way_out() -> None:
    model = net(lambda m, x: m.norm(x)).train()
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    with pytest.raises(InputError, match=r"changes the answer: .*; call model.eval\(\) first"):
        verify_padding(model, (torch.randn(12, 8),), padding=Padding({"x": 0}, least=2), buckets=(6, 12))
    assert all(torch.equal(buffer, before[name]) for name, buffer in model.named_buffers())


def test_a_leak_below_the_roundings_of_float32_shows_in_float64() -> None:
    """The mask penalises and does not forbid: exp(-11) of a weight, which rounding in float32 would excuse."""
    leaky = Attention(penalty=-11.0).eval()
    with torch.no_grad():
        leaky.inner.weight.mul_(0.01)
    with pytest.raises(InputError, match="in float64"):
        verify_padding(leaky, (X, MASK), padding=SEQUENCE, buckets=BUCKETS)


def test_a_model_that_cannot_run_in_float64_is_proven_without() -> None:
    def only_float32(_: Any, x: Tensor) -> Tensor:
        if x.dtype is torch.float64:
            raise RuntimeError("no kernel for it")
        return x + 1

    proof = verify_padding(net(only_float32), (torch.randn(12, 8),), padding=BATCH, buckets=BUCKETS)
    assert not proof.in_float64
    assert proof.cases == 6


def test_proving_draws_no_random_numbers_of_the_process() -> None:
    torch.manual_seed(3)
    expected = torch.randn(4)
    torch.manual_seed(3)
    verify_padding(
        net(lambda _, x: x + 1), (torch.randn(12, 8, generator=torch.Generator()),), padding=BATCH, buckets=BUCKETS
    )
    assert torch.equal(torch.randn(4), expected)


def test_outputs_that_the_user_names_are_cut_and_proven() -> None:
    model = net(lambda _, x: x + 1)
    assert verify_padding(model, (X[0],), padding=Padding({"x": 0}, outputs={"": 0}), buckets=BUCKETS).cases
    with pytest.raises(InputError, match="has shape"):
        verify_padding(model, (X[0],), padding=Padding({"x": 0}, outputs={}), buckets=BUCKETS)


def test_inputs_by_position_by_name_and_by_keyword_alone() -> None:
    def call(x: Tensor, *, y: Tensor) -> Tensor:
        return x + y

    proof = verify_padding(call, (X[0],), {"y": X[1]}, padding=Padding({0: 0, "y": -2}), buckets=BUCKETS)
    assert proof.padding.outputs == {"": (0,)}
    assert verify_padding(torch.tanh, (X[0],), padding=Padding({0: 0}), buckets=BUCKETS).cases


@pytest.mark.parametrize(
    ("padding", "buckets", "example", "said"),
    [
        (Padding({"z": 0}), (4,), (X,), "an input of the rule is 'z', but the model takes x, mask"),
        (Padding({-1: 0}), (4,), (X,), "is -1, but positions are counted from 0"),
        (Padding({"x": 3}), (4,), (X,), "input x has 3 dimensions, but the rule pads dimension 3"),
        (Padding({"x": "0"}), (4,), (X,), "a dimension is '0'"),  # type: ignore[dict-item]
        (
            Padding({"x": 1, "mask": 1}),
            (4,),
            (X, MASK[:, :3]),
            "mask is 3 long in dimension 1, but others are 12",
        ),
        (Padding({"mask": 1}), (4,), (X,), "none of input mask is given"),
        (Padding({"mask": 1}), (4,), (X, "mask"), "is of type str, but only a tensor"),
        (SEQUENCE, (), (X, MASK), "buckets is empty"),
        (SEQUENCE, (0,), (X, MASK), "a bucket is 0"),
        (Padding({"x": 1}, most=8), (4, 12), (X,), "a bucket is 12, but the rule pads to at most 8"),
        (SEQUENCE, (4,), (X[:, :0], MASK[:, :0]), "the size of the example is 0"),
    ],
)
def test_a_rule_that_does_not_fit_is_refused(padding: Padding, buckets: Any, example: Any, said: str) -> None:
    with pytest.raises(InputError, match=said):
        verify_padding(Attention().eval(), example, padding=padding, buckets=buckets)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"inputs": {}}, "inputs is empty"),
        ({"inputs": {"x": 0}, "fill": {"y": 1.0}}, "fill has 'y'"),
        ({"inputs": {"x": 0}, "most": 0}, "most is 0, but must be a whole number of at least 1"),
        ({"inputs": {"x": 0}, "least": None}, "least is None"),
        ({"inputs": {"x": 0}, "least": 9, "most": 8}, "least is 9 and most is 8"),
    ],
)
def test_a_rule_that_means_nothing_is_refused(given: Any, said: str) -> None:
    with pytest.raises(InputError, match=said):
        Padding(**given)


def test_a_model_that_takes_no_such_size_is_named_with_it() -> None:
    with pytest.raises(BaselineError, match=r"ValueError on inputs of size 1: .*; leave out such sizes by least"):
        verify_padding(net(lambda m, x: m.norm.train()(x)), (torch.randn(12, 8),), padding=BATCH, buckets=(12,))

    def limit_to_eight(x: Tensor) -> Tensor:
        if len(x) > 8:
            raise ValueError("too long")
        return x + 1

    with pytest.raises(BaselineError, match="raised ValueError on inputs of size 11: too long"):
        verify_padding(limit_to_eight, (X[0],), padding=BATCH, buckets=BUCKETS)


def test_values_on_one_side_of_their_padding_are_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    """A maximum over values above 0 is not changed by zeros: verified for such alone."""
    rule, positive = Padding({"x": 0}), torch.rand(8, 3) + 0.1

    def highest(x: torch.Tensor) -> torch.Tensor:
        return x.amax(0)

    verify_padding(highest, (positive,), padding=rule, buckets=(4, 8))
    assert "all values of input x lie on one side of 0" in caplog.text
    caplog.clear()
    verify_padding(highest, (positive,), padding=Padding({"x": 0}, fill={"x": 0}), buckets=(4, 8))
    verify_padding(torch.neg, (torch.randn(8, 3),), padding=Padding({0: 0}), buckets=(4, 8))
    verify_padding(torch.neg, (torch.ones(8, 3),), padding=Padding({0: 0}), buckets=(4, 8))
    assert not caplog.records
    with pytest.raises(InputError, match="changes the answer"):
        verify_padding(highest, (torch.randn(8, 3),), padding=rule, buckets=(4, 8))
