"""Find loops in a graph of functions whose repetitions do not depend on each other.

A program that computes one sample after the other (`torch.stack([f(x[i]) for i in range(n)])`) repeats functions, and
no repetition reads a value of another. Where one does, such as in a running sum, the functions that wait for it stay as
they are, and so do writes to a tensor that the repetition did not make. The others may run at once.

The stretches that repeat are found as for `scope: rolled` (`loop_rolling.repetitions`). A part of a whole, such as
`x[i]`, computes nothing, so it counts as an input that exists as soon as its whole does.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from types import MethodDescriptorType, WrapperDescriptorType
from typing import Any

import torch
from torch.fx import Graph, Node

from torchwise._torch.dispatch import size_of
from torchwise.compile.loop_rolling.graph_index import COMPUTES, is_fixed, is_whole
from torchwise.compile.loop_rolling.repetitions import MAX_TURNS, Repetition, repetitions
from torchwise.compile.transforms.function_graphs.nodes import (
    VALUE,
    changes_form,
    name_of,
    raw_name,
    sets_mode,
    value_of,
    writes,
)
from torchwise.errors import UnsupportedError
from torchwise.workload import pytree

MIN_ROUNDS = 4
"""Minimum number of repetitions. Three equal products, such as queries, keys and values, are no loop over samples."""
MIN_OF_ROUND = 0.5
"""Minimum share of a repetition that must not wait for another one. Below it, a loop carries its values."""
MIN_SHARE = 0.25
"""Minimum share of a graph that such loops must have, or too little would change."""
MAX_HELD = 1 << 30
"""Bytes of the values of all repetitions up to which they run at once: a loop may be there to save memory."""
INPUTS = ("placeholder", "get_attr")
"""Nodes for inputs and constants, which exist before anything is computed."""
PARTS = ("getitem", "select", "narrow")
"""Functions that take a part of a tensor, or one of several tensors."""


@dataclass(frozen=True, slots=True)
class IndependentLoop:
    """The functions of a loop that may run at once.

    Attributes:
        rounds: for each repetition its functions, in the order in which they run. Functions at the same place are the
            same, with inputs of the same form.
        others: functions of the stretch that stay as they are.
    """

    rounds: tuple[tuple[Node, ...], ...]
    others: tuple[Node, ...]

    @property
    def count(self) -> int:
        """The number of functions that may run at once."""
        return len(self.rounds) * len(self.rounds[0])

    def iter_reads(self) -> Iterator[list[tuple[Node, ...]]]:
        """Yield for each place the values that it reads, each as those of all repetitions."""
        for place in range(len(self.rounds[0])):
            yield list(zip(*(list_read(nodes[place]) for nodes in self.rounds), strict=True))

    def list_given(self) -> list[tuple[Node, ...]]:
        """List the values that the loop reads and does not make, each as those of all repetitions."""
        made = set(self.rounds[0])
        return list(dict.fromkeys(read for reads in self.iter_reads() for read in reads if read[0] not in made))


def find_loops(graph: Graph) -> list[IndependentLoop]:
    """Return the loops of a graph whose repetitions do not depend on each other, in their order.

    Raises:
        UnsupportedError: there is none, or they are too small a part of the graph, or a tensor changes its form in
            place, with the reason.
    """
    if changing := next((node for node in graph.nodes if changes_form(node)), None):
        raise UnsupportedError(f"{raw_name(changing)}_ changes the shape or strides of a tensor in place")
    search = _Search([node for node in list_in_order(graph) if node.op in COMPUTES])
    stretches = repetitions(search.labels, search.verify, least_body=1)
    loops, count = [search.found[stretch] for stretch in stretches], len(search.nodes)
    if not loops:
        none = f"of {count} functions none repeat {MIN_ROUNDS} times in the same way"
        raise UnsupportedError(next(iter(search.reasons), none))
    share = sum(loop.count for loop in loops)
    if share < MIN_SHARE * count:
        few = f"only {share} of {count} functions repeat without depending on each other"
        raise UnsupportedError(f"{few}, which is less than {MIN_SHARE:.0%}")
    return loops


def list_in_order(graph: Graph) -> list[Node]:
    """List the nodes of a graph, with each part of a whole right after it, or after all inputs if it is one."""
    parts: dict[Node, list[Node]] = defaultdict(list)
    for node in graph.nodes:
        if is_part(node):
            parts[node.args[0]].append(node)
    inputs = [node for kind in INPUTS for node in graph.nodes if node.op == kind]
    order = list(inputs)
    roots = [node for node in graph.nodes if node.op not in INPUTS and not is_part(node)]
    for root in (*inputs, *roots):
        waiting = [root] if root.op not in INPUTS else parts[root][::-1]
        while waiting:
            order.append(waiting.pop())
            waiting += parts[order[-1]][::-1]
    return order


def is_part(node: Node) -> bool:
    """Whether a node takes a part of a whole, by numbers that the program holds. It is a view, which computes nothing.

    A view of the whole, such as `x[:, None]`, is the same in each repetition, and counts as a function of it.
    """
    if node.op not in COMPUTES or name_of(node) not in PARTS or not node.args or not isinstance(node.args[0], Node):
        return False
    indices = (*node.args[1:], *node.kwargs.values())
    return all(map(is_fixed, indices)) and (name_of(node) != "getitem" or not is_whole(indices))


def list_read(node: Node) -> list[Node]:
    """List the values that a node reads, as often as it reads them."""
    found: list[Node] = []
    torch.fx.map_arg((node.args, node.kwargs), found.append)
    return found


def storages_of(node: Any) -> frozenset[int]:
    """Return the storages that hold a node's value. In a recorded call, each tensor has one of its own."""
    return list_storages(_values(node)) if isinstance(node, Node) else frozenset()


def list_storages(values: Iterable[Any]) -> frozenset[int]:
    """Return the storages of the tensors among values."""
    tensors = (one for one in values if isinstance(one, torch.Tensor) and _is_dense(one))
    return frozenset(int(one.untyped_storage()._cdata) for one in tensors)


def find_written(node: Node) -> list[Node]:
    """List the values that a writing node may write to: all that it reads, unless it is known to write to the first."""
    given: Any = node.kwargs.get("out")
    writes_to_first = (
        node.op == "call_method"
        or isinstance(node.target, (MethodDescriptorType, WrapperDescriptorType))
        or getattr(node.target, "__module__", None) == "_operator"
    )
    if given is None:
        given = node.args[0] if writes_to_first and node.args else (node.args, node.kwargs)
    found: list[Node] = []
    torch.fx.map_arg(given, found.append)
    return found


def count_bytes(tensor: torch.Tensor) -> int:
    """Return the bytes of a tensor's elements. Sizes that vary count as in the current call.

    Raises:
        UnsupportedError: a size is unknown before the graph runs.
    """
    sizes = (size if isinstance(size, int) else size_of(size) for size in tensor.shape)
    return math.prod(sizes) * tensor.element_size()


class _Search:
    """Looks for loops among functions, which are known by their numbers.

    Attributes:
        found: the loops, by their stretches.
        reasons: why other stretches have none, that of the longest one first.
    """

    def __init__(self, nodes: Sequence[Node]) -> None:
        self.nodes = nodes
        self.found: dict[Repetition, IndependentLoop] = {}
        self.reasons: list[str] = []
        self._numbers = {node: number for number, node in enumerate(nodes)}
        self._reads = [list_read(node) for node in nodes]
        self._forms = [_form(node) for node in nodes]
        self._writes = [writes(node) for node in nodes]

    @cached_property
    def labels(self) -> list[Hashable]:
        """Each function, its constants and the form of its result, without the values that it reads.

        Writes may be to another place in each repetition, such as `out[i] = …`, so their constants do not count.
        """
        return [
            (
                node.op,
                node.target if isinstance(node.target, str) else (raw_name(node), id(node.target)),
                None if self._writes[number] else self._forms[number],
                _kind(node),
            )
            for number, node in enumerate(self.nodes)
        ]

    def verify(self, stretch: Repetition) -> Repetition | None:
        """Return the part of a stretch with the largest loop, begun where the fewest values cross the borders."""
        best: tuple[Repetition, IndependentLoop] | None = None
        if stretch.times < MIN_ROUNDS:
            self.reasons.append(f"it repeats {stretch.times} times, which is less than {MIN_ROUNDS}")
        for turned in self._list_rotations(stretch):
            loop = self._select_independent(turned)
            if loop is not None and (best is None or loop.count > best[1].count):
                best = turned, loop
            if best is not None and not best[1].others:
                break
        if best is None:
            return None
        self.found[best[0]] = best[1]
        return best[0]

    def _list_rotations(self, stretch: Repetition) -> Iterator[Repetition]:
        start, stop, period = stretch.start, stretch.stop, stretch.period
        changes = [0] * (stop - start + 1)
        for number in range(start, stop):
            for read in self._reads[number]:
                if start <= (made := self._numbers.get(read, -1)) < number:
                    changes[made + 1 - start] += 1
                    changes[number + 1 - start] -= 1
        crossing = list(accumulate(changes))
        firsts = range(min(period, stop - start - MIN_ROUNDS * period + 1))
        narrow = sorted(firsts, key=lambda first: (max(crossing[first + period : stop - start : period]), first))
        for first in narrow[:MAX_TURNS]:
            yield Repetition(start + first, stop, period).whole_periods

    def _select_independent(self, stretch: Repetition) -> IndependentLoop | None:
        """Return the functions of a stretch that depend on their own repetition alone, or None and note the reason."""
        start, stop, period = stretch.start, stretch.stop, stretch.period
        chosen: set[int] = set()
        # Two repetitions show already which functions wait for others, in most cases.
        for end in (start + 2 * period, stop):
            chosen = set()
            for place in range(period):
                if self._is_independent(Repetition(start, end, period), place, chosen):
                    chosen.add(place)
            if len(chosen) < MIN_OF_ROUND * period:
                few = f"only {len(chosen)} of {period} functions of a repetition do not wait for another one"
                self.reasons.append(f"{few}, which is less than half")
                return None
        loop = IndependentLoop(
            tuple(tuple(self.nodes[s + place] for place in sorted(chosen)) for s in range(start, stop, period)),
            tuple(self.nodes[n] for n in range(start, stop) if (n - start) % period not in chosen),
        )
        reason = self._find_problem(loop, stretch)
        if reason is not None:
            self.reasons.append(reason)
        return loop if reason is None else None

    def _is_independent(self, stretch: Repetition, place: int, chosen: set[int]) -> bool:
        """Whether the functions at a place are the same, and read inputs of one form and of their own repetition."""
        numbers = range(stretch.start + place, stretch.stop, stretch.period)
        nodes = [self.nodes[number] for number in numbers]
        if len({self._forms[number] for number in numbers}) > 1 or not all(map(_is_dense, _values(nodes[0]))):
            return False
        for reads in zip(*(self._reads[number] for number in numbers), strict=True):
            offsets = {
                made - number + place if stretch.start <= (made := self._numbers.get(read, -1)) < stretch.stop else None
                for number, read in zip(numbers, reads, strict=True)
            }
            if offsets != {None}:
                if len(offsets) > 1 or not offsets <= chosen:
                    return False
            elif len(set(reads)) > 1 and (len(set(map(_kind, reads))) > 1 or value_of(reads[0]) is None):
                return False
        if not self._writes[numbers[0]]:
            return True
        # A write to a tensor that the repetition did not make stays in its place.
        made_here = {self.nodes[number - place + other] for number in numbers for other in chosen}
        return all(written and made_here.issuperset(written) for written in map(find_written, nodes))

    def _find_problem(self, loop: IndependentLoop, stretch: Repetition) -> str | None:
        """Return why the functions of a loop cannot run at once, before the others of its stretch, or None."""
        if any(map(sets_mode, self.nodes[stretch.start : stretch.stop])):
            return "a mode of PyTorch changes within the repeated part"
        given = loop.list_given()
        if all(len(set(reads)) == 1 for reads in given):
            return "all repetitions compute the same from the same inputs"
        entering = _join_storages(node for reads in given for node in reads)
        if all(storages_of(node) & entering for node in loop.rounds[0]):
            return "the repeated part only takes parts of its inputs"
        touched = entering | _join_storages(node for one in loop.rounds for node in one)
        if touched & _join_storages(one for node in loop.others if writes(node) for one in find_written(node)):
            return "the repeated part writes in place to a tensor that it reads"
        last: dict[int, int] = {}
        for node in (node for one in loop.rounds for node in one if writes(node)):
            last |= dict.fromkeys(_join_storages(find_written(node)), self._numbers[node])
        for node in loop.others:
            if any(self._numbers[node] < last.get(s, -1) for read in list_read(node) for s in storages_of(read)):
                return "a value is read before the repeated part has written to it"
        held: dict[int, int] = {}  # by the storage, as views of it hold no more
        for value in (value for node in loop.rounds[0] for value in _values(node)):
            held |= {one: count_bytes(value) for one in list_storages([value]) - entering - held.keys()}
        if (size := len(loop.rounds) * sum(held.values())) > MAX_HELD:
            return f"{-(-size >> 20)} MiB of values would be held at once, and at most {MAX_HELD >> 20} may"
        return None


def _join_storages(nodes: Any) -> frozenset[int]:
    return frozenset().union(*map(storages_of, nodes))


def _values(node: Node) -> list[torch.Tensor]:
    return pytree.tensors(node.meta.get(VALUE))


def _is_dense(tensor: torch.Tensor) -> bool:
    return tensor.layout is torch.strided and not tensor.is_nested


def _form(node: Node) -> str:
    """Return a node's arguments as text, with a mark for each value that it reads, and constants by their names."""
    return repr(torch.fx.map_arg((node.args, node.kwargs), lambda _: _MARK))


class _Mark:
    def __repr__(self) -> str:
        return "<value>"


_MARK: Any = _Mark()


def _kind(node: Node) -> Hashable:
    """Return the form of a node's value. Strides do not count, as values that are stacked get others."""
    return tuple(
        (type(one), repr(tuple(one.shape)), one.dtype, one.device, one.layout, one.requires_grad)
        for one in _values(node)
    )
