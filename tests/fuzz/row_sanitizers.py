"""Row programs with AddressSanitizer and UndefinedBehaviorSanitizer in them, for `rows.py`."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from typing import Any
from unittest import mock

from torchwise.compile import programs
from torchwise.compile.programs import build, source
from torchwise.compile.programs.values import Buffer

SANITIZED = ("-O1", "-g", "-fno-omit-frame-pointer", "-fsanitize=address,undefined", "-fno-sanitize-recover=undefined")
GAP = 64
"""Bytes between the pieces of a workspace that must not be touched."""


def arrange_apart(buffers: Sequence[Buffer], kernels: Sequence[Any]) -> tuple[dict[Buffer, int], int]:
    """Return places in a workspace that no two buffers share, with gaps."""
    used = {buffer for kernel in kernels for buffer in kernel.buffers}
    places, size = dict[Buffer, int](), GAP
    for buffer in (one for one in buffers if one.kind == "work" and one in used):
        places[buffer] = size
        size += source._bytes(buffer) + GAP
    return places, size if places else 0


def write_guarded(regions: Any) -> str:
    """Return the text of regions that forbid access between the pieces of their workspaces, and past their ends."""
    header = (
        '#include <cstddef>\nextern "C" void __asan_poison_memory_region(const volatile void*, size_t);\n'
        'extern "C" void __asan_unpoison_memory_region(const volatile void*, size_t);\n'
        "struct Guard { char* p; size_t n; ~Guard() { __asan_unpoison_memory_region(p, n); } };\n"
    )
    parts = source.write_source(regions).split("static int run(void** pointers) {")
    for number, region in enumerate(regions):
        places, size = source._arrange(region.lowering.buffers, region.lowering.kernels)
        begin = parts[number + 1].find("\n", parts[number + 1].find("work")) if size else 0
        if size > source.MAX_STACK:
            begin = parts[number + 1].find("return 1;") + len("return 1;")
        starts = {0: GAP} | {
            at + buffer.span * buffer.dtype.itemsize: source._bytes(buffer) + GAP - buffer.span * buffer.dtype.itemsize
            for buffer, at in places.items()
        }
        poison = "".join(f"\n  __asan_poison_memory_region(work + {at}, {count});" for at, count in starts.items())
        guard = f"\n  Guard guard{{work, {size}}};{poison}\n" if size else ""
        parts[number + 1] = parts[number + 1][:begin] + guard + parts[number + 1][begin:]
    return header + "static int run(void** pointers) {".join(parts)


@contextlib.contextmanager
def use_sanitizers() -> Iterator[None]:
    """Have code compiled with sanitizers."""
    options = tuple(one for one in build._OPTIONS if one not in ("-O3", "-w"))
    with (
        mock.patch.object(build, "_OPTIONS", (*options, "-w", *SANITIZED)),
        mock.patch.object(source, "_arrange", arrange_apart),
        mock.patch.object(programs, "write_source", write_guarded),
    ):
        yield


def start_sanitized() -> None:
    """Start this program again with the sanitizers in it, and Python's own memory under their eyes."""
    names = ("libasan.so", "libubsan.so", "libstdc++.so")
    found = [
        subprocess.run(["g++", f"-print-file-name={one}"], capture_output=True, text=True, check=True).stdout.strip()
        for one in names
    ]
    changed = {"LD_PRELOAD": " ".join(found), "ASAN_OPTIONS": "detect_leaks=0", "PYTHONMALLOC": "malloc"}
    changed["UBSAN_OPTIONS"] = "print_stacktrace=1"
    os.execve(sys.executable, [sys.executable, *sys.argv], os.environ | changed)
