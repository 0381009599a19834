"""Every command of the documentation is run as it stands, or the command line itself reads its arguments."""

from __future__ import annotations

import json
import os
import runpy
import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import typer
from doc_pages import PAGES, ROOT, blocks
from typer.testing import CliRunner

from torchwise.cli import app
from torchwise.diagnose.trace import Trace
from torchwise.records.answer import EXIT_INCONCLUSIVE
from torchwise.records.compile_events import Break
from torchwise.records.explanation import SourceLocation

SLOW_MODEL = ROOT / "examples" / "slow_model.py"
ONLY_READ = {
    "pip install": "needs a network",
    "scripts/": "installs what it needs; tested by tests/unit/test_scripts.py",
    "ray start": "stays, for whoever comes next; tests/unit/test_cluster_ray.py starts a cluster of its own",
    "sudo": "is the administrator's",
    "python service.py": "is the reader's own program",
    "TORCHWISE_DEBUG=": "searches for minutes; tested by tests/unit/test_debug_logs.py",
    "TORCHWISE_PLUGINS=": "searches for minutes; tested by tests/unit/test_plug_ins.py",
    "torchwise check": "needs a lock file; run by tests/unit/test_lock_command.py",
    "torchwise lock": "needs a decided target; run by tests/unit/test_lock_command.py",
    "torchwise analyze": "compiles and times for a minute; run by tests/unit/test_analyze_command.py",
    "torchwise bench": "compiles and times for minutes; run by tests/unit/test_bench_command.py",
    "torchwise bisect": "looks for minutes; run by tests/unit/test_bisect.py",
    "torchwise cache": "compiles; run by tests/unit/test_cache_command.py",
    "torchwise compare": "needs two benchmarks; run by tests/unit/test_bench_compare.py",
    "torchwise dashboard": "stays until Ctrl-C; run by tests/browser/test_dashboard.py",
    "torchwise doctor": "compiles for ten seconds; run by tests/unit/test_doctor.py",
    "torchwise explain": "compiles for half a minute; .ci/slow runs that of the tutorial",
    "torchwise run --": "searches for minutes; run by tests/unit/test_run_command.py",
    "torchwise store": "needs a server; run by test_docs_ways.py",
    "torchwise sweep": "searches for minutes; run with three plans by tests/unit/test_cluster_ray.py",
    "torchwise verify": "needs the reader's two files; run by tests/unit/test_verify_command.py",
    "torchwise tune": "searches for minutes; run with one plan below",
}
"""How a command begins that is not run, and why. Its arguments must be valid all the same."""

COMMANDS = [
    (f"{page}:{line}", text.removeprefix("$ "))
    for page in PAGES
    for line, block in blocks(page, "console")
    for text in block.splitlines()
    if text.startswith("$ ")
]


def why_only_read(text: str) -> str | None:
    return next((why for begins, why in ONLY_READ.items() if text.startswith(begins)), None)


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A store with one study of the tutorial's model, for one plan that compiles nothing."""
    folder = str(tmp_path_factory.mktemp("store"))
    own = {"TORCHWISE_STORE": f"{folder}/store.db", "COLUMNS": "110"}
    found = {**os.environ, **own}
    plan = '{"schema":"torchwise.plan/1","threads":1}'
    run(["torchwise", "tune", "examples/slow_model.py:make", "--effort", "quick", "--plan", plan], found, ROOT)
    return found


def run(words: list[str], environment: dict[str, str], folder: Path) -> str:
    """Run a command with the Torchwise under test, and return its output.

    Torchwise's own commands run in this process, where PyTorch is imported already, unless they run a program.
    """
    if words[0] == "torchwise" and words[1] != "run":
        code, out, error = run_here(words[1:], environment, folder)
    else:
        command = [str(Path(sys.executable).with_name("torchwise")), *words[1:]] if words[0] == "torchwise" else words
        done = subprocess.run(
            command, env=environment, cwd=folder, capture_output=True, text=True, timeout=240, check=False
        )
        code, out, error = done.returncode, done.stdout, done.stderr
    # A busy machine may leave a study inconclusive, and then the output must say so.
    said_so = code == EXIT_INCONCLUSIVE and "inconclusive" in out.lower()
    assert code == 0 or said_so, f"{shlex.join(words)}\n{out}\n{error}"
    return out


def run_here(words: list[str], environment: dict[str, str], folder: Path) -> tuple[int, str, str]:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for name, value in environment.items():
            patch.setenv(name, value)
        done = CliRunner().invoke(app, words, catch_exceptions=True)
    return done.exit_code, done.stdout, f"{done.stderr}{done.exception or ''}"


def leaves(command: Any) -> Iterator[Any]:
    """Yield a command, or all within a group."""
    for inner in getattr(command, "commands", {}).values():
        yield from leaves(inner)
    if not hasattr(command, "commands"):
        yield command


def can_parse(words: list[str]) -> bool:
    """Have the command line read the words of a command, and do nothing."""
    command = typer.main.get_command(app)
    for leaf in leaves(command):
        leaf.callback = lambda **_options: None
    with pytest.raises(SystemExit) as ended:
        command.main(words, prog_name="torchwise")
    return ended.value.code == 0


@pytest.mark.parametrize(("where", "text"), [pair for pair in COMMANDS if pair[1].startswith("torchwise ")])
def test_the_command_line_understands(where: str, text: str) -> None:
    assert can_parse(shlex.split(text, comments=True)[1:])


def test_what_the_command_line_does_not_know_is_found() -> None:
    assert not can_parse(["tune", "zoo:tutorial.fusion_demo", "--speed", "high"])
    assert not can_parse(["plans", "lost"])


@pytest.mark.slow
@pytest.mark.parametrize(("where", "text"), [pair for pair in COMMANDS if why_only_read(pair[1]) is None])
def test_the_command_runs(where: str, text: str, environment: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    assert run(shlex.split(text, comments=True), environment, tmp_path)


def test_nothing_is_excused_in_vain() -> None:
    texts = [text for _where, text in COMMANDS]
    assert [begins for begins in ONLY_READ if not any(text.startswith(begins) for text in texts)] == []


def test_the_tutorial_names_the_line_that_breaks(monkeypatch: pytest.MonkeyPatch) -> None:
    model, args = runpy.run_path(str(SLOW_MODEL))["make"]()
    torch._dynamo.reset()
    with Trace(artifacts=["dynamo_output_graph"]) as trace, torch.no_grad():
        torch.compile(model, backend="eager")(*args)
    check_line_of_break(trace.breaks)


@pytest.mark.nightly
def test_the_tutorials_command_names_the_line(environment: dict[str, str], tmp_path: Path) -> None:
    told = tmp_path / "explained.json"
    run(["torchwise", "explain", "examples/slow_model.py:make", "--no-fixes", "--json", str(told)], environment, ROOT)
    breaks = [one for one in json.loads(told.read_text())["findings"] if one["kind"] == "graph break"]
    check_line_of_break([SourceLocation(**place) for one in breaks for place in one["places"]])


def check_line_of_break(places: Sequence[SourceLocation | Break]) -> None:
    source = SLOW_MODEL.read_text().splitlines()
    assert [source[place.line - 1].strip() for place in places] == ["temperature = self.temperature.item()"]
    assert f"slow_model.py:{places[0].line}, in forward" in (ROOT / "docs" / "tutorial.md").read_text()
