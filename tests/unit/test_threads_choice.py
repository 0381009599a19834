"""The number of threads as a first, quick choice: when it is open, its order, and the plans built on it."""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
from sketches import HERE, INDUCTOR, a_history, a_trial, an_inspection, make_measurement

import torchwise as tw
from live_decisions import make_decision
from torchwise.compile import settings
from torchwise.compile import settings as module
from torchwise.compile.settings import OwnCount, SharedCount, thread_count
from torchwise.plan import EAGER, Plan, PlanSpace
from torchwise.plan.choice import CHOICES, load_choices
from torchwise.plan.effort import EFFORTS
from torchwise.records import CoreUse, Measurement, Trial
from torchwise.study.decision import decide
from torchwise.study.history import History
from torchwise.study.samplers import StagedSampler
from torchwise.trial.inspection import SHORT_S, _core_traits, _gpu_row_traits
from torchwise.workload import Example, Workload

load_choices()  # in their own order, before one of them is imported by itself
CHOICE = importlib.import_module("torchwise.plan.choices.threads")
WAITING = CHOICE.WAITING
ONE, TWO = Plan(threads=1), Plan(threads=2)
ON_ONE = replace(INDUCTOR, threads=1)
CONTENDED = CoreUse(cpus=8, threads=8, others=1.0, waited=0.3)
TRAITS = frozenset({"module", "floating", "float32", "gemm", "contended_cores", "short_calls"})


def untold(plan: Plan, low: float, high: float) -> Trial:
    """Return a trial whose own process, the only one, could not tell whether the plan is faster."""
    return a_trial(plan, measurement=make_measurement(low, high), repeats=(), cold_s=0.0)


UNSURE = untold(ONE, 0.8, 28.4)


@pytest.fixture(autouse=True)
def eight_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the choices of a machine with eight cores, a quota of two and no other compilers, on any machine."""
    others = {
        key: choice for key, choice in CHOICES.items() if (key[0] != "threads" or key[1] == "*") and not choice.packages
    }
    counts = [
        CHOICE._threads(1, ("repeats", "long", *WAITING)),
        CHOICE._threads(2, ("repeats", "long", *WAITING)),
        CHOICE._threads(4),
    ]
    monkeypatch.setattr("torchwise.plan.choice.CHOICES", others | {choice.key: choice for choice in counts})


def make_history(
    *trials: Trial, traits: frozenset[str] = TRAITS, cores: CoreUse = CONTENDED, eager_s: float = 0.088
) -> History:
    measurement = Measurement((eager_s,), (eager_s,), cores=cores)
    inspection = an_inspection(measurement=measurement, traits=traits, operators=14)
    return a_history(*trials, inspection=inspection, calls=10_000_000, device="cpu")


def ask_plan(history: History, effort: str = "quick") -> Plan | None:
    space = PlanSpace("cpu", "inference", history.inspection.traits, effort=effort)
    proposal = StagedSampler(space).ask(history)
    return proposal.plan if proposal else None


def all_asked(history: History, effort: str = "quick", speed: float = 1.0) -> list[Plan]:
    found: list[Plan] = []
    while (plan := ask_plan(history, effort)) is not None:
        found.append(plan)
        history = replace(history, trials=(*history.trials, a_trial(plan, speed, cold_s=0.1)))
    return found


# ---- when it is tried


@pytest.mark.parametrize("trait", ["contended_cores", "short_calls"])
def test_threads_are_tried_first_and_quickly_where_they_may_wait(trait: str) -> None:
    history = make_history(traits=(TRAITS - {"contended_cores", "short_calls"}) | {trait})
    first, second, third = all_asked(history)[:3]
    assert {first, second} == {ONE, TWO}
    assert third == INDUCTOR
    assert ask_plan(make_history(traits=TRAITS - {"contended_cores", "short_calls"})) == INDUCTOR


def test_on_a_gpu_threads_are_not_tried() -> None:
    history = make_history()
    history = replace(history, workload=replace(history.workload, device="cuda"))
    proposal = StagedSampler(PlanSpace("cuda", "inference", TRAITS, effort="quick")).ask(history)
    assert proposal is not None
    assert proposal.plan.threads is None


def test_the_number_that_eager_has_is_not_tried() -> None:
    history = make_history(cores=replace(CONTENDED, threads=1))
    assert ONE not in all_asked(history, "thorough")
    assert TWO in all_asked(history, "thorough")


def test_threads_alone_take_no_compiled_plan_s_place() -> None:
    compiled = [plan for plan in all_asked(make_history()) if plan.backend != "eager"]
    without = [plan for plan in all_asked(make_history(traits=TRAITS - set(WAITING))) if plan.backend != "eager"]
    assert compiled == without
    trials = [a_trial(Plan(threads=16 + number)) for number in range(EFFORTS["quick"].max_trials)]
    assert ask_plan(make_history(*trials, cores=replace(CONTENDED, threads=4))) is not None


@pytest.mark.parametrize(
    ("quota", "count"), [(None, None), (8.0, None), (16.0, None), (7.9, 7), (1.5, 1), (0.25, 1), (2.0, 2)]
)
def test_a_quota_below_the_cores_gives_a_whole_number_of_threads(quota: float | None, count: int | None) -> None:
    assert CHOICE.count_within_quota(8, quota) == count


@pytest.mark.parametrize(
    ("device", "steady_s", "samples", "cores", "traits"),
    [
        ("cpu", SHORT_S / 2, (0.088,), CONTENDED, {"short_calls", "contended_cores", "row_regions"}),
        ("cpu", 0.088, (0.088, SHORT_S / 2), None, {"short_calls", "row_regions"}),
        ("cpu", 0.088, (0.088,), CONTENDED, {"contended_cores"}),
        ("cpu", 0.088, (0.088,), replace(CONTENDED, others=0.0, waited=0.0), set()),
        ("cuda", SHORT_S / 2, (0.088,), CONTENDED, set()),
    ],
)
def test_an_inspection_sees_short_calls_and_contended_cores(
    device: str, steady_s: float, samples: tuple[float, ...], cores: CoreUse | None, traits: set[str]
) -> None:
    assert set(_core_traits(device, Measurement(samples, samples, cores=cores), steady_s, {}, 99)) == traits


@pytest.mark.parametrize(
    ("share", "operators", "device", "is_open"),
    [
        (0.0, 99, "cpu", True),
        (0.5, 99, "cpu", False),
        (0.0, 3, "cpu", False),
        (0.0, None, "cpu", False),
        (0.0, 99, "cuda", False),
    ],
)
def test_an_inspection_sees_calls_that_compute_number_by_number(
    share: float, operators: int | None, device: str, is_open: bool
) -> None:
    found = _core_traits(device, Measurement((0.088,), (0.088,)), 0.088, {"gemm": share}, operators)
    assert ("row_regions" in found) is is_open


@pytest.mark.parametrize(
    ("changes", "is_open"),
    [
        ({}, True),
        ({"device": "cpu"}, False),
        ({"operators": 3}, False),
        ({"operators": None}, False),
        ({"call_s": 0.04}, False),
        ({"conv": 0.3}, False),
        ({"width": 1 << 11}, False),
    ],
)
def test_an_inspection_sees_many_short_kernels_of_few_weights(changes: dict[str, Any], is_open: bool) -> None:
    given = {"device": "cuda", "operators": 100, "call_s": 0.01, "conv": 0.0, "width": 8} | changes
    model = torch.nn.Linear(given["width"], 1 << 10, device="meta")
    workload = Workload(model, (Example((torch.ones(1, given["width"], device="meta"),)),))
    measured = Measurement((given["call_s"],), (given["call_s"],))
    found = _gpu_row_traits(workload, given["device"], measured, {"conv": given["conv"]}, given["operators"])
    assert ("row_regions" in found) is is_open


# ---- plans that are built on it


def test_compiled_plans_have_the_number_of_threads_that_won() -> None:
    history = make_history(a_trial(ONE, 800.0, cold_s=0.0), a_trial(TWO, 1.1, cold_s=0.0), eager_s=8.8)
    assert ask_plan(history) == ON_ONE


def test_no_compiled_plan_waits_as_eager_does_before_all_that_do_not() -> None:
    history = make_history(a_trial(ONE, 800.0, cold_s=0.0), a_trial(TWO, 1.1, cold_s=0.0), eager_s=8.8)
    compiled = a_trial(ON_ONE, 700.0, cold_s=1.0)
    asked = all_asked(replace(history, trials=(*history.trials, compiled)), speed=600.0)
    assert asked[0] == ON_ONE.with_choice("options", ("freezing", True))


def test_compiled_plans_have_the_better_number_also_where_it_is_not_sure() -> None:
    history = make_history(UNSURE, untold(TWO, 0.7, 1.2))
    assert history.incumbent() == EAGER
    assert ask_plan(history) == ON_ONE
    quiet = make_history(UNSURE, untold(TWO, 0.7, 1.2), traits=TRAITS - {"contended_cores"})
    assert ask_plan(quiet) == INDUCTOR
    slower = make_history(a_trial(ONE, 0.5, 0.9, cold_s=0.0), a_trial(TWO, 0.5, 0.9, cold_s=0.0))
    assert ask_plan(slower) == INDUCTOR


def test_every_number_is_tried_before_anything_is_compiled() -> None:
    assert ask_plan(make_history(UNSURE)) == TWO
    assert ask_plan(make_history(a_trial(ONE, 800.0, cold_s=0.0))) == TWO


def test_a_decision_names_the_cause_and_what_it_costs() -> None:
    cause = "Other programs hold 1.0 of 8 cores: eager with 8 threads takes 88.0 ms a call"
    assert f"{cause}, with 1 thread 110 µs." in decide(make_history(a_trial(ONE, 800.0, cold_s=0.0)), HERE).reason
    again = "When those programs have ended, tune again: more threads may be faster then."
    assert decide(make_history(a_trial(ONE, 800.0, cold_s=0.0)), HERE).reason.endswith(f"with 1 thread 110 µs. {again}")
    limited = replace(CONTENDED, others=0.0, quota=1.0)
    assert again not in decide(make_history(a_trial(ONE, 800.0, cold_s=0.0), cores=limited), HERE).reason
    left = decide(make_history(), HERE).reason
    assert left.endswith(f"{cause}. Fewer threads wait less: set OMP_NUM_THREADS, or approve a plan with `threads`.")
    unsure = decide(make_history(a_trial(ONE, 0.8, 28.4, cold_s=0.0)), HERE)
    assert unsure.is_inconclusive
    assert "Other programs hold" in unsure.reason
    on_one = make_history(cores=replace(CONTENDED, threads=1, others=8.0))
    assert "OMP_NUM_THREADS" not in decide(on_one, HERE).reason
    free = make_history(a_trial(ONE, 800.0), cores=replace(CONTENDED, others=0.0, waited=0.0))
    assert "cores" not in decide(free, HERE).reason


def test_what_threads_alone_do_is_on_the_scale_of_all_other_times() -> None:
    trial = a_trial(ONE, 800.0, cold_s=0.0)  # eager took a second beside it
    history = make_history(trial)
    assert history.seconds_of(ONE) == pytest.approx(0.088 / 800)
    assert "with 1 thread 110 µs" in decide(history, HERE).reason


def test_what_is_no_figure_is_told_by_what_was_timed_side_by_side() -> None:
    pair = Measurement((1e-4, 4e-4, 1e-4), (0.04, 0.02, 0.06))  # its interval reaches from 50 to 600
    history = make_history(a_trial(ONE, measurement=pair, repeats=(), cold_s=0.0))
    assert "eager with 8 threads takes 40.0 ms a call, with 1 thread 100 µs" in decide(history, HERE).reason


# ---- served


class Asked(torch.nn.Module):
    """Notes how many threads its calls have, and raises if it is told to."""

    seen: ClassVar[list[int]] = []
    raises = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen.append(torch.get_num_threads())
        if self.raises:
            raise ValueError("as it was told")
        return x + 1


@pytest.fixture(params=["own", "shared"])
def served(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Asked, Any, int]]:
    """A model, its plan of one thread more than the program has, and that number, with either way to set it."""
    if request.param == "shared":
        shared = SharedCount()
        monkeypatch.setattr(settings, "thread_count", lambda: shared)
    elif not isinstance(thread_count(), OwnCount):
        pytest.skip("the libraries of this PyTorch have no functions of their own")
    model, x, before = Asked().eval(), torch.ones(2), torch.get_num_threads()
    yield model, tw.apply(model, make_decision(model, Plan(threads=before + 1), x)), before
    assert torch.get_num_threads() == before


def test_a_served_plan_holds_its_threads_for_its_own_calls_alone(served: tuple[Asked, Any, int]) -> None:
    model, fast, before = served
    for _ in range(3):
        fast(torch.ones(2))
        assert torch.get_num_threads() == before
    assert model.seen[-3:] == [before + 1] * 3
    tw.unwrap(fast)(torch.ones(2))
    assert model.seen[-1] == before


def test_a_served_call_that_raises_puts_the_program_s_number_back(served: tuple[Asked, Any, int]) -> None:
    model, fast, before = served
    fast(torch.ones(2))  # after a first call that fails, its notes are undone
    model.raises = True
    with pytest.raises(ValueError, match="as it was told"):
        fast(torch.ones(2))
    assert model.seen[-2:] == [before + 1, before], "the plan's call, and the original's in its place"
    assert torch.get_num_threads() == before


def test_threads_of_the_program_that_call_at_once_each_find_their_number_again(served: tuple[Asked, Any, int]) -> None:
    _, fast, before = served
    after: list[int] = []

    def call() -> None:
        for _ in range(200):
            fast(torch.ones(2))
            after.append(torch.get_num_threads())

    run_in_threads(call, call)
    assert after == [before] * 400


def test_a_thread_that_begins_to_compute_during_a_call_has_the_program_s_number() -> None:
    if not isinstance(thread_count(), OwnCount):
        pytest.skip("the libraries of this PyTorch have no functions of their own")
    before, seen = torch.get_num_threads(), list[int]()

    def call(x: torch.Tensor) -> torch.Tensor:
        run_in_threads(lambda: seen.append(torch.get_num_threads()))
        seen.append(torch.get_num_threads())
        return x

    tw.apply(call, make_decision(call, Plan(threads=before + 1), torch.ones(1)))(torch.ones(1))
    assert seen[-2:] == [before, before + 1]


@pytest.mark.parametrize("number", [1, 3])
def test_a_thread_s_own_number_comes_back_and_no_other_thread_s(number: int) -> None:
    if not isinstance(thread_count(), OwnCount):
        pytest.skip("the libraries of this PyTorch have no functions of their own")
    before, seen = torch.get_num_threads(), list[int]()
    fast = tw.apply(torch.neg, make_decision(torch.neg, Plan(threads=before + 1), torch.ones(1)))

    def call() -> None:
        torch.set_num_threads(number)
        fast(torch.ones(1))
        seen.append(torch.get_num_threads())

    run_in_threads(call)
    fast(torch.ones(1))
    assert (seen, torch.get_num_threads()) == ([number], before)
    torch.set_num_threads(before)  # the number for threads that begin later


def test_libraries_without_such_functions_leave_pytorch_s_own_number(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: str) -> None:
        raise OSError(path)

    monkeypatch.setattr(module.ctypes, "PyDLL", refuse)
    assert module._find_own_count() is None
    monkeypatch.setattr(module.ctypes, "PyDLL", lambda path: SimpleNamespace())
    assert module._find_own_count() is None
    ignored = SimpleNamespace(omp_set_num_threads=lambda n: None, MKL_Set_Num_Threads_Local=lambda n: 0)
    monkeypatch.setattr(module.ctypes, "PyDLL", lambda path: ignored)
    assert module._find_own_count() is None, "PyTorch does not heed it"


def run_in_threads(*works: Callable[[], object]) -> None:
    threads = [threading.Thread(target=work) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
