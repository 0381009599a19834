"""Which libraries the workers of a target import, so that their server imports them once for all of them.

Importing one model of Transformers takes five seconds on two cores, and each trial has two workers at least. Only
libraries of models are imported by the server, and none of the user's own files, whose state belongs to one worker. A
server for a GPU imports none: a library that touches CUDA would keep all workers from it.
"""

from __future__ import annotations

import ast
import contextlib
import importlib
import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from torchwise.plan.workload_spec import WorkloadSpec

VARIABLE = "TORCHWISE_SERVER_IMPORTS"
"""The environment variable by which the server is told."""
LIBRARIES = ("transformers", "diffusers", "timm", "torchvision", "sentence_transformers")
BY_PREFIX = {"hf": ("transformers:PreTrainedModel",), "diffusers": ("diffusers:ModelMixin",), "timm": ("timm",)}
"""The parts of a library that all its targets import, by the prefix of a target."""
MAX_NAMES = 64


def list_imports(job: object) -> list[str]:
    """List the modules that workers import for the target of a job, each as "module" or "module:name"."""
    spec = getattr(getattr(job, "job", job), "workload", None)
    if not isinstance(spec, WorkloadSpec) or spec.device != "cpu":
        return []
    prefix, _, rest = spec.target.partition(":")
    found: Iterable[str] = BY_PREFIX.get(prefix, ())
    if prefix.endswith(".py"):
        found = _scan_file(Path(prefix), rest.partition("@")[0])
    elif not found:
        found = _list_loaded()  # a live model's: this process has imported what it needs
    return list(dict.fromkeys(found))[:MAX_NAMES]


def import_listed() -> None:
    """Import the modules that the environment lists. One that fails is left to the worker, which raises it again."""
    for name in filter(None, os.environ.get(VARIABLE, "").split(",")):
        module, _, attribute = name.partition(":")
        with contextlib.suppress(Exception):
            found = importlib.import_module(module)
            if attribute:
                getattr(found, attribute)  # which Transformers imports then


def _list_loaded() -> Iterator[str]:
    for name in list(sys.modules):
        if name.partition(".")[0] in LIBRARIES and name.rpartition(".")[2].startswith("model"):
            yield name


def _scan_file(file: Path, factory: str) -> Iterator[str]:
    """Yield what a file imports when it is loaded, and when its factory is called."""
    try:
        tree = ast.parse(file.read_bytes())
    except (OSError, SyntaxError, ValueError):  # the worker says what is wrong with it
        return
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == factory]
    at_top = [node for node in tree.body if isinstance(node, (ast.Import, ast.ImportFrom))]
    inside = [node for function in functions for node in ast.walk(function)]
    yield from _list_imported([*at_top, *inside])
    for node in ast.walk(tree) if any(map(_is_of_library, at_top)) else inside:  # such as `transformers.BertModel`
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in LIBRARIES:
            yield f"{node.value.id}:{node.attr}"


def _is_of_library(node: ast.Import | ast.ImportFrom) -> bool:
    return any(True for _ in _list_imported([node]))


def _list_imported(nodes: Iterable[ast.AST]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (one.name for one in node.names if one.name.partition(".")[0] in LIBRARIES)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] in LIBRARIES and not node.level:
            yield from (f"{node.module}:{one.name}" for one in node.names if one.name != "*")
