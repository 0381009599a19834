"""Who owns the stream that a plan's graphs are recorded on, with a stand-in for CUDA."""

from __future__ import annotations

import contextlib
import gc
import itertools
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from torchwise.compile.cuda_graphs import capture_stream
from torchwise.compile.cuda_graphs.capture_stream import RecordingStream
from torchwise.errors import UnsupportedError


class Card:
    """Counts streams and anchors. A stream is its name, and a pool a number."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.device, self.waited = 0, 0
        self.current = "mine"
        self.anchors: list[tuple[str, int]] = []
        self.made: list[weakref.ref[Anchor]] = []
        self.open: set[int] = set()
        self.asking: Callable[[], None] = lambda: None
        self.breaks = self.ends_itself = False
        names = (f"stream {number}" for number in itertools.count())
        monkeypatch.setattr(capture_stream, "_free", capture_stream.defaultdict(list))
        monkeypatch.setattr(capture_stream, "_new_stream", lambda: next(names))
        monkeypatch.setattr(capture_stream, "_allocate_workspaces", self.ask)
        monkeypatch.setattr(capture_stream, "warm_up_stream", lambda device: "warm-up")
        monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: Anchor(self))
        monkeypatch.setattr(torch.cuda, "stream", self.on)
        monkeypatch.setattr(torch.cuda, "graph_pool_handle", itertools.count().__next__)
        monkeypatch.setattr(torch.cuda, "current_device", lambda: self.device)
        monkeypatch.setattr(torch.cuda, "synchronize", self.wait)
        monkeypatch.setattr(torch.cuda, "get_allocator_backend", lambda: "native")
        monkeypatch.setattr(torch._C, "_cuda_endAllocateToPool", self.end, raising=False)

    @contextlib.contextmanager
    def on(self, stream: str) -> Iterator[None]:
        before, self.current = self.current, stream
        yield
        self.current = before

    def ask(self) -> None:
        if self.current != "warm-up":
            self.asking()

    def end(self, device: int, pool: int) -> None:
        if pool not in self.open:
            raise RuntimeError("endAllocatePool: not currently recording to mempool_id")
        self.open.remove(pool)

    def wait(self) -> None:
        self.waited += 1


class Anchor:
    """A graph that is recorded as torch 2.11 does."""

    def __init__(self, card: Card) -> None:
        self.card, self.pool = card, -1
        card.made.append(weakref.ref(self))

    def capture_begin(self, *, pool: int, capture_error_mode: str) -> None:
        assert capture_error_mode == "thread_local"
        assert pool not in self.card.open, "beginAllocateToPool: already recording to mempool_id"
        earlier = [graph for made in self.card.made if (graph := made()) is not None and graph.pool == pool]
        assert earlier or pool not in [pool for _, pool in self.card.anchors], "a pool that was let go takes no more"
        self.card.open.add(pool)
        self.card.anchors.append((self.card.current, pool))
        self.pool = pool

    def capture_end(self) -> None:
        if self.card.breaks:
            self.pool = -1
            raise RuntimeError("the capture was invalidated")
        self.card.end(self.card.device, self.pool)

    def reset(self) -> None:
        if self.card.ends_itself:
            self.card.open.clear()


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> Card:
    return Card(monkeypatch)


def stream_of(plan: RecordingStream) -> Any:
    with plan.ready() as stream:
        return stream


def test_each_plan_has_a_stream_of_its_own_for_all_its_recordings(card: Card) -> None:
    first, second = RecordingStream(), RecordingStream()
    assert [stream_of(plan) for plan in (first, second, first, second)] == [
        "stream 0",
        "stream 1",
        "stream 0",
        "stream 1",
    ]


def test_a_plan_that_records_nothing_takes_none(card: Card) -> None:
    RecordingStream()
    assert stream_of(RecordingStream()) == "stream 0"
    assert card.waited == 1


def test_the_stream_of_a_plan_that_died_goes_to_the_next_once_the_gpu_is_idle(card: Card) -> None:
    first, other = RecordingStream(), RecordingStream()
    stream_of(first), stream_of(other)
    del first
    waited = card.waited
    assert stream_of(RecordingStream()) == "stream 0"
    assert card.waited == waited + 1


def test_a_stream_stays_on_its_device(card: Card) -> None:
    first = RecordingStream()
    assert stream_of(first) == "stream 0"
    card.device = 1
    assert stream_of(first) == "stream 1"
    card.device = 0
    assert stream_of(first) == "stream 0"
    del first
    assert stream_of(RecordingStream()) == "stream 0"
    card.device = 1
    assert stream_of(RecordingStream()) == "stream 1"


def test_every_recording_is_anchored_in_the_pool_of_its_stream(card: Card) -> None:
    """Somebody may have cleared the workspaces since the recording before."""
    first, second = RecordingStream(), RecordingStream()
    for plan in (first, first, second):
        stream_of(plan)
    assert card.anchors == [("stream 0", 0)] * 2 + [("stream 1", 1)]
    assert not card.open


def test_the_first_anchor_keeps_the_pool_and_later_ones_go_with_their_recordings(card: Card) -> None:
    plan = RecordingStream()
    for alive in (1, 1, 1):
        with plan.ready():
            pass
        gc.collect()
        assert sum(anchor() is not None for anchor in card.made) == alive
    with pytest.raises(ValueError, match="no") as failed, plan.ready():
        raise ValueError("no")
    assert sum(anchor() is not None for anchor in card.made) == 1, failed


def test_the_stream_that_was_left_first_is_taken_first(card: Card) -> None:
    """The graphs of a plan that is just being collected may still exist."""
    first, second = RecordingStream(), RecordingStream()
    stream_of(first), stream_of(second)
    del first
    del second
    assert stream_of(RecordingStream()) == "stream 0"


def no_memory() -> None:
    raise torch.OutOfMemoryError("no memory")


@pytest.mark.parametrize("first", [True, False])
def test_a_stream_whose_anchor_fails_is_not_lost(card: Card, first: bool) -> None:
    """Its pool must stay, too. Some of the workspaces may lie there, and a pool that was let go takes no more."""
    plan = RecordingStream()
    if not first:
        stream_of(plan)
    card.asking = no_memory
    with pytest.raises(torch.OutOfMemoryError):
        stream_of(plan)
    card.asking = lambda: None
    del plan
    gc.collect()
    assert stream_of(RecordingStream()) == "stream 0"
    assert set(card.anchors) == {("stream 0", 0)}


@pytest.mark.parametrize("ends_itself", [False, True])
def test_a_stream_whose_anchor_breaks_off_goes_on_in_another_pool(card: Card, ends_itself: bool) -> None:
    """Earlier recordings may write to workspaces in the first pool, which stays."""
    plan = RecordingStream()
    stream_of(plan)
    card.breaks, card.ends_itself = True, ends_itself
    with pytest.raises(RuntimeError, match="invalidated"):
        stream_of(plan)
    assert not card.open
    card.breaks = False
    gc.collect()
    for _ in range(2):
        assert stream_of(plan) == "stream 0"
    first, another = card.anchors[0][1], card.anchors[-1][1]
    assert first != another, "PyTorch's pool of pinned memory cannot be closed from here, and so takes no more"
    assert [pool for _, pool in card.anchors] == [first, first, another, another]
    assert {graph.pool for made in card.made if (graph := made()) is not None} == {first, another}


def test_with_the_drivers_own_allocator_nothing_is_captured(card: Card, monkeypatch: pytest.MonkeyPatch) -> None:
    """A workspace there would belong to the anchor, which is never replayed. No other graph could write to it."""
    monkeypatch.setattr(torch.cuda, "get_allocator_backend", lambda: "cudaMallocAsync")
    with pytest.raises(UnsupportedError, match="backend:cudaMallocAsync"):
        stream_of(RecordingStream())
    assert not card.anchors


@pytest.mark.parametrize("left_open", [True, False])
def test_a_pool_in_which_a_recording_broke_off_takes_no_more(
    card: Card, monkeypatch: pytest.MonkeyPatch, left_open: bool
) -> None:
    released: list[int] = []
    monkeypatch.setattr(torch._C, "_cuda_releasePool", lambda device, pool: released.append(pool), raising=False)
    plan, graph = RecordingStream(), torch.cuda.CUDAGraph()
    card.open = {77} if left_open else set()
    plan.give_up(graph, 77)
    assert not card.open
    assert released == ([77] if left_open else [])
    assert (plan.usable(77) == 77) is not left_open
    assert plan.usable(78) == 78
    assert RecordingStream().usable(77) == 77


def test_a_recording_that_fails_leaves_the_plan_its_stream(card: Card) -> None:
    plan = RecordingStream()
    with pytest.raises(ValueError, match="no"), plan.ready():
        raise ValueError("no")
    assert stream_of(plan) == "stream 0"


@pytest.mark.parametrize(
    ("code", "error", "said"),
    [
        (2, torch.OutOfMemoryError, "a stream for recording graphs could not be created"),
        (999, RuntimeError, "cuStreamCreate returned 999"),
    ],
)
def test_a_driver_that_makes_no_stream_is_named(
    monkeypatch: pytest.MonkeyPatch, code: int, error: type[Exception], said: str
) -> None:
    class Driver:
        def cuStreamCreate(self, handle: Any, flags: int) -> int:
            assert flags == 1
            return code

    monkeypatch.setattr(capture_stream.ctypes, "CDLL", lambda _: Driver())
    with pytest.raises(error, match=said):
        capture_stream._new_stream()


def test_where_there_is_no_driver_nothing_is_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    def raise_missing(name: str) -> Any:
        raise OSError(name)

    monkeypatch.setattr(capture_stream.ctypes, "CDLL", raise_missing)
    with pytest.raises(UnsupportedError, match="of the CUDA driver, but libcuda"):
        capture_stream._new_stream()


Done = list[tuple[str, ...]]


@pytest.fixture
def done(monkeypatch: pytest.MonkeyPatch) -> Done:
    """The requests of a recording, in order, on the CPU, where autograd runs in the calling thread."""
    done: Done = []
    current = ["default"]

    class Graph:
        def capture_begin(self, **options: Any) -> None:
            done.append(("begins", options["pool"]))

        def capture_end(self) -> None:
            done.append(("ends",))

    @contextlib.contextmanager
    def on(stream: str) -> Iterator[None]:
        current.append(stream)
        yield
        current.pop()

    zeros, addmm = torch.zeros, torch.addmm
    fakes = {
        "CUDAGraph": Graph,
        "stream": on,
        "current_device": lambda: 0,
        "synchronize": lambda: None,
        "get_allocator_backend": lambda: "native",
        "graph_pool_handle": lambda: "pool",
        "current_blas_handle": lambda: done.append(("handle", current[-1])),
    }
    for name, value in fakes.items():
        monkeypatch.setattr(torch.cuda, name, value)
    monkeypatch.setattr(torch, "zeros", lambda *size, device, **options: zeros(*size, **options))
    monkeypatch.setattr(capture_stream, "_free", capture_stream.defaultdict(list))
    monkeypatch.setattr(capture_stream, "_new_stream", lambda: "own")
    monkeypatch.setattr(capture_stream, "warm_up_stream", lambda device: "warm-up")
    monkeypatch.setattr(torch, "addmm", lambda *given: done.append(("product", current[-1])) or addmm(*given))
    monkeypatch.setattr(torch, "autocast", lambda *_, **__: contextlib.nullcontext())
    monkeypatch.setattr(torch.autograd, "_get_sequence_nr", lambda: 1)
    return done


def list_events(threads: int) -> Done:
    warm, own = ([("handle", stream), ("product", stream)] * threads for stream in ("warm-up", "own"))
    return [*warm, ("begins", "pool"), *own, ("ends",)]


@pytest.mark.parametrize("gradients", [False, True])
def test_handles_are_made_before_the_recording_in_which_their_workspaces_are(
    monkeypatch: pytest.MonkeyPatch, done: Done, gradients: bool
) -> None:
    """Making a handle takes memory from the driver, which fails while its thread records."""
    monkeypatch.setattr(torch.autograd, "_get_sequence_nr", lambda: int(gradients))
    with torch.no_grad():
        stream_of(RecordingStream())
    assert done == list_events(threads=2 if gradients else 1)


@pytest.mark.parametrize("warn_only", [False, True])
def test_deterministic_programs_have_both_workspaces_too(done: Done, warn_only: bool) -> None:
    """Their products run: the PyTorch that refused them without CUBLAS_WORKSPACE_CONFIG is older than 2.11."""
    torch.use_deterministic_algorithms(True, warn_only=warn_only)
    try:
        stream_of(RecordingStream())
    finally:
        torch.use_deterministic_algorithms(False)
    assert done == list_events(threads=2)


def test_a_backward_pass_that_looks_for_nan_is_not_recorded(done: Done) -> None:
    """It asks the GPU after every node, which breaks the recording off. Calls without gradients need none."""
    with pytest.warns(UserWarning, match="Anomaly Detection"), torch.autograd.detect_anomaly():
        stream_of(RecordingStream())
    assert done == list_events(threads=1)
    done.clear()
    with pytest.warns(UserWarning, match="Anomaly Detection"), torch.autograd.detect_anomaly(check_nan=False):
        stream_of(RecordingStream())
    assert done == list_events(threads=2)
