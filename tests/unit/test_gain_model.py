"""The order of trials that is learned from past studies: their gains, their weights, and the order of a search."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sketches import INDUCTOR, a_history, a_trial, an_inspection
from synthetic import installed

from builders import a_study
from torchwise.errors import StorageError
from torchwise.plan import EAGER, Numerics, Plan, PlanSpace, Trait
from torchwise.plan.choice import find_choice, load_choices
from torchwise.plan.workload_spec import WorkloadSpec
from torchwise.records import Failure, FailureKind, Inspection, Study, Trial, TrialState, WorkerStage
from torchwise.store import Storage, open_storage
from torchwise.study.gain_model import (
    SPREAD,
    GainModel,
    PastStudy,
    WeightedStudies,
    name_change,
    read_past,
    read_shipped,
    summarize_study,
)
from torchwise.study.history import History
from torchwise.study.option import Option
from torchwise.study.samplers import StagedSampler

CONV = frozenset(map(Trait, ("module", "floating", "float32", "gemm", "conv")))
DENSE = frozenset(map(Trait, ("module", "floating", "float32", "gemm")))
OPENVINO, ONNX, FROZEN = (
    Plan(backend="openvino"),
    Plan(backend="onnxruntime"),
    Plan(backend="inductor", options=(("freezing", True),)),
)


def a_past(traits: frozenset[Trait] = CONV, eager_s: float = 1e-2, **gains: float) -> PastStudy:
    shares = {"conv": 0.9 if Trait.CONV in traits else 0.0, "gemm": 0.9}
    named = {
        name.replace("options_is_freezing", "options=freezing:True").replace("_is_", "="): gain
        for name, gain in gains.items()
    }
    return PastStudy("cpu", "inference", tuple(sorted(traits)), shares, eager_s, {f"+{k}": v for k, v in named.items()})


def an_image_net(traits: frozenset[Trait] = CONV) -> Inspection:
    return an_inspection(1e-2, traits=traits, shares={"conv": 0.9 if Trait.CONV in traits else 0.0, "gemm": 0.9})


def a_search(inspection: Inspection, *trials: Trial, **asked: Any) -> History:
    return a_history(*trials, inspection=inspection, **{"calls": 10**8, "device": "cpu", **asked})


def ask(history: History, *past: PastStudy) -> Plan:
    space = PlanSpace("cpu", "inference", history.inspection.traits, Numerics.SAME_PRECISION, "standard")
    with installed("openvino", "onnxruntime"):
        proposal = StagedSampler(space, gains=GainModel(past)).ask(history)
    assert proposal is not None
    return proposal.plan


# ---- what a study showed


def summarize(*trials: Trial) -> dict[str, float]:
    workload = WorkloadSpec("model.py", device="cpu")
    study = a_study(trials, decided=None, workload=workload, inspection=an_inspection(1.0))
    past = summarize_study(study)
    return past.gains if past else {}


def test_a_gain_is_over_every_timed_plan_that_a_plan_adds_to() -> None:
    gains = summarize(a_trial(INDUCTOR, 2.0), a_trial(FROZEN, 3.0), a_trial(OPENVINO, 4.0))
    assert gains == {
        "+backend=inductor": pytest.approx(math.log(2), abs=1e-3),
        "+options=freezing:True": pytest.approx(math.log(1.5), abs=1e-3),
        "+backend=inductor +options=freezing:True": pytest.approx(math.log(3), abs=1e-3),
        "+backend=openvino": pytest.approx(math.log(4), abs=1e-3),
    }


def test_a_failed_trial_gained_nothing_unless_something_else_ended_it() -> None:
    failed, cut = (
        replace(
            a_trial(OPENVINO),
            state=TrialState.FAIL,
            measurement=None,
            repeats=(),
            failure=Failure(kind, WorkerStage.COMPILE, "x"),
        )
        for kind in (FailureKind.DIED, FailureKind.OUT_OF_BUDGET)
    )
    assert summarize(failed) == {"+backend=openvino": 0.0}
    assert summarize(cut) == {}


def test_a_change_has_a_name_whatever_stays_and_one_for_all_numbers_of_threads() -> None:
    threads = [replace(FROZEN, threads=count) for count in (1, 3)]
    assert {name_change(FROZEN, plan) for plan in threads} == {"+threads"}
    assert name_change(INDUCTOR, OPENVINO) == "+backend=openvino -backend=inductor"
    assert name_change(EAGER, Plan(backend="inductor", options=(("cpp_wrapper", True),))) == (
        "+backend=inductor +options=cpp_wrapper:True"
    )


# ---- whom it tells something


def test_the_more_alike_two_models_are_the_more_one_tells_of_the_other() -> None:
    past = a_past(CONV)
    same, slower, other = (
        an_image_net(),
        an_inspection(1.0, traits=CONV, shares=an_image_net().shares),
        an_image_net(DENSE),
    )
    assert past.weigh(same) == pytest.approx(1.0)
    assert 0 < past.weigh(slower) < past.weigh(same)
    assert 0 < past.weigh(other) < 0.1
    # A trait that only one has counts, and so does a share.
    assert past.weigh(replace(same, traits=CONV | {Trait.RNN})) < 1
    assert past.weigh(replace(same, shares={**same.shares, "conv": 0.5})) < 1


def test_an_unknown_change_is_expected_to_gain_nothing_with_a_wide_spread() -> None:
    studies = GainModel([a_past(backend_is_openvino=0.6)]).weigh_past(a_search(an_image_net()))
    assert studies.expect_gain("+backend=other") == (0.0, SPREAD, 0.0)
    mean, spread, weight = studies.expect_gain("+backend=openvino")
    assert weight == pytest.approx(1.0)
    assert mean == pytest.approx(0.4, abs=0.01), "of one study, shrunk by the prior"
    assert spread > 0
    assert not GainModel([a_past()]).weigh_past(a_search(an_image_net(), device="cuda"))
    assert not GainModel([a_past()]).weigh_past(a_search(an_image_net(), mode="training"))


def test_the_expected_saving_is_that_of_expected_improvement() -> None:
    weighted = [(1.0, a_past(backend_is_openvino=0.6))]
    studies = WeightedStudies(weighted, {EAGER: 1.0})
    even = studies.expect_saving_s(ONNX, 1.0)
    assert even == pytest.approx(-math.expm1(-SPREAD / math.sqrt(2 * math.pi)))  # of a normal variable about 0
    assert studies.expect_saving_s(OPENVINO, 1.0) > even
    slow = WeightedStudies(weighted, {EAGER: 2.0})
    assert 0 < slow.expect_saving_s(ONNX, 1.0) < 0.01, "its base is twice as slow as the best"


def test_of_several_bases_the_one_counts_whose_change_is_known_best() -> None:
    threads, both = Plan(threads=1), Plan(backend="openvino", threads=1)
    one_study = [(1.0, a_past(backend_is_openvino=0.7))]
    alone, beside = (WeightedStudies(one_study, {EAGER: 1.0, **more}) for more in ({}, {threads: 0.9}))
    assert beside.expect_saving_s(both, 0.9) > 3 * alone.expect_saving_s(both, 0.9), "one thread and OpenVINO"
    seconds = {EAGER: 1.0, INDUCTOR: 0.5}
    known = WeightedStudies([(1.0, a_past(options_is_freezing=0.0))] * 5, seconds)
    assert known.expect_saving_s(FROZEN, 0.5) < WeightedStudies([], seconds).expect_saving_s(FROZEN, 0.5)


def test_studies_of_unlike_models_give_no_order() -> None:
    far = a_past(DENSE, eager_s=1e-7, backend_is_openvino=0.7)
    assert not GainModel([far]).weigh_past(a_search(an_image_net()))
    assert GainModel([far, a_past(backend_is_openvino=0.1)]).weigh_past(a_search(an_image_net()))


def test_the_trials_of_the_search_at_hand_count_as_those_of_the_same_model() -> None:
    gains = GainModel([a_past(backend_is_inductor=0.5)])
    before, after = (gains.weigh_past(a_search(an_image_net(), *trials)) for trials in ((), [a_trial(INDUCTOR, 0.4)]))
    assert before.expect_gain("+backend=inductor")[0] > 0 > after.expect_gain("+backend=inductor")[0]
    assert not GainModel().weigh_past(a_search(an_image_net(), a_trial(INDUCTOR, 0.4)))


# ---- the order


def test_the_order_goes_on_when_another_plan_leads() -> None:
    past = [a_past(CONV, backend_is_openvino=0.7, backend_is_inductor=0.1, threads=-0.5)] * 5
    leads = a_search(an_image_net(), a_trial(INDUCTOR, 1.1))
    assert ask(leads, *past) == OPENVINO


def test_plans_that_won_on_like_models_are_tried_first_and_on_others_not() -> None:
    past = [a_past(CONV, backend_is_openvino=0.7, threads=-0.3, backend_is_inductor=0.1)] * 3
    past += [a_past(DENSE, backend_is_onnxruntime=0.7, threads=-0.3, backend_is_openvino=-0.2)] * 3
    assert ask(a_search(an_image_net()), *past) == OPENVINO
    assert ask(a_search(an_image_net(DENSE)), *past) == ONNX


def test_without_past_studies_of_the_device_the_order_is_by_compile_time() -> None:
    elsewhere = replace(a_past(backend_is_openvino=0.7), device="cuda")
    assert ask(a_search(an_image_net()), elsewhere) == ask(a_search(an_image_net()))


def test_it_is_an_order_and_no_evidence() -> None:
    """A plan that lost everywhere else is still tried, and one that won everywhere else needs a trial like all."""
    past = [a_past(CONV, backend_is_inductor=-3.0, backend_is_openvino=2.0)] * 9
    history, tried = a_search(an_image_net()), []
    space = PlanSpace("cpu", "inference", CONV, Numerics.SAME_PRECISION, "thorough")
    with installed("openvino"):
        sampler = StagedSampler(space, gains=GainModel(past))
        assert history.incumbent() == EAGER
        while proposal := sampler.ask(history):
            tried.append(proposal.plan)
            history = replace(history, trials=(*history.trials, a_trial(proposal.plan, 0.9)))
        plain = StagedSampler(space)
        assert plain.ask(history) is None
    assert tried[0] == OPENVINO
    assert INDUCTOR in tried


def test_memory_is_searched_for_as_before() -> None:
    past = [a_past(CONV, backend_is_openvino=2.0)] * 3
    history = a_search(an_image_net(), objective="memory")
    assert ask(history, *past) == ask(history)


def test_compiling_counts_by_the_calls_over_which_it_is_spread() -> None:
    studies = GainModel([a_past(backend_is_openvino=0.6)] * 3).weigh_past(a_search(an_image_net()))
    choice = load_choices()["backend", "openvino"]
    slow, quick = (Option(OPENVINO, EAGER, choice, 5e-3, overhead_s, 20.0) for overhead_s in (60.0, 6.0))
    never, few, many = (a_search(an_image_net(), calls=calls) for calls in (10**3, 10**5, 10**9))
    assert slow.expect_saving_s(never, studies) == 0, "compiling takes longer than all calls of eager"
    assert quick.expect_saving_s(few, studies) > 1.1 * slow.expect_saving_s(few, studies) > 0
    assert quick.expect_saving_s(many, studies) == pytest.approx(slow.expect_saving_s(many, studies), rel=1e-3)


# ---- where past studies are


def keep(storage: Storage, structure: str, created_at: float, **changes: Any) -> Study:
    fields = {"identity": structure * 16, "structure": structure * 16}
    workload = WorkloadSpec(f"{structure}.py", device=changes.pop("device", "cpu"))
    trials = [a_trial(OPENVINO, changes.pop("speedup", 3.0))]
    inspection = replace(an_image_net(), **fields)
    return storage.import_study(
        a_study(trials, decided=None, workload=workload, inspection=inspection, created_at=created_at)
    )


def list_own(storage: Storage, study: Study) -> list[float]:
    own = [past for past in read_past(storage, study.id) if past not in read_shipped()]
    return [round(math.exp(past.gains["+backend=openvino"])) for past in own]


def test_older_studies_of_the_own_store_are_read_but_for_the_same_model(tmp_path: Path) -> None:
    with open_storage(str(tmp_path / "own.db")) as storage:
        keep(storage, "a", 1.0, speedup=3.0)
        own = keep(storage, "b", 3.0, speedup=4.0)
        keep(storage, "c", 5.0, speedup=5.0)
        keep(storage, "d", 2.0, speedup=6.0, device="cuda")
        assert list_own(storage, own) == [3], "not its own, no later one, and none of another device"


def test_a_study_that_cannot_be_read_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_storage(str(tmp_path / "own.db")) as storage:
        bad = keep(storage, "a", 1.0)
        keep(storage, "b", 2.0, speedup=2.0)
        own, get = keep(storage, "c", 3.0), type(storage).get_study

        def fail_once(self: Storage, study_id: int, *more: Any) -> Study:
            if study_id == bad.id:
                raise StorageError("a field of a later version")
            return get(self, study_id, *more)

        monkeypatch.setattr(type(storage), "get_study", fail_once)
        assert list_own(storage, own) == [2]


def test_the_shipped_studies_name_choices_that_exist() -> None:
    shipped = read_shipped()
    assert len([past for past in shipped if past.device == "cpu"]) >= 20
    names = {part[1:] for past in shipped for change in past.gains for part in change.split()}
    for name in names:
        field, _, value = name.partition("=")
        option, _, setting = value.partition(":")
        assert field == "threads" or find_choice(
            *(("options", (option, setting == "True")) if setting else (field, value))
        )
