"""Linear layers with weights of fewer bits, one class for each format.

Such a layer keeps its weight for code that reads it, and has the rounded one beside it as buffers. In float64, where a
plan finds its reference, it computes the same function exactly.
"""

from __future__ import annotations

import functools
from typing import Any, ClassVar

import torch
from torch import nn
from torch.nn import functional

from torchwise._torch import low_bits, private_name
from torchwise._torch.private_name import PrivateName
from torchwise.errors import UnsupportedError

GROUP = 32
"""Weights of 4 bits that share a scale."""
LARGEST_INT8 = 127.0
MIN_ROWS_CUDA = 32
"""Rows of a product of whole numbers on CUDA, which takes no fewer than 17."""
TINY = 1e-12
"""The least scale: a row of zeros has none."""


def _find(name: PrivateName) -> Any:
    """Return a function of PyTorch, or None: `check_names` says which format needs it."""
    try:
        return name.get()
    except UnsupportedError:
        return None


_multiply_int8 = _find(low_bits.INT8_PRODUCT)
_multiply_int8_weights = _find(low_bits.INT8_WEIGHTS_PRODUCT)
_multiply_int4 = _find(low_bits.INT4_PRODUCT)
_multiply_int4_cuda = _find(low_bits.INT4_PRODUCT_CUDA)
_multiply_float8 = _find(low_bits.FLOAT8_PRODUCT)


class QuantizedLinear(nn.Module):
    """A format of linear layers. `derive_class` puts it before the class of a layer, whose attributes it keeps.

    Attributes:
        MULTIPLES: the numbers of inputs and of outputs must be multiples of these, for each kind of device.
        NAMES: PyTorch's private names that the format needs, for each kind of device.
        is_transposed: whether the weight has the shape (inputs, outputs), and not (outputs, inputs).
        inputs: the number of inputs.
        outputs: the number of outputs.
    """

    MULTIPLES: ClassVar[dict[str, tuple[int, int]]]
    NAMES: ClassVar[dict[str, tuple[PrivateName, ...]]] = {}
    is_transposed: ClassVar[bool]
    weight: nn.Parameter
    bias: nn.Parameter | None
    inputs: int
    outputs: int

    def check_names(self, feature: str) -> None:
        """Refuse a PyTorch that lacks a name which the format needs.

        Raises:
            UnsupportedError: naming it.
        """
        private_name.check(feature, self.NAMES.get(self.weight.device.type, ()))

    def quantize(self) -> None:
        """Round the weight, and keep the result in buffers that no `state_dict` has.

        Raises:
            UnsupportedError: this machine cannot multiply in the format.
        """
        rows = self.read_weight().detach()
        self.outputs, self.inputs = rows.shape
        for name, tensor in self.round_weight(rows.contiguous()).items():
            self.register_buffer(name, tensor.contiguous(), persistent=False)

    def read_weight(self) -> torch.Tensor:
        """Return the weight with the shape (outputs, inputs)."""
        return self.weight.t() if self.is_transposed else self.weight

    def round_weight(self, weight: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return the buffers that take the place of a weight with the shape (outputs, inputs), by name."""
        raise NotImplementedError

    def multiply(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the product of rows of inputs with the rounded weight."""
        raise NotImplementedError

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Return the product, with the bias, as the layer does. It answers inputs that it refuses or that are empty.

        Autocast gives such a product its own dtype, whatever the input has.
        """
        device = input.device.type
        is_cast = torch.is_autocast_enabled(device) and input.is_floating_point() and not is_wide(input)
        is_unfit = input.shape[-1:] != (self.inputs,) or not (is_cast or input.dtype is self.weight.dtype)
        if is_unfit or input.numel() == 0:
            answer: torch.Tensor = super().forward(input)
            return answer
        product = self.multiply(input.reshape(-1, self.inputs))
        product = product.to(torch.get_autocast_dtype(device) if is_cast else input.dtype)
        if self.bias is not None:
            product = product + self.bias.to(product.dtype)
        return product.reshape(*input.shape[:-1], self.outputs)


class Int8Dynamic(QuantizedLinear):
    """Whole numbers of 8 bits: the weight with a scale for each output, inputs with one for each row."""

    MULTIPLES: ClassVar = {"cpu": (1, 1), "cuda": (8, 8)}
    NAMES: ClassVar = dict.fromkeys(("cpu", "cuda"), (low_bits.INT8_PRODUCT,))
    int8_weight: torch.Tensor
    weight_scale: torch.Tensor

    def round_weight(self, weight: torch.Tensor) -> dict[str, torch.Tensor]:
        """Round the weight.

        Raises:
            UnsupportedError: this CPU's product of whole numbers is not exact.
        """
        if weight.device.type == "cpu" and not multiplies_exactly():
            raise UnsupportedError(
                "transforms has 'int8_dynamic', but this CPU adds products of 8 bits in 16, which is too few"
            )
        scaled, scale = scale_rows(weight, LARGEST_INT8)
        return {"int8_weight": torch.round(scaled).to(torch.int8), "weight_scale": scale.flatten()}

    def multiply(self, rows: torch.Tensor) -> torch.Tensor:
        """Round the rows, and multiply whole numbers, which is exact."""
        scaled, scale = scale_rows(rows, LARGEST_INT8)
        whole = torch.round(scaled).to(self.int8_weight.dtype)
        if whole.is_cuda and len(whole) < MIN_ROWS_CUDA:
            whole = functional.pad(whole, (0, 0, 0, MIN_ROWS_CUDA - len(whole)))
        product: torch.Tensor = _multiply_int8(whole, self.int8_weight.t())
        return product[: len(rows)].to(scale.dtype) * scale * self.weight_scale


class Int8Weights(QuantizedLinear):
    """Weights of 8 bits with a scale for each output. A CPU multiplies in bfloat16, a GPU in the input's dtype."""

    NAMES: ClassVar = {"cpu": (low_bits.INT8_WEIGHTS_PRODUCT,)}
    MULTIPLES: ClassVar = {"cpu": (16, 1), "cuda": (1, 1)}  # a CPU reads beyond the end of a row of any other length
    int8_weight: torch.Tensor
    weight_scale: torch.Tensor

    def round_weight(self, weight: torch.Tensor) -> dict[str, torch.Tensor]:
        """Round the weight. The scales are in the dtype of the product: Inductor wants them as they are."""
        scale = scale_rows(weight, LARGEST_INT8)[1].bfloat16()
        whole = torch.round(weight.float() / scale.float()).clamp(-LARGEST_INT8, LARGEST_INT8)
        return {"int8_weight": whole.to(torch.int8), "weight_scale": scale.flatten()}

    def multiply(self, rows: torch.Tensor) -> torch.Tensor:
        """Multiply with the rounded weight."""
        if is_wide(rows) or rows.device.type != "cpu":
            return functional.linear(rows, self.dequantize(rows.dtype))
        product: torch.Tensor = _multiply_int8_weights(
            rows.bfloat16().contiguous(), self.int8_weight, self.weight_scale.bfloat16()
        )
        return product

    def dequantize(self, dtype: torch.dtype) -> torch.Tensor:
        """Return the rounded weight as numbers. A product with whole numbers would be too large for float16."""
        return self.int8_weight.to(dtype) * self.weight_scale.to(dtype)[:, None]


class Int4Weights(QuantizedLinear):
    """Weights of 4 bits, each group of them with a scale and an offset in bfloat16."""

    MULTIPLES: ClassVar = {"cpu": (GROUP, 16), "cuda": (128, 8)}
    NAMES: ClassVar = {
        "cpu": (low_bits.INT4_PACK, low_bits.INT4_PRODUCT),
        "cuda": (low_bits.INT4_PACK_CUDA, low_bits.INT4_PRODUCT_CUDA),
    }
    packed_weight: torch.Tensor
    scales_and_zeros: torch.Tensor

    def round_weight(self, weight: torch.Tensor) -> dict[str, torch.Tensor]:
        """Round the weight, and pack it as the device wants it."""
        whole, scales_and_zeros = round_groups(weight)
        return {"packed_weight": _pack_int4(whole), "scales_and_zeros": scales_and_zeros}

    def multiply(self, rows: torch.Tensor) -> torch.Tensor:
        """Multiply with the rounded weight."""
        if is_wide(rows):
            return functional.linear(rows, self.dequantize().to(rows.dtype))
        multiply = _multiply_int4 if rows.device.type == "cpu" else _multiply_int4_cuda
        product: torch.Tensor = multiply(
            rows.bfloat16().contiguous(), self.packed_weight, GROUP, self.scales_and_zeros.bfloat16()
        )
        return product

    def dequantize(self) -> torch.Tensor:
        """Return the rounded weight as numbers, from the weight: only the device can read what it packed."""
        whole, scales_and_zeros = round_groups(self.read_weight())
        scale, zero = scales_and_zeros.to(self.weight.dtype).transpose(0, 1).unbind(2)
        groups: torch.Tensor = (whole - 8).unflatten(1, (-1, GROUP)).to(self.weight.dtype)
        found: torch.Tensor = groups * scale[..., None] + zero[..., None]
        return found.flatten(1)


class Float8Weights(QuantizedLinear):
    """Weights of 8 bits, 4 of them for an exponent, with a scale for each output. Products are in the input's dtype.

    It is for a GPU: Inductor converts the weight where it multiplies few rows number by number. For a CPU it writes
    the converted weight to memory in each call, and calls a library with it, so that nothing is saved.
    """

    MULTIPLES: ClassVar = {"cuda": (1, 1)}
    float8_bytes: torch.Tensor
    weight_scale: torch.Tensor
    float8: torch.dtype

    def round_weight(self, weight: torch.Tensor) -> dict[str, torch.Tensor]:
        """Round the weight. The scales are in bfloat16, so that a copy of the layer in it has the same ones."""
        self.float8 = _FLOAT8
        scale = scale_rows(weight, _LARGEST_FLOAT8)[1].bfloat16()
        return {"float8_bytes": _to_bytes(weight.float() / scale.float()), "weight_scale": scale.flatten()}

    def multiply(self, rows: torch.Tensor) -> torch.Tensor:
        """Multiply with the rounded weight."""
        return functional.linear(rows, self.dequantize(rows.dtype))

    def dequantize(self, dtype: torch.dtype) -> torch.Tensor:
        """Return the rounded weight as numbers. float16 holds them, but not each scale."""
        scale = self.weight_scale if is_wide(self.weight_scale) else self.weight_scale.float()
        return (self.float8_bytes.view(self.float8).to(scale.dtype) * scale[:, None]).to(dtype)


class Float8Dynamic(QuantizedLinear):
    """Numbers of 8 bits, 4 of them for an exponent: the weight with a scale for each output, inputs for each row."""

    MULTIPLES: ClassVar = {"cuda": (16, 16)}
    NAMES: ClassVar = {"cuda": (low_bits.FLOAT8_PRODUCT,)}
    float8_bytes: torch.Tensor
    weight_scale: torch.Tensor
    float8: torch.dtype

    def round_weight(self, weight: torch.Tensor) -> dict[str, torch.Tensor]:
        """Round the weight."""
        self.float8 = _FLOAT8  # code compiled ahead of time depends on no global dtype
        scaled, scale = self.scale(weight)
        return {"float8_bytes": _to_bytes(scaled), "weight_scale": scale.flatten()}

    def multiply(self, rows: torch.Tensor) -> torch.Tensor:
        """Round the rows, and multiply."""
        scaled, scale = self.scale(rows)
        # A product wants its rows one after the other: those of a transposed input are not.
        small, weight = scaled.to(self.float8).contiguous(), self.float8_bytes.view(self.float8)
        if is_wide(rows) or not rows.is_cuda:
            return functional.linear(small.to(scale.dtype), weight.to(scale.dtype)) * scale * self.weight_scale
        found: torch.Tensor = _multiply_float8(
            small, weight.t(), scale, self.weight_scale.float()[None], out_dtype=torch.bfloat16
        )
        return found

    def scale(self, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return rows scaled to the numbers of float8, and the scales."""
        return scale_rows(rows, _LARGEST_FLOAT8)


class Float8PerTensor(Float8Dynamic):
    """The same with one scale for the whole weight, and one for all inputs of a call.

    Where one row has far larger numbers than the others, these keep few bits.
    """

    def scale(self, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return rows scaled to the numbers of float8, and their only scale."""
        return scale_matrix(rows, _LARGEST_FLOAT8)


FORMATS = (Int8Dynamic, Int8Weights, Int4Weights, Float8Weights, Float8Dynamic, Float8PerTensor)
_FLOAT8 = torch.float8_e4m3fn
_LARGEST_FLOAT8 = torch.finfo(_FLOAT8).max


@functools.cache
def multiplies_exactly() -> bool:
    """Whether a CPU's product of whole numbers is exact: without VNNI, sums of two products may be cut to 16 bits."""
    most = torch.full((32, 64), 127, dtype=torch.int8)
    signs = (1, -1)
    return all(
        bool((_multiply_int8(most * one, (most * other).t()) == 64 * 127 * 127 * one * other).all())
        for one in signs
        for other in signs
    )


def is_wide(tensor: torch.Tensor) -> bool:
    """Whether a tensor is in float64. Code compiled ahead of time depends on no global name, such as a dtype's."""
    return tensor.element_size() > 4


def scale_rows(rows: torch.Tensor, largest: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Return rows scaled so that none has a number above `largest`, and their scales, in float32 or float64."""
    wide = rows if is_wide(rows) else rows.float()
    scale = wide.abs().amax(1, keepdim=True).clamp(min=TINY) / largest
    return wide / scale, scale


def scale_matrix(rows: torch.Tensor, largest: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Do the same with one scale for all rows, as a matrix with one number."""
    wide = rows if is_wide(rows) else rows.float()
    scale = wide.abs().amax((0, 1), keepdim=True).clamp(min=TINY) / largest
    return wide / scale, scale


def _to_bytes(scaled: torch.Tensor) -> torch.Tensor:
    """Round to float8, as bytes: a copy of a layer in a lower precision would convert the numbers."""
    return scaled.to(_FLOAT8).view(torch.uint8)


def round_groups(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a weight as whole numbers from 0 to 15, and the scale and offset of each group, in bfloat16.

    A number is its distance from 8, times the scale, plus the offset.
    """
    groups = weight.float().unflatten(1, (-1, GROUP))
    least, most = groups.amin(2), groups.amax(2)
    scale = ((most - least).clamp(min=TINY) / 15).bfloat16()
    zero = (least + 8 * scale.float()).bfloat16()
    whole = torch.round((groups - zero.float()[..., None]) / scale.float()[..., None]) + 8
    found = whole.clamp(0, 15).flatten(1).to(torch.int32)
    return found, torch.stack([scale, zero], 2).transpose(0, 1).contiguous()


def _pack_int4(whole: torch.Tensor) -> Any:
    if whole.device.type == "cpu":
        return low_bits.INT4_PACK.get()(whole, 1)
    pairs = (whole[:, ::2] << 4 | whole[:, 1::2]).to(torch.uint8)
    return low_bits.INT4_PACK_CUDA.get()(pairs, 8)
