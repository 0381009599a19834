"""Further inputs to verify on: of the same kind, with other values where that is safe, whatever tensors they hold."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from torchwise.verify.draws import draws
from torchwise.workload import Example, Workload, trees


def drawn(tensor: torch.Tensor) -> torch.Tensor:
    """Return the one further draw of `tensor`."""
    original, further = draws(Workload(abs, (Example((tensor,)),)), 1)
    assert original.args[0] is tensor
    return further.args[0]


SHUFFLED: dict[str, Callable[[], torch.Tensor]] = {
    "dense": lambda: torch.randn(8, 8),
    "transposed": lambda: torch.randn(8, 8).t(),
    "gaps": lambda: torch.randn(8, 16)[:, ::2],
    "expanded": lambda: torch.randn(64).expand(4, 64),
    "expanded inside": lambda: torch.randn(8, 1, 8).expand(8, 3, 8),
    "complex": lambda: torch.randn(64, dtype=torch.complex64),
    "float8": lambda: torch.randn(8, 8).to(torch.float8_e4m3fn),
    "bfloat16": lambda: torch.randn(64).bfloat16(),
    "to learn": lambda: torch.randn(64, requires_grad=True),
}

KEPT: dict[str, Callable[[], torch.Tensor]] = {
    "integers": lambda: torch.arange(8),
    "booleans": lambda: torch.ones(8) > 0,
    "one value": lambda: torch.ones(1),
    "one value, expanded": lambda: torch.tensor(2.0).expand(3),
    "nothing": lambda: torch.empty(0, 3),
    "nothing, expanded": lambda: torch.ones(1, 3).expand(0, 3),
    "sparse": lambda: torch.eye(3).to_sparse(),
    "sparse rows": lambda: torch.eye(3).to_sparse_csr(),
    "nested": lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
    "windows": lambda: torch.randn(8).unfold(0, 3, 1),
}


@pytest.mark.parametrize("make", SHUFFLED.values(), ids=SHUFFLED)
def test_values_are_shuffled_in_place_of_each_other(make: Callable[[], torch.Tensor]) -> None:
    tensor = make()
    other = drawn(tensor)
    assert (other.shape, other.stride(), other.dtype) == (tensor.shape, tensor.stride(), tensor.dtype)
    assert (other.requires_grad, other.is_leaf) == (tensor.requires_grad, True)
    assert not trees.equal(other, tensor)
    wide = torch.complex128 if tensor.is_complex() else torch.float64
    ours, theirs = (torch.view_as_real(t.detach().to(wide) + 0j).flatten(0, -2) for t in (other, tensor))
    assert sorted(ours.tolist()) == sorted(theirs.tolist())
    assert trees.equal(drawn(tensor), other)


@pytest.mark.parametrize("make", KEPT.values(), ids=KEPT)
def test_what_cannot_be_shuffled_stays_as_it_is(make: Callable[[], torch.Tensor]) -> None:
    tensor = make()
    assert drawn(tensor) is tensor


def test_a_workload_that_can_reseed_draws_its_own() -> None:
    def reseed(seed: int) -> tuple[Example, ...]:
        return (Example((torch.full((1,), seed),)),)

    found = draws(Workload(abs, reseed(0), reseed=reseed), 2)
    assert [example.args[0].item() for example in found] == [0, 1001, 1002]
