"""The first call of a component starts a search in another process, if one can search, and waits for nothing."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from components_finders import THREADS, Finder

import torchwise
from live_decisions import make_decision
from torchwise.alerts import heard
from torchwise.errors import TorchwiseError
from torchwise.records import Interval, codec
from torchwise.runtime import FallbackReason
from torchwise.runtime.background import tuning
from torchwise.runtime.background.protocol import Message
from torchwise.runtime.call_guard import VerifiedInputs
from torchwise.runtime.components import CompileManager, component
from torchwise.runtime.components.config import VARIABLE
from torchwise.runtime.components.statistics import ComponentStatistics
from torchwise.runtime.missed_inputs import MissedInputs
from torchwise.runtime.sizes_dispatch import SizesDispatcher

X = torch.randn(4, 8)
DONE = codec.to_json(Message("done", "the search is over"))


@pytest.fixture(autouse=True)
def enabled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setattr(component, "available_cpus", lambda: 2)
    monkeypatch.setattr(component, "_searching", threading.Lock())


@pytest.fixture
def search(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Callable[[], None]]:
    """Put a program in the place of the process that searches, which says its lines after it was told to go on."""
    real, started = subprocess.Popen, []
    monkeypatch.setattr(tuning, "_import_compiler", lambda: None)

    def begin(*lines: str, goes_on: bool = False) -> Callable[[], None]:
        go_on = tmp_path / str(len(started))
        started.append(go_on)
        said = "".join(f"print({line!r}, flush=True)\n" for line in lines)
        said += "time.sleep(60)\n" if goes_on else ""
        end = "threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()\n"
        wait = f"import sys, time, os, threading\n{end}while not os.path.exists({str(go_on)!r}): time.sleep(0.01)\n"
        monkeypatch.setattr(
            tuning.subprocess, "Popen", lambda _, **options: real([sys.executable, "-c", wait + said], **options)
        )
        return go_on.touch

    return begin


def wait_until(is_so: Callable[[], bool]) -> None:
    end = time.monotonic() + 20
    while not is_so():
        assert time.monotonic() < end, "it does not become so"
        time.sleep(0.01)


def double(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def triple(x: torch.Tensor) -> torch.Tensor:
    return x * 3


def promote(call: Any, speedup: float = 3.0) -> str:
    interval = Interval(speedup - 0.1, speedup, speedup + 0.1)
    decision = replace(make_decision(call, THREADS, X, error=1e-6), speedup=interval)
    return codec.to_json(Message("promoted", f"plan {THREADS}", decision.to_json(), extra_calls="any"))


@torch.no_grad()
def test_the_original_answers_until_the_other_process_has_a_plan(search: Callable[..., Callable[[], None]]) -> None:
    manager = CompileManager()
    one, other = manager.register(double, "one"), manager.register(triple, "other")
    go_on = search(promote(double), DONE)
    for _ in range(3):
        assert torch.equal(one(X), X * 2)
        assert torch.equal(other(X), X * 3)
    waiting, behind = manager.statistics().values()
    assert waiting.original == {FallbackReason.FIRST_CALL: 1, FallbackReason.TUNING_IN_BACKGROUND: 2}
    assert (waiting.plan, waiting.reason) == (None, "tuning goes on in the background")
    assert behind.original == {FallbackReason.SEARCH_RUNNING: 3}, "one search at a time"
    go_on()
    wait_until(lambda: not component._searching.locked())
    found = one(X) is not None and manager.statistics()["one"]
    assert isinstance(found, ComponentStatistics)
    assert (found.plan, found.optimized) == (str(THREADS), 1)
    assert found.speedup is not None
    assert (found.speedup.mid, found.search_s > 0, found.counts.fallback_rate) == (3.0, True, 0)
    search(promote(triple), DONE)()
    other(X)
    wait_until(lambda: torch.equal(other(X), X * 3) and manager.statistics()["other"].optimized > 0)


@torch.no_grad()
@pytest.mark.parametrize(
    ("lines", "reason", "alerts"),
    [
        ([codec.to_json(Message("stays", "eager is as fast")), DONE], FallbackReason.EAGER_DECISION, []),
        ([codec.to_json(Message("left", "it is not right")), DONE], FallbackReason.BACKGROUND_TUNING_ENDED, []),
        ([codec.to_json(Message("failed", "OSError: full"))], FallbackReason.SEARCH_FAILED, ["background_failed"]),
    ],
    ids=["stays", "left", "failed"],
)
def test_a_search_without_a_plan_is_over_once_and_for_all(
    search: Callable[..., Callable[[], None]], lines: list[str], reason: FallbackReason, alerts: list[str]
) -> None:
    manager = CompileManager()
    call = manager.register(double, "it")
    search(*lines)()
    with heard() as said:
        call(X)
        wait_until(lambda: not component._searching.locked())
        call(X), call(X)
    found = manager.statistics()["it"]
    assert found.original == {FallbackReason.FIRST_CALL: 1, reason: 2}
    assert [alert.kind for alert in said] == alerts
    assert codec.from_json(lines[0], Message).text in found.reason


@torch.no_grad()
def test_a_plan_that_is_not_fast_enough_counts_as_in_a_search_that_is_waited_for(search: Callable[..., Any]) -> None:
    manager = CompileManager(minimum_speedup=4.0)
    call = manager.register(double, "it")
    slow = codec.from_json(promote(double), Message).decision
    search(codec.to_json(Message("left", "minimum_speedup is 4", slow)), DONE)()
    call(X)
    wait_until(lambda: not component._searching.locked())
    call(X)
    found = manager.statistics()["it"]
    assert found.original == {FallbackReason.FIRST_CALL: 1, FallbackReason.NOT_FAST_ENOUGH: 1}
    assert found.speedup is not None
    assert found.speedup.mid == 3.0


@torch.no_grad()
def test_without_fallback_a_failed_search_raises_in_a_later_call(search: Callable[..., Callable[[], None]]) -> None:
    call = CompileManager(fallback=False, background=True).register(double, "it")
    search(codec.to_json(Message("failed", "OSError: full")))()
    call(X)
    wait_until(lambda: not component._searching.locked())
    with pytest.raises(TorchwiseError, match="component 'it': the search for a plan failed"):
        call(X)


@torch.no_grad()
def test_what_is_cleared_ends_its_search_and_lets_others_search(search: Callable[..., Callable[[], None]]) -> None:
    manager = CompileManager()
    call = manager.register(double, "it")
    search(DONE)
    call(X)
    assert component._searching.locked()
    manager.clear()
    wait_until(lambda: not component._searching.locked())


@torch.no_grad()
@pytest.mark.parametrize(("changes", "ends"), [({}, True), ({"minimum_speedup": 1.0, "allow": "substituted"}, False)])
def test_a_profile_ends_the_searches_that_may_find_what_it_does_not_permit(
    search: Callable[..., Callable[[], None]], changes: dict[str, Any], ends: bool
) -> None:
    manager = CompileManager("research", background=True, fallback=True, **changes)
    call = manager.register(double, "it")
    go_on = search(DONE)
    call(X)
    manager.set_mode("production")
    assert (manager.components["it"]._found is None) is ends
    if not ends:
        assert component._searching.locked()
        go_on()
    wait_until(lambda: not component._searching.locked())


@torch.no_grad()
def test_a_second_search_is_for_settings_that_permit_it_and_waits_for_its_turn(
    search: Callable[..., Callable[[], None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = CompileManager("research", background=True, fallback=True)
    call, again = manager.register(double, "it"), []
    search(promote(double), DONE)()
    call(X)
    wait_until(lambda: call(X) is not None and manager.statistics()["it"].optimized > 0)
    wait_until(lambda: not component._searching.locked())
    found = manager.components["it"]._found
    assert found is not None
    learning, allowed = found.tuning, found.tuning._order_again
    assert allowed is not None
    manager.set_mode("production")
    assert manager.components["it"]._found is found, "the plan is permitted"
    assert learning._order_again is None, "what may be found next is not"
    learning._order_again, learning._learns = lambda examples: again.append(examples) or 1 / 0, True
    missed = MissedInputs(VerifiedInputs(found.served.decision.inputs, dynamic=False))
    missed.note(("key",), (torch.randn(6, 8),), {}, manager.components["it"].counts)
    with component._searching:
        learning.learn(missed.list_other_sizes())
        time.sleep(0.05)
        assert not again, "one search at a time"
    wait_until(lambda: bool(again) and not component._searching.locked())


@torch.no_grad()
@pytest.mark.parametrize("mode", ["production", "research"])
def test_a_plan_for_other_sizes_must_be_permitted_as_well(mode: str) -> None:
    manager = CompileManager("research", find=Finder())
    call = manager.register(double, "it")
    call(X), call(X)
    it = manager.components["it"]
    assert it._found is not None
    assert it._found.served is not None
    first = it._found.served.decision
    others = replace(first, speedup=Interval(1.0, 1.01, 1.02))
    it.extend(lambda served: SizesDispatcher(served.original, first, others))
    manager.set_mode(mode)
    assert (it._found is None) is (mode == "production")


@torch.no_grad()
def test_what_is_closed_ends_its_search_and_stays_as_written(search: Callable[..., Callable[[], None]]) -> None:
    manager = CompileManager()
    call = manager.register(double, "it")
    search(promote(double), DONE)
    call(X)
    manager.components["it"].close()
    wait_until(lambda: not component._searching.locked())
    call(X)
    assert manager.statistics()["it"].original == {FallbackReason.FIRST_CALL: 1, FallbackReason.CLOSED: 1}


@torch.no_grad()
@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_a_forked_process_waits_for_no_search_of_its_parent(search: Callable[..., Any]) -> None:
    manager = CompileManager()
    call = manager.register(double, "it")
    search(DONE)
    call(X)
    it = manager.components["it"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python warns of threads, which the child does not need
        child = os.fork()
    if not child:
        os._exit(int(component._searching.locked() or it._found is not None))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert component._searching.locked(), "the parent's search goes on"
    assert it._found is not None
    manager.clear()
    wait_until(lambda: not component._searching.locked())


@torch.no_grad()
def test_a_container_without_layers_is_searched_for_as_well(search: Callable[..., Any]) -> None:
    class Empty(torch.nn.Sequential):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * 2

    manager = CompileManager()
    call = manager.register(Empty(), "it")
    search(DONE)
    call(X)
    manager.set_mode("development")
    manager.components["it"].close()
    wait_until(lambda: not component._searching.locked())


@torch.no_grad()
def test_what_is_closed_gets_no_later_plan(search: Callable[..., Callable[[], None]]) -> None:
    manager = CompileManager()
    call = manager.register(double, "it")
    search(promote(double), goes_on=True)()
    call(X)
    wait_until(lambda: call(X) is not None and manager.statistics()["it"].optimized > 0)
    it = manager.components["it"]
    assert it._found is not None
    tuning = it._found.tuning
    assert tuning.state == "searching"
    it.close()
    assert tuning.state == "stopped"
    answered = manager.statistics()["it"].optimized
    tuning._promote(codec.from_json(promote(double), Message))  # which was on its way
    call(X)
    assert manager.statistics()["it"].optimized == answered


@torch.no_grad()
def test_what_is_frozen_ends_its_search_and_searches_again_once_it_may(search: Callable[..., Any]) -> None:
    manager = CompileManager()
    call = manager.register(double, "it")
    search(promote(double), DONE)
    call(X)
    torchwise.freeze(manager)
    wait_until(lambda: not component._searching.locked())
    call(X)
    assert manager.statistics()["it"].original == {FallbackReason.FIRST_CALL: 1, FallbackReason.FROZEN: 1}
    torchwise.unfreeze(manager)
    search(promote(double), DONE)()
    wait_until(lambda: call(X) is not None and manager.statistics()["it"].optimized > 0)


@pytest.mark.parametrize(
    ("changes", "cpus", "training", "expected"),
    [
        ({}, 2, False, True),
        ({}, 1, False, False),
        ({}, 2, True, False),
        ({"background": True}, 1, False, True),
        ({"background": True}, 2, True, False),
        ({"background": False}, 2, False, False),
        ({"fallback": False}, 2, False, False),
        ({"fallback": False, "background": True}, 2, False, True),
    ],
)
def test_another_process_searches_if_it_can(
    monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], cpus: int, training: bool, expected: bool
) -> None:
    monkeypatch.setattr(component, "available_cpus", lambda: cpus)
    ways: list[str] = []
    monkeypatch.setattr(component, "search_in_background", lambda *_: ways.append("background") or 1 / 0)
    monkeypatch.setattr("torchwise.runtime.api.tune", lambda *_, **__: ways.append("here") or 1 / 0)
    manager = CompileManager(training=training, **changes)
    call = manager.register(double, "it")
    with torch.no_grad():
        if changes.get("fallback", True):
            call(X)
        else:
            with pytest.raises(TorchwiseError):
                call(X)
    assert ways == (["background"] if expected else ["here"])


@pytest.mark.parametrize(("gradients", "training", "said"), [(True, None, 1), (False, None, 0), (True, True, 0)])
def test_a_component_that_is_tuned_for_training_by_the_way_it_is_called_says_so(
    gradients: bool, training: bool | None, said: int, caplog: pytest.LogCaptureFixture
) -> None:
    find = Finder()
    manager = CompileManager(find=find, training=training)
    layer = manager.register(torch.nn.Linear(8, 8), "layer")
    with torch.set_grad_enabled(gradients):
        layer(X)
    assert find.asked[0][2].training is gradients
    assert caplog.text.count("component layer is tuned for training, because gradients were enabled") == said
