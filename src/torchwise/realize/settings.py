"""Process-wide settings that a plan needs, held only while its call runs, so that they leak into nothing else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torchwise.plan import Plan


@dataclass(frozen=True, slots=True)
class Settings:
    """What is set around a call, and put back after it (half a microsecond each way).

    Attributes:
        threads: intra-operator threads, or None to leave them.
        tf32: whether float32 matrix products and convolutions may use TF32.
    """

    threads: int | None = None
    tf32: bool = False

    def around(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """Return `call` under these settings; `call` itself where nothing is set."""
        if self.threads is not None:
            call = _with_threads(call, self.threads)
        return _with_tf32(call) if self.tf32 else call


def settings_for(plan: Plan) -> Settings:
    """Return the settings that `plan` asks for."""
    return Settings(plan.threads, plan.precision == "tf32")


def _with_threads(call: Callable[..., Any], threads: int) -> Callable[..., Any]:
    import torch

    def threaded(*args: Any, **kwargs: Any) -> Any:
        before = torch.get_num_threads()
        torch.set_num_threads(threads)
        try:
            return call(*args, **kwargs)
        finally:
            torch.set_num_threads(before)

    return threaded


def _with_tf32(call: Callable[..., Any]) -> Callable[..., Any]:
    import torch

    def rounded(*args: Any, **kwargs: Any) -> Any:
        before, convolutions = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
        torch.set_float32_matmul_precision("high")
        torch.backends.cudnn.allow_tf32 = True
        try:
            return call(*args, **kwargs)
        finally:
            torch.set_float32_matmul_precision(before)
            torch.backends.cudnn.allow_tf32 = convolutions

    return rounded
