"""The usual replay in C++ answers as the one in Python, and leaves to it whatever differs."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from graph_machine import Machine, capture_call
from torchwise._torch import native
from torchwise.compile.cuda_graphs.call_graph import CapturedCall
from torchwise.compile.cuda_graphs.in_place_replay import Replays
from torchwise.workload import pytree

STEADY_CALLS = 6
"""Calls from the same memory after which a graph reads and writes there."""


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    with torch.no_grad():
        yield Machine(monkeypatch)


class Counted:
    """Counts the calls that come to Python."""

    def __init__(self, has_compiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
        self._has_compiled, self._count = has_compiled, 0
        answer = CapturedCall._answer

        def count(*given: Any) -> Any:
            self._count += 1
            return answer(*given)

        monkeypatch.setattr(CapturedCall, "_answer", count)

    def begin(self) -> None:
        """Begin to count again."""
        self._count = 0

    def expect(self, left: int, of: int) -> None:
        """Check how many of the calls since the last check came to Python: all of them without compiled code."""
        assert self._count == (left if self._has_compiled else of)
        self.begin()


@pytest.fixture
def in_python(checks: str, monkeypatch: pytest.MonkeyPatch) -> Counted:
    """Run a test with compiled code and without, and count the calls that come to Python."""
    return Counted(checks == "native", monkeypatch)


class Scaled(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(4))
        self.register_buffer("calls", torch.zeros(1))
        self.factor = 2.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.weight * self.factor + (1.0 if self.training else 0.0)


class Counting(Scaled):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls.add_(1)
        return super().forward(x) + self.calls


def find_bypass(captured: CapturedCall, *args: Any) -> Callable[..., Any]:
    """Return the bypass of a captured call that has graphs for these inputs where they lie."""
    for _ in range(STEADY_CALLS):
        captured(*args)
    return captured.get_bypass(args, {})


def make_steady(model: Callable[..., Any], *args: Any, **options: Any) -> tuple[CapturedCall, Callable[..., Any]]:
    """Return a captured call and such a bypass."""
    captured = capture_call(model, model if isinstance(model, torch.nn.Module) else None, **options)
    return captured, find_bypass(captured, *args)


OUTPUTS: dict[str, Callable[..., Any]] = {
    "a tensor": lambda x, y: x + y,
    "a tuple": lambda x, y: (x + y, x - y),
    "a list of one": lambda x, y: [x * y],
    "a nested dict": lambda x, y: {"sum": x + y, "rest": [(x - y, 3), None]},
    "nothing": lambda x, y: None,
}


@pytest.mark.parametrize("kind", OUTPUTS)
@pytest.mark.parametrize("lends", [False, True])
def test_what_lies_where_it_was_is_answered_without_python(
    machine: Machine, in_python: Counted, kind: str, lends: bool
) -> None:
    x, y = torch.randn(3, 4), torch.randn(3, 4)
    _, bypass = make_steady(OUTPUTS[kind], x, y, borrow=lends)
    in_python.expect(STEADY_CALLS, STEADY_CALLS)
    for _ in range(3):
        x.add_(0.5)
        answers, right = bypass(x, y), OUTPUTS[kind](x, y)
        assert pytree.form(answers) == pytree.form(right)
        torch.testing.assert_close(answers, right)
        del answers  # whose memory comes again
    in_python.expect(0, 3)


def test_answers_that_are_held_are_never_overwritten(machine: Machine, in_python: Counted) -> None:
    x = torch.randn(3, 4)
    _, bypass = make_steady(torch.sin, x)
    held, right = [], []
    for number in range(6):
        x.fill_(number)
        held.append(bypass(x))
        right.append(x.sin())
    torch.testing.assert_close(held, right)


def test_a_tensor_that_lies_elsewhere_comes_to_python(machine: Machine, in_python: Counted) -> None:
    x = torch.randn(3, 4)
    _, bypass = make_steady(lambda x: x * 2, x)
    in_python.expect(STEADY_CALLS, STEADY_CALLS)
    other = torch.randn(3, 4)
    torch.testing.assert_close(bypass(other), other * 2)
    in_python.expect(1, 1)


CHANGES: dict[str, Callable[[Any], object]] = {
    "another weight": lambda model: setattr(model, "weight", torch.nn.Parameter(torch.ones(4))),
    "other memory": lambda model: setattr(model.weight, "data", torch.full((4,), 3.0)),
    "another attribute": lambda model: setattr(model, "factor", 5.0),
    "another mode": lambda model: model.train(),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("kind", [Scaled, Counting])
def test_a_module_that_changed_is_recorded_anew_and_answered_by_compiled_code_again(
    machine: Machine, in_python: Counted, change: str, kind: type[Scaled]
) -> None:
    model, x = kind().eval(), torch.randn(3, 4)
    _, bypass = make_steady(model, x)
    before = machine.recorded
    CHANGES[change](model)
    calls = int(model.calls)
    for number in range(1, STEADY_CALLS):
        answer = bypass(x)
        now = int(model.calls)
        assert now == (calls + number if kind is Counting else 0), "it wrote once"
        expected = Scaled.forward(model, x) + (now if kind is Counting else 0)
        torch.testing.assert_close(answer, expected)
        del answer
    assert machine.recorded == before + 1
    in_python.begin()
    for _ in range(3):
        bypass(x)
    in_python.expect(0, 3)


class Named(Scaled):
    def forward(self, x: torch.Tensor) -> Any:
        return {"answer": super().forward(x)}


def test_nothing_holds_the_old_graphs_while_the_call_is_recorded_anew(
    machine: Machine, in_python: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, x = Named().eval(), torch.randn(3, 4)
    captured, bypass = make_steady(model, x)
    bypass(x)
    (replays,) = captured._graphs.values()
    assert isinstance(replays, Replays)
    output = weakref.ref(replays._outputs[0])
    del replays
    held: list[int] = []
    record = machine.record

    def count_and_record(*given: Any) -> Any:
        held.append(machine.count_graphs() + (output() is not None))
        return record(*given)

    monkeypatch.setattr(machine, "record", count_and_record)
    model.factor = 3.0
    torch.testing.assert_close(bypass(x), model(x))
    assert held == [0]


def test_a_weight_written_in_place_takes_effect(machine: Machine, in_python: Counted) -> None:
    model, x = Scaled().eval(), torch.randn(3, 4)
    _, bypass = make_steady(model, x)
    for _ in range(3):
        model.weight.mul_(2)
        torch.testing.assert_close(bypass(x), model(x))


def test_an_input_that_is_written_to_counts_so(machine: Machine, in_python: Counted) -> None:
    x, y = torch.zeros(3, 4), torch.ones(3, 4)
    _, bypass = make_steady(lambda y, x: x.add_(y), y, x)
    in_python.expect(STEADY_CALLS, STEADY_CALLS)
    for number in range(STEADY_CALLS + 1, STEADY_CALLS + 4):
        before, other = x._version, y._version
        torch.testing.assert_close(bypass(y, x), torch.full_like(x, number))
        assert x._version > before
        assert y._version == other
        torch.testing.assert_close(x, torch.full_like(x, number))
    in_python.expect(0, 3)


def test_an_input_of_inference_mode_has_no_count_of_writes(machine: Machine, in_python: Counted) -> None:
    with torch.inference_mode():
        x = torch.zeros(3, 4)
        bypass = find_bypass(capture_call(lambda x: x.add_(1)), x)
        in_python.begin()
        before = x.clone()
        torch.testing.assert_close(bypass(x), before + 1)
    torch.testing.assert_close(bypass(x), before + 2)
    torch.testing.assert_close(x, before + 2)
    in_python.expect(0, 2)


OTHERWISE: dict[str, Callable[[Machine], object]] = {
    "another stream": lambda machine: setattr(machine, "stream", 5),
    "another GPU": lambda machine: setattr(machine, "device", 1),
    "somebody's recording": lambda machine: setattr(machine, "capturing", True),
}


@pytest.mark.parametrize("change", OTHERWISE)
def test_around_a_change_python_answers(machine: Machine, in_python: Counted, change: str) -> None:
    x = torch.randn(3, 4)
    _, bypass = make_steady(torch.sin, x)
    in_python.expect(STEADY_CALLS, STEADY_CALLS)
    bypass(x)
    in_python.expect(0, 1)
    OTHERWISE[change](machine)
    torch.testing.assert_close(bypass(x), x.sin())
    in_python.expect(1, 1)
    machine.stream, machine.device, machine.capturing = 0, 0, False
    for _ in range(3):
        torch.testing.assert_close(bypass(x), x.sin())
    in_python.expect(1 if change == "another stream" else 0, 3)  # the replay on the other one is waited for


def test_settings_that_changed_lead_to_a_new_recording(machine: Machine, in_python: Counted) -> None:
    x = torch.randn(3, 4)
    _, bypass = make_steady(torch.sin, x)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        torch.testing.assert_close(bypass(x), x.sin())
    finally:
        torch.set_default_dtype(before)
    assert machine.recorded == 2


def test_an_interrupt_goes_through(machine: Machine, in_python: Counted) -> None:
    x = torch.randn(3, 4)
    captured, _ = make_steady(torch.sin, x)
    (replays,) = captured._graphs.values()
    assert isinstance(replays, Replays)
    interrupts, settled = [KeyboardInterrupt()], replays.settled

    def interrupt() -> bool:
        if interrupts:
            raise interrupts.pop()
        return settled()

    replays.settled = interrupt
    bypass = captured.get_bypass((x,), {})
    with pytest.raises(KeyboardInterrupt):
        bypass(x)
    torch.testing.assert_close(bypass(x), x.sin())


def test_what_is_closed_is_freed_and_recorded_anew(machine: Machine, in_python: Counted) -> None:
    x = torch.randn(3, 4)
    captured, bypass = make_steady(lambda x: x.expand(2, 3, 4).transpose(0, 1) + 1, x)
    bypass(x)
    captured.close()
    gc.collect()
    assert machine.count_graphs() == 0, "compiled code holds none"
    for _ in range(STEADY_CALLS):
        torch.testing.assert_close(bypass(x), x.expand(2, 3, 4).transpose(0, 1) + 1)
    assert machine.recorded == 2
    in_python.begin()
    bypass(x)
    in_python.expect(0, 1)


def test_a_captured_call_is_freed_with_its_bypass(machine: Machine, in_python: Counted) -> None:
    x = torch.randn(3, 4)
    captured, bypass = make_steady(Scaled(), x)
    reference = weakref.ref(captured)
    gc.collect()
    gc.disable()
    try:
        del captured
        assert reference() is not None, "the bypass holds it"
        del bypass
        assert reference() is None, "there is no circle"
    finally:
        gc.enable()


def test_an_error_of_a_replay_is_raised_and_leaves_the_lock(
    machine: Machine, in_python: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = torch.randn(3, 4)
    captured, bypass = make_steady(torch.sin, x)
    (replays,) = captured._graphs.values()
    assert isinstance(replays, Replays)
    kept = dict(replays._in_place)

    def fail() -> None:
        raise RuntimeError("CUDA error: an illegal memory access")

    for addresses, (_, borrowed) in kept.items():
        replays._in_place[addresses] = (fail, borrowed)
    with pytest.raises(RuntimeError, match="illegal memory access"):
        bypass(x)
    replays._in_place.update(kept)
    torch.testing.assert_close(bypass(x), x.sin())


def test_a_model_that_calls_itself_while_it_is_looked_at_does_not_wait_for_itself(
    machine: Machine, in_python: Counted
) -> None:
    model, x = Scaled().eval(), torch.randn(3, 4)
    captured, bypass = make_steady(model, x)
    guard, answers = captured._guard, []

    def call_within() -> bool:
        answers.append(bypass(x) if len(answers) < 1 else None)
        return True

    guard.is_unchanged = call_within
    torch.testing.assert_close(bypass(x), model(x))
    torch.testing.assert_close(answers[0], model(x))


def test_threads_take_turns(machine: Machine, in_python: Counted) -> None:
    x = torch.randn(3, 4)
    captured, bypass = make_steady(torch.sin, x)
    (replays,) = captured._graphs.values()
    assert isinstance(replays, Replays)
    running, most, wait = [0], [0], threading.Event()

    def wrap(replay: Callable[[], None]) -> Callable[[], None]:
        def run() -> None:
            running[0] += 1
            most[0] = max(most[0], running[0])
            wait.wait(0.002)
            replay()
            running[0] -= 1

        return run

    for addresses, (replay, borrowed) in list(replays._in_place.items()):
        replays._in_place[addresses] = (wrap(replay), borrowed)
    wrong: list[torch.Tensor] = []

    def work() -> None:
        with torch.no_grad():
            for _ in range(10):
                answer = bypass(x)
                if not torch.equal(answer, x.sin()):
                    wrong.append(answer)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert not wrong
    assert most == [1], "two would write to one memory"


def test_what_compiled_code_cannot_read_is_refused(native_checks: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "load_checks", lambda: native_checks)
    holder: list[int | None] = [None]
    lock = threading.Lock()
    replay = native.make_replay(abs, abs, None, lock, holder, ())
    assert replay is not None
    assert replay(-3) == 3, "nothing is taken yet"
    for wrong in (({}, (-1,), (), (), None, bool, False, False), ({}, ("a",), (), (), None, bool, False, False)):
        with pytest.raises((TypeError, ValueError)):
            replay.take(*wrong)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="one output has one maker"):
        replay.take({}, (0,), (), (), None, bool, False, False)
    with pytest.raises(TypeError):
        replay.take([])  # type: ignore[arg-type]
    for facts in ((1,), ((abs, (), 3),), ((abs, (1, 2), [True]),)):
        with pytest.raises(TypeError):
            native.make_replay(abs, abs, None, lock, holder, facts)  # type: ignore[arg-type]
    assert replay(-3) == 3
