"""The operator of products of few rows, which compiled code calls.

The form of its kernel is chosen by time (`tuning.py`). The weights of these calls are copies, and so many that none is
in the GPU's cache when it is read again, as in a model.

Inductor takes the operator as it is, and joins the work around it to other kernels.
"""

from __future__ import annotations

import functools
import importlib
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from torchwise._torch.hopper import is_hopper
from torchwise.compile.few_rows.forms import MAX_ROWS, DotForm, Form, Work, list_forms
from torchwise.compile.few_rows.tuning import copy_tensors, find_form

KERNEL = "torchwise.compile.few_rows.kernel"
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": functional.silu,
    "relu": functional.relu,
    "sigmoid": torch.sigmoid,
    "gelu": functional.gelu,
    "gelu_tanh": functools.partial(functional.gelu, approximate="tanh"),
}
TYPES = (torch.bfloat16, torch.float16, torch.float32)
LOW_BITS = (torch.int8, torch.float8_e4m3fn)
"""Types of weights that have a scale for each output."""

_library = torch.library.Library("torchwise", "DEF")
_library.define(
    "products_of_few_rows(Tensor rows, Tensor[] weights, Tensor[] scales, Tensor[] biases, str activation, "
    "Tensor? added=None, Tensor? gain=None, float? epsilon=None) -> Tensor[]"
)
starts_early = functools.cache(is_hopper)
"""Whether kernels of a device may begin while the kernel before them ends (programmatic dependent launch)."""


def multiply(
    rows: Tensor,
    weights: Sequence[Tensor],
    scales: Sequence[Tensor],
    biases: Sequence[Tensor],
    activation: str,
    added: Tensor | None = None,
    gain: Tensor | None = None,
    epsilon: float | None = None,
) -> list[Tensor]:
    """Return the products of rows with weights.

    Args:
        rows: (..., inputs), at most `MAX_ROWS` of them, in one of `TYPES`.
        weights: (outputs, inputs) each, in the type of the rows, or in one of `LOW_BITS`. All are contiguous, or else
            transposes of contiguous ones.
        scales: for each weight the factors of its outputs, (outputs,), or none at all.
        biases: for each weight (outputs,), or none at all.
        activation: one of `ACTIVATIONS`, with which there is one weight, or two of one size. The only answer is then
            the activation of the first product, times the second if there is one. Without it (""), there is an answer
            for each weight.
        added: added to the only answer, of its shape and type, or None.
        gain: (inputs,), by which the rows are multiplied after their norm, in their type, or None.
        epsilon: added to the mean square of a row, by whose root the row is divided first, or None for rows as
            they are. Source: RMSNorm, https://arxiv.org/abs/1910.07467.
    """
    if not _can_launch(rows, weights, scales, biases, gain, epsilon):
        return multiply_plainly(rows, weights, scales, biases, activation, added, gain, epsilon)
    flat = rows.reshape(-1, rows.shape[-1]).contiguous()
    flat_added = None if added is None else added.reshape(len(flat), -1).contiguous()
    work = Work(
        len(flat),
        flat.shape[1],
        tuple(len(one) for one in weights),
        weights[0].element_size(),
        activation,
        not all(one.is_contiguous() for one in weights),
        rows.element_size(),
    )
    given = (flat, tuple(weights), tuple(scales), tuple(biases), flat_added, gain, epsilon)
    types = (rows.dtype, weights[0].dtype, *(one[0].dtype if one else None for one in (scales, biases)))
    key = (work, *types, added is not None, gain is not None, epsilon)

    def begin_timing() -> tuple[Callable[[Form | DotForm | None], object], int]:
        copies = copy_tensors(given[1])
        turns = itertools.cycle(copies)

        def compute(form: Form | DotForm | None) -> object:
            copied = next(turns)
            if form is None:
                return multiply_plainly(rows, copied, scales, biases, activation, added, gain, epsilon)
            return _launch(form, work, flat, copied, *given[2:])

        return compute, len(copies)

    forms: Sequence[Form | DotForm] = list_forms(work)
    form = find_form(key, KERNEL, rows.device, forms, lambda form: _launch(form, work, *given), begin_timing)
    if form is None:
        return multiply_plainly(rows, weights, scales, biases, activation, added, gain, epsilon)
    return _unflatten(_launch(form, work, *given), rows)


def multiply_plainly(
    rows: Tensor,
    weights: Sequence[Tensor],
    scales: Sequence[Tensor],
    biases: Sequence[Tensor],
    activation: str,
    added: Tensor | None = None,
    gain: Tensor | None = None,
    epsilon: float | None = None,
) -> list[Tensor]:
    """Return the same by PyTorch's own operators."""
    found = []
    if epsilon is not None:
        rows = functional.rms_norm(rows, rows.shape[-1:], gain, epsilon)
    for place, weight in enumerate(weights):
        bias = biases[place].to(rows.dtype) if biases else None
        if scales:
            within = torch.promote_types(scales[place].dtype, rows.dtype)
            weight = (weight.to(within) * scales[place].to(within)[:, None]).to(rows.dtype)
        found.append(functional.linear(rows, weight, bias))
    if activation:
        found[0] = ACTIVATIONS[activation](found[0])
        found = [found[0] * found[1] if len(found) == 2 else found[0]]
    return found if added is None else [found[0] + added.reshape(found[0].shape)]


def describe(
    rows: Tensor,
    weights: Sequence[Tensor],
    _scales: Sequence[Tensor],
    _biases: Sequence[Tensor],
    activation: str,
    _added: Tensor | None = None,
    _gain: Tensor | None = None,
    _epsilon: float | None = None,
) -> list[Tensor]:
    """Return tensors without data that are like the answers."""
    answers = weights[:1] if activation else weights
    return [rows.new_empty((*rows.shape[:-1], one.shape[0])) for one in answers]


_library.impl("products_of_few_rows", multiply, "CUDA")
_library.impl("products_of_few_rows", multiply, "CPU")
torch.library.register_fake("torchwise::products_of_few_rows", describe, lib=_library)
products_of_few_rows = torch.ops.torchwise.products_of_few_rows.default


def _can_launch(
    rows: Tensor,
    weights: Sequence[Tensor],
    scales: Sequence[Tensor],
    biases: Sequence[Tensor],
    gain: Tensor | None,
    epsilon: float | None,
) -> bool:
    """Whether the kernel reads these tensors as they lie in memory."""
    return (
        runs_kernels(rows.device.type)
        and 0 < rows.numel() <= MAX_ROWS * rows.shape[-1]
        and all(one.is_contiguous() for one in (*scales, *biases, *(() if gain is None else (gain,))))
        and (all(one.is_contiguous() for one in weights) or _are_turned(weights, epsilon))
        and all(one.numel() > 0 for one in (*weights, *scales, *biases))
    )


def _are_turned(weights: Sequence[Tensor], epsilon: float | None) -> bool:
    """Whether the kernel reads weights that lie with their outputs side by side.

    It does without a norm. With one, and several rows, LLVM of Triton 3.6 fails an assertion, which ends the process.
    """
    return epsilon is None and all(one.t().is_contiguous() for one in weights)


def runs_kernels(device: str) -> bool:
    """Whether the kernel of Triton runs on devices of a type."""
    return device == "cuda"


def _unflatten(found: Sequence[Tensor], rows: Tensor) -> list[Tensor]:
    return [one.view(*rows.shape[:-1], one.shape[1]) for one in found]


def _launch(
    form: Form | DotForm,
    work: Work,
    rows: Tensor,
    weights: tuple[Tensor, ...],
    scales: tuple[Tensor, ...],
    biases: tuple[Tensor, ...],
    added: Tensor | None = None,
    gain: Tensor | None = None,
    epsilon: float | None = None,
) -> list[Tensor]:
    """Launch the kernel, and return its answers (rows, outputs)."""
    found = tuple(rows.new_empty((work.rows, size)) for size in work.sizes[: 1 if work.activation else None])
    is_early = rows.is_cuda and starts_early(rows.device)
    with torch.cuda.device(rows.device if rows.is_cuda else -1):  # on which Triton launches
        _load_kernel()[work.count_programs(form)](
            rows,
            weights,
            scales or (rows,) * len(weights),  # of which nothing is read
            biases or (rows,) * len(weights),
            rows if gain is None else gain,
            rows if added is None else added,
            found,
            COUNT=len(weights),
            ROWS=work.rows,
            SIZES=work.sizes,
            LENGTH=work.length,
            HAS_SCALES=bool(scales),
            HAS_BIASES=bool(biases),
            HAS_GAIN=gain is not None,
            HAS_ADDED=added is not None,
            EPSILON=epsilon,
            ACTIVATION=work.activation,
            BLOCK_ROWS=form.rows if isinstance(form, DotForm) else work.block_rows,
            BLOCK=form.block,
            WIDTH=work.find_width(form),
            IS_TURNED=work.is_turned,
            IS_UNROLLED=work.is_unrolled(form),
            STAGES=form.stages if isinstance(form, DotForm) else 0,
            PARTS=form.warps,
            STARTS_EARLY=is_early,
            HAS_PTX=rows.is_cuda and torch.version.hip is None,
            num_warps=form.warps,
            **({"launch_pdl": True} if is_early else {}),
        )
    return [*found]


@functools.cache
def _load_kernel() -> Any:
    return importlib.import_module(KERNEL).multiply
