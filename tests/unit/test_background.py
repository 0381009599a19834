"""Tuning beside a program that serves: which plans are promoted, which are not, and that no call is wrong or fails."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import torch

import torchwise
from builders import PASSED, a_measurement, a_study, a_trial
from live_decisions import make_decision
from torchwise import Alert
from torchwise.compile.aot import Code
from torchwise.errors import BudgetError, InputError
from torchwise.plan import Plan
from torchwise.plan.workload_spec import WorkloadSpec
from torchwise.records import Check as CheckOf
from torchwise.records import CheckName, Costs, Failure, FailureKind, Interval, Outcome, Study, codec
from torchwise.runtime import Dispatcher
from torchwise.runtime.background import protocol, search, tuning
from torchwise.runtime.background.aot_worker import AotCode, CheckResult, _keeps_no_state
from torchwise.runtime.background.first_call import answers_alike
from torchwise.runtime.background.protocol import Message, Order
from torchwise.runtime.call_guard import VerifiedInputs
from torchwise.runtime.fallback_reason import FallbackReason
from torchwise.runtime.missed_inputs import MissedInputs
from torchwise.runtime.served import swap
from torchwise.study import Request
from torchwise.study.apply_approvals import ApprovalPolicy
from torchwise.trial.job import Attempt
from torchwise.workload import Example, Workload
from torchwise.workload.identity import describe_example

THREADS = Plan(threads=1)
SERVE = Path(__file__).parents[1] / "targets" / "serve.py"
X = torch.randn(4, 8)
SEARCH = "sys.stdin.read()"
"""Searches until it is told to end, as the real process does."""


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x).sin()


@pytest.fixture(autouse=True)
def no_collection(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have no start of a search collect the garbage of all tests before it, which takes half a second."""
    monkeypatch.setattr(tuning, "_import_compiler", lambda: None)


@pytest.fixture
def alerts() -> Iterator[list[Alert]]:
    heard: list[Alert] = []
    remove = torchwise.on_alert(heard.append)
    yield heard
    remove()


@pytest.fixture
def child(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Put a program of our own in the place of the process that searches."""
    real = subprocess.Popen

    def put(*lines: str, then: str = "") -> None:
        program = "import sys, time, os\n" + "".join(f"print({line!r}, flush=True)\n" for line in lines) + then
        monkeypatch.setattr(
            tuning.subprocess, "Popen", lambda command, **options: real([sys.executable, "-c", program], **options)
        )

    return put


def build_promotion(model: Any, plan: Plan = THREADS, **changes: Any) -> str:
    decision = make_decision(model, plan, X, error=1e-6)
    return codec.to_json(Message("promoted", f"plan {plan}", decision.to_json(), **{"extra_calls": "any", **changes}))


DONE = codec.to_json(Message("done", "the search is over"))


def optimize_model(model: Any, **options: Any) -> Any:
    return torchwise.optimize(model, (X,), background=True, effort="quick", **options)


def test_the_original_answers_until_a_plan_is_promoted_and_then_the_plan(child: Callable[..., None]) -> None:
    model = Model().eval()
    child(build_promotion(model), DONE)
    with torch.no_grad():
        fast = optimize_model(model)
        assert fast.background.wait_for_plan(30)
        assert fast.background.wait(30)
        assert fast.background.state == "done"
        fast.background.stop()
        assert fast.background.state == "done", "there was nothing to stop"
        assert fast.decision.plan == THREADS
        torch.testing.assert_close(fast(X), model(X))
    assert fast.statistics.optimized == 1
    assert not fast.statistics.original


def test_the_thread_that_loads_gives_way_often_and_leaves_the_setting_as_it_was(
    child: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    before, seen = sys.getswitchinterval(), list[float]()
    monkeypatch.setattr(tuning, "stale_because", lambda *_: seen.append(sys.getswitchinterval()))
    model = Model().eval()
    child(build_promotion(model), DONE)
    fast = optimize_model(model)
    assert fast.background.wait(30)
    assert seen == pytest.approx([tuning.SWITCH_S])
    assert sys.getswitchinterval() == before


def test_a_function_is_swapped_as_well(child: Callable[..., None]) -> None:
    child(build_promotion(torch.sin), DONE)
    with torch.no_grad():
        fast = optimize_model(torch.sin)
        assert fast.background.wait(30)
        torch.testing.assert_close(fast(X), X.sin())
    assert fast.decision.plan == THREADS


def test_the_counts_go_on_when_a_plan_is_swapped_in(child: Callable[..., None], tmp_path: Path) -> None:
    model, found = Model().eval(), tmp_path / "found"
    wait = f"import pathlib\nwhile not pathlib.Path({str(found)!r}).exists(): time.sleep(0.01)\n"
    news = "".join(f"print({line!r}, flush=True)\n" for line in (build_promotion(model), DONE))
    child(then=wait + news)
    with torch.no_grad():
        fast = optimize_model(model)
        fast(X)
        found.touch()
        assert fast.background.wait(30)
        fast(X)
    assert (fast.statistics.optimized, fast.statistics.original) == (1, {FallbackReason.TUNING_IN_BACKGROUND: 1})
    assert fast.statistics.fallback_rate == 0


def test_it_answers_before_anything_is_found(child: Callable[..., None], caplog: pytest.LogCaptureFixture) -> None:
    model = Model().eval()
    child(then=SEARCH)
    with torch.no_grad(), caplog.at_level("INFO", "torchwise"):
        fast = optimize_model(model)
        torch.testing.assert_close(fast(X), model(X))
    assert fast.background.state == "searching"
    assert fast.statistics.original == {FallbackReason.TUNING_IN_BACKGROUND: 1}
    assert fast.decision.plan.is_eager
    assert "decision is to stay" not in caplog.text
    fast.background.stop()
    assert fast.background.state == "stopped"


@pytest.mark.parametrize("last", [DONE, codec.to_json(Message("failed", "no memory"))])
def test_calls_after_a_search_that_found_nothing_are_not_counted_as_during_it(
    child: Callable[..., None], last: str
) -> None:
    model = Model().eval()
    child(codec.to_json(Message("stays", "Stay with eager.")), last)
    with torch.no_grad():
        fast = optimize_model(model)
        assert fast.background.wait(30)
        torch.testing.assert_close(fast(X), model(X))
    assert fast.statistics.original == {FallbackReason.BACKGROUND_TUNING_ENDED: 1}


def test_eight_threads_call_while_plans_are_swapped(child: Callable[..., None]) -> None:
    """Every answer is right, and none raises."""
    model = Model().eval()
    inputs = [torch.randn(4, 8) for _ in range(8)]
    with torch.no_grad():
        right = [model(x) for x in inputs]
    child(then=SEARCH)
    fast = optimize_model(model)
    wrong: list[str] = []
    over = threading.Event()

    def call(x: torch.Tensor, expected: torch.Tensor) -> None:
        with torch.no_grad():
            while not over.is_set():
                try:
                    if not torch.allclose(fast(x), expected, atol=1e-5):
                        wrong.append("another answer")
                except Exception as error:
                    wrong.append(repr(error))

    threads = [threading.Thread(target=call, args=pair) for pair in zip(inputs, right, strict=True)]
    for thread in threads:
        thread.start()
    for threads_of_plan in (1, 2, 1, 2, 1):
        swap(fast, Dispatcher(model, make_decision(model, Plan(threads=threads_of_plan), X)))
        time.sleep(0.1)
    over.set()
    for thread in threads:
        thread.join()
    fast.background.stop()
    assert not wrong
    assert fast.statistics.optimized > 0


@pytest.mark.parametrize("then", ["os._exit(9)", "os.kill(os.getpid(), 9)", "print('no news', flush=True)"])
def test_a_search_that_dies_costs_no_call(child: Callable[..., None], alerts: list[Alert], then: str) -> None:
    model = Model().eval()
    child(codec.to_json(Message("searching", "effort quick")), then=then)
    with torch.no_grad():
        fast = optimize_model(model)
        assert fast.background.wait(30)
        torch.testing.assert_close(fast(X), model(X))
    assert fast.background.state == "failed"
    assert [alert.kind for alert in alerts] == ["background_failed"]


def test_a_search_that_dies_after_a_promotion_leaves_the_plan(child: Callable[..., None]) -> None:
    model = Model().eval()
    child(build_promotion(model), then="os._exit(9)")
    with torch.no_grad():
        fast = optimize_model(model)
        assert fast.background.wait(30)
        torch.testing.assert_close(fast(X), model(X))
    assert fast.background.state == "failed"
    assert fast.statistics.optimized == 1


def test_a_model_that_changed_meanwhile_keeps_its_own_answers(child: Callable[..., None]) -> None:
    model = Model().eval()
    child(build_promotion(model), DONE)
    model.layer = torch.nn.Linear(8, 3)
    with torch.no_grad():
        fast = optimize_model(model)
        assert fast.background.wait(30)
        assert fast(X).shape == (4, 3)
    assert [news.kind for news in fast.background.news] == ["left", "done"]
    assert "the model or machine changed" in fast.background.news[0].text


def test_code_that_is_not_what_was_written_is_not_loaded(child: Callable[..., None], tmp_path: Path) -> None:
    model = Model().eval()
    file = tmp_path / "0.code"
    sha256 = protocol.write_code(file, [Code(b"code", True)])
    assert protocol.read_code(file, sha256) == [Code(b"code", True)]
    file.write_bytes(b"other")
    child(build_promotion(model, Plan(backend="inductor"), file=str(file), sha256=sha256), DONE)
    with torch.no_grad():
        fast = optimize_model(model)
        assert fast.background.wait(30)
        torch.testing.assert_close(fast(X), model(X))
    assert "its code is not loaded" in fast.background.news[0].text
    assert fast.decision.plan.is_eager


class Wrong:
    """Code that answers slightly wrong."""

    loaded = 0

    def __init__(self, codes: list[Code]) -> None:
        self.codes = codes

    def load(self) -> None:
        Wrong.loaded += 1

    def __call__(self, call: Any, plan: Plan) -> Any:
        return lambda x: call(x) * 1.01


def test_code_is_loaded_before_the_swap_also_for_a_model_that_may_not_be_called(
    child: Callable[..., None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The program's first call must not wait for seconds."""
    model = Model().eval()
    file = tmp_path / "0.code"
    sha256 = protocol.write_code(file, [])
    monkeypatch.setattr(tuning, "Loader", Wrong)
    before = Wrong.loaded
    child(build_promotion(model, Plan(backend="inductor"), file=str(file), sha256=sha256, extra_calls="none"), DONE)
    fast = optimize_model(model)
    assert fast.background.wait(30)
    assert Wrong.loaded == before + 1
    assert fast.background.is_promoted


class Noisy(Model):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) + torch.randn_like(x)


class Counting(Wrong):
    """Code that draws random numbers, and counts its calls."""

    called = 0

    def __call__(self, call: Any, plan: Plan) -> Any:
        def call_and_count(x: torch.Tensor) -> torch.Tensor:
            Counting.called += 1
            torch.randint(0, 9, (2,), out=torch.empty(2, dtype=torch.int64))
            return call(x)

        return call_and_count


@pytest.mark.parametrize(("extra_calls", "called"), [("undrawn", 1), ("none", 0)])
def test_a_plan_that_draws_random_numbers_is_called_once_without_drawing_any(
    extra_calls: str, called: int, child: Callable[..., None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A request need not wait for its kernels to be loaded, and a seed still gives the numbers that it gave."""
    model = Noisy().eval()
    file = tmp_path / "0.code"
    sha256 = protocol.write_code(file, [])
    monkeypatch.setattr(tuning, "Loader", Counting)
    monkeypatch.setattr(Counting, "called", 0)
    child(
        build_promotion(model, Plan(backend="inductor"), file=str(file), sha256=sha256, extra_calls=extra_calls), DONE
    )
    torch.manual_seed(3)
    before = torch.get_rng_state()
    fast = optimize_model(model)
    assert fast.background.wait(30)
    assert fast.background.is_promoted
    assert Counting.called == called
    assert torch.equal(torch.get_rng_state(), before)


def test_a_plan_that_draws_in_an_unknown_way_is_swapped_in_without_a_call(
    child: Callable[..., None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def refuses(*_: Any) -> None:
        raise NotImplementedError("no kernel on meta")

    model, file = Noisy().eval(), tmp_path / "0.code"
    monkeypatch.setattr(tuning, "Loader", Counting)
    monkeypatch.setattr(tuning, "warm_up_plan", refuses)
    sha256 = protocol.write_code(file, [])
    child(build_promotion(model, Plan(backend="inductor"), file=str(file), sha256=sha256, extra_calls="undrawn"), DONE)
    fast = optimize_model(model)
    assert fast.background.wait(30)
    assert fast.background.is_promoted


def test_a_plan_that_answers_otherwise_here_is_not_swapped_in(
    child: Callable[..., None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    model = Model().eval()
    file = tmp_path / "0.code"
    sha256 = protocol.write_code(file, [])
    monkeypatch.setattr(tuning, "Loader", Wrong)
    child(build_promotion(model, Plan(backend="inductor"), file=str(file), sha256=sha256), DONE)
    with torch.no_grad():
        fast = optimize_model(model)
        assert fast.background.wait(30)
        torch.testing.assert_close(fast(X), model(X))
    assert "its answer differs from the original's" in fast.background.news[0].text


@pytest.mark.parametrize(("require", "learns"), [((), True), (("deterministic",), True), (("batch-invariant",), False)])
def test_no_second_plan_answers_other_sizes_where_samples_must_keep_their_bits(
    require: tuple[str, ...], learns: bool, child: Callable[..., None]
) -> None:
    child(DONE)
    fast = optimize_model(Model().eval(), require=require)
    assert fast.background.wait(30)
    assert fast.background._learns is learns


def test_a_program_that_was_frozen_stays_as_it_is(child: Callable[..., None]) -> None:
    model = Model().eval()
    child(then=f"time.sleep(2); print({build_promotion(model)!r}, flush=True); print({DONE!r}, flush=True)")
    with torch.no_grad():
        fast = optimize_model(model)
        torchwise.freeze(fast)
        assert fast.background.wait(30)
        assert fast.decision.plan.is_eager
        torch.testing.assert_close(fast(X), model(X))
    assert "frozen" in fast.background.news[0].text


def test_a_plan_that_fails_here_is_not_swapped_in() -> None:
    model = Model().eval()

    def fails(*_: Any) -> Any:
        raise RuntimeError("no such kernel")

    dispatcher = Dispatcher(model, make_decision(model, Plan(backend="inductor"), X), backend=lambda call, plan: fails)
    found = answers_alike(dispatcher, Workload(model, (Example((X,)),)))
    assert found
    assert "does not answer the example inputs" in found


def test_the_search_ends_with_what_it_is_for(child: Callable[..., None]) -> None:
    child(then="sys.stdin.read()")
    fast = optimize_model(Model().eval())
    process = psutil.Process(fast.background._process.pid)
    del fast
    gc.collect()
    process.wait(20)


def test_stopping_ends_the_process_and_keeps_the_plan(child: Callable[..., None], alerts: list[Alert]) -> None:
    model = Model().eval()
    child(build_promotion(model), then="sys.stdin.read()")
    fast = optimize_model(model)
    assert fast.background.wait_for_plan(30)
    folder = fast.background._folder
    fast.background.stop()
    assert fast.background._process.poll() is not None
    assert not folder.exists()
    assert fast.decision.plan == THREADS
    assert not alerts


def test_copies_and_pickles_leave_the_search_behind(child: Callable[..., None]) -> None:
    import copy

    child(then=SEARCH)
    fast = optimize_model(Model().eval())
    twin = copy.deepcopy(fast)
    assert "background" not in vars(twin)
    fast.background.stop()


def test_training_is_refused() -> None:
    with pytest.raises(InputError, match="background search supports only inference"):
        optimize_model(Model(), mode="training")


def test_what_is_no_wrapper_cannot_be_swapped() -> None:
    model = Model()
    with pytest.raises(InputError, match=r"only a module or function from torchwise\.apply"):
        swap(model, Dispatcher(model, make_decision(model, THREADS, X)))


def test_an_order_is_the_same_after_a_file() -> None:
    order = Order(Request(WorkloadSpec("live:m")), ("quick", "standard"), None, ("/a",))
    assert codec.from_json(codec.to_json(order), Order) == order


@pytest.mark.parametrize(
    ("plan", "expected"),
    [
        (Plan(backend="inductor", scope="regional"), Plan(backend="inductor")),
        (Plan(backend="inductor", scope="rolled", capture="call"), Plan(backend="inductor", capture="call")),
        (Plan(backend="inductor", mode="reduce-overhead"), Plan(backend="inductor", capture="call")),
        (
            Plan(backend="inductor", mode="max-autotune"),
            Plan(backend="inductor", mode="max-autotune-no-cudagraphs", capture="call"),
        ),
        (Plan(backend="inductor", options=(("freezing", True),)), Plan(backend="inductor")),
        (Plan(capture="call"), Plan(capture="call")),
        (Plan(backend="row_programs", threads=1), Plan(backend="row_programs", threads=1)),
    ],
)
def test_what_a_plan_becomes_that_cannot_be_carried_over(plan: Plan, expected: Plan) -> None:
    assert search.adapt_to_aot(plan) == expected


class Workers:
    """Answers for the workers that make and check."""

    def __init__(
        self, speedups: dict[Plan, float], failing: tuple[Plan, ...] = (), clock: list[float] | None = None
    ) -> None:
        self.speedups, self.failing, self.clock = speedups, failing, clock
        self.digests: list[str] = []  # of the answers of the processes that check, in their order
        self.asked: list[tuple[str, Plan]] = []
        self.limits_s: list[float] = []

    def run(self, job: Any, limits: Any, on_stage: Any) -> str | Failure:
        plan = job.job.plan
        self.limits_s.append(limits.end_s)
        if self.clock is not None:  # a worker that takes all the time that it may
            self.clock[0] += limits.end_s
        self.asked.append((job.step, plan))
        if plan in self.failing:
            return Failure(FailureKind.RAISED, "compile ahead", "UnsupportedError: it depends on G['x']")
        if job.step == "make":
            return codec.to_json(AotCode("0" * 64, {"avx2": True}))
        digest = self.digests.pop(0) if self.digests else ""
        found = Attempt(Costs(0.5), PASSED, a_measurement(self.speedups[plan]), digest=digest)
        return codec.to_json(CheckResult(found, "any"))


COMPILED, CAPTURED = Plan(backend="inductor"), Plan(capture="call")


def prepare_results(workers: Workers, best: Interval | None = None) -> tuple[Message | None, list[Message]]:
    """Prepare the results of a study in which `COMPILED` leads and `CAPTURED` follows."""
    study = a_study((a_trial(0, COMPILED, 3.0), a_trial(1, CAPTURED, 2.0)), decided=0)
    told: list[Message] = []
    request = Request(WorkloadSpec("live:m"), effort="quick")
    return search._prepare_plan(
        request, study, Path("/nowhere/0.code"), workers, best, told.append, ApprovalPolicy(())
    ), told


@pytest.mark.parametrize("lacks", [False, True])
def test_a_slower_plan_is_promoted_if_eager_lacks_a_required_property(lacks: bool) -> None:
    lack = CheckOf(CheckName.DETERMINISTIC, Outcome.FAIL, "on input 1 output differs")
    study = a_study((a_trial(0, COMPILED, 0.8), a_trial(1, CAPTURED, 0.7)), decided=0)
    study = replace(study, inspection=replace(study.inspection, properties=(lack,) if lacks else ()))
    request, told = Request(WorkloadSpec("live:m", require=("deterministic",)), effort="quick"), []  # type: ignore[arg-type, var-annotated]
    workers = Workers({COMPILED: 0.8, CAPTURED: 0.7})
    promoted = search._prepare_plan(
        request,
        study,
        Path("/nowhere/0.code"),
        workers,
        None,
        told.append,
        ApprovalPolicy(()),  # type: ignore[arg-type]
    )
    assert (promoted is not None) is lacks
    candidates = search._candidates(study, study.decision, ApprovalPolicy(()))  # type: ignore[arg-type]
    assert candidates == ([COMPILED, CAPTURED] if lacks else [COMPILED])


@pytest.mark.parametrize("is_writable", [True, False])
def test_inductor_takes_the_place_of_row_programs_only_where_they_cannot_be_carried_over(is_writable: bool) -> None:
    rows = Plan(backend="row_programs")
    study = a_study((a_trial(0, rows, 3.0), a_trial(1, CAPTURED, 2.0)), decided=0)
    assert search._candidates(study, study.decision, ApprovalPolicy(())) == [rows, COMPILED, CAPTURED]  # type: ignore[arg-type]
    workers = Workers({rows: 3.0, COMPILED: 2.0}, failing=() if is_writable else (rows,))
    request, told = Request(WorkloadSpec("live:m"), effort="quick"), list[Message]()
    file, rules = Path("/nowhere/0.code"), ApprovalPolicy(())
    promoted = search._prepare_plan(request, study, file, workers, None, told.append, rules)  # type: ignore[arg-type]
    assert promoted is not None
    assert promoted.parse_decision().plan == (rows if is_writable else COMPILED)
    assert [news.kind for news in told] == ([] if is_writable else ["left"])


@pytest.mark.parametrize(("digests", "is_promoted"), [(["a", "a"], True), (["a", "b"], False)])
def test_loaded_code_must_give_equal_bits_in_two_processes(digests: list[str], is_promoted: bool) -> None:
    workers = Workers({COMPILED: 3.0, CAPTURED: 0.5})
    workers.digests = digests
    promoted, told = prepare_results(workers)
    assert workers.asked[:3] == [("make", COMPILED), ("check", COMPILED), ("check", COMPILED)]
    assert (promoted is not None) is is_promoted
    if not is_promoted:
        assert "not verified: deterministic: another process gives other bits" in told[0].text


def test_cold_caches_are_timed_in_the_last_search_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[tuple[str, bool]] = []

    def run_study(request: Request, *_: Any, **__: Any) -> Study:
        asked.append((request.effort, request.cold))
        return a_study(decided=99)

    monkeypatch.setattr(search, "run_study", run_study)
    order = Order(Request(WorkloadSpec("live:m"), cold=True), ("quick", "standard"), str(tmp_path / "s.db"), ())
    search.search(order, tmp_path, Workers({}), lambda news: None)  # type: ignore[arg-type]
    assert asked == [("quick", False), ("standard", True)]


def test_a_search_in_the_background_leaves_cores_and_memory_to_the_program(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[int | None] = []

    def run_study(request: Request, *_: Any, **__: Any) -> Study:
        asked.append(request.workers)
        return a_study(decided=99)

    monkeypatch.setattr(search, "run_study", run_study)
    order = Order(Request(WorkloadSpec("live:m"), workers=None), ("quick",), str(tmp_path / "s.db"), ())
    search.search(order, tmp_path, Workers({}), lambda news: None)  # type: ignore[arg-type]
    assert asked == [1]


class Searched:
    """Stands in for the search: it takes all the time that it may, by a clock, and finds `COMPILED`."""

    def __init__(self, clock: list[float]) -> None:
        self.clock = clock
        self.asked: list[tuple[str, float | None]] = []

    def __call__(self, request: Request, *_: Any, **__: Any) -> Study:
        self.asked.append((request.effort, request.budget_s))
        self.clock[0] += request.budget_s or 1000.0
        return a_study((a_trial(0, COMPILED, 3.0),), decided=0)


@pytest.fixture
def searched(monkeypatch: pytest.MonkeyPatch) -> Searched:
    clock = [1000.0]
    monkeypatch.setattr(search, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    found = Searched(clock)
    monkeypatch.setattr(search, "run_study", found)
    return found


def carry_out(folder: Path, workers: Workers, budget_s: float | None = None, **changes: Any) -> list[Message]:
    order = Order(Request(WorkloadSpec("live:m"), budget_s=budget_s), ("quick", "standard"), None, (), **changes)
    told: list[Message] = []
    search.search(replace(order, store=str(folder / "s.db")), folder, workers, told.append)
    return told


def test_a_budget_holds_for_all_searches_and_for_the_code_of_their_plans(tmp_path: Path, searched: Searched) -> None:
    workers = Workers({COMPILED: 3.0}, clock=searched.clock)
    told = carry_out(tmp_path, workers, 90.0, started=970.0)
    assert searched.asked == [("quick", pytest.approx(40.0))], "30 s were spent, and a third is for the code"
    assert [limit for limit in workers.limits_s if limit <= 20] == workers.limits_s
    assert searched.clock[0] <= 1060.0
    assert (told[-1].kind, told[-1].text) == ("left", "the budget of 90 s is spent")


def test_an_early_search_leaves_time_for_the_thorough_one(tmp_path: Path, searched: Searched) -> None:
    carry_out(tmp_path, Workers({COMPILED: 3.0}), 3600.0, started=1000.0)
    (quick, first_s), (standard, second_s) = searched.asked
    assert (quick, standard, first_s) == ("quick", "standard", 120.0)
    assert second_s is not None
    assert 2000 < second_s < 2400


def test_without_a_budget_each_effort_has_its_own_limit(tmp_path: Path, searched: Searched) -> None:
    workers = Workers({COMPILED: 3.0})
    carry_out(tmp_path, workers)
    assert searched.asked == [("quick", None), ("standard", None)]
    assert min(workers.limits_s) == float("inf")


@pytest.mark.parametrize(("minimum", "kinds"), [(2.5, {"promoted"}), (3.5, {"left"})])
def test_a_plan_must_reach_the_minimum_speedup(
    tmp_path: Path, searched: Searched, minimum: float, kinds: set[str]
) -> None:
    told = carry_out(tmp_path, Workers({COMPILED: 3.0}), minimum_speedup=minimum)
    assert {news.kind for news in told} - {"searching", "stays"} == kinds
    if kinds == {"left"}:
        assert told[-1].text.endswith("and minimum_speedup is 3.5")
        assert told[-1].parse_decision().plan == COMPILED


def test_a_budget_that_ends_within_a_search_is_no_failure(
    tmp_path: Path, searched: Searched, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run_out(request: Request, *rest: Any, **options: Any) -> Study:
        if request.effort == "standard":
            raise BudgetError("the budget of 90 s is spent before any plan was tried")
        return searched(request, *rest, **options)

    monkeypatch.setattr(search, "run_study", run_out)
    told = carry_out(tmp_path, Workers({COMPILED: 3.0}))
    assert [news.kind for news in told] == ["searching", "promoted", "searching", "left"]


def test_what_was_decided_is_made_checked_and_promoted() -> None:
    workers = Workers({COMPILED: 2.9})
    found, told = prepare_results(workers)
    assert workers.asked == [("make", COMPILED), ("check", COMPILED)]
    assert found is not None
    assert found.parse_decision().plan == COMPILED
    assert found.parse_decision().speedup is not None
    assert found.parse_decision().speedup.mid == pytest.approx(2.9, rel=0.05), "as loaded, not as searched"
    assert (found.file, found.sha256, found.checks) == ("/nowhere/0.code", "0" * 64, {"avx2": True})
    assert not told


def test_what_cannot_be_made_leaves_the_place_to_the_next() -> None:
    workers = Workers({CAPTURED: 1.9}, failing=(COMPILED,))
    found, told = prepare_results(workers)
    assert found is not None
    assert found.parse_decision().plan == CAPTURED
    assert found.file == ""
    assert [news.kind for news in told] == ["left"]
    assert "depends on G['x']" in told[0].text


def test_what_is_not_faster_here_is_left() -> None:
    found, told = prepare_results(Workers({COMPILED: 0.9, CAPTURED: 0.8}))
    assert found is None
    assert [news.kind for news in told] == ["left", "left"]


def test_a_later_tier_must_be_better_than_what_answers() -> None:
    found, told = prepare_results(Workers({COMPILED: 3.0}), Interval(2.9, 3.0, 3.1))
    assert found is None
    assert [news.kind for news in told] == ["stays"]
    found, _ = prepare_results(Workers({COMPILED: 4.0}), Interval(2.9, 3.0, 3.1))
    assert found is not None


def call_often(fast: Any, x: torch.Tensor, times: int = 1001) -> None:
    for _ in range(times):
        fast(x)


def wait_for_promotions(fast: Any, number: int) -> bool:
    """Wait until so many plans were swapped in, as a second search begins in a thread of its own."""
    end = time.monotonic() + 30
    while time.monotonic() < end:
        if [news.kind for news in fast.background.news].count("promoted") == number and fast.background.wait(30):
            return True
        time.sleep(0.01)
    return False


@pytest.fixture
def orders(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Workload, Order]]:
    """Note each order that is written."""
    written: list[tuple[Workload, Order]] = []
    real = tuning.write_order

    def note_order(workload: Workload, order: Order) -> Path:
        written.append((workload, order))
        return real(workload, order)

    monkeypatch.setattr(tuning, "write_order", note_order)
    return written


def test_sizes_that_miss_too_often_get_a_plan_behind_the_first_one(
    child: Callable[..., None], orders: list[tuple[Workload, Order]]
) -> None:
    model, others = Model().eval(), [torch.randn(rows, 8) for rows in (6, 9)]
    child(build_promotion(model), DONE)
    with torch.no_grad():
        fast = optimize_model(model, budget=90)
        assert fast.background.wait(30)
        decision = make_decision(model, Plan(threads=2), others[0])
        decision = replace(decision, inputs=tuple(describe_example(Example((x,))) for x in others))
        child(codec.to_json(Message("promoted", "for other sizes", decision.to_json())), DONE)
        call_often(fast, others[0], 990)
        assert len(orders) == 1, "few calls say nothing"
        call_often(fast, others[1], 20)
        assert wait_for_promotions(fast, 2)
        missed = fast.statistics.original[FallbackReason.INPUTS_NOT_VERIFIED]
        for x in (X, *others):
            torch.testing.assert_close(fast(x), model(x))
        assert fast.statistics.optimized == 3, "both plans answer now"
        assert fast.statistics.original[FallbackReason.INPUTS_NOT_VERIFIED] == missed
        call_often(fast, torch.randn(3, 8))
    assert len(orders) == 2, "it searches once more, and not for ever"
    workload, order = orders[1]
    assert [tuple(example.args[0].shape) for example in workload.examples] == [(4, 8), (6, 8), (9, 8)]
    assert [example.weight for example in workload.examples[:2]] == [1.0, 990.0], "the mix that came"
    assert order.request.workload.sizes == "varying"
    assert order.request.budget_s == 90


def test_a_second_search_is_for_the_most_frequent_sizes(
    child: Callable[..., None], orders: list[tuple[Workload, Order]]
) -> None:
    model = Model().eval()
    child(build_promotion(model), DONE)
    with torch.no_grad():
        fast = optimize_model(model)
        assert fast.background.wait(30)
        for rows in range(5, 20):
            call_often(fast, torch.randn(rows, 8), 60 + rows)
    for thread in threading.enumerate():
        if thread.name == "torchwise-learning":
            thread.join(20)
    rows = [len(example.args[0]) for example in orders[1][0].examples]
    assert len(rows) == 1 + tuning.MAX_SIZES
    assert rows[0] == 4, "whose size tells which dimensions vary"
    fast.background.stop()


@pytest.mark.parametrize("what", ["stopped", "frozen", "fixed", "a few", "another type"])
def test_nothing_is_learnt_where_nothing_should_be(
    child: Callable[..., None], orders: list[tuple[Workload, Order]], what: str
) -> None:
    model = Model().double().eval() if what == "another type" else Model().eval()
    child(build_promotion(model), DONE)
    x = torch.randn(6, 8, dtype=torch.float64 if what == "another type" else torch.float32)
    with torch.no_grad():
        fast = optimize_model(model, sizes="fixed" if what == "fixed" else "as-given")
        assert fast.background.wait(30)
        if what == "stopped":
            fast.background.stop()
        if what == "frozen":
            torchwise.freeze(fast)
        if what == "another type":
            swap(fast, Dispatcher(model, make_decision(model, THREADS, X), learn=fast.background.learn))
        if what == "a few":  # 4 % of all calls
            swap(fast, Dispatcher(model, make_decision(model, THREADS, X), learn=fast.background.learn))
            call_often(fast, X, 1000)
        call_often(fast, x, 40 if what == "a few" else 1001)
    for thread in threading.enumerate():
        if thread.name == "torchwise-learning":
            thread.join(20)
    assert len(orders) == 1
    assert fast.statistics.original[FallbackReason.INPUTS_NOT_VERIFIED] >= 40


def learn_and_wait(fast: Any, times: int = 1) -> None:
    """Tell it of a missed size so many times at once, and wait until that has come to something."""
    missed = MissedInputs(VerifiedInputs(fast.decision.inputs, dynamic=False))
    missed.note(("key",), (torch.randn(6, 8),), {}, fast.statistics)
    for _ in range(times):
        fast.background.learn(missed.list_other_sizes())
    for thread in threading.enumerate():
        if thread.name == "torchwise-learning":
            thread.join(20)


def test_two_that_learn_at_once_begin_one_search(
    child: Callable[..., None], orders: list[tuple[Workload, Order]], alerts: list[Alert]
) -> None:
    model = Model().eval()
    child(build_promotion(model), DONE)
    fast = optimize_model(model)
    assert fast.background.wait(30)
    child(DONE)
    learn_and_wait(fast, 3)
    assert fast.background.wait(30)
    assert len(orders) == 2
    assert (fast.background.state, alerts) == ("done", [])


@pytest.mark.parametrize("what", ["dynamic", "stopped meanwhile"])
def test_a_second_search_that_is_of_no_use_does_not_begin(
    child: Callable[..., None], monkeypatch: pytest.MonkeyPatch, alerts: list[Alert], what: str
) -> None:
    model = Model().eval()
    child(build_promotion(model, Plan(shapes="dynamic", backend="inductor") if what == "dynamic" else THREADS), DONE)
    monkeypatch.setattr(tuning, "answers_alike", lambda *_: None)
    fast = optimize_model(model)
    assert fast.background.wait(30)
    assert fast.background.is_promoted
    folders: list[Path] = []

    def write(*order: Any) -> Path:
        folders.append(protocol.write_order(*order))
        fast.background.stop()
        return folders[-1]

    monkeypatch.setattr(tuning, "write_order", write)
    begun = fast.background._process
    learn_and_wait(fast)
    assert fast.background._process is begun
    assert [folder.exists() for folder in folders] == ([] if what == "dynamic" else [False])
    assert (fast.background.state, alerts) == ("done", [])


def test_a_second_search_that_dies_at_once_has_failed(child: Callable[..., None], alerts: list[Alert]) -> None:
    model = Model().eval()
    child(build_promotion(model), DONE)
    fast = optimize_model(model)
    assert fast.background.wait(30)
    child(then="os._exit(9)")
    learn_and_wait(fast)
    assert fast.background.wait(30)
    assert fast.background.state == "failed"
    assert [alert.kind for alert in alerts] == ["background_failed"]


def test_a_call_whose_size_is_missed_fails_for_no_search(monkeypatch: pytest.MonkeyPatch) -> None:
    model, asked = Model().eval(), list[object]()

    def refuse(missed: object) -> None:
        asked.append(missed)
        raise RuntimeError("can't start new thread")

    fast = Dispatcher(model, make_decision(model, THREADS, X), learn=refuse)
    monkeypatch.setattr(fast._fallbacks, "are_too_many", lambda *_: True)
    x = torch.randn(6, 8)
    with torch.no_grad():
        fast.set_frozen(True)
        torch.testing.assert_close(fast(x), model(x))
        assert not asked, "the one chance is for a program that may use it"
        fast.set_frozen(False)
        torch.testing.assert_close(fast(x), model(x))
        assert len(asked) == 1

        def take(*_: object) -> bool:  # as another thread does
            fast._learn = None
            return True

        fast._learn = refuse
        monkeypatch.setattr(fast._fallbacks, "are_too_many", take)
        torch.testing.assert_close(fast(x), model(x))


def test_kinds_may_come_while_they_are_listed() -> None:
    missed = MissedInputs(VerifiedInputs((), dynamic=False))

    class Kind:
        @property
        def is_other_size(self) -> bool:
            missed._kinds[len(missed._kinds)] = self
            return True

    missed._kinds["first"] = Kind()
    assert len(missed.list_other_sizes()) == 1


class Counts(torch.nn.Module):
    def __init__(self, kept: str) -> None:
        super().__init__()
        self.kept = kept
        self.calls = 0
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.kept == "buffer":
            self.count += 1
        if self.kept == "attribute":
            self.calls += 1
        return x


@pytest.mark.parametrize(("kept", "expected"), [("buffer", False), ("attribute", False), ("nothing", True)])
def test_a_model_that_keeps_state_is_not_called_once_more(kept: str, expected: bool) -> None:
    assert _keeps_no_state(Workload(Counts(kept), (Example((X,)),))) is expected


@pytest.mark.slow
@pytest.mark.nightly
def test_a_search_finds_proves_and_swaps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole process, with a real search, for a class of a script, which exists by that name here alone."""
    monkeypatch.setenv("TORCHWISE_BACKGROUND_PRIORITY", "normal")
    # Compiled code that divides a call between threads waits for the last of them, and so for a core that other tests
    # have: 1.06 times eager's speed, and left, where it is tens of times as fast.
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    ran = subprocess.run(
        [sys.executable, str(SERVE), str(tmp_path / "store.db"), "cpu", "none"],
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout.splitlines()[-1])
    assert found["state"] == "done", found
    assert found["plan"].startswith("inductor"), found
    assert found["wrong"] == 0
    assert found["compiled here"] == 0
    assert found["optimized"] > 0
