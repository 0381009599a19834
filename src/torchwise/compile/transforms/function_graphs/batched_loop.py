"""Loops over independent samples run at once, by `torch.vmap`.

`torch.stack([f(x[i]) for i in range(n)])` runs the functions of `f` n times on one sample each. Dynamo writes them all
down. Where no repetition reads a value of another (`independent_loops`), the body runs once on the samples together
(`loop_inputs`), and its results are cut into rows for those that read them. A stack of all rows is the result itself.

The body is run on tensors without data first. It is left alone if it draws random numbers, as others would be drawn, if
it writes to its inputs, such as the statistics of batch normalization in training, if vmap has no rule for one of its
operators, or if its results would have another form. Products of a batch may sum in another order than those of one
sample.
"""

from __future__ import annotations

import contextlib
import itertools
import operator
import warnings
from collections.abc import Callable, Iterator, Sequence, Set
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from torchwise._torch.dispatch import FAKE_TENSOR, TorchDispatchMode, draws_numbers, is_off
from torchwise.compile.loop_rolling.graph_index import RUNNING, list_written
from torchwise.compile.transforms.function_graphs.independent_loops import (
    IndependentLoop,
    find_loops,
    find_written,
    is_part,
    list_storages,
    storages_of,
)
from torchwise.compile.transforms.function_graphs.loop_inputs import dim_of, join_inputs
from torchwise.compile.transforms.function_graphs.nodes import (
    VALUE,
    add_call,
    argument,
    name_of,
    sets_mode,
    value_of,
    writes,
)
from torchwise.errors import UnsupportedError, first_line
from torchwise.workload import pytree

_SLOW = "performance drop"
"""Words of PyTorch's warning that an operator has no rule for batches, so that it would run in a loop."""
JOINS = ("stack", "cat", "concat", "concatenate")


def rewrite(graph: Graph) -> int:
    """Run independent repetitions at once, and return how many loops did.

    Raises:
        UnsupportedError: there are none, or they cannot run at once, with the reason.
    """
    done, reasons = 0, list[str]()
    for loop in find_loops(graph):
        try:
            _Batch(graph, loop).put_in_place()
        except UnsupportedError as reason:
            reasons.append(str(reason))
        else:
            done += 1
    if not done:
        raise UnsupportedError("; ".join(dict.fromkeys(reasons)))
    return done


def has_loops(graph: Graph) -> bool:
    """Whether a recorded call has such loops, as far as one repetition on tensors without data shows."""
    try:
        return any(_Batch(graph, loop).may_run() for loop in find_loops(graph))
    except UnsupportedError:
        return False


class _Memory:
    """The memory of a graph's values that somebody may write to, besides the functions of a loop.

    Attributes:
        written: storages that are written to.
        leaving: those, and storages of values that the graph returns, which its caller may write to.
    """

    def __init__(self, graph: Graph, inside: Set[Node]) -> None:
        writing = (node for node in graph.nodes if node not in inside and writes(node))
        self.written = frozenset().union(*(storages_of(one) for node in writing for one in find_written(node)))
        self.leaving = self.written.union(*map(storages_of, graph.output_node().all_input_nodes))


class _Batch:
    """One loop that is put in the place of its repetitions."""

    def __init__(self, graph: Graph, loop: IndependentLoop) -> None:
        self._graph, self._loop, self._given = graph, loop, loop.list_given()
        self._inside = {node for one in loop.rounds for node in one}
        self._memory = _Memory(graph, self._inside)
        self._first = next(node for node in graph.nodes if node in self._inside)
        entering = frozenset().union(*(storages_of(node) for reads in self._given for node in reads))
        # A view of an input stays one, as its user may write to it.
        self._results = [
            place
            for place, node in enumerate(loop.rounds[0])
            if not storages_of(node) & entering and any(one[place].users.keys() - self._inside for one in loop.rounds)
        ]
        joined = {place: self._find_join(place) for place in self._results}
        self._joins = {place: user for place, user in joined.items() if user is not None}

    def put_in_place(self) -> None:
        """Run the body at once, and give its results to all that read those of the repetitions."""
        self._check_results()
        body, first = self._make_body(), self._first
        before = first.prev
        with self._graph.inserting_before(first):
            try:
                joined = join_inputs(self._graph, self._given, self._first)
                values = self._try_out(body, joined)
                self._hoist_parts(before)
            except UnsupportedError:
                while first.prev is not before:
                    self._graph.erase_node(first.prev)
                raise
            run = _make_call(body, [dim for _, dim in joined])
            call = self._graph.call_function(run, tuple(node for node, _ in joined))
            call.meta[VALUE] = values
            for number, place in enumerate(self._results):
                result = self._graph.call_function(operator.getitem, (call, number))
                result.meta[VALUE] = values[number]
                self._hand_out(place, result)
        self._erase_repetitions()

    def may_run(self) -> bool:
        """Whether one repetition shows no reason against it, in a recorded call, whose values share no memory."""
        try:
            self._watch(self._make_body())
        except UnsupportedError:
            return False
        except Exception:  # a recorded function may raise anything without data, and a trial tells more
            return True
        return True

    def _hoist_parts(self, before: Node) -> None:
        """Take the parts that the batch reads right after a node. They are views, and see later writes.

        Raises:
            UnsupportedError: a mode changes before one of them is taken, or before another function of the loop.
        """
        places = {node: place for place, node in enumerate(self._graph.nodes)}
        start, moved = places[self._first], set[Node]()
        waiting = [node for reads in self._given for node in reads]
        while waiting:
            if is_part(node := waiting.pop()) and places[node] > start:
                moved.add(node)
                waiting += node.all_input_nodes  # the whole, which may be a part, too
        stop = max(places[node] for node in moved | self._inside)
        if any(sets_mode(node) and start < place < stop for node, place in places.items()):
            raise UnsupportedError("a mode of PyTorch changes before a part is taken that the repeated part reads")
        for node in sorted(moved, key=places.__getitem__, reverse=True):
            before.append(node)

    def _find_join(self, place: int) -> Node | None:
        """Return a stack or a concatenation of all results of a place in their order, or None.

        It becomes the result of the batch itself, so it must be the only one, and nobody may write to it or its parts.
        """
        nodes = [one[place] for one in self._loop.rounds]
        if any(storages_of(node) & self._memory.written for node in nodes):
            return None
        for user in nodes[0].users:
            is_join = name_of(user) in JOINS and not writes(user) and type(dim_of(user, 1)) is int
            parts = argument(user, 0, "tensors") if is_join else None
            is_whole = isinstance(parts, (tuple, list)) and list(parts) == nodes
            answer, part = value_of(user), value_of(nodes[0])
            if not is_whole or answer is None or part is None or storages_of(user) & self._memory.written:
                continue
            if answer.requires_grad == part.requires_grad:  # or it is joined without gradients
                return user
        return None

    def _check_results(self) -> None:
        nodes = self._loop.rounds[0]
        if not self._results:
            raise UnsupportedError("nobody reads the results of the repeated part")
        if any(value_of(nodes[place]) is None for place in self._results):
            raise UnsupportedError("the repeated part gives values other than tensors")
        if any(reads[0].meta.get(VALUE) is None for reads in self._given):
            raise UnsupportedError("the repeated part reads objects other than tensors and numbers")
        memory = [storages_of(nodes[place]) for place in self._results]
        for number, one in enumerate(memory):
            is_used_alone = not one & self._memory.leaving and self._results[number] not in self._joins
            if not is_used_alone and any(one & other for other in memory[:number] + memory[number + 1 :]):
                raise UnsupportedError("results of the repeated part share memory that is joined, returned or written")

    def _make_body(self) -> GraphModule:
        """Return the graph of one repetition: it takes its inputs, and returns a tuple of its results."""
        graph, nodes = Graph(), self._loop.rounds[0]
        made: dict[Any, Node] = {reads: graph.placeholder(f"input_{n}") for n, reads in enumerate(self._given)}
        for node, reads in zip(nodes, self._loop.iter_reads(), strict=True):
            left = iter([made[one] if one in made else made[one[0]] for one in reads])
            made[node] = copy = graph.node_copy(node, lambda _, left=left: next(left))  # type: ignore[misc]
            if node.op == "call_method" and not callable(getattr(torch.Tensor, str(node.target), None)):
                # A property of a recorded call, such as `T`.
                made[node] = graph.call_function(getattr, (copy.args[0], str(node.target)))
                graph.erase_node(copy)
        graph.output(tuple(made[nodes[place]] for place in self._results))
        owner = self._graph.owning_module
        return GraphModule(owner if owner is not None else {}, graph)

    def _try_out(self, body: GraphModule, joined: Sequence[tuple[Node, int | None]]) -> tuple[torch.Tensor, ...]:
        """Return the results on tensors without data, for all repetitions.

        Raises:
            UnsupportedError: it would not compute the same, with the reason.
        """
        samples = [reads[0].meta[VALUE] for reads in self._given]
        inputs = [node.meta[VALUE] for node, _ in joined]
        fakes = (one.fake_mode for one in samples if isinstance(one, FAKE_TENSOR.get()))
        fake_mode = next(fakes, contextlib.nullcontext())  # Dynamo's own, which is not that of the backend
        with warnings.catch_warnings(record=True) as told, fake_mode, _modes_at(self._first):
            warnings.simplefilter("always")
            try:
                self._watch(body)
                found = _make_call(body, [dim for _, dim in joined])(*inputs)
            except UnsupportedError:
                raise
            except Exception as error:  # vmap may raise anything for an operator
                why = first_line(f"{type(error).__name__}: {error}")
                raise UnsupportedError(f"vmap does not run the repeated part at once: {why}") from error
        if slow := next((str(one.message) for one in told if _SLOW in str(one.message)), None):
            raise UnsupportedError(f"vmap would run an operator of the repeated part in a loop: {first_line(slow)}")
        for place, value in zip(self._results, found, strict=True):
            self._check_form(place, value)
        return found

    def _watch(self, body: GraphModule) -> None:
        """Run one repetition on tensors without data.

        Raises:
            UnsupportedError: it draws random numbers, writes to its inputs, or only takes parts of them.
        """
        samples = [reads[0].meta[VALUE] for reads in self._given]
        with _Watch() as watch:
            results = pytree.tensors(body.forward(*samples))
        if list_storages(watch.written) & (entering := list_storages(samples)):
            raise UnsupportedError("the repeated part writes to its inputs, or to running statistics")
        if results and all(list_storages([one]) & entering for one in results):
            raise UnsupportedError("the repeated part only takes parts of its inputs")

    def _check_form(self, place: int, value: torch.Tensor) -> None:
        """Refuse a result of another form than those of the repetitions, or rows or a join with strides of no copy."""
        single: Any = value_of(self._loop.rounds[0][place])
        if value.dtype is not single.dtype:  # vmap leaves autocast out of linear layers with a bias
            raise UnsupportedError(f"a result of the repeated part would be {value.dtype} at once, not {single.dtype}")
        if _form(value[0]) != _form(single):
            raise UnsupportedError("a result of the repeated part would have another shape at once")
        row = value[0].contiguous() if value[0].stride() != single.stride() else value[0]
        row = row.clone() if self._leaves(place) else row
        others = (one[place].users.keys() - self._inside - {self._joins.get(place)} for one in self._loop.rounds)
        if row.stride() != single.stride() and any(others):
            raise UnsupportedError("a result of the repeated part would lie otherwise in memory at once")
        if place in self._joins:
            answer: Any = value_of(self._joins[place])
            dim = dim_of(self._joins[place], 1) % answer.dim()
            made = value.movedim(0, dim)
            made = made if made.dim() == answer.dim() else made.flatten(dim, dim + 1)
            if answer.stride() not in (made.stride(), made.contiguous().stride()):
                raise UnsupportedError("the results of the repeated part would lie otherwise in memory, joined at once")

    def _leaves(self, place: int) -> bool:
        """Whether a result's memory is returned or written to, so that no other may share it."""
        return any(storages_of(one[place]) & self._memory.leaving for one in self._loop.rounds)

    def _hand_out(self, place: int, result: Node) -> None:
        """Have all that read the results of a place read those of the batch: the join of all, and rows."""
        if place in self._joins:
            self._replace_join(self._joins[place], result)
        nodes = [one[place] for one in self._loop.rounds]
        single: Any = value_of(nodes[0])
        if not any(node.users.keys() - self._inside for node in nodes):
            return
        value: Any = value_of(result)
        if value[0].stride() != single.stride():
            result = add_call(self._graph, "contiguous", result)
        for number, node in enumerate(nodes):
            row = add_call(self._graph, "select", result, 0, number)
            if self._leaves(place):
                row = add_call(self._graph, "clone", row)
            row.meta[VALUE] = value_of(node)  # what is known of its memory holds for those that read it
            node.replace_all_uses_with(row, delete_user_cb=lambda user: user not in self._inside)

    def _replace_join(self, join: Node, result: Node) -> None:
        answer: Any = value_of(join)
        dim = dim_of(join, 1) % answer.dim()
        made = add_call(self._graph, "movedim", result, 0, dim) if dim else result
        if name_of(join) != "stack":
            made = add_call(self._graph, "flatten", made, dim, dim + 1)
        made_value: Any = value_of(made)
        if made_value.stride() != answer.stride():
            made = add_call(self._graph, "contiguous", made)
        made.meta[VALUE] = answer
        join.replace_all_uses_with(made)
        self._graph.erase_node(join)

    def _erase_repetitions(self) -> None:
        for one in self._loop.rounds:
            for node in reversed(one):
                if not node.users:
                    self._graph.erase_node(node)
        for node in (node for reads in self._given for node in reads):
            while not node.users and node.graph is self._graph and _may_erase(node):
                whole: Any = node.args[0]
                self._graph.erase_node(node)
                node = whole  # which may be a part, too


class _Watch(TorchDispatchMode):
    """Takes note of the tensors that operators write to, and refuses those that draw random numbers."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.written: list[torch.Tensor] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if draws_numbers(func, args, kwargs):
            raise UnsupportedError(f"the repeated part draws random numbers ({func}), and a batch would draw others")
        for name, value in list_written(func, args, kwargs):
            if name not in RUNNING or not is_off(func, args, kwargs):
                self.written += pytree.tensors(value)
        return func(*args, **kwargs)


@contextlib.contextmanager
def _modes_at(node: Node) -> Iterator[None]:
    """Set the modes in which a node runs, which functions before it set."""
    autocasts: dict[Any, Sequence[Any]] = {}
    grad = torch.is_grad_enabled()
    before = itertools.takewhile(lambda other: other is not node, node.graph.nodes)
    for name, other in ((getattr(one.target, "__name__", ""), one) for one in before):
        if name == "_enter_autocast":
            autocasts[other] = other.args
        elif name == "_exit_autocast":
            autocasts.pop(other.args[0], None)
        elif name == "_set_grad_enabled":
            grad = bool(other.args[0])
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.set_grad_enabled(grad))
        for device, dtype, enabled, *_ in autocasts.values():  # nothing is kept of tensors without data
            stack.enter_context(torch.autocast(device, dtype, enabled, cache_enabled=False))
        yield


def _make_call(body: GraphModule, dims: Sequence[int | None]) -> Callable[..., tuple[torch.Tensor, ...]]:
    run = torch.func.vmap(body.forward, in_dims=tuple(dims), randomness="error")

    def run_at_once(*inputs: Any) -> tuple[torch.Tensor, ...]:
        found: tuple[torch.Tensor, ...] = run(*inputs)
        return found

    return run_at_once


def _form(value: Any) -> Any:
    return repr(tuple(value.shape)), value.device, value.layout


def _may_erase(node: Node) -> bool:
    return is_part(node) or name_of(node) in ("unbind", "chunk", "split")
