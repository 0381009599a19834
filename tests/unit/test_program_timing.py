"""The times of recorded calls: on a GPU those between events, and without the first call, which warms up."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from torchwise.runtime.program import calls as timing
from torchwise.runtime.program import recorder as recorder_module
from torchwise.runtime.program.recorder import MAX_EVENTS, CallRecorder

X = torch.ones(2, 4)


class Device:
    """A GPU on which each call takes 3 ms, and the first one 50 ms, however soon the program goes on."""

    def __init__(self) -> None:
        self.now_ms = 0.0
        self.is_capturing = self.fails = False
        self.waits = 0
        self.streams: list[object] = []

    def event(self, *, enable_timing: bool) -> Event:
        assert enable_timing
        return Event(self)


class Event:
    def __init__(self, device: Device) -> None:
        self.device, self.at_ms = device, 0.0

    def record(self, stream: object) -> None:
        if self.device.fails:
            raise RuntimeError("CUDA error")
        self.device.streams.append(stream)
        self.at_ms = self.device.now_ms

    def synchronize(self) -> None:
        self.device.waits += 1

    def elapsed_time(self, end: Event) -> float:
        if self.device.fails:
            raise RuntimeError("events of two devices")
        return end.at_ms - self.at_ms


class OnGpu(torch.nn.Linear):
    def __init__(self, device: Device) -> None:
        super().__init__(4, 4)
        self.device, self.calls = device, 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.device.now_ms += 3 if self.calls else 50
        self.calls += 1
        return super().forward(x)


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    found = Device()
    monkeypatch.setattr(recorder_module, "GRACE_S", 60.0)  # so that all calls are looked at, on a busy machine, too
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: found.is_capturing)
    monkeypatch.setattr(torch.cuda, "Event", found.event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda of: f"the stream of {of}")
    monkeypatch.setattr(timing, "device_of_parameters", lambda _: torch.device("cuda:1"))
    monkeypatch.setattr(timing, "device_type_of", lambda thing: "cuda" if isinstance(thing, OnGpu) else "cpu")
    return found


def record(module: torch.nn.Module, times: int) -> Any:
    with CallRecorder() as recorder:
        for _ in range(times):
            module(X)
    return recorder


def test_calls_on_a_gpu_take_the_time_between_their_events(device: Device) -> None:
    recorder = record(OnGpu(device), 5)
    waits = device.waits
    (module,) = recorder.to_record("p").modules
    assert waits == 0, "the program is never made to wait"
    assert device.waits > 0
    assert module.seconds == pytest.approx(5 * 0.003)
    assert module.inputs[0].seconds == pytest.approx(5 * 0.003)
    assert device.streams == ["the stream of cuda:1"] * 10, "that of the module, whatever GPU the program is at"


def test_a_single_call_takes_all_its_time(device: Device) -> None:
    assert record(OnGpu(device), 1).to_record("p").modules[0].seconds == pytest.approx(0.05)


def test_the_number_of_events_is_bounded(device: Device) -> None:
    (found,) = record(OnGpu(device), MAX_EVENTS + 20).calls
    (kind,) = found.kinds.values()
    assert len(kind.events) == MAX_EVENTS
    assert found.seconds == pytest.approx(found.calls * 0.003)


def test_a_module_on_the_cpu_has_no_events(device: Device) -> None:
    (found,) = record(torch.nn.Linear(4, 4), 3).calls
    assert [kind.events for kind in found.kinds.values()] == [[]]
    assert 0 < found.seconds < 1


def test_a_call_in_a_graph_capture_is_only_counted(device: Device) -> None:
    device.is_capturing = True  # a copy of the inputs would become part of the graph
    recorder = record(OnGpu(device), 3)
    assert [(found.calls, found.kinds) for found in recorder.calls] == [(3, {})]
    assert recorder.kept_bytes == 0


@pytest.mark.parametrize("fails_in_the_call", [True, False])
def test_a_failing_gpu_is_the_programs_to_meet(device: Device, fails_in_the_call: bool) -> None:
    module = OnGpu(device)
    device.fails = fails_in_the_call
    recorder = record(module, 3)
    device.fails = True
    assert recorder.to_record("p").modules[0].calls == 3


def test_the_first_call_of_a_kind_does_not_count_as_usual() -> None:
    kind = timing.Kind((), "", "inference", None, None, "none")
    for seconds in (5.0, 0.1, 0.3):
        kind.count(seconds)
    assert kind.average_s() == pytest.approx(0.2)
    assert kind.seconds == pytest.approx(5.4)
