"""The libraries that workers of a target import: their server imports them once for all of them.

Importing a model of Transformers takes seconds, and each trial has a worker or more. The server imports libraries of
models alone, as the user's own files may keep state, which belongs to one worker. It does so only

- in a command, which ends before its environment or the files of a library change, or for a live model, whose library
  the program has loaded as it was then,
- if the server would find the very file of the library that the worker finds, whose folder comes first on its path.

A server that a library leaves with threads or with the driver of a GPU open, or that ends by it, is started anew
without any: forks of it could not use the GPU. `benchmarks/imports_and_forks.py` tells which libraries do. Where a GPU
can be seen, only those are imported that did not (`BESIDE_GPU`).
"""

from __future__ import annotations

import ast
import contextlib
import functools
import importlib
import json
import os
import pickletools
import signal
import sys
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from importlib.machinery import PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

from torchwise.plan.workload_spec import WorkloadSpec

VARIABLE = "TORCHWISE_SERVER_IMPORTS"
"""The environment variable by which the server is told: modules, and the files of their libraries."""
BESIDE_GPU = ("timm",)
"""Those that are imported where a GPU can be seen. On an H200 Transformers and diffusers started a thread each, after
which the server ends and their import was in vain (`benchmarks/results/2026-11-29-h200-imports-and-forks.txt`)."""
LIBRARIES = ("transformers", "diffusers", "timm", "torchvision", "sentence_transformers")
BY_PREFIX = {"hf": ("transformers:PreTrainedModel",), "diffusers": ("diffusers:ModelMixin",), "timm": ("timm",)}
"""The parts of a library that all its targets import, by the prefix of a target."""
GPU_FILES = ("/proc/driver/nvidia/version", "/dev/nvidiactl", "/dev/dxg", "/dev/kfd")
DRIVER_FILES = ("/dev/nvidia", "/dev/kfd", "/dev/dri", "/dev/dxg")
"""How the paths begin that a process has open once it uses a GPU's driver."""
MAX_NAMES = 64
MAX_PICKLE = 1 << 22
"""Bytes of a live model, without its tensors, up to which it is searched for classes: that takes a second."""
NOTHING = "[]"
"""JSON for a server that imports no library."""
MAX_S = 60
"""Seconds after which the server gives up. The worker imports the rest, within its own limit."""

imported: list[ModuleType] = []
"""The modules that the server imported for its workers, which hear of none of these files."""


def list_imports(job: object, *, in_command: bool) -> str:
    """Return the imports of a job's workload as JSON: a list of "module:name", each with the file of its library.

    Args:
        job: the order for a worker.
        in_command: whether the imports of a target count. Those of a live model always do.
    """
    inner = getattr(job, "job", job)
    spec = getattr(inner, "workload", None)
    if not isinstance(spec, WorkloadSpec):
        return NOTHING
    libraries = BESIDE_GPU if any(Path(one).exists() for one in GPU_FILES) else LIBRARIES
    if (source := getattr(inner, "source", None)) is not None:
        return _with_files(_list_pickled(source), [], libraries)
    if not in_command:
        return NOTHING
    prefix, _, rest = spec.target.partition(":")
    found: Iterable[str] = BY_PREFIX.get(prefix, ())
    folder = [str(Path(prefix).resolve().parent)] if prefix.endswith(".py") else []
    if folder:
        found = _scan_file(Path(prefix), rest.partition("@")[0])
    return _with_files(found, folder, libraries)


def _with_files(names: Iterable[str], folder: list[str], libraries: Sequence[str]) -> str:
    kept = [name for name in dict.fromkeys(names) if name.partition(":")[0].partition(".")[0] in libraries]
    told = [(name, _find_file(name, folder)) for name in kept[:MAX_NAMES]]
    return json.dumps([[name, file] for name, file in told if file])


@functools.lru_cache(maxsize=8)
def _list_pickled(file: str) -> tuple[str, ...]:
    """List the modules of the classes in a live model's file, as far as libraries have them."""
    try:
        with zipfile.ZipFile(file) as archive:
            inside = next(one for one in archive.infolist() if one.filename.endswith("/data.pkl"))
            codes = pickletools.genops(archive.read(inside) if inside.file_size <= MAX_PICKLE else b".")
            named = [str(told).partition(" ")[0] for code, told, _ in codes if code.name == "GLOBAL"]
    except (OSError, StopIteration, ValueError, zipfile.BadZipFile):  # the worker says what is wrong with it
        return ()
    return tuple(dict.fromkeys(name for name in named if name.partition(".")[0] in LIBRARIES))


def _find_file(name: str, folder: list[str]) -> str | None:
    """Return the file of a module's library that a worker finds, whose path begins with the folder of its target."""
    found = PathFinder.find_spec(name.partition(":")[0].partition(".")[0], [*folder, *sys.path])
    return found.origin if found is not None else None


def import_listed() -> None:
    """Import what the environment lists. What fails is left to the worker, which raises it again.

    It ends the process if that started threads, which no fork takes along, or took hold of a GPU.
    """
    told = json.loads(os.environ.get(VARIABLE) or NOTHING)
    if not told:
        return
    before, threads = set(sys.modules), _count_threads()
    with _silence(), _time_limit():
        for name, file in told:
            module, _, attribute = name.partition(":")
            if _find_file(module, []) != file:
                continue
            try:
                found = importlib.import_module(module)
                if attribute:
                    getattr(found, attribute)  # which Transformers imports then
            except BaseException:  # a library may do anything, and the workers of all targets need this server
                continue
    if _count_threads() > threads or _holds_gpu():
        os._exit(1)
    imported.extend(filter(None, map(sys.modules.get, set(sys.modules) - before)))


def _holds_gpu() -> bool:
    cuda: Any = getattr(sys.modules.get("torch"), "cuda", None)
    return (cuda is not None and bool(cuda.is_initialized())) or _opened_driver()


def _opened_driver() -> bool:
    for number in os.listdir("/proc/self/fd") if Path("/proc/self/fd").exists() else ():
        with contextlib.suppress(OSError):  # the file of this listing is closed by now
            if os.readlink(f"/proc/self/fd/{number}").startswith(DRIVER_FILES):
                return True
    return False


def _count_threads() -> int:
    with contextlib.suppress(OSError):
        return len(os.listdir("/proc/self/task"))
    return 0


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    """Keep what libraries print from the output of the command."""
    kept = [os.dup(number) for number in (1, 2)]
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        for number in (1, 2):
            os.dup2(nowhere, number)
        yield
    finally:
        for number, former in zip((1, 2), kept, strict=True):
            os.dup2(former, number)
            os.close(former)
        os.close(nowhere)


@contextlib.contextmanager
def _time_limit() -> Iterator[None]:
    def stop(_number: int, _frame: object) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(MAX_S)
    try:
        with contextlib.suppress(TimeoutError):  # between two imports
            yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def _scan_file(file: Path, factory: str) -> Iterator[str]:
    """Yield what a file imports when it is loaded, and when its factory is called, as "module" or "module:name"."""
    try:
        tree = ast.parse(file.read_bytes())
    except (OSError, SyntaxError, ValueError):  # the worker says what is wrong with it
        return
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == factory]
    at_top = [node for node in tree.body if isinstance(node, (ast.Import, ast.ImportFrom))]
    inside = [node for function in functions for node in ast.walk(function)]
    yield from _list_imported([*at_top, *inside])
    for node in ast.walk(tree) if any(map(_is_of_library, at_top)) else inside:  # such as `transformers.BertModel`
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in LIBRARIES:
            yield f"{node.value.id}:{node.attr}"


def _is_of_library(node: ast.Import | ast.ImportFrom) -> bool:
    return any(True for _ in _list_imported([node]))


def _list_imported(nodes: Iterable[ast.AST]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (one.name for one in node.names if one.name.partition(".")[0] in LIBRARIES)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] in LIBRARIES and not node.level:
            yield from (f"{node.module}:{one.name}" for one in node.names if one.name != "*")
