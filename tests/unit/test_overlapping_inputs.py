"""Inputs that share memory, with each other or with the model, for a plan that was verified on others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from live_decisions import make_decision
from torchwise.compile import Recognizer, aot, compile_plan, signature_of
from torchwise.compile.aot import Loader, Maker
from torchwise.errors import UnsupportedError
from torchwise.plan import Plan
from torchwise.records import Outcome
from torchwise.runtime import Dispatcher
from torchwise.runtime.fallback_reason import FallbackReason
from torchwise.runtime.step import OptimizedStep
from torchwise.verify import Subject, verify
from torchwise.workload import Example, Workload
from torchwise.workload.identity import describe_example
from torchwise.workload.train_step import TrainStep

pytestmark = pytest.mark.usefixtures("dynamo_afresh", "plainly_compiled")

PLAN = Plan(backend="inductor")


def wave(u: torch.Tensor, older: torch.Tensor) -> torch.Tensor:
    older.mul_(-1).add_(2 * u).add_(u.roll(1, 0))
    return older.sum(1) + u.sum(1)


def read_inputs(u: torch.Tensor, older: torch.Tensor) -> torch.Tensor:
    return (u * 2 + older).sum(1)


def draw_tensor(*shape: int) -> torch.Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(1))


def make_separate() -> tuple[torch.Tensor, ...]:
    return draw_tensor(4, 4), draw_tensor(5, 4)[1:].clone()


def make_shifted() -> tuple[torch.Tensor, ...]:
    whole = draw_tensor(6, 4)
    return whole[:4], whole[2:]


def same() -> tuple[torch.Tensor, ...]:
    return (draw_tensor(4, 4),) * 2


def make_viewed() -> tuple[torch.Tensor, ...]:
    whole = draw_tensor(4, 4)
    return whole, whole.view(4, 4)


def from_numpy() -> tuple[torch.Tensor, ...]:
    array = draw_tensor(5, 4).numpy()
    return torch.from_numpy(array[1:]), torch.from_numpy(array[:4])


def make_adjacent() -> tuple[torch.Tensor, ...]:
    return tuple(draw_tensor(8, 4).view(2, 4, 4))


SHARING: list[Callable[[], tuple[torch.Tensor, ...]]] = [make_shifted, same, make_viewed, from_numpy]


def make_dispatcher(call: Any, *examples: Example, plan: Plan = PLAN) -> Dispatcher:
    decision = make_decision(call, plan)
    return Dispatcher(call, replace(decision, inputs=tuple(map(describe_example, examples))))


def agree(fast: Any, call: Any, make: Callable[[], tuple[torch.Tensor, ...]]) -> bool:
    """Whether the answers are equal, and so are the inputs afterwards."""
    ours, theirs = make(), make()
    answers = fast(*ours), call(*theirs)
    return torch.allclose(*answers) and all(map(torch.allclose, ours, theirs))


@pytest.mark.parametrize("make", SHARING)
def test_a_plan_proven_on_inputs_apart_leaves_others_to_the_original(make: Callable[[], Any]) -> None:
    fast = make_dispatcher(wave, Example(make_separate()))
    for given in (make_separate, make, make_separate, make, make):
        assert agree(fast, wave, given)
    assert fast.statistics.optimized == 2
    assert dict(fast.statistics.original) == {FallbackReason.INPUTS_SHARE_MEMORY: 3}


@pytest.mark.parametrize("nested", [lambda a, b: (([a], {"b": b}), {}), lambda a, b: ((a,), {"b": b})])
def test_wherever_they_are_given(nested: Callable[..., Any]) -> None:
    def call(*args: Any, **kwargs: Any) -> torch.Tensor:
        found = [*args, *kwargs.values()]
        return wave(*(value for each in found for value in (each if isinstance(each, list) else [each])))

    def call_by_dict(a: list[torch.Tensor], rest: dict[str, torch.Tensor]) -> torch.Tensor:
        return wave(a[0], rest["b"])

    written: Any = call_by_dict if isinstance(nested(1, 2)[0][0], list) else call
    args, kwargs = nested(*make_separate())
    fast = make_dispatcher(written, Example(args, kwargs))
    for make in (make_separate, make_shifted):
        (args, kwargs), (others, named) = nested(*make()), nested(*make())
        assert torch.allclose(fast(*args, **kwargs), written(*others, **named))
    assert fast.statistics.optimized == 1


def test_views_of_one_memory_that_lie_apart_are_no_others() -> None:
    fast = make_dispatcher(wave, Example(make_separate()))
    for _ in range(3):
        assert agree(fast, wave, make_adjacent)
    assert fast.statistics.optimized == 3
    halves = make_dispatcher(wave, Example(tuple(draw_tensor(4, 8).chunk(2, 1))))
    assert agree(halves, wave, lambda: tuple(draw_tensor(4, 8).chunk(2, 1)))
    assert halves.statistics.optimized == 1


@pytest.mark.parametrize("order", [(make_separate, make_shifted), (make_shifted, make_separate)])
def test_a_plan_proven_on_both_answers_both_whichever_comes_first(order: tuple[Callable[[], Any], ...]) -> None:
    fast = make_dispatcher(wave, Example(make_separate()), Example(make_shifted()))
    for make in order * 3:
        assert agree(fast, wave, make)
    assert fast.statistics.optimized == 6
    other = lambda: (lambda whole: (whole[:4], whole[1:]))(draw_tensor(5, 4))  # noqa: E731
    assert agree(fast, wave, other)
    assert dict(fast.statistics.original) == {FallbackReason.INPUTS_SHARE_MEMORY: 1}


@pytest.mark.parametrize("make", SHARING)
def test_a_call_that_writes_nothing_is_the_plan_s_however_inputs_lie(make: Callable[[], Any]) -> None:
    fast = make_dispatcher(read_inputs, Example(make_separate()))
    for given in (make, make_separate, make, make):
        assert agree(fast, read_inputs, given)
    assert (fast.statistics.optimized, dict(fast.statistics.original)) == (3, {FallbackReason.INPUTS_SHARE_MEMORY: 1})
    other_way_round = make_dispatcher(read_inputs, Example(make()))
    for _ in range(3):
        assert agree(other_way_round, read_inputs, make_separate)
    assert other_way_round.statistics.optimized == 2


def test_verification_holds_a_plan_to_what_it_does_where_examples_share_memory() -> None:
    workload = Workload(wave, (Example(make_separate()), Example(make_shifted())))
    compiled = compile_plan(wave, PLAN, workload.examples[0], device="cpu", mode="inference").call
    assert verify(Subject(workload, compiled, wave), extra_draws=1).outcome is Outcome.PASS
    copies = lambda *args: wave(*(arg.clone() for arg in args))  # noqa: E731
    assert verify(Subject(workload, copies, wave), extra_draws=0).outcome is Outcome.FAIL


class Cached(nn.Module):
    """Writes to a buffer, to its input, or to nothing."""

    def __init__(self, writes: str) -> None:
        super().__init__()
        self.writes = writes
        self.register_buffer("cache", draw_tensor(6, 4))
        self.weight = nn.Parameter(draw_tensor(4, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        cache: Any = self.cache
        if self.writes == "buffer":
            cache.add_(1)
        elif self.writes == "input":
            x.add_(1)
        return x @ self.weight + cache[:4]


@pytest.mark.parametrize(("writes", "answered"), [("buffer", 2), ("input", 2), ("nothing", 3)])
def test_an_input_that_is_the_model_s_own_memory(writes: str, answered: int) -> None:
    fast, right = Cached(writes).eval(), Cached(writes).eval()
    dispatcher = make_dispatcher(fast, Example((draw_tensor(4, 4),)))
    inputs: list[Callable[[Any], torch.Tensor]] = [
        lambda _: draw_tensor(4, 4),
        lambda model: model.cache[1:5],
        lambda _: draw_tensor(4, 4),
    ]
    for give in inputs:
        assert torch.allclose(dispatcher(give(fast)), right(give(right)))
        assert torch.allclose(fast.cache, right.cache)  # type: ignore[arg-type]
    assert dispatcher.statistics.optimized == answered
    assert sum(dispatcher.statistics.failures.values()) == 0
    first = Cached(writes).eval()
    other = make_dispatcher(first, Example((draw_tensor(4, 4),)))
    right = Cached(writes).eval()
    for _ in range(2):
        assert torch.allclose(other(first.cache[1:5]), right(right.cache[1:5]))  # type: ignore[index]
    assert other.statistics.optimized == (1 if writes == "nothing" else 0)


def test_a_weight_that_took_another_s_place_is_looked_at() -> None:
    fast, right = Cached("buffer").eval(), Cached("buffer").eval()
    dispatcher = make_dispatcher(fast, Example((draw_tensor(4, 4),)))
    assert torch.allclose(dispatcher(draw_tensor(4, 4)), right(draw_tensor(4, 4)))
    for model in (fast, right):
        model.cache = draw_tensor(6, 4) + 2
    assert torch.allclose(dispatcher(fast.cache[1:5]), right(right.cache[1:5]))  # type: ignore[index]
    assert dispatcher.statistics.optimized == 1


def test_a_batch_that_shares_memory_is_taken_as_written_where_it_is_written_to() -> None:
    class Scaling(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x.mul_(0.5) if self.in_place else x)

    def steps(in_place: bool) -> tuple[TrainStep, OptimizedStep]:
        torch.manual_seed(0)
        model = Scaling(4, 4)
        model.in_place = in_place
        step = TrainStep(model, nn.MSELoss(), torch.optim.SGD(model.parameters(), lr=0.1))
        decision = make_decision(step, Plan(threads=1), *make_separate())
        return step, OptimizedStep(step, replace(decision, workload=replace(decision.workload, mode="training")))

    with torch.enable_grad():
        for in_place, taken in ((True, 2), (False, 4)):
            _, fast = steps(in_place)
            right, _ = steps(in_place)
            for make in (make_separate, same, same, make_separate, same):
                assert torch.allclose(fast(*make()), right(*make()))
            assert fast.statistics.optimized == taken


def test_code_made_ahead_is_for_inputs_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aot, "_compile_ahead", lambda *_: aot.Code(b"", can_skip_guards=False))
    monkeypatch.setattr(aot, "_load_function", lambda _: read_inputs)
    maker = Maker()
    made = maker(read_inputs, PLAN)
    made(*make_separate())
    with pytest.raises(UnsupportedError, match="share memory"):
        made(*make_shifted())
    loaded = Loader(maker.made)(read_inputs, PLAN)
    assert torch.allclose(loaded(*make_separate()), read_inputs(*make_separate()))
    with pytest.raises(UnsupportedError, match="share memory"):
        loaded(*make_shifted())


def test_calls_are_recognised_by_how_their_inputs_lie() -> None:
    recognizers = {make: Recognizer(make()) for make in (make_separate, make_shifted, make_viewed, from_numpy)}
    for make, recognizer in recognizers.items():
        for other in (*recognizers, same, make_adjacent):
            alike = signature_of(other(), {}) == signature_of(make(), {})
            for _ in range(2):
                assert recognizer(other()) <= alike
            if other is make:
                assert recognizer(other())
    with pytest.raises(UnsupportedError, match="distinct"):
        Recognizer(same())


def test_inputs_share_memory_on_another_device_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.Tensor, "to", lambda tensor, _: tensor.clone())  # as to a GPU
    [moved] = Workload(wave, (Example(make_shifted()),)).to("cpu").examples
    assert describe_example(moved) == describe_example(Example(make_shifted()))
