"""The search: from stage to pass or option, from there to the smallest part, and to a program that shows the fault."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from dataclasses import replace

from torchwise import environment
from torchwise.diagnose.bisect.candidates import describe_choice, is_plain, plan_of
from torchwise.diagnose.bisect.ddmin import minimal
from torchwise.diagnose.bisect.isolate import find_cause
from torchwise.diagnose.bisect.job import Graphs, Part, Probe, ProbeResult, Written
from torchwise.diagnose.bisect.probe_runner import BisectListener, Looking
from torchwise.diagnose.bisect.request import BisectRequest
from torchwise.errors import PlanError, first_line
from torchwise.plan import EAGER, Plan
from torchwise.plan.space import iter_changes
from torchwise.records import Failure, codec
from torchwise.records.bisection import Bisection, Cause, Observation, Operation, Repro, Stage, Subgraph, Symptom
from torchwise.trial import Job, Launcher, own_caches

LOWER: tuple[Stage, ...] = ("dynamo", "aot_eager", "aot_eager_decomp_partition")
"""The stages below Inductor, each with all stages before it."""
REPRO_LIMIT_S = 900.0
SHOWN = {
    Symptom.WRONG: r"FAULT: value",
    Symptom.NAN: r"FAULT: value",
    Symptom.CRASH: r"FAULT: the compiled call raises",
    Symptom.HANG: r"Timeout \(",
    Symptom.SLOW: r"FAULT: a call takes",
}
"""The output of a repro for each fault. A program that cannot even be imported also exits with 1, and shows nothing."""
OUTPUT_TAIL = 1500


def run_bisection(request: BisectRequest, launcher: Launcher, listener: BisectListener) -> Bisection:
    """Find where a fault enters.

    Raises:
        InputError: the target cannot be used, or nothing of it is compiled.
        BaselineError: the model itself fails, or is not right by its own float64 reference.
        UnsupportedError: this torch lacks a feature that bisecting or the plan needs.
    """
    start = time.monotonic()
    with own_caches() as folder:
        job = Job(
            "try",
            request.workload,
            request.plan,
            source=request.source,
            cache_dir=folder,
            settings=request.settings,
        )
        found = _Bisecting(request, Looking(request, launcher, listener, job)).run()
    return replace(found, seconds=time.monotonic() - start)


_NONE_BY_ITSELF = (
    "no graph has an operation: the fault lies in what is called around them",
    "the one graph is right by itself: the fault lies in how it is called, or in what is made of what it returns",
    "no graph by itself shows the fault: it lies between them, or in how they are called",
)
"""Notes for no graph, for one, and for more."""


class _Bisecting:
    def __init__(self, request: BisectRequest, looking: Looking) -> None:
        self._request = request
        self._looking = looking

    def run(self) -> Bisection:
        found = self._search()
        return replace(found, steps=tuple(self._looking.steps), notes=tuple(dict.fromkeys(self._looking.notes)))

    def _search(self) -> Bisection:
        looking, request = self._looking, self._request
        where = environment.detect(request.workload.device)
        nothing = Bisection(request.workload, where, Observation(Symptom.NONE), request.plan, request.what)
        looking.begin()
        plan = request.plan if request.plan != EAGER else Plan(backend="inductor")
        order = looking.order("inductor" if is_plain(plan) else "plan", plan)
        seen = looking.run_probe(f"{order.stage}: {plan}" if order.stage == "plan" else "torch.compile as it is", order)
        if not looking.is_requested(seen.sighting):
            return replace(nothing, observation=self._report_no_fault(seen.sighting))
        looking.fault = seen.sighting
        order, culprit = self._fewest_choices(order)
        if order.stage == "inductor":
            order, seen = self._lowest_stage(order, seen)
            culprit = find_cause(looking, order) or culprit
        found = replace(nothing, observation=looking.fault, stage=order.stage, cause=culprit, plan=order.job.plan)
        subgraph = self._find_smallest_subgraph(order)
        found = replace(found, subgraph=subgraph)
        return replace(found, repro=self._repro(order, found)) if request.repro else found

    def _report_no_fault(self, sighting: Observation) -> Observation:
        """Return the answer when no symptom of the requested kind was seen."""
        unknown = sighting.symptom is Symptom.NOT_COMPARABLE and self._request.compares
        if sighting.symptom is Symptom.NONE or unknown:
            return sighting
        return Observation(Symptom.NONE, f"but {sighting.symptom}: {sighting.detail}")

    def _fewest_choices(self, order: Probe) -> tuple[Probe, Cause | None]:
        """Remove every choice that a plan does not need for the fault to appear."""
        plan, looking = order.job.plan, self._looking
        choices = tuple(part for part in iter_changes(plan) if part[0] != "backend")
        if not choices:
            return order, None

        def make_order(part: tuple[tuple[str, object], ...]) -> Probe | None:
            try:
                fewer = plan_of(part, plan.backend)
            except PlanError:  # one choice needs another that is taken away
                return None
            return looking.order("inductor" if is_plain(fewer) else "plan", fewer)

        def shows(part: tuple[tuple[str, object], ...]) -> bool:
            lesser = make_order(part)
            if lesser is None or lesser.job.plan == EAGER:
                return False
            return looking.shows(f"{lesser.stage}: {lesser.job.plan}", lesser)

        needed = () if shows(()) else minimal(choices, shows)
        lesser = make_order(needed)
        assert lesser is not None
        name = " + ".join(map(describe_choice, needed))
        why = "the fault is gone without it" if len(needed) == 1 else "the fault is gone without any one of them"
        return lesser, Cause("choice", name, why) if needed else None

    def _lowest_stage(self, order: Probe, seen: ProbeResult) -> tuple[Probe, ProbeResult]:
        """Return the first stage that shows the fault, with its observation."""
        looking = self._looking
        for stage in LOWER:
            lower = replace(order, stage=stage)
            sight = looking.run_probe(f"stage {stage}", lower)
            if sight.sighting.symptom is not Symptom.NONE and (
                looking.is_requested(sight.sighting) or sight.sighting.symptom is looking.fault.symptom
            ):
                looking.fault = sight.sighting
                return lower, sight
        return order, seen

    def _find_smallest_subgraph(self, order: Probe) -> Subgraph | None:
        looking = self._looking
        if looking.fault.symptom is Symptom.SLOW:
            looking.note("a part of a slow graph is slow for other reasons than the whole: nothing is reduced")
            return None
        if order.stage == "dynamo":
            looking.note("Dynamo alone brings the fault, so that its graph is wrong already: there is none to reduce")
            return None
        answer = looking.ask("list the graphs", replace(order, to="capture:list_graphs"))
        if isinstance(answer, Failure):
            looking.note(f"the graphs could not be listed ({answer}): nothing is reduced")
            return None
        graphs = codec.from_json(answer, Graphs).graphs
        for place, operations in enumerate(graphs):
            if operations and self._is_faulty_subgraph(order, place, operations):
                return self._reduce(order, place, operations)
        if not looking.spent:
            looking.note(_NONE_BY_ITSELF[min(sum(map(bool, graphs)), 2)])
        return None

    def _is_faulty_subgraph(self, order: Probe, graph: int, kept: tuple[Operation, ...]) -> bool:
        part = Part(graph, tuple(operation.name for operation in kept))
        count = len(kept)
        what = f"{kept[0].operator} alone" if count == 1 else f"{count} operations of graph {graph}"
        return self._looking.shows(what, replace(order, part=part))

    def _reduce(self, order: Probe, graph: int, operations: tuple[Operation, ...]) -> Subgraph:
        def shows(part: tuple[Operation, ...]) -> bool:
            return self._is_faulty_subgraph(order, graph, part)

        kept = minimal(operations, shows)
        return Subgraph(graph, kept, len(operations), complete=not self._looking.spent)

    def _repro(self, order: Probe, found: Bisection) -> Repro | None:
        """Write the smallest program that shows the fault: from the part, or else from the whole target."""
        repro: Repro | None = None
        for attempt in _attempts(order, found.subgraph):
            order = replace(attempt, to="repro:write", file=self._request.repro or "", fault=found.observation)
            answer = self._looking.ask("write a repro", replace(order, about=tuple(_repro_header(found))))
            if isinstance(answer, Failure):
                self._looking.note(f"no repro of the {'part' if attempt.part else 'target'}: {answer.message}")
                continue
            repro = self._run_repro(order.file, codec.from_json(answer, Written).standalone, found.observation.symptom)
            if repro.confirmed:
                if attempt.to_load:
                    self._looking.note("without the target's own code the part is right: the fault comes with it")
                return repro
        return repro

    def _run_repro(self, file: str, standalone: bool, symptom: Symptom) -> Repro:
        """Run the program in a fresh process, as a user would."""
        self._looking.listener.start_probe(f"run {file}")
        try:
            done = subprocess.run(
                [sys.executable, file], capture_output=True, text=True, timeout=REPRO_LIMIT_S, check=False
            )
        except subprocess.TimeoutExpired:
            return Repro(file, confirmed=False, standalone=standalone, output=f"passed {REPRO_LIMIT_S:.0f} s")
        output = (done.stdout + done.stderr)[-OUTPUT_TAIL:].strip()
        shown = done.returncode < 0 or re.search(SHOWN[symptom], done.stdout + done.stderr) is not None
        return Repro(file, done.returncode not in (0, 2) and shown, standalone, output)


def _attempts(order: Probe, subgraph: Subgraph | None) -> list[Probe]:
    """Return the possible contents of a repro, the smallest first."""
    whole = [order]
    if subgraph is None:
        return whole
    part = Part(subgraph.graph, tuple(operation.name for operation in subgraph.operations))
    return [replace(order, part=part), replace(order, part=part, to_load=True), *whole]


def _repro_header(found: Bisection) -> list[str]:
    """Return the head of a repro."""
    workload, fault = found.workload, found.observation
    lines = [f"A fault of torch {found.environment.torch}, found by torchwise bisect in {workload.target}.", ""]
    lines.append(f"Seen: {fault.symptom}: {first_line(fault.detail)}")
    lines.append(f"Stage: {found.stage}")
    if found.cause:
        lines.append(f"Culprit: {found.cause.kind} {found.cause.name}")
        if found.cause.workaround:
            lines.append(f"Gone with: torch.compile(..., options={found.cause.workaround!r})")
    for operation in found.subgraph.operations if found.subgraph else ():
        lines.append(f"  {operation.code}" + (f"    # {operation.source}" if operation.source else ""))
    return [line.replace("\\", "/").replace('"""', "'''") for line in lines]
