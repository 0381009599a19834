"""lightning-thunder, which has its own integration into PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torchwise.bench.contenders.contender import Setting, lacks, with_model
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
