"""Copies of everything that models, steps and inputs hold, even things that `copy.deepcopy` refuses or takes apart."""

from __future__ import annotations

import contextvars
import copy
import threading
import types
import weakref
from collections import namedtuple
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

from torchwise.errors import WorkloadError
from torchwise.verify.deviation import widen_tensor
from torchwise.verify.reference import float64_of
from torchwise.workload import Example, pytree
from torchwise.workload.deep_copy import deep_copy

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*(beta state|prototype stage|deprecated).*"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]

EYE = torch.eye(4)
LAYOUTS: dict[str, Callable[[], torch.Tensor]] = {
    "coo": lambda: EYE.to_sparse(),
    "csr": lambda: EYE.to_sparse_csr(),
    "csc": lambda: EYE.to_sparse_csc(),
    "bsr": lambda: EYE.to_sparse_bsr((2, 2)),
    "bsc": lambda: EYE.to_sparse_bsc((2, 2)),
    "jagged": lambda: torch.nested.nested_tensor([EYE[0], EYE[0, :2]], layout=torch.jagged),
    "nested": lambda: torch.nested.nested_tensor([EYE[0], EYE[0, :2]]),
    "mkldnn": lambda: EYE.to_mkldnn(),
    "expanded": lambda: torch.arange(4.0).expand(3, 4),
    "windows": lambda: torch.arange(10.0).unfold(0, 4, 1),
    "transposed": lambda: torch.arange(12.0).view(3, 4).t(),
    "conjugate": lambda: torch.randn(3, dtype=torch.complex64).conj(),
    "negative": lambda: torch.randn(3, dtype=torch.complex64).conj().imag,
    "empty": lambda: torch.empty(0, 3),
    "a graph's result": lambda: nn.Linear(4, 2)(EYE),
    "a graph's result in CSR": lambda: (EYE.clone().requires_grad_() * 2).to_sparse_csr(),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_tensor_of_any_layout_is_copied_with_its_strides(name: str) -> None:
    tensor = LAYOUTS[name]()
    (copied,) = deep_copy([tensor])
    assert copied is not tensor
    assert copied.grad_fn is None
    if tensor.layout is torch._mkldnn:  # type: ignore[attr-defined]
        tensor, copied = tensor.to_dense(), copied.to_dense()
    assert pytree.equal(copied, tensor)
    if tensor.layout is torch.strided and not tensor.is_nested:
        assert copied.stride() == tensor.stride()


@pytest.mark.parametrize("name", ["coo", "csr", "bsr", "jagged", "nested", "windows", "conjugate", "a graph's result"])
def test_it_can_be_made_another_on_the_way(name: str) -> None:
    tensor = LAYOUTS[name]()
    copied = deep_copy({"x": tensor}, convert=widen_tensor)["x"]
    assert copied.dtype in (torch.float64, torch.complex128)
    assert pytree.equal(copied, widen_tensor(tensor.detach()))


def test_a_quantized_tensor_keeps_its_scale() -> None:
    tensor = torch.quantize_per_tensor(torch.randn(5), 0.1, 3, torch.qint8)
    copied = deep_copy([tensor], convert=widen_tensor)[0]
    assert (copied.q_scale(), copied.q_zero_point()) == (0.1, 3)
    assert torch.equal(copied.int_repr(), tensor.int_repr())


@pytest.mark.parametrize("convert", [None, widen_tensor])
def test_tensors_that_share_memory_share_it_in_the_copy(convert: Any) -> None:
    base = torch.arange(12.0).view(3, 4)
    held = {"base": base, "row": base[1], "turned": base.t(), "weight": nn.Parameter(base[2:])}
    copied = deep_copy(held, convert=convert)
    with torch.no_grad():
        copied["base"][1:] = 7.0
    assert all(bool((copied[name] == 7).any()) for name in held)
    assert copied["weight"].requires_grad
    assert isinstance(copied["weight"], nn.Parameter)
    assert base.max() == 11


def test_so_do_those_of_other_dtypes_and_conjugates() -> None:
    values = torch.randn(3, dtype=torch.complex64)
    held = [values, torch.view_as_real(values), values.view(torch.int64)[1:], values.conj()]
    whole, real, _, conjugate = deep_copy(held)
    whole[0] = 5 + 3j
    assert real[0].tolist() == [5.0, 3.0]
    assert conjugate[0] == 5 - 3j


class Holder(nn.Module):
    """Holds the things that models hold: a tie, results of its last call, and an object without state."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.second.weight = self.first.weight
        self.lock, self.again, self.ready = threading.Lock(), threading.RLock(), threading.Condition()
        self.kept = threading.local()
        self.kept.rows = [torch.ones(2)]
        self.variable = contextvars.ContextVar[int]("variable")
        self.library = types
        self.settings = types.MappingProxyType({"scale": torch.ones(1)})
        self.noise, self.common = torch.Generator().manual_seed(3), torch.default_generator
        self.owner = weakref.ref(self)
        self.answers = [self.first(torch.randn(2, 4))]


def test_what_is_no_state_of_a_model_does_not_stop_a_copy() -> None:
    model = Holder()
    copied = deep_copy(model)
    assert copied.second.weight is copied.first.weight is not model.first.weight
    assert copied.lock is not model.lock
    assert copied.again is not model.again
    assert copied.ready is model.ready
    assert copied.variable is model.variable
    assert copied.library is types
    assert copied.owner() is copied
    assert copied.kept.rows[0] is not model.kept.rows[0]
    assert copied.settings["scale"] is not model.settings["scale"]
    assert torch.equal(copied.answers[0], model.answers[0])
    assert copied.answers[0].grad_fn is None


def test_a_generator_is_copied_with_its_state_and_that_of_torch_is_not() -> None:
    model = Holder()
    torch.rand(5, generator=model.noise)
    copied = deep_copy(model)
    assert torch.equal(torch.rand(3, generator=copied.noise), torch.rand(3, generator=model.noise))
    assert copied.common is torch.default_generator


def test_an_open_file_is_shared(tmp_path: Any) -> None:
    with open(tmp_path / "log", "w") as file:
        assert deep_copy({"log": file})["log"] is file


@pytest.mark.parametrize(
    "norm", [nn.utils.weight_norm, nn.utils.spectral_norm, nn.utils.parametrizations.spectral_norm]
)
def test_a_model_under_weight_or_spectral_norm_is_copied_after_a_call(norm: Any) -> None:
    model = nn.Sequential(norm(nn.Linear(4, 4)), nn.Linear(4, 2)).eval()
    answer = model(EYE)
    assert torch.equal(deep_copy(model)(EYE), answer)
    assert torch.allclose(float64_of(model)(EYE.double()), answer.double(), atol=1e-6)


def test_a_gradient_and_attributes_of_a_tensor_are_kept() -> None:
    tensor = torch.ones(3, requires_grad=True)
    tensor.sum().backward()  # type: ignore[no-untyped-call]
    tensor.notes = [tensor]  # type: ignore[attr-defined]
    copied = deep_copy(tensor)
    assert torch.equal(copied.grad, torch.ones(3))
    assert copied.grad is not tensor.grad
    assert copied.notes[0] is copied


class Marked(nn.Parameter):
    """A parameter of a derived class, as libraries have them."""


def test_a_parameter_stays_of_its_class() -> None:
    module = nn.Module()
    module.weight = Marked(torch.ones(3))
    copied = float64_of(module)
    assert type(copied.weight) is Marked
    assert copied.weight.dtype is torch.float64


def test_a_plain_attribute_of_the_reference_is_in_float64_too() -> None:
    module = nn.Linear(4, 4)
    module.scale = torch.ones(4)
    assert float64_of(module).scale.dtype is torch.float64  # type: ignore[attr-defined]


def test_a_lazy_parameter_stays_lazy() -> None:
    assert nn.parameter.is_lazy(float64_of(nn.LazyLinear(3)).weight)  # type: ignore[attr-defined]


def numbers() -> Iterator[int]:
    yield 1


@pytest.mark.parametrize(
    ("thing", "path"),
    [
        ({"a": [1, {"b": numbers()}]}, r"dict holds an object of type generator as \['a'\]\[1\]\['b'\], which"),
        (nn.Sequential(nn.ReLU(), nn.ReLU()), "Sequential holds an object of type generator as 1.stream, which"),
        (numbers(), "an object of type generator cannot"),
    ],
)
def test_what_cannot_be_copied_is_named_with_the_way_to_it(thing: Any, path: str) -> None:
    if isinstance(thing, nn.Sequential):
        thing[1].stream = numbers()
        thing[1].parent = [thing]
    with pytest.raises(WorkloadError, match=path + r".* cannot pickle 'generator' object"):
        deep_copy(thing)


def test_what_is_its_own_copy_in_the_memo_is_shared() -> None:
    kept, other = torch.ones(2), torch.ones(2)
    memo: dict[int, Any] = {id(kept): kept}
    copied = deep_copy([kept, other], memo)
    assert copied[0] is kept
    assert memo[id(other)] is copied[1] is not other


def test_another_copy_meanwhile_is_not_touched() -> None:
    with pytest.raises(RuntimeError, match="deepcopy protocol"):
        copy.deepcopy(deep_copy(Holder()).first(EYE))


class Cache:
    def __init__(self) -> None:
        self.keys = torch.zeros(3)


Pair = namedtuple("Pair", "x y")


def test_an_example_is_copied_with_objects_and_what_is_the_same_stays_the_same() -> None:
    cache, x = Cache(), torch.randn(4)
    model = nn.Linear(2, 2)
    given = Example((Pair(x, x), x[1:], cache, model), {"x": x}).clone()
    assert given.args[0].x is given.args[0].y is given.kwargs["x"] is not x
    given.args[1].zero_()
    assert given.args[0].x.count_nonzero() == 1
    assert given.args[2].keys is not cache.keys
    assert given.args[3] is model


def test_an_input_that_cannot_be_copied_is_named() -> None:
    with pytest.raises(WorkloadError, match=r"Example holds an object of type generator as kwargs\['rows'\]\[1\]"):
        Example((torch.ones(1),), {"rows": [1, numbers()]}).clone()


def test_a_result_of_a_graph_still_requires_a_gradient_as_an_input() -> None:
    x = torch.randn(3, requires_grad=True) * 2
    given = Example((x,)).clone()
    assert given.args[0].requires_grad
    assert given.args[0].is_leaf
