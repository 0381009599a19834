"""What a candidate's process says when it is loaded is told as its fault, whatever it says."""

from __future__ import annotations

import multiprocessing
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
import torch

from torchwise.errors import InputError, UnsupportedError
from torchwise.trial.candidate_process import InterpreterProcess, write_message
from torchwise.trial.remote_witness import RemoteWitness
from torchwise.verify.witness import Question
from torchwise.workload import Example


class Says:
    """A process that sends some messages, and whose channel stays open."""

    def __init__(self, *messages: Any, death: str = "") -> None:
        self._messages, self._death = messages, death

    def start(self) -> Connection:
        own, self._other = multiprocessing.Pipe()
        for message in self._messages:
            self._other.send_bytes(write_message(message))
        return own

    def find_death(self, wait_s: float = 0.0) -> str:
        return self._death

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


def test_a_death_is_noticed_though_a_child_of_it_holds_the_channel_open() -> None:
    began = time.monotonic()
    witness = RemoteWitness(Says({"ready": True}, death="ended its process (SIGKILL)"), 60.0)
    witness.load()
    assert witness.answer(Question(Example(()))).error == "ended its process (SIGKILL)"
    assert time.monotonic() - began < 30


@pytest.mark.parametrize("ticket", [{}, {"ticket": "of another question"}])
def test_an_answer_to_no_question_counts_for_nothing(ticket: dict[str, str]) -> None:
    witness = RemoteWitness(Says({"ready": True}, {"names": ["nothing"], **ticket}), 5.0)
    witness.load()
    assert witness.list_replaced() == ("no one knows what: it gives no list",)
