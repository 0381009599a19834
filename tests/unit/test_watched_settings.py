"""Each setting of a process that no candidate may change is watched: a change of it is told by its name."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from torchwise.verify.settings import READERS, read_settings
from torchwise.verify.surroundings import list_differences

MATMUL = torch.backends.cuda.matmul
DETERMINISTIC: Any = torch.utils.deterministic


@contextmanager
def done(do: Callable[[Any], Any], value: Any, former: Any) -> Iterator[None]:
    """Call a function with a value, and with the former one afterwards."""
    do(value)
    try:
        yield
    finally:
        do(former)


def put(owner: Any, name: str, value: Any) -> AbstractContextManager[None]:
    """Set an attribute."""
    return done(lambda one: setattr(owner, name, one), value, getattr(owner, name))


def turn(owner: Any, name: str) -> AbstractContextManager[None]:
    """Turn a flag."""
    return put(owner, name, not getattr(owner, name))


@contextmanager
def registered() -> Iterator[None]:
    """Replace a kernel of PyTorch."""
    library = torch.library.Library("aten", "IMPL")
    library.impl("special_entr", lambda x: x, "CPU")
    try:
        yield
    finally:
        library._destroy()


@contextmanager
def hooked() -> Iterator[None]:
    """Leave a hook on all modules."""
    handle = torch.nn.modules.module.register_module_forward_hook(lambda *_: None)
    try:
        yield
    finally:
        handle.remove()


def other_engine() -> str:
    """Return an engine for quantized operators that is not the present one."""
    engines: Any = torch.backends.quantized
    return str(next(one for one in engines.supported_engines if one not in (engines.engine, "none")))


def warn_of_determinism(on: bool) -> None:
    """Turn on deterministic algorithms with warnings in place of errors."""
    torch.use_deterministic_algorithms(on, warn_only=on)


CHANGES: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "default dtype": lambda: done(torch.set_default_dtype, torch.float64, torch.float32),
    "default device": lambda: done(torch.set_default_device, "meta", None),
    "float32 matmul precision": lambda: done(torch.set_float32_matmul_precision, "medium", "highest"),
    "number of threads": lambda: done(torch.set_num_threads, torch.get_num_threads() + 1, torch.get_num_threads()),
    "gradients enabled": torch.no_grad,
    "inference mode": torch.inference_mode,
    "deterministic algorithms": lambda: done(torch.use_deterministic_algorithms, True, False),
    "warnings of deterministic algorithms": lambda: done(warn_of_determinism, True, False),
    "filling of new memory": lambda: turn(DETERMINISTIC, "fill_uninitialized_memory"),
    "flush of denormals": lambda: done(torch.set_flush_denormal, True, False),
    "cuDNN": lambda: turn(torch.backends.cudnn, "enabled"),
    "cuDNN benchmark": lambda: turn(torch.backends.cudnn, "benchmark"),
    "cuDNN determinism": lambda: turn(torch.backends.cudnn, "deterministic"),
    "cuDNN TF32": lambda: turn(torch.backends.cudnn, "allow_tf32"),
    "TF32 of CUDA products": lambda: turn(MATMUL, "allow_tf32"),
    "fp16 sums of CUDA products": lambda: turn(MATMUL, "allow_fp16_reduced_precision_reduction"),
    "bf16 sums of CUDA products": lambda: turn(MATMUL, "allow_bf16_reduced_precision_reduction"),
    "flash attention": lambda: done(torch.backends.cuda.enable_flash_sdp, False, True),
    "memory-efficient attention": lambda: done(torch.backends.cuda.enable_mem_efficient_sdp, False, True),
    "attention by its formula": lambda: done(torch.backends.cuda.enable_math_sdp, False, True),
    "oneDNN": lambda: turn(torch.backends.mkldnn, "enabled"),
    "order of einsum": lambda: turn(torch.backends.opt_einsum, "enabled"),
    "quantized engine": lambda: put(torch.backends.quantized, "engine", other_engine()),
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    "autocast's dtype": lambda: torch.autocast("cpu", dtype=torch.float16),
    "anomaly detection": lambda: done(torch.autograd.set_detect_anomaly, True, False),
    "hooks of saved tensors": lambda: torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t),
    "threads of backward passes": lambda: torch.autograd.set_multithreading_enabled(False),
    "active modes": lambda: torch.device("meta"),
    "hooks of all modules": hooked,
    "kernels of PyTorch's operators": registered,
    "NumPy's errors": lambda: np.errstate(divide="ignore"),
    "garbage collection": lambda: done(lambda on: gc.enable() if on else gc.disable(), False, True),
    "interval of threads": lambda: done(sys.setswitchinterval, 0.123, sys.getswitchinterval()),
    "tracing of Python": lambda: done(sys.setprofile, lambda *_: None, sys.getprofile()),
    "standard streams": lambda: put(sys, "stdout", sys.stderr),
    "signal handlers": lambda: done(
        lambda one: signal.signal(signal.SIGINT, one), signal.SIG_IGN, signal.getsignal(signal.SIGINT)
    ),
    "working folder": lambda: done(os.chdir, Path.cwd().parent, Path.cwd()),
    "processors": lambda: done(lambda some: os.sched_setaffinity(0, some), {0}, os.sched_getaffinity(0)),
    "environment": lambda: done(lambda one: os.environ.update(OMP_NUM_THREADS=one), "77", "1"),
    "settings of the compiler": lambda: turn(torch._inductor.config, "fallback_random"),
}
NOT_TRIED = {"priority"}
"""Settings that only some users can put back."""


@pytest.mark.parametrize("name", READERS)
def test_a_change_of_a_setting_is_told(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if name in NOT_TRIED or (name == "processors" and len(os.sched_getaffinity(0)) < 2):
        pytest.skip("cannot be changed and put back here")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    before = read_settings()
    assert not list_differences(before, read_settings())
    with CHANGES[name]():
        assert name in [text.split(" from ")[0] for text in list_differences(before, read_settings())]
    assert not list_differences(before, read_settings())


def test_of_tables_only_the_entries_that_differ_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    before = read_settings()
    monkeypatch.setenv("TORCHWISE_OF_THIS_TEST", "new")
    monkeypatch.setenv("UNRELATED_SECRET", "hidden")
    with torch._dynamo.config.patch(cache_size_limit=77):
        environment, compiler = list_differences(before, read_settings())
    assert environment == "environment from {} to {'TORCHWISE_OF_THIS_TEST': 'new'}"
    assert compiler.startswith("settings of the compiler from {'dynamo.")
    assert compiler.endswith(": 77}")


def test_every_setting_is_tried() -> None:
    assert set(READERS) == {*CHANGES, *NOT_TRIED}
