"""The part of a graph of Dynamo that computes new tensors, exported, and the graph's calls answered by it.

Outputs that are inputs or weights are passed through. Sizes that are inputs are taken from the tensors that have them.
A graph with side effects, or with outputs that share memory, is refused: other compilers know only values.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Sequence
from typing import Any, TypeGuard

import torch
from torch.fx.node import map_arg
from torch.multiprocessing.reductions import StorageWeakRef

from torchwise._torch import dynamo
from torchwise._torch.symbols import number_expression, number_hint, varies
from torchwise.compile.backends.named_operators import OperatorError
from torchwise.compile.backends.operator_problems import (
    find_problems,
    list_memory,
    list_writes,
    memory_of,
)
from torchwise.compile.signature import is_strided
from torchwise.errors import UnsupportedError

Node = torch.fx.Node
CAT = torch.ops.aten.cat.default
MAX_SHARED = 1 << 28
"""Bytes of the memory of several outputs up to which they are compared element by element."""


class PureGraph:
    """A graph without its outputs that compute nothing, and without inputs that are only passed through.

    Args:
        graph: as Dynamo captured it.
        inputs: its example inputs.
        keeps_strides: whether the code is given inputs as they lie in memory, and not contiguous (`bind`). Tensors that
            take their layout from an input, such as random numbers, then lie in the export as in eager.

    Attributes:
        examples: the inputs that remain.
        outputs: the outputs that remain, as tensors without memory, with the sizes and strides of eager.

    Raises:
        UnsupportedError: it has inputs or outputs that another compiler cannot have.
    """

    def __init__(self, graph: torch.fx.GraphModule, inputs: Sequence[Any], *, keeps_strides: bool = False) -> None:
        placeholders = graph.graph.find_nodes(op="placeholder")
        given = graph.graph.output_node().args[0]
        self._graph, self._given = graph, list(given) if isinstance(given, (tuple, list)) else [given]
        self._computed: list[Node] = list(dict.fromkeys(one for one in self._given if _is_computed(one)))
        if not self._computed:
            raise UnsupportedError("it computes no tensor")
        self.outputs = [_value_of(node) for node in self._computed]
        if other := [value for value in self.outputs if not isinstance(value, torch.Tensor) or not is_strided(value)]:
            raise UnsupportedError(f"it has an output of type {type(other[0]).__name__}, and not a dense tensor")
        self._strides = [find_strides(value) for value in self.outputs]
        self._places = {node: place for place, node in enumerate(placeholders)}
        self._module, values = _copy_computation(graph, self._computed)
        _replace_sizes(self._module, values, placeholders)
        self._used = [place for place, node in enumerate(placeholders) if values[node].users]
        for node in reversed(placeholders):
            if not values[node].users:
                self._module.graph.erase_node(values[node])
        self._module.recompile()
        self._inputs = [_value_of(placeholders[place]) for place in self._used]
        for place in self._used:
            _check_input(inputs[place], placeholders[place].name)
        self._as_given = [inputs[place].detach() for place in self._used]
        self._is_moved = not keeps_strides and not all(one.is_contiguous() for one in self._as_given)
        self.examples = [one if keeps_strides else one.contiguous() for one in self._as_given]  # as `bind` passes them

    def export(
        self, *, allows_random: bool = False, keeps_draws: bool = True, allows_complex: bool = False
    ) -> torch.export.ExportedProgram:
        """Export it, for all sizes in the dimensions that vary.

        Args:
            allows_random: whether it may draw random numbers, as for a compiler that leaves these to PyTorch.
            keeps_draws: whether also numbers must be drawn that nothing reads, so that the next ones are PyTorch's.
            allows_complex: whether it may compute with complex numbers.

        Raises:
            UnsupportedError: it has side effects, draws random numbers, or computes with complex numbers.
        """
        program = self._export(self.examples)
        problems = list(
            find_problems(
                program,
                allows_random=allows_random,
                keeps_draws=keeps_draws,
                allows_complex=allows_complex,
                is_moved=self._is_moved,
            )
        )
        if problems:
            raise OperatorError(problems[0][1], [node for node, _ in problems])
        if self._is_moved and (writes := list_writes(program)):
            self._check_same_writes(writes)
        _drop_empty_parts(program)
        _check_no_views(self.outputs, self._graph)
        return program

    def _export(self, examples: Sequence[torch.Tensor]) -> torch.export.ExportedProgram:
        shapes = [
            {dim: torch.export.Dim.DYNAMIC for dim, size in enumerate(value.shape) if varies(size)}
            for value in self._inputs
        ]
        with dynamo.while_exporting():
            return torch.export.export(self._module, tuple(examples), dynamic_shapes=tuple(shapes))

    def _check_same_writes(self, writes: list[list[int]]) -> None:
        """Refuse writes that do not reach the tensors that they reach in eager.

        The strides of the inputs decide whether `reshape` and its like copy.
        """
        if writes != list_writes(self._export(self._as_given)):
            raise UnsupportedError(
                "which tensors it writes to depends on the strides of its inputs: pass contiguous ones"
            )

    def bind(self, run: Callable[[Sequence[torch.Tensor]], Sequence[torch.Tensor]]) -> Callable[..., list[Any]]:
        """Return a callable with the inputs and outputs of the whole graph, which has `run` compute."""
        used, strides = self._used, self._strides
        order = {node: place for place, node in enumerate(self._computed)}
        takers = [self._make_taker(one, order) for one in self._given]

        def call(*args: Any) -> list[Any]:
            answers = run([args[place].detach().contiguous() for place in used])
            laid_out = [
                answer if stride is None else copy_to_strides(answer, stride)
                for answer, stride in zip(answers, strides, strict=True)
            ]
            return [take(args, laid_out) for take in takers]

        return call

    def inline(self, program: torch.export.ExportedProgram) -> torch.fx.GraphModule:
        """Return the whole graph with the operators of an exported program in it, and its own inputs and outputs."""
        made, values = torch.fx.Graph(), dict[Node, Node]()
        module = torch.fx.GraphModule(torch.nn.Module(), made)
        own = {node: made.placeholder(node.name) for node in self._places}
        for node, place in zip(own.values(), self._places, strict=True):
            node.meta["val"] = _value_of(place)
        inputs = iter(own[node] for node in [list(self._places)[place] for place in self._used])
        kept, tokens = _list_kept(program), set(program.graph_signature.input_tokens)
        for node in program.graph.nodes:
            if node.op == "placeholder" and node.name in kept:
                module.register_buffer(node.name, kept[node.name], persistent=False)
                values[node] = made.get_attr(node.name)
                values[node].meta["val"] = kept[node.name]
            elif node.name in tokens:
                continue
            elif node.op == "placeholder":
                values[node] = next(inputs)
            elif str(node.target) == "with_effects":  # it only keeps the order, which is as written
                made.call_function(node.args[1], *map_arg((node.args[2:], node.kwargs), values.__getitem__))
                tokens |= {user.name for user in node.users}
            elif node.op != "output":
                values[node] = made.node_copy(node, values.__getitem__)
        answers = [one for one in program.graph.output_node().args[0] if one.name not in tokens]
        computed = dict(zip(self._computed, answers, strict=True))
        given: list[Any] = []
        for one in self._given:
            if isinstance(one, Node) and one.op == "get_attr":
                given.append(made.get_attr(str(one.target)))
                setattr(module, str(one.target), operator.attrgetter(str(one.target))(self._graph))
            elif isinstance(one, Node) and one.op == "placeholder":
                given.append(own[one])
            elif isinstance(one, Node):
                given.append(_lay_out(made, values[computed[one]], _value_of(one)))
            else:
                given.append(one)
        made.output(tuple(given))
        module.recompile()
        return module

    def _make_taker(self, one: Any, order: dict[Node, int]) -> Callable[[Sequence[Any], Sequence[Any]], Any]:
        """Return a function that takes an output from the inputs, from the computed outputs, or from the graph."""
        if not isinstance(one, Node):
            return lambda _args, _answers: one
        if one.op == "placeholder":
            place = self._places[one]
            return lambda args, _answers: args[place]
        if one.op == "get_attr":
            weight = operator.attrgetter(str(one.target))(self._graph)
            return lambda _args, _answers: weight
        place = order[one]
        return lambda _args, answers: answers[place]


def _lay_out(made: torch.fx.Graph, node: Node, wanted: torch.Tensor) -> Node:
    """Return an output with the strides that it has in eager."""
    if node.meta["val"].stride() == wanted.stride():
        return node
    copied = made.call_function(copy_to_strides, (node, tuple(map(int, wanted.stride()))))
    copied.meta["val"] = wanted
    return copied


def copy_to_strides(value: torch.Tensor, strides: Sequence[int]) -> torch.Tensor:
    """Return a copy with these strides."""
    return torch.empty_strided(value.shape, strides, dtype=value.dtype, device=value.device).copy_(value)


def _list_kept(program: torch.export.ExportedProgram) -> dict[str, torch.Tensor]:
    """Return the tensors that a program keeps, by the names of their nodes: the very weights, and constants."""
    signature = program.graph_signature
    named = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
    named |= signature.inputs_to_lifted_tensor_constants
    everything: dict[str, Any] = {**program.constants, **program.state_dict}
    return {name: everything[source] for name, source in named.items()}


def _is_computed(one: Any) -> TypeGuard[Node]:
    return isinstance(one, Node) and one.op not in ("placeholder", "get_attr")


def _value_of(node: Node) -> Any:
    return node.meta.get("example_value")


def _check_input(value: Any, name: str) -> None:
    if not isinstance(value, torch.Tensor):
        raise UnsupportedError(f"its input {name} is a number or an object, and not a tensor")
    if not is_strided(value) or value.is_neg() or value.is_conj():
        raise UnsupportedError(f"its input {name} is sparse, nested or negated lazily")


def _check_no_views(outputs: Sequence[torch.Tensor], graph: torch.fx.GraphModule) -> None:
    """Refuse outputs in the memory of others, of an input or of a weight.

    Parts of one tensor that share no element, as `unbind` returns them, are as good as tensors of their own.
    """
    given = set(list_memory(graph.graph.nodes, ("placeholder", "get_attr")))
    shared = dict[StorageWeakRef, list[torch.Tensor]]()
    for value in outputs:
        shared.setdefault(memory_of(value), []).append(value)
    if any(memory in given or (len(parts) > 1 and _share_elements(parts)) for memory, parts in shared.items()):
        raise UnsupportedError("one of its outputs is a view of an input or of another output: return a clone of it")


def _share_elements(parts: Sequence[torch.Tensor]) -> bool:
    """Whether tensors in the same memory may have an element in common."""
    sizes = [(*one.shape, *one.stride(), one.storage_offset(), one.dtype.itemsize) for one in parts]
    hints = [number_hint(one.untyped_storage().nbytes()) for one in parts]
    ends = [MAX_SHARED + 1 if hint is None else hint for hint in hints]
    if any(map(varies, itertools.chain(*sizes))) or max(ends) > MAX_SHARED or len({one.dtype for one in parts}) > 1:
        return True
    seen = torch.zeros(max(ends), dtype=torch.bool, device="cpu")
    for one in parts:
        places = seen.as_strided(one.shape, one.stride(), one.storage_offset())
        if bool(places.any()):
            return True
        places.fill_(True)
    return False


def _copy_computation(
    graph: torch.fx.GraphModule, outputs: Sequence[Node]
) -> tuple[torch.fx.GraphModule, dict[Node, Node]]:
    """Return the graph with these outputs alone, and its nodes by those of the graph. It shares the weights."""
    copied, values = torch.fx.Graph(), dict[Node, Any]()
    copied.graph_copy(graph.graph, values)
    copied.output(tuple(values[node] for node in outputs))
    return torch.fx.GraphModule(graph, copied), values


def _replace_sizes(module: torch.fx.GraphModule, values: dict[Node, Node], placeholders: Sequence[Node]) -> None:
    """Take sizes from the tensors that have them, as not every compiler has inputs that are numbers."""
    graph = module.graph
    sizes = {
        number_expression(size): (values[node], dim)
        for node in placeholders
        for dim, size in enumerate(_shape_of(node))
        if varies(size)
    }
    for node in placeholders:
        number = _value_of(node)
        if not varies(number) or not values[node].users:
            continue
        if number_expression(number) not in sizes:
            raise UnsupportedError(f"its input {node.name} is a number that varies: pass a tensor, or keep it constant")
        with graph.inserting_before(next(one for one in graph.nodes if one.op != "placeholder")):
            size = graph.call_method("size", sizes[number_expression(number)])
        values[node].replace_all_uses_with(size)


def _shape_of(node: Node) -> Sequence[Any]:
    value = _value_of(node)
    return value.shape if isinstance(value, torch.Tensor) else ()


def find_shape(tensor: torch.Tensor) -> tuple[int, ...] | None:
    """Return the sizes of a tensor in a graph, or None if they vary."""
    return None if any(map(varies, tensor.shape)) else tuple(map(int, tensor.shape))


def find_strides(value: torch.Tensor) -> tuple[int, ...] | None:
    """Return the strides that an output must be given, or None if it is contiguous, as compilers answer.

    Raises:
        UnsupportedError: they depend on sizes that vary, or elements share memory.
    """
    if value.is_contiguous():
        return None
    if any(map(varies, value.stride())):
        raise UnsupportedError("one of its outputs is not contiguous, and its sizes vary")
    if _overlaps(value):
        raise UnsupportedError("one of its outputs has elements in the same memory, as `expand` makes: clone it")
    return tuple(map(int, value.stride()))


def _overlaps(value: torch.Tensor) -> bool:
    """Whether elements may share memory: a stride is no larger than the span of the dimensions inside of it."""
    span = 0
    for stride, size in sorted(zip(map(int, value.stride()), value.shape, strict=True), key=lambda one: one[0]):
        if varies(size) or size > 1:
            if stride <= span:
                return True
            span += stride * ((size if isinstance(size, int) else number_hint(size) or 1) - 1)
    return False


def _drop_empty_parts(program: torch.export.ExportedProgram) -> None:
    """Drop parts of concatenations that have the shape (0,), as an empty cache has.

    PyTorch takes them beside tensors of any shape, and other compilers do not. It counts their dtype, so one stays if
    the others have a narrower one.
    """
    for node in program.graph.find_nodes(op="call_function", target=CAT):
        parts = node.args[0]
        kept = [one for one in parts if tuple(one.meta["val"].shape) != (0,)]
        has_dtype = any(one.meta["val"].dtype is node.meta["val"].dtype for one in kept)
        if has_dtype and len(kept) < len(parts):
            node.update_arg(0, kept)
    program.graph_module.recompile()
