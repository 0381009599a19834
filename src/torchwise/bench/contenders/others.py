"""Other compilers with their own integration into PyTorch, if they are installed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from torchwise.bench.contenders.contender import Setting, inference_only, lacks, with_model
from torchwise.workload import Workload


class Thunder:
    """lightning-thunder, `thunder.jit` with its defaults."""

    name = "thunder"

    def missing(self, setting: Setting) -> str | None:  # noqa: ARG002 - supports training and both devices
        """Return why it cannot run here, or None."""
        return lacks("thunder", "lightning-thunder")

    def build(self, workload: Workload, setting: Setting) -> Callable[..., Any]:  # noqa: ARG002
        """Return the jitted model, which compiles on its first call."""
        import thunder

        return with_model(workload, thunder.jit)


class TensorRT:
    """torch-tensorrt as a backend of `torch.compile`, in the model's own precision."""

    name = "torch-tensorrt"

    def missing(self, setting: Setting) -> str | None:
        """Return why it cannot run here, or None."""
        if setting.device != "cuda":
            return "torch-tensorrt needs an NVIDIA GPU"
        return inference_only(setting, self.name) or lacks("torch_tensorrt", "torch-tensorrt")

    def build(self, workload: Workload, setting: Setting) -> Callable[..., Any]:  # noqa: ARG002
        """Return the compiled model, without TF32, which TensorRT would use by default."""
        import torch_tensorrt  # noqa: F401 - registers its backend

        options: dict[str, Any] = {"disable_tf32": True, "use_explicit_typing": True}
        compiled: Callable[..., Any] = torch.compile(workload.call, backend="torch_tensorrt", options=options)
        return compiled


class OpenVINO:
    """OpenVINO as a backend of `torch.compile`, on the CPU, with its default of a lower precision disabled."""

    name = "openvino"

    def missing(self, setting: Setting) -> str | None:
        """Return why it cannot run here, or None."""
        if setting.device != "cpu":
            return "openvino runs on the CPU here"
        return inference_only(setting, self.name) or lacks("openvino", "openvino")

    def build(self, workload: Workload, setting: Setting) -> Callable[..., Any]:  # noqa: ARG002
        """Return the compiled model."""
        import openvino.torch  # noqa: F401 - registers its backend

        options: dict[str, Any] = {"device": "CPU", "config": {"INFERENCE_PRECISION_HINT": "f32"}}
        compiled: Callable[..., Any] = torch.compile(workload.call, backend="openvino", options=options)
        return compiled
