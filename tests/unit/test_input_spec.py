"""Inputs as data: every line that a decision stores is read back, and calls are compared by it."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from torchwise.runtime.call_guard import VerifiedInputs
from torchwise.workload import Example
from torchwise.workload.identity import describe_example, specify_inputs
from torchwise.workload.input_spec import InputSpec, LeafSpec, OverlapSpec, TensorSpec, parse_inputs

WHOLE = torch.rand(8, 4)
X = torch.rand(3)


class Colour(enum.Enum):
    RED = "a; b"


class Odd(enum.Enum):
    """Printed with unpaired quotes and brackets, and with what separates inputs."""

    ONE = 1
    TWO = 2

    def __repr__(self) -> str:
        return f"it's; memory: ([{self.name}; x"


@dataclass
class Holder:
    table: torch.Tensor
    note: str


EXAMPLES: dict[str, Example] = {
    "none": Example(()),
    "a tensor": Example((torch.rand(3, 2).t(),)),
    "a number of no dimension": Example((torch.tensor(1.0),)),
    "no rows": Example((torch.rand(0, 3),)),
    "a sparse tensor": Example((torch.eye(3).to_sparse(),)),
    "a nested tensor": Example((torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),)),
    "broadcast": Example((torch.rand(1).expand(4, 5),)),
    "plain values": Example((1, -2.5, 4 + 2j, True, None, ..., b"x; y", float("inf"))),
    "texts": Example(("a; b", "; memory: [0][1] is [0][0] +4 bytes", "[2, 3] (3, 1)", 'it\'s "quoted" \\', "(", "")),
    "names": Example((), {"mask": WHOLE, "it": {"a; b": 1, "my key's": torch.rand(2), 3: "x"}}),
    "other values": Example((Colour.RED, torch.float32, torch.device("cpu"), len, object(), [1, (2, 3)])),
    "an object": Example((Holder(torch.rand(2, 2), "n; ["),)),
    "shared memory": Example((WHOLE[:4],), {"b": WHOLE[2:], "c": WHOLE}),
    "shared memory under odd names": Example((WHOLE, {"is; it, ": WHOLE[1:]})),
}


@pytest.mark.parametrize("kind", EXAMPLES)
def test_a_line_is_read_as_it_was_written(kind: str) -> None:
    spec = specify_inputs(EXAMPLES[kind])
    assert str(spec) == describe_example(EXAMPLES[kind])
    assert parse_inputs(str(spec)) == spec


def test_lines_of_stored_decisions_are_read() -> None:
    leaves = "[0][0] float32[64, 96] (96, 1); [1]['k'] 'a; b'; [1]['m'] bool[4] torch.sparse_coo"
    line = f"{leaves}; memory: [1]['m'] is [0][0] -8 bytes"
    assert parse_inputs(line) == InputSpec(
        (
            LeafSpec("[0][0]", TensorSpec("float32", (64, 96), (96, 1))),
            LeafSpec("[1]['k']", "'a; b'"),
            LeafSpec("[1]['m']", TensorSpec("bool", (4,), None, "torch.sparse_coo")),
        ),
        (OverlapSpec("[1]['m']", "[0][0]", -8),),
    )
    assert str(parse_inputs(line)) == line


@pytest.mark.parametrize(
    ("value", "is_regular"), [(1.5, True), ("it's ; [", True), (X, True), (Odd.ONE, False), (Colour.RED, True)]
)
def test_a_printed_form_that_leaves_quotes_open_is_irregular(value: Any, is_regular: bool) -> None:
    assert specify_inputs(Example((value,))).is_regular is is_regular


@pytest.mark.parametrize("line", ["", "x", "[0][0] ", "; ;", "memory: nothing known", "[0][0] float32[", "'", "a]; b"])
def test_a_line_of_no_known_form_is_read_without_an_error_and_equals_itself(line: str) -> None:
    assert parse_inputs(line) == parse_inputs(line)
    assert VerifiedInputs([line], dynamic=False).cover(parse_inputs(line))


def cover(example: Example, other: Example, *, dynamic: bool = False) -> bool:
    verified = VerifiedInputs([describe_example(example)], dynamic=dynamic)
    assert verified.cover(specify_inputs(example)), "as it came"
    return verified.cover(specify_inputs(other))


@pytest.mark.parametrize("kind", EXAMPLES)
def test_inputs_cover_themselves_and_no_others(kind: str) -> None:
    for other, example in EXAMPLES.items():
        assert cover(EXAMPLES[kind], example) is (other == kind)


@pytest.mark.parametrize(
    ("one", "other", "static", "dynamic"),
    [
        ((torch.rand(3, 2),), (torch.rand(5, 2),), False, True),
        ((torch.rand(3, 2),), (torch.rand(2, 3).t(),), False, True),
        ((torch.rand(3, 2),), (torch.rand(3),), False, False),
        ((torch.rand(3, 2),), (torch.rand(3, 2).double(),), False, False),
        ((torch.rand(3, 2),), (torch.rand(3, 2).to_sparse(),), False, False),
        ((WHOLE, 2), (WHOLE, 3), False, False),
        (("beam 1, 2",), ("beam 7, 9",), False, False),
        (({1: WHOLE},), ({2: WHOLE},), False, False),
        (([WHOLE, WHOLE.clone()],), ([WHOLE],), False, False),
        ((Odd.ONE,), (Odd.ONE,), True, True),
        ((Odd.ONE,), (Odd.TWO,), False, False),
    ],
)
def test_sizes_alone_may_differ_for_a_dynamic_plan(one: Any, other: Any, static: bool, dynamic: bool) -> None:
    assert cover(Example(one), Example(other)) is static
    assert cover(Example(one), Example(other), dynamic=True) is dynamic


def test_shared_memory_counts_apart_from_the_form() -> None:
    verified = VerifiedInputs([describe_example(Example((WHOLE[:4], WHOLE[2:6])))], dynamic=False)
    same, apart = (specify_inputs(Example(args)) for args in ((WHOLE[1:5], WHOLE[3:7]), (WHOLE[:4], WHOLE[4:])))
    elsewhere = specify_inputs(Example((WHOLE[:4], WHOLE[1:5])))
    assert [verified.cover(spec) for spec in (same, apart, elsewhere)] == [True, True, True]
    assert [verified.cover_memory(spec) for spec in (same, apart, elsewhere)] == [True, False, False]
