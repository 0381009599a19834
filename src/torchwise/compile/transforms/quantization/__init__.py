"""Linear layers of a model with weights of fewer bits, in a copy that shares all else.

The weights are rounded when the copy is made, so a plan is stale when they change (`Choice.derives_weights`). Layers
stay as they are if code may watch or change them (a class of its own, hooks, parametrizations), if the format does not
fit their sizes, or if they are far smaller than the largest, and few: they would gain nothing.

`nn.MultiheadAttention` stays as it is, too. It passes the weights of its `out_proj` to a function and never calls that
layer, so another class of it would change nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection
from typing import Any

import torch
from torch import nn

from torchwise.compile.shared_copies import share
from torchwise.compile.transforms.quantization.formats import (
    FORMATS,
    Float8Dynamic,
    Float8PerTensor,
    Float8Weights,
    Int4Weights,
    Int8Dynamic,
    Int8Weights,
    QuantizedLinear,
)
from torchwise.compile.transforms.quantization.layers import derive_class, find_layer_classes
from torchwise.errors import UnsupportedError

Layer = Callable[[Callable[..., Any]], Callable[..., Any]]

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
MAX_INPUTS = 2**17
"""Inputs of a layer: more products of two numbers of 8 bits may not fit into the sum, which has 32."""
SMALL = 0.01
"""Share below which weights are too small to gain anything: of the largest one, and for all of one shape, of all."""
LARGE = 1 << 19
"""Numbers of a weight that is small beside the largest, with fewer of which it stays as it is, however many there are.

To read it takes no longer than to begin to."""
FLOAT8_CAPABILITY = (8, 9)
"""The GPUs that multiply float8."""


def has_linear_layers(model: Any) -> bool:
    """Whether a model has, or is, a linear layer that a format fits."""
    return any(_list_layers(model, kind) for kind in FORMATS)


def has_quantized_layers(call: Any) -> bool:
    """Whether a model has layers that a rewrite of this folder made."""
    return isinstance(call, nn.Module) and any(isinstance(part, QuantizedLinear) for part in call.modules())


def multiplies_float8(model: Any) -> bool:
    """Whether a model is on a GPU that multiplies float8."""
    weight = next(model.parameters(), None) if isinstance(model, nn.Module) else None
    if weight is None or not weight.is_cuda:
        return False
    return torch.cuda.get_device_capability(weight.device) >= FLOAT8_CAPABILITY


def list_int8_dynamic_layers(call: Any) -> dict[str, int]:
    """Return the layers for `use_int8_dynamic`, by name, with the sizes of their weights."""
    return _list_layers(call, Int8Dynamic)


def list_int8_weights_layers(call: Any) -> dict[str, int]:
    """Return the layers for `use_int8_weights`, by name, with the sizes of their weights."""
    return _list_layers(call, Int8Weights)


def list_int4_weights_layers(call: Any) -> dict[str, int]:
    """Return the layers for `use_int4_weights`, by name, with the sizes of their weights."""
    return _list_layers(call, Int4Weights)


def list_fp8_weights_layers(call: Any) -> dict[str, int]:
    """Return the layers for `use_fp8_weights`, by name, with the sizes of their weights."""
    return _list_layers(call, Float8Weights)


def list_fp8_dynamic_layers(call: Any) -> dict[str, int]:
    """Return the layers for `use_fp8_dynamic`, by name, with the sizes of their weights."""
    return _list_layers(call, Float8Dynamic)


def list_fp8_per_tensor_layers(call: Any) -> dict[str, int]:
    """Return the layers for `use_fp8_per_tensor`, by name, with the sizes of their weights."""
    return _list_layers(call, Float8PerTensor)


def use_int8_dynamic(call: Callable[..., Any], skip: Collection[str] = ()) -> tuple[nn.Module, Layer]:
    """Return a copy whose linear layers multiply whole numbers of 8 bits. See `_quantize`."""
    return _quantize(call, "int8_dynamic", Int8Dynamic, skip)


def use_int8_weights(call: Callable[..., Any], skip: Collection[str] = ()) -> tuple[nn.Module, Layer]:
    """Return a copy whose linear layers have weights of 8 bits. See `_quantize`."""
    return _quantize(call, "int8_weights", Int8Weights, skip)


def use_int4_weights(call: Callable[..., Any], skip: Collection[str] = ()) -> tuple[nn.Module, Layer]:
    """Return a copy whose linear layers have weights of 4 bits. See `_quantize`."""
    return _quantize(call, "int4_weights", Int4Weights, skip)


def use_fp8_weights(call: Callable[..., Any], skip: Collection[str] = ()) -> tuple[nn.Module, Layer]:
    """Return a copy whose linear layers have float8 weights. See `_quantize`."""
    return _quantize(call, "fp8_weights", Float8Weights, skip)


def use_fp8_dynamic(call: Callable[..., Any], skip: Collection[str] = ()) -> tuple[nn.Module, Layer]:
    """Return a copy whose linear layers multiply float8. See `_quantize`."""
    return _quantize(call, "fp8_dynamic", Float8Dynamic, skip)


def use_fp8_per_tensor(call: Callable[..., Any], skip: Collection[str] = ()) -> tuple[nn.Module, Layer]:
    """Return a copy whose linear layers multiply float8 with one scale for all inputs. See `_quantize`."""
    return _quantize(call, "fp8_per_tensor", Float8PerTensor, skip)


def _quantize(
    call: Callable[..., Any], name: str, kind: type[QuantizedLinear], skip: Collection[str]
) -> tuple[nn.Module, Layer]:
    """Return a copy of a model with layers of a kind, except those named, and an empty layer for around it.

    Raises:
        UnsupportedError: no layer is left, a name is of none, or the model cannot be copied.
    """
    known = _list_layers(call, kind)
    if unknown := [one for one in skip if one not in known]:
        named = ", ".join(known) or "none"
        raise UnsupportedError(f"transforms has {name!r} without {unknown[0]!r}, but its layers are: {named}")
    changed = [one for one in known if one not in skip]
    if not changed or not isinstance(call, nn.Module):
        raise UnsupportedError(f"transforms has {name!r}, but {type(call).__qualname__} has no linear layer for it")
    model = share(call)
    with torch.inference_mode(False), torch.no_grad():
        for one in changed:
            part = model.get_submodule(one)
            part.__class__ = derive_class(kind, type(part))  # type: ignore[arg-type]  # the copy's, the original's stays
            part.check_names(f"a plan with {name}")  # type: ignore[operator]
            part.quantize()  # type: ignore[operator]
    return model, lambda inner: inner


def _list_layers(call: Any, kind: type[QuantizedLinear]) -> dict[str, int]:
    if not isinstance(call, nn.Module):
        return {}
    parts = {name: part.weight for name, part in call.named_modules() if _fits(part, kind) and "," not in name}
    found = {name: weight.numel() for name, weight in parts.items()}
    alike = Counter[torch.Size]()
    for weight in parts.values():
        alike[weight.shape] += weight.numel()
    least, least_alike = SMALL * max(found.values(), default=0), SMALL * sum(found.values())
    many = {shape for shape, numbers in alike.items() if shape.numel() >= LARGE and numbers >= least_alike}
    return {name: size for name, size in found.items() if size >= least or parts[name].shape in many}


def _fits(part: nn.Module, kind: type[QuantizedLinear]) -> bool:
    is_transposed = find_layer_classes().get(type(part))
    if is_transposed is None or "forward" in vars(part) or _has_hooks(part):
        return False
    weight: Any = part.weight
    multiples = kind.MULTIPLES.get(weight.device.type)
    is_plain = type(weight) is nn.Parameter and weight.layout is torch.strided and weight.dtype in DTYPES
    if multiples is None or not is_plain or weight.numel() == 0 or weight.dim() != 2:
        return False
    outputs, inputs = weight.shape[::-1] if is_transposed else weight.shape
    return bool(inputs <= MAX_INPUTS and inputs % multiples[0] == 0 and outputs % multiples[1] == 0)


def _has_hooks(part: nn.Module) -> bool:
    return any(value for name, value in vars(part).items() if name.endswith("_hooks"))
