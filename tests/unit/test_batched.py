"""`torchwise.batched`: a function of one sample answers many calls at once, as it does one by one."""

from __future__ import annotations

import logging
import re
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import torchwise
from torchwise.errors import InputError
from torchwise.workload import Example


class Noted:
    """Counts the calls of a function."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.calls = 0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.calls += 1
        return self.function(*args, **kwargs)


def check_same(function: Callable[..., Any], calls: list[Any], way: str) -> Noted:
    """Check that calls are answered at once as they are one by one, and return the function with its count."""
    noted = Noted(function)
    many = torchwise.batched(noted)
    many(calls)
    noted.calls = 0
    answers = many(calls)
    assert [*many.ways.values()] == [way]
    for call, answer in zip(calls, answers, strict=True):
        with torch.no_grad():
            expected = function(*call) if isinstance(call, tuple) else function(call)
        torch.testing.assert_close(answer, expected)
    return noted


LAYERS = nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 3)).eval()


def normalize(x: torch.Tensor) -> torch.Tensor:
    return (x - x.mean()) / x.std()


def iterate(x: torch.Tensor, step: float) -> dict[str, torch.Tensor]:
    for _ in range(4):
        x = x - step * x.sin()
    return {"x": x, "energy": (x**2).sum()}


def branch(x: torch.Tensor) -> torch.Tensor:
    return x + 1 if x.sum() > 0 else x - 1


@pytest.mark.parametrize(
    ("function", "make", "way"),
    [
        (LAYERS, lambda: torch.randn(1, 6), "joined"),
        (LAYERS, lambda: torch.randn(2, 5, 6), "joined"),
        (LAYERS, lambda: torch.randn(6), "vmap"),
        (normalize, lambda: torch.randn(7), "vmap"),
        (normalize, lambda: torch.randn(1, 7), "vmap"),
        (iterate, lambda: (torch.randn(5), 0.1), "vmap"),
        (torch.linalg.det, lambda: torch.randn(3, 3), "vmap"),
    ],
)
def test_calls_run_at_once_and_answers_are_those_of_single_calls(
    function: Callable[..., Any], make: Callable[[], Any], way: str
) -> None:
    assert check_same(function, [make() for _ in range(10)], way).calls == 1


@pytest.mark.parametrize(
    ("function", "make", "said"),
    [
        (branch, lambda: torch.randn(4), "vmap: .*data-dependent control flow"),
        (lambda x: float(x.sum()), lambda: torch.randn(4), "vmap: "),
        (lambda x: x.tolist(), lambda: torch.randn(4), "joined: the output is of type|joined: output"),
    ],
)
def test_what_cannot_be_batched_runs_one_by_one_and_the_reason_is_said(
    function: Callable[..., Any], make: Callable[[], Any], said: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        noted = check_same(function, [make() for _ in range(5)], "one by one")
    assert noted.calls == 5
    [line] = [record.getMessage() for record in caplog.records]
    assert re.search(said, line), line


def test_calls_of_several_forms_keep_their_order() -> None:
    noted = Noted(LAYERS)
    many = torchwise.batched(noted, max_batch=4)
    calls = [torch.randn(1, 6), torch.randn(6), torch.randn(1, 6), torch.randn(1, 6).double().float(), torch.randn(6)]
    answers = many(calls)
    for call, answer in zip(calls, answers, strict=True):
        torch.testing.assert_close(answer, LAYERS(call).detach())
    assert sorted(many.ways.values()) == ["joined", "vmap"]
    noted.calls = 0
    many([torch.randn(1, 6) for _ in range(9)])
    assert noted.calls == 3, "4, 4 and one alone"


def test_tensors_without_a_dimension_keep_their_value_in_each_call() -> None:
    def scale(x: torch.Tensor, by: torch.Tensor) -> torch.Tensor:
        return x * by

    check_same(scale, [(torch.ones(1, 3), torch.tensor(float(n))) for n in (1, 5, 2)], "vmap")
    calls = [Example((torch.ones(1, 3),), {"by": torch.tensor(n)}) for n in (1.0, 5.0)]
    assert [answer[0, 0].item() for answer in torchwise.batched(scale)(calls)] == [1.0, 5.0]


def test_keyword_arguments_and_an_empty_list() -> None:
    many = torchwise.batched(lambda x, *, scale: x * scale)
    found = many([Example((torch.full((1, 2), float(n)),), {"scale": 3}) for n in range(4)])
    assert [answer[0, 0].item() for answer in found] == [0.0, 3.0, 6.0, 9.0]
    assert many([]) == []


def test_the_error_of_one_call_is_the_one_that_is_raised() -> None:
    def invert(x: torch.Tensor) -> torch.Tensor:
        if x.shape[0] == 1 and bool((x == 0).any()):
            raise ZeroDivisionError("a zero")
        assert not bool((x == 0).any())
        return 1 / x

    many = torchwise.batched(invert)
    assert len(many([torch.ones(1, 2), torch.full((1, 2), 2.0)])) == 2
    with pytest.raises(ZeroDivisionError, match="a zero"):
        many([torch.ones(1, 2), torch.zeros(1, 2)])


def draw() -> torch.Tensor:
    return LAYERS(torch.randn(6)) + torch.rand(3)


def add_noise(x: torch.Tensor) -> torch.Tensor:
    return x + torch.randn_like(x)


def share_noise(x: torch.Tensor) -> torch.Tensor:
    return x + torch.randn(x.shape[1:])


def test_random_samples_are_drawn_at_once_and_differ() -> None:
    noted = Noted(draw)
    many = torchwise.batched(noted)
    before = torch.get_rng_state()
    many.draw(2)
    noted.calls = 0
    samples = torch.stack(many.draw(64))
    assert noted.calls == 1
    assert [*many.ways.values()] == ["vmap"]
    assert samples.shape == (64, 3)
    assert len(samples.unique(dim=0)) == 64
    assert not torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(
    ("function", "way"),
    [(add_noise, "joined"), (share_noise, "vmap"), (lambda x: x + torch.randn(()) * x.mean(), "vmap")],
)
def test_noise_that_samples_of_a_batch_would_share_is_found(function: Callable[..., Any], way: str) -> None:
    many = torchwise.batched(function)
    x = torch.randn(1, 8)
    many([x, x])
    assert [*many.ways.values()] == [way]
    first, second = many([x, x])
    assert not torch.equal(first, second)


def test_an_optimised_model_may_be_batched() -> None:
    many = torchwise.batched(nn.BatchNorm1d(6).eval())
    assert len(many([torch.randn(1, 6) for _ in range(3)])) == 3
    assert repr(many) == "<batched BatchNorm1d: joined>"
    training = torchwise.batched(nn.BatchNorm1d(6))
    training([torch.randn(2, 6) for _ in range(3)])
    assert [*training.ways.values()] == ["one by one"]


@pytest.mark.parametrize("switch", [lambda model: model, lambda model: model[1]])
def test_a_switch_to_training_is_noticed(switch: Callable[[nn.Sequential], nn.Module]) -> None:
    model = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6, momentum=0.0)).eval()
    many = torchwise.batched(model)
    calls = [torch.randn(2, 6) for _ in range(3)]
    many(calls)
    switch(model).train()
    for call, answer in zip(calls, many(calls), strict=True):
        torch.testing.assert_close(answer, model(call).detach())
    assert [*many.ways.values()] == ["joined", "one by one"]


def test_forms_hold_their_objects_and_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torchwise.runtime.batched.MAX_FORMS", 2)

    class Scale:
        def __init__(self, by: float) -> None:
            self.by = by

    many = torchwise.batched(lambda x, scale: x * scale.by)
    x = torch.ones(1, 3)
    gone = []
    for by in (2.0, 3.0, 4.0):
        scale = Scale(by)
        gone.append(weakref.ref(scale))
        assert [answer[0, 0].item() for answer in many([(x, scale), (2 * x, scale)])] == [by, 2 * by]
        del scale
    assert [found() is None for found in gone] == [True, True, False]
    assert len(many.ways) == 1


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: torchwise.batched("f"), "function is of type str, but must be a model or a function"),  # type: ignore[arg-type]
        (lambda: torchwise.batched(draw, max_batch=1), "max_batch is 1, but must be a whole number of at least 2"),
        (lambda: torchwise.batched(draw).draw(0), "count is 0, but must be a whole number of at least 1"),
    ],
)
def test_bad_arguments_are_refused(make: Callable[[], Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        make()
