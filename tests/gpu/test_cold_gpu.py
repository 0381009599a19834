"""Cold caches on a real GPU: its L2 is empty before a call, and a study shows both speed-ups."""

from __future__ import annotations

import statistics
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from torchwise.measure.clock import Clock  # noqa: E402
from torchwise.measure.memory import make_eviction  # noqa: E402
from torchwise.measure.paired_timing import Mix, Precision, measure_pair  # noqa: E402
from torchwise.plan import Plan  # noqa: E402
from torchwise.plan.workload_spec import WorkloadSpec  # noqa: E402
from torchwise.records.listener import Listener  # noqa: E402
from torchwise.store import open_storage  # noqa: E402
from torchwise.study import Request, run_study  # noqa: E402
from torchwise.trial import ProcessLauncher  # noqa: E402

pytestmark = pytest.mark.gpu

SLEEP_CYCLES = 200_000
"""Some 0.1 ms of GPU time, in which the host enqueues the timed kernel, so that its time holds no launch."""
TIMES = 60


def l2_bytes() -> int:
    return torch.cuda.get_device_properties(0).L2_cache_size


def kernel_s(x: torch.Tensor, clock: Clock) -> float:
    """Return the median time of a kernel that reads `x` once, as the clock has it called."""
    found = []

    def call() -> None:
        torch.cuda._sleep(SLEEP_CYCLES)
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        x.sum()
        end.record()
        end.synchronize()
        found.append(begin.elapsed_time(end) / 1e3)

    for _ in range(TIMES):
        clock.time(call, 1)
    return statistics.median(found[TIMES // 6 :])


def test_what_fits_into_the_l2_takes_longer_where_that_was_emptied() -> None:
    x = torch.ones(l2_bytes() // 3 // 4, device="cuda")  # a third of the L2, in float32: half may lie in it twice
    hot, cold = (kernel_s(x, Clock("cuda", evict=evict)) for evict in (None, make_eviction("cuda")))
    assert cold > 1.2 * hot, f"{cold * 1e6:.1f} µs with an empty L2, {hot * 1e6:.1f} µs without"


def test_the_buffer_is_larger_than_the_l2_and_goes_with_its_user() -> None:
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    evict = make_eviction("cuda")
    evict()
    assert torch.cuda.memory_allocated() - before >= 2 * l2_bytes()
    del evict
    assert torch.cuda.memory_allocated() == before


def test_the_clock_starts_once_the_caches_are_empty() -> None:
    """Emptying takes longer than the call by far, and is in neither time."""
    evict, x = make_eviction("cuda"), torch.ones(1024, device="cuda")

    def slow() -> None:
        torch.cuda._sleep(50_000_000)  # some 30 ms
        evict()

    side = Mix((lambda: x + 1,), (1.0,))
    found = measure_pair(side, side, Clock("cuda", evict=slow), Precision(0.05, 1.0))
    assert found.calls_per_round == 1
    assert found.candidate_time.mid < 5e-3
    assert max(map(statistics.median, (found.candidate_device_s, found.baseline_device_s))) < 5e-3


@pytest.mark.slow
def test_a_study_tells_the_speed_up_with_cold_caches_or_why_there_is_none(tmp_path: Path) -> None:
    spec = WorkloadSpec("zoo:tutorial.many_small_ops", device="cuda", calls=10**7)
    request = Request(spec, plans=(Plan(capture="call"),), effort="quick", cold=True)
    with open_storage(str(tmp_path / "store.db")) as storage:
        study = run_study(request, storage, ProcessLauncher(), Listener())
    trial = study.trials[0]
    assert study.decision is not None
    if study.decision.plan.is_eager:  # as on a GPU that others use
        assert any("eager stays" in line for line in study.excluded)
    else:
        assert trial.cold_speedups
        assert trial.repeats[-1].cold_speedup is not None
        assert all(process.candidate_s for process in trial.processes)
