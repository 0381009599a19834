"""Row programs on a GPU, whose kernels Triton's interpreter runs here: answers, loops, rows and refusals."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import embedding, layer_norm, linear

from gpu_clusters import run_clusters
from gpu_kernels import Kernels, use_kernels
from row_calls import compile_call
from row_cases import CASES, Case, check, draw
from torchwise.compile.programs.gpu import kernel, launch, program, shares
from torchwise.compile.programs.gpu.clusters import launch_cluster
from torchwise.compile.programs.gpu.forms import SHARED, Form, Work, list_forms
from torchwise.compile.programs.gpu.launch import load_kernel
from torchwise.errors import UnsupportedError


@pytest.fixture(autouse=True)
def kernels(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Kernels]:
    """The kernels that a test makes."""
    yield from use_kernels(monkeypatch, tmp_path)


LONG = ("neural ODE", "radiance", "wide norm", "GRU")
"""Programs that Triton's interpreter takes seconds for."""


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.nightly] * (n in LONG)) for n in CASES])
def test_a_program_is_few_kernels_with_eagers_answer(name: str, kernels: Kernels) -> None:
    case = CASES[name]
    inputs = case.inputs(torch.Generator().manual_seed(0))
    check(compile_call(case.call, *inputs), case, inputs)
    assert len(kernels) == case.kernels
    assert kernels[0]._write(64, True).source.count("    for ") == case.loops
    assert not kernels.left


@pytest.mark.parametrize("name", ["neural ODE", "norm", "perceptron"])
@pytest.mark.parametrize("most", [16, 128])
def test_tiles_of_any_width_have_the_same_answer(
    name: str, most: int, kernels: Kernels, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = CASES[name]
    inputs = case.inputs(torch.Generator().manual_seed(0))
    monkeypatch.setattr(launch, "list_forms", lambda *_, **__: [Form(16, 4, most, "ieee")])
    check(compile_call(case.call, *inputs), case, inputs)
    assert kernels[0]._write(most, True).source != kernels[0]._write(64, True).source or most == 128


@pytest.mark.parametrize("block", [1, 16])
def test_few_rows_are_sums_or_products_of_a_block(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    case = CASES["perceptron"]
    inputs = case.inputs(torch.Generator().manual_seed(0))
    inputs = (inputs[0][:3].clone(), *inputs[1:])
    monkeypatch.setattr(launch, "list_forms", lambda *_, **__: [Form(block, 4, 64, "ieee")])
    check(compile_call(case.call, *inputs), case, inputs)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_numbers_of_other_types(dtype: torch.dtype) -> None:
    def call(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.where(x > 0.1, x * 0.3 + y, y.sum(-1, keepdim=True)) ** 1.5 + 0.1

    x, y = (draw(torch.Generator().manual_seed(n), 9, 5).to(dtype).abs() for n in range(2))
    case = Case(call, lambda _: (), tolerance=2 * torch.finfo(dtype).eps)
    check(compile_call(call, x, y), case, (x, y))


@pytest.mark.parametrize("is_first", [False, True])
@pytest.mark.parametrize("mix", ["sum", "softmax", "norm", "product"])
def test_equal_numbers_are_joined_as_often_as_they_count(mix: str, is_first: bool) -> None:
    mixes: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
        "sum": lambda x, _: x.sum(1) * 2,
        "softmax": lambda x, _: torch.softmax(x, 1),
        "norm": lambda x, _: layer_norm(x, (11,)),
        "product": linear,
    }

    def call(x: torch.Tensor, y: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        parts = [x * 2, (y * 3).expand(12, 3), x.new_ones(12, 3)]
        return mixes[mix](torch.cat(parts[::-1] if is_first else parts, 1), w)

    inputs = tuple(draw(torch.Generator().manual_seed(n), *s) for n, s in enumerate([(12, 5), (3,), (4, 11)]))
    check(compile_call(call, *inputs), Case(call, lambda _: ()), inputs)


def test_a_smaller_tensor_that_is_copied_is_equal_numbers() -> None:
    def call(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        z = torch.zeros_like(x)
        z.copy_(y[:, :1])
        return (z + x) * 2

    inputs = tuple(draw(torch.Generator().manual_seed(n), 20, 6) for n in range(2))
    check(compile_call(call, *inputs), Case(call, lambda _: ()), inputs)


def test_bits_of_another_type_are_left_to_operators() -> None:
    def call(x: torch.Tensor) -> torch.Tensor:
        return (x.view(torch.int32) & 7) * 2 + 1

    x = draw(torch.Generator().manual_seed(0), 20, 6)
    check(compile_call(call, x), Case(call, lambda _: ()), (x,))


CONSTANTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "rounded": lambda x: x.new_full((6,), 0.1, dtype=torch.float32) + x.double() * 2,
    "rounded more": lambda x: x.new_full((6,), 0.1, dtype=torch.float16) + x * 2,
    "boolean": lambda x: x.new_full((6,), 2.5, dtype=torch.bool) + x * 2,
    "true": lambda x: torch.logical_and(x.new_ones(6), x > 0) & (x < 1),
    "subnormal": lambda x: torch.clamp(x, min=1e-42, max=2e-42) * 1e38,
    "doubled booleans": lambda x: torch.add(x > 0, x > 1, alpha=2) == ((x > 1) | (x > 0)),
    "too few to vary": lambda x: torch.var(x[:, :2] * 2, -1, correction=2).isinf() & (x[:, 0] < 9),
    "no dimensions": lambda x: (x[0, 0] * 2 > 0) | (x > 1),
    "signs": lambda x: torch.tanh(torch.sign(x)) * 0.7,
}


@pytest.mark.parametrize("name", CONSTANTS)
def test_constants_have_their_type(name: str) -> None:
    tolerance = 1e-15 if name == "rounded" else 3e-7
    x = draw(torch.Generator().manual_seed(0), 20, 6)
    check(compile_call(CONSTANTS[name], x), Case(CONSTANTS[name], lambda _: (), tolerance=tolerance), (x,))


def test_numbers_that_begin_narrow_keep_their_type(kernels: Kernels) -> None:
    def call(x: torch.Tensor) -> torch.Tensor:
        return torch.exp(x * torch.full((), 0.1, dtype=torch.float64)) * 3

    x = draw(torch.Generator().manual_seed(0), 20, 6)
    check(compile_call(call, x), Case(call, lambda _: ()), (x,))
    assert ".to(tl.float32)" in kernels.source


def test_what_is_read_of_every_repetition_is_no_loop(kernels: Kernels) -> None:
    def call(x: torch.Tensor) -> torch.Tensor:
        found = []
        for _ in range(4):
            x = torch.tanh(x * 1.5)
            found.append(x)
        return sum(found[1:], found[0]) * 2.0

    x = draw(torch.Generator().manual_seed(0), 12)
    check(compile_call(call, x), Case(call, lambda _: ()), (x,))
    assert "for " not in kernels.source


def return_states(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Each state as an output of its own."""
    states = [x * 0.5]
    for _ in range(5):
        states.append(torch.tanh(states[-1] * 1.5 + 0.1))
    return tuple(states)


def stack_twice(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """All states, in two orders."""
    states = return_states(x)
    return torch.stack(states), torch.stack(states[::-1], 1)


def stack_some(x: torch.Tensor) -> torch.Tensor:
    """Every other state."""
    return torch.stack(return_states(x)[::2])


def clamp_less(x: torch.Tensor) -> torch.Tensor:
    """Another bound in each repetition."""
    for step in range(5):
        x = torch.clamp(torch.sin(x), min=-0.5 + 0.1 * step) * 1.5
    return x


@pytest.mark.parametrize("call", [return_states, stack_twice, stack_some, clamp_less])
def test_what_no_loop_can_do_is_written_without_it(call: Callable[..., Any], kernels: Kernels) -> None:
    x = draw(torch.Generator().manual_seed(0), 20, 6)
    check(compile_call(call, x), Case(call, lambda _: ()), (x,))
    assert "    for " not in kernels.source


def test_constants_that_differ_are_read_from_a_table(kernels: Kernels) -> None:
    def call(x: torch.Tensor) -> torch.Tensor:
        for step in range(5):
            x = torch.sin(x) + 0.1 * step**2
        return x

    x = draw(torch.Generator().manual_seed(0), 12)
    check(compile_call(call, x), Case(call, lambda _: ()), (x,))
    (table,) = kernels[0]._write(64, True).tables
    assert len(table) in (4, 5)


def test_parts_that_lie_unevenly_are_no_loop(kernels: Kernels) -> None:
    def call(x: torch.Tensor) -> torch.Tensor:
        state = x[0]
        for place in (0, 3, 4, 1, 2):
            state = torch.tanh(state + x[place])
        return state

    x = draw(torch.Generator().manual_seed(0), 5, 12)
    check(compile_call(call, x), Case(call, lambda _: ()), (x,))
    assert "for " not in kernels.source


@pytest.mark.parametrize(
    ("first", "second"),
    [((0, 1, 2), (2, 1, 0)), ((0, 1, 2, 3), (1, 1, 1, 1)), ((0, 0, 1, 2), (3, 3, 3, 3))],
    ids=["both ways", "one stays", "one is read twice"],
)
def test_parts_that_several_repetitions_share(first: tuple[int, ...], second: tuple[int, ...]) -> None:
    def call(x: torch.Tensor) -> torch.Tensor:
        parts, state = x.unbind(0), x[4]
        for one, other in zip(first, second, strict=True):
            state = torch.tanh(state * 0.5 + parts[one] * parts[other])
        return state

    x = draw(torch.Generator().manual_seed(0), 5, 12)
    check(compile_call(call, x), Case(call, lambda _: ()), (x,))


def test_each_repetition_has_a_table_of_its_own(kernels: Kernels) -> None:
    def call(index: torch.Tensor, tables: torch.Tensor) -> torch.Tensor:
        state = torch.zeros(20, 8)
        for place in range(4):
            state = torch.tanh(state + embedding(index, tables[place]))
        return state

    inputs = torch.arange(20) % 9, draw(torch.Generator().manual_seed(0), 4, 9, 8)
    check(compile_call(call, *inputs), Case(call, lambda _: ()), inputs)
    assert kernels.source.count("    for ") == 1


@pytest.mark.parametrize("width", [1, 8])
def test_a_row_that_a_table_does_not_have_is_nan(width: int) -> None:
    def call(index: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        return torch.tanh(embedding(index, table) * 2)

    index, table = torch.tensor([0, -1, 3, 9, 8]), draw(torch.Generator().manual_seed(0), 9, width)
    found = compile_call(call, index.abs() % 9, table)(index, table)
    assert found.isnan().any(-1).tolist() == found.isnan().all(-1).tolist() == [False, True, False, True, False]


def test_a_large_matrix_is_left_to_its_library(kernels: Kernels) -> None:
    def call(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        h = torch.tanh(x * 2 + 1)
        return torch.sigmoid(linear(h, w) * 0.5) - 1

    x, w = draw(torch.Generator().manual_seed(0), 4, 512), draw(torch.Generator().manual_seed(1), 600, 512) / 20
    check(compile_call(call, x, w), Case(call, lambda _: ()), (x, w))
    assert len(kernels) == 2, "before and after the product"


@pytest.mark.parametrize("limits", [{"MAX_WEIGHTS": 2 * 64}, {"MAX_MANY_WEIGHTS": 2 * 64, "MANY_ROWS": 8}])
def test_products_of_many_weights_are_kernels_of_their_own(
    limits: dict[str, int], kernels: Kernels, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, limit in limits.items():
        monkeypatch.setattr(program, name, limit)
    x, weights = (draw(torch.Generator().manual_seed(n), *size) for n, size in enumerate(((9, 8), (5, 8, 8))))

    def call(x: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        for weight in weights:
            x = torch.tanh(x @ weight) + x
        return x

    check(compile_call(call, x, weights), Case(call, lambda _: ()), (x, weights))
    assert len(kernels) == 2, "around the third product, which a library does"
    assert [one.work.weights for one in kernels] == [2 * 64, 2 * 64]


def test_a_loop_of_too_many_weights_is_left_to_libraries(kernels: Kernels, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "MAX_WEIGHTS", 32)
    x, weight = draw(torch.Generator().manual_seed(0), 9, 8), draw(torch.Generator().manual_seed(1), 8, 8)

    def call(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        for _ in range(6):
            x = torch.tanh(x @ weight * 0.3) + x
        return x

    check(compile_call(call, x, weight), Case(call, lambda _: ()), (x, weight))
    assert all(not one.work.weights for one in kernels)


def test_operators_of_a_long_text_are_left_out_and_the_others_are_kernels(kernels: Kernels) -> None:
    """Numbers in another order are tiles by themselves, and Triton compiles thousands of lines for minutes."""

    def call(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x = torch.tanh(x) * y + x
        for _ in range(6):
            x = torch.sin(x.view(-1, 4, 4, 4, 4).permute(0, 4, 3, 2, 1).reshape(-1, 256) * y)
        return torch.softmax(torch.sigmoid(x) * y, -1)

    x, y = draw(torch.Generator().manual_seed(0), 5, 256), draw(torch.Generator().manual_seed(1), 256)
    check(compile_call(call, x, y), Case(call, lambda _: ()), (x, y))
    assert len(kernels) >= 2, "before and after the loop"
    assert all(one._write(64, True).source.count("\n") <= kernel.MAX_LINES for one in kernels)
    assert kernels.left == 0


def test_all_repetitions_of_what_makes_a_text_long_are_left_out_at_once(
    kernels: Kernels, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries, list_longest = list[int](), kernel.Writer._list_longest
    monkeypatch.setattr(kernel, "MAX_LINES", 5)
    monkeypatch.setattr(kernel, "MANY_LINES", 2)
    monkeypatch.setattr(kernel.Writer, "_list_longest", lambda self: tries.append(1) or list_longest(self))

    def call(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        for _ in range(12):
            x = torch.tanh(torch.softmax(x, -1) * y)
        return x

    x, y = draw(torch.Generator().manual_seed(0), 5, 8), draw(torch.Generator().manual_seed(1), 8)
    check(compile_call(call, x, y), Case(call, lambda _: ()), (x, y))
    assert 1 <= len(tries) < 6, "not once for each repetition"


def test_a_long_row_of_short_operators_is_several_kernels(kernels: Kernels, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel, "MAX_LINES", 30)

    def call(x: torch.Tensor) -> torch.Tensor:
        for power in range(2, 22):
            x = torch.sin(x) * (0.3 / power) + x**power * 0.5
        return x

    x = draw(torch.Generator().manual_seed(0), 5, 8).clamp(-0.8, 0.8)
    check(compile_call(call, x), Case(call, lambda _: ()), (x,))
    assert 2 <= len(kernels) <= 8


def test_regions_of_other_rows_are_kernels_of_their_own(kernels: Kernels) -> None:
    def call(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.tanh(x) * 2 + 1, torch.sin(y) * 3 - 1

    x, y = draw(torch.Generator().manual_seed(0), 7), draw(torch.Generator().manual_seed(1), 30)
    check(compile_call(call, x, y), Case(call, lambda _: ()), (x, y))
    assert sorted(kernel.work.rows for kernel in kernels) == [7, 30]


def test_rows_that_are_read_as_columns_go_through_memory(kernels: Kernels) -> None:
    def call(x: torch.Tensor) -> torch.Tensor:
        for _ in range(3):
            x = torch.tanh(x * 0.5 + x.transpose(1, 2) * 0.5) + 1
        return x

    x = draw(torch.Generator().manual_seed(0), 20, 3, 3)
    check(compile_call(call, x), Case(call, lambda _: ()), (x,))
    assert len(kernels) == 3


def test_what_depends_on_no_input_is_computed_by_each_kernel(kernels: Kernels) -> None:
    case = CASES["many particles"]
    inputs = case.inputs(torch.Generator().manual_seed(0))
    check(compile_call(case.call, *inputs), case, inputs)
    shapes = [shape for kernel in kernels for shape, _, _ in (*kernel._wanted, *kernel._outputs)]
    assert (300, 300) not in shapes
    assert {len(kernel._wanted) for kernel in kernels} <= {2, 3, 4}


def test_what_depends_on_no_input_and_has_no_code_is_read(kernels: Kernels) -> None:
    def call(x: torch.Tensor) -> torch.Tensor:
        halves = (torch.arange(20) * 0.5).to(torch.int64) + 1
        for _ in range(2):
            x = torch.tanh((x[:, None] - x * halves).mean(1)) + halves
        return x

    x = draw(torch.Generator().manual_seed(0), 20)
    check(compile_call(call, x), Case(call, lambda _: ()), (x,))
    assert len(kernels) >= 2


@pytest.mark.parametrize("most", [128, 512])
def test_parts_of_an_axis_may_be_of_any_width(most: int, kernels: Kernels, monkeypatch: pytest.MonkeyPatch) -> None:
    case = CASES["many particles"]
    inputs = case.inputs(torch.Generator().manual_seed(0))
    monkeypatch.setattr(launch, "list_forms", lambda *_, **__: [Form(16, 4, most, "ieee")])
    check(compile_call(case.call, *inputs), case, inputs)
    assert f"range(0, 300, {most})" in kernels[0]._write(most, True).source


def test_a_wide_tensor_that_is_also_written_is_not_computed_in_parts(kernels: Kernels) -> None:
    def call(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        pairs = torch.tanh(x[:, None] * y)
        return pairs, pairs.sum(1)

    inputs = tuple(draw(torch.Generator().manual_seed(n), size) for n, size in enumerate((20, 300)))
    check(compile_call(call, *inputs), Case(call, lambda _: ()), inputs)
    assert "    for " not in kernels.source


MIXED: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "a variance": lambda x, y: torch.var(x[:, None] * y, 1),
    "a softmax": lambda x, y: (torch.softmax(x[:, None] * y, 1) * y).sum(1),
    "equal numbers": lambda x, y: (x[:, None] * 2).expand(20, 300).sum(1) + torch.tanh(y[:20]),
    "both axes": lambda x, y: torch.sin(x[:, None, None] * y[:, None] + y[:7]).amax((1, 2)),
    "a part": lambda x, y: torch.sin((x[:, None] * y)[:, 3:290]).sum(1),
    "integers": lambda x, y: ((x[:, None] < y) * torch.arange(300)).sum(1),
}


@pytest.mark.parametrize("name", MIXED)
def test_reductions_of_many_numbers(name: str) -> None:
    inputs = tuple(draw(torch.Generator().manual_seed(n), size) for n, size in enumerate((20, 300)))
    check(compile_call(MIXED[name], *inputs), Case(MIXED[name], lambda _: (), tolerance=1e-5), inputs)


@pytest.mark.parametrize(
    ("name", "rows", "block"),
    [
        ("one row", 1, 1),
        ("perceptron", 3, 4),
        ("perceptron", 5, 2),
        ("neural ODE", 2, 2),
        ("neural ODE", 4, 2),
        ("block", 2, 2),
    ],
)
def test_clusters_share_the_columns_of_products(
    name: str, rows: int, block: int, kernels: Kernels, monkeypatch: pytest.MonkeyPatch
) -> None:
    case, clusters = CASES[name], run_clusters(monkeypatch)
    monkeypatch.setattr(shares, "MIN_SHARED", 8 * 20)
    inputs = case.inputs(torch.Generator().manual_seed(0))
    inputs = (inputs[0][:rows].clone(), *inputs[1:])
    monkeypatch.setattr(launch, "list_forms", lambda *_, **__: [Form(block, 4, 16, "ieee", 4)])
    check(compile_call(case.call, *inputs), case, inputs)
    assert set(clusters) == {4}
    assert len(clusters) % -(-rows // block) == 0
    source = kernels[0]._write(16, False, 4).source
    assert source.count("    meet(part)") == {"neural ODE": 8, "block": 3}.get(name, 2)


@pytest.mark.parametrize(("rows", "block"), [(2, 2), (20, 16)])
def test_a_loop_of_one_product_has_two_places_that_a_cluster_shares(
    rows: int, block: int, kernels: Kernels, monkeypatch: pytest.MonkeyPatch
) -> None:
    def call(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        for _ in range(5):
            x = torch.tanh(linear(x, w)) + 0.1 * x
        return x

    clusters = run_clusters(monkeypatch)
    monkeypatch.setattr(shares, "MIN_SHARED", 1)
    monkeypatch.setattr(launch, "list_forms", lambda *_, **__: [Form(block, 4, 16, "ieee", 2)])
    inputs = draw(torch.Generator().manual_seed(0), rows, 24), draw(torch.Generator().manual_seed(1), 24, 24) / 5
    check(compile_call(call, *inputs), Case(call, lambda _: ()), inputs)
    text = kernels[0]._write(16, block == 16, 2)
    assert set(clusters) == {2}
    assert ("tl.dot(" in text.source) is (block == 16)
    assert text.work == 2 * 24


@pytest.mark.parametrize("packed", [None, (4, 1), (4, 2, 100)])
def test_a_cluster_that_triton_does_not_know_is_refused(packed: object) -> None:
    class Function:
        packed_metadata = packed

        def warmup(self, *_: Any, **__: Any) -> object:
            return self

    with pytest.raises(UnsupportedError, match="size of a cluster"):
        launch_cluster(Function(), 8, (1, 1, 1), (), {}, {})


def test_bits_of_another_type_are_read_by_pytorch() -> None:
    def call(x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x) * 2 + x.view(torch.int32).float().sigmoid()

    x = draw(torch.Generator().manual_seed(0), 12)
    check(compile_call(call, x), Case(call, lambda _: ()), (x,))


def test_a_form_is_chosen_once_for_all_processes(kernels: Kernels, monkeypatch: pytest.MonkeyPatch) -> None:
    case = CASES["perceptron"]
    inputs = case.inputs(torch.Generator().manual_seed(0))
    check(compile_call(case.call, *inputs), case, inputs)
    file = kernels[0]._cache_file(torch.device("cpu"), allows_tf32=False)
    assert kernels[0].work == Work(50, 32, 20 * 32 + 32 * 5)
    assert Form(**json.loads(file.read_text())) in list_forms(kernels[0].work, allows_tf32=False)

    monkeypatch.setattr(launch, "list_forms", lambda *_, **__: [])
    torch.compiler.reset()
    check(compile_call(case.call, *inputs), case, inputs)
    file.write_text("{")
    torch.compiler.reset()
    with pytest.raises(UnsupportedError, match="no form"):
        compile_call(case.call, *inputs)(*inputs)


def test_two_processes_may_write_a_kernel_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    source = "def kernel():\n    return 1\n"
    replace, others = Path.replace, [lambda: load_kernel(source)]

    def replace_after_another(self: Path, target: Path) -> Path:
        while others:
            others.pop()()
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", replace_after_another)
    assert load_kernel(source)() == 1


def test_a_form_that_cannot_be_kept_is_chosen_again(monkeypatch: pytest.MonkeyPatch) -> None:
    write = launch.write_whole

    def refuse_forms(file: Path, data: bytes) -> None:
        if file.suffix == ".json":
            raise PermissionError(file)
        write(file, data)

    monkeypatch.setattr(launch, "write_whole", refuse_forms)
    case = CASES["statistics"]
    inputs = case.inputs(torch.Generator().manual_seed(0))
    check(compile_call(case.call, *inputs), case, inputs)


def test_forms_fit_the_rows_and_the_precision() -> None:
    def list_for(rows: int, *, allows_tf32: bool = False, **more: int) -> list[Form]:
        return list_forms(Work(rows, 128, 1 << 14, **more), allows_tf32=allows_tf32)

    assert {form.precision for form in list_for(4096, allows_tf32=True)} == {"tf32"}
    assert "tf32" not in {form.precision for form in list_for(4096)}
    assert {form.block for form in list_for(1)} == {1}
    assert max(form.block for form in list_for(20)) < 40
    assert all(form.uses_dot for form in list_for(4096))
    assert not list_for(256)[0].uses_dot, "each of few rows has a program of its own"


def test_matrices_of_a_loop_fit_the_shared_memory() -> None:
    for rows, most in ((4096, SHARED), (256, SHARED)):
        half = list_forms(Work(rows, 128, 1 << 13, most // 2), allows_tf32=False)
        whole = list_forms(Work(rows, 128, 1 << 13, most), allows_tf32=False)
        over = list_forms(Work(rows, 128, 1 << 13, most + 1), allows_tf32=False)
        assert "tf32x3" in {form.precision for form in half if form.uses_dot}
        assert {form.precision for form in whole if form.uses_dot} == {"ieee"}
        assert over
        assert not any(form.uses_dot for form in over)


@pytest.mark.parametrize(("rows", "block"), [(1 << 18, 64), (4096, 16)])
def test_many_rows_are_cut_into_larger_blocks(rows: int, block: int) -> None:
    forms = list_forms(Work(rows, 256, 1 << 14), allows_tf32=False)
    assert forms[0].block == block
    assert {form.block for form in forms} == {16, 32, 64, 128}


def test_more_weights_have_more_threads() -> None:
    warps = [min(form.warps for form in list_forms(Work(4096, 64, n), allows_tf32=False)) for n in (1, 10**5, 10**6)]
    assert warps == [4, 8, 16]


def test_few_rows_may_be_multiplied_by_a_cluster() -> None:
    def list_clusters(rows: int, weights: int = 1 << 17) -> set[tuple[int, int]]:
        forms = list_forms(Work(rows, 256, weights), allows_tf32=False)
        assert forms[0].cluster == 1, "which all devices have"
        return {(form.block, form.cluster) for form in forms if form.cluster > 1}

    assert list_clusters(1) == {(1, 8), (1, 16)}
    assert list_clusters(5) == {(8, 8), (8, 16)}
    assert list_clusters(17) == list_clusters(256) == {(16, 8), (16, 16)}
    assert list_clusters(257) == list_clusters(528) == {(16, 8)}
    shared = [form for form in list_forms(Work(100, 256, 1 << 17), allows_tf32=False) if form.cluster > 1]
    assert {form.precision for form in shared} == {"tf32x3"}, "exact products of 16 rows would need too many registers"
    assert not list_clusters(529)
    assert not list_clusters(1, 1 << 10)


@pytest.mark.parametrize(
    ("capability", "hip", "has_any"), [((9, 0), None, True), ((8, 9), None, False), ((9, 4), "6", False)]
)
def test_only_gpus_that_have_clusters_try_them(
    capability: tuple[int, int], hip: str | None, has_any: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    monkeypatch.setattr(torch.version, "hip", hip)
    forms = launch.list_allowed(Work(4, 256, 1 << 17), torch.device("cuda", 0), allows_tf32=False)
    assert any(form.cluster > 1 for form in forms) is has_any
    assert forms[0].cluster == 1


def test_forms_whose_code_is_long_are_left_out() -> None:
    short = list_forms(Work(8, 256, 1 << 15), allows_tf32=False)
    long = list_forms(Work(8, 256, 1 << 19), allows_tf32=False)
    assert {form.block for form in short} >= {1, 4, 16}
    assert all(form.block <= 2 or form.cluster > 1 for form in long)
    assert list_forms(Work(1, 256, 1 << 24), allows_tf32=False), "one is left"


@pytest.mark.parametrize(("rows", "block"), [(2048, 2), (200, 1), (40, 1)])
def test_programs_that_go_along_an_axis_fill_all_processors(rows: int, block: int) -> None:
    forms = list_forms(Work(rows, 6000, passed=2000), allows_tf32=False)
    assert forms[0].block == block
    assert {form.block for form in forms} >= {1, 4, 16}
    wide = list_forms(Work(rows, 64 * 2000, passed=2000), allows_tf32=False)
    assert all(form.block * 64 * form.most <= 64 * 32 * form.warps for form in wide if form.most > 16)


@pytest.mark.parametrize("width", [1, 64, 512, 1 << 14])
def test_forms_hold_wide_rows_in_registers(width: int) -> None:
    forms = list_forms(Work(4096, width), allows_tf32=False)
    assert len(set(forms)) == len(forms) > 1
    assert all(form.block == 1 or form.block * width <= 64 * 32 * form.warps for form in forms)


def test_a_program_knows_its_widest_tensor(kernels: Kernels) -> None:
    def call(x: torch.Tensor) -> torch.Tensor:
        return (torch.softmax(x, -1) * x).sum(-1)

    x = draw(torch.Generator().manual_seed(0), 9, 300)
    check(compile_call(call, x), Case(call, lambda _: ()), (x,))
    assert kernels[0]._program.width == 300


def test_parts_of_what_is_used_twice_are_computed_once(kernels: Kernels) -> None:
    def call(x: torch.Tensor) -> torch.Tensor:
        for _ in range(9):
            x = torch.sin(x) * torch.cos(x)  # each reads the one before it twice
        return x[:, 1] + x[:, 2]

    x = draw(torch.Generator().manual_seed(0), 12, 4)
    check(compile_call(call, x), Case(call, lambda _: ()), (x,))
    assert kernels.source.count("tl.sin") <= 20


@pytest.mark.parametrize(("limit_s", "tried"), [(9.0, 4), (1.5, 3), (0.0, 2)])
def test_no_form_is_begun_after_a_time_once_one_works(
    monkeypatch: pytest.MonkeyPatch, limit_s: float, tried: int
) -> None:
    seconds, begun, clock = iter((None, 3.0, 1.0, 2.0)), list[Form](), itertools.count(0.0, 1.0)
    monkeypatch.setattr(launch.time, "monotonic", lambda: next(clock))

    def measure(form: Form) -> tuple[float, Any]:
        begun.append(form)
        if (taken := next(seconds)) is None:
            raise ValueError("out of shared memory")
        return taken, len(begun)

    forms = [Form(1, warps, 64, "ieee") for warps in (1, 2, 4, 8)]
    form, number = launch.pick_fastest(forms, measure, limit_s)
    assert begun == forms[:tried]
    assert (form, number) == ((forms[2], 3) if tried > 2 else (forms[1], 2))


def test_kernels_of_one_program_share_the_time_for_tuning(kernels: Kernels, monkeypatch: pytest.MonkeyPatch) -> None:
    limits, pick = list[float](), launch.pick_fastest

    def call(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.tanh(x) * 2 + 1, torch.sin(y) * 3 - 1

    monkeypatch.setattr(launch, "pick_fastest", lambda *given: limits.append(given[2]) or pick(*given))
    x, y = draw(torch.Generator().manual_seed(0), 7), draw(torch.Generator().manual_seed(1), 30)
    check(compile_call(call, x, y), Case(call, lambda _: ()), (x, y))
    assert limits == [launch.TUNING_S, launch.TUNING_S / 2]
    x = draw(torch.Generator().manual_seed(2), 8)
    check(compile_call(call, x, y), Case(call, lambda _: ()), (x, y))
    assert limits[2:] == limits[:1], "another program has its own time, and one kernel was tuned before"
