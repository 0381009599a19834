"""The compiled checks of calls, in a folder of this environment: compiled once, and then as long as no file changes."""

from __future__ import annotations

import functools
import os
import sys
from pathlib import Path
from types import ModuleType

import pytest

from torchwise._torch.native.compiler import compile_checks
from torchwise._torch.native.library import Library, UnusableError

SANITIZED = ("-O1", "-g", "-fno-omit-frame-pointer", "-fsanitize=address")
"""Options by which a wrong access to memory ends the process, if AddressSanitizer is loaded before all else."""


@functools.cache
def make_library(options: tuple[str, ...] = ("-O2",)) -> Library:
    """Compile the checks with these options, if that was not done."""
    library = Library(Path(sys.prefix, "cache", "sanitized" if options == SANITIZED else "native"))
    library.root.parent.mkdir(mode=0o700, exist_ok=True)
    compile_checks(library, options)
    return library


def load(options: tuple[str, ...] = ("-O2",)) -> ModuleType:
    """Load them, or skip the test if this Python or machine can have none. In CI, failing to compile is a failure."""
    if obstacle := Library().find_obstacle():
        pytest.skip(f"no compiled checks: {obstacle}")
    try:
        return make_library(options).load()
    except UnusableError as error:
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(f"no compiled checks: {error}")
