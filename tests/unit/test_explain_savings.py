"""The potential saving of a fix: asked once, on every example, within a budget. A fix that fails has none."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from torchwise.diagnose.savings import Savings, share_saved, share_saved_anywhere
from torchwise.measure import profile
from torchwise.plan import Plan
from torchwise.records import Measurement
from torchwise.trial.harness import Calls
from torchwise.workload import Example, Workload

SETTING = "torch._dynamo.config.capture_scalar_outputs = True"


def double(x: torch.Tensor) -> torch.Tensor:
    return x * 2


class Stub:
    """An arena that runs nothing: a fix takes 60 µs of the run's 100."""

    device, mode = "cpu", "inference"
    workload = Workload(double, (Example((torch.ones(1),)), Example((torch.ones(2),))))

    def __init__(self, error: Exception | None = None) -> None:
        self.settled: list[int] = []
        self._error = error

    def runners(self, call: Any, _model: Any = None) -> Calls:
        return [lambda: call] * len(self.workload.examples)

    def first_calls(self, calls: Calls) -> float:
        if self._error:
            raise self._error
        self.settled.append(len(calls))
        return 0.0

    def measure(self, calls: Calls, run: Calls, *, block_s: float) -> Measurement:
        assert len(calls) == len(run)
        assert block_s >= 0.01, "as in a loop, which the first call of a block is not"
        return Measurement((60e-6,) * 5, (100e-6,) * 5)


def prices(arena: Stub, budget_s: float = 60.0) -> Savings:
    return Savings(arena, arena.runners(double), 100e-6, budget_s, lambda _stage: None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("ask", "compiled"),
    # Guards are timed between two that are compiled as a user would, and other fixes over the run.
    [(lambda p: p.measure_without_guards(), 2), (lambda p: p.measure_setting(SETTING), 1)],
    ids=["guards", "setting"],
)
def test_a_mend_is_priced_on_every_example_and_once(ask: Any, compiled: int) -> None:
    arena = Stub()
    asked = prices(arena)
    assert ask(asked).per_call_s.mid == pytest.approx(40e-6)
    assert ask(asked) is ask(asked)
    assert arena.settled == [2] * compiled
    assert asked.notes == []


def test_only_compiling_may_pass_the_limit_and_no_timed_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a model that changes on every call would be compiled on each one, which never happens to its user."""
    limits: list[tuple[str, int]] = []
    arena = Stub()
    for name in ("first_calls", "measure"):
        own = getattr(arena, name)

        def record_limit(*args: Any, name: str = name, own: Any = own, **options: Any) -> Any:
            limits.append((name, torch._dynamo.config.recompile_limit))
            return own(*args, **options)

        monkeypatch.setattr(arena, name, record_limit)
    usual = torch._dynamo.config.recompile_limit
    prices(arena).measure_setting(SETTING)
    assert limits == [("first_calls", 1 << 16), ("measure", usual)]


def test_a_mend_that_fails_has_no_price_and_is_told() -> None:
    asked = prices(Stub(RuntimeError("no such kernel\nand a long trace")))
    assert asked.measure_setting(SETTING) is None
    assert asked.failures == {SETTING: "not measured, because it failed with RuntimeError: no such kernel"}
    assert asked.notes == [f"{SETTING}: {asked.failures[SETTING]}"]


def test_a_mend_that_the_budget_leaves_out_is_told_and_has_not_failed() -> None:
    asked = prices(Stub(), budget_s=0.0)
    assert asked.measure_plan(Plan(backend="inductor", capture="call")) is None
    assert "Raise it with --budget" in asked.notes[0]
    assert not asked.failures


def test_peaks_are_measured_however_little_time_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(profile.COPY_BYTES, "cpu", 2**16)
    monkeypatch.setitem(profile.SIDE, "cpu", 32)
    assert 0 < profile.bandwidth("cpu", 0.0) < 1e15
    assert 0 < profile.matrix_rate(torch.float64, "cpu", 0.0) < 1e18


def test_what_disturbs_for_a_while_widens_the_interval() -> None:
    calm = tuple(100e-6 + (i % 2) * 1e-6 for i in range(80))
    disturbed = calm[:60] + tuple(second + 30e-6 for second in calm[60:])
    sure = share_saved(Measurement((60e-6,) * 80, calm))
    doubtful = share_saved(Measurement((60e-6,) * 80, disturbed))
    assert sure.mid == pytest.approx(0.403, abs=1e-3)
    assert sure.half_width < 0.02
    assert doubtful.mid < 0.42
    assert doubtful.high > 0.5, "rounds that are disturbed together count as one"


def test_a_price_holds_in_another_process_too() -> None:
    found = Measurement((60e-6,) * 80, (100e-6,) * 80)
    assert share_saved(found).low == share_saved(found).high == pytest.approx(0.4)
    anywhere = share_saved_anywhere(found)
    assert (anywhere.low, anywhere.mid, anywhere.high) == pytest.approx((0.37, 0.4, 0.43)), "3 % of a call"


def test_a_measurement_of_a_few_rounds_has_a_saving_too() -> None:
    assert share_saved(Measurement((3.0,), (1.0,))).mid == -2.0
