"""Compilations and their fallbacks to eager, read from the metrics and code in PyTorch's structured trace."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from torchwise.diagnose import source_locations
from torchwise.errors import first_line
from torchwise.records.compile_events import Compilation, Frame, UncompiledKind, UncompiledPart

_PHASE = re.compile(r"^(?P<name>\w+?)(?:_cumulative)?(?:_compile)?_time_us$")
_NOT_PHASES = ("start_time_us", "end_time_us")
_LIMIT = "recompile limit"
_EXPECTED = ("Unsupported", "SkipFrame")
_COMPLEX = re.compile(r'"c(32|64|128)\[')
_NODE = re.compile(
    r'^\s*(?P<name>\w+): "(?P<type>\w+)\[[^\n]*= torch\.ops\.aten\.(?P<op>\w+)(?P<rest>[^\n]*)', re.MULTILINE
)
_CALL = re.compile(r"= torch\.ops\.aten\.(?P<op>\w+)")


def read(metrics: Mapping[str, Any], known: Frame | None) -> Compilation:
    """Return a compilation from PyTorch's metrics.

    `known` is its function if the metrics name none.
    """
    name = metrics.get("co_name")
    frame = known or Frame("", 0)
    if name:
        line = int(metrics.get("co_firstlineno") or 0)
        frame = Frame(str(metrics.get("co_filename") or ""), line, source_locations.plain_name(str(name)))
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


def fallbacks(metrics: Mapping[str, Any], compilation: Compilation) -> list[UncompiledPart]:
    """Return the parts of a compilation that do not run compiled, according to its metrics."""
    found = []
    if reason := metrics.get("cudagraph_skip_reason"):
        found.append(_make_part(UncompiledKind.CUDAGRAPH_SKIP, str(reason).strip(), compilation))
    if _LIMIT in compilation.failed:
        what = "compiled too often: every call that fits no compiled version runs in eager from now on"
        found.append(_make_part(UncompiledKind.RECOMPILE_LIMIT, what, compilation))
    elif (
        compilation.failed and metrics.get("fail_type") not in _EXPECTED
    ):  # those are graph breaks, and reported as such
        message = first_line(f"{metrics.get('fail_type')}: {compilation.failed}")
        found.append(_make_part(UncompiledKind.ERROR, message, compilation))
    return found


def is_complex(graph: str) -> bool:
    """Whether a printed graph holds complex numbers."""
    return _COMPLEX.search(graph) is not None


def complex_operators(graph: str) -> frozenset[str]:
    """Return the operators of a printed graph that read or return complex numbers."""
    nodes = list(_NODE.finditer(graph))
    names = {node["name"] for node in nodes if node["type"] in ("c32", "c64", "c128")}
    return frozenset(
        node["op"] for node in nodes if node["name"] in names or names & set(re.findall(r"\w+", node["rest"]))
    )


def eager_operators(code: str) -> tuple[str, ...]:
    """Return the names of the operators that generated code calls one by one, as eager does."""
    return tuple(dict.fromkeys(hit["op"] for hit in _CALL.finditer(code)))


def _make_part(kind: UncompiledKind, what: str, compilation: Compilation) -> UncompiledPart:
    return UncompiledPart(kind, what, compilation.function, compilation.file, compilation.line)


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
