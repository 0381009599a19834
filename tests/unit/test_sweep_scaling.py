"""The benchmark of sweeps: ratio of times, and whether two sweeps decided alike, from figures alone."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest

FOUND = runpy.run_path(str(Path(__file__).parents[2] / "benchmarks" / "sweep_scaling.py"))
agreement, report, main, MANIFEST = (FOUND[name] for name in ("agreement", "report", "main", "MANIFEST"))
INDUCTOR, CAPTURE = {"backend": "inductor"}, {"capture": "call"}


def study(plan: dict[str, str] | None, seconds: float = 10.0, **proven: tuple[float, float]) -> dict[str, Any]:
    plans = {"inductor": INDUCTOR, "capture": CAPTURE}
    found = {
        json.dumps(plans[name], sort_keys=True): {"low": low, "mid": (low + high) / 2, "high": high}
        for name, (low, high) in proven.items()
    }
    speedup = found.get(json.dumps(plan, sort_keys=True))
    return {"target": "zoo:x", "seconds": seconds, "plan": plan, "speedup": speedup, "proven": found}


FAST = study(INDUCTOR, inductor=(1.9, 2.1), capture=(1.4, 1.6))


@pytest.mark.parametrize(
    ("other", "word"),
    [
        (study(INDUCTOR, inductor=(1.8, 2.2)), "same"),
        (study(CAPTURE, inductor=(1.0, 1.2), capture=(1.4, 1.6)), "different"),
        (study({}, inductor=(1.9, 2.1)), "different"),
        (study(None), "undecided"),
    ],
)
def test_two_decisions_are_told_apart_where_the_measurements_do(other: dict[str, Any], word: str) -> None:
    assert agreement(FAST, other) == word


def test_plans_that_neither_sweep_tells_apart_are_tied() -> None:
    one = study(INDUCTOR, inductor=(1.4, 1.6), capture=(1.45, 1.55))
    assert agreement(one, study(CAPTURE, inductor=(1.3, 1.5), capture=(1.4, 1.6))) == "tied"


@pytest.mark.parametrize(("low", "word"), [(1.01, "tied"), (1.03, "different")])
def test_a_lead_that_the_decision_itself_takes_for_a_tie_is_one(low: float, word: str) -> None:
    assert agreement(study({}, capture=(low, 1.06)), study(CAPTURE, capture=(low, 1.06))) == word


def test_the_ratio_is_of_the_wall_times() -> None:
    several = {"seconds": 30.0, "studies": [FAST, {**FAST, "seconds": 12.0}]}
    one = {"seconds": 100.0, "studies": [FAST, FAST]}
    told = report(several, one, 4)
    assert "2 studies: 100 s on one device, 30 s on 4: 3.33 times as fast." in told
    assert "Decisions: 2 the same, 0 tied, 0 different." in told
    assert told.count("inductor, 2.00 [1.90, 2.10]") == 4


def test_the_manifest_has_twelve_studies() -> None:
    from torchwise.study.cluster import read_manifest

    tasks = read_manifest(MANIFEST).with_device("cpu").tasks
    assert len(tasks) == 12
    for task in tasks:
        task.request()


def swept(monkeypatch: pytest.MonkeyPatch, result: Path, *options: str) -> None:
    runs = iter(range(9))
    monkeypatch.setitem(main.__globals__, "_swept", lambda *_: {"seconds": 10.0 + next(runs), "studies": [FAST]})
    monkeypatch.setattr(sys, "argv", ["sweep_scaling.py", str(result), *options])
    main()


def test_the_two_sweeps_may_be_run_one_after_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    result = tmp_path / "sweep.json"
    swept(monkeypatch, result, "--devices", "2", "--now", "2")
    assert list(json.loads(result.read_text())["runs"]) == ["2"]
    assert "times as fast" not in capsys.readouterr().out
    swept(monkeypatch, result, "--devices", "2", "--now", "1")
    assert list(json.loads(result.read_text())["runs"]) == ["2", "1"]
    assert "10 s on 2: 1.00 times as fast" in capsys.readouterr().out
    swept(monkeypatch, result, "--devices", "4", "--now", "4")
    assert "10 s on 4" in capsys.readouterr().out


@pytest.mark.parametrize("options", [("--devices", "1"), ("--devices", "2", "--now", "3")])
def test_what_compares_nothing_is_refused(
    options: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        swept(monkeypatch, tmp_path / "sweep.json", *options)
    assert "one device is compared with several" in capsys.readouterr().err


def test_a_result_of_another_manifest_is_not_gone_on_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    result, manifest = tmp_path / "sweep.json", tmp_path / "other.toml"
    manifest.write_text("[[studies]]\n")
    swept(monkeypatch, result, "--devices", "2", "--now", "2")
    with pytest.raises(SystemExit):
        swept(monkeypatch, result, "--devices", "2", "--manifest", str(manifest))
    assert "started with another manifest" in capsys.readouterr().err
