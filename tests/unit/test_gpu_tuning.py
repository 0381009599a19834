"""How the forms of kernels are chosen: not while a graph is captured, on the right device, and by one that works."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from gpu_kernels import Kernels, use_kernels
from row_calls import compile_call
from row_cases import CASES, check
from torchwise.compile.few_rows import operator, tuning
from torchwise.compile.programs.gpu import launch
from torchwise.compile.programs.gpu.forms import Form
from torchwise.errors import UnsupportedError

GPU = torch.device("cuda", 1)


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Kernels]:
    """The kernels that a test makes."""
    yield from use_kernels(monkeypatch, tmp_path)


class FakeGpus:
    """What PyTorch is told of GPUs.

    Attributes:
        current: the number of the current one.
        captured: those on which a graph is captured.
        used: those that were current when work was captured, replayed or timed.
        modes: the options of captures.
    """

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.current, self.captured, self.used, self.modes = 0, set[int](), list[int](), list[dict[str, Any]]()
        gpus = self

        class Timer:
            def __init__(self, **_: Any) -> None:
                pass

            def record(self) -> None:
                gpus.used.append(gpus.current)

            replay = record

            def synchronize(self) -> None:
                pass

            def elapsed_time(self, _other: Timer) -> float:
                return 8.0

        patch.setattr(torch.cuda, "device", self._use)
        patch.setattr(torch.cuda, "is_current_stream_capturing", lambda: self.current in self.captured)
        patch.setattr(torch.cuda, "graph", self._capture)
        patch.setattr(torch.cuda, "CUDAGraph", Timer)
        patch.setattr(torch.cuda, "Event", Timer)

    @contextlib.contextmanager
    def _use(self, device: torch.device) -> Iterator[None]:
        before, self.current = self.current, device.index
        yield
        self.current = before

    @contextlib.contextmanager
    def _capture(self, _graph: Any, **options: Any) -> Iterator[None]:
        self.modes.append(options)
        yield


def test_calls_are_timed_on_their_own_device_beside_other_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus, calls = FakeGpus(monkeypatch), list[int]()
    assert launch.time_calls(lambda: calls.append(gpus.current), GPU, calls=4) == pytest.approx(2e-3)
    assert calls == [1] * 4
    assert set(gpus.used) == {1}
    assert gpus.modes == [{"capture_error_mode": "thread_local"}]


def test_a_capture_is_one_on_the_same_device(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus = FakeGpus(monkeypatch)
    gpus.captured = {1}
    assert launch.is_capturing(GPU)
    assert not launch.is_capturing(torch.device("cuda", 0))
    assert not launch.is_capturing(torch.device("cpu"))


def test_a_program_is_not_tuned_while_a_graph_is_captured(kernels: Kernels, monkeypatch: pytest.MonkeyPatch) -> None:
    captured = [True]
    monkeypatch.setattr(launch, "is_capturing", lambda _device: captured[0])
    case = CASES["perceptron"]
    inputs = case.inputs(torch.Generator().manual_seed(0))
    call = compile_call(case.call, *inputs)
    check(call, case, inputs)
    assert (kernels.left, kernels[0]._launch) == (1, None), "PyTorch answers"
    captured[0] = False
    check(call, case, inputs)
    captured[0] = True
    check(call, case, inputs)
    assert kernels.left == 1, "a kernel that is tuned can be captured"


def test_products_are_not_tuned_while_a_graph_is_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    captured, chosen = [True], dict[Any, Any]()
    monkeypatch.setattr(operator, "runs_kernels", lambda _device: True)
    monkeypatch.setattr(tuning, "_chosen", chosen)
    monkeypatch.setattr(tuning, "is_capturing", lambda _device: captured[0])
    x, weight = torch.ones(1, 8), torch.ones(5, 8)
    with monkeypatch.context() as patch:
        patch.setattr(operator, "_launch", None)
        assert operator.multiply(x, [weight], [], [], "")[0].tolist() == [[8.0] * 5]
    assert not chosen, "it is chosen by a later call"
    captured[0] = False
    assert operator.multiply(x, [weight], [], [], "")[0].tolist() == [[8.0] * 5]
    assert len(chosen) == 1


REFUSED = Form(1, 4, 64, "ieee")


@pytest.mark.parametrize("text", ['{"block": 0}', json.dumps(vars(REFUSED)), "[]", ""])
def test_a_kept_form_that_does_not_work_is_chosen_again(
    text: str, kernels: Kernels, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be of a GPU with more memory for each program."""
    make = launch.Kernel._make_launch

    def make_most(self: launch.Kernel, form: Form, device: torch.device) -> launch.Launch:
        def refuse(_: Any) -> tuple[torch.Tensor, ...]:
            raise RuntimeError("out of resources")

        return refuse if form == REFUSED else make(self, form, device)

    monkeypatch.setattr(launch.Kernel, "_make_launch", make_most)
    monkeypatch.setattr(launch, "list_forms", lambda *_, **__: [Form(16, 4, 64, "ieee")])
    case = CASES["perceptron"]
    inputs = case.inputs(torch.Generator().manual_seed(0))
    check(compile_call(case.call, *inputs), case, inputs)
    file = kernels[0]._cache_file(torch.device("cpu"), allows_tf32=False)
    file.write_text(text)
    torch.compiler.reset()
    check(compile_call(case.call, *inputs), case, inputs)
    assert Form(**json.loads(file.read_text())).block == 16


def test_an_attempt_that_has_no_memory_is_told(tmp_path: Path) -> None:
    def attempt(_: Any) -> None:
        raise torch.OutOfMemoryError

    with pytest.raises(UnsupportedError, match="keeps no form"):
        launch.try_kept(tmp_path / "form.json", attempt)
    (tmp_path / "form.json").write_text("null")
    with pytest.raises(torch.OutOfMemoryError):
        launch.try_kept(tmp_path / "form.json", attempt)
    assert launch.try_kept(tmp_path / "form.json", lambda kept: kept) is None
