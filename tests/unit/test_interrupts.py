"""Ctrl-C, at any moment, ends a command and its children with one line and exit code 130."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from multiprocessing import forkserver, get_context
from pathlib import Path
from types import ModuleType

import psutil
import pytest
from typer.testing import CliRunner

from local_server import wait_for_end
from torchwise.cli import app
from torchwise.diagnose.doctor import probe
from torchwise.trial import ProcessLauncher
from torchwise.trial.launcher import _start_server


def interrupt(*_: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("work", "words"), [("torchwise.diagnose.doctor.diagnose", ["doctor"]), ("torchwise.zoo.list_workloads", ["zoo"])]
)
def test_every_command_says_that_it_was_interrupted(work: str, words: list[str], monkeypatch) -> None:
    monkeypatch.setattr(work, interrupt)
    done = CliRunner().invoke(app, words)
    assert (done.exit_code, done.stderr) == (130, "torchwise: interrupted\n")


def test_bisect_does_not_speak_of_looks_that_were_not_taken(monkeypatch) -> None:
    monkeypatch.setattr("torchwise.diagnose.bisect.run_bisection", interrupt)
    done = CliRunner().invoke(app, ["bisect", "zoo:tutorial.fusion_demo", "--device", "cpu", "--no-repro"])
    assert (done.exit_code, done.stderr) == (130, "torchwise: interrupted before the first probe was done\n")


def test_a_child_of_the_doctor_ends_with_an_interruption(tmp_path: Path) -> None:
    child, main = tmp_path / "child", threading.main_thread().ident
    assert main is not None

    def interrupt_once_it_runs() -> None:
        while not child.exists() or not child.read_text():
            time.sleep(0.01)
        time.sleep(0.3)  # on a busy machine the main thread may still be in Popen, which ends nothing
        signal.pthread_kill(main, signal.SIGINT)

    threading.Thread(target=interrupt_once_it_runs, daemon=True).start()
    with pytest.raises(KeyboardInterrupt):
        probe.run_command(["sh", "-c", f"sleep 600 & echo $! >{child}; sleep 600"], 600)
    wait_for_end(int(child.read_text()))


def test_the_server_of_workers_dies_quietly_while_it_loads(tmp_path: Path) -> None:
    """It is in the terminal's foreground, as the command is, and hears Ctrl-C as the command does."""
    (tmp_path / "model.py").write_text("import torch\ndef make():\n    return torch.tanh, (torch.ones(3),)\n")
    words = [sys.executable, "-m", "torchwise.cli", "tune", "model.py:make", "--device", "cpu", "--store", "tried.db"]
    with subprocess.Popen(
        words, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        assert process.stderr is not None
        assert any("profiling the model" in line for line in process.stderr), "the server starts for that"
        deadline = time.monotonic() + 60
        while not psutil.Process(process.pid).children() and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(0.5)
        os.killpg(process.pid, signal.SIGINT)
        _, said = process.communicate(timeout=60)
    assert said.count("\n") == 1, said
    assert said.startswith("torchwise: interrupted; finished trials are saved")
    assert process.returncode == 130


def exit_with_block_state() -> None:
    sys.exit(signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, ()))


def test_children_of_the_users_own_hear_ctrl_c_from_the_same_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "__main__", ModuleType("__main__"))  # Streamlit leaves that of a page it drew
    ProcessLauncher()
    forkserver._forkserver._stop()  # another test may have begun one
    _start_server()
    process = get_context("forkserver").Process(target=exit_with_block_state)
    process.start()
    process.join(60)
    assert process.exitcode == 0
