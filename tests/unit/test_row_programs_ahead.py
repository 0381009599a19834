"""Row programs that are compiled in one process for another: they call regions there, or say why they cannot."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest
import torch

from row_calls import PLAN, compile_once
from torchwise.compile import compile_plan, programs
from torchwise.compile.aot import Loader, Maker
from torchwise.compile.programs import ahead, build
from torchwise.compile.programs.gpu.target import GpuTarget
from torchwise.errors import UnsupportedError
from torchwise.plan import Plan
from torchwise.workload import Example


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Have an empty cache, and compute without gradients."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "caches"))
    compile_once(monkeypatch)
    torch.compiler.reset()
    with torch.no_grad():
        yield tmp_path / "caches"
    torch.compiler.reset()


def mix(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return (x * y + 1).tanh() * 2


X = torch.randn(3, 5), torch.randn(5)


def compile_ahead(call: Any, *inputs: torch.Tensor, plan: Plan = PLAN) -> Loader:
    maker = Maker()
    compile_plan(call, plan, Example(inputs), device="cpu", mode="inference", backend=maker).call(*inputs)
    return Loader(maker.made)


def load(loader: Loader, call: Any, *inputs: torch.Tensor, plan: Plan = PLAN) -> Any:
    return compile_plan(call, plan, Example(inputs), device="cpu", mode="inference", backend=loader).call


def forbid(*_args: Any, **_options: Any) -> NoReturn:
    raise AssertionError("it compiled")


def test_regions_answer_in_a_process_that_neither_exports_nor_compiles(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loader = compile_ahead(mix, *X)
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "other"))
    monkeypatch.setattr(build, "_compile", forbid)
    monkeypatch.setattr(programs, "cut_graph", forbid)
    called = count_originals(monkeypatch)
    loaded = load(loader, mix, *X)
    assert torch.equal(loaded(*X), loaded(*X))
    torch.testing.assert_close(loaded(*X), mix(*X))
    assert called == []


def count_originals(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return a list that gets an entry for each call that a region leaves to PyTorch's operators."""
    make, called = programs.make_callable, list[Any]()

    def make_counted(library: Any, number: int, prototypes: Any, original: Any) -> Any:
        def count_and_call(*args: Any) -> Any:
            called.append(number)
            return original(*args)

        return make(library, number, prototypes, torch.compiler.disable(count_and_call))

    monkeypatch.setattr(programs, "make_callable", make_counted)
    return called


def test_a_call_that_a_region_is_not_for_is_answered_by_the_operators(monkeypatch: pytest.MonkeyPatch) -> None:
    def look_up(table: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        return table[places].tanh() * 2

    given = torch.randn(4, 3), torch.tensor([0, 3])
    loader, called = compile_ahead(look_up, *given), count_originals(monkeypatch)
    loaded = load(loader, look_up, *given)
    torch.testing.assert_close(loaded(*given), look_up(*given))
    assert called == []
    with pytest.raises(IndexError, match="out of bounds"):
        loaded(given[0], torch.tensor([0, 4]))
    assert called == [0]


def test_random_numbers_are_drawn_inside_where_the_plan_lets_them(monkeypatch: pytest.MonkeyPatch) -> None:
    def shake(x: torch.Tensor) -> torch.Tensor:
        return (x + torch.randn_like(x)).tanh() * 2

    x = torch.zeros(2000)
    for plan, is_eagers in ((PLAN, True), (Plan(backend="row_programs"), False)):
        loaded = load(compile_ahead(shake, x, plan=plan), shake, x, plan=plan)
        torch.manual_seed(0)
        drawn = loaded(x)
        torch.manual_seed(0)
        assert torch.allclose(drawn, shake(x), atol=1e-5) is is_eagers
        assert not torch.equal(loaded(x), drawn)
        assert abs(float(drawn.mean())) < 0.2


def test_a_library_that_was_changed_in_the_cache_is_written_again(place: Path) -> None:
    loader = compile_ahead(mix, *X)
    (library,) = place.rglob("*.so")
    library.unlink()
    library.write_bytes(b"changed")
    torch.testing.assert_close(load(loader, mix, *X)(*X), mix(*X))
    assert library.stat().st_size > len(b"changed")


def test_code_for_another_processor_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    loader = compile_ahead(mix, *X)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "ANOTHER")
    monkeypatch.setattr(build, "import_extension", forbid)
    with pytest.raises(UnsupportedError, match="compiled for another processor, PyTorch or Python"):
        loader.load()


def test_a_model_without_regions_is_refused_with_the_reason() -> None:
    with pytest.raises(UnsupportedError, match="no two of its operators can run together"):
        compile_ahead(lambda x: torch.sort(x)[0], X[0])


def test_settings_of_another_compiler_are_refused() -> None:
    with pytest.raises(UnsupportedError, match="mode and options are Inductor's"):
        ahead.make_backend(Plan(backend="row_programs", options=(("x", 1),)))


def test_kernels_of_a_gpu_are_refused() -> None:
    with pytest.raises(UnsupportedError, match="kernels of a GPU are compiled in the process that calls them"):
        ahead._Maker().begin(GpuTarget(torch.device("cuda")), [])


def test_a_graph_with_tensors_of_its_own_is_refused() -> None:
    graph = torch.fx.Graph()
    module = torch.nn.Module()
    module.register_buffer("own", torch.ones(3))
    graph.output((graph.get_attr("own"),))
    with pytest.raises(UnsupportedError, match="the graph holds own"):
        ahead.RowProgramsAhead()(torch.fx.GraphModule(module, graph), [])


def test_what_cannot_be_pickled_is_refused_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: Any) -> NoReturn:
        raise pickle.PicklingError("it is a lock")

    monkeypatch.setattr(ahead.cloudpickle, "dumps", refuse)
    with pytest.raises(UnsupportedError, match=r"the graph cannot be written: .*it is a lock"):
        compile_ahead(mix, *X)


def test_the_code_that_compiles_ahead_answers_no_calls() -> None:
    graph = torch.fx.symbolic_trace(lambda x: (x * 2 + 1,))
    region = ahead.WrittenRegion(0, (), ahead.WrittenGraph.of(graph))
    with pytest.raises(UnsupportedError, match="before its library was loaded"):
        region()
    with pytest.raises(UnsupportedError, match="called in another process"):
        ahead.RowCode(ahead.Written("", "", b"", region, None))()
