"""The C++ text of regions: one function for each, with its memory and its kernels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from torchwise.compile.programs.kernels import Kernel
from torchwise.compile.programs.lowering import Lowering
from torchwise.compile.programs.values import C_TYPES, Buffer

_CODES = {torch.bool: "kDLBool", torch.int32: "kDLInt", torch.int64: "kDLInt", torch.uint8: "kDLUInt"}
ALIGNMENT = 64
MAX_STACK = 1 << 16
"""Bytes of a workspace that lies on the stack. A larger one is kept for each thread."""
LONG_WORK = 1 << 20
"""Operations above which other threads of Python may run meanwhile."""


@dataclass(frozen=True, slots=True)
class RegionCode:
    """A region whose kernels are made.

    Attributes:
        inputs: the memory of its inputs, in order.
        outputs: that of its outputs.
        lowering: its kernels and all of its memory.
    """

    inputs: Sequence[Buffer]
    outputs: Sequence[Buffer]
    lowering: Lowering


def write_source(regions: Sequence[RegionCode]) -> str:
    """Return the text of an extension module with these regions."""
    parts = ['#include "region.h"', '#include "rows.h"', '#include "products.h"']
    entries = []
    for number, region in enumerate(regions):
        parts.append(f"namespace region{number} {{")
        parts += _write_forms(region.inputs)
        parts += _write_run(region)
        parts.append("}")
        is_long = sum(kernel.work for kernel in region.lowering.kernels) > LONG_WORK
        entries.append(
            f"{{{len(region.inputs)}, {len(region.outputs)}, region{number}::FORMS, region{number}::run, "
            f"{'true' if is_long else 'false'}}}"
        )
    parts.append(f"const Entry ENTRIES[] = {{{', '.join(entries)}}};")
    parts.append(f"const int COUNT = {len(regions)};")
    return "\n".join(parts) + "\n"


def _write_forms(inputs: Sequence[Buffer]) -> list[str]:
    lines, forms = [], []
    for number, buffer in enumerate(inputs):
        for what, numbers in (("SIZES", buffer.shape), ("STRIDES", buffer.strides)):
            lines.append(f"static const int64_t {what}{number}[] = {{{', '.join(map(str, (*numbers, 0)))}}};")
        code, bits = _CODES.get(buffer.dtype, "kDLFloat"), buffer.dtype.itemsize * 8
        forms.append(f"{{{code}, {bits}, {len(buffer.shape)}, SIZES{number}, STRIDES{number}}}")
    return [*lines, f"static const Form FORMS[] = {{{', '.join(forms) or '{}'}}};"]


def _write_run(region: RegionCode) -> list[str]:
    kernels = region.lowering.kernels
    functions, calls = [], []
    for number, kernel in enumerate(kernels):
        function, call = kernel.write(f"kernel{number}")
        functions += [function] if function else []
        calls.append(f"  if ({call}) return 1;")
    places, size = _arrange(region.lowering.buffers, kernels)
    lines = [*functions, "static int run(void** pointers) {"]
    if size > MAX_STACK:
        lines += [
            "  static thread_local Workspace space;",
            f"  char* work = space.get({size});",
            "  if (!work) return 1;",
        ]
    elif size:
        lines.append(f"  alignas({ALIGNMENT}) char work[{size}];")
    used = {buffer for kernel in kernels for buffer in kernel.buffers}
    given = [(buffer, f"pointers[{place}]") for place, buffer in enumerate((*region.inputs, *region.outputs))]
    for buffer, address in (*given, *((buffer, f"(work + {offset})") for buffer, offset in places.items())):
        if buffer in used:
            const = "const " if buffer.kind == "input" else ""
            kind = C_TYPES[buffer.dtype]
            lines.append(f"  {const}{kind}* {buffer.name} = ({const}{kind}*){address};")
    return [*lines, *calls, "  return 0;", "}"]


def _arrange(buffers: Sequence[Buffer], kernels: Sequence[Kernel]) -> tuple[dict[Buffer, int], int]:
    """Return the places of buffers in the workspace, and its size. Memory that is read no more is used again."""
    first, last = dict[Buffer, int](), dict[Buffer, int]()
    for number, kernel in enumerate(kernels):
        for buffer in kernel.buffers:
            first.setdefault(buffer, number)
            last[buffer] = number
    places, live, size = dict[Buffer, int](), list[Buffer](), 0
    for buffer in sorted((one for one in buffers if one.kind == "work" and one in first), key=first.__getitem__):
        live = [one for one in live if last[one] >= first[buffer]]
        offset = 0
        for other in sorted(live, key=places.__getitem__):
            if offset + _bytes(buffer) <= places[other]:
                break
            offset = max(offset, places[other] + _bytes(other))
        places[buffer] = offset
        live.append(buffer)
        size = max(size, offset + _bytes(buffer))
    return places, size


def _bytes(buffer: Buffer) -> int:
    return -(-buffer.span * buffer.dtype.itemsize // ALIGNMENT) * ALIGNMENT
