"""Name the obstacles to a capture, each with the line of the user's code that causes it.

Before recording, `record_waits` observes a call that runs as usual. PyTorch's debug mode for synchronizing
operations reports them, and the call completes. The mode covers neither `torch.cuda.synchronize` nor the namespaces
`torch.distributed` and `torch.sparse`, as its documentation says. Operations that it misses fail while recording, and
`capture_error` explains that failure.
"""

from __future__ import annotations

import contextlib
import linecache
import os
import sys
import sysconfig
import threading
import traceback
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import torch

from torchwise.errors import UnsupportedError, first_line

_SYNCHRONISES = "called a synchronizing CUDA operation"
_MACHINERY = (
    str(Path(torch.__file__).parent) + os.sep,  # the separator excludes torchvision
    str(Path(__file__).parents[1]) + os.sep,  # compile/, which every captured call passes
    *(str(Path(__file__).parents[2] / package) + os.sep for package in ("runtime", "trial", "workload")),
)
_debug_mode_lock = threading.RLock()
"""PyTorch's debug mode and Python's warnings are shared by all threads."""
_STANDARD = sysconfig.get_paths()["stdlib"]
_REASONS = (
    ("GradScaler", "GradScaler reads from the GPU whether to step: create the optimizer with fused=True"),
    ("stream is capturing", "it waits for the GPU: keep the decision there (torch.where), or remove it"),
    ("depend on a capturing", "it uses another stream, which the capture does not include"),
    ("not in capture mode", "it draws from a torch.Generator of its own: use PyTorch's default generator"),
    ("without graph registration", "it draws from a torch.Generator of its own: use PyTorch's default generator"),
    ("during CUDA graph capture", "it copies from the CPU, or waits for the GPU: keep the data on the GPU"),
)
_OF_THE_CODE = ("capture", "backend", "scope", "transforms")
"""The parts of a plan on which it depends whether a known obstacle, at a line of the user's code, is met."""


def capture_error(error: BaseException, what: str = "the call") -> UnsupportedError:
    """Return an error that says why recording failed, and at which line, to be raised `from` the error.

    Ending a broken capture raises again, so the first error of the chain counts.
    """
    chain = [error]
    while (before := chain[-1].__cause__ or chain[-1].__context__) is not None and before not in chain:
        chain.append(before)
    first = next((e for e in reversed(chain) if place_of(e)), chain[-1])
    frames = "".join(f.name + f.filename for f in traceback.extract_tb(first.__traceback__))
    message = first_line(str(first)) or type(first).__name__
    known = f"{message} {'GradScaler' if 'grad_scaler.py' in frames else ''}"
    reason = next((reason for mark, reason in _REASONS if mark in known), None)
    place = place_of(first)
    message = f"{what} cannot be captured, because of {place or type(first).__name__}: {reason or message}"
    return UnsupportedError(message, _OF_THE_CODE if reason and place else ())


@contextlib.contextmanager
def explain_failure(what: str) -> Iterator[None]:
    """Raise errors of a recording within as `UnsupportedError`, with `what` as the subject of the message."""
    try:
        yield
    except UnsupportedError:
        raise
    except Exception as error:  # a model may raise anything, and ending a broken capture more
        raise capture_error(error, what) from error


def is_of_capture(error: BaseException) -> bool:
    """Whether recording failed because of the capture, and not, for example, out of memory."""
    return any(mark in str(error) for mark, _ in _REASONS) or any(
        before is not None and is_of_capture(before) for before in {error.__cause__, error.__context__}
    )


def place_of(error: BaseException) -> str | None:
    """Return the innermost line outside PyTorch that an error came through, such as "model.py:12, in forward: `…`"."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if _is_users(frame.filename)]
    return _place(frames[-1].filename, frames[-1].lineno or 0, frames[-1].name) if frames else None


@contextlib.contextmanager
def record_waits() -> Iterator[list[str]]:
    """List the lines at which the code within waits for the GPU. The code still runs to its end.

    Other threads are not listed. While another thread is observed, this one is not.
    """
    lines: list[str] = []
    if not _debug_mode_lock.acquire(blocking=False):
        yield lines
        return
    try:
        with _reported_to(lines):
            yield lines
    finally:
        _debug_mode_lock.release()


@contextlib.contextmanager
def _reported_to(lines: list[str]) -> Iterator[None]:
    me, before = threading.get_ident(), torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings():
        shown = warnings.showwarning

        def note_warning(message: Warning | str, *rest: object, **options: object) -> None:
            if _SYNCHRONISES in str(message):
                if threading.get_ident() == me:  # a backward pass passes on the warnings of its threads
                    lines.append(place_of_caller(2))
            elif not str(message).startswith("Synchronization debug mode is a prototype"):
                shown(message, *rest, **options)  # type: ignore[arg-type]

        warnings.showwarning = note_warning
        warnings.filterwarnings("always", message=_SYNCHRONISES)
        torch.cuda.set_sync_debug_mode("warn")
        try:
            yield
        finally:
            torch.cuda.set_sync_debug_mode(before)


def make_wait_error(lines: list[str], what: str = "the call") -> UnsupportedError:
    """Return an error that says that the observed call waits for the GPU, and at which line."""
    reason = _REASONS[0 if "grad_scaler" in lines[0] else 1][1]
    return UnsupportedError(f"{what} cannot be captured, because of {lines[0]}: {reason}", _OF_THE_CODE)


def place_of_caller(above: int = 1) -> str:
    """Return the user's innermost line on the stack, with the part of PyTorch that it went through last."""
    frame: FrameType | None = sys._getframe(above)
    through = ""
    while frame is not None and not _is_users(frame.f_code.co_filename):
        if frame.f_code.co_filename.endswith("grad_scaler.py"):
            through = " (grad_scaler)"
        frame = frame.f_back
    return _place(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name) + through if frame else "it"


def _place(file: str, line: int, function: str) -> str:
    text = linecache.getline(file, line).strip()
    return f"{Path(file).name}:{line}, in {function}" + (f": `{text}`" if text else "")


def _is_users(file: str) -> bool:
    """Whether code is neither PyTorch's, nor the capture's, nor the standard library's (contextlib, functools)."""
    if file.startswith((*_MACHINERY, "<frozen")):
        return False
    return not file.startswith(_STANDARD) or "-packages" in file
