"""What a candidate's process says when it is loaded is told as its fault, whatever it says."""

from __future__ import annotations

import multiprocessing
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
import torch

from torchwise.errors import InputError, UnsupportedError
from torchwise.trial.candidate_process import InterpreterProcess, write_message
from torchwise.trial.remote_witness import RemoteWitness


class Says:
    """A process that sends one message."""

    def __init__(self, message: Any) -> None:
        self._message = message

    def start(self) -> Connection:
        own, other = multiprocessing.Pipe()
        other.send_bytes(write_message(self._message))
        return own

    def find_death(self, wait_s: float = 0.0) -> str:
        return ""

    def kill(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


@pytest.mark.parametrize("kind", ["format_error", "BaselineError", "no such name", 3, None])
def test_an_error_of_a_load_is_bad_input_by_whatever_name(kind: Any) -> None:
    with pytest.raises(InputError, match="cannot be loaded: out of order"):
        RemoteWitness(Says({"user_error": "out of order", "kind": kind}), 1.0).load()


def test_an_error_of_a_load_keeps_its_kind() -> None:
    with pytest.raises(UnsupportedError):
        RemoteWitness(Says({"user_error": "no such name here", "kind": "UnsupportedError"}), 1.0).load()


def test_an_interpreter_that_cannot_load_anything_says_why(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho 'No module named torch' >&2\nexit 3\n")
    python.chmod(0o755)
    process = InterpreterProcess(lambda: torch.neg, str(python))
    with pytest.raises(InputError, match=r"ended its process \(exit code 3\): No module named torch"):
        RemoteWitness(process, 1.0).load()
    process.close()
