"""Find the cause of the fault within its stage: the fewest options and passes that remove it when turned off."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Literal

from torchwise.diagnose.bisect.candidates import DECOMPOSITIONS, LOWERINGS, OPTIONS, PASSES, Candidate
from torchwise.diagnose.bisect.ddmin import first, minimal
from torchwise.diagnose.bisect.job import Probe, ProbeResult
from torchwise.diagnose.bisect.probe_runner import ProbeRunner
from torchwise.records.bisection import Cause, Stage

Candidates = tuple[Candidate, ...]
GROUPS: dict[Stage, tuple[Candidates, ...]] = {
    "aot_eager_decomp_partition": ((Candidate("cse", False),), (DECOMPOSITIONS,)),
    # Lowerings come last: without them hardly any of Inductor is left, so that nearly every fault is gone.
    "inductor": (PASSES, OPTIONS, (DECOMPOSITIONS,), (LOWERINGS,)),
}
KINDS: dict[str, Literal["decomposition", "lowering"]] = {"decomposition": "decomposition", "lowerings": "lowering"}
_OVERLOAD = re.compile(r"<OpOverload\(op='(?P<op>[^']*)', overload='(?P<overload>[^']*)'\)>")


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
