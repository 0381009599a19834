"""Kernels of one's own: a hand-written operator in place of the modules of one class, as a choice like any other."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from torchwise.errors import InputError
from torchwise.plan.choice import CHOICES, DIGEST_MARK, Choice, Code, Stage, load_code, load_own_choices, register
from torchwise.plan.numerics import Numerics
from torchwise.plan.source_digest import digest_bytes, locate_source

REALIZATION = "torchwise.compile.transforms.own_kernels"
DIGITS = 6
"""Digits of the digest of a kernel's file in plans."""


def register_kernel(
    name: str,
    module: type | str,
    kernel: Code,
    *,
    numerics: Numerics | str = Numerics.SAME_PRECISION,
    devices: tuple[str, ...] = ("cuda",),
    modes: tuple[str, ...] = ("inference",),
    summary: str = "",
) -> Choice:
    """Register a kernel for the modules of one class, and return its choice.

    Searches for models with such modules then try it, alone and with other choices. It is verified and timed as they
    are, and used only if it is right and faster.

    Args:
        name: the name of the rewrite, such as "fused_rms_norm". Plans have a digest of the kernel's file after it, so
            that changed code is another choice, which is verified anew. A plan that you write may leave it out.
        module: the class whose instances the kernel replaces, or its place, such as "model.py:RMSNorm" or
            "package.module:RMSNorm". Derived classes are left alone.
        kernel: called as `kernel(module, *inputs)` in place of `forward`, or its place as "package.module:function".
            It reads the weights from the module. It may call operators of `torch.library` and kernels of Triton.
        numerics: how far it may move the answers.
        devices: "cpu", "cuda" or both.
        modes: "inference", and "training" if the kernel has a backward pass.
        summary: what it does, in a line.

    Raises:
        InputError: an argument cannot be used.
    """
    _check_names(name, module, kernel)
    called = module if isinstance(module, str) else module.__qualname__
    trait = f"kernels.{name}"
    choice = Choice(
        "transforms",
        f"{name}{DIGEST_MARK}{_digest_kernel(kernel)}",
        _read_numerics(numerics),
        complexity=2,
        summary=summary or f"a kernel of your own computes every {called.rpartition(':')[2]}",
        devices=_read_names("devices", devices, ("cpu", "cuda")),
        modes=_read_names("modes", modes, ("inference", "training")),
        required_traits=(trait,),  # type: ignore[arg-type]
        effort="quick",
        compile_factor=0.0,
        realized_by=functools.partial(_replace, name, module, kernel),
        stage=Stage.MODEL,
        detectors=((trait, functools.partial(_has, module)),),  # type: ignore[arg-type]
    )
    for field, value in list(CHOICES):  # the code that this name had before
        if field == "transforms" and value.partition(DIGEST_MARK)[0] == name:
            del CHOICES[field, value]
    register(choice)
    return choice


def _check_names(name: str, module: type | str, kernel: Code) -> None:
    if not isinstance(name, str) or not name.isidentifier():
        raise InputError(f"name is {name!r}, but must be a name as in Python, such as fused_rms_norm")
    if not isinstance(module, type) and not (isinstance(module, str) and ":" in module):
        raise InputError(f"module is {module!r}, but must be a class, or its place, such as model.py:RMSNorm")
    if not callable(kernel) and not (isinstance(kernel, str) and ":" in kernel):
        raise InputError(f"kernel is {kernel!r}, but must be a function, or its place as module:function")
    load_own_choices()
    if ("transforms", name) in CHOICES:
        raise InputError(f"name is {name!r}, which is another rewrite's: choose another name, such as my_{name}")


def _read_numerics(numerics: Numerics | str) -> Numerics:
    try:
        return Numerics(numerics)
    except ValueError:
        raise InputError(f"numerics is {numerics!r}, but must be one of {', '.join(Numerics)}") from None


def _read_names(field: str, given: Sequence[str], known: tuple[str, ...]) -> tuple[str, ...]:
    """Return names as a tuple. Text alone is refused, as "cuda" would be read as four of them."""
    if not isinstance(given, (tuple, list)) or not given or not all(name in known for name in given):
        raise InputError(f"{field} is {given!r}, but must be a tuple of {' and '.join(known)}, such as {known[:1]!r}")
    return tuple(given)


def _digest_kernel(kernel: Code) -> str:
    """Return the first digits of a hash of the file with a kernel, or of its code if no file has it."""
    source = b""
    if isinstance(kernel, str):
        file = locate_source(kernel)
    else:
        function = inspect.unwrap(kernel.func if isinstance(kernel, functools.partial) else kernel)
        code = getattr(function, "__code__", None) or getattr(type(function).__call__, "__code__", None)
        file = code.co_filename if code else None
        source = code.co_code + repr(code.co_consts).encode() if code else b""
    if file and Path(file).is_file():
        source = Path(file).read_bytes()
    return digest_bytes(source)[:DIGITS]


def _replace(name: str, module: type | str, kernel: Code, call: Callable[..., Any]) -> Any:
    return load_code(f"{REALIZATION}:replace_modules")(name, module, kernel, call)


def _has(module: type | str, model: Any) -> bool:
    return bool(load_code(f"{REALIZATION}:has_modules")(module, model))
