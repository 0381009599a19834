"""A captured plan that is frozen records nothing, with a recording that needs no GPU."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from test_capture_logic import CHANGES, Machine, X, capture_call

from torchwise.compile.cuda_graphs.compile_freeze import FrozenError, forbid_compile


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    with torch.no_grad():
        yield Machine(monkeypatch)


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_module_that_changed_is_not_captured_anew(machine: Machine, change: object) -> None:
    net = torch.nn.Linear(4, 4)
    call = capture_call(net, net)
    call(X)
    replays, held = call._graphs.copy(), forbid_compile(call.get_bypass((X,), {}))
    assert torch.equal(held(X), net(X))
    change(net)  # type: ignore[operator]
    for _ in range(2):
        with pytest.raises(FrozenError, match="needs a new capture"):
            held(X)
    assert machine.recorded == 1
    assert call._graphs == replays, "what changed may change back"
    call(X)
    assert machine.recorded == 2


def test_what_changes_back_is_replayed_again(machine: Machine) -> None:
    net = torch.nn.Linear(4, 4)
    call = capture_call(net, net)
    call(X)
    held = forbid_compile(call)
    net.eval()
    with pytest.raises(FrozenError):
        held(X)
    net.train()
    assert torch.equal(held(X), net(X))
    assert machine.recorded == 1


def test_a_setting_that_changed_is_not_captured_for(machine: Machine) -> None:
    net = torch.nn.Linear(4, 4)
    call = capture_call(net, net)
    call(X)
    before = torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(True, warn_only=not before)
    try:
        with pytest.raises(FrozenError):
            forbid_compile(call)(X)
    finally:
        torch.use_deterministic_algorithms(False, warn_only=before)
    assert torch.equal(forbid_compile(call)(X), net(X))
    assert machine.recorded == 1


def test_a_new_signature_is_not_captured(machine: Machine) -> None:
    call = capture_call(torch.sin)
    with pytest.raises(FrozenError):
        forbid_compile(call)(X)
    assert machine.recorded == 0


def test_nothing_is_recorded_in_place_until_it_is_unfrozen(machine: Machine) -> None:
    call = capture_call(torch.sin)
    call(X)
    for _ in range(4):
        assert torch.equal(forbid_compile(call)(X), X.sin())
    assert machine.in_place == 0
    for _ in range(4):
        assert torch.equal(call(X), X.sin())
    assert machine.in_place > 0
