"""Find the cause of the fault within its stage: the fewest options and passes that remove it when turned off."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeVar

from torchwise.compile import three_tf32
from torchwise.diagnose.bisect.probe_runner import Option, Probe, ProbeResult, ProbeRunner
from torchwise.plan import Plan
from torchwise.plan.rules import iter_changes
from torchwise.records.bisection import Cause, Stage

T = TypeVar("T")
_OVERLOAD = re.compile(r"<OpOverload\(op='(?P<op>[^']*)', overload='(?P<overload>[^']*)'\)>")


def minimal(items: Sequence[T], holds: Callable[[tuple[T, ...]], bool]) -> tuple[T, ...]:
    """Return a part of `items` that has the property, but not without any one of its items.

    All of them together have it, which is not checked again. `holds` is called once for each part, with its items in
    their order.

    Source: Zeller and Hildebrandt, Simplifying and isolating failure-inducing input, IEEE TSE 28(2), 2002 (`ddmin`).
    """
    known: dict[tuple[int, ...], bool] = {}

    def still(places: Sequence[int]) -> bool:
        key = tuple(places)
        if key not in known:
            known[key] = holds(tuple(items[place] for place in key))
        return known[key]

    kept, pieces = list(range(len(items))), 2
    while len(kept) >= 2:
        chunks = _split(kept, pieces)
        # With two pieces, the rest without one piece is the other piece.
        rests = [[p for p in kept if p not in set(chunk)] for chunk in chunks] if pieces > 2 else []
        if (chunk := next((c for c in chunks if still(c)), None)) is not None:
            kept, pieces = chunk, 2
        elif (rest := next((r for r in rests if still(r)), None)) is not None:
            kept, pieces = rest, max(pieces - 1, 2)
        elif pieces < len(kept):
            pieces = min(2 * pieces, len(kept))
        else:
            break
    return tuple(items[place] for place in kept)


def first(count: int, shows: Callable[[int], bool]) -> int:
    """Return the smallest n for which `shows(n)` by bisection, if `shows(count)` and not `shows(0)`."""
    low, high = 0, count
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if shows(middle) else (middle, high)
    return high


def _split(items: list[int], pieces: int) -> list[list[int]]:
    bounds = [len(items) * piece // pieces for piece in range(pieces + 1)]
    return [items[low:high] for low, high in itertools.pairwise(bounds) if high > low]


@dataclass(frozen=True, slots=True)
class Candidate:
    """An option of Inductor with the value that disables it, or a kind of pass with no applications."""

    name: str
    value: Option | None = None

    @property
    def is_option(self) -> bool:
        """Whether it is an option."""
        return self.value is not None

    def __str__(self) -> str:
        """Return how to turn it off."""
        return f"{self.name}={self.value}" if self.is_option else f"without {self.name.replace('_', ' ')}"


def _turn_off(*names: str) -> tuple[Candidate, ...]:
    return tuple(Candidate(name, False) for name in names)


PASSES = tuple(Candidate(name) for name in ("post_grad_passes", "joint_graph_passes", "pre_grad_passes"))
"""Kinds of pass that PyTorch's own `CompilerBisector` can leave out, in its words."""
DECOMPOSITIONS = Candidate("decomposition")
LOWERINGS = Candidate("lowerings")
"""The lowerings to code that Inductor generates. Without them, operators run as in eager."""

OPTIONS = (
    *_turn_off("triton.cudagraphs", "freezing", "max_autotune", "max_autotune_gemm", "coordinate_descent_tuning"),
    *_turn_off("cpp_wrapper", "pattern_matcher", "joint_graph_constant_folding", "constant_and_index_propagation"),
    *_turn_off("split_cat_fx_passes", "epilogue_fusion", "prologue_fusion"),
    Candidate("max_fusion_size", 1),
    *_turn_off("loop_ordering_after_fusion", "loop_index_inversion_in_fusion", "layout_optimization"),
    *_turn_off("comprehensive_padding", "shape_padding", "inplace_padding"),
    Candidate("cpp.simdlen", 1),
    *_turn_off("cpp.weight_prepack", "cpp.enable_loop_tail_vec", "cpp.enable_tiling_heuristics", "inplace_buffers"),
    *_turn_off("allow_buffer_reuse", "memory_planning", "reorder_for_peak_memory", "reorder_for_locality"),
    *_turn_off("split_reductions", "triton.persistent_reductions", "optimize_scatter_upon_const_tensor"),
    *_turn_off("use_fast_math"),
    Candidate("emulate_precision_casts", True),
    Candidate("fallback_random", True),
)
"""Fusion, layout, vectorisation, memory and tuning. Options that a version of PyTorch lacks are skipped there."""


def describe_choice(choice: tuple[str, object]) -> str:
    """Return a choice as a plan shows it, such as "capture call" or "epilogue_fusion=True"."""
    name, value = choice
    if name == "options" and isinstance(value, tuple):
        return f"{value[0]}={value[1]}"
    return str(value) if name == "transforms" else f"{name} {value}"


def is_plain(plan: Plan) -> bool:
    """Return whether a plan is only `torch.compile` with options that PyTorch knows."""
    changed = {name for name, _ in iter_changes(plan)}
    if three_tf32.is_chosen(dict(plan.options)):
        return False
    return plan.backend == "inductor" and changed <= {"backend", "mode", "options", "shapes"}


Candidates = tuple[Candidate, ...]
GROUPS: dict[Stage, tuple[Candidates, ...]] = {
    "aot_eager_decomp_partition": ((Candidate("cse", False),), (DECOMPOSITIONS,)),
    # Lowerings come last: without them hardly any of Inductor is left, so that nearly every fault is gone.
    "inductor": (PASSES, OPTIONS, (DECOMPOSITIONS,), (LOWERINGS,)),
}
KINDS: dict[str, Literal["decomposition", "lowering"]] = {"decomposition": "decomposition", "lowerings": "lowering"}


def find_cause(runner: ProbeRunner, probe: Probe) -> Cause | None:
    """Return the cause of the fault at the probe's stage, or None if turning something off never removes it."""
    search = _Search(runner, probe)
    for group in GROUPS.get(probe.stage, ()):
        if search.is_fixed_without(group):
            return search.describe(minimal(group, search.is_fixed_without))
    if probe.stage in GROUPS:
        runner.note(f"turning off an option or a pass of {probe.stage} never removes the fault")
    return None


class _Search:
    def __init__(self, runner: ProbeRunner, probe: Probe) -> None:
        self._runner = runner
        self._probe = probe
        self._fixed: dict[Candidates, ProbeResult] = {}

    def is_fixed_without(self, off: Candidates) -> bool:
        """Return whether the answer is right without these."""
        words = str(off[0]) if len(off) == 1 else f"without {_describe_group(off)}"
        result = self._runner.try_probe(f"{self._probe.stage} {words}", _disable(self._probe, off))
        if result is None or not self._runner.is_gone(result.observation):
            return False
        self._fixed[off] = result
        return True

    def describe(self, culprits: Candidates) -> Cause:
        """Describe the cause, and for a pass, its responsible application."""
        if len(culprits) == 1 and not culprits[0].is_option:
            return self._application(culprits[0])
        options = {candidate.name: candidate.value for candidate in culprits if candidate.value is not None}
        alone = len(options) == len(culprits) and self._probe.stage == "inductor"
        name = " and ".join(map(str, culprits))
        detail = (
            "the fault is gone with it" if len(culprits) == 1 else "the fault is gone only with all of them together"
        )
        return Cause("option", name, detail, workaround=options if alone else {})

    def _application(self, candidate: Candidate) -> Cause:
        """Find the first application of a pass that causes the fault, by halving."""
        kind, probe = candidate.name, self._probe
        word: Literal["decomposition", "lowering", "pass"] = KINDS.get(kind, "pass")
        count = len(self._fixed[(candidate,)].applied.get(kind, ()))

        results: dict[int, ProbeResult | None] = {0: self._fixed[(candidate,)]}

        def shows(number: int) -> bool:
            name_of_probe = f"{probe.stage} with {number} of {count} {kind.replace('_', ' ')}"
            results[number] = result = self._runner.try_probe(name_of_probe, replace(probe, most={kind: number}))
            return result is not None and result.observation.is_same(self._runner.fault)

        place = first(count, shows) if count else 0
        before = results.get(place - 1)
        if before is None or not self._runner.is_gone(before.observation) or self._runner.spent:
            return Cause(word, kind, f"the fault is gone without any {kind.replace('_', ' ')}", of=count)
        name = _operator(before.applied[kind][place - 1])
        detail = f"with {place - 1} of {count} the answer is right, with one more it is not"
        cause = Cause(word, name, detail, place, count)
        return replace(cause, workaround=self._workaround(name)) if word == "pass" else cause

    def _workaround(self, name: str) -> dict[str, bool | int | str]:
        """Return the option that leaves this pass out, if a probe showed that it removes the fault."""
        option = Candidate("disabled_passes", name)
        return {option.name: name} if self.is_fixed_without((option,)) else {}


def _operator(name: str) -> str:
    """Return an operator as PyTorch's users write it, such as "aten.sigmoid.default", and other names unchanged."""
    return _OVERLOAD.sub(r"\g<op>.\g<overload>", name)


def _describe_group(off: Candidates) -> str:
    kind = "options" if off[0].is_option else "kinds of pass"
    return f"{len(off)} {kind} ({off[0].name} to {off[-1].name})"


def _disable(probe: Probe, off: Candidates) -> Probe:
    options = {candidate.name: candidate.value for candidate in off if candidate.value is not None}
    most = {candidate.name: 0 for candidate in off if not candidate.is_option}
    return replace(probe, options={**probe.options, **options}, most={**probe.most, **most})
