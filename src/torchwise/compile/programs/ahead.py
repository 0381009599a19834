"""Row programs that one process compiles and another one calls, as `compile/aot.py` carries them.

The library of a graph's regions travels as bytes, and the operators beside them as the source code of the graph. The
process that reads them neither exports a graph nor compiles.
"""

from __future__ import annotations

import pickle
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import cloudpickle
import torch

from torchwise._torch import dynamo
from torchwise.compile import programs
from torchwise.compile.programs import build
from torchwise.compile.programs.complex_numbers import join_complex
from torchwise.compile.programs.regions import CpuTarget, Region, Target
from torchwise.compile.programs.source import write_source
from torchwise.errors import UnsupportedError, first_line, format_error
from torchwise.plan import Plan

FEATURE = "compiling row programs ahead"
SerializableCallable: Any = dynamo.SERIALIZABLE.get(FEATURE)


@dataclass(frozen=True, slots=True)
class WrittenGraph:
    """A graph as source code. Unpickling a `GraphModule` would trace it again, which code of regions does not allow.

    Attributes:
        code: of a function `forward`.
        names: what the code calls by its names.
        kept: tensors that the graph itself keeps, by their names.
    """

    code: str
    names: dict[str, Any]
    kept: dict[str, torch.Tensor]

    @classmethod
    def of(cls, module: torch.fx.GraphModule) -> WrittenGraph:
        """Write a graph."""
        python = module.graph.python_code("self")
        kept = {str(node.target): getattr(module, str(node.target)) for node in module.graph.find_nodes(op="get_attr")}
        return cls(python.src, python.globals, kept)

    def read(self, library: Any) -> Callable[..., Any]:
        """Return the graph as a function, with the regions of a library in it."""
        regions = {name: one.read(library) for name, one in self.names.items() if isinstance(one, WrittenRegion)}
        names = {**self.names, **regions}
        exec(compile(self.code, "<graph with row programs>", "exec"), names)
        call: Callable[..., Any] = types.MethodType(names["forward"], types.SimpleNamespace(**self.kept))
        return call


@dataclass(frozen=True, eq=False)
class WrittenRegion:
    """A region that is in a library, in the place of its code.

    Attributes:
        number: its place in the library.
        prototypes: sizes, strides and type of each output.
        original: its operators.
    """

    number: int
    prototypes: tuple[tuple[tuple[int, ...], tuple[int, ...], torch.dtype], ...]
    original: WrittenGraph

    __name__ = "region"  # by which FX calls it

    def __call__(self, *_args: Any) -> Any:
        """Refuse, as only FX takes it for a function."""
        raise UnsupportedError("a region was called before its library was loaded")

    def read(self, library: Any) -> Callable[..., Any]:
        """Return its code as a callable."""
        disable: Any = torch.compiler.disable
        original = disable(self.original.read(library))
        prototypes = tuple(torch.empty_strided(size, stride, dtype=kind) for size, stride, kind in self.prototypes)
        return programs.make_callable(library, self.number, prototypes, original)


@dataclass(frozen=True, slots=True)
class Written:
    """All that answers the calls of a graph.

    Attributes:
        source: the text of its library, `library` that as compiled, and `key` the cache's folder for it.
        call: the graph. It is one region if that has the inputs and outputs of the whole.
        complex_places: the inputs and the outputs that are complex.
    """

    source: str
    key: str
    library: bytes
    call: WrittenGraph | WrittenRegion
    complex_places: tuple[tuple[int, ...], tuple[int, ...]] | None

    def read(self) -> Callable[..., Any]:
        """Return it as a callable with the graph's inputs and outputs.

        Raises:
            UnsupportedError: it was compiled for another processor, PyTorch or Python.
        """
        call = self.call.read(build.install_library(self.source, self.key, self.library))
        return call if self.complex_places is None else join_complex(call, *self.complex_places)


class RowCode(SerializableCallable):  # type: ignore[misc]
    """The code of a graph as Dynamo writes it. What is read from that is the callable itself."""

    def __init__(self, written: Written) -> None:
        self.data = cloudpickle.dumps(written)

    def __call__(self, *_args: Any) -> Any:
        """Refuse: the process that compiles ahead has the original answer."""
        raise UnsupportedError("row programs that are compiled ahead are called in another process")

    @classmethod
    def serialize_compile_artifacts(cls, fn: RowCode) -> bytes:
        """Return the bytes of the code."""
        return bytes(fn.data)

    @classmethod
    def deserialize_compile_artifacts(cls, data: bytes) -> Callable[..., Any]:
        """Load the code. The caller has compared the hash of everything that it read (`background/protocol.py`)."""
        written: Written = pickle.loads(data)
        return written.read()


def make_backend(plan: Plan) -> RowProgramsAhead:
    """Return the backend of a plan for another process.

    Raises:
        UnsupportedError: as `programs.compile` does.
    """
    return RowProgramsAhead(draws=programs.may_draw(plan))


class RowProgramsAhead:
    """A backend of Dynamo that compiles the regions of a graph for another process.

    Args:
        draws: as for `RowPrograms`.
    """

    def __init__(self, *, draws: bool = False) -> None:
        self._draws = draws

    def __call__(self, graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> RowCode:
        """Compile a graph.

        Raises:
            UnsupportedError: it has no region, or something in it cannot be written.
        """
        if held := next((node for node in graph.graph.nodes if node.op in ("get_attr", "call_module")), None):
            raise UnsupportedError(f"the graph holds {held.target}, which the other process would have twice")
        maker = _Maker()
        call, parts = programs.cut_graph(graph, inputs, draws=self._draws, make_maker=maker.begin)
        written = call if isinstance(call, WrittenRegion) else WrittenGraph.of(call.__self__)  # type: ignore[attr-defined]
        places = None if parts is None else (parts.complex_inputs, parts.complex_outputs)
        key, library = build.find_library(maker.source)
        try:
            return RowCode(Written(maker.source, key, library, written, places))
        except Exception as error:  # whatever a graph calls may refuse to be pickled, in any way
            raise UnsupportedError(f"the graph cannot be written: {first_line(format_error(error))}") from error


class _Maker:
    """Makes written regions, whose library has the text `source`."""

    def __init__(self) -> None:
        self.source = ""

    def begin(self, target: Target, regions: Sequence[Region]) -> programs.Maker:
        if not isinstance(target, CpuTarget):
            raise UnsupportedError("the kernels of a GPU are compiled in the process that calls them")
        self.source = write_source([region.code for region in regions])
        return self._make

    def _make(self, number: int, region: Region, original: torch.fx.GraphModule) -> WrittenRegion:
        prototypes = tuple((one.shape, one.strides, one.dtype) for one in region.code.outputs)
        return WrittenRegion(number, prototypes, WrittenGraph.of(original))
