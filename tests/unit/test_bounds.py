"""Values outside of bounds are refused before an operator runs, where they would end the process."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
import torch

from torchwise._torch.dispatch import PUSH_MODE
from torchwise.plan import Plan
from torchwise.records import CheckName, Outcome
from torchwise.trial import loading
from torchwise.trial.inspection import _trace_operators
from torchwise.trial.loading import runner
from torchwise.trial.settling import check_that_state_settles
from torchwise.trial.step_inspection import flops_of
from torchwise.verify import pair
from torchwise.verify.observe import make_trial
from torchwise.verify.perturbation import PerturbRounding
from torchwise.verify.reference import MatchedNoise
from torchwise.verify.spot_check import OVERWRITTEN
from torchwise.verify.verify import Subject, verify
from torchwise.workload import Workload, bounds
from torchwise.workload.bounds import OutOfBoundsError, RefuseOutOfBounds, count_calls_within_bounds
from torchwise.workload.module_state import Turns
from torchwise.workload.workload import Example

X = torch.arange(12.0).reshape(3, 4)
SHARES = torch.tensor([0.2, 0.8])


def at(*indices: int) -> torch.Tensor:
    return torch.tensor(indices)


CALLS: dict[str, tuple[Callable[[Any], object], Any, Any]] = {
    "index_select": (lambda i: X.index_select(1, i), at(0, 3), at(4)),
    "index_select, negative": (lambda i: X.index_select(1, i), at(0), at(-1)),
    "index_copy_": (lambda i: X.clone().index_copy_(0, i, X[:1]), at(2), at(3)),
    "index_add": (lambda i: X.index_add(0, i, X[:1]), at(2), at(3)),
    "index_fill": (lambda i: X.index_fill(1, i, 0.0), at(3, -4), at(4)),
    "masked_scatter": (lambda m: X.masked_scatter(m, X[0]), X < 4, X < 5),
    "multi_margin_loss": (lambda i: torch.nn.functional.multi_margin_loss(X, i), at(0, 3, 1), at(0, 4, 1)),
    "multinomial, small": (lambda p: torch.multinomial(p, 1), torch.full((4,), 1e-6).half(), -SHARES),
    "bytes": (lambda i: torch.nn.functional.embedding(i, torch.zeros(400, 1)), at(399), at(400)),
    "gather": (lambda i: X.gather(1, i[None]), at(3), at(4)),
    "scatter": (lambda i: X.scatter(0, i[None], 1.0), at(2), at(3)),
    "scatter_add_": (lambda i: X.clone().scatter_add_(1, i[None], X[:1, :1]), at(3), at(4)),
    "embedding": (lambda i: torch.nn.functional.embedding(i, X), at(2), at(3)),
    "embedding_bag": (lambda i: torch.nn.functional.embedding_bag(i[None], X), at(2), at(3)),
    "brackets": (lambda i: X[i], at(2, -3), at(3)),
    "brackets, second place": (lambda i: X[:, i], at(3, -4), at(4)),
    "brackets, after a mask": (lambda i: X[None].expand(2, 3, 4)[SHARES > 0.5, i], at(2), at(3)),
    "assignment": (lambda i: X.clone().__setitem__(i, 1.0), at(2), at(3)),
    "take": (lambda i: X.take(i), at(11, -12), at(12)),
    "cross_entropy": (lambda i: torch.nn.functional.cross_entropy(X, i), at(0, 3, -100), at(0, 4, 1)),
    "multinomial": (lambda p: torch.multinomial(p, 1), SHARES, torch.zeros(2)),
    "multinomial, negative": (lambda p: torch.multinomial(p, 1), SHARES, -SHARES),
    "bernoulli": (lambda p: torch.bernoulli(p), SHARES, SHARES + 1),
    "embedding, renormed": (
        lambda i: torch.nn.functional.embedding(i, X.clone(), max_norm=1.0),
        at(2),
        at(3),
    ),
    "embedding_bag, offsets": (lambda i: torch.nn.functional.embedding_bag(at(0, 1), X, i), at(0, 2), at(0, 3)),
    "embedding_bag, disorder": (lambda i: torch.nn.functional.embedding_bag(at(0, 1), X, i), at(0, 1, 1), at(0, 1, 0)),
    "poisson": (lambda p: torch.poisson(p), SHARES, -SHARES),
    "poisson, unknown": (lambda p: torch.poisson(p), SHARES, SHARES * math.nan),
    "repeat_interleave": (lambda n: X.repeat_interleave(n, 0), at(0, 2, 1), at(0, -1, 1)),
    "repeat_interleave, size": (lambda n: X.repeat_interleave(n, 0, output_size=3), at(0, 2, 1), at(0, 1, 1)),
    "multi_margin_loss, ignored": (lambda i: torch.nn.functional.multi_margin_loss(X, i), at(0, 3, 1), at(0, -100, 1)),
    "multilabel": (lambda i: torch.nn.functional.multilabel_margin_loss(X[0], i), at(3, 0, -1, -1), at(4, 0, -1, -1)),
    "max_unpool": (lambda i: torch.nn.functional.max_unpool1d(X[:1, :2], i[None], 2), at(1, 3), at(1, 4)),
    "max_unpool3d": (
        lambda i: torch.nn.functional.max_unpool3d(X[None, None, :1, :1, None], i.view(1, 1, 1, 1, 1), 2),
        at(7),
        at(8),
    ),
    "binary_cross_entropy, target": (
        lambda p: torch.nn.functional.binary_cross_entropy(SHARES, p),
        SHARES,
        SHARES + 1,
    ),
    "binary_cross_entropy": (lambda p: torch.nn.functional.binary_cross_entropy(p, SHARES), SHARES, SHARES + 1),
    "assert": (lambda c: torch._assert_async(c), torch.tensor(True), torch.tensor(False)),
}


@pytest.mark.parametrize("mode", [nullcontext, torch.inference_mode])
@pytest.mark.parametrize("name", CALLS)
def test_an_operator_runs_within_bounds_and_not_beyond(
    name: str, mode: Callable[[], AbstractContextManager[Any]]
) -> None:
    call, inside, outside = CALLS[name]
    with mode(), RefuseOutOfBounds():
        call(inside)
        with pytest.raises(OutOfBoundsError, match="was given values outside of"):
            call(outside)


class FatalError(BaseException):
    """Ends a test as an assertion in a CUDA kernel ends a process."""


class Cache(torch.nn.Module):
    """Writes each call's row to the next place of a cache, which is full after some calls."""

    def __init__(self, places: int) -> None:
        super().__init__()
        self.register_buffer("rows", torch.zeros(places, 4))
        self.register_buffer("place", torch.zeros(1, dtype=torch.int64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        try:
            self.rows.index_copy_(0, self.place, x)
        except OutOfBoundsError:
            raise
        except IndexError:
            if bounds.ends_process():
                raise FatalError from None
            raise
        self.place += 1
        return self.rows.sum(0)


@pytest.fixture
def asserting(monkeypatch: pytest.MonkeyPatch) -> None:
    for place in (bounds, loading, pair):
        monkeypatch.setattr(place, "ends_process", lambda: True)


@pytest.mark.usefixtures("asserting")
@pytest.mark.parametrize(("places", "wanted", "found"), [(2, 4, 2), (4, 4, 4), (9, 4, 4), (0, 1, 0)])
def test_the_calls_that_a_cache_takes_are_counted_and_leave_it_as_it_was(places: int, wanted: int, found: int) -> None:
    model, x = Cache(places), torch.ones(1, 4)
    assert count_calls_within_bounds(model, Example((x,)), wanted) == found
    assert int(model.place) == 0
    assert not model.rows.any()


def test_where_operators_raise_errors_themselves_nothing_is_called() -> None:
    def call(_x: torch.Tensor) -> torch.Tensor:
        raise FatalError

    assert count_calls_within_bounds(call, Example((X,)), 4) == 4


@pytest.mark.parametrize("asserts", [True, False])
@pytest.mark.parametrize("places", [1, 2, 9])
def test_a_model_is_verified_without_a_call_beyond_its_cache(
    places: int, asserts: bool, request: pytest.FixtureRequest
) -> None:
    if asserts:
        request.getfixturevalue("asserting")
    model = Cache(places)
    workload = Workload(model, (Example((torch.randn(1, 4),)),))
    subject = Subject(workload, model, model, stateful=True)
    assert verify(subject).outcome is Outcome.PASS


@pytest.mark.usefixtures("asserting")
def test_a_timed_program_starts_over_before_its_cache_is_full() -> None:
    model = Cache(3)
    go_on = runner(model, Example((torch.ones(1, 4),)), "inference", original=model, turns=Turns())
    assert [float(go_on()[0]) for _ in range(7)] == [1, 2, 3, 1, 2, 3, 1]


@pytest.mark.usefixtures("asserting")
def test_a_program_of_which_a_cache_takes_no_call_is_refused_before_it_is_timed() -> None:
    model = Cache(0)
    with pytest.raises(OutOfBoundsError, match="takes no further call"):
        runner(model, Example((torch.ones(1, 4),)), "inference", original=model, turns=Turns())


@pytest.mark.usefixtures("asserting")
@pytest.mark.parametrize("places", [1, 2, 3, 5])
def test_two_sides_of_a_timing_share_the_places_of_a_cache(places: int) -> None:
    model, turns = Cache(places), Turns()
    first = runner(model, Example((torch.ones(1, 4),)), "inference", original=model, turns=turns)
    first()
    second = runner(model, Example((torch.ones(1, 4),)), "inference", original=model, turns=turns)
    rows = [float(call()[0]) for _ in range(6) for call in (second, first)]
    assert max(rows) == places


@pytest.mark.usefixtures("asserting")
def test_made_up_inputs_beyond_bounds_are_refused_before_they_are_run() -> None:
    def call(table: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        try:
            return table[i]
        except OutOfBoundsError:
            raise
        except IndexError:
            raise FatalError from None

    takes = make_trial(Workload(call, (Example((X, at(0))),)))
    assert takes(Example((X, at(2))))
    assert not takes(Example((X, at(3))))


@pytest.mark.usefixtures("asserting")
def test_whether_state_settles_is_asked_within_the_cache() -> None:
    model = Cache(2)
    check_that_state_settles(model, Workload(model, (Example((torch.ones(1, 4),)),)), Plan())
    assert int(model.place) == 0


@pytest.mark.usefixtures("asserting")
@pytest.mark.parametrize("handles", [IndexError, Exception])
def test_a_refusal_that_the_model_handles_counts_all_the_same(handles: type[Exception]) -> None:
    def call(i: torch.Tensor) -> torch.Tensor:
        try:
            return X[i]
        except handles:
            return X

    assert count_calls_within_bounds(call, Example((at(3),)), 2) == 0
    assert not make_trial(Workload(call, (Example((at(0),)),)))(Example((at(3),)))


def test_code_that_a_model_compiles_is_looked_at_too_and_is_compiled_again_afterwards() -> None:
    graphs: list[torch.fx.GraphModule] = []

    def backend(graph: torch.fx.GraphModule, _inputs: list[torch.Tensor]) -> Callable[..., Any]:
        def run(*given: Any) -> Any:
            graphs.append(graph)
            return graph.forward(*given)

        return run

    @torch.compile(backend=backend)
    def pick(i: torch.Tensor) -> torch.Tensor:
        return X[i] * 2

    for _ in range(2):  # before and after it was compiled
        graphs.clear()
        with RefuseOutOfBounds(), pytest.raises(OutOfBoundsError):
            pick(at(3))
        assert not graphs
        pick(at(1))
        assert len(graphs) == 1


@pytest.mark.parametrize("look", ["round", "draw", "count", "inspect"])
def test_a_model_s_own_compiled_code_stays_compiled_behind_every_look_at_its_operators(look: str) -> None:
    ran: list[torch.fx.GraphModule] = []

    def backend(graph: torch.fx.GraphModule, _inputs: list[torch.Tensor]) -> Callable[..., Any]:
        return lambda *given: (ran.append(graph), graph.forward(*given))[1]

    double = torch.compile(lambda x: x * 2, backend=backend)
    looks: dict[str, Callable[[], object]] = {
        "count": lambda: flops_of(lambda: double(X)),
        "inspect": lambda: _trace_operators(lambda: double(X)),
    }
    if look in looks:
        looks[look]()
    else:
        with PerturbRounding(1.0) if look == "round" else MatchedNoise():
            double(X)
    assert not ran, "the operators were seen one by one"
    double(X)
    assert len(ran) == 1


@pytest.mark.parametrize("asserts", [True, False])
@pytest.mark.parametrize("then", ["read", "draw", "compare"])
def test_values_that_moved_roundings_put_out_of_bounds_end_no_process(
    then: str, asserts: bool, request: pytest.FixtureRequest
) -> None:
    """On the CPU the operator itself raises."""
    if asserts:
        request.getfixturevalue("asserting")
    steps: dict[str, Callable[[torch.Tensor], object]] = {
        "read": lambda x: X[(x * 3).long(), 0],
        "draw": torch.bernoulli,
        "compare": lambda x: torch.nn.functional.binary_cross_entropy(x, torch.ones_like(x)),
    }
    step, almost_all = steps[then], torch.full((1000,), 0.999999)
    step(almost_all * 0.9999999)
    with PerturbRounding(128.0), pytest.raises((IndexError, RuntimeError)) as found:
        step(almost_all * 0.9999999)
    assert (found.type is OutOfBoundsError) is asserts


def test_threads_that_look_at_operators_at_once_leave_the_compiler_as_it_was() -> None:
    ran: list[torch.fx.GraphModule] = []

    def backend(graph: torch.fx.GraphModule, _inputs: list[torch.Tensor]) -> Callable[..., Any]:
        return lambda *given: (ran.append(graph), graph.forward(*given))[1]

    double = torch.compile(lambda x: x * 2, backend=backend)
    one_is_in, both_are_in, one_is_out = (threading.Event() for _ in range(3))

    def leave_first() -> None:
        with MatchedNoise():
            one_is_in.set()
            assert both_are_in.wait(60)
        one_is_out.set()

    def leave_last() -> None:
        assert one_is_in.wait(60)
        with RefuseOutOfBounds():
            both_are_in.set()
            assert one_is_out.wait(60)
            double(X)
            assert not ran, "the first one to leave had the code run compiled under the other's mode"

    with ThreadPoolExecutor(2) as threads:
        for done in [threads.submit(leave_first), threads.submit(leave_last)]:
            done.result(120)
    double(X)
    assert len(ran) == 1


def test_an_interrupt_on_the_way_into_a_mode_leaves_the_compiler_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(_mode: object) -> None:
        raise KeyboardInterrupt

    stances: list[str] = []
    compiled = torch.compile(lambda x: x + 1, backend=lambda graph, _inputs: (stances.append("asked"), graph)[1])
    with monkeypatch.context() as patch:
        patch.setattr(PUSH_MODE.module + "." + PUSH_MODE.attribute, interrupt)
        with pytest.raises(KeyboardInterrupt), RefuseOutOfBounds():
            pass
    compiled(X)
    assert stances == ["asked"]


def test_what_cannot_be_looked_at_runs_as_it_is() -> None:
    from torch._subclasses import FakeTensorMode

    with RefuseOutOfBounds():
        assert torch.zeros(3, device="meta")[torch.zeros(2, dtype=torch.int64, device="meta")].shape == (2,)
        with FakeTensorMode() as mode:
            assert torch.empty(3)[mode.from_tensor(at(5))].shape == (1,)
        chosen = torch.cond(torch.tensor(True), lambda x: x + 1, lambda x: x - 1, (X,))
    assert torch.equal(chosen, X + 1)


def test_a_plan_that_overwrites_its_answers_is_found_where_a_cache_has_room() -> None:
    class Counting(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", torch.zeros(1))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.count += 1
            return x * self.count

    model, kept = Counting(), torch.zeros(4)

    def overwrite(x: torch.Tensor) -> torch.Tensor:
        return kept.copy_(model(x))

    workload = Workload(model, (Example((torch.ones(4, dtype=torch.int64),)),))
    last = verify(Subject(workload, overwrite, model, stateful=True)).checks[-1]
    assert last.name == CheckName.RETAINED_OUTPUTS
    assert (last.outcome, last.detail) == (Outcome.FAIL, OVERWRITTEN)
