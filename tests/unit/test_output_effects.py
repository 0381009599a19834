"""A call that prints or logs is told from a silent one."""

from __future__ import annotations

import builtins
import logging
import threading
from collections.abc import Callable
from io import StringIO
from typing import Any

import pytest

from torchwise.plan.effort import EFFORTS
from torchwise.plan.workload_spec import WorkloadSpec
from torchwise.trial import Job, Limits, ProcessLauncher, inspect_workload
from torchwise.trial.plain_call import prints

MODELS = logging.getLogger("a.model")
PYTORCHS = logging.getLogger("torch._dynamo.anything")


@pytest.mark.parametrize(
    ("call", "heard"),
    [
        (lambda: print("hidden", file=StringIO()), True),
        (lambda: MODELS.warning("hidden"), True),
        (lambda: MODELS.info("hidden"), True),
        (lambda: MODELS.debug("hidden"), False),
        (lambda: PYTORCHS.warning("hidden"), False),
        (lambda: threading.Thread(target=print, kwargs={"file": StringIO()}).run(), True),
        (lambda: elsewhere(lambda: print("hidden", file=StringIO())), False),
        (lambda: elsewhere(lambda: MODELS.warning("hidden")), False),
        (lambda: 1 + 1, False),
    ],
)
def test_what_a_call_says_is_heard(call: Callable[[], Any], heard: bool) -> None:
    assert prints(call) is heard


def test_a_logger_that_is_switched_off_here_may_be_on_elsewhere() -> None:
    MODELS.setLevel(logging.ERROR)
    try:
        assert prints(lambda: MODELS.info("hidden"))
    finally:
        MODELS.setLevel(logging.NOTSET)


def test_what_is_said_is_said_and_a_call_that_raises_leaves_nothing_behind(caplog: pytest.LogCaptureFixture) -> None:
    before, shown = builtins.print, StringIO()

    def call() -> None:
        print("hidden values", file=shown)
        MODELS.warning("a warning")
        raise ValueError("its own")

    with pytest.raises(ValueError, match="its own"):
        prints(call)
    assert shown.getvalue() == "hidden values\n"
    assert caplog.messages == ["a warning"]
    assert builtins.print is before
    assert logging.Logger.isEnabledFor.__module__ == "logging"


@pytest.mark.parametrize(("target", "speaks"), [("break_print", True), ("break_item", False)])
def test_inspection_finds_a_model_that_prints(target: str, speaks: bool) -> None:
    job = Job("inspect", WorkloadSpec(f"zoo:tutorial.{target}@small"), effort=EFFORTS["quick"])
    found = inspect_workload(ProcessLauncher(), job, Limits(60, 8 << 30), lambda stage: None)
    assert ("prints" in found.traits) is speaks


def elsewhere(call: Callable[[], Any]) -> None:
    thread = threading.Thread(target=call)
    thread.start()
    thread.join()
