"""Three changes of Inductor: of kernels that start early, of the dtype of autocast in cache keys, and of input checks.

By a programmatic dependent launch a kernel starts while the one before it still runs. `gdc_wait` holds it until that
one has ended and its writes are visible (PTX ISA, `griddepcontrol`). That is only sound if every kernel waits. One that
has waited for the kernel before it then knows that all earlier ones have ended. Inductor has a kernel wait where it
shares memory with the very kernel before it, or else after its first load. A kernel that loads nothing, such as one
that fills a tensor with zeros or draws a mask from a seed, does not wait at all. Such a kernel may end before the one
ahead of it. The next, which waits for it alone, then reads memory that is not written yet (torch 2.11 to 2.15,
`TritonKernel._handle_pdl_before_access`). Verification need not see it: it is a matter of microseconds whether it
happens. So each kernel waits first of all here, and only then: after the first wait there is nothing left to wait for.
Only the launch itself still starts early, which is most of the gain if kernels are short.

Before 2.13, a graph under float16 was answered by code compiled for it under bfloat16, in this process or from an
earlier process's cache on disk. PyTorch 2.13 adds the dtype itself (`AOTAutogradCacheDetails.autocast_state`).

Compiled code asks the sizes and strides of each input and weight on every call, which takes a good part of a short one.
Dynamo's guards ask the same before it, or else the signature of the call and the module guard. So code for inference
leaves these checks out. Those of operators' answers stay: nothing else notices an operator that says other strides.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch

from torchwise._torch import inductor
from torchwise._torch.aot_autograd import CACHE_KEY
from torchwise._torch.private_name import check
from torchwise.errors import UnsupportedError

OPTION = "triton.enable_pdl"
WHO = f"Inductor's {OPTION}"


@functools.cache
def wait_first() -> None:
    """Have every new kernel with the option begin by waiting. Other kernels stay unchanged.

    Code that was compiled without the wait is not read from a cache.

    Raises:
        UnsupportedError: this torch generates such kernels in another way.
    """
    check(WHO, (inductor.FILTER_PDL, inductor.ENABLE_PDL, inductor.PDL_WAIT))
    _write_waits(inductor.TRITON_KERNEL.get(WHO))
    note_in_keys(inductor.GRAPH_KEY.get(WHO), "kernels_wait_once_and_first", _is_pdl_enabled)


def _write_waits(kernel: Any) -> None:
    finish = kernel._filter_pdl

    def insert_wait(self: Any, code: Any) -> None:
        # Kernels that torch 2.15 starts early after some products, without the option, stay as they are: their key has
        # no note.
        if _is_pdl_enabled() and self._enable_pdl_codegen():
            code._lines.insert(0, self.GDC_WAIT)
        finish(self, code)  # keeps the first wait of all

    kernel._filter_pdl = insert_wait


def note_in_keys(details: Any, note: str, is_true: Callable[[], bool]) -> None:
    """Have the keys of compiled code (the class `details`) differ by a note where something is true."""
    make = details.__init__

    def init_with_note(self: Any, *args: Any, **kwargs: Any) -> None:
        make(self, *args, **kwargs)
        if is_true():
            setattr(self, note, True)

    details.__init__ = init_with_note


def _is_pdl_enabled() -> bool:
    return bool(inductor.CONFIG.get(WHO).triton.enable_pdl)


class _Compiling(threading.local):
    leaves_out_checks = False


_compiling = _Compiling()


@contextlib.contextmanager
def without_input_checks() -> Iterator[None]:
    """Have code that is compiled here leave out the checks of its inputs. If this torch cannot, they stay."""
    before = _compiling.leaves_out_checks
    _compiling.leaves_out_checks = _can_leave_out_checks()
    try:
        yield
    finally:
        _compiling.leaves_out_checks = before


@functools.cache
def _can_leave_out_checks() -> bool:
    try:
        write, wrapper, details = (
            name.get() for name in (inductor.WRITE_INPUT_CHECKS, inductor.WRAPPER_CODE, inductor.GRAPH_KEY)
        )
    except UnsupportedError:
        return False

    def write_unless_left_out(self: Any) -> None:
        if not _compiling.leaves_out_checks:
            write(self)

    wrapper.codegen_input_size_asserts = write_unless_left_out
    note_in_keys(details, "caller_checks_inputs", lambda: _compiling.leaves_out_checks)
    return True


NOTED = "autocast_state"


@functools.cache
def add_autocast_to_key() -> None:
    """Add the dtype of each active autocast to the key. Keys without autocast stay the same."""
    with contextlib.suppress(UnsupportedError):  # a version without such keys
        details = CACHE_KEY.get("a key of compiled code")
        if NOTED not in details.__init__.__code__.co_names:
            _note_in(details)


def _note_in(details: Any) -> None:
    make = details.__init__

    def init_with_note(self: Any, *args: Any, **kwargs: Any) -> None:
        make(self, *args, **kwargs)
        devices = filter(torch.is_autocast_enabled, ("cpu", "cuda"))
        if noted := {device: torch.get_autocast_dtype(device) for device in devices}:
            setattr(self, NOTED, noted)

    details.__init__ = init_with_note
