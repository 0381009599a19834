"""Each finder finds its own fault, where it is, with its potential saving, and nothing where there is none."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from explain_samples import CALL_S, COMPILATION, FixedPrices, evidence, potential_saving, price
from torchwise.diagnose import findings
from torchwise.diagnose.evidence import Code, Evidence
from torchwise.diagnose.explain_worker import judge_capture
from torchwise.diagnose.findings import find_guards, find_host_time, find_slow_kernels, find_slower_run, find_waits
from torchwise.diagnose.findings_recompiles import find_recompile_limits, find_repeated
from torchwise.diagnose.findings_uncompiled import find_breaks, find_complex_numbers, find_fallbacks, find_rnn
from torchwise.diagnose.kernels import Profiled
from torchwise.diagnose.op_trace import OpTrace, ReadKind, Wait
from torchwise.plan import EAGER, Plan
from torchwise.records import Interval, Measurement
from torchwise.records.compile_events import (
    Break,
    CodeFix,
    CompileEvents,
    Frame,
    Recompile,
    UncompiledKind,
    UncompiledPart,
)
from torchwise.records.explanation import Basis, Execution, Kernel, SourceLocation

BRANCH = Break("model.py", 12, "forward", "GB0170", "Data-dependent branching", "It branches.", excerpt="if h > 0:")
SETTING = "torch._dynamo.config.capture_scalar_outputs = True"
ITEM = replace(BRANCH, fix=CodeFix("item", "keep it a tensor", SETTING))


def test_nothing_is_found_where_nothing_is_the_matter() -> None:
    assert findings.find(evidence(), FixedPrices(price(0.1e-6))) == []


def test_a_run_slower_than_eager_costs_the_difference() -> None:
    (found,) = find_slower_run(evidence(measurement=Measurement((CALL_S,) * 5, (CALL_S / 2,) * 5)))
    assert potential_saving(found).per_call_s.mid == pytest.approx(CALL_S / 2)
    assert (potential_saving(found).basis, found.plan) == (Basis.MEASURED, EAGER)


def test_guards_are_priced_by_the_plan_that_leaves_them_out() -> None:
    prices = FixedPrices(price(20e-6))
    (found,) = find_guards(evidence(), prices)
    assert found.title.startswith("40 guards")
    assert found.places == (SourceLocation("model.py", 10, "forward"),)
    assert prices.asked == [Plan(backend="inductor")] == [found.plan]


def test_guards_between_breaks_are_priced_by_calling_without_them() -> None:
    prices = FixedPrices(price(20e-6))
    (found,) = find_guards(evidence(watched=CompileEvents(5.0, (BRANCH,), compilations=(COMPILATION,))), prices)
    assert prices.asked == ["no guards of modules"]
    assert found.plan is None
    assert "guard_filter_fn" in found.fix


@pytest.mark.parametrize("by_plan", [-20e-6, 0.0])
def test_guards_that_a_plan_does_not_save_are_priced_by_calling_without_them(by_plan: float) -> None:
    prices = FixedPrices(price(by_plan), unguarded=price(30e-6))
    (found,) = find_guards(evidence(), prices)
    assert (potential_saving(found).per_call_s.mid, found.plan) == (30e-6, None)
    assert "guard_filter_fn" in found.fix


def test_guards_that_hardly_take_time_are_not_tried() -> None:
    prices = FixedPrices(price(20e-6))
    execution = replace(evidence().execution, guards_s=0.005 * CALL_S)
    assert not list(find_guards(evidence(execution=execution), prices))
    assert prices.asked == []


def test_guards_that_cost_next_to_nothing_are_not_worth_a_line() -> None:
    assert not list(find_guards(evidence(), FixedPrices(price(0.001 * CALL_S))))


def test_a_break_that_a_setting_mends_is_timed_under_it() -> None:
    prices = FixedPrices(price(9e-6))
    (found,) = find_breaks(evidence(watched=CompileEvents(5.0, (ITEM,), compilations=(COMPILATION,))), prices)
    assert prices.asked == ["torch._dynamo.config.capture_scalar_outputs = True"]
    assert potential_saving(found).basis is Basis.MEASURED
    assert "capture_scalar_outputs" in found.fix


def test_any_other_break_is_estimated_from_what_one_costs_here() -> None:
    seen = evidence(
        watched=CompileEvents(5.0, (BRANCH,), compilations=(COMPILATION,)),
        profiled=Profiled(evidence().kernels, 95e-6, 2e-6, lookups=4.0, regions=4.0),
    )
    (found,) = find_breaks(seen, FixedPrices(None, Interval(9e-6, 10e-6, 11e-6)))
    assert found.places == (SourceLocation("model.py", 12, "forward", "if h > 0:"),)
    assert potential_saving(found).basis is Basis.ESTIMATED
    assert potential_saving(found).per_call_s.mid == pytest.approx(3 * 10e-6), "three resumed graphs, one break"
    assert (
        potential_saving(found).per_call_s.low
        < potential_saving(found).per_call_s.mid
        < potential_saving(found).per_call_s.high
    )


def test_a_setting_that_is_a_call_is_tried_as_well() -> None:
    adds = replace(
        BRANCH, fix=CodeFix("print", "print less", "torch._dynamo.config.reorderable_logging_functions.add(print)")
    )
    prices = FixedPrices(price(9e-6), Interval(9e-6, 10e-6, 11e-6))
    (found,) = find_breaks(evidence(watched=CompileEvents(5.0, (adds,), compilations=(COMPILATION,))), prices)
    assert prices.asked == ["torch._dynamo.config.reorderable_logging_functions.add(print)"]
    assert "Or set torch._dynamo.config.reorderable_logging_functions.add(print)" in found.fix


def test_a_setting_that_saves_nothing_is_not_recommended() -> None:
    prices = FixedPrices(price(-9e-6))
    (found,) = find_breaks(evidence(watched=CompileEvents(5.0, (ITEM,), compilations=(COMPILATION,))), prices)
    assert "capture_scalar_outputs" not in found.fix
    assert [(one.fix, one.helps) for one in found.tried] == [(SETTING, False)]


def test_a_setting_that_failed_is_not_recommended_and_one_that_was_not_tried_is_said_to_be() -> None:
    prices = FixedPrices(None, Interval(9e-6, 10e-6, 11e-6))
    seen = evidence(watched=CompileEvents(5.0, (ITEM,), compilations=(COMPILATION,)))
    (found,) = find_breaks(seen, prices)
    assert f"Or set {SETTING} (not tried)" in found.fix
    prices.failures = {SETTING: "not measured, because it failed with TypeError: no"}
    (found,) = find_breaks(seen, prices)
    assert SETTING not in found.fix
    assert found.tried[0].seen == "not measured, because it failed with TypeError: no"


def test_a_line_that_was_run_is_priced_and_recommended() -> None:
    line = replace(BRANCH, fix=CodeFix("branch", "choose", line="y = torch.where(h > 0, a, b)"))
    prices = FixedPrices(price(9e-6))
    (found,) = find_breaks(evidence(watched=CompileEvents(5.0, (line,), compilations=(COMPILATION,))), prices)
    assert found.fix == "choose Here: `y = torch.where(h > 0, a, b)`."
    assert (potential_saving(found).basis, found.tried[0].helps) == (Basis.MEASURED, True)


def test_a_break_in_what_was_compiled_too_often_is_priced_as_left_to_eager() -> None:
    limit = UncompiledPart(UncompiledKind.RECOMPILE_LIMIT, "compiled too often", "forward", "model.py", 10)
    seen = evidence(
        watched=CompileEvents(5.0, (BRANCH,), compilations=(COMPILATION,), fallbacks=(limit,)),
        execution=replace(evidence().execution, regions=0.0),
    )
    (found,) = find_breaks(seen, FixedPrices(None, Interval(9e-6, 10e-6, 11e-6)))
    assert "compiling the uncompiled code" in potential_saving(found).how


def test_recompiling_costs_seconds_once() -> None:
    again = replace(COMPILATION, compile_id="0/1", seconds=7.0)
    changed = Recompile("forward", "model.py", 10, "size of L['n']", "n was 3, then 4", compile_ids=("0/1",))
    seen = evidence(watched=CompileEvents(5.0, recompiles=(changed, changed), compilations=(COMPILATION, again)))
    (found,) = find_repeated(seen, FixedPrices())
    assert found.cause.count("n was 3, then 4") == 1
    assert "L['n']" in found.cause
    assert potential_saving(found).once_s == 7.0, "one compilation is paid once"
    assert not list(find_recompile_limits(seen, FixedPrices()))


def test_complex_operators_left_to_eager_are_priced_with_the_rewrite() -> None:
    code = Code(1, Counter(), Counter({"aten.mul": 2, "aten.exp": 1}))
    prices = FixedPrices(price(50e-6))
    (found,) = find_complex_numbers(evidence(code=code, observed=OpTrace(complex_operators=3)), prices)
    assert found.title.startswith("3 operators")
    assert prices.asked == [Plan(backend="inductor", transforms=("complex_to_real",))]


def test_an_rnn_is_priced_isolated() -> None:
    whole = replace(BRANCH, whole=True)
    prices = FixedPrices(price(50e-6))
    seen = evidence(has_rnn=True, watched=CompileEvents(5.0, (whole,), compilations=(COMPILATION,)))
    (found,) = find_rnn(seen, prices)
    assert prices.asked == [Plan(backend="inductor", transforms=("isolate_rnn",))]
    assert found.places[0].line == 12
    assert not list(find_breaks(seen, prices)), "its break is not told twice"


@pytest.mark.parametrize("mend", ["isolate_rnn", "compiled_rnn"])
def test_a_plan_that_has_the_mend_already_is_not_told_to_have_it(mend: str) -> None:
    plan = Plan(backend="inductor", transforms=(mend,))
    assert not list(find_rnn(evidence(has_rnn=True, plan=plan), FixedPrices(price(1e-6))))
    assert not list(find_rnn(evidence(has_rnn=True, plan=EAGER), FixedPrices(price(1e-6))))


def launch_bound(**changes: Any) -> Evidence:
    """A GPU's profile: 50 kernels in 20 of 100 µs."""
    kernels = (Kernel("triton_poi_fused_0", 50.0, 20e-6, generated=True),)
    execution = Execution(Interval(CALL_S, CALL_S, CALL_S), 20e-6, 5e-6, 40, 1.0)
    return evidence(device="cuda", execution=execution, profiled=Profiled(kernels, 20e-6, 5e-6, 1.0, 1.0), **changes)


def test_a_launch_bound_call_is_priced_captured() -> None:
    prices = FixedPrices(price(70e-6))
    (found,) = find_host_time(launch_bound(), prices)
    assert found.title == "in 80% of a call no kernel runs"
    assert "50 kernels" in found.cause
    assert prices.asked == [Plan(backend="inductor", capture="call")] == [found.plan]


def test_a_launch_bound_call_that_cannot_be_captured_is_estimated() -> None:
    (found,) = find_host_time(launch_bound(), FixedPrices(None))
    assert potential_saving(found).basis is Basis.ESTIMATED
    assert potential_saving(found).per_call_s.high == pytest.approx(75e-6), "what is idle, without the guards"


def test_on_a_cpu_the_host_takes_what_no_kernel_does_though_guards_seemed_to_take_longer() -> None:
    slow = Execution(Interval(CALL_S, CALL_S, CALL_S), 40e-6, 80e-6, 40, 1.0)
    (found,) = find_host_time(evidence(execution=slow), FixedPrices())
    assert "take 60.0 µs of each call" in found.cause


CAPTURED = Plan(backend="inductor", capture="call")


def test_a_call_that_was_timed_captured_can_be_captured() -> None:
    prices = FixedPrices(price(70e-6))
    assert judge_capture(launch_bound(), list(find_host_time(launch_bound(), prices)), {}).answer is True


def test_a_call_whose_capture_failed_cannot_be_though_its_idle_time_was_estimated() -> None:
    found = list(find_host_time(launch_bound(), FixedPrices(None)))
    assert found[0].plan == CAPTURED
    told = judge_capture(launch_bound(), found, {CAPTURED: "it failed"})
    assert (told.answer, told.reasons) == (False, (f"plan {CAPTURED}: it failed",))


def test_a_capture_that_the_budget_left_out_was_not_tried() -> None:
    assert judge_capture(launch_bound(), list(find_host_time(launch_bound(), FixedPrices(None))), {}).answer is None


def test_a_run_that_is_captured_can_be() -> None:
    assert judge_capture(launch_bound(plan=CAPTURED), [], {}).answer is True


def test_a_wait_stands_in_the_way_of_a_capture() -> None:
    waits = OpTrace(waits=[Wait(".item()", SourceLocation("model.py", 12), 1)])
    for seen in (evidence(observed=waits), launch_bound(observed=waits)):
        told = judge_capture(seen, [], {})
        assert (told.answer, told.reasons) == (False, ("model.py:12: .item()",))
    assert judge_capture(evidence(), [], {}).answer is None


def test_a_wait_is_found_where_it_is() -> None:
    spot = SourceLocation("model.py", 12, "forward", "n = x.sum().item()")
    (found,) = find_waits(evidence(observed=OpTrace(waits=[Wait(".item()", spot, 3)])), FixedPrices())
    assert found.places == (spot,)
    assert "3 times" in found.title
    assert potential_saving(found).per_call_s == Interval(0.0, 0.0, 0.0)


def test_a_wait_on_a_gpu_is_a_share_of_its_idle_time() -> None:
    spot = SourceLocation("model.py", 12)
    (found,) = find_waits(launch_bound(observed=OpTrace(waits=[Wait(".item()", spot, 1)])), FixedPrices())
    assert potential_saving(found).per_call_s.high == pytest.approx(80e-6)


BOOL, COUNT, SCALAR, OTHER = ReadKind


def make_evidence(*reads: ReadKind, **changes: Any) -> Evidence:
    waits = [Wait("a read", SourceLocation("m.py", line), 1, what) for line, what in enumerate(reads, 1)]
    return launch_bound(observed=OpTrace(waits=waits), **changes)


PIECES = Plan(backend="inductor", capture="branches")
STAYING = Plan(capture="call", transforms=("numbers_on_gpu",))


@pytest.mark.parametrize(("reads", "plan"), [(BOOL, PIECES), (COUNT, PIECES), (SCALAR, STAYING)])
def test_a_wait_that_a_capture_can_do_without_is_priced_captured(reads: ReadKind, plan: Plan) -> None:
    prices = FixedPrices(price(60e-6))
    seen = make_evidence(reads, reads)
    found = [*find_waits(seen, prices), *find_host_time(seen, prices)]
    assert [one.plan for one in found] == [plan] * 3
    assert set(prices.asked) == {plan}
    assert {one.saving for one in found} == {price(60e-6)}
    assert found[-1].fix.startswith("the plan captures the call in several CUDA graphs") is (plan is PIECES)
    assert judge_capture(seen, found, {}).answer is (plan is STAYING)
    failed = judge_capture(seen, [], {plan: "it failed"})
    assert (failed.answer, failed.reasons[-1]) == (False, f"plan {plan}: it failed")


@pytest.mark.parametrize(
    "reads",
    [(BOOL, OTHER), (SCALAR, BOOL), (SCALAR, COUNT), (OTHER,)],
)
def test_waits_of_which_one_must_be_answered_are_not_captured(reads: tuple[ReadKind, ...]) -> None:
    prices = FixedPrices(None)
    assert {one.plan for one in find_waits(make_evidence(*reads), prices)} == {None}
    assert prices.asked == []


@pytest.mark.parametrize("reads", [BOOL, SCALAR])
def test_a_capture_that_failed_is_no_mend_of_a_wait(reads: ReadKind) -> None:
    (found,) = find_waits(make_evidence(reads), FixedPrices(None))
    assert found.plan is None
    assert found.fix.startswith("keep the decision on the device")


def test_what_a_run_lowers_is_kept_where_numbers_stay() -> None:
    base = Plan("tf32", backend="inductor")
    assert make_evidence(SCALAR, plan=base).captured == replace(STAYING, precision="tf32")


def test_a_run_that_is_captured_already_is_not_offered_a_capture() -> None:
    prices = FixedPrices(price(1e-6))
    assert [one.plan for one in find_waits(make_evidence(BOOL, plan=PIECES), prices)] == [None]
    assert judge_capture(make_evidence(BOOL, plan=PIECES), [], {}).answer is False
    assert judge_capture(launch_bound(plan=PIECES), [], {}).answer is True
    dynamic = make_evidence(BOOL, plan=Plan(backend="inductor", shapes="dynamic"))
    assert [(one.plan, one.fix[:7]) for one in find_host_time(dynamic, prices)] == [(None, "give it")]


def test_waits_on_a_cpu_are_not_captured() -> None:
    seen = evidence(observed=OpTrace(waits=[Wait("a read", SourceLocation("m.py", 1), 1, BOOL)]))
    assert [one.plan for one in find_waits(seen, FixedPrices(None))] == [None]


def test_a_wait_of_a_model_with_a_static_form_is_priced_by_it() -> None:
    prices = FixedPrices(price(30e-6))
    seen = evidence(has_static_form=True, observed=OpTrace(waits=[Wait("nonzero()", SourceLocation("m.py", 1), 1)]))
    (found,) = find_waits(seen, prices)
    assert prices.asked == [Plan(backend="inductor", transforms=("static_form",))] == [found.plan]


def test_a_fallback_worth_its_time_is_found_and_a_library_call_is_not() -> None:
    kernels = (Kernel("aten::cummax", 1.0, 30e-6), Kernel("aten::convolution", 1.0, 60e-6))
    seen = evidence(
        code=Code(0, Counter(), Counter({"aten.cummax": 1, "aten.convolution": 1})),
        profiled=Profiled(kernels, 90e-6),
    )
    (found,) = find_fallbacks(seen)
    assert found.title.startswith("aten.cummax")
    assert potential_saving(found).per_call_s.high == pytest.approx(30e-6)


def test_what_pytorch_gave_up_is_found() -> None:
    gone = UncompiledPart(UncompiledKind.WHOLE_FUNCTION, "forward runs in eager", "forward", "model.py", 3)
    (found,) = find_fallbacks(evidence(watched=CompileEvents(5.0, compilations=(COMPILATION,), fallbacks=(gone,))))
    assert found.title == "whole function: forward runs in eager"


def test_a_break_that_leaves_a_function_uncompiled_is_found_once_and_priced() -> None:
    whole = replace(BRANCH, whole=True)
    what = f"not compiled at all, because of the graph break at {whole.file}:{whole.line} in forward (it branches)"
    gone = UncompiledPart(UncompiledKind.WHOLE_FUNCTION, what, "forward", whole.file, 10, graph_break=whole.where)
    another = replace(gone, graph_break=replace(whole.where, line=whole.line + 1))
    kernels = (Kernel("aten::mm", 2.0, 40e-6, 1e3, 1e6), Kernel("aten::sin", 2.0, 20e-6, 1e3))
    seen = evidence(
        watched=CompileEvents(5.0, (whole,), compilations=(COMPILATION,), fallbacks=(gone, another)),
        profiled=Profiled(kernels, 60e-6),
    )
    (found,) = find_breaks(seen, FixedPrices(None))
    assert found.cause.endswith("It leaves the whole function uncompiled.")
    idle = seen.execution.call_s.mid - seen.execution.busy_s
    assert potential_saving(found).per_call_s.high == pytest.approx(idle + 10e-6), (
        "half of what is no product of matrices"
    )
    assert potential_saving(found).per_call_s.low == 0.0
    assert [one.title for one in find_fallbacks(seen)] == [f"whole function: {another.what}"]
    reworded = replace(seen, watched=replace(seen.watched, fallbacks=(replace(gone, what="not compiled"),)))
    assert not list(find_fallbacks(reworded)), "the place of the break decides, and no sentence"


def test_a_kernel_far_from_the_roofline_is_found_and_a_near_one_is_not() -> None:
    kernels = (Kernel("aten::mm", 2.0, 50e-6, 1e3, 1e6, 0.1), Kernel("aten::bmm", 2.0, 40e-6, 1e3, 1e6, 0.8))
    (found,) = find_slow_kernels(evidence(profiled=Profiled(kernels, 90e-6)))
    assert found.title.startswith("aten::mm reaches 10%")
    assert potential_saving(found).per_call_s.high == pytest.approx(45e-6)
    assert potential_saving(found).basis is Basis.ESTIMATED


def test_frames_of_recompiles_are_places() -> None:
    changed = Recompile("forward", "model.py", 10, "guard", stack=(Frame("model.py", 14, "forward"),))
    seen = evidence(watched=CompileEvents(5.0, recompiles=(changed,), compilations=(COMPILATION,)))
    (found,) = find_repeated(seen, FixedPrices())
    assert [spot.line for spot in found.places] == [10, 14]


@pytest.mark.parametrize(("saved", "recommended"), [(50e-6, True), (-50e-6, False)])
def test_a_plan_that_was_timed_without_a_gain_is_not_recommended(saved: float, recommended: bool) -> None:
    code = Code(1, Counter(), Counter({"aten.mul": 2}))
    seen = evidence(code=code, observed=OpTrace(complex_operators=3))
    (found,) = [one for one in findings.find(seen, FixedPrices(price(saved))) if one.kind == "complex"]
    assert found.fix.startswith("Tried, and no saving") is not recommended
