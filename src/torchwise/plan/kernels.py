"""Kernels of one's own: a hand-written operator in place of the modules of one class, as a choice like any other."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from torchwise.errors import InputError
from torchwise.plan.choice import Choice, Code, Stage, load_code, register
from torchwise.plan.numerics import Numerics

REALIZATION = "torchwise.compile.transforms.own_kernels"


def register_kernel(
    name: str,
    module: type | str,
    kernel: Code,
    *,
    numerics: Numerics = Numerics.SAME_PRECISION,
    devices: tuple[str, ...] = ("cuda",),
    modes: tuple[str, ...] = ("inference",),
    summary: str = "",
) -> Choice:
    """Register a kernel for the modules of one class, and return its choice.

    Searches for models with such modules then try it, alone and with other choices. It is verified and timed as they
    are, and used only if it is right and faster.

    Args:
        name: the name of the rewrite in plans, such as "fused_rms_norm".
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
    if not isinstance(name, str) or not name.isidentifier():
        raise InputError(f"name is {name!r}, but must be a name as in Python, such as fused_rms_norm")
    if not isinstance(module, type) and not (isinstance(module, str) and ":" in module):
        raise InputError(f"module is {module!r}, but must be a class, or its place, such as model.py:RMSNorm")
    if not callable(kernel) and not (isinstance(kernel, str) and ":" in kernel):
        raise InputError(f"kernel is {kernel!r}, but must be a function, or its place as module:function")
    called = module if isinstance(module, str) else module.__qualname__
    trait = f"kernels.{name}"
    choice = Choice(
        "transforms",
        name,
        numerics,
        complexity=2,
        summary=summary or f"a kernel of your own computes every {called.rpartition(':')[2]}",
        devices=devices,
        modes=modes,
        required_traits=(trait,),  # type: ignore[arg-type]
        effort="quick",
        compile_factor=0.0,
        realized_by=functools.partial(_replace, name, module, kernel),
        stage=Stage.MODEL,
        detectors=((trait, functools.partial(_has, module)),),  # type: ignore[arg-type]
    )
    register(choice)
    return choice


def _replace(name: str, module: type | str, kernel: Code, call: Callable[..., Any]) -> Any:
    return load_code(f"{REALIZATION}:replace_modules")(name, module, kernel, call)


def _has(module: type | str, model: Any) -> bool:
    return bool(load_code(f"{REALIZATION}:has_modules")(module, model))
