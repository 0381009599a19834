"""Values that depend on weights alone, such as joined weights, are computed once and are inputs of the compiled code.

A rewrite marks them in the graph (`nodes.ONCE`). Here they are taken out of it, before Inductor compiles the rest.

The plan is stale when a parameter of the model changes (`Choice.derives_weights`). So these values are kept for as long
as the plan. Code that several layers share gets the values of each layer: they are found by the identity of the
weights. A parameter that is not the model's own is not checked for changes. So rewrites leave it alone.
"""

from __future__ import annotations

import contextlib
import operator
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from torchwise._torch import dynamo
from torchwise.compile.transforms.function_graphs import Rewrite
from torchwise.compile.transforms.function_graphs.nodes import ONCE, REPLACED, VALUE, is_weight
from torchwise.compile.uncompiled_reason import no_effect
from torchwise.errors import UnsupportedError

WHO = "computing values of weights once"


class PreparedWeights:
    """A backend for graphs that are rewritten, with the values that depend on weights alone as further inputs.

    Args:
        backend: compiles the graphs.
        call: the compiled callable. Only parameters of a model are checked for changes.
        rewrites: they change the graphs, by their names.
    """

    def __init__(self, backend: Callable[..., Any], call: Callable[..., Any], rewrites: Mapping[str, Rewrite]) -> None:
        self._backend, self._rewrites = backend, rewrites
        self._changed = dict.fromkeys(rewrites, 0)
        self._reasons: dict[str, list[str]] = {name: [] for name in rewrites}
        while not isinstance(call, torch.nn.Module) and (inside := getattr(call, "inside", None)) is not None:
            call = inside
        owner = getattr(call, "__self__", call)
        self._owner = weakref.ref(owner) if isinstance(owner, torch.nn.Module) else None  # Dynamo keeps this object
        self._compiled: list[tuple[Callable[..., Any], _Values]] = []
        self._made: Made = {}

    def __call__(self, module: GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        """Compile a graph that Dynamo captured, rewritten. One that a rewrite is not for stays as it is."""
        module = _copy(module)  # Dynamo reads its own again
        own = self._list_own()
        for node, given in zip(module.graph.find_nodes(op="placeholder"), inputs, strict=True):
            if is_weight(node) and id(given) not in own:
                node.meta[REPLACED] = True
        for name, rewrite in self._rewrites.items():
            try:
                self._changed[name] += rewrite(module.graph) > 0
            except UnsupportedError as reason:
                self._reasons[name].append(str(reason))
        values = _Values(_take_out(module.graph), self._list_own, self._made)
        if not values.recipes:
            plain: Callable[..., Any] = self._backend(module, inputs)
            return plain
        module.recompile()
        self._compiled.append((self._backend(module, [*inputs, *_as_examples(values.find(inputs), inputs)]), values))
        compiled, number = self._compiled, len(self._compiled) - 1

        def call(*args: Any) -> Any:
            code, values = compiled[number]
            return code(*args, *values.find(args))

        return call

    def release(self) -> None:
        """Free the compiled code and the values, when the code can no longer be called."""
        self._compiled.clear()
        self._made.clear()

    @contextlib.contextmanager
    def assert_applied(self) -> Iterator[None]:
        """Refuse the plan on exit if a rewrite has not changed any graph so far."""
        yield
        for name, changed in self._changed.items():
            if not changed:
                reasons = dict.fromkeys(self._reasons[name])
                raise no_effect(("transforms", name), "; ".join(reasons) or "no graph has a place for it")

    def _list_own(self) -> set[int]:
        owner = self._owner() if self._owner is not None else None
        return set(map(id, owner.parameters())) if owner is not None else set()


Made = dict[tuple[Any, ...], tuple[Any, torch.Tensor]]
"""Values, each with the weights that it is made of, by the recipe and the identities of the weights."""


class _Values:
    """The values that one graph has for further inputs.

    Args:
        recipes: compute each of them from the graph's inputs, with the places of these.
        list_own: returns the identities of the parameters that are checked for changes.
        made: the values of all graphs, by their recipe and its weights. Layers and sizes with the same share them.
    """

    def __init__(
        self, recipes: Sequence[tuple[GraphModule, Sequence[int]]], list_own: Callable[[], set[int]], made: Made
    ) -> None:
        self.recipes, self._list_own, self._made = recipes, list_own, made
        self._described = [_describe(recipe.graph) for recipe, _ in recipes]
        places = sorted({place for _, given in recipes for place in given})
        self._pick = operator.itemgetter(*places, places[0]) if places else tuple  # of one place, it returns no tuple
        self._known: dict[tuple[int, ...], tuple[Any, list[torch.Tensor]]] = {}

    def find(self, args: Sequence[Any]) -> list[torch.Tensor]:
        """Return the values for a graph's inputs. Those of the model's own parameters are computed once."""
        weights = self._pick(args)
        found = self._known.get(tuple(map(id, weights)))
        return found[1] if found is not None else self._compute(args, weights)

    def _compute(self, args: Sequence[Any], weights: tuple[Any, ...]) -> list[torch.Tensor]:
        is_own = set(map(id, weights)) <= self._list_own()
        found = []
        with torch.inference_mode(False), torch.no_grad():
            for described, (recipe, places) in zip(self._described, self.recipes, strict=True):
                given = [args[place] for place in places]
                key = (described, *map(id, given))
                _, value = self._made.get(key) or (None, recipe(*given))
                if is_own:
                    self._made[key] = given, value  # with the weights, so that no other has the identity
                found.append(value)
        if is_own:
            self._known[tuple(map(id, weights))] = weights, found
        return found


def _copy(module: GraphModule) -> GraphModule:
    """Return a copy of a graph that shares its attributes, and that AOTAutograd knows as one of Dynamo's, too."""
    graph, new = Graph(), dict[Node, Node]()
    graph.output(graph.graph_copy(module.graph, new))
    copied = GraphModule(module, graph)
    copied.meta = {**module.meta}
    for name in vars(module).keys() - vars(copied).keys():
        setattr(copied, name, getattr(module, name))
    for node in module.graph.find_nodes(op="placeholder"):
        if hasattr(node, dynamo.SOURCE):
            setattr(new[node], dynamo.SOURCE, getattr(node, dynamo.SOURCE))
    return copied


def _take_out(graph: Graph) -> list[tuple[GraphModule, list[int]]]:
    """Make inputs of the marked values, behind the others, and return how each is computed from which inputs."""
    inputs = graph.find_nodes(op="placeholder")
    places = {node: place for place, node in enumerate(inputs)}
    roots = [node for node in graph.nodes if ONCE in node.meta and any(ONCE not in user.meta for user in node.users)]
    recipes, last = [], inputs[-1] if inputs else None
    for root in roots:
        recipe, sources = _extract(root)
        recipes.append((recipe, [places[source] for source in sources]))
        with graph.inserting_after(last):
            last = graph.placeholder(f"prepared_{len(recipes)}")
        last.meta |= {VALUE: root.meta[VALUE], "tensor_dict": {dynamo.STATIC_INPUT: "guarded"}}
        setattr(last, dynamo.SOURCE, None)  # no variable of the program has it
        root.replace_all_uses_with(last)
    for node in reversed(list(graph.nodes)):
        if ONCE in node.meta and not node.users:
            graph.erase_node(node)
    return recipes


def _extract(root: Node) -> tuple[GraphModule, list[Node]]:
    """Return the part of a graph that computes a marked node, and the inputs of the graph that it takes."""
    graph, new = Graph(), dict[Node, Node]()
    sources: list[Node] = []

    def copy(node: Node) -> Node:
        if node not in new:
            if ONCE not in node.meta:
                sources.append(node)
                new[node] = graph.placeholder(node.name)
            else:
                for given in node.all_input_nodes:
                    copy(given)
                new[node] = graph.node_copy(node, new.__getitem__)
        return new[node]

    graph.output(copy(root))
    return GraphModule({}, graph), sources


def _describe(graph: Graph) -> str:
    """Return the functions of a graph and their arguments, without names: the same for graphs that compute the same."""
    numbers = {node: f"%{place}" for place, node in enumerate(graph.nodes)}
    called = [node for node in graph.nodes if node.op != "placeholder"]
    return repr([(node.target, torch.fx.map_arg((node.args, node.kwargs), numbers.__getitem__)) for node in called])


def _as_examples(values: Sequence[torch.Tensor], inputs: Sequence[Any]) -> list[torch.Tensor]:
    """Return values as a compiler takes them, whose sizes are numbers also in code for several sizes."""
    mode = dynamo.DETECT_FAKE_MODE.get(WHO)(inputs)
    return [*values] if mode is None else [mode.from_tensor(value, static_shapes=True) for value in values]
