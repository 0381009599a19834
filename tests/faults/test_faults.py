"""Every planted fault is found, by the check that is meant to find it."""

from __future__ import annotations

import functools
from dataclasses import replace

import pytest
import torch

from faults import backward, edges, effects, forward, given, memory, noise, steps  # noqa: F401  which plant their faults
from faults.fault import FAULTS, Fault, reset_settings
from faults.true_candidates import FAMILIES, Family
from torchwise.compile import compile_plan
from torchwise.plan import EAGER
from torchwise.plan.effort import EFFORTS
from torchwise.records import Outcome
from torchwise.verify.input_cases import Case, cases_of_description, cases_of_examples, with_gradients
from torchwise.verify.input_description import InputDescription
from torchwise.verify.pair import judge_pair
from torchwise.verify.pair_steps import judge_steps
from torchwise.verify.pair_subject import PairFindings, PairSubject
from torchwise.verify.shared_weights import share_weights
from torchwise.verify.surroundings import Surroundings
from torchwise.verify.witness import LocalWitness

SEED = 77


@functools.cache
def before() -> Surroundings:
    """Take the surroundings once, as they are some thousand functions, and after tests of other files changed some."""
    return Surroundings()


@pytest.fixture(autouse=True)
def _settings() -> object:
    yield
    reset_settings()


def judge(fault: Fault, *, honest: bool = False) -> PairFindings:
    reference = fault.make_reference()
    candidate = fault.make_reference() if honest else fault.make_candidate()
    witness = LocalWitness(candidate, before())
    shares = share_weights(reference, witness, 3)
    cases: list[Case] = (
        cases_of_examples(fault.make_workload(), SEED)
        if fault.make_workload
        else cases_of_description(InputDescription.parse(fault.inputs), SEED)
    )
    cases = with_gradients(cases, SEED) if fault.training else cases
    subject = PairSubject(
        reference,
        witness,
        reference,
        training=fault.training,
        properties=fault.properties,
        shares_weights=shares,
    )
    return judge_pair(subject, cases)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name.replace(" ", "-"))
def test_a_planted_fault_is_found_by_its_check(fault: Fault) -> None:
    found = judge(fault).checks[-1]
    assert found.outcome is Outcome.FAIL, found
    assert found.name in fault.caught_by, found


def test_a_setting_changed_by_loading_is_noted_and_no_fault() -> None:
    before().accept_settings()
    torch.backends.cudnn.benchmark = True
    cases = cases_of_description(InputDescription.parse([forward.MATRIX]), SEED)[:1]
    subject = PairSubject(forward.double, LocalWitness(forward.double, before()), forward.double)
    found = judge_pair(subject, cases)
    assert {check.outcome for check in found.checks} == {Outcome.PASS}, found.checks
    assert found.notes == ["loading the candidate changes cuDNN benchmark from False to True"]


@pytest.mark.parametrize("name", steps.STEPS)
def test_a_wrong_training_step_is_found(name: str) -> None:
    checks = list(judge_steps(steps.make_workload(), steps.STEPS[name](), before(), EFFORTS["quick"]))
    assert checks[-1].outcome is Outcome.FAIL or checks[-2].outcome is Outcome.FAIL, checks


def test_the_same_training_step_passes() -> None:
    step = steps.TrainStep(*steps.make_parts())
    checks = list(judge_steps(steps.make_workload(), step, before(), EFFORTS["quick"]))
    assert all(check.outcome is Outcome.PASS for check in checks), checks


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_other_algorithms_of_an_operator_pass(family: Family) -> None:
    for candidate in family.others:
        cases = cases_of_description(InputDescription.parse(family.inputs), SEED)
        cases = with_gradients(cases, SEED) if family.training else cases
        floor = family.reference
        if family.precision != "native":
            plan = replace(EAGER, precision=family.precision)
            floor = compile_plan(floor, plan, cases[0].example, device="cpu", mode="inference").call
        subject = PairSubject(
            family.reference, LocalWitness(candidate, before()), floor, family.precision, training=family.training
        )
        checks = judge_pair(subject, cases).checks
        assert {check.outcome for check in checks} == {Outcome.PASS}, checks
