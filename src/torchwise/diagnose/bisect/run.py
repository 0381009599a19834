"""The search: from stage to pass or option, from there to the smallest part, and to a program that shows the fault."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from torchwise import environment
from torchwise.diagnose.bisect.isolate import describe_choice, find_cause, is_plain, minimal
from torchwise.diagnose.bisect.probe_runner import (
    AUTO,
    LIMIT_S,
    MARKS,
    BisectRequest,
    Graphs,
    Part,
    Probe,
    ProbeResult,
    ProbeRunner,
    Written,
)
from torchwise.diagnose.requests import make_spec
from torchwise.errors import BudgetError, PlanError, first_line
from torchwise.keywords import checked_keywords
from torchwise.plan import EAGER, Plan
from torchwise.plan.rules import iter_changes, merge_changes
from torchwise.records import Decision, Failure
from torchwise.records.bisection import Bisection, Cause, Observation, Operation, Repro, Stage, Subgraph, Symptom
from torchwise.records.listener import Listener
from torchwise.trial import Job, Launcher, ProcessLauncher, own_caches, send_model
from torchwise.workload import Example, Workload
from torchwise.workload.target import read_workload

LOWER: tuple[Stage, ...] = ("dynamo", "aot_eager", "aot_eager_decomp_partition")
"""The stages below Inductor, each with all stages before it."""
REPRO_LIMIT_S = 900.0
OUTPUT_TAIL = 1500
_NONE_BY_ITSELF = (
    "no graph has an operation: the fault lies in the Python code around them",
    "the only graph is right by itself: the fault lies in its inputs, or in the Python code that uses its outputs",
    "no graph shows the fault by itself: it lies in the Python code between them, or in their inputs",
)
"""Notes for no graph, for one, and for more."""


@checked_keywords()
def bisect(
    model: Callable[..., Any] | Workload | str,
    args: Any = None,
    kwargs: dict[str, Any] | None = None,
    *,
    examples: Sequence[Example] | None = None,
    what: str = AUTO,
    plan: Plan | Decision = EAGER,
    mode: str = "inference",
    device: str | None = None,
    limit: float = LIMIT_S,
    budget: float | None = None,
    repro: str | Path | None = None,
    progress: bool = True,
) -> Bisection:
    """Find where a fault of `torch.compile`, or of a plan, enters.

    Every probe runs in a process of its own: a crash or a hang costs only that probe. The model is not changed.

    Args:
        model: an `nn.Module`, a function, a `Workload`, or a target such as "path/file.py:factory".
        args: example arguments, a tuple (or one tensor).
        kwargs: example keyword arguments.
        examples: several example inputs, in place of `args`.
        what: "wrong", "nan", "crash", "hang", "slow", or "auto" for any of them except "slow".
        plan: a plan of Torchwise to bisect, or a decision, by default plain `torch.compile`.
        mode: "inference" or "training" (with a backward pass).
        device: "cpu" or "cuda", by default the device of the model and its inputs, and for a target "cuda" if
            available.
        limit: seconds after which one probe is ended, and counts as a hang.
        budget: seconds for everything, or None for no limit. The result then has the cause as far as it is known.
        repro: .py file for a program that shows the fault, or None for no program. Its inputs go to a .pt file there.
        progress: whether to show the progress.

    Raises:
        InputError: an argument cannot be used, or nothing of the model is compiled.
        BaselineError: the original model fails, or does not agree with its own float64 reference.
        UnsupportedError: this torch lacks a feature that bisecting or the plan needs.
    """
    from torchwise.report.progress import BisectProgress

    workload = read_workload(model, args, kwargs, examples)
    spec = make_spec(model, workload, device, plan, mode=mode)
    chosen = plan.plan if isinstance(plan, Decision) else plan
    request = BisectRequest(spec, what, chosen, limit, budget, str(repro) if repro is not None else None)
    display: AbstractContextManager[Any] = BisectProgress() if progress else nullcontext(Listener())
    with send_model(workload, spec.target) as file, display as listener:
        request = replace(request, source=file.source, settings=file.settings)
        return run_bisection(request, ProcessLauncher(), listener)


def run_bisection(request: BisectRequest, launcher: Launcher, listener: Listener) -> Bisection:
    """Find where a fault enters. Raises as `bisect` does."""
    start = time.monotonic()
    with own_caches() as folder:
        job = Job(
            "try", request.workload, request.plan, source=request.source, cache_dir=folder, settings=request.settings
        )
        bisection = _BisectionSearch(request, ProbeRunner(request, launcher, listener, job)).run()
    return replace(bisection, seconds=time.monotonic() - start)


class _BisectionSearch:
    def __init__(self, request: BisectRequest, runner: ProbeRunner) -> None:
        self._request = request
        self._runner = runner

    def run(self) -> Bisection:
        bisection = self._search()
        return replace(bisection, steps=tuple(self._runner.steps), notes=tuple(dict.fromkeys(self._runner.notes)))

    def _search(self) -> Bisection:
        runner, request = self._runner, self._request
        here = environment.detect(request.workload.device)
        no_fault = Bisection(request.workload, here, Observation(Symptom.NONE), request.plan, request.what)
        runner.begin()
        plan = request.plan if request.plan != EAGER else Plan(backend="inductor")
        probe = runner.make_probe("inductor" if is_plain(plan) else "plan", plan)
        name = f"{probe.stage}: {plan}" if probe.stage == "plan" else "plain torch.compile"
        result = runner.run_probe(name, probe)
        if not runner.is_requested(result.observation):
            return replace(no_fault, observation=self._report_no_fault(result.observation))
        runner.fault = result.observation
        probe, cause = self._fewest_choices(probe)
        if probe.stage == "inductor":
            probe, result = self._lowest_stage(probe, result)
            cause = find_cause(runner, probe) or cause
        bisection = replace(no_fault, observation=runner.fault, stage=probe.stage, cause=cause, plan=probe.job.plan)
        subgraph = self._find_smallest_subgraph(probe)
        bisection = replace(bisection, subgraph=subgraph)
        return replace(bisection, repro=self._repro(probe, bisection)) if request.repro else bisection

    def _report_no_fault(self, observation: Observation) -> Observation:
        """Return the observation when no symptom of the requested kind appeared."""
        unknown = observation.symptom is Symptom.NOT_COMPARABLE and self._request.compares
        if observation.symptom is Symptom.NONE or unknown:
            return observation
        return Observation(Symptom.NONE, f"another symptom appeared: {observation.symptom}: {observation.detail}")

    def _fewest_choices(self, probe: Probe) -> tuple[Probe, Cause | None]:
        """Remove every choice that a plan does not need for the fault to appear."""
        plan, runner = probe.job.plan, self._runner
        choices = tuple(part for part in iter_changes(plan) if part[0] != "backend")
        if not choices:
            return probe, None

        def make_probe_of(part: tuple[tuple[str, object], ...]) -> Probe | None:
            try:
                smaller_plan = Plan(**merge_changes((("backend", plan.backend), *part)))
            except PlanError:  # one choice needs another that was removed
                return None
            return runner.make_probe("inductor" if is_plain(smaller_plan) else "plan", smaller_plan)

        def shows(part: tuple[tuple[str, object], ...]) -> bool:
            smaller = make_probe_of(part)
            if smaller is None or smaller.job.plan == EAGER:
                return False
            return runner.shows(f"{smaller.stage}: {smaller.job.plan}", smaller)

        needed = () if shows(()) else minimal(choices, shows)
        smaller = make_probe_of(needed)
        assert smaller is not None
        name = " + ".join(map(describe_choice, needed))
        detail = "the fault is gone without it" if len(needed) == 1 else "the fault is gone without any one of them"
        return smaller, Cause("choice", name, detail) if needed else None

    def _lowest_stage(self, probe: Probe, result: ProbeResult) -> tuple[Probe, ProbeResult]:
        """Return the first stage that shows the fault, with its observation."""
        runner = self._runner
        for stage in LOWER:
            lower = replace(probe, stage=stage)
            try:
                lower_result = runner.run_probe(f"stage {stage}", lower)
            except BudgetError:  # the fault is known, if not its first stage
                break
            observed = lower_result.observation
            if observed.symptom is not Symptom.NONE and (
                runner.is_requested(observed) or observed.symptom is runner.fault.symptom
            ):
                runner.fault = observed
                return lower, lower_result
        return probe, result

    def _find_smallest_subgraph(self, probe: Probe) -> Subgraph | None:
        runner = self._runner
        if runner.fault.symptom is Symptom.SLOW:
            runner.note("the graph is not reduced: a part of a slow graph is slow for other reasons than the whole")
            return None
        if probe.stage == "dynamo":
            runner.note("the graph is not reduced: Dynamo alone causes the fault, so its graph is already wrong")
            return None
        listed = runner.run_task("list the graphs", replace(probe, to="probe:list_graphs"), Graphs)
        if isinstance(listed, Failure):
            runner.note(f"the graph is not reduced: the graphs could not be listed ({listed})")
            return None
        for place, operations in enumerate(listed.graphs):
            if operations and self._is_faulty_subgraph(probe, place, operations):
                return self._reduce(probe, place, operations)
        if not runner.spent:
            runner.note(_NONE_BY_ITSELF[min(sum(map(bool, listed.graphs)), 2)])
        return None

    def _is_faulty_subgraph(self, probe: Probe, graph: int, kept: tuple[Operation, ...]) -> bool:
        part = Part(graph, tuple(operation.name for operation in kept))
        count = len(kept)
        name = f"{kept[0].operator} alone" if count == 1 else f"{count} operations of graph {graph}"
        return self._runner.shows(name, replace(probe, part=part))

    def _reduce(self, probe: Probe, graph: int, operations: tuple[Operation, ...]) -> Subgraph:
        def shows(part: tuple[Operation, ...]) -> bool:
            return self._is_faulty_subgraph(probe, graph, part)

        kept = minimal(operations, shows)
        return Subgraph(graph, kept, len(operations), complete=not self._runner.spent)

    def _repro(self, probe: Probe, bisection: Bisection) -> Repro | None:
        """Write the smallest program that shows the fault: from the part, or else from the whole target."""
        repro: Repro | None = None
        for attempt in _attempts(probe, bisection.subgraph):
            probe = replace(attempt, to="repro:write", file=self._request.repro or "", fault=bisection.observation)
            probe = replace(probe, about=tuple(_repro_header(bisection)))
            written = self._runner.run_task("write a repro", probe, Written)
            if isinstance(written, Failure):
                self._runner.note(f"no repro of the {'part' if attempt.part else 'target'}: {written.message}")
                continue
            repro = self._run_repro(probe.file, written.standalone, bisection.observation.symptom)
            if repro.confirmed:
                if attempt.to_load:
                    self._runner.note("the part is right without the target's own code, which causes the fault")
                return repro
        return repro

    def _run_repro(self, file: str, standalone: bool, symptom: Symptom) -> Repro:
        """Run the program in a fresh process, as a user would."""
        self._runner.listener.start_step(f"run {file}")
        try:
            done = subprocess.run(
                [sys.executable, file], capture_output=True, text=True, timeout=REPRO_LIMIT_S, check=False
            )
        except subprocess.TimeoutExpired:
            return Repro(file, confirmed=False, standalone=standalone, output=f"ran longer than {REPRO_LIMIT_S:.0f} s")
        output = (done.stdout + done.stderr)[-OUTPUT_TAIL:].strip()
        shows_fault = done.returncode < 0 or MARKS[symptom] in done.stdout + done.stderr
        return Repro(file, done.returncode not in (0, 2) and shows_fault, standalone, output)


def _attempts(probe: Probe, subgraph: Subgraph | None) -> list[Probe]:
    """Return the possible contents of a repro, the smallest first."""
    whole = [probe]
    if subgraph is None:
        return whole
    part = Part(subgraph.graph, tuple(operation.name for operation in subgraph.operations))
    return [replace(probe, part=part), replace(probe, part=part, to_load=True), *whole]


def _repro_header(bisection: Bisection) -> list[str]:
    """Return the docstring of a repro, by line."""
    workload, fault, cause = bisection.workload, bisection.observation, bisection.cause
    lines = [f"A fault of torch {bisection.environment.torch}, found by torchwise bisect in {workload.target}.", ""]
    lines.append(f"Symptom: {fault.symptom}: {first_line(fault.detail)}")
    lines.append(f"Stage: {bisection.stage}")
    if cause:
        lines.append(f"Cause: {cause.kind} {cause.name}")
        if cause.workaround:
            lines.append(f"Workaround: torch.compile(..., options={cause.workaround!r})")
    for operation in bisection.subgraph.operations if bisection.subgraph else ():
        lines.append(f"  {operation.code}" + (f"    # {operation.source}" if operation.source else ""))
    return [line.replace("\\", "/").replace('"""', "'''") for line in lines]
