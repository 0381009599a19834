"""The worker's side: write the program that shows the fault, and its inputs next to it."""

from __future__ import annotations

import math
import re
import textwrap
import types
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jinja2
import torch
from torch import fx

from torchwise.diagnose.bisect.probe import BACKENDS, inductor_options, load_subject
from torchwise.diagnose.bisect.probe_runner import MARKS, Probe, Written
from torchwise.errors import UnsupportedError
from torchwise.plan.workload_spec import split
from torchwise.records.bisection import Symptom
from torchwise.workload import pytree

HANGS_AFTER_S = 60
"""Seconds after which a repro of a hang ends. For other faults, it is a limit far above any of their calls."""
RUNS_AT_MOST_S = 600
_PROGRAM = jinja2.Template(
    Path(__file__).with_name("repro.py.j2").read_text(encoding="utf-8"), trim_blocks=True, keep_trailing_newline=True
)
_DROPPED = re.compile(r";\s*(?:\w+ = )+None(?=\s|$)| : torch\._subclasses\.fake_tensor\.FakeTensor")


def write(probe: Probe, stage: Callable[[str], None]) -> Written:
    """Write the program to the probe's file."""
    stage("write")
    fault = probe.fault.symptom if probe.fault else Symptom.NONE
    text = _PROGRAM.render(
        crash_mark=MARKS[Symptom.CRASH],
        value_mark=MARKS[Symptom.WRONG],
        slow_mark=MARKS[Symptom.SLOW],
        about="\n".join(probe.about),
        training=probe.job.workload.mode == "training",
        limit=HANGS_AFTER_S if fault is Symptom.HANG else RUNS_AT_MOST_S,
        slow=fault is Symptom.SLOW,
        to_load=probe.to_load,
        device=repr(probe.job.workload.device),
        **(_write_subgraph(probe) if probe.part else {}),
        **(_describe_target(probe) if probe.to_load or not probe.part else {}),
        **_describe_candidate(probe),
    )
    try:
        Path(probe.file).write_text(text)
    except OSError as error:
        raise UnsupportedError(f"{probe.file} cannot be written: {error.strerror or error}") from None
    return Written(standalone=probe.part is not None and not probe.to_load and probe.stage != "plan")


def _write_subgraph(probe: Probe) -> dict[str, str]:
    """Save the part's inputs, and return its code, the call that makes it, and its imports."""
    workload = load_subject(probe)
    assert isinstance(workload.call, fx.GraphModule)
    inputs = [list(pytree.map_tensors(_as_saved, example.args)) for example in workload.examples]
    torch.save(inputs, Path(probe.file).with_suffix(".pt"))
    used: dict[str, Any] = {}
    if _holds_graphs(workload.call):
        source, part_call = "\n\n\n".join(_classes(workload.call, "Part", used)), "Part()"
    else:
        source, part_call = _function(workload.call, used).replace("(self, ", "(").replace("(self)", "()"), "forward"
    return {"part": source + "\n", "part_call": part_call, "imports": _imports(used)}


def _holds_graphs(module: fx.GraphModule) -> bool:
    """Return whether some of its operations take a graph, as `torch.cond` and checkpointing do."""
    return any(node.op == "get_attr" for node in module.graph.nodes)


def _function(module: fx.GraphModule, used: dict[str, Any]) -> str:
    """Return the code of a graph as a method, and add the names that it uses."""
    if any(node.op == "call_module" for node in module.graph.nodes):
        raise UnsupportedError("the part calls a module, and no code says how to construct it")
    code = module.graph.python_code("self")
    source = _DROPPED.sub("", code.src).strip()
    used.update({name: v for name, v in code.globals.items() if re.search(rf"\b{re.escape(name)}\b", source)})
    return source


def _classes(module: fx.GraphModule, name: str, used: dict[str, Any]) -> list[str]:
    """Return the code of a graph and of those within it, a class each, the innermost first."""
    names = [str(node.target) for node in module.graph.nodes if node.op == "get_attr"]
    parts = {child: getattr(module, child) for child in names}
    if non_graphs := [child for child, part in parts.items() if not isinstance(part, fx.GraphModule)]:
        raise UnsupportedError(f"the part holds {non_graphs[0]}, which is not a graph")
    inner = [text for child, part in parts.items() for text in _classes(part, f"{name}_{child}", used)]
    # Checkpointing requests the graph of the callable that it runs.
    make = {child: f"{name}_{child}()" for child in parts}
    make |= {child: f"torch.fx.symbolic_trace({make[child]})" for child in parts if not _holds_graphs(parts[child])}
    head = [f"class {name}(torch.nn.Module):", "    def __init__(self):", "        super().__init__()"]
    body = [*(f"        self.{child} = {code}" for child, code in make.items()), ""]
    return [*inner, "\n".join([*head, *body, textwrap.indent(_function(module, used), "    ")])]


def _as_saved(tensor: torch.Tensor) -> torch.Tensor:
    """Return a plain tensor that shares no memory: `weights_only` can load it, and no other data is saved with it."""
    copied: torch.Tensor = pytree.clone(tensor.detach())
    return copied.requires_grad_(tensor.requires_grad)


def _imports(names: Mapping[str, Any]) -> str:
    """Return the import of every name that the code of a graph uses."""
    lines = []
    for name, value in sorted(names.items()):
        if isinstance(value, float):
            lines.append(f"{name} = float({'nan' if math.isnan(value) else repr(value)!r})")
            continue
        module = value.__name__ if isinstance(value, types.ModuleType) else getattr(value, "__module__", None) or ""
        if module.partition(".")[0] not in ("torch", "math", "operator", "builtins", "typing"):
            raise UnsupportedError(
                f"the part uses {name} of {module or 'nowhere'}, which is neither Python's nor torch's"
            )
        if isinstance(value, types.ModuleType):
            lines.append(f"import {module}" if name == module else f"import {module} as {name}")
        elif module != "builtins":
            lines.append(f"from {module} import {value.__name__} as {name}")
    return "".join(f"{line}\n" for line in lines if line != "import torch")


def _describe_candidate(probe: Probe) -> dict[str, str]:
    """Return the code that compiles the model: by a plan of Torchwise, or the options of `torch.compile`."""
    if probe.stage == "plan":
        return {"plan": repr(probe.job.plan.to_json()), "mode": repr(probe.job.workload.mode)}
    if probe.stage == "inductor" and (options := inductor_options(probe)):
        return {"backend_options": f"options={options!r}"}
    return {"backend_options": f"backend={BACKENDS.get(probe.stage, probe.stage)!r}"}


def _describe_target(probe: Probe) -> dict[str, str]:
    """Return the target as code, with the absolute path of a file, as a repro may run anywhere."""
    workload = probe.job.workload
    if probe.job.source is not None:
        raise UnsupportedError(
            "the model is a live object, which no program can load: pass a target with a factory instead"
        )
    head, colon, name = split(workload.target)
    target = f"{Path(head).resolve()}{colon}{name}" if head.endswith(".py") else workload.target
    varying = repr(workload.varying) if workload.varying else ""
    return {"target": repr(target), "seed": repr(workload.seed), "varying": varying}
