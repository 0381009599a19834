"""A search never decides for a kernel whose code has changed since it was verified."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from test_study import GOOD, Table, request

from torchwise.plan import CHOICES, Plan, register_kernel
from torchwise.plan.choice import load_choices
from torchwise.records.listener import Listener
from torchwise.store import Storage, open_storage
from torchwise.study import run_study


def decide(storage: Storage, table: Table, **options: Any) -> Plan:
    decision = run_study(request(**options), storage, table, Listener()).decision
    assert decision is not None
    return decision.plan


def test_a_trial_of_the_former_code_is_neither_decided_for_nor_repeated(tmp_path: Path) -> None:
    kept = dict(load_choices())
    try:
        register_kernel("mine", "model:Norm", "json:loads", devices=("cpu",))
        former = Plan(transforms=("mine",))
        table = Table()
        table.known[former] = (4.0, 0.1, GOOD)
        with open_storage(str(tmp_path / "store.db")) as storage:
            assert decide(storage, table, plans=(former,)) == former
            table.ran.clear()
            register_kernel("mine", "model:Norm", "csv:reader", devices=("cpu",))
            changed = Plan(transforms=("mine",))
            assert decide(storage, table).is_eager
            assert former not in table.list_tried()
            table.known[changed] = (3.0, 0.1, GOOD)
            assert decide(storage, table, plans=(changed,)) == changed
    finally:
        CHOICES.clear()
        CHOICES.update(kept)
