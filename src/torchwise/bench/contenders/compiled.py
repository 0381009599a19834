"""`torch.compile` with one of its modes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from torchwise.bench.contenders.contender import Setting, with_model
from torchwise.workload import Workload


@dataclass(frozen=True, slots=True)
class Compiled:
    """A mode of `torch.compile`, by its name."""

    name: str

    def missing(self, setting: Setting) -> str | None:  # noqa: ARG002 - always available
        """Return None."""
        return None

    def build(self, workload: Workload, setting: Setting) -> Callable[..., Any]:  # noqa: ARG002
        """Return the compiled model, which compiles on its first call."""
        return with_model(workload, lambda call: torch.compile(call, mode=self.name))
