"""`torchwise plans pin`, `approve`, `reject`, `withdraw`, `approvals`: their records, output and refusals."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from builders import HERE, a_study
from torchwise.cli import app
from torchwise.cli.plans import plans
from torchwise.errors import InputError, StorageError
from torchwise.plan import EAGER
from torchwise.records import Standing, StudyState
from torchwise.records.files import write_json
from torchwise.store import open_storage

STUDY = a_study()
DECIDED, PROVEN, WRONG = STUDY.trials[3].plan, STUDY.trials[0].plan, STUDY.trials[5].plan
SCOPE = f"zoo:vision.resnet50, inference, on {HERE.hardware}"


@pytest.fixture
def store(tmp_path: Path) -> str:
    url = str(tmp_path / "store.db")
    with open_storage(url) as storage:
        storage.import_study(STUDY)
    return url


def run(*words: str) -> str:
    done = CliRunner().invoke(plans, list(words))
    if done.exception and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == 0, done.output
    return done.output


def read_approvals(store: str) -> dict[str, tuple[str, str, str]]:
    with open_storage(store) as storage:
        return {str(r.plan): (r.standing.value, r.by, r.reason) for r in storage.approvals("zoo:vision.resnet50")}


@pytest.mark.parametrize(("command", "standing"), [("pin", "pinned"), ("approve", "approved"), ("reject", "rejected")])
def test_without_a_name_the_decided_plan_is_ruled_on_by_who_is_logged_in(
    store: str, command: str, standing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOGNAME", "ann")
    said = run(command, "latest", "--store", store)
    assert said == f"{standing.capitalize()}: {DECIDED} ({DECIDED.id}) for {SCOPE}.\n"
    assert read_approvals(store) == {str(DECIDED): (standing, "ann", "")}


def test_a_plan_is_named_by_its_id_or_the_beginning_of_one(store: str) -> None:
    run("pin", "1", PROVEN.id[:6], "--by", "bob", "--reason", "it is calm", "--store", store)
    run("reject", "1", WRONG.id, "--by", "bob", "--store", store)
    run("approve", "1", "eager", "--by", "bob", "--store", store)
    assert read_approvals(store) == {
        str(PROVEN): ("pinned", "bob", "it is calm"),
        str(WRONG): ("rejected", "bob", ""),
        "eager": ("approved", "bob", ""),
    }


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("pin", "1", "nothing"), rf"plan is 'nothing', but must be an id, .* of study 1:(.|\n)*  {WRONG.id}  "),
        (("pin", "1", ""), r"plan is '', but must be an id"),
        (("pin", "1", WRONG.id), r"study 1 has not verified .*, so it can be rejected only"),
        (("approve", "1", WRONG.id), r"study 1 has not verified"),
        (("reject", "1", "eager"), r"eager cannot be rejected: .*; pin another plan instead"),
        (("pin", "1", "--by", " "), r"by is empty, but an approval needs the name"),
        (("pin", "soon"), r"study is 'soon', but must be a number"),
    ],
)
def test_what_cannot_be_ruled_on_is_refused_with_a_way_out(store: str, words: tuple[str, ...], said: str) -> None:
    with pytest.raises(InputError, match=said):
        run(*words, "--store", store)
    assert read_approvals(store) == {}


def test_a_beginning_of_several_ids_is_refused_with_those(store: str) -> None:
    ids = [trial.plan.id for trial in STUDY.trials] + [EAGER.id]
    shared = next(first for first in "0123456789abcdef" if sum(i.startswith(first) for i in ids) > 1)
    with pytest.raises(
        InputError, match=rf"plan is '{shared}', but must be the beginning of exactly one id:\n  {shared}"
    ):
        run("pin", "1", shared, "--store", store)


def test_an_undecided_study_has_no_plan_to_rule_on_unnamed(store: str, tmp_path: Path) -> None:
    write_json(a_study(decided=None), tmp_path / "study.json")
    with pytest.raises(InputError, match="is running and has no decision yet, so a plan must be named"):
        run("pin", str(tmp_path / "study.json"), "--store", store)


def test_a_system_without_login_names_is_told_of_the_option(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown() -> str:
        raise KeyError("getpwuid(): uid not found: 4711")

    monkeypatch.setattr("getpass.getuser", unknown)
    with pytest.raises(InputError, match="give your name with --by NAME"):
        run("pin", "1", "--store", store)


def test_rulings_are_listed_and_withdrawn(store: str) -> None:
    assert run("approvals", "--store", store).startswith("There are no approvals: torchwise plans pin")
    run("pin", "1", "--by", "bob", "--reason", "it is calm", "--store", store)
    run("reject", "1", PROVEN.id, "--by", "ann", "--store", store)
    scope, newer, older = run("approvals", "--target", "zoo:vision.resnet50", "--store", store).splitlines()
    assert scope == f"{SCOPE}:"
    assert newer.startswith(f"  rejected {PROVEN.id} {PROVEN}, by ann, 20")
    assert older.startswith(f"  pinned {DECIDED.id} {DECIDED}, by bob, 20")
    assert older.endswith(" UTC: it is calm")
    assert run("approvals", "--target", "app:none", "--store", store).startswith("There are no approvals")
    assert run("withdraw", "1", "--store", store) == f"Withdrawn: {DECIDED} is no longer pinned for {SCOPE}.\n"
    assert read_approvals(store) == {str(PROVEN): ("rejected", "ann", "")}


def test_the_former_name_of_the_list_still_works_and_says_its_name(store: str) -> None:
    run("pin", "1", "--by", "bob", "--store", store)
    done = CliRunner().invoke(app, ["plans", "rulings", "--store", store])
    assert done.exit_code == 0
    assert done.stdout == run("approvals", "--store", store)
    assert done.stderr.count("torchwise plans rulings is called torchwise plans approvals now") == 1
    assert "rulings" not in CliRunner().invoke(app, ["plans", "--help"]).output


def test_what_was_not_ruled_is_no_error_to_withdraw(store: str) -> None:
    said = f"{DECIDED} ({DECIDED.id}) has no approval: torchwise plans approvals lists those that exist.\n"
    assert run("withdraw", "1", "--store", store) == said


def test_what_another_study_was_ruled_on_can_be_withdrawn_by_any_of_the_target(store: str) -> None:
    run("reject", "1", PROVEN.id, "--by", "ann", "--store", store)
    with open_storage(store) as storage:
        storage.delete_study(1)
        storage.import_study(a_study([STUDY.trials[3]]))
    run("withdraw", "latest", PROVEN.id[:8], "--store", store)
    assert read_approvals(store) == {}


def test_what_was_ruled_for_a_target_that_shares_the_study_is_withdrawn_after_the_study_s_own(store: str) -> None:
    run("pin", "1", "eager", "--by", "bob", "--store", store)
    assert STUDY.decision is not None
    other = replace(STUDY.decision, workload=replace(STUDY.workload, target="app:other"))
    with open_storage(store) as storage:
        asked = (other.workload, "quick")
        storage.store_outcome(1, state=StudyState.DECIDED, decision=other, excluded=[], seconds=0, asked=asked)
    run("pin", "1", "eager", "--by", "bob", "--store", store)
    for scope in (SCOPE.replace("zoo:vision.resnet50", "app:other"), SCOPE):
        assert run("withdraw", "1", "eager", "--store", store) == f"Withdrawn: eager is no longer pinned for {scope}.\n"
    assert run("withdraw", "1", "eager", "--store", store).startswith("eager (")


def test_what_was_ruled_for_another_target_of_the_model_is_withdrawn_whatever_its_study_allowed(store: str) -> None:
    assert STUDY.decision is not None
    workload = replace(STUDY.workload, target="app:other")
    other = replace(
        STUDY, allow="lower-precision", workload=workload, decision=replace(STUDY.decision, workload=workload)
    )
    with open_storage(store) as storage:
        storage.import_study(other)
    run("pin", "2", "eager", "--by", "bob", "--store", store)
    scope = SCOPE.replace("zoo:vision.resnet50", "app:other")
    assert run("withdraw", "1", "eager", "--store", store) == f"Withdrawn: eager is no longer pinned for {scope}.\n"


def test_a_store_that_cannot_be_written_is_an_error(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torchwise.store.engines.is_writable", lambda _: False)
    with pytest.raises(StorageError, match="is read-only, but this command writes"):
        run("pin", "1", "--store", store)
    assert Standing.PINNED.value not in read_approvals(store).values()
