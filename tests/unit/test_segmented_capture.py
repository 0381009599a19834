"""Which paths a call that asks the GPU takes, records and leaves: the logic, with pieces that need no GPU."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterator
from typing import Any

import pytest
import torch
from torch._dynamo.testing import CompileCounter
from torch._subclasses.fake_tensor import FakeTensorMode

from torchwise.compile.cuda_graphs import graph_pool, segmented, segments
from torchwise.compile.cuda_graphs import segmented as branches_file
from torchwise.compile.cuda_graphs.capture_stream import RecordingStream
from torchwise.compile.cuda_graphs.compile_freeze import forbid_compile
from torchwise.compile.cuda_graphs.graph_pool import GraphPool
from torchwise.compile.cuda_graphs.host_values import HostValues
from torchwise.compile.cuda_graphs.segmented import MAX_PASSED, MAX_PATHS, SegmentedCall, SegmentedPaths
from torchwise.compile.cuda_graphs.segments import Path, _intercept_bool, record_path
from torchwise.compile.guards.module_guard import ModuleGuard
from torchwise.errors import PlanError, UnsupportedError
from torchwise.plan import Plan, PlanSpace
from torchwise.trial.inspection import _compatible, _trace_operators

Program = Callable[[torch.Tensor], Generator[torch.Tensor, bool, torch.Tensor]]
"""A model that yields its questions and is sent the answers."""


def doubles_or_halves(x: torch.Tensor) -> Generator[torch.Tensor, bool, torch.Tensor]:
    positive = yield x.sum() > 0
    return x * 2 if positive else x / 2


def series(x: torch.Tensor) -> Generator[torch.Tensor, bool, torch.Tensor]:
    """Ask once for each term, and once more on the way if the first one is large."""
    total, term = x.clone(), x
    if (yield x.abs().max() > 2):
        total = total + 1
    while (yield term.abs().max() > 0.1):
        term = term / 2
        total = total + term
    return total


def way_of(program: Program, x: torch.Tensor) -> tuple[list[bool], torch.Tensor]:
    """Return the answers to the questions of a call, and its result."""
    answers: list[bool] = []
    running = program(x)
    question = next(running)
    while True:
        answers.append(bool(question))
        try:
            question = running.send(answers[-1])
        except StopIteration as end:
            return answers, end.value


def plainly(program: Program, x: torch.Tensor) -> torch.Tensor:
    return way_of(program, x)[1]


class Machine:
    """Records paths of a program whose pieces compute all that lies before their question once more."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.inputs = [torch.zeros(4)]
        self.recorded, self.original = 0, 0
        self.log: list[str] = []

    def branches(self, **options: Any) -> SegmentedPaths:
        return SegmentedPaths(self.inputs, self.record(), self.record, self.call, lambda: True, **options)

    def call(self, x: torch.Tensor) -> torch.Tensor:
        self.original += 1
        return plainly(self.program, x)

    def record(self) -> Path:
        self.recorded += 1
        number, answers, questions, outputs = self.recorded, [], [], torch.empty(4)
        running = self.program(self.inputs[0])
        try:
            questions.append(next(running).clone())
            while True:
                answers.append(bool(questions[-1]))
                questions.append(running.send(answers[-1]).clone())
        except StopIteration as end:
            outputs.copy_(end.value)

        def piece(place: int) -> None:
            self.log.append(f"{number}.{place}")
            running = self.program(self.inputs[0])
            question = next(running)
            for answer in answers[:place]:
                try:
                    question = running.send(answer)
                except StopIteration as end:
                    outputs.copy_(end.value)
                    return
            questions[place].copy_(question)

        def read(place: int) -> bool:
            self.log.append("read")
            return bool(questions[place])

        places = range(len(answers))
        pieces = [lambda place=place: piece(place) for place in range(len(answers) + 1)]
        return Path(tuple(answers), pieces, [lambda place=place: read(place) for place in places], outputs)


UP, DOWN = torch.tensor([1.0, 2.0, 3.0, 4.0]), torch.tensor([-1.0, -2.0, -3.0, -4.0])


def test_each_way_is_recorded_once_and_answers_by_its_own_inputs() -> None:
    machine = Machine(doubles_or_halves)
    branches = machine.branches()
    for x in (UP, DOWN, DOWN * 3, UP * 5, UP, DOWN):
        assert torch.equal(branches((x,), {}), plainly(doubles_or_halves, x))
    assert machine.recorded == 2
    assert machine.original == 0


def test_the_path_of_the_last_call_is_tried_first_and_what_is_known_is_not_read_again() -> None:
    machine = Machine(doubles_or_halves)
    branches = machine.branches()
    branches((UP,), {})  # the first path is that of zeros, which halves, and number 2 doubles
    branches((DOWN,), {})
    machine.log.clear()
    branches((DOWN,), {})
    assert machine.log == ["1.0", "read", "1.1"]
    machine.log.clear()
    branches((UP,), {})
    assert machine.log == ["1.0", "read", "2.0", "2.1"]
    machine.log.clear()
    branches((UP,), {})
    assert machine.log == ["2.0", "read", "2.1"]


def test_paths_that_part_late_are_found_by_all_of_their_answers() -> None:
    machine = Machine(series)
    branches = machine.branches()
    torch.manual_seed(0)
    draws = [torch.randn(4) * scale for scale in (0.01, 0.3, 1.0, 3.0, 10.0) for _ in range(6)]
    for x in draws + draws[::-1]:
        assert torch.equal(branches((x,), {}), plainly(series, x))
    ways = {tuple(way_of(series, x)[0]) for x in (*draws, torch.zeros(4))}  # zeros lay there at first
    assert machine.recorded == len(ways) > 5
    assert machine.original == 0


def test_answers_may_be_held_unless_they_are_borrowed() -> None:
    kept = Machine(doubles_or_halves).branches()
    first = kept((UP,), {})
    kept((UP * 7,), {})
    assert torch.equal(first, UP * 2)
    lent = Machine(doubles_or_halves).branches(borrow=True)
    assert lent((UP,), {}) is lent((UP * 7,), {})


def test_where_there_are_too_many_ways_the_model_answers() -> None:
    def counts(x: torch.Tensor) -> Generator[torch.Tensor, bool, torch.Tensor]:
        for place in range(10):
            if (yield (x[0].int() >> place) % 2 == 1):
                x = x + place
        return x

    machine = Machine(counts)
    branches = machine.branches()
    for number in range(MAX_PATHS + 5):
        x = torch.full((4,), float(number))
        assert torch.equal(branches((x,), {}), plainly(counts, x))
    assert len(branches.paths) == machine.recorded == MAX_PATHS
    assert machine.original == 5


def test_a_frozen_plan_takes_the_ways_that_it_has_and_records_no_other() -> None:
    machine = Machine(doubles_or_halves)
    branches = machine.branches()
    branches((DOWN,), {})
    held = forbid_compile(lambda x: branches((x,), {}))
    for x in (DOWN, UP, DOWN):
        assert torch.equal(held(x), plainly(doubles_or_halves, x))
    assert (machine.recorded, machine.original) == (1, 1)
    assert torch.equal(branches((UP,), {}), UP * 2)
    assert machine.recorded == 2


def test_a_way_that_cannot_be_recorded_is_tried_once_and_the_others_go_on(caplog: pytest.LogCaptureFixture) -> None:
    machine = Machine(doubles_or_halves)
    branches = machine.branches()

    def refuses() -> Path:
        machine.recorded += 1
        raise UnsupportedError("it draws random numbers there")

    branches._record = refuses
    with caplog.at_level("WARNING"):
        for x in (UP, DOWN, UP * 2, DOWN * 2):
            assert torch.equal(branches((x,), {}), plainly(doubles_or_halves, x))
    assert (machine.recorded, machine.original) == (2, 2)
    assert caplog.text.count("it draws random numbers there") == 1


def test_what_was_freed_answers_no_more() -> None:
    branches = Machine(doubles_or_halves).branches()
    branches.drop()
    assert branches.dropped
    assert branches.paths == []


@pytest.fixture
def gpu() -> FakeTensorMode:
    return FakeTensorMode()


def test_what_is_on_the_gpu_is_asked_in_any_dtype_and_numbers_are_not(gpu: FakeTensorMode) -> None:
    asked: list[torch.Tensor] = []

    def ask(question: torch.Tensor) -> bool:
        asked.append(question)
        return len(asked) % 2 == 1

    with gpu:
        there, number, several = (torch.ones(n, device="cuda") for n in ((), (1,), (2,)))
    with _intercept_bool(ask):
        assert bool(there > 0)
        assert not number
        assert (there > 0).item() is True
        assert len(asked) == 3
        assert bool(torch.ones(())), "the CPU's is there already"
        with pytest.raises(Exception, match="_local_scalar_dense"):
            there.item()
        with pytest.raises(RuntimeError, match=r"(?i)ambiguous"):
            bool(several)
    assert len(asked) == 3


def test_a_question_at_which_dynamo_breaks_the_graph_is_asked_and_nothing_is_compiled_for_it() -> None:
    asked: list[torch.Tensor] = []

    def ask(question: torch.Tensor) -> bool:
        asked.append(question.clone())
        return True

    def asks(x: torch.Tensor) -> torch.Tensor:
        return x * 2 if x.sum() > 0 else x / 2

    counter = CompileCounter()
    compiled = torch.compile(asks, backend=counter)
    compiled(UP), compiled(DOWN)
    frames = counter.frame_count
    with _intercept_bool(ask, "cpu"):
        assert torch.equal(compiled(DOWN), DOWN * 2)
    assert len(asked) == 1
    assert counter.frame_count == frames


@pytest.mark.parametrize(
    ("device", "mode", "said"), [("cpu", "inference", "CUDA graphs need"), ("cuda", "training", "backward")]
)
def test_it_is_for_inference_on_a_gpu(device: str, mode: str, said: str) -> None:
    with pytest.raises(UnsupportedError, match=f"capture is 'branches'.*{said}"):
        segmented.SegmentedCall(torch.relu, None, device=device, mode=mode)


def test_a_training_step_is_not_captured_in_branches() -> None:
    with pytest.raises(PlanError, match="do not train"):
        Plan(capture="branches", optimizer="fused")


@pytest.mark.parametrize(
    ("call", "traits"),
    [
        (lambda x: x * 2 if x.sum() > 0 else x, {"reads_bool"}),
        (lambda x: x * 2 if x.sum() else x, {"reads_bool"}),
        (lambda x: x * 2 if (x > 0).sum() else x, {"reads_bool"}),
        (lambda x: x * 2 if x.any().item() else x, {"reads_bool"}),
        (lambda x: x * x.sum().item(), {"reads_scalar"}),
        (lambda x: x * x.int().sum().item(), {"reads_bool"}),
        (lambda x: torch.ops.aten.index(x, [x > 0]), {"reads_bool"}),
        (lambda x: torch.ops.aten.nonzero(x > 0), {"reads_bool"}),
        (lambda x: torch.unique(x), {"reads_bool"}),
        (lambda x: torch.ops.aten.index(x, [x.long()]), set()),
        (lambda x: x.cpu(), set()),
        (lambda x: x * 2, set()),
    ],
    ids=[
        "if",
        "if float",
        "if integer",
        "item of a bool",
        "number",
        "integer",
        "mask",
        "positions",
        "unique",
        "index",
        "copy",
        "none",
    ],
)
def test_the_inspection_finds_what_is_asked_of_the_gpu(
    call: Callable[[torch.Tensor], object], traits: set[str], gpu: FakeTensorMode
) -> None:
    with gpu:
        there = torch.ones(3, device="cuda")
        assert _trace_operators(lambda: call(there))[0] & {"reads_bool", "reads_scalar"} == traits
        here = torch.ones(3)
        assert not _trace_operators(lambda: call(here))[0] & {"reads_bool", "reads_scalar"}, (
            "what the CPU has is not asked of the GPU"
        )


def test_a_search_captures_in_branches_what_asks() -> None:
    def captures(*traits: str) -> list[str]:
        space = PlanSpace("cuda", "inference", frozenset(traits), effort="quick")
        return [choice.value for choice in space.choices() if choice.field == "capture"]

    assert captures("floating") == ["call"]
    assert captures("reads_bool") == ["call", "branches"], "a model may ask in eager and not while it is recorded"
    assert captures("reads_bool", "stochastic") == captures("reads_bool", "writes_inputs") == ["call"]
    assert captures("reads_bool", "prints") == []
    assert _compatible(frozenset({"reads_bool", "static_form"}), "cuda") == {"static_form"}
    assert "repeats" in _compatible(frozenset({"reads_bool", "repeats"}), "cuda"), (
        "it may ask nothing while it is traced, too"
    )


# ---- recording, with a GPU that only keeps books


class Stream:
    waited = 0

    @property
    def cuda_stream(self) -> int:
        return id(self)

    def synchronize(self) -> None:
        Stream.waited += 1


class RecordingOn(RecordingStream):
    def __init__(self, gpu: Gpu) -> None:
        super().__init__()
        self.gpu = gpu

    @contextlib.contextmanager
    def ready(self) -> Iterator[Any]:
        yield self.gpu.ready

    def usable(self, pool: Any) -> Any:
        return pool

    def give_up(self, graph: object, pool: object) -> None:
        self.gpu.log.append("give up")


class Gpu:
    """Graphs that note where they begin and end. Work inside them is computed at once, as on a CPU."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.log: list[str] = []
        self.current = self.usual = Stream()
        self.ready = Stream()
        self.breaks = False
        self.state = torch.zeros(1)
        self.pool = GraphPool()
        self.pool.stream = RecordingOn(self)
        gpu = self

        class Graph:
            def capture_begin(self, **_: object) -> None:
                gpu.log.append("begin")

            def capture_end(self) -> None:
                if gpu.current is not gpu.ready:
                    raise RuntimeError("Capture must end on the same stream it began on.")
                gpu.log.append("end")
                if gpu.breaks:
                    raise RuntimeError("operation failed due to a previous error during capture")

            def replay(self) -> None:
                gpu.log.append("replay")

        @contextlib.contextmanager
        def stream(on: Stream) -> Iterator[None]:
            before, gpu.current = gpu.current, on
            try:
                yield
            finally:
                gpu.current = before

        empty = torch.empty
        for name, value in {
            "CUDAGraph": Graph,
            "stream": stream,
            "current_stream": lambda *_: gpu.current,
            "current_device": lambda: -1,  # as tensors of the CPU say
            "synchronize": lambda *_: gpu.log.append("wait"),
            "get_rng_state": lambda: gpu.state.clone(),
            "set_rng_state": lambda state: gpu.state.copy_(state),
        }.items():
            monkeypatch.setattr(torch.cuda, name, value)
        monkeypatch.setattr(torch, "empty", lambda *a, pin_memory=False, **o: empty(*a, **o))
        monkeypatch.setattr(graph_pool, "settle_generator", lambda: gpu.log.append("settle"))
        monkeypatch.setattr(segments, "check_outputs", lambda _: None)
        monkeypatch.setattr(segments, "_intercept_bool", lambda ask: _intercept_bool(ask, "cpu"))

    def path(self, call: Callable[[], object]) -> Path:
        return record_path(call, self.pool)


@pytest.fixture
def books(monkeypatch: pytest.MonkeyPatch) -> Gpu:
    return Gpu(monkeypatch)


def test_a_path_is_cut_at_each_question_and_each_piece_is_replayed_before_it_is_read(books: Gpu) -> None:
    def call() -> torch.Tensor:
        if UP.sum():  # of any dtype
            return UP * 2 if (UP < 0).any().item() else UP
        return DOWN

    path = books.path(call)
    assert path.answers == (True, False)
    assert path.outputs is UP
    assert books.log == ["wait", *["begin", "end", "replay"] * 3, "wait"]
    waited = Stream.waited
    assert [read() for read in path.read] == [True, False]
    assert Stream.waited == waited + 2, "an answer is read when the GPU has it"
    assert "__bool__" not in vars(torch.Tensor)


def test_a_model_that_raises_has_its_recording_ended_where_it_was_begun(books: Gpu) -> None:
    def call() -> torch.Tensor:
        if UP.sum() > 0:
            raise ValueError("too large")
        return UP

    with pytest.raises(ValueError, match="too large"):
        books.path(call)
    assert books.log == ["wait", "begin", "end", "replay", "begin", "end", "settle"]
    assert books.current is books.usual


def test_a_recording_that_cannot_be_ended_is_given_up(books: Gpu) -> None:
    def call() -> torch.Tensor:
        books.breaks = True
        raise RuntimeError("operation not permitted when stream is capturing")

    with pytest.raises(RuntimeError, match="not permitted"):
        books.path(call)
    assert books.log == ["wait", "begin", "end", "give up", "settle"]


def test_a_question_on_a_stream_of_the_models_own_is_refused_and_the_recording_ends(books: Gpu) -> None:
    def call() -> torch.Tensor:
        with torch.cuda.stream(Stream()):  # type: ignore[arg-type]
            return UP if UP.sum() > 0 else DOWN

    with pytest.raises(UnsupportedError, match="on another stream or GPU"):
        books.path(call)
    assert books.log == ["wait", "begin", "end", "settle"]


@pytest.mark.parametrize("raises", [True, False])
def test_a_recording_ends_also_where_the_model_leaves_another_stream_current(books: Gpu, raises: bool) -> None:
    def call() -> torch.Tensor:
        books.current = Stream()
        if raises:
            raise ValueError("lost")
        return UP

    with contextlib.suppress(ValueError):
        books.path(call)
    assert books.log.count("begin") == books.log.count("end") == 1


@pytest.fixture
def plan(books: Gpu, monkeypatch: pytest.MonkeyPatch) -> Callable[..., SegmentedPaths]:
    """Return a function that makes the branches of a call, as a plan does on its first call. Warm-ups are counted."""
    warmed: list[int] = []
    monkeypatch.setattr(branches_file, "warm_up", lambda *_: warmed.append(1))
    monkeypatch.setattr(branches_file, "static_inputs", lambda args, kwargs: (args, kwargs, list(args)))

    def make(call: Callable[..., Any], module: torch.nn.Module | None = None, x: torch.Tensor = UP) -> SegmentedPaths:
        made: Any = SegmentedCall.__new__(SegmentedCall)
        made._call, made._module, made._borrow = call, module, False
        made._pool = books.pool
        made._device, made._guard, made._host = -1, ModuleGuard(module), {}
        branches = made._replays(("a signature", None, False), (x.clone(),), {}, lambda: True, lambda: None)
        branches.warmed = warmed
        return branches  # type: ignore[no-any-return]

    return make


def test_every_way_is_warmed_up_before_it_is_recorded(plan: Callable[..., Any]) -> None:
    branches = plan(lambda x: x * 2 if x.sum() > 0 else x / 2)
    assert len(branches.warmed) == 1
    branches._inputs[0].copy_(DOWN)
    assert torch.equal(branches._record().outputs, DOWN / 2)
    assert len(branches.warmed) == 2


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda x: x * 2, "reads no value from the GPU"),
        (lambda x: x.add_(1) if x.sum() > 0 else x, "writes to its inputs or its module"),
        (lambda x: x + torch.randn(4) if x.sum() > 0 else x, "draws random numbers"),
    ],
    ids=["no question", "written", "noise"],
)
def test_what_pieces_cannot_replay_is_refused(call: Callable[..., Any], said: str, plan: Callable[..., Any]) -> None:
    torch.manual_seed(3)
    before = torch.get_rng_state()
    with pytest.raises(UnsupportedError, match=said):
        plan(call)
    assert torch.equal(torch.get_rng_state(), before), "the original is to draw what eager would"


def test_noise_of_the_gpu_is_refused_too_and_put_back(books: Gpu, plan: Callable[..., Any]) -> None:
    def draws(x: torch.Tensor) -> torch.Tensor:
        books.state += 1
        return x if x.sum() > 0 else x * 2

    with pytest.raises(UnsupportedError, match="draws random numbers"):
        plan(draws)
    assert books.state == 0


def test_buffers_that_pytorch_writes_without_counting_are_seen(plan: Callable[..., Any]) -> None:
    class Normed(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("mean", torch.zeros(2))
            self.register_buffer("variance", torch.ones(2))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            normed = torch.nn.functional.batch_norm(x.view(2, 2), self.mean, self.variance, training=True)
            return normed if x.sum() > 0 else x

    with pytest.raises(UnsupportedError, match="writes to its inputs or its module"):
        plan(module := Normed(), module)


def test_weights_whose_writes_are_not_counted_are_refused(plan: Callable[..., Any]) -> None:
    with torch.inference_mode():
        module = torch.nn.Linear(4, 4)
    with pytest.raises(UnsupportedError, match="inference mode"):
        plan(lambda x: x if x.sum() > 0 else -x, module)


def test_a_way_is_recorded_on_the_gpu_of_the_others_alone(
    plan: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    branches = plan(lambda x: x if x.sum() > 0 else -x)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    with pytest.raises(UnsupportedError, match="another GPU is current"):
        branches._record()


# ---- how many there are


def test_a_path_is_cut_where_it_asks_and_where_an_operator_waits(books: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "DEVICE", "cpu")
    x = UP.clone()
    host = HostValues("cpu")

    def call() -> torch.Tensor:
        return x.masked_select(x > 1.5) * 2 if x.sum() > 0 else x[:1]

    with host.recording_values():
        call()
    books.log.clear()
    path = record_path(call, books.pool, host)
    assert books.log == ["wait", *["begin", "end", "replay"] * 3, "wait"]
    assert (path.answers[0], path.computing) == (True, {1})
    x[3] = 9.0
    assert path.read[1]() == path.answers[1], "as many as before"
    x[0] = 9.0
    assert path.read[1]() == path.answers[1], "the mask lies in a piece, which is not replayed here"


def test_what_an_operator_found_is_left_where_the_next_piece_reads_it(
    books: Gpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segments, "DEVICE", "cpu")
    x, found = torch.tensor([0.0, 0.0, 3.0, 4.0]), []
    host = HostValues("cpu")

    def call() -> torch.Tensor:
        found.append(x.nonzero())
        return x

    with host.recording_values():
        call()
    path = record_path(call, books.pool, host)
    assert found[-1].tolist() == [[2], [3]]
    x.copy_(torch.tensor([5.0, 0.0, 0.0, 5.0]))
    path.read[0]()
    assert found[-1].tolist() == [[0], [3]]
    x.copy_(torch.ones(4))
    path.read[0]()
    assert found[-1].tolist() == [[0], [3]], "what another way needs is no matter here"


def test_a_number_is_no_answer_and_the_recording_ends(books: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "DEVICE", "cpu")
    x, host = UP.clone(), HostValues("cpu")
    with pytest.raises(UnsupportedError, match=r"test_segmented_capture\.py:\d+.*reads a number from the GPU"):
        record_path(lambda: x * x.sum().item(), books.pool, host)
    assert books.log == ["wait", "begin", "end", "settle"]
    whole = record_path(lambda: x * int((x > 1).sum()), books.pool, host)
    assert whole.answers == (((int, 3),),)


class Counts:
    """Records paths of "as many as are positive". Its first question computes the number, and its second only reads."""

    def __init__(self) -> None:
        self.inputs = [torch.zeros(4)]
        self.log: list[str] = []
        self.recorded = self.original = 0

    def record(self) -> Path:
        self.recorded += 1
        number, outputs = self.recorded, torch.empty(2)

        def many() -> int:
            self.log.append(f"{number} counts")
            return int((self.inputs[0] > 0).sum())

        def large() -> bool:
            self.log.append(f"{number} reads")
            return bool(self.inputs[0].sum() > 10)

        def ends() -> None:
            outputs.copy_(torch.tensor([float(many()), float(large())]))

        ends()
        return Path((many(), large()), [lambda: None, lambda: None, ends], [many, large], outputs, frozenset({0}))

    def call(self, x: torch.Tensor) -> torch.Tensor:
        self.original += 1
        return torch.tensor([float((x > 0).sum()), float(x.sum() > 10)])


def test_paths_are_found_by_numbers_and_what_computes_is_run_again_although_it_is_known() -> None:
    counts = Counts()
    branches = SegmentedPaths(counts.inputs, counts.record(), counts.record, counts.call, lambda: True)
    for x in (UP, -UP, UP * 9, UP, UP - 2, UP * 9):
        assert torch.equal(branches((x,), {}), counts.call(x))
    assert counts.recorded == 4  # zeros lay there at first, as -UP has it
    branches((UP,), {})
    counts.log.clear()
    branches((UP * 9,), {})
    assert counts.log[:4] == ["2 counts", "2 reads", "3 counts", "3 counts"], "and what is only read is not read again"


def test_where_most_calls_have_their_own_number_the_model_answers_at_once() -> None:
    def counts(x: torch.Tensor) -> Generator[torch.Tensor, bool, torch.Tensor]:
        for place in range(12):
            if (yield (x[0].int() >> place) % 2 == 1):
                x = x + place
        return x

    machine = Machine(counts)
    branches = machine.branches()
    for number in range(MAX_PATHS + 1000):
        x = torch.full((4,), float(number))
        machine.log.clear()
        assert torch.equal(branches((x,), {}), plainly(counts, x))
    assert machine.recorded == MAX_PATHS
    replayed = 0
    for number in range(1000):
        machine.log.clear()
        branches((torch.full((4,), float(2000 + number)),), {})
        replayed += bool(machine.log)
    assert 1 <= replayed <= 1000 // MAX_PASSED + 1, "paths are still looked for, now and then"
    seen = torch.full((4,), float(MAX_PATHS // 2))
    for _ in range(MAX_PASSED + 1):
        branches((seen,), {})
    machine.log.clear()
    branches((seen,), {})
    branches((seen,), {})
    assert machine.log, "and a call that a path answers has the next ones answered by paths again"
