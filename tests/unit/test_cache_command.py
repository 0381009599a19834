"""`torchwise cache`: its output, and the requests that it refuses."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

import torchwise
from builders import a_study
from store_samples import a_decision as stored_decision
from torchwise import artifact, environment
from torchwise.artifact import package
from torchwise.artifact.package import Info, Manifest
from torchwise.cli.cache import _describe_artifact, cache
from torchwise.errors import InputError
from torchwise.plan import Plan
from torchwise.records import Decision, Interval
from torchwise.records.files import write_json


def a_decision() -> Decision:
    return replace(stored_decision(), break_even_calls=Interval(90.0, 100.0, 110.0))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    manifest = Manifest("0.0.1", environment.detect("cpu"), {}, {}, 20.0, 1.25, 0)
    _, data = package.pack(manifest, a_decision(), {"inductor/a.so": b"code"})
    package.put(tmp_path / "model.tw", data)
    return tmp_path / "model.tw"


def ran(*words: object) -> str:
    done = CliRunner().invoke(cache, [*map(str, words)])
    if done.exception is not None:
        raise done.exception
    return done.stdout


def test_info_says_what_is_in_it_and_whether_it_is_for_here(file: Path) -> None:
    said = ran("info", file)
    assert "1 files of compiled code" in said
    assert "take 1.25 s with it, and 20.00 s without" in said
    assert "For this machine and software: no, torchwise: 0.0.1 there" in said
    assert artifact.info(file).sha256 in said


def test_info_as_json_holds_manifest_and_decision(file: Path, tmp_path: Path) -> None:
    ran("info", file, "--json", tmp_path / "info.json")
    found = json.loads((tmp_path / "info.json").read_text())
    assert found["manifest"]["torchwise"] == "0.0.1"
    assert found["decision"]["schema"] == "torchwise.decision/1"


def test_load_takes_no_code_out_without_trust(file: Path) -> None:
    with pytest.raises(InputError, match="--trust"):
        ran("load", file)


def test_load_hands_on_trust_and_hash(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, Any] = {}

    def load(path: Path, **options: Any) -> Any:
        given.update(options)
        return artifact.info(path).decision

    monkeypatch.setattr(artifact, "load", load)
    code = textwrap.dedent(ran("load", file, "--trust", "--sha256", "ab").partition("In the program:\n")[2])
    assert given == {"trust": True, "sha256": "ab"}
    monkeypatch.setattr(torchwise, "apply", lambda model, decision: (model, decision))
    given.clear()
    names: dict[str, Any] = {"model": "the program's own"}
    exec(code, names)
    assert names["fast"] == ("the program's own", a_decision())
    assert given == {"trust": True}


class Found:
    def __init__(self, target: str, decision: Any) -> None:
        self.workload = type("Spec", (), {"target": target})
        self.decision = decision
        self.state = "running"


def patch_find_study(monkeypatch: pytest.MonkeyPatch, target: str, decision: Any) -> None:
    from torchwise.cli import common

    monkeypatch.setattr(common, "find_study", lambda name, store: Found(target, decision))


def test_save_compiles_what_the_study_decided_for(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def save(path: Path, target: str, decision: Any) -> Info:
        assert (target, decision) == ("zoo:a.b", a_decision())
        return artifact.info(file)

    patch_find_study(monkeypatch, "zoo:a.b", a_decision())
    monkeypatch.setattr(artifact, "save", save)
    said = ran("save", "latest", file)
    assert f"Wrote {file} for zoo:a.b: plan {a_decision().plan}, " in said
    assert f"SHA-256 {artifact.info(file).sha256}" in said


def test_save_refuses_a_live_model_and_an_open_study(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    patch_find_study(monkeypatch, "live:Net", a_decision())
    with pytest.raises(InputError, match=r"call torchwise\.artifact\.save in that program"):
        ran("save", "1", file)
    patch_find_study(monkeypatch, "zoo:a.b", None)
    with pytest.raises(InputError, match="has no decision yet"):
        ran("save", "1", file)
    patch_find_study(monkeypatch, "zoo:a.b", a_decision())
    with pytest.raises(InputError, match="there is no folder"):
        ran("save", "1", tmp_path / "none" / "x.tw")


def test_what_the_study_says_is_refused_without_loading_torch(tmp_path: Path) -> None:
    study = a_study()
    write_json(replace(study, workload=replace(study.workload, target="live:Net")), tmp_path / "study.json")
    code = (
        "import sys; sys.modules['torch'] = None; sys.argv = ['torchwise', 'cache', 'save', *sys.argv[1:]]; "
        "from torchwise import cli; cli.main()"
    )
    words = [sys.executable, "-c", code, str(tmp_path / "study.json"), str(tmp_path / "x.tw")]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (done.returncode, "call torchwise.artifact.save in that program" in done.stderr) == (2, True), done.stderr


@pytest.mark.parametrize(
    ("plan", "said"),
    [
        (Plan(capture="call"), ", which compiles nothing."),
        (Plan(transforms=("batched_loop",)), ", and no code: functions are rewritten in each process, "),
        (Plan(backend="aot-inductor"), ", and no code: aot-inductor compiles in each process, "),
    ],
)
def test_an_artifact_without_code_says_what_each_process_does(plan: Plan, said: str) -> None:
    manifest = SimpleNamespace(members={"decision": 1}, warm_s=None, cold_s=1.5)
    info = SimpleNamespace(manifest=manifest, size=10, decision=SimpleNamespace(plan=plan))
    assert _describe_artifact(info).startswith(f"plan {plan}{said}")
