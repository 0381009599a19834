"""PyTorch's compiler writes down what it does for those who ask, and pytest does not."""

from __future__ import annotations

import logging

import pytest
import torch

from torchwise._torch import dynamo


class Kept(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.kept: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.kept.append(record)


def test_the_trace_is_written_for_a_handler_of_ours_and_not_for_pytest(caplog: pytest.LogCaptureFixture) -> None:
    trace, own = dynamo.get_trace_logger(), Kept()
    torch.compile(lambda x: x + 1, backend="eager")(torch.ones(3))
    assert not trace.handlers
    trace.addHandler(own)
    try:
        torch.compile(lambda x: x + 2, backend="eager")(torch.ones(3))
    finally:
        trace.removeHandler(own)
    assert own.kept
    assert not [record for record in caplog.records if record.name == trace.name]
