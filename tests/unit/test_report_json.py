"""The JSON of a study can be read back, and a file is whole or untouched."""

from __future__ import annotations

import json
import math
import os
import stat
from dataclasses import replace
from pathlib import Path

import pytest

from builders import a_failure, a_measurement, a_plan, a_study, a_trial
from torchwise.errors import StorageError
from torchwise.records import Duel, FailureKind, Study, StudyState, files
from torchwise.records.files import write_atomically, write_json
from torchwise.records.study import study_from_dict


@pytest.mark.parametrize(
    "study",
    [
        a_study(),
        a_study(decided=-1),
        a_study(decided=None, state=StudyState.INTERRUPTED),
        a_study([], decided=None),
        a_study([a_failure(kind, number) for number, kind in enumerate(FailureKind)], decided=-1),
        a_study([a_trial(measurement=a_measurement(1.5, 1))]),
        a_study([a_trial(), a_trial(1, a_plan(threads=1), duel=Duel(a_plan(), a_measurement(1.1), seconds=9.0))]),
        a_study([a_trial(duel=Duel(a_plan(threads=1), failure=a_failure().failure))]),
    ],
)
def test_what_was_written_is_read_back_the_same(study: Study, tmp_path: Path) -> None:
    path = write_json(study, tmp_path / "study.json")
    assert study_from_dict(json.loads(path.read_text(encoding="utf-8"))) == study


def test_the_schema_and_the_derived_figures_are_in_it(tmp_path: Path) -> None:
    data = json.loads(write_json(a_study(), tmp_path / "study.json").read_text())
    assert data["schema"] == "torchwise.study/1"
    assert data["trials"][3]["speedup"]["mid"] == pytest.approx(1.71, abs=0.02)
    assert data["trials"][5]["verdict"]["outcome"] == "fail"
    assert data["decision"]["plan"]["memory_format"] == "channels_last"
    dueled = a_study([a_trial(duel=Duel(a_plan(threads=1), a_measurement(1.1)))])
    duel = json.loads(write_json(dueled, tmp_path / "duel.json").read_text())["trials"][0]["duel"]
    assert duel["rival"]["threads"] == 1
    assert duel["speedup"]["mid"] == pytest.approx(1.1, abs=0.02)


def test_it_is_json_even_where_a_float_is_not_finite(tmp_path: Path) -> None:
    study = a_study([a_trial(measurement=a_measurement(candidate_s=(math.inf, 1.0), baseline_s=(math.nan, 1.0)))])
    text = write_json(study, tmp_path / "study.json").read_text()
    json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_atomically("old", tmp_path / "file")

    def raise_disk_full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files.os, "fsync", raise_disk_full)
    with pytest.raises(StorageError, match=r"file cannot be written: No space left on device"):
        write_atomically("new", path)
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["file"]


def test_a_write_replaces_and_leaves_nothing_beside(tmp_path: Path) -> None:
    for text in ("one", "two"):
        write_atomically(text, tmp_path / "file")
    assert (tmp_path / "file").read_text() == "two"
    assert os.listdir(tmp_path) == ["file"]


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "file")
    write_atomically("text", tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "file").read_text() == "text"


def test_a_pipe_is_written_to_and_not_replaced(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        write_atomically("text", pipe)
        assert os.read(reader, 100) == b"text"
    finally:
        os.close(reader)
    assert stat.S_ISFIFO(pipe.stat().st_mode)


@pytest.mark.parametrize("name", ["", "missing/file", "present/file"])
def test_a_path_that_cannot_be_written_is_named(name: str, tmp_path: Path) -> None:
    (tmp_path / "present").write_text("a file, and no folder")
    with pytest.raises(StorageError, match="cannot be written"):
        write_atomically("text", tmp_path / name)


def test_what_utf8_cannot_hold_does_not_stop_a_write(tmp_path: Path) -> None:
    assert write_atomically("a\udcffb", tmp_path / "file").read_text() == "a?b"


def test_writing_changes_no_record(tmp_path: Path) -> None:
    study = a_study()
    before = replace(study)
    write_json(study, tmp_path / "study.json")
    assert study == before
