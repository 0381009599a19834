"""Verify models that draw random numbers: is the candidate's noise the same noise, and is it fresh on every call?

Outputs of many calls of eager and of the candidate on one input are reduced to a few scalars per call. Each scalar is
compared by a two-sample Kolmogorov-Smirnov test. A third, separate set of eager calls standardises the scalars. So
under the null hypothesis the two compared sets are exchangeable, and the stated false-alarm rate holds. It is
`FALSE_ALARM_RATE` over all tests of one candidate together (Bonferroni).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from torchwise.records import Check, CheckCause, CheckName, Figure, Outcome
from torchwise.verify.leaves import leaves_of
from torchwise.workload.module_state import from_one_state, kept_state
from torchwise.workload.workload import Example

FALSE_ALARM_RATE = 1e-3
"""Chance that a candidate whose noise is exactly eager's is rejected, over all tests of a verdict together."""
MIN_CALLS, MAX_CALLS = 40, 120
MAX_ELEMENTS = 20_000
"""Maximum number of elements of an answer that are examined, drawn once. More would take longer and add little."""
PROJECTIONS = 8
ELEMENTS = 8
NEGLIGIBLE = 0.02
"""Relative change of a scalar's spread or place, in units of the noise, that counts as rounding.

It applies at a lower precision than the model's own, however significant the change is.
"""

STILL, STILL_REDUCED = 1e-3, 5e-2
"""Relative error that an element which does not vary in eager may have, at the model's own and at a lower precision."""
MIN_STILL = 1e-2
"""Least size of such elements, relative to their tensor's, that errors are divided by."""
FAINT = 1e-6
"""Maximum size, relative to the largest tensor of an answer, of a tensor that consists of roundings alone.

The gradient of a bias that a softmax or a normalisation takes away again is such a tensor. It need only stay small.
"""
TIED = 1e-5
"""Difference of two scalars, in units of the noise, up to which they count as equal."""
JITTER = 1e-3
"""Relative difference under one seed up to which rounding in another order explains it."""
ROUNDINGS = 4
"""Roundings of the answer's dtype that explain as much: bfloat16 keeps 8 bits, and deep models round often."""
ALIKE = 3
"""Calls under one seed: a sum that several multiprocessors add to in any order comes out the same now and then."""

Samples = NDArray[np.float64]
Pairs = tuple[str, NDArray[np.intp], NDArray[np.intp]]
"""A name, and the places of numbers of an answer whose mean product is tested, in pairs."""


def is_stochastic(call: Callable[[], Any], original: Any = None) -> tuple[bool, bool]:
    """Return whether a call draws random numbers, and whether it differs under one seed too.

    Answers may differ under one seed by rounding alone (atomic additions on a GPU). If another seed adds no difference,
    they are not random. If they differ by more under one seed, the call draws from a generator that is not PyTorch's.
    """
    rounding = 0.0

    def answers(seed: int) -> Samples:
        nonlocal rounding
        with kept_state(original):
            torch.manual_seed(seed)
            answer = call()
        known = [torch.finfo(t.dtype).eps for t in leaves_of(answer).tensors if t.is_floating_point() or t.is_complex()]
        rounding = ROUNDINGS * max(known, default=0.0)
        return _flat(answer).cpu().numpy()

    first, *alike = (answers(1) for _ in range(ALIKE))
    other = answers(2)
    unsteady, varied = max(_relative_difference(first, again) for again in alike), _relative_difference(first, other)
    if unsteady == 0.0 or unsteady > max(JITTER, rounding):
        return varied > 0.0, unsteady > 0.0
    return varied > max(100 * unsteady, rounding), True


def _relative_difference(one: Samples, other: Samples) -> float:
    """Return the relative root mean square of the difference over the elements that are finite in both."""
    if one.shape != other.shape:
        return float("inf")
    both = np.isfinite(one) & np.isfinite(other)
    if not both.any():
        return 0.0
    off = float(np.sqrt(np.mean((one[both] - other[both]) ** 2)))
    return off / (float(np.sqrt(np.mean(one[both] ** 2))) or 1.0)


def make_call(
    call: Callable[..., Any], original: Callable[..., Any], example: Example, *, is_stateful: bool
) -> Callable[[], Any]:
    """Return a call on an example, without gradients. Each has inputs of its own, or the same state to begin from.

    Args:
        call: the model, or a callable in its place.
        original: the model, whose state is put back.
        example: the inputs.
        is_stateful: whether a call changes the state that the next one starts from.
    """

    def run() -> Any:
        copy = example.clone()
        with torch.no_grad():
            return call(*copy.args, **copy.kwargs)

    if not is_stateful:
        return run
    copy = example.clone()
    return torch.no_grad()(from_one_state(call, original, copy.args, copy.kwargs))


def check_noise(
    candidate: Callable[[], Any],
    eager: Callable[[], Any],
    *,
    budget_s: float,
    exact_precision: bool,
    share: int = 1,
    pairs: Sequence[Pairs] = (),
) -> list[Check]:
    """Compare the distribution and the independence of a candidate's noise with eager's.

    Generators are seeded once before each series of calls, never in between.

    Args:
        candidate: one call on fixed inputs.
        eager: the same inputs, eager at the candidate's precision.
        budget_s: seconds for all calls together. At least `MIN_CALLS` are made of each.
        exact_precision: whether the candidate computes in the model's own precision, so that nothing is negligible.
        share: the number of such comparisons in one verdict.
        pairs: numbers of an answer that may share noise.
    """
    start = time.perf_counter()
    calibration, tensor_of = collect(eager, MIN_CALLS, seed=1)
    each = (time.perf_counter() - start) / MIN_CALLS
    calls = int(np.clip(budget_s / max(each, 1e-6) / 2, MIN_CALLS, MAX_CALLS))
    candidate_outputs, eager_outputs = (collect(call, calls, seed)[0] for call, seed in ((candidate, 2), (eager, 3)))
    sides = candidate_outputs, eager_outputs, calibration
    return judge(*sides, tensor_of, exact=exact_precision, share=share, pairs=pairs)


def collect(call: Callable[[], Any], calls: int, seed: int) -> tuple[Samples, NDArray[np.intp]]:
    """Call `calls` times in a row from one seed.

    Returns:
        The outputs as a matrix (calls, elements), and for each element the number of its tensor.
    """
    torch.manual_seed(seed)
    rows = []
    chosen: torch.Tensor | None = None
    for _ in range(calls):
        outputs = call()
        flat = _flat(outputs)
        if flat.numel() > MAX_ELEMENTS:
            chosen = _choose_elements(flat.numel()) if chosen is None else chosen
            flat = flat[chosen.to(flat.device)]
        rows.append(flat.cpu().numpy())
    sizes = [part.numel() for part in list_real_tensors(outputs)]
    tensor_of = np.repeat(np.arange(len(sizes)), sizes)
    return np.stack(rows), tensor_of if chosen is None else tensor_of[chosen.numpy()]


def _flat(outputs: Any) -> torch.Tensor:
    """Return all numbers of an answer as one float64 vector. Whole numbers count too, as a model may sample tokens."""
    parts = [t.flatten().double() for t in list_real_tensors(outputs)]
    return torch.cat(parts) if parts else torch.zeros(0, dtype=torch.float64)


def list_real_tensors(outputs: Any) -> list[torch.Tensor]:
    """Return the tensors of an answer, complex ones as pairs of numbers."""
    parts = [t.detach() for t in leaves_of(outputs).tensors]
    return [torch.view_as_real(t.resolve_conj()) if t.is_complex() else t for t in parts]


def _choose_elements(elements: int) -> torch.Tensor:
    """Return the elements to compare: runs of neighbours, so that dependence between them shows."""
    run = 100
    starts = torch.randint(0, elements - run, (MAX_ELEMENTS // run,), generator=torch.Generator().manual_seed(0))
    return (starts[:, None] + torch.arange(run)).flatten()


def judge(
    candidate: Samples,
    eager: Samples,
    calibration: Samples,
    tensor_of: NDArray[np.intp],
    *,
    exact: bool,
    share: int = 1,
    pairs: Sequence[Pairs] = (),
) -> list[Check]:
    """Compare two matrices of outputs (calls, elements), standardised by a third.

    Values count as negligible relative to their own tensor: a loss and its gradients differ by many orders. `share` is
    the number of such comparisons in one verdict.

    Returns:
        A check of the distribution and one of the independence of successive calls.
    """
    if not np.isfinite(candidate).all() and np.isfinite(eager).all():
        detail, cause = "outputs are not finite where eager's are", CheckCause.NOT_FINITE
        return [Check(CheckName.DISTRIBUTION, Outcome.FAIL, detail, cause=cause)]
    unit = _units(calibration, tensor_of)
    candidate, eager, calibration = candidate / unit, eager / unit, calibration / unit
    spread = calibration.std(axis=0)
    noisy = spread > 1e-6
    if not noisy.any():
        return [
            Check(
                CheckName.DISTRIBUTION, Outcome.NOT_COMPARABLE, "eager's outputs do not vary in the calibration calls"
            )
        ]
    candidate_still, eager_still, calibration_still = (side[:, ~noisy] for side in (candidate, eager, calibration))
    if problem := _still_problem(candidate_still, eager_still, calibration_still, tensor_of[~noisy], exact=exact):
        return [Check(CheckName.DISTRIBUTION, Outcome.FAIL, problem)]
    middle = calibration.mean(axis=0)[noisy]
    candidate, eager = ((s[:, noisy] - middle) / spread[noisy] for s in (candidate, eager))
    tests = [
        *(
            (CheckName.DISTRIBUTION, *test)
            for test in (
                *_scalars(candidate.shape[1]),
                *_tensor_scalars(tensor_of[noisy]),
                *_pair_scalars(pairs, noisy),
            )
        ),
        (CheckName.INDEPENDENCE, "products of successive calls", _successive),
        # Noise that lasts for two calls shows in the pairs that begin with the first call, or in those after it.
        (CheckName.INDEPENDENCE, "products of successive calls from the second on", lambda z: _successive(z[1:])),
    ]
    level = FALSE_ALARM_RATE / len(tests) / share
    failures: dict[CheckName, Check] = {}
    for kind, name, scalar in tests:
        if kind not in failures and (failure := _differs(kind, name, scalar(candidate), scalar(eager), level, exact)):
            failures[kind] = failure
    detail = (
        f"no difference over {len(tests)} tests of {len(candidate)} calls each, false-alarm rate {FALSE_ALARM_RATE:g}"
    )
    figures = {Figure.TESTS: len(tests), Figure.SAMPLES: len(candidate), Figure.LEVEL: FALSE_ALARM_RATE}
    passed = (
        Check(CheckName.DISTRIBUTION, Outcome.PASS, detail, figures=figures),
        Check(CheckName.INDEPENDENCE, Outcome.PASS, "successive calls vary as eager's do"),
    )
    return [failures.get(check.name, check) for check in passed]


def _units(calibration: Samples, tensor_of: NDArray[np.intp]) -> Samples:
    """Return for each element the root mean square of its tensor, or of the largest one if that is faint."""
    squares = np.where(np.isfinite(calibration), calibration, 0.0) ** 2
    sizes = np.sqrt(_means(squares.mean(axis=0), tensor_of))
    many = sizes[np.bincount(tensor_of) > 1]  # the size of a loss says nothing about that of its gradients
    largest = float((many if many.size else sizes).max(initial=0.0))
    return np.where(sizes > FAINT * largest, sizes, largest or 1.0)[tensor_of]


def _means(values: Samples, tensor_of: NDArray[np.intp]) -> Samples:
    """Return the mean over each tensor's elements, or 0 for a tensor without elements."""
    return np.asarray(np.bincount(tensor_of, values) / np.maximum(np.bincount(tensor_of), 1))


def _still_problem(
    candidate: Samples, eager: Samples, calibration: Samples, tensor_of: NDArray[np.intp], *, exact: bool
) -> str | None:
    """Compare the elements that were constant in calibration: the candidate must not vary or shift them.

    An element that varies once in a while, as a gradient behind a ReLU and a dropout, may have been constant by chance.
    It is off on few calls, and in the candidate on as many as in eager.
    """
    expected = calibration.mean(axis=0)
    finite = np.isfinite(expected)
    if not finite.any():
        return None
    expected, tensor_of = expected[finite], tensor_of[finite]
    scale = np.maximum(np.sqrt(_means(expected**2, tensor_of)), MIN_STILL)[tensor_of]
    most = (STILL if exact else STILL_REDUCED) * scale
    candidate_off, eager_off = (np.abs(side[:, finite] - expected) > most for side in (candidate, eager))
    if (always := candidate_off.mean(axis=0) > 0.5).any():
        off = float((np.abs(candidate[:, finite] - expected) / scale)[:, always].max())
        return f"elements that do not vary in eager are off by {off:.2g}"
    if _p_value(candidate_off.mean(axis=1), eager_off.mean(axis=1)) < FALSE_ALARM_RATE / 20:
        own, usual = candidate_off.mean(), eager_off.mean()
        return f"elements that rarely vary are off in {own:.2%} of all cases, in eager in {usual:.2%}"
    return None


def _p_value(candidate: Samples, eager: Samples) -> float:
    from scipy.stats import ks_2samp

    ranks = _rank(np.concatenate([candidate, eager]))
    return float(ks_2samp(ranks[: len(candidate)], ranks[len(candidate) :]).pvalue)


def _rank(values: Samples) -> Samples:
    """Return ranks in which values count as equal that lie within `TIED` of the next one.

    A dropout has few values. If two sides round one of them differently, they would seem to have none in common.
    """
    order = np.argsort(values)
    ranks = np.empty(len(values))
    ranks[order] = np.concatenate([[0], np.cumsum(~(np.diff(values[order]) <= TIED))])
    return ranks


Scalar = Callable[[Samples], Samples]


def _scalars(elements: int) -> list[tuple[str, Scalar]]:
    """Return the scalars that each call is reduced to. A seed of their own fixes projections and places."""
    rng = np.random.default_rng(20_240_607)
    signs = rng.choice((-1.0, 1.0), (PROJECTIONS, elements)) / np.sqrt(elements)
    places = rng.choice(elements, min(ELEMENTS, elements), replace=False)
    return [
        ("mean", lambda z: z.mean(axis=1)),
        ("mean square", lambda z: (z**2).mean(axis=1)),
        ("mean fourth power", lambda z: (z**4).mean(axis=1)),
        ("products of neighbours", lambda z: (z[:, 1:] * z[:, :-1]).mean(axis=1) if elements > 1 else z[:, 0]),
        *((f"projection {i}", lambda z, v=vector: z @ v) for i, vector in enumerate(signs)),
        *((f"element {place}", lambda z, p=place: z[:, p]) for place in places.tolist()),
    ]


def _tensor_scalars(tensor_of: NDArray[np.intp]) -> list[tuple[str, Scalar]]:
    """Return a scalar for each tensor: the noise of a small one is lost among large ones."""
    places = [np.flatnonzero(tensor_of == number) for number in np.unique(tensor_of)]
    if len(places) < 2:
        return []

    def mean_square(of: NDArray[np.intp]) -> Scalar:
        return lambda z: np.asarray((z[:, of] ** 2).mean(axis=1))

    return [(f"mean square of tensor {number}", mean_square(of)) for number, of in enumerate(places)]


def _pair_scalars(pairs: Sequence[Pairs], noisy: NDArray[np.bool_]) -> list[tuple[str, Scalar]]:
    """Return the mean products of pairs of numbers that both vary."""
    place = np.cumsum(noisy) - 1  # among those that vary

    def mean_product(one: NDArray[np.intp], other: NDArray[np.intp]) -> Scalar:
        return lambda z: np.asarray((z[:, one] * z[:, other]).mean(axis=1))

    found = [(name, one[vary], other[vary]) for name, one, other in pairs if (vary := noisy[one] & noisy[other]).any()]
    return [(name, mean_product(place[one], place[other])) for name, one, other in found]


def _successive(z: Samples) -> Samples:
    """Return the mean product of calls 1 and 2, 3 and 4, …: near 1 if noise repeats, near 0 if it is fresh."""
    even = len(z) // 2 * 2
    return np.asarray((z[0:even:2] * z[1:even:2]).mean(axis=1))


def _differs(kind: CheckName, name: str, candidate: Samples, eager: Samples, level: float, exact: bool) -> Check | None:
    p_value = _p_value(candidate, eager)
    if p_value >= level:
        return None
    # Differences of medians and of spreads, in units of the noise (the samples are standardised).
    shift, scale = float(np.median(candidate) - np.median(eager)), float(candidate.std() - eager.std())
    if not exact and max(abs(shift), abs(scale)) < NEGLIGIBLE:
        return None
    detail = (
        f"{name} differs from eager's: median {np.median(candidate):.3g} against {np.median(eager):.3g} in units of "
        f"eager's noise, p = {p_value:.1g} below {level:.1g}"
    )
    figures = {Figure.P_VALUE: p_value, Figure.LEVEL: level, Figure.SAMPLES: len(candidate)}
    return Check(kind, Outcome.FAIL, detail, figures=figures)
