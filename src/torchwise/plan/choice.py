"""One value of one dimension of a plan: what it may change and gain, its rules, and the code that realizes it.

Each file in `choices/` declares the choices of one dimension, or one rewrite. All else follows from the declaration:
which values a plan may have, which plans are refused, which are proposed, and how they are compiled.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import pkgutil
import re
import sys
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from torchwise.errors import InputError
from torchwise.former_names import renamed_fields
from torchwise.parsing import short_repr
from torchwise.plan.effort import EffortName
from torchwise.plan.numerics import Numerics
from torchwise.plan.plug_ins import load_plug_ins
from torchwise.plan.trait import Trait, check_trait

if TYPE_CHECKING:
    from torchwise.plan.plan import Plan

TargetCost = Literal["all", "gemm", "conv", "attention", "launch", "compile", "memory"]
"""The part of the time that a choice can act on.

It is all of it, matrix products and convolutions, convolutions alone, or fused attention alone. "launch" is the time
between kernels (a GPU waits for the host, a CPU runs Python), and "compile" only the time it takes to compile. "memory"
is none of it, as the choice saves memory alone.
"""

TRAIT_FIELDS = ("required_traits", "quick_with", "standard_with")
"""The fields of a choice that list traits alone."""

Code = str | Callable[..., Any]
"""A function, or the place of one as "module:function", which is imported when it is needed, as it may need torch."""


class Stage(StrEnum):
    """The stages at which rewrites act, in their order, and the function that each of them expects.

    A rewrite leaves the original as it is, and shares its weights. It refuses a model that it is not for with
    `UnsupportedError`. `torchwise.testing.transform` has this contract as tests.
    """

    FORM = "form"
    """The model is replaced by another form of itself: `(callable) -> (callable, layer)`.

    The layer is put around the code that is made of the new callable.
    """
    MODEL = "model"
    """Parts of the model are replaced in a copy that shares its weights: `(callable) -> (callable, layer)`."""
    TRACE = "trace"
    """The functions that Dynamo traced are rewritten, before Inductor differentiates them: `(graph) -> places`.

    In a plan of backend "eager", they run as rewritten. It returns the number of places that it changed. Its traits are
    found in a recorded call. If the choice `derives_weights`, the values that it marks as computed from weights alone
    are computed once, and not in each call.
    """
    GRAPH = "graph"
    """The graphs are rewritten and compiled by Inductor: `(options) -> backend` of `torch.compile`."""
    PASS = "pass"
    """The graphs are rewritten inside Inductor: `() -> pass`, in the form of Inductor's option for one."""
    CALL = "call"
    """The callable that a compiler traces, or a graph records, is wrapped: `(callable) -> callable`."""
    SETTING = "setting"
    """Settings that the process shares hold around each call: `() -> context`.

    Of calls that overlap, only the first enters such a context. Its traits are found in a recorded call.
    """


FORMER_TRANSFORMS = {"compiled_lstm": "compiled_rnn"}
"""The former names of rewrites, with those that they have now."""


@renamed_fields(
    numerics="legality",
    required_traits="needs",
    excluded_by="unless",
    requires="on",
    implies="brings",
    implies_for="brings_for",
    target_cost="acts",
    min_remaining_fraction="keeps",
)
@dataclass(frozen=True, slots=True)
class Choice:
    """One value that a field of a `Plan` can take.

    Attributes:
        field: the plan's field, or "options" for one compiler option.
        value: its value, or `(name, value)` for an option.
        numerics: how far it may move the answer.
        complexity: how much it adds to understand and maintain. Ties go to the smaller sum.
        summary: its effect, in a line, for people.
        devices: devices on which it means anything.
        modes: "inference", "training".
        required_traits: traits the workload must have.
        excluded_by: traits it must not have, each with the reason.
        requires: choices it only makes sense with, as (field, value).
        implies: choices that are proposed together with it if they are open, as (field, value): those it only makes
            sense with, and those that go well with it.
        implies_for: choices that it implies for workloads with a trait, as (trait, (field, value)).
        effort: the least effort at which it is tried by itself.
        quick_with: traits of a workload with any of which that is effort "quick".
        quick_on: the devices on which that is so.
        standard_with: traits of a workload with any of which that is at most effort "standard".
        compile_factor: compile time as a multiple of a plain compile, or 0 if it compiles nothing.
        target_cost: the part of the time that it can improve.
        min_remaining_fraction: share of that part that is sure to remain, so that the rest bounds the gain.
        carries_over: whether a loss on one plan predicts a loss on others, so that it is not tried again.
        realized_by: the function that realizes a rewrite (see `Stage`), a backend or a capture. Other fields are
            realized by `torchwise.compile` itself.
        stage: the stage at which a rewrite acts.
        find_problems: yields the reasons why a plan that has this choice is illegal or means nothing.
        not_ahead: the reason why no code with it can be compiled ahead of time, or "".
        ahead_instead: choices in its place in a plan that is compiled ahead, as (field, value), or None if nothing can
            take its place. Without `not_ahead` they are for models with which it cannot be.
        keeps_code: whether a later process finds the code in PyTorch's caches. If not, an artifact has no code of it.
        freezes_weights: whether the weights are constants of the code. When they change, the plan is stale.
        derives_weights: whether a rewrite makes others from the weights, which the code reads. The same holds then.
        dynamic_shapes: whether a backend can compile for all sizes at once, or a capture can record each size.
        may_be_one_kernel: whether a backend may make one kernel of a whole call, which needs no capture then.
        packages: the packages that it needs beside PyTorch, by the names that are imported.
        install: what installs them, after `pip install`, if not these names.
        builds: files that the first of them has only if it was built for a device, as (device, pattern below its
            folder, package to install).
        torch_from: the first release of PyTorch that has it, such as "2.14", or "" for all that Torchwise supports.
        detectors: functions that find in a model the traits that only this choice needs, as (trait, function). A
            function takes the model, and returns whether it has the trait. For a rewrite at stage "trace" or
            "setting", and if its argument is named `graph`, it takes the graph of the functions that a call runs.
        parts: the function that maps the parts of a model that a rewrite changes to their sizes, by their names. Then a
            value may leave some of them as they are (`skip_parts`), and `realized_by` takes their names as `skip`.
    """

    field: str
    value: Any
    numerics: Numerics
    complexity: int
    summary: str
    devices: tuple[str, ...] = ("cpu", "cuda")
    modes: tuple[str, ...] = ("inference", "training")
    required_traits: tuple[Trait, ...] = ()
    excluded_by: tuple[tuple[Trait, str], ...] = ()
    requires: tuple[tuple[str, Any], ...] = ()
    implies: tuple[tuple[str, Any], ...] = ()
    implies_for: tuple[tuple[Trait, tuple[str, Any]], ...] = ()
    effort: EffortName = "standard"
    quick_with: tuple[Trait, ...] = ()
    quick_on: tuple[str, ...] = ("cpu", "cuda")
    standard_with: tuple[Trait, ...] = ()
    compile_factor: float = 1.0
    target_cost: TargetCost = "all"
    min_remaining_fraction: float = 0.0
    carries_over: bool = False
    realized_by: Code | None = None
    stage: Stage | None = None
    find_problems: Callable[[Plan], Iterator[str]] | None = None
    not_ahead: str = ""
    ahead_instead: tuple[tuple[str, Any], ...] | None = None
    keeps_code: bool = True
    freezes_weights: bool = False
    derives_weights: bool = False
    dynamic_shapes: bool = False
    may_be_one_kernel: bool = False
    packages: tuple[str, ...] = ()
    install: str = ""
    builds: tuple[tuple[str, str, str], ...] = ()
    torch_from: str = ""
    detectors: tuple[tuple[Trait, Code], ...] = ()
    parts: Code | None = None

    def __post_init__(self) -> None:
        """Take traits by their values, too, as a plug-in may name them."""
        named = ((field, getattr(self, field)) for field in TRAIT_FIELDS)
        found: dict[str, Any] = {field: tuple(check_trait(one, field) for one in traits) for field, traits in named}
        for field in ("excluded_by", "implies_for", "detectors"):
            found[field] = tuple((check_trait(trait, field), other) for trait, other in getattr(self, field))
        for field, value in found.items():
            object.__setattr__(self, field, value)

    def least_effort(self, traits: Collection[Trait], device: str) -> EffortName:
        """Return the least effort at which it is tried by itself, for a workload with these traits on a device."""
        if device in self.quick_on and any(trait in traits for trait in self.quick_with):
            return "quick"
        is_common = any(trait in traits for trait in self.standard_with)
        return "standard" if is_common and self.effort == "thorough" else self.effort

    @property
    def key(self) -> tuple[str, Any]:
        """Its key: the field and the value, which for an option is its name and value."""
        return (self.field, self.value)

    def tell_missing_package(self, device: str | None = None) -> str | None:
        """Return which of its packages is not installed, and how to install it, or None. Nothing is imported.

        With a device, a package that was not built for it counts as missing. So does an earlier PyTorch than it needs.
        """
        installed = _find_torch() if self.torch_from else None
        if installed and _read_release(installed) < _read_release(self.torch_from):
            return f"it needs PyTorch {self.torch_from} or later, and this is {installed}"
        missing = [name for name in self.packages if name not in sys.modules and not _is_installed(name)]
        if missing:
            return f"it needs {missing[0]}, which is not installed: pip install {self.install or ' '.join(missing)}"
        for name, pattern, package in self.builds:
            if name == device and self.packages and not _has_file(self.packages[0], pattern):
                return f"this {self.packages[0]} is not built for {device}: pip install {package}"
        return None


@functools.cache
def _find_torch() -> str | None:
    try:
        return version("torch")
    except PackageNotFoundError:  # it is on the path without its metadata
        return getattr(sys.modules.get("torch"), "__version__", None)


@functools.cache
def _read_release(release: str) -> tuple[int, ...]:
    """Return the first two numbers of a release, such as (2, 14) of "2.14.1+cpu", or of "2.14.0a0+git1"."""
    return tuple(int(number) for number in re.findall(r"\d+", release)[:2])


@functools.cache  # a search asks a thousand times
def _is_installed(package: str) -> bool:
    try:
        spec = importlib.util.find_spec(package)
    except ImportError:  # of the package that this one is part of
        return False
    return spec is not None and spec.origin is not None  # or it is a mere folder of that name


@functools.cache
def _has_file(package: str, pattern: str) -> bool:
    spec = importlib.util.find_spec(package)
    folders = [] if spec is None else spec.submodule_search_locations or []
    return any(next(Path(folder).glob(pattern), None) for folder in folders)


ANY = "*"
"""A value that describes every value of a field that no other choice names. It is never proposed by itself."""

DIGEST_MARK = "@"
"""Separates the name of a kernel of the user's from the digest of its code, in the value of its choice."""

SKIP_MARK = "@skip="
"""Separates the name of a rewrite from the parts that it leaves as they are, which have commas between them."""

CHOICES: dict[tuple[str, Any], Choice] = {}
"""Every registered choice, in the order of the files in `choices/`."""


def register(*choices: Choice) -> None:
    """Add choices to the space. The last one registered under a key holds.

    A plug-in may call it too, from a function that an entry point of the group "torchwise.choices" names, or from a
    file that `TORCHWISE_PLUGINS` names. Then every process knows its choices, and reads plans that hold them.

    Raises:
        InputError: something else is given.
    """
    for given in choices:
        if not isinstance(given, Choice):
            raise InputError(f"choice is {short_repr(given)}, but must be a `Choice` of `torchwise.plan`")
    CHOICES.update({choice.key: choice for choice in choices})


def load_choices() -> dict[tuple[str, Any], Choice]:
    """Import every file in `choices/`, each of which registers its own, call plug-ins, and return all choices."""
    load_own_choices()
    load_plug_ins()
    return CHOICES


@functools.cache  # a search asks for the choices a thousand times, and the folder was read each time
def load_own_choices() -> None:
    """Import every file in `choices/`, and no plug-in. Plans need their rules while plug-ins are still imported."""
    from torchwise.plan import choices

    for module in pkgutil.iter_modules(choices.__path__):
        importlib.import_module(f"{choices.__name__}.{module.name}")


def find_choice(field: str, value: Any) -> Choice | None:
    """Return the registered choice of a value, or None. One with parts left out is made of that for all parts."""
    found = CHOICES.get((field, value))
    if found is not None or not isinstance(value, str):
        return found
    name, mark, skipped = value.partition(SKIP_MARK)
    whole = CHOICES.get((field, name))
    if not mark or whole is None or whole.parts is None or whole.realized_by is None:
        return None
    names = tuple(skipped.split(","))
    return replace(
        whole,
        value=value,
        complexity=whole.complexity + 1,
        summary=f"{whole.summary}, but {', '.join(names)} as before",
        realized_by=functools.partial(_realize_in_part, whole.realized_by, names),
    )


def skip_parts(value: str, names: Collection[str]) -> str:
    """Return the value of a rewrite that leaves these parts of a model as they are, and no others."""
    whole = value.partition(SKIP_MARK)[0]
    return f"{whole}{SKIP_MARK}{','.join(names)}" if names else whole


def _realize_in_part(code: Code, names: tuple[str, ...], call: Callable[..., Any]) -> Any:
    return load_code(code)(call, skip=names)


def complete_name(transform: str) -> str:
    """Return the name of a rewrite: its present one, with the digest of the code of a kernel of the user's."""
    load_own_choices()
    transform = FORMER_TRANSFORMS.get(transform, transform)
    if ("transforms", transform) in CHOICES or DIGEST_MARK in transform:
        return transform
    of_kernels = (name for name in list_values("transforms") if name.partition(DIGEST_MARK)[0] == transform)
    return next(of_kernels, transform)


def list_values(field: str) -> tuple[Any, ...]:
    """List the values that choices describe for a field, without its default."""
    return tuple(value for name, value in load_choices() if name == field and value != ANY)


def load_code(code: Code) -> Callable[..., Any]:
    """Return a function, imported if it is given by its place."""
    found: Callable[..., Any] = pkgutil.resolve_name(code) if isinstance(code, str) else code
    return found
