"""Starts of a compiled kernel that Python has little part in.

Triton looks up a kernel by its arguments on each call, asks the driver about each address, and takes 32 us of an
H200's host, which is longer than a kernel of few rows runs. Here C++ checks the inputs, allocates the outputs, and
starts the kernel by the driver (`native/launch.h`), as a region on a CPU is called.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from torchwise.compile.programs import build
from torchwise.errors import UnsupportedError

ALIGNMENT = 16
"""Bytes of which an address is a multiple where Triton's code relies on it."""
LIBRARY = '#include "region.h"\nconst Entry ENTRIES[] = {{}};\nconst int COUNT = 0;\n'
MOST_TENSORS = 240
"""Tensors of a kernel. The C++ has places for a few more (`MOST` in `native/launch.h`)."""
CUDA = 2
"""The kind of an NVIDIA GPU in DLPack."""
INTEGER, UNSIGNED, FLOAT, BFLOAT, BOOL = 0, 1, 2, 4, 6
"""Kinds of numbers in DLPack."""


@dataclass(frozen=True, slots=True)
class Driver:
    """The functions that start kernels, and the context that they do it in.

    Attributes:
        start: the address of `cuLaunchKernelEx`.
        get_context: that of `cuCtxGetCurrent`.
        get_capture: that of `cuStreamIsCapturing`.
        context: that of the current context.
        device: kind and number of a GPU, as DLPack has them.
    """

    start: int
    get_context: int
    get_capture: int
    context: int
    device: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Compiled:
    """A kernel that Triton has compiled and launched.

    Attributes:
        function: its address.
        programs: of its grid. If they are clusters, the number of those.
        threads: of a program.
        shared: bytes that a program shares.
        cluster: programs of a cluster.
        owner: the object that keeps it loaded.
    """

    function: int
    programs: int
    threads: int
    shared: int
    cluster: int
    owner: object


def find_driver(device: torch.device) -> Driver:
    """Return the driver with a device's context.

    Raises:
        UnsupportedError: it has no such functions, as the GPU is not NVIDIA's or the driver is older than CUDA 11.8.
    """
    if device.type != "cuda" or torch.version.hip is not None:
        raise UnsupportedError(f"kernels are started by NVIDIA's driver, but the device is {device}")
    try:
        library, context = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p()
        start, get_context = library.cuLaunchKernelEx, library.cuCtxGetCurrent
        get_capture = library.cuStreamIsCapturing
    except (OSError, AttributeError) as error:
        raise UnsupportedError(f"the driver has no way to start a kernel: {error}") from error
    with torch.cuda.device(device):
        index = torch.cuda.current_device()
        failed = get_context(ctypes.byref(context))
    if failed or not context.value:
        raise UnsupportedError(f"the driver names no context of {device} (error {failed})")
    addresses = find_address(start), find_address(get_context), find_address(get_capture)
    return Driver(*addresses, context.value, (CUDA, index))


def find_address(function: Any) -> int:
    """Return the address of a function of a loaded library."""
    return ctypes.cast(function, ctypes.c_void_p).value or 0


def read_compiled(kernel: Any, programs: int, cluster: int, given: int) -> Compiled:
    """Read the facts of a kernel that a start needs.

    Args:
        kernel: as Triton's launch returned it.
        programs: of its grid.
        cluster: programs of a cluster.
        given: how many tensors it takes.

    Raises:
        UnsupportedError: Triton keeps it otherwise, or it takes something else than tensors.
    """
    try:
        facts, kinds = kernel.metadata, [str(one) for one in kernel.src.signature.values()]
        function, threads, shared = kernel.function, facts.num_warps * facts.target.warp_size, facts.shared
        memory = [getattr(facts, f"{name}_scratch_size", 0) for name in ("global", "profile")]
        special = [facts.launch_cooperative_grid, facts.launch_pdl, facts.num_ctas != 1]
    except AttributeError as error:
        raise UnsupportedError(f"Triton keeps a compiled kernel otherwise: {error}") from error
    tensors = [one for one in kinds if one != "constexpr"]
    if any(memory) or any(special) or len(tensors) != given or not all(one.startswith("*") for one in tensors):
        raise UnsupportedError(f"the kernel takes {', '.join(tensors)}, memory {memory} and settings {special}")
    return Compiled(int(function), programs, threads, shared, cluster, kernel)


def make_region(other: Callable[..., Any]) -> Any:
    """Return a callable whose calls `other` answers, all of them until it has a kernel (`set_kernel`).

    Compiled code calls it as it is, so Dynamo must have nothing to trace in `other`, either.

    Raises:
        UnsupportedError: there is no C++ compiler, or PyTorch lacks what it needs.
    """
    return _load_library().make_kernel(build.find_exchange(), other, torch.empty_like, torch.Tensor, torch.nn.Parameter)


def set_kernel(
    region: Any,
    driver: Driver,
    compiled: Compiled,
    inputs: Sequence[torch.Tensor],
    prototypes: Sequence[torch.Tensor],
    outputs: int,
    constants: Sequence[torch.Tensor],
    draw: Callable[[], torch.Tensor] | None,
) -> None:
    """Have the driver start a kernel for the calls of a region.

    Args:
        region: of `make_region`.
        driver: it.
        compiled: the kernel.
        inputs: those of the call that it was compiled for. Its code may rely on their alignment.
        prototypes: tensors like its outputs, and then like the memory that its programs share, if any.
        outputs: how many of them are outputs.
        constants: tensors that it takes after its outputs.
        draw: returns a new seed, which it takes after them, or None.

    Raises:
        UnsupportedError: there are too many tensors.
    """
    if (count := len(inputs) + len(prototypes) + len(constants)) > MOST_TENSORS:
        raise UnsupportedError(f"the kernel has {count} tensors, and at most {MOST_TENSORS} are passed to the driver")
    addresses = (driver.start, driver.get_context, driver.get_capture, driver.context, compiled.function)
    _load_library().set_kernel(
        *(region, tuple(prototypes), outputs, driver.device, tuple(map(_write_form, inputs))),
        (*addresses, *(one.data_ptr() for one in constants)),
        (compiled.programs, compiled.threads, compiled.shared, compiled.cluster),
        *(draw, (compiled.owner, tuple(constants))),
    )


def _write_form(tensor: torch.Tensor) -> tuple[int, int, tuple[int, ...], tuple[int, ...], int]:
    mask = 0 if tensor.data_ptr() % ALIGNMENT else ALIGNMENT - 1
    return _find_kind(tensor.dtype), 8 * tensor.dtype.itemsize, tuple(tensor.shape), tensor.stride(), mask


def _find_kind(dtype: torch.dtype) -> int:
    if dtype in (torch.bool, torch.bfloat16):
        return BOOL if dtype is torch.bool else BFLOAT
    if dtype.is_floating_point:
        return FLOAT
    return INTEGER if dtype.is_signed else UNSIGNED


@functools.cache
def _load_library() -> Any:
    return build.load_module(LIBRARY)


def make_prototype(
    shape: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype, device: torch.device
) -> torch.Tensor:
    """Return a tensor whose `torch.empty_like` has a form. It has memory for one number where that will do."""
    small = torch.empty((), dtype=dtype, device=device).expand(shape)
    if torch.empty_like(small, device="meta").stride() == strides:
        return small
    return torch.empty_strided(shape, strides, dtype=dtype, device=device)
