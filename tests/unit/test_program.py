"""A whole program: the modules that matter are tuned on their recorded inputs, and plans are put in their place."""

from __future__ import annotations

import copy
import gc
import math
import threading
import weakref
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import torchwise as tw
from builders import a_study
from live_decisions import make_decision
from torchwise._torch.modules import MODULE_CALL
from torchwise.compile.backends import inductor
from torchwise.errors import InputError
from torchwise.plan import EAGER, Plan
from torchwise.records import Interval
from torchwise.records.recording import RecordedModule, Recording
from torchwise.report.document import Table
from torchwise.report.recording import recording_document, sentence
from torchwise.runtime.api import Study
from torchwise.runtime.components.statistics import ComponentStatistics
from torchwise.runtime.program import StoredPlans, recorder, start_costs, tuning
from torchwise.runtime.program.recorder import CallRecorder
from torchwise.runtime.program.start_costs import WaitingPlan, explain_loss, keep_caches
from torchwise.runtime.program.stored import OTHER_FORM
from torchwise.store import open_storage
from torchwise.workload.identity import describe_example

THREADS = Plan(threads=torch.get_num_threads() + 1)
X = torch.randn(3, 4)


class Net(torch.nn.Module):
    def __init__(self, width: int = 2) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(4, 4), torch.nn.Linear(4, width)

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        x = self.second(self.first(x).relu())
        return x if mask is None else x * mask


class Pipeline:
    """As of a library: an object that holds modules, and returns what no tree knows."""

    def __init__(self) -> None:
        self.encoder, self.decoder = Net(4).eval(), Net().eval()
        self.steps = 3

    @torch.no_grad()
    def __call__(self, x: torch.Tensor) -> dict[str, Any]:
        for _ in range(self.steps):
            x = self.encoder(x, mask=None)
        return {"out": self.decoder(x), "pipe": self}


class Searches:
    """Decides for one plan at once, and remembers the requests."""

    def __init__(self, plan: Plan = THREADS) -> None:
        self.plan = plan
        self.asked: list[tuple[Any, Any]] = []
        self.changes: dict[str, Any] = {}
        self.takes_other_sizes: bool | None = None

    def __call__(self, request: Any, workload: Any, store: str | None, **_options: Any) -> Study:
        self.asked.append((request, workload))
        plan = request.plans[0] if request.plans else self.plan
        speedup = None if plan.is_eager else Interval(1.9, 2.0, 2.1)
        decision = replace(
            make_decision(workload.call, plan),
            inputs=tuple(describe_example(example) for example in workload.examples),
            speedup=speedup,
            workload=request.workload,
            **self.changes,
        )
        study = replace(a_study(), workload=request.workload, decision=decision)
        study = replace(study, inspection=replace(study.inspection, takes_other_sizes=self.takes_other_sizes))
        if store:
            with open_storage(store) as storage:
                inspection = replace(study.inspection, identity=f"{len(self.asked):016}")
                study = storage.import_study(replace(study, inspection=inspection))
        return Study(study)


def decide_at_once(monkeypatch: pytest.MonkeyPatch) -> Searches:
    """Put such searches in place. Plans with dynamic shapes run the graphs that Dynamo finds, without Inductor."""
    found = Searches()
    monkeypatch.setattr(tuning, "search", found)
    monkeypatch.setattr(tuning, "MIN_SHARE", 0.0)
    monkeypatch.setattr(recorder, "GRACE_S", 60.0)  # so that all calls are looked at, on a busy machine, too
    monkeypatch.setattr(inductor, "_inductor", lambda _options: lambda graph, _inputs: graph.forward)
    return found


@pytest.fixture
def searches(monkeypatch: pytest.MonkeyPatch) -> Searches:
    monkeypatch.setattr(start_costs, "MIN_TOLD_S", math.inf)  # a busy machine takes a second for a first call
    return decide_at_once(monkeypatch)


def test_a_program_is_tuned_on_the_calls_it_made(searches: Searches) -> None:
    net = Net().eval()

    def program(rows: int) -> str:
        with torch.no_grad():
            for _ in range(4):
                net(X[:1].expand(rows, 4), mask=torch.ones(2))
            net(X)
        return "done"

    state, kind = copy.deepcopy(net.state_dict()), type(net)
    report = tw.tune_program(program, 5)
    ((request, workload),) = searches.asked
    assert report.returned == "done"
    assert {(len(e.args[0]), e.weight) for e in workload.examples} == {(5, 4), (3, 1)}
    assert request.workload.target == "live:test_a_program_is_tuned_on_the_calls_it_made.<locals>.program/Net"
    with torch.no_grad():
        expected = net.first(X)
        net(X)
    module = report.modules[0]
    assert module.component is not None
    assert (module.component.statistics.optimized, module.component.statistics.original) == (1, {})
    report.restore()
    assert type(net) is kind
    assert all(torch.equal(net.state_dict()[name], value) for name, value in state.items())
    assert torch.equal(net.first(X), expected)
    report.restore()


def test_a_pipeline_is_optimized_in_place_and_restored(searches: Searches) -> None:
    pipe = Pipeline()
    expected, inside = pipe(X)["out"], dict(vars(pipe))
    fast = tw.optimize(pipe, run=lambda p: p(X))
    assert {module.record.name for module in fast.report.modules} == {"Net", "Net#2"}
    assert torch.equal(fast(X)["out"], expected)
    assert fast.steps == 3
    found = {m.record.calls: m.component.statistics.optimized for m in fast.report.modules if m.component}
    assert found == {3: 3, 1: 1}, "whichever took more time"
    assert fast.restore() is pipe
    assert vars(pipe) == inside
    assert type(pipe.encoder) is Net
    assert torch.equal(pipe(X)["out"], expected)


class Steps(torch.nn.Sequential):
    """An object with items that is entered, such as an encoder that is a sequence of its parts."""

    def __enter__(self) -> str:
        return "entered"

    def __exit__(self, *_error: object) -> None:
        self.is_left = True


def test_items_and_contexts_are_the_objects_own(searches: Searches) -> None:
    steps = Steps(Net().eval(), torch.nn.ReLU())
    fast: Any = tw.optimize(steps, run=lambda one: one(X))
    assert (len(fast), fast[0], [*fast]) == (2, steps[0], [*steps])
    with fast as entered:
        assert entered == "entered"
    assert steps.is_left
    del fast.is_left
    assert not hasattr(steps, "is_left")
    assert (type(copy.copy(fast)).__name__, len(copy.copy(fast))) == ("OptimizedProgram", 2)
    plain: Any = tw.optimize(Pipeline(), run=lambda one: one(X))
    with pytest.raises(TypeError, match="has no len"):
        len(plain)


def test_a_pipeline_ends_with_what_was_decided_in_one_line(
    searches: Searches, capsys: pytest.CaptureFixture[str]
) -> None:
    fast = tw.optimize(Pipeline(), run=lambda p: p(X))
    assert capsys.readouterr().err == f"torchwise: {sentence(fast.report.record)}\n"
    tw.optimize(Pipeline(), run=lambda p: p(X), progress=False)
    assert capsys.readouterr().err == ""


def test_the_calls_of_modules_are_in_proportion(searches: Searches) -> None:
    pipe = Pipeline()
    tw.tune_program(pipe, X, calls=300)
    most = max(request.workload.calls for request, _ in searches.asked)
    assert sorted(request.workload.calls for request, _ in searches.asked) in ([100, 300], [300, 900])
    assert {len(workload.examples) for _, workload in searches.asked} == {1}
    assert most in (300, 900)  # the module with the most time has 300


def test_a_module_inside_a_tuned_one_is_left_alone(searches: Searches) -> None:
    net = Net()

    def program() -> None:
        with torch.no_grad():
            for _ in range(50):
                net(X)
            net.first(X)

    report = tw.tune_program(program)
    assert len(searches.asked) == 1
    inner = next(module for module in report.modules if module.record.name == "Linear")
    assert "shares modules with Net" in inner.record.notes[0]


def test_a_module_that_cannot_be_tuned_does_not_stop_the_others(searches: Searches, monkeypatch: Any) -> None:
    def search(request: Any, workload: Any, store: str | None, **options: Any) -> Study:
        if workload.call.second.out_features == 4:
            raise InputError("it cannot be sent")
        return searches(request, workload, store, **options)

    monkeypatch.setattr(tuning, "search", search)
    report = tw.tune_program(Pipeline(), X)
    notes = {module.record.notes: module.component is not None for module in report.modules}
    assert notes == {("not tuned: it cannot be sent",): False, (): True}


def test_a_report_has_rows_with_plans(searches: Searches) -> None:
    report = tw.tune_program(Pipeline(), X)
    page, text = report._repr_html_(), repr(report)
    assert "live" not in page
    assert str(THREADS) in page
    assert text == "<TunedProgram Pipeline: 2 of 2 modules by a plan>"
    assert report.to_dict()["schema"] == "torchwise.recording/1"
    assert type(report.record).from_json(report.record.to_json()) == report.record


def test_what_was_only_counted_is_shown_as_missing() -> None:
    page = recording_document(Recording("program", 1.0, (RecordedModule("Net", "module", 3, 0.0),)))
    (table,) = [block for block in page.blocks if isinstance(block, Table)]
    assert table.rows[0].cells[:5] == ("Net", "0 %", "3", "–", "–")


def test_an_eager_decision_changes_nothing(searches: Searches) -> None:
    searches.plan = EAGER
    pipe = Pipeline()
    tw.tune_program(pipe, X)
    assert type(pipe.encoder) is Net


def test_training_and_autocast_are_tuned_as_they_were_called(searches: Searches) -> None:
    net = Net()

    def program() -> None:
        with torch.autocast("cpu", torch.bfloat16):
            net(X).sum().backward()

    tw.tune_program(program)
    ((request, workload),) = searches.asked
    assert request.workload.mode == "training"
    assert workload.call(X).dtype is torch.bfloat16


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: tw.tune_program(Pipeline(), X, mode="training"), "mode is given, but the recorded calls show it"),
        (lambda: tw.tune_program(Pipeline(), X, budget=-1.0), "budget is -1.0 s, but must be above 0"),
        (lambda: tw.tune_program(Pipeline(), X, effort="hasty"), "effort is 'hasty'"),
        (lambda: tw.tune_program(3), "fn is of type int, but must be a function"),
        (lambda: tw.optimize(Pipeline(), run="x"), "run is of type str, but must be a function"),
        (lambda: tw.optimize(Pipeline(), X, run=len), "run is given, and shows the inputs"),
    ],
)
def test_bad_input_is_named_with_the_way_out(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        call()


def test_a_later_run_uses_the_stored_plans_by_structure(searches: Searches, tmp_path: Path) -> None:
    store = str(tmp_path / "s.db")
    report = tw.tune_program(Pipeline(), X, store=store)
    report.restore()
    plans = StoredPlans("Pipeline", store)
    pipe = Pipeline()
    other = Net(7)
    with plans, torch.no_grad():
        pipe(X)
        other(X)
    assert sorted((name, found.statistics.optimized) for name, found in plans.placed) == [("Net", 1), ("Net", 3)]
    assert len(plans.notes) == 1
    assert "Net runs as written, as it was tuned in another form" in next(iter(plans.notes))
    assert type(other) is Net


WAITS_ON = "It is used once that is as long as its start"


@pytest.mark.parametrize(
    ("calls", "optimized", "said"),
    [
        (4, 0, f"200 ms on 4 calls. {WAITS_ON}"),
        (5, 0, "250 ms on 5 calls. Its next call would use it"),
        (6, 1, ""),
        (11, 6, ""),
    ],
)
def test_a_plan_is_used_once_it_would_have_saved_as_much_as_its_start(
    calls: int, optimized: int, said: str, searches: Searches, tmp_path: Path
) -> None:
    """So a run that is shorter than the plan's start is as quick as without it."""
    searches.changes = {"baseline_s": 0.1, "cold_s": 60.0, "warm_s": 0.25}

    @torch.no_grad()
    def program(times: int = 1) -> None:
        net = Net().eval()
        for _ in range(times):
            net(X)

    store = str(tmp_path / "s.db")
    tw.tune_program(program, store=store).restore()
    with StoredPlans(program.__qualname__, store) as plans:
        program(calls)
    assert [found.statistics.optimized for _, found in plans.placed] == ([optimized] if optimized else [])
    assert list(plans.notes) == (
        [f"Net ran as written: {THREADS} takes 250 ms to start, and would have saved about {said}"] if said else []
    )
    for _, _, by_plan, others in plans.list_calls():
        assert (by_plan, sum(others.values())) == (optimized, calls - optimized), "no call is lost"


def test_calls_in_another_form_before_the_plan_are_counted_too(searches: Searches, tmp_path: Path) -> None:
    @torch.no_grad()
    def program(*, warms_up: bool = False) -> None:
        net = Net().train() if warms_up else Net().eval()
        for _ in range(3 if warms_up else 0):
            net(X)
        for _ in range(2):
            net.eval()(X)

    store = str(tmp_path / "s.db")
    tw.tune_program(program, store=store).restore()
    with StoredPlans(program.__qualname__, store) as plans:
        program(warms_up=True)
    ((_, _, by_plan, others),) = plans.list_calls()
    assert (by_plan, others) == (2, {OTHER_FORM: 3})


def test_a_class_with_a_module_by_its_plan_is_not_said_to_run_as_written(searches: Searches, tmp_path: Path) -> None:
    searches.changes = {"baseline_s": 0.1, "cold_s": 0.25}

    @torch.no_grad()
    def program() -> None:
        nets = Net().eval(), Net().eval()
        for net in (nets[0], *[nets[1]] * 8):
            net(X)

    store = str(tmp_path / "s.db")
    tw.tune_program(program, store=store).restore()
    with StoredPlans(program.__qualname__, store) as plans:
        program()
    assert len(plans.placed) == 1
    assert not plans.notes


def test_two_threads_place_one_plan(searches: Searches, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    both_see_it = threading.Barrier(2)

    @torch.no_grad()
    def program() -> None:
        net = Net().eval()
        threads = [threading.Thread(target=torch.no_grad()(net), args=(X,)) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    store = str(tmp_path / "s.db")
    tw.tune_program(program, store=store).restore()
    monkeypatch.setattr(WaitingPlan, "is_due", property(lambda _: both_see_it.wait(60) >= 0))
    with StoredPlans(program.__qualname__, store) as plans:
        program()
    assert len(plans.placed) == 1
    assert not plans.notes, "the other thread found no plan to place, and no error"


def test_the_compile_caches_of_a_decided_plan_are_kept_for_programs(
    searches: Searches, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def search(*asked: Any, caches: Any, **options: Any) -> Study:
        for plan in (THREADS, EAGER):
            folder = Path(caches.new(plan))
            for name in ("fxgraph/key", "triton/kernel", "other"):
                (folder / name).parent.mkdir(exist_ok=True)
                (folder / name).write_text(str(plan))
        return searches(*asked, **options)

    user = tmp_path / "inductor"
    user.mkdir()
    (user / "other").write_text("as it was")
    monkeypatch.setattr(tuning, "search", search)
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(user))
    monkeypatch.delenv("TRITON_CACHE_DIR", raising=False)
    net = Net().eval()
    tw.tune_program(lambda: net(X))
    found = {str(file.relative_to(user)): file.read_text() for file in user.rglob("*") if file.is_file()}
    assert found == {"fxgraph/key": str(THREADS), "triton/0/kernel": str(THREADS), "other": "as it was"}


def test_a_copy_of_caches_that_ends_early_leaves_no_half_of_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody would replace it, and every program of this user would read it."""
    ours, user = tmp_path / "ours", tmp_path / "user"
    ours.mkdir()
    (ours / "code.so").write_text("all of it")
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(user))
    monkeypatch.delenv("TRITON_CACHE_DIR", raising=False)

    def copy_half(source: str, target: str) -> None:
        Path(target).write_text(Path(source).read_text()[:3])
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("shutil.copy2", copy_half)
        with pytest.raises(KeyboardInterrupt):
            keep_caches([str(ours)])
    assert not any(file.is_file() for file in user.rglob("*"))
    keep_caches([str(ours)])
    assert (user / "code.so").read_text() == "all of it"


@pytest.mark.parametrize("compile_s", [0.9, 5.0])
def test_a_start_that_cost_more_than_a_run_saved_is_named(compile_s: float) -> None:
    decision = replace(make_decision(Net(), THREADS), speedup=Interval(1.9, 2.0, 2.1), baseline_s=0.01)
    said = explain_loss("Net", ComponentStatistics(str(THREADS), optimized=100, compile_s=compile_s), decision)
    if compile_s < 1:
        assert said is None
    else:
        assert said == (
            "the plan of Net took 5.00 s to start in this run, and its calls saved about 500 ms: it pays in longer runs"
        )


def test_compiled_functions_and_modules_get_plans_too(searches: Searches, tmp_path: Path) -> None:
    store = str(tmp_path / "s.db")
    net = Net().eval()

    def program() -> tuple[Any, Any]:
        double = torch.compile(lambda x: x * 2, backend="eager")
        compiled = torch.compile(net, backend="eager")
        with torch.no_grad():
            for _ in range(3):
                compiled(X)
                double(X)
        return compiled, double

    report = tw.tune_program(program, store=store)
    compiled, double = report.returned
    with torch.no_grad():
        assert torch.equal(double(X), X * 2)
        compiled(X)
    found = [module.component for module in report.modules if module.component]
    assert [component.statistics.optimized for component in found] == [1, 1]
    report.restore()
    with StoredPlans(program.__qualname__, store) as plans:
        program()
    assert [component.statistics.optimized for _, component in plans.placed] == [3, 3]
    with StoredPlans(program.__qualname__, store) as plans, torch.no_grad():
        torch.nn.Sequential(net)(X)
        assert torch.nn.Module.__call__ is MODULE_CALL, "nothing stands before modules without a plan"
        assert not hasattr(torch.compile(len, backend="eager"), "compiled_from"), "nor before such functions"
    assert [name for name, _ in plans.placed] == ["Net"]
    assert [note for note in plans.notes if "no call of it" in note] == [
        f"{program.__qualname__}.<locals>.<lambda> has a plan, but no call of it was seen in this process"
    ]


def test_a_module_that_is_gone_takes_its_plan_and_its_weights_along(searches: Searches, tmp_path: Path) -> None:
    store = str(tmp_path / "s.db")

    def program() -> tuple[Any, ...]:
        net = Net().eval()
        with torch.no_grad():
            net(X)
        return net, weakref.ref(net.first.weight)

    report = tw.tune_program(program, store=store)
    net, weight = report.returned
    with torch.no_grad():
        net(X)
    (component,) = [module.component for module in report.modules if module.component]
    searches.asked.clear()
    report.returned = net = None
    gc.collect()
    assert weight() is None
    assert (component.statistics.plan, component.statistics.optimized) == (str(THREADS), 1)
    report.restore()
    with StoredPlans(program.__qualname__, store) as plans:
        weight = program()[1]
        gc.collect()
        assert weight() is None
    ((_, component),) = plans.placed
    assert (component.statistics.plan, component.statistics.optimized) == (str(THREADS), 1)


@pytest.mark.parametrize("ends", ["restore", "drop"])
def test_a_module_that_leads_back_to_itself_is_freed_with_its_plan(ends: str, searches: Searches) -> None:
    def program() -> tuple[Any, ...]:
        net = Net().eval()
        net.first.owners = [net]  # type: ignore[assignment]  # as of a part that knows the model around it
        with torch.no_grad():
            net(X)
        return net, weakref.ref(net.first.weight)

    report = tw.tune_program(program)
    net, weight = report.returned
    assert type(net) is not Net, "a plan is in its place"
    searches.asked.clear()
    report.returned = net = None
    if ends == "restore":
        report.restore()
    else:
        del report
    gc.collect()
    assert weight() is None


def test_one_plan_is_placed_in_a_module_whose_twin_is_called_as_a_module(searches: Searches, tmp_path: Path) -> None:
    store = str(tmp_path / "s.db")

    @torch.no_grad()
    def program() -> Any:
        net = Net().eval()
        net.register_forward_hook(lambda *_: None)
        for _ in range(3):
            net(X)
        return net

    tw.tune_program(program, store=store).restore()
    with StoredPlans(program.__qualname__, store) as plans:
        net = program()
    assert [found.statistics.optimized for _, found in plans.placed] == [3]
    assert type(net) is not Net


@pytest.mark.parametrize("has_hook", [False, True])
def test_a_module_that_runs_by_a_plan_is_not_tuned_again(has_hook: bool, searches: Searches) -> None:
    net = Net().eval()
    if has_hook:  # then the plan calls its twin as a module
        net.register_forward_hook(lambda *_: None)

    @torch.no_grad()
    def program() -> None:
        for _ in range(3):
            net(X)

    first = tw.tune_program(program)
    (module,) = tw.tune_program(program).modules
    assert len(searches.asked) == 1
    assert (module.record.name, module.record.calls) == ("Net", 3)
    assert module.record.notes == ("it runs by a plan of Torchwise already",)
    first.restore()
    assert type(net) is Net


def test_recorders_may_nest() -> None:
    net = Net()
    with CallRecorder() as outer, torch.no_grad():
        net(X)
        with CallRecorder() as inner:
            net(X)
        net(X)
    assert (outer.ranked()[0].calls, inner.ranked()[0].calls) == (2, 1)


def test_a_report_holds_no_inputs_and_no_module_of_the_program(searches: Searches) -> None:
    searches.plan = EAGER

    def program() -> Any:
        net = Net().eval()
        with torch.no_grad():
            net(X)
        return weakref.ref(net)

    report = tw.tune_program(program)
    searches.asked.clear()
    gc.collect()
    assert report.returned() is None
    assert [kind.example for kind in report.modules[0].calls.kinds.values()] == [None]


class Result:
    """As of a tracker: boxes with the identities of what they show, in an object of the library's own."""

    def __init__(self, boxes: torch.Tensor, ids: list[int]) -> None:
        self.boxes, self.ids = boxes, ids

    def __len__(self) -> int:
        return len(self.ids)


class Predictor:
    """Holds the model two attributes deep, and is set up on the first call."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.setup: dict[str, Any] | None = None
        self.model = model


class Tracker:
    """As those of Ultralytics: a class that is called with frames, remembers identities, and yields results."""

    def __init__(self) -> None:
        self.predictor = Predictor(Net(4).eval())
        self.seen: list[torch.Tensor] = []

    def track(self, frames: list[torch.Tensor], *, stream: bool = False) -> Any:
        found = (self._track(frame) for frame in frames)
        return found if stream else list(found)

    @torch.no_grad()
    def _track(self, frame: torch.Tensor) -> Result:
        self.predictor.setup = self.predictor.setup or {"size": frame.shape}
        boxes = self.predictor.model(frame, mask=None)
        self.seen.append(boxes.mean(0))
        return Result(boxes, [*range(len(self.seen))])


@pytest.mark.parametrize("stream", [False, True])
def test_a_tracker_that_keeps_identities_is_tuned_by_one_line_and_given_back(searches: Searches, stream: bool) -> None:
    tracker, alone = Tracker(), Tracker()
    alone.predictor.model.load_state_dict(tracker.predictor.model.state_dict())
    kind = type(tracker.predictor.model)
    frames = [X, X + 1, X * 2]
    fast: Any = tw.optimize(tracker, run=lambda one: [*one.track(frames, stream=stream)])
    ((_, workload),) = searches.asked
    assert workload.call is not None
    assert {tuple(example.args[0].shape) for example in workload.examples} == {(3, 4)}
    [*alone.track(frames, stream=stream)]
    for frame in (X * 3, torch.randn(7, 4)):  # the second one of a size that was never seen
        (found,), (wanted,) = fast.track([frame]), alone.track([frame])
        assert torch.equal(found.boxes, wanted.boxes)
        assert found.ids == wanted.ids, "it goes on from the frames of before"
    fast.restore()
    assert type(tracker.predictor.model) is kind
    assert torch.equal(tracker.track([X])[0].boxes, alone.track([X])[0].boxes)
