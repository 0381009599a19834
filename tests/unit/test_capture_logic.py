"""When a captured call records anew, replays, or steps aside: its logic, with a recording that needs no GPU."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from torchwise.errors import UnsupportedError
from torchwise.realize.capture import call as captured
from torchwise.realize.capture.call import CapturedCall
from torchwise.realize.capture.graph import Graph, record
from torchwise.workload import trees


class Stream:
    cuda_stream = 0

    def wait_stream(self, other: object) -> None: ...


class Machine:
    """Stands in for CUDA: a replay computes what was recorded once more, and everything is counted."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.recorded, self.replayed, self.capturing = 0, 0, False
        for name, value in {"graph_pool_handle": int, "Stream": Stream, "current_stream": Stream}.items():
            monkeypatch.setattr(torch.cuda, name, value)
        monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
        monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda _: 0, raising=False)
        monkeypatch.setattr(torch._C, "_cuda_isCurrentStreamCapturing", lambda: self.capturing, raising=False)
        monkeypatch.setattr(captured, "record", self.record)

    def record(self, call: Callable[..., Any], args: Any, kwargs: Any, **options: Any) -> Graph:
        self.recorded += 1
        args, kwargs = trees.map_tensors(torch.Tensor.clone, (args, dict(kwargs)))
        inputs = trees.tensors((args, kwargs))
        call(*args, **kwargs)
        options["settled"]()
        before = [t._version for t in inputs]
        outputs = call(*args, **kwargs)
        written = [i for i, (t, v) in enumerate(zip(inputs, before, strict=True)) if t._version != v]

        def replay() -> None:
            self.replayed += 1
            for kept, now in zip(trees.tensors(outputs), trees.tensors(call(*args, **kwargs)), strict=True):
                kept.copy_(now)

        return Graph(replay, inputs, outputs, written)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    with torch.no_grad():
        yield Machine(monkeypatch)


def of(call: Callable[..., Any], module: torch.nn.Module | None = None) -> CapturedCall:
    return CapturedCall(call, module, device="cuda", mode="inference")


X = torch.randn(3, 4)


def test_a_signature_is_recorded_once_and_then_replayed(machine: Machine) -> None:
    net = torch.nn.Linear(4, 4)
    call = of(net, net)
    lean = None
    for rows in (3, 5, 3, 5):
        given = torch.randn(rows, 4)
        assert torch.equal(call(given), net(given))
        lean = call.lean((given,), {})
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
    call = of(net, net)
    call(X)
    call(X)
    assert (machine.recorded, machine.replayed) == (1, 2)
    change(net)
    assert torch.equal(call(X), net(X))
    assert (machine.recorded, machine.replayed) == (2, 4), "the first was thrown away"
    call(X)
    assert machine.recorded == 2


@pytest.mark.parametrize("setting", ["deterministic", "dtype"])
def test_settings_of_pytorch_that_changed_lead_to_a_new_recording(machine: Machine, setting: str) -> None:
    call = of(torch.sin)
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
    call = of(net, net)
    for scale in (1.0, 1.0, 2.0):
        net.scale = scale
        assert torch.equal(call(X), X * scale)
    assert net.count.item() == 3


def test_one_tensor_given_twice_to_what_writes_is_not_replayed_from_copies(machine: Machine) -> None:
    def adds(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x.add_(1) + y

    call = of(adds)
    for _ in range(2):
        x, same = torch.ones(3), torch.ones(3)
        assert torch.equal(call(x, x), adds(same, same))
        assert torch.equal(x, same)
        whole, other = torch.ones(4), torch.ones(4)
        assert torch.equal(call(whole[:3], whole[1:]), adds(other[:3], other[1:]))


def test_a_call_that_calls_itself_is_answered(machine: Machine) -> None:
    def recursive(x: torch.Tensor) -> torch.Tensor:
        return x * 2 if x.shape[0] == 1 else call(x[:1]) + x.sum()

    call = of(recursive)
    answers: list[torch.Tensor] = []

    def ask() -> None:
        with torch.no_grad():
            answers.append(call(torch.ones(2)))

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(20)
    assert [answer.tolist() for answer in answers] == [[4.0]]


def test_within_somebody_elses_capture_it_steps_aside(machine: Machine) -> None:
    call = of(torch.sin)
    machine.capturing = True
    assert torch.equal(call(X), torch.sin(X))
    assert machine.recorded == 0


def test_an_object_among_the_inputs_is_refused() -> None:
    class Box:
        value = 2.0

    with pytest.raises(UnsupportedError, match=r"an input holds .*Box"):
        record(lambda x, box: x * box.value, (X, Box()), {}, pool=None, stream=None, settled=lambda: None)  # type: ignore[arg-type]
