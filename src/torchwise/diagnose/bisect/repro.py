"""The worker's side: write the program that shows the fault, and its inputs next to it."""

from __future__ import annotations

import math
import re
import textwrap
import types
from collections.abc import Callable, Mapping
from pathlib import Path
from string import Template
from typing import Any

import torch
from torch import fx

from torchwise.diagnose.bisect import program
from torchwise.diagnose.bisect.job import Probe, Written
from torchwise.diagnose.bisect.probe import BACKENDS, inductor_options, load_subject
from torchwise.errors import UnsupportedError
from torchwise.plan.workload_spec import split
from torchwise.records.bisection import Symptom
from torchwise.workload import pytree

HANGS_AFTER_S = 60
"""Seconds after which a repro of a hang ends.

For other faults, it is a limit far above any of their calls.
"""
RUNS_AT_MOST_S = 600
_DROPPED = re.compile(r";\s*(?:\w+ = )+None(?=\s|$)| : torch\._subclasses\.fake_tensor\.FakeTensor")


def write(probe: Probe, stage: Callable[[str], None]) -> Written:
    """Write the program to the probe's file.

    Raises:
        UnsupportedError: the part cannot be written as a program, or the file cannot be written.
    """
    stage("write")
    fault = probe.fault.symptom if probe.fault else Symptom.NONE
    call, imports = _write_subgraph(probe) if probe.part else (_fill_template(program.TARGET, probe), "")
    leaves = program.LEAVES_OF_PART if probe.part else program.LEAVES_OF_TARGET
    if probe.to_load:
        imports += Template(program.PREAMBLE).substitute(_target(probe))
    text = program.PROGRAM.substitute(
        crash_mark=program.MARKS[Symptom.CRASH],
        value_mark=program.MARKS[Symptom.WRONG],
        slow_mark=program.MARKS[Symptom.SLOW],
        about="\n".join(probe.about),
        imports=imports,
        training=probe.job.workload.mode == "training",
        limit=HANGS_AFTER_S if fault is Symptom.HANG else RUNS_AT_MOST_S,
        slow=fault is Symptom.SLOW,
        leaves=leaves,
        call=call,
        candidate=_candidate(probe),
    )
    try:
        Path(probe.file).write_text(text)
    except OSError as error:
        raise UnsupportedError(f"{probe.file} cannot be written: {error.strerror or error}") from None
    return Written(standalone=probe.part is not None and not probe.to_load and probe.stage != "plan")


def _write_subgraph(probe: Probe) -> tuple[str, str]:
    """Save the part's inputs, and return its function and its imports."""
    workload = load_subject(probe)
    assert isinstance(workload.call, fx.GraphModule)
    inputs = [list(pytree.map_tensors(_as_saved, example.args)) for example in workload.examples]
    torch.save(inputs, Path(probe.file).with_suffix(".pt"))
    used: dict[str, Any] = {}
    if _holds_graphs(workload.call):
        source, model_code = "\n\n\n".join(_classes(workload.call, "Part", used)), "Part()"
    else:
        source, model_code = _function(workload.call, used).replace("(self, ", "(").replace("(self)", "()"), "forward"
    return Template(program.PART).substitute(function=source + "\n", model_code=model_code), _imports(used)


def _holds_graphs(module: fx.GraphModule) -> bool:
    """Return whether some of its operations take a graph, as `torch.cond` and checkpointing do."""
    return any(node.op == "get_attr" for node in module.graph.nodes)


def _function(module: fx.GraphModule, used: dict[str, Any]) -> str:
    """Return the code of a graph as a method, and add the names that it uses.

    Raises:
        UnsupportedError: it calls a module.
    """
    if any(node.op == "call_module" for node in module.graph.nodes):
        raise UnsupportedError("the part calls a module, and no code says how to construct it")
    code = module.graph.python_code("self")
    source = _DROPPED.sub("", code.src).strip()
    used.update({name: v for name, v in code.globals.items() if re.search(rf"\b{re.escape(name)}\b", source)})
    return source


def _classes(module: fx.GraphModule, name: str, used: dict[str, Any]) -> list[str]:
    """Return the code of a graph and of those within it, a class each, the innermost first.

    Raises:
        UnsupportedError: a nested value is not a graph.
    """
    names = [str(node.target) for node in module.graph.nodes if node.op == "get_attr"]
    parts = {child: getattr(module, child) for child in names}
    if non_graphs := [child for child, part in parts.items() if not isinstance(part, fx.GraphModule)]:
        raise UnsupportedError(f"the part holds {non_graphs[0]}, which is not a graph")
    inner = [text for child, part in parts.items() for text in _classes(part, f"{name}_{child}", used)]
    # Checkpointing requests the graph of the callable that it runs.
    make = {child: f"{name}_{child}()" for child in parts}
    make |= {child: f"torch.fx.symbolic_trace({make[child]})" for child in parts if not _holds_graphs(parts[child])}
    model_code = [f"        self.{child} = {backend_options}\n" for child, backend_options in make.items()]
    function = textwrap.indent(_function(module, used), "    ")
    return [*inner, Template(program.NESTED).substitute(name=name, parts="".join(model_code), function=function)]


def _as_saved(tensor: torch.Tensor) -> torch.Tensor:
    """Return a plain tensor that shares no memory: `weights_only` can load it, and no other data is saved with it."""
    copied: torch.Tensor = pytree.clone(tensor.detach())
    return copied.requires_grad_(tensor.requires_grad)


def _imports(names: Mapping[str, Any]) -> str:
    """Return the import of every name that the code of a graph uses.

    Raises:
        UnsupportedError: one of them comes from neither Python nor torch.
    """
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


def _candidate(probe: Probe) -> str:
    workload = probe.job.workload
    if probe.stage == "plan":
        words = {"plan": probe.job.plan.to_json(), "device": workload.device, "mode": workload.mode}
        return Template(program.PLANNED).substitute({name: repr(value) for name, value in words.items()})
    backend_options = f"backend={BACKENDS.get(probe.stage, probe.stage)!r}"
    if probe.stage == "inductor" and (options := inductor_options(probe)):
        backend_options = f"options={options!r}"
    return Template(program.COMPILED).substitute(backend_options=backend_options)


def _fill_template(template: str, probe: Probe) -> str:
    return Template(template).substitute(_target(probe))


def _target(probe: Probe) -> dict[str, str]:
    """Return the code that loads the target, with the absolute path of a file, as a repro may run anywhere.

    Raises:
        UnsupportedError: the model is a live object, which no program can load.
    """
    workload = probe.job.workload
    if probe.job.source is not None:
        raise UnsupportedError(
            "the model is a live object, which no program can load: pass a target with a factory instead"
        )
    head, colon, name = split(workload.target)
    target = f"{Path(head).resolve()}{colon}{name}" if head.endswith(".py") else workload.target
    return {"target": repr(target), "device": repr(workload.device), "seed": repr(workload.seed)}
