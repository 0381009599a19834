"""The options of the backend, from `torch.compile(..., options={...})`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from torchwise.errors import InputError, did_you_mean
from torchwise.parsing import short_repr
from torchwise.plan import Numerics
from torchwise.plan.effort import check_effort
from torchwise.plan.workload_spec import DEFAULT_CALLS, WorkloadSpec
from torchwise.store.location import locate

BUDGET_S = 300.0
"""Default limit of a process, in seconds of tuning, as a model may break into dozens of graphs."""


@dataclass(frozen=True, slots=True)
class Options:
    """The user's options for the backend.

    Attributes:
        effort: "quick", "standard" or "thorough", for each graph.
        calls: expected number of calls of each graph over its lifetime.
        allow: "exact", "same-precision" (default), "lower-precision" or "substituted" (other operators).
        store: URL or file of the store, by default in the user's data directory.
        budget: seconds of tuning, over all graphs of the process, after which no further graph is tuned.
        progress: whether to show the running trials.
    """

    effort: str = "quick"
    calls: int = DEFAULT_CALLS
    allow: str = "same-precision"
    store: str | None = None
    budget: float = BUDGET_S
    progress: bool = True

    def __post_init__(self) -> None:
        check_effort(self.effort)
        if isinstance(self.budget, bool) or not isinstance(self.budget, (int, float)) or not self.budget >= 0:
            raise InputError(
                f"budget is {short_repr(self.budget)}, but must be seconds, 0 or more: 0 only reads the store"
            )
        WorkloadSpec("live:graph", calls=self.calls)
        Numerics.of(self.allow)
        if not isinstance(self.progress, bool):
            raise InputError(f"progress is {short_repr(self.progress)}, but must be True or False")
        if self.store is not None and not isinstance(self.store, str):
            raise InputError(f"store is {short_repr(self.store)}, but must be the URL or file of a store, as text")
        if self.store is not None:
            locate(self.store)

    @classmethod
    def read(cls, options: Mapping[str, Any] | None, mode: str | None) -> Options:
        """Read the options that the user passed to `torch.compile`.

        Raises:
            InputError: an option is unknown or invalid, or `mode` is not None.
        """
        if mode is not None:
            raise InputError(
                f"mode is {mode!r}, but the backend torchwise measures which mode is best: leave it out, or set effort"
            )
        known = [field.name for field in fields(cls)]
        for name in options or {}:
            if name not in known:
                near = did_you_mean(str(name), known)
                raise InputError(
                    f"options has {short_repr(name)}, but the backend torchwise has {', '.join(known)}{near}"
                )
        return cls(**(options or {}))
