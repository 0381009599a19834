"""Modules of a program answer sizes that were never recorded: by a second plan, by padding, or by one plan for all."""

from __future__ import annotations

import copy
import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from test_program import THREADS, Searches, decide_at_once

import torchwise as tw
from torchwise.errors import InputError
from torchwise.plan import EAGER, Plan
from torchwise.plan.trait import Trait
from torchwise.plan.workload_spec import TuneOptions
from torchwise.records.trial import WAITING
from torchwise.runtime.api import Study, make_request, search
from torchwise.runtime.bucketing.bucketed import DYNAMIC
from torchwise.runtime.program import StoredPlans, sizes, tuning
from torchwise.runtime.program.calls import Calls
from torchwise.runtime.program.tuned import TunedModule, TunedProgram

NOT_VERIFIED = "inputs_not_verified"


class Rows(torch.nn.Module):
    """Answers each row by itself, so that more rows change nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        x = self.layer(x).relu()
        return x if mask is None else x * mask[:, None]


class Mean(Rows):
    """Averages over the rows, so that padding changes the answer."""

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        return super().forward(x, mask).mean(0)


@pytest.fixture
def searches(monkeypatch: pytest.MonkeyPatch) -> Searches:
    return decide_at_once(monkeypatch)


def make(rows: int) -> torch.Tensor:
    return torch.linspace(-1, 1, 4 * rows).reshape(rows, 4)


def tune(net: torch.nn.Module, rows: Iterable[int], **options: Any) -> TunedProgram:
    @torch.no_grad()
    def program() -> None:
        for count in rows:
            net(make(count))

    return tw.tune_program(program, **options)


@torch.no_grad()
def check_answers(net: torch.nn.Module, alone: torch.nn.Module, rows: Iterable[int]) -> None:
    for count in rows:
        assert torch.allclose(net(make(count)), alone(make(count)), atol=1e-6)


def count_calls(module: TunedModule) -> tuple[int, dict[str, int]]:
    assert module.component is not None
    found = module.component.statistics
    return found.optimized, {str(reason): times for reason, times in found.original.items()}


def test_a_few_sizes_have_their_plan_and_all_others_a_second_one(searches: Searches) -> None:
    net = Rows().eval()
    alone = copy.deepcopy(net)
    report = tune(net, [3, 3, 5])
    (first, _), (second, _) = searches.asked
    assert (first.plans, first.workload.sizes) == (None, "as-given")
    assert second.plans == (replace(*DYNAMIC, threads=THREADS.threads),)
    assert second.workload.sizes == "varying", "verified and timed at sizes that nobody gave"
    assert second.workload.calls == first.workload.calls, "as many as of those that were recorded"
    assert second.workload.target == f"{first.workload.target}/other-sizes"
    check_answers(net, alone, [3, 7, 1, 20, 5])
    assert count_calls(report.modules[0]) == (5, {})
    assert report.modules[0].record.notes == (
        f"other sizes than these run by {second.plans[0]}, 2 [1.9, 2.1] times eager's speed",
    )
    report.restore()
    assert type(net) is Rows
    assert torch.equal(net(make(7)), alone(make(7)))


def test_one_size_warns_once_with_the_shape_and_the_way_out(
    searches: Searches, caplog: pytest.LogCaptureFixture
) -> None:
    net = Rows().eval()
    alone = copy.deepcopy(net)
    report = tune(net, [3])
    with caplog.at_level(logging.WARNING, "torchwise"):
        check_answers(net, alone, [3, 7, 8, 7])
    assert len(searches.asked) == 1
    assert count_calls(report.modules[0]) == (1, {NOT_VERIFIED: 3})
    assert [record.message for record in caplog.records] == [
        "torchwise: the original answers, because the plan was not verified on inputs of this shape, type or value "
        "(input 0 is float32[7, 4] (4, 1), was float32[3, 4] (4, 1)): tune with such an example, too, or if sizes vary "
        'with sizes="varying"'
    ]


def test_many_sizes_get_one_plan_which_is_tuned_on_those_that_represent_them(searches: Searches) -> None:
    net, searches.plan = Rows().eval(), DYNAMIC[0]
    alone = copy.deepcopy(net)
    report = tune(net, [1, *range(10, 30)])
    ((request, workload),) = searches.asked
    assert (request.plans, request.workload.sizes) == (None, "varying"), "verified at sizes that nobody gave"
    found = [len(example.args[0]) for example in workload.examples]
    assert 1 in found, "code for one row is compiled by itself"
    assert {size > 20 for size in found if size > 1} == {True, False}
    check_answers(net, alone, [2, 40, 17])
    assert count_calls(report.modules[0]) == (3, {})
    assert "one plan answers every size: 21 sizes were seen" in report.modules[0].record.notes[0]


def test_many_sizes_are_padded_on_a_gpu_where_that_changes_no_answer(
    searches: Searches, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sizes, "PADS_ON", {"cpu"})
    net = Rows().eval()
    alone = copy.deepcopy(net)
    report = tune(net, range(3, 20))
    ((request, workload),) = searches.asked
    buckets = [len(example.args[0]) for example in workload.examples]
    assert (request.plans, buckets[-1]) == (None, 19)
    with caplog.at_level(logging.WARNING, "torchwise"):
        check_answers(net, alone, [2, 7, 19, 20, 21])
    assert count_calls(report.modules[0]) == (3, {"above_buckets": 2})
    assert [record.message for record in caplog.records] == [
        "torchwise: the original answers, because the inputs are larger than the largest bucket (20, and not 19): "
        "tune for such a size, too"
    ]
    assert f"inputs are padded to {', '.join(map(str, buckets))}" in report.modules[0].record.notes[0]
    report.restore()
    assert type(net) is Rows


@pytest.mark.parametrize(
    ("net", "shift"),
    [pytest.param(Mean(), 0.0, id="the answer changes"), pytest.param(Rows(), 2.0, id="the values tell too little")],
)
def test_nothing_is_padded_if_that_is_not_proven(
    net: torch.nn.Module, shift: float, searches: Searches, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sizes, "PADS_ON", {"cpu"})

    @torch.no_grad()
    def program() -> None:
        for count in range(3, 20):
            net(make(count) + shift)

    tw.tune_program(program)
    ((request, _),) = searches.asked
    assert (request.plans, request.workload.sizes) == (None, "varying")


@pytest.mark.parametrize("rows", [[3], [3, 5], range(3, 20)], ids=["one", "two", "many"])
def test_sizes_mean_the_same_as_for_a_model(rows: Iterable[int], searches: Searches) -> None:
    net, searches.plan = Rows().eval(), DYNAMIC[0]
    alone = copy.deepcopy(net)
    report = tune(net, rows, sizes="varying")
    ((request, workload),) = searches.asked
    assert (request.plans, request.workload.sizes) == (None, "varying")
    given = {len(example.args[0]) for example in workload.examples}
    assert {min(rows), max(rows)} <= given <= set(rows)
    check_answers(net, alone, [2, 40])
    assert count_calls(report.modules[0]) == (2, {})
    report.restore()
    searches.asked.clear()
    tw.optimize(net, run=lambda one: [one(make(count)) for count in rows], sizes="fixed")
    ((request, workload),) = searches.asked
    assert (request.plans, request.workload.sizes) == (None, "fixed")
    assert {len(example.args[0]) for example in workload.examples} <= set(rows)
    with pytest.raises(InputError, match="sizes is 'often'"):
        tune(net, rows, sizes="often")


@pytest.mark.parametrize("fails", [False, True])
def test_waiting_is_no_part_of_a_budget_if_that_is_asked_for(
    searches: Searches, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    now = [0.0]
    monkeypatch.setattr(tuning.time, "monotonic", lambda: now[0])

    def search(*asked: Any, **options: Any) -> Any:
        now[0] += 1000.0
        if options["note_wait"] is not None:
            options["note_wait"](995.0)
        found = searches(*asked, **options)
        if fails and len(searches.asked) == 1:
            raise InputError("it raises")
        return Study(replace(found.record, seconds=5000.0))  # those of all sessions

    monkeypatch.setattr(tuning, "search", search)
    first, second = Rows().eval(), Mean().eval()
    tw.tune_program(lambda: [net(make(rows)) for net in (first, second) for rows in (3, 5)], budget=100.0, wait=True)
    assert len(searches.asked) == (3 if fails else 4)
    assert all(request.budget_s > 10 for request, _ in searches.asked)
    searches.asked.clear()
    first, second = Rows().eval(), Mean().eval()  # without a plan
    tw.tune_program(lambda: [net(make(rows)) for net in (first, second) for rows in (3, 5)], budget=100.0)
    assert len(searches.asked) == (1 if fails else 2), "the budget ended"


def test_a_search_says_how_long_it_waited_even_if_it_fails(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def run_study(_request: object, _storage: object, _launcher: object, listener: Any, **_: object) -> None:
        listener.stage(WAITING)
        time.sleep(0.02)
        listener.stage("load")
        raise InputError("it raises")

    waits: list[float] = []
    monkeypatch.setattr("torchwise.study.run_study", run_study)
    request, workload = make_request(Rows().eval(), (make(3),), None, None, TuneOptions())
    with pytest.raises(InputError, match="it raises"):
        search(request, workload, str(tmp_path / "s.db"), progress=False, note_wait=waits.append)
    assert waits[0] >= 0.02


def test_a_dynamic_plan_for_a_few_sizes_answers_all_others_by_itself(searches: Searches) -> None:
    net, searches.plan = Rows().eval(), DYNAMIC[0]
    alone = copy.deepcopy(net)
    report = tune(net, [3, 5])
    assert len(searches.asked) == 1
    assert report.modules[0].record.notes == ("one plan answers every size",)
    check_answers(net, alone, [3, 40])
    assert count_calls(report.modules[0]) == (2, {})


def test_the_first_search_leaves_time_for_other_sizes_where_they_may_come(searches: Searches) -> None:
    tune(Rows().eval(), [3, 5], budget=100.0)
    (first, _), (second, _) = searches.asked
    assert (first.successor, second.successor) == (sizes.make_dynamic, None)
    assert second.budget_s > 50, "all that is left"
    searches.asked.clear()
    tune(Rows().eval(), [3], budget=100.0)
    ((only, _),) = searches.asked
    assert (only.successor, only.budget_s) == (None, pytest.approx(100, abs=5))


def test_a_model_that_takes_no_other_sizes_has_no_second_search(searches: Searches) -> None:
    net, searches.takes_other_sizes = Rows().eval(), False
    report = tune(net, [3, 5])
    assert len(searches.asked) == 1
    (note,) = report.modules[0].record.notes
    assert note == "other sizes than these run as written: the model was tried at some, and takes none of them"


@pytest.mark.parametrize("options", [{"allow": "exact"}, {"plans": [THREADS]}], ids=["exact", "plans"])
def test_what_the_options_permit_counts(options: dict[str, Any], searches: Searches) -> None:
    net = Rows().eval()
    report = tune(net, [3, 5], **options)
    assert len(searches.asked) == 1
    assert report.modules[0].record.notes == ("other sizes than these run as written",)


@pytest.mark.parametrize(
    ("plan", "dynamic"),
    [
        (THREADS, replace(*DYNAMIC, threads=THREADS.threads)),
        (Plan(backend="inductor", precision="tf32", capture="call"), replace(*DYNAMIC, precision="tf32")),
        (
            Plan(backend="inductor", transforms=("eager_strides",), threads=2),
            replace(*DYNAMIC, transforms=("eager_strides",), threads=2),
        ),
        (Plan(backend="inductor", scope="rolled"), *DYNAMIC),
        (Plan(backend="openvino"), Plan(backend="openvino", shapes="dynamic")),
    ],
    ids=str,
)
def test_the_second_plan_is_like_the_first_in_all_that_holds_for_every_size(plan: Plan, dynamic: Plan) -> None:
    assert sizes.make_dynamic(plan) == dynamic


def test_the_second_plan_lays_its_outputs_out_where_the_compiler_would_not(
    searches: Searches, monkeypatch: pytest.MonkeyPatch
) -> None:
    def search(*asked: Any, **options: Any) -> Study:
        found = searches(*asked, **options).record
        inspection = replace(found.inspection, traits=found.inspection.traits | {Trait.RESTRIDED})
        return Study(replace(found, inspection=inspection))

    monkeypatch.setattr(tuning, "search", search)
    tune(Rows().eval(), [3, 5])
    assert searches.asked[1][0].plans == (replace(*DYNAMIC, threads=THREADS.threads, transforms=("eager_strides",)),)


def test_a_failed_search_for_other_sizes_leaves_the_first_plan(
    searches: Searches, monkeypatch: pytest.MonkeyPatch
) -> None:
    def search(request: Any, workload: Any, store: str | None, **options: Any) -> Any:
        if request.plans:
            raise InputError("the budget is spent")
        return searches(request, workload, store, **options)

    monkeypatch.setattr(tuning, "search", search)
    net = Rows().eval()
    report = tune(net, [3, 5])
    assert report.modules[0].record.notes == ("other sizes than these run as written: the budget is spent",)
    check_answers(net, copy.deepcopy(net), [3])
    assert count_calls(report.modules[0]) == (1, {})


def test_where_eager_is_best_nothing_more_is_searched(searches: Searches) -> None:
    searches.plan = EAGER
    tune(Rows().eval(), [3, 5])
    assert len(searches.asked) == 1


def test_a_later_run_has_both_plans(searches: Searches, tmp_path: Path) -> None:
    store = str(tmp_path / "s.db")
    report = tune(Rows().eval(), [3, 5], store=store)
    report.restore()
    net = Rows().eval()
    with StoredPlans(report.record.program, store) as plans, torch.no_grad():
        answers = [net(make(rows)) for rows in (3, 9)]
    ((_, component),) = plans.placed
    with torch.no_grad():
        assert all(map(torch.allclose, answers, [net.layer(make(rows)).relu() for rows in (3, 9)]))
    assert (component.statistics.optimized, component.statistics.original) == (2, {})


def test_a_later_run_says_why_other_sizes_have_no_plan(
    searches: Searches, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuning, "make_dynamic", lambda _plan: EAGER)
    store = str(tmp_path / "s.db")
    report = tune(Rows().eval(), [3, 5], store=store)
    report.restore()
    with StoredPlans(report.record.program, store) as plans, torch.no_grad():
        Rows().eval()(make(3))
    assert list(plans.notes) == ["Rows runs as written at other sizes than those recorded: because"]


def test_blocks_that_are_called_one_by_one_are_tuned_as_one(searches: Searches) -> None:
    blocks, other = [Rows().eval() for _ in range(20)], Mean().eval()
    alone = copy.deepcopy(blocks)

    @torch.no_grad()
    def program(x: torch.Tensor) -> torch.Tensor:
        for block in blocks:
            x = block(x)
        return other(x)

    report = tw.tune_program(program, make(3))
    assert len(searches.asked) == 2
    assert sorted(workload.examples[0].weight for _, workload in searches.asked) == [1, 20]
    assert sum(module.component is not None for module in report.modules) == 21
    notes = [note for module in report.modules for note in module.record.notes]
    assert sum("is like Rows" in note and "has the same plan" in note for note in notes) == 19
    for block, one in zip(blocks, alone, strict=True):
        check_answers(block, one, [3])
    assert all(count_calls(module) == (1, {}) for module in report.modules if module.calls.live is not other)
    report.restore()
    assert {type(block) for block in blocks} == {Rows}


def test_a_module_that_cannot_be_described_stands_for_itself(searches: Searches) -> None:
    class Raises(Rows):
        @property
        def static_form(self) -> Any:
            raise RuntimeError("mine")

    described, others = [Rows().eval(), Rows().eval()], [Raises().eval(), Raises().eval()]

    @torch.no_grad()
    def program() -> None:
        for net in (*described, *others):
            net(make(3))

    report = tw.tune_program(program)
    assert sum(module.component is not None for module in report.modules) == 2
    notes = [note for module in report.modules for note in module.record.notes]
    assert notes.count("not tuned: RuntimeError: mine") == 2


def test_calls_in_the_mode_that_the_module_is_in_now_are_tuned_for(searches: Searches) -> None:
    net = Rows()

    def program() -> None:
        net.train()
        for _ in range(5):
            net(make(3)).sum().backward()
        net.eval()
        with torch.no_grad():
            net(make(4))

    report = tw.tune_program(program)
    ((request, workload),) = searches.asked
    assert (request.workload.mode, len(workload.examples[0].args[0])) == ("inference", 4)
    assert "run as written, such as float32[3, 4] (training, train mode)" in report.modules[0].record.notes[0]


def under(context: Callable[[], Any]) -> Callable[[torch.nn.Module], torch.Tensor]:
    def call(net: torch.nn.Module) -> torch.Tensor:
        with context():
            return net(make(3))  # type: ignore[no-any-return]

    return call


@pytest.mark.parametrize(
    "call",
    [
        pytest.param(under(torch.no_grad), id="no_grad"),
        pytest.param(under(torch.inference_mode), id="inference_mode"),
        pytest.param(under(lambda: torch.autocast("cpu", torch.bfloat16)), id="autocast, gradients"),
    ],
)
def test_plans_answer_under_the_contexts_of_the_recording(
    call: Callable[[torch.nn.Module], torch.Tensor], searches: Searches
) -> None:
    net = Rows().eval()
    expected = call(net)
    report = tw.tune_program(lambda: call(net))
    assert torch.equal(call(net), expected)
    assert count_calls(report.modules[0]) == (1, {})


def test_a_module_in_two_places_is_one(searches: Searches) -> None:
    class Pipe:
        def __init__(self) -> None:
            self.first = self.second = Rows().eval()

        @torch.no_grad()
        def __call__(self, x: torch.Tensor) -> torch.Tensor:
            return self.second(self.first(x))  # type: ignore[no-any-return]

    pipe = Pipe()
    expected = pipe(make(3))
    fast = tw.optimize(pipe, run=lambda p: p(make(3)))
    assert len(searches.asked) == 1
    assert torch.equal(fast(make(3)), expected)
    assert count_calls(fast.report.modules[0]) == (2, {})
    fast.restore()
    assert type(pipe.first) is Rows


def test_padding_is_verified_for_each_of_the_blocks_that_share_a_plan(
    searches: Searches, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Sum(Rows):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(x).sum(0)  # type: ignore[no-any-return]

    monkeypatch.setattr(sizes, "PADS_ON", {"cpu"})
    monkeypatch.setattr(Calls, "seconds", property(lambda self: float(self.calls)))  # on a busy machine, too
    blocks = [Sum().eval() for _ in range(3)]
    for block, bias in zip(blocks, (0.0, 0.0, 1.0), strict=True):
        torch.nn.init.eye_(block.layer.weight)
        torch.nn.init.constant_(block.layer.bias, bias)  # what a row of zeros adds to the sum
    alone = copy.deepcopy(blocks)

    @torch.no_grad()
    def program() -> None:
        for count in range(3, 20):
            for block in (blocks[0], *blocks):
                block(make(count))

    report = tw.tune_program(program)
    for block, one in zip(blocks, alone, strict=True):
        check_answers(block, one, [4, 7])
    modules = {id(module.calls.live): module for module in report.modules}
    assert [modules[id(block)].component is not None for block in blocks] == [True, True, False]
    assert "padding may change its answers" in modules[id(blocks[2])].record.notes[0]


def test_no_second_plan_answers_where_samples_must_keep_their_bits(searches: Searches) -> None:
    """The plan for other sizes is compared with itself at these, and not with the first plan."""
    report = tune(Rows().eval(), [3, 5], require=["batch-invariant"], budget=100.0)
    ((request, _),) = searches.asked
    assert request.budget_s == pytest.approx(100, abs=5)
    assert report.modules[0].record.notes == (f"other sizes than these run as written: {tuning.ONE_PLAN}",)
