"""The original model. Timed against itself, it shows how reliable the timings are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torchwise.bench.contenders.contender import Setting
from torchwise.workload import Workload


class Eager:
    """Eager PyTorch."""

    name = "eager"

    def missing(self, setting: Setting) -> str | None:  # noqa: ARG002 - runs everywhere
        """Return None."""
        return None

    def build(self, workload: Workload, setting: Setting) -> Callable[..., Any]:  # noqa: ARG002
        """Return the model."""
        return workload.call
