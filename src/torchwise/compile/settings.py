"""Process-wide settings that a plan needs, applied only while its call runs.

Calls may overlap in several threads, and may be nested. The first call saves and sets the settings that the process
shares (TF32, the kernels of libraries), and the last one restores them. The number of threads belongs to each calling
thread.

`torch.set_num_threads` sets two numbers: the calling thread's own (OpenMP's and MKL's), and the default that every
thread gets when it computes for the first time. So a thread that begins to compute while a call is under way in another
would keep that call's number for good. If PyTorch's libraries offer their own functions, which set the calling thread's
number alone, those are called instead.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from torchwise._torch.shared_context import SharedContext
from torchwise.compile.transforms import load_transforms
from torchwise.errors import UnsupportedError
from torchwise.plan import Plan, Stage


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings around a call, put back after it (1.2 microseconds together for threads, 2.6 for TF32).

    Attributes:
        threads: intra-operator threads, or None to leave them.
        shared: settings of the process.
    """

    threads: int | None = None
    shared: tuple[SharedContext, ...] = ()

    def wrap(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """Return `call` under these settings, or `call` itself if nothing is set."""
        if self.threads is not None:
            call = _with_threads(call, self.threads)
        return functools.reduce(lambda wrapped, setting: setting.wrap(wrapped), self.shared, call)


def settings_for(plan: Plan) -> Settings:
    """Return the settings that `plan` needs."""
    chosen = load_transforms(plan.transforms, Stage.SETTING)
    return Settings(plan.threads, tuple(map(_share, [*chosen, _allow_tf32] if plan.precision == "tf32" else chosen)))


_share = functools.cache(SharedContext)


@contextlib.contextmanager
def _allow_tf32() -> Iterator[None]:
    try:
        precision, convolutions = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    except RuntimeError as error:
        raise UnsupportedError(
            "precision is 'tf32', but this process has set fp32_precision, so PyTorch does not report the setting to "
            "restore: use torch.set_float32_matmul_precision and torch.backends.cudnn.allow_tf32 instead, or another "
            "precision"
        ) from error
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.allow_tf32 = True
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(precision)
        torch.backends.cudnn.allow_tf32 = convolutions


def _with_threads(call: Callable[..., Any], threads: int) -> Callable[..., Any]:
    count = thread_count()

    def call_with_threads(*args: Any, **kwargs: Any) -> Any:
        before = count.enter(threads)
        try:
            return call(*args, **kwargs)
        finally:
            count.leave(before)

    return call_with_threads


Before = tuple[int, int]
"""The numbers to restore: the number of threads of operators, and that of MKL, or 0 if MKL uses its own default."""


class OwnCount:
    """The calling thread's own number: no other thread is concerned.

    Args:
        set_openmp: OpenMP's `omp_set_num_threads`.
        set_mkl: MKL's `MKL_Set_Num_Threads_Local`, which returns the number before, or None in a build without MKL.
    """

    def __init__(self, set_openmp: Callable[[int], object], set_mkl: Callable[[int], int] | None) -> None:
        self._set_openmp, self._set_mkl = set_openmp, set_mkl

    def enter(self, threads: int) -> Before:
        """Set the number in this thread, and return the numbers to put back."""
        before = torch.get_num_threads()  # which also gives this thread its number, if it has none yet
        self._set_openmp(threads)
        return before, self._set_mkl(threads) if self._set_mkl else 0

    def leave(self, before: Before) -> None:
        """Put back the numbers that `enter` returned, in the same thread."""
        self._set_openmp(before[0])
        if self._set_mkl:
            self._set_mkl(before[1])


class SharedCount:
    """PyTorch's number, if its libraries have no functions of their own, with the methods of `OwnCount`.

    A thread that asks for the first time is given the number that any thread set last. It must not take that for the
    user's own number, so that one is remembered while any call has another.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside: dict[int, int] = {}  # calls under way in each thread
        self._users = 0

    def enter(self, threads: int) -> Before:
        """Set the number in this thread, and return the numbers to put back."""
        me = threading.get_ident()
        with self._lock:
            before = torch.get_num_threads()
            if not self._inside:
                self._users = before
            depth = self._inside.get(me, 0)
            self._inside[me] = depth + 1
            torch.set_num_threads(threads)
            return (before if depth else self._users), 0

    def leave(self, before: Before) -> None:
        """Put back the numbers that `enter` returned, in the same thread."""
        me = threading.get_ident()
        with self._lock:
            torch.set_num_threads(before[0])
            if self._inside[me] == 1:
                del self._inside[me]
            else:
                self._inside[me] -= 1


@functools.cache
def thread_count() -> OwnCount | SharedCount:
    """Return the object that sets the number of threads in this process."""
    return _find_own_count() or SharedCount()


def _find_own_count() -> OwnCount | None:
    """Return the count of PyTorch's own libraries, if PyTorch is seen to heed it, or None if there is none."""
    try:
        library = ctypes.PyDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))  # loaded already
        set_mkl = library.MKL_Set_Num_Threads_Local if torch.backends.mkl.is_available() else None
        found = OwnCount(library.omp_set_num_threads, set_mkl)
    except (OSError, AttributeError):  # another system, or another build
        return None
    expected = torch.get_num_threads() + 1
    before = found.enter(expected)
    heeded = torch.get_num_threads() == expected
    found.leave(before)
    return found if heeded else None
