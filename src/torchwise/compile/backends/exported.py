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
from torchwise.compile.backends.freezing import Freezing
from torchwise.compile.backends.graphs import NOTHING, Varying, compile_call
from torchwise.compile.backends.pure_graph import PureGraph
from torchwise.errors import UnsupportedError, first_line, format_error
from torchwise.plan import Plan

Run = Callable[[Sequence[torch.Tensor]], Sequence[torch.Tensor]]
"""Computes a graph: contiguous tensors go in, and new ones come out, which nobody else writes to."""
CompileProgram = Callable[[torch.export.ExportedProgram, Sequence[torch.Tensor], Sequence[torch.Tensor]], Run]
"""Compiles an exported program for inputs like these, to give outputs like these, which have no memory."""

logger = logging.getLogger("torchwise")


def compile_exported(
    call: Callable[..., Any], plan: Plan, compile_program: CompileProgram, varying: Varying = NOTHING
) -> Callable[..., Any]:
    """Return `call`, whose graphs a compiler of exported programs compiles on the first call for each signature.

    Raises:
        UnsupportedError: the plan has settings of another compiler. Calls raise it if the compiler takes no graph.
    """
    if plan.options or plan.mode != "default":
        raise UnsupportedError(f"backend is {plan.backend!r}, but mode and options are Inductor's: leave them out")

    def make_backend(_is_alone: bool) -> tuple[Any, list[Any]]:
        parts = Parts(plan.backend, compile_program)
        owned = Freezing(parts, call)  # also without frozen weights: it frees the code with the plan
        return owned, [parts, owned]

    return compile_call(call, plan, make_backend, varying)


class Parts:
    """A backend of Dynamo: it compiles the graphs that the compiler takes, and leaves the others in eager.

    Args:
        name: of the compiler, for messages.
        compile_program: compiles an exported graph.
    """

    def __init__(self, name: str, compile_program: CompileProgram) -> None:
        self._name, self._compile_program = name, compile_program
        self._taken, self._refusal = 0, "PyTorch captured no graph of it"

    def __call__(self, graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        """Compile a graph, or return it as it was captured."""
        try:
            pure = PureGraph(graph, inputs)
            program = pure.export()
            with dynamo.leave_trace(), torch.no_grad():
                compiled = pure.bind(self._compile_program(program, pure.examples, pure.outputs))
        except torch.OutOfMemoryError:  # which no other graph would have
            raise
        except Exception as error:  # a compiler may raise any error, and the graph itself still runs
            self._refusal = str(error) if isinstance(error, UnsupportedError) else first_line(format_error(error))
            logger.info("torchwise: %s leaves a part of the model in eager: %s", self._name, self._refusal)
            return graph.forward
        self._taken += 1
        return compiled

    @contextlib.contextmanager
    def assert_applied(self) -> Iterator[None]:
        """Refuse the plan on exit if the compiler takes no part of the model."""
        yield
        if not self._taken:
            raise UnsupportedError(f"backend {self._name!r} takes no part of the model: {self._refusal}")
