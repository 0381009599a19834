"""A rewritten graph that can be sent to another process: Inductor's code, and the views of its inputs and outputs."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch

from torchwise._torch import dynamo, inductor
from torchwise._torch.private_name import check
from torchwise.compile.transforms.complex_to_real import ComplexToReal, wrap_complex
from torchwise.compile.transforms.complex_to_real.fusion import AOT_NAMES, FEATURE
from torchwise.compile.transforms.complex_to_real.rewrite import Rewriting

check(FEATURE, AOT_NAMES)
OutputCode: Any = inductor.OUTPUT_CODE.get(FEATURE)


class RewrittenCode(OutputCode):  # type: ignore[misc]
    """Inductor's code for a rewritten graph, as AOTAutograd writes and reads compiled graphs."""

    def __init__(self, compiled: Any, rewriting: Rewriting) -> None:
        super().__init__()
        self._compiled = compiled
        self._places = rewriting.complex_inputs, rewriting.complex_outputs
        self._fx_graph_cache_key = getattr(compiled, "_fx_graph_cache_key", None)
        self._fx_graph_cache_debug_lines = getattr(compiled, "_fx_graph_cache_debug_lines", None)
        self._boxed_call = True
        self._call: Callable[[list[Any]], Sequence[Any]] | None = wrap_complex(compiled, *self._places)

    def __call__(self, inputs: list[Any]) -> Sequence[Any]:
        """Answer for a list of the graph's inputs, which is emptied."""
        assert self._call is not None, "what was read is called after `post_compile`"
        return self._call(inputs)

    def prepare_for_serialization(self) -> None:
        """Drop everything that cannot be written. This object is a copy for the file."""
        self._call, self._compiled = None, copy.copy(self._compiled)
        self._compiled.prepare_for_serialization()

    def post_compile(self, example_inputs: Sequence[Any], constants: Any, graph_kwargs: Any) -> None:
        """Load the code that was read."""
        if self._call is None:
            self._compiled = inductor.load_code(self._compiled, constants)
        self._compiled.post_compile(example_inputs, constants, graph_kwargs)
        self._call = wrap_complex(self._compiled, *self._places)

    def set_triton_bundle(self, triton_bundle: Any) -> None:
        """Keep the kernels with the code."""
        self._compiled.set_triton_bundle(triton_bundle)


class ComplexToRealAhead(ComplexToReal):
    """`ComplexToReal`, for code that is made in one process and called in another."""

    def __call__(self, module: torch.fx.GraphModule, inputs: Sequence[Any]) -> Any:
        """Compile a graph that Dynamo captured, to be stored."""
        return dynamo.SERIALIZABLE_CALLABLE.get(FEATURE)(super().__call__(module, inputs))

    def _cache(self) -> Any:
        """Leave AOTAutograd's cache on: the cache writes the code, under no key."""
        return torch.no_grad()

    def _finish(self, compiled: Any, rewriting: Rewriting) -> Any:
        return RewrittenCode(compiled, rewriting)
