"""Every order for a worker names a function that exists."""

from __future__ import annotations

import importlib
import itertools
import typing
from collections.abc import Iterator
from typing import Any, Literal, get_args, get_origin

import pytest

from torchwise.trial.job import DerivedJob
from torchwise.trial.worker import TASKS

MODULES = (
    *("artifact.build", "runtime.background.aot_worker", "bench.request", "diagnose.explain", "diagnose.analyze"),
    *("diagnose.bisect.probe_runner", "diagnose.pair"),
)


def list_orders() -> Iterator[type[DerivedJob]]:
    for name in MODULES:
        importlib.import_module(f"torchwise.{name}")
    pending = [DerivedJob]
    while pending:
        kind = pending.pop()
        pending += kind.__subclasses__()
        if kind is not DerivedJob and kind.__module__.startswith("torchwise."):
            yield kind


def list_tasks(kind: type[DerivedJob]) -> Iterator[str]:
    hints = typing.get_type_hints(kind)
    values: dict[str, tuple[Any, ...]] = {n: get_args(h) for n, h in hints.items() if get_origin(h) is Literal}
    for chosen in itertools.product(*values.values()):
        order = object.__new__(kind)
        for name, value in zip(values, chosen, strict=True):
            object.__setattr__(order, name, value)
        yield order.task


ORDERS = sorted(set(list_orders()), key=lambda kind: kind.__qualname__)


def test_all_orders_are_known() -> None:
    assert {kind.__name__ for kind in ORDERS} >= {"Build", "ContenderJob", "Inquiry", "Preparation", "Probe", "Scaling"}


@pytest.mark.parametrize("kind", ORDERS, ids=lambda kind: str(kind.__name__))
def test_a_worker_finds_the_function_of_each_order(kind: type[DerivedJob]) -> None:
    tasks = set(list_tasks(kind))
    assert tasks
    for task in tasks:
        module, _, function = TASKS.get(task, task).partition(":")
        assert callable(getattr(importlib.import_module(module), function)), task


@pytest.mark.parametrize("task", TASKS.values())
def test_a_worker_finds_the_function_of_each_named_task(task: str) -> None:
    module, _, function = task.partition(":")
    assert callable(getattr(importlib.import_module(module), function))
