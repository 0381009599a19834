"""Find the cause of the fault within its stage: the fewest options and passes without which it is gone."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Literal

from torchwise.diagnose.bisect.candidates import DECOMPOSITIONS, LOWERINGS, OPTIONS, PASSES, Candidate
from torchwise.diagnose.bisect.ddmin import first, minimal
from torchwise.diagnose.bisect.job import Probe, ProbeResult
from torchwise.diagnose.bisect.probe_runner import Looking
from torchwise.records.bisection import Cause, Stage

Suspects = tuple[Candidate, ...]
GROUPS: dict[Stage, tuple[Suspects, ...]] = {
    "aot_eager_decomp_partition": ((Candidate("cse", False),), (DECOMPOSITIONS,)),
    # Last and separate: without lowerings hardly any of Inductor is left, so that nearly every fault is gone.
    "inductor": (PASSES, OPTIONS, (DECOMPOSITIONS,), (LOWERINGS,)),
}
KINDS: dict[str, Literal["decomposition", "lowering"]] = {"decomposition": "decomposition", "lowerings": "lowering"}
_OVERLOAD = re.compile(r"<OpOverload\(op='(?P<op>[^']*)', overload='(?P<overload>[^']*)'\)>")


def find_cause(looking: Looking, order: Probe) -> Cause | None:
    """Return the cause of the fault at the order's stage, or None if turning things off never removes it."""
    search = _Search(looking, order)
    for group in GROUPS.get(order.stage, ()):
        if search.is_fixed_without(group):
            return search.describe(minimal(group, search.is_fixed_without))
    if order.stage in GROUPS:
        looking.note(f"no option and no pass of {order.stage} that can be turned off mends it")
    return None


class _Search:
    def __init__(self, looking: Looking, order: Probe) -> None:
        self._looking = looking
        self._order = order
        self._mended: dict[Suspects, ProbeResult] = {}

    def is_fixed_without(self, off: Suspects) -> bool:
        """Return whether the answer is right without these."""
        words = str(off[0]) if len(off) == 1 else f"without {_describe_group(off)}"
        seen = self._looking.try_probe(f"{self._order.stage} {words}", _disable(self._order, off))
        if seen is None or not self._looking.is_gone(seen.sighting):
            return False
        self._mended[off] = seen
        return True

    def describe(self, guilty: Suspects) -> Cause:
        """Describe the cause, and for a pass, its responsible application."""
        if len(guilty) == 1 and not guilty[0].is_option:
            return self._application(guilty[0])
        options = {suspect.name: suspect.value for suspect in guilty if suspect.value is not None}
        alone = len(options) == len(guilty) and self._order.stage == "inductor"
        name = " and ".join(map(str, guilty))
        detail = "the fault is gone with it" if len(guilty) == 1 else "the fault is gone with all of them together only"
        return Cause("option", name, detail, workaround=options if alone else {})

    def _application(self, suspect: Candidate) -> Cause:
        """Find the first application of a pass that causes the fault, by halving."""
        kind, order = suspect.name, self._order
        word: Literal["decomposition", "lowering", "pass"] = KINDS.get(kind, "pass")
        count = len(self._mended[(suspect,)].applied.get(kind, ()))

        seen: dict[int, ProbeResult | None] = {0: self._mended[(suspect,)]}

        def shows(number: int) -> bool:
            what = f"{order.stage} with {number} of {count} {kind.replace('_', ' ')}"
            seen[number] = found = self._looking.try_probe(what, replace(order, most={kind: number}))
            return found is not None and found.sighting.is_same(self._looking.fault)

        place = first(count, shows) if count else 0
        before = seen.get(place - 1)
        if before is None or not self._looking.is_gone(before.sighting) or self._looking.spent:
            return Cause(word, kind, f"the fault is gone without any {kind.replace('_', ' ')}", of=count)
        name = _operator(before.applied[kind][place - 1])
        detail = f"with {place - 1} of {count} the answer is right, with one more it is not"
        found = Cause(word, name, detail, place, count)
        return replace(found, workaround=self._workaround(name)) if word == "pass" else found

    def _workaround(self, name: str) -> dict[str, bool | int | str]:
        """Return the option that leaves this pass out, if it was seen to remove the fault."""
        option = Candidate("disabled_passes", name)
        return {option.name: name} if self.is_fixed_without((option,)) else {}


def _operator(name: str) -> str:
    """Return an operator as PyTorch's users write it, such as "aten.sigmoid.default", and other names unchanged."""
    return _OVERLOAD.sub(r"\g<op>.\g<overload>", name)


def _describe_group(off: Suspects) -> str:
    what = "options" if off[0].is_option else "kinds of pass"
    return f"{len(off)} {what} ({off[0].name} to {off[-1].name})"


def _disable(order: Probe, off: Suspects) -> Probe:
    options = {suspect.name: suspect.value for suspect in off if suspect.value is not None}
    most = {suspect.name: 0 for suspect in off if not suspect.is_option}
    return replace(order, options={**order.options, **options}, most={**order.most, **most})
