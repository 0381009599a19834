"""PyTorch's private names: this version has all that Torchwise uses, and only one folder uses them."""

from __future__ import annotations

import ast
import importlib
import pkgutil
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import torchwise
from torchwise import _torch
from torchwise._torch.private_name import PrivateName, check
from torchwise.errors import UnsupportedError

SOURCE = Path(torchwise.__file__).parent
TEXT = re.compile(r"\btorch(\.\w+)*\._[A-Za-z]\w*")
"""A private name in a text, such as one that advises a user."""
PLUG_INS = Path(__file__).parents[2] / "plugins"
OTHER_FILES = sorted(
    file for folder in (SOURCE, PLUG_INS) for file in folder.rglob("*.py") if file.parent.name != "_torch"
)


def list_names() -> list[PrivateName]:
    modules = [
        importlib.import_module(f"{_torch.__name__}.{found.name}") for found in pkgutil.iter_modules(_torch.__path__)
    ]
    return sorted({value for module in modules for value in vars(module).values() if isinstance(value, PrivateName)})


def expect_missing() -> set[str]:
    """Return the names without which Torchwise does, in this build and this Python."""
    missing = set()
    if not torch.backends.cuda.is_built():
        missing |= {str(name) for name in list_names() if "cuda" in name.attribute}
    if sys.version_info >= (3, 12):
        missing.add("torch._C._dynamo.guards.dict_version")
    return missing


def has(name: PrivateName) -> bool:
    try:
        name.get()
    except UnsupportedError:
        return False
    return True


def test_this_version_has_every_private_name() -> None:
    """A failure lists what the support of a new version must replace."""
    names = list_names()
    assert len(names) > 50
    assert {str(name) for name in names if not has(name)} - expect_missing() == set()


def test_a_missing_name_is_told_with_the_feature_and_the_version() -> None:
    for module, attribute in (
        ("torch._no_such_module", "name"),
        ("torch._dynamo", "no_such_name"),
        ("torch", "Tensor.no"),
    ):
        name = PrivateName(module, attribute)
        said = re.escape(f"a feature needs {module}.{attribute}, which torch {torch.__version__} does not have")
        with pytest.raises(UnsupportedError, match=said):
            name.get("a feature")
        with pytest.raises(UnsupportedError, match=said):
            check("a feature", [PrivateName("torch", "_foreach_copy_"), name])


def test_a_module_is_imported_where_nothing_has_imported_it(monkeypatch: pytest.MonkeyPatch) -> None:
    metrics = importlib.import_module("torch._inductor.metrics")
    monkeypatch.delattr("torch._inductor.metrics")
    assert PrivateName("torch._inductor", "metrics").get() is metrics


# ---- only one folder uses them


def find_private_names(text: str) -> Iterator[tuple[int, str]]:
    """Yield the line and the name of each use of a private name of PyTorch, in code or in a text."""
    tree, known = ast.parse(text), dict[str, str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imported = [alias.name for alias in node.names]
            known |= {
                a.asname or a.name.partition(".")[0]: a.name if a.asname else a.name.partition(".")[0]
                for a in node.names
            }
        elif isinstance(node, ast.ImportFrom):
            imported = [f"{node.module}.{alias.name}" for alias in node.names]
            known |= {a.asname or a.name: f"{node.module}.{a.name}" for a in node.names}
        else:
            continue
        yield from ((node.lineno, name) for name in imported if is_private(name))
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and is_private(name := resolve(node, known)):
            yield node.lineno, name
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and (hit := TEXT.search(node.value)):
            yield node.lineno, hit[0]


def resolve(node: ast.expr, known: dict[str, str]) -> str:
    """Return the dotted name of an attribute of an imported module, or an empty text."""
    parts = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([known[node.id], *reversed(parts)]) if isinstance(node, ast.Name) and node.id in known else ""


def is_private(name: str) -> bool:
    first, *others = name.split(".")
    return first == "torch" and any(part.startswith("_") and not part.startswith("__") for part in others)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("import torch._dynamo", ["torch._dynamo"]),
        ("import torch._inductor.config as settings", ["torch._inductor.config"]),
        ("from torch import _dynamo", ["torch._dynamo"]),
        ("from torch._dynamo import config", ["torch._dynamo.config"]),
        ("from torch.utils import _pytree as trees", ["torch.utils._pytree"]),
        ("import torch\ntorch._foreach_copy_(a, b)", ["torch._foreach_copy_"]),
        ("from torch import nn\nnn.Module._call_impl", ["torch.nn.Module._call_impl"]),
        (
            "from torch.nn.modules import module as m\nm._has_any_global_hook()",
            ["torch.nn.modules.module._has_any_global_hook"],
        ),
        ("import torch as t\nt.autograd.forward_ad._current_level", ["torch.autograd.forward_ad._current_level"]),
        ("f'set torch._dynamo.config.{name}'", ["torch._dynamo"]),
        ("import torch\ntorch.__version__; torch.nn.Module.__call__; tensor._version", []),
        ("from torchwise._torch import dynamo\ndynamo.CONFIG.get()", []),
    ],
)
def test_the_rule_sees_a_private_name(text: str, found: list[str]) -> None:
    assert [name for _, name in find_private_names(text)] == found


def test_no_other_folder_uses_a_private_name() -> None:
    used = {file: found for file in OTHER_FILES if (found := list(find_private_names(file.read_text())))}
    assert used == {}
