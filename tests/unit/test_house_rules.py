"""Rules of the house that a machine can check: broad handlers say why, and pure folders need no torch."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import torchwise

ROOT = Path(__file__).parents[2]
SOURCE = Path(torchwise.__file__).parent
PLUG_INS = ROOT / "plugins"
FILES = sorted([*SOURCE.rglob("*.py"), *PLUG_INS.rglob("*.py")])
BROAD = ("Exception", "BaseException")
WITHOUT_TORCH = ("plan", "records", "store", "report", "study", "environment")

# Every module of a package, but not the migrations: Alembic runs those, and they are not to be imported.
IMPORT_ALL = """
import importlib, pkgutil, sys
sys.modules["torch"] = None
package = importlib.import_module(sys.argv[1])
for found in pkgutil.walk_packages(getattr(package, "__path__", []), package.__name__ + "."):
    if ".migrations" not in found.name:
        importlib.import_module(found.name)
"""


def name_of(file: Path) -> str:
    return str(file.relative_to(SOURCE if file.is_relative_to(SOURCE) else PLUG_INS))


def apply_rule(find: Callable[[str], list[Any]]) -> dict[str, list[Any]]:
    """Return what breaks a rule, by file. A thousand tests, one for each file, would take ten seconds more."""
    return {name_of(file): found for file in FILES if (found := find(file.read_text()))}


def names(node: ast.expr | None) -> list[str]:
    """Return the names that a handler catches. A bare `except:` catches everything."""
    if node is None:
        return ["BaseException"]
    parts = node.elts if isinstance(node, ast.Tuple) else [node]
    return [part.id if isinstance(part, ast.Name) else ast.unparse(part).rpartition(".")[2] for part in parts]


def find_unexplained(text: str) -> list[int]:
    """Return the lines of broad handlers that carry no comment."""
    lines = text.splitlines()
    handlers = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ExceptHandler)]
    broad = [node.lineno for node in handlers if set(names(node.type)) & set(BROAD)]
    return [number for number in broad if not lines[number - 1].partition("#")[2].strip()]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("except Exception:", [3]),
        ("except Exception as error:", [3]),
        ("except BaseException:", [3]),
        ("except:", [3]),
        ("except (OSError, Exception):", [3]),
        ("except builtins.Exception:", [3]),
        ("except Exception:  #", [3]),
        ("except Exception:  # a plug-in may raise anything", []),
        ("except OSError:", []),
        ("except (OSError, ValueError):", []),
    ],
)
def test_the_rule_sees_a_broad_handler(text: str, found: list[int]) -> None:
    assert find_unexplained(f"try:\n    pass\n{text}\n    pass\n") == found


def test_a_broad_handler_says_why() -> None:
    assert apply_rule(find_unexplained) == {}


@pytest.mark.parametrize("name", WITHOUT_TORCH)
def test_every_module_of_a_pure_folder_loads_without_torch(name: str) -> None:
    command = [sys.executable, "-c", IMPORT_ALL, f"torchwise.{name}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


def test_a_folder_that_needs_torch_would_be_seen() -> None:
    command = [sys.executable, "-c", IMPORT_ALL, "torchwise.zoo"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode != 0
    assert "torch" in done.stderr


LOADED_WITHOUT_TORCH = {
    *(
        "runtime/api.py",
        "runtime/steps.py",
        "_torch/dynamo.py",
        "_torch/native/library.py",
        "_torch/private_name.py",
        "measure/device_lock.py",
        "zoo/registry.py",
    ),
    *("diagnose/doctor/probe.py", "trial/error_origin.py", "trial/job.py"),
    *("diagnose/messages.py", "runtime/components/program.py"),
}
"""Modules outside of the pure folders that a command loads before it knows that it needs torch, or that few do."""


def find_hidden_imports(text: str) -> list[int]:
    """Return the lines that import torch in a function."""
    functions = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef)]
    inside = [node for function in functions for node in ast.walk(function) if isinstance(node, ast.Import)]
    return sorted({node.lineno for node in inside if [alias.name for alias in node.names] == ["torch"]})


def test_torch_is_imported_at_the_top_of_a_module() -> None:
    assert find_hidden_imports("import torch\ndef f():\n    import torch\n    import torch.distributed\n") == [3]
    assert apply_rule(find_hidden_imports).keys() <= LOADED_WITHOUT_TORCH


def test_the_table_of_layers_is_the_one_that_is_held() -> None:
    page = (ROOT / "docs" / "design" / "architecture.md").read_text()
    shown = {(int(layer), name) for layer, name in re.findall(r"^\| (\d+) \| `(\w+)(?:/|\.py)` \|", page, re.MULTILINE)}
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = next(one["layers"] for one in contracts if one["type"] == "layers")
    held = {
        (number, name.strip().removeprefix("torchwise."))
        for number, names in enumerate(reversed(layers), 1)
        for name in names.split("|")
    }
    assert shown == held
    floors = next(one["layers"] for one in contracts if one["name"].startswith("Six floors"))
    shown_floors = re.findall(r"^\| \d+ \| `(\w+)(?:/|\.py)` \| (\w+) \|", page, re.MULTILINE)
    for name, modules in zip(("apps", "serving", "search", "evidence", "torch", "core"), floors, strict=True):
        on_it = {module.strip().removeprefix("torchwise.") for module in modules.split(":")}
        assert on_it <= {module for module, floor in shown_floors if floor == name}
    assert {name for _, name in held} == {
        path.stem for path in SOURCE.iterdir() if path.suffix in ("", ".py") and not path.name.startswith("__")
    }


SECTION = r"^{}:\n((?:    .*\n?|\n)+)"


def list_documented(doc: str, section: str) -> set[str]:
    """Return the names that a section of a docstring describes."""
    found = re.search(SECTION.format(section), doc, re.MULTILINE)
    lines = re.findall(r"^    ([\w*][\w*, ]*):\s", found[1], re.MULTILINE) if found else []
    return {name.strip(" *") for line in lines for name in line.split(",")}


def list_members(node: ast.ClassDef) -> set[str]:
    """Return the names of fields, methods and attributes of a class."""
    inside = list(ast.walk(node))
    fields = {one.target.id for one in inside if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name)}
    stored = {one.attr for one in inside if isinstance(one, ast.Attribute) and ast.unparse(one.value) == "self"}
    assigned = {
        name.id for one in inside if isinstance(one, ast.Assign) for name in one.targets if type(name) is ast.Name
    }
    return fields | stored | assigned | {one.name for one in inside if isinstance(one, ast.FunctionDef)}


def list_arguments(node: ast.FunctionDef | ast.ClassDef) -> set[str]:
    """Return the names of the arguments of a function, or of what makes an object of a class."""
    if isinstance(node, ast.ClassDef):
        made = [one for one in node.body if isinstance(one, ast.FunctionDef) and one.name == "__init__"]
        return list_arguments(made[0]) if made else list_members(node)
    return {one.arg.lstrip("_") for one in ast.walk(node.args) if isinstance(one, ast.arg)}


def find_undocumentable(text: str) -> list[str]:
    """Return what docstrings describe and the code does not have."""
    wrong = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.ClassDef, ast.FunctionDef)):
            doc = ast.get_docstring(node) or ""
            wrong += [f"{node.name}({name})" for name in list_documented(doc, "Args") - list_arguments(node)]
            if isinstance(node, ast.ClassDef):
                wrong += [f"{node.name}.{name}" for name in list_documented(doc, "Attributes") - list_members(node)]
    return wrong


def test_the_rule_sees_what_a_docstring_describes_and_nobody_has() -> None:
    text = 'class A:\n    """A.\n\n    Attributes:\n        x: is.\n        y: is not.\n    """\n\n    x: int\n'
    text += (
        'def f(a, *b, _c):\n    """F.\n\n    Args:\n        a, b: are.\n        c: is.\n        d: is not.\n    """\n'
    )
    assert find_undocumentable(text) == ["A.y", "f(d)"]


def test_a_docstring_describes_arguments_and_attributes_that_exist() -> None:
    assert apply_rule(find_undocumentable) == {}
