"""Graph breaks: each told of once, at the line that breaks, with a fix that takes it away."""

from __future__ import annotations

import contextlib
import copy
import inspect
import re
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from targets import break_gallery
from targets.break_gallery import SNIPPETS, Snippet
from torchwise import cli
from torchwise.diagnose.messages import break_key, read_break, read_frames
from torchwise.diagnose.trace import Trace
from torchwise.records.compile_events import Frame
from torchwise.zoo.tutorial import breaks as zoo

MARK = re.compile(r"# breaks: (\w+)$")
GALLERY = Path(break_gallery.__file__)


@pytest.fixture(autouse=True)
def _quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "breakpointhook", lambda *_, **__: None)
    torch._dynamo.reset()


def trace_calls(call: Callable[[Tensor], Any]) -> Trace:
    """The compiler's doings over two calls."""
    x = torch.tensor([1.0, 2.0, 3.0])
    with Trace(artifacts=["dynamo_output_graph"]) as trace, torch.set_grad_enabled(call is break_gallery.learns):
        compiled = torch.compile(call, backend="eager")
        compiled(x)
        compiled(x + 1)
    assert trace.artifacts or trace.compilations
    assert not [note for note in trace.notes if "metrics" not in note]  # 2.11 loses them with ignore_logging_functions
    return trace


def find_marks(functions: list[Callable[..., Any]]) -> dict[int, str]:
    """The lines of functions that say that they break, and the class of their fix."""
    found = {}
    for function in functions:
        lines, first = inspect.getsourcelines(inspect.unwrap(function))
        found |= {first + n: hit[1] for n, line in enumerate(lines) if (hit := MARK.search(line.rstrip()))}
    return found


def list_expected_fixes(snippet: Snippet) -> dict[int, str]:
    called = {"branch_in_a_helper": break_gallery.flip, "from_a_generator": break_gallery.count_and_print}
    return find_marks([snippet.broken, *([called[snippet.name]] if snippet.name in called else [])])


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("snippet", SNIPPETS, ids=lambda one: one.name)
def test_every_break_is_told_of_once_at_its_line_with_its_mend(snippet: Snippet) -> None:
    found = trace_calls(snippet.broken).breaks

    assert {one.line: one.fix.kind for one in found if one.fix} == list_expected_fixes(snippet)
    assert len({(one.line, one.code) for one in found}) == len(found)
    lines = GALLERY.read_text().splitlines()
    for one in found:
        assert Path(one.file) == GALLERY
        assert one.excerpt == lines[one.line - 1].strip()
        assert re.fullmatch(r"GB\d{4,}", one.code)
        assert one.reason
        assert one.explanation
        assert one.stack[-1] in (one.where, one.library)
    if snippet.library:
        assert found[0].library is not None
        assert "statistics.py" in found[0].library.file


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("snippet", SNIPPETS, ids=lambda one: one.name)
def test_applying_the_mend_takes_the_break_away(snippet: Snippet) -> None:
    assert trace_calls(snippet.mended).breaks == ()
    if snippet.same:
        for x in (torch.tensor([1.0, 2.0, 3.0]), torch.tensor([2.0, 3.0, 4.0])):
            with torch.no_grad():
                torch.testing.assert_close(snippet.mended(x), snippet.broken(x))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("snippet", [one for one in SNIPPETS if one.setting], ids=lambda one: one.name)
def test_the_setting_that_a_mend_names_takes_the_break_away(snippet: Snippet) -> None:
    mends = [one.fix for one in trace_calls(snippet.broken).breaks]
    torch._dynamo.reset()
    with contextlib.ExitStack() as stack:
        for mend in mends:
            assert mend
            assert mend.consequence
            name = re.match(r"torch\._dynamo\.config\.(\w+)", mend.setting)
            assert name
            held = copy.copy(getattr(torch._dynamo.config, name[1]))
            stack.enter_context(torch._dynamo.config.patch(**{name[1]: held}))
            exec(mend.setting, {**vars(break_gallery), "torch": torch})
        assert trace_calls(snippet.broken).breaks == ()


class MendedPrint(zoo.TwoLayers):
    def transform_hidden(self, hidden: Tensor) -> Tensor:
        if not torch.compiler.is_compiling():
            print(f"hidden values: {tuple(hidden.shape)}")
        return hidden


class MendedItem(zoo.TwoLayers):
    def transform_hidden(self, hidden: Tensor) -> Tensor:
        size = hidden.abs().mean()
        return hidden / size


class MendedBranch(zoo.TwoLayers):
    def transform_hidden(self, hidden: Tensor) -> Tensor:
        return torch.where(hidden.mean() > 0, hidden * 2, hidden / 2)


class MendedNumpy(zoo.TwoLayers):
    def transform_hidden(self, hidden: Tensor) -> Tensor:
        knots, curve = torch.tensor(zoo.KNOTS), torch.tensor(zoo.CURVE)
        left = torch.searchsorted(knots, hidden.contiguous(), right=True).clamp(1, len(zoo.KNOTS) - 1) - 1
        share = (hidden - knots[left]) / (knots[left + 1] - knots[left])
        return torch.lerp(curve[left], curve[left + 1], share)


class MendedList(zoo.TwoLayers):
    def transform_hidden(self, hidden: Tensor) -> Tensor:
        total = term = hidden
        for _ in range(12):
            goes_on = term.abs().max() > zoo.NEGLIGIBLE
            term = torch.where(goes_on, term * hidden / 2, 0)
            total = total + term
        return total


ZOO = {
    zoo.BreakPrint: ("print", MendedPrint),
    zoo.BreakItem: ("item", MendedItem),
    zoo.BreakBranch: ("branch", MendedBranch),
    zoo.BreakNumpy: ("numpy", MendedNumpy),
    zoo.BreakList: ("while", MendedList),
}
ZOO_LINES = {
    zoo.BreakPrint: "print(f",
    zoo.BreakItem: ".item()",
    zoo.BreakBranch: "if hidden.mean()",
    zoo.BreakNumpy: "np.interp(",
    zoo.BreakList: "while terms[-1]",
}


@pytest.mark.parametrize("kind", ZOO, ids=lambda kind: kind.__name__)
def test_the_gallery_of_the_zoo_is_told_of_and_mended(kind: type[zoo.TwoLayers]) -> None:
    model = kind(8).eval()
    mended = ZOO[kind][1](8).eval()
    mended.load_state_dict(model.state_dict())
    x = torch.randn(4, 8, generator=torch.Generator().manual_seed(0))
    with torch.no_grad(), Trace() as trace:
        torch.compile(model, backend="eager")(x)
    torch._dynamo.reset()
    with torch.no_grad(), Trace() as after:
        torch.compile(mended, backend="eager")(x)

    lines, first = inspect.getsourcelines(kind.transform_hidden)
    line = first + next(n for n, text in enumerate(lines) if ZOO_LINES[kind] in text)
    assert [(one.line, one.fix and one.fix.kind) for one in trace.breaks] == [(line, ZOO[kind][0])]
    assert Path(trace.breaks[0].file) == Path(str(zoo.__file__))
    assert after.breaks == ()
    assert after.compilations
    with torch.no_grad():
        torch.testing.assert_close(mended(x), model(x), rtol=1e-4, atol=2e-3 if kind is zoo.BreakList else 1e-5)


def test_a_print_that_a_library_has_replaced_is_a_print_still(tmp_path: Path) -> None:
    """Ray puts its own in place of `print`, for as long as the process lives. It takes a lock."""
    source = tmp_path / "model.py"
    source.write_text("print('hi')\n")
    found = read_break(f"""Graph break in user code at {statistics.__file__}:500
Graph Break Reason: Unsupported context manager
  Explanation: Dynamo does not know how to enter a `lock` context manager.

User code traceback:
  File "{source}", line 1, in forward
  File "{statistics.__file__}", line 500, in safe_print
""")
    assert found
    assert found.library
    assert found.fix
    assert found.fix.kind == "print"


def test_a_function_that_goes_on_after_a_break_stands_in_the_stack_once() -> None:
    text = """
  File "/home/me/main.py", line 21, in <module>
    g(x)
  File "/home/me/model.py", line 15, in f
    print("hi")
  File "/home/me/model.py", line 16, in torch_dynamo_resume_in_f_at_15
    if y.sum() > 0:
"""
    assert read_frames(text) == (
        Frame("/home/me/main.py", 21, "<module>"),
        Frame("/home/me/model.py", 16, "f"),
    )


def test_two_lines_of_a_library_under_one_line_of_the_user_are_two_breaks() -> None:
    text = """Graph break in user code at {library}:{line}
Graph Break Reason: Failed
  Explanation: why

User code traceback:
  File "/home/me/main.py", line 21, in <module>
  File "{library}", line {line}, in median
"""
    first, second = (read_break(text.format(library=statistics.__file__, line=line)) for line in (500, 501))
    assert first
    assert second
    assert first.where == second.where == Frame("/home/me/main.py", 21, "<module>")
    assert break_key(first) != break_key(second)
    assert first.fix
    assert first.fix.kind == "other"


def test_a_text_that_names_no_place_is_no_break() -> None:
    assert read_break("something else") is None


@pytest.mark.slow
@pytest.mark.usefixtures("brief_searches")
def test_a_command_that_asks_for_one_graph_ends_with_1_and_names_the_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "branching.py"
    file.write_text(
        "import torch\n"
        "def call(x):\n"
        "    if x.sum() > 0:\n"
        "        return x + 1\n"
        "    return x - 1\n"
        "def make():\n"
        "    return call, (torch.ones(3),)\n"
    )
    words = ["tune", f"{file}:make", "--fullgraph", "--effort", "quick", "--device", "cpu"]
    monkeypatch.setattr(sys, "argv", ["torchwise", *words, "--store", str(tmp_path / "s.db")])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 1
    said = capsys.readouterr().err
    assert "torchwise: the graph breaks: Data-dependent branching" in said
    assert f"{file}:3" in said
