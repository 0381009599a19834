"""No model is called with values that it does not take, such as beyond a full cache: on a GPU that ends the process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from torchwise.diagnose.code_copies import copy_with_fresh_code
from torchwise.errors import BaselineError, InputError
from torchwise.plan import Trait
from torchwise.plan.requirements import Property
from torchwise.plan.workload_spec import WorkloadSpec
from torchwise.records import CheckName, Outcome
from torchwise.runtime.bucketing import Padding, verify_padding
from torchwise.trial import Job, harness, loading, required_properties
from torchwise.trial.harness import Harness
from torchwise.trial.plain_call import run_plainly
from torchwise.trial.required_properties import check_original
from torchwise.verify import independence, pair, verify_samples
from torchwise.verify.input_cases import cases_of_examples
from torchwise.verify.pair import judge_pair
from torchwise.verify.pair_subject import PairSubject
from torchwise.verify.verify import Subject, verify
from torchwise.verify.witness import LocalWitness
from torchwise.workload import Workload, bounds
from torchwise.workload.bounds import OutOfBoundsError
from torchwise.workload.workload import Example

MakeHarness = Callable[..., Harness]


class FatalError(BaseException):
    """Ends a test as an assertion in a CUDA kernel ends a process."""


class Cache(torch.nn.Module):
    """Adds each call's row to a cache, which is full after some calls."""

    def __init__(self, places: int, full: type[BaseException] | None = None) -> None:
        super().__init__()
        self.register_buffer("rows", torch.zeros(places, 4))
        self.register_buffer("place", torch.zeros(1, dtype=torch.int64))
        self._full = full

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        try:
            self.rows.index_copy_(0, self.place, x)
        except OutOfBoundsError:
            raise
        except IndexError as error:
            raise (self._full or (FatalError if bounds.ends_process() else IndexError))(str(error)) from None
        self.place += 1
        return self.rows.sum(0)


@pytest.fixture(params=["raises", "asserts"])
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Have a call beyond a cache raise an error, as on a CPU, or end the process, as on a GPU."""
    if request.param == "asserts":
        for place in (bounds, loading, pair, independence, required_properties):
            monkeypatch.setattr(place, "ends_process", lambda: True)
    return str(request.param)


class Growing(torch.nn.Module):
    """Keeps all rows, each beside that of its place in a table of few places."""

    def __init__(self, places: int) -> None:
        super().__init__()
        self.table = Cache(places)
        self.register_buffer("rows", torch.zeros(0, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.rows = torch.cat([self.rows, x])
        return self.rows.sum() + self.table(x)


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("places", [1, 2, 3])
def test_the_state_that_a_model_changes_is_found_within_its_cache(places: int) -> None:
    for model in (Cache(places), Growing(places)):
        found = run_plainly(Workload(model, (Example((torch.ones(1, 4),)),)), "inference")
        assert any(path.endswith("rows") for path in found.moves)
        assert found.grows is isinstance(model, Growing)


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch) -> MakeHarness:
    def make_harness(model: Cache, *, goes_on: bool) -> Harness:
        workload = Workload(model, (Example((torch.ones(1, 4),)),))
        monkeypatch.setattr(harness, "load", lambda _job: workload)
        job = Job("try", WorkloadSpec("live:cache", "cpu"), traits=frozenset({Trait.STATEFUL}))
        with torch.no_grad():
            return Harness(job, goes_on=goes_on)

    return make_harness


@pytest.mark.usefixtures("device")
def test_samples_keep_their_bits_beside_others_that_the_model_does_not_take() -> None:
    """Far larger values, and NaN, are no places of a table."""
    spec = WorkloadSpec("live:table", "cpu", require=(Property.BATCH_INVARIANT,))
    workload = Workload(lambda x: read_row(torch.eye(4), x.long()), (Example((torch.arange(4.0),)),))
    (check,) = check_original(spec, workload)
    assert check.outcome is Outcome.PASS, check


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("has_noise_of_eager", [False, True])
@pytest.mark.parametrize("places", [1, 2, 3, 9])
def test_noise_is_compared_within_the_cache(places: int, has_noise_of_eager: bool) -> None:
    class Noisy(Cache):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x) * torch.rand(4)

    model = Noisy(places)
    subject = Subject(
        Workload(model, (Example((torch.randn(1, 4),)),)),
        model,
        model,
        stateful=True,
        stochastic=True,
        reproducible=model if has_noise_of_eager else None,
    )
    assert verify(subject, noise_budget_s=0.0).outcome is Outcome.PASS


def judge(candidate: torch.nn.Module, places: int) -> Any:
    reference = Cache(places)
    cases = cases_of_examples(Workload(reference, (Example((torch.randn(1, 4),)),)), 1)
    return judge_pair(PairSubject(reference, LocalWitness(candidate), reference), cases[:2]).checks


def read_row(table: torch.Tensor, row: torch.Tensor) -> torch.Tensor:
    """Read rows as an operator of a CPU does, or as that of a GPU."""
    try:
        return table[row]
    except OutOfBoundsError:
        raise
    except IndexError:
        if bounds.ends_process():
            raise FatalError from None
        raise


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("outputs", [None, {}])
def test_padding_is_refused_where_an_input_points_beyond_a_shorter_one(outputs: dict[str, Any] | None) -> None:
    """The place of the last token is that of the longest sequence, from which shorter ones are made."""

    def read_last(tokens: torch.Tensor, last: torch.Tensor) -> torch.Tensor:
        return read_row(tokens, last).sum()

    rule = Padding({"tokens": 0}, outputs=outputs)
    with pytest.raises(BaselineError, match="on inputs of size"):
        verify_padding(read_last, (torch.ones(12), torch.tensor([11])), padding=rule, buckets=(4, 8))


@pytest.mark.usefixtures("device")
def test_samples_that_point_to_each_other_are_refused() -> None:
    """A sample alone has another place than in its batch."""

    def read_own(rows: torch.Tensor, place: torch.Tensor) -> torch.Tensor:
        return read_row(rows, place) + 1

    with pytest.raises(InputError, match="takes no"):
        verify_samples(read_own, Example((torch.randn(4, 3), torch.arange(4))))


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("places", [1, 2, 3, 4, 5])
def test_a_pair_is_judged_by_the_calls_for_which_a_cache_has_room(places: int) -> None:
    """A candidate may raise another error than the reference where the cache is full."""
    found = {check.name: check for check in judge(Cache(places, RuntimeError), places)}
    assert found[CheckName.VALUES].outcome is Outcome.PASS, found
    assert found[CheckName.RETAINED_OUTPUTS].outcome is Outcome.PASS, found


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("places", [2, 5])
def test_a_candidate_that_drops_a_row_is_found_within_the_cache(places: int) -> None:
    class Forgetful(Cache):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.rows *= self.place < 1
            return super().forward(x)

    assert judge(Forgetful(places), places)[-1].outcome is Outcome.FAIL


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("places", [4, 9])
def test_an_answer_that_is_overwritten_is_found_with_and_without_room(places: int) -> None:
    class Overwriting(Cache):
        kept = torch.zeros(4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.kept.copy_(super().forward(x))

    assert judge(Overwriting(places, RuntimeError), places)[-1].outcome is Outcome.FAIL


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize(("goes_on", "places"), [(False, 1), (False, 2), (True, 1)])
def test_calls_are_timed_from_a_state_that_takes_one(goes_on: bool, places: int, make: MakeHarness) -> None:
    (call,) = make(Cache(places), goes_on=goes_on).eager
    for _ in range(3):
        assert float(call()[0]) == places


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("places", [2, 3])
def test_a_copy_of_a_model_goes_on_within_its_own_cache(places: int, make: MakeHarness) -> None:
    """Fixes are tried on copies, which have caches of their own."""
    going_on = make(Cache(places), goes_on=True)
    copied = copy_with_fresh_code(going_on.workload.call, with_state=False)
    (call,) = going_on.runners(copied, copied)
    assert max(float(call()[0]) for _ in range(3 * places)) == places
