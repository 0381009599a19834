"""Row programs: regions of a graph as C++ of our own, for programs whose operators are short.

An operator of PyTorch takes some microseconds to begin, however little it does. Here all operators between two that
must run by themselves are one function, which Python calls once. `regions` finds them, `operators` has the code of each
operator, `lowering` puts loops together, `source` writes the text, and `build` compiles it.
"""

from __future__ import annotations

import contextlib
import importlib.util
import logging
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch

from torchwise._torch import dynamo
from torchwise._torch.dispatch import GRU_CELL, LSTM_CELL, METADATA_CHECK, RNNS
from torchwise.compile.backends.graphs import NOTHING, Varying, compile_call
from torchwise.compile.backends.idle_dropout import take_out_idle_dropout
from torchwise.compile.backends.pure_graph import PureGraph
from torchwise.compile.programs.build import find_exchange, load_module
from torchwise.compile.programs.complex_numbers import join_complex, split_complex
from torchwise.compile.programs.gpu.target import GpuTarget
from torchwise.compile.programs.noise import draw_inside, free_noise
from torchwise.compile.programs.region_map import announce
from torchwise.compile.programs.regions import CpuTarget, Region, Target, find_regions, tell_refusals
from torchwise.compile.programs.source import write_source
from torchwise.compile.recurrent_cells import decompose_gru_cell, decompose_lstm_cell, decompose_short_rnn
from torchwise.compile.transforms.complex_to_real.rewrite import Rewriting
from torchwise.errors import UnsupportedError, first_line, format_error
from torchwise.plan import Plan

ABOUT = ("backend", "scope", "transforms", "precision", "shapes")
RANDOM = "fallback_random"
"""Inductor's option to draw PyTorch's own random numbers, as is always done on a CPU."""
DRAWS = ("aten.bernoulli.default", "aten.rrelu.default")
"""Operators whose decomposition draws other random numbers than they do."""
LEAST_OPERATORS = 2
"""Operators that a region must have, as one alone gains nothing."""
LEAST_SHARE = 0.3
"""Share of a graph's operators that its regions must have."""

logger = logging.getLogger("torchwise")


def compile(call: Callable[..., Any], plan: Plan, varying: Varying = NOTHING) -> Callable[..., Any]:
    """Return `call`, the regions of whose graphs are compiled on the first call for each signature.

    Raises:
        UnsupportedError: the plan has settings of another compiler. Calls raise it if no graph has a region.
    """
    draws = may_draw(plan)

    def make_backend(_is_alone: bool) -> tuple[Any, list[Any]]:
        programs = RowPrograms(draws=draws)
        return programs, [programs]

    return compile_call(call, plan, make_backend, varying)


def may_draw(plan: Plan) -> bool:
    """Return whether regions may draw random numbers, which are others than PyTorch's.

    Raises:
        UnsupportedError: the plan has settings of another compiler.
    """
    options = [name for name, _ in plan.options if name != RANDOM]
    if options or plan.mode != "default":
        raise UnsupportedError(f"backend is {plan.backend!r}, but mode and options are Inductor's: leave them out")
    return (RANDOM, True) not in plan.options


class RowPrograms:
    """A backend of Dynamo: it compiles the regions of graphs, and leaves graphs without any in eager.

    Args:
        draws: whether a GPU's kernels may draw random numbers, which are others than PyTorch's.
    """

    def __init__(self, *, draws: bool = False) -> None:
        self._taken, self._refusal, self._draws = 0, "PyTorch captured no graph of it", draws

    def __call__(self, graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        """Compile a graph, or return it as it was captured."""
        try:
            compiled = compile_graph(graph, inputs, draws=self._draws)
        except torch.OutOfMemoryError:  # which no other graph would have
            raise
        except Exception as error:  # exporting a graph may raise any error, and the graph itself still runs
            self._refusal = str(error) if isinstance(error, UnsupportedError) else first_line(format_error(error))
            logger.info("torchwise: a graph has no row programs: %s", self._refusal)
            return graph.forward
        self._taken += 1
        return compiled

    @contextlib.contextmanager
    def assert_applied(self) -> Iterator[None]:
        """Refuse the plan on exit if no graph has a region."""
        yield
        if not self._taken:
            raise UnsupportedError(f"no part of the model is a row program: {self._refusal}", ABOUT)


def compile_graph(graph: torch.fx.GraphModule, inputs: Sequence[Any], *, draws: bool = False) -> Callable[..., Any]:
    """Return a callable with the inputs and outputs of a graph of Dynamo.

    Args:
        graph: it.
        inputs: examples.
        draws: whether a GPU's kernels may draw random numbers.

    Raises:
        UnsupportedError: it has no region, or gradients are asked for.
    """
    call, parts = cut_graph(graph, inputs, draws=draws, make_maker=_make_maker)
    return call if parts is None else join_complex(call, parts.complex_inputs, parts.complex_outputs)


Maker = Callable[[int, Region, torch.fx.GraphModule], Callable[..., Any]]
"""Takes the number of a region, the region, and its operators, which answer calls that its code is not for."""
MakeMaker = Callable[[Target, Sequence[Region]], Maker]
"""Takes the kind of device, and all regions of a graph."""


def cut_graph(
    graph: torch.fx.GraphModule, inputs: Sequence[Any], *, draws: bool, make_maker: MakeMaker
) -> tuple[Callable[..., Any], Rewriting | None]:
    """Return a graph with each region as one call, and how complex numbers were split, if it has any.

    The callable is the `forward` of a `GraphModule`, or one region if that has the inputs and outputs of the graph.

    Raises:
        UnsupportedError: as `compile_graph` does.
    """
    if torch.is_grad_enabled() and any(isinstance(one, torch.Tensor) and one.requires_grad for one in inputs):
        raise UnsupportedError("gradients are enabled, and regions have none: use torch.no_grad()")
    take_out_idle_dropout(graph)
    pure = PureGraph(graph, inputs, keeps_strides=True)
    program = pure.export(allows_random=True, keeps_draws=not draws, allows_complex=True)
    with dynamo.while_exporting():
        program = program.run_decompositions(_list_decompositions())
        module = pure.inline(program)
        parts = split_complex(module)
        original, module = (graph, module) if parts is None else (parts.module, parts.module)
        target = _find_target(inputs, draws=draws)
        free_noise(module.graph)
        if draws and isinstance(target, CpuTarget):
            draw_inside(module.graph)
        _allow_strides(module.graph)
        regions, levels, refused = find_regions(module.graph, target)
        _check_gain(regions, refused)
        kept = [region for region in regions if region.number_of_operators >= LEAST_OPERATORS]
        call = _replace(original, module, kept, levels, make_maker(target, kept))
        announce(module.graph, kept, levels, refused)
    return call, parts


def _find_target(inputs: Sequence[Any], *, draws: bool) -> Target:
    """Return the kind of device that a graph runs on."""
    device = next((one.device for one in inputs if isinstance(one, torch.Tensor) and one.device.type == "cuda"), None)
    if device is None:
        return CpuTarget()
    if importlib.util.find_spec("triton") is None:
        raise UnsupportedError("row programs on a GPU need Triton, which is not installed")
    return GpuTarget(device, draws=draws)


def _make_maker(target: Target, regions: Sequence[Region]) -> Maker:
    """Return how to make the code of regions callable."""
    disable: Any = torch.compiler.disable
    if not isinstance(target, CpuTarget):
        return lambda _number, region, original: region.code.bind(disable(original.forward))
    library = load_module(write_source([region.code for region in regions]))
    return lambda number, region, original: make_region(library, number, region, disable(original.forward))


def _list_decompositions() -> dict[Any, Callable[..., Any]]:
    """Return how to decompose operators. Those that only draw random numbers stay whole, as their parts draw others."""
    table = torch.export.default_decompositions()
    own = {
        torch.ops.aten.eye.default: _decompose_eye,
        torch.ops.aten.eye.m: _decompose_eye,
        GRU_CELL: decompose_gru_cell,
        LSTM_CELL: decompose_lstm_cell,
        METADATA_CHECK: _decompose_check,
    }
    own |= {one: partial(decompose_short_rnn, table[one]) for one in RNNS}
    return {one: write for one, write in table.items() if str(one) not in DRAWS} | own


def _decompose_check(*_tensor_and_metadata: Any, **_more: Any) -> None:
    """Do nothing: the check holds for the inputs that were traced, and Dynamo's guards ask for others like them."""


def _decompose_eye(
    rows: int, columns: int | None = None, *, dtype: torch.dtype | None = None, device: Any = None, **_layout: Any
) -> torch.Tensor:
    """Compute an identity matrix. PyTorch's own way counts in uint16 (2.13), which its kernels for GPUs lack."""
    count = torch.arange(rows if columns is None else columns, device=device)
    found: torch.Tensor = torch.arange(rows, device=device).unsqueeze(-1) == count
    return found.to(dtype or torch.get_default_dtype())


def _allow_strides(graph: torch.fx.Graph) -> None:
    """Have views outside of regions copy tensors that lie otherwise in memory than PyTorch's metadata say."""
    for node in graph.find_nodes(op="call_function", target=torch.ops.aten.view.default):
        node.target = torch.ops.aten.reshape.default


def _check_gain(regions: Sequence[Region], refused: dict[torch.fx.Node, str]) -> None:
    of_regions = sum(region.number_of_operators for region in regions)
    if max((region.number_of_operators for region in regions), default=0) < LEAST_OPERATORS:
        raise UnsupportedError(f"no two of its operators can run together: {tell_refusals(refused)}")
    if of_regions < LEAST_SHARE * (of_regions + len(refused)):
        raise UnsupportedError(f"its regions have {of_regions} of its operators: {tell_refusals(refused)}")


def _replace(
    original: torch.fx.GraphModule,
    module: torch.fx.GraphModule,
    regions: Sequence[Region],
    levels: dict[torch.fx.Node, int],
    make: Maker,
) -> Callable[..., Any]:
    """Return the graph with each region as one call. If it is a region as a whole, return that."""
    graph = module.graph
    placeholders = graph.find_nodes(op="placeholder")
    given = graph.output_node().args[0]
    inside = {node for region in regions for node in region.nodes}
    is_whole = len(inside) == sum(node.op == "call_function" for node in graph.nodes)
    if is_whole and len(regions) == 1 and regions[0].inputs == placeholders and regions[0].outputs == list(given):  # type: ignore[arg-type]
        return make(0, regions[0], original)
    ordered = _order(graph, levels)
    calls = {region.nodes[0]: (number, region) for number, region in enumerate(regions)}
    made, values = torch.fx.Graph(), dict[torch.fx.Node, torch.fx.Node]()
    for node in ordered:
        if node in calls:
            number, region = calls[node]
            callable_region = make(number, region, _make_original(module, region))
            called = made.call_function(callable_region, tuple(values[one] for one in region.inputs))
            for place, output in enumerate(region.outputs):
                values[output] = made.call_function(_take, (called, place))
        elif node not in inside:
            values[node] = made.node_copy(node, values.__getitem__)
    replaced = torch.fx.GraphModule(module, made)
    return replaced.forward


def _take(values: Sequence[Any], place: int) -> Any:
    return values[place]


def _order(graph: torch.fx.Graph, levels: dict[torch.fx.Node, int]) -> list[torch.fx.Node]:
    """Return the nodes by their levels: what a region needs is before its first node."""
    first = [node for node in graph.nodes if node.op in ("placeholder", "get_attr")]
    last = [graph.output_node()]
    rest = [node for node in graph.nodes if node not in {*first, *last}]
    return [*first, *sorted(rest, key=levels.__getitem__), *last]


def _make_original(module: torch.fx.GraphModule, region: Region) -> torch.fx.GraphModule:
    """Return a region's operators as a graph."""
    graph, values = torch.fx.Graph(), dict[torch.fx.Node, torch.fx.Node]()
    for number, node in enumerate(region.inputs):
        values[node] = graph.placeholder(f"input_{number}")
    for node in region.nodes:
        values[node] = graph.node_copy(node, values.__getitem__)
    graph.output(tuple(values[node] for node in region.outputs))
    return torch.fx.GraphModule(module, graph)


def make_region(library: Any, number: int, region: Region, original: Callable[..., Any]) -> Callable[..., Any]:
    """Return a region's code as a callable, which has `original` answer calls that it is not for."""
    prototypes = tuple(torch.empty_strided(one.shape, one.strides, dtype=one.dtype) for one in region.code.outputs)
    return make_callable(library, number, prototypes, original)


def make_callable(
    library: Any, number: int, prototypes: tuple[torch.Tensor, ...], original: Callable[..., Any]
) -> Callable[..., Any]:
    """Return the code in a library as a callable, whose outputs are like `prototypes`."""
    made: Callable[..., Any] = library.make(
        number, find_exchange(), original, torch.empty_like, prototypes, torch.Tensor, torch.nn.Parameter
    )
    return made
