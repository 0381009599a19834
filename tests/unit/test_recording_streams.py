"""Whose is the stream that a plan's graphs are recorded on, with CUDA stood in for."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from torchwise.realize.capture import recording
from torchwise.realize.capture.recording import RecordingStream


class Card:
    """Counts streams and anchors; each stands for itself."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.device, self.waited = 0, 0
        self.anchors: list[tuple[str, int]] = []
        names = (f"stream {number}" for number in itertools.count())
        monkeypatch.setattr(recording, "_free", recording.defaultdict(list))
        monkeypatch.setattr(recording, "_new_stream", lambda: next(names))
        monkeypatch.setattr(recording, "_anchor", self.anchor)
        monkeypatch.setattr(recording, "_look_up_handles", lambda: None)
        monkeypatch.setattr(recording, "warm_up_stream", lambda device: "warm-up")
        monkeypatch.setattr(torch.cuda, "stream", contextlib.nullcontext)
        monkeypatch.setattr(torch.cuda, "graph_pool_handle", itertools.count().__next__)
        monkeypatch.setattr(torch.cuda, "current_device", lambda: self.device)
        monkeypatch.setattr(torch.cuda, "synchronize", self.wait)

    def anchor(self, stream: str, pool: int) -> object:
        self.anchors.append((stream, pool))
        return object()

    def wait(self) -> None:
        self.waited += 1


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
    stream_of(first)
    card.device = 1
    del first
    assert stream_of(RecordingStream()) == "stream 1"
    card.device = 0
    assert stream_of(RecordingStream()) == "stream 0"


def test_every_recording_is_anchored_in_the_pool_of_its_stream(card: Card) -> None:
    """As somebody may have cleared the workspaces since the one before."""
    first, second = RecordingStream(), RecordingStream()
    for plan in (first, first, second):
        stream_of(plan)
    assert card.anchors == [("stream 0", 0)] * 3 + [("stream 1", 1)] * 2


def test_a_recording_that_fails_leaves_the_plan_its_stream(card: Card) -> None:
    plan = RecordingStream()
    with pytest.raises(ValueError, match="no"), plan.ready():
        raise ValueError("no")
    assert stream_of(plan) == "stream 0"


def test_a_driver_that_makes_no_stream_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    class Driver:
        def cuStreamCreate(self, handle: Any, flags: int) -> int:
            return 2

    monkeypatch.setattr(recording.ctypes, "CDLL", lambda _: Driver())
    with pytest.raises(RuntimeError, match="cuStreamCreate returned 2"):
        recording._new_stream()


@pytest.mark.parametrize("gradients", [False, True])
def test_handles_are_made_before_the_recording_in_which_their_workspaces_are(
    monkeypatch: pytest.MonkeyPatch, gradients: bool
) -> None:
    """Making one takes memory from the driver, which fails while its thread records."""
    done: list[tuple[str, ...]] = []
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

    zeros = torch.zeros
    fakes = {
        "CUDAGraph": Graph,
        "stream": on,
        "current_device": lambda: 0,
        "synchronize": lambda: None,
        "graph_pool_handle": lambda: "pool",
        "current_blas_handle": lambda: done.append(("handle", current[-1])),
    }
    for name, value in fakes.items():
        monkeypatch.setattr(torch.cuda, name, value)
    monkeypatch.setattr(torch, "zeros", lambda *size, device, **options: zeros(*size, **options))
    monkeypatch.setattr(recording, "_free", recording.defaultdict(list))
    monkeypatch.setattr(recording, "_new_stream", lambda: "own")
    monkeypatch.setattr(recording, "warm_up_stream", lambda device: "warm-up")
    with torch.set_grad_enabled(gradients):
        stream_of(RecordingStream())
    threads = 2 if gradients else 1  # on the CPU autograd runs in the calling thread, but the hook is called
    anchored = [("begins", "pool"), *[("handle", "own")] * threads, ("ends",)]
    assert done == [("handle", "warm-up")] * threads + anchored * 2
