"""A search among weights of fewer bits, with timings that are made up: it takes them where they pay, and only there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from sketches import FAILED, HERE, a_history, a_trial, an_inspection

from torchwise.plan import EAGER, Numerics, Plan, PlanSpace, Trait
from torchwise.records import Check, CheckName, Outcome, Trial, TrialState, Verdict
from torchwise.records.codec import from_json, to_json
from torchwise.study.decision import decide
from torchwise.study.gain_model import GainModel, PastStudy
from torchwise.study.history import History
from torchwise.study.samplers import StagedSampler

TRAITS = frozenset({Trait.MODULE, Trait.FLOATING, Trait.LINEAR_LAYERS, Trait.TOLERANT, Trait.GEMM})
REFUSED = Verdict((Check(CheckName.SUBSTITUTION, Outcome.FAIL, "changes the output", error=0.05, floor=0.0),))
INT8, INT8_INDUCTOR = Plan(transforms=("int8_dynamic",)), Plan(transforms=("int8_dynamic",), backend="inductor")
SMALLER = "int8_dynamic@skip=head"


def search(
    run: Callable[[Plan], Trial],
    allow: Numerics = Numerics.QUANTIZED,
    device: str = "cpu",
    traits: frozenset[Trait] = TRAITS,
) -> History:
    """Search until the sampler ends, with a trial of each plan that `run` makes up."""
    inspection = an_inspection(1e-2, traits=traits, shares={"gemm": 0.9, "conv": 0.0, "launch": 0.0}, operators=20)
    sampler = StagedSampler(PlanSpace(device, "inference", traits, allow))
    history = a_history(inspection=inspection, calls=10_000_000, device=device)
    while (proposal := sampler.ask(history)) is not None:
        history = replace(history, trials=(*history.trials, run(proposal.plan)))
        assert len(history.trials) < 100
    return history


def run_at(speeds: dict[str, float]) -> Callable[[Plan], Trial]:
    """Return trials in which the named rewrites have these speeds, and all else is as fast as eager."""

    def run(plan: Plan) -> Trial:
        names = [name.partition("@")[0] for name in plan.transforms]
        speed = next((speeds[name] for name in names if name in speeds), 1.0)
        return a_trial(plan, speed * 0.99, speed * 1.01, cold_s=0.0 if plan.backend == "eager" else 5.0)

    return run


def transforms_of(history: History) -> list[str]:
    return [name for trial in history.trials for name in trial.plan.transforms]


def test_a_slow_prefill_is_refused_and_a_fast_decoding_step_is_taken() -> None:
    """A published table has weights of 8 bits at 0.91 of the speed for a prefill: they are slower, and that decides."""
    prefill = search(run_at({"int8_weights": 0.91, "int8_dynamic": 0.95, "int4_weights": 0.6}))
    assert {"int8_weights", "int8_dynamic"} <= set(transforms_of(prefill))
    assert decide(prefill, HERE).plan == EAGER
    decoding = search(run_at({"int8_weights": 1.6, "int8_dynamic": 1.9, "int4_weights": 1.2}))
    assert decide(decoding, HERE).plan.transforms == ("int8_dynamic",)


@pytest.mark.parametrize(("speed", "decided"), [(1.5, ("fp8_dynamic",)), (0.7, ())])
def test_float8_is_taken_for_large_products_and_refused_for_small_ones(speed: float, decided: tuple[str, ...]) -> None:
    """A small product takes less time than rounding its inputs."""
    found = search(run_at({"fp8_dynamic": speed}), device="cuda", traits=TRAITS | {Trait.FLOAT8})
    assert "fp8_dynamic" in transforms_of(found)
    assert decide(found, HERE).plan.transforms == decided


@pytest.mark.parametrize("gains", [{}, {"+transforms=int8_dynamic": 0.5, "+backend=inductor": 0.1}], ids=bool)
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_fewer_bits_wait_for_compiled_code(device: str, gains: dict[str, float]) -> None:
    """Six formats in eager compile nothing. They took a minute together, and its budget, before Inductor was tried."""
    traits = TRAITS | {Trait.FLOAT8}
    inspection = an_inspection(1e-2, traits=traits, shares={"gemm": 0.9, "conv": 0.0, "launch": 0.0}, operators=20)
    past = [PastStudy(device, "inference", tuple(sorted(traits)), inspection.shares, 1e-2, gains)] if gains else []
    sampler = StagedSampler(PlanSpace(device, "inference", traits, Numerics.QUANTIZED), gains=GainModel(past))
    history = a_history(inspection=inspection, calls=10_000_000, device=device)
    tried: list[Plan] = []
    while (proposal := sampler.ask(history)) is not None:
        tried.append(proposal.plan)
        speed = 0.99 if proposal.plan.backend == "eager" else 1.01  # neither is worth much by itself
        trial = a_trial(proposal.plan, speed * 0.99, speed * 1.01, cold_s=5.0 * (speed > 1))
        history = replace(history, trials=(*history.trials, trial))
    fewer_bits = [plan for plan in tried if any("int" in name or "fp8" in name for name in plan.transforms)]
    assert fewer_bits[0].backend != "eager"
    common = ["int8_dynamic", "int8_weights"] if device == "cpu" else ["fp8_dynamic", "int8_dynamic", "int8_weights"]
    alone = [plan.transforms[0] for plan in fewer_bits if plan == Plan(backend="inductor", transforms=plan.transforms)]
    assert gains or alone[: len(common)] == common, "those that pay for more models first"
    in_eager = [plan for plan in fewer_bits if plan.backend == "eager"]
    assert in_eager, "they are tried all the same, as there is time"


@pytest.mark.parametrize(("in_bf16", "alone", "is_tried"), [(1.95, 2.2, True), (2.1, 2.2, True), (1.5, 2.2, False)])
def test_fewer_bits_near_the_leader_are_tried_in_the_models_own_precision(
    in_bf16: float, alone: float, is_tried: bool
) -> None:
    """The lower precision leads before them, and no other way leads from there to Inductor with them alone."""

    def run(plan: Plan) -> Trial:
        speed = {"eager": 1.0, "inductor": 1.2}.get(plan.backend, 1.1)
        if plan.precision != "native":
            speed = 2.0 if plan.backend == "inductor" else 1.6
        if plan.transforms and plan.backend != "eager":
            speed = in_bf16 if plan.precision != "native" else alone
        return a_trial(plan, speed * 0.99, speed * 1.01, cold_s=0.0 if plan.backend == "eager" else 5.0)

    past = PastStudy("cpu", "inference", tuple(sorted(TRAITS)), {"gemm": 0.9}, 1e-2, {"+precision=autocast_bf16": 0.5})
    inspection = an_inspection(1e-2, traits=TRAITS, shares={"gemm": 0.9, "conv": 0.0, "launch": 0.0}, operators=20)
    history = a_history(inspection=inspection, calls=10_000_000)
    sampler = StagedSampler(PlanSpace("cpu", "inference", TRAITS, Numerics.QUANTIZED), gains=GainModel([past]))
    first = [Plan(backend="inductor", precision="autocast_bf16"), Plan(precision="autocast_bf16")]
    mixed = Plan(backend="inductor", precision="autocast_bf16", transforms=("int8_dynamic",))
    history = replace(history, trials=tuple(map(run, [*first, mixed])))
    options = [option.plan for option in sampler._options(history)]
    assert (INT8_INDUCTOR in options) is is_tried
    proposal = sampler.ask(history)
    assert proposal is not None
    assert (proposal.plan == INT8_INDUCTOR) is is_tried, "before others, as later trials build on it"
    workload = replace(history.workload, objective="memory")
    for_memory = StagedSampler(sampler._space).ask(replace(history, workload=workload))
    leads = in_bf16 > 2.0
    assert for_memory is None or leads or for_memory.plan != INT8_INDUCTOR, "where it saves nothing"


def test_tf32_converts_nothing_so_that_fewer_bits_stay_with_it() -> None:
    """Its products take float32 as it is."""
    traits = TRAITS | {Trait.FLOAT32}
    inspection = an_inspection(1e-2, traits=traits, shares={"gemm": 0.9, "conv": 0.0, "launch": 0.0}, operators=20)
    plan = Plan(backend="inductor", precision="tf32", transforms=("int8_dynamic",))
    trials = (a_trial(replace(plan, transforms=()), 1.98, 2.02, cold_s=5.0), a_trial(plan, 1.93, 1.97, cold_s=5.0))
    history = a_history(*trials, inspection=inspection, calls=10_000_000, device="cuda")
    sampler = StagedSampler(PlanSpace("cuda", "inference", traits, Numerics.QUANTIZED))
    assert INT8_INDUCTOR not in [option.plan for option in sampler._options(history)]


def test_a_search_for_memory_has_no_such_order() -> None:
    """Fewer bits take less memory in eager as well, and compiled code takes more."""
    inspection = an_inspection(1e-2, traits=TRAITS, shares={"gemm": 0.9, "conv": 0.0, "launch": 0.0}, operators=20)
    sampler = StagedSampler(PlanSpace("cpu", "inference", TRAITS, Numerics.QUANTIZED, "quick"))
    history = a_history(inspection=inspection, calls=10_000_000, objective="memory")
    tried: list[Plan] = []
    while (proposal := sampler.ask(history)) is not None:
        tried.append(proposal.plan)
        history = replace(history, trials=(*history.trials, a_trial(proposal.plan, 0.99, 1.01)))
    assert [plan for plan in tried if plan.backend == "eager" and plan.transforms]


def test_nothing_of_it_is_tried_at_lower_levels() -> None:
    history = search(run_at({"int8_dynamic": 2.0}), Numerics.LOWER_PRECISION)
    assert not {"int8_dynamic", "int8_weights", "int4_weights"} & set(transforms_of(history))


def refuse(plan: Plan, *, instead: tuple[str, str] | None = None) -> Trial:
    trial = a_trial(plan, cold_s=1.0)
    return replace(trial, state=TrialState.COMPLETE, measurement=None, repeats=(), verdict=REFUSED, instead=instead)


def test_the_layers_that_pass_take_the_place_of_all_layers_in_every_later_plan() -> None:
    fast = run_at({"int8_dynamic": 2.0})

    def run(plan: Plan) -> Trial:
        return refuse(plan, instead=("int8_dynamic", SMALLER)) if "int8_dynamic" in plan.transforms else fast(plan)

    history = search(run)
    found = [name for name in transforms_of(history) if name.startswith("int8_dynamic")]
    assert found.count("int8_dynamic") == 1, "it was refused once, and that holds for all plans"
    assert SMALLER in found
    assert decide(history, HERE).plan.transforms == (SMALLER,)


def test_what_changes_too_much_is_tried_in_no_other_plan() -> None:
    def run(plan: Plan) -> Trial:
        return refuse(plan) if plan.transforms else a_trial(plan, 1.5, cold_s=0.1)

    history = search(run)
    assert transforms_of(history).count("int8_dynamic") == 1
    excluded = StagedSampler(PlanSpace("cpu", "inference", TRAITS, Numerics.QUANTIZED)).list_excluded(history)
    assert "int8_dynamic: a trial showed that it changes too much" in excluded


def test_another_fault_of_a_plan_says_nothing_of_its_rewrites() -> None:
    history = a_history(replace(a_trial(INT8_INDUCTOR), verdict=FAILED))
    assert history.find_refusal(INT8) is None
    assert a_history(refuse(INT8_INDUCTOR)).find_refusal(INT8) is not None
    assert a_history(refuse(INT8)).find_refusal(Plan(backend="inductor")) is None


def test_a_record_keeps_the_smaller_rewrite() -> None:
    trial = refuse(INT8, instead=("int8_dynamic", SMALLER))
    assert from_json(to_json(trial), Trial) == trial
    former = to_json(trial).replace(f',"instead":["int8_dynamic","{SMALLER}"]', "")
    assert from_json(former, Trial).instead is None


@pytest.mark.parametrize("allow", [Numerics.SAME_PRECISION, Numerics.LOWER_PRECISION])
def test_a_report_says_which_level_would_open_it(allow: Numerics) -> None:
    sampler = StagedSampler(PlanSpace("cpu", "inference", TRAITS - {Trait.TOLERANT}, allow))
    excluded = sampler.list_excluded(a_history(inspection=an_inspection(traits=TRAITS - {Trait.TOLERANT})))
    assert f"int8_dynamic: it is quantized, and only up to {allow} is allowed" in excluded
