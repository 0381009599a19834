"""Choose how the sizes of a module's inputs are handled, by those that were recorded.

A few sizes get the fastest plan for them, and a plan with dynamic shapes answers all others. Many sizes are padded to a
few if that is verified to change no answer. Otherwise one plan with dynamic shapes answers them all.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from torchwise.errors import PlanError, TorchwiseError
from torchwise.plan import Plan
from torchwise.plan.workload_spec import Sizes
from torchwise.records import Decision
from torchwise.records import format as show
from torchwise.runtime.bucketing import Choice, Padding, VerifiedPadding, choose, verify_padding
from torchwise.runtime.bucketing.bucketed import DYNAMIC, list_padded_examples
from torchwise.runtime.bucketing.padding_check import list_one_sided
from torchwise.runtime.program.calls import Calls, Kind, device_type_of
from torchwise.runtime.program.recorder import list_examples
from torchwise.workload import Example
from torchwise.workload.identity import specify_inputs
from torchwise.workload.input_spec import InputSpec, TensorSpec, find_varying_dims

logger = logging.getLogger("torchwise")

MAX_EXAMPLES = 4
"""Maximum kinds of inputs that a module is tuned for."""
PADS_ON = frozenset({"cuda"})
"""Types of device on which inputs may be padded: for a few sizes, a GPU can also replay captured calls."""
_ARGUMENT = re.compile(r"\[0\]\[(?P<place>\d+)\]|\[1\]\['(?P<name>\w+)'\]")
"""The path of an argument that is a tensor itself."""


@dataclass(frozen=True, slots=True)
class SizeMix:
    """The calls of a module that a plan is searched for.

    Attributes:
        kinds: the kinds of calls to tune on, with the same mode and autocast.
        choice: how their sizes are handled and why, or None if they do not vary.
        padded: the verified rule by which inputs are padded, if that is the choice.
        histogram: calls by size, for that rule.
        note: the kinds of calls that no plan is searched for, in words, or empty.
        calls: the number of calls that the plans are for.
        others: the number of calls of other sizes, which a second plan would answer.
    """

    kinds: tuple[Kind, ...]
    calls: float
    others: float = 0.0
    choice: Choice | None = None
    padded: VerifiedPadding | None = None
    histogram: Mapping[int, float] | None = None
    note: str = ""

    def pad_alike(self, workload: Callable[..., Any]) -> VerifiedPadding | None:
        """Return the rule for padding if it is verified for a module with other weights, too, or None."""
        rule = guess_padding(self.kinds)
        if self.padded is None or rule is None:
            return None
        return try_padding(workload, find_longest(self.kinds, rule), rule, self.padded.buckets)

    @property
    def is_dynamic(self) -> bool:
        """Whether one plan with dynamic shapes answers all sizes."""
        return self.choice is not None and self.choice.kind == "dynamic"

    @property
    def is_static(self) -> bool:
        """Whether a few sizes of several have their own plan."""
        return self.choice is not None and self.choice.kind == "static"

    def needs_others(self, decision: Decision) -> bool:
        """Whether a second plan, with dynamic shapes, is to answer the sizes that the decision's plan does not."""
        return self.is_static and not decision.plan.is_eager and decision.plan.shapes == "static"

    def list_examples(self, workload: Callable[..., Any]) -> tuple[Example, ...]:
        """Return the inputs to tune on, each with the number of calls that it stands for."""
        if self.padded is not None:
            return tuple(list_padded_examples(workload, self.padded, self.histogram or {}))
        return list_examples(list(self.kinds), [float(kind.calls) for kind in self.kinds])

    def propose(self) -> str:
        """Return in a sentence which plans a search would look for, or an empty text if sizes do not vary."""
        if self.choice is None or self.padded is not None:
            return ""
        if self.is_dynamic:
            found = self.choice.reason
            return f"sizes vary: --tune looks for one plan for all sizes, as --sizes varying does ({found})"
        count = show.pluralize(len(self.choice.sizes), "size")
        if self.others:
            return f"{self.choice.reason}: --tune looks for a plan for {count}, and for a second one for all others"
        more = "--calls or --sizes varying looks for a plan for these, too"
        return f"{count}: --tune looks for a plan for these; others then run as written, but {more}"

    def describe(self, decision: Decision, others: Decision | None, failure: str = "") -> str:
        """Return in a sentence which plan answers which sizes, or an empty text if there is nothing to say.

        `failure` is why the search for a plan for other sizes failed.
        """
        if self.choice is None or decision.plan.is_eager:
            return ""
        if self.padded is not None:
            sizes = ", ".join(map(str, self.padded.buckets))
            padded = f"inputs are padded to {sizes}, verified to change no answer, and larger ones run as written"
            return f"{padded}: {self.choice.reason}"
        if decision.plan.shapes == "dynamic":
            return f"one plan answers every size{f': {self.choice.reason}' if self.is_dynamic else ''}"
        if others is None or others.plan.shapes != "dynamic":
            why = failure if others is None else others.reason
            return f"other sizes than these run as written{f': {why}' if why else ''}"
        return f"other sizes than these run by {others.plan}, {others.speedup} times eager's speed"


def choose_mix(calls: Calls, workload: Callable[..., Any] | None, *, pads: bool, sizes: Sizes = "as-given") -> SizeMix:
    """Choose the kinds of calls to tune for, and how their sizes are handled.

    Args:
        calls: the recorded calls, some of which have inputs that were kept.
        workload: the module or function as it is tuned, on which padding is verified. Without `pads`, None will do.
        pads: whether padding may be chosen, if the device is one for it.
        sizes: the sizes to come, as for `tune`. "as-given" lets the recorded sizes decide.
    """
    alike, note = select_alike(calls)
    count = functools.partial(count_calls, calls)
    if sizes == "fixed" or (sizes == "as-given" and not have_several_sizes(alike)):
        tuned, rest = tuple(alike[:MAX_EXAMPLES]), alike[MAX_EXAMPLES:]
        return SizeMix(tuned, count(tuned), note="; ".join(filter(None, (describe_rest(rest), note))))
    by_size: defaultdict[int, list[Kind]] = defaultdict(list)
    rule = guess_padding(alike) if pads and device_type_of(workload) in PADS_ON else None
    for kind in alike:
        by_size[size_of(kind, rule)].append(kind)
    if sizes == "varying":
        choice = Choice("dynamic", (min(by_size), size_of(alike[0], rule), max(by_size)), "more sizes are to come")
        return SizeMix(select_representative(alike, by_size, choice.sizes), count(alike), 0.0, choice, note=note)
    histogram = {size: float(sum(kind.calls for kind in kinds)) for size, kinds in sorted(by_size.items())}
    choice = choose(histogram, verified=rule is not None, count=MAX_EXAMPLES)
    if choice.kind == "buckets" and rule is not None:
        assert workload is not None, "padding is verified on it"
        padded = try_padding(workload, find_longest(alike, rule), rule, choice.sizes)
        if padded is not None:
            return SizeMix(tuple(alike), count(alike), 0.0, choice, padded, histogram, note)
        choice = choose(histogram, verified=False, count=MAX_EXAMPLES)
    if choice.kind == "dynamic":
        return SizeMix(select_representative(alike, by_size, choice.sizes), count(alike), 0.0, choice, note=note)
    tuned = tuple([kind for kind in alike if size_of(kind, rule) in choice.sizes][:MAX_EXAMPLES])
    keys = {kind.key for kind in tuned}
    rest = [kind for kind in alike if kind.key not in keys]
    return SizeMix(tuned, count(tuned), count(rest), choice, note=note)


def count_calls(calls: Calls, kinds: Sequence[Kind]) -> float:
    """Return the number of calls of some kinds. Calls of kinds beyond the limit of a recording are none of them."""
    looked = sum(kind.calls for kind in calls.kinds.values())
    return sum(map(calls.count_of, kinds)) * looked / max(looked + calls.unlike, 1)


def describe_rest(kinds: Sequence[Kind]) -> str:
    """Say which kinds of calls are too many to be tuned for, or nothing if there are none."""
    if not kinds:
        return ""
    return (
        f"{show.pluralize(len(kinds), 'further kind')} of calls run as written, such as {kinds[0].text}: "
        f"at most {MAX_EXAMPLES} kinds are tuned for"
    )


def make_dynamic(plan: Plan) -> Plan:
    """Return a plan for every size that is like another one in all that does not hold for one size alone.

    Its compiler is the same if it can compile for all sizes at once, as that took this compiler's time before.
    """
    for backend in dict.fromkeys((plan.backend, "inductor")):
        with contextlib.suppress(PlanError):  # such as of eager, or of a rewrite for static shapes
            return replace(plan, backend=backend, mode="default", scope="whole", capture="none", shapes="dynamic")
    return replace(DYNAMIC[0], threads=plan.threads)


def select_alike(calls: Calls) -> tuple[list[Kind], str]:
    """Return the kinds of calls in the mode and autocast of most of the time, and a note about the others, if any.

    The kind with the most time is first. Calls in the other one of `train()` and `eval()` are left out: a plan holds
    for the module as it is now.
    """
    training = getattr(calls.live, "training", False)
    kept = [kind for kind in sorted(calls.kinds.values(), key=calls.seconds_of, reverse=True) if kind.example]
    ranked = [kind for kind in kept if kind.training is training] or kept
    first = ranked[0]
    alike = [kind for kind in ranked if kind.key[1:] == first.key[1:]]
    left_out = [kind for kind in calls.kinds.values() if kind.key[1:] != first.key[1:]]
    if not left_out:
        return alike, ""
    share = show.percent(sum(map(calls.seconds_of, left_out)) / calls.seconds if calls.seconds else None)
    example = left_out[0]
    mode = f"{example.mode}, {'train' if example.training else 'eval'} mode"
    autocast = "" if example.autocast is None else f", autocast {str(example.autocast).removeprefix('torch.')}"
    return alike, (
        f"{show.pluralize(len(left_out), 'further kind')} of calls, {share} of its time, run as written, such as "
        f"{example.text} ({mode}{autocast}): a plan holds for one mode, so run these alone to tune for them"
    )


def have_several_sizes(kinds: Sequence[Kind]) -> bool:
    """Whether two kinds of calls differ in nothing but sizes."""
    forms = Counter(specify(kind).strip_sizes() for kind in kinds)
    return max(forms.values()) > 1


def specify(kind: Kind) -> InputSpec:
    """Return the form of the inputs of a kind of calls."""
    assert kind.example is not None, "only kinds with inputs are tuned for"
    return specify_inputs(kind.example)


def size_of(kind: Kind, rule: Padding | None = None) -> int:
    """Return the size that a rule would pad, or else the number of all elements of the inputs."""
    shapes = shapes_of(kind)
    if rule is not None:
        name, dims = next(iter(rule.inputs.items()))
        path = f"[0][{name}]" if isinstance(name, int) else f"[1][{name!r}]"
        return shapes[path][dims[0] if isinstance(dims, tuple) else dims]
    return max(sum(torch.Size(shape).numel() for shape in shapes.values()), 1)


def find_longest(kinds: Sequence[Kind], rule: Padding) -> Kind:
    """Return the kind of calls with the largest size that a rule would pad."""
    return max(kinds, key=lambda kind: size_of(kind, rule))


def shapes_of(kind: Kind) -> dict[str, tuple[int, ...]]:
    """Return the shape of each tensor among the inputs, by its path."""
    leaves = specify(kind).leaves
    return {one.path: one.value.shape for one in leaves if isinstance(one.value, TensorSpec) and one.value.shape}


def guess_padding(kinds: Sequence[Kind]) -> Padding | None:
    """Return the rule for padding that the inputs suggest, which nobody has verified yet, or None.

    There is one if a single size varies: every dimension that varies has the same size in each call.
    """
    if len({specify(kind).strip_sizes() for kind in kinds}) > 1 or kinds[0].mode != "inference":
        return None
    shapes = [shapes_of(kind) for kind in kinds]
    varying: dict[int | str, int | tuple[int, ...]] = {}
    sequences: set[tuple[int, ...]] = set()
    for path, dims in find_varying_dims([str(specify(kind)) for kind in kinds]).items():
        found = _ARGUMENT.fullmatch(path)
        if found is None:  # it lies in a container, where no rule reaches
            return None
        varying[int(found["place"]) if found["place"] else found["name"]] = dims
        sequences |= {tuple(shape[path][dim] for shape in shapes) for dim in dims}
    return Padding(dict(varying)) if len(sequences) == 1 else None


def try_padding(
    workload: Callable[..., Any], longest: Kind, rule: Padding, buckets: Sequence[int]
) -> VerifiedPadding | None:
    """Return the rule if it is verified to change no answer, or None. The model runs on padded inputs for that."""
    (example,) = list_examples([longest], [1.0])
    try:
        if sided := list_one_sided(workload, rule, example):
            logger.info("torchwise: inputs are not padded: all values of %s lie on one side of 0", sided[0])
            return None
        return verify_padding(workload, example.args, dict(example.kwargs), padding=rule, buckets=buckets)
    except TorchwiseError as error:  # the rule is refused, or the model cannot run on such inputs
        logger.info("torchwise: inputs are not padded: %s", error)
        return None


def select_representative(
    kinds: Sequence[Kind], by_size: Mapping[int, Sequence[Kind]], sizes: Sequence[int]
) -> tuple[Kind, ...]:
    """Return kinds that stand for all: the most called of each of some sizes, and one for each other kind of code.

    PyTorch compiles code of its own for sizes of 0 and 1, also in a plan with dynamic shapes.
    """
    common = [max(by_size[size], key=lambda kind: kind.calls) for size in sizes]
    ends, between = [common[0], common[-1]], common[1:-1]
    known = {_code_class(kind) for kind in ends}
    others: dict[Hashable, Kind] = {}
    for kind in kinds:
        if (found := _code_class(kind)) not in known:
            others.setdefault(found, kind)
    chosen = {id(kind): kind for kind in (*ends, *others.values(), *between)}
    return tuple(chosen.values())[:MAX_EXAMPLES]


def _code_class(kind: Kind) -> Hashable:
    small = tuple(
        (path, tuple(size if size < 2 else None for size in shape)) for path, shape in shapes_of(kind).items()
    )
    return specify(kind).strip_sizes(), small
