"""The options of tuning, in one place: for Python, the command line, manifests, components and `torch.compile`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypedDict

from torchwise.plan.effort import EffortName
from torchwise.plan.numerics import Numerics
from torchwise.plan.plan import Plan
from torchwise.plan.workload_spec import DEFAULT_CALLS, Device, Mode, Objective

if TYPE_CHECKING:
    from torchwise.workload import Example

NumericsName = Literal["exact", "same-precision", "lower-precision", "substituted"]


class OptionKeywords(TypedDict, total=False):
    """The options of tuning as keyword arguments. `TuneOptions` explains them."""

    calls: int
    restarts: int
    allow: Numerics | NumericsName
    effort: EffortName
    budget: float | None
    objective: Objective
    mode: Mode
    device: Device | None
    plans: Iterable[Plan] | None
    memory_limit: int | None
    fresh: bool
    cold: bool


class TuneKeywords(OptionKeywords, total=False):
    """All keyword arguments of `torchwise.tune`."""

    examples: Sequence[Example] | None
    store: str | None
    progress: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneOptions:
    """What a user asks of a search.

    Attributes:
        calls: expected number of calls over the lifetime of the model.
        restarts: expected process starts over that lifetime.
        allow: the permitted numerics.
        effort: "quick", "standard" or "thorough".
        budget: seconds of search after which no further trial starts. None stands for the default of `effort`, or for
            no limit with `plans`.
        objective: "latency", "throughput" or "memory".
        mode: "inference" or "training".
        device: "cpu" or "cuda", or None for the device of the model, or of this machine.
        plans: the plans to try instead of a search, or None to search.
        memory_limit: maximum peak memory of a call in bytes, besides weights, optimizer state and inputs.
        fresh: whether the stored study is deleted first.
        cold: whether the chosen plan is timed with cold processor caches, too.
    """

    calls: int = DEFAULT_CALLS
    restarts: int = 1
    allow: Numerics | str = Numerics.SAME_PRECISION
    effort: str = "standard"
    budget: float | None = None
    objective: str = "latency"
    mode: str = "inference"
    device: str | None = None
    plans: Iterable[Plan] | None = None
    memory_limit: int | None = None
    fresh: bool = False
    cold: bool = False
