"""The identity of workloads: changes that give another one, and changes that never do."""

from __future__ import annotations

import copy
import enum
import functools
import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from torchwise.workload import Example, Workload
from torchwise.workload.identity import describe_example, identity, structure

NET = """
import torch
class Net(torch.nn.Module):
    def __init__(self, width=4):
        super().__init__()
        self.first = torch.nn.Linear(width, 3)
        self.norm = torch.nn.BatchNorm1d(3)
    def forward(self, x):
        return self.norm(self.first(x)).relu()
def function(x):
    return x.sin()
class Callable_:
    def __call__(self, x):
        return x.sin()
"""


@pytest.fixture
def code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], ModuleType]:
    """Import a version of the user's module: the same name each time, from another file."""
    versions = iter(range(100))

    def code(text: str) -> ModuleType:
        path = tmp_path / f"v{next(versions)}" / "user_net.py"
        path.parent.mkdir()
        path.write_text(text)
        spec = importlib.util.spec_from_file_location("user_net", path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, "user_net", module)  # `inspect` finds a class's file by its module's name
        spec.loader.exec_module(module)
        return module

    return code


@pytest.fixture
def net(code: Callable[[str], ModuleType]) -> torch.nn.Module:
    return code(NET).Net().eval()


def compute_identity(
    call: Any, *args: Any, mode: str = "inference", weight: float = 1.0, name: str = "model", **kwargs: Any
) -> str:
    return identity(Workload(call, (Example(args or (torch.ones(2, 4),), kwargs, weight),), name=name), mode)


# ---- changes that keep it


def test_it_is_16_hex_digits(net) -> None:
    assert re.fullmatch("[0-9a-f]{16}", compute_identity(net))
    assert re.fullmatch("[0-9a-f]{16}", structure(net))


def test_values_of_weights_and_inputs_never_enter(net) -> None:
    other = copy.deepcopy(net)
    with torch.no_grad():
        for tensor in [*other.parameters(), *other.buffers()]:
            tensor.zero_()
    assert compute_identity(net, torch.ones(2, 4)) == compute_identity(other, torch.zeros(2, 4))
    assert structure(net) == structure(other)


def test_the_name_of_the_workload_never_enters(net) -> None:
    assert compute_identity(net, name="a") == compute_identity(net, name="b")


def test_whether_gradients_are_wanted_never_enters(net) -> None:
    assert compute_identity(net) == compute_identity(copy.deepcopy(net).requires_grad_(False))


def test_it_is_the_same_in_another_process(tmp_path: Path) -> None:
    (tmp_path / "user_net_again.py").write_text(NET)
    script = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        "import torch, user_net_again as m\n"
        "from torchwise.workload.identity import structure\n"
        "class Typed(torch.nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "    def forward(self, x):\n"
        "        return x if x in {'a', 'b', 'c', 'd'} else (lambda y: y)(x)\n"
        "typed = Typed(), lambda x: x in {'a', 'b', 'c'}\n"
        "print(*map(structure, (m.Net(), m.function, m.Callable_(), *typed)))\n"
        "print({'a', 'b', 'c'}, {'a', 'b', 'c', 'd'}, sep='\\n', file=sys.stderr)\n"
    )
    first, second = (
        subprocess.run(
            [sys.executable, "-c", script],
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
            env={**os.environ, "PYTHONHASHSEED": seed},
        )
        for seed in "12"
    )
    for one, other in zip(first.stderr.splitlines()[-2:], second.stderr.splitlines()[-2:], strict=True):
        assert one != other, "sets of texts are in another order there"
    assert first.stdout == second.stdout
    assert len(set(first.stdout.split())) == 5


# ---- changes that always give another


def test_the_mode(net) -> None:
    assert compute_identity(net, mode="inference") != compute_identity(net, mode="training")


@pytest.mark.parametrize(
    "other",
    [
        torch.ones(3, 4),
        torch.ones(2, 4, dtype=torch.float64),
        torch.ones(4, 2).t(),
        torch.ones(2, 4).to_sparse(),
        [torch.ones(2, 4)],
        None,
    ],
    ids=["shape", "dtype", "strides", "layout", "nesting", "no tensor"],
)
def test_the_inputs(net, other: Any) -> None:
    assert compute_identity(net, other) != compute_identity(net, torch.ones(2, 4))


@pytest.mark.parametrize("value", [4, 3.5, "max", True, None, b"x", 2j])
def test_plain_input_values(net, value: object) -> None:
    assert compute_identity(net, torch.ones(2, 4), value) != compute_identity(net, torch.ones(2, 4), 3)


def test_the_names_of_keywords_and_the_mix(net) -> None:
    x = torch.ones(2, 4)
    assert compute_identity(net, x, mask=x) != compute_identity(net, x, other=x)
    assert compute_identity(net, weight=2.0) != compute_identity(net, weight=1.0)
    one, two = Example((x,)), Example((torch.ones(5, 4),))
    assert identity(Workload(net, (one, two)), "inference") != identity(Workload(net, (one,)), "inference")


def test_the_structure_ignores_inputs_and_holds_for_the_model(net, code) -> None:
    assert structure(net) == structure(copy.deepcopy(net))
    assert structure(net) != structure(code(NET).Net(width=5).eval())


def test_training_mode_of_any_part(net) -> None:
    other = copy.deepcopy(net)
    other.norm.train()
    assert structure(other) != structure(net)


def test_dtype_of_the_weights(net) -> None:
    assert structure(copy.deepcopy(net).to(torch.bfloat16)) != structure(net)


def test_a_buffer_more(net) -> None:
    other = copy.deepcopy(net)
    other.register_buffer("extra", torch.ones(1))
    assert structure(other) != structure(net)


def test_a_submodule_replaced(net) -> None:
    other = copy.deepcopy(net)
    other.norm = torch.nn.BatchNorm1d(3, eps=1e-3).eval()
    assert structure(other) != structure(net)


@pytest.mark.parametrize("thing", ["Net", "Callable_"])
def test_an_edit_of_a_class(code, thing: str) -> None:
    before = structure(getattr(code(NET), thing)())
    assert structure(getattr(code(NET), thing)()) == before
    assert structure(getattr(code(NET.replace("relu", "tanh").replace("sin", "cos")), thing)()) != before


@pytest.mark.parametrize("name", ["forward", "__call__"])
def test_a_method_put_in_a_class(code, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = code(NET).Net()
    written = structure(model)
    with monkeypatch.context() as patch:
        patch.setattr(type(model), name, lambda self, x: x, raising=False)
        assert structure(model) != written
    assert structure(model) == written


def test_an_edit_of_a_function(code) -> None:
    before = structure(code(NET).function)
    assert structure(code(NET).function) == before
    assert structure(code(NET.replace("sin", "cos")).function) != before


def test_an_edit_of_a_submodules_class(code) -> None:
    def outer(text: str) -> str:
        return structure(torch.nn.Sequential(code(text).Net()))

    assert outer(NET) != outer(NET.replace("relu", "tanh"))


def test_an_edit_of_the_static_form_that_a_model_declares(code) -> None:
    form = """
class Masked(torch.nn.Module):
    def __init__(self, of):
        super().__init__()
        self.of = of
    def forward(self, x):
        return self.of(x).relu()
class Dynamic(torch.nn.Linear):
    def static_form(self):
        return Masked(self)
class Broken(torch.nn.Linear):
    def static_form(self):
        raise RuntimeError("not now")
"""
    torch.manual_seed(0)
    before = structure(code(NET + form).Dynamic(2, 2))
    assert structure(code(NET + form).Dynamic(2, 2)) == before
    assert structure(code(NET + form.replace("self.of(x).relu", "self.of(x).tanh")).Dynamic(2, 2)) != before
    assert structure(code(NET + form).Broken(2, 2)) != before


def test_a_static_form_that_declares_another_each_time_has_an_end(code) -> None:
    form = """
class Dynamic(torch.nn.Module):
    def static_form(self):
        return Masked()
class Masked(Dynamic):
    def forward(self, x):
        return x.relu()
"""
    before = structure(code(NET + form).Dynamic())
    assert structure(code(NET + form).Dynamic()) == before
    assert structure(code(NET + form.replace("x.relu", "x.tanh")).Dynamic()) != before


def test_a_static_form_of_a_function_counts(code) -> None:
    def with_form(form: Any) -> Any:
        function = code(NET).function
        function.static_form = lambda: form
        return structure(function)

    assert with_form(torch.sin) != structure(code(NET).function)
    assert with_form(torch.sin) != with_form(torch.cos)


def test_an_edit_elsewhere_in_the_file_does_not(code) -> None:
    before = structure(code(NET).function)
    assert structure(code(NET.replace("relu", "tanh") + "\nelse_ = 1\n").function) == before


def test_a_partial_is_its_function_and_the_names_it_binds(code) -> None:
    function = code(NET).function
    assert structure(functools.partial(function)) == structure(functools.partial(function))
    assert structure(functools.partial(function, scale=1)) != structure(functools.partial(function))


# ---- how inputs are described


def test_inputs_are_described_in_a_line() -> None:
    example = Example(({"ids": torch.zeros(2, 3, dtype=torch.int64).t()}, [4, None]), {"mask": "causal", "how": len})
    assert describe_example(example) == (
        "[0][0]['ids'] int64[3, 2] (1, 3); [0][1][0] 4; [0][1][1] None; "
        "[1]['how'] builtin_function_or_method; [1]['mask'] 'causal'"
    )


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


@pytest.mark.parametrize(
    ("one", "two"),
    [(torch.float32, torch.float64), (torch.device("cpu"), torch.device("meta")), (Colour.RED, Colour.BLUE)],
)
def test_dtypes_devices_and_enums_enter_by_value(net, one: object, two: object) -> None:
    assert compute_identity(net, torch.ones(2, 4), one) != compute_identity(net, torch.ones(2, 4), two)
    assert compute_identity(net, torch.ones(2, 4), one) == compute_identity(net, torch.ones(2, 4), one)


def test_the_order_of_keywords_never_enters(net) -> None:
    x, y = torch.ones(2, 4), torch.ones(3)
    assert compute_identity(net, x, a=x, b=y) == compute_identity(net, x, b=y, a=x)


def test_a_structure_taken_elsewhere_replaces_the_callables(net) -> None:
    workload = Workload(net, (Example((torch.ones(2, 4),)),))
    assert identity(workload, "inference", structure(net)) == identity(workload, "inference")
    assert identity(workload, "inference", "elsewhere") != identity(workload, "inference")


# ---- code without a source file, and objects attached to code


def define_at_prompt(text: str) -> Any:
    """Return the function `f` as if typed at a prompt: without a source file."""
    names: dict[str, Any] = {}
    exec(text, names)
    return names["f"]


def test_a_constant_of_a_typed_function_enters() -> None:
    assert structure(define_at_prompt("def f(x): return x + 1")) != structure(
        define_at_prompt("def f(x): return x + 2")
    )


def test_the_names_that_a_typed_function_uses_enter() -> None:
    assert structure(define_at_prompt("def f(x): return x.sin()")) != structure(
        define_at_prompt("def f(x): return x.cos()")
    )


def test_a_typed_function_with_one_inside_is_the_same_each_time() -> None:
    text = "def f(x): return (lambda y: y)(x)"
    assert structure(define_at_prompt(text)) == structure(define_at_prompt(text))


def test_built_in_functions_are_told_apart() -> None:
    assert structure(torch.sin) != structure(torch.cos)


def test_an_edit_of_a_base_class(code) -> None:
    text = NET + "\nclass Child(Net):\n    pass\n"
    assert structure(code(text).Child()) != structure(code(text.replace("relu", "tanh")).Child())


def test_a_weight_is_a_number_however_it_is_written(net) -> None:
    assert compute_identity(net, weight=1) == compute_identity(net, weight=1.0)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("x.sin()", "x.cos()"),
        ("x + 1", "x + 2"),
        ("(lambda y: y + 1)(x)", "(lambda y: y + 2)(x)"),
        ("type(self).helper(x)", "type(self).helper2(x)"),
    ],
)
@pytest.mark.parametrize("kind", ["", "@staticmethod", "@property", "@classmethod"])
def test_a_typed_class_enters_by_its_functions(before: str, after: str, kind: str) -> None:
    def make_instance(body: str) -> Any:
        names: dict[str, Any] = {}
        exec(f"class C:\n    {kind}\n    def helped(self, x=0): return {body}\n    def __call__(self): ...", names)
        return names["C"]()

    assert structure(make_instance(before)) != structure(make_instance(after))
    assert structure(make_instance(before)) == structure(make_instance(before))


def test_copying_leaves_no_trace() -> None:
    names: dict[str, Any] = {}
    exec("class Callable_:\n    def __call__(self, x): return x.tan()", names)
    thing = names["Callable_"]()
    before = structure(thing)
    copy.deepcopy(thing)
    assert "__slotnames__" in vars(names["Callable_"])  # a leftover of copying on the class
    assert structure(thing) == before


def test_a_class_is_not_taken_for_its_namesake_in_another_main(code) -> None:
    stranger = code(NET).Callable_
    sent: dict[str, Any] = {"__name__": "user_net"}  # as cloudpickle rebuilds a class: no file of its own
    exec("class Callable_:\n    def __call__(self, x): return x.tan()", sent)
    other = dict(sent)
    exec("class Callable_:\n    def __call__(self, x): return x.exp()", other)
    assert len({structure(stranger()), structure(sent["Callable_"]()), structure(other["Callable_"]())}) == 3


def make_closure(value: object) -> Callable[..., object]:
    return lambda x: (x, value)


def sine(x: torch.Tensor) -> torch.Tensor:
    return x.sin()


def cosine(x: torch.Tensor) -> torch.Tensor:
    return x.cos()


@pytest.mark.parametrize(
    ("one", "two"),
    [
        (1, 2),
        (1, 1.0),
        ("a", "b"),
        ((1, ("a",)), (1, ("b",))),
        (sine, cosine),
        (torch.sin, torch.cos),
        (functools.cache(sine), functools.cache(cosine)),
        (torch.nn.Linear(2, 2), torch.nn.Linear(2, 3)),
        (torch.ones(2), torch.ones(3)),
        (torch.float32, torch.float16),
        ([1], {1: 2}),
    ],
)
@pytest.mark.parametrize(
    "bind", [make_closure, lambda v: functools.partial(max, v), lambda v: functools.partial(max, key=v)]
)
def test_what_code_closes_over_or_binds_enters(bind: Callable[[object], Any], one: object, two: object) -> None:
    assert structure(bind(one)) != structure(bind(two))
    assert structure(bind(one)) == structure(bind(one))


@pytest.mark.parametrize(("one", "two"), [(torch.zeros(2), torch.ones(2)), ([1], [2]), (object(), object())])
def test_values_of_tensors_and_opaque_objects_do_not(one: object, two: object) -> None:
    assert structure(make_closure(one)) == structure(make_closure(two))


def test_the_order_in_which_a_partial_binds_does_not() -> None:
    assert structure(functools.partial(sine, a=1, b=2)) == structure(functools.partial(sine, b=2, a=1))


def test_a_bound_method_enters_with_its_object(net) -> None:
    other = torch.nn.Sequential(torch.nn.Linear(4, 5))
    assert structure(torch.nn.Sequential(net).forward) != structure(other.forward)
    assert structure(net.forward) == structure(copy.deepcopy(net).forward)
    assert structure(torch.ones(2).register_hook) == structure(torch.zeros(2).register_hook)


@pytest.mark.parametrize("value", [2, 1.5, "same", None, True, (1, 2), torch.cos])
def test_plain_attributes_of_any_part_enter(net, value: object) -> None:
    outer, other = torch.nn.Sequential(net), torch.nn.Sequential(copy.deepcopy(net))
    outer[0].setting, other[0].setting = 1, value
    assert structure(outer) != structure(other)


def test_what_changes_from_call_to_call_does_not() -> None:
    net = torch.nn.Linear(2, 2)
    before = structure(net)
    net.seen = [1, 2]
    net(torch.ones(1, 2)).sum().backward()
    net.compile(backend="eager")
    assert structure(net) == before


def test_a_lazy_parameter_is_uninitialised() -> None:
    lazy = torch.nn.LazyLinear(3)
    before = structure(lazy)
    lazy(torch.ones(1, 2))
    assert structure(lazy) != before


def test_two_lambdas_on_one_line_are_told_apart() -> None:
    one, two = (lambda x: x + 1), (lambda x: x + 2)
    assert structure(one) != structure(two)


def test_a_cycle_ends() -> None:
    def recursive(x: object) -> object:
        return recursive(x)

    net = torch.nn.Linear(2, 2)
    net.forward = functools.partial(torch.nn.Linear.forward, net)
    assert structure(recursive) == structure(recursive)
    assert structure(net) == structure(net)


def test_a_nested_tensor_is_described() -> None:
    nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
    assert describe_example(Example((nested,))).startswith("[0][0] float32 nested")
