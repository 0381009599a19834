"""The choice of the form of a kernel by time, on its first call. It is kept beside compiled code.

PyTorch's own operators are tried as well, and are the form None.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import importlib.util
import itertools
import json
import threading
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from torchwise.compile.programs.build import write_whole
from torchwise.compile.programs.gpu.launch import find_folder, is_capturing, pick_fastest, time_calls, try_kept
from torchwise.errors import UnsupportedError
from torchwise.workload.layouts import reach_of

TUNING_S = 12.0
"""Seconds after which no further form of the first kind of call is tried. The second has half of it, and so on."""
MIN_COPIED, MAX_COPIES = 192 << 20, 16
"""Bytes that all timed calls read, of which no cache holds much, and most copies of what one call reads."""
Form = TypeVar("Form")

_chosen: dict[Any, Any] = {}
_lock, _tuned = threading.Lock(), itertools.count(1)


def find_form(
    key: Any,
    kernel: str,
    device: torch.device,
    forms: Sequence[Form],
    launch: Callable[[Form], object],
    begin_timing: Callable[[], tuple[Callable[[Form | None], object], int]],
) -> Form | None:
    """Return the fastest form for a kind of call, or None if PyTorch's own operators are faster.

    While a graph is recorded, nothing can be timed or compiled: a kind that is not known yet has none.

    Args:
        key: the kind of call. All of a kind have one compiled kernel for each form, as none is compiled while a graph
            is recorded.
        kernel: the module of the kernel.
        device: that of the call.
        forms: instances of one dataclass, the likeliest first.
        launch: launches the kernel for this call in a form.
        begin_timing: returns a function that computes the answer in a form, each time from memory that no cache holds,
            and after how many calls it comes back to the same memory.
    """
    here = (device, key)
    if here not in _chosen and not is_capturing(device):
        with _lock:
            if here not in _chosen:
                _chosen[here] = _choose(key, kernel, device, forms, launch, begin_timing) if forms else None
    found: Form | None = _chosen.get(here)
    return found


def _choose(
    key: Any,
    kernel: str,
    device: torch.device,
    forms: Sequence[Form],
    launch: Callable[[Form], object],
    begin_timing: Callable[[], tuple[Callable[[Form | None], object], int]],
) -> Form | None:
    if device.type != "cuda":
        return forms[0]
    file = _find_file(key, kernel, device)

    def attempt(kept: dict[str, Any] | None) -> Form | None:
        if kept is None:
            return None
        form = type(forms[0])(**kept)
        launch(form)
        return form

    with contextlib.suppress(UnsupportedError):
        return try_kept(file, attempt)
    compute, turns = begin_timing()

    def measure(form: Form | None) -> tuple[float, None]:
        compute(form)
        return time_calls(lambda: compute(form), device, max(turns, 4)), None

    form, _ = pick_fastest([None, *forms], measure, TUNING_S / next(_tuned))
    with contextlib.suppress(OSError):  # the next process chooses again
        write_whole(file, json.dumps(form if form is None else asdict(form)).encode())  # type: ignore[call-overload]
    return form


def copy_tensors(tensors: Sequence[Tensor]) -> list[tuple[Tensor, ...]]:
    """Return tensors and copies of them that lie alike, together larger than any cache, or none if memory is short."""
    copies = [tuple(tensors)]
    size = sum(map(reach_of, tensors))  # gaps included, as copies have them
    try:
        while len(copies) < MAX_COPIES and len(copies) * size < MIN_COPIED:
            copies.append(tuple(map(_copy, tensors)))
    except torch.OutOfMemoryError:  # what is left is for the timed calls
        del copies[1:]
    return copies


def _copy(tensor: Tensor) -> Tensor:
    """Return a copy with the same strides. What is repeated stays so."""
    single = tensor[tuple(slice(0, 1) if stride == 0 else slice(None) for stride in tensor.stride())]
    made = torch.empty_strided(single.shape, single.stride(), dtype=tensor.dtype, device=tensor.device)
    return made.copy_(single).expand(tensor.shape)


def _find_file(key: Any, kernel: str, device: torch.device) -> Path:
    spec = importlib.util.find_spec(kernel)
    assert spec is not None
    assert spec.origin is not None
    name, triton = torch.cuda.get_device_name(device), importlib.metadata.version("triton")
    texts = [one.read_text() for one in sorted(Path(spec.origin).parent.glob("*.py"))]
    facts = (repr(key), name, triton, torch.__version__, texts)
    return find_folder() / f"few_rows_{hashlib.sha256(repr(facts).encode()).hexdigest()[:40]}.json"
