"""Nested containers: tensors are found, mapped and copied wherever they lie, and the rest stays as it is."""

from __future__ import annotations

import functools
from collections import OrderedDict, UserDict, namedtuple
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
import torch

from torchwise.records import Outcome
from torchwise.verify import Subject, verify
from torchwise.workload import Example, Workload, pytree

Pair = namedtuple("Pair", "first second")


@dataclass
class Output:
    logits: torch.Tensor
    hidden: list[torch.Tensor] = field(default_factory=list)
    label: str = "none"


@dataclass(frozen=True)
class Outer:
    inner: Output
    count: int = 0
    derived: int = field(init=False, default=0)


def t(value: float) -> torch.Tensor:
    return torch.full((2,), value)


def a_tree() -> dict[str, object]:
    return {
        "list": [t(1), 5],
        "tuple": (t(2), None),
        "pair": Pair(t(3), "text"),
        "ordered": OrderedDict(k=t(4)),
        "outer": Outer(Output(t(5), [t(6), t(7)], "cat"), 9),
    }


def test_every_tensor_is_found_in_order() -> None:
    assert [tensor[0].item() for tensor in pytree.tensors(a_tree())] == [1, 2, 3, 4, 5, 6, 7]


@pytest.mark.parametrize("odd", [None, Pair(t(1), t(2)), OrderedDict(b=t(3), a=t(4)), Output(t(5), [t(6)]), {1, 2}])
def test_the_short_cut_finds_what_the_long_way_finds(odd: object) -> None:
    weight = torch.nn.Parameter(torch.ones(1))
    tree = {"b": [torch.ones(6), (1, "x", weight)], "a": (torch.ones(7), [], {}, {"odd": odd}), "c": {1: torch.ones(8)}}
    found, leaves = pytree.tensors(tree), [leaf for _, leaf in pytree.list_named_leaves(tree)]
    assert [tensor.shape for tensor in found][:2] == [(6,), (1,)]
    assert list(map(id, found)) == [id(leaf) for leaf in leaves if isinstance(leaf, torch.Tensor)]


def test_every_leaf_has_a_path_that_people_can_read() -> None:
    paths = [path for path, _ in pytree.list_named_leaves(a_tree())]
    assert paths == [
        "['list'][0]",
        "['list'][1]",
        "['tuple'][0]",
        "['tuple'][1]",
        "['pair'].first",
        "['pair'].second",
        "['ordered']['k']",
        "['outer'].inner.logits",
        "['outer'].inner.hidden[0]",
        "['outer'].inner.hidden[1]",
        "['outer'].inner.label",
        "['outer'].count",
        "['outer'].derived",
    ]


@pytest.mark.parametrize(
    ("path", "read"),
    [
        ("['old_dirs'][22]", "old_dirs[22]"),
        ("['step']", "step"),
        ("['momentum']['low'].scale", "momentum.low.scale"),
        ("[0]['two words'][1]", "[0]['two words'][1]"),
        ("", ""),
    ],
)
def test_a_path_is_read_as_one_would_write_it(path: str, read: str) -> None:
    assert pytree.readable(path) == read


def test_a_lone_leaf_has_the_empty_path() -> None:
    assert pytree.list_named_leaves(5) == [("", 5)]
    assert pytree.list_named_leaves(None) == [("", None)]
    assert [path for path, _ in pytree.list_named_leaves(Output(t(1)), "out")] == ["out.logits", "out.label"]


def test_mapping_keeps_containers_and_other_leaves() -> None:
    before = a_tree()
    after = pytree.map_tensors(lambda tensor: tensor * 10, before)
    assert [tensor[0].item() for tensor in pytree.tensors(after)] == [10, 20, 30, 40, 50, 60, 70]
    assert [tensor[0].item() for tensor in pytree.tensors(before)] == [1, 2, 3, 4, 5, 6, 7]
    assert {name: type(value) for name, value in after.items()} == {name: type(v) for name, v in before.items()}
    assert (after["list"][1], after["tuple"][1], after["pair"].second) == (5, None, "text")
    assert (after["outer"].inner.label, after["outer"].count) == ("cat", 9)


def test_mapping_may_return_anything() -> None:
    assert pytree.map_tensors(lambda tensor: tuple(tensor.shape), [t(1), {"a": t(2)}]) == [(2,), {"a": (2,)}]


@dataclass
class Angle:
    radians: torch.Tensor
    turns: torch.Tensor = field(init=False)

    def __post_init__(self) -> None:
        self.radians = torch.deg2rad(self.radians)
        self.turns = t(0)


@dataclass(frozen=True, slots=True)
class Still:
    value: torch.Tensor
    note: str = field(init=False, default="as made")


def test_a_dataclass_is_copied_as_it_is_and_not_made_anew() -> None:
    angle = Angle(t(180))
    angle.turns += 3
    doubled = pytree.map_tensors(lambda tensor: tensor * 2, angle)
    assert torch.equal(doubled.radians, angle.radians * 2)
    assert torch.equal(doubled.turns, t(6))
    assert torch.equal(angle.turns, t(3))
    negative = pytree.map_tensors(torch.neg, Still(t(1)))
    assert (negative.value[0].item(), negative.note) == (-1, "as made")


@dataclass
class Tokens:
    ids: torch.Tensor

    @functools.cached_property
    def mask(self) -> torch.Tensor:
        return self.ids != 0


def test_a_copy_computes_a_cached_property_from_its_own_values() -> None:
    tokens = Tokens(torch.tensor([1, 0, 2, 0]))
    assert tokens.mask.tolist() == [True, False, True, False]
    first, second = (pytree.map_tensors(lambda t, number=number: t.chunk(2)[number], tokens) for number in (0, 1))
    assert (first.mask.tolist(), second.ids.tolist()) == ([True, False], [2, 0])
    assert "mask" in vars(tokens)


def test_what_is_walked_here_has_its_place_in_the_form() -> None:
    pair, items = Still(t(1)), UserDict(a=t(1))
    assert pytree.form((pair, items)) != pytree.form((items, pair))


def test_a_class_that_is_a_dataclass_is_a_leaf() -> None:
    assert pytree.map_tensors(lambda tensor: tensor, [Output]) == [Output]


def test_a_tensor_that_stands_twice_is_listed_twice() -> None:
    tensor = t(1)
    assert pytree.tensors([tensor, {"again": tensor}]) == [tensor, tensor]


def test_a_clone_shares_nothing() -> None:
    before = a_tree()
    for tensor in pytree.tensors(pytree.clone(before)):
        tensor.zero_()
    assert [tensor[0].item() for tensor in pytree.tensors(before)] == [1, 2, 3, 4, 5, 6, 7]


@pytest.mark.parametrize("needs", [True, False])
def test_a_clone_is_a_leaf_with_the_same_need_of_a_gradient(needs: bool) -> None:
    original = torch.ones(2, requires_grad=needs) * 1
    copy = pytree.clone(original)
    assert copy.is_leaf
    assert copy.requires_grad is needs


@pytest.mark.parametrize(
    "tensor",
    [
        torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
        torch.randn(4, 6).t(),
        torch.randn(2, 3, 4).permute(2, 0, 1),
        torch.randn(3, dtype=torch.complex64),
        torch.arange(4),
    ],
    ids=["channels_last", "transposed", "permuted", "complex", "integers"],
)
def test_a_clone_keeps_strides_dtype_and_values(tensor: torch.Tensor) -> None:
    copy = pytree.clone(tensor)
    assert copy.stride() == tensor.stride()
    assert copy.dtype == tensor.dtype
    assert torch.equal(copy, tensor)


GAPS = {
    "every second": lambda: torch.randn(4, 8)[:, ::2],
    "expanded": lambda: torch.randn(3).expand(2, 3),
    "expanded inside": lambda: torch.randn(2, 1, 3).expand(2, 4, 3),
    "expanded with gaps": lambda: torch.randn(4, 1, 6)[::2, :, ::3].expand(2, 5, 2),
    "expanded to nothing": lambda: torch.randn(1, 3).expand(0, 3),
    "windows": lambda: torch.randn(8).unfold(0, 3, 1),
    "scalar, expanded": lambda: torch.tensor(2.0).expand(3),
    "float8": lambda: torch.randn(4, 8).to(torch.float8_e4m3fn)[:, ::2],
}


@pytest.mark.parametrize("make", GAPS.values(), ids=GAPS)
def test_a_clone_keeps_strides_with_gaps(make: Callable[[], torch.Tensor]) -> None:
    tensor = make()
    copied = pytree.clone(tensor)
    assert copied.stride() == tensor.stride()
    assert pytree.equal(copied, tensor)
    assert tensor.numel() == 0 or copied.data_ptr() != tensor.data_ptr()


@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr])
def test_a_clone_keeps_other_layouts(layout: torch.layout) -> None:
    tensor = torch.eye(3).to_sparse(layout=layout)
    assert pytree.clone(tensor).layout is layout
    assert pytree.equal(pytree.clone(tensor), tensor)


@pytest.mark.parametrize("make", GAPS.values(), ids=GAPS)
def test_every_clone_can_be_written(make: Callable[[], torch.Tensor]) -> None:
    tensor = make()
    copied = pytree.clone(tensor)
    pytree.write(copied, torch.zeros_like(tensor))
    pytree.write(copied, tensor)
    assert copied.stride() == tensor.stride()
    assert pytree.equal(copied, tensor)


NAN = float("nan")


@pytest.mark.parametrize(
    "tensor",
    [
        torch.tensor([1.0, NAN]),
        torch.tensor([1.0, NAN], dtype=torch.float16),
        torch.tensor([complex(NAN, 1), 2j]),
        torch.tensor([complex(NAN, 1), 2j]).conj(),
        torch.tensor([1.0, NAN]).to_sparse(),
        torch.tensor([[1.0, NAN]]).to_sparse_csr(),
        torch.tensor([1.0, NAN]).to(torch.float8_e5m2),
        torch.tensor([True, False]),
        torch.tensor([1, 2], dtype=torch.uint16),
        torch.empty(0),
        torch.tensor(1.0).expand(3),
        torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
    ],
)
def test_a_tensor_equals_its_clone(tensor: torch.Tensor) -> None:
    assert pytree.equal(tensor, pytree.clone(tensor))


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (torch.ones(2), torch.tensor([1.0, 2.0])),
        (torch.ones(2), torch.tensor([1.0, NAN])),
        (torch.tensor([complex(NAN, 1)]), torch.tensor([complex(NAN, 2)])),
        (torch.ones(2), torch.ones(3)),
        (torch.ones(2), torch.ones(2, dtype=torch.float64)),
        (torch.ones(2), torch.ones(2).to_sparse()),
        (torch.ones(2).to_sparse(), torch.eye(2)[0].to_sparse()),
        (torch.ones(2).to(torch.float8_e5m2), torch.zeros(2).to(torch.float8_e5m2)),
        (torch.ones(2, dtype=torch.int8), torch.zeros(2, dtype=torch.int8)),
    ],
)
def test_other_tensors_are_not_equal(a: torch.Tensor, b: torch.Tensor) -> None:
    assert not pytree.equal(a, b)
    assert not pytree.equal(b, a)


class Answer:
    """A class that is registered with pytree in the usual way, which names no parts."""

    def __init__(self, sample: object, extra: object = None) -> None:
        self.sample, self.extra = sample, extra


class Slotted:
    """The same, without attributes by which its parts could be named."""

    __slots__ = ("parts",)

    def __init__(self, *parts: object) -> None:
        self.parts = parts


class Named(Pair):
    """A kind of named tuple, registered by itself."""


@dataclass
class Record(OrderedDict):  # type: ignore[type-arg]
    """A dict with attributes, as the outputs of diffusers are."""

    sample: object = None

    def __post_init__(self) -> None:
        self["sample"] = self.sample


register = torch.utils._pytree.register_pytree_node
register(Answer, lambda a: ([a.sample, a.extra], None), lambda parts, _: Answer(*parts))
register(Slotted, lambda s: (list(s.parts), None), lambda parts, _: Slotted(*parts))
register(Named, lambda n: (list(n), None), lambda parts, _: Named(*parts))
register(Record, lambda r: (list(r.values()), list(r)), lambda parts, _: Record(*parts))

KEYLESS = {
    "answer": (Answer(t(1), [t(2)]), [".sample", ".extra[0]"]),
    "twice": (Answer(*(t(1),) * 2), [".extra", "[1]"]),
    "slotted": (Slotted(t(1), {"a": t(2)}), ["[0]", "[1]['a']"]),
    "named tuple": (Named(t(1), t(2)), [".first", ".second"]),
    "record": (Record(t(1)), [".sample"]),
    "within others": (Slotted(Answer(t(1)), Output(t(2))), ["[0].sample", "[0].extra", "[1].logits", "[1].label"]),
}


@pytest.mark.parametrize(("tree", "names"), KEYLESS.values(), ids=KEYLESS)
def test_a_class_registered_without_keys_is_looked_into(tree: object, names: list[str]) -> None:
    assert [name for name, _ in pytree.list_named_leaves({"a": [tree], "b": 1}, "output")] == [
        *(f"output['a'][0]{name}" for name in names),
        "output['b']",
    ]
    found = [leaf for _, leaf in pytree.list_named_leaves(tree) if isinstance(leaf, torch.Tensor)]
    assert [one is other for one, other in zip(found, pytree.tensors((tree,)), strict=True)] == [True] * len(found)
    assert type(pytree.clone(tree)) is type(tree)


def test_a_wrong_answer_in_such_a_class_is_seen() -> None:
    def model(x: torch.Tensor) -> Answer:
        return Answer(x.sin())

    workload = Workload(model, (Example((torch.randn(8),)),))
    assert verify(Subject(workload, model, model)).outcome is Outcome.PASS
    verdict = verify(Subject(workload, lambda x: Answer(x.sin() * 1.01), model))
    assert verdict.outcome is Outcome.FAIL
    assert "output.sample" in verdict.reason
