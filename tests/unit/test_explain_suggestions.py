"""Only code that was run is suggested: it fits the line, answers alike, and takes the break away."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from targets import break_gallery, suggested
from torchwise.diagnose import fix_trials
from torchwise.diagnose.fix_trials import Checked, check_suggestions, patched, read_added_value
from torchwise.diagnose.tensor_code import as_tensor
from torchwise.diagnose.trace import Trace
from torchwise.records.compile_events import Break
from torchwise.trial.loading import runner
from torchwise.workload import Example, Workload

X = suggested.X


class Arena:
    """Provides calls, and no clock."""

    device, mode = "cpu", "inference"

    def __init__(self, model: Callable[..., Any]) -> None:
        self.workload = Workload(model, (Example((X.clone(),)),))

    def runners(self, call: Callable[..., Any], _model: Any = None) -> list[Callable[[], Any]]:
        return [runner(call, example, self.mode) for example in self.workload.examples]


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def find_breaks(model: Callable[..., Any]) -> tuple[Break, ...]:
    torch.compiler.reset()
    with torch.no_grad(), Trace() as trace:
        torch.compile(model, backend="eager")(X)
    return trace.breaks


def run(model: Callable[..., Any]) -> Checked:
    with torch.no_grad():
        return check_suggestions(find_breaks(model), Arena(model))  # type: ignore[arg-type]


FITS = re.compile(r"# fits: (.+)$", re.MULTILINE)
ASKS = re.compile(r"# asks: (.+)$", re.MULTILINE)
KINDS = [kind for kind in vars(suggested).values() if inspect.isclass(kind) and issubclass(kind, suggested.Lines)][1:]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_only_what_fits_the_line_is_suggested(kind: Callable[[], torch.nn.Module]) -> None:
    source = inspect.getsource(kind)
    (found, *_) = run(kind()).breaks
    assert found.fix is not None
    fits, asks = FITS.search(source), ASKS.search(source)
    assert found.fix.line == (fits[1] if fits else "")
    assert found.fix.condition.startswith(asks[1]) if asks else not found.fix.condition


@pytest.mark.parametrize("kind", [suggested.ReadsACount, suggested.ChoosesNothing, suggested.AsksAmong])
def test_without_running_it_would_be_suggested(kind: Callable[[], torch.nn.Module]) -> None:
    """Otherwise the tests above would hold of any model."""
    (found, *_) = find_breaks(kind())
    assert found.fix is not None
    assert found.fix.line or found.fix.condition


def test_what_was_run_is_kept_as_a_copy_that_does_not_break() -> None:
    model = suggested.Reads()
    found = run(model)
    (copied,) = found.rewritten.values()
    assert find_breaks(copied) == ()
    assert torch.equal(copied(X), model(X))
    assert find_breaks(model) != ()


class Single(torch.nn.Identity):
    """A submodule of which there is one in a process."""

    def __deepcopy__(self, _memo: dict[int, Any]) -> Any:
        return self


def test_nothing_is_suggested_for_a_model_that_cannot_be_copied() -> None:
    model = suggested.Reads()
    model.single = Single()
    found = run(model)
    assert [one.fix.line for one in found.breaks if one.fix] == [""]
    assert not found.rewritten


@pytest.mark.parametrize(("kind", "named"), [(suggested.Logs, True), (suggested.LogsByItself, False)])
def test_a_setting_names_what_a_program_can_name(kind: Callable[[], torch.nn.Module], named: bool) -> None:
    (found,) = run(kind()).breaks
    assert found.fix is not None
    assert ("add(logger.info)" in found.fix.setting) is named
    assert bool(found.fix.consequence) is named


def test_a_setting_that_adds_to_a_set_is_held_and_put_back() -> None:
    config = torch._dynamo.config
    before = set(config.reorderable_logging_functions)
    with patched("torch._dynamo.config.reorderable_logging_functions.add(print)"):
        assert print in config.reorderable_logging_functions
    assert config.reorderable_logging_functions == before
    assert read_added_value("torch._dynamo.config.capture_scalar_outputs = True") == ""


@pytest.mark.parametrize(
    ("asked", "tensor"),
    [
        ("x > 0", "x > 0"),
        ("not x.any()", "torch.logical_not(x.any())"),
        ("a or b and c", "torch.logical_or(a, torch.logical_and(b, c))"),
        ("0 < x < 3", "torch.logical_and(0 < x, x < 3)"),
        ("bool(x.sum().item())", "x.sum()"),
        ("a.equal(b)", "a.eq(b).all()"),
        ("torch.allclose(a, b, rtol=0.1)", "torch.isclose(a, b, rtol=0.1).all()"),
        ("x >", ""),
    ],
)
def test_a_condition_is_written_as_a_tensor(asked: str, tensor: str) -> None:
    assert as_tensor(asked) == tensor


CODE = re.compile(r"`([^`]+)`")
EXAMPLES: dict[str, Any] = {
    "torch": torch,
    "x": torch.tensor([1, 2, 2]),
    "y": torch.tensor([1, 2, 3]),
    "mask": torch.tensor([True, False, True]),
    "condition": torch.tensor(True),
    "this_side": torch.ones(2),
    "other_side": torch.zeros(2),
    "this_function": lambda x: x + 1,
    "other_function": lambda x: x - 1,
    "inputs": torch.ones(2),
    "step": lambda x: x + 1,
    "values": [torch.tensor(2.0), torch.tensor(1.0)],
    "counts": torch.tensor([1, 2]),
    "index": torch.tensor([0, 1]),
    "ones": torch.ones(3),
    "knots": torch.tensor([0.0, 1.0]),
    **dict.fromkeys(("MAX_COUNT", "TOTAL", "BINS", "CLASSES"), 5),
}


@pytest.mark.filterwarnings("ignore")
def test_every_example_in_the_texts_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls in backticks that are the user's own line are left out, and so are names and decorators."""
    monkeypatch.setattr(sys, "breakpointhook", lambda *_, **__: None)
    codes: set[str] = set()
    for snippet in break_gallery.SNIPPETS:
        torch.compiler.reset()
        with Trace() as trace, torch.set_grad_enabled(snippet.broken is break_gallery.learns):
            torch.compile(snippet.broken, backend="eager")(X.clone())
        for one in trace.breaks:
            assert one.fix is not None
            codes |= {code for code in CODE.findall(one.fix.text) if code not in one.excerpt and "torch" in code}
    called = {code for code in codes if "(" in code and not code.startswith("@") and "cuda" not in code}
    assert len(called) > 10
    with torch.compiler.set_stance("default"):  # which one of them sets, and is put back so
        for code in called:
            exec(f"{code} pass" if code.endswith(":") else code, dict(EXAMPLES))


def test_nothing_is_run_where_nothing_is_suggested(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fix_trials, "copy_with_fresh_code", None)
    assert run(torch.nn.Linear(3, 3)).breaks == ()
