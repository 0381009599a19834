"""Rewrites an ATen graph with complex values into one that carries their parts instead."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch

from torchwise._torch import inductor
from torchwise._torch import pytree as _pytree
from torchwise._torch.dispatch import NO_AUTOCAST, NO_FAKES
from torchwise._torch.symbols import NUMBERS
from torchwise.compile.signature import is_strided
from torchwise.compile.transforms.complex_to_real import rules
from torchwise.compile.transforms.complex_to_real.fusion import FEATURE, decompositions
from torchwise.compile.transforms.complex_to_real.layout import (
    Lazy,
    arrange,
    fills_its_memory,
    interleave,
    lazily,
    lies,
)
from torchwise.compile.transforms.complex_to_real.pairs import (
    ARITHMETIC,
    REAL,
    RULES,
    ExpectedResult,
    NotCoveredError,
    Pair,
    Recorder,
    is_complex,
    lift,
)
from torchwise.compile.transforms.complex_to_real.passes import split_interleaves, take_half_angles
from torchwise.errors import UnsupportedError

aten = torch.ops.aten
assert rules.__all__, "importing them registers them"


@dataclass(frozen=True, slots=True)
class Rewriting:
    """A graph of real numbers.

    Attributes:
        module: takes complex inputs and returns complex outputs as (..., 2), interleaved.
        inputs: fake inputs for it.
        complex_inputs: which inputs are complex.
        complex_outputs: which outputs are complex.
    """

    module: torch.fx.GraphModule
    inputs: tuple[Any, ...]
    complex_inputs: tuple[int, ...]
    complex_outputs: tuple[int, ...]


def rewrite(module: torch.fx.GraphModule, inputs: Sequence[Any]) -> Rewriting:
    """Rewrite a graph to real and imaginary parts. Operators without a rule stay complex.

    The module is a functional ATen graph, as AOTAutograd creates it. It is not changed.

    Raises:
        UnsupportedError: the graph has nothing to rewrite, or cannot be rewritten, with the reason.
    """
    if not any(is_complex(value) for value in _values(module, inputs)):
        raise UnsupportedError("it has no complex arithmetic")
    return _Rewriter(module, inputs).rewritten()


def _values(module: torch.fx.GraphModule, inputs: Sequence[Any]) -> list[Any]:
    return _pytree.tree_leaves([list(inputs), [node.meta.get("val") for node in module.graph.nodes]])


class _Rewriter:
    """Writes the new graph while it walks the old one."""

    def __init__(self, module: torch.fx.GraphModule, inputs: Sequence[Any]) -> None:
        self._module = module
        self._fake_mode = inductor.PROPAGATE_FAKES.get(FEATURE)(module, inputs, True)
        self._graph = torch.fx.Graph()
        self._recorder = Recorder(self._graph, self._fake_mode, decompositions())
        self._new: dict[torch.fx.Node, Any] = {}  # maps an old node to a node, a pair, or a lazy real tensor
        self._left: list[str] = []
        self._writes: list[torch.fx.Node] = []  # to inputs, which come last
        self._lain: dict[Any, Any] = {}  # maps memory to its counterpart in the old graph
        self._done = 0

    def rewritten(self) -> Rewriting:
        """Rewrite node by node (see `rewrite`)."""
        places = [node for node in self._module.graph.nodes if node.op == "placeholder"]
        with torch.no_grad(), NO_AUTOCAST.get(FEATURE)():
            for node in self._module.graph.nodes:
                self._new[node] = getattr(self, f"_{node.op}", self._copy_node)(node)
        if not self._done:
            found = ", ".join(dict.fromkeys(self._left)) or "none computes"
            raise UnsupportedError(f"of its complex operators none can be rewritten with profit: {found}")
        self._graph.eliminate_dead_code()
        split_interleaves(self._graph, self._recorder)
        take_half_angles(self._graph, self._recorder)
        self._graph.eliminate_dead_code()
        result = torch.fx.GraphModule(self._module, self._graph)
        result.meta = dict(self._module.meta)
        fakes = [node.meta["val"] for node in self._graph.nodes if node.op == "placeholder"]
        complex_inputs = tuple(i for i, node in enumerate(places) if is_complex(node.meta["val"]))
        return Rewriting(result, tuple(fakes), complex_inputs, self._complex_outputs)

    # ---- one method for each kind of node

    def _placeholder(self, node: torch.fx.Node) -> Any:
        value: Any = node.meta.get("val")
        if not is_complex(value):
            new = self._copy_node(node)
            if isinstance(value, NUMBERS):
                self._recorder.bind(new)
            if isinstance(value, torch.Tensor) and is_strided(value):
                self._lain[value.untyped_storage()] = value.untyped_storage()
                self._recorder.note_sizes(new)
            return new
        new = self._graph.placeholder(str(node.target))
        pair = self._view_as_real(new, value, value.untyped_storage())
        self._recorder.note_sizes(new)
        return pair

    def _get_attr(self, node: torch.fx.Node) -> Any:
        owner, _, last = str(node.target).rpartition(".")
        value = getattr(self._module.get_submodule(owner), last)
        if not is_complex(value):
            copied = self._copy_node(node)
            if isinstance(value, torch.Tensor):
                copied.meta["val"] = self._fake_mode.from_tensor(value)
                self._lain[copied.meta["val"].untyped_storage()] = node
            return copied
        name = f"{str(node.target).replace('.', '_')}_as_real"
        with NO_FAKES.get(FEATURE)():
            self._module.register_buffer(name, torch.view_as_real(value.detach().resolve_conj()))
        return self._view_as_real(self._graph.get_attr(name), self._fake_mode.from_tensor(value), node)

    def _view_as_real(self, new: torch.fx.Node, value: Any, lain: Any) -> Pair:
        with self._fake_mode:
            new.meta["val"] = torch.view_as_real(value.detach().resolve_conj())
        self._lain[new.meta["val"].untyped_storage()] = lain
        return self._read(new)

    def _call_function(self, node: torch.fx.Node) -> Any:
        if getattr(node.target, "overloadpacket", None) is aten.copy_:
            self._writes.append(node)
            return self._new_of(node.args[1])
        if isinstance(node.meta.get("val"), NUMBERS):
            return self._number(node)
        new_inputs = [self._new[source] for source in node.all_input_nodes]
        makes_complex = any(map(is_complex, _pytree.tree_leaves(node.meta.get("val"))))
        if not makes_complex and not any(isinstance(value, Pair | Lazy) for value in new_inputs):
            return self._copy_node(node)
        packet = getattr(node.target, "overloadpacket", None)
        if (known := self._lazily(node)) is not None:
            self._done += packet in ARITHMETIC
            return known
        if not makes_complex and not any(isinstance(value, Pair) for value in new_inputs):
            return self._copy_node(node)
        try:
            result = self._apply_rule(node, packet)
        except NotCoveredError:
            return self._as_it_is(node)
        self._done += packet in ARITHMETIC
        return result

    def _number(self, node: torch.fx.Node) -> Any:
        """Return a number, such as a size: copied, or computed anew if the node reads it from a complex tensor."""
        if any(isinstance(self._new[source], Pair | Lazy) for source in node.all_input_nodes):
            return self._recorder.number(node.meta["val"])
        copied = self._copy_node(node)
        self._recorder.bind(copied)
        return copied

    def _output(self, node: torch.fx.Node) -> None:
        old = list(node.args[0]) if isinstance(node.args[0], list | tuple) else [node.args[0]]
        outputs = [self._lay_out_output(one) for one in old]
        writes = [self._to_write(write) for write in self._writes]
        # Writes come last. Parts are views of inputs, which are read after the place where a write stood.
        with self._recorder:
            for target, source in writes:
                aten.copy_(target, source)
        self._complex_outputs = tuple(i for i, one in enumerate(old) if isinstance(self._new_of(one), Pair))
        new = self._graph.output(tuple(outputs))
        new.meta = dict(node.meta)
        # Visible outputs must keep their strides. Every (..., 2) must, or it could not be viewed as complex.
        visible = {*node.meta.get("user_visible_output_idxs", ()), *self._complex_outputs}
        new.meta["user_visible_output_idxs"] = sorted(visible)
        values = [getattr(one, "meta", {}).get("val") for one in outputs]
        # Some versions of Inductor (2.15) read them before they call us, and not again.
        new.meta["original_output_strides"] = [v.stride() if isinstance(v, torch.Tensor) else None for v in values]

    # ---- nodes that hold complex numbers

    def _apply_rule(self, node: torch.fx.Node, packet: Any) -> Any:
        values = [of.meta.get("val") for of in (node, *node.all_input_nodes)]
        tensors = [leaf for leaf in _pytree.tree_leaves(values) if isinstance(leaf, torch.Tensor)]
        if packet not in RULES or not tensors or any(t.dtype is torch.complex32 for t in tensors):
            raise NotCoveredError(packet)
        args, kwargs = torch.fx.map_arg((node.args, dict(node.kwargs)), lambda source: self._operand(self._new[source]))
        want = _expect_result(node, tensors[0])
        with self._recorder:
            return self._settle_result(node, want, RULES[packet](want, *args, **kwargs))

    def _settle_result(self, node: torch.fx.Node, want: ExpectedResult, result: Any) -> Any:
        if isinstance(result, tuple):
            wants = [_expect_result(node, value) for value in node.meta["val"]]
            return tuple(self._settle_result(node, w, one) for w, one in zip(wants, result, strict=True))
        if isinstance(result, Pair):
            result = want.settle(result)
            if want.dtype in REAL:
                return result
            result = result.tensors()[0]
        return self._recorder.node_of(result if result.dtype == want.dtype else result.to(want.dtype))

    def _to_write(self, node: torch.fx.Node) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the target of a write to an input, and the written value, with both parts at once if it is complex."""
        written: Any = node.args[0]
        target, source, old = self._new[written], self._operand(self._new_of(node.args[1])), written.meta["val"]
        with self._recorder:
            if not isinstance(target, Pair):
                return self._operand(target), source.clone()  # it may be a view of another write's target
            if target.whole is None or old.is_conj():
                raise UnsupportedError(f"{node.name} writes to a tensor that is not an input with its own memory")
            re, im = lift(source, target.whole.dtype).tensors()
            return target.whole, arrange((re.expand(old.shape), im.expand(old.shape)), old.stride())

    def _as_it_is(self, node: torch.fx.Node) -> Any:
        """Compose complex operands, run the operator, split its complex results."""
        schema = getattr(node.target, "_schema", None)
        if schema is not None and schema.is_mutable:
            raise UnsupportedError(f"{node.target} writes to complex memory")
        if node.target is operator.getitem and isinstance(several := self._new_of(node.args[0]), tuple):
            return several[cast(int, node.args[1])]
        self._left.append(str(node.target))
        copied = self._graph.node_copy(node, self._memory_operand if _reads_memory(node) else self._compose)
        return self._read_complex(copied) if is_complex(copied.meta.get("val")) else copied

    def _compose(self, node: torch.fx.Node) -> Any:
        new = self._new[node]
        if not isinstance(new, Pair):
            return self._node(new)
        with self._recorder:
            return self._recorder.node_of(torch.view_as_complex(interleave(new, node.meta["val"].stride())))

    # ---- from new values to nodes, and back

    def _copy_node(self, node: torch.fx.Node) -> Any:
        """Copy a real node. If the layout of its operands changed, work out the layout of its result again."""
        if _reads_memory(node):
            return self._graph.node_copy(node, self._memory_operand)
        new_inputs = {source: self._node(self._new[source]) for source in node.all_input_nodes}
        moved = [source for source, new in new_inputs.items() if _lies_otherwise(source, new)]
        if not isinstance(node.meta.get("val"), torch.Tensor) or _draws(node):  # nothing here works those out again
            new_inputs |= {source: self._restore_layout(source, new_inputs[source]) for source in moved}
            moved = []
        if not moved or node.op != "call_function":
            return self._graph.node_copy(node, new_inputs.__getitem__)
        packet = getattr(node.target, "overloadpacket", None)
        call: Any = torch.reshape if packet is aten.view else node.target
        arguments = (node.args, dict(node.kwargs))
        args, kwargs = torch.fx.map_arg(arguments, lambda source: self._operand(new_inputs[source]))
        with self._recorder:
            new = self._recorder.node_of(call(*args, **kwargs))
        self._recorder.written.discard(new)  # it is the model's own still
        return new

    def _memory_operand(self, source: torch.fx.Node) -> Any:
        """Return an operand whose memory is read: its layout must be as it was in the old graph."""
        if not fills_its_memory(source.meta["val"]):
            raise UnsupportedError(f"the memory of {source.name} is read, which is a part of another's, or has gaps")
        new = self._new[source]
        return self._compose(source) if isinstance(new, Pair) else self._restore_layout(source, self._node(new))

    def _restore_layout(self, source: torch.fx.Node, new: torch.fx.Node) -> torch.fx.Node:
        """Lay a real tensor out as it did in the old graph."""
        old = source.meta["val"]
        with self._recorder:
            value = arrange([self._recorder.bind(new)], old.stride())
        if not lies(value, old.stride()):
            raise UnsupportedError(f"{source.name} has strides {old.stride()}, which padding does not give")
        return self._recorder.node_of(value)

    def _new_of(self, value: Any) -> Any:
        return self._new[value] if isinstance(value, torch.fx.Node) else value

    def _node(self, new: Any) -> Any:
        if not isinstance(new, Lazy):
            return new
        with self._recorder:
            return self._recorder.node_of(new.tensor)

    def _operand(self, new: Any) -> Any:
        """Return an operand in the form that rules compute with."""
        new = self._node(new)
        return self._recorder.bind(new) if isinstance(new, torch.fx.Node) else new

    def _read(self, new: torch.fx.Node) -> Pair:
        with self._recorder:
            return Pair.from_interleaved(self._recorder.bind(new))

    def _read_complex(self, new: torch.fx.Node) -> Pair:
        value = self._recorder.bind(new)
        with self._recorder:
            return Pair.from_interleaved(torch.view_as_real(value.resolve_conj()))

    def _lazily(self, node: torch.fx.Node) -> Any:
        with self._recorder:
            result = lazily(node, self._new)
        return self._recorder.node_of(result) if isinstance(result, torch.Tensor) else result

    def _lay_out_output(self, value: Any) -> Any:
        """Return an output, laid out as eager does, for parts from any source.

        It lies in memory of its own if it did in the old graph. A product with one, or a real part, may be a view of an
        input here. A caller that writes to it would change that input.
        """
        new = self._new_of(value)
        old = value.meta.get("val") if isinstance(value, torch.fx.Node) else None
        if isinstance(new, Pair):
            strides = value.meta["val"].stride()
            with self._recorder:
                whole = interleave(new, strides)
                if not self._lies_as(whole, old):
                    whole = arrange(new.tensors(), strides)
            if not lies(whole, [*(2 * stride for stride in strides), 1]):
                raise UnsupportedError(f"output {value.name} has strides {strides}, which padding does not give")
            return self._recorder.node_of(whole)
        new = self._node(new)
        if not isinstance(old, torch.Tensor) or not is_strided(old):
            return new
        if not lies(new.meta["val"], old.stride()):
            new = self._restore_layout(value, new)
        if self._lies_as(new.meta["val"], old):
            return new
        with self._recorder:
            new = self._recorder.node_of(self._recorder.bind(new).clone())
        return self._restore_layout(value, new)

    def _lies_as(self, new: torch.Tensor, old: Any) -> bool:
        """Whether two values in one piece of memory also shared it in the old graph."""
        return self._lain.setdefault(new.untyped_storage(), old.untyped_storage()) is old.untyped_storage()


def _lies_otherwise(source: torch.fx.Node, new: Any) -> bool:
    """Whether a real tensor has other strides than in the old graph, which its results may show."""
    old, value = source.meta.get("val"), getattr(new, "meta", {}).get("val")
    return isinstance(old, torch.Tensor) and isinstance(value, torch.Tensor) and not lies(value, old.stride())


def _reads_memory(node: torch.fx.Node) -> bool:
    """Whether an operator reads memory as it lies, and not elements."""
    return node.target in (aten.as_strided.default, aten.view.dtype)


def _draws(node: torch.fx.Node) -> bool:
    """Whether an operator draws random numbers, which a decomposition might draw otherwise, or is none of ATen's."""
    return torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", (torch.Tag.nondeterministic_seeded,))


def _expect_result(node: torch.fx.Node, value: torch.Tensor) -> ExpectedResult:
    return ExpectedResult(node.target, value.shape, value.dtype, value.device)
