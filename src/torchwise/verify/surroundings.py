"""Notice a candidate that changes its surroundings: timers, PyTorch's functions, its settings, or random numbers.

A snapshot is taken before the candidate's code is loaded. So are the functions that compare it later.
"""

from __future__ import annotations

import importlib
import random
import sys
from collections.abc import Callable
from types import FunctionType, ModuleType
from typing import Any

import numpy as np
import torch

from torchwise._torch import dynamo, inductor

WATCHED = (
    *("time", "timeit", "builtins", "math", "gc", "copy", "threading", "random", "numpy", "torch", "torch.Tensor"),
    *("torch.nn.functional", "torch.nn.Module", "torch.autograd", "torch.cuda", "torch.cuda.Event", "torch.testing"),
    *("torch.linalg", "torch.fft", "torch.special", "torch.utils.benchmark", "torch.optim.Optimizer"),
)
"""Modules and classes whose functions no candidate may replace. Those of Torchwise are watched, too."""
OWN = "torchwise."
_SAME = object()


class Surroundings:
    """The functions and settings of a process before a candidate was loaded."""

    def __init__(self) -> None:
        importlib.import_module(inductor.COMPILER_MODULE)  # which wraps functions of PyTorch as it is imported
        dynamo.TAG_MODULES.get()()
        owners = [(name, owner) for name in WATCHED if (owner := _find_owner(name)) is not None]
        own = [(name, module) for name, module in list(sys.modules.items()) if name.startswith(OWN)]
        self._functions = [
            (name, owner, attribute, value)
            for name, owner in [*owners, *own]
            if isinstance(owner, (ModuleType, type))
            for attribute, value in list(vars(owner).items())
            if callable(value) and not isinstance(value, ModuleType)
        ]
        self._codes = [
            (f"{name}.{attribute}", value, value.__code__)
            for name, _, attribute, value in self._functions
            if isinstance(value, FunctionType)
        ]
        self._settings = _read_settings()

    def list_replaced(self) -> list[str]:
        """List the functions that are no longer the same."""
        replaced = [
            f"{name}.{attribute}"
            for name, owner, attribute, value in self._functions
            if vars(owner).get(attribute, _SAME) is not value
        ]
        return [*replaced, *(name for name, function, code in self._codes if function.__code__ is not code)]

    def list_changed_settings(self) -> list[str]:
        """List PyTorch's settings that differ now, each with its former value."""
        now = _read_settings()
        return [f"{name} from {old} to {now[name]}" for name, old in self._settings.items() if now[name] != old]

    def accept_settings(self) -> None:
        """Take the present settings as those to keep: a module may set some while it is imported."""
        self._settings = _read_settings()


def _find_owner(name: str) -> Any:
    parts = name.split(".")
    owner: Any = sys.modules.get(parts[0])
    for part in parts[1:]:
        owner = getattr(owner, part, None)
    return owner


_READERS: dict[str, Callable[[], Any]] = {
    "default dtype": torch.get_default_dtype,
    "default device": torch.get_default_device,
    "float32 matmul precision": torch.get_float32_matmul_precision,
    "number of threads": torch.get_num_threads,
    "gradients enabled": torch.is_grad_enabled,
    "inference mode": torch.is_inference_mode_enabled,
    "deterministic algorithms": torch.are_deterministic_algorithms_enabled,
    "flush of denormals": lambda: _flushes_denormals(),
    "cuDNN benchmark": lambda: torch.backends.cudnn.benchmark,
    "cuDNN TF32": lambda: torch.backends.cudnn.allow_tf32,
    "autocast": torch.is_autocast_enabled,
    "anomaly detection": torch.is_anomaly_enabled,
}


def _flushes_denormals() -> bool:
    """Whether the processor takes denormal numbers for zero in this thread."""
    return bool((torch.tensor([1e-39]) * 1.0 == 0).item())


def _read_settings() -> dict[str, Any]:
    found = {}
    for name, read in _READERS.items():
        try:
            found[name] = read()
        except RuntimeError:  # settings through PyTorch's newer names, which cannot be mixed with these
            found[name] = None
    return found


def read_generators() -> tuple[Any, ...]:
    """Return the state of the generators of random numbers: PyTorch's, Python's and NumPy's."""
    states = [torch.get_rng_state()]
    if torch.cuda.is_initialized():
        states += torch.cuda.get_rng_state_all()
    numpys: Any = np.random.get_state(legacy=False)
    own = numpys["state"]
    return tuple(bytes(state.numpy()) for state in states), random.getstate(), own["key"].tobytes(), own["pos"]
