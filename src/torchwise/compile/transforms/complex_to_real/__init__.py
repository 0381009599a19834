"""Complex → real: complex values are carried as real and imaginary parts, so that Inductor fuses operators on them.

`pairs` has the pair of parts, `rules` the effect of each operator on pairs, and `rewrite` turns a graph. Here is the
backend for `torch.compile(fn, backend=...)`. It stands below AOTAutograd, before Inductor's own compilation of each
graph, forward and backward alike. So autograd, functionalisation and views are behind it. Complex inputs enter the
compiled code as `view_as_real`. Complex outputs leave it as `view_as_complex`. Both are views, which no kernel
computes.

PyTorch has a wrapper of its own, AOTAutograd's setting `enable_complex_wrapper` (2.13 and later). It is not used. On
the field of 50 sources at 8192 points, two CPU cores, it runs at 9.0 times eager's speed, and this at 33.8. It also
fails on FFT (`benchmarks/complex_wrapper.py`, and its results).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch

from torchwise._torch import aot_autograd, inductor
from torchwise._torch.dynamo import output_strides
from torchwise._torch.private_name import check
from torchwise.compile.transforms.complex_to_real.fusion import (
    FEATURE,
    NAMES,
    bound_repeated_work,
    decompositions,
    patient_fusion,
    pays_in_vectors,
)
from torchwise.compile.transforms.complex_to_real.rewrite import Rewriting
from torchwise.compile.transforms.complex_to_real.rewrite import rewrite as rewrite_graph
from torchwise.compile.uncompiled_reason import assert_transform_applied
from torchwise.errors import UnsupportedError

Boxed = Callable[[list[Any]], Sequence[Any]]
"""Takes a list of a graph's inputs, which it may empty, and returns the outputs."""


class ComplexToReal:
    """A backend of `torch.compile`: Inductor, with complex arithmetic rewritten.

    Args:
        options: Inductor's, by name.
        inner: compiles one graph as Inductor's `compile_fx_inner` does. Only tests use another one.

    Attributes:
        rewritten: how many graphs were rewritten.
        reasons: why other graphs were left untouched.
    """

    compiler_name = "inductor"

    def __init__(self, options: dict[str, Any], inner: Callable[..., Any] = inductor.compile_fx_inner) -> None:
        self._options = options
        self._inner = inner
        self.rewritten = 0
        self.reasons: list[str] = []

    def __call__(self, module: torch.fx.GraphModule, inputs: Sequence[Any]) -> Any:
        """Compile a graph that Dynamo captured."""
        with self._cache():
            return inductor.compile_fx(
                module,
                inputs,
                inner_compile=self._compile_graph,
                config_patches=self._options,
                decompositions=decompositions(),
            )

    def assert_applied(self) -> AbstractContextManager[None]:
        """Watch a first call (see `assert_transform_applied`)."""
        return assert_transform_applied(("transforms", "complex_to_real"), lambda: self.rewritten, self.reasons)

    def _compile_graph(self, module: torch.fx.GraphModule, inputs: Sequence[Any], **kwargs: Any) -> Any:
        kwargs.pop("get_decomp_fn", None)  # Inductor's own table again, below this point
        try:
            rewriting = rewrite_graph(module, inputs)
        except UnsupportedError as reason:
            self.reasons.append(str(reason))
            return self._inner(module, inputs, **kwargs)
        except Exception as error:  # rewriting is optional: after any error, the graph itself still runs
            self.reasons.append(f"rewriting failed with {type(error).__name__}: {error}")
            return self._inner(module, inputs, **kwargs)
        graph = rewriting.module.graph
        bound_repeated_work(graph)
        vectors = pays_in_vectors(graph, reads_pairs=bool(rewriting.complex_inputs))
        with patient_fusion(vectors=vectors):
            compiled = self._inner(rewriting.module, rewriting.inputs, **kwargs)
        self.rewritten += 1
        _correct_reported_strides(rewriting.complex_outputs)
        return self._finish(compiled, rewriting)

    def _cache(self) -> Any:
        return aot_autograd.patch_config(enable_autograd_cache=False)

    def _finish(self, compiled: Boxed, rewriting: Rewriting) -> Any:
        return wrap_complex(compiled, rewriting.complex_inputs, rewriting.complex_outputs)


def wrap_complex(compiled: Boxed, inputs: Sequence[int], outputs: Sequence[int]) -> Boxed:
    """Return the code of a rewritten graph with complex tensors at these places, in place of their parts."""

    def call_boxed(args: list[Any]) -> Sequence[Any]:
        for place in inputs:
            args[place] = torch.view_as_real(args[place].resolve_conj())
        results = list(compiled(args))
        for place in outputs:
            results[place] = _as_complex(results[place])
        return results

    call_boxed._boxed_call = True  # type: ignore[attr-defined]  # AOTAutograd looks for it
    return call_boxed


def _as_complex(parts: torch.Tensor) -> torch.Tensor:
    """View (..., 2) as complex numbers. If there are none, Inductor may give strides that allow no view."""
    if parts.numel():
        return torch.view_as_complex(parts)
    return torch.empty(parts.shape[:-1], dtype=parts.dtype.to_complex(), device=parts.device)


def _correct_reported_strides(complex_outputs: tuple[int, ...]) -> None:
    """Halve the strides that Inductor reported to AOTAutograd, where those outputs are complex tensors."""
    reported = output_strides()
    for place in complex_outputs if reported else ():
        if (strides := reported[place]) is not None:  # type: ignore[index]
            reported[place] = tuple(stride // 2 for stride in strides[:-1])  # type: ignore[index]


@functools.cache
def backend_for(options: tuple[tuple[str, Any], ...]) -> ComplexToReal:
    """Return the backend for Inductor's `options`: one and the same, so that Dynamo recognizes compiled code.

    Raises:
        UnsupportedError: this torch lacks something that the transform needs.
    """
    check(FEATURE, NAMES)
    return ComplexToReal(dict(options))
