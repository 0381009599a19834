"""The default search: its proposals, their order, plans it leaves out and why, and the quality of its result."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from sketches import CAPTURE, FAILED, HERE, INDUCTOR, a_history, a_trial, an_inspection, make_measurement
from synthetic import TRAITS, Machine, Search, a_space, installed

from torchwise.plan import EAGER, Plan, PlanSpace
from torchwise.plan.choice import Stage, load_choices
from torchwise.plan.effort import EFFORTS
from torchwise.plan.rules import iter_changes
from torchwise.plan.space import compile_factor_of, numerics_of
from torchwise.plan.trait import Trait
from torchwise.plan.workload_spec import DEFAULT_CALLS
from torchwise.records import Check, Failure, FailureKind, Outcome, Trial, TrialState, Verdict
from torchwise.study.decision import decide
from torchwise.study.history import BESIDE_S, ORDER, PER_OPERATOR_S, PLAIN_COMPILE_S, History
from torchwise.study.option import HOPE, format_estimate
from torchwise.study.samplers import ListedSampler, Proposal, Sampler, StagedSampler

AUTOTUNED = Plan(backend="inductor", mode="max-autotune-no-cudagraphs")
REGIONAL = Plan(backend="inductor", scope="regional")
MANY = 100_000_000


def make_history(*trials: Trial, shares: dict[str, float] | None = None, **asked: Any) -> History:
    inspection = an_inspection(1e-3, traits=TRAITS, shares=shares or {})
    return a_history(*trials, inspection=inspection, **{"calls": MANY, "device": "cuda", **asked})


def ask_plan(history: History, **space: Any) -> Plan | None:
    proposal = StagedSampler(a_space(**space)).ask(history)
    return proposal.plan if proposal else None


def ever_asked(history: History, **space: Any) -> list[Plan]:
    """Ask until no more plans are proposed, while every tried plan fails."""
    found: list[Plan] = []
    while (plan := ask_plan(history, **space)) is not None:
        found.append(plan)
        history = replace(history, trials=(*history.trials, Trial(99, plan, TrialState.FAIL)))
    return found


def exclusion_reasons(history: History, **space: Any) -> dict[str, str]:
    lines = StagedSampler(a_space(**space)).list_excluded(history)
    return dict(line.split(": ", 1) for line in lines)


# ---- order


@pytest.fixture(autouse=True)
def only_pytorch() -> Iterator[None]:
    with installed():
        yield


TF32, BF16 = Plan(precision="tf32"), Plan(precision="bf16")


@pytest.mark.parametrize(
    ("busy_s", "leads_again"), [(0.55, True), (0.69, False), (None, False)], ids=["less", "equal", "unknown"]
)
def test_quicker_kernels_that_gaps_hid_are_timed_again_in_a_graph(busy_s: float | None, leads_again: bool) -> None:
    # In eager, bf16 lost: its kernels take less time, and the host as long. A graph closes the gaps.
    captured = replace(TF32, capture="call")
    trials = [
        a_trial(TF32, 1.21, measurement=make_measurement(1.21, busy_s=0.7), cold_s=0.1),
        a_trial(BF16, 1.08, measurement=make_measurement(1.08, busy_s=busy_s), cold_s=0.1),
    ]
    shares = {"gemm": 0.35, "conv": 0.35, "launch": 0.25}
    waiting = replace(TF32, memory_format="channels_last")
    leader = a_trial(waiting, 1.25, measurement=make_measurement(1.25, busy_s=0.4), cold_s=0.1)
    asked = ask_plan(make_history(*trials, leader, shares=shares), allow="lower-precision")
    assert asked != replace(waiting, precision="bf16"), "the leader waits as long"
    leader = a_trial(captured, 1.41, measurement=make_measurement(1.41, busy_s=0.7), cold_s=0.1)
    history = make_history(*trials, leader, shares=shares)
    asked = ask_plan(history, allow="lower-precision")
    assert (asked == replace(BF16, capture="call")) is leads_again
    assert replace(BF16, capture="call") in ever_asked(history, allow="lower-precision"), "late, if not at once"


def test_a_captured_leader_that_may_be_one_kernel_is_tried_without_its_capture() -> None:
    rows, traits = replace(CAPTURE, backend="row_programs"), {*TRAITS, Trait.ROW_REGIONS}
    inspection = an_inspection(1e-3, traits=frozenset(traits), shares={"launch": 0.9})
    trials = [a_trial(CAPTURE, 3.0, cold_s=0.1), a_trial(rows, 5.0, cold_s=3.0)]
    history = a_history(*trials, inspection=inspection, calls=MANY, device="cuda")
    space = {"traits": frozenset(traits), "device": "cuda", "effort": "quick"}
    assert ask_plan(history, **space) == Plan(backend="row_programs")
    inductor = [a_trial(CAPTURE, 3.0, cold_s=0.1), a_trial(replace(CAPTURE, backend="inductor"), 5.0, cold_s=3.0)]
    history = a_history(*inductor, inspection=inspection, calls=MANY, device="cuda")
    assert ask_plan(history, **space) != INDUCTOR


def test_what_compiles_nothing_comes_first() -> None:
    search = Search(Machine(3), a_space(allow="lower-precision", effort="thorough"), calls=MANY)
    tried: list[float] = []
    search.run(each=lambda history, plan: tried.append(compile_factor_of(plan)))
    compiled = next(index for index, factor in enumerate(tried) if factor > 0)
    assert compiled >= 3
    assert tried[compiled] == 1.0
    assert tried.index(max(tried)) > compiled


def test_the_first_proposals_by_hand() -> None:
    nothing_to_gain = {"launch": 0.5, "conv": 0.5, "gemm": 0.5}
    first = ask_plan(make_history(shares=nothing_to_gain))
    assert first == CAPTURE  # which could save the most: of the launch gaps nothing is sure to remain
    second = ask_plan(make_history(a_trial(first, 0.5, cold_s=0.0), shares=nothing_to_gain))
    assert second == Plan(memory_format="channels_last")


def test_another_kernel_of_attention_comes_after_a_capture_and_only_for_its_share_of_the_kernels() -> None:
    traits = frozenset({"module", "gemm", "floating", "fused_attention"})
    space = PlanSpace("cuda", "inference", traits, effort="thorough")
    shares = {"launch": 0.5, "gemm": 0.6, "attention": 0.4}
    history = a_history(inspection=an_inspection(1e-3, traits=traits, shares=shares), calls=MANY, device="cuda")
    proposal = StagedSampler(space).ask(history)
    assert proposal is not None
    assert proposal.plan == CAPTURE, "though it takes a moment, and another kernel none"
    captured = a_trial(CAPTURE, 0.5, cold_s=0.1)
    other = StagedSampler(space).ask(replace(history, trials=(captured,)))
    assert other is not None
    assert other.plan.transforms[0].endswith("_attention")
    assert "it could save up to 20%" in other.reason, "of 50 % of the time, in which kernels run"

    few = an_inspection(1e-3, traits=traits, shares={**shares, "attention": 0.01})
    excluded = StagedSampler(space).list_excluded(replace(history, inspection=few))
    assert any("flash_attention: it acts on fused attention, and could save at most 0.5%" in line for line in excluded)


@pytest.mark.parametrize("inductor", [0.6, 1.2])
def test_complex_numbers_are_rewritten_right_after_plain_inductor(inductor: float) -> None:
    space = PlanSpace("cuda", "inference", frozenset({"complex", "floating"}))
    inspection = an_inspection(1e-3, traits=space.traits, shares={"launch": 0.5})
    trials = [a_trial(CAPTURE, 0.9, cold_s=0.0), a_trial(INDUCTOR, measurement=make_measurement(inductor, busy_s=1e-4))]
    history = a_history(*trials, inspection=inspection, calls=MANY, device="cuda")
    proposal = StagedSampler(space).ask(history)
    assert proposal is not None
    assert proposal.plan == Plan(backend="inductor", transforms=("complex_to_real",))
    assert "it could save up to 9" in proposal.reason


def test_a_loop_is_rolled_and_rewritten_before_it_is_compiled_whole() -> None:
    space = PlanSpace("cpu", "inference", frozenset({"complex", "floating", "repeats"}), effort="quick")
    history = a_history(inspection=an_inspection(1e-2, traits=space.traits), calls=MANY)
    rolled = Plan(backend="inductor", scope="rolled")
    rewritten = replace(rolled, transforms=("complex_to_real",))
    asked: list[Plan] = []
    while len(asked) < 2:
        proposal = StagedSampler(space).ask(history)
        assert proposal is not None
        asked += [proposal.plan] if proposal.plan.backend != "eager" else []  # threads come before compiled plans
        history = replace(history, trials=(*history.trials, a_trial(proposal.plan, verdict=FAILED, measurement=None)))
    assert asked == [rewritten, rolled], "alone in case that what it brings along fails"


def test_a_loop_that_leads_rolled_is_tried_whole_with_all_else_as_it_is() -> None:
    space = PlanSpace("cuda", "inference", frozenset({"complex", "floating", "repeats"}), effort="quick")
    inspection = an_inspection(2e-2, traits=space.traits, shares={"launch": 0.6})
    rolled = Plan(backend="inductor", transforms=("complex_to_real",), scope="rolled", capture="call")
    trials = [
        a_trial(CAPTURE, 2.5, cold_s=0.1),
        a_trial(rolled, measurement=make_measurement(27.0, busy_s=7e-4), cold_s=3.0),
    ]
    proposal = StagedSampler(space).ask(a_history(*trials, inspection=inspection, calls=MANY, device="cuda"))
    assert proposal is not None
    assert proposal.plan == replace(rolled, scope="whole")
    assert "torch.compile" in proposal.reason
    few = a_history(*trials, inspection=inspection, calls=1000, device="cuda")
    assert str(proposal.plan) in dict(line.split(": ", 1) for line in StagedSampler(space).list_excluded(few))


def test_what_cannot_be_rolled_is_tried_on_the_whole_of_a_plan_that_leads_rolled() -> None:
    traits = frozenset({"module", "gemm", "floating", "repeats"})
    space = PlanSpace("cuda", "inference", traits, effort="quick")
    inspection = an_inspection(4e-3, traits=traits, shares={"launch": 0.8, "gemm": 0.9})
    rolled = Plan(backend="inductor", scope="rolled", capture="call")
    trials = [
        a_trial(CAPTURE, 4.4, cold_s=0.1),
        a_trial(rolled, measurement=make_measurement(7.9, busy_s=5e-4), cold_s=7.0),
        a_trial(replace(rolled, scope="whole"), 6.4, cold_s=10.0),
    ]
    proposal = StagedSampler(space).ask(a_history(*trials, inspection=inspection, calls=MANY, device="cuda"))
    assert proposal is not None
    assert proposal.plan == Plan(backend="inductor", options=(("freezing", True),), capture="call")


def test_rnns_are_isolated_before_and_even_where_nothing_is_compiled_without() -> None:
    space = PlanSpace("cpu", "inference", frozenset({"module", "floating", "rnn"}), effort="quick")
    isolated = Plan(backend="inductor", transforms=("isolate_rnn",))
    assert StagedSampler(space).ask(a_history(inspection=an_inspection(1e-3), calls=MANY)).plan == isolated  # type: ignore[union-attr]
    failed = a_history(Trial(0, INDUCTOR, TrialState.FAIL), inspection=an_inspection(1e-3), calls=MANY)
    assert StagedSampler(space).ask(failed).plan == isolated  # type: ignore[union-attr]


def test_where_outputs_lay_otherwise_every_compiled_plan_lays_them_out_as_eager_does() -> None:
    space = PlanSpace("cuda", "inference", frozenset({"module", "floating", "gemm", "repeats"}), effort="standard")
    inspection = an_inspection(1e-3, traits=space.traits, shares={"launch": 0.1})
    before = a_history(inspection=inspection, calls=MANY, device="cuda")
    assert all("eager_strides" not in option for option in StagedSampler(space).list_excluded(before))
    failed = a_trial(INDUCTOR, verdict=RESTRIDED)
    history = replace(before, trials=(a_trial(CAPTURE, 1.1, cold_s=0.0), failed))
    asked: list[Plan] = []
    while (proposal := StagedSampler(space).ask(history)) is not None:
        asked.append(proposal.plan)
        history = replace(history, trials=(*history.trials, a_trial(proposal.plan, 1.0 + 0.1 * len(asked))))
    assert asked[0] == Plan(backend="inductor", transforms=("eager_strides",), capture="call"), "on what leads"
    assert not any(plan.scope == "rolled" for plan in asked), "whose bodies lay out what they return by themselves"
    assert len(asked) > 3
    assert [plan for plan in asked if plan.backend == "inductor" and "eager_strides" not in plan.transforms] == []


@pytest.mark.parametrize(("scope", "laid"), [("whole", True), ("regional", True), ("rolled", False)])
def test_each_scope_with_graphs_of_functions_lays_them_out(scope: str, laid: bool) -> None:
    history = make_history(a_trial(INDUCTOR, verdict=RESTRIDED))
    refined = history.refine(Plan(backend="inductor", scope=scope))
    assert refined == Plan(backend="inductor", scope=scope, transforms=("eager_strides",) if laid else ())


@pytest.mark.parametrize("trait", ["grows", "sizes_vary"])
def test_outputs_are_laid_out_as_eagers_at_sizes_that_vary_too(trait: str) -> None:
    space = PlanSpace("cpu", "inference", frozenset({"module", "floating", "several_shapes", trait}), effort="quick")
    inspection = an_inspection(1e-3, traits=space.traits)
    first = StagedSampler(space).ask(a_history(inspection=inspection, calls=MANY))
    assert first is not None
    assert first.plan == Plan(backend="inductor", shapes="dynamic")
    failed = a_history(a_trial(first.plan, verdict=RESTRIDED), inspection=inspection, calls=MANY)
    second = StagedSampler(space).ask(failed)
    assert second is not None
    assert second.plan == Plan(backend="inductor", shapes="dynamic", transforms=("eager_strides",))


RESTRIDED = Verdict((Check("strides", Outcome.FAIL, "output[1] has strides (2, 1)"),))


@pytest.mark.parametrize(
    "trials",
    [
        (a_trial(Plan(memory_format="channels_last"), verdict=RESTRIDED),),
        (a_trial(Plan(backend="inductor", memory_format="channels_last"), verdict=RESTRIDED),),
        (a_trial(Plan(backend="inductor", transforms=("eager_strides",)), verdict=RESTRIDED),),
        (a_trial(INDUCTOR, verdict=RESTRIDED), a_trial(Plan(backend="inductor", scope="rolled"), 2.0)),
    ],
)
def test_only_what_every_compiled_plan_shares_speaks_against_the_others(trials: tuple[Trial, ...]) -> None:
    assert "restrided" not in make_history(*trials).traits
    assert "inductor without eager_strides" not in exclusion_reasons(make_history(*trials))


def test_other_wrong_answers_say_nothing_of_strides() -> None:
    history = a_history(a_trial(INDUCTOR, verdict=FAILED), inspection=an_inspection(1e-3), calls=MANY)
    assert "restrided" not in history.traits
    passed = Verdict((Check("strides", Outcome.PASS, "as in eager"),))
    assert "restrided" not in replace(history, trials=(a_trial(INDUCTOR, verdict=passed),)).traits


def test_a_static_form_that_is_slower_alone_is_tried_captured() -> None:
    space = PlanSpace("cuda", "inference", frozenset({"module", "floating", "static_form"}), effort="quick")
    history = a_history(inspection=an_inspection(1e-3, traits=space.traits), calls=MANY, device="cuda")
    alone = Plan(transforms=("static_form",))
    asked = []
    for _ in range(2):
        proposal = StagedSampler(space).ask(history)
        assert proposal is not None
        asked.append(proposal.plan)
        history = replace(history, trials=(*history.trials, a_trial(proposal.plan, 0.8, cold_s=0.0)))
    assert asked == [alone, replace(alone, capture="call")]


def test_what_is_left_out_is_named_so_that_it_can_be_told() -> None:
    assert "threads 1" in exclusion_reasons(make_history(device="cpu"), device="cpu", effort="quick")
    by_more_effort = make_history(a_trial(Plan(backend="inductor", threads=1), 0.5), device="cpu")
    assert "threads 1" not in exclusion_reasons(by_more_effort, device="cpu", effort="quick"), "it was tried"


def test_a_complex_model_is_rewritten_by_the_first_compiled_plan() -> None:
    space = PlanSpace("cuda", "inference", frozenset({"complex", "floating"}), effort="quick")
    capture = Plan(capture="call")
    history = a_history(inspection=an_inspection(1e-4, traits=space.traits), calls=MANY)
    history = replace(history, trials=(a_trial(capture, cold_s=0.1),))
    proposal = StagedSampler(space).ask(history)
    assert proposal is not None
    assert proposal.plan == Plan(backend="inductor", transforms=("complex_to_real",), capture="call")


def test_a_proposal_says_why() -> None:
    proposal = StagedSampler(a_space("cpu", effort="quick")).ask(make_history(device="cpu"))
    assert proposal is not None
    assert proposal.plan == INDUCTOR
    assert re.match(r"torch.compile with Inductor: .*; on eager it could save up to 100%$", proposal.reason)


def test_the_same_history_gives_the_same_answer() -> None:
    space = a_space(allow="lower-precision")
    one, other = Search(Machine(5), space).run(), Search(Machine(5), space).run()
    assert one == other
    for count in range(len(one.trials)):  # a study that was broken off goes on where it stood
        history = replace(one, trials=one.trials[:count])
        answer = StagedSampler(space).ask(history)
        assert answer == StagedSampler(space).ask(history)
        assert answer is not None
        assert answer.plan == one.trials[count].plan


def test_it_proposes_nothing_that_is_known_even_if_it_still_runs_or_failed() -> None:
    first = ask_plan(make_history())
    assert first is not None
    for state in (TrialState.WAITING, TrialState.RUNNING, TrialState.FAIL, TrialState.PRUNED):
        assert ask_plan(make_history(Trial(0, first, state))) != first


def test_a_model_that_prints_is_not_captured_and_the_report_says_so() -> None:
    printing = TRAITS | {"prints"}
    history = make_history(shares={"launch": 0.9})
    assert any(plan.capture == "call" for plan in ever_asked(history))
    assert all(plan.capture == "none" for plan in ever_asked(history, traits=printing))
    assert exclusion_reasons(history, traits=printing)["capture call"].startswith(
        "the model prints or logs in its call"
    )
    steps = exclusion_reasons(history, traits=printing | {"training_step"}, allow="exact", mode="training")
    assert steps["capture step"].startswith("the model prints or logs"), "allowing more would open nothing"
    assert "capture call" not in exclusion_reasons(make_history(device="cpu"), device="cpu", traits=printing), (
        "it has no graphs anyway"
    )


# ---- plans that can pay


COMPILE_S = PLAIN_COMPILE_S["cpu"]
"""The expected length of a compile until one was seen. Its trial takes `BESIDE_S` more."""


@pytest.mark.parametrize("share", [0.01, 0.5, 0.9, 1.1, 1000.0])
def test_compiling_is_tried_only_when_its_bound_can_pay_for_it_and_for_the_trial(share: float) -> None:
    # 1 ms a call can at best become nothing, and a bound is only partly believed.
    calls = round(share * (COMPILE_S + COMPILE_S + BESIDE_S) / (HOPE * 1e-3))
    history = make_history(device="cpu", calls=calls)
    worth = share > 1
    assert (ask_plan(history, device="cpu", effort="quick") == INDUCTOR) is worth
    why = exclusion_reasons(history, device="cpu", effort="quick").get("inductor")
    assert (why is None) is worth
    if why:
        saved, dearer, trial = (f"{value:.3g} s" for value in (HOPE * calls * 1e-3, COMPILE_S, COMPILE_S + BESIDE_S))
        assert f" over {calls:,} calls, " in why
        assert why.index(saved) < why.index(dearer) < why.rindex(trial)


def test_restarts_make_compiling_dearer() -> None:
    calls = round(3 * COMPILE_S / (HOPE * 1e-3))
    assert ask_plan(make_history(device="cpu", calls=calls), device="cpu", effort="quick") == INDUCTOR
    assert ask_plan(make_history(device="cpu", calls=calls, restarts=10), device="cpu", effort="quick") is None


def test_an_expensive_choice_waits_for_a_bound_that_can_pay() -> None:
    # A quarter of the time is matrix products, of which autotuning keeps a share for sure. The leader, which
    # halved the rest, compiled for 5 s. Autotuning takes many times that: once in its place, and once for the trial.
    choice = load_choices()["mode", AUTOTUNED.mode]
    bound_s, compile_s = (1 - choice.min_remaining_fraction) * 0.25e-3, choice.compile_factor * 5.0
    shares = {"gemm": 0.25, "conv": 0.0, "launch": 0.0}
    leader = a_trial(INDUCTOR, 1.6, cold_s=5.0, seconds=8.0)

    def find_exclusion(calls: float) -> str | None:
        history = make_history(leader, shares=shares, calls=round(calls))
        assert history.incumbent() == INDUCTOR
        return exclusion_reasons(history).get(str(AUTOTUNED))

    needed_s = (compile_s - 5.0) + (compile_s + 3.0)
    few = find_exclusion(0.9 * needed_s / (HOPE * bound_s))
    assert few is not None
    assert f"less than {compile_s - 5:.3g} s of extra compile time" in few
    assert few.endswith(f"plus {compile_s + 3:.3g} s for the trial")
    assert find_exclusion(1.1 * needed_s / (HOPE * bound_s)) is None


def test_a_trial_alone_is_named_where_the_plan_compiles_no_longer_than_the_leader() -> None:
    leader = a_trial(INDUCTOR, 2.0, cold_s=40.0, seconds=43.0)
    reasons = exclusion_reasons(make_history(leader, calls=100))
    told = [reason for reason in reasons.values() if "which is less than" in reason]
    assert told
    assert not any("less than -" in reason for reason in told)
    assert any(reason.endswith(" s for the trial") and "extra compile" not in reason for reason in told)


def test_what_only_compiles_quicker_must_save_that_much_of_compiling() -> None:
    def find_exclusion(cold_s: float, calls: int) -> str | None:
        leader = a_trial(INDUCTOR, 2.0, cold_s=cold_s, warm_s=cold_s, seconds=cold_s + 1)
        return exclusion_reasons(make_history(leader, calls=calls)).get(str(REGIONAL))

    # Compiled by region, 20 s become 8 s, and the trial takes 9 s. Over very many calls 12 s are less than noise.
    assert find_exclusion(20.0, 60_000) is None
    assert find_exclusion(20.0, MANY) == "it could save at most 12 s of compiling; its trial takes 9 s"
    assert find_exclusion(1.0, 60_000) == "it could save at most 0.6 s of compiling; its trial takes 1.4 s"


def test_a_choice_that_acts_on_nothing_is_left_out_with_its_bound() -> None:
    found = exclusion_reasons(make_history(shares={"gemm": 0.5, "conv": 0.5, "launch": 0.01}))
    assert found["eager + capture call"] == (
        "it acts on the gaps between kernels, and could save at most 1.0% of the leader's time"
    )
    found = exclusion_reasons(make_history(shares={"gemm": 0.01, "conv": 0.5, "launch": 0.5}), allow="lower-precision")
    assert found["eager + tf32"] == (
        "it acts on matrix products and convolutions, and could save at most 0.9% of the leader's time"
    )


def test_what_saves_memory_alone_is_never_tried_for_its_time_and_told_so() -> None:
    traits = frozenset({"training_step", "repeated_blocks", "stages", "divisible_by_2", "divisible_by_4", "fusable"})
    space = PlanSpace("cpu", "training", traits, effort="thorough")
    history = a_history(inspection=an_inspection(1.0, traits=traits), calls=MANY)
    asked = []
    while (proposal := StagedSampler(space).ask(history)) is not None:
        asked.append(proposal.plan)
        history = replace(history, trials=(*history.trials, a_trial(proposal.plan, 0.5)))
    assert Plan(optimizer="fused") in asked
    assert not any(plan.activation_checkpointing != "none" or plan.pieces > 1 for plan in asked)
    told = dict(line.split(": ", 1) for line in StagedSampler(space).list_excluded(history))
    for name in ("eager + activation checkpointing blocks", "eager + 2 microbatches", "eager + 4 microbatches"):
        assert told[name].startswith("it acts on memory alone")


def test_gaps_that_a_plan_left_are_what_a_capture_can_save() -> None:
    shares = {"gemm": 0.9, "conv": 0.9, "launch": 0.9}
    captured = Plan(backend="inductor", capture="call")
    for busy_share, is_left_out in ((0.999, True), (0.5, False)):
        leader = a_trial(INDUCTOR, measurement=make_measurement(2.0, busy_s=0.5 * busy_share))
        found = exclusion_reasons(make_history(leader, a_trial(CAPTURE, 0.9), shares=shares))
        assert (str(captured) in found) is is_left_out


CPP = Plan(backend="inductor", options=(("cpp_wrapper", True),))


@pytest.mark.parametrize(("operators", "tried"), [(60, True), (2, False), (None, True)])
def test_cpp_around_the_kernels_is_tried_where_python_may_take_long_between_them(
    operators: int | None, tried: bool
) -> None:
    # A call takes 0.5 ms compiled, of which 2 operators leave 10 µs to Python at the most.
    inspection = an_inspection(1e-3, traits=TRAITS, operators=operators)
    history = a_history(a_trial(INDUCTOR, 2.0), inspection=inspection, calls=MANY, device="cpu")
    assert (CPP in ever_asked(history, device="cpu", effort="thorough")) is tried
    assert (str(CPP) in exclusion_reasons(history, device="cpu", effort="thorough")) is not tried


def test_a_gap_that_was_not_measured_is_counted_on_by_half() -> None:
    inspection = an_inspection(1e-3, traits=TRAITS, operators=60)  # 0.3 ms at the most, of which C++ leaves 30 %
    history = a_history(a_trial(INDUCTOR, 2.0), inspection=inspection, calls=200_000, device="cpu")
    found = exclusion_reasons(history, device="cpu", effort="thorough")
    assert found[str(CPP)].startswith("it would save about 21 s over 200,000 calls")


def test_figures_of_what_is_not_tried_are_readable_however_small_or_large() -> None:
    said = [format_estimate(seconds) for seconds in (0.0, 0.004721, 0.6, 12.0, 999.4, 12345.0, -3.0)]
    assert said == ["0 s", "4.72 ms", "0.6 s", "12 s", "999 s", "3 h 26 min", "-3 s"]


@pytest.mark.parametrize(
    ("plan", "counted"), [(Plan(backend="inductor", capture="call"), 1.0), (CPP, 0.7 * HOPE)], ids=str
)
def test_a_graph_closes_the_gaps_and_cpp_some_of_them(plan: Plan, counted: float) -> None:
    leader = a_trial(
        INDUCTOR, measurement=make_measurement(2.0, busy_s=0.4), cold_s=10.0, seconds=12.0
    )  # gaps of a fifth
    inspection = an_inspection(1e-3, traits=TRAITS)

    def is_left_out(saved_s: float) -> bool:
        trial_s = compile_factor_of(plan) * 10.0 + 2.0
        calls = round((compile_factor_of(plan) * 10.0 - 10.0 + trial_s) * saved_s / (counted * 0.1e-3))
        return str(plan) in exclusion_reasons(
            a_history(leader, inspection=inspection, calls=calls, device="cuda"), effort="thorough"
        )

    assert is_left_out(0.9)
    assert not is_left_out(1.1)


def test_cpp_around_the_kernels_gains_nothing_where_a_graph_replays_them() -> None:
    leader = a_trial(Plan(backend="inductor", capture="call"), measurement=make_measurement(4.0, busy_s=0.99 * 0.25))
    history = make_history(leader, a_trial(INDUCTOR, 2.0), a_trial(CAPTURE, 1.5), shares={"launch": 0.5})
    found = exclusion_reasons(history, effort="thorough")
    assert found["inductor + cpp_wrapper + capture call"].startswith(
        "it acts on the gaps between kernels, and could save"
    )


def test_the_gaps_of_a_compiled_plan_that_lost_are_still_worth_removing() -> None:
    lost = a_trial(INDUCTOR, measurement=make_measurement(0.8, busy_s=1.25 * 0.1))
    history = make_history(lost, shares={"gemm": 0.1, "conv": 0.1, "launch": 0.0})
    assert history.incumbent() == EAGER
    assert Plan(backend="inductor", capture="call") in ever_asked(history)


def test_a_plan_that_replaces_the_leader_need_not_pay_the_leaders_compile_again() -> None:
    # The leader compiled for 10 s and halved 1 ms a call. Freezing compiles a little longer, in its place, and takes
    # a trial. It could save another 0.25 ms a call, which is less than its whole compile and the trial together.
    compile_s = 10.0 * load_choices()["options", ("freezing", True)].compile_factor
    calls = round((2 * compile_s - 5.0) / (HOPE * 0.25e-3))
    leader = a_trial(INDUCTOR, 2.0, cold_s=10.0, seconds=10.0)
    history = make_history(leader, calls=calls, device="cpu", shares={"gemm": 0.5, "conv": 0.0})
    assert history.incumbent() == INDUCTOR
    frozen = Plan(backend="inductor", options=(("freezing", True),))
    assert frozen in ever_asked(history, device="cpu")


def test_a_value_that_leads_may_be_exchanged_for_another() -> None:
    leader = a_trial(Plan(precision="tf32", capture="call"), 3.0, cold_s=0.0)
    others = [a_trial(Plan(precision="tf32"), 1.5, cold_s=0.0), a_trial(Plan(precision="bf16"), 1.6, cold_s=0.0)]
    history = make_history(leader, a_trial(CAPTURE, 2.0, cold_s=0.0), *others, shares={"gemm": 0.5, "launch": 0.5})
    assert Plan(precision="bf16", capture="call") in ever_asked(history, allow="lower-precision")


def test_what_a_leader_lacks_comes_before_another_value_of_what_it_has() -> None:
    shares = {"gemm": 0.9, "conv": 0.9, "launch": 0.9}
    leader = Plan(precision="bf16", memory_format="channels_last", capture="call")
    history = make_history(a_trial(leader, 2.0, cold_s=0.0), shares=shares)
    asked = [plan for plan in ever_asked(history, allow="lower-precision") if plan.capture == "call"]
    compiled = next(plan for plan in asked if plan.backend == "inductor")
    others = [plan for plan in asked if plan.backend == "eager" and plan.precision not in ("bf16", "native")]
    assert others
    assert all(asked.index(compiled) < asked.index(plan) for plan in others)


def test_a_plan_pays_for_its_own_trial_only_if_the_calls_are_stated() -> None:
    leader = a_trial(INDUCTOR, 2.0, cold_s=5.0, seconds=8.0)
    reasons = {
        calls: exclusion_reasons(make_history(leader, calls=calls, shares={"gemm": 1.0})).get(str(AUTOTUNED))
        for calls in (DEFAULT_CALLS, DEFAULT_CALLS + 1)
    }
    assert reasons[DEFAULT_CALLS] is not None
    assert reasons[DEFAULT_CALLS].endswith(" of extra compile time")
    assert reasons[DEFAULT_CALLS + 1] is not None
    assert reasons[DEFAULT_CALLS + 1].endswith(" for the trial")


# ---- knowledge that carries over


def test_a_loss_that_carries_over_is_not_repeated() -> None:
    one_thread = Plan(threads=1)
    for speed, repeated in ((0.5, False), (1.2, True)):
        search = Search(Machine(1, "cpu"), a_space("cpu"), calls=MANY)
        if not any(choice.key == ("threads", 1) for choice in search.space.choices()):
            pytest.skip("this machine has one CPU, so that no other number of threads is tried")
        base = make_history(a_trial(one_thread, speed, cold_s=0.0), a_trial(INDUCTOR, 2.0, cold_s=1.0), device="cpu")
        history, later = base, []
        while (plan := ask_plan(history, device="cpu", effort="thorough")) is not None:
            later.append(plan)
            history = replace(history, trials=(*history.trials, a_trial(plan, 1.0, cold_s=1.0)))
        assert any(plan.threads == 1 for plan in later) is repeated


@pytest.mark.parametrize(
    ("speed", "traits", "is_tried"),
    [(4.1, (), True), (3.9, (), False), (3.9, (Trait.CONTENDED_CORES,), True)],
)
def test_threads_are_not_tried_on_code_that_trails_by_far(
    speed: float, traits: tuple[Trait, ...], is_tried: bool
) -> None:
    """To compile it again for one thread took longer than all other trials."""
    inspection = an_inspection(1e-3, traits=TRAITS | {*traits}, shares={})
    trailing = Plan(backend="row_programs")
    trials = a_trial(INDUCTOR, 8.0, cold_s=1.0), a_trial(trailing, speed, cold_s=1.0)
    history = a_history(*trials, inspection=inspection, calls=MANY, device="cpu")
    space = a_space("cpu", traits=frozenset(TRAITS | {*traits, Trait.ROW_REGIONS}))
    options = [option.plan for option in StagedSampler(space)._options(history)]
    if not any(plan.threads for plan in options):
        pytest.skip("this machine has one CPU, so that no other number of threads is tried")
    assert any(plan.threads and plan.backend == "row_programs" for plan in options) is is_tried
    assert any(plan.threads and plan.backend == "inductor" for plan in options)


def test_a_loss_of_another_choice_is_tried_again_elsewhere() -> None:
    lost = a_trial(Plan(memory_format="channels_last"), 0.5, cold_s=0.0)
    history = make_history(lost, a_trial(INDUCTOR, 2.0, cold_s=1.0), shares={"gemm": 0.5, "conv": 0.5, "launch": 0.0})
    assert "inductor + channels_last" not in exclusion_reasons(history)
    assert Plan(backend="inductor", memory_format="channels_last") in ever_asked(history)


# ---- plans that take long

LONG = an_inspection(2e-2, traits=frozenset({"floating", "repeats", "long", "complex"}), operators=2200)


def long_search(device: str, effort: str = "quick", **known: Any) -> tuple[StagedSampler, History]:
    space = PlanSpace(device, "inference", LONG.traits, effort=effort)
    shares = {"launch": 0.6} if device == "cuda" else {}
    inspection = replace(LONG, shares=shares)
    return StagedSampler(space), replace(a_history(inspection=inspection, calls=MANY, device=device), **known)


def test_where_compiling_takes_minutes_what_compiles_nothing_comes_first_and_the_whole_last() -> None:
    for device, cheap in (("cpu", "threads"), ("cuda", "capture")):
        sampler, history = long_search(device)
        asked: list[Plan] = []
        while (proposal := sampler.ask(history)) is not None:
            asked.append(proposal.plan)
            history = replace(history, trials=(*history.trials, a_trial(proposal.plan, 0.5, cold_s=0.0)))
        eager = [plan.backend == "eager" for plan in asked]
        assert eager == sorted(eager, reverse=True), "eager plans first"
        assert getattr(asked[0], cheap) != getattr(EAGER, cheap)
        compiled = [plan for plan in asked if plan.backend != "eager"]
        assert compiled[0].scope == "rolled"


def test_threads_are_tried_at_once_only_where_compiling_takes_long() -> None:
    def first(*traits: str) -> str:
        space = PlanSpace("cpu", "inference", frozenset({"floating", *traits}), effort="quick")
        proposal = StagedSampler(space).ask(make_history(device="cpu"))
        return proposal.plan.backend if proposal else "none"

    assert first() == "inductor"
    if any(choice.field == "threads" for choice in PlanSpace("cpu", "inference", LONG.traits).choices()):
        assert first("long") == first("repeats") == "eager"


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_compile_is_expected_to_take_longer_the_more_operators_there_are(device: str) -> None:
    def cold(operators: int | None, *traits: str) -> float:
        inspection = an_inspection(1e-3, operators=operators, traits=frozenset(traits))
        return a_history(inspection=inspection, device=device).predict_cold_s(INDUCTOR)

    assert cold(None) == cold(0) == PLAIN_COMPILE_S[device]
    assert cold(2000) == pytest.approx(PLAIN_COMPILE_S[device] + 2000 * PER_OPERATOR_S)
    assert cold(2000, "rnn") == cold(0), "what an RNN runs inside reaches no compiler"
    seen = a_history(a_trial(INDUCTOR, cold_s=7.0), inspection=an_inspection(1e-3, operators=2000), device=device)
    assert seen.predict_cold_s(AUTOTUNED) == 7.0 * load_choices()["mode", AUTOTUNED.mode].compile_factor


def test_what_cannot_end_in_time_comes_after_what_can() -> None:
    leader = a_trial(AUTOTUNED, 2.0, cold_s=160.0, seconds=162.0)  # so that plans built on it take as long
    history = make_history(leader, shares={"gemm": 0.6, "conv": 0.6, "launch": 0.3})

    def seconds_of_next(left_s: float) -> float:
        proposal = StagedSampler(a_space()).ask(replace(history, left_s=left_s))
        assert proposal is not None
        return history.predict_trial_s(proposal.plan)

    assert seconds_of_next(math.inf) > 100.0, "else nothing is shown"
    assert seconds_of_next(25.0) < 25.0
    assert seconds_of_next(1.0) > 100.0, "where nothing can, the prediction may be wrong, and the best is tried"


def test_a_trial_leaves_time_for_the_quickest_other_one() -> None:
    space = PlanSpace("cpu", "inference", frozenset({"complex", "floating"}), effort="quick")
    sampler = StagedSampler(space)
    history = a_history(inspection=an_inspection(1e-2, traits=space.traits, operators=80), calls=MANY)
    rewritten = Plan(backend="inductor", transforms=("complex_to_real",))

    def ask_proposal(left_s: float) -> Proposal:
        proposal = sampler.ask(replace(history, left_s=left_s))
        assert proposal is not None
        return proposal

    other_s = history.predict_trial_s(INDUCTOR)
    assert ask_proposal(90).plan == rewritten
    assert ask_proposal(90).limit_s == pytest.approx(90 - other_s)
    assert ask_proposal(math.inf).limit_s == math.inf, "a search without end leaves time for all"
    few = ask_proposal(other_s + 1).limit_s
    assert few == pytest.approx(2 * history.predict_trial_s(rewritten)), "yet what is a little late is not ended"
    late = Trial(0, rewritten, TrialState.FAIL, failure=Failure(FailureKind.TIMED_OUT, "compile", "passed its limit"))
    alone = sampler.ask(replace(history, left_s=20.0, trials=(late,)))
    assert alone is not None
    assert (alone.plan, alone.limit_s) == (INDUCTOR, math.inf), "nothing else waits"


def test_a_trial_that_was_refused_at_once_does_not_shorten_the_others() -> None:
    """Its tenth of a second was taken for the time of a trial: others were ended after two tenths."""
    refused = Failure(FailureKind.UNSUPPORTED, "compile", "no part of the model is a row program")
    failed = Trial(0, Plan(backend="row_programs"), TrialState.FAIL, failure=refused, seconds=0.1)
    timed = replace(a_trial(CAPTURE, 1.1, cold_s=0.0), seconds=7.0)
    assert make_history(failed).min_noncompile_s == make_history().min_noncompile_s == BESIDE_S
    assert make_history(failed, timed).min_noncompile_s == 7.0
    plan = Plan(precision="bf16")
    assert make_history(failed, timed).predict_trial_s(plan) == make_history(timed).predict_trial_s(plan)


@pytest.mark.parametrize(
    ("plan", "is_known"),
    [
        (Plan(backend="inductor", capture="call"), True),
        (Plan(backend="inductor", mode="reduce-overhead"), True),
        (Plan(backend="inductor", scope="rolled"), False),
        (Plan(backend="inductor", options=(("freezing", True),)), False),
        (CAPTURE, False),
    ],
    ids=str,
)
def test_code_that_took_too_long_is_not_compiled_again_under_another_name(plan: Plan, is_known: bool) -> None:
    failure = Failure(FailureKind.TIMED_OUT, "compile", "passed its limit of 60 s")
    late = Trial(0, INDUCTOR, TrialState.FAIL, failure=failure, seconds=61.0)
    assert (make_history(late).ran_out(plan) is late) is is_known
    slow = replace(late, failure=replace(failure, stage="verify"))
    assert make_history(slow).ran_out(plan) is None, "it compiled"


def test_what_took_too_long_is_left_out_and_the_report_says_why() -> None:
    failure = Failure(FailureKind.TIMED_OUT, "compile", "passed its limit of 60 s")
    late = Trial(0, INDUCTOR, TrialState.FAIL, failure=failure, seconds=61.0)
    captured = str(Plan(backend="inductor", capture="call"))
    leads = a_trial(CAPTURE, 1.5, cold_s=0.0)
    assert captured not in exclusion_reasons(make_history(leads, shares={"launch": 0.5}))
    found = exclusion_reasons(make_history(leads, late, shares={"launch": 0.5}))
    assert found[captured] == "compiling it takes longer than 61 s, as inductor showed"


# ---- choices that change nothing


def make_no_effect_trial(field: str, value: str, plan: Plan) -> Trial:
    failure = Failure(FailureKind.UNSUPPORTED, "compile", f"{value} changes nothing here", about=((field, value),))
    return Trial(0, plan, TrialState.FAIL, failure=failure, seconds=60.0)


OF_ALL = frozenset(
    {"module", "gemm", "floating", "complex", "short_rows", "rnn", "repeats", "reads_scalar", "reads_bool"}
)


def collect_proposals(device: str, *trials: Trial) -> list[Plan]:
    """Ask until no more plans are proposed, while every plan is a little faster than the one before."""
    space = PlanSpace(device, "inference", OF_ALL, effort="thorough")
    history = make_history(*trials, device=device, shares={"gemm": 0.5, "launch": 0.5})
    found: list[Plan] = []
    while (proposal := StagedSampler(space).ask(history)) is not None:
        found.append(proposal.plan)
        trial = a_trial(proposal.plan, 1.0 + 0.01 * len(found), cold_s=1.0)
        history = replace(history, trials=(*history.trials, trial))
    return found


@pytest.mark.parametrize(("field", "value"), [("transforms", "complex_to_real"), ("scope", "rolled")])
def test_what_changes_nothing_is_tried_in_no_other_plan_either(field: str, value: str) -> None:
    def with_it(*trials: Trial) -> list[Plan]:
        return [plan for plan in collect_proposals("cpu", *trials) if (field, value) in iter_changes(plan)]

    tried = with_it()
    told = make_no_effect_trial(field, value, tried[0])
    others = [plan for plan in tried if set(plan.transforms) <= set(tried[0].transforms)]
    assert len(others) >= 2, "else nothing is shown"
    assert not set(with_it(told)) & set(others)
    failed = replace(told, failure=Failure(FailureKind.DIED, "compile", "SIGSEGV"))
    assert set(with_it(failed)) & set(others), "a plan that fails otherwise says nothing of others"


INDUCTOR_TOO = {"backend": "inductor"}


@pytest.mark.parametrize(
    ("field", "value", "tried", "same", "another"),
    [
        ("capture", "branches", {}, [INDUCTOR_TOO, {"precision": "bf16"}], [{**INDUCTOR_TOO, "capture": "call"}]),
        ("transforms", "numbers_on_gpu", {"capture": "call"}, [{"memory_format": "channels_last"}], [{}]),
        ("transforms", "isolate_rnn", INDUCTOR_TOO, [{"mode": "reduce-overhead"}, {"scope": "regional"}], [{}]),
        # What acts later changes nothing in what an earlier transform is given.
        ("transforms", "isolate_rnn", INDUCTOR_TOO, [{"transforms": ("complex_to_real", "isolate_rnn")}], []),
        ("transforms", "complex_to_real", INDUCTOR_TOO, [{"mode": "max-autotune"}], [{"transforms": ("isolate_rnn",)}]),
        ("transforms", "structure_of_arrays", INDUCTOR_TOO, [{"threads": 1}], [{"transforms": ("complex_to_real",)}]),
    ],
)
def test_a_plan_is_the_same_as_without_what_changes_nothing(
    field: str, value: str, tried: dict[str, Any], same: list[dict[str, Any]], another: list[dict[str, Any]]
) -> None:
    plan = Plan(**tried).with_choice(field, value)
    told = make_no_effect_trial(field, value, plan)
    history = make_history(told)
    assert [history.find_refusal(replace(plan, **other)) for other in ({}, *same)] == [told] * (len(same) + 1)
    for other in another:
        without = replace(Plan(**tried), **other)
        assert history.find_refusal(without) is None
        if other.get("transforms"):
            assert history.find_refusal(without.with_choice(field, value)) is None


def test_what_another_transform_leaves_may_be_changed_after_all() -> None:
    name = "structure_of_arrays"
    told = make_no_effect_trial("transforms", name, Plan(backend="inductor", transforms=(name,)))
    found = {plan.transforms for plan in collect_proposals("cpu", told) if name in plan.transforms}
    assert found, "what complex_to_real makes of the graph is another one"
    assert all(len(transforms) > 1 for transforms in found)


def test_every_stage_has_its_place_in_the_order() -> None:
    assert set(ORDER) == set(Stage)
    for name in ("fused_attention", "grouped_keys", "eager_strides", "complex_to_real", "isolate_rnn"):
        told = make_no_effect_trial("transforms", name, INDUCTOR.with_choice("transforms", name))
        is_last = name == "complex_to_real"  # of these, so any other may change its graph
        other = "fused_attention" if is_last else "complex_to_real"
        found = make_history(told).find_refusal(told.plan.with_choice("transforms", other))
        assert (found is None) is is_last, name


@pytest.mark.parametrize("about", ["int8_dynamic", "isolate_rnn"])
def test_what_an_earlier_transform_left_tells_nothing_of_the_model_itself(about: str) -> None:
    both = Plan(backend="inductor", transforms=("static_form", about))
    told = make_no_effect_trial("transforms", about, both)
    history = make_history(told)
    assert history.find_refusal(replace(both, mode="max-autotune")) is told
    assert history.find_refusal(replace(both, transforms=(about,))) is None
    alone = make_no_effect_trial("transforms", about, replace(both, transforms=(about,)))
    assert make_history(told, alone).find_refusal(replace(both, transforms=(about,), mode="max-autotune")) is alone


def test_a_hint_with_what_changes_nothing_is_not_tried_and_the_report_says_why() -> None:
    rewritten = Plan(backend="inductor", transforms=("complex_to_real",))
    hint = Proposal(replace(rewritten, threads=1), "decided for before")
    told = make_no_effect_trial("transforms", "complex_to_real", rewritten)
    sampler = StagedSampler(PlanSpace("cpu", "inference", OF_ALL), [hint])
    assert sampler.ask(make_history(device="cpu")) == hint
    assert sampler.ask(make_history(told, device="cpu")) != hint
    line = "complex_to_real: in no plan, as inductor + complex_to_real showed: complex_to_real changes nothing here"
    assert line in sampler.list_excluded(make_history(told, device="cpu"))


AT_A_LINE = ("capture", "backend", "scope", "transforms")


@pytest.mark.parametrize(
    ("tried", "about", "alike", "others"),
    [
        # A line of the model cannot be captured: in no plan that runs this line.
        (
            CAPTURE,
            AT_A_LINE,
            [{"memory_format": "channels_last"}, {"precision": "bf16"}],
            [{"backend": "inductor"}, {"capture": "branches"}, {"transforms": ("static_form",)}, {"capture": "none"}],
        ),
        (
            Plan(backend="inductor", capture="call", mode="max-autotune-no-cudagraphs"),
            AT_A_LINE,
            [{"mode": "default"}, {"options": (("freezing", True),)}],
            [{"backend": "eager", "mode": "default"}, {"scope": "regional"}, {"transforms": ("complex_to_real",)}],
        ),
        # The capture fails for another reason, which may be that of one mode.
        (
            Plan(backend="inductor", capture="call", mode="max-autotune-no-cudagraphs"),
            (),
            [],
            [{"mode": "default"}, {"precision": "bf16"}, {"options": (("freezing", True),)}],
        ),
        # Nothing is compiled of the model.
        (
            INDUCTOR,
            ("backend", "scope", "transforms"),
            [{"mode": "max-autotune"}, {"options": (("freezing", True),)}, {"capture": "call"}, {"shapes": "dynamic"}],
            [{"scope": "regional"}, {"transforms": ("isolate_rnn",)}, {"backend": "eager", "capture": "call"}],
        ),
        # Every call compiles again.
        (
            INDUCTOR,
            ("backend", "shapes", "scope", "transforms"),
            [{"mode": "max-autotune"}],
            [{"shapes": "dynamic"}, {"scope": "rolled"}],
        ),
        # An option is refused, in each plan that has it.
        (
            Plan(backend="inductor", options=(("freezing", True),)),
            (("options", ("freezing", True)),),
            [{"precision": "bf16"}, {"options": (("cpp_wrapper", True), ("freezing", True))}, {"mode": "max-autotune"}],
            [{"options": (("cpp_wrapper", True),)}, {"options": ()}],
        ),
        # A rewrite of traced functions finds no place, whatever rewrites their operators later.
        (
            Plan(backend="inductor", transforms=("fused_attention",)),
            (("transforms", "fused_attention"),),
            [{"transforms": ("fused_attention", "complex_to_real")}],
            [{"transforms": ("fused_attention", "isolate_rnn")}],
        ),
        (
            INDUCTOR,
            ("backend",),
            [{"memory_format": "channels_last"}, {"transforms": ("isolate_rnn",)}],
            [{"backend": "eager"}],
        ),
    ],
)
def test_a_refusal_holds_for_all_plans_with_the_parts_it_is_about_and_no_others(
    tried: Plan, about: tuple[Any, ...], alike: list[dict[str, Any]], others: list[dict[str, Any]]
) -> None:
    parts = tuple((part, getattr(tried, part)) if isinstance(part, str) else part for part in about)
    failure = Failure(FailureKind.UNSUPPORTED, "compile", "because of line 72", about=parts)
    told = Trial(0, tried, TrialState.FAIL, failure=failure)
    history = make_history(told)
    for changes in alike:
        assert history.find_refusal(replace(tried, **changes)) is told, changes
    for changes in others:
        assert history.find_refusal(replace(tried, **changes)) is None, changes


@pytest.mark.parametrize("tried", [INDUCTOR, INDUCTOR.with_choice("transforms", "isolate_rnn")])
def test_what_is_refused_once_is_not_tried_with_other_companions(tried: Plan) -> None:
    def refuse(about: tuple[tuple[str, Any], ...]) -> History:
        failure = Failure(FailureKind.UNSUPPORTED, "compile", "nothing was compiled: m.py:72", about=about)
        leader = a_trial(Plan(memory_format="channels_last"), 1.2)
        trials = Trial(0, tried, TrialState.FAIL, failure=failure), leader
        return make_history(*trials, shares={"launch": 0.5, "gemm": 0.4})

    anything: dict[str, Any] = {"traits": OF_ALL, "effort": "thorough"}
    parts = tuple((part, getattr(tried, part)) for part in ("backend", "scope", "transforms"))
    untold, told = refuse(()), refuse(parts)
    again = [plan for plan in ever_asked(untold, **anything) if told.find_refusal(plan)]
    assert again, "else nothing is shown"
    asked = ever_asked(told, **anything)
    assert not set(asked) & set(again)
    assert any(plan.backend == "inductor" for plan in asked), "what another transform leaves may be compiled"
    name = " + ".join(["inductor", *tried.transforms])
    reason = f"not tried again with other settings, as {tried} showed: nothing was compiled: m.py:72"
    assert exclusion_reasons(told, **anything)[name] == reason


def test_parts_of_another_version_refuse_nothing_here() -> None:
    for part in (("tiles", "large"), ("backend", {"a": 1}), ("transforms", 3), ("options", [["freezing", []]])):
        failure = Failure(FailureKind.UNSUPPORTED, "compile", "no", about=(part,))
        history = make_history(Trial(0, INDUCTOR, TrialState.FAIL, failure=failure))
        assert history.find_refusal(AUTOTUNED) is None
        assert any(
            ": in no plan, as inductor showed: no" in line for line in StagedSampler(a_space()).list_excluded(history)
        )


# ---- hints


def test_hints_come_first_and_once() -> None:
    hints = [Proposal(AUTOTUNED, "decided for before"), Proposal(EAGER, "leave it"), Proposal(CAPTURE, "elsewhere")]
    sampler = StagedSampler(a_space(), hints)
    assert sampler.ask(make_history()) == hints[0]
    assert sampler.ask(make_history(Trial(0, AUTOTUNED, TrialState.FAIL))) == hints[2]
    third = sampler.ask(make_history(Trial(0, AUTOTUNED, TrialState.FAIL), a_trial(CAPTURE, 1.1)))
    assert third is not None
    assert third.plan not in (AUTOTUNED, CAPTURE, EAGER)


def test_a_hint_may_lay_outputs_out_as_eager_does_before_it_is_known_to_be_needed() -> None:
    hint = Proposal(Plan(backend="inductor", transforms=("eager_strides",)), "decided for before")
    assert StagedSampler(a_space(), [hint]).ask(make_history()) == hint


def test_a_hint_is_never_trusted() -> None:
    sampler = StagedSampler(a_space(), [Proposal(AUTOTUNED, "decided for before")])
    wrong = a_trial(AUTOTUNED, 9.0, verdict=FAILED)
    assert sampler.ask(make_history(wrong)) != Proposal(AUTOTUNED, "decided for before")
    assert decide(make_history(wrong), HERE).plan == EAGER


# ---- ends


@pytest.mark.parametrize("effort", EFFORTS)
def test_it_ends_after_the_most_trials_and_says_so(effort: str) -> None:
    plans = [Plan(backend="inductor", threads=number + 2) for number in range(EFFORTS[effort].max_trials)]
    trials = [Trial(number, plan, TrialState.FAIL) for number, plan in enumerate(plans)]
    history = make_history(*trials, shares={"gemm": 0.5, "conv": 0.5, "launch": 0.5})
    assert ask_plan(history, effort=effort) is None
    assert exclusion_reasons(history, effort=effort)["inductor"] == f"effort {effort} ends after {len(trials)} trials"
    assert ask_plan(replace(history, trials=history.trials[1:]), effort=effort) is not None
    hinted = StagedSampler(a_space(effort=effort), [Proposal(AUTOTUNED, "hint")])
    assert hinted.ask(history) is None


def check_proposal(history: History, plan: Plan) -> None:
    assert history.find_trial(plan) is None
    assert not plan.is_eager


def measure_cost_ratio(search: Search) -> float:
    """Run a search. Return the cost of its decision as a multiple of the best plan's cost."""
    history = search.run(each=check_proposal)
    assert len(history.trials) <= EFFORTS[search.space.effort].max_trials
    decision = decide(history, HERE)
    assert search.machine.works(decision.plan)
    assert search.space.allow.allows(numerics_of(decision.plan))
    assert search.cost(decision.plan) <= search.cost(EAGER)
    return search.cost(decision.plan) / search.cost(search.best())


@pytest.mark.parametrize(
    ("device", "allow", "effort"),
    [
        ("cpu", "reordered", "quick"),
        ("cpu", "reordered", "standard"),
        ("cpu", "reordered", "thorough"),
        ("cuda", "exact", "standard"),
        ("cuda", "reordered", "quick"),
        ("cuda", "reordered", "standard"),
        pytest.param("cuda", "reordered", "thorough", marks=pytest.mark.nightly),
        ("cpu", "reduced", "standard"),
        ("cuda", "reduced", "standard"),
    ],
)
def test_a_whole_search_ends_near_the_best_plan(device: str, allow: str, effort: str) -> None:
    space = a_space(device, allow, effort)
    excess = sorted(measure_cost_ratio(Search(Machine(seed, device), space, MANY)) for seed in range(8))
    assert excess[-2] <= 1.05, excess  # one model in eight may end in a corner of the space
    assert excess[-1] <= 1.15, excess


def test_a_backend_that_trails_is_improved_too() -> None:
    with installed("openvino"):
        space = a_space("cpu")
        trials = (a_trial(INDUCTOR, 1.5), a_trial(Plan(backend="openvino"), 1.6))
        history = a_history(*trials, inspection=an_inspection(1e-3, traits=space.traits), calls=MANY)
        worth = StagedSampler(space).list_worthwhile(history)
    assert Plan(backend="inductor", options=(("freezing", True),)) in worth
    assert Plan(backend="openvino", memory_format="channels_last") in worth


def test_quick_compilers_come_first_at_effort_quick_and_take_no_plans_place() -> None:
    others = [Plan(backend="openvino"), Plan(backend="onnxruntime")]
    with installed("openvino", "onnxruntime"):
        space = a_space("cpu", effort="quick")
        asked, trials = list[Plan](), list[Trial]()
        while True:
            inspection = an_inspection(1e-3, traits=space.traits)
            proposal = StagedSampler(space).ask(a_history(*trials, inspection=inspection, calls=MANY))
            if proposal is None:
                break
            asked.append(proposal.plan)
            trials.append(a_trial(proposal.plan, 1.02, cold_s=4.0, number=len(trials)))
    bare = [plan for plan in asked if plan in others]
    assert bare == sorted(others, key=lambda plan: plan.id)
    assert asked.index(INDUCTOR) > asked.index(bare[-1])
    assert len(asked) == EFFORTS["quick"].max_trials + len(bare)


def test_the_compile_time_of_one_backend_tells_nothing_of_anothers() -> None:
    openvino = Plan(backend="openvino")
    history = a_history(a_trial(openvino, 1.5, cold_s=0.6), device="cpu")
    assert history.predict_cold_s(replace(openvino, precision="bf16")) == pytest.approx(0.6)
    assert history.predict_cold_s(INDUCTOR) == a_history(device="cpu").predict_cold_s(INDUCTOR)


@pytest.mark.parametrize(("device", "effort"), [("cpu", "standard"), ("cuda", "standard"), ("cpu", "thorough")])
def test_a_search_among_several_backends_ends_near_the_best_plan(device: str, effort: str) -> None:
    with installed("openvino", "onnxruntime", "torch_tensorrt"):
        searches = [Search(Machine(seed, device), a_space(device, effort=effort), MANY) for seed in range(8)]
        excess = sorted(map(measure_cost_ratio, searches))
        backends = {trial.plan.backend for search in searches for trial in search.history.trials}
    assert excess[-2] <= 1.05, excess
    assert excess[-1] <= 1.15, excess
    assert backends >= {"inductor", "onnxruntime", "openvino" if device == "cpu" else "torch-tensorrt"}


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("calls", [1000, 30_000, 1_000_000])
def test_a_search_costs_little_beside_what_it_could_find(device: str, calls: int) -> None:
    # With fewer calls less can be won, and less is spent on the search.
    searches = [Search(Machine(seed, device), a_space(device), calls) for seed in range(6)]
    for search in searches:
        measure_cost_ratio(search)
        spent = sum(trial.seconds for trial in search.history.trials)
        assert spent <= search.cost(EAGER) + 3 * BESIDE_S


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("seed", range(4))
def test_a_search_survives_plans_that_die_or_lie(device: str, seed: int) -> None:
    machine = Machine(seed, device, failing=0.3, wrong=0.2)
    assert measure_cost_ratio(Search(machine, a_space(device, "reduced"), restarts=3)) < 10


def test_a_search_where_nothing_works_stays_with_eager() -> None:
    search = Search(Machine(0, failing=1.0, wrong=1.0), a_space())
    assert decide(search.run(each=check_proposal), HERE).plan == EAGER
    assert len(search.history.trials) < EFFORTS["standard"].max_trials
    assert [trial.plan for trial in search.history.trials if trial.plan.backend != "eager"] == [INDUCTOR]


@pytest.mark.parametrize("seed", range(4))
def test_a_handful_of_calls_compiles_nothing(seed: int) -> None:
    history = Search(Machine(seed), a_space(), calls=50).run()
    assert all(trial.plan.backend == "eager" for trial in history.trials)


# ---- the list


def test_a_list_is_tried_in_order_and_once() -> None:
    sampler: Sampler = ListedSampler([INDUCTOR, EAGER, CAPTURE, INDUCTOR])
    assert sampler.ask(make_history()) == Proposal(INDUCTOR, "asked for")
    assert sampler.ask(make_history(Trial(0, INDUCTOR, TrialState.FAIL))) == Proposal(CAPTURE, "asked for")
    assert sampler.ask(make_history(a_trial(INDUCTOR), a_trial(CAPTURE))) is None
    assert sampler.list_excluded(make_history()) == []
    assert ListedSampler([]).ask(make_history()) is None


# ---- memory

OF_A_STEP = frozenset({"module", "floating", "training_step", "repeated_blocks", "stages", "divisible_by_2", "fusable"})
SAVES_MEMORY = {Plan(activation_checkpointing="blocks"), Plan(microbatches=2)}


@pytest.mark.parametrize(
    ("asked", "proposed"),
    [({}, False), ({"objective": "memory"}, True), ({"memory_limit": 2**20}, True), ({"memory_limit": 2**40}, False)],
)
def test_what_saves_memory_alone_is_tried_where_memory_counts(asked: dict[str, Any], proposed: bool) -> None:
    sampler = StagedSampler(PlanSpace("cpu", "training", OF_A_STEP, effort="thorough"))
    inspection = an_inspection(1e-2, peak_memory=2**30, traits=OF_A_STEP)
    trials: list[Trial] = []
    while proposal := sampler.ask(a_history(*trials, inspection=inspection, mode="training", calls=10**6, **asked)):
        trials.append(a_trial(proposal.plan, 0.9, number=len(trials), peak=2**21))
        if len(trials) == 24:
            break
    assert ({t.plan for t in trials} >= SAVES_MEMORY) is proposed
    assert any(t.plan.activation_checkpointing != "none" or t.plan.microbatches > 1 for t in trials) is proposed


def test_what_grows_from_call_to_call_is_compiled_for_all_shapes_at_once() -> None:
    inspection = an_inspection(1e-3, traits=TRAITS | {"grows"})
    history = a_history(inspection=inspection, calls=MANY, device="cpu")
    space = a_space(device="cpu", traits=inspection.traits)
    found = []
    for _ in range(20):
        if (proposal := StagedSampler(space).ask(history)) is None:
            break
        found.append(proposal.plan)
        history = replace(history, trials=(*history.trials, Trial(99, proposal.plan, TrialState.FAIL)))
    compiled = [plan for plan in found if plan.backend != "eager"]
    assert Plan(backend="inductor", shapes="dynamic") in compiled
    assert {plan.shapes for plan in compiled} == {"dynamic"}
    assert any("changes the shape of its state" in line for line in StagedSampler(space).list_excluded(history))
