"""From an artifact to a decision whose plan is compiled already."""

from __future__ import annotations

import contextlib
import functools
import importlib
import logging
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from torchwise import environment
from torchwise._torch import cpu_isa_cache, dynamo, inductor
from torchwise.artifact import package
from torchwise.artifact.package import Info, Package
from torchwise.artifact.remote_files import Folder, RemoteFolder, hide_password, is_folder, is_url
from torchwise.errors import InputError, StalePlanError, TorchwiseError
from torchwise.keywords import checked_keywords
from torchwise.plan.known_names import find_unusable_part
from torchwise.records import Decision
from torchwise.workload import Workload
from torchwise.workload.identity import describe_example, structure
from torchwise.workload.target import device_of

logger = logging.getLogger("torchwise")

FEATURE = "an artifact"
COMPILER = (dynamo.TRACER_MODULE, inductor.COMPILER_MODULE, "torchwise.runtime.module")
"""Modules that the first call of a compiled plan would import otherwise, which takes seconds."""


def info(path: str | Path) -> Info:
    """Read an artifact's description of itself, and its decision. Nothing in it is run, from any source.

    Args:
        path: a file, or the URL of one.

    Raises:
        InputError: there is no such file, it is damaged, or has another schema.
        UnsupportedError: a library for the URL is missing.
    """
    return _read(path, None).info


@checked_keywords()
def load(
    path: str | Path,
    model: Callable[..., Any] | Workload | None = None,
    args: Any = None,
    kwargs: dict[str, Any] | None = None,
    *,
    trust: bool = False,
    sha256: str | None = None,
) -> Decision:
    """Put an artifact's code into PyTorch's cache folders, and return the decision for `apply`.

    The compiler is imported here, too. If you load before building the model's weights, the first call only has to find
    the compiled code. If PyTorch does not recognize code there as its own, it compiles again, and never uses that code.

    Args:
        path: the output of `save`: a file, its URL, or the URL of the folder that it was saved in.
        model: for a folder, the module or function to run. Its structure is compared, and not its weights. So one on
            the device "meta" will do, for the machine's GPU if it has one.
        args: for a folder, example arguments. If artifacts were saved for several inputs, the newest that was verified
            on these is taken. Without arguments it is the newest of all. One that is damaged, or does not hash to
            `sha256`, is skipped with a warning, as long as there is another.
        kwargs: example keyword arguments.
        trust: whether code from this file may run in this process.
        sha256: expected hash of the file, if it is known from a source other than the file's own.

    Raises:
        InputError: it is not trusted, damaged, was tampered with, or has another schema. Or it cannot be read or
            unpacked. Or the folder has none for this model, machine and software.
        StalePlanError: the code was compiled on another machine or by other software. Every difference is named.
        UnsupportedError: this torch keeps its code elsewhere, or a library for the URL is missing.
    """
    if not is_folder(path):
        if model is not None:
            raise InputError(
                f"{hide_password(path)} is one artifact, but a model is given: leave it out, it is for a folder's URL"
            )
        return _install_code(hide_password(path), _read(path, sha256), trust)
    if model is None:
        raise InputError(f"{hide_password(path)} is a folder, so the model must be given: load(url, model)")
    workload = model if isinstance(model, Workload) else _workload(model, args, kwargs)
    where, found = _find_artifact(Folder(str(path)), workload, sha256, any_inputs=args is None and kwargs is None)
    return _install_code(where, found, trust)


@checked_keywords()
def load_all(url: str, *, trust: bool = False) -> dict[str, Decision]:
    """Load everything in a folder for this machine and its software, and return the decisions by URL.

    An artifact that cannot be used is logged, and left out, as long as there is another.

    Args:
        url: URL of the folder.
        trust: whether code from there may run in this user's processes.

    Raises:
        InputError: it is no folder, cannot be read, or holds nothing usable for this machine.
        UnsupportedError: a library for the URL is missing.
    """
    if not is_folder(url):
        raise InputError(f"{hide_password(url)} is no URL of a folder: load a file by load(path)")
    folder, loaded = Folder(url), {}
    failures: list[TorchwiseError] = []
    for name in (n for device in dict.fromkeys((environment.default_device(), "cpu")) for n in folder.find(device)):
        where = f"{folder.place.url}/{name}"
        try:
            loaded[where] = _install_code(where, package.unpack(where, folder.place.read(name)), trust)
            folder.mark(name)
        except TorchwiseError as error:
            failures.append(error)
    if failures and not loaded:
        raise failures[0]
    if not loaded:
        folder.place.check()
        raise InputError(f"{folder.place.url} has no artifact for this machine and its software: save one here")
    for failure in failures:
        logger.warning("torchwise: %s", failure)
    return loaded


def _read(path: str | Path, sha256: str | None) -> Package:
    """Read one artifact from a file or a URL. Raises as `info` does."""
    if not is_url(path):
        return package.read(Path(path), sha256)
    if is_folder(path):
        raise InputError(
            f"{hide_password(path)} is a folder, but must be an artifact in it: `torchwise cache list` names them"
        )
    folder, _, name = str(path).rpartition("/")
    return package.unpack(hide_password(path), RemoteFolder(folder).read(name), sha256)


def _workload(model: Callable[..., Any], args: Any, kwargs: dict[str, Any] | None) -> Workload:
    from torchwise.runtime import unwrap

    if isinstance(model, str):
        raise InputError(f"model is {model!r}, but must be the module or function itself, which is compared")
    return Workload.of((unwrap(model), () if args is None else args, kwargs or {}))


def _find_artifact(folder: Folder, workload: Workload, sha256: str | None, any_inputs: bool) -> tuple[str, Package]:
    """Return the newest undamaged artifact for a model on this machine, verified on these inputs if there are any."""
    inputs = set() if any_inputs else {describe_example(example) for example in workload.examples}
    damaged: list[InputError] = []
    for name in folder.find(_device(workload), structure(workload.call)):
        where = f"{folder.place.url}/{name}"
        try:
            found = package.unpack(where, folder.place.read(name), sha256)
        except InputError as error:
            damaged.append(error)  # nothing of it was run, and an older one may be whole
            continue
        if inputs <= set(found.info.decision.inputs):
            for why in damaged:
                logger.warning("torchwise: %s; %s is loaded instead", why, where)
            folder.mark(name)  # an artifact that turned out to be for other inputs was not used
            return where, found
    if damaged:
        raise damaged[0]
    folder.place.check()
    raise InputError(
        f"{folder.place.url} has no artifact for this model{' and these inputs' if inputs else ''} on this machine and "
        "its software: save one here, or go on without it"
    )


def _device(workload: Workload) -> str:
    """Return the model's device: the GPU, if there is one and neither weights nor inputs have a device yet."""
    weights: list[Any] = list(workload.module.parameters()) if workload.module is not None else []
    tensors = weights or [t for e in workload.examples for t in e.tensors()]
    nowhere = all(tensor.is_meta for tensor in tensors)
    return environment.default_device() if nowhere else device_of(workload)


def _install_code(path: str, found: Package, trust: bool) -> Decision:
    """Put the code of an artifact into PyTorch's cache folders. Raises as `load` does."""
    manifest = found.info.manifest
    if not found.code:
        _tell_what_is_missing(path, found.info)
        return found.info.decision
    if not trust:
        raise InputError(
            f"{path} holds compiled code, which runs in this process when it is loaded, but trust is False: give "
            "trust=True (--trust) if you know who made it, or read the decision alone by info"
        )
    if different := found.info.list_differences():
        raise StalePlanError(
            f"{path} is for another machine or software ({'; '.join(different)}): save one here, or go on without it"
        )
    if lacking := find_unusable_part(found.info.decision.plan):
        _warn_that_original_answers(path, lacking)
    place(found.code)
    cpu_isa_cache.replay(manifest.checks)
    _set_up_compiler(found.info.decision.workload.device)
    return found.info.decision


def _tell_what_is_missing(path: str, info: Info) -> None:
    """Log that the first calls compile, or that the original answers, if the plan traces and has no code here."""
    plan = info.decision.plan
    if not plan.is_traced:
        return
    if lacking := find_unusable_part(plan):
        _warn_that_original_answers(path, lacking)
        return
    logger.info(
        "torchwise: %s has the decision, and no code: %s on the first calls of each process, in some %.2g s",
        path,
        "the model is rewritten" if plan.backend == "eager" else f"{plan.backend} compiles",
        info.manifest.cold_s,
    )


def _warn_that_original_answers(path: str, lacking: str) -> None:
    logger.warning("torchwise: %s: your model itself answers here: %s", path, lacking)


def place(code: Mapping[str, bytes]) -> int:
    """Put compiled code into this process's cache folders, and return how many files were not there yet.

    Existing files stay: a file of the same name was made from the same source.
    """
    folders = {"inductor": Path(inductor.CACHE_DIR.get(FEATURE)()), "triton": _triton()}
    new = 0
    for key, data in code.items():
        kind, _, rest = key.partition("/")
        file = folders[kind] / rest
        if file.exists():
            continue
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"{file.parent} cannot be made: {error.strerror}") from None
        package.put(file, data)
        new += 1
    return new


def _triton() -> Path:
    """Return Triton's folder. By Inductor's rule each GPU has one, and this is that of the first."""
    return Path(os.environ.get("TRITON_CACHE_DIR") or inductor.TRITON_CACHE_DIR.get(FEATURE)(0))


@functools.cache
def _set_up_compiler(device: str) -> None:
    """Import the modules that the first call would import, and compile a graph that needs no code generated.

    For its first graph of any kind, the compiler imports many more modules and makes its patterns. The graph is for the
    CPU even on a GPU. The caller may be about to fork, and CUDA fails in a fork once it was used.
    """
    for module in (*COMPILER, *(inductor.KERNEL_MODULES if device == "cuda" else ())):
        importlib.import_module(module)
    with contextlib.suppress(Exception):  # it only saves the first call some time
        torch.compile(_flat)(torch.empty(2, device="cpu"))


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view(-1)
