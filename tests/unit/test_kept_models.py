"""Models that another library converted are found by a later process, and only if they are those of the program."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from torchwise.artifact import build
from torchwise.compile.backends import kept_models, onnx_runtime, openvino
from torchwise.compile.backends.kept_models import MADE, load_or_convert, make_key
from torchwise.compile.compiled_plan import compile_plan
from torchwise.plan import Plan
from torchwise.workload import Example

X = torch.ones(2, 4)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "caches"))
    MADE.clear()
    return tmp_path / "caches" / "torchwise_models"


class Net(torch.nn.Module):
    def __init__(self, factor: float = 2.0, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.layer, self.factor = torch.nn.Linear(4, 4), factor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.layer(x)) * self.factor + torch.tensor([self.factor, 1.0, 2.0, 3.0])


def export(net: torch.nn.Module, x: torch.Tensor = X, **options: Any) -> torch.export.ExportedProgram:
    return torch.export.export(net.eval(), (x,), **options)


class Library:
    """A library whose models are bytes."""

    def __init__(self) -> None:
        self.converted, self.loaded = 0, list[bytes]()

    def load(self, data: bytes) -> bytes:
        self.loaded.append(data)
        if data == b"damaged":
            raise RuntimeError("it is damaged")
        return data

    def convert(self) -> tuple[bytes, Callable[[], bytes]]:
        self.converted += 1
        return b"model", lambda: b"model"


def test_a_model_is_converted_once(folder: Path) -> None:
    library = Library()
    for _ in range(2):
        assert load_or_convert(export(Net()), ("a library", 1), library.load, library.convert) == b"model"
    assert (library.converted, library.loaded, len(MADE)) == (1, [b"model"], 1)
    assert len(list(folder.glob("*/*.model"))) == 1


def test_an_artifact_counts_models_that_are_converted_anew() -> None:
    library, program, before = Library(), export(Net()), build._count_compiled_graphs()
    for _ in range(2):
        load_or_convert(program, (), library.load, library.convert)
        assert build._count_compiled_graphs() == before + 1


DIFFERENT: dict[str, Callable[[], str]] = {
    "number": lambda: make_key(export(Net(factor=3.0)), ("a", 1)),
    "weights": lambda: make_key(export(Net(seed=1)), ("a", 1)),
    "version": lambda: make_key(export(Net()), ("a", 2)),
    "sizes": lambda: make_key(export(Net(), torch.ones(3, 4)), ("a", 1)),
    "dtype": lambda: make_key(export(Net().double(), X.double()), ("a", 1)),
    "all sizes": lambda: make_key(export(Net(), dynamic_shapes=({0: torch.export.Dim.DYNAMIC},)), ("a", 1)),
    "operators": lambda: make_key(export(torch.nn.Sequential(Net(), torch.nn.ReLU())), ("a", 1)),
}


@pytest.mark.parametrize("case", DIFFERENT)
def test_each_difference_has_a_model_of_its_own(case: str) -> None:
    assert make_key(export(Net()), ("a", 1)) == make_key(export(Net()), ("a", 1))
    assert make_key(export(Net()), ("a", 1)) != DIFFERENT[case]()


def test_another_processor_has_a_model_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    here = make_key(export(Net()), ())
    monkeypatch.setattr("torch.backends.cpu.get_cpu_capability", lambda: "another")
    assert make_key(export(Net()), ()) != here


def test_a_constant_of_the_forward_counts() -> None:
    first, second = Net(), Net()
    first.forward = lambda x: x * torch.tensor([1.0, 2.0, 3.0, 4.0])  # type: ignore[method-assign]
    second.forward = lambda x: x * torch.tensor([1.0, 2.0, 3.0, 5.0])  # type: ignore[method-assign]
    assert make_key(export(first), ()) != make_key(export(second), ())


def test_a_number_in_an_operator_counts() -> None:
    first, second = Net(), Net()
    first.forward = lambda x: x * 2.0  # type: ignore[method-assign]
    second.forward = lambda x: x * 3.0  # type: ignore[method-assign]
    assert make_key(export(first), ()) != make_key(export(second), ())


@pytest.mark.parametrize("change", ["cut", "renamed", "refused"])
def test_a_file_that_is_not_what_was_written_is_converted_again(
    change: str, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    library, program = Library(), export(Net())
    load_or_convert(program, (), library.load, library.convert)
    (file,) = folder.glob("*/*.model")
    if change == "cut":
        file.write_bytes(b"mod")
    elif change == "renamed":
        file.rename(file.with_name("other.model"))
    else:
        file.unlink()
        digest = kept_models.hashlib.sha256(b"damaged").hexdigest()
        file.with_name(f"{digest}.model").write_bytes(b"damaged")
    with caplog.at_level(logging.WARNING, "torchwise"):
        assert load_or_convert(program, (), library.load, library.convert) == b"model"
    assert library.converted == 2
    assert "is converted again: " in caplog.text
    assert library.loaded == ([b"damaged"] if change == "refused" else [])


def test_a_model_that_cannot_be_kept_answers(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    library, program = Library(), export(Net())
    folder.parent.mkdir(parents=True)
    folder.write_text("in the way")
    with caplog.at_level(logging.WARNING, "torchwise"):
        assert load_or_convert(program, (), library.load, library.convert) == b"model"
    assert "a converted model is not kept: " in caplog.text
    folder.unlink()
    monkeypatch.setattr(kept_models, "MAX_BYTES", 10)
    assert load_or_convert(program, (), library.load, library.convert) == b"model"
    assert not folder.exists(), "it is too large"


def test_constants_whose_numbers_make_no_key_are_not_kept(folder: Path) -> None:
    library, program = Library(), export(Net())
    program.constants["table"] = torch.eye(3).to_sparse()
    for _ in range(2):
        assert load_or_convert(program, (), library.load, library.convert) == b"model"
    assert library.converted == 2
    assert not folder.exists()


# Real compilers.


def answer(net: torch.nn.Module, name: str, *, threads: int | None = None) -> torch.Tensor:
    torch.compiler.reset()
    plan = Plan(backend=name, threads=threads)
    with torch.no_grad():
        call = compile_plan(net, plan, Example((X,)), device="cpu", mode="inference").call
        return call(X)


def refuse(_program: Any) -> Any:
    raise RuntimeError("it is converted again")


def check_kept(name: str, module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    net = Net().eval()
    expected = net(X).detach()
    torch.testing.assert_close(answer(net, name), expected)
    assert len(MADE) == 1
    with monkeypatch.context() as patch:
        patch.setattr(module, "_convert", refuse)
        torch.testing.assert_close(answer(Net().eval(), name), expected)
    other = Net(seed=1).eval()
    torch.testing.assert_close(answer(other, name), other(X).detach())
    assert len(MADE) == 2, "other weights are other constants"


def test_openvino_finds_its_model(monkeypatch: pytest.MonkeyPatch) -> None:
    check_kept("openvino", openvino, monkeypatch)
    answer(Net().eval(), "openvino", threads=torch.get_num_threads() + 1)  # CI has one in each process
    assert len(MADE) == 3, "its settings are in the file"


@pytest.mark.slow
def test_onnx_runtime_finds_its_model(monkeypatch: pytest.MonkeyPatch) -> None:
    check_kept("onnxruntime", onnx_runtime, monkeypatch)
