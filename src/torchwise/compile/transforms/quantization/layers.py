"""The classes of linear layers, and the classes that put a format before them."""

from __future__ import annotations

import functools
import itertools
import sys
import types

from torch import nn

from torchwise.compile.transforms.quantization.formats import FORMATS, QuantizedLinear


def find_layer_classes() -> dict[type[nn.Module], bool]:
    """Return the classes of linear layers, each with whether its weight has the shape (inputs, outputs).

    GPT-2's layers are `Conv1D` of transformers. A model that has one has imported it.
    """
    conv1d = getattr(sys.modules.get("transformers.pytorch_utils"), "Conv1D", None)
    return {nn.Linear: False} | ({conv1d: True} if isinstance(conv1d, type) else {})


@functools.cache
def derive_class(kind: type[QuantizedLinear], layer: type[nn.Module]) -> type[QuantizedLinear]:
    """Return the class of a layer in a format. There is one for each pair, so that code is compiled once."""
    names = {"__module__": __name__, "is_transposed": find_layer_classes()[layer]}
    return types.new_class(_make_name(kind, layer), (kind, layer), exec_body=lambda own: own.update(names))


def __getattr__(name: str) -> type[QuantizedLinear]:
    """Return such a class by its name, which code that was compiled ahead has. It may be loaded before any layer.

    Raises:
        AttributeError: there is no such class.
    """
    pair = next((pair for pair in itertools.product(FORMATS, find_layer_classes()) if _make_name(*pair) == name), None)
    if pair is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return derive_class(*pair)  # type: ignore[arg-type]


def _make_name(kind: type[QuantizedLinear], layer: type[nn.Module]) -> str:
    return f"{kind.__name__}{layer.__name__}"
