"""`torchwise.serve_batched` as it verifies models itself, and as it takes sizes and waits from a decision."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

import torchwise
from coroutines import run_coroutine
from live_decisions import make_decision
from torchwise.errors import InputError
from torchwise.plan import EAGER, Plan
from torchwise.plan.workload_spec import BatchDim
from torchwise.records import Decision
from torchwise.runtime.batching import BatchServer
from torchwise.workload import Example
from torchwise.workload.identity import describe_example


class Noted(nn.Module):
    """Runs a model, and notes the sizes of its calls."""

    def __init__(self, model: Callable[..., Any]) -> None:
        super().__init__()
        self.model, self.sizes = model, []

    def forward(self, x: torch.Tensor) -> Any:
        self.sizes.append(len(x))
        return self.model(x)


def ask_together(server: BatchServer, calls: list[torch.Tensor]) -> list[Any]:
    """Return the answers of calls that wait for each other."""
    return [future.result(20) for future in [server.submit(call) for call in calls]]


def make_rows(count: int) -> list[torch.Tensor]:
    return [torch.randn(1, 3, 4) for _ in range(count)]


def test_independent_samples_are_verified_once_and_then_share_batches() -> None:
    model = Noted(nn.Linear(4, 2)).eval()
    with torchwise.serve_batched(model, max_batch=4, max_wait_ms=5_000) as server:
        first = make_rows(4)
        for answer, x in zip(ask_together(server, first), first, strict=True):
            torch.testing.assert_close(answer, model.model(x))
        model.sizes.clear()
        ask_together(server, make_rows(4))
        ask_together(server, [torch.randn(1, 5, 4) for _ in range(4)])
    assert model.sizes == [4, 4], "other sizes of the same form need no other verification"


def test_a_lone_request_runs_as_it_came_without_a_copy_or_a_check() -> None:
    seen: list[torch.Tensor] = []
    x = torch.ones(1, 3)
    with torchwise.serve_batched(lambda x: (seen.append(x), x)[1], max_batch=4, max_wait_ms=0) as server:
        server(x)
    assert len(seen) == 1
    assert seen[0] is x


class AcrossBatch(nn.Module):
    """Subtracts the mean over the batch."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x - x.mean(0)


def test_requests_like_the_example_do_not_wait_for_another_verification() -> None:
    model = Noted(nn.Linear(4, 2)).eval()
    with torchwise.serve_batched(model, max_batch=4, max_wait_ms=5_000, example=torch.randn(1, 3, 4)) as server:
        model.sizes.clear()
        ask_together(server, make_rows(4))
        assert model.sizes == [4]
        model.train()
        ask_together(server, make_rows(4))
        assert len(model.sizes) > 2, "in another mode they are verified"


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (nn.BatchNorm1d(3), "a call changes buffer model.running_mean: call model.eval() first"),
        (nn.BatchNorm1d(3, track_running_stats=False), "the output is off by"),
        (AcrossBatch().eval(), "the output is off by"),
        (lambda x: x.sum(), "the output is of shape (), but must be a tensor with 4 samples"),
        (lambda x: [str(x)] * len(x), "of type str, but must be a tensor with 4 samples"),
    ],
)
def test_samples_that_depend_on_each_other_never_share_a_batch(
    model: Callable[..., Any], said: str, caplog: pytest.LogCaptureFixture
) -> None:
    noted = Noted(model)
    noted.training = getattr(model, "training", False)
    calls = make_rows(8)
    with caplog.at_level(logging.WARNING), torchwise.serve_batched(noted, max_batch=4, max_wait_ms=5_000) as server:
        ask_together(server, calls[:4])
        noted.sizes.clear()
        answers = ask_together(server, calls[4:])
    assert noted.sizes == [1] * 4, "it is not tried again"
    with torch.no_grad():
        assert [str(answer) for answer in answers] == [str(model(x)) for x in calls[4:]]
    [line] = [record.getMessage() for record in caplog.records if "may not share" in record.getMessage()]
    assert said in line
    assert server.statistics.failures == 0
    with pytest.raises(InputError, match=r"samples must not depend on each other|must be a tensor with 4 samples"):
        torchwise.serve_batched(noted, max_batch=4, example=(calls[0],))


def test_a_model_that_goes_into_training_mode_is_verified_anew() -> None:
    model = nn.BatchNorm1d(3).eval()
    with torchwise.serve_batched(model, max_batch=2, max_wait_ms=5_000) as server:
        ask_together(server, make_rows(2))
        assert server.statistics.batches == 1
        model.train()
        ask_together(server, make_rows(2))
        assert server.statistics.batches == 3


def test_a_request_that_raises_by_itself_condemns_no_other() -> None:
    def invert(x: torch.Tensor) -> torch.Tensor:
        if bool((x == 0).any()):
            raise ZeroDivisionError("a zero")
        return 1 / x

    model = Noted(invert)
    with torchwise.serve_batched(model, max_batch=2, max_wait_ms=5_000) as server:
        futures = [server.submit(x) for x in (torch.zeros(1, 3, 4), torch.ones(1, 3, 4))]
        with pytest.raises(ZeroDivisionError, match="a zero"):
            futures[0].result(20)
        assert futures[1].result(20).tolist() == torch.ones(1, 3, 4).tolist()
        ask_together(server, make_rows(2))
        model.sizes.clear()
        ask_together(server, make_rows(2))
    assert model.sizes == [2]


def test_an_exit_in_a_batch_ends_no_server() -> None:
    def leave(x: torch.Tensor) -> torch.Tensor:
        if bool((x == 0).any()):
            raise SystemExit(3)
        return x

    with torchwise.serve_batched(leave, max_batch=2, max_wait_ms=5_000, verify=False) as server:
        futures = [server.submit(x) for x in (torch.zeros(1, 3), torch.ones(1, 3))]
        assert isinstance(futures[0].exception(20), SystemExit)
        assert futures[1].result(20).tolist() == [[1.0] * 3]
        assert server(torch.ones(2, 3)).shape == (2, 3)


def test_an_exit_in_a_callback_ends_no_server_and_repeats_no_answer() -> None:
    def leave(_: Any) -> None:
        raise SystemExit(3)

    model = Noted(AcrossBatch())
    with torchwise.serve_batched(model, max_batch=3, max_wait_ms=5_000) as server:
        futures = [server.submit(x) for x in make_rows(2)]
        for future in futures:
            future.add_done_callback(leave)
        futures += [server.submit(x) for x in make_rows(1)]
        for future in futures:
            assert future.result(20).shape == (1, 3, 4)
        assert server(torch.ones(3, 3, 4)).shape == (3, 3, 4)
    assert (server.statistics.requests, server.statistics.split) == (4, 0)


def test_a_server_without_its_thread_refuses_requests() -> None:
    server = torchwise.serve_batched(lambda x: x, max_batch=2)
    server.close()
    server._is_closed = False  # as if the thread had ended by itself
    with pytest.raises(InputError, match="the server is closed, but must be open: call serve_batched again"):
        server.submit(torch.ones(1, 3))


def test_a_lone_answer_is_not_overwritten_by_the_next_one() -> None:
    model = nn.Linear(4, 2).eval()
    memory = torch.zeros(1, 2)
    fast = torchwise.apply(model, decide(model, THREADS, (1,)), borrow=True)
    with torchwise.serve_batched(fast, max_batch=1) as server:
        server._fast = lambda x: memory.copy_(x)  # as a captured plan does on a GPU
        first, second = server(torch.full((1, 2), 1.0)), server(torch.full((1, 2), 2.0))
    assert (first[0, 0].item(), second[0, 0].item()) == (1.0, 2.0)


def test_a_call_in_the_servers_own_thread_is_refused() -> None:
    servers: list[BatchServer] = []
    with torchwise.serve_batched(lambda x: servers[0](x), max_batch=1) as server:
        servers.append(server)
        with pytest.raises(InputError, match="is called in its own thread, where it would wait for itself: use submit"):
            server(torch.ones(1, 3))


@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (lambda: torch.eye(3).to_sparse(), "sparse_coo"),
        (lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged), "nested"),
    ],
)
def test_tensors_that_cannot_be_joined_are_refused(make: Callable[[], torch.Tensor], kind: str) -> None:
    with (
        torchwise.serve_batched(lambda x: x, max_batch=4) as server,
        pytest.raises(InputError, match=f"is a {kind} tensor, but samples are joined only in dense ones"),
    ):
        server(make())


def test_a_coroutine_that_gives_up_disturbs_no_other() -> None:
    free = threading.Event()

    def wait(x: torch.Tensor) -> torch.Tensor:
        assert free.wait(20)
        return x

    async def ask(server: BatchServer) -> list[Any]:
        held = asyncio.ensure_future(server.call_async(torch.zeros(1, 1)))
        late = [asyncio.ensure_future(server.call_async(torch.full((1, 1), float(n)))) for n in range(1, 4)]
        await asyncio.sleep(0)
        late[1].cancel()
        with pytest.raises(asyncio.CancelledError):
            await late[1]
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(late[2], 0)
        free.set()
        return [(await held).item(), (await late[0]).item()]

    with torchwise.serve_batched(wait, max_batch=1, verify=False) as server:
        assert run_coroutine(ask(server)) == [0.0, 1.0]
        assert server(torch.full((1, 1), 9.0)).item() == 9.0


def decide(model: Callable[..., Any], plan: Plan, sizes: tuple[int, ...], limit_s: float | None = None) -> Decision:
    """Return a decision that was made at some batch sizes, by a search with a limit of latency if there is one."""
    decision = make_decision(model, plan, torch.randn(sizes[0], 4))
    workload = decision.workload
    if limit_s is not None:
        workload = replace(workload, objective="throughput", latency_limit=limit_s, batch=BatchDim(0, sizes[-1]))
    inputs = tuple(describe_example(Example((torch.randn(size, 4),))) for size in sizes)
    return replace(decision, workload=workload, inputs=inputs)


THREADS = Plan(threads=torch.get_num_threads() + 1)


def test_a_search_may_find_batch_1() -> None:
    model = nn.Linear(4, 2).eval()
    with torchwise.serve_batched(torchwise.apply(model, decide(model, EAGER, (1,), limit_s=1.0))) as server:
        assert server(torch.ones(1, 4)).shape == (1, 2)
        with pytest.raises(InputError, match="the request has 2 samples, but must have at most 1"):
            server(torch.ones(2, 4))


@pytest.mark.parametrize(
    ("plan", "sizes", "max_batch", "expected"),
    [
        (THREADS, (8,), None, 8),
        (THREADS, (8,), 4, 8),
        (THREADS, (2, 4, 8), None, 4),
        (EAGER, (8,), None, 3),
        (EAGER, (8,), 16, 3),
    ],
)
def test_batches_are_filled_up_to_the_sizes_that_the_plan_was_verified_for(
    plan: Plan, sizes: tuple[int, ...], max_batch: int | None, expected: int
) -> None:
    model = Noted(nn.Linear(4, 2)).eval()
    fast = torchwise.apply(model, decide(model, plan, sizes))
    model.sizes.clear()
    with torchwise.serve_batched(fast, max_batch=max_batch, max_wait_ms=200, verify=False) as server:
        ask_together(server, [torch.randn(1, 4) for _ in range(3)])
    assert model.sizes[-1] == expected
    assert sum(fast.statistics.reasons.values()) == 0, "the plan answers"


def test_a_batch_that_the_plan_was_not_verified_for_is_refused() -> None:
    model = nn.Linear(4, 2).eval()
    fast = torchwise.apply(model, decide(model, THREADS, (2, 8)))
    with pytest.raises(InputError, match="max_batch is 9, but the plan was verified for batches of at most 8"):
        torchwise.serve_batched(fast, max_batch=9)
    torchwise.serve_batched(fast, max_batch=9, pad_to=()).close()


def test_the_limit_of_the_search_bounds_the_wait() -> None:
    model = nn.Linear(4, 2).eval()
    fast = torchwise.apply(model, decide(model, EAGER, (8,), limit_s=4e-3))
    with pytest.raises(InputError, match=r"max_wait_ms is 3, but must be at most 2, half of the limit of 4.00 ms of"):
        torchwise.serve_batched(fast, max_wait_ms=3)
    for limit_s, expected in ((4e-3, 1e-3), (1.0, 2e-3)):
        with torchwise.serve_batched(torchwise.apply(model, decide(model, EAGER, (8,), limit_s))) as server:
            assert server._queue._max_wait_s == pytest.approx(expected)


def test_a_model_that_the_search_has_verified_is_not_verified_again() -> None:
    model = Noted(nn.Linear(4, 2)).eval()
    fast = torchwise.apply(model, decide(model, EAGER, (8,), limit_s=1.0))
    model.sizes.clear()
    with torchwise.serve_batched(fast, max_wait_ms=200) as server:
        ask_together(server, [torch.randn(1, 4) for _ in range(3)])
    assert model.sizes == [3]


class Centred(nn.Module):
    """Scales, and subtracts the mean over the batch if that is asked for, or in training."""

    def __init__(self) -> None:
        super().__init__()
        self.part = nn.Dropout(0.0)

    def forward(self, x: torch.Tensor, how: Any = None) -> torch.Tensor:
        found = how.item() > 1 if isinstance(how, torch.Tensor) else getattr(how, "centre", how)
        return x - x.mean(0) if found or self.part.training else 2 * x


class Choice:
    """Says whether to subtract the mean, by an attribute that its class does not tell."""

    def __init__(self, *, centre: bool) -> None:
        self.centre = centre


@pytest.mark.parametrize("how", [True, torch.tensor(2), Choice(centre=True)])
def test_what_the_search_did_not_run_is_verified(how: Any) -> None:
    model = Centred().eval()
    fast = torchwise.apply(model, decide(model, EAGER, (2,), limit_s=1.0))
    calls = [torch.randn(1, 4) for _ in range(2)]
    with torchwise.serve_batched(fast, max_wait_ms=200) as server:
        ask_together(server, calls)
        assert server.statistics.batches == 1, "the search has verified it"
        plain = {torch.Tensor: torch.tensor(1), Choice: Choice(centre=False)}.get(type(how), False)
        for other in (plain, how):
            futures = [server.submit(x, how=other) for x in calls]
            for future, x in zip(futures, calls, strict=True):
                assert torch.equal(future.result(20), model(x, other))
        assert server.statistics.batches == 4, "two calls, one by one"


def test_a_part_in_training_is_verified_after_a_search() -> None:
    model = Centred().eval()
    fast = torchwise.apply(model, decide(model, EAGER, (2,), limit_s=1.0))
    calls = [torch.randn(1, 4) for _ in range(2)]
    with torchwise.serve_batched(fast, max_wait_ms=200) as server:
        model.part.train()
        for answer, x in zip(ask_together(server, calls), calls, strict=True):
            assert torch.equal(answer, model(x))
