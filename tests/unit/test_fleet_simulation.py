"""The simulation of large fleets, where the answer is known by hand."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture
def simulation(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    return importlib.import_module("fleet_simulation")


def test_a_store_that_takes_no_time_slows_nobody(simulation: ModuleType) -> None:
    found = simulation.Fleet(simulation.Service(0, 0, 1, 0, 1e6, 1e9), 50, 20.0).run(2.0)
    assert found.efficiency == pytest.approx(1, abs=0.05)
    assert (found.store_busy, found.wait_s) == (0, 0)
    assert found.roll_out_s == pytest.approx(0.05)


def test_a_store_that_is_at_work_all_the_time_bounds_the_trials(simulation: ModuleType) -> None:
    service = simulation.Service(read=0.1, write=0.1, share=1, think=0, artifact_bytes=0, bandwidth=1)
    most = simulation.most_devices(service, 20.0)
    assert 28 <= most <= 32  # 0.606 s of the store for 20 s of a trial, and 0.1 for 30 s of a heartbeat
    many = simulation.Fleet(service, 10 * most, 20.0).run(1.0)
    assert many.store_busy == pytest.approx(1, abs=0.02)
    assert many.efficiency == pytest.approx(0.1, abs=0.05)
    assert many.wait_s > 10
    few = simulation.Fleet(service, most // 2, 20.0).run(2.0)
    assert few.efficiency > 0.9
    assert few.store_busy == pytest.approx(0.5, abs=0.08)


def test_what_is_served_side_by_side_bears_more(simulation: ModuleType) -> None:
    services = [simulation.Service(0.1, 0.1, share, 0, 0, 1) for share in (1, 0.25)]
    alone, beside = (simulation.Fleet(service, 120, 20.0).run(1.0).trials_per_hour for service in services)
    assert beside > 3 * alone


def test_a_store_is_timed_as_it_is(simulation: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulation, "RUNS", 3)
    monkeypatch.setattr(simulation, "side_by_side", lambda *_: 10.0)
    found = simulation.measure_service(str(tmp_path / "fleet.db"), 1e7, 1e9, 1)
    assert 0 < found.read < 1
    assert 0 < found.write < 1
    assert found.share == min(0.1 / (found.read + 2 * found.write), 1)
    assert "devices" in "\n".join(simulation.table(found, [simulation.Fleet(found, 1, 20.0).run(0.1)], 20.0))
