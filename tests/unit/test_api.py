"""The Python interface on real processes. Plans that compile nothing keep it quick."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

import torchwise
from torchwise.errors import BaselineError, InputError
from torchwise.plan import Plan
from torchwise.plan.workload_spec import OptionKeywords, TuneKeywords, TuneOptions

FAST = (Plan(threads=torch.get_num_threads() + 1),)

pytestmark = pytest.mark.usefixtures("brief_searches")


class Sleepy(torch.nn.Module):
    """Quicker on the number of threads that the plan under test sets."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        time.sleep(0.0005 if torch.get_num_threads() == FAST[0].threads else 0.01)  # far apart, for busy machines
        return self.linear(x)


@pytest.fixture
def store(tmp_path: Path) -> str:
    return str(tmp_path / "store.db")


@pytest.mark.usefixtures("brief_searches")
def test_tune_and_apply_a_live_model_of_this_file(store: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, x = Sleepy().eval(), torch.randn(2, 8)
    before = {k: v.clone() for k, v in model.state_dict().items()}
    study = torchwise.tune(model, (x,), plans=FAST, store=store, effort="quick", progress=False)
    assert study.decision.plan == FAST[0]
    assert study.decision.speedup is not None
    assert study.decision.speedup.low > 2
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    fast = torchwise.apply(model, torchwise.Decision.from_json(study.decision.to_json()))
    with torch.no_grad():
        assert torch.allclose(fast(x), model(x))
    assert fast.statistics.optimized == 1
    study.save_html(tmp_path / "study.html")
    study.save_json(tmp_path / "study.json")
    assert "<html" in study._repr_html_()
    assert "Run" in repr(study)
    again = torchwise.optimize(model, (x,), plans=FAST, store=store, effort="quick", progress=False)
    assert again.decision.plan == FAST[0]


def test_kwargs_and_nested_inputs(store: str) -> None:
    def call(batch: dict[str, torch.Tensor], *, pair: tuple[torch.Tensor, int]) -> list[torch.Tensor]:
        return [batch["a"] + pair[0] * pair[1]]

    study = torchwise.tune(
        call,
        ({"a": torch.randn(3)},),
        {"pair": (torch.randn(3), 2)},
        plans=FAST,
        effort="quick",
        store=store,
        progress=False,
    )
    assert study.trials[0].verdict is not None
    assert study.trials[0].verdict.outcome == "pass"


def test_several_examples_with_weights(store: str) -> None:
    examples = [torchwise.Example((torch.randn(n),), weight=w) for n, w in ((10, 3.0), (1000, 1.0))]
    study = torchwise.tune(torch.tanh, examples=examples, plans=FAST, effort="quick", store=store, progress=False)
    assert len(study.decision.inputs) == 2
    assert "several_shapes" in study.record.inspection.traits


def test_training_mode_compares_gradients(store: str) -> None:
    study = torchwise.tune(
        torch.nn.Linear(4, 4),
        (torch.randn(2, 4),),
        mode="training",
        plans=FAST,
        effort="quick",
        store=store,
        progress=False,
    )
    assert study.trials[0].verdict is not None
    assert study.trials[0].verdict.outcome == "pass"


@pytest.mark.parametrize(
    ("arguments", "options", "said"),
    [
        ((torch.tanh,), {}, "no example inputs"),
        ((torch.tanh, "x"), {}, "must be a tuple"),
        ((3, (torch.ones(1),)), {}, "must be callable"),
        (("zoo:tutorial.fusion_demo", (torch.ones(1),)), {}, "has its own"),
        ((torch.tanh, (torch.ones(1),)), {"calls": 0}, "calls is 0"),
        ((torch.tanh, (torch.ones(1),)), {"allow": "anything"}, "allow is 'anything'"),
        ((torch.tanh, (torch.ones(1),)), {"compile_timeout": "10"}, "compile_timeout is '10', but must be a number"),
        ((torch.tanh, (torch.ones(1),)), {"iterations": 1e6}, "iterations is 1000000.0, but must be a whole number"),
        ((torch.tanh, (torch.ones(1),)), {"budget": "10"}, "budget is .10. s, but must be above 0"),
        ((torch.tanh, (torch.ones(1),)), {"memory_limit": "8G"}, "memory limit is .8G., but must be a finite size"),
        ((torch.tanh, (torch.ones(1),)), {"plans": Plan(threads=1)}, "plans is a Plan"),
        ((torch.tanh, (torch.ones(1),)), {"plans": "inductor"}, "plans is a str, but must be a list of plans"),
        ((torch.tanh,), {"examples": [(torch.ones(1),)]}, "examples has a tuple, but must be a list of examples"),
        ((torch.tanh,), {"examples": torch.ones(1)}, "examples has a Tensor, but must be a list of examples"),
        ((torch.tanh, (torch.ones(1),)), {"device": "tpu"}, "device is 'tpu'"),
        ((torch.tanh, (torch.ones(1),)), {"examples": []}, "only one of them"),
    ],
)
def test_bad_arguments_are_refused_before_anything_runs(
    arguments: tuple[object, ...], options: dict[str, object], said: str, store: str
) -> None:
    with pytest.raises(InputError, match=said):
        torchwise.tune(*arguments, store=store, progress=False, **options)  # type: ignore[arg-type]


def test_a_model_that_fails_on_its_inputs_says_what_they_were(store: str) -> None:
    with pytest.raises(BaselineError, match=r"float32\[2, 3\]"):
        torchwise.tune(torch.nn.Linear(4, 4), (torch.randn(2, 3),), store=store, progress=False)


def test_a_model_that_cannot_travel_says_how_it_could(store: str) -> None:
    class Holder(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.generator = (i for i in range(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x

    with pytest.raises(InputError, match="give a factory instead"):
        torchwise.tune(Holder(), (torch.ones(2),), store=store, progress=False)


def test_settings_of_the_users_process_hold_in_the_workers(store: str) -> None:
    def threads(x: torch.Tensor) -> torch.Tensor:
        return x * torch.get_num_threads()

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        study = torchwise.tune(
            threads, (torch.ones(2),), plans=(Plan(threads=1),), effort="quick", store=store, progress=False
        )
    finally:
        torch.set_num_threads(before)
    assert study.trials[0].verdict is not None
    assert study.trials[0].verdict.outcome == "pass"  # one thread in both, so the answers agree


@pytest.mark.nightly
def test_a_script_without_a_main_guard_tunes_once(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import torch, torchwise as tw\n"
        "print('script runs')\n"
        "class Net(torch.nn.Module):\n"
        "    def forward(self, x):\n"
        "        return x.sin()\n"
        f"study = tw.tune(Net(), (torch.randn(8),), calls=10, effort='quick', store={str(tmp_path / 's.db')!r})\n"
        "print(study.decision.reason)\n"
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("script runs") == 1
    assert "Stay with eager" in done.stdout


def test_the_options_of_tune_are_written_in_three_ways_that_agree() -> None:
    """`tune` names them for who reads its help, `TuneKeywords` for a type checker, `TuneOptions` for the program."""
    named = {name: p for name, p in inspect.signature(torchwise.tune).parameters.items() if p.kind is p.KEYWORD_ONLY}
    typed = inspect.get_annotations(TuneKeywords) | inspect.get_annotations(OptionKeywords)
    written = {name: text.__forward_arg__ for name, text in typed.items()}
    # The keywords go to `bucketing.fit` as well, whose `sizes` are others.
    assert {name: p.annotation for name, p in named.items()} == written | {"sizes": "Sizes"}
    kept = {field.name: field.default for field in dataclasses.fields(TuneOptions)}
    assert set(kept) == {*inspect.get_annotations(OptionKeywords), "sizes"}
    assert {name: p.default for name, p in named.items() if name in kept} == kept


@pytest.mark.parametrize(
    "how", [torchwise.tune, torchwise.optimize, functools.partial(torchwise.optimize, background=True)]
)
def test_a_misspelt_option_is_refused(how: Any) -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'effrt'"):
        how(torch.nn.Linear(2, 2), torch.ones(2), effrt="quick")
    with pytest.raises(
        InputError, match=r"effort is 'quik', but must be one of quick, standard, thorough; did you mean quick"
    ):
        how(torch.nn.Linear(2, 2), torch.ones(2), effort="quik")


def test_sizes_that_vary_are_found_and_a_plan_is_verified_at_others(store: str) -> None:
    study = torchwise.tune(
        Sleepy().eval(), (torch.randn(6, 8),), sizes="varying", plans=FAST, effort="quick", store=store, progress=False
    )
    (varying,) = study.decision.workload.varying
    assert (varying.path, varying.dim) == ("[0][0]", 0)
    assert len(study.decision.inputs) == 1 + len(varying.lengths)
    assert any("sizes vary, and plans are verified at other ones" in note for note in study.record.inspection.notes)
