"""The parts of Inductor that rewriting uses: decompositions, limits of fusion, vectors, and writes to memory.

Inductor fuses by inlining. An operator that uses a value twice computes it twice, until the compiler has found both to
be one. Inductor's limits count each operator once, so that they do not see the work. In `y = y + sin(y)` it doubles
with every link. Patient fusion (`patient_fusion`) lets four times as many operators through. That is 30 links of such a
chain instead of 8, and 2 to the power of 22 times the work. So `bound_repeated_work` bounds the work itself, at four
times the most that plain limits were seen to allow. A chain is cut where it exceeds the bound, and operators that
repeat little are fused as before.

Evaluations of one operator while a graph is lowered, under plain limits and under patient ones (torch 2.13, CPU):

* field of 50 sources: 19 and 19.
* one Gross-Pitaevskii step: 45 and 66.
* 8 links of a chain behind a modulus: 167 and 5370.
* 12 products of complex numbers in a row: 151 and 32761.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch

from torchwise._torch import aot_autograd, dynamo, inductor
from torchwise._torch.dispatch import NO_AUTOCAST, NO_FAKES, OpOverload
from torchwise._torch.dynamo import TRACING_CONTEXT
from torchwise._torch.inductor import REALIZE_KEY

FEATURE = "complex_to_real"
NAMES = (
    inductor.COMPILE_FX,
    inductor.COMPILE_FX_INNER,
    inductor.PROPAGATE_FAKES,
    inductor.DECOMPOSITIONS,
    inductor.CONFIG,
    aot_autograd.CONFIG,
    NO_AUTOCAST,
    NO_FAKES,
    TRACING_CONTEXT,
)
"""The private names that every compilation uses."""
AOT_NAMES = (*NAMES, inductor.OUTPUT_CODE, dynamo.SERIALIZABLE_CALLABLE, inductor.FX_GRAPH_CACHE)
"""The private names that code for another process uses."""
PATIENT_LIMITS = {"realize_acc_reads_threshold": 4 * 8, "realize_opcount_threshold": 4 * 30}
"""Four times Inductor's limits for real numbers, on a GPU."""


def decompositions() -> dict[Any, Any]:
    """Return Inductor's decompositions, but not the one that turns complex sums into views of doubled length."""
    table = inductor.DECOMPOSITIONS.get(FEATURE)()
    return {op: rule for op, rule in table.items() if getattr(op, "overloadpacket", op) is not torch.ops.aten.add}


def patient_fusion(*, vectors: bool = False) -> AbstractContextManager[None]:
    """Return a context in which Inductor fuses four times as much before it writes a value that is used once to memory.

    Inductor's limits count reads and operations. A complex product has four and six of them, and a real one has one
    each. `bound_repeated_work` bounds the work that the limits do not count. With `vectors`, code for a CPU computes on
    whole vectors, however much it reads here and there.
    """
    config = inductor.CONFIG.get(FEATURE)
    known = vectors and hasattr(config.cpp, "enable_tiling_heuristics")  # a version may do without
    return inductor.patch_config({**PATIENT_LIMITS, **({"cpp.enable_tiling_heuristics": False} if known else {})})


_FUNCTIONS = {
    *("exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sinh", "cosh", "tanh", "sigmoid", "erf", "erfc"),
    *("sin", "cos", "tan", "asin", "acos", "atan", "atan2", "asinh", "acosh", "atanh"),
}
"""Functions that take several times as long for single numbers as on vectors."""


def pays_in_vectors(graph: torch.fx.Graph, *, reads_pairs: bool) -> bool:
    """Whether code for a CPU should compute on whole vectors: the graph reads interleaved parts, and has functions.

    Inductor leaves a loop to single numbers if many of its reads are not contiguous. Reads of interleaved parts never
    are. Filling a vector number by number costs more than it saves for a few products and sums. But functions take
    long. Time on vectors over time on single numbers, for 4096 x 64 complex numbers on one Xeon core with vectors of 64
    bytes (torch 2.13):

    * exp 0.57, log 0.22, polar of a doubled angle 0.23, softplus of a real part 0.20, sin of a modulus 0.40.
    * a product and a sum 1.13, one Gross-Pitaevskii step 1.8.
    """
    names = {node.target._opname for node in graph.nodes if isinstance(node.target, OpOverload)}
    return reads_pairs and not names.isdisjoint(_FUNCTIONS)


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
    """Mark the nodes of a functional ATen graph whose values must be written to memory, and return their number."""
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
    if isinstance(node.meta.get("val"), torch.SymInt):  # a size, which is in no loop
        return _Inlined(0, frozenset(), frozenset())
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
