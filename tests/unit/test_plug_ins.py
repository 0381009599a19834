"""Choices of a package and of a file, from the command line: found by every process, and verified as all others."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from torchwise.errors import InputError
from torchwise.plan import choice

ROOT = Path(__file__).parents[2]
MODEL = """
import torch

class Norm(torch.nn.Module):
    def forward(self, x):
        return x / x.abs().mean(-1, keepdim=True)

def make():
    return torch.nn.Sequential(Norm(), torch.nn.Linear(8, 8)).eval(), (torch.randn(4, 8),)
"""
CHOICES = """
from torchwise.plan import Choice, Numerics, register, register_kernel

def register_choices():
    register(Choice("backend", "ours", Numerics.EXACT, complexity=2, summary="it interprets graphs", effort="quick",
                    compile_factor=0.1, realized_by="acme_code:compile"))
    register_kernel("acme_norm", "model.py:Norm", "acme_code:norm", devices=("cpu",))
    register_kernel("acme_wrong", "model.py:Norm", "acme_code:wrong", devices=("cpu",))
"""
CODE = """
import torch

def interpret(graph, inputs):
    return lambda *args: torch.fx.Interpreter(graph).run(*args)  # one for each call

def compile(call, plan):
    return torch.compile(call, backend=interpret)

@torch.library.custom_op("acme::norm", mutates_args=())
def op(x: torch.Tensor) -> torch.Tensor:
    return x / x.abs().mean(-1, keepdim=True)

def norm(module, x):
    return op(x)

def wrong(module, x):
    return op(x) * 2
"""


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """Install a package into a folder, as pip would, next to a model."""
    (tmp_path / "model.py").write_text(MODEL)
    site = tmp_path / "site"
    about = site / "acme-1.0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: acme\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[torchwise.choices]\nacme = acme:register_choices\n")
    (site / "acme.py").write_text(CHOICES)
    (site / "acme_code.py").write_text(CODE)
    return site


def run(
    folder: Path, *words: str, program: str = "", path: str = "", **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run the command line in a process of its own, in that folder."""
    python_path = os.pathsep.join(filter(None, [path, str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]))
    environment = {**os.environ, "PYTHONPATH": python_path, "TORCHWISE_STORE": f"{folder}/store.db", **variables}
    command = [sys.executable, *([program] if program else ["-m", "torchwise"]), *words]
    return subprocess.run(
        command, env=environment, cwd=folder, capture_output=True, text=True, timeout=300, check=False
    )


def plan(**fields: object) -> str:
    return json.dumps({"schema": "torchwise.plan/1", **fields})


@pytest.mark.slow
@pytest.mark.nightly
def test_the_choices_of_a_package_are_tried_by_the_command_line(site: Path) -> None:
    plans = [plan(backend="ours"), plan(transforms=["acme_norm"]), plan(transforms=["acme_wrong"])]
    words = [word for one in plans for word in ("--plan", one)]
    done = run(
        site.parent,
        *("tune", "model.py:make", "--effort=quick", "--device=cpu", *words, "--json=study.json"),
        program=str(ROOT / "tests" / "brief.py"),
        path=str(site),
    )
    assert done.returncode in (0, 4), done.stderr  # whether one of them is faster is not the point
    trials = json.loads((site.parent / "study.json").read_text())["trials"]
    outcomes = {
        (*(name.partition("@")[0] for name in one["plan"]["transforms"]), one["plan"]["backend"]): {
            check["outcome"] for check in one["verdict"]["checks"]
        }
        for one in trials
    }
    assert outcomes["ours",] == outcomes["acme_norm", "eager"] == {"pass"}
    assert "fail" in outcomes["acme_wrong", "eager"], "a kernel is verified as every candidate is"


def test_a_name_that_nothing_registers_is_refused_with_both_ways_to_register_it(site: Path) -> None:
    done = run(site.parent, "tune", "model.py:make", "--plan", plan(backend="ours"))
    assert done.returncode == 2
    assert "backend has 'ours', but there are eager, aot-inductor, inductor" in done.stderr
    assert "an entry point of the group torchwise.choices, or in a file that TORCHWISE_PLUGINS names" in done.stderr


@pytest.mark.parametrize(
    ("named", "reads"),
    [
        ("acme:register_choices", True),
        ("choices.py", True),
        ("choices.py, model.py", True),
        ("acme", False),
        ("", False),
    ],
)
def test_a_file_or_function_that_the_variable_names_is_known_in_every_process(
    site: Path, named: str, reads: bool
) -> None:
    (site / "acme-1.0.dist-info" / "entry_points.txt").unlink()
    (site.parent / "choices.py").write_text(f"{CHOICES}\nregister_choices()\n")
    code = f"from torchwise.plan import Plan; print(Plan.from_json({plan(transforms=['acme_norm'])!r}))"
    (site.parent / "read.py").write_text(code)
    done = run(site.parent, program="read.py", path=str(site), TORCHWISE_PLUGINS=named)
    assert done.stdout.startswith("eager + acme_norm@") is reads, done.stderr


@pytest.mark.parametrize(
    ("named", "said"),
    [
        ("gone.py", "TORCHWISE_PLUGINS has 'gone.py', which fails (FileNotFoundError"),
        ("model.py,acme:gone", "TORCHWISE_PLUGINS has 'acme:gone', which fails (AttributeError"),
        ("nowhere", "TORCHWISE_PLUGINS has 'nowhere', which fails (ModuleNotFoundError"),
    ],
)
def test_a_plug_in_that_fails_is_named_before_anything_runs(site: Path, named: str, said: str) -> None:
    done = run(site.parent, "--version", path=str(site), TORCHWISE_PLUGINS=named)
    assert done.returncode == 2, done.stdout
    assert said in done.stderr
    assert "it must list Python files, modules, or functions as module:function" in done.stderr


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("from torchwise.plan import register_kernel as k; k('isolate_rnn', 'a:B', 'a:c')", "is another rewrite's"),
        ("raise SystemExit(7)", "fails (SystemExit: 7)"),
    ],
)
def test_a_plug_in_takes_no_name_of_torchwise_and_does_not_end_the_command(
    tmp_path: Path, code: str, said: str
) -> None:
    (tmp_path / "mine.py").write_text(code)
    done = run(tmp_path, "--version", TORCHWISE_PLUGINS="mine.py")
    assert done.returncode == 2, done.stdout
    assert said in done.stderr


def test_an_interruption_while_a_plug_in_loads_ends_as_any_other(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("raise KeyboardInterrupt")
    done = run(tmp_path, "--version", TORCHWISE_PLUGINS="mine.py")
    assert (done.returncode, done.stderr) == (130, "torchwise: interrupted\n")


def test_the_budget_of_a_command_counts_the_loading_of_plug_ins(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from torchwise import command_start\nprint(len(command_start._begun), flush=True)\n"
    )
    assert run(tmp_path, "--version", TORCHWISE_PLUGINS="mine.py").stdout.splitlines()[0] == "1"


def test_a_thread_waits_for_the_plug_ins_that_another_one_loads(site: Path) -> None:
    (site / "acme-1.0.dist-info" / "entry_points.txt").unlink()
    begins = "import sys, time\nsys.begun.set()\ntime.sleep(0.3)\n"
    (site.parent / "slow.py").write_text(f"{begins}{CHOICES}\nregister_choices()\n")
    code = (
        "import sys, threading\nfrom torchwise.plan import Plan\nsys.begun = threading.Event()\n"
        f"text = {plan(transforms=['acme_norm'])!r}\n"
        "threading.Thread(target=Plan.from_json, args=[text]).start()\n"
        "sys.begun.wait(60)\nPlan.from_json(text)\nprint('read')"
    )
    (site.parent / "read.py").write_text(code)
    done = run(site.parent, program="read.py", path=str(site), TORCHWISE_PLUGINS="slow.py")
    assert done.stdout == "read\n", done.stderr


def test_what_is_no_choice_is_refused_with_the_value_and_the_rule() -> None:
    with pytest.raises(InputError, match="choice is 'mine', but must be a `Choice` of"):
        choice.register("mine")  # type: ignore[arg-type]
