"""The worker's side: compile up to one stage and verify, or list the captured graphs, whose parts are probed alone."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx

from torchwise._torch import aot_autograd, dispatch, dynamo, inductor
from torchwise._torch.dynamo import count_compiled_graphs
from torchwise.compile import compile_plan
from torchwise.compile.transforms.quantization import has_quantized_layers
from torchwise.compile.uncompiled_reason import why_uncompiled
from torchwise.diagnose.bisect.probe_runner import Graphs, Part, Probe, ProbeResult
from torchwise.errors import BaselineError, InputError
from torchwise.measure.clock import Clock
from torchwise.measure.paired_timing import Precision, measure_pair
from torchwise.plan import EAGER, Trait
from torchwise.records import CheckCause, Measurement, Outcome, Verdict
from torchwise.records.bisection import Observation, Operation, Symptom
from torchwise.trial.experiment import PlanCandidate
from torchwise.trial.inspection import mix_of
from torchwise.trial.loading import load, refuse_step, runner
from torchwise.trial.plain_call import PlainCall, run_plainly
from torchwise.verify import Subject, is_stochastic, verify
from torchwise.workload import Example, Workload, pytree
from torchwise.workload.module_state import kept_state

MAX_CHARACTERS = 200
BACKENDS = {"dynamo": "eager"}
"""PyTorch's name of a stage, if it differs from Torchwise's."""
SLOWER = 1.1
"""Multiple of eager's time from which on a right answer counts as slow. The whole interval must lie beyond it."""
PRECISION = Precision(half_width=0.03, budget_s=3.0)
_FRAME = re.compile(r'File "(?P<file>[^"]*)", line (?P<line>\d+), in .*\n\s*(?P<code>[^\n]*)')
CALLS = ("call_function", "call_method", "call_module")


class Switches:
    """Counts the applications of every kind of pass in this process, and skips those beyond a number.

    PyTorch calls its `CompilerBisector` before each. That class keeps its state in files and environment variables, for
    one kind of pass at a time. This one keeps it for all kinds, so that one probe both tries and counts.

    Source: `torch/_inductor/compiler_bisector.py`.
    """

    def __init__(self, most: Mapping[str, int]) -> None:
        self._most = most
        self._applied: dict[str, list[str]] = {}

    def install(self) -> None:
        """Replace `CompilerBisector` for the life of this process. Nothing compiled is reused."""
        inductor.replace_bisector(self._is_off)
        aot_autograd.set_config("enable_autograd_cache", False)

    @property
    def applied(self) -> dict[str, tuple[str, ...]]:
        """The applied passes, including those that would have been applied, in order."""
        return {kind: tuple(names) for kind, names in self._applied.items()}

    def _is_off(self, _backend: str, kind: str, name: Callable[[], str] | None = None) -> bool:
        names = self._applied.setdefault(kind, [])
        names.append(str(name())[:MAX_CHARACTERS] if name else kind)
        return kind in self._most and len(names) > self._most[kind]


def run_probe(probe: Probe, stage: Callable[[str], None]) -> ProbeResult:
    """Run eager, then the stage, and compare the two with the float64 reference."""
    stage("load")
    workload = load_subject(probe)
    switches = Switches(probe.most)
    switches.install()
    before = count_compiled_graphs()
    stage("eager")
    with torch.set_grad_enabled(_trains(probe)):
        plain = run_plainly(workload, probe.job.workload.mode)
        stochastic = _draws(workload, plain) if probe.stage == "eager" else probe.stochastic
    probe = replace(probe, job=replace(probe.job, traits=plain.traits))
    if probe.stage == "eager":
        return ProbeResult(_baseline(workload, probe), stochastic=stochastic)
    stage(probe.stage)
    candidate = build(workload, probe)
    verdict = _verdict(workload, candidate, probe)
    if probe.stage != "plan" and count_compiled_graphs() == before:
        with torch.set_grad_enabled(_trains(probe)):
            reason = why_uncompiled(workload.call, workload.examples[0])
        raise InputError(f"nothing of the model is compiled: {reason}")
    observation = classify_verdict(verdict)
    if not observation.is_fault and probe.timed:
        stage(f"{probe.stage}, timed")
        observation = _pace(_measure(workload, candidate, probe))
    return ProbeResult(observation, switches.applied, stochastic)


def load_subject(probe: Probe) -> Workload:
    """Return the workload that the probe runs: the whole model, or a part of one of its graphs."""
    workload = load(probe.job)
    refuse_step(workload, "bisect")
    if probe.part is None:
        return workload
    graphs = capture(workload, training=_trains(probe))
    return extract_subgraph(graphs[probe.part.graph], probe.part)


def build(workload: Workload, probe: Probe) -> Callable[..., Any]:
    """Return the model, compiled up to the probe's stage on its first call."""
    plan = probe.job.plan
    if probe.stage == "plan":
        spec, inputs = probe.job.workload, workload.inputs
        return compile_plan(
            workload.call, plan, workload.examples[0], device=spec.device, mode=spec.mode, inputs=inputs
        ).call
    if "cse" in probe.options:
        aot_autograd.set_config("cse", bool(probe.options["cse"]))
    if probe.stage != "inductor":
        backend = BACKENDS.get(probe.stage, probe.stage)
        return _compile(workload.call, probe, backend=backend)
    return _compile(workload.call, probe, options=inductor_options(probe))


def inductor_options(probe: Probe) -> dict[str, Any]:
    """Return the plan's options with the probe's options on top, as far as this torch has them.

    Freezing is set for the process, as PyTorch ignores it here.
    """
    plan, known = probe.job.plan, inductor.CONFIG.get("bisect").get_config_copy()
    mode = inductor.list_mode_options()[plan.mode]
    options = {**mode, **dict(plan.options), **probe.options}
    if probe.stochastic:
        options["fallback_random"] = True
    inductor.CONFIG.get("bisect").freezing = bool(options.pop("freezing", False))
    return {name: value for name, value in options.items() if name in known}


def classify_verdict(verdict: Verdict) -> Observation:
    """Turn a verdict into an observed symptom."""
    if verdict.outcome is not Outcome.FAIL:
        right = verdict.outcome is Outcome.PASS
        return Observation(Symptom.NONE if right else Symptom.NOT_COMPARABLE, verdict.reason)
    lost = any(check.cause == CheckCause.NOT_FINITE for check in verdict.checks)
    return Observation(Symptom.NAN if lost else Symptom.WRONG, verdict.reason)


def _compile(call: Callable[..., Any], probe: Probe, **backend_options: Any) -> Callable[..., Any]:
    dynamic = None if probe.job.plan == EAGER else probe.job.plan.shapes == "dynamic"
    compiled: Callable[..., Any] = torch.compile(call, dynamic=dynamic, **backend_options)
    return compiled


def _draws(workload: Workload, plain: PlainCall) -> bool:
    """Return whether a call draws random numbers."""
    call = runner(workload.call, workload.examples[0], "inference", original=workload.call, restores=bool(plain.traits))
    return is_stochastic(call, workload.call)[0]


def _baseline(workload: Workload, probe: Probe) -> Observation:
    observation = classify_verdict(_verdict(workload, workload.call, probe))
    if observation.is_fault:
        raise BaselineError(f"the original model does not agree with its float64 reference: {observation.detail}")
    return observation


def _verdict(workload: Workload, candidate: Callable[..., Any], probe: Probe) -> Verdict:
    """Verify on the examples alone: a repro could not show a fault that only other inputs show."""
    plan = probe.job.plan
    if probe.job.workload.permits_change and probe.stage == "plan" and candidate is not workload.call:
        workload = replace(workload, call=PlanCandidate(plan).substitute(workload.call))  # as its trial was verified
    eager = workload.call
    if probe.stage == "plan" and plan.precision != "native":
        eager_probe = replace(probe, job=replace(probe.job, plan=replace(EAGER, precision=plan.precision)))
        eager = build(workload, eager_probe)
    precision = plan.precision if probe.stage == "plan" else "native"
    stateful = Trait.STATEFUL in probe.job.traits
    subject = Subject(workload, candidate, eager, precision, training=_trains(probe), stateful=stateful)
    subject = replace(subject, is_quantized=has_quantized_layers(workload.call))
    with torch.set_grad_enabled(_trains(probe)):
        return verify(subject, extra_draws=0)


def _measure(workload: Workload, candidate: Callable[..., Any], probe: Probe) -> Measurement:
    spec = probe.job.workload
    clock = Clock(spec.device, each=spec.times_each_call)

    def make_runner(call: Callable[..., Any], example: Example) -> Callable[[], Any]:
        return runner(call, example, spec.mode, original=workload.call, restores=bool(probe.job.traits))

    with torch.set_grad_enabled(_trains(probe)):
        sides = [
            mix_of([make_runner(call, example) for example in workload.examples], workload)
            for call in (candidate, workload.call)
        ]
        return measure_pair(sides[0], sides[1], clock, PRECISION)


def _pace(measurement: Measurement) -> Observation:
    speedup = measurement.speedup
    slower = f"{1 / speedup.mid:.2f} [{1 / speedup.high:.2f}, {1 / speedup.low:.2f}] times eager's time"
    return Observation(Symptom.SLOW if speedup.high * SLOWER < 1 else Symptom.NONE, f"a call takes {slower}")


def _trains(probe: Probe) -> bool:
    return probe.job.workload.mode == "training"


@dataclass(frozen=True, slots=True)
class Captured:
    """A graph that Dynamo passed to its backend, with the inputs of its first call on each example that reached it."""

    module: fx.GraphModule
    inputs: tuple[tuple[Any, ...], ...]

    @property
    def calls(self) -> list[fx.Node]:
        """The operations, in order."""
        return [node for node in self.module.graph.nodes if node.op in CALLS]


def list_graphs(probe: Probe, stage: Callable[[str], None]) -> Graphs:
    """Return the operations of every captured graph."""
    stage("load")
    workload = load(probe.job)
    stage("capture")
    graphs = capture(workload, training=probe.job.workload.mode == "training")
    return Graphs(tuple(tuple(map(_operation, captured.calls)) for captured in graphs))


def capture(workload: Workload, *, training: bool) -> list[Captured]:
    """Have Dynamo capture a call on each example. The graphs then run unchanged."""
    graphs: list[tuple[fx.GraphModule, dict[int, tuple[Any, ...]]]] = []
    number = 0

    def keep(module: fx.GraphModule, _examples: list[Any]) -> Callable[..., Any]:
        inputs_of: dict[int, tuple[Any, ...]] = {}
        graphs.append((module, inputs_of))

        def run(*inputs: Any) -> Any:
            if number not in inputs_of:
                inputs_of[number] = _leaves(inputs)
            return module(*inputs)

        return run

    call = torch.compile(workload.call, backend=keep)
    with torch.set_grad_enabled(training):
        for number, example in enumerate(workload.examples):  # noqa: B007 which `run` reads
            cloned = example.clone()
            torch.manual_seed(0)
            with kept_state(workload.call):
                call(*cloned.args, **cloned.kwargs)
        torch.compiler.reset()
        return [_retraceable(Captured(module, tuple(ran.values()))) for module, ran in graphs if ran]


def _retraceable(captured: Captured) -> Captured:
    """Return a graph that Dynamo captures again unchanged: with ATen operators in place of NumPy's functions.

    Dynamo does not trace into its own replacements for NumPy's functions. A part of the graph would then be split into
    other graphs than the whole.
    """
    if not any(dynamo.is_dynamos_own(node.target) for node in captured.calls):
        return captured
    with fx.traceback.preserve_node_meta():
        lowered = aot_autograd.MAKE_FX.get("bisect")(fx.Interpreter(captured.module).run)(*captured.inputs[0])
    return Captured(lowered, captured.inputs[:1])  # its sizes are constants in the graph


def extract_subgraph(captured: Captured, part: Part) -> Workload:
    """Return the kept operations as a workload. Its inputs are the others' outputs when the whole graph ran."""
    kept, runs = set(part.operations), []
    for inputs in captured.inputs:
        runs.append(_Recorder(captured.module, kept))
        torch.manual_seed(0)
        runs[-1].run(*pytree.clone(inputs))
    first, graph, input_names = runs[0], fx.Graph(), []
    copies: dict[fx.Node, fx.Node] = {}
    for node in captured.module.graph.nodes:
        if node.name in kept or _is_structure(node, first.values):
            copies[node] = graph.node_copy(node, copies.__getitem__)
        elif node.name in first.values and node.op != "output":
            copies[node] = graph.placeholder(node.name)
            input_names.append(node.name)
    graph.output(tuple(copies[node] for node in captured.calls if _is_result(node, kept, first.returned)))
    graph.eliminate_dead_code(lambda node: node.op != "get_attr")
    examples = tuple(Example(tuple(run.values[name] for name in input_names)) for run in runs)
    return Workload(fx.GraphModule(captured.module, graph), examples)


class _Recorder(fx.Interpreter):
    """Records the values that operations outside a part pass to it, and the operations inside that return tensors."""

    def __init__(self, module: fx.GraphModule, kept: set[str]) -> None:
        super().__init__(module)
        self._kept = kept
        self.values: dict[str, Any] = {}
        self.returned: set[str] = set()

    def run_node(self, n: fx.Node) -> Any:
        """Run one operation, and copy its result before a later one may write to it."""
        value = super().run_node(n)
        if n.name in self._kept:
            if pytree.tensors(value):
                self.returned.add(n.name)
        elif any(user.name in self._kept for user in n.users):
            self.values[n.name] = _leaves(value)
        return value


def _leaves(value: Any) -> Any:
    """Return a copy of a value without its autograd history. It requires gradients if the value did."""
    return pytree.map_tensors(lambda t: pytree.clone(t.detach()).requires_grad_(t.requires_grad), value)


def _is_structure(node: fx.Node, values: dict[str, Any]) -> bool:
    """Return whether a node names a nested graph, which is no value and is copied with its user."""
    return node.op == "get_attr" and isinstance(values.get(node.name), torch.nn.Module)


def _is_result(node: fx.Node, kept: set[str], returned: set[str]) -> bool:
    outside = not node.users or any(user.name not in kept for user in node.users)
    return node.name in kept and node.name in returned and outside


def _operation(node: fx.Node) -> Operation:
    operator = node.target if isinstance(node.target, str) else _name(node.target)
    arguments = [*map(str, node.args), *(f"{name}={value}" for name, value in node.kwargs.items())]
    source, line = _source(node.meta.get("stack_trace") or "")
    return Operation(node.name, operator, f"{node.name} = {operator}({', '.join(arguments)})", source, line)


def _name(function: Any) -> str:
    module = getattr(function, "__module__", None) or ""
    name = getattr(function, "__name__", str(function))
    if module in ("_operator", "builtins"):
        return name
    is_torchs = module.startswith(dispatch.C_MODULE) or module in ("", "torch")
    return f"torch.{name}" if is_torchs else f"{module}.{name}"


def _source(trace: str) -> tuple[str, str]:
    """Return file and line of the innermost frame, and its text."""
    last = next(reversed(list(_FRAME.finditer(trace))), None)
    return (f"{last['file']}:{last['line']}", last["code"].strip()) if last else ("", "")
