"""The user's request as pure data: the target, the number of calls, the objective, and the options of a search.

A target is `SCHEME:name[@size]` with a scheme that a plug-in provides (entry-point group `torchwise.targets`, such as
`zoo`), `package.module:factory`, or `path/file.py:factory`.
"""

from __future__ import annotations

import importlib.metadata
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypedDict, get_args

from torchwise.errors import InputError, TargetError, WorkloadError, is_count, is_positive, to_count
from torchwise.former_names import added_fields
from torchwise.plan.numerics import Numerics
from torchwise.plan.requirements import Property, PropertyName, read_properties
from torchwise.plan.source_digest import digest_source

if TYPE_CHECKING:
    from torchwise.plan.effort import EffortName
    from torchwise.plan.plan import Plan
    from torchwise.workload import Example

Mode = Literal["inference", "training"]
Objective = Literal["latency", "throughput", "memory"]
Batch = Literal["as-given", "best"]
Device = Literal["cpu", "cuda"]
Sizes = Literal["as-given", "varying", "fixed"]

LIVE = "live:"
"""Prefix of a target that is an object in a Python program, which no command line can load."""

SEEDS = 2**63
"""Seeds lie in [-SEEDS, SEEDS). PyTorch takes larger ones for negative ones. Further seeds are drawn from this range.
"""
DEFAULT_CALLS = 100_000
"""Number of calls assumed by default: an afternoon of a service, or a few epochs of a small job.

It is large enough that seconds of compiling pay back for a useful gain. It is small enough that minutes of autotuning
pay back only for a large one. The break-even point is always shown, so a wrong guess is visible.
"""

DISTRIBUTION = "distribution"
"""The metric by which a model with other operators is right if its outputs have the distribution of the model's."""

CALLS_PER_REQUEST = 2
"""Calls that a request in a batching server waits for at the most: the one in progress, and its own."""


@dataclass(frozen=True, slots=True)
class Roofline:
    """The least work of one call: floating-point operations, and bytes read plus bytes written."""

    flops: float
    bytes: float


@dataclass(frozen=True, slots=True)
class BatchDim:
    """The dimension of the batch, and a size: that of the first example, or one to try."""

    dim: int
    size: int


@dataclass(frozen=True, slots=True)
class VaryingDim:
    """A dimension of an input whose size varies between calls.

    Attributes:
        path: the input's place in `(args, kwargs)`, such as "[0][1]".
        dim: the dimension, from 0 on.
        lengths: lengths at which plans are verified, besides those of the examples.
    """

    path: str
    dim: int
    lengths: tuple[int, ...]


@added_fields("latency_limit", "batch", "sizes", "tolerance", "metric", "varying", "require")
@dataclass(frozen=True, slots=True)
class WorkloadSpec:
    """One request to tune, without any tensor or model in it.

    Attributes:
        target: the target, in the form that `torchwise.workload.target` reads, or `live:<name>` for a Python object.
        device: the device to run on.
        mode: "inference" runs the callable under `torch.no_grad()`. "training" adds a backward pass.
        objective: "latency" waits for each call. "throughput" issues calls back to back. "memory" minimises peak memory
            among the plans that are not slower than eager.
        calls: calls expected in total over the lifetime the decision is made for (at least 1).
        restarts: process starts over that lifetime, each of which pays the warm compile again (at least 1).
        seed: seed of the weights and inputs that the target's factory draws.
        memory_limit: bytes that a call may take at its peak, beyond those in use before it (weights, optimizer state,
            inputs), or None for no limit. Plans that take more are not chosen.
        latency_limit: seconds within which a batching server answers a request, or None for no limit. Only with
            objective "throughput": batch size and plan are then chosen together.
        batch: run on the first example alone, at this batch size, or None for the examples as they are.
        sizes: the sizes of inputs to come. "as-given" expects those of the examples. "varying" expects others, too: no
            plan is chosen that would leave them to the plain model. "fixed" rules out dynamic shapes.
        tolerance: what numbers of fewer bits and other operators may change: the relative error (root mean square) of
            each output, or the share of its value that the metric may lose. None allows neither.
        metric: the user's measure of quality, as `module:function` or `path/file.py:function`, or None for the error.
            `DISTRIBUTION` compares distributions of outputs, by tests to which no tolerance applies.
        varying: with sizes "varying", the dimensions that vary, which the inspection finds.
        require: properties of the answers' bits that the chosen plan must have.
    """

    target: str
    device: Device = "cpu"
    mode: Mode = "inference"
    objective: Objective = "latency"
    calls: int = DEFAULT_CALLS
    restarts: int = 1
    seed: int = 0
    memory_limit: int | None = None
    latency_limit: float | None = None
    batch: BatchDim | None = None
    sizes: Sizes = "as-given"
    tolerance: float | None = None
    metric: str | None = None
    varying: tuple[VaryingDim, ...] = ()
    require: tuple[Property, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "require", read_properties(self.require))
        if Property.BATCH_INVARIANT in self.require and self.mode == "training":
            raise WorkloadError(
                f"require is {Property.BATCH_INVARIANT} with mode 'training', but gradients are sums over the batch: "
                "ask for it with mode inference"
            )
        for name, allowed in (("device", Device), ("mode", Mode), ("objective", Objective), ("sizes", Sizes)):
            value = getattr(self, name)
            if value not in get_args(allowed):
                raise WorkloadError(f"{name} is {value!r}, but must be one of {', '.join(get_args(allowed))}")
        for name in ("calls", "restarts"):
            value = getattr(self, name)
            value = to_count(value) if isinstance(value, float) else value
            if not is_count(value):
                raise WorkloadError(f"{name} is {value!r}, but must be a whole number of at least 1")
            object.__setattr__(self, name, value)  # such as 1e6, which is a float in Python
        if isinstance(self.seed, bool) or not isinstance(self.seed, int) or not -SEEDS <= self.seed < SEEDS:
            rule = f"must be a whole number from -2**63 to 2**63 - 1{_same(self)}"
            raise WorkloadError(f"seed is {self.seed!r}, but {rule}")
        if self.memory_limit is not None and not is_positive(self.memory_limit):
            raise WorkloadError(f"memory limit is {self.memory_limit!r} bytes, but must be above 0")
        check_tolerance(self.tolerance)
        if self.metric == DISTRIBUTION:
            self._check_distribution()
        elif self.metric is not None and self.tolerance is None:
            raise WorkloadError("a metric is given, but no tolerance: say what share of it may be lost, such as 0.01")
        if self.latency_limit is not None:
            self._check_latency_limit(self.latency_limit)

    def _check_distribution(self) -> None:
        if self.tolerance is not None:
            raise WorkloadError(
                f"a tolerance is given with metric '{DISTRIBUTION}', but statistical tests at a fixed false-alarm rate "
                "compare distributions, and they need none: leave --tolerance (tolerance) out"
            )
        if self.mode == "training":
            raise WorkloadError(
                f"metric is '{DISTRIBUTION}' with mode 'training', but only outputs have their distributions compared, "
                "and gradients count, too: give --tolerance (tolerance) alone, or use mode inference"
            )

    def _check_latency_limit(self, limit: float) -> None:
        if not is_positive(limit) or not math.isfinite(limit):
            raise WorkloadError(f"latency limit is {limit!r} s, but must be above 0, such as 20ms")
        if self.objective != "throughput":
            raise WorkloadError(
                f"a latency limit is given with objective {self.objective!r}, but is only for throughput: add "
                '--objective throughput (objective="throughput")'
            )
        if self.sizes == "varying":
            raise WorkloadError(
                "sizes is 'varying', but must be 'as-given' or 'fixed' with a latency limit, as the batch size is then "
                "chosen on the first example: leave --sizes (sizes) out, or --latency-limit (latency_limit)"
            )

    def list_rules(self) -> list[str]:
        """List what else makes a study of the same model and inputs another one: a corrected metric judges anew."""
        metric = self.metric and f"{self.metric} {digest_source(self.metric)}".strip()
        required = " ".join(self.require) or None
        rules = {"sizes": self.sizes, "tolerance": self.tolerance, "metric": metric, "require": required}
        return [f"{name} {rule}" for name, rule in rules.items() if rule not in (None, "as-given")]

    @property
    def permits_change(self) -> bool:
        """Whether other operators, and numbers of fewer bits, may change outputs, by the user's own rule."""
        return self.tolerance is not None or self.metric == DISTRIBUTION

    @property
    def call_limit_s(self) -> float:
        """Seconds that a call may take, as a request may wait for the batch before its own."""
        return math.inf if self.latency_limit is None else self.latency_limit / CALLS_PER_REQUEST

    @property
    def times_each_call(self) -> bool:
        """Whether each call is waited for, as by a server whose requests have a limit. Otherwise they are queued."""
        return self.objective != "throughput" or self.latency_limit is not None


def _same(spec: WorkloadSpec) -> str:
    """Name the seed in bounds that means the same to PyTorch, if there is one."""
    if isinstance(spec.seed, int) and SEEDS <= spec.seed < 2 * SEEDS:
        return f"; PyTorch draws the same numbers from {spec.seed - 2 * SEEDS}"
    return ""


FORMS = (
    "use zoo:family.name[@size], timm:NAME, torchvision:NAME, hf:NAME or diffusers:NAME[@options], "
    "package.module:factory or path/file.py:factory"
)
SCHEMES_OF_MODELS = ("timm", "torchvision", "hf", "diffusers")
"""Its schemes, to name it where it is not installed. A module of such a name is no target in either case."""


def check_form(target: str) -> None:
    """Refuse a target that no form fits, without importing or running anything.

    Raises:
        TargetError: naming the target and the possible forms.
    """
    head, colon, name = split(target)
    if not (head and colon and name):
        raise TargetError(f"target is {target!r}, which names no factory: {FORMS}")
    if head in SCHEMES_OF_MODELS and head not in list_schemes():
        from torchwise.installation import suggest_models_package

        raise TargetError(f"target is {target!r}, but {head}: comes with {suggest_models_package()}")
    if head.endswith(".py") and not Path(head).is_file():
        raise TargetError(f"target is {target!r}, but there is no file {head!r} in {Path.cwd()}")


def split(target: str) -> tuple[str, str, str]:
    """Split a target in three, as `str.partition` does: the scheme, module or file, the colon, and the name in it.

    The first colon divides. For a name in a file it is the last one, as a path may hold colons of its own.
    """
    first, last = target.partition(":"), target.rpartition(":")
    is_file = last != first and last[0].endswith(".py") and first[0] not in list_schemes()
    return last if is_file else first


def list_schemes() -> dict[str, importlib.metadata.EntryPoint]:
    """Return the schemes of the installed plug-ins, by name."""
    return {entry.name: entry for entry in importlib.metadata.entry_points(group="torchwise.targets")}


DEFAULT_TOLERANCE = 0.02
"""Tolerance where the user permits numbers of fewer bits, and states none, and of the profile "research".

Six layers of 8 bits were 0.2 to 0.4 % off, and of 4 bits 2.4 % (`benchmarks/quantized.py`). A model may then keep about
as many bits as bfloat16 has.
"""


def choose_tolerance(allow: Numerics, mode: str) -> float | None:
    """Return the tolerance of a request that states none.

    Other operators need a stated one, and so does training, where it holds for gradients, too.
    """
    return DEFAULT_TOLERANCE if allow is Numerics.QUANTIZED and mode == "inference" else None


NumericsName = Literal["exact", "same-precision", "lower-precision", "quantized", "substituted"]


class OptionKeywords(TypedDict, total=False):
    """The options of tuning as keyword arguments. `TuneOptions` explains them."""

    calls: float
    restarts: int
    allow: Numerics | NumericsName
    effort: EffortName
    budget: float | None
    objective: Objective
    mode: Mode
    device: Device | None
    plans: Iterable[Plan] | None
    memory_limit: int | str | None
    latency_limit: float | str | None
    batch: Batch
    tolerance: float | None
    metric: str | None
    require: Iterable[Property | PropertyName]
    fresh: bool
    cold: bool
    wait: bool
    compile_timeout: float | None
    iterations: int | None
    fullgraph: bool
    workers: int | None


class TuneKeywords(OptionKeywords, total=False):
    """The keyword arguments of `torchwise.tune`, but for `sizes`: that of `torchwise.bucketing` has another meaning."""

    examples: Sequence[Example] | None
    store: str | None
    progress: bool


class ProgramKeywords(TuneKeywords, total=False):
    """The keyword arguments of `torchwise.tune_program`."""

    sizes: Sizes


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneOptions:
    """What a user asks of a search.

    Attributes:
        calls: expected number of calls over the lifetime of the model.
        restarts: expected process starts over that lifetime.
        allow: the permitted numerics.
        effort: "quick", "standard" or "thorough".
        budget: seconds for everything, after which a trial is ended. None stands for the default of `effort`, or for no
            limit with `plans`.
        objective: "latency", "throughput" or "memory".
        mode: "inference" or "training".
        device: "cpu" or "cuda", or None for the device of the model, or of this machine.
        plans: the plans to try instead of a search, or None to search.
        memory_limit: maximum peak memory of a call, besides weights, optimizer state and inputs: bytes, or "2GB".
        latency_limit: seconds, or a text such as "20ms", within which a batching server answers a request. With it,
            objective "throughput" finds batch size and plan together.
        batch: "best" with objective "throughput" finds the batch size of most samples per second together with the
            plan. "as-given" keeps that of the examples, unless there is a latency limit.
        sizes: the sizes of inputs to come: "as-given", "varying" or "fixed".
        tolerance: relative error that numbers of fewer bits and other operators may cause, with allow "quantized" or
            "substituted". None stands for `DEFAULT_TOLERANCE` with "quantized", and permits no other operators.
        metric: a function of quality to judge them by, in place of the error, or `DISTRIBUTION`, without a tolerance.
        require: properties of the answers' bits that the plan must have: "deterministic", "batch-invariant", "bitwise".
        fresh: whether the stored study is deleted first.
        cold: whether the chosen plan is timed with cold processor caches, too.
        wait: whether time in which another Torchwise process has the device is no part of `budget`.
        compile_timeout: seconds that one candidate may compile. The time limit of a trial then counts the rest alone.
            None leaves compiling all of that limit.
        iterations: how many times a candidate and eager are timed in each process. None goes on until the interval of
            the speed-up is tight, or until the time of `effort` for it is over.
        fullgraph: whether a model that PyTorch cannot capture as one graph is refused before the search.
        workers: how many plans are tried at once at the most, on a GPU. None stands for up to 4, by cores and memory.
    """

    calls: float = DEFAULT_CALLS
    restarts: int = 1
    allow: Numerics | str = Numerics.SAME_PRECISION
    effort: str = "standard"
    budget: float | None = None
    objective: str = "latency"
    mode: str = "inference"
    device: str | None = None
    plans: Iterable[Plan] | None = None
    memory_limit: int | str | None = None
    latency_limit: float | str | None = None
    batch: str = "as-given"
    sizes: str = "as-given"
    tolerance: float | None = None
    metric: str | None = None
    require: Iterable[str] = ()
    fresh: bool = False
    cold: bool = False
    wait: bool = False
    compile_timeout: float | None = None
    iterations: int | None = None
    fullgraph: bool = False
    workers: int | None = 1


MIN_ITERATIONS, MAX_ITERATIONS = 5, 400
"""The range of five holds the median with 94 %, that of fewer with too little. More than 400 change nothing."""


def check_iterations(number: object) -> None:
    """Refuse a number of timed rounds out of range. None is permitted."""
    if number is not None and not (is_count(number) and MIN_ITERATIONS <= number <= MAX_ITERATIONS):  # type: ignore[operator]
        raise InputError(
            f"iterations is {number!r:.40}, but must be a whole number from {MIN_ITERATIONS} to "
            f"{MAX_ITERATIONS}, or None until the interval is tight"
        )


def check_tolerance(tolerance: float | None) -> None:
    """Refuse a tolerance that is no finite number above 0, or None."""
    if tolerance is not None and not (is_positive(tolerance) and tolerance < math.inf):
        raise WorkloadError(f"tolerance is {tolerance!r}, but must be above 0 and finite, such as 0.01")


def check_timeout(seconds: object) -> None:
    """Refuse a compile time-out that is no number of seconds above 0, or None."""
    if seconds is not None and not is_positive(seconds):
        raise InputError(
            f"compile_timeout is {seconds!r:.40}, but must be a number of seconds above 0, or None for none"
        )
