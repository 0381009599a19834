"""Methods that a program put in a class of a module. A worker imports the module, and runs them as well."""

from __future__ import annotations

import importlib
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch

from torchwise.errors import WorkloadError
from torchwise.trial import pickling
from torchwise.trial.loading import save
from torchwise.trial.pickling import methods_put_in, put_in
from torchwise.workload import Example, Workload

MODULE = """
    import functools
    import torch

    def decorated(function):
        @functools.wraps(function)
        def around(*args):
            return function(*args)
        return around

    class Net(torch.nn.Module):
        @decorated
        def forward(self, x):
            return x + 1

        def helper(self, x):
            return x

        @staticmethod
        def fixed(x):
            return x
"""
LOADING = """
    import sys
    from types import SimpleNamespace
    import torch
    from torchwise.trial.loading import _load_workload
    workload = SimpleNamespace(device="cpu")
    loaded = _load_workload(SimpleNamespace(source=sys.argv[1], workload=workload))
    print(loaded.call(*loaded.examples[0].args).tolist(), loaded.call.head(torch.ones(1, 1)).tolist())
"""


@pytest.fixture
def net(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    (tmp_path / "patched_nets.py").write_text(textwrap.dedent(MODULE))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "patched_nets", raising=False)
    return importlib.import_module("patched_nets").Net


def run_in_worker(model: Any, folder: Path) -> str:
    model.head = torch.nn.Linear(1, 1)
    torch.nn.init.ones_(model.head.weight)
    torch.nn.init.zeros_(model.head.bias)
    save(Workload(model, (Example((torch.ones(1),)),)), str(folder / "model.pt"))
    path = [str(folder), *sys.path]
    command = [sys.executable, "-c", textwrap.dedent(LOADING), str(folder / "model.pt")]
    found = subprocess.run(
        command, capture_output=True, text=True, check=False, env={"PYTHONPATH": ":".join(path), "HOME": str(folder)}
    )
    assert found.returncode == 0, found.stderr
    return found.stdout.strip()


def test_a_worker_runs_what_was_put_in_a_class(net: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = net.forward
    monkeypatch.setattr(net, "forward", lambda self, x: written(self, x) * self.helper(x))
    monkeypatch.setattr(net, "helper", lambda self, x: self.fixed(x) + 2)
    monkeypatch.setattr(net, "fixed", staticmethod(lambda x: x * 10))
    monkeypatch.setattr(net, "__call__", lambda self, x: torch.nn.Module.__call__(self, x) - 1, raising=False)
    monkeypatch.setattr(torch.nn.Linear, "forward", lambda self, x: x @ self.weight + 5)
    assert run_in_worker(net(), tmp_path) == "[23.0] [[6.0]]"


def test_what_its_own_class_has_it_leaves_alone(net: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = methods_put_in([net()])
    assert [method.name for method in found] == ["forward"], "a decorator looks like it"
    before = net.forward
    put_in(found)
    assert net.forward is before
    monkeypatch.setattr(net, "helper", lambda _, x: x * 2)
    changed = methods_put_in([net()])
    monkeypatch.undo()
    put_in(changed)
    assert net().helper(3) == 6
    assert net.forward is before


def test_what_cannot_be_sent_matters_where_the_worker_has_another(net: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    lock = iter([1])

    def return_lock(_self: Any, x: Any) -> Any:
        return x, lock

    with monkeypatch.context() as patch:
        patch.setattr(net, "helper", return_lock)
        patch.setattr("cloudpickle.dumps", lambda _: 1 / 0)
        found = methods_put_in([net()])
        put_in(found)
    with pytest.raises(WorkloadError, match=r"Net\.helper is another function in your process .*ZeroDivisionError"):
        put_in(found)


def test_classes_that_travel_by_value_bring_theirs_along() -> None:
    class Local(torch.nn.Module):
        pass

    Local.forward = lambda _, x: x  # type: ignore[assignment]
    assert methods_put_in([Local()]) == []
    assert not pickling._is_imported(Local)
    assert pickling._is_imported(torch.nn.Linear)
