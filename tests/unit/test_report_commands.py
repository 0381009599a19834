"""The commands that a report names are ones that the shell, the command line and Python read back as meant."""

from __future__ import annotations

import ast
import inspect
import itertools
import os
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from builders import a_plan, a_study, some_trials
from torchwise.cli.common import find_study
from torchwise.cli.report import report
from torchwise.cli.tune import tune
from torchwise.errors import InputError
from torchwise.plan import Plan
from torchwise.plan.workload_spec import WorkloadSpec
from torchwise.records import Study, StudyState
from torchwise.records.files import write_json
from torchwise.report.facts import BREAK, wrap_command
from torchwise.report.study import next_steps, reproduce
from torchwise.runtime import api
from torchwise.store import open_storage

HOSTILE = "a b/$(touch x);'\".py:make"
EVERYTHING = WorkloadSpec(
    "pkg.mod:make",
    device="cpu",
    mode="training",
    objective="memory",
    calls=5,
    restarts=2,
    seed=3,
    memory_limit=3 * 2**29,
)


def options(words: list[str]) -> dict[str, str]:
    return {word: value for word, value in itertools.pairwise(words) if word.startswith("--")}


def test_a_trial_is_repeated_by_its_canonical_plan_in_a_store_of_its_own() -> None:
    plan = a_plan(options=(("freezing", True),))
    words = shlex.split(reproduce(a_study(), plan))
    assert words[:5] == ["torchwise", "tune", "zoo:vision.resnet50", "--device", "cuda"]
    assert Plan.from_json(options(words)["--plan"]) == plan
    assert options(words)["--plan"] == plan.to_json()
    assert options(words)["--store"].endswith(".db")
    assert "--fresh" in words


def test_everything_that_was_asked_is_asked_again() -> None:
    found = options(shlex.split(reproduce(a_study(workload=EVERYTHING, allow="lower-precision"), a_plan())))
    assert found == {**found, "--mode": "training", "--objective": "memory", "--calls": "5", "--restarts": "2"}
    assert found == {**found, "--seed": "3", "--allow": "lower-precision", "--device": "cpu", "--memory-limit": "1.5"}


def test_the_command_line_knows_every_option() -> None:
    known = {f"--{name.replace('_', '-')}" for name in inspect.signature(tune).parameters}
    words = shlex.split(reproduce(a_study(workload=EVERYTHING, allow="lower-precision", effort="quick"), a_plan()))
    assert {word for word in words if word.startswith("--")} <= known


def test_a_hostile_target_stays_one_word() -> None:
    words = shlex.split(reproduce(a_study(workload=WorkloadSpec(HOSTILE)), a_plan()))
    assert words[2] == HOSTILE


def test_a_target_like_an_option_goes_behind_the_options() -> None:
    words = shlex.split(reproduce(a_study(workload=WorkloadSpec("--store=x:y")), a_plan()))
    assert words[-2:] == ["--", "--store=x:y"]


def test_a_live_model_is_repeated_in_python() -> None:
    spec = WorkloadSpec("live:Net", device="cuda", calls=5, seed=3, memory_limit=3 * 2**29)
    plan = a_plan(options=(("max_autotune_gemm_backends", 'it\'s "quoted"'),))
    called, given = run_snippet(reproduce(a_study(workload=spec, allow="lower-precision"), plan), plan)
    assert called == "tune"
    assert given == {**given, "device": "cuda", "calls": 5, "allow": "lower-precision", "plans": [plan], "fresh": True}
    assert given["memory_limit"] == 3 * 2**29, "in bytes, as `torchwise.tune` takes it"
    assert set(given) <= set(inspect.signature(api.tune).parameters)


@pytest.mark.parametrize("target", ["zoo:vision.resnet50", "live:Net"])
def test_an_interrupted_study_is_resumed(target: str) -> None:
    spec = WorkloadSpec(target, device="cuda", calls=5)
    study = a_study(decided=None, state=StudyState.INTERRUPTED, workload=spec, effort="quick")
    first = next_steps(study)[0]
    assert "resumes" in first.purpose
    if target.startswith("zoo:"):
        assert first.command == "torchwise tune zoo:vision.resnet50 --device cuda --calls 5 --effort quick"


def test_a_decided_plan_is_to_be_applied_and_eager_may_be_left_with_reduced_precision() -> None:
    assert next_steps(a_study())[0].command == "torchwise plans show 7"
    live = a_study(workload=WorkloadSpec("live:Net", device="cuda"))
    assert next_steps(live)[0].command == "fast = torchwise.apply(model, study.decision)"
    eager = a_study(decided=-1)
    assert next_steps(eager)[0].command.endswith("--allow lower-precision")
    assert "allow" not in next_steps(a_study(decided=-1, allow="lower-precision"))[0].command
    of_integers = replace(eager, inspection=replace(eager.inspection, traits=frozenset({"module"})))
    assert "allow" not in next_steps(of_integers)[0].command


def test_the_page_is_always_within_reach() -> None:
    for study in (a_study(), a_study(decided=-1), a_study(decided=None), a_study([])):
        assert next_steps(study)[-1].command == "torchwise report 7 --html report.html"


@pytest.mark.parametrize(
    "study",
    [a_study(), a_study(decided=-1), a_study(decided=None, state=StudyState.INTERRUPTED)],
    ids=["decided", "eager", "interrupted"],
)
def test_what_is_kept_elsewhere_is_looked_for_there(study: Study) -> None:
    for step in next_steps(study, store="/data/a team.db"):
        words = shlex.split(step.command)
        assert words[words.index("--store") + 1] == "/data/a team.db", step.command
    assert "--store" not in "".join(step.command for step in next_steps(study))


def test_next_steps_name_the_store_or_file_that_was_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "300")
    app = typer.Typer()
    app.command()(report)
    with open_storage("mine.db") as storage:
        kept = storage.import_study(a_study())
    write_json(kept, Path("study.json"))
    stored = f"{kept.id} --store {tmp_path / 'mine.db'}"
    for words, named in ((["latest", "--store", "mine.db"], stored), (["study.json"], "study.json")):
        done = CliRunner().invoke(app, [*words, "--html", "page.html"], catch_exceptions=False)
        page = Path("page.html").read_text()
        for text in (done.output, page):
            assert f"torchwise plans show {named}" in text
        assert "--html" not in done.output + page, "there is nothing to write beside what was written"
        alone = CliRunner().invoke(app, words, catch_exceptions=False)
        assert f"torchwise report {named} --html report.html" in alone.output


def test_latest_is_what_was_decided_last(tmp_path: Path) -> None:
    store = str(tmp_path / "s.db")
    first, second, third = (
        replace(a_study(), inspection=replace(a_study().inspection, identity=name), created_at=float(at))
        for at, name in enumerate("abc", 1)
    )
    with open_storage(store) as storage:
        assert storage.latest_study() is None
        ids = [storage.import_study(replace(study, decision=None)).id for study in (first, second)]
        assert find_study("latest", store).id == ids[1], "of undecided ones, the newest"
        for number, study in zip(ids, (first, second), strict=True):
            storage.store_outcome(number, state=StudyState.DECIDED, decision=study.decision, excluded=(), seconds=0.0)
        storage.store_outcome(ids[0], state=StudyState.DECIDED, decision=first.decision, excluded=(), seconds=0.0)
        storage.import_study(replace(third, decision=None))
    assert find_study("latest", store).id == ids[0]


def test_what_names_no_study_is_refused_in_words(tmp_path: Path) -> None:
    store = str(tmp_path / "studies.db")
    with open_storage(store) as storage:
        storage.import_study(a_study())
    for name, said in (("²", "must be a number"), ("9" * 30, "there is no study 9999")):
        with pytest.raises(InputError, match=said):
            find_study(name, store)
    (tmp_path / "other.json").write_text("{}")
    with pytest.raises(InputError, match=r"other\.json: this is no Study: it names no schema"):
        find_study(str(tmp_path / "other.json"), store)


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_an_output_that_lacks_signs_gets_others(encoding: str, tmp_path: Path) -> None:
    file = write_json(a_study(), tmp_path / "study.json")
    done = subprocess.run(
        [sys.executable, "-m", "torchwise.cli", "report", str(file)],
        capture_output=True,
        check=False,
        env={**os.environ, "PYTHONIOENCODING": encoding},
    )
    assert done.returncode == 0, done.stderr
    assert b"torchwise report" in done.stdout, "the end of it"
    assert b"?" in done.stdout


@pytest.mark.parametrize("width", range(35, 90))
def test_a_folded_command_fits_and_reads_back_as_one(width: int) -> None:
    command = "torchwise tune models.py:make --device cpu --effort quick --calls 1000000 --plan '{\"a\": 1}' --fresh"
    lines = wrap_command(command, width)
    assert max(map(len, lines)) <= width
    assert all(line.endswith(BREAK) for line in lines[:-1])
    assert shlex.split("\n".join(lines).replace("\\\n", "")) == shlex.split(command), "as a shell reads it"


def test_every_trial_can_be_repeated() -> None:
    for trial in some_trials():
        assert Plan.from_json(options(shlex.split(reproduce(a_study(), trial.plan)))["--plan"]) == trial.plan


def run_snippet(snippet: str, plan: Plan) -> tuple[str, dict[str, Any]]:
    """Run a snippet with a stand-in for torchwise. Return the function it called last, and with which keywords."""
    calls: list[tuple[str, dict[str, Any]]] = []

    class StandIn:
        Plan = Plan

        @staticmethod
        def tune(model: object, args: object, **given: Any) -> None:
            calls.append(("tune", given))

    lines = [line for line in snippet.splitlines() if line != "import torchwise"]
    assert "import torchwise" in snippet.splitlines()
    code = compile(ast.parse("\n".join(lines)), "snippet", "exec")
    exec(code, {"torchwise": StandIn, "model": None, "args": ()})
    return calls[-1]
