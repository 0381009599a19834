"""`torchwise run`: the program keeps its output and its exit code, whatever it does."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from test_program import Searches
from typer.testing import CliRunner

from torchwise.cli import app
from torchwise.errors import InputError
from torchwise.runtime.program import tuning

NET = """
import os, sys, threading
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
    def forward(self, x):
        return self.linear(x).relu()

torch.manual_seed(0)
net, x = Net().eval(), torch.ones(3, 4)
def call(times=5):
    with torch.no_grad():
        for _ in range(times):
            out = net(x)
    return round(float(out.sum()), 4)
"""

PROGRAMS = {
    "plain": "print(call(), sys.argv, __name__)",
    "main": "def main():\n    print(call())\nif __name__ == '__main__':\n    main()",
    "exits": "call(); print('out'); sys.exit(7)",
    "message": "call(); sys.exit('stopped')",
    "raises": "call()\ndef f():\n    raise KeyError('mine')\nf()",
    "threads": "threading.Thread(target=lambda: print(call())).start()",
    "forks": "call(); pid = os.fork(); print('child' if pid == 0 else os.waitpid(pid, 0)[1], flush=True)",
    "workers": (
        "if __name__ == '__main__':\n"
        "    data = torch.utils.data.DataLoader(torch.arange(8.), batch_size=4, num_workers=2)\n"
        "    print(call(), [float(one.sum()) for one in data])"
    ),
    "compiles": "net = torch.compile(net, backend='eager', fullgraph=True); print(call())",
    "atexit": "import atexit; atexit.register(print, 'late'); print(call())",
}


def write(folder: Path, name: str) -> Path:
    file = folder / f"{name}.py"
    file.write_text(NET + PROGRAMS[name])
    return file


def python(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *words], cwd=folder, capture_output=True, text=True, timeout=240, check=False
    )


@pytest.mark.parametrize("name", list(PROGRAMS))
def test_a_program_keeps_its_output_and_its_exit_code(tmp_path: Path, name: str) -> None:
    file = write(tmp_path, name)
    alone = python(tmp_path, file.name, "--flag", "a b")
    recorded = python(tmp_path, "-m", "torchwise.cli", "run", file.name, "--flag", "a b")
    assert (recorded.stdout, recorded.returncode) == (alone.stdout, alone.returncode)
    before = alone.stderr.replace("^", "").split()
    assert recorded.stderr.replace("^", "").split()[: len(before)] == before
    assert recorded.stderr.count(f"{file.name} ran for") == 1
    assert "Net" in recorded.stderr


def test_a_module_of_a_package_is_run_with_its_own_options(tmp_path: Path) -> None:
    package = tmp_path / "pack"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "other.py").write_text("VALUE = 3")
    (package / "__main__.py").write_text(f"{NET}\nfrom .other import VALUE\nprint(call(), VALUE, sys.argv[1:])")
    alone = python(tmp_path, "-m", "pack", "--tune", "x")
    recorded = python(tmp_path, "-m", "torchwise.cli", "run", "-m", "pack", "--tune", "x")
    assert recorded.stdout == alone.stdout
    assert "torchwise run --tune -m pack --tune x" in recorded.stderr


def test_a_script_is_tuned_then_run_by_the_stored_plans(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tuning, "search", Searches())
    monkeypatch.setattr(sys, "argv", [*sys.argv])
    monkeypatch.setattr(sys, "path", [*sys.path])
    for name in ("__main__",):
        monkeypatch.setitem(sys.modules, name, sys.modules[name])
    file, store = write(tmp_path, "main"), str(tmp_path / "s.db")
    written, page = tmp_path / "r.json", tmp_path / "r.html"
    words = ["--store", store, "--json", str(written), "--html", str(page), str(file)]
    done = CliRunner().invoke(app, ["run", "--tune", "--budget", "60", *words])
    assert done.exit_code == 0, done.exception
    record = json.loads(written.read_text())
    assert record["schema"] == "torchwise.recording/1"
    assert [(one["name"], one["calls"], one["speedup"]["mid"]) for one in record["modules"]] == [("Net", 5, 2.0)]
    assert "main.py" in page.read_text()
    shown = done.stdout
    applied = CliRunner().invoke(app, ["run", "--apply", "--store", store, str(file)])
    assert applied.exit_code == 0, applied.exception
    assert applied.stdout == shown
    later = python(tmp_path, "-m", "torchwise.cli", "run", "--apply", "--store", store, file.name)
    assert later.returncode == 0
    row = next(line.split() for line in later.stderr.splitlines() if line.split()[:1] == ["Net"])
    assert row[-1] == "5"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "no program is given: name a script, or a module with -m MODULE"),
        (["nothing.py"], "script is 'nothing.py', but there is no such file"),
        (["-m", "no.such"], "module is 'no.such', but"),
        (["--tune", "--apply", "x.py"], "--tune and --apply are given"),
        (["--apply", "--store", "missing.db", "nothing.py"], "script is 'nothing.py'"),
    ],
)
def test_bad_input_is_named_with_the_way_out(words: list[str], message: str, tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["run", *words])
    assert isinstance(done.exception, InputError)
    assert message in str(done.exception)


def test_a_script_with_a_mistake_is_refused(tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text("def f(:")
    done = python(tmp_path, "-m", "torchwise.cli", "run", "bad.py")
    assert done.returncode == 2
    assert "bad.py is no Python program" in done.stderr


def test_a_program_without_modules_says_so(tmp_path: Path) -> None:
    (tmp_path / "idle.py").write_text("print('idle')")
    done = python(tmp_path, "-m", "torchwise.cli", "run", "--tune", "idle.py")
    assert (done.stdout, done.returncode) == ("idle\n", 0)
    assert "idle.py called no module" in done.stderr
