"""Tell whose code a frame is: the user's, an installed library's, or the compiler's own."""

from __future__ import annotations

import functools
import linecache
import os
import re
import sysconfig
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import torchwise
from torchwise._torch import dynamo
from torchwise.records.compile_events import Frame
from torchwise.zoo.families import find_program_folders

_FRAME = re.compile(r'^[ \t]*File "(?P<file>[^"\n]+)", line (?P<line>\d+)(?:, in (?P<function>[^\n]+))?', re.MULTILINE)
_RESUMED = re.compile(r"^(torch_dynamo_resume_in_)+(?P<function>.+?)(_at_\d+)+$")


def read(text: str) -> tuple[Frame, ...]:
    """Return the frames of a traceback as Python writes it, without the compiler's, the outermost first.

    A function that goes on after a graph break appears twice in PyTorch's stack: at its earlier break, and at its
    present line. The first of these is left out.
    """
    frames = [
        Frame(hit["file"], int(hit["line"]), (hit["function"] or "").strip())
        for hit in _FRAME.finditer(text)
        if not is_compiler(hit["file"])
    ]
    kept: list[Frame] = []
    for frame in frames:
        plain = plain_name(frame.function)
        if kept and plain != frame.function and (kept[-1].file, kept[-1].function) == (frame.file, plain):
            kept.pop()
        kept.append(replace(frame, function=plain))
    return tuple(kept)


def plain_name(function: str) -> str:
    """Return the name of the function that continues after a graph break: "f" for "torch_dynamo_resume_in_f_at_3"."""
    hit = _RESUMED.match(function)
    return plain_name(hit["function"]) if hit else function


def innermost_users(frames: Iterable[Frame]) -> Frame | None:
    """Return the innermost frame of the user's own code, or None if all are libraries'."""
    return next((frame for frame in reversed(tuple(frames)) if not is_library(frame.file)), None)


def is_compiler(file: str) -> bool:
    """Return whether a file belongs to the compiler, whose frames say nothing about the program."""
    return _is_within(file, _compiler())


@functools.lru_cache(maxsize=4096)
def is_library(file: str) -> bool:
    """Return whether a file is installed code: torch, site-packages, the standard library, Torchwise, but no zoo."""
    return _is_within(file, _libraries()) and not _is_within(file, _programs())


def excerpt(frame: Frame) -> str:
    """Return the source line, without its indent, or empty if it cannot be read."""
    return linecache.getline(frame.file, frame.line).strip()


def _is_within(file: str, folders: Iterable[str]) -> bool:
    return file.startswith("<frozen ") or any(file.startswith(folder + os.sep) for folder in folders)


@functools.cache
def _compiler() -> tuple[str, ...]:
    return (str(_torch() / dynamo.FOLDER),)


@functools.cache
def _libraries() -> tuple[str, ...]:
    paths = sysconfig.get_paths()
    installed = [paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib") if name in paths]
    return (str(_torch()), str(Path(torchwise.__file__).parent), *installed)


@functools.cache
def _programs() -> tuple[str, ...]:
    return find_program_folders()


def _torch() -> Path:
    import torch  # here, as `torchwise.watch` is imported where there may be no torch

    return Path(torch.__file__).parent
