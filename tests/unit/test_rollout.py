"""Simulation loops: their answers, when they record and when they run step by step, with graphs that need no GPU."""

from __future__ import annotations

import logging
import math
import random
import re
import threading
import warnings
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from tape import Machine

import torchwise
from live_decisions import make_decision
from torchwise.compile import signature
from torchwise.compile.cuda_graphs import capture_errors
from torchwise.compile.cuda_graphs.call_state import find_difference, read_python_state
from torchwise.compile.cuda_graphs.capture_errors import capture_error, record_waits
from torchwise.compile.cuda_graphs.loop_graph import iterations
from torchwise.errors import InputError
from torchwise.plan import Plan
from torchwise.runtime import rollout
from torchwise.runtime.rollout import WARM_UP_STEPS, Rollout
from torchwise.workload import pytree


def plain(step: Callable[[Any], Any], state: Any, steps: int, every: int) -> tuple[Any, list[Any]]:
    kept = []
    for done in range(1, steps + 1):
        state = step(state)
        if done % every == 0:
            kept.append(pytree.map_tensors(torch.Tensor.clone, state))
    return state, kept


def same(a: Any, b: Any) -> bool:
    pairs = list(zip(pytree.tensors(a), pytree.tensors(b), strict=True))
    return all(torch.equal(x, y) for x, y in pairs)


def turn(u: torch.Tensor) -> torch.Tensor:
    return torch.sin(u) + 0.1


@dataclass
class Fluid:
    u: torch.Tensor
    p: torch.Tensor
    name: str = "water"


STEPS: dict[str, tuple[Callable[[Any], Any], Any]] = {
    "tensor": (turn, torch.arange(4.0)),
    "in place": (lambda u: u.mul_(0.9).add_(1.0), torch.arange(4.0)),
    "tuple": (lambda s: (s[0] + s[1], s[1] * 0.5), (torch.ones(3), torch.arange(3.0))),
    "swap": (lambda s: (s[1], s[0]), (torch.zeros(3), torch.ones(3))),
    "leapfrog": (lambda s: [s[1], 2 * s[1] - s[0] - 0.1 * s[1]], [torch.zeros(3), torch.ones(3)]),
    "dict": (lambda s: {"a": s["a"] + 1, "b": s["b"]}, {"a": torch.zeros(2), "b": torch.ones(2, dtype=torch.int64)}),
    "dataclass": (lambda s: Fluid(s.u + s.p, s.p * 0.9), Fluid(torch.ones(2), torch.ones(2))),
    "complex": (lambda z: z * complex(math.cos(0.1), math.sin(0.1)), torch.ones(3, dtype=torch.complex64)),
    "view": (lambda u: u.t(), torch.arange(9.0).view(3, 3)),
}


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(monkeypatch)


# ---- answers, on the CPU


@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize("steps", [0, 1, 7])
def test_it_answers_as_a_loop_does_and_leaves_the_state_given(name: str, steps: int) -> None:
    step, state = STEPS[name]
    kept = pytree.clone(state)
    last, snapshots = torchwise.rollout(step, state, steps, every=3)
    expected, kept_snapshots = plain(step, pytree.clone(state), steps, 3)
    assert type(last) is type(state)
    assert same(last, expected)
    assert same(snapshots, kept_snapshots)
    assert same(state, kept)
    assert same(torchwise.rollout(step, state, steps), expected)


def test_gradients_flow_through_time() -> None:
    weight = torch.tensor(0.5, requires_grad=True)
    start = torch.tensor([1.0, 2.0], requires_grad=True)
    last, snapshots = torchwise.rollout(lambda u: u * weight, start, 3, every=1)
    (last.sum() + snapshots[0].sum()).backward()
    assert weight.grad is not None
    assert start.grad is not None
    assert weight.grad.item() == pytest.approx(3 * 0.25 * 3 + 3)
    assert start.grad.tolist() == pytest.approx([0.125 + 0.5] * 2)


def test_a_snapshot_is_not_overwritten_by_later_steps() -> None:
    _, snapshots = torchwise.rollout(lambda u: u.add_(1), torch.zeros(2), 4, every=2)
    assert [s[0].item() for s in snapshots] == [2, 4]


WRONG: dict[str, tuple[Callable[[Any], Any], Any, str]] = {
    "shape": (lambda u: u[:2], torch.ones(3), r"step 1 returns a tensor of shape \[2\].*given.* shape \[3\]"),
    "dtype": (lambda u: u.double(), torch.ones(3), r"torch.float64.*torch.float32.*cast"),
    "nested": (lambda s: {"u": s["u"][None]}, {"u": torch.ones(3)}, r"at \['u'\]"),
    "more": (lambda s: (*s, s[0]), (torch.ones(3),), r"state of \['\[0\]', '\[1\]'\].*\['\[0\]'\]"),
    "container": (lambda s: (s, s), torch.ones(3), "returns a tuple, but was given a tensor"),
    "nothing": (lambda s: None, torch.ones(3), "returns a NoneType, but was given a tensor"),
}


def rotate_state(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    state["p"].sub_(0.1 * state["q"])
    state["q"].add_(0.1 * state["p"])
    return state


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64])
@pytest.mark.parametrize("before", [0, 1])
def test_halves_of_a_vector_stay_its_halves(before: int, dtype: torch.dtype) -> None:
    def make_state() -> dict[str, torch.Tensor]:
        both = torch.arange(5.0).to(dtype)[before : before + 4]
        return {"both": both, "q": both[:2], "p": both[2:], "again": both, "parts": torch.view_as_real(both[:2] + 0j)}

    expected, state = make_state(), make_state()
    for _ in range(4):
        expected = rotate_state(expected)
    answer, kept = torchwise.rollout(rotate_state, state, 4, every=2)
    for name, value in expected.items():
        assert torch.equal(answer[name], value)
        assert torch.equal(state[name], make_state()[name])
    assert torch.equal(kept[0]["both"][:2], kept[0]["q"])
    assert answer["again"] is answer["both"]


def test_a_view_of_other_numbers_stays_one() -> None:
    def step(state: list[torch.Tensor]) -> list[torch.Tensor]:
        state[0].mul_(1j)
        return state

    whole = torch.arange(3.0).to(torch.complex64)
    answer = torchwise.rollout(step, [whole[1:], torch.view_as_real(whole)], 1)
    assert torch.equal(torch.view_as_real(answer[0]), answer[1][1:])
    assert torch.equal(whole, torch.arange(3.0).to(torch.complex64))


def test_arrays_that_share_memory_do_so_in_the_copy() -> None:
    def make_state() -> dict[str, torch.Tensor]:  # each a storage of its own
        array = numpy.arange(9.0)
        return {name: torch.from_numpy(a) for name, a in {"q": array[:3], "p": array[1:8], "both": array[2:]}.items()}

    def step(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        state["p"].add_(1)
        return state

    answer, expected = torchwise.rollout(step, make_state(), 2), step(step(make_state()))
    assert all(torch.equal(answer[name], value) for name, value in expected.items())


def test_a_rollout_may_be_mapped_over_and_differentiated_forwards() -> None:
    def both(u: torch.Tensor) -> list[torch.Tensor]:
        return torchwise.rollout(lambda s: [x * x for x in s], [u, u[1:]], 2)

    given = torch.arange(6.0).view(2, 3)
    mapped = torch.func.vmap(both)(given)
    assert same(mapped, [given**4, given[:, 1:] ** 4])
    _, slopes = torch.func.jvp(both, (given[0],), (torch.ones(3),))
    assert same(slopes, [4 * given[0] ** 3, 4 * given[0][1:] ** 3])
    with torch.autograd.forward_ad.dual_level():
        duals = both(torch.autograd.forward_ad.make_dual(given[0], torch.ones(3)))
        assert same([torch.autograd.forward_ad.unpack_dual(x).tangent for x in duals], slopes)


def test_a_state_without_memory_is_copied_as_it_is() -> None:
    last = torchwise.rollout(lambda s: s, [torch.empty(2, device="meta"), torch.empty(3, device="meta")], 1)
    assert len({x.untyped_storage()._cdata for x in last}) == 2


@pytest.mark.parametrize("given", [{"steps": 2.5}, {"steps": "3"}, {"steps": 4, "every": 1.5}])
def test_a_number_of_steps_is_a_whole_number(given: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="whole number"):
        torchwise.rollout(lambda state: state + 1, torch.zeros(1), **given)


@pytest.mark.parametrize("name", WRONG)
def test_a_step_that_returns_another_kind_of_state_is_told_so(name: str) -> None:
    step, state, message = WRONG[name]
    with pytest.raises(InputError, match=message):
        torchwise.rollout(step, state, 2)


def test_numbers_out_of_range_are_refused() -> None:
    with pytest.raises(InputError, match="steps is -1, but must be at least 0"):
        torchwise.rollout(turn, torch.ones(2), -1)
    with pytest.raises(InputError, match="every is 0, but must be at least 1"):
        torchwise.rollout(turn, torch.ones(2), 1, every=0)


# ---- graphs


@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize("every", [1, 3, 40, 130])
def test_replays_answer_as_a_loop_does(machine: Machine, name: str, every: int) -> None:
    step, state = STEPS[name]
    kept = pytree.clone(state)
    loop = torchwise.captured_loop(step, every)
    with torch.no_grad():
        for steps in (260, 260, 5, 0):
            last, snapshots = loop(state, steps)
            expected, kept_snapshots = plain(step, pytree.clone(state), steps, every)
            assert type(last) is type(state)
            assert same(last, expected)
            assert len(snapshots) == len(kept_snapshots)
            assert same(snapshots, kept_snapshots)
            assert same(state, kept)
    assert loop.reason is None
    assert machine.replayed > 0
    assert machine.recorded == 2, "one graph of many steps and one of a single step, recorded once"


@pytest.mark.parametrize("gradients", [False, True])
def test_a_state_that_shares_memory_is_not_replayed_by_what_was_recorded_for_another(
    machine: Machine, gradients: bool
) -> None:
    def halves(both: torch.Tensor, other: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"both": both, "q": other[:2], "p": other[2:]}

    roll = Rollout(rotate_state)
    with torch.set_grad_enabled(gradients):
        roll(halves(torch.zeros(4), torch.arange(4.0)), 10)
        assert (machine.replayed > 0, roll.reason) == (True, None)
        u, expected = torch.arange(4.0), halves(v := torch.arange(4.0), v)
        answer = roll(halves(u, u), 10)
    for _ in range(10):
        expected = rotate_state(expected)
    assert all(torch.equal(answer[name], value) for name, value in expected.items())
    assert "share memory" in str(roll.reason)


def test_a_state_of_one_tensor_twice_is_replayed_once_its_places_part(machine: Machine) -> None:
    def step(state: list[torch.Tensor]) -> list[torch.Tensor]:
        state[0].add_(1)  # to both, at first
        return [state[0], state[1] * 2]

    roll = Rollout(step)
    with torch.no_grad():
        for _ in range(2):
            u, v = torch.ones(3), torch.ones(3)
            replayed, expected = machine.replayed, [v, v]
            answer = roll([u, u], 10)
            for _ in range(10):
                expected = step(expected)
            assert same(answer, expected)
            assert (machine.replayed > replayed, roll.reason) == (True, None)


def list_sizes(loop: Rollout) -> list[int]:
    """Return the sizes of the states that have a recording."""
    return [recorded.state().numel() for recorded, _ in loop._loops.values()]


def test_a_grid_beyond_the_limit_takes_the_place_of_the_one_used_least_recently(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rollout, "MAX_SIGNATURES", 2)
    monkeypatch.setattr(rollout, "REPLACE_STEPS", 20)
    loop, freed = Rollout(turn), []

    def run(size: int, steps: int = 60) -> int:
        before = machine.recorded
        assert same(loop(torch.ones(size), steps), plain(turn, torch.ones(size), steps, 1)[0])
        return machine.recorded - before

    with torch.no_grad():
        assert run(1) > 0
        assert run(2) > 0
        weakref.finalize(loop._loops[next(iter(loop._loops))][0], freed.append, 1)
        weakref.finalize(list(loop._loops.values())[1][0], freed.append, 2)
        assert run(1) == 0, "it is recorded already, and the one used last now"
        assert (list_sizes(loop), freed) == ([2, 1], [])
        assert run(3) > 0
        assert (list_sizes(loop), freed) == ([1, 3], [2]), "a recording that lost its place is freed at once"
        lengths = [recorded.length for recorded, _ in loop._loops.values()]
        assert lengths[0] == lengths[1], "later calls may be long"
        assert run(4, WARM_UP_STEPS + 19) == 0, "too few steps to take the place of another"
        assert loop.reason == "2 other states have recordings, and too few steps are taken to replace one"
        assert run(1) == run(3) == 0
        assert run(2, WARM_UP_STEPS + 20) > 0
        assert run(4, 8) > 0, "19 steps before, and these"
        loop.close()
    assert sorted(freed) == [1, 2]
    assert loop.reason is None


def test_a_recording_is_freed_before_the_next_one_takes_memory(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rollout, "MAX_SIGNATURES", 1)
    monkeypatch.setattr(rollout, "REPLACE_STEPS", 20)
    loop, made, alive = Rollout(turn), list[weakref.ref[Any]](), list[int]()
    record = loop._record

    def count_and_record(*args: Any, **kwargs: Any) -> Any:
        alive.append(sum(one() is not None for one in made))
        recorded = record(*args, **kwargs)
        made.append(weakref.ref(recorded))
        return recorded

    monkeypatch.setattr(loop, "_record", count_and_record)
    with torch.no_grad():
        loop(torch.ones(1), 60)
        loop(torch.ones(2), 60)
        (key,) = loop._loops
        loop._loops[key] = loop._loops[key][0], lambda: False  # PyTorch's settings are others now
        loop(torch.ones(2), 60)
    assert alive == [0, 0, 0]


def test_what_a_loop_remembers_of_grids_is_bounded(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signature, "MAX_SIGNATURES", 3)
    loop, waits = Rollout(turn), Rollout(lambda u: u * (1 if u.sum().item() else 0))
    with torch.no_grad():
        for size in range(1, 7):
            loop(torch.ones(size), 1)
            waits(torch.ones(size), 40)
    assert [*map(len, (loop._warm, waits._warm, waits._refused))] == [3, 3, 3]


def test_answers_are_the_callers_to_keep(machine: Machine) -> None:
    loop = torchwise.captured_loop(lambda u: u + 1)
    with torch.no_grad():
        first = loop(torch.zeros(2), 10)
        loop(torch.zeros(2), 20)
    assert first.tolist() == [10, 10]


def test_noise_is_what_the_loop_draws(machine: Machine) -> None:
    def walk(u: torch.Tensor) -> torch.Tensor:
        return u + torch.randn_like(u)

    loop = torchwise.captured_loop(walk, 7)
    with torch.no_grad():
        for seed in (0, 1):
            torch.manual_seed(seed)
            expected = plain(walk, torch.zeros(3), 250, 7)
            torch.manual_seed(seed)
            assert same(loop(torch.zeros(3), 250), expected)
    assert machine.replayed > 2


def test_few_steps_are_not_worth_a_recording_where_there_is_one_call(machine: Machine) -> None:
    with torch.no_grad():
        torchwise.rollout(turn, torch.ones(2), 10)
        assert machine.recorded == 0
        torchwise.rollout(turn, torch.ones(2), 100)
        assert machine.recorded == 2
        assert machine.replayed >= 8


def test_weights_changed_in_place_are_read_and_replaced_ones_are_recorded(machine: Machine) -> None:
    class Decay(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rate = torch.nn.Parameter(torch.tensor(0.9))

        def forward(self, u: torch.Tensor) -> torch.Tensor:
            return u * self.rate

    for form in (lambda m: m, lambda m: m.forward):
        model = Decay()
        loop = torchwise.captured_loop(form(model))
        before = machine.recorded
        with torch.no_grad():
            loop(torch.ones(2), 30)
            model.rate.fill_(0.5)
            assert same(loop(torch.ones(2), 5), torch.full((2,), 0.5**5))
            assert machine.recorded == before + 2
            model.rate = torch.nn.Parameter(torch.tensor(2.0))
            assert same(loop(torch.ones(2), 30), torch.full((2,), 2.0**30))
            assert machine.recorded == before + 4
            assert len(set(machine.pools[-4:])) == 2, "a pool whose graphs are gone is left"


def test_a_method_put_in_a_class_is_recorded_anew(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    class Decay(torch.nn.Module):
        def forward(self, u: torch.Tensor) -> torch.Tensor:
            return u * 0.9

    model = Decay()
    loops = [torchwise.captured_loop(step) for step in (model, lambda u: model(u))]
    with torch.no_grad():
        for loop in loops:
            loop(torch.ones(2), 30)
        monkeypatch.setattr(Decay, "forward", lambda _, u: u * 2)
        for loop in loops:
            before = machine.recorded
            assert same(loop(torch.ones(2), 30), torch.full((2,), 2.0**30))
            assert machine.recorded == before + 2


@pytest.mark.parametrize("inside", [False, True])
def test_an_applied_model_is_recorded_anew_once_its_weights_changed_or_its_plan_was_given_up(
    machine: Machine, inside: bool
) -> None:
    model, start = torch.nn.Linear(4, 4), torch.ones(2, 4)
    with torch.no_grad():
        fast = torchwise.apply(model, make_decision(model, Plan(precision="bf16"), start))
        loop = torchwise.captured_loop(torch.nn.Sequential(fast) if inside else fast)
        for change in (lambda: None, lambda: model.weight.mul_(0.5), lambda: fast._dispatcher.close()):
            change()
            before = machine.recorded
            assert same(loop(start, 30), plain(fast, start, 30, 1)[0])
            recorded = machine.recorded
            assert recorded > before
            assert same(loop(start, 30), plain(fast, start, 30, 1)[0])
            assert machine.recorded == recorded
    assert loop.reason is None


def test_gradients_are_not_lost_to_a_graph(machine: Machine) -> None:
    weight = torch.tensor(0.9, requires_grad=True)
    loop = torchwise.captured_loop(lambda u: u * weight)
    with torch.no_grad():
        loop(torch.ones(2), 30)
    assert machine.recorded == 2
    loop(torch.ones(2), 30).sum().backward()
    assert weight.grad is not None
    assert weight.grad.item() == pytest.approx(2 * 30 * 0.9**29, rel=1e-5)


def test_grad_mode_alone_does_not_keep_it_from_recording(machine: Machine) -> None:
    loop = torchwise.captured_loop(turn)
    assert same(loop(torch.ones(2), 30), plain(turn, torch.ones(2), 30, 1)[0])
    assert machine.recorded == 2
    with torch.inference_mode():
        assert same(loop(torch.ones(2), 30), plain(turn, torch.ones(2), 30, 1)[0])


def falls(u: torch.Tensor) -> torch.Tensor:
    u = u.requires_grad_()
    (force,) = torch.autograd.grad(-(u**2).sum(), u)
    return (u + 0.1 * force).detach()


def test_a_step_that_takes_gradients_within_is_recorded_with_them(machine: Machine) -> None:
    loop = torchwise.captured_loop(falls, 7)
    for steps in (40, 40, 0):
        last, kept = loop(torch.ones(3), steps)
        assert same((last, kept), plain(falls, torch.ones(3), steps, 7))
        assert not any(t.requires_grad for t in (last, *kept))
    assert loop.reason is None
    assert machine.recorded == 2


def test_gradients_that_begin_to_flow_later_are_not_lost(machine: Machine) -> None:
    weight = torch.tensor(0.9, requires_grad=True)
    taken = [0]

    def late(u: torch.Tensor) -> torch.Tensor:
        taken[0] += 1
        return u * weight if taken[0] > 3 else u + 1

    loop = torchwise.captured_loop(late)
    loop(torch.ones(2), 30).sum().backward()
    assert weight.grad is not None
    assert loop.reason is not None
    assert "requires gradients" in loop.reason


def test_in_inference_mode_a_loop_on_the_cpu_stays_in_it() -> None:
    with torch.inference_mode():
        sums = torch.zeros(2)
        last = torchwise.rollout(lambda u: sums.add_(u) * 0.5, torch.ones(2), 4)
    assert last.is_inference()


def add_one(s: Any) -> Any:
    return (s[0] + 1, s[1] + 1)


class Box:
    def __init__(self, u: torch.Tensor) -> None:
        self.u = u


class Clock:
    def __init__(self) -> None:
        self.now = 0

    def step(self, u: torch.Tensor) -> torch.Tensor:
        self.now += 1
        return u + self.now

    __call__ = step


def make_ticker() -> Callable[[torch.Tensor], torch.Tensor]:
    now = 0

    def step(u: torch.Tensor) -> torch.Tensor:
        nonlocal now
        now += 1
        return u + now

    return step


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (make_ticker, "now"),
        (Clock, "self.now"),
        (lambda: Clock().step, "self.now"),
        (lambda: (lambda inner: lambda u: inner(u))(make_ticker()), "now"),
        (lambda: lambda u: u + random.random(), "Python's random numbers"),
        (lambda: lambda u: u + numpy.random.rand(), "NumPy's random numbers"),
    ],
)
def test_what_a_step_keeps_in_python_is_carried_on(machine: Machine, make: Callable[[], Any], name: str) -> None:
    loop = torchwise.captured_loop(make())
    with torch.no_grad():
        random.seed(0)
        numpy.random.seed(0)
        answer = loop(torch.zeros(2), 30)
        random.seed(0)
        numpy.random.seed(0)
        assert same(answer, plain(make(), torch.zeros(2), 30, 1)[0])
    assert loop.reason == f"{name} changes in Python from step to step: carry it in the state as a tensor"
    assert machine.recorded == 0


def test_autocast_around_a_loop_casts_the_weights_inside_the_graph(machine: Machine) -> None:
    model = torch.nn.Linear(4, 4)
    loop = torchwise.captured_loop(lambda u: model(u).float())
    with torch.no_grad():
        for _ in range(2):
            with torch.autocast("cpu", torch.bfloat16):
                answer = loop(torch.ones(2, 4), 30)
                torch.clear_autocast_cache()
                assert same(answer, plain(lambda u: model(u).float(), torch.ones(2, 4), 30, 1)[0])
            model.weight.mul_(0.5)
    assert loop.reason is None


UNCAPTURABLE: dict[str, tuple[Callable[[Any], Any], Any, str | None]] = {
    "item": (lambda u: u * u.sum().item() ** 0, torch.ones(3), r"test_rollout.py:\d+, in <lambda>.*waits for the GPU"),
    "number": (add_one, (torch.ones(2), 0), "a number in the state changes"),
    "opaque": (lambda s: (s[0] + 1, s[1]), (torch.ones(2), Box(torch.ones(1))), "an object of type Box"),
    "handed on": (lambda s: (s[0] + 0, s[0]), (torch.ones(2), torch.ones(2)), None),
    "shared": (lambda s: (s[0].add_(1), s[0]), (torch.ones(2), torch.ones(2)), "share memory"),
}


@pytest.mark.parametrize("name", UNCAPTURABLE)
def test_what_cannot_be_captured_runs_step_by_step_and_says_why_once(
    machine: Machine, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    step, state, message = UNCAPTURABLE[name]
    loop = torchwise.captured_loop(step)
    with caplog.at_level(logging.WARNING), torch.no_grad():
        for _ in range(2):
            state, given = pytree.clone(state), pytree.clone(state)
            expected = plain(step, state, 30, 1)[0]
            assert same(loop(given, 30), expected)
            state = given
    if message is None:
        assert loop.reason is None
        return
    assert machine.replayed == 0
    assert len(caplog.records) == 1
    assert loop.reason is not None
    assert loop.reason in caplog.text
    assert re.search(message, loop.reason), loop.reason


def test_waiting_for_the_gpu_is_named_before_anything_is_recorded(machine: Machine) -> None:
    def waits(u: torch.Tensor) -> torch.Tensor:
        if machine.mode == "warn":
            warnings.warn("called a synchronizing CUDA operation", stacklevel=1)  # as C++ does, with this frame on top
        return u + 1

    loop = torchwise.captured_loop(waits)
    with torch.no_grad():
        assert loop(torch.zeros(2), 30).tolist() == [30, 30]
    assert loop.reason is not None
    assert "test_rollout.py" in loop.reason
    assert "in waits: `warnings.warn(" in loop.reason
    assert machine.recorded == 0
    assert machine.mode == 0, "the debug mode is as it was"


def warn_of_waiting() -> None:
    warnings.warn("called a synchronizing CUDA operation", stacklevel=1)


def test_another_threads_waiting_is_not_taken_for_the_steps(machine: Machine) -> None:
    def step(u: torch.Tensor) -> torch.Tensor:
        other = threading.Thread(target=warn_of_waiting)
        other.start()
        other.join()
        return u + 1

    loop = torchwise.captured_loop(step)
    with torch.no_grad():
        assert loop(torch.zeros(2), 30).tolist() == [30, 30]
    assert loop.reason is None


def test_two_threads_that_are_watched_at_once_leave_the_settings_as_they_were(machine: Machine) -> None:
    shown, entered, leave = warnings.showwarning, threading.Event(), threading.Event()

    def other() -> None:
        with record_waits():
            entered.set()
            leave.wait(20)

    thread = threading.Thread(target=other)
    thread.start()
    entered.wait(20)
    with record_waits() as found:
        leave.set()
        thread.join(20)
    assert machine.mode == 0
    assert warnings.showwarning is shown
    assert not found
    with record_waits() as found, record_waits() as inner:
        warn_of_waiting()
    assert len(found + inner) == 1


def test_packages_beside_pytorch_are_the_users() -> None:
    folder = Path(torch.__file__).parent
    assert not capture_errors._is_users(str(folder / "nn" / "modules" / "linear.py"))
    assert capture_errors._is_users(str(folder.with_name("torchvision") / "ops.py"))


def test_random_numbers_of_numpy_are_seen_whatever_makes_them() -> None:
    kept = numpy.random.get_bit_generator()
    numpy.random.set_bit_generator(numpy.random.PCG64(0))
    try:
        before = read_python_state(turn)
        assert find_difference(before, read_python_state(turn)) is None
        numpy.random.rand()
        assert find_difference(before, read_python_state(turn)) == "NumPy's random numbers"
    finally:
        numpy.random.set_bit_generator(kept)


def test_within_somebody_elses_capture_and_within_itself_it_is_a_plain_loop(machine: Machine) -> None:
    loop: Rollout = torchwise.captured_loop(lambda u: loop(u, 0) + 1)
    with torch.no_grad():
        assert loop(torch.zeros(1), 30).item() == 30
        before = machine.replayed
        machine.capturing = True
        assert loop(torch.zeros(1), 30).item() == 30
        assert machine.replayed == before


def test_threads_do_not_wait_for_each_other_forever(machine: Machine) -> None:
    loop, answers = torchwise.captured_loop(turn), []

    def work() -> None:
        with torch.no_grad():
            answers.append(loop(torch.ones(2), 40))

    loop(torch.ones(2), 40)
    threads = [threading.Thread(target=work, daemon=True) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(answers) == 3
    assert all(same(answer, answers[0]) for answer in answers)


# ---- obstacles, in words


def make_capture_error(message: str) -> Exception:
    """Return the error of ending a broken capture, from the error that broke it."""
    try:
        try:
            raise RuntimeError(message)
        finally:
            torch.ones(2).view(3)  # fails within PyTorch, as `capture_end` does
    except RuntimeError as error:
        return error


@pytest.mark.parametrize(
    ("message", "why"),
    [
        ("CUDA error: operation not permitted when stream is capturing\nCUDA kernel errors", "waits for the GPU"),
        ("Attempt to increase offset for a CUDA generator not in capture mode.", "torch.Generator of its own"),
        ("legacy stream depend on a capturing blocking stream", "another stream"),
        ("something else\nat length", "something else$"),
    ],
)
def test_a_failed_recording_names_its_line_and_the_way_out(message: str, why: str) -> None:
    error = capture_error(make_capture_error(message), "the loop")
    told, is_known = str(error), "something else" not in message
    assert error.about == (("capture", "backend", "scope", "transforms") if is_known else ())
    assert re.search(
        r"^the loop cannot be captured, because of test_rollout.py:\d+, in make_capture_error: `raise Runtime", told
    )
    assert re.search(why, told)


# ---- how many steps go into one graph


@pytest.mark.parametrize(
    ("step_s", "every", "most", "expected"),
    [
        (1e-4, None, 100, (100, 0)),
        (1e-3, None, 100, (20, 0)),
        (1.0, None, 100, (1, 0)),
        (1e-4, None, 12, (12, 0)),
        (1e-4, 1, 100, (100, 1)),
        (1e-4, 30, 100, (90, 30)),
        (1e-4, 60, 100, (60, 0)),
        (1e-4, 100, 100, (100, 0)),
        (1e-4, 250, 100, (83, 0)),
        (1e-3, 30, 100, (15, 0)),
    ],
)
def test_a_graph_is_of_some_thousand_kernels_and_meets_the_snapshots(
    step_s: float, every: int | None, most: int, expected: tuple[int, int]
) -> None:
    assert iterations(step_s, torch.ones(2), every, most) == expected


def test_snapshots_in_a_graph_stay_small() -> None:
    state = torch.empty(2**26, dtype=torch.uint8, device="meta")
    assert iterations(1e-4, state, 10) == (40, 10)
    assert iterations(1e-4, torch.empty(2**30, dtype=torch.uint8, device="meta"), 10) == (10, 0)
