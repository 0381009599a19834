"""Numbers that stay on the GPU: what they are to the model, with fake tensors that are there."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from torchwise.errors import PlanError, UnsupportedError
from torchwise.plan import Plan, PlanSpace
from torchwise.realize.transforms.numbers_on_gpu import staying
from torchwise.trial.inspection import _compatible, _watched


@pytest.fixture
def there() -> Iterator[torch.Tensor]:
    with FakeTensorMode():
        yield torch.ones(2, 3, device="cuda")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize(
    "call",
    [
        lambda x: x / x.abs().mean().item(),
        lambda x: x * (x.sum().item() + 1e-6) ** 0.5,
        lambda x: torch.clamp(x, max=x.mean().item()),
        lambda x: x - 2 * x.flatten().narrow(0, 0, 1).item(),
    ],
    ids=["quotient", "root", "clamp", "one element"],
)
def test_what_is_computed_with_a_number_has_the_tensors_dtype(
    call: Callable[[torch.Tensor], torch.Tensor], dtype: torch.dtype, there: torch.Tensor
) -> None:
    answer = staying(call)(there.to(dtype))
    assert (answer.dtype, answer.shape) == (dtype, there.shape)


def test_a_number_is_what_it_was_when_it_was_read() -> None:
    """Also one of float64, whose tensor would be the number itself."""
    with FakeTensorMode():
        there = torch.ones(1, device="cuda", dtype=torch.float64)
        seen: list[torch.Tensor] = []
        staying(lambda x: seen.append(x.item()))(there)  # type: ignore[arg-type]
        assert seen[0].dtype is torch.float64
        assert seen[0].untyped_storage()._cdata != there.untyped_storage()._cdata


@pytest.mark.parametrize(
    "call",
    [lambda x: x * x.int().sum().item(), lambda x: x * round(x.sum().item()), lambda x: x * float(x.sum())],
    ids=["integer", "rounded", "float()"],
)
def test_what_python_needs_itself_is_asked_for_after_all(
    call: Callable[[torch.Tensor], torch.Tensor], there: torch.Tensor
) -> None:
    with pytest.raises(Exception, match=r"_local_scalar_dense|__round__|support for cuda"):
        staying(call)(there)


def test_a_call_that_reads_no_number_there_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="changes nothing here"):
        staying(lambda x: x * x.mean().item())(torch.ones(3))  # the CPU has it already


def test_it_needs_a_capture_and_eager() -> None:
    Plan(transforms=("numbers_on_gpu",), capture="call")
    Plan(transforms=("numbers_on_gpu",), capture="branches")
    with pytest.raises(PlanError, match="capture is 'none': it must be 'call' or 'branches'"):
        Plan(transforms=("numbers_on_gpu",))
    with pytest.raises(PlanError, match="backend is 'inductor', which is given numbers: eager is not"):
        Plan(transforms=("numbers_on_gpu",), capture="call", backend="inductor")


def test_the_inspection_finds_them_and_a_search_brings_the_capture_along() -> None:
    with FakeTensorMode():
        there, here = torch.ones(3, device="cuda"), torch.ones(3)
        assert "numbers" in _watched(lambda: there * there.sum().item())[0]
        assert "numbers" not in _watched(lambda: there * there.int().sum().item())[0]
        assert "numbers" not in _watched(lambda: here * here.sum().item())[0]

    def proposed(*traits: str) -> set[str]:
        space = PlanSpace("cuda", "inference", frozenset(traits), effort="quick")
        found = {plan for plan, _ in space.neighbours(Plan())}
        return {plan.capture for plan in found if "numbers_on_gpu" in plan.transforms}

    assert proposed("numbers") == {"call"}
    assert proposed("numbers", "questions") == {"branches"}
    assert proposed("questions") == set()
    assert _compatible(frozenset({"numbers", "questions", "repeats"})) == {"numbers", "questions"}
    assert _compatible(frozenset({"numbers", "static_form"})) == {"static_form"}
