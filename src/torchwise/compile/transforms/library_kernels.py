"""Which of its kernels a library takes: cuDNN for a convolution, PyTorch for fused attention.

cuDNN picks the kernel of a convolution by a rule. With `torch.backends.cudnn.benchmark` it times all of them on the
first call of each size, and keeps the fastest.

PyTorch has fused attention by FlashAttention (https://arxiv.org/abs/2307.08691), by cuDNN, by the memory-efficient
kernel of xFormers, and as separate products. It takes the first, in a fixed order, that can answer a call. Which one is
the fastest depends on the GPU, the sizes and the mask. Here another one comes first, and leaves
to the others the calls that it does not take.

FlashAttention 3 (https://arxiv.org/abs/2407.08608) and 4 are packages of their own. PyTorch puts their kernels in the
place of its FlashAttention, in the whole process. They refuse calls that they are not made for, such as in float32.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch.fx import Graph
from torch.nn import attention
from torch.nn.attention import SDPBackend, sdpa_kernel

from torchwise._torch.private_name import PrivateName
from torchwise.compile.transforms.function_graphs.nodes import name_of
from torchwise.errors import UnsupportedError, first_line, format_error

ORDER = (
    SDPBackend.FLASH_ATTENTION,
    SDPBackend.CUDNN_ATTENTION,
    SDPBackend.EFFICIENT_ATTENTION,
    SDPBackend.MATH,
)
ATTENTION = (
    "scaled_dot_product_attention",
    "multi_head_attention_forward",
    "native_multi_head_attention",
    "transformer_encoder_layer_fwd",
)
"""The functions that compute fused attention, as nodes of a recorded call name them."""
CONVOLUTIONS = tuple(f"conv{kind}{dims}d" for kind in ("", "_transpose") for dims in (1, 2, 3))


def calls_attention(graph: Graph) -> bool:
    """Whether a recorded call computes fused attention."""
    return _calls(graph, ATTENTION)


def guesses_kernels(graph: Graph) -> bool:
    """Whether a recorded call has convolutions, whose kernels cuDNN does not time."""
    cudnn = torch.backends.cudnn
    return bool(cudnn.is_available()) and not cudnn.benchmark and _calls(graph, CONVOLUTIONS)


def _calls(graph: Graph, names: tuple[str, ...]) -> bool:
    return any(name_of(node) in names for node in graph.nodes)


@contextlib.contextmanager
def time_convolutions() -> Iterator[None]:
    """Have cuDNN time its kernels for each new size."""
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = True
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before


def put_flash_first() -> AbstractContextManager[Any]:
    """Ask FlashAttention first."""
    return _put_first(SDPBackend.FLASH_ATTENTION)


def put_cudnn_first() -> AbstractContextManager[Any]:
    """Ask cuDNN's attention first."""
    return _put_first(SDPBackend.CUDNN_ATTENTION)


def put_efficient_first() -> AbstractContextManager[Any]:
    """Ask memory-efficient attention first."""
    return _put_first(SDPBackend.EFFICIENT_ATTENTION)


def take_flash_3() -> AbstractContextManager[Any]:
    """Ask FlashAttention first, by the kernels of its third version."""
    return _take_flash("FA3")


def take_flash_4() -> AbstractContextManager[Any]:
    """Ask FlashAttention first, by the kernels of its fourth version."""
    return _take_flash("FA4")


def take_products() -> AbstractContextManager[Any]:
    """Have separate products and a softmax answer all calls."""
    context: AbstractContextManager[Any] = sdpa_kernel(SDPBackend.MATH)
    return context


def _put_first(backend: SDPBackend) -> AbstractContextManager[Any]:
    others = [other for other in ORDER if other != backend]
    context: AbstractContextManager[Any] = sdpa_kernel([backend, *others], set_priority=True)
    return context


@contextlib.contextmanager
def _take_flash(version: str) -> Iterator[None]:
    """Have the kernels of a version answer for FlashAttention, and then those that did before.

    Raises:
        UnsupportedError: this PyTorch has no such version, or its package cannot be imported.
    """
    activate = PrivateName("torch.nn.attention", "activate_flash_attention_impl").get(version)
    before = attention.current_flash_attention_impl()
    try:
        try:
            activate(version)
        except (ImportError, RuntimeError, ValueError) as error:
            raise UnsupportedError(
                f"FlashAttention's {version} cannot be used: {first_line(format_error(error))}"
            ) from error
        with _put_first(SDPBackend.FLASH_ATTENTION):
            yield
    finally:
        if before is not None:  # PyTorch takes it away also where it then fails to activate another one
            activate(before)
        elif attention.current_flash_attention_impl() is not None:
            attention.restore_flash_attention_impl()
