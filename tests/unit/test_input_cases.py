"""Descriptions of inputs, the cases drawn from them, and the search for the smallest one."""

from __future__ import annotations

import pytest
import torch

from torchwise.errors import InputError
from torchwise.records import Check, CheckName, Outcome
from torchwise.verify.input_cases import Case, cases_of_description, describe_inputs, draw_large
from torchwise.verify.input_description import InputDescription, PlainInput, TensorInput
from torchwise.verify.other_values import list_near
from torchwise.verify.shrink import Shrinker
from torchwise.workload import Example


def cases(*lines: str, seed: int = 3) -> dict[str, Example]:
    return {case.name: case.example for case in cases_of_description(InputDescription.parse(lines), seed)}


def first(*lines: str) -> torch.Tensor:
    found: torch.Tensor = cases(*lines)["usual sizes"].args[0]
    return found


def test_a_description_is_read() -> None:
    found = InputDescription.parse(["x: float32[n, 64] n=1..4096 in -1..1 sorted", "p: 0.5"])
    assert found.inputs == (TensorInput("x", "float32", ("n", 64), -1.0, 1.0, "sorted"), PlainInput("p", 0.5))
    assert found.sizes == {"n": (1, 4096)}


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([], "no input is described"),
        (["x: float32[n+1]"], "must be a whole number or a name"),
        (["x: float32[n] n=4..2"], "ends before it begins"),
        (["x: float32[n] n=1..2", "y: float32[n] n=1..3"], "two ranges"),
        (["x: float32[4] n=1..3"], "no input has a dimension of that name"),
        (["x: float32[n] in 1..0"], "from low to high"),
        (["x: float32[n] sortd"], "sorted"),
        (["x: float32[n, m] symmetric"], "must be the same"),
        (["x: int64[n, n] positive-definite"], "holds no fractions"),
        (["x: float32[]  sorted"], "has no dimension"),
        (["x: float32[n]", "x: float32[n]"], "two inputs are called"),
        (["p: half"], "is no tensor and no value"),
    ],
)
def test_a_wrong_description_is_refused(lines: list[str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        InputDescription.parse(lines)


def test_sizes_reach_zero_one_odd_and_prime_ones_and_both_ends() -> None:
    sizes = {example.args[0].shape[0] for example in cases("x: float32[n] n=0..100").values()}
    assert {0, 1, 3, 7, 31, 33, 64, 97, 100} <= sizes
    assert max(sizes) == 100


def test_sizes_of_large_tensors_are_tried_as_far_as_the_usual_ones() -> None:
    sizes = {example.args[0].shape[0] for example in cases("x: float32[n, 450, 450] n=0..3").values()}
    assert sizes == {0, 1, 2, 3}


def test_structures_hold() -> None:
    rows = first("x: float32[9, 8] sorted")
    assert torch.equal(rows, rows.sort(dim=-1).values)
    assert all(len(set(row.tolist())) == 8 for row in first("x: int64[9, 8] distinct"))
    assert first("m: float32[9, 8] mask").isinf().any()
    assert not first("m: float32[9, 8] mask").isinf().all(dim=-1).any()
    assert torch.allclose(first("x: float64[9, 8] probabilities").sum(dim=-1), torch.ones(9, dtype=torch.float64))
    matrix = first("x: float64[5, 5] positive-definite")
    assert torch.linalg.eigvalsh(matrix).min() > 0.4
    assert torch.equal(first("x: float32[5, 5] lower-triangular"), first("x: float32[5, 5] lower-triangular").tril())


def test_values_stay_in_their_range_and_edges_reach_it() -> None:
    found = cases("x: int64[n] n=1..40 in 2..9", "y: float32[n] in -1..1")
    assert all(int(e.args[0].min()) >= 2 and int(e.args[0].max()) <= 9 for e in found.values())
    assert all(float(e.args[1].abs().max()) <= 1 for e in found.values())
    assert (found["the largest value in x"].args[0] == 9).all()
    assert "NaN in all inputs" not in found


def test_edges_of_values_are_drawn() -> None:
    found = cases("x: float32[n, 8] n=1..20")
    assert found["NaN"].args[0].isnan().any()
    assert found["infinities"].args[0].isneginf().any()
    assert 0 < float(found["denormal numbers"].args[0].abs().max()) < torch.finfo(torch.float32).tiny
    assert float(found["large magnitude"].args[0].abs().max()) > 1e14
    assert (found["zeros"].args[0] == 0).all()


def test_layouts_and_shared_memory_are_drawn() -> None:
    found = cases("x: float32[n, 8] n=1..20", "y: float32[n, 8]")
    assert found["strided inputs"].args[0].stride(-1) == 2
    assert found["transposed inputs"].args[0].stride(0) == 1
    assert found["inputs at an odd offset"].args[0].storage_offset() == 1
    assert found["expanded inputs"].args[0].stride(0) == 0
    assert found["overlapping windows"].args[0].stride() == (1, 1)
    same = found["one tensor as two inputs"].args
    assert same[0] is same[1]


def test_seeds_give_other_values_in_the_same_forms() -> None:
    one, other = (cases("x: float32[n, 8] n=1..20", seed=seed) for seed in (1, 2))
    assert list(one) == list(other)
    assert not torch.equal(one["usual sizes"].args[0], other["usual sizes"].args[0])


def test_near_values_share_the_first_one_and_the_sum() -> None:
    x = torch.randn(3, 4)
    permuted, changed, other, *little = (near.args[0] for near in list_near(Example((x,))))
    assert permuted[0, 0] == x[0, 0]
    assert torch.isclose(permuted.sum(), x.sum(), atol=1e-6)
    assert (permuted != x).any()
    assert int((changed != x).sum()) == int((other != x).sum()) == 1
    assert [torch.allclose(near, x) for near in little] == [True, False]
    assert all(torch.allclose(near, x, rtol=1e-3) and (near != x).any() for near in little)


def test_large_inputs_are_bounded() -> None:
    example = draw_large(InputDescription.parse(["x: float32[n, m] n=1..100000 m=1..100000"]), 1)
    assert 2**20 <= example.args[0].numel() <= 2**22


def test_the_smallest_failing_input_is_found() -> None:
    def judge(case: Case) -> Check:
        x = case.example.args[0]
        fails = x.shape[0] >= 3 and x.shape[1] % 4 == 3 and bool((x > 0).any())
        return Check(CheckName.VALUES, Outcome.FAIL if fails else Outcome.PASS, "")

    shrinker = Shrinker(judge, judge(Case("", Example((torch.randn(16, 15).mT.contiguous().mT.abs(),)))), 20.0)
    found = shrinker.shrink(Case("", Example((torch.randn(16, 15).mT.contiguous().mT.abs(),))))
    assert found.example.args[0].shape == (3, 3)
    assert found.example.args[0].is_contiguous()
    assert int((found.example.args[0] != 0).sum()) in (1, 9)
    assert shrinker.tried <= 200


def test_inputs_are_described_in_a_line() -> None:
    example = Example((torch.zeros(2, 3), torch.zeros(3, 2).mT, 0.5))
    assert describe_inputs(example) == "float32[2, 3], float32[2, 3] with strides (1, 2), 0.5"
