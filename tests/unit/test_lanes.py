"""How many plans a search tries at once, on which cores, and that its workers keep to them."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from sketches import an_inspection

from torchwise.errors import InputError
from torchwise.measure import device_lock
from torchwise.plan.workload_spec import TuneOptions, WorkloadSpec
from torchwise.records import Inspection
from torchwise.study import Request, lanes
from torchwise.study.lanes import Lane, count_lanes, divide_cores, open_lanes

GIB = 2**30
MODEL = an_inspection(device_memory=2 * GIB)
Machine = Callable[..., None]


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Machine:
    """Return a function that makes this a machine of so many cores and so much free memory. It has plenty at first."""

    def change(
        cores: int = 64,
        quota: float | None = None,
        host: float = 512,
        device: float | None = 128,
        mode: str = "Default",
    ) -> None:
        rows = [] if device is None else [[f"{device * 1024:.0f}", mode]]
        free = psutil.virtual_memory()._replace(available=int(host * GIB))
        monkeypatch.setattr(lanes.environment, "usable_cpus", lambda: frozenset(range(cores)))
        monkeypatch.setattr(lanes.environment, "cpu_quota", lambda: quota)
        monkeypatch.setattr(lanes.environment, "query_gpu", lambda _fields: rows)
        monkeypatch.setattr(lanes.psutil, "virtual_memory", lambda: free)

    monkeypatch.delenv(device_lock.OWN_CORES, raising=False)
    monkeypatch.delenv(lanes.RANKS, raising=False)
    monkeypatch.setattr(device_lock.tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr(lanes, "TOPOLOGY", tmp_path)
    change()
    return change


def ask(device: str = "cuda", workers: int | None = None, **options: Any) -> Request:
    return Request(WorkloadSpec("zoo:anything", device=device), workers=workers, **options)  # type: ignore[arg-type]


def count(request: Request, inspection: Inspection = MODEL, *, is_local: bool = True) -> int:
    return count_lanes(request, inspection, is_local=is_local)[0]


@pytest.mark.parametrize(
    ("has", "expected"),
    [
        ({"cores": 3}, 1),
        ({"cores": 4}, 2),
        ({"cores": 6}, 2),
        ({"cores": 7}, 3),
        ({"cores": 9}, 4),
        ({"cores": 128}, 4),
        ({"quota": 3.9}, 1),
        ({"quota": 5.5}, 2),
        ({"quota": 100.0}, 4),
        ({"host": 7}, 1),
        ({"host": 25}, 3),
        ({"device": 8}, 1),
        ({"device": 27}, 3),
        ({"device": None}, 1),
        ({"mode": "Exclusive_Process"}, 1),
    ],
)
def test_the_number_follows_from_cores_and_from_free_memory(
    machine: Machine, has: dict[str, float | None], expected: int
) -> None:
    """A trial of the model may need 9 GiB of the GPU: four times its own memory, and 1 GiB for libraries."""
    machine(**has)
    assert count(ask()) == expected


@pytest.mark.parametrize(
    ("request_", "is_local", "said"),
    [
        (ask("cpu", workers=3), True, "on a CPU the cores are the device"),
        (ask(workers=3), False, "a device of a cluster has one worker"),
        (ask(workers=3, wait=True, budget_s=9.0), True, "for whom it waits"),
    ],
)
def test_there_is_one_lane_where_a_worker_cannot_have_cores_of_its_own(
    request_: Request, is_local: bool, said: str
) -> None:
    number, why = count_lanes(request_, MODEL, is_local=is_local)
    assert number == 1
    assert said in why


def test_a_process_that_has_cores_of_its_own_does_not_divide_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(device_lock.OWN_CORES, "1")
    assert count(ask()) == 1
    monkeypatch.setenv(device_lock.OWN_CORES, "0")
    assert count(ask()) == 1, "others work on its cores"


@pytest.mark.parametrize(("ranks", "expected"), [("", 4), ("1", 4), ("8", 1)])
def test_the_processes_of_a_distributed_program_share_the_cores(
    monkeypatch: pytest.MonkeyPatch, ranks: str, expected: int
) -> None:
    monkeypatch.setenv(lanes.RANKS, ranks)
    assert count(ask()) == expected


def test_the_user_may_ask_for_fewer_and_for_more(machine: Machine) -> None:
    assert [count(ask(workers=number)) for number in (1, 2, 6)] == [1, 2, 6]
    machine(cores=9)
    assert count_lanes(ask(workers=6), MODEL, is_local=True) == (4, "9 cores may be used")


def test_without_the_model_s_memory_no_two_are_on_the_gpu() -> None:
    assert count(ask(), an_inspection()) == 1


@pytest.mark.parametrize("number", [0, -1, 2.0, "2", True])
def test_a_number_of_workers_that_is_none_is_refused(number: Any) -> None:
    with pytest.raises(InputError, match=r"workers is .*, but must be a whole number of at least 1, or None"):
        Request.from_options(TuneOptions(workers=number), "zoo:anything", "cuda")


def test_one_plan_is_tried_at_a_time_by_default() -> None:
    assert Request(WorkloadSpec("zoo:anything", device="cuda")).workers == 1
    assert Request.from_options(TuneOptions(), "zoo:anything", "cuda").workers == 1


def test_all_lanes_have_equally_many_cores_and_one_is_left_over(machine: Machine) -> None:
    machine(cores=16)
    found = divide_cores(range(16), 4)
    assert [lane.number for lane in found] == [0, 1, 2, 3]
    assert {len(lane.cores) for lane in found} == {3}
    assert len({core for lane in found for core in lane.cores}) == 12
    assert 15 not in {core for lane in found for core in lane.cores}


def test_the_two_threads_of_a_core_are_in_one_lane(machine: Machine, tmp_path: Path) -> None:
    machine(cores=10)
    for core in range(10):
        folder = tmp_path / f"cpu{core}" / "topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(f"{core % 5},{core % 5 + 5}\n")
    assert [lane.cores for lane in divide_cores(range(10), 2)] == [(0, 5, 1, 6), (2, 7, 3, 8)]


def test_under_a_quota_no_more_cores_are_used_than_it_allows(machine: Machine) -> None:
    machine(cores=64, quota=8.0)
    assert sum(len(lane.cores) for lane in divide_cores(range(64), 3)) == 6


def _search_meanwhile(found: Any) -> None:
    with open_lanes(ask(), MODEL, is_local=True) as (lanes_, why):
        found.put((len(lanes_), why))


def test_one_search_at_a_time_divides_the_cores() -> None:
    context = multiprocessing.get_context("fork")
    found = context.Queue()
    for expected in ((1, "another search has divided the cores among its workers"), (4, "no more were asked for")):
        other = context.Process(target=_search_meanwhile, args=(found,))
        if expected[0] == 1:
            with open_lanes(ask(), MODEL, is_local=True) as (own, _):
                assert len(own) == 4
                other.start()
                assert found.get(timeout=30) == expected
        else:
            other.start()
            assert found.get(timeout=30) == expected
        other.join(10)


def test_without_a_folder_for_locks_there_is_one_lane(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr(device_lock.tempfile, "gettempdir", lambda: str(tmp_path / "file"))
    with open_lanes(ask(), MODEL, is_local=True) as (found, _):
        assert found == (Lane(),)
