"""Check free space and write permission of the compile cache, temporary files and shared memory."""

from __future__ import annotations

from collections.abc import Iterator

from torchwise.doctor.disk import GIB, MIB, Folder
from torchwise.doctor.finding import Finding, bad, ok, warn
from torchwise.doctor.system_info import SystemInfo

MIN_RECOMMENDED, MIN_REQUIRED = 2 * GIB, 256 * MIB
"""Free bytes below which tuning may run out of space, and below which it will."""
MIN_SHARED = 128 * MIB


def check(facts: SystemInfo) -> Iterator[Finding]:
    """Judge each folder for compilation."""
    yield _folder(
        "compile cache",
        facts.cache,
        "set TORCHINDUCTOR_CACHE_DIR to a writable folder",
        "free space there, or set TORCHINDUCTOR_CACHE_DIR to a larger disk",
    )
    yield _folder(
        "temporary files",
        facts.temporary,
        "set TMPDIR to a writable folder",
        "free space there, or set TMPDIR to a larger disk",
    )
    if facts.shared is not None:
        yield _check_shared_memory(facts.shared)


def _folder(topic: str, folder: Folder, unwritable: str, full: str) -> Finding:
    if folder.error:
        return bad(topic, f"{folder.path} cannot be written: {folder.error}", unwritable)
    found = f"{folder.path}, {_size(folder.free)} free"
    if folder.free < MIN_REQUIRED:
        return bad(topic, found, full)
    if folder.free < MIN_RECOMMENDED:
        return warn(topic, found, full)
    return ok(topic, found)


def _check_shared_memory(folder: Folder) -> Finding:
    found = f"{folder.path}, {_size(folder.free)} free"
    advice = "start the container with more, such as docker run --shm-size=1g: processes exchange tensors there"
    if folder.error:
        return warn("shared memory", f"{folder.path} cannot be written: {folder.error}", advice)
    if folder.free < MIN_SHARED:
        return warn("shared memory", found, advice)
    return ok("shared memory", found)


def _size(count: int) -> str:
    return f"{count / GIB:.1f} GiB" if count >= GIB else f"{count / MIB:.0f} MiB"
