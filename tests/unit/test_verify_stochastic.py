from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest
import torch

from torchwise.errors import UnsupportedError
from torchwise.records import Outcome
from torchwise.verify import Subject, is_stochastic, verify
from torchwise.verify.reference import as_reference, float64_of
from torchwise.verify.stochastic import FALSE_ALARM_RATE, MIN_CALLS, judge
from torchwise.workload import Example, Workload


class Noisy(torch.nn.Module):
    def __init__(self, scale: float = 0.1, dropout: float = 0.1) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(64, 64)
        self.dropout = torch.nn.Dropout(dropout)
        self.scale = scale

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.dropout(self.linear(x)) + self.scale * torch.randn_like(x)


@pytest.fixture
def noisy() -> Workload:
    torch.manual_seed(0)
    return Workload(Noisy(), (Example((torch.randn(8, 64),)),))


def verdict_of(workload: Workload, candidate: object, reproducible: object = None) -> object:
    return verify(
        Subject(workload, candidate, workload.call, reproducible=reproducible, stochastic=True),  # type: ignore[arg-type]
        noise_budget_s=1.0,
    )


def test_noise_is_found() -> None:
    x = torch.randn(4)
    assert is_stochastic(lambda: x + torch.randn(4)) == (True, False)
    assert is_stochastic(lambda: x * 2) == (False, False)
    counter = iter(range(100))
    assert is_stochastic(lambda: x + next(counter)) == (True, True)


@pytest.mark.parametrize("model", [Noisy(), torch.nn.Dropout(0.3), torch.nn.Sequential(torch.nn.Dropout2d(0.5))])
def test_the_reference_draws_the_noise_that_eager_draws(model: torch.nn.Module) -> None:
    x = torch.randn(8, 64, 2, 2) if isinstance(model, torch.nn.Sequential) else torch.randn(8, 64)
    torch.manual_seed(3)
    eager = model(x)
    wide = float64_of(model)
    torch.manual_seed(3)
    with torch.no_grad(), as_reference():
        reference = wide(x.double())
    assert reference.dtype is torch.float64
    assert torch.allclose(eager.double(), reference, atol=1e-5)


@pytest.mark.parametrize("draw", ["bernoulli_", "uniform_", "normal_", "exponential_"])
def test_draws_in_place_are_matched(draw: str) -> None:
    torch.manual_seed(1)
    narrow = getattr(torch.empty(100), draw)()
    torch.manual_seed(1)
    with as_reference():
        wide = getattr(torch.empty(100), draw)()
    assert wide.dtype is torch.float64
    assert torch.equal(narrow.double(), wide)


def test_the_model_itself_passes(noisy: Workload) -> None:
    verdict = verdict_of(noisy, noisy.call, noisy.call)
    assert verdict.outcome is Outcome.PASS, verdict.reason  # type: ignore[attr-defined]
    names = {check.name for check in verdict.checks}  # type: ignore[attr-defined]
    assert names == {"structure", "values", "distribution", "independence", "held outputs"}


def twin(workload: Workload, **changes: float) -> torch.nn.Module:
    other = Noisy(**changes)
    other.load_state_dict(workload.call.state_dict())  # type: ignore[attr-defined]
    return other


@pytest.mark.parametrize("changes", [{"scale": 0.15}, {"scale": 0.0}, {"dropout": 0.2}, {"dropout": 0.0}])
def test_other_noise_is_caught(noisy: Workload, changes: dict[str, float]) -> None:
    verdict = verdict_of(noisy, twin(noisy, **changes))
    assert verdict.outcome is Outcome.FAIL  # type: ignore[attr-defined]
    assert verdict.reason.startswith("distribution"), verdict.reason  # type: ignore[attr-defined]


def test_a_biased_answer_is_caught(noisy: Workload) -> None:
    verdict = verdict_of(noisy, lambda x: noisy.call(x) + 0.05)
    assert verdict.outcome is Outcome.FAIL  # type: ignore[attr-defined]


def test_a_wrong_arithmetic_under_the_same_noise_is_caught(noisy: Workload) -> None:
    verdict = verdict_of(noisy, noisy.call, lambda x: noisy.call(x) * (1 + 1e-4))
    assert verdict.outcome is Outcome.FAIL  # type: ignore[attr-defined]
    assert verdict.reason.startswith("values")  # type: ignore[attr-defined]


def test_noise_that_repeats_is_caught(noisy: Workload) -> None:
    def repeat_noise(x: torch.Tensor) -> torch.Tensor:
        torch.manual_seed(11)
        return noisy.call(x)

    verdict = verdict_of(noisy, repeat_noise)
    assert verdict.outcome is Outcome.FAIL  # type: ignore[attr-defined]


ONE_TENSOR = np.zeros(1000, dtype=np.intp)


def a_loss_and_gradients(small: float, faint: float, calls: int = 60, *, seed: int) -> np.ndarray:
    """Return noisy calls of a loss, with 300 elements each of a large, a small and a faint gradient."""
    rng = np.random.default_rng(seed)
    sizes = np.repeat([1.0, 1e-4, 1e-8 * small, 1e-12 * faint], [1, 300, 300, 300])
    offsets = np.random.default_rng(0).normal(size=901)
    return (offsets + 0.01 * rng.normal(size=(calls, 901))) * sizes


@pytest.mark.parametrize(
    ("small", "faint", "outcome"),
    [
        (1.0, 1.0, Outcome.PASS),
        (1.01, 1.0, Outcome.FAIL),  # were it judged beside the loss, it would seem not to vary at all
        (1.0, 3.0, Outcome.PASS),  # roundings, of another size
        (1.0, 1e6, Outcome.FAIL),
    ],
)
def test_each_tensor_is_judged_by_its_own_size(small: float, faint: float, outcome: Outcome) -> None:
    tensor_of = np.repeat(np.arange(4), [1, 300, 300, 300])
    calibration, theirs = (a_loss_and_gradients(1.0, 1.0, seed=seed) for seed in (1, 2))
    checks = judge(a_loss_and_gradients(small, faint, seed=3), theirs, calibration, tensor_of, exact=True)
    assert checks[0].outcome is outcome, checks[0].detail


@pytest.mark.parametrize(("rate", "outcome"), [(1.0, Outcome.PASS), (0.5, Outcome.FAIL), (0.0, Outcome.FAIL)])
def test_noise_of_another_rate_in_a_small_tensor_is_not_lost_among_large_ones(rate: float, outcome: Outcome) -> None:
    def calls(of_small: float, seed: int) -> np.ndarray:
        rng = np.random.default_rng(seed)
        return 1 + rng.normal(size=(60, 5016)) * np.repeat([1.0, of_small], [5000, 16])

    tensor_of = np.repeat([0, 1], [5000, 16])
    checks = judge(calls(rate, 3), calls(1.0, 2), calls(1.0, 1), tensor_of, exact=True)
    assert checks[0].outcome is outcome, checks[0].detail


def test_elements_that_rarely_move_may_have_stood_still() -> None:
    def calls(share: float, seed: int) -> np.ndarray:
        rng = np.random.default_rng(seed)
        moves = rng.random((60, 2000)) < share
        return np.concatenate([1 + rng.normal(size=(60, 100)), moves * rng.normal(size=(60, 2000))], axis=1)

    tensor_of = np.repeat([0, 1], [100, 2000])
    for share, outcome in ((0.01, Outcome.PASS), (0.1, Outcome.FAIL)):
        checks = judge(calls(share, 3), calls(0.01, 2), calls(0.01, 1), tensor_of, exact=True)
        assert checks[0].outcome is outcome, checks[0].detail


@pytest.mark.parametrize(
    "draw",
    [
        lambda x: torch.randn(8, dtype=torch.float32),
        lambda x: torch.rand(8, dtype=torch.bfloat16),
        lambda x: torch.randn(8),
        lambda x: torch.randn_like(x),
        lambda x: torch.randn_like(x, dtype=torch.float16),
        lambda x: torch.normal(x, 0.5),
        lambda x: torch.normal(0.0, 1.0, (8,)),
    ],
)
def test_the_reference_draws_what_eager_draws_in_whatever_dtype(draw: Callable[[torch.Tensor], torch.Tensor]) -> None:
    x = torch.linspace(0, 1, 8)
    torch.manual_seed(3)
    eager = draw(x)
    torch.manual_seed(3)
    with as_reference():
        reference = draw(x.double())
    assert reference.dtype is torch.float64
    assert torch.allclose(eager.double(), reference, atol=1e-6)


def test_elements_of_unlike_sizes_may_hold_still() -> None:
    rng = np.random.default_rng(0)
    still = rng.normal(size=300) * np.repeat([1.0, 1e-9], 150)

    def calls(off: float) -> np.ndarray:
        return np.concatenate([np.tile(still + off, (60, 1)), 1e-5 * rng.normal(size=(60, 300))], axis=1)

    tensor_of = np.repeat([0, 1], 300)
    for off, outcome in ((1e-8, Outcome.PASS), (1e-2, Outcome.FAIL)):
        checks = judge(calls(off), calls(0.0), calls(0.0), tensor_of, exact=True)
        assert checks[0].outcome is outcome, checks[0].detail


@pytest.mark.parametrize(
    ("shift", "exact", "outcome"), [(0.015, False, "pass"), (0.015, True, "fail"), (0.05, False, "fail")]
)
def test_what_rounding_explains_passes_at_a_reduced_precision_alone(shift: float, exact: bool, outcome: str) -> None:
    rng = np.random.default_rng(0)
    ours, theirs, calibration = (rng.normal(size=(calls, 5000)) for calls in (120, 120, 40))
    checks = judge(ours + shift, theirs, calibration, np.zeros(5000, np.intp), exact=exact)
    assert checks[0].outcome == outcome, checks[0].detail


@pytest.mark.parametrize("begin", [0, 1])
def test_noise_that_lasts_for_two_calls_is_caught_as_dependent(begin: int) -> None:
    rng = np.random.default_rng(0)
    eager = rng.normal(size=(120, 500))
    pairs = np.repeat(rng.normal(size=(61, 500)), 2, axis=0)  # every draw used twice: each margin is right
    pairs = pairs[begin : begin + 120]
    checks = judge(pairs, rng.normal(size=(120, 500)), eager[:40], ONE_TENSOR[:500], exact=True)
    assert [c.outcome for c in checks if c.name == "independence"] == [Outcome.FAIL]


@pytest.mark.parametrize(("pairs", "most"), [(250, 2), pytest.param(1000, 5, marks=pytest.mark.nightly)])
def test_true_pairs_are_rejected_at_the_stated_rate_and_no_more(pairs: int, most: int) -> None:
    """Pairs of true eager samples. At a rate of 1e-3, more false alarms happen once in 400 or 1,600 runs."""
    torch.manual_seed(0)
    model = Noisy(dropout=0.3)
    x = torch.randn(2, 64)

    def sample(calls: int) -> np.ndarray:
        with torch.no_grad():
            return model(x.expand(calls, 2, 64)).reshape(calls, -1).double().numpy()

    alarms = 0
    for _ in range(pairs):
        checks = judge(*(sample(MIN_CALLS) for _ in range(3)), ONE_TENSOR[:128], exact=True)
        alarms += any(check.outcome is not Outcome.PASS for check in checks)
    assert FALSE_ALARM_RATE == 1e-3
    assert alarms <= most


def test_rounding_of_a_lower_precision_is_no_other_noise() -> None:
    torch.manual_seed(0)
    model = Noisy().bfloat16()
    x = torch.randn(8, 64)
    workload = Workload(lambda t: model(t.bfloat16()).float(), (Example((x,)),))
    verdict = verify(Subject(workload, workload.call, workload.call, "bf16", stochastic=True), noise_budget_s=1.0)
    assert verdict.outcome is Outcome.PASS, verdict.reason


def test_what_does_not_vary_in_a_noisy_answer_must_be_right_too() -> None:
    def eager(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x * 2, x + torch.randn_like(x)

    workload = Workload(eager, (Example((torch.randn(64),)),))
    assert verdict_of(workload, eager).outcome is Outcome.PASS  # type: ignore[attr-defined]
    verdict = verdict_of(workload, lambda x: (x * 0 + 7, x + torch.randn_like(x)))
    assert "do not vary" in verdict.reason  # type: ignore[attr-defined]


@pytest.mark.parametrize("change", [lambda t: t.double(), lambda t: t[:1]])
def test_the_form_of_a_noisy_answer_is_checked(noisy: Workload, change: object) -> None:
    verdict = verdict_of(noisy, lambda x: change(noisy.call(x)))  # type: ignore[operator]
    assert verdict.outcome is Outcome.FAIL  # type: ignore[attr-defined]
    assert verdict.reason.startswith("structure")  # type: ignore[attr-defined]


def test_sampled_whole_numbers_are_compared_in_distribution() -> None:
    weights = torch.tensor([0.7, 0.2, 0.1])

    def sample(x: torch.Tensor) -> torch.Tensor:
        return torch.multinomial(weights, 200, replacement=True) + x

    workload = Workload(sample, (Example((torch.zeros(200, dtype=torch.int64),)),))
    assert verdict_of(workload, sample).outcome is Outcome.PASS  # type: ignore[attr-defined]

    def sample_skewed(x: torch.Tensor) -> torch.Tensor:
        return torch.multinomial(torch.tensor([0.5, 0.3, 0.2]), 200, replacement=True) + x

    assert verdict_of(workload, sample_skewed).outcome is Outcome.FAIL  # type: ignore[attr-defined]


def test_rounding_that_differs_from_run_to_run_is_no_noise() -> None:
    x = torch.randn(100)
    wobble = iter(torch.linspace(0, 1e-4, 50))
    assert is_stochastic(lambda: x * (1 + next(wobble))) == (False, True)


def test_roundings_of_bfloat16_are_no_noise_and_noise_in_bfloat16_is() -> None:
    x = torch.randn(1000)
    wobble = itertools.cycle((0.0, 0.0, 1e-2, 1e-2))  # two calls in a row may come out the same
    assert is_stochastic(lambda: (x * (1 + next(wobble))).bfloat16()) == (False, True)
    assert is_stochastic(lambda: torch.nn.functional.dropout(x.bfloat16(), 0.1)) == (True, False)
    off = itertools.cycle((0.0, 0.1))
    assert is_stochastic(lambda: (x + next(off) * torch.randn(1000)).bfloat16()) == (True, True)
    assert is_stochastic(lambda: x * (1 + next(wobble))) == (True, True), "float32 has no such roundings"


def test_a_counter_in_a_buffer_is_no_noise() -> None:
    class Counting(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("steps", torch.zeros(1))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.steps += 1
            return x * self.steps

    module = Counting()
    assert is_stochastic(lambda: module(torch.ones(3)), module) == (False, False)


def test_the_reference_stays_in_float64_where_a_model_asks_for_less() -> None:
    def model(x: torch.Tensor) -> torch.Tensor:
        mask = torch.ones(4, dtype=torch.float32)
        return torch.nn.functional.softmax(x.bfloat16().float() @ mask.to(torch.float16).to(x.dtype), -1, torch.float32)

    x = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    with as_reference():
        answer = model(x)
        answer[0].backward()
    assert answer.dtype is torch.float64
    assert torch.allclose(answer, (x @ torch.ones(4, dtype=torch.float64)).softmax(-1), rtol=1e-12)
    assert x.grad is not None
    assert x.grad.dtype is torch.float64


def test_a_plan_whose_form_with_eagers_noise_is_refused_is_judged_by_its_own(noisy: Workload) -> None:
    def refuse(_x: torch.Tensor) -> torch.Tensor:
        raise UnsupportedError("random numbers that nothing reads")

    assert verdict_of(noisy, noisy.call, refuse).outcome is Outcome.PASS
    wrong = verdict_of(noisy, lambda x: noisy.call(x) * 1.5, refuse)
    assert wrong.outcome is Outcome.FAIL
    assert not any(check.is_noise_unreproducible for check in wrong.checks), "other plans may have a form with it"
    with pytest.raises(UnsupportedError):
        verdict_of(noisy, refuse, refuse)
