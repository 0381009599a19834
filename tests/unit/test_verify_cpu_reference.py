"""If eager itself is wrong on a device, a failed verdict says so. If the candidate is, it says nothing more."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torchwise  # noqa: E402
import torchwise.verify  # noqa: E402
from torchwise.records import Check, Outcome  # noqa: E402
from torchwise.verify import Subject, verify  # noqa: E402
from torchwise.verify import reference as third  # noqa: E402
from torchwise.verify.observe import Observation  # noqa: E402
from torchwise.verify.step import StepSubject, verify_step  # noqa: E402
from torchwise.verify.step_runner import StepRunner  # noqa: E402
from torchwise.workload import Example, Workload  # noqa: E402

FAILED = Check("values", Outcome.FAIL, "output is off by 0.5", 0.5, 1e-7)
RIGHT, WRONG = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([1.0, 2.0, 4.0])


def make_observation(*values: torch.Tensor) -> Observation:
    return Observation(tuple((f"output[{n}]", value) for n, value in enumerate(values)), frozenset())


def refuses() -> Observation:
    raise RuntimeError("only runs on a GPU")


def recheck_on_cpu(
    ours: Observation, here: Observation | None, elsewhere: Callable[[], Observation], check: Check = FAILED
) -> Check:
    return third.compare_with_cpu(check, lambda: ours, lambda: here, elsewhere)


def test_eager_is_named_where_the_cpu_sides_with_the_candidate() -> None:
    told = recheck_on_cpu(
        make_observation(RIGHT), make_observation(WRONG.double()), lambda: make_observation(RIGHT.double())
    )
    assert told.outcome is Outcome.FAIL
    assert told.detail.startswith(FAILED.detail)
    assert "it is eager that is wrong here" in told.detail
    assert "output[0] is off by 0.27" in told.detail


ZERO = torch.full((3,), 1e-17)


@pytest.mark.parametrize(
    ("ours", "here"),
    [
        ([WRONG], [RIGHT]),
        ([WRONG], [WRONG]),
        ([RIGHT, WRONG], [WRONG, RIGHT]),
        ([RIGHT * 1.08], [WRONG * 1.9]),
        ([RIGHT], [RIGHT * (1 + 1e-9)]),
        ([torch.full((3,), torch.nan)], [WRONG]),
        ([RIGHT], [torch.full((3,), torch.nan)]),
        ([RIGHT[:2]], [WRONG]),
    ],
    ids=["the candidate", "both", "one each", "somewhat", "nobody", "nan", "nan here", "another shape"],
)
def test_nothing_is_added_where_the_device_is_right_or_the_candidate_wrong_too(
    ours: list[torch.Tensor], here: list[torch.Tensor]
) -> None:
    exact = [RIGHT.double()] * len(ours)
    assert (
        recheck_on_cpu(
            make_observation(*ours), make_observation(*(t.double() for t in here)), lambda: make_observation(*exact)
        )
        == FAILED
    )


def test_a_rounding_of_zero_accuses_nobody() -> None:
    """The true gradient of a bias before a normalisation is zero, and each rounding of it is another number."""
    here = make_observation(RIGHT.double(), ZERO.double() * 1e3)
    assert (
        recheck_on_cpu(make_observation(WRONG, ZERO), here, lambda: make_observation(RIGHT.double(), ZERO.double()))
        == FAILED
    )
    here = make_observation(WRONG.double(), ZERO.double())
    told = recheck_on_cpu(
        make_observation(RIGHT, ZERO * 1e9), here, lambda: make_observation(RIGHT.double(), ZERO.double())
    )
    assert "it is eager that is wrong here" in told.detail


def test_other_leaves_than_dense_numbers_are_passed_over() -> None:
    more = (torch.eye(3).to_sparse(), torch.arange(3), torch.empty(0))
    told = recheck_on_cpu(
        make_observation(RIGHT, *more),
        make_observation(WRONG.double(), *more),
        lambda: make_observation(RIGHT.double(), *more),
    )
    assert "it is eager that is wrong here" in told.detail


@pytest.mark.parametrize("who", ["ours", "here", "elsewhere"])
def test_whatever_raises_leaves_the_check_as_it_is(who: str) -> None:
    calls: dict[str, Callable[[], Observation]] = {
        "ours": lambda: make_observation(RIGHT),
        "here": lambda: make_observation(WRONG.double()),
        "elsewhere": lambda: make_observation(RIGHT.double()),
    }
    assert third.compare_with_cpu(FAILED, *calls.values()) != FAILED
    assert third.compare_with_cpu(FAILED, *(calls | {who: refuses}).values()) == FAILED


def test_an_answer_that_is_not_on_the_cpu_is_no_third_opinion() -> None:
    assert (
        recheck_on_cpu(
            make_observation(RIGHT),
            make_observation(WRONG.double()),
            lambda: make_observation(RIGHT.double().to("meta")),
        )
        == FAILED
    )


def test_where_float64_does_not_run_nobody_is_asked() -> None:
    assert recheck_on_cpu(make_observation(RIGHT), None, refuses) == FAILED


def test_a_model_that_would_take_minutes_on_a_cpu_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(third, "MAX_S", 0.0)
    calls: list[int] = []

    def elsewhere() -> Observation:
        calls.append(1)
        return make_observation(RIGHT.double())

    assert recheck_on_cpu(make_observation(RIGHT), make_observation(WRONG.double()), elsewhere) == FAILED
    assert not calls


@pytest.mark.parametrize(
    ("name", "outcome", "parameters", "is_asked"),
    [
        ("values", Outcome.FAIL, 10, True),
        ("gradients' scale", Outcome.FAIL, 10, True),
        ("values", Outcome.PASS, 10, False),
        ("structure", Outcome.FAIL, 10, False),
        ("values", Outcome.FAIL, 2**29, False),
    ],
)
def test_numbers_that_fail_on_another_device_are_doubted_where_the_model_fits(
    name: str, outcome: Outcome, parameters: int, is_asked: bool
) -> None:
    held = [torch.empty(parameters, device="meta")]
    assert third.is_doubtful(Check(name, outcome, ""), Example((RIGHT,)), held) is is_asked
    assert not third.is_doubtful(Check(name, outcome, ""), Example((RIGHT,)), [RIGHT])


class Broken(torch.nn.Module):
    """A model of a device on which a kernel is wrong: it is right after a move to the CPU."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)
        self.factor = 1.1

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Apply the layer, and be wrong by a tenth."""
        y: torch.Tensor = self.layer(x) * self.factor
        return y

    def to(self, *args: Any, **kwargs: Any) -> Any:
        """Move to a device whose kernels are right."""
        self.factor = 1.0
        return super().to(*args, **kwargs)


@pytest.fixture
def on_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(third, "is_on_cpu", lambda _: False)


@pytest.mark.usefixtures("on_a_device")
def test_a_verdict_says_who_is_right() -> None:
    model, example = Broken(), Example((torch.randn(3, 4),))
    subject = Subject(Workload(model, (example,)), model.layer, model, training=True)
    (failure,) = [check for check in verify(subject).checks if check.outcome is Outcome.FAIL]
    assert "it is eager that is wrong here" in failure.detail
    fine = Subject(Workload(model, (example,)), lambda x: model(x) * 1.5, model)
    (failure,) = [check for check in verify(fine).checks if check.outcome is Outcome.FAIL]
    assert "eager that is wrong" not in failure.detail


@pytest.mark.usefixtures("on_a_device")
def test_a_verdict_on_a_training_step_says_who_is_right() -> None:
    model = Broken()
    step = torchwise.TrainStep(
        model, torch.nn.functional.mse_loss, torch.optim.AdamW(model.parameters(), 1e-3), clip_norm=100.0
    )

    def make_candidate(step: Any) -> Callable[..., Any]:
        def right(x: torch.Tensor) -> torch.Tensor:
            y: torch.Tensor = step.model.layer(x)
            return y

        return step.taken_by(right)  # type: ignore[no-any-return]

    workload = Workload(step, (Example((torch.randn(8, 4), torch.randn(8, 4))),))
    verdict = verify_step(StepSubject(workload, StepRunner(step, make_candidate), make_candidate), extra_draws=0)
    (failure,) = [check for check in verdict.checks if check.outcome is Outcome.FAIL]
    assert failure.name == "gradients"
    assert "it is eager that is wrong here" in failure.detail
