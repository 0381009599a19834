"""A worker's tasks on a pair: judge a candidate against a reference, and time them beside each other."""

from __future__ import annotations

import functools
import secrets
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from torchwise.compile import compile_plan
from torchwise.errors import InputError, first_line, format_error
from torchwise.measure import device_lock
from torchwise.measure.clock import Clock
from torchwise.measure.paired_timing import Precision, measure_pair
from torchwise.plan import EAGER
from torchwise.plan.effort import EFFORTS
from torchwise.plan.requirements import Property
from torchwise.records import Check, CheckName, Outcome, WorkerStage
from torchwise.records.pair import FailingInput
from torchwise.trial.candidate_process import ForkedProcess, InterpreterProcess
from torchwise.trial.inspection import mix_of
from torchwise.trial.loading import runner
from torchwise.trial.pair_job import PairJob, PairJudgement, PairTiming
from torchwise.trial.pair_repro import write_repro
from torchwise.trial.remote_witness import RemoteWitness
from torchwise.verify.input_cases import (
    Case,
    cases_of_description,
    cases_of_examples,
    describe_inputs,
    draw_large,
    list_untried,
    with_gradients,
)
from torchwise.verify.input_description import InputDescription
from torchwise.verify.kept_answers import check_timed_answers
from torchwise.verify.pair import judge_pair, make_case_judge
from torchwise.verify.pair_steps import judge_steps
from torchwise.verify.pair_subject import PairFindings, PairSubject
from torchwise.verify.shared_weights import copy_weights, share_weights
from torchwise.verify.shrink import Shrinker
from torchwise.verify.surroundings import Surroundings
from torchwise.workload import Example, Workload
from torchwise.workload.pair_side import PairSide, load_side
from torchwise.workload.train_step import TrainStep

Stage = Callable[[str], None]
LARGE_DRAWS = 2
"""Inputs of the timed sizes that are compared after timing."""


def judge_job(job: PairJob, stage: Stage) -> PairJudgement:
    """Judge the candidate, which runs in a process of its own, unless it is a training step."""
    stage(WorkerStage.LOAD)
    _apply_settings(job)
    load = functools.partial(_load_candidate, job)
    witness = RemoteWitness(InterpreterProcess(load, job.python) if job.python else ForkedProcess(load), job.limit_s)
    try:
        reference = _load(job, 0)
        if isinstance(reference.call, TrainStep):
            return _judge_step(job, reference, stage)
        witness.load()
        shares_weights = not any(job.sources) and share_weights(reference.call, witness, job.job.workload.seed)
        cases = _make_cases(job, reference)
        stage(WorkerStage.VERIFY)
        subject = PairSubject(
            reference.call,
            witness,
            _make_floor(job, reference.call, cases[0]),
            job.precision,
            job.job.workload.tolerance,
            job.job.workload.mode == "training",
            job.stochastic,
            frozenset(job.properties),
            shares_weights,
        )
        findings = judge_pair(subject, cases)
        failing = _shrink(job, subject, findings) if findings.failing else None
        notes = (*findings.notes, *list_untried(cases, _read_description(job)))
        return PairJudgement(tuple(findings.checks), tuple(findings.cases), failing, notes)
    finally:
        witness.close()


def _judge_step(job: PairJob, reference: PairSide, stage: Stage) -> PairJudgement:
    """Judge a training step in this process, whose functions are compared afterwards."""
    stage(WorkerStage.VERIFY)
    if job.python:
        raise InputError(
            f"{job.candidate} is a training step, which is compared in one process, so not on another PyTorch: tune "
            "and lock it, and its plan is checked there"
        )
    if reference.workload is None:
        raise InputError("the reference is a training step, but comes without a batch: its factory returns both")
    before = Surroundings()
    candidate = _load(job, 1)
    if not isinstance(candidate.call, TrainStep):
        raise InputError(
            "the reference is a training step, but the candidate is none: give a factory that returns a TrainStep"
        )
    checks = judge_steps(reference.workload, candidate.call, before, job.job.effort)
    unchecked = [Check(_CHECK_OF[name], Outcome.NOT_COMPARABLE, _NO_PROMISE) for name in job.properties]
    return PairJudgement((*checks, *unchecked))


_CHECK_OF = {
    Property.BITWISE: CheckName.BITWISE,
    Property.DETERMINISTIC: CheckName.DETERMINISTIC,
    Property.BATCH_INVARIANT: CheckName.BATCH_INVARIANT,
}
_NO_PROMISE = "the bits of training steps are not compared: verify the model instead"


def _apply_settings(job: PairJob) -> None:
    if job.job.settings is not None:
        job.job.settings.apply()


def _load_candidate(job: PairJob) -> Callable[..., Any]:
    return _load(job, 1).call


def _load(job: PairJob, side: int) -> PairSide:
    """Load the reference (0) or the candidate (1) from its target, or from the file of a live object."""
    spec = job.job.workload
    if (source := job.sources[side]) is not None:
        # Written moments ago by the process that started this one, into a folder of its own, and never from a store.
        with open(source, "rb") as file:
            call, workload = torch.load(file, weights_only=False)
        found = PairSide(call, workload)
    else:
        found = load_side((spec.target, job.candidate)[side], device=spec.device, seed=spec.seed)
    if isinstance(found.call, torch.nn.Module) and job.trains:
        found.call.train()
    return found


def _make_cases(job: PairJob, reference: PairSide) -> list[Case]:
    """Return the cases to try, of a seed that no candidate can know.

    Raises:
        InputError: there are no inputs.
    """
    seed, device = secrets.randbits(40), job.job.workload.device
    if job.inputs:
        cases = cases_of_description(InputDescription.parse(job.inputs), seed, device)
    else:
        cases = cases_of_examples(_workload_of(job, reference), seed)
    return with_gradients(cases, seed) if job.job.workload.mode == "training" else cases


def _read_description(job: PairJob) -> InputDescription | None:
    return InputDescription.parse(job.inputs) if job.inputs else None


def _workload_of(job: PairJob, reference: PairSide) -> Workload:
    if job.recorded:
        return Workload(reference.call, read_recorded(job.recorded)).to(job.job.workload.device)
    if reference.workload is None:
        raise InputError(
            'the reference comes without inputs: describe each with --input, such as --input "x: float32[n, 64]", '
            "or give a factory that returns (callable, args)"
        )
    return reference.workload


def read_recorded(file: str) -> tuple[Example, ...]:
    """Read recorded inputs: a list of tuples of arguments, or of pairs of such a tuple and a dict.

    Raises:
        InputError: the file holds anything else.
    """
    try:
        calls = torch.load(file, weights_only=True)
    except Exception as error:  # the reader of archives raises anything for a file that is none
        raise InputError(f"{file} cannot be read as recorded inputs: {first_line(format_error(error))}") from error
    if not isinstance(calls, (list, tuple)) or not calls or not all(isinstance(call, (list, tuple)) for call in calls):
        raise InputError(f"{file} holds no recorded inputs: save a list of tuples of arguments with torch.save")
    return tuple(map(_read_call, calls))


def _read_call(call: Any) -> Example:
    if len(call) == 2 and isinstance(call[0], (list, tuple)) and isinstance(call[1], dict):
        return Example(tuple(call[0]), call[1])
    return Example(tuple(call))


def _make_floor(job: PairJob, call: Callable[..., Any], case: Case) -> Callable[..., Any]:
    """Return the reference at the candidate's precision."""
    if job.precision == "native":
        return call
    plan = replace(EAGER, precision=job.precision)
    return compile_plan(call, plan, case.example, device=job.job.workload.device, mode=job.job.workload.mode).call


def _shrink(job: PairJob, subject: PairSubject, findings: PairFindings) -> FailingInput:
    """Find the smallest inputs that fail, and write a program that shows it."""
    first = findings.failing
    assert first is not None
    shrinker = Shrinker(make_case_judge(subject), findings.checks[-1], job.shrink_s)
    smallest = shrinker.shrink(first)
    found = FailingInput(
        describe_inputs(smallest.example), describe_inputs(first.example), shrinker.check.detail, shrinker.tried
    )
    if not job.repro or any(job.sources):
        return found
    targets = (job.job.workload.target, job.candidate)
    file = write_repro(job.repro, targets, smallest, shrinker.check, job.job.workload, trains=job.trains)
    return replace(found, repro=file)


def time_job(job: PairJob, stage: Stage) -> PairTiming:
    """Time the candidate against the reference, in alternation, on inputs that it has not seen."""
    stage(WorkerStage.LOAD)
    _apply_settings(job)
    device_lock.join(job.job.workload.device)
    reference = _load(job, 0)
    before = Surroundings()
    candidate = _load(job, 1).call
    workload = _timed_workload(job, reference)
    copy_weights(reference.call, candidate)
    is_step = isinstance(reference.call, TrainStep)
    mode = "inference" if is_step else job.job.workload.mode  # a step runs its own backward pass
    with torch.set_grad_enabled(job.job.workload.mode == "training"):
        sides = [
            [runner(call, example, mode, original=call) for example in workload.examples]
            for call in (candidate, reference.call)
        ]
        for call in (*sides[0], *sides[1]):
            call()
        if replaced := before.list_replaced():
            return PairTiming(_refuse_timing(f"the candidate replaces {replaced[0]}"))
        stage(WorkerStage.MEASURE)
        precision = Precision(job.job.effort.half_width, job.job.effort.measure_s)
        mixes = [mix_of(calls, workload) for calls in sides]
        measurement = measure_pair(mixes[0], mixes[1], Clock(job.job.workload.device), precision)
        if isinstance(candidate, TrainStep):  # which changes its weights with each call
            check = _check_timed_step(candidate, reference, before)
        else:
            copy_weights(reference.call, candidate)
            check = _check_timed(job, candidate, reference, workload.examples)
    if check.outcome is Outcome.PASS and (replaced := before.list_replaced()):
        check = _refuse_timing(f"the candidate replaces {replaced[0]}")
    return PairTiming(check, measurement if check.outcome is not Outcome.FAIL else None)


def _check_timed_step(candidate: TrainStep, reference: PairSide, before: Surroundings) -> Check:
    """Judge a step once more, as it may have changed while it was timed."""
    assert reference.workload is not None
    workload = replace(reference.workload, call=reference.call)
    for check in judge_steps(workload, candidate, before, EFFORTS["quick"]):
        if check.outcome is not Outcome.PASS:
            return replace(check, name=CheckName.TIMED_ANSWERS, detail=f"after it was timed: {check.detail}")
    return Check(CheckName.TIMED_ANSWERS, Outcome.PASS, "the step is right after timing, too")


def _refuse_timing(detail: str) -> Check:
    return Check(CheckName.SURROUNDINGS, Outcome.FAIL, detail)


def _check_timed(job: PairJob, candidate: Callable[..., Any], reference: PairSide, timed: Sequence[Example]) -> Check:
    """Check the candidate on inputs that were not timed, those of the timed sizes among them."""
    fresh = [example for case in _fresh_cases(job, reference) for example in (case.example, case.redraw) if example]
    device = job.job.workload.device
    if (description := _read_description(job)) is not None:
        fresh += [draw_large(description, secrets.randbits(40), device) for _ in range(LARGE_DRAWS)]
    largest = max(timed, key=lambda example: sum(t.numel() for t in example.tensors()))
    return check_timed_answers(candidate, reference.call, fresh, device, job.verified_error, timed=largest)


def _timed_workload(job: PairJob, reference: PairSide) -> Workload:
    """Return the reference with the inputs to time: other values than those given, or the largest sizes described."""
    if not job.inputs:
        given = _workload_of(job, reference)
        cases = _fresh_cases(job, reference)
        pairs = zip(cases, given.examples, strict=True)
        examples = tuple(replace(case.redraw or case.example, weight=one.weight) for case, one in pairs)
        return replace(given, call=reference.call, examples=examples)
    example = draw_large(InputDescription.parse(job.inputs), secrets.randbits(40), job.job.workload.device)
    return Workload(reference.call, (example,))


def _fresh_cases(job: PairJob, reference: PairSide) -> Sequence[Case]:
    return [case for case in _make_cases(job, reference) if case.is_given]
