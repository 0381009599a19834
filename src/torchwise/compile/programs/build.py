"""Compile the text of regions to an extension module, and keep it in the cache that Inductor's code is in."""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import torch

from torchwise._torch import inductor
from torchwise._torch.native.library import import_extension
from torchwise.errors import UnsupportedError

logger = logging.getLogger("torchwise")

NAME = "torchwise_rows"
NATIVE = Path(__file__).parent / "native"
TIMEOUT_S = 300
_VECTORS = {
    "AVX512": ("-mavx512f", "-mavx512dq", "-mavx512vl", "-mavx512bw", "-mfma", "-mprefer-vector-width=512"),
    "AVX2": ("-mavx2", "-mfma"),
}
"""Options for the instructions that PyTorch itself found this processor to have."""
_OPTIONS = (
    *("-shared", "-fPIC", "-std=c++17", "-O3", "-w", "-fwrapv"),
    # Sums stay in the order in which they are written, and NaN and infinity are as in PyTorch.
    *("-fno-math-errno", "-fno-trapping-math", "-ffp-contract=off"),
)


def load_module(source: str) -> Any:
    """Return the extension module of a text, compiled unless the cache has it.

    Raises:
        UnsupportedError: there is no compiler, or it refuses the text.
    """
    compiler = _find_compiler()
    threads = "-fopenmp" if _shares_threads(compiler[1]) else "-fopenmp-simd"
    options = [*_OPTIONS, threads, *_VECTORS.get(torch.backends.cpu.get_cpu_capability(), ())]
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    key = hashlib.sha256("\0".join((source, _hash_headers(), *options, *compiler, torch.__version__)).encode())
    folder = Path(inductor.CACHE_DIR.get("row programs")()) / NAME
    target = folder / f"{key.hexdigest()[:40]}{suffix}"
    if target.exists():
        try:
            return import_extension(NAME, target)
        except ImportError as error:  # it was cut short, or made on a machine with other libraries
            logger.info("torchwise: %s is compiled again: %s", target, error)
    folder.mkdir(parents=True, exist_ok=True)
    _compile(source, [compiler[0], *options], target)
    return import_extension(NAME, target)


def _compile(source: str, command: list[str], target: Path) -> None:
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        text, made = Path(folder) / "regions.cpp", Path(folder) / "regions.so"
        text.write_text(source)
        includes = (NATIVE, Path(torch.__file__).parent / "include", sysconfig.get_path("include"))
        command = [*command, *(f"-I{one}" for one in includes), str(text), "-o", str(made)]
        try:
            subprocess.run(command, check=True, capture_output=True, text=True, timeout=TIMEOUT_S)
        except subprocess.CalledProcessError as error:
            line = next((one for one in error.stderr.splitlines() if "error" in one), error.stderr[:200])
            raise UnsupportedError(f"the C++ compiler refuses the code of a region: {line}") from error
        except subprocess.TimeoutExpired as error:
            raise UnsupportedError(f"compiling a region takes over {TIMEOUT_S} s") from error
        made.replace(target)


@cache
def _find_compiler() -> tuple[str, str]:
    """Return the C++ compiler, and its version."""
    found = shutil.which(os.environ.get("CXX") or "g++") or shutil.which("clang++")
    if found is None:
        raise UnsupportedError("row programs need a C++ compiler: install g++, or name one in CXX")
    version = subprocess.run([found, "--version"], capture_output=True, text=True, check=False)
    return found, version.stdout.partition("\n")[0]


@cache
def _shares_threads(version: str) -> bool:
    """Whether code of this compiler would compute on PyTorch's threads: both use GCC's library, which is loaded once.

    With another library a program would have two sets of threads, and its number of threads would not hold for one.
    """
    own = Path(torch.__file__).parent / "lib" / "libgomp.so.1"
    return sys.platform == "linux" and own.exists() and "clang" not in version.lower()


@cache
def _hash_headers() -> str:
    digest = hashlib.sha256()
    for path in sorted(NATIVE.glob("*.h")):
        digest.update(path.read_bytes())
    return digest.hexdigest()
