"""Settings of a process that no candidate may change: those of PyTorch, NumPy, Python, and the process itself."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch

from torchwise._torch import dynamo, global_state

VARIABLES = (
    *("OMP_", "GOMP_", "KMP_", "MKL_", "CUDA_", "CUBLAS_", "CUDNN_", "NCCL_", "NVIDIA_", "PYTORCH_", "TORCH_"),
    *("TORCHWISE_", "PYTHON", "LD_"),
)
"""How variables of the environment begin that may not change. Inductor and Triton set their own as they compile."""
_DEVICES = ("cpu", "cuda")
_torch: Any = torch
"""The same, for names that PyTorch's type annotations lack."""

READERS: dict[str, Callable[[], Any]] = {
    "default dtype": torch.get_default_dtype,
    "default device": torch.get_default_device,
    "float32 matmul precision": torch.get_float32_matmul_precision,
    "number of threads": torch.get_num_threads,
    "gradients enabled": torch.is_grad_enabled,
    "inference mode": torch.is_inference_mode_enabled,
    "deterministic algorithms": torch.are_deterministic_algorithms_enabled,
    "warnings of deterministic algorithms": torch.is_deterministic_algorithms_warn_only_enabled,
    "filling of new memory": lambda: _torch.utils.deterministic.fill_uninitialized_memory,
    "flush of denormals": lambda: _flushes_denormals(),
    "cuDNN": lambda: torch.backends.cudnn.enabled,
    "cuDNN benchmark": lambda: torch.backends.cudnn.benchmark,
    "cuDNN determinism": lambda: torch.backends.cudnn.deterministic,
    "cuDNN TF32": lambda: torch.backends.cudnn.allow_tf32,
    "TF32 of CUDA products": lambda: torch.backends.cuda.matmul.allow_tf32,
    "fp16 sums of CUDA products": lambda: torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction,
    "bf16 sums of CUDA products": lambda: torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction,
    "flash attention": torch.backends.cuda.flash_sdp_enabled,
    "memory-efficient attention": torch.backends.cuda.mem_efficient_sdp_enabled,
    "attention by its formula": torch.backends.cuda.math_sdp_enabled,
    "oneDNN": lambda: _torch.backends.mkldnn.enabled,
    "order of einsum": lambda: (_torch.backends.opt_einsum.enabled, _torch.backends.opt_einsum.strategy),
    "quantized engine": lambda: _torch.backends.quantized.engine,
    "autocast": lambda: [torch.is_autocast_enabled(device) for device in _DEVICES],
    "autocast's dtype": lambda: [torch.get_autocast_dtype(device) for device in _DEVICES],
    "anomaly detection": torch.is_anomaly_enabled,
    "hooks of saved tensors": global_state.read_saved_hooks,
    "threads of backward passes": global_state.is_multithreaded,
    "active modes": global_state.count_modes,
    "hooks of all modules": global_state.count_module_hooks,
    "kernels of PyTorch's operators": global_state.count_replaced_kernels,
    "NumPy's errors": np.geterr,
    "garbage collection": gc.isenabled,
    "interval of threads": sys.getswitchinterval,
    "tracing of Python": lambda: (sys.gettrace(), sys.getprofile()),
    "standard streams": lambda: (sys.stdout, sys.stderr),
    "signal handlers": lambda: [signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)],
    "working folder": os.getcwd,
    "processors": lambda: sorted(os.sched_getaffinity(0)),
    "priority": lambda: os.getpriority(os.PRIO_PROCESS, 0),
    "environment": lambda: {name: value for name, value in os.environ.items() if name.startswith(VARIABLES)},
    "settings of the compiler": dynamo.read_compiler_settings,
}
"""How each setting is read. Its value changes only if somebody sets it."""


def _flushes_denormals() -> bool:
    """Whether the processor takes denormal numbers for zero in this thread."""
    return bool((torch.tensor([1e-39], dtype=torch.float32, device="cpu") * 1.0 == 0).item())


AROUND = ("gradients enabled", "inference mode", "deterministic algorithms", "filling of new memory")
"""Settings that the judge sets itself around a call, so that a change shows only right after it."""


def read_settings(names: Iterable[str] = tuple(READERS)) -> dict[str, Any]:
    """Read some settings. One that cannot be read here is None."""
    found = {}
    for name in names:
        try:
            found[name] = READERS[name]()
        except (RuntimeError, AttributeError, OSError):  # set by a newer name, or unknown to this release or system
            found[name] = None
    return found
