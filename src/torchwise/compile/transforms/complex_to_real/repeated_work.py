"""The places at which a rewritten graph is written to memory, so that no operator is lowered over and over.

Inductor fuses by inlining. An operator that uses a value twice computes it twice, until the compiler has found both to
be one. Inductor's limits count each operator once, so that they do not see the work. In `y = y + sin(y)` it doubles
with every link. Patient fusion (`patient_fusion`) lets four times as many operators through. That is 30 links of such a
chain instead of 8, and 2 to the power of 22 times the work. So the work itself is bounded here, at four times
the most that plain limits were seen to allow. A chain is cut where it exceeds the bound, and operators that repeat
little are fused as before.

Evaluations of one operator while a graph is lowered, under plain limits and under patient ones (torch 2.13, CPU):

* field of 50 sources: 19 and 19.
* one Gross-Pitaevskii step: 45 and 66.
* 8 links of a chain behind a modulus: 167 and 5370.
* 12 products of complex numbers in a row: 151 and 32761.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from torchwise._torch.dispatch import OpOverload
from torchwise._torch.inductor import REALIZE_KEY
from torchwise.compile.transforms.complex_to_real.inductor_calls import PATIENT_LIMITS

MAX_EVALUATIONS = 600
"""Evaluations of operators for one value: four times the most that was seen under Inductor's own limits."""
FEW_READS = 4
"""Different reads from which on Inductor writes a value that is used several times to memory, by its own default."""
READS, OPERATORS = PATIENT_LIMITS.values()
"""Different reads and operators from which on Inductor writes any value to memory, under patient limits."""
_INDEXED = ("index", "_unsafe_index", "gather", "cat", "constant_pad_nd", "repeat", "reshape", "expand")
"""Operators that Inductor inlines like views: they read their input elsewhere, and compute nothing."""


@dataclass(frozen=True, slots=True)
class _Inlined:
    """A value as Inductor carries it while it is in no memory.

    Attributes:
        evaluations: of operators and reads, repetitions counted.
        operators: the different operators.
        reads: the different values read, with the views on the way.
    """

    evaluations: int
    operators: frozenset[Any]
    reads: frozenset[Any]


def bound_repeated_work(graph: torch.fx.Graph) -> int:
    """Mark the nodes whose values must be written to memory, and return how many there are.

    Args:
        graph: functional ATen, as Inductor is to lower it.
    """
    carried: dict[torch.fx.Node, _Inlined] = {}
    marked = 0
    for node in graph.nodes:
        value = _value_of(node, carried)
        if _is_written(node, value):
            value = _value_in_memory(node)
        elif value.evaluations > MAX_EVALUATIONS:
            node.meta[REALIZE_KEY] = True
            value = _value_in_memory(node)
            marked += 1
        carried[node] = value
    return marked


def _value_of(node: torch.fx.Node, carried: Mapping[torch.fx.Node, _Inlined]) -> _Inlined:
    target = node.target
    if not isinstance(target, OpOverload):
        return _value_in_memory(node)
    moves = target.is_view or target._opname in _INDEXED
    if not (moves or torch.Tag.pointwise in target.tags):
        return _value_in_memory(node)
    uses: list[torch.fx.Node] = []
    torch.fx.node.map_arg((node.args, node.kwargs), lambda used: uses.append(used))  # each as often as it is used
    values = [carried[used] for used in uses]
    evaluations = sum(value.evaluations for value in values)
    operators = frozenset[Any]().union(*(value.operators for value in values))
    reads = frozenset[Any]().union(*(value.reads for value in values))
    if moves:
        return _Inlined(evaluations, operators, frozenset((read, node) for read in reads))
    return _Inlined(evaluations + 1, operators | {node}, reads)


def _value_in_memory(node: torch.fx.Node) -> _Inlined:
    return _Inlined(1, frozenset(), frozenset({node}))


def _is_written(node: torch.fx.Node, value: _Inlined) -> bool:
    """Whether Inductor by itself writes a value to memory."""
    reads = FEW_READS if len(node.users) > 1 else READS
    return len(value.operators) > OPERATORS or len(value.reads) > reads
