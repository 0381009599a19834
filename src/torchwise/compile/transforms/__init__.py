"""Rewrites by name, one file or folder each.

Some give the model another form before anything is compiled or captured. Some rewrite the graphs for Inductor. Some are
a layer that is compiled with the model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torchwise.compile.transforms.complex_to_real import ComplexToReal, backend_for
from torchwise.compile.transforms.eager_strides import with_eager_strides
from torchwise.compile.transforms.isolate_rnn import isolate
from torchwise.compile.transforms.numbers_on_gpu import keep_numbers_on_gpu
from torchwise.compile.transforms.patch_matmul import multiply
from torchwise.compile.transforms.static_form import take_static_form
from torchwise.compile.transforms.structure_of_arrays import graph_pass

Layer = Callable[[Callable[..., Any]], Callable[..., Any]]
ModelTransform = Callable[[Callable[..., Any]], tuple[Callable[..., Any], Layer]]
"""A callable → its replacement, and a layer around the code made of that.

The original is not changed. Parameters and buffers are shared, and submodules may be.
"""
GraphTransform = Callable[[tuple[tuple[str, Any], ...]], ComplexToReal]
"""Inductor's options → a backend for `torch.compile`, which compiles through Inductor."""

MODEL_TRANSFORMS: dict[str, ModelTransform] = {
    "static_form": take_static_form,
    "isolate_rnn": isolate,
    "patch_matmul": multiply,
}
GRAPH_TRANSFORMS: dict[str, GraphTransform] = {"complex_to_real": backend_for}
GRAPH_PASSES: dict[str, Callable[[], Any]] = {"structure_of_arrays": graph_pass}
"""→ a pass over the graphs that Inductor compiles, in the form of Inductor's option for one."""
CALL_TRANSFORMS: dict[str, Callable[[Callable[..., Any]], Callable[..., Any]]] = {
    "numbers_on_gpu": keep_numbers_on_gpu,
    "eager_strides": with_eager_strides,
}
"""A callable → the callable that the compiler traces, or a graph records, in its place."""


def transform_names() -> tuple[str, ...]:
    """Return the names of all transforms."""
    return (*MODEL_TRANSFORMS, *GRAPH_TRANSFORMS, *GRAPH_PASSES, *CALL_TRANSFORMS)


def transform_model(call: Callable[..., Any], names: Sequence[str]) -> tuple[Callable[..., Any], list[Layer]]:
    """Apply those of `names` that act on the model, in order, and return the new callable and the layers.

    Raises:
        UnsupportedError: one of them does not apply to this model.
    """
    layers = []
    for name in names:
        if name in MODEL_TRANSFORMS:
            call, layer = MODEL_TRANSFORMS[name](call)
            layers.append(layer)
    return call, layers
