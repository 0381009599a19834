"""Linear layers of 8 bits by torchao, compiled: the usual way to fewer bits."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch

from torchwise.bench.contenders.contender import Setting, lacks
from torchwise.errors import UnsupportedError
from torchwise.workload import Workload


class Int8Dynamic:
    """torchao's dynamic int8 for all linear layers, and `torch.compile`.

    It rounds more than the model does. Without an error that the user allows, its row is shown with its own, as wrong.
    """

    name = "int8-dynamic"
    rounds = True

    def missing(self, setting: Setting) -> str | None:
        """Return why it cannot run here, or None."""
        is_inference = setting.mode == "inference"
        return lacks("torchao", "torchao") if is_inference else f"{self.name} has no backward pass"

    def build(self, workload: Workload, setting: Setting) -> Callable[..., Any]:  # noqa: ARG002
        """Return a compiled copy with quantized layers, which compiles on its first call."""
        if workload.module is None:
            raise UnsupportedError("torchao changes the layers of a module, and this is a function")
        from torchao.quantization import Int8DynamicActivationInt8WeightConfig, quantize_

        model = copy.deepcopy(workload.module)
        quantize_(model, Int8DynamicActivationInt8WeightConfig())
        compiled: Callable[..., Any] = torch.compile(model)
        return compiled
