"""Every Python snippet of the documentation runs, page by page, with the names that its page leaves to the reader."""

from __future__ import annotations

import ast
import contextlib
import importlib
import inspect
import io
from pathlib import Path
from typing import Any

import doc_reader
import pytest
from doc_pages import PAGES, blocks, read
from sybil.evaluators.python import PythonEvaluator
from sybil.example import Example

ONLY_READ = {
    ("docs/howto/batching.md", "fast = torchwise.optimize("): "needs a search; test_batch_search",
    ("docs/howto/batching.md", "import litserve"): "needs LitServe, which is not installed",
    ("docs/howto/batching.md", "import torch\nimport torchwise\nfrom ray"): "needs a Ray cluster",
    ("docs/loops.md", "optimizer = torch.optim.AdamW("): "needs CUDA; run by tests/gpu/test_loop_and_step.py",
    ("docs/training-loops.md", "import torch\nimport torch.distributed"): "needs ranks; test_training_loops_ranks",
    ("docs/training-loops.md", "options = {"): "needs ranks; test_training_loops_ranks",
    ("docs/training-loops.md", "trainer = Trainer(callbacks"): "needs a module; test_training_loops_forward",
    ("docs/training-loops.md", "trainer = Trainer(model"): "needs data; test_training_loops_forward",
    ("docs/training-loops.md", "planned = torchwise"): "needs an Accelerator; test_training_loops_forward",
}
"""The page and the beginning of a block that is not run, and why. It is compiled, and its names are looked up."""

SNIPPETS = [(page, line, source) for page in PAGES for line, source in blocks(page, "python")]
WITH_PYTHON = tuple(dict.fromkeys(page for page, _line, _source in SNIPPETS))
MODULES = {
    "torchwise": "torchwise",
    "tw": "torchwise",
    "artifact": "torchwise.artifact",
    "bucketing": "torchwise.runtime.bucketing",
}


class Runner:
    """Runs the Python blocks of a page. In how-to pages, it compares their output with the text that follows."""

    def __init__(self, page: str) -> None:
        self.page = page
        self.printed: str | None = None
        self.evaluate = PythonEvaluator()

    def python(self, example: Example) -> None:
        if any(page == self.page and example.parsed.startswith(begins) for page, begins in ONLY_READ):
            return
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            self.evaluate(example)
        self.printed = printed.getvalue()

    def text(self, example: Example) -> None:
        if self.page.startswith("docs/howto/"):
            assert self.printed == example.parsed, f"{self.page}:{example.line}"
        self.printed = None


@pytest.fixture
def quiet_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder and a store of its own, in which searches try one plan that compiles nothing.

    It sets no TMPDIR of its own. The server of workers lives as long as this process of tests, and would keep it. The
    workers of later tests would then take their turns in a folder that nobody else uses.
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TORCHWISE_STORE", str(tmp_path / "store.db"))
    doc_reader.hurry(monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("page", WITH_PYTHON)
@pytest.mark.usefixtures("quiet_machine")
def test_the_snippets_run(page: str, monkeypatch: pytest.MonkeyPatch) -> None:
    runner = Runner(page)
    document = read(page, python=runner.python, text=runner.text)
    document.namespace.update(doc_reader.names(page, monkeypatch))
    try:
        for example in document:
            example.evaluate()
    finally:
        for name in ("remove", "remove_alerts", "remove_metrics"):
            document.namespace.get(name, int)()


@pytest.mark.parametrize(("page", "line", "source"), SNIPPETS)
def test_each_name_and_keyword_of_torchwise_exists(page: str, line: int, source: str) -> None:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute):
            resolve_name(node)
        elif isinstance(node, ast.Call) and (called := resolve_name(node.func)) is not None:
            taken = inspect.signature(called).parameters
            open_end = any(parameter.kind is parameter.VAR_KEYWORD for parameter in taken.values())
            unknown = [word.arg for word in node.keywords if word.arg and word.arg not in taken]
            assert open_end or not unknown, f"{page}:{line}: {ast.unparse(node)}"


def resolve_name(node: ast.expr) -> Any:
    """Return the object that `torchwise.…` names, or None for another expression.

    Raises:
        AttributeError: if there is no such object.
    """
    names = []
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = node.value
    if not names or not isinstance(node, ast.Name) or node.id not in MODULES:
        return None
    value: Any = importlib.import_module(MODULES[node.id])
    for name in reversed(names):
        if inspect.ismodule(value) and not hasattr(value, name):
            value = importlib.import_module(f"{value.__name__}.{name}")
        else:
            value = getattr(value, name)
    return value


def test_nothing_is_excused_in_vain() -> None:
    snippets = {page: [source for other, _line, source in SNIPPETS if other == page] for page, _begins in ONLY_READ}
    assert [key for key in ONLY_READ if not any(source.startswith(key[1]) for source in snippets[key[0]])] == []
