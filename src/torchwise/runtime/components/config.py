"""The settings of a program's components: whether, how and at which minimum speed-up they run by a plan."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from types import MappingProxyType
from typing import Any, Self

from torchwise.errors import InputError, did_you_mean, is_count
from torchwise.keywords import checked_keywords
from torchwise.parsing import short_repr, to_bytes
from torchwise.plan import Numerics, Plan
from torchwise.plan.choice import list_values
from torchwise.plan.effort import EffortName, check_effort
from torchwise.plan.requirements import Property, PropertyName, read_properties
from torchwise.plan.rules import list_allowed
from torchwise.plan.space import numerics_of
from torchwise.plan.workload_spec import (
    DEFAULT_CALLS,
    DEFAULT_TOLERANCE,
    DISTRIBUTION,
    NumericsName,
    Sizes,
    TuneKeywords,
    WorkloadSpec,
    check_iterations,
    check_timeout,
)

VARIABLE = "TORCHWISE_DISABLE"
OFF = ("", "0", "false", "no", "off")

AUTO = "auto"
AUTOCAST = ("bfloat16", "float16")

OF_MANAGERS = ("config", "examples", "find", "manager", "name")
"""Keywords that managers take besides the fields of a config."""
PROFILES: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "development": MappingProxyType({"enabled": False}),
        "production": MappingProxyType(
            {
                "enabled": True,
                "effort": "standard",
                "allow": "same-precision",
                "tolerance": None,
                "minimum_speedup": 1.05,
                "fallback": True,
            }
        ),
        "research": MappingProxyType(
            {
                "enabled": True,
                "effort": "thorough",
                "allow": "substituted",
                "tolerance": DEFAULT_TOLERANCE,  # without one, nothing would be substituted
                "minimum_speedup": 1.0,
                "fallback": False,
            }
        ),
    }
)
"""Ready-made settings: original code to debug, plans with a fallback, and all that may be had, with errors raised.

The last permits numbers of fewer bits and other operators, too, as far as they stay within `DEFAULT_TOLERANCE`.
"""


@checked_keywords()
@dataclass(frozen=True, slots=True)
class CompileConfig:
    """The settings of a component. The default is the profile "production".

    Attributes:
        enabled: whether the component may run by a plan at all. Calls are counted in any case.
        mode: "auto" to search for a plan by evidence, or one mode of `torch.compile`. Such a mode is then the only plan
            to try. It is verified and timed, too, and used only if it is right and fast enough. A mapping from numbers
            of parameters to modes chooses by the size of the component: `{0: "default", 10_000_000: "auto"}`.
        backend: None to search for a backend, or the only one to try, such as "inductor" or one of a plug-in.
        dynamic: None to search, or the only form of shapes to try: true for code of many sizes, false for one size.
        background: whether the first call starts a search in another process, and the original answers until it has a
            plan. Otherwise the first call waits for the search. None stands for the former if another process can
            search, which needs inference, `fallback` and a second processor. Plans for training are always waited for.
        lazy: whether the search starts at the first call, with its inputs. Otherwise it starts at registration, which
            then needs examples.
        minimum_speedup: the speed-up over eager that a plan must surely reach (the low end of its 95 % interval). At
            least 1. It is no condition for a plan that keeps a limit or a property which eager does not.
        effort: "quick", "standard" or "thorough".
        allow: how far a plan may change the outputs: "exact", "same-precision", "lower-precision",
            "quantized" or "substituted".
        budget_s: seconds for everything from the first call to the plan, or None for the effort's own limit on the
            search. A second search in the background, for sizes that came, has as much once more.
        compile_timeout_s: seconds that one candidate may compile, or None for all of a trial's limit.
        iterations: how many times a candidate and eager are timed in each process, or None until that is enough.
        fullgraph: whether a component that PyTorch cannot capture as one graph counts as a failed search.
        calls: expected number of calls over the component's lifetime.
        restarts: expected number of process starts over that lifetime.
        verify: whether a plan must be right and fast enough. If false, the plan of `mode`, `backend` and `dynamic` is
            used at once, unverified and untimed, and its statistics and its decision say so.
        fallback: whether the original answers if no plan is found or a plan fails. If false, that raises.
        training: whether a plan must support gradients, or None to decide by the first call.
        autocast: "bfloat16" or "float16", the autocast for both the original and its plan, or None for no autocast.
        device: "cpu" or "cuda", the device for components, or None for CUDA if there is a GPU.
        store: URL or file of the store, or None for the user's own.
        progress: whether a search shows its trials on standard error.
        tolerance: with allow "quantized" or "substituted", the relative error (root mean square) that each output may
            have, or the share of the metric that may be lost. None is that of `tune`: 0.02 with "quantized", and no
            other operators with "substituted". The profile "research" has 0.02.
        metric: a function of quality that judges such plans in place of the error, as for `tune`, or None.
        require: properties of the answers' bits that a plan must have: "deterministic", "batch-invariant" or "bitwise".
        sizes: the sizes of inputs to come: "as-given", "varying" (no plan of one size is used) or "fixed".
        memory_limit: maximum peak memory of a call, besides weights and inputs: bytes, or a size such as "2GB". None is
            no limit.
    """

    enabled: bool = True
    mode: str | Mapping[int, str] = AUTO
    backend: str | None = None
    dynamic: bool | None = None
    lazy: bool = True
    minimum_speedup: float = 1.05
    effort: EffortName = "standard"
    allow: NumericsName = "same-precision"
    budget_s: float | None = None
    compile_timeout_s: float | None = None
    iterations: int | None = None
    fullgraph: bool = False
    calls: int = DEFAULT_CALLS
    restarts: int = 1
    verify: bool = True
    fallback: bool = True
    training: bool | None = None
    autocast: str | None = None
    device: str | None = None
    store: str | None = None
    progress: bool = True
    background: bool | None = None
    tolerance: float | None = None
    metric: str | None = None
    require: Iterable[Property | PropertyName] = ()
    sizes: Sizes = "as-given"
    memory_limit: int | str | None = None

    def __post_init__(self) -> None:
        for name in ("enabled", "lazy", "fullgraph", "verify", "fallback", "progress"):
            _one_of(name, getattr(self, name), (True, False))
        for name in ("training", "dynamic", "background"):
            _one_of(name, getattr(self, name), (True, False, None))
        _one_of("backend", self.backend, (None, *list_values("backend")))
        check_timeout(self.compile_timeout_s)
        check_iterations(self.iterations)
        object.__setattr__(self, "require", read_properties(self.require))
        self._check_modes()
        check_effort(self.effort)
        _one_of("autocast", self.autocast, (*AUTOCAST, None))
        _one_of("device", self.device, ("cpu", "cuda", None))
        if not _is_number(self.minimum_speedup) or not self.minimum_speedup >= 1:
            raise InputError(
                f"minimum_speedup is {short_repr(self.minimum_speedup)}, but must be a number of at least 1"
            )
        if self.budget_s is not None and not (_is_number(self.budget_s) and self.budget_s > 0):
            raise InputError(
                f"budget_s is {short_repr(self.budget_s)}, but must be above 0, or None for the effort's own"
            )
        WorkloadSpec(  # refuses invalid values
            "parts",
            mode="training" if self.training and self.metric == self._own_metric else "inference",
            calls=self.calls,
            restarts=self.restarts,
            memory_limit=None if self.memory_limit is None else to_bytes(self.memory_limit, "memory limit"),
            sizes=self.sizes,
            tolerance=self.tolerance,
            metric=self.metric,
            require=self.require,  # type: ignore[arg-type]  # which is a tuple by now
        )
        for name, default in (("metric", None), ("require", ()), ("memory_limit", None), ("sizes", "as-given")):
            if not self.verify and (value := getattr(self, name)) != default:
                raise InputError(
                    f"{name} is {short_repr(value)}, but verify is False, so that nothing is measured: leave one of "
                    "them out"
                )

    def _check_modes(self) -> None:
        """Refuse modes that do not exist, are not allowed, or leave nothing to use without a search."""
        if isinstance(self.mode, Mapping):
            if 0 not in self.mode or not all(is_count(size) or size == 0 for size in self.mode):
                raise InputError(
                    f"mode is {short_repr(dict(self.mode))}, but must map numbers of parameters, 0 among them, to modes"
                )
            object.__setattr__(self, "mode", dict(self.mode))  # a copy, which nobody else changes
        allowed = Numerics.of(self.allow)
        for mode in self.mode.values() if isinstance(self.mode, Mapping) else (self.mode,):
            _one_of("mode", mode, list_modes())
            one = self if mode is self.mode else replace(self, mode=mode)
            if not self.verify and one.plans is None:
                raise InputError(
                    f"verify is False, but mode is {mode!r}, which finds a plan by verifying: name a mode, or a backend"
                )
            for plan in one.plans or ():
                if not allowed.allows(level := numerics_of(plan)):
                    named = f"plan {plan}" if mode == AUTO else f"mode {mode!r}"
                    raise InputError(f"{named} is {level}, but only up to {allowed} is allowed: allow={level}")

    def of_size(self, parameters: int) -> Self:
        """Return the settings for a component with that many parameters: a mode by size is chosen."""
        if not isinstance(self.mode, Mapping):
            return self
        return replace(self, mode=self.mode[max(size for size in self.mode if size <= parameters)])

    @classmethod
    def of(cls, profile: str, **changes: Any) -> Self:
        """Return a profile, with fields changed.

        Raises:
            InputError: there is no such profile or field, or a value is invalid.
        """
        _one_of("profile", profile, tuple(PROFILES))
        return cls().with_profile(profile, changes)

    def with_profile(self, profile: str, own: Mapping[str, Any]) -> Self:
        """Return a copy with the fields of a profile, and `own` fields in their place.

        A metric keeps its tolerance in a profile that has none, and that of distributions has none in any.

        Raises:
            InputError: as `changed` does.
        """
        changes = {**PROFILES[profile], **own}
        metric = changes.get("metric", self.metric)
        if "tolerance" not in own and (metric == DISTRIBUTION or (metric and changes.get("tolerance") is None)):
            changes.pop("tolerance", None)
        return self.changed(**changes)

    def changed(self, **changes: Any) -> Self:
        """Return a copy with fields changed.

        Raises:
            InputError: there is no such field, or a value is invalid.
        """
        known = [field.name for field in fields(self)]
        if unknown := sorted(set(changes) - set(known)):
            near = did_you_mean(unknown[0], [*known, *OF_MANAGERS])
            raise InputError(f"{unknown[0]} is no field of CompileConfig, which has {', '.join(known)}{near}")
        if changes.get("metric") == DISTRIBUTION:
            changes = {"tolerance": None, **changes}  # one of a profile is not the user's
        return replace(self, **changes)

    @property
    def _own_metric(self) -> str | None:
        """The metric, but for that of distributions in training: gradients have none, so nothing is substituted."""
        return None if self.training and self.metric == DISTRIBUTION else self.metric

    def tune_keywords(self) -> TuneKeywords:
        """Return the keyword arguments of `torchwise.tune` for these settings."""
        return {
            "calls": self.calls,
            "restarts": self.restarts,
            "allow": self.allow,
            # Without a use, a tolerance would only bind the plan to these weights.
            "tolerance": self.tolerance if self.metric or Numerics.of(self.allow).is_judged_by_user else None,
            "metric": self._own_metric,
            "require": self.require,
            "memory_limit": self.memory_limit,
            "effort": self.effort,
            "budget": self.budget_s,
            "compile_timeout": self.compile_timeout_s,
            "iterations": self.iterations,
            "fullgraph": self.fullgraph,
            "mode": "training" if self.training else "inference",
            "plans": self.plans,
            "store": self.store,
            "progress": self.progress,
        }

    @property
    def plans(self) -> tuple[Plan, ...] | None:
        """The plans to try, or None to search."""
        if isinstance(self.mode, Mapping):
            raise InputError("mode is by size, but has no plan before `of_size`")
        if self.mode == AUTO and self.backend is None and self.dynamic is None:
            return None
        mode = "default" if self.mode == AUTO else self.mode
        return (Plan(backend=self.backend or "inductor", mode=mode, shapes="dynamic" if self.dynamic else "static"),)


def _one_of(name: str, value: object, allowed: tuple[object, ...]) -> None:
    if not any(value is one or (isinstance(value, str) and value == one) for one in allowed):
        raise InputError(f"{name} is {short_repr(value)}, but must be one of {', '.join(map(str, allowed))}")


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def list_modes() -> tuple[str, ...]:
    """List the modes of a component: "auto" searches, and each mode of `torch.compile` is taken as it is."""
    return (AUTO, *list_allowed("mode"))


def is_disabled() -> bool:
    """Return whether `TORCHWISE_DISABLE` is set now.

    Any value but "", 0, false, no and off counts, as plain code is safe.
    """
    return (value := os.environ.get(VARIABLE)) is not None and value.strip().lower() not in OFF
