"""A recording says how a search would handle the sizes of each module, and the search then does so."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from test_program import Searches
from test_run_command import NET, invoke, searches  # noqa: F401 - a fixture

from torchwise.runtime.program import CallRecorder, size_proposals, tuning
from torchwise.runtime.program import recorder as recorder_module
from torchwise.runtime.program.size_proposals import propose_sizes

pytestmark = pytest.mark.usefixtures("all_looked_at")


@pytest.fixture
def all_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have every call looked at, on a busy machine, too."""
    monkeypatch.setattr(recorder_module, "GRACE_S", 60.0)


FEW = "--tune looks for a plan for these; others then run as written"
ALL = "sizes vary: --tune looks for one plan for all sizes"
CASES: dict[str, tuple[list[int], str, list[str]]] = {
    "one": ([3] * 9, "", ["as-given"]),
    "few": ([3, 5, 3, 5, 7], f"3 sizes: {FEW}", ["as-given"]),
    "most": ([3, 4, 5, 6] * 50 + [9], "4 sizes of 5 seen are 99.5% of the calls", ["as-given", "varying"]),
    "many": (list(range(2, 20)), ALL, ["varying"]),
}
"""By name: the rows of each call, the note of the recording, and the sizes of each search that follows."""


def write(folder: Path, rows: list[int], other: str = "None", more: str = "pass") -> str:
    """Write a program that calls a module with some numbers of rows, and perhaps another one."""
    calls = f"with torch.no_grad():\n    for rows in {rows}:\n        net(torch.ones(rows, 4))\n        {more}"
    file = folder / "program.py"
    file.write_text(f"{NET}\nother = {other}\n{calls}\n")
    return str(file)


def unwrap(report: str) -> str:
    return " ".join(report.split())


@pytest.mark.parametrize("name", CASES)
def test_a_search_does_what_the_recording_proposes(
    name: str,
    tmp_path: Path,
    searches: Searches,  # noqa: F811
) -> None:
    rows, note, asked = CASES[name]
    file, page = write(tmp_path, rows), tmp_path / "page.html"
    report = invoke("--html", str(page), file)
    for text in (unwrap(report), unwrap(page.read_text())):
        assert note in text
        assert ("looks for" in text) is bool(note)
    invoke("--tune", "--store", str(tmp_path / "s.db"), file)
    assert [request.workload.sizes for request, _ in searches.asked] == asked
    if name == "few":
        assert len(searches.asked[0][1].examples) == 3


def test_more_calls_to_come_give_other_sizes_a_plan_as_the_note_says(
    tmp_path: Path,
    searches: Searches,  # noqa: F811
) -> None:
    file = write(tmp_path, [3, 5])
    assert "--calls or --sizes varying looks for a plan for these, too" in unwrap(invoke(file))
    for words, asked in ((["--calls", "1e6"], ["as-given", "varying"]), (["--sizes", "varying"], ["varying"])):
        searches.asked.clear()
        invoke("--tune", *words, "--store", str(tmp_path / "s.db"), file)
        assert [request.workload.sizes for request, _ in searches.asked] == asked


def test_modules_that_are_alike_are_proposed_one_plan_together(tmp_path: Path, searches: Searches) -> None:  # noqa: F811
    file = write(tmp_path, [3, 3], "Net().eval()", "other(torch.ones(rows + 2, 4))")
    report = unwrap(invoke(file))
    assert report.count(f"2 sizes: {FEW}") == 2
    invoke("--tune", "--store", str(tmp_path / "s.db"), file)
    assert [len(workload.examples) for _, workload in searches.asked] == [2]


def test_a_part_of_a_module_that_would_be_tuned_has_no_note(tmp_path: Path, searches: Searches) -> None:  # noqa: F811
    file = write(tmp_path, [3, 5], "net.linear", "other(torch.ones(rows, 4))")
    assert unwrap(invoke(file)).count(f"2 sizes: {FEW}") == 1
    invoke("--tune", "--store", str(tmp_path / "s.db"), file)
    assert len(searches.asked) == 1


def record(rows: list[int]) -> CallRecorder:
    net = torch.nn.Linear(4, 4).eval()
    with CallRecorder() as recorder, torch.no_grad():
        for count in rows:
            net(torch.ones(count, 4))
    return recorder


def test_a_module_that_is_gone_has_its_note_too() -> None:
    recorder = record([3, 5])
    assert recorder.calls[0].live is None
    (module,) = propose_sizes(recorder, recorder.to_record("x")).modules
    assert [note[:7] for note in module.notes] == ["2 sizes"]


def test_inputs_that_cannot_be_compared_cost_a_note_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("cannot be described")

    recorder = record([3, 5])
    recording = recorder.to_record("x")
    with monkeypatch.context() as patch:
        patch.setattr(size_proposals, "choose_mix", fail)
        assert propose_sizes(recorder, recording) == recording
    for kind in recorder.calls[0].kinds.values():
        kind.example = None
    assert propose_sizes(recorder, recording) == recording


def test_modules_that_take_too_little_time_to_be_tuned_have_no_note(monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = record([3, 5])
    monkeypatch.setattr(tuning, "MIN_SHARE", 1.1)
    assert not propose_sizes(recorder, recorder.to_record("x")).modules[0].notes
