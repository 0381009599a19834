"""Who has the cores: control groups and counters of made-up systems, whole and broken, and the resulting notes."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from torchwise.environment import cpu_quota, read_throttled_s, usable_cpus
from torchwise.measure import quality as module
from torchwise.measure.quality import MIN_S, CoreWatch, _load
from torchwise.records import CoreUse, Measurement, codec
from torchwise.records.measurement import describe_contention
from torchwise.records.trial import eager_measured

FREE = CoreUse(cpus=2, threads=2, others=0.05, waited=0.001, preempted=1.0, pressure=0.01)
HELD = replace(FREE, others=1.02, waited=0.4, pressure=0.9)


def write(folder: Path, **files: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text)


# ---- control groups


def test_the_tightest_quota_of_the_control_groups_holds(tmp_path: Path) -> None:
    own, root = tmp_path / "own", tmp_path / "root"
    inner = root / "pod" / "container"
    inner.mkdir(parents=True)
    own.write_text("0::/pod/container\n")
    assert cpu_quota(root, own) is None
    write(inner, cpu__max="max 100000\n")
    write(root / "pod", cpu__max="250000 100000\n")
    assert cpu_quota(root, own) == 2.5
    write(inner, cpu__max="150000 100000\n")
    assert cpu_quota(root, own) == 1.5


@pytest.mark.parametrize("controller", ["cpu", "cpu,cpuacct"])
def test_quotas_of_version_1_are_read_at_the_root_and_in_the_own_group(tmp_path: Path, controller: str) -> None:
    own, base = tmp_path / "own", tmp_path / controller
    own.write_text(f"3:memory:/elsewhere\n4:{controller}:/pod/container\n0::/\n")
    for quota, expected in (("300000", 3.0), ("-1", None)):
        write(base, cpu__cfs_quota_us=quota, cpu__cfs_period_us="100000\n")
        assert cpu_quota(tmp_path, own) == expected
    write(base / "pod" / "container", cpu__cfs_quota_us="50000", cpu__cfs_period_us="100000")
    assert cpu_quota(tmp_path, own) == 0.5


def test_the_time_for_which_groups_were_stopped_is_read_in_both_versions(tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.write_text("0::/pod\n")
    assert read_throttled_s(tmp_path, own) is None
    write(tmp_path / "pod", cpu__stat="usage_usec 9\nnr_throttled 3\nthrottled_usec 2500000\n")
    assert read_throttled_s(tmp_path, own) == 2.5
    write(tmp_path / "cpu", cpu__stat="nr_periods 1\nnr_throttled 1\nthrottled_time 500000000\n")
    assert read_throttled_s(tmp_path, own) == 3.0


@pytest.mark.parametrize("text", ["", "nonsense", "max", "0 100000", "100000 0", "\0", "12"])
def test_files_that_say_something_else_set_no_limit(tmp_path: Path, text: str) -> None:
    own = tmp_path / "own"
    own.write_text(f"{text}\n::\n0::/..{text}\n" if "\0" not in text else text)
    write(tmp_path, cpu__max=text, cpu__stat=f"throttled_usec {text}", cpu__cfs_quota_us=text)
    assert cpu_quota(tmp_path, own) in (None, 12 / 100000)
    assert read_throttled_s(tmp_path, own) in (None, 12e-6)


# ---- the counters of the system


def a_system(folder: Path, waited_s: float, pressure_s: float) -> None:
    task = folder / "self" / "task" / str(threading.get_native_id())
    write(task, schedstat=f"{10**9} {int(waited_s * 1e9)} 42\n")
    figures = "avg10=0.00 avg60=0.00 avg300=0.00"
    total = int(pressure_s * 1e6)
    write(folder / "pressure", cpu=f"some {figures} total={total}\nfull {figures} total=7\n")


def test_what_the_system_counted_meanwhile_is_told_as_shares_of_the_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, cpu, busy = iter([100.0, 110.0]), iter([5.0, 9.0]), iter([300.0, 314.0])
    monkeypatch.setattr(
        module, "time", SimpleNamespace(perf_counter=lambda: next(clock), process_time=lambda: next(cpu))
    )
    monkeypatch.setattr(module, "_read_busy", lambda: next(busy))
    switches = iter([100, 130])
    usage = SimpleNamespace(getrusage=lambda _: SimpleNamespace(ru_nivcsw=next(switches)), RUSAGE_SELF=0)
    monkeypatch.setattr(module, "resource", usage)
    a_system(tmp_path, 1.0, 2.0)
    write(tmp_path / "group", cpu__max="150000 100000", cpu__stat="throttled_usec 1000000")
    watch = CoreWatch(tmp_path, (tmp_path / "group", tmp_path / "none"))
    a_system(tmp_path, 6.0, 9.0)
    write(tmp_path / "group", cpu__max="150000 100000", cpu__stat="throttled_usec 3000000")
    found = watch.read_use(2)
    assert found == CoreUse(
        cpus=len(usable_cpus()) or os.cpu_count() or 1,
        threads=2,
        others=pytest.approx(1.0),  # 14 seconds of work in 10, of which 4 were this process's own
        waited=pytest.approx(0.5),
        preempted=pytest.approx(3.0),
        pressure=pytest.approx(0.7),
        quota=1.5,
        throttled=pytest.approx(0.2),
    )


@pytest.mark.parametrize("text", ["", "1", "1 x 2", "some total=x\nfull total=1", "\0"])
def test_where_the_system_does_not_tell_nothing_is_known(
    tmp_path: Path, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(percpu: bool) -> None:
        raise psutil.AccessDenied

    write(tmp_path / "self" / "task" / str(threading.get_native_id()), schedstat=text)
    write(tmp_path / "pressure", cpu=text)
    monkeypatch.setattr(module, "MIN_S", 0.0)
    monkeypatch.setattr(module, "resource", None)
    monkeypatch.setattr(psutil, "cpu_times", refuse)
    found = CoreWatch(tmp_path, (tmp_path / "none", tmp_path / "none")).read_use(1)
    assert found == CoreUse(found.cpus, 1)
    assert not found.is_contended


def test_a_moment_tells_nothing_of_other_programs() -> None:
    assert CoreWatch().read_use(1).others is None


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no such counters")
def test_a_program_that_computes_is_seen_and_this_one_is_not() -> None:
    core = min(usable_cpus())
    endless = f"import os\nos.sched_setaffinity(0, {{{core}}})\nprint(flush=True)\nwhile True: pass"
    with subprocess.Popen([sys.executable, "-c", endless], stdout=subprocess.PIPE) as busy:
        assert busy.stdout is not None
        busy.stdout.readline()
        watch, before = CoreWatch(), psutil.Process(busy.pid).cpu_times().user
        threading.Event().wait(4 * MIN_S)
        found = watch.read_use(2)
        used = psutil.Process(busy.pid).cpu_times().user - before
        busy.kill()
    assert found.others is not None
    assert found.others * 4 * MIN_S > used / 2  # other programs may well have computed, too


# ---- conclusions


@pytest.mark.parametrize(
    ("cores", "cause"),
    [
        (FREE, None),
        (replace(FREE, threads=1, others=1.02), None),
        (replace(FREE, cpus=64, threads=32, others=8.0), None),
        (replace(FREE, cpus=64, threads=64, others=8.0), "Other programs hold 8.0 of 64 cores"),
        (HELD, "Other programs hold 1.0 of 2 cores"),
        (replace(HELD, threads=1, others=1.9), "Other programs hold 1.9 of 2 cores"),
        (replace(FREE, others=None, waited=0.4), "Threads waited for one of 2 cores for 40% of the time"),
        (replace(FREE, threads=8), "8 threads share 2 cores"),
        (replace(FREE, cpus=1, threads=2), "2 threads share 1 core"),
        (replace(FREE, cpus=8, threads=8, quota=1.5), "The container may use 1.5 of 8 cores"),
        (replace(FREE, cpus=8, threads=1, quota=1.5), None),
        (replace(FREE, cpus=8, threads=8, quota=8.0), None),
        (
            replace(FREE, cpus=8, threads=2, quota=2.0, throttled=0.3),
            "The container may use 2 of 8 cores, and was stopped for 30% of the time",
        ),
        (CoreUse(2, 2), None),
    ],
)
def test_cores_are_contended_where_threads_wait_for_one(cores: CoreUse, cause: str | None) -> None:
    assert cores.cause == cause
    assert cores.is_contended is (cause is not None)


def test_the_cause_and_what_it_costs_are_one_sentence() -> None:
    assert describe_contention(HELD, {2: 0.088, 1: 1e-4}) == (
        "Other programs hold 1.0 of 2 cores: eager with 2 threads takes 88.0 ms a call, with 1 thread 100 µs"
    )
    assert describe_contention(FREE, {2: 1e-4}, "a small model") == (
        "All cores are free: a small model with 2 threads takes 100 µs a call"
    )


def test_a_measurement_keeps_how_cores_were_shared_and_is_read_without() -> None:
    measurement = Measurement((0.1,), (0.2,), cores=HELD)
    data = codec.to_builtins(measurement)
    assert codec.from_builtins(data, Measurement) == measurement
    del data["cores"]
    assert codec.from_builtins(data, Measurement).cores is None


def test_a_note_says_what_other_processes_used() -> None:
    assert _load(HELD) == ["other processes used 1.0 of 2 cores meanwhile"]
    assert _load(FREE) == _load(None) == _load(replace(HELD, others=None)) == []


# ---- eager's own use of cores


def make_measurement(seconds: float, cores: CoreUse = FREE) -> Measurement:
    return Measurement((seconds,), (seconds,), cores=cores)


def test_eager_takes_what_it_takes_while_its_threads_wait_where_they_mostly_do() -> None:
    looked_at, quick, slow = make_measurement(0.088, HELD), make_measurement(0.0001, HELD), make_measurement(0.05, HELD)
    assert eager_measured(looked_at, []) is looked_at
    assert eager_measured(looked_at, [quick, slow]) is slow
    assert eager_measured(quick, [looked_at]) is looked_at


def test_a_moment_of_waiting_tells_nothing_of_eager() -> None:
    held, free = make_measurement(0.088, HELD), make_measurement(0.0001)
    assert eager_measured(held, [free]) is free
    assert eager_measured(free, [held]) is free
    assert eager_measured(held, [make_measurement(0.00002, HELD), free, free]) is free
