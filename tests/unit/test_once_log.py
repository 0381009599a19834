"""Messages are logged once each, and their number is bounded."""

from __future__ import annotations

import importlib
import logging

import pytest
import torch

import torchwise
from torchwise.alerts import MAX_MESSAGES, OnceLog


def test_each_message_is_admitted_once() -> None:
    log = OnceLog()
    assert [log.admit(text) for text in ("a", "b", "a")] == [True, True, False]


def test_a_limit_bounds_what_is_kept() -> None:
    log = OnceLog(limit=3)
    assert [log.admit(f"size {size}") for size in range(5)] == [True] * 3 + [False] * 2
    assert len(log._messages) == 3


def test_graphs_that_fail_with_ever_other_messages_do_not_fill_the_log(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    module = importlib.import_module("torchwise.runtime.dynamo.graph_backend")
    monkeypatch.setattr(module, "_logged", OnceLog())
    with caplog.at_level(logging.WARNING, "torchwise"):
        for size in range(3 * MAX_MESSAGES):
            module._log(f"an input has {size} elements", "model.py:3")
    assert len(caplog.records) == MAX_MESSAGES


def test_steps_that_fail_with_ever_other_messages_do_not_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    loop = torchwise.captured_loop(torch.sin)
    with caplog.at_level(logging.WARNING, "torchwise"):
        for size in range(3 * MAX_MESSAGES):
            loop._warn_once(f"an input has {size} elements")
    assert len(caplog.records) == MAX_MESSAGES


def test_a_training_step_that_changes_ever_otherwise_warns_of_some_changes(caplog: pytest.LogCaptureFixture) -> None:
    step = torchwise.captured_step(lambda: None)
    with caplog.at_level(logging.INFO, "torchwise"):
        for number in range(3 * MAX_MESSAGES):
            step._warn_once("the step is captured again", f"group {number}")
    levels = [record.levelno for record in caplog.records]
    assert levels == [logging.WARNING] * MAX_MESSAGES + [logging.INFO] * 2 * MAX_MESSAGES
