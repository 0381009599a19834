"""Compilers that take graphs as `torch.export` writes them: the parts that all of them share.

Dynamo captures the graphs, as for Inductor. So any inputs and outputs, keyword arguments and graph breaks are the
same. Such a compiler knows only graphs that compute: new tensors from tensors, without side effects. A graph that it
cannot take runs in eager, between those that it takes.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from torchwise._torch import dynamo
from torchwise._torch.symbols import list_conditions
from torchwise.compile.backends.freezing import Freezing
from torchwise.compile.backends.graph_parts import count_operators
from torchwise.compile.backends.graphs import NOTHING, Varying, compile_call
from torchwise.compile.backends.idle_dropout import take_out_idle_dropout
from torchwise.compile.backends.index_checks import Check, find_checks
from torchwise.compile.backends.largest_parts import describe_error, take_largest_parts
from torchwise.compile.backends.pure_graph import PureGraph
from torchwise.compile.backends.shares import MIN_SHARE, Share, count_share
from torchwise.compile.backends.whole_numbers import find_range
from torchwise.errors import UnsupportedError
from torchwise.plan import Plan

Run = Callable[[Sequence[torch.Tensor]], Sequence[torch.Tensor]]
"""Computes a graph: contiguous tensors go in, and new ones come out, which nobody else writes to."""
CompileProgram = Callable[[torch.export.ExportedProgram, Sequence[torch.Tensor], Sequence[torch.Tensor]], Run]
"""Compiles an exported program for inputs like these, to give outputs like these, which have no memory."""

ABOUT = ("backend", "scope", "transforms", "precision", "shapes")
"""The parts of a plan that decide the graphs that a compiler gets."""

logger = logging.getLogger("torchwise")


def compile_exported(
    call: Callable[..., Any],
    plan: Plan,
    compile_program: CompileProgram,
    varying: Varying = NOTHING,
    *,
    checks_indices: bool = True,
    is_of_32_bits: bool = False,
) -> Callable[..., Any]:
    """Return `call`, whose graphs a compiler of exported programs compiles on the first call for each signature.

    Args:
        call: the callable.
        plan: the plan.
        compile_program: compiles an exported graph.
        varying: as for `compile_call`.
        checks_indices: whether calls with inputs that are indices beyond a table are refused, so that your model raises
            its error. It costs a look at these inputs.
        is_of_32_bits: whether the compiler computes all whole numbers in 32 bits. Then inputs of 64 bits may hold only
            those for which that is enough.

    Raises:
        UnsupportedError: the plan has settings of another compiler. Calls raise it if the compiler takes no graph.
    """
    if plan.options or plan.mode != "default":
        raise UnsupportedError(f"backend is {plan.backend!r}, but mode and options are Inductor's: leave them out")

    def make_backend(_is_alone: bool) -> tuple[Any, list[Any]]:
        def compile_checked(program: torch.export.ExportedProgram, inputs: Any, outputs: Any) -> Run:
            allowed = find_range(program, inputs) if is_of_32_bits else None
            checks = find_checks(program, allowed) if checks_indices or allowed else []
            return _check_inputs(compile_program(program, inputs, outputs), checks, plan.backend)

        parts = Parts(plan.backend, compile_checked)
        owned = Freezing(parts, call)  # also without frozen weights: it frees the code with the plan
        return owned, [parts, owned]

    return compile_call(call, plan, make_backend, varying)


def _check_inputs(run: Run, checks: Sequence[Check], name: str) -> Run:
    def check_and_run(inputs: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        for check in checks:
            check(inputs, name)
        return run(inputs)

    return check_and_run if checks else run


class Parts:
    """A backend of Dynamo: it compiles the graphs that the compiler takes, or their largest parts, and leaves the rest.

    Args:
        name: of the compiler, for messages.
        compile_program: compiles an exported graph.
    """

    def __init__(self, name: str, compile_program: CompileProgram) -> None:
        self._name, self._compile_program = name, compile_program
        self._share, self._refusal = count_share(name), "PyTorch captured no graph of it"
        self._about: tuple[str | tuple[str, Any], ...] = ABOUT

    def __call__(self, graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        """Compile a graph or parts of it, or return it as it was captured."""
        has_known_memory = False
        try:
            take_out_idle_dropout(graph)
            has_known_memory = True
            compiled, operators = self._compile(graph, inputs), count_operators(graph.graph.nodes)
            share = Share(self._name, operators, operators, 1)
            compiled = self._keep_operators(graph, compiled)
        except torch.OutOfMemoryError:  # which no other graph would have
            raise
        except Exception as error:  # a compiler may raise any error, and parts or the graph itself still run
            compiled, share = self._take_parts(graph, inputs, error, may_be_cut=has_known_memory)
        self._share += share
        return compiled

    def _compile(self, graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        pure = PureGraph(graph, inputs)
        program = pure.export()
        with dynamo.while_exporting():
            conditions = list_conditions(program)
            compiled = pure.bind(self._compile_program(program, pure.examples, pure.outputs))
            if added := [one for one in list_conditions(program) if one not in conditions]:
                raise UnsupportedError(f"its code holds only for sizes with {added[0]}: keep shapes static")
        return compiled

    def _keep_operators(self, graph: torch.fx.GraphModule, compiled: Callable[..., Any]) -> Callable[..., Any]:
        """Return the code of a graph, which refuses calls that it is not for if the model has no other graph.

        Then your model answers the whole call. Otherwise graphs before it may have written to inputs or drawn numbers.
        So the graph's own operators answer in its place.
        """

        def answer(*given: Any) -> Any:
            try:
                return compiled(*given)
            except UnsupportedError:
                if self._share.parts == 1 and not self._share.reasons:
                    raise
                return graph.forward(*given)

        return answer

    def _take_parts(
        self, graph: torch.fx.GraphModule, inputs: Sequence[Any], refusal: Exception, *, may_be_cut: bool
    ) -> tuple[Callable[..., Any], Share]:
        """Return the graph with its largest parts compiled, or as it was captured if there are none."""
        compiled, share = graph, Share(self._name, count_operators(graph.graph.nodes))
        try:
            if not may_be_cut or "backend" in getattr(refusal, "about", ()):  # it holds for all graphs
                raise refusal
            compiled = take_largest_parts(graph, inputs, self._compile, refusal, share)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # any of a compiler's
            self._refusal = describe_error(error)
            self._about = getattr(error, "about", ()) or ABOUT
            share.reasons[self._refusal] = None
        logger.info("torchwise: %s leaves a part of the model in eager: %s", self._name, "; ".join(share.reasons))
        return compiled.forward, share

    @contextlib.contextmanager
    def assert_applied(self) -> Iterator[None]:
        """Refuse the plan on exit if the compiler takes no part of the model, or too few of its operators."""
        yield
        if not self._share.taken:
            raise UnsupportedError(f"backend {self._name!r} takes no part of the model: {self._refusal}", self._about)
        if not self._share.is_enough:
            raise UnsupportedError(f"{self._share}. It must take at least {MIN_SHARE:.0%}", self._about)
