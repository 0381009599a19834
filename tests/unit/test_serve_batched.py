"""`torchwise.serve_batched`: requests share batches, get their own answers and errors, and keep a limit of latency."""

from __future__ import annotations

import asyncio
import functools
import itertools
import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import CancelledError
from dataclasses import replace
from typing import Any, NamedTuple

import pytest
import torch

import torchwise
from coroutines import run_coroutine
from live_decisions import make_decision
from torchwise.errors import InputError, QueueFullError
from torchwise.plan import Plan
from torchwise.runtime.batching import BatchServer
from torchwise.runtime.bucketing import Padding, apply_buckets, verify_padding
from torchwise.workload import Example
from torchwise.workload.identity import describe_example

serve = functools.partial(torchwise.serve_batched, verify=False)
"""A server that makes no calls of its own. `tests/unit/test_batch_independence.py` has the others."""


class Recorder:
    """A model that notes the sizes of its batches, and can be held until requests have gathered."""

    def __init__(self, model: Callable[..., Any] = lambda x: 2 * x) -> None:
        self.model = model
        self.sizes: list[int] = []
        self.free = threading.Event()
        self.busy = threading.Event()
        self.free.set()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        first = next(one for one in (*args, *kwargs.values()) if isinstance(one, torch.Tensor))
        self.sizes.append(len(first))
        self.busy.set()
        assert self.free.wait(20)
        return self.model(*args, **kwargs)


def gather(server: BatchServer, model: Recorder, calls: list[tuple[tuple[Any, ...], dict[str, Any]]]) -> list[Any]:
    """Return the futures of calls that all wait while the model is held by one before them."""
    model.free.clear()
    model.busy.clear()
    holder = server.submit(torch.ones(1, 99))
    assert model.busy.wait(20)
    futures = [server.submit(*args, **kwargs) for args, kwargs in calls]
    model.sizes.clear()
    model.free.set()
    holder.exception(20)
    return futures


def rows(count: int, value: float = 1.0, width: int = 3) -> torch.Tensor:
    return torch.full((count, width), float(value))


@pytest.mark.parametrize("pad_to", [(), (4, 8)])
def test_waiting_requests_share_a_batch_and_each_gets_its_own_part(pad_to: tuple[int, ...]) -> None:
    model = Recorder()
    with serve(model, max_batch=8, max_wait_ms=0, pad_to=pad_to) as server:
        futures = gather(server, model, [((rows(size, size),), {}) for size in (1, 3, 2)])
        answers = [future.result(20) for future in futures]
    assert [answer.tolist() for answer in answers] == [(2 * rows(size, size)).tolist() for size in (1, 3, 2)]
    assert model.sizes[-1] == (8 if pad_to else 6)
    assert server.statistics.padding == ((8 - 6) + (4 - 1) if pad_to else 0)
    assert (server.statistics.requests, server.statistics.samples, server.statistics.batches) == (4, 7, 2)


def test_no_batch_is_larger_than_allowed_and_the_order_is_kept() -> None:
    model = Recorder()
    with serve(model, max_batch=4, max_wait_ms=0) as server:
        futures = gather(server, model, [((rows(size),), {}) for size in (3, 2, 2, 1)])
        assert [len(future.result(20)) for future in futures] == [3, 2, 2, 1]
    assert model.sizes == [3, 4, 1]


class Pair(NamedTuple):
    left: torch.Tensor
    right: torch.Tensor


def test_trees_and_keyword_arguments_are_joined_and_split() -> None:
    def add(pair: Pair, *, scale: int, more: dict[str, torch.Tensor]) -> dict[str, Any]:
        return {"sum": Pair(pair.left + more["b"], pair.right * scale), "nothing": None}

    model = Recorder(lambda x, **k: x if isinstance(x, torch.Tensor) else add(x, **k))
    model.sizes = []
    calls = [((Pair(rows(n, n), rows(n, 10 * n)),), {"scale": 2, "more": {"b": rows(n, 100)}}) for n in (1, 2)]
    with serve(lambda *a, **k: model.model(*a, **k), max_batch=8, max_wait_ms=50) as server:
        found = [future.result(20) for future in [server.submit(*args, **kwargs) for args, kwargs in calls]]
    for (args, kwargs), answer in zip(calls, found, strict=True):
        expected = add(*args, **kwargs)
        assert type(answer["sum"]) is Pair
        assert answer["nothing"] is None
        assert all(map(torch.equal, answer["sum"], expected["sum"]))
    assert server.statistics.batches == 1


@pytest.mark.parametrize(
    "other",
    [
        ((rows(1, width=4),), {"flag": True}),
        ((rows(1).double(),), {"flag": True}),
        ((rows(1),), {"flag": 1}),
        ((rows(1),), {"flag": [1]}),
        ((rows(1),), {"flag": torch.tensor(2)}),
        ((rows(1),), {}),
    ],
)
def test_requests_of_unlike_kinds_never_share_a_batch(other: tuple[Any, Any]) -> None:
    model = Recorder(lambda x, flag=None: x)
    with serve(model, max_batch=8, max_wait_ms=0) as server:
        for future in gather(server, model, [((rows(1),), {"flag": True}), other, ((rows(1),), {"flag": True})]):
            future.result(20)
    assert sorted(model.sizes) == [1, 2]


def test_an_error_of_one_request_fails_no_other() -> None:
    def invert(x: torch.Tensor) -> torch.Tensor:
        if (x == 0).any() and x.shape[1] == 3:
            raise ZeroDivisionError("a zero")
        return 1 / x

    model = Recorder(invert)
    with serve(model, max_batch=8, max_wait_ms=0, pad_to=(8,)) as server:
        good, bad, fine = gather(server, model, [((rows(1, value),), {}) for value in (2, 0, 4)])
        assert good.result(20).tolist() == [[0.5] * 3]
        assert fine.result(20).tolist() == [[0.25] * 3]
        with pytest.raises(ZeroDivisionError, match="a zero"):
            bad.result(20)
        assert server(rows(1, 2)).tolist() == [[0.5] * 3], "the server goes on"
    assert (server.statistics.failures, server.statistics.split) == (1, 1)


@pytest.mark.parametrize(
    "model", [lambda x: x.sum(), lambda x: x.tolist(), lambda x: {"x": x, "names": ["a"] * len(x)}, lambda x: x[:1]]
)
def test_answers_that_cannot_be_split_come_from_a_call_for_each_request(model: Callable[..., Any]) -> None:
    held = Recorder(model)
    with serve(held, max_batch=8, max_wait_ms=0, pad_to=(8,)) as server:
        for size, future in zip((2, 3), gather(server, held, [((rows(n),), {}) for n in (2, 3)]), strict=True):
            assert str(future.result(20)) == str(model(rows(size)))


def test_an_answer_keeps_nothing_of_the_others_in_memory() -> None:
    model = Recorder()
    with serve(model, max_batch=8, max_wait_ms=0) as server:
        first, _ = gather(server, model, [((rows(1),), {}), ((rows(7),), {})])
        assert first.result(20).untyped_storage().nbytes() == 3 * 4


def test_coroutines_share_batches() -> None:
    async def ask_all(server: BatchServer) -> list[torch.Tensor]:
        return list(await asyncio.gather(*(server.call_async(rows(1, n)) for n in range(16))))

    with serve(lambda x: 2 * x, max_batch=16, max_wait_ms=5_000) as server:
        found = run_coroutine(ask_all(server))
    assert [answer[0, 0].item() for answer in found] == [2.0 * n for n in range(16)]
    assert server.statistics.batches == 1


def test_a_cancelled_request_is_not_computed() -> None:
    model = Recorder()
    with serve(model, max_batch=4, max_wait_ms=0) as server:
        model.free.clear()
        holder = server.submit(rows(1))
        assert model.busy.wait(20)
        waiting = server.submit(rows(2))
        assert waiting.cancel()
        model.free.set()
        holder.result(20)
        assert server(rows(3)).shape == (3, 3)
    assert model.sizes == [1, 3]


def test_closing_answers_or_cancels_the_waiting_ones_and_refuses_new_ones() -> None:
    server = serve(lambda x: x, max_batch=4, max_wait_ms=60_000)
    waiting = server.submit(rows(1))
    assert server.close()
    assert waiting.result(0).shape == (1, 3)
    with pytest.raises(InputError, match="the server is closed, but must be open"):
        server(rows(1))
    server = serve(lambda x: x, max_batch=4, max_wait_ms=60_000)
    waiting = server.submit(rows(1))
    assert server.close(drain=False)
    with pytest.raises(CancelledError):
        waiting.result(0)
    assert server.close(), "twice is once"
    assert "closed" in repr(server)


def test_closing_says_if_a_call_takes_longer_than_the_timeout() -> None:
    model = Recorder()
    server = serve(model, max_batch=4)
    model.free.clear()
    waiting = server.submit(rows(1))
    assert not server.close(timeout_s=0.05)
    model.free.set()
    assert waiting.result(20).shape == (1, 3)
    assert server.close()


def test_too_many_waiting_requests_are_refused() -> None:
    model = Recorder()
    with serve(model, max_batch=4, max_waiting=4) as server:
        model.free.clear()
        held = server.submit(rows(4))
        assert model.busy.wait(20)
        waiting = server.submit(rows(3))
        with pytest.raises(QueueFullError, match="3 samples are waiting, but at most 4 may"):
            server.submit(rows(2))
        model.free.set()
        assert (len(held.result(20)), len(waiting.result(20))) == (4, 3)
    assert server.statistics.refused == 1


def test_operators_run_on_as_many_threads_as_in_the_callers_thread() -> None:
    def tell(_: torch.Tensor) -> str:
        return torch.__config__.parallel_info()

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with serve(tell, max_batch=1) as server:
            assert "omp_get_max_threads() : 1\n" in server(rows(1)), "OpenMP has a number for each thread"
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ((rows(9),), "the request has 9 samples, but must have at most 8: split it"),
        ((rows(1), rows(2)), r"1 in \[0\]\[0\], 2 in \[0\]\[1\], but each tensor must have its samples"),
        ((rows(0),), r"0 in \[0\]\[0\], but each tensor"),
        ((torch.tensor(1.0),), "no tensor with a dimension"),
    ],
)
def test_a_request_without_a_batch_is_refused(args: tuple[torch.Tensor, ...], said: str) -> None:
    with (
        serve(lambda *a: a[0], max_batch=8) as server,
        pytest.raises(InputError, match=said),
    ):
        server(*args)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "max_batch is None, but must be a whole number of at least 1, as fast has no plan that was tuned at"),
        ({"max_batch": 0}, "max_batch is 0, but must be"),
        ({"max_batch": 2, "max_wait_ms": -1}, "max_wait_ms is -1, but must be a number of at least 0"),
        ({"max_batch": 2, "max_wait_ms": float("inf")}, "max_wait_ms is inf, but must be"),
        ({"max_batch": 2, "max_wait_ms": "2"}, "max_wait_ms is '2', but must be"),
        ({"max_batch": 4, "max_waiting": 3}, "max_waiting is 3, but must be at least max_batch, which is 4"),
        ({"max_batch": 4, "pad_to": [4, 0]}, "pad_to has 0, but must hold whole numbers of at least 1"),
        ({"max_batch": 4, "fast": "model"}, "fast is of type str, but must be a model or a function"),
    ],
)
def test_bad_arguments_are_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        torchwise.serve_batched(**{"fast": torch.nn.Identity(), **options})


def test_under_real_poisson_load_threads_get_their_own_answers_in_time() -> None:
    def slow(x: torch.Tensor) -> torch.Tensor:
        time.sleep(5e-3)
        return 2 * x

    draw = random.Random(0)
    with serve(slow, max_batch=32, max_wait_ms=2) as server:
        futures = []
        for number in range(300):
            futures.append(server.submit(rows(1, number)))
            time.sleep(draw.expovariate(1000))
        assert [future.result(20)[0, 0].item() for future in futures] == [2.0 * n for n in range(300)]
    assert server.statistics.batches < 150, "at most half as many calls, with a wide margin"
    p50 = server.statistics.latency_s(0.5)
    assert p50 is not None
    assert p50 < 0.2


def serve_buckets(dim: int, seen: list[tuple[int, ...]]) -> Any:
    """Return a function with a plan whose buckets of 4 and 8 pad a dimension. It notes the shapes of its calls."""

    def double(x: torch.Tensor) -> torch.Tensor:
        seen.append(tuple(x.shape))
        return 2 * x

    x, plan = torch.randn(8, 8), Plan(threads=torch.get_num_threads() + 1)
    proof = verify_padding(double, (x,), padding=Padding({"x": dim}), buckets=(4, 8))
    shapes = itertools.product(range(1, 9), repeat=2)
    inputs = tuple(describe_example(Example((torch.randn(shape),))) for shape in shapes)
    fast = apply_buckets(double, replace(make_decision(double, plan, x), inputs=inputs), proof)
    seen.clear()
    return fast


def test_buckets_of_another_dimension_let_requests_of_unlike_sizes_share_a_batch() -> None:
    seen: list[tuple[int, ...]] = []
    with serve(serve_buckets(1, seen), max_batch=8, max_wait_ms=5_000) as server:
        futures = [server.submit(rows(n, n, width)) for n, width in ((1, 2), (2, 3), (5, 4))]
        for future, (n, width) in zip(futures, ((1, 2), (2, 3), (5, 4)), strict=True):
            assert torch.equal(future.result(20), 2 * rows(n, n, width))
    assert seen == [(8, 4)]


class MaskedMean(torch.nn.Module):
    """Takes the mean over the sequence, of the positions of a mask if there is one."""

    by = 1.0

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        if mask is None:
            return self.by * x.mean(1)
        return self.by * (x * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)


def serve_masked_mean(plan: Plan) -> tuple[MaskedMean, Any]:
    """Return a model, and itself with buckets of 4 and 8, verified with a mask."""
    model = MaskedMean().eval()
    x, mask = torch.randn(8, 8, 3), torch.ones(8, 8)
    proof = verify_padding(model, (x, mask), padding=Padding({"x": 1, "mask": 1}), buckets=(4, 8))
    shapes = itertools.product((1, 2, 8), (4, 8))
    inputs = tuple(describe_example(Example((torch.randn(n, m, 3), torch.ones(n, m)))) for n, m in shapes)
    return model, apply_buckets(model, replace(make_decision(model, plan, x, mask), inputs=inputs), proof)


@pytest.mark.parametrize("plan", [Plan(threads=torch.get_num_threads() + 1), Plan()])
def test_requests_that_padding_was_not_verified_for_are_not_padded(plan: Plan) -> None:
    _, fast = serve_masked_mean(plan)
    with serve(fast, max_batch=8, max_wait_ms=0, pad_to=()) as server:
        assert server(torch.ones(1, 3, 3)).tolist() == [[1.0] * 3]
        assert server(torch.ones(1, 3, 3), torch.ones(1, 3)).tolist() == [[1.0] * 3]
    with serve(fast, max_batch=2, max_wait_ms=5_000, pad_to=()) as server:
        futures = [server.submit(torch.full((1, n, 3), float(n)), torch.ones(1, n)) for n in (2, 3)]
        assert [future.result(20)[0, 0].item() for future in futures] == [2.0, 3.0]
    assert server.statistics.batches == 1


def test_nothing_is_padded_once_the_model_has_changed() -> None:
    model, fast = serve_masked_mean(Plan(threads=torch.get_num_threads() + 1))
    with serve(fast, max_batch=2, max_wait_ms=5_000, pad_to=()) as server:
        model.by = 3.0
        futures = [server.submit(torch.full((1, n, 3), float(n)), torch.ones(1, n)) for n in (2, 3)]
        assert [future.result(20)[0, 0].item() for future in futures] == [6.0, 9.0]
    assert server.statistics.batches == 2


def test_buckets_of_the_batch_pad_it_by_themselves() -> None:
    seen: list[tuple[int, ...]] = []
    with serve(serve_buckets(0, seen), max_batch=8, max_wait_ms=50) as server:
        futures = [server.submit(rows(1, n, 8)) for n in range(3)]
        assert [future.result(20)[0, 0].item() for future in futures] == [0.0, 2.0, 4.0]
    assert seen == [(4, 8)]
    assert server.statistics.padding == 0
