"""Combine the records of PyTorch's structured trace into events."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from torchwise.diagnose import messages
from torchwise.errors import first_line
from torchwise.records.compile_events import Break, Compilation, Frame, Recompile, UncompiledKind, UncompiledPart

_PHASE = re.compile(r"^(?P<name>\w+?)(?:_cumulative)?(?:_compile)?_time_us$")
_NOT_PHASES = ("start_time_us", "end_time_us")
_LIMIT = "recompile limit"
_EXPECTED = ("Unsupported", "SkipFrame")
_COMPLEX = re.compile(r'"c(32|64|128)\[')
_NODE = re.compile(
    r'^\s*(?P<name>\w+): "(?P<type>\w+)\[[^\n]*= torch\.ops\.aten\.(?P<op>\w+)(?P<rest>[^\n]*)', re.MULTILINE
)
_CALL = re.compile(r"= torch\.ops\.aten\.(?P<op>\w+)")


@dataclass(frozen=True, slots=True)
class Artifact:
    """A text that the compiler wrote, such as a graph or generated code.

    Attributes:
        name: PyTorch's: "dynamo_output_graph", "aot_inference_graph", "aot_forward_graph", "aot_backward_graph",
            "aot_joint_graph", "before_pre_grad_graph", "after_pre_grad_graph", "before_joint_graph",
            "after_joint_graph", "before_post_grad_graph", "inductor_post_grad_graph", "inductor_output_code",
            "fx_graph_runnable", "fx_graph_cache_hit" and "…_miss", "aotautograd_cache_hit" and "…_miss",
            "dynamo_cpp_guards_str", …
        compile_id: of the compilation that it belongs to, such as "0/0", or empty if there is none.
        text: the text itself.
    """

    name: str
    compile_id: str
    text: str


@dataclass(frozen=True, slots=True)
class Span:
    """One timed step of one compilation, with PyTorch's name of it ("bytecode_tracing", "backend_compile", …)."""

    name: str
    compile_id: str
    start_s: float
    seconds: float


@dataclass(slots=True)
class _Lowered:
    """One graph until its compilation ends: whether it has complex numbers, and its operators that run in eager."""

    is_complex: bool = False
    complex_operators: frozenset[str] | None = None
    eager_operators: tuple[str, ...] = ()

    @property
    def left(self) -> list[str]:
        """Complex operators that run in eager. For a cached graph, which is not printed, all operators in eager."""
        known = self.complex_operators
        return sorted(op for op in self.eager_operators if self.is_complex and (known is None or op in known))


@dataclass(slots=True)
class _Unfinished:
    """The events so far of a compilation that has not ended."""

    failures: tuple[messages.Failed, ...] = ()
    lowered: _Lowered = field(default_factory=_Lowered)
    uncompiled: Break | None = None
    captured: bool = False


class Events:
    """All events so far, for one thread at a time."""

    def __init__(self, artifacts: bool | Collection[str], spans: bool) -> None:
        self.breaks: dict[object, Break] = {}
        self.recompiles: dict[object, Recompile] = {}
        self.compilations: list[Compilation] = []
        self.fallbacks: dict[UncompiledPart, UncompiledPart] = {}
        self.artifacts: list[Artifact] = []
        self.spans: list[Span] = []
        self.notes: list[str] = []
        self.trace_seconds: dict[str, float] = {}
        """The seconds of PyTorch's trace by compilation, as PyTorch reports them: it adds up all of the same name."""
        self._keeps = artifacts if isinstance(artifacts, bool) else frozenset(artifacts)
        self._keeps_spans = spans
        self._starts: dict[tuple[str, str], float] = {}
        self._unfinished: dict[str, _Unfinished] = {}
        self._functions: dict[str, Frame] = {}

    def add(self, metadata: dict[str, Any], payload: object) -> None:
        """Add one record of the trace."""
        text = payload if isinstance(payload, str) else ""
        name = _name(metadata)
        if name == "chromium_event":
            self._add_step(text)
        elif name in ("compilation_metrics", "bwd_compilation_metrics"):
            self._add_metrics(metadata[name])
        elif name == "dynamo_graph_break_reason":
            self._add_break(_compile_id(metadata), text)
        elif text:
            compile_id = _compile_id(metadata)
            self._add_text(name, self._unfinished.setdefault(compile_id, _Unfinished()), text)
            if self._keeps is True or (self._keeps and name in self._keeps):
                self.artifacts.append(Artifact(name, compile_id, text))

    def add_skips(self, count: int) -> None:
        """Add the CUDA-graph skips without a reason from a compilation: they happened when the code ran."""
        reported = sum(one.count for one in self.fallbacks.values() if one.kind is UncompiledKind.CUDAGRAPH_SKIP)
        if count > reported:
            what = "CUDA graphs were skipped when the code ran. For the reason, set TORCH_LOGS=perf_hints,cudagraphs"
            self._add_fallback(UncompiledPart(UncompiledKind.CUDAGRAPH_SKIP, what, count=count - reported))

    def count_unfinished(self) -> int:
        """Return how many compilations captured a graph, but have not reported their end."""
        return sum(one.captured for one in self._unfinished.values())

    def _add_text(self, name: str, unfinished: _Unfinished, text: str) -> None:
        lowered = unfinished.lowered
        if name == "recompile_reasons":
            unfinished.failures = messages.read_failures(text)
        elif name == "dynamo_output_graph":
            unfinished.captured = True
            lowered.is_complex = is_complex(text)
        elif name == "inductor_post_grad_graph" and is_complex(text):
            lowered.is_complex = True
            lowered.complex_operators = list_complex_operators(text)
        elif name == "inductor_output_code":
            lowered.eager_operators = tuple(dict.fromkeys(hit["op"] for hit in _CALL.finditer(text)))

    def _add_break(self, compile_id: str, text: str) -> None:
        graph_break = messages.read_break(text)
        if graph_break is None:
            return
        key = messages.break_key(graph_break)
        before = self.breaks.get(key)
        if before:
            graph_break = replace(before, count=before.count + 1, whole=before.whole or graph_break.whole)
        self.breaks[key] = graph_break
        if graph_break.whole:
            self._unfinished.setdefault(compile_id, _Unfinished()).uncompiled = graph_break

    def _add_metrics(self, metrics: dict[str, Any]) -> None:
        compile_id = str(metrics.get("compile_id") or "")
        frame_id = compile_id.partition("/")[0]
        unfinished = self._unfinished.pop(compile_id, _Unfinished())
        guard = unfinished.failures[0] if unfinished.failures else None
        known = self._functions.get(frame_id)
        if known is None and guard and guard.stack:  # its first compilation was before this trace began
            known = Frame(guard.stack[0].file, guard.stack[0].line, guard.function)
        compilation = self._with_its_own_seconds(read_compilation(metrics, known))
        self._functions[frame_id] = Frame(compilation.file, compilation.line, compilation.function)
        self.compilations.append(compilation)
        for fallback in find_fallbacks(metrics, compilation):
            self._add_fallback(fallback)
        if unfinished.failures:
            self._add_recompile(compilation, unfinished.failures)
        if uncompiled := unfinished.uncompiled:
            what = f"not compiled at all, because of the graph break at {uncompiled.where} ({uncompiled.reason})"
            place = compilation if compilation.function else uncompiled
            part = _make_part(UncompiledKind.WHOLE_FUNCTION, what, place)
            self._add_fallback(replace(part, graph_break=uncompiled.where))
        if left := unfinished.lowered.left:
            what = f"complex operators run one by one in eager: {', '.join(left)}"
            self._add_fallback(_make_part(UncompiledKind.COMPLEX, what, compilation))

    def _with_its_own_seconds(self, compilation: Compilation) -> Compilation:
        """Subtract the trace's seconds for an earlier compilation of this name.

        That is the forward of a backward, or a compilation before a reset.
        """
        key = "/".join(compilation.compile_id.split("/")[-2:])
        before, self.trace_seconds[key] = self.trace_seconds.get(key, 0.0), compilation.trace_s
        return replace(compilation, trace_s=max(0.0, compilation.trace_s - before))

    def _add_recompile(self, compilation: Compilation, failures: tuple[messages.Failed, ...]) -> None:
        first = failures[0]
        key = (compilation.function, compilation.file, compilation.line, first.subject)
        before = self.recompiles.get(key)
        self.recompiles[key] = Recompile(
            compilation.function,
            compilation.file,
            compilation.line,
            guard=first.guard,
            varies=messages.describe_variation(failures),
            source=first.source,
            stack=first.stack,
            count=before.count + 1 if before else 1,
            compile_ids=(*(before.compile_ids if before else ()), compilation.compile_id),
        )

    def _add_fallback(self, found: UncompiledPart) -> None:
        key = replace(found, count=1)
        before = self.fallbacks.get(key)
        self.fallbacks[key] = replace(found, count=before.count + found.count) if before else found

    def _add_step(self, text: str) -> None:
        """Add the beginning ("B") or the end ("E") of a step. Steps are nested, and the innermost ends first."""
        if not self._keeps_spans:
            return
        step = json.loads(text)
        compile_id = str((step.get("args") or {}).get("compile_id") or "")
        key, at = (step["name"], compile_id), step["ts"] / 1e6
        if step.get("ph") == "B":
            self._starts[key] = at
        elif step.get("ph") == "E" and key in self._starts:
            start = self._starts.pop(key)
            self.spans.append(Span(step["name"], compile_id, start, at - start))


def _name(metadata: dict[str, Any]) -> str:
    artifact = metadata.get("artifact")
    return str(artifact["name"] if artifact else next(iter(metadata), ""))


def _compile_id(metadata: dict[str, Any]) -> str:
    return f"{metadata['frame_id']}/{metadata['frame_compile_id']}" if "frame_compile_id" in metadata else ""


def read_compilation(metrics: Mapping[str, Any], known: Frame | None) -> Compilation:
    """Return a compilation from PyTorch's metrics. `known` is its function if the metrics name none."""
    name = metrics.get("co_name")
    frame = known or Frame("", 0)
    if name:
        line = int(metrics.get("co_firstlineno") or 0)
        frame = Frame(str(metrics.get("co_filename") or ""), line, messages.plain_name(str(name)))
    return Compilation(
        compile_id=str(metrics.get("compile_id") or ""),
        function=frame.function,
        file=frame.file,
        line=frame.line,
        seconds=_seconds(metrics, "duration_us"),
        phases=_phases(metrics),
        guards=int(metrics.get("guard_count") or 0),
        guard_us=float(metrics["guard_latency_us"]) if metrics.get("guard_latency_us") else None,
        graph_ops=int(metrics.get("graph_op_count") or 0),
        graph_nodes=int(metrics.get("graph_node_count") or 0),
        cache_hits=_sum(metrics, "_cache_hit_count"),
        cache_misses=_sum(metrics, "_cache_miss_count"),
        is_forward=metrics.get("is_forward") is not False,
        failed=str(metrics.get("fail_reason") or "").strip(),
        trace_s=_seconds(metrics, "structured_logging_overhead_us"),
    )


def find_fallbacks(metrics: Mapping[str, Any], compilation: Compilation) -> list[UncompiledPart]:
    """Return the parts of a compilation that do not run compiled, according to its metrics."""
    found = []
    if reason := metrics.get("cudagraph_skip_reason"):
        found.append(_make_part(UncompiledKind.CUDAGRAPH_SKIP, str(reason).strip(), compilation))
    if _LIMIT in compilation.failed:
        what = "compiled too often: every call that fits no compiled version runs in eager from now on"
        found.append(_make_part(UncompiledKind.RECOMPILE_LIMIT, what, compilation))
    # Expected failures are graph breaks, and reported as such.
    elif compilation.failed and metrics.get("fail_type") not in _EXPECTED:
        message = first_line(f"{metrics.get('fail_type')}: {compilation.failed}")
        found.append(_make_part(UncompiledKind.ERROR, message, compilation))
    return found


def is_complex(graph: str) -> bool:
    """Whether a printed graph holds complex numbers."""
    return _COMPLEX.search(graph) is not None


def list_complex_operators(graph: str) -> frozenset[str]:
    """Return the operators of a printed graph that read or return complex numbers."""
    nodes = list(_NODE.finditer(graph))
    names = {node["name"] for node in nodes if node["type"] in ("c32", "c64", "c128")}
    return frozenset(
        node["op"] for node in nodes if node["name"] in names or names & set(re.findall(r"\w+", node["rest"]))
    )


def _make_part(kind: UncompiledKind, what: str, place: Compilation | Break) -> UncompiledPart:
    return UncompiledPart(kind, what, place.function, place.file, place.line)


def _phases(metrics: Mapping[str, Any]) -> dict[str, float]:
    found = {}
    for name, value in metrics.items():
        hit = _PHASE.match(name)
        if hit and name not in _NOT_PHASES and isinstance(value, int) and value > 0:
            found[hit["name"]] = value / 1e6
    return found


def _seconds(metrics: Mapping[str, Any], name: str) -> float:
    return float(metrics.get(name) or 0) / 1e6


def _sum(metrics: Mapping[str, Any], suffix: str) -> int:
    return sum(int(value or 0) for name, value in metrics.items() if name.endswith(suffix))
