"""The evidence about one run that the finders read, and the six stages between a call and its kernels.

The times of stages come from the spans of PyTorch's own trace. They are nested, so each counts without the spans inside
it, for the stage of its name. A name that belongs to no stage counts for the stage around it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from torchwise.diagnose.kernels import Profiled
from torchwise.diagnose.op_trace import OpTrace, ReadKind
from torchwise.diagnose.trace import Artifact, Span
from torchwise.errors import PlanError
from torchwise.plan import Plan
from torchwise.plan.workload_spec import DEFAULT_CALLS
from torchwise.records import Interval, Measurement
from torchwise.records.compile_events import Break, CompileEvents, Frame
from torchwise.records.explanation import Basis, Execution, Kernel, Saving, Stage

CAPTURE, OPTIMISATION, SELECTION, GENERATION, COMPILATION, EXECUTION = (
    "graph capture",
    "graph optimisation",
    "backend selection",
    "kernel generation",
    "compilation",
    "caching and execution",
)
_STAGE_OF = (
    (EXECUTION, re.compile(r"cache(?!_hint)|torch_key|triton_key", re.I)),
    (CAPTURE, re.compile(r"entire_frame|compile_attempt|bytecode_tracing|build_guards|deferred_runtime_asserts")),
    (OPTIMISATION, re.compile(r"backend_compile|aot_|_recursive_|^pass\.|fw_compiler|bw_compiler|fake_tensor_prop")),
    (OPTIMISATION, re.compile(r"create_aot_dispatcher|min_cut|joint")),
    (GENERATION, re.compile(r"GraphLowering\.codegen|^Scheduler\.|Codegen\.generate|code_gen$")),
    (SELECTION, re.compile(r"GraphLowering\.run|autotun|benchmark|fx_codegen_and_compile|inductor_compile")),
    (COMPILATION, re.compile(r"load_by_key_path|compile_file|async_compile|compile_to_fn|TritonBundle|triton")),
)
_NODE = re.compile(r"^\s+(\w+)(?:: [^=]+)? = (torch\.ops\.[\w.]+|\w[\w.]*)\(", re.M)
_GENERATED = re.compile(r"^(?:cpp|triton)_\w+ = async_compile\.", re.M)
_FALLBACK = re.compile(r"= torch\.ops\.(aten\.\w+)[\w.]*\(")
_EXTERN = re.compile(r"extern_kernels\.(\w+)\(")
FILES = {
    "dynamo_output_graph": (CAPTURE, "captured"),
    "before_post_grad_graph": (OPTIMISATION, "before"),
    "inductor_post_grad_graph": (OPTIMISATION, "after"),
    "inductor_output_code": (GENERATION, "kernels"),
    "dynamo_cpp_guards_str": (EXECUTION, "guards"),
}
"""Artifacts that are kept: the stage of each, and the beginning of its file's name."""


@dataclass(frozen=True, slots=True)
class Code:
    """The calls in generated code: kernels that the compiler wrote, and by name, a library's and operators in eager."""

    generated: int
    library: Counter[str]
    fallbacks: Counter[str]


def code_of(artifacts: Iterable[Artifact]) -> Code:
    """Return the calls in all generated code."""
    text = "\n".join(artifact.text for artifact in artifacts if artifact.name == "inductor_output_code")
    return Code(len(_GENERATED.findall(text)), Counter(_EXTERN.findall(text)), Counter(_FALLBACK.findall(text)))


def stages(
    spans: Sequence[Span],
    artifacts: Sequence[Artifact],
    watched: CompileEvents,
    execution: Execution,
    kernels: Sequence[Kernel],
    backend: str,
    files: dict[str, tuple[str, ...]],
) -> tuple[Stage, ...]:
    """Return the six stages of all compilations. `kernels` are those of a steady call."""
    seconds, code = times(spans), code_of(artifacts)
    captured, before, after = (
        nodes(artifacts, n) for n in ("dynamo_output_graph", "before_post_grad_graph", "inductor_post_grad_graph")
    )
    graphs = sum(a.name == "dynamo_output_graph" for a in artifacts)
    hits = sum(one.cache_hits for one in watched.compilations)
    misses = sum(one.cache_misses for one in watched.compilations)
    inputs_and_outputs = {
        CAPTURE: (
            _pluralize(len(watched.compilations), "function"),
            f"{_pluralize(graphs, 'graph')} of {_pluralize(captured, 'node')}, "
            f"{_pluralize(sum(one.guards for one in watched.compilations), 'guard')}, "
            f"{_pluralize(len(watched.breaks), 'graph break')}",
        ),
        OPTIMISATION: (
            f"{_pluralize(captured, 'node')}, {_pluralize(before, 'node')} as aten operators",
            f"{_pluralize(after, 'node')}",
        ),
        SELECTION: (
            f"{_pluralize(after, 'node')} for {backend}",
            f"{_pluralize(sum(code.library.values()), 'library call')}{_list_counts(code.library)}, "
            f"{_pluralize(sum(code.fallbacks.values()), 'fallback')} to eager{_list_counts(code.fallbacks)}, "
            "the rest generated",
        ),
        GENERATION: (_pluralize(after, "node"), _pluralize(code.generated, "fused kernel")),
        COMPILATION: (_pluralize(code.generated, "fused kernel"), "machine code"),
        EXECUTION: (
            f"{_pluralize(hits, 'cache hit')}, {_pluralize(misses, 'miss', 'misses')}",
            f"{_pluralize(execution.regions, 'compiled graph')} and "
            f"{_pluralize(sum(k.calls for k in kernels), 'kernel')} "
            "a call",
        ),
    }
    return tuple(
        Stage(name, seconds.get(name, 0.0), *inputs_and_outputs[name], files.get(name, ()))
        for name in inputs_and_outputs
    )


def times(spans: Iterable[Span]) -> dict[str, float]:
    """Return seconds by stage: each span without the spans inside it. Spans of other threads run in parallel."""
    seconds: dict[str, float] = {}
    around: list[tuple[float, str]] = []
    for span in sorted((s for s in spans if s.compile_id), key=lambda s: (s.start_s, -s.seconds)):
        while around and around[-1][0] <= span.start_s:
            around.pop()
        outer = around[-1][1] if around else None
        stage = next((stage for stage, pattern in _STAGE_OF if pattern.search(span.name)), outer or CAPTURE)
        seconds[stage] = seconds.get(stage, 0.0) + span.seconds
        if outer:
            seconds[outer] -= span.seconds
        around.append((span.start_s + span.seconds, stage))
    return {stage: max(total, 0.0) for stage, total in seconds.items()}


def nodes(artifacts: Iterable[Artifact], name: str) -> int:
    """Count the operations in all graphs of that name."""
    return sum(len(_NODE.findall(artifact.text)) for artifact in artifacts if artifact.name == name)


def write(artifacts: Iterable[Artifact], folder: Path) -> dict[str, tuple[str, ...]]:
    """Write artifacts to `folder`, a file each, and return their names by stage."""
    folder.mkdir(parents=True, exist_ok=True)
    found: dict[str, list[str]] = {}
    for number, artifact in enumerate(a for a in artifacts if a.name in FILES):
        stage, lead = FILES[artifact.name]
        suffix = "txt" if lead == "guards" else "py"
        name = f"{lead}-{artifact.compile_id.replace('/', '_') or number}.{suffix}"
        if name in found.get(stage, ()):  # forward and backward belong to one compilation
            name = f"{lead}-{artifact.compile_id.replace('/', '_')}-{number}.{suffix}"
        folder.joinpath(name).write_text(artifact.text, encoding="utf-8")
        found.setdefault(stage, []).append(name)
    return {stage: tuple(names) for stage, names in found.items()}


def _pluralize(count: float, noun: str, plural: str = "") -> str:
    return f"{count:,.0f} {noun if round(count) == 1 else plural or noun + 's'}"


def _list_counts(found: Counter[str]) -> str:
    if not found:
        return ""
    return f" ({', '.join(f'{times} {name}' for name, times in found.most_common(4))})"


COMPILED = Plan(backend="inductor")


@dataclass(frozen=True, slots=True)
class Evidence:
    """All evidence about one run.

    Attributes:
        plan: of the run, or None for `torch.compile` with its defaults.
        measurement: of the run against eager.
        watched: the compiler's events.
        execution: where the time of a steady call goes, which `profiled` shows in detail.
        observed: the trace of the original model's operators.
        varying: sizes in which the examples differ: the tensor, as the code names it, and the dimension.
        calls: expected calls in each process. Seconds that are saved once are divided by them.
    """

    device: str
    plan: Plan | None
    measurement: Measurement
    watched: CompileEvents
    code: Code
    execution: Execution
    profiled: Profiled
    observed: OpTrace
    has_rnn: bool = False
    has_static_form: bool = False
    varying: tuple[tuple[str, int], ...] = ()
    calls: int = DEFAULT_CALLS

    @property
    def base(self) -> Plan:
        """The plan that fixes are added to."""
        return COMPILED if self.plan is None else self.plan

    def with_choice(self, name: str, value: str) -> Plan | None:
        """Return that plan with one choice more, or None if the plan excludes the choice."""
        try:
            return self.base.with_choice(name, value)
        except PlanError:
            return None

    @property
    def captured(self) -> Plan | None:
        """The plan that captures the call, chosen by the reads of GPU data in Python, or None if the run is captured.

        Reads of a bool or a count split the capture. Numbers can stay on the GPU, but only in eager.
        """
        if self.device != "cuda" or self.base.capture != "none":
            return None
        reads = {wait.reads for wait in self.observed.waits}
        if reads and reads <= {ReadKind.BOOL, ReadKind.COUNT}:
            return self.with_choice("capture", "branches")
        if reads == {ReadKind.SCALAR}:
            base, transforms = self.base, ("numbers_on_gpu",)
            return Plan(base.precision, base.memory_format, transforms, capture="call")
        return self.with_choice("capture", "call")

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        """The kernels of one call, the longest first."""
        return self.profiled.kernels


@dataclass(frozen=True, slots=True)
class HeldNumber:
    """A number that a submodule holds. `root` is the model, as its code names it, and `path` the submodule, or ""."""

    root: str
    path: str
    name: str

    @property
    def holder(self) -> str:
        """The submodule, as the model's code names it."""
        return f"{self.root}.{self.path}" if self.path else self.root


@dataclass(frozen=True, slots=True)
class Fix:
    """A possible way to keep a function from being recompiled, which is tried on a copy of the model.

    Attributes:
        kind: "setting" of PyTorch, "dynamic" shapes, or "mark" for inputs whose dimensions are marked as dynamic. With
            "hoist", guards leave out the varying value, as if the caller kept it. With "tensor", a number becomes a
            tensor.
        code: the code of the fix, as it is printed.
        advice: the recommendation as a sentence, for a fix that helps.
        sources: the varying values, as PyTorch names them.
        number: for "tensor", the number that becomes a tensor.
        of: the function that is recompiled.
    """

    kind: Literal["setting", "dynamic", "mark", "hoist", "tensor"]
    code: str
    advice: str
    sources: tuple[str, ...] = ()
    number: HeldNumber | None = None
    of: Frame | None = None


def make_estimate(low: float, mid: float, high: float, how: str) -> Saving:
    """Return a saving that was not timed."""
    return Saving(Interval(low, mid, high), Basis.ESTIMATED, how)


def estimate_compile_saving(evidence: Evidence, among: int) -> Saving:
    """Estimate the saving of one among `among` functions that run as written, if it were compiled."""
    execution = evidence.execution
    fusible = sum(kernel.seconds for kernel in evidence.kernels if not kernel.generated and not kernel.flops) / 2
    upper = (fusible + execution.call_s.mid * execution.host_share) / among
    return make_estimate(
        0.0,
        upper / 2,
        upper,
        "compiling the uncompiled code saves at most the time in which no kernel runs, and half the time of the "
        "kernels that could be fused",
    )


def place_of_line(graph_break: Break) -> str:
    """Return the key of a rewritten line: a program may have the same line twice."""
    return f"{graph_break.file}:{graph_break.line}: {graph_break.fix.line if graph_break.fix else ''}"
