"""`TORCHWISE_DEBUG`: the messages of PyTorch that it shows, here and from workers, and the values that are refused."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import torchwise
from live_decisions import make_decision
from torchwise._torch import debug_logs
from torchwise.errors import InputError
from torchwise.plan import EAGER
from torchwise.plan.workload_spec import WorkloadSpec
from torchwise.trial import Job, Limits, ProcessLauncher
from torchwise.trial.full_graph import FullGraphJob


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Return the arguments with which PyTorch's logs are set, and set none."""
    found: list[dict[str, Any]] = []

    def set_logs(*, graph_breaks: bool = False, recompiles: bool = False, kernel_code: bool = False) -> None:
        found.append({name for name, value in locals().items() if value is True})  # type: ignore[arg-type]

    monkeypatch.setattr(torch._logging, "set_logs", set_logs)
    monkeypatch.delenv("TORCH_LOGS", raising=False)
    debug_logs._set_logs.cache_clear()
    return found


def test_presets_turn_on_pytorchs_own_logs_once(asked: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    debug_logs.show_logs()
    assert asked == []
    monkeypatch.setenv(debug_logs.VARIABLE, "breaks, recompiles,breaks")
    debug_logs.show_logs(), debug_logs.show_logs()
    assert asked == [{"graph_breaks", "recompiles"}]


def test_a_log_that_this_torch_lacks_is_named_and_the_others_are_shown(
    asked: list[Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(debug_logs.VARIABLE, "autotune,kernels")
    debug_logs.show_logs()
    assert asked == [{"kernel_code"}]
    assert "no log for TORCHWISE_DEBUG=autotune" in caplog.text


def test_the_users_own_torch_logs_win(
    asked: list[Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(debug_logs.VARIABLE, "breaks")
    monkeypatch.setenv("TORCH_LOGS", "+dynamo")
    debug_logs.show_logs()
    assert asked == []
    assert "TORCH_LOGS is set, so PyTorch does not take TORCHWISE_DEBUG" in caplog.text


def test_this_torch_has_every_log() -> None:
    import inspect

    assert set(debug_logs.LOGS.values()) <= set(inspect.signature(torch._logging.set_logs).parameters)


def test_an_unknown_preset_is_refused_with_the_choices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(debug_logs.VARIABLE, "breaks,recompile")
    said = "TORCHWISE_DEBUG has 'recompile', but must list breaks, recompiles, autotune, kernels"
    decision = replace(make_decision(torch.tanh, EAGER))
    for call in (
        lambda: torchwise.tune(torch.tanh, (torch.ones(1),)),
        lambda: torchwise.apply(torch.tanh, decision),
    ):
        with pytest.raises(InputError, match=said):
            call()
    code = "from torchwise.cli import main; import sys; sys.argv[1:] = ['--version']; main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env={**os.environ})
    assert done.returncode == 2
    assert said in done.stderr


def test_the_messages_of_a_worker_reach_standard_error(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "model.py"
    file.write_text(
        "import torch\n"
        "def make():\n"
        "    def call(x):\n"
        "        print(x.sum())\n"
        "        return x + 1\n"
        "    torch.compile(call, backend='eager')(torch.ones(3))\n"
        "    return torch.sin, (torch.ones(3),)\n"
    )
    for value in ("breaks", ""):
        monkeypatch.setenv(debug_logs.VARIABLE, value)
        job = Job("inspect", WorkloadSpec(f"{file}:make"))
        ProcessLauncher().run(FullGraphJob(job), Limits(60, 2**33), lambda stage: None)
        said = capfd.readouterr().err
        assert ("torchwise: output of torchwise.trial.graph_breaks:look_for_break" in said) is bool(value)
        assert (f"{file}:4" in said and "Graph break" in said) is bool(value), said
