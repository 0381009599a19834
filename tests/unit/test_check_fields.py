"""A check's name, cause and figures are data: nothing reads its sentence but people."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.unit.sketches import INDUCTOR, a_history, a_trial

import torchwise
from torchwise.diagnose.bisect.probe import classify_verdict
from torchwise.records import Check, CheckCause, CheckName, Figure, Measurement, Outcome, Verdict
from torchwise.records.bisection import Symptom
from torchwise.records.codec import from_builtins, from_json, to_builtins, to_json
from torchwise.verify.compare import Sides, compare
from torchwise.verify.gradients import IDLE, Gradients
from torchwise.verify.noise_floor import Sensitivity
from torchwise.verify.observe import Observation, observation_of, observe
from torchwise.verify.step_runner import StepRunner, name_gradient
from torchwise.verify.stochastic import judge
from torchwise.verify.updates import check_trajectories
from torchwise.workload import Example
from torchwise.workload.train_step import TrainStep

SOURCE = Path(torchwise.__file__).parent
FOLDERS = ("verify", "study", "decide", "report", "diagnose")


def seen(value: object) -> Observation:
    return observation_of(value, ())


def values_of(ours: torch.Tensor, eager: torch.Tensor) -> Check:
    return compare(Sides(seen(ours), seen(eager), seen(eager), None), None, Sensitivity())[-1]


def test_nothing_in_the_package_names_a_check_by_text() -> None:
    made = re.compile(r"\bCheck\(\s*f?[\"']|check\.name (==|in) [\"'(]")
    files = (file for folder in FOLDERS for file in (SOURCE / folder).rglob("*.py"))
    found = [str(file) for file in files if made.search(file.read_text())]
    assert not found


def test_figures_are_in_the_json_by_name() -> None:
    check = check_trajectories([[2.3, 2.1, 1.9]] * 4, [[2.3, 2.1, 1.9]] * 4, reduced=False)
    assert check.name is CheckName.LOSS_CURVES
    stored = json.loads(to_json(check))
    assert stored["figures"] == {
        "limit": 0.01,
        "samples": 4,
        "steps": 3,
        "half_width": 0.0,
        "level": 1e-3,
        "first_loss": pytest.approx(2.3),
        "last_loss": pytest.approx(1.9),
    }
    again = from_json(to_json(check), Check)
    assert again == check
    assert again.describe_loss() == "the loss goes from 2.3 to 1.9"
    assert check.detail.endswith(check.describe_loss())


def test_a_figure_that_is_not_finite_is_left_out() -> None:
    check = Check(CheckName.VALUES, Outcome.FAIL, "off", figures={Figure.LIMIT: math.inf, Figure.SAMPLES: 2.0})
    assert check.figures == {Figure.SAMPLES: 2.0}
    assert hash(check) == hash(Check(CheckName.VALUES, Outcome.FAIL, "off"))


def test_a_check_of_an_earlier_or_a_later_version_is_read() -> None:
    earlier = from_builtins(
        {"name": "values", "outcome": "pass", "detail": "agrees", "error": 0.1, "floor": 0.1}, Check
    )
    assert (earlier.name, earlier.cause, earlier.figures, earlier.describe_loss()) == (CheckName.VALUES, None, {}, "")
    data = {
        **to_builtins(earlier),
        "name": "entropy",
        "cause": "too dull",
        "figures": {"limit": 0.5, "joules": 3.0},
        "reviewer": "nobody",
    }
    later = from_builtins(data, Check, stored=True)
    assert (later.name, later.cause, later.figures) == ("entropy", "too dull", {"limit": 0.5, "joules": 3.0})
    assert not later.name.is_known
    assert from_builtins(to_builtins(later), Check) == later


def test_the_values_check_gives_its_limit() -> None:
    exact = torch.linspace(1, 2, 8)
    passed, failed = values_of(exact, exact), values_of(exact + 1, exact)
    assert passed.outcome is Outcome.PASS
    assert passed.figures[Figure.SAMPLES] == 1
    assert failed.outcome is Outcome.FAIL
    assert failed.error is not None
    assert failed.error > failed.figures[Figure.LIMIT] > 0


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_values_that_are_not_finite_are_a_cause_by_which_bisection_tells_them(value: float) -> None:
    exact = torch.ones(4)
    lost = values_of(torch.tensor([1, 1, 1, value]), exact)
    assert (lost.outcome, lost.cause) == (Outcome.FAIL, CheckCause.NOT_FINITE)
    assert classify_verdict(Verdict((lost,))).symptom is Symptom.NAN
    wrong = values_of(exact * 2, exact)
    assert wrong.cause is None
    assert classify_verdict(Verdict((wrong,))).symptom is Symptom.WRONG


def test_a_lost_distribution_and_lost_losses_are_not_finite() -> None:
    fine = np.random.default_rng(0).normal(size=(40, 200))
    (check,) = judge(fine * np.nan, fine, fine, np.zeros(200, dtype=np.intp), exact=True)
    curves = check_trajectories([[1.0, math.nan]] * 4, [[1.0, 1.0]] * 4, reduced=False)
    assert check.cause == curves.cause == CheckCause.NOT_FINITE


def test_a_failing_distribution_gives_its_p_value() -> None:
    rng = np.random.default_rng(0)
    eager, calibration = rng.normal(size=(40, 200)), rng.normal(size=(40, 200))
    shifted, _ = judge(eager + 1, eager, calibration, np.zeros(200, dtype=np.intp), exact=True)
    assert (shifted.name, shifted.outcome) == (CheckName.DISTRIBUTION, Outcome.FAIL)
    assert shifted.figures[Figure.P_VALUE] < shifted.figures[Figure.LEVEL] < 1e-3
    right, _ = judge(eager, eager, calibration, np.zeros(200, dtype=np.intp), exact=True)
    assert right.figures.keys() == {Figure.TESTS, Figure.SAMPLES, Figure.LEVEL}


def test_a_gradient_where_eager_has_none_is_explained() -> None:
    gradients = Gradients(None)
    ours, eager = seen([torch.zeros(2), torch.ones(2)]), seen([None, torch.ones(2)])
    gradients.add(ours, eager, eager, None)
    (check,) = gradients.checks()
    assert (check.name, check.cause) == (CheckName.GRADIENT_STRUCTURE, CheckCause.NONE_IN_EAGER)
    assert check.detail.endswith(IDLE)


def test_noise_that_cannot_be_reproduced_is_a_cause_and_former_records_say_so_by_name() -> None:
    former = Check(CheckName.REPRODUCED_NOISE, Outcome.PASS, "eager's own random numbers cannot be drawn")
    now = Check(CheckName.DISTRIBUTION, Outcome.PASS, "", cause=CheckCause.NOISE_NOT_REPRODUCIBLE)
    assert former.is_noise_unreproducible
    assert now.is_noise_unreproducible
    assert not Check(CheckName.DISTRIBUTION, Outcome.PASS, "reproduced noise").is_noise_unreproducible


def test_only_the_check_of_strides_makes_a_model_restrided() -> None:
    for name in CheckName:
        verdict = Verdict((Check(name, Outcome.FAIL, "output has strides (2, 1)"),))
        traits = a_history(a_trial(INDUCTOR, verdict=verdict)).traits
        assert ("restrided" in traits) is (name is CheckName.STRIDES), name


def test_successive_calls_keep_their_forms_apart() -> None:
    one = seen({"a": [1]})
    assert isinstance(one.form, tuple)
    assert all(isinstance(kind, str) for kind in one.form)


def test_notes_of_earlier_versions_that_name_no_disturbance_have_fields_now() -> None:
    wide = "the interval is ±3.1% after 60 rounds, wider than the ±2% asked for"
    cold = "not timed with cold processor caches: no memory"
    data = {"candidate_s": [1.0], "baseline_s": [2.0], "notes": [wide, "the machine is noisy", cold]}
    found = from_builtins(data, Measurement)
    assert (found.notes, found.width_note, found.not_cold) == (("the machine is noisy",), wide, cold)
    assert found.caveats == ("the machine is noisy", wide, cold)
    assert from_builtins(to_builtins(found), Measurement) == found


def test_an_observation_says_which_leaves_are_outputs() -> None:
    class Counts(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("output", torch.zeros(1))

        def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
            self.output += 1
            return {"a": x + self.output}

    model = Counts()
    twice = observe(model, model, Example((torch.ones(2),)), seed=0, calls=2)
    assert twice.outputs == {"output['a']", "output['a'] of call 2"}
    assert {name for name, _ in twice.leaves} > twice.outputs


def test_a_step_says_which_of_its_state_are_updates_and_how_gradients_are_named() -> None:
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step = TrainStep(model, lambda out, y: ((out - y) ** 2).mean(), optimizer)
    runner, batch = StepRunner(step), Example((torch.ones(3, 2), torch.ones(3, 1)))
    seen, after = runner.gradients(batch, 0), runner.take_steps([batch], 0)
    assert {name_gradient(name) for name in runner.list_parameter_names()} == {n for n, _ in seen.leaves} - {"loss"}
    assert {after.of[name] for name in after.updates} == {"weight", "bias"}
