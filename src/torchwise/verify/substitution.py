"""Judge a model with other operators or numbers than its own, by the rule that the user states.

That is the error or loss of quality that is allowed, or that outputs of a stochastic model keep their distribution.

The rest of a plan is verified as always: against the model with these operators, and not against the original.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from torchwise.errors import format_error
from torchwise.plan.workload_spec import DISTRIBUTION, WorkloadSpec
from torchwise.records import Check, CheckName, Figure, Outcome, Verdict
from torchwise.records import format as show
from torchwise.verify.compare import check_structure
from torchwise.verify.deviation import WORST_FACTOR, Errors, errors_of, is_rounded, legible
from torchwise.verify.distribution import check_distribution
from torchwise.verify.leaves import is_value
from torchwise.verify.observe import Observation, draws, observe
from torchwise.verify.stochastic import is_stochastic
from torchwise.workload.module_state import kept_state
from torchwise.workload.target import find_factory
from torchwise.workload.workload import Example, Workload

Metric = Callable[[Callable[..., Any]], float]
"""Takes the model, or a callable in its place, and returns its quality: the higher, the better."""


def check_substitution(
    original: Callable[..., Any],
    substituted: Callable[..., Any],
    examples: Sequence[Example],
    tolerance: float,
    metric: Metric | None = None,
    *,
    training: bool = False,
) -> Iterator[Check]:
    """Yield a check for each example, or one of the metric. A model to be trained is judged by its gradients, too.

    Args:
        original: the model.
        substituted: the model with other operators.
        examples: inputs to compare on. Both draw the same random numbers.
        tolerance: the relative error (root mean square) that an output may have, or the share of its value that the
            metric may lose.
        metric: the user's own measure of quality, in place of the error of outputs. Outputs must still have the form
            of the model's, and be finite where they are.
        training: whether gradients are compared. No metric tells of them, so that the error of all counts, too.
    """
    errors: list[float] = []
    for seed, example in enumerate(examples):
        mine, theirs = (
            observe(call, original, example, seed=seed, training=training) for call in (substituted, original)
        )
        check = check_structure(mine, theirs)
        if check.outcome is Outcome.PASS:
            is_free = metric is not None and not training
            check = _check_error(mine, theirs, math.inf if is_free else tolerance, may_flip=metric is not None)
        if check.outcome is not Outcome.PASS or metric is None or training:
            yield check
        if check.outcome is not Outcome.PASS and metric is not None:
            return
        errors += [] if check.error is None else [check.error]
    if metric is not None:
        judged = _check_metric(original, substituted, tolerance, metric)
        is_told = judged.outcome is Outcome.PASS  # a program that compares answers later must expect that error
        yield replace(judged, error=max(errors, default=None)) if is_told else judged


def measure_error(original: Callable[..., Any], changed: Callable[..., Any], example: Example) -> float:
    """Return the error that a change causes. It is infinite if the output has another form, or other infinities.

    Whole numbers do not count: a flipped one does not tell how large the error is.
    """
    mine, theirs = (observe(call, original, example, seed=0) for call in (changed, original))
    if check_structure(mine, theirs).outcome is not Outcome.PASS:
        return math.inf
    error = _check_error(mine, theirs, math.inf, may_flip=True).error
    return math.inf if error is None else error


class SubstitutionJudge:
    """Judges other operators or numbers by the rule of a request: the error or loss of quality, or the distribution.

    The inputs are the examples, and further ones if the workload can draw its own. The metric of the model itself is
    taken once.

    Args:
        workload: the model and its examples.
        spec: the request.
        extra_draws: draws of the inputs beyond the examples.
        noise_budget_s: seconds for the calls of one judgement by distributions.
        is_stateful: whether a call changes the state that the next one starts from.
    """

    def __init__(
        self,
        workload: Workload,
        spec: WorkloadSpec,
        extra_draws: int,
        *,
        noise_budget_s: float = 5.0,
        is_stateful: bool = False,
    ) -> None:
        assert spec.permits_change, "otherwise nothing is replaced"
        self._original, self._tolerance, self._is_training = workload.call, spec.tolerance, spec.mode == "training"
        self._is_stateful = is_stateful
        can_draw = workload.reseed is not None and extra_draws > 0
        self._examples = draws(workload, extra_draws) if can_draw else workload.examples
        self._draw_all = partial(draws, workload, extra_draws)
        has_function = spec.metric is not None and spec.metric != DISTRIBUTION
        self._metric = _remember(find_factory(str(spec.metric)), workload.call) if has_function else None
        self._check_distribution = partial(
            check_distribution,
            workload.call,
            examples=self._examples,
            budget_s=noise_budget_s,
            is_stateful=is_stateful,
        )

    def judge(self, substituted: Callable[..., Any], share: float = 1.0, *, on_shuffled: bool = False) -> Verdict:
        """Return the verdict on a model in the original's place.

        Args:
            substituted: the model.
            share: the share of the tolerance, if there is one, that it may use up.
            on_shuffled: whether the examples of a workload that draws none of its own are also judged with shuffled
                values. An answer that no longer depends on its input is right for the example alone.
        """
        with kept_state((self._original, substituted)):
            if self._tolerance is None:
                return Verdict((self._check_distribution(substituted),))
            checks = check_substitution(
                self._original,
                substituted,
                self._draw_all() if on_shuffled else self._examples,
                share * self._tolerance,
                self._metric,
                training=self._is_training,
            )
            return Verdict(tuple(checks))

    def judge_whole(self, found: Verdict, plan: Callable[..., Any]) -> Verdict:
        """Return the verdict on a plan with numbers of few bits that was found so beside its own form in eager.

        The effects of a rounding to few bits are granted to the rest, so the plan as a whole is held to the user's
        limit, too. Where that rounding would hide a wrong answer, nothing is left to judge the plan by but a tolerance
        for the error of single answers: without a metric, gradients or state.
        """
        is_of_answers = self._tolerance is not None and self._metric is None
        is_left = found.is_hidden_by_rounding and is_of_answers and not (self._is_training or self._is_stateful)
        is_left = is_left and _differ(self._draw_all())  # or an answer that is always the same would pass
        if found.outcome is not Outcome.PASS and not is_left:
            return found
        last = self.judge(plan, on_shuffled=is_left)
        return Verdict((*map(_leave_to_tolerance, found.checks), *last.checks))


def _differ(examples: Sequence[Example]) -> bool:
    """Whether any input is another than the first one."""
    first, *others = ([*map(legible, example.tensors())] for example in examples)
    return any(len(one) != len(first) or not all(map(torch.equal, one, first)) for one in others)


def _leave_to_tolerance(check: Check) -> Check:
    """Pass a check from which rounding hides errors. Its own error is of that rounding, and not of the plan."""
    if check.outcome is Outcome.PASS:
        return check
    detail = f"left to the tolerance, which judges the whole plan: {check.detail}"
    return replace(check, outcome=Outcome.PASS, detail=detail, error=None, floor=None)


def _remember(metric: Metric, original: Callable[..., Any]) -> Metric:
    """Return the metric, which is taken of the original only once."""
    found: list[float] = []

    def measure(call: Callable[..., Any]) -> float:
        if call is not original:
            return metric(call)
        if not found:
            found.append(float(metric(call)))
        return found[0]

    return measure


def keeps_noise(original: Callable[..., Any], substituted: Callable[..., Any], example: Example) -> bool:
    """Whether a model that draws random numbers still does with other operators. Without, its answers are compared."""
    if substituted is original:
        return True
    cloned = example.clone()
    with torch.no_grad():
        return is_stochastic(lambda: substituted(*cloned.args, **cloned.kwargs), original)[0]


def _check_error(mine: Observation, theirs: Observation, tolerance: float, *, may_flip: bool) -> Check:
    """Hold every value to the tolerance. No error says how wrong a whole number or a text is, so these must be equal.

    With `may_flip` a metric judges them.
    """
    largest, place, errors = 0.0, "", Errors(0.0, 0.0)
    for (name, value), (_, expected) in zip(mine.leaves, theirs.leaves, strict=True):
        found = _measure_errors(value, expected, may_flip=may_flip)
        errors = errors.or_larger(found)
        if (size := max(found.rms, found.worst / WORST_FACTOR)) > largest:
            largest, place = size, name
    is_allowed = math.isfinite(largest) and largest <= tolerance
    return Check(
        CheckName.SUBSTITUTION,
        Outcome.PASS if is_allowed else Outcome.FAIL,
        _describe_errors(place, errors, tolerance),
        error=errors.rms if math.isfinite(errors.rms) else None,
        floor=0.0,
    )


def _describe_errors(place: str, errors: Errors, tolerance: float) -> str:
    by = f"other operators or numbers change {place or 'the output'} by "
    if not math.isfinite(errors.rms):
        return (
            f"{by}more than an error can say: whole numbers, texts or numbers that are not finite differ. A metric "
            "can judge whole numbers"
        )
    if errors.worst > WORST_FACTOR * max(tolerance, errors.rms):
        allowed = f"{WORST_FACTOR * tolerance:g} is allowed"
        return f"{by}{errors.worst:.2g} of its root mean square in one element, and {allowed}"
    return f"{by}{errors.rms:.2g} of its root mean square, and {tolerance:g} is allowed"


def _measure_errors(value: Any, expected: Any, *, may_flip: bool) -> Errors:
    """Return the errors of one value. They are infinite if no error describes the difference."""
    none, endless = Errors(0.0, 0.0), Errors(math.inf, math.inf)
    if not isinstance(value, torch.Tensor):
        return _measure_plain(value, expected, none, none if may_flip else endless)
    if not _is_finite_alike(value, expected):
        return endless
    if not is_rounded(value):
        return none if may_flip or torch.equal(value, expected) else endless
    # Elements that stay as they are, such as a large number for a mask, must not set the scale of the others.
    changed = legible(value) != legible(expected)
    return errors_of(value[changed], expected[changed])


def _measure_plain(value: Any, expected: Any, none: Errors, other: Errors) -> Errors:
    if not is_value(value) or not is_value(expected) or repr(value) == repr(expected):
        return none  # the rest of the verification says what cannot be compared
    if not isinstance(value, (float, complex)) or not isinstance(expected, (float, complex)):
        return other
    off = abs(value - expected) / (abs(expected) or 1.0)
    return Errors(off, off) if math.isfinite(off) else Errors(math.inf, math.inf)


def _is_finite_alike(value: torch.Tensor, expected: torch.Tensor) -> bool:
    """Whether infinities and NaN are where the model has them. Errors are of the other numbers."""
    if not is_rounded(value):
        return True
    rest = ~torch.isfinite(expected)
    return torch.equal(~torch.isfinite(value), rest) and torch.allclose(value[rest], expected[rest], equal_nan=True)


def _check_metric(
    original: Callable[..., Any], substituted: Callable[..., Any], tolerance: float, metric: Metric
) -> Check:
    found = []
    for call in (original, substituted):
        try:
            with torch.no_grad(), kept_state(original):
                found.append(float(metric(call)))
        except Exception as error:  # the user's own code
            return Check(CheckName.SUBSTITUTION, Outcome.NOT_COMPARABLE, f"the metric failed: {format_error(error)}")
    before, after = found
    lost = before - after
    passes = lost <= tolerance * abs(before)
    share = show.percent(lost / abs(before)) if before else f"{lost:.3g}"
    return Check(
        CheckName.SUBSTITUTION,
        Outcome.PASS if passes else Outcome.FAIL,
        f"with other operators or numbers the metric is {after:.6g} in place of {before:.6g}: it loses {share}, and "
        f"{show.percent(tolerance)} is allowed",
        figures={Figure.METRIC_LOST: max(lost / abs(before), 0.0)} if before else {},
    )
