"""`torchwise plans list`: whole words in every kind of output, and its message if nothing is found."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
import rich.console
from typer.testing import CliRunner

from builders import a_study
from torchwise.cli.plans import plans
from torchwise.plan import EAGER
from torchwise.records import Decision, StudyState
from torchwise.records.answer import Answer
from torchwise.report.facts import when
from torchwise.report.studies import to_csv
from torchwise.store import open_storage

STUDY = a_study()
LONG = "a_package_of_ours.vision.entry_points:make_the_large_model"


@pytest.fixture
def store(tmp_path: Path) -> str:
    url = str(tmp_path / "store.db")
    workload, inspection = replace(STUDY.workload, target=LONG), replace(STUDY.inspection, identity="another model")
    other = replace(STUDY, workload=workload, inspection=inspection, state=StudyState.INTERRUPTED, decision=None)
    with open_storage(url) as storage:
        storage.import_study(other)
        storage.import_study(STUDY)
    return url


def list_plans(store: str, *words: str) -> str:
    done = CliRunner().invoke(plans, ["list", "--store", store, *words], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def test_in_a_pipe_every_study_is_one_line_of_whole_words(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    said = list_plans(store)
    (line,) = (line for line in said.splitlines() if LONG in line)
    assert "interrupted" in line
    (line,) = (line for line in said.splitlines() if STUDY.workload.target in line)
    assert STUDY.decision is not None
    assert str(STUDY.decision.plan) in line
    assert "…" not in said


@pytest.mark.parametrize("width", [60, 80, 140])
def test_a_terminal_of_any_width_folds_targets_and_plans_alone(
    store: str, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    screen = io.StringIO()
    terminal = rich.console.Console(file=screen, force_terminal=True, width=width, color_system=None)
    monkeypatch.setattr(rich.console, "Console", lambda: terminal)
    list_plans(store)
    said = screen.getvalue()
    assert max(map(len, said.splitlines())) <= width
    assert "…" not in said
    assert STUDY.decision is not None
    for word in ("interrupted", STUDY.workload.device, STUDY.workload.mode, *str(STUDY.decision.plan).split()):
        assert word in said, word
    assert ("┃ study ┃" in said) == (width == 140)


def test_what_is_listed_is_written_as_json(store: str, tmp_path: Path) -> None:
    file = tmp_path / "plans.json"
    list_plans(store, "--json", str(file))
    written = json.loads(file.read_text())
    assert written["schema"] == "torchwise.plans/1"
    assert STUDY.decision is not None
    assert STUDY.decision.speedup is not None
    study = next(study for study in written["studies"] if study["target"] == STUDY.workload.target)
    assert (study["mode"], study["plan"]) == (STUDY.workload.mode, str(STUDY.decision.plan))
    assert study["speedup"]["mid"] == STUDY.decision.speedup.mid
    list_plans(store, "--target", LONG, "--json", str(file))
    assert [(s["target"], s["plan"]) for s in json.loads(file.read_text())["studies"]] == [(LONG, None)]


def test_a_decision_that_the_measurements_do_not_show_is_listed_as_inconclusive(tmp_path: Path) -> None:
    store = str(tmp_path / "store.db")
    assert STUDY.decision is not None
    for number, answer in enumerate((Answer.INCONCLUSIVE, Answer.NO)):
        stays = replace(STUDY.decision, plan=EAGER, speedup=None, answer=answer, reason='"answer":"inconclusive"')
        study = replace(STUDY, decision=stays, inspection=replace(STUDY.inspection, identity=f"model {number}"))
        with open_storage(store) as storage:
            storage.import_study(study)
    with open_storage(store) as storage:
        assert [study.decided for study in storage.list_studies()] == ["eager", "inconclusive: eager"]
        assert "inconclusive: eager" in to_csv(storage.list_studies())
    assert list_plans(store).count("inconclusive: eager") == 1


def test_a_store_without_a_study_of_the_target_is_not_called_empty(store: str, tmp_path: Path) -> None:
    said = list_plans(store, "--target", "no.such:target")
    assert said == "The store holds no study of no.such:target. Other targets: torchwise plans list\n"
    empty = str(tmp_path / "empty.db")
    open_storage(empty).close()
    for words in ((), ("--target", LONG)):
        assert list_plans(empty, *words) == "The store holds no study yet: torchwise tune TARGET creates one.\n"


def test_every_form_of_the_list_has_the_date(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_storage(store) as storage:
        study = storage.list_studies()[0]
    date = when(study.created_at)
    assert date[:10] in list_plans(store)
    narrow = rich.console.Console(file=(screen := io.StringIO()), force_terminal=True, width=60, color_system=None)
    monkeypatch.setattr(rich.console, "Console", lambda: narrow)
    list_plans(store)
    assert date in screen.getvalue()


def test_a_decision_is_shown_in_words_on_a_terminal_and_as_json_elsewhere(
    store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def show(*words: str) -> str:
        done = CliRunner().invoke(plans, ["show", "latest", "--store", store, *words], catch_exceptions=False)
        assert done.exit_code == 0, done.output
        return done.output

    decision = Decision.from_json(show())
    show("--json", str(tmp_path / "decision.json"))
    assert Decision.from_json((tmp_path / "decision.json").read_text()) == decision
    screen = io.StringIO()
    terminal = rich.console.Console(file=screen, force_terminal=True, width=100, color_system=None)
    monkeypatch.setattr(rich.console, "Console", lambda **_options: terminal)
    assert show() == ""
    assert " ".join(decision.reason.split()[:4]) in screen.getvalue()
    assert f"plan {decision.plan.id}: {decision.plan.to_json()}" in screen.getvalue()
