"""A candidate that does not support some inputs, and says so, is neither right nor wrong there, and never passes."""

from __future__ import annotations

import functools
from collections.abc import Callable

import pytest
import torch

from torchwise.errors import InputError
from torchwise.records import CheckName, Outcome
from torchwise.verify.input_cases import cases_of_description, cases_of_examples
from torchwise.verify.input_description import InputDescription
from torchwise.verify.pair import judge_pair
from torchwise.verify.pair_subject import PairFindings, PairSubject
from torchwise.verify.surroundings import Surroundings
from torchwise.verify.witness import LocalWitness
from torchwise.workload import Example, Workload


@functools.cache
def before() -> Surroundings:
    """Take the surroundings once, as they are some thousand functions, and after tests of other files changed some."""
    return Surroundings()


def double(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def refuse(when: Callable[[torch.Tensor], bool], error: Exception, factor: float = 2) -> Callable[..., torch.Tensor]:
    def call(x: torch.Tensor) -> torch.Tensor:
        if when(x):
            raise error
        return x * factor

    return call


def judge(candidate: Callable[..., torch.Tensor], text: str = "x: float32[n, 4] n=1..9") -> PairFindings:
    cases = cases_of_description(InputDescription.parse([text]), 1)
    return judge_pair(PairSubject(double, LocalWitness(candidate, before()), double), cases)


@pytest.mark.parametrize(
    "error", [NotImplementedError("fp64"), ValueError("n below 4 is not supported"), RuntimeError("Unsupported size")]
)
def test_a_refusal_is_told_and_is_no_pass(error: Exception) -> None:
    found = judge(refuse(lambda x: len(x) < 4, error))
    against = [check for check in found.checks if check.outcome is not Outcome.PASS]
    assert [(check.name, check.outcome) for check in against] == [(CheckName.ANSWER, Outcome.NOT_COMPARABLE)]
    assert "neither right nor wrong" in against[0].detail
    assert str(error) in against[0].detail
    refused = [case for case in found.cases if case.outcome is Outcome.NOT_COMPARABLE]
    assert {case.inputs for case in refused} >= {"float32[1, 4]", "float32[2, 4]", "float32[3, 4]"}
    assert f"{len(refused) - 1} more sets of inputs" in against[0].detail


@pytest.mark.parametrize("error", [RuntimeError("index out of range"), AssertionError("not supported")])
def test_any_other_error_is_wrong(error: Exception) -> None:
    assert judge(refuse(lambda x: len(x) < 4, error)).checks[-1].outcome is Outcome.FAIL


def test_a_candidate_that_refuses_all_is_not_comparable_and_one_wrong_elsewhere_is_wrong() -> None:
    nothing = judge(refuse(lambda _x: True, NotImplementedError("later"))).checks
    assert {check.outcome for check in nothing} >= {Outcome.NOT_COMPARABLE}
    assert all(check.outcome is not Outcome.FAIL for check in nothing), nothing
    wrong = judge(refuse(lambda x: len(x) < 4, NotImplementedError("small"), 2.001)).checks
    assert wrong[-1].outcome is Outcome.FAIL, wrong


def test_a_description_leaves_out_layouts_that_a_kernel_refuses() -> None:
    kernel = refuse(lambda x: not x.is_contiguous(), NotImplementedError("only rows"))
    assert any(check.outcome is Outcome.NOT_COMPARABLE for check in judge(kernel).checks)
    plain = judge(kernel, "x: float32[n, 4] contiguous n=1..9")
    assert {check.outcome for check in plain.checks} == {Outcome.PASS}, plain
    with pytest.raises(InputError, match="contiguous"):
        InputDescription.parse(["x: float32[n, 4] contigous"])


def test_inputs_beyond_an_example_may_be_refused() -> None:
    candidate = refuse(lambda x: bool((x.abs() > 50).any()), NotImplementedError("large values"))
    cases = cases_of_examples(Workload(double, (Example((torch.randn(4, 3),)),)), 1)
    found = judge_pair(PairSubject(double, LocalWitness(candidate, before()), double), cases)
    assert {check.outcome for check in found.checks} == {Outcome.PASS}, found.checks


def test_a_refusal_beside_noise_is_no_fault() -> None:
    candidate = refuse(lambda _: True, NotImplementedError("noise"))
    cases = cases_of_description(InputDescription.parse(["x: float32[9, 4]"]), 1)
    subject = PairSubject(torch.nn.functional.dropout, LocalWitness(candidate, before()), torch.nn.functional.dropout)
    (refused,) = [check for check in judge_pair(subject, cases).checks if check.outcome is not Outcome.PASS]
    assert (refused.name, refused.outcome) == (CheckName.ANSWER, Outcome.NOT_COMPARABLE), refused
