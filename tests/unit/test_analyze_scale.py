"""Batch sizes: which dimension is the batch, which is none, and how inputs of other sizes are made."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from torchwise.diagnose import analyze_worker as steady
from torchwise.diagnose.analyze_worker import find_batch_dim
from torchwise.diagnose.batches import Scaling
from torchwise.errors import UnsupportedError
from torchwise.plan.workload_spec import BatchDim, WorkloadSpec
from torchwise.trial import Job
from torchwise.trial.loading import load
from torchwise.workload import Example, Workload
from torchwise.workload.workload import batch_of, resize_example, scale_batch


def find(call: Any, *inputs: Any, dim: int | None = None) -> BatchDim:
    """Find the batch as a worker does."""
    workload = Workload(call, (Example(inputs),))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(steady, "load", lambda job: workload)
        return find_batch_dim(Scaling(Job("try", WorkloadSpec("m:f")), dim=dim), lambda name: None)


def test_a_job_s_workload_has_the_batch_size_that_the_job_names(tmp_path: Path) -> None:
    file = tmp_path / "model.py"
    file.write_text("import torch\ndef make():\n    return torch.nn.Linear(3, 2), (torch.ones(5, 3),)\n")
    spec = WorkloadSpec(f"{file}:make", device="cpu")
    workload = load(Job("try", spec, batch=BatchDim(0, 7)))
    assert [example.args[0].shape for example in workload.examples] == [(7, 3)]
    assert workload.reseed is None
    assert workload.roofline is None
    with pytest.raises(UnsupportedError, match="has no dimension 2"):
        load(Job("try", spec, batch=BatchDim(2, 7)))


def test_the_first_dimension_that_all_inputs_share_is_the_batch() -> None:
    assert find(torch.nn.Linear(3, 2), torch.ones(5, 3)) == BatchDim(0, 5)
    assert find(lambda a, b, scale: a + b * scale, torch.ones(4, 2), torch.ones(4, 2), torch.tensor(2.0)) == BatchDim(
        0, 4
    )


def test_a_named_dimension_is_believed_and_may_count_from_the_end() -> None:
    assert find(lambda x: x.sum(), torch.ones(3, 7), dim=1) == BatchDim(1, 7)
    assert find(lambda x: x, torch.ones(3, 7), dim=-1) == BatchDim(-1, 7)


@pytest.mark.parametrize(
    ("call", "inputs", "dim", "message"),
    [
        (lambda x: x.sum(), (torch.ones(3, 7),), None, "no output grows with dimension 0"),
        (lambda x: x @ torch.ones(3, 2), (torch.ones(2, 3),), 5, "has no dimension 5: name another"),
        (torch.matmul, (torch.ones(2, 3), torch.ones(3, 4)), None, r"differ in dimension 0 \(sizes 2, 3\)"),
        (lambda x: torch.ones(3, 3) @ x, (torch.ones(3, 4),), None, "raises RuntimeError on 4 items instead of 3 "),
        (lambda n: n, (3,), None, "the inputs hold no tensor with a dimension"),
        (lambda x: x, (torch.ones(0, 2),), None, "dimension 0 of the inputs is empty"),
    ],
)
def test_what_cannot_be_scaled_is_said(call: Any, inputs: Any, dim: int | None, message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        find(call, *inputs, dim=dim)


def test_items_are_repeated_or_left_out_and_stay_what_they_were() -> None:
    example = Example((torch.tensor([[1, 2], [3, 4], [5, 6]]),), {"scale": torch.tensor(2.0), "n": 3}, 0.7)
    larger, smaller = resize_example(example, 0, 5), resize_example(example, 0, 1)
    assert larger.args[0].tolist() == [[1, 2], [3, 4], [5, 6], [1, 2], [3, 4]]
    assert smaller.args[0].tolist() == [[1, 2]]
    assert larger.args[0].dtype == torch.int64
    assert (larger.kwargs["scale"].item(), larger.kwargs["n"], larger.weight) == (2.0, 3, 0.7)
    assert resize_example(example, 1, 3).args[0].tolist() == [[1, 2, 1], [3, 4, 3], [5, 6, 5]]
    wants = Example((torch.ones(2, requires_grad=True),))
    assert resize_example(wants, 0, 4).args[0].requires_grad


def test_only_tensors_with_a_dimension_count() -> None:
    assert batch_of(Example(({"x": [torch.ones(6, 1)]}, torch.tensor(1.0), "mode")), None) == BatchDim(0, 6)


def test_memory_counts_shared_weights_once_and_the_largest_example() -> None:
    layer = torch.nn.Linear(4, 4, bias=False)
    model = torch.nn.Sequential(layer, layer, torch.nn.BatchNorm1d(4))
    held = steady._static_memory(Workload(model, (Example((torch.ones(2, 4),)), Example((torch.ones(8, 4),)))))
    batch_norm = 4 * (4 + 4 + 4 + 4) + 8
    assert (held.model, held.inputs) == (4 * 16 + batch_norm, 8 * 16)


def test_single_calls_are_timed_in_turns_as_many_of_each() -> None:
    order: list[str] = []
    sides = (lambda: order.append("plan"), lambda: order.append("eager"))
    plan, eager = steady._time_alternately(*sides, "cpu", 0.0)
    assert len(plan.calls_s) == len(eager.calls_s) == steady.MIN_TURNS * steady.CALLS_PER_TURN
    turn = steady.CALLS_PER_TURN
    assert order[2:] == (["plan"] * turn + ["eager"] * turn) * steady.MIN_TURNS


def test_a_workload_at_another_batch_size_has_its_first_example_alone() -> None:
    examples = (Example((torch.ones(2, 3),)), Example((torch.ones(7, 3),)))
    scaled = scale_batch(Workload(torch.sin, examples, reseed=lambda seed: examples), BatchDim(0, 4))
    assert [example.args[0].shape for example in scaled.examples] == [(4, 3)]
    assert scaled.reseed is None
