"""Values that a call brings over from the CPU: noted while it warms up, and answered while it is recorded.

No GPU needed.
"""

from __future__ import annotations

import random
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from torchwise.compile.cuda_graphs.host_operators import reads_numbers, result_key, waits, write_where_masked
from torchwise.compile.cuda_graphs.host_values import HostValues
from torchwise.errors import UnsupportedError

aten = torch.ops.aten
ELSEWHERE = "meta"
"""Stands in for the GPU: tensors there have no values, so that all values that are seen came from the CPU."""


def there(*shape: int) -> torch.Tensor:
    return torch.empty(*shape, device=ELSEWHERE)


KEPT = torch.tensor([0, 2])
BRINGS: dict[str, tuple[Callable[[torch.Tensor], Any], list[list[float]]]] = {
    "a number": (lambda x: x * torch.tensor(0.1).to(x.device), [[pytest.approx(0.1)]]),
    "several numbers": (lambda x: x + torch.tensor([0.0, 1, 2, 3]).to(x), [[0, 1, 2, 3]]),
    "a range": (lambda x: x * torch.arange(4).to(ELSEWHERE), [[0, 1, 2, 3]]),
    "from NumPy": (lambda x: x * torch.from_numpy(np.ones(4)).to(ELSEWHERE), [[1, 1, 1, 1]]),
    "put together": (lambda x: torch.stack([torch.tensor(1.0), torch.tensor(2.0)]).to(x.device), [[1, 2]]),
    "what the model keeps": (lambda x: x[KEPT.to(ELSEWHERE)], [[0, 2]]),
    "an index": (lambda x: x[torch.tensor([1, 3])], [[1, 3]]),
    "a mask as positions": (lambda x: x[torch.tensor([True, False, False, True])], [[0, 3]]),
    "an index to write to": (lambda x: x.clone().index_put_((torch.tensor([1]),), x[0]), [[1]]),
    "one of two": (lambda x: torch.where(x > 0, x, torch.tensor(7.0)), [[7]]),
    "into place": (lambda x: torch.empty_like(x).copy_(torch.arange(4.0)), [[0, 1, 2, 3]]),
    "one after the other": (
        lambda x: x.new_ones(4).to(x) * torch.ones(4).to(x) + torch.zeros(4).to(x),
        [[1] * 4, [0] * 4],
    ),
    "nothing": (lambda x: x * 2 + torch.ones(4, device=x.device), []),
    "a number that no kernel copies": (lambda x: x + torch.tensor(2.0), []),
}


@pytest.mark.parametrize(("call", "brought"), BRINGS.values(), ids=list(BRINGS))
def test_what_is_copied_is_noted_in_its_order_and_recorded_from_there(
    call: Callable[[torch.Tensor], Any], brought: list[list[float]]
) -> None:
    host = HostValues(ELSEWHERE)
    with host.recording_values():
        noted = call(there(4))
    assert [values.flatten().tolist() for values, _ in host._copies] == brought
    assert all(twin.device.type == ELSEWHERE for _, twin in host._copies)
    with host.replaying_values():
        answer = call(there(4))
    assert (answer.device, answer.shape, answer.dtype) == (noted.device, noted.shape, noted.dtype)
    assert host.has_same_tensors()


X = torch.arange(4.0)


def record_values(call: Callable[[torch.Tensor], Any], device: str = ELSEWHERE) -> HostValues:
    host = HostValues(device)
    with host.recording_values():
        call(torch.empty(4, device=device) if device == ELSEWHERE else X)
    return host


@pytest.mark.parametrize(
    "then",
    [
        lambda x: x * torch.tensor(0.2).to(x.device),
        lambda x: x * torch.tensor(0.1, dtype=torch.float64).to(x.device),
        lambda x: x * torch.tensor(0.1).to(x.device) * torch.tensor(0.1).to(x.device),
        lambda x: x,
    ],
    ids=["other", "wider", "more", "fewer"],
)
def test_other_numbers_than_were_noted_are_refused(then: Callable[[torch.Tensor], Any]) -> None:
    host = record_values(lambda x: x * torch.tensor(0.1).to(x.device))
    with pytest.raises(UnsupportedError, match="copies other numbers from the CPU"), host.replaying_values():
        then(there(4))


@pytest.mark.parametrize(
    "draw",
    [
        lambda: torch.rand(4),
        lambda: torch.tensor(random.random()),
        lambda: torch.from_numpy(np.random.rand(4)),
        lambda: torch.randperm(4),
    ],
    ids=["PyTorch", "Python", "NumPy", "a permutation"],
)
def test_numbers_that_are_drawn_on_the_cpu_are_refused(draw: Callable[[], torch.Tensor]) -> None:
    host = record_values(lambda x: x * draw().to(x.device))
    with pytest.raises(UnsupportedError, match="random numbers on the CPU"), host.replaying_values():
        pass
    record_values(lambda x: x * torch.rand(4, device=x.device)), "what the GPU draws is another matter"


def test_what_the_model_keeps_on_the_cpu_may_be_seen_to_change() -> None:
    scale, table = torch.tensor(2.0), torch.arange(8.0)
    with torch.inference_mode():
        uncounted = torch.ones(4)
    host = record_values(
        lambda x: (x + scale) * table[:4].to(x.device) * uncounted.to(x.device) + torch.ones(4).to(x.device)
    )
    assert host.has_same_tensors()
    for kept in (scale, table):
        kept.mul_(2)
        assert not host.has_same_tensors()
        host = record_values(lambda x: (x + scale) * table[:4].to(x.device) * uncounted.to(x.device))
    with torch.inference_mode():
        uncounted.mul_(3)
    assert not host.has_same_tensors()


def test_a_call_that_writes_to_what_the_model_keeps_on_the_cpu_is_refused() -> None:
    count = torch.zeros(())
    host = record_values(lambda x: x * count.add_(1).to(x.device))
    with (
        pytest.raises(UnsupportedError, match="writes to a tensor that its module keeps on the CPU"),
        host.replaying_values(),
    ):
        pass


def test_what_was_recorded_stays_in_memory_when_another_way_is_noted() -> None:
    host = record_values(lambda x: x * torch.tensor(0.1).to(x.device))
    with host.replaying_values():
        torch.tensor(0.1).to(ELSEWHERE)
    read = weakref.ref(host._copies[0][1])
    with host.recording_values():
        torch.tensor(0.3).to(ELSEWHERE)
    assert read() is not None, "a graph reads there"
    with host.replaying_values():
        torch.tensor(0.3).to(ELSEWHERE)


# ---- values that are the same on every call. The CPU stands in for the GPU, so that there are values

TOLD: dict[str, tuple[Callable[[torch.Tensor], Any], list[Any]]] = {
    "a number": (lambda x: torch.tensor([3.0, 4.0])[1].item(), [4.0]),
    "yes or no": (lambda x: bool(torch.arange(4).sum() > 5), [True]),
    "how many": (lambda x: x[torch.tensor([1, 0, 1, 0]) > 0], [[[0], [2]]]),
}
ASKED: dict[str, Callable[[torch.Tensor], Any]] = {
    "an input": lambda x: x.sum().item(),
    "computed with an input": lambda x: (torch.tensor([3.0]) * x.sum()).item(),
    "written to by an input": lambda x: torch.zeros(4).add_(x).sum().item(),
    "a view that is written to": lambda x: _first_written(torch.zeros(4), x).sum().item(),
    "written to past its count": lambda x: _first_written(kept := torch.zeros(4), x, kept.data).sum().item(),
    "one of several": lambda x: _each_written([torch.zeros(4), torch.zeros(4)], x)[1].sum().item(),
    "not written at all": lambda x: torch.empty(4).numel() * bool(torch.empty(4).sum() * 0 == 0),
    "drawn": lambda x: torch.bernoulli(torch.full((4,), 0.5)).sum().item(),
}


def _first_written(zeros: torch.Tensor, x: torch.Tensor, by: torch.Tensor | None = None) -> torch.Tensor:
    (zeros if by is None else by)[:2].add_(x[:2])
    return zeros


def _each_written(zeros: list[torch.Tensor], x: torch.Tensor) -> list[torch.Tensor]:
    torch._foreach_add_(zeros, [x, x])
    return zeros


@pytest.mark.parametrize("call", [call for call, _ in TOLD.values()], ids=list(TOLD))
def test_what_is_computed_from_numbers_alone_is_told_and_not_asked(call: Callable[[torch.Tensor], Any]) -> None:
    asked: list[Any] = []
    host, x = record_values(call, "cpu"), torch.arange(4.0)
    with host.replaying_values(lambda func, args, kwargs: asked.append(func) or func(*args, **kwargs)):
        answer = call(x)
    expected = call(x)
    assert torch.equal(answer, expected) if isinstance(answer, torch.Tensor) else answer == expected
    assert asked == []


@pytest.mark.parametrize("call", ASKED.values(), ids=list(ASKED))
def test_what_an_input_has_a_part_in_is_asked(call: Callable[[torch.Tensor], Any]) -> None:
    asked: list[Any] = []
    host, x = record_values(call, "cpu"), torch.arange(4.0)
    with host.replaying_values(lambda func, args, kwargs: asked.append(func) or func(*args, **kwargs)):
        call(x)
    assert aten._local_scalar_dense.default in asked


# ---- operators


def test_a_mask_that_is_used_twice_is_asked_once_and_anew_when_it_was_written_to() -> None:
    def call(x: torch.Tensor) -> list[torch.Tensor]:
        mask = x > 1
        first = [x[mask], (x * 2)[mask], x.view(2, 2)[mask.view(2, 2)], x.double()[mask]]
        return [*first, x[mask.logical_not_()], x[None][:, mask]]

    asked: list[Any] = []
    x = torch.arange(4.0)
    with record_values(call, "cpu").replaying_values(lambda f, args, kwargs: asked.append(f) or f(*args, **kwargs)):
        answers = call(x)
    assert all(map(torch.equal, answers, call(x)))
    assert asked == [aten.nonzero.default] * 3


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64])
@pytest.mark.parametrize("shape", [(4,), (4, 3), (4, 3, 2)])
def test_one_value_is_written_under_a_mask_without_asking(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x = (torch.randn(shape) * 10).to(dtype)
    for mask in (x > 0, x[..., 0] > 0 if len(shape) > 1 else x > 3):
        for value in (torch.tensor(2.5), torch.tensor([7])):
            into = x.clone()
            assert write_where_masked(into, [mask], value) is into
            assert torch.equal(into, x.clone().index_put_((mask,), value.to(dtype)))


def test_what_waits_is_known_by_what_it_gives_and_not_by_its_name() -> None:
    x, mask = torch.ones(4, device=ELSEWHERE), torch.ones(4, device=ELSEWHERE, dtype=torch.bool)
    wait = [
        (aten.nonzero.default, (mask,), {}),
        (aten._unique2.default, (x,), {}),
        (aten.masked_select.default, (x, mask), {}),
        (aten.index.Tensor, (x, [mask]), {}),
        (aten.index_put_.default, (x, [None, mask], x), {}),
        (aten._to_copy.default, (x,), {"device": torch.device("cpu")}),
        (aten.copy_.default, (torch.ones(4), x), {}),
        (aten._local_scalar_dense.default, (x,), {}),
        (aten.repeat_interleave.Tensor, (x,), {}),
    ]
    go_on = [
        (aten.index.Tensor, (x, [mask.long()]), {}),
        (aten.nonzero.default, (torch.ones(4),), {}),
        (aten._to_copy.default, (x,), {"dtype": torch.float64}),
        (aten.copy_.default, (x, torch.ones(4)), {}),
        (aten.repeat_interleave.Tensor, (x,), {"output_size": 4}),
        (aten.add.Tensor, (x, x), {}),
    ]
    assert [waits(*one, ELSEWHERE) for one in wait] == [True] * len(wait)
    assert [waits(*one, ELSEWHERE) for one in go_on] == [False] * len(go_on)
    assert reads_numbers(aten._local_scalar_dense.default, (x,))
    assert not reads_numbers(aten._local_scalar_dense.default, (mask,))
    assert not reads_numbers(aten.masked_select.default, (x, mask)), "numbers that stay there"


def test_what_python_can_know_of_an_answer() -> None:
    x = torch.arange(3)
    assert result_key((x, 2), "cpu") == result_key((x + 1, 2), "cpu") != result_key((x[:2], 2), "cpu")
    assert result_key(x, "cuda") != result_key(x + 1, "cuda"), "of what lies on the CPU, the values"
    assert result_key(1, "cpu") != result_key(True, "cpu")
