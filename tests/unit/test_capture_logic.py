"""When a captured call records anew, replays, or steps aside: its logic, with a recording that needs no GPU."""

from __future__ import annotations

import contextlib
import gc
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
import torch

from graph_machine import Machine, capture_call
from torchwise._torch.dispatch import copy_each
from torchwise.compile.cuda_graphs import graph_pool, recorded_graph
from torchwise.compile.cuda_graphs.call_graph import CapturedCall
from torchwise.compile.cuda_graphs.capture_stream import RecordingStream
from torchwise.compile.cuda_graphs.graph_pool import GraphPool
from torchwise.compile.cuda_graphs.host_values import HostValues
from torchwise.compile.cuda_graphs.in_place_replay import MAX_GRAPHS, SETTLING_CALLS, RecordedAnswers, Replays
from torchwise.compile.cuda_graphs.object_inputs import WithObjects
from torchwise.compile.cuda_graphs.recorded_graph import Graph
from torchwise.compile.recompiles import RecompileLimitError, Recompiles
from torchwise.errors import UnsupportedError
from torchwise.testing.cuda_graph import Capture, CudaGraphContract
from torchwise.workload import pytree
from torchwise.workload.target import load


class Side(str):
    def wait_stream(self, other: object) -> None: ...


class Alone(RecordingStream):
    @contextlib.contextmanager
    def ready(self) -> Iterator[Any]:
        yield None


def pool_alone() -> GraphPool:
    pool = GraphPool()
    pool.stream = Alone()
    return pool


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    with torch.no_grad():
        yield Machine(monkeypatch)


X = torch.randn(3, 4)


class TestContract(CudaGraphContract):
    @pytest.fixture
    def capture(self, machine: Machine) -> Capture:
        return capture_call

    @pytest.fixture
    def device(self) -> str:
        return "cpu"

    @pytest.fixture
    def count_held(self, machine: Machine) -> Callable[[], int]:
        return machine.count_graphs


def test_a_signature_is_recorded_once_and_then_replayed(machine: Machine) -> None:
    net = torch.nn.Linear(4, 4)
    call = capture_call(net, net)
    lean = None
    for rows in (3, 5, 3, 5):
        given = torch.randn(rows, 4)
        assert torch.equal(call(given), net(given))
        lean = call.get_bypass((given,), {})
        assert torch.equal(lean(given), net(given))
    assert (machine.recorded, machine.replayed) == (2, 8)


CHANGES: dict[str, Callable[[Any], object]] = {
    "attribute": lambda m: setattr(m, "in_features", 5),
    "weight": lambda m: setattr(m, "weight", torch.nn.Parameter(torch.randn(4, 4))),
    "transposed": lambda m: setattr(m.weight, "data", m.weight.data.t()),
    "mode": lambda m: m.eval(),
    "hook": lambda m: m.register_forward_hook(lambda *_: None),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=list(CHANGES))
def test_a_replay_of_a_module_that_changed_is_thrown_away(machine: Machine, change: Callable[[Any], object]) -> None:
    net = torch.nn.Linear(4, 4)
    call = capture_call(net, net)
    call(X)
    call(X)
    assert (machine.recorded, machine.replayed) == (1, 2)
    change(net)
    assert torch.equal(call(X), net(X))
    assert (machine.recorded, machine.replayed) == (2, 4), "the first was thrown away"
    call(X)
    assert machine.recorded == 2


class Scaled(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale, self.last_request = 1.0, 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.scale


def test_what_is_recorded_anew_for_each_call_is_counted_bounded_and_named(machine: Machine) -> None:
    net, told = Scaled(), list[str]()
    call = capture_call(net, net, recompiles=Recompiles(3, told=told.append))
    for number in range(4):
        net.scale = 2.0 + number
        assert torch.equal(call(X), net(X))
    assert (machine.recorded, len(told)) == (4, 3)
    assert told[-1] == "`scale` on the model is now 5.0"
    net.scale = 7.0
    with pytest.raises(RecompileLimitError, match="`scale` on the model is another number on every call"):
        call(X)
    net.scale = 5.0
    assert torch.equal(call(X), net(X))
    assert machine.recorded == 4, "what was recorded last goes on answering"


def test_attributes_that_compiled_code_does_not_read_are_not_looked_at(machine: Machine) -> None:
    net, reads = Scaled(), dict[tuple[str, ...], set[str]]()
    call = capture_call(net, net, reads=lambda: reads or None)
    reads[()] = {"scale"}  # by now it was compiled
    call(X)
    for number in range(3):
        net.last_request = number
        assert torch.equal(call(X), net(X))
    assert machine.recorded == 1
    net.scale = 3.0
    assert torch.equal(call(X), net(X))
    assert machine.recorded == 2


@pytest.mark.parametrize("setting", ["deterministic", "dtype"])
def test_settings_of_pytorch_that_changed_lead_to_a_new_recording(machine: Machine, setting: str) -> None:
    call = capture_call(torch.sin)
    call(X)
    call(X)
    try:
        if setting == "deterministic":
            torch.use_deterministic_algorithms(True)
        else:
            torch.set_default_dtype(torch.float64)
        call(X)
        call(X)
        assert machine.recorded == 2
    finally:
        torch.use_deterministic_algorithms(False)
        torch.set_default_dtype(torch.float32)


def test_what_writes_is_looked_at_before_it_is_replayed(machine: Machine) -> None:
    class Counting(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", torch.zeros(()))
            self.scale = 1.0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.count.add_(1)
            return x * self.scale

    net = Counting()
    call = capture_call(net, net)
    for scale in (1.0, 1.0, 2.0):
        net.scale = scale
        assert torch.equal(call(X), X * scale)
    assert net.count.item() == 3


def test_one_tensor_given_twice_to_what_writes_is_not_replayed_from_copies(machine: Machine) -> None:
    def adds(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x.add_(1) + y

    call = capture_call(adds)
    for _ in range(2):
        x, same = torch.ones(3), torch.ones(3)
        assert torch.equal(call(x, x), adds(same, same))
        assert torch.equal(x, same)
        whole, other = torch.ones(4), torch.ones(4)
        assert torch.equal(call(whole[:3], whole[1:]), adds(other[:3], other[1:]))


def test_a_call_that_calls_itself_is_answered(machine: Machine) -> None:
    def recursive(x: torch.Tensor) -> torch.Tensor:
        return x * 2 if x.shape[0] == 1 else call(x[:1]) + x.sum()

    call = capture_call(recursive)
    answers: list[torch.Tensor] = []

    def ask() -> None:
        with torch.no_grad():
            answers.append(call(torch.ones(2)))

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(20)
    assert [answer.tolist() for answer in answers] == [[4.0]]


def test_within_somebody_elses_capture_it_steps_aside(machine: Machine) -> None:
    call = capture_call(torch.sin)
    machine.capturing = True
    assert torch.equal(call(X), torch.sin(X))
    assert machine.recorded == 0


def test_an_object_among_the_inputs_is_refused() -> None:
    class Box:
        value = 2.0

    with pytest.raises(UnsupportedError, match=r"an input holds .*Box"):
        GraphPool().record(lambda x, box: x * box.value, (X, Box()), {}, lambda: None)


class Pair(NamedTuple):
    first: torch.Tensor
    name: str
    more: dict[str, torch.Tensor]


def nest_outputs(x: torch.Tensor) -> Any:
    return Pair(x + 1, "kept", {"b": x * 2, "a": x[:1]}), [x.sum(), (x,)]


@pytest.mark.parametrize("call", [torch.sin, lambda x: (x + 1, x), nest_outputs])
def test_what_comes_from_the_same_place_again_is_read_and_written_there(
    machine: Machine, call: Callable[[torch.Tensor], Any]
) -> None:
    captured, x = capture_call(call), torch.randn(3, 4)
    for number in range(SETTLING_CALLS):
        x.fill_(number)
        answers, right = captured(x), call(x)
        assert pytree.tensors(answers)[0].data_ptr() != x.data_ptr()
        for answer, wanted in zip(pytree.tensors(answers), pytree.tensors(right), strict=True):
            assert torch.equal(answer, wanted)
        assert type(answers) is type(right)
    assert machine.recorded == 1
    assert 1 <= machine.in_place <= MAX_GRAPHS
    assert machine.copied_nothing >= SETTLING_CALLS // 2


def test_answers_that_are_held_stay_as_they_are(machine: Machine) -> None:
    captured, x = capture_call(torch.sin), torch.randn(64, 64)
    for _ in range(6):  # so that freed memory comes again
        captured(x)
    assert machine.in_place
    held = []
    for number in range(8):
        x.fill_(number)
        held.append(captured(x))
    assert all(torch.equal(answer, torch.full_like(x, number).sin()) for number, answer in enumerate(held))


def test_borrowed_answers_are_right_until_the_next_call(machine: Machine) -> None:
    captured, x = capture_call(nest_outputs, borrow=True), torch.randn(3, 4)
    places = []
    for number in range(8):
        x.fill_(number)
        answers = pytree.tensors(captured(x))
        assert all(torch.equal(*both) for both in zip(answers, pytree.tensors(nest_outputs(x)), strict=True))
        places.append(answers[0].data_ptr())
    assert machine.in_place == 1
    assert len(set(places[2:])) == 1, "it is the graph's own memory"


def test_what_never_comes_from_the_same_place_is_copied(machine: Machine) -> None:
    captured, inputs = capture_call(torch.sin), [torch.randn(3, 4) for _ in range(SETTLING_CALLS + 2)]
    assert all(torch.equal(captured(x), x.sin()) for x in inputs)
    assert (machine.recorded, machine.in_place) == (1, 0)


def test_nothing_is_recorded_once_a_signature_has_settled(machine: Machine) -> None:
    captured = capture_call(torch.sin)
    inputs = [torch.randn(3, 4) for _ in range(SETTLING_CALLS)]
    for x in inputs:
        captured(x)
    for _ in range(3):
        assert torch.equal(captured(X), X.sin())
    assert machine.in_place == 0


def test_a_call_that_cannot_be_recorded_in_place_goes_on_from_copies(machine: Machine) -> None:
    captured = capture_call(torch.sin)
    captured(X)
    machine.refuses = True
    for _ in range(4):
        assert torch.equal(captured(X), X.sin())
    machine.refuses = False
    for _ in range(4):
        assert torch.equal(captured(X), X.sin())
    assert (machine.recorded, machine.in_place) == (1, 0)


def test_what_is_written_in_place_counts_as_written(machine: Machine) -> None:
    captured, x = capture_call(lambda x: x.add_(1)), torch.zeros(3, 4)
    for number in range(1, 9):
        before = x._version
        assert torch.equal(captured(x), torch.full_like(x, number))
        assert x._version > before
        assert torch.equal(x, torch.full_like(x, number))
    assert machine.in_place


def test_a_tensor_that_is_conjugated_lazily_is_copied(machine: Machine) -> None:
    captured, x = capture_call(lambda x: x.conj()), torch.randn(3, 4, dtype=torch.complex64)
    for _ in range(6):
        assert torch.equal(captured(x), x.conj())
    assert machine.in_place == 0
    captured, y = capture_call(lambda y: y.abs()), torch.randn(3, 4, dtype=torch.complex64).conj()
    for _ in range(6):
        assert torch.equal(captured(y), y.abs())
    assert machine.in_place == 0


def test_a_signature_has_only_so_many_graphs(machine: Machine) -> None:
    captured, inputs = capture_call(torch.sin), [torch.randn(3, 4) for _ in range(MAX_GRAPHS + 2)]
    for _ in range(3):
        for x in inputs:
            assert torch.equal(captured(x), x.sin())
    assert machine.in_place == MAX_GRAPHS


def test_a_weight_that_is_conjugated_where_it_lies_leads_to_a_new_recording(machine: Machine) -> None:
    class Turn(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("phase", torch.tensor([1j, 2 + 1j]))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (x * self.phase).abs()

    net, x = Turn(), torch.randn(2)
    call = capture_call(net, net)
    call(x)
    net.phase = net.phase.conj()
    call(x)
    assert machine.recorded == 2


def test_a_captured_call_that_nobody_holds_is_freed_at_once(machine: Machine) -> None:
    """In a cycle of references its graphs would wait for the garbage collector, which may come while others record."""
    net = torch.nn.Linear(4, 4)
    call = capture_call(net, net)
    for _ in range(6):
        call(X)
    seen = weakref.ref(next(iter(call._graphs.values())))
    gc.collect()
    gc.disable()
    try:
        del call
        assert seen() is None
    finally:
        gc.enable()


def test_a_cache_that_grows_while_warming_up_leads_to_recordings_in_a_pool_that_takes_them(machine: Machine) -> None:
    class Cached(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("table", torch.arange(2.0))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if len(self.table) < len(x):
                self.table = torch.arange(float(len(x)))
            return x + self.table[: len(x)]

    net = Cached()
    call = capture_call(net, net, borrow=True)
    for length in (2, 5, 2, 5):
        assert torch.equal(call(torch.ones(length)), net(torch.ones(length)))
    assert machine.recorded == 3, "what was recorded with the old table is recorded anew"


def test_settings_that_cannot_be_recorded_leave_nothing_behind(machine: Machine) -> None:
    call = capture_call(torch.sin, borrow=True)
    call(X)
    torch.use_deterministic_algorithms(True)
    machine.refuses = True
    try:
        with pytest.raises(UnsupportedError, match="cannot be recorded"):
            call(X)
    finally:
        torch.use_deterministic_algorithms(False)
    machine.refuses = False
    assert torch.equal(call(X), X.sin())
    assert machine.recorded == 2


def test_what_is_conjugated_lazily_is_not_read_as_it_lies(machine: Machine) -> None:
    x = torch.randn(3, dtype=torch.complex64)

    def call(z: torch.Tensor) -> torch.Tensor:
        return torch.view_as_real(z.resolve_conj())[:, 1] * 2

    captured = capture_call(call)
    for _ in range(3):
        for given in (x, x.conj(), x, x.conj()):
            assert torch.equal(captured(given), call(given))
    assert machine.recorded == 2
    assert machine.in_place


@pytest.mark.parametrize("form", [torch.Tensor.to_sparse, torch.Tensor.to_sparse_csr])
def test_a_sparse_input_is_refused(form: Callable[[torch.Tensor], torch.Tensor]) -> None:
    with pytest.raises(UnsupportedError, match="sparse or nested"):
        GraphPool().record(torch.abs, (form(torch.eye(3)),), {}, lambda: None)


class Replayable:
    def replay(self) -> None: ...


class EmptyGraph(Replayable):
    """Inherits its replay, as PyTorch's own class does from C++."""


class Cuda:
    """Notes the order in which streams and the generator are used."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.done: list[str] = []
        self.inside, self.at_once = 0, 0
        self.lock = threading.Lock()
        fakes = {
            "CUDAGraph": EmptyGraph,
            "current_device": lambda: 0,
            "current_stream": lambda: self,
            "get_rng_state": lambda: "numbers",
            "set_rng_state": self.done.append,
            "stream": lambda _: contextlib.nullcontext(),
            "graph": self.recording,
        }
        for name, value in fakes.items():
            monkeypatch.setattr(torch.cuda, name, value)

    def wait_stream(self, other: object) -> None:
        self.done.append("current waits" if other == "side" else "side waits")

    @contextlib.contextmanager
    def recording(self, *_: object, **__: object) -> Iterator[None]:
        with self.lock:
            self.inside += 1
            self.at_once = max(self.at_once, self.inside)
        yield
        with self.lock:
            self.inside -= 1


def test_a_call_that_raises_while_warming_up_is_waited_for_and_its_random_numbers_put_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fails() -> None:
        raise ValueError("at length")

    cuda = Cuda(monkeypatch)

    monkeypatch.setattr(graph_pool, "warm_up_stream", lambda device: Side("side"))
    with pytest.raises(ValueError, match="at length"):
        GraphPool().record(fails, (), {}, lambda: None)
    assert cuda.done == ["current waits", "numbers"]


def test_two_threads_record_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = Cuda(monkeypatch)
    collecting: list[bool] = []

    def slow() -> None:
        time.sleep(0.05)
        collecting.append(gc.isenabled())

    def work() -> None:
        pool_alone().record_in_place(slow, (), {}, None)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert cuda.at_once == 1
    assert collecting == [False] * 3
    assert gc.isenabled()


class Streams(Cuda):
    """Remembers the current stream. Ends a capture in which an error was raised as torch 2.11 does."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(monkeypatch)
        self.current = "mine"
        self.recorded: list[tuple[Any, Any]] = []
        monkeypatch.setattr(torch.cuda, "stream", self.on)
        monkeypatch.setattr(torch.cuda, "current_stream", lambda: self.current)
        monkeypatch.setattr(graph_pool, "recovery_stream", lambda device: "settling")

    @contextlib.contextmanager
    def on(self, stream: str) -> Iterator[None]:
        before, self.current = self.current, stream
        try:
            yield
        finally:
            self.current = before

    @contextlib.contextmanager
    def recording(self, *_: object, stream: str, capture_error_mode: str, **__: object) -> Iterator[None]:
        before, self.current = self.current, stream
        self.recorded.append((stream, capture_error_mode))
        try:
            yield
        except BaseException as error:
            raise RuntimeError("the capture was invalidated") from error
        self.current = before


def test_a_recording_that_fails_leaves_the_current_stream_and_other_threads_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cuda = Streams(monkeypatch)

    def fails() -> None:
        raise ValueError("no")

    def settles(*_: object, **__: object) -> torch.Tensor:
        assert cuda.current == "settling"
        raise RuntimeError("as the first one")

    monkeypatch.setattr(torch, "zeros", settles)
    with pytest.raises(RuntimeError, match="invalidated"):
        pool_alone().record_in_place(fails, (), {}, None)
    assert cuda.current == "mine"
    assert cuda.recorded == [(None, "thread_local"), ("settling", "thread_local")]


def test_garbage_is_collected_after_a_recording_of_another_thread_and_never_within_ones_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    done: list[str] = []
    monkeypatch.setattr(graph_pool.gc, "collect", lambda: done.append("collected"))
    Cuda(monkeypatch)
    inside = threading.Event()

    def slow() -> None:
        inside.set()
        time.sleep(0.05)
        done.append("recorded")

    thread = threading.Thread(target=lambda: pool_alone().record_in_place(slow, (), {}, None))
    thread.start()
    assert inside.wait(20)
    graph_pool.collect_garbage()
    thread.join(20)
    assert done == ["recorded", "collected", "collected"]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    graph_pool.collect_garbage()
    assert len(done) == 3


@pytest.mark.parametrize(
    ("error", "kind", "said"),
    [
        (
            RuntimeError("CUDA error: operation not permitted when stream is capturing"),
            UnsupportedError,
            r"the call cannot be captured, because of .*test_capture_logic.py:\d+, in fails: `raise error`: it waits",
        ),
        (torch.OutOfMemoryError("CUDA out of memory"), torch.OutOfMemoryError, "out of memory"),
        (ValueError("the model's own"), ValueError, "the model's own"),
    ],
)
def test_what_cannot_be_captured_is_named_with_its_line(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, error: Exception, kind: type[Exception], said: str
) -> None:
    def fails(*given: object, **options: object) -> Graph:
        raise error

    monkeypatch.setattr(GraphPool, "record", fails)
    with pytest.raises(kind, match=said):
        capture_call(torch.sin)(X)


def test_what_is_dropped_holds_no_memory_of_the_graph_whoever_holds_it() -> None:
    outputs = {"answer": torch.ones(3), "more": [torch.ones(2)]}
    replays = Replays(Graph(lambda: None, [], outputs, []), lambda: True)
    references = [weakref.ref(outputs["answer"]), weakref.ref(outputs["more"][0])]
    replays.drop()
    del outputs
    assert [reference() for reference in references] == [None, None]


@pytest.mark.parametrize("count", [0, 1, 2, 50])
def test_several_tensors_are_copied_at_once(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    launches: list[int] = []
    together, one = torch._foreach_copy_, torch.Tensor.copy_
    monkeypatch.setattr(torch, "_foreach_copy_", lambda a, b: launches.append(len(a)) or together(a, b))
    monkeypatch.setattr(torch.Tensor, "copy_", lambda a, b: launches.append(1) or one(a, b))
    dtypes = (torch.float32, torch.bool, torch.complex64, torch.int64)
    values = [torch.full((0 if n == 3 else n + 1, 2), n).to(dtypes[n % 4]).t() for n in range(count)]
    into = [torch.empty_like(value) for value in values]
    copy_each(into, values)
    assert all(map(torch.equal, into, values))
    assert launches == ([count] if count else [])


def test_written_inputs_are_copied_back_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    own, given = [torch.zeros(2) for _ in range(3)], [torch.full((2,), float(n)) for n in range(3)]
    graph = Graph(lambda: [tensor.add_(10) for tensor in own], own, None, [0, 2])
    copied: list[int] = []
    monkeypatch.setattr(recorded_graph, "copy_each", lambda a, b: copied.append(len(a)) or copy_each(a, b))
    graph.run(given)
    assert [float(tensor[0]) for tensor in given] == [10, 1, 12]
    assert copied == [3, 2]


@pytest.mark.parametrize(("into", "values"), [(0, 1), (1, 2), (2, 1)])
def test_tensors_are_never_copied_into_another_number_of_them(into: int, values: int) -> None:
    """This happens when a call that is recorded again returns fewer tensors than before."""
    with pytest.raises(ValueError, match=f"there are {values} tensors to copy, but {into} targets"):
        copy_each([torch.zeros(2)] * into, [torch.ones(2)] * values)


def decode(cache: torch.Tensor, total: torch.Tensor, token: torch.Tensor) -> torch.Tensor:
    """Write to a cache and to the token, as no step does, and read both."""
    cache.add_(token)
    total.add_(cache.sum())
    token.mul_(2)
    return cache + token


def test_what_stays_where_it_is_is_read_and_written_there_and_the_rest_copied(machine: Machine) -> None:
    captured = capture_call(decode)
    ours, right = ([torch.zeros(3), torch.zeros(1)] for _ in range(2))
    tokens = [torch.full((3,), float(number)) for number in range(3 * SETTLING_CALLS)]
    for number, token in enumerate(tokens):
        others, before = token.clone(), [one._version for one in (*ours, token)]
        answer, wanted = captured(*ours, token), decode(*right, others)
        assert torch.equal(answer, wanted)
        assert all(map(torch.equal, (*ours, token), (*right, others)))
        assert all(one._version > version for one, version in zip((*ours, token), before, strict=True))
        assert machine.in_place == (number >= SETTLING_CALLS - 1), "one more recording, when it has settled"
    assert machine.recorded == 1
    assert machine.copied_nothing == 2 * SETTLING_CALLS + 1

    elsewhere = [torch.ones(3), torch.ones(1)]
    wanted = decode(*(one.clone() for one in elsewhere), torch.ones(3))
    assert torch.equal(captured(*elsewhere, torch.ones(3)), wanted), "the graph that copies answers for another cache"
    assert torch.equal(elsewhere[0], torch.full((3,), 2.0))
    assert machine.copied_nothing == 2 * SETTLING_CALLS + 1


def test_what_two_programs_use_in_turn_stays_nowhere(machine: Machine) -> None:
    captured, caches = capture_call(decode), [[torch.zeros(3), torch.zeros(1)] for _ in range(2)]
    tokens = [torch.ones(3) for _ in range(2 * SETTLING_CALLS)]
    for number, token in enumerate(tokens):
        captured(*caches[number % 2], token)
    assert machine.in_place == 0
    assert torch.equal(caches[0][0], torch.full((3,), float(SETTLING_CALLS)))


def test_what_stays_is_read_there_and_outputs_are_lent(machine: Machine) -> None:
    captured, scale = capture_call(lambda scale, x: {"y": scale * x, "x": None}, borrow=True), torch.full((4,), 2.0)
    places = set()
    for x in [torch.full((4,), float(number)) for number in range(2 * SETTLING_CALLS)]:
        answer = captured(scale, x)
        assert torch.equal(answer["y"], scale * x)
        assert answer["x"] is None
        places.add(answer["y"].data_ptr())
    assert len(places) == 2
    scale.fill_(3)  # where it lies
    assert torch.equal(captured(scale, torch.ones(4))["y"], scale)


def test_a_graph_that_cannot_be_recorded_for_what_stays_leaves_the_one_that_copies(machine: Machine) -> None:
    captured, cache = capture_call(decode), [torch.zeros(3), torch.zeros(1)]
    tokens = [torch.ones(3) for _ in range(2 * SETTLING_CALLS)]
    captured(*cache, tokens[0])
    machine.refuses = True
    for token in tokens[1:]:
        captured(*cache, token)
    assert torch.equal(cache[0], torch.full((3,), 2.0 * SETTLING_CALLS))
    assert (machine.recorded, machine.in_place) == (1, 0)


def test_views_of_one_memory_that_are_apart_are_replayed(machine: Machine) -> None:
    memory, token = torch.zeros(8), torch.ones(3)
    captured = capture_call(decode)
    for number in range(1, 4):
        captured(memory[:3], memory[7:], torch.ones(3))
        assert torch.equal(memory[:3], torch.full((3,), float(number)))
    assert machine.recorded == 1
    assert torch.equal(captured(memory[:3], memory[2:3], token), torch.full((3,), 6.0) + torch.tensor([0, 0, 12.0]))
    assert machine.recorded == 2, "one of two that overlap is recorded, and never replayed"


class Counts:
    """A cache with a factor, which a call reads in Python."""

    def __init__(self) -> None:
        self.total, self.factor = torch.zeros(3), 2.0


def count(x: torch.Tensor, counts: Counts) -> dict[str, Any]:
    counts.total.add_(x * counts.factor)
    return {"total": counts.total + 0, "counts": counts}


@pytest.mark.usefixtures("checks")
def test_the_fast_path_of_a_call_with_an_object_replays_no_graph_of_another_kind_of_call(machine: Machine) -> None:
    captured = WithObjects(count, lambda call: CapturedCall(call, None, device="cuda", mode="inference"))
    ours, right = Counts(), Counts()
    captured(torch.ones(3), ours)
    count(torch.ones(3), right)
    quick = captured.get_bypass((torch.ones(3), ours), {})
    inputs = [torch.full((3,), float(number)) for number in range(3 * SETTLING_CALLS)]
    for number, x in enumerate(inputs):
        if number in (5, 2 * SETTLING_CALLS + 9):
            ours.factor = right.factor = float(number)
        if number == SETTLING_CALLS + 12:  # another conversation
            ours, right = Counts(), Counts()
            ours.factor = right.factor = 5.0
        answer = quick(x, ours)
        assert torch.equal(answer["total"], count(x, right)["total"])
        assert torch.equal(ours.total, right.total)
        assert answer["counts"] is ours
    assert torch.equal(quick(torch.ones(1), ours)["total"], count(torch.ones(1), right)["total"])
    assert machine.recorded == 4, "for each factor, and for another shape"
    assert machine.in_place == 1, "the cache stays where it is"


class Hidden:
    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor


@pytest.mark.parametrize("hide", [lambda counts: Hidden(counts.total * 2), lambda counts: Hidden, lambda _: object()])
def test_an_output_that_hides_tensors_is_refused_beside_a_cache(machine: Machine, hide: Callable[[Any], Any]) -> None:
    def call(x: torch.Tensor, counts: Counts) -> dict[str, Any]:
        return {**count(x, counts), "other": hide(counts)}

    captured = WithObjects(call, lambda inner: CapturedCall(inner, None, device="cuda", mode="inference"))
    with pytest.raises(UnsupportedError, match=r"an output holds \[0\]\['other'\]"):
        captured(torch.ones(3), Counts())


class Answer(dict):  # type: ignore[type-arg]
    """A kind of dict that PyTorch does not know."""


def test_forms_of_outputs_are_kept_once(machine: Machine) -> None:
    for make, kept in ((dict, 1), (Answer, 0)):

        def call(x: torch.Tensor, counts: Counts, make: Any = make) -> Any:
            return make(count(x, counts))

        captured = WithObjects(call, lambda inner: CapturedCall(inner, None, device="cuda", mode="inference"))
        for shape in ((3,), (2, 3), (1, 3)):  # each a recording of its own
            for _ in range(3):
                counts = Counts()
                counts.total = torch.zeros(shape)
                answer = captured(torch.ones(shape), counts)
                assert type(answer) is make
                assert answer["counts"] is counts
        assert len(captured._forms) == kept


def test_a_graph_with_other_outputs_than_the_first_is_not_kept(machine: Machine) -> None:
    flags: list[int] = []

    def call(k: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (k * x, x + 1) if flags else (k * x,)

    captured, k = capture_call(call), torch.full((3,), 2.0)
    for number, x in enumerate([torch.full((3,), float(number)) for number in range(2 * SETTLING_CALLS)]):
        if number == 10:
            flags.append(1)  # a list, whose changes go unnoticed
        (answer,) = captured(k, x)
        assert torch.equal(answer, k * x)
    assert machine.copied_nothing == 0


def test_a_graph_whose_output_lies_in_an_input_is_not_kept(machine: Machine) -> None:
    def call(k: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        k.add_(x)
        return x * 2, k[:2]

    captured, k = capture_call(call), torch.zeros(3)
    for x in [torch.ones(3) for _ in range(2 * SETTLING_CALLS)]:
        double, part = captured(k, x)
        assert torch.equal(part, k[:2])
        assert torch.equal(double, x * 2)
    assert torch.equal(k, torch.full((3,), 2.0 * SETTLING_CALLS))
    assert machine.copied_nothing == 0


@pytest.mark.parametrize("lives", [(6, 6, 6), (8, 0, 5)])
def test_storage_of_flows_is_updated_where_it_lies_by_one_graph(machine: Machine, lives: tuple[int, ...]) -> None:
    workload = load("zoo:energy_flow.storage_in_place@small")
    captured = capture_call(workload.call)
    state, _, fresh = workload.examples[0].args
    expected = pytree.map_tensors(torch.Tensor.clone, state)
    places = [values.data_ptr() for values in state]
    for number, live in enumerate(lives):
        active = torch.arange(8).flip(0) < live
        rows = pytree.map_tensors(lambda t, by=number: t + by, fresh)
        assert captured(state, active, rows).equal(workload.call(expected, active, rows))
        assert all(map(torch.equal, state, expected))
    assert [values.data_ptr() for values in state] == places
    assert machine.recorded == 1
    assert machine.replayed >= len(lives)


class Paths(RecordedAnswers):
    """Records further graphs in later calls, as a capture of branches does."""

    def __call__(self, args: Any, kwargs: Any, record: Any) -> Any:
        return args[0]

    def drop(self) -> None:
        super().drop()


class Moved(HostValues):
    def has_same_tensors(self) -> bool:
        return False


def test_values_that_a_later_recording_copies_from_the_cpu_are_looked_at(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        CapturedCall, "_replays", lambda _, key, args, kwargs, settled, warm: (warm(), Paths(settled))[1]
    )
    captured = capture_call(torch.sin)
    captured(X)
    (key, paths), *_ = captured._graphs.items()
    assert paths.settled()
    captured._host[key] = Moved("cpu")
    assert not paths.settled(), "a path that was recorded later copies a tensor that was written to"
