"""What is asked for of the parts of a program: whether, how, and at what gain they run by a plan."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from types import MappingProxyType
from typing import Any, Self

from torchwise.errors import InputError, did_you_mean
from torchwise.parsing import shown
from torchwise.plan import Legality, Plan
from torchwise.plan.rules import MODES as COMPILE_MODES
from torchwise.plan.space import EFFORTS, legality_of
from torchwise.workload import DEFAULT_CALLS, WorkloadSpec

AUTO = "auto"
MODES = (AUTO, *COMPILE_MODES)
AUTOCAST = ("bfloat16", "float16")

PROFILES: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "development": MappingProxyType({"enabled": False}),
        "production": MappingProxyType({"enabled": True, "effort": "standard", "fallback": True}),
        "research": MappingProxyType({"enabled": True, "effort": "quick", "fallback": False}),
    }
)
"""Ready-made settings: plain code to debug, by evidence and never failing, and quick but outspoken."""


@dataclass(frozen=True, slots=True)
class CompileConfig:
    """What is asked for of a part; the default is the profile "production".

    Attributes:
        enabled: whether the part may run by a plan at all; calls are counted either way.
        mode: "auto" to find a plan by evidence, or one mode of `torch.compile`, which is then the only plan that is
            tried. That one is proven and timed, too, and used only where it is right and fast enough.
        lazy: whether a plan is sought at the first call, with its inputs; else it is when the part is registered, with
            the examples that are then needed.
        minimum_speedup: a plan is kept only where it is surely this many times as fast as eager (the low end of its
            95 % interval), at least 1.
        effort: "quick", "standard" or "thorough".
        allow: how far a plan may move the answers: "exact", "reordered", "reduced" or "swapped".
        budget_s: seconds of search after which no further plan is tried; None for the effort's own. The one that is
            being tried then is finished.
        calls: calls expected of the part over the lifetime that is decided for.
        restarts: process starts over that lifetime.
        fallback: whether the original goes on answering where no plan can be found or a plan fails; else that raises.
        training: whether a plan must carry gradients; None for what the first call needs.
        autocast: "bfloat16" or "float16": what the part runs under, its original as much as its plan; None for neither.
        device: "cpu" or "cuda", where parts are meant to run; None for CUDA where there is a GPU.
        store: URL or file of the store; None for the user's own.
        progress: whether a search shows on standard error what it tries.
    """

    enabled: bool = True
    mode: str = AUTO
    lazy: bool = True
    minimum_speedup: float = 1.05
    effort: str = "standard"
    allow: str = "reordered"
    budget_s: float | None = None
    calls: int = DEFAULT_CALLS
    restarts: int = 1
    fallback: bool = True
    training: bool | None = None
    autocast: str | None = None
    device: str | None = None
    store: str | None = None
    progress: bool = True

    def __post_init__(self) -> None:
        for name in ("enabled", "lazy", "fallback", "progress"):
            _one_of(name, getattr(self, name), (True, False))
        _one_of("training", self.training, (True, False, None))
        _one_of("mode", self.mode, MODES)
        _one_of("effort", self.effort, EFFORTS)
        _one_of("autocast", self.autocast, (*AUTOCAST, None))
        _one_of("device", self.device, ("cpu", "cuda", None))
        if not _is_number(self.minimum_speedup) or not self.minimum_speedup >= 1:
            raise InputError(f"minimum_speedup is {shown(self.minimum_speedup)}, but must be a number of at least 1")
        if self.budget_s is not None and not (_is_number(self.budget_s) and self.budget_s > 0):
            raise InputError(f"budget_s is {shown(self.budget_s)}, but must be above 0, or None for the effort's own")
        WorkloadSpec("parts", calls=self.calls, restarts=self.restarts)  # which refuses other numbers
        allowed = Legality.of(self.allow)
        for plan in self.plans or ():
            if not allowed.allows(level := legality_of(plan)):
                raise InputError(f"mode {self.mode!r} is {level}, but only up to {allowed} is allowed: allow={level}")

    @classmethod
    def of(cls, profile: str, **changes: Any) -> Self:
        """Return a profile, with fields changed.

        Raises:
            InputError: there is no such profile or field, or a value is none that it takes.
        """
        _one_of("profile", profile, tuple(PROFILES))
        return cls().changed(**{**PROFILES[profile], **changes})

    def changed(self, **changes: Any) -> Self:
        """Return this with fields changed.

        Raises:
            InputError: there is no such field, or a value is none that it takes.
        """
        known = [field.name for field in fields(self)]
        if unknown := sorted(set(changes) - set(known)):
            near = did_you_mean(unknown[0], known)
            raise InputError(f"{unknown[0]} is no field of CompileConfig, which has {', '.join(known)}{near}")
        return replace(self, **changes)

    @property
    def plans(self) -> tuple[Plan, ...] | None:
        """The plans to try; None to search."""
        return None if self.mode == AUTO else (Plan(backend="inductor", mode=self.mode),)


def _one_of(name: str, value: object, allowed: tuple[object, ...]) -> None:
    if not any(value is one or (isinstance(value, str) and value == one) for one in allowed):
        raise InputError(f"{name} is {shown(value)}, but must be one of {', '.join(map(str, allowed))}")


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
