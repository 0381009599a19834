"""Every reference workload on a GPU, in the sizes that it is meant for, against its own float64."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from torchwise.verify.reference import as_reference, float64_of, widen  # noqa: E402
from torchwise.workload import Workload  # noqa: E402
from torchwise.zoo import Entry, list_workloads, load  # noqa: E402
from zoo_checks import continuous, least_agreement, losses, run, worst_error  # noqa: E402

pytestmark = pytest.mark.gpu
SIZES = ["small", "medium", pytest.param("large", marks=pytest.mark.slow)]
LEEWAY = 10
"""Times the tolerance of the small size: errors grow with the number of terms."""


ANSWERING = [entry for entry in list_workloads() if not entry.is_step]
STEPS = [entry for entry in list_workloads() if entry.is_step]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("entry", ANSWERING, ids=lambda entry: entry.name)
def test_it_answers_on_the_gpu_as_in_float64(entry: Entry, size: str) -> None:
    torch.cuda.empty_cache()
    # PyTorch lets cuDNN round float32 to TF32 by itself: an error of 5e-4 in recurrent nets, no fault of the zoo.
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        check(entry, size)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("entry", STEPS, ids=lambda entry: entry.name)
def test_its_loss_on_the_gpu_is_that_in_float64(entry: Entry, size: str) -> None:
    torch.cuda.empty_cache()
    single = load(f"{entry.name}@{size}", device="cuda")
    double = load(f"{entry.name}@{size}", device="cuda", dtype=torch.float64)
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        assert losses(single, 2) == pytest.approx(losses(double, 2), rel=max(1e-4, least_agreement(entry, single)))


def check(entry: Entry, size: str) -> None:
    try:
        workload = load(f"{entry.name}@{size}", device="cuda")
        answers = run(workload)
        reference = None if entry.stochastic else run_in_float64(workload)
    except torch.cuda.OutOfMemoryError as error:
        pytest.skip(f"DOES NOT FIT: {entry.name}@{size} on {torch.cuda.get_device_name()}: {error}")
    assert answers
    assert all(answer.is_cuda for answer in answers)
    for answer in answers:
        assert torch.isfinite(torch.view_as_real(answer) if answer.is_complex() else answer).all()
    assert all((answer != 0).any() for answer in continuous(answers))
    if reference is not None:
        assert worst_error(answers, reference) < LEEWAY * entry.tolerance


def run_in_float64(workload: Workload) -> list[torch.Tensor]:
    wide = Workload(float64_of(workload.call), tuple(widen(example) for example in workload.examples))
    with as_reference():
        return run(wide)
