"""`torchwise.fit_batch`: it doubles, then halves the gap, and tells why it ended and which batch is best."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
import torch
from sketches import PASSED, an_inspection

import torchwise
from torchwise.errors import InputError
from torchwise.plan import Trait
from torchwise.records import Costs, Failure, FailureKind, Measurement, codec
from torchwise.trial.job import Attempt

X = torch.randn(4, 8)


class Device:
    """A launcher that needs a KiB a sample, and holds 100 samples.

    Each batch takes 1 ms, and 10 µs a sample.
    """

    def __init__(self, holds: int = 100) -> None:
        self.holds = holds
        self.sizes: list[int] = []
        self.disturbed = 0
        self.traits = frozenset({Trait.STOCHASTIC})  # so each size is verified by the distribution of its answers

    def seconds(self, size: int) -> float:
        return 1e-3 + 1e-5 * size

    def run(self, told: Any, limits: Any, on_stage: Callable[[str], None]) -> str | Failure:
        if told.task == "inspect":
            return codec.to_json(an_inspection(traits=self.traits))
        assert told.traits == self.traits
        self.sizes.append(told.batch.size)
        if told.batch.size > self.holds:
            return Failure(FailureKind.OUT_OF_MEMORY, "compile", "CUDA out of memory")
        seconds = self.seconds(told.batch.size)
        taken = (seconds, seconds) if told.batch.size != self.disturbed else (seconds, 1.0, 2.0)
        timed = Measurement(taken, taken)
        found = Attempt(Costs(0.0, peak_memory=1024 * told.batch.size), PASSED, timed)
        return codec.to_json(found)


def fit_linear(device: Device, **options: Any) -> Any:
    return torchwise.fit_batch(torch.nn.Linear(8, 2), (X,), launcher=device, **options)


def test_the_batch_is_doubled_until_it_fails_and_the_gap_halved() -> None:
    device = Device()
    found = fit_linear(device)
    assert device.sizes == [4, 8, 16, 32, 64, 128, 96, 112]
    assert [one.size for one in found.tried] == sorted(device.sizes)
    assert (found.largest, found.best) == (96, 96)
    assert "out of memory" in {one.size: one.problem for one in found.tried}[128]


def test_a_limit_is_kept() -> None:
    found = fit_linear(Device(), memory_limit=20 * 1024)
    assert found.largest == 20
    assert {one.size: one.problem for one in found.tried}[32] == "takes 0 MiB, above the limit of 0 MiB"


def test_no_larger_batch_than_asked_for_is_tried() -> None:
    device = Device()
    assert fit_linear(device, largest=16).largest == 16
    assert device.sizes == [4, 8, 16]


def test_nothing_fits() -> None:
    found = fit_linear(Device(holds=1))
    assert (found.largest, found.best, len(found.tried)) == (None, None, 1)


def test_it_is_json() -> None:
    assert json.loads(fit_linear(Device()).to_json())["schema"] == "torchwise.batchfit/1"


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (
            lambda: fit_linear(Device(), memory_limit=0),
            "memory limit is 0, but must be a finite size of at least one byte",
        ),
        (
            lambda: fit_linear(Device(), memory_limit="8G"),
            "memory limit is '8G', but must be a finite size of at least one byte",
        ),
        (lambda: fit_linear(Device(), latency_limit=0), "latency limit is 0, but must be a positive duration such as"),
        (lambda: fit_linear(Device(), latency_limit="20m"), "latency limit is '20m', but must be a positive duration"),
        (lambda: fit_linear(Device(), largest=3), "largest is 3, but must be at least 4"),
        (lambda: torchwise.fit_batch("zoo:tutorial.branch"), "but must be the step, module, function or Workload"),
        (lambda: torchwise.fit_batch(torch.add, (X, X[0])), "the inputs differ in dimension 0"),
    ],
)
def test_bad_input_is_refused(call: Callable[[], Any], said: str) -> None:
    with pytest.raises((InputError, torchwise.TorchwiseError), match=said):
        call()


def test_a_request_waits_for_two_calls_so_a_call_gets_half_of_the_latency_limit() -> None:
    device = Device()
    found = fit_linear(device, latency_limit="3ms")
    assert found.largest == 48, "which takes 1.48 ms"
    assert device.sizes == [4, 8, 16, 32, 64, 64, 48, 56, 56], "a size that is too slow is tried once more"
    assert {one.size: one.problem for one in found.tried}[64] == (
        "a call takes 1.64 ms, above the 1.50 ms that the limit leaves"
    )
    assert found.latency_limit == 3e-3


def test_a_size_that_other_load_made_slow_is_good() -> None:
    class Busy(Device):
        def seconds(self, size: int) -> float:
            return 1.0 if self.sizes.count(size) == 1 and size == 32 else super().seconds(size)

    assert fit_linear(Busy(), latency_limit=3e-3).largest == 48


def test_other_load_at_one_size_ends_no_search() -> None:
    device = Device()
    device.disturbed = 8
    found = fit_linear(device, latency_limit="3ms")
    assert device.sizes[:4] == [4, 8, 8, 16], "a call of 8 takes 1.08 ms at least"
    assert (found.largest, found.best) == (48, 48)
    assert "a call takes 1.00 s, above the 1.50 ms" in {one.size: one.problem for one in found.tried}[8]
