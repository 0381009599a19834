"""The operator of products of few rows, which compiled code calls, and the choice of the form of its kernel.

A form is chosen by time, on the first call for each kind of products. The weights of these calls are copies, and so
many that none is in the GPU's cache when it is read again, as in a model. PyTorch's own product is tried as well. The
choice is kept beside compiled code.

Inductor takes the operator as it is, and joins the work around it to other kernels.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib
import importlib.metadata
import importlib.util
import itertools
import json
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from torchwise._torch.hopper import is_hopper
from torchwise.compile.few_rows.forms import Form, Work, list_forms
from torchwise.compile.programs.build import write_whole
from torchwise.compile.programs.gpu.launch import find_folder, is_capturing, pick_fastest, time_calls, try_kept
from torchwise.errors import UnsupportedError

KERNEL = "torchwise.compile.few_rows.kernel"
MAX_ROWS = 8
TUNING_S = 12.0
"""Seconds after which no further form of the first kind of products is tried. The second has half of it, and so on."""
MIN_COPIED, MAX_COPIES = 192 << 20, 16
"""Bytes of the weights of all timed calls, of which no cache holds much, and most copies of the weights."""
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"silu": functional.silu, "relu": functional.relu}
TYPES = (torch.bfloat16, torch.float16, torch.float32)
LOW_BITS = (torch.int8, torch.float8_e4m3fn)
"""Types of weights that have a scale for each output."""

_library = torch.library.Library("torchwise", "DEF")
_library.define(
    "products_of_few_rows(Tensor rows, Tensor[] weights, Tensor[] scales, Tensor[] biases, str activation) -> Tensor[]"
)
_chosen: dict[Any, Form | None] = {}
_lock, _tuned = threading.Lock(), itertools.count(1)
_starts_early = functools.cache(is_hopper)


def multiply(
    rows: Tensor, weights: Sequence[Tensor], scales: Sequence[Tensor], biases: Sequence[Tensor], activation: str
) -> list[Tensor]:
    """Return the products of rows with weights.

    Args:
        rows: (..., inputs), at most `MAX_ROWS` of them, in one of `TYPES`.
        weights: (outputs, inputs) each, in the type of the rows, or in one of `LOW_BITS`.
        scales: for each weight the factors of its outputs, (outputs,), or none at all.
        biases: for each weight (outputs,), or none at all.
        activation: one of `ACTIVATIONS`, with which there are two weights of one size. The only answer is then the
            activation of the first product, times the second. Without it (""), there is an answer for each weight.
    """
    if not _can_launch(rows, weights, scales, biases):
        return multiply_plainly(rows, weights, scales, biases, activation)
    flat = rows.reshape(-1, rows.shape[-1]).contiguous()
    work = Work(
        *(len(flat), flat.shape[1], tuple(len(one) for one in weights), weights[0].element_size()),
        activation=activation,
    )
    given = (flat, tuple(weights), tuple(scales), tuple(biases))
    key = (work, rows.device, rows.dtype, weights[0].dtype, *(one[0].dtype if one else None for one in given[2:]))
    if key not in _chosen and not is_capturing(rows.device):
        with _lock:
            if key not in _chosen:
                _chosen[key] = _choose(work, key, *given)
    form = _chosen.get(key)  # none yet if it is captured, as nothing can be timed or compiled then
    if form is None:
        return multiply_plainly(rows, weights, scales, biases, activation)
    return _unflatten(_launch(form, work, *given), rows)


def multiply_plainly(
    rows: Tensor, weights: Sequence[Tensor], scales: Sequence[Tensor], biases: Sequence[Tensor], activation: str
) -> list[Tensor]:
    """Return the same by PyTorch's own operators."""
    found = []
    for place, weight in enumerate(weights):
        bias = biases[place].to(rows.dtype) if biases else None
        if scales:
            within = torch.promote_types(scales[place].dtype, rows.dtype)
            weight = (weight.to(within) * scales[place].to(within)[:, None]).to(rows.dtype)
        found.append(functional.linear(rows, weight, bias))
    return [ACTIVATIONS[activation](found[0]) * found[1]] if activation else found


def describe(
    rows: Tensor, weights: Sequence[Tensor], _scales: Sequence[Tensor], _biases: Sequence[Tensor], activation: str
) -> list[Tensor]:
    """Return tensors without data that are like the answers."""
    answers = weights[:1] if activation else weights
    return [rows.new_empty((*rows.shape[:-1], one.shape[0])) for one in answers]


_library.impl("products_of_few_rows", multiply, "CUDA")
_library.impl("products_of_few_rows", multiply, "CPU")
torch.library.register_fake("torchwise::products_of_few_rows", describe, lib=_library)
products_of_few_rows = torch.ops.torchwise.products_of_few_rows.default


def _can_launch(rows: Tensor, weights: Sequence[Tensor], scales: Sequence[Tensor], biases: Sequence[Tensor]) -> bool:
    """Whether the kernel reads these tensors as they lie in memory."""
    return (
        runs_kernels(rows.device.type)
        and 0 < rows.numel() <= MAX_ROWS * rows.shape[-1]
        and all(one.is_contiguous() and one.numel() > 0 for one in (*weights, *scales, *biases))
    )


def runs_kernels(device: str) -> bool:
    """Whether the kernel of Triton runs on devices of a type."""
    return device == "cuda"


def _unflatten(found: Sequence[Tensor], rows: Tensor) -> list[Tensor]:
    return [one.view(*rows.shape[:-1], one.shape[1]) for one in found]


def _launch(
    form: Form,
    work: Work,
    rows: Tensor,
    weights: tuple[Tensor, ...],
    scales: tuple[Tensor, ...],
    biases: tuple[Tensor, ...],
) -> list[Tensor]:
    """Launch the kernel, and return its answers (rows, outputs)."""
    found = tuple(rows.new_empty((work.rows, size)) for size in work.sizes[: 1 if work.activation else None])
    starts_early = rows.is_cuda and _starts_early(rows.device)  # programmatic dependent launch
    with torch.cuda.device(rows.device if rows.is_cuda else -1):  # on which Triton launches
        _load_kernel()[(work.count_programs(form),)](
            rows,
            weights,
            scales or (rows,) * len(weights),  # of which nothing is read
            biases or (rows,) * len(weights),
            found,
            COUNT=len(weights),
            ROWS=work.rows,
            SIZES=work.sizes,
            LENGTH=work.length,
            HAS_SCALES=bool(scales),
            HAS_BIASES=bool(biases),
            ACTIVATION=work.activation,
            BLOCK_ROWS=work.block_rows,
            BLOCK=form.block,
            WIDTH=form.count_columns(work.item_bytes),
            IS_UNROLLED=work.is_unrolled(form),
            STARTS_EARLY=starts_early,
            HAS_PTX=rows.is_cuda and torch.version.hip is None,
            num_warps=form.warps,
            **({"launch_pdl": True} if starts_early else {}),
        )
    return [*found]


@functools.cache
def _load_kernel() -> Any:
    return importlib.import_module(KERNEL).multiply


def _choose(
    work: Work,
    key: Any,
    rows: Tensor,
    weights: tuple[Tensor, ...],
    scales: tuple[Tensor, ...],
    biases: tuple[Tensor, ...],
) -> Form | None:
    """Return the fastest form, or None if PyTorch's own product is faster."""
    forms = list_forms(work)
    if not rows.is_cuda:
        return forms[0]
    file = _find_file(key, rows.device)

    def attempt(kept: dict[str, int] | None) -> Form | None:
        if kept is None:
            return None
        _launch(form := Form(**kept), work, rows, weights, scales, biases)
        return form

    with contextlib.suppress(UnsupportedError):
        return try_kept(file, attempt)
    copies = _copy(weights)

    def measure(form: Form | None) -> tuple[float, None]:
        def call() -> None:
            given = next(turns)
            if form is None:
                multiply_plainly(rows, given, scales, biases, work.activation)
            else:
                _launch(form, work, rows, given, scales, biases)

        turns = itertools.cycle(copies)
        call()
        return time_calls(call, rows.device, max(len(copies), 4)), None

    form, _ = pick_fastest([None, *forms], measure, TUNING_S / next(_tuned))
    with contextlib.suppress(OSError):  # the next process chooses again
        write_whole(file, json.dumps(vars(form) if form is not None else None).encode())
    return form


def _copy(weights: tuple[Tensor, ...]) -> list[tuple[Tensor, ...]]:
    """Return the weights and copies of them, together larger than any cache, or fewer if memory is short."""
    copies = [weights]
    size = sum(one.nbytes for one in weights)
    with contextlib.suppress(torch.OutOfMemoryError):
        while len(copies) < MAX_COPIES and len(copies) * size < MIN_COPIED:
            copies.append(tuple(one.clone() for one in weights))
    return copies


def _find_file(key: Any, device: torch.device) -> Path:
    spec = importlib.util.find_spec(KERNEL)
    assert spec is not None
    assert spec.origin is not None
    name, triton = torch.cuda.get_device_name(device), importlib.metadata.version("triton")
    facts = (repr((key[0], *key[2:])), name, triton, torch.__version__, Path(spec.origin).read_text())
    return find_folder() / f"products_{hashlib.sha256(repr(facts).encode()).hexdigest()[:40]}.json"
