"""Which kernels of Inductor compute float32 products as three TF32 products, and that they are the ones that ask."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from torchwise._torch import inductor
from torchwise.compile import three_tf32
from torchwise.compile.backends.inductor import graph_compiler
from torchwise.compile.inductor_patches import note_in_keys
from torchwise.diagnose.bisect.isolate import is_plain
from torchwise.errors import PlanError, UnsupportedError
from torchwise.plan import Numerics, Plan, Trait
from torchwise.plan.space import PlanSpace
from torchwise.trial.inspection import _is_busy_with_products

CHOSEN = "ATEN,TRITON,TF32X3"
PLAN = Plan(backend="inductor", options=((three_tf32.OPTION, CHOSEN),))


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    """Put PyTorch's own functions back."""
    template, kernel, key = inductor.TEMPLATE.get(), inductor.TEMPLATE_KERNEL.get(), inductor.GRAPH_KEY.get()
    lowerings = inductor.LOWERINGS.get()
    before, lowered = (template.generate, kernel.render, key.__init__), dict(lowerings)
    three_tf32._add_once.cache_clear()
    yield
    template.generate, kernel.render, key.__init__ = before
    lowerings.update(lowered)
    three_tf32._add_once.cache_clear()


class Node:
    def __init__(self, dtype: torch.dtype) -> None:
        self._dtype = dtype

    def get_dtype(self) -> torch.dtype:
        return self._dtype


class Template:
    """Notes the parameters of its kernels."""

    def __init__(self) -> None:
        self.given: dict[str, Any] = {}

    def generate(self, input_nodes: Any, **parameters: Any) -> None:
        self.given = parameters


class Kernel:
    def render(self, template: Any, parameters: dict[str, Any], _records: bool = False) -> str:
        text: str = template.render(**parameters)
        return text


@pytest.fixture
def patched() -> tuple[type[Template], type[Kernel]]:
    """Return patched classes in place of PyTorch's."""
    template, kernel = type("Patched", (Template,), {}), type("PatchedKernel", (Kernel,), {})
    three_tf32.patch_templates(template, kernel)
    return template, kernel


FLOATS = (Node(torch.float32), Node(torch.float32))


@pytest.mark.parametrize(
    ("backends", "nodes", "allows", "expected"),
    [
        (CHOSEN, FLOATS, False, '"tf32x3"'),
        ("aten, tf32x3", FLOATS, False, '"tf32x3"'),
        ("ATEN,TRITON", FLOATS, False, False),
        ("ATEN,TRITON,TF32X30", FLOATS, False, False),
        (CHOSEN, FLOATS, True, True),  # the program allows TF32, which is faster
        (CHOSEN, FLOATS, "False", "False"),  # a GPU without TF32
        (CHOSEN, (Node(torch.bfloat16), Node(torch.bfloat16)), False, False),
        (CHOSEN, (Node(torch.float32), Node(torch.float64)), False, False),
    ],
)
@pytest.mark.parametrize("is_named", [False, True])
def test_float32_products_are_asked_for_where_the_option_names_them(
    patched: tuple[type[Template], type[Kernel]],
    backends: str,
    nodes: tuple[Node, ...],
    allows: Any,
    expected: Any,
    is_named: bool,
) -> None:
    template = patched[0]()
    with inductor.patch_config({three_tf32.OPTION: backends}):
        if is_named:
            template.generate(input_nodes=nodes, ALLOW_TF32=allows, BLOCK_M=64)
        else:
            template.generate(nodes, ALLOW_TF32=allows, BLOCK_M=64)
    assert template.given == {"ALLOW_TF32": expected, "BLOCK_M": 64}


def test_a_template_without_the_parameter_stays_as_it_is(patched: tuple[type[Template], type[Kernel]]) -> None:
    template = patched[0]()
    with inductor.patch_config({three_tf32.OPTION: CHOSEN}):
        template.generate(FLOATS, BLOCK_M=64)
    assert template.given == {"BLOCK_M": 64}


class Text:
    def __init__(self, text: str) -> None:
        self._text = text

    def render(self, **_: Any) -> str:
        return self._text


def test_a_kernel_is_written_by_its_parameter_alone(patched: tuple[type[Template], type[Kernel]]) -> None:
    kernel, text = patched[1](), Text("acc += tl.dot(a, b, allow_tf32=ALLOW_TF32)")
    assert kernel.render(text, {"ALLOW_TF32": False}) == "acc += tl.dot(a, b, allow_tf32=ALLOW_TF32)"
    assert kernel.render(text, {"ALLOW_TF32": '"tf32x3"'}, True) == "acc += tl.dot(a, b, input_precision=ALLOW_TF32)"
    with pytest.raises(NotImplementedError, match="no allow_tf32=ALLOW_TF32"):
        kernel.render(Text("acc += tl.dot(a, b)"), {"ALLOW_TF32": '"tf32x3"'})


def list_templates() -> list[str]:
    """List the files of this PyTorch's templates that multiply numbers of one dtype."""
    folder = Path(str(importlib.import_module("torch._inductor.kernel.mm_common").__file__)).parent / "templates"
    return [str(file) for file in sorted(folder.glob("triton_*.jinja")) if "ALLOW_TF32" in file.read_text()]


def test_pytorch_writes_the_parameter_as_it_is_looked_for() -> None:
    files = list_templates()
    assert len(files) >= 3
    for file in files:
        text = Path(file).read_text()
        assert text.count("ALLOW_TF32") == text.count(three_tf32.BEFORE), file


def test_a_plan_with_it_patches_pytorch_and_times_products(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[dict[str, Any]] = []
    monkeypatch.setattr(
        "torchwise.compile.backends.inductor._inductor", lambda options: seen.append(options) or SimpleNamespace()
    )
    before = inductor.TEMPLATE.get().generate
    graph_compiler(PLAN)
    assert seen[0] == {three_tf32.OPTION: CHOSEN, "max_autotune_gemm": True, "max_autotune_conv_backends": "ATEN"}
    assert inductor.TEMPLATE.get().generate is not before
    graph_compiler(Plan(backend="inductor", options=((three_tf32.OPTION, CHOSEN), ("max_autotune_gemm", False))))
    assert seen[1]["max_autotune_gemm"] is False, "as the plan says"


@pytest.mark.parametrize(
    ("shares", "is_busy"),
    [
        ({"gemm": 0.9, "launch": 0.1}, True),
        ({"gemm": 0.9, "launch": 0.9}, False),  # short kernels, with gaps between them
        ({"gemm": 0.9, "conv": 0.8, "launch": 0.0}, False),
        ({"gemm": 0.9, "attention": 0.8, "launch": 0.0}, False),
        ({"gemm": 0.1, "launch": 0.0}, False),
        ({}, True),  # nothing is known
    ],
)
def test_a_search_tries_it_where_products_take_the_time(shares: dict[str, float], is_busy: bool) -> None:
    assert _is_busy_with_products(shares) == is_busy
    found = PlanSpace(
        "cuda", "inference", frozenset({Trait.FLOAT32, Trait.BUSY_PRODUCTS}), Numerics.SAME_PRECISION, "quick"
    )
    key = ("options", (three_tf32.OPTION, CHOSEN))
    assert key in {choice.key for choice in found.choices()}
    for changed in ({"traits": frozenset({Trait.FLOAT32})}, {"device": "cpu"}, {"allow": Numerics.EXACT}):
        assert key not in {choice.key for choice in replace(found, **changed).choices()}


@pytest.mark.parametrize("precision", ["tf32", "bf16", "autocast_bf16"])
def test_another_precision_is_a_neighbour_without_it(precision: str) -> None:
    traits = frozenset({Trait.FLOAT32, Trait.FLOATING, Trait.GEMM, Trait.BUSY_PRODUCTS})
    space = PlanSpace("cuda", "inference", traits, Numerics.LOWER_PRECISION, "standard")
    leader = replace(PLAN, capture="call", options=(*PLAN.options, ("max_autotune_pointwise", True)))
    kept = (("max_autotune_pointwise", True),)
    assert replace(leader, precision=precision, options=kept) in {plan for plan, _ in space.neighbours(leader)}
    assert replace(leader, capture="none", options=kept) not in {plan for plan, _ in space.neighbours(leader)}


@pytest.mark.parametrize("trait", [Trait.HALF, Trait.ONE_ROW, Trait.FEW_ROWS])
def test_a_search_does_not_try_it_where_it_can_gain_nothing(trait: Trait) -> None:
    traits = frozenset({Trait.FLOAT32, Trait.BUSY_PRODUCTS, trait})
    space = PlanSpace("cuda", "inference", traits, Numerics.SAME_PRECISION, "thorough")
    assert ("options", (three_tf32.OPTION, CHOSEN)) not in {choice.key for choice in space.choices()}


def test_bisect_knows_that_these_kernels_are_not_pytorch_s() -> None:
    assert is_plain(Plan(backend="inductor", options=(("max_autotune_gemm", True),)))
    assert not is_plain(PLAN)


def test_it_is_for_float32_alone() -> None:
    for precision in ("tf32", "bf16", "autocast_bf16"):
        with pytest.raises(PlanError, match="has TF32X3, which computes float32 products, but precision is"):
            replace(PLAN, precision=precision)


def test_without_triton_it_is_refused() -> None:
    plan = Plan(backend="inductor", options=((three_tf32.OPTION, "ATEN,TF32X3"),))
    with pytest.raises(UnsupportedError, match="name TRITON as well"):
        graph_compiler(plan)


def test_keys_of_compiled_code_note_the_patch() -> None:
    before = inductor.GRAPH_KEY.get().__init__
    three_tf32.add_to_templates()
    assert inductor.GRAPH_KEY.get().__init__ is not before

    class Details:
        def __init__(self) -> None: ...

    note_in_keys(Details, three_tf32.NOTE, three_tf32._is_configured)
    assert not hasattr(Details(), three_tf32.NOTE)
    with inductor.patch_config({three_tf32.OPTION: CHOSEN}):
        assert hasattr(Details(), three_tf32.NOTE)


def test_templates_that_pytorch_writes_otherwise_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(three_tf32, "BEFORE", "another_name=ALLOW_TF32")
    with pytest.raises(UnsupportedError, match=r"needs kernels with another_name=ALLOW_TF32, which torch .* not write"):
        graph_compiler(PLAN)


def test_other_plans_leave_pytorch_as_it_is() -> None:
    before = inductor.TEMPLATE.get().generate
    graph_compiler(Plan(backend="inductor", options=((three_tf32.OPTION, "ATEN,TRITON"),)))
    assert inductor.TEMPLATE.get().generate is before


def test_a_pytorch_without_such_templates_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(inductor.TEMPLATE_KERNEL.get(), "render")
    with pytest.raises(UnsupportedError, match=r"TF32X3 in Inductor's max_autotune_gemm_backends needs .*render"):
        graph_compiler(PLAN)
    monkeypatch.undo()


def test_patches_are_applied_once() -> None:
    three_tf32.add_to_templates()
    first = inductor.TEMPLATE.get().generate
    three_tf32.add_to_templates()
    assert inductor.TEMPLATE.get().generate is first
