"""`verify_samples`: models whose samples depend on each other are refused, and the others pass."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import nn

import torchwise
from torchwise.errors import InputError, UnsupportedError
from torchwise.runtime.bucketing import Padding, verify_padding
from torchwise.verify import verify_samples
from torchwise.workload import Example


class Attention(nn.Module):
    """Attention over the sequence of each sample, or over the batch if the dimensions are swapped."""

    def __init__(self, *, batch_first: bool) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=batch_first)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        answer: torch.Tensor = self.attention(x, x, x)[0]
        return answer


class Counter(nn.Module):
    """Counts its calls, and adds the number to the answer."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return x + self.calls


class Cached(nn.Module):
    """Fills a cache on its first call, as rotary embeddings do."""

    table: torch.Tensor | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.table is None:
            self.table = torch.arange(8.0)
        return x + self.table.to(x.dtype)


def fill_in_place(x: torch.Tensor) -> torch.Tensor:
    return x.mul_(2) + 1


def draw(x: torch.Tensor) -> torch.Tensor:
    return x + torch.randn_like(x)


def refuse_unsorted(x: torch.Tensor) -> torch.Tensor:
    if not bool((x[:, 1:] >= x[:, :-1]).all()):
        raise ValueError("not sorted")
    return x.cumsum(1)


def take_one(x: torch.Tensor) -> torch.Tensor:
    if len(x) > 1:
        raise ValueError("one at a time")
    return x


X = torch.randn(1, 5, 8)
TOKENS = torch.randint(0, 50, (1, 12))


@pytest.mark.parametrize(
    ("model", "args"),
    [
        (nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(5), nn.GELU()).eval(), (X,)),
        (Attention(batch_first=True).eval(), (X,)),
        (nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval(), (X,)),
        (nn.Embedding(50, 4), (TOKENS,)),
        (nn.Linear(8, 4).to(torch.bfloat16), (X.bfloat16(),)),
        (lambda x, *, scale: {"a": (x * scale, None), "b": x.argmax(-1)}, (X,)),
        (refuse_unsorted, (torch.arange(24.0).view(2, 12),)),
        (Cached(), (X,)),
        (lambda x, length: x.sum((1, 2)) / length, (X, torch.tensor(5))),
    ],
)
def test_independent_samples_pass(model: Callable[..., Any], args: tuple[Any, ...]) -> None:
    kwargs = {"scale": 2} if getattr(model, "__name__", "") == "<lambda>" and len(args) == 1 else {}
    verify_samples(model, Example(args, kwargs))
    verify_samples(model, Example(args, kwargs), in_float64=False)


@pytest.mark.parametrize("in_float64", [True, False])
@pytest.mark.parametrize(
    ("model", "own", "said"),
    [
        (lambda x, lengths: x.sum((1, 2)) / lengths.max(), torch.tensor([5]), "the output is off by"),
        (lambda x, lengths: x[:, : int(lengths.max())], torch.tensor([5]), "the output has another shape"),
        (lambda x, flag: x if bool(flag.any()) else -x, torch.tensor([False]), "the output is off by"),
        (lambda x, _: (torch.arange(len(x)) == 3).long(), torch.tensor([5]), "differs in all elements of a sample"),
    ],
)
def test_one_number_of_each_sample_is_changed_and_compared(
    model: Callable[..., Any], own: torch.Tensor, said: str, in_float64: bool
) -> None:
    with pytest.raises(InputError, match=said):
        verify_samples(model, Example((X, own)), in_float64=in_float64)
    verify_samples(lambda x, own: x * own.view(-1, 1, 1), Example((X, own)), in_float64=in_float64)
    verify_samples(lambda x, own: (x, own[:, None] > 3), Example((X, own)), in_float64=in_float64)


@pytest.mark.parametrize(
    ("model", "x", "said"),
    [
        (nn.BatchNorm1d(5), X, r"a call changes buffer running_mean: call model.eval\(\) first"),
        (nn.BatchNorm1d(5, track_running_stats=False), X, r"the output is off by .*: call model.eval\(\) first"),
        (nn.Dropout(), X, r"its answers differ from call to call.*: call model.eval\(\) first"),
        (draw, X, "its answers differ from call to call, so none can be compared: have its calls one by one"),
        (Attention(batch_first=False).eval(), X, "the output is off by .* to each sample alone: have its calls"),
        (lambda x: x + x.sum(0), X, "the output is off by"),
        (lambda x: x + 1e-5 * x.mean(0), X, "the output is off by"),
        (lambda x: x / len(x), X, "the output is off by"),
        (lambda x: x > x.mean(0), X, "the output differs"),
        (lambda x: x.flatten(1).sum(1).argsort(), X, "the output differs"),
        (lambda x: {"loss": x.mean()}, X, r"output \['loss'\] is of shape \(\), but must be a tensor with 4 samples"),
        (lambda x: x.tolist(), X, "but must be a tensor with 4 samples to be split"),
        (lambda x: x[:1], X, r"the output is of shape \(1, 5, 8\), but must be a tensor with 4 samples"),
        (lambda x: x[:, : len(x)], X, r"the output has shape \(4, 4, 8\) .*, not \(4, 1, 8\)"),
        (Counter(), X, "its answers differ from call to call"),
        (fill_in_place, X, "a call changes its inputs"),
        (take_one, X, "the model takes no batch of 4 samples: ValueError: one at a time"),
        (lambda x: x, torch.ones(1, dtype=torch.long), "all samples of the example are alike"),
        (lambda x: x, torch.tensor(1.0), "no tensor with a dimension"),
    ],
)
def test_dependent_samples_are_refused(model: Callable[..., Any], x: torch.Tensor, said: str) -> None:
    before = {name: value.clone() for name, value in model.state_dict().items()} if isinstance(model, nn.Module) else {}
    with pytest.raises((InputError, UnsupportedError), match=said):
        verify_samples(model, Example((x,)))
    if isinstance(model, nn.Module):
        assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_neither_the_example_nor_the_random_numbers_are_touched() -> None:
    x = X.clone()
    state = torch.get_rng_state()
    with pytest.raises(InputError):
        verify_samples(fill_in_place, Example((x,)))
    assert torch.equal(x, X)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.get_default_dtype() is torch.float32


MADE = {
    "ones": lambda x: torch.ones(8),
    "a literal": lambda x: torch.tensor(0.7),
    "a list": lambda x: torch.tensor([0.5] * 8),
    "whole numbers": lambda x: torch.arange(1, 9) / 8,
    "a root": lambda x: torch.arange(1, 9).sqrt(),
    "by its dtype": lambda x: torch.full((8,), 0.5, dtype=torch.float32),
    "by the default": lambda x: torch.zeros(8, dtype=torch.get_default_dtype()) + 2,
    "like the input": lambda x: torch.ones_like(x[0, 0]),
    "noise of a seed": lambda x: torch.rand(8, generator=torch.Generator().manual_seed(1)),
}


@pytest.mark.parametrize("made", MADE.values(), ids=MADE)
def test_a_model_that_makes_tensors_is_compared_in_float64_beside_other_threads(made: Callable[..., Any]) -> None:
    """The matrix product refuses two dtypes, so that all made tensors must be wide."""
    seen: list[torch.dtype] = []

    def leak(x: torch.Tensor) -> torch.Tensor:
        own = made(x).expand(8).diag()
        seen.append(x.dtype)
        with ThreadPoolExecutor(1) as pool:  # what another thread makes meanwhile is its own
            assert pool.submit(lambda: torch.ones(1).dtype).result() is torch.float32
        return x @ own + 1e-4 * x.mean(0)

    with pytest.raises(InputError, match="the output is off by"):
        verify_samples(leak, Example((X,)))
    assert seen[-1] is torch.float64, "no call in float32 follows, as if float64 had failed"
    verify_samples(lambda x: x @ made(x).expand(8).diag(), Example((X,)))


def test_batching_and_padding_leave_the_default_dtype_of_other_threads_alone() -> None:
    seen: list[torch.dtype] = []

    def note_default(x: torch.Tensor) -> torch.Tensor:
        seen.append(torch.get_default_dtype())
        return x * 2

    torchwise.batched(note_default)([X[:1], X[1:2]])
    with torchwise.serve_batched(note_default, max_batch=4, example=(X[:1],)):
        pass
    verify_padding(note_default, (X,), padding=Padding({"x": 0}), buckets=(4, 8))
    assert len(seen) > 9
    assert set(seen) == {torch.float32}
