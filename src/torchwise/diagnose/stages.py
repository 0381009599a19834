"""The six stages between a call and its kernels: the time of each, its input and its output.

Times come from the spans of PyTorch's own trace. They are nested, so each counts without the spans inside it, for the
stage of its name. A name that belongs to no stage counts for the stage around it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from torchwise.diagnose.trace import Artifact, Span
from torchwise.records.compile_events import CompileEvents
from torchwise.records.explanation import Execution, Kernel, Stage

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
_OPERATOR = re.compile(r"torch\.ops\.(\w+\.\w+)")
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
    """The calls in one file of generated code.

    Attributes:
        generated: kernels that the compiler wrote.
        library: calls of a library's kernels, such as a matrix product, by name.
        fallbacks: operators that run in eager, by name.
    """

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
    """Return the six stages of all compilations.

    Args:
        spans: of all compilations.
        artifacts: of all compilations.
        watched: the other events.
        execution: of a steady call.
        kernels: the kernels of a steady call.
        backend: the chosen backend, in words.
        files: files by stage, if artifacts were written.
    """
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
        stage = stage_of(span.name) or outer or CAPTURE
        seconds[stage] = seconds.get(stage, 0.0) + span.seconds
        if outer:
            seconds[outer] -= span.seconds
        around.append((span.start_s + span.seconds, stage))
    return {stage: max(total, 0.0) for stage, total in seconds.items()}


def stage_of(span: str) -> str | None:
    """Return the stage that a span's name belongs to."""
    return next((stage for stage, pattern in _STAGE_OF if pattern.search(span)), None)


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
