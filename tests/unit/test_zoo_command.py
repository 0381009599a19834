"""`torchwise zoo`: every workload with its subject and its sizes, at no cost, and near misses for a wrong name."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from torchwise import cli
from torchwise.cli.zoo import notes, parameters
from torchwise.zoo import Entry, list_workloads

SIZES = {name: {"batch": number, "width": 8} for number, name in enumerate(("small", "medium", "large", "extreme"), 2)}


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the table room, so that no line of it is folded."""
    monkeypatch.setenv("COLUMNS", "400")


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int | str | None:
    monkeypatch.setattr(sys, "argv", ["torchwise", "zoo", *arguments])
    with pytest.raises(SystemExit) as left:
        cli.main()
    return left.value.code


def names_in(shown: str) -> list[str]:
    known = {entry.name for entry in list_workloads()}
    return [word for line in shown.splitlines() for word in line.split()[:1] if word in known]


def test_everything_is_listed_with_what_it_shows_and_its_parameters(monkeypatch, capsys) -> None:
    assert run(monkeypatch) == 0
    shown = capsys.readouterr().out
    assert names_in(shown) == [entry.name for entry in list_workloads()]
    for entry in list_workloads():
        assert entry.summary in shown
        assert parameters(entry) in shown
    assert "small, medium (the default), large, extreme" in shown


def test_a_family_is_listed_alone(monkeypatch, capsys) -> None:
    for family in dict.fromkeys(entry.family for entry in list_workloads()):
        assert run(monkeypatch, family) == 0
        assert names_in(capsys.readouterr().out) == [e.name for e in list_workloads() if e.family == family]


def test_one_is_shown_with_the_parameters_of_each_size(monkeypatch, capsys) -> None:
    assert run(monkeypatch, "tutorial.many_small_ops") == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["size", "layers", "width", "batch"] in lines
    assert ["medium", "20", "256", "8"] in lines
    assert ["extreme", "80", "1024", "32"] in lines


@pytest.mark.parametrize(
    ("name", "target", "trains"),
    [
        ("tutorial.break_item", "zoo:tutorial.break_item@medium", False),
        ("tutorial.break_item@large", "zoo:tutorial.break_item@large", False),
        ("zoo:tutorial.six_layer_transformer@small", "zoo:tutorial.six_layer_transformer@small", True),
    ],
)
def test_the_command_to_tune_it_is_given(name: str, target: str, trains: bool, monkeypatch, capsys) -> None:
    assert run(monkeypatch, name) == 0
    shown = [line.strip() for line in capsys.readouterr().out.splitlines()]
    assert f"torchwise tune {target}" in shown
    assert (f"torchwise tune {target} --mode training" in shown) is trains


def test_a_range_is_written_for_what_changes_and_a_note_for_what_is_special() -> None:
    plain = Entry("family.operation", "nothing", SIZES)
    assert parameters(plain) == "batch 2–5, width 8"
    assert notes(plain) == []
    assert notes(Entry("a.b", "c", SIZES, trains=True, stochastic=True)) == ["random by design", "also for training"]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("tutoral", "the zoo has no workload 'tutoral'; did you mean tutorial or"),
        ("fusion_demo", "did you mean tutorial.fusion_demo?"),
        ("tutorial.fusion", "zoo family 'tutorial' has no operation 'fusion'; did you mean fusion_demo?"),
        ("tutorial.branch@smal", "size is 'smal'; did you mean small?"),
        ("tutorial@small", "'tutorial' is a whole zoo family; choose one of tutorial.fusion_demo"),
    ],
)
def test_a_near_miss_is_answered_with_what_is_meant_and_2(name: str, message: str, monkeypatch, capsys) -> None:
    assert run(monkeypatch, name) == 2
    shown = capsys.readouterr()
    assert message in shown.err
    assert shown.out == ""


def test_json_holds_all_of_what_is_shown(tmp_path: Path, monkeypatch, capsys) -> None:
    file = tmp_path / "zoo.json"
    assert run(monkeypatch, "--json", str(file)) == 0
    written = json.loads(file.read_text())
    assert written["schema"] == "torchwise.zoo/1"
    for found, entry in zip(written["workloads"], list_workloads(), strict=True):
        assert found.pop("family") == entry.family
        assert Entry(**found) == entry
    assert run(monkeypatch, "tutorial.branch", "--json", str(file)) == 0
    assert [found["name"] for found in json.loads(file.read_text())["workloads"]] == ["tutorial.branch"]


def test_a_file_that_cannot_be_written_is_refused_first(tmp_path: Path, monkeypatch, capsys) -> None:
    assert run(monkeypatch, "--json", str(tmp_path / "nowhere" / "zoo.json")) == 2
    shown = capsys.readouterr()
    assert "there is no folder" in shown.err
    assert shown.out == ""


def test_the_page_on_the_zoo_names_every_family_and_field() -> None:
    page = (Path(__file__).parents[2] / "docs" / "zoo.md").read_text()
    for family in {entry.family for entry in list_workloads()}:
        assert f"\n| `{family}` | " in page
    for field in dataclasses.fields(Entry):
        assert f"`{field.name}`" in page


MAX_MODULES = 400
"""Modules that the command may import: some 350 take 0.2 s."""


def test_it_loads_no_torch_and_takes_little() -> None:
    environment = {**os.environ, "PYTHONPROFILEIMPORTTIME": "1"}
    command = [sys.executable, "-m", "torchwise.cli", "zoo"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    loaded = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if line.startswith("import time:")}
    assert "torchwise.zoo.catalogue" in loaded
    assert [name for name in ("torch", "scipy", "numpy", "matplotlib", "sqlalchemy") if name in loaded] == []
    assert len(loaded) < MAX_MODULES
