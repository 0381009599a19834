"""Compile the text of regions to an extension module, and keep it in the cache that Inductor's code is in."""

from __future__ import annotations

import hashlib
import logging
import os
import platform
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


MADE: list[Path] = []
"""The libraries that this process compiled, as it did not find them."""


def load_module(source: str) -> Any:
    """Return the extension module of a text, compiled unless the cache has it.

    A machine that serves may have no compiler, so the compiler is no part of the key. Any library of the same text for
    the same instructions, PyTorch and Python will do. It may have come in an artifact.

    Raises:
        UnsupportedError: there is no library and no compiler, or the compiler refuses the text.
    """
    folder = find_folder(source)
    problems: list[str] = []
    for file in sorted(folder.glob("*.so")):
        try:
            return _import_library(file)
        except (ImportError, OSError) as error:  # another process may clear the cache meanwhile
            problems.append(str(error))
    try:
        library = _compile(source)
    except UnsupportedError as error:
        raise UnsupportedError("; ".join((*problems, str(error)))) from error
    for problem in problems:
        logger.warning("torchwise: a region is compiled again: %s", problem)
    file = folder / f"{_digest(library)}.so"
    MADE.append(file)
    try:
        write_whole(file, library)
    except OSError as error:  # the folder is for reading alone, or full
        logger.warning("torchwise: the code of a region is not kept: %s", error)
        with tempfile.TemporaryDirectory() as other:  # a loaded library needs its file no longer
            write_whole(file := Path(other, file.name), library)
            return _import_library(file)
    return _import_library(file)


def find_exchange() -> Any:
    """Return the functions of C by which a library reads PyTorch's tensors.

    Raises:
        UnsupportedError: this PyTorch has none.
    """
    exchange = getattr(torch.Tensor, "__dlpack_c_exchange_api__", None)
    if exchange is None:
        raise UnsupportedError(f"row programs need __dlpack_c_exchange_api__, which torch {torch.__version__} lacks")
    return exchange


def find_library(source: str) -> tuple[str, bytes]:
    """Return a text's key, and its library for another process. It is compiled unless the cache has it.

    Raises:
        UnsupportedError: as `load_module` does.
    """
    loaded = Path(load_module(source).__file__)
    try:
        return find_folder(source).name, loaded.read_bytes()
    except OSError as error:
        raise UnsupportedError(f"the library of a region is not kept: {error}") from error


def install_library(source: str, key: str, library: bytes) -> Any:
    """Return the extension module of a text from the bytes of `find_library`, which are put into the cache.

    Raises:
        UnsupportedError: it is for another processor, PyTorch or Python, or cannot be loaded.
    """
    folder = find_folder(source)
    if folder.name != key:
        raise UnsupportedError("the row programs were compiled for another processor, PyTorch or Python")
    file = folder / f"{_digest(library)}.so"
    try:
        return _import_library(file)
    except (ImportError, OSError):  # it is not there yet, or was changed
        try:
            write_whole(file, library)
            return _import_library(file)
        except (ImportError, OSError) as error:  # it needs other libraries than this machine has
            raise UnsupportedError(f"the row programs cannot be loaded: {error}") from error


def find_folder(source: str) -> Path:
    """Return the folder of the cache with the libraries of a text, each named by its SHA-256. It need not exist."""
    facts = (
        *(*_list_options(), platform.machine(), str(sysconfig.get_config_var("SOABI"))),
        *(torch.__version__, str(torch.version.git_version), str(_has_threads())),
    )
    key = hashlib.sha256("\0".join((source, _hash_headers(), *facts)).encode()).hexdigest()[:40]
    return Path(inductor.CACHE_DIR.get("row programs")()) / NAME / key


def _import_library(file: Path) -> Any:
    """Import a library of the cache.

    Raises:
        ImportError: it is not the file that was compiled, or needs other libraries than this machine has.
    """
    digest = _digest(file.read_bytes())
    if digest != file.stem:
        raise ImportError(
            f"{file} is not loaded, as its SHA-256 is {digest}: it is cut short or was changed, so delete it"
        )
    return import_extension(NAME, file)


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def write_whole(file: Path, data: bytes) -> None:
    """Write a file as a whole: other processes may look for it meanwhile."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=file.parent) as folder:
        made = Path(folder) / file.name
        made.write_bytes(data)
        made.replace(file)


def _list_options() -> tuple[str, ...]:
    return (*_OPTIONS, *_VECTORS.get(torch.backends.cpu.get_cpu_capability(), ()))


def _compile(source: str) -> bytes:
    """Return the library of a text.

    Raises:
        UnsupportedError: there is no compiler, or it refuses the text.
    """
    compiler, version = _find_compiler()
    threads = "-fopenmp" if _has_threads() and "clang" not in version.lower() else "-fopenmp-simd"
    with tempfile.TemporaryDirectory() as folder:
        text, made = Path(folder) / "regions.cpp", Path(folder) / "regions.so"
        text.write_text(source)
        includes = (NATIVE, Path(torch.__file__).parent / "include", sysconfig.get_path("include"))
        command = [compiler, *_list_options(), threads, *(f"-I{one}" for one in includes), str(text), "-o", str(made)]
        try:
            subprocess.run(command, check=True, capture_output=True, text=True, timeout=TIMEOUT_S)
        except subprocess.CalledProcessError as error:
            line = next((one for one in error.stderr.splitlines() if "error" in one), error.stderr[:200])
            raise UnsupportedError(f"the C++ compiler refuses the code of a region: {line}") from error
        except subprocess.TimeoutExpired as error:
            raise UnsupportedError(f"compiling a region takes over {TIMEOUT_S} s") from error
        return made.read_bytes()


@cache
def _find_compiler() -> tuple[str, str]:
    """Return the C++ compiler, and its version."""
    found = shutil.which(os.environ.get("CXX") or "g++") or shutil.which("clang++")
    if found is None:
        raise UnsupportedError("row programs need a C++ compiler: install g++, or name one in CXX")
    version = subprocess.run([found, "--version"], capture_output=True, text=True, check=False)
    return found, version.stdout.partition("\n")[0]


@cache
def _has_threads() -> bool:
    """Whether GCC's code would compute on PyTorch's threads: both use GCC's library, which is loaded once.

    With another library a program would have two sets of threads, and its number of threads would not hold for one.
    """
    return sys.platform == "linux" and (Path(torch.__file__).parent / "lib" / "libgomp.so.1").exists()


@cache
def _hash_headers() -> str:
    digest = hashlib.sha256()
    for path in sorted(NATIVE.glob("*.h")):
        digest.update(path.read_bytes())
    return digest.hexdigest()
