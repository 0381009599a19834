"""A plug-in's backend and rewrite: short, proposed by a search, compiled, and served as Torchwise's own are."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch
from plugin import a_backend, a_transform

import torchwise
from live_decisions import make_decision
from torchwise.compile import compile_plan
from torchwise.plan import CHOICES, EAGER, Plan, PlanSpace, Trait
from torchwise.plan.choice import load_choices
from torchwise.testing.models import make_net, make_rows
from torchwise.workload import Example

MAX_LINES = 60
BOTH = Plan(transforms=("drop_dropout",), backend="interpreted")


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    load_choices()
    before = dict(CHOICES)
    a_backend.register_choices()
    a_transform.register_choices()
    torch.compiler.reset()
    with torch.no_grad():
        yield
    torch.compiler.reset()
    CHOICES.clear()
    CHOICES.update(before)


def make_model() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout(), make_net().inner).eval()


def test_without_pytest_the_way_out_is_named() -> None:
    code = "import sys; sys.modules['pytest'] = None; import torchwise.testing"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.stderr.endswith("torchwise.testing holds suites of pytest tests: pip install pytest\n")


@pytest.mark.parametrize("module", [a_backend, a_transform])
def test_each_is_declared_and_written_in_one_short_file(module: ModuleType) -> None:
    assert len(Path(str(module.__file__)).read_text().splitlines()) < MAX_LINES


def test_a_search_proposes_them_for_the_models_that_they_are_for() -> None:
    space = PlanSpace("cpu", "inference", frozenset({Trait.MODULE, Trait.FLOATING, a_transform.HAS_DROPOUT}))
    (dropped,) = (plan for plan, choice in space.neighbours(EAGER) if choice == a_transform.CHOICE)
    assert dropped == Plan(transforms=("drop_dropout",))
    assert BOTH in {plan for plan, _ in space.neighbours(dropped)}
    assert Plan.from_json(BOTH.to_json()) == BOTH
    without = PlanSpace("cpu", "inference", frozenset({Trait.MODULE}))
    assert without.excludes(a_transform.CHOICE) == "the workload has no plugin.dropout"


def test_a_plan_with_both_is_compiled_and_served() -> None:
    model, x = make_model(), make_rows(3)
    compiled = compile_plan(model, BOTH, Example((x,)), device="cpu", mode="inference")
    torch.testing.assert_close(compiled.call(x), model(x))
    fast = torchwise.apply(model, make_decision(model, BOTH, x))
    torch.testing.assert_close(fast(x), model(x))
    assert (fast.statistics.optimized, dict(fast.statistics.original)) == (1, {})
