"""Products of few rows by a kernel of our own, which Triton's interpreter runs here: answers, and which are taken."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from dynamo_graphs import rewrite_and_call
from few_rows_here import draw, kernels_on_cpu
from torchwise.compile.few_rows import operator, tuning
from torchwise.compile.few_rows.forms import (
    MAX_SHARED,
    MAX_SUMMED_ROWS,
    MAX_SUMS,
    MIN_TILE,
    READ,
    DotForm,
    Form,
    Work,
    list_forms,
)
from torchwise.compile.transforms import transform_model
from torchwise.compile.transforms.function_graphs import products_of_few_rows
from torchwise.compile.transforms.function_graphs.nodes import VALUE, name_of
from torchwise.compile.transforms.function_graphs.product_epilogues import follow
from torchwise.compile.transforms.function_graphs.record import record
from torchwise.compile.transforms.quantization import formats
from torchwise.errors import PlanError
from torchwise.plan import Numerics, Plan, PlanSpace, Trait
from torchwise.trial.detected_traits import detect_traits
from torchwise.trial.error_origin import Instruments

OPERATOR = "torchwise.products_of_few_rows"
LENGTH = 72
"""Of a row, which no tile divides."""
Products = list[tuple[int, str]]
"""The weights of each call of the operator, and its activation."""


@pytest.fixture(autouse=True)
def use_kernels(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with kernels_on_cpu(monkeypatch):
        yield


def find_dtype(dtype: torch.dtype, number: int) -> torch.dtype:
    """Return a type whose tiles the interpreter multiplies. It has none of bfloat16, of which a GPU test is."""
    return torch.float16 if number > MAX_SUMMED_ROWS and dtype is torch.bfloat16 else dtype


def make_weights(sizes: tuple[int, ...], dtype: torch.dtype, kept: torch.dtype) -> tuple[list[Tensor], list[Tensor]]:
    """Return weights, and their scales if they have few bits."""
    drawn = [draw(size, LENGTH, seed=size) for size in sizes]
    if kept is dtype:
        return [one.to(dtype) for one in drawn], []
    scales = [(draw(size, seed=size) / 8).to(dtype) for size in sizes]  # small, as float16 ends at 65,504
    return [(9 * one).to(kept) for one in drawn], scales


def compute_exactly(
    rows: Tensor,
    weights: list[Tensor],
    scales: list[Tensor],
    biases: list[Tensor],
    activation: str,
    added: Tensor | None = None,
    gain: Tensor | None = None,
    epsilon: float | None = None,
) -> list[Tensor]:
    wide = [one.double() for one in weights]
    wide = [one * scale.double()[:, None] for one, scale in zip(wide, scales, strict=True)] if scales else wide
    x = rows.double()
    if epsilon is not None:
        x = x / (x.square().mean(-1, keepdim=True) + epsilon).sqrt() * (1 if gain is None else gain.double())
    found = operator.multiply_plainly(x, wide, [], [one.double() for one in biases], activation)
    return found if added is None else [found[0] + added.double()]


@pytest.mark.parametrize("number", [1, 3, 8, 9, 70])
@pytest.mark.parametrize("kept", [None, torch.int8, torch.float8_e4m3fn], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("sizes", "activation"), [((13,), ""), ((16, 5, 7), ""), ((13, 13), "silu"), ((8, 8), "relu")])
def test_all_forms_have_the_answer(
    sizes: tuple[int, ...], activation: str, dtype: torch.dtype, kept: torch.dtype | None, number: int
) -> None:
    dtype = find_dtype(dtype, number)
    rows, (weights, scales) = draw(number, LENGTH).to(dtype), make_weights(sizes, dtype, kept or dtype)
    biases = [draw(size).to(dtype) for size in sizes] if number != 8 else []
    expected = compute_exactly(rows, weights, scales, biases, activation)
    work = Work(number, LENGTH, sizes, weights[0].element_size(), activation, row_bytes=dtype.itemsize)
    for form in list_forms(work):
        found = operator._launch(form, work, rows, tuple(weights), tuple(scales), tuple(biases))
        assert [one.dtype for one in found] == [dtype] * len(expected)
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one.double(), other, rtol=2e-5 if dtype.itemsize == 4 else 1e-2, atol=1e-4)


@pytest.mark.parametrize("is_turned", [False, True])
@pytest.mark.parametrize("number", [1, 3, 37])
@pytest.mark.parametrize(("has_gain", "has_added"), [(True, False), (False, True), (True, True)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    ("sizes", "activation"), [((13,), ""), ((16, 16), "silu"), *(((8,), one) for one in operator.ACTIVATIONS)]
)
def test_all_forms_have_the_answer_with_what_is_around_the_products(
    sizes: tuple[int, ...],
    activation: str,
    dtype: torch.dtype,
    has_gain: bool,
    has_added: bool,
    number: int,
    is_turned: bool,
) -> None:
    dtype = find_dtype(dtype, number)
    rows, (weights, _) = (3 * draw(number, LENGTH)).to(dtype), make_weights(sizes, dtype, dtype)
    weights = [one.t().contiguous().t() for one in weights] if is_turned else weights
    has_norm = not is_turned and (has_gain or number > 1)
    added = draw(number, sizes[0], seed=7).to(dtype) if has_added else None
    gain = draw(LENGTH, seed=8).to(dtype) if has_norm and has_gain else None
    around = (added, gain, 0.5 if has_norm else None)
    biases = [draw(size, seed=9).to(dtype) for size in sizes] if number > 1 else []
    expected = compute_exactly(rows, weights, [], biases, activation, *around)
    work = Work(number, LENGTH, sizes, weights[0].element_size(), activation, is_turned, dtype.itemsize)
    for form in list_forms(work):
        (found,) = operator._launch(form, work, rows, tuple(weights), (), tuple(biases), *around)
        tolerance = 3e-5 if dtype.itemsize == 4 else 1e-2
        torch.testing.assert_close(found.double(), expected[0], rtol=tolerance, atol=tolerance)
    plain = operator.multiply_plainly(rows, weights, [], biases, activation, *around)
    torch.testing.assert_close(plain[0].double(), expected[0], rtol=5e-2, atol=5e-2 if dtype.itemsize == 2 else 1e-4)


@pytest.mark.parametrize("number", [1, 3, 8, 33])
@pytest.mark.parametrize("kept", [torch.float32, torch.bfloat16, torch.int8], ids=str)
@pytest.mark.parametrize(("sizes", "activation"), [((13,), ""), ((16, 5, 40), ""), ((40, 40), "silu")])
def test_all_forms_of_turned_weights_have_the_answer(
    sizes: tuple[int, ...], activation: str, kept: torch.dtype, number: int
) -> None:
    kept = find_dtype(kept, number)
    dtype = torch.float32 if kept is torch.int8 else kept
    rows, (weights, scales) = draw(number, LENGTH).to(dtype), make_weights(sizes, dtype, kept)
    weights = [one.t().contiguous().t() for one in weights]
    expected = compute_exactly(rows, weights, scales, [], activation)
    work = Work(number, LENGTH, sizes, weights[0].element_size(), activation, True, dtype.itemsize)
    forms = list_forms(work)
    assert len(set(forms)) == len(forms)
    for form in (forms[0], forms[-1]):
        found = operator._launch(form, work, rows, tuple(weights), tuple(scales), ())
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one.double(), other, rtol=2e-5 if dtype.itemsize == 4 else 1e-2, atol=1e-4)


@pytest.mark.parametrize("activation", ["", "silu"])
def test_weights_of_8_bits_have_a_norm_and_a_residual(activation: str) -> None:
    sizes = (8, 8) if activation else (8,)
    rows, (weights, scales) = draw(2, LENGTH), make_weights(sizes, torch.float32, torch.int8)
    around = (draw(2, 8, seed=7), draw(LENGTH, seed=8), 0.5)
    found = operator.multiply(rows, weights, scales, [], activation, *around)
    expected = compute_exactly(rows, weights, scales, [], activation, *around)
    torch.testing.assert_close(found[0].double(), expected[0], rtol=3e-5, atol=1e-3)


def test_turned_weights_with_a_norm_are_left_to_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    x, weight = draw(3, LENGTH), draw(LENGTH, 5).t()
    expected = functional.rms_norm(x, (LENGTH,), None, 0.5) @ weight.t()
    monkeypatch.setattr(operator, "_launch", None)
    (found,) = operator.multiply(x, [weight], [], [], "", None, None, 0.5)
    torch.testing.assert_close(found, expected)


def test_weights_of_both_kinds_are_left_to_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operator, "_launch", None)
    x, one, other = draw(1, LENGTH), draw(5, LENGTH), draw(LENGTH, 4).t()
    torch.testing.assert_close(operator.multiply(x, [one, other], [], [], ""), [x @ one.t(), x @ other.t()])


@pytest.mark.parametrize("number", [1, 20])
@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
def test_nothing_that_is_no_number_is_lost(number: int) -> None:
    rows, weights = draw(number, LENGTH) / 8, [draw(4, LENGTH), draw(4, LENGTH)]  # a GELU is zero far below zero
    # The answers have no plus infinity, of which eager's own GELU on a CPU is no number.
    rows[:, 70] = rows[:, 70].abs()
    weights[0][1, 3], weights[1][2, 70] = float("nan"), -float("inf")
    for activation in ("", *operator.ACTIVATIONS):
        for given in (weights, weights[:1], weights[1:]):
            if activation or len(given) == 2:
                expected = operator.multiply_plainly(rows, given, [], [], activation)
                found = operator.multiply(rows, given, [], [], activation)
                torch.testing.assert_close(found, expected, equal_nan=True)
    rows[0, 5] = float("inf")
    weights = [one.sign() for one in weights]  # without a rest behind the leading bits
    expected = operator.multiply_plainly(rows, weights[:1], [], [], "")
    torch.testing.assert_close(operator.multiply(rows, weights[:1], [], [], ""), expected, equal_nan=True)
    rows[0, 5] = float("nan")
    expected = operator.multiply_plainly(rows, weights, [], [], "", None, None, 1e-5)
    torch.testing.assert_close(operator.multiply(rows, weights, [], [], "", None, None, 1e-5), expected, equal_nan=True)


@pytest.mark.parametrize("rows", [1, 2, 8])
@pytest.mark.parametrize("item_bytes", [1, 2, 4])
@pytest.mark.parametrize("length", [1, 48, 2048, 8192])
def test_forms_fit_registers_and_rows(length: int, item_bytes: int, rows: int) -> None:
    for activation in ("", "silu"):
        work = Work(rows, length, (512, 512), item_bytes, activation)
        forms = list_forms(work)
        assert len(set(forms)) == len(forms) >= 1
        for form in forms:
            columns = form.count_columns(item_bytes)
            sums = columns * form.block * work.block_rows * (2 if activation else 1) // (32 * form.warps)
            assert sums <= max(MAX_SUMS, rows * READ // item_bytes * 2)
            assert columns < 2 * length or (form.warps, form.reads) == (1, 1), "no program reads nothing but zeros"
        assert work.count_programs(forms[0])[0] * forms[0].block >= (512 if activation else 1024)


@pytest.mark.parametrize("rows", [9, 32, 128])
@pytest.mark.parametrize("item_bytes", [1, 2, 4])
@pytest.mark.parametrize("length", [1, 48, 2048])
@pytest.mark.parametrize("activation", ["", "silu"])
def test_forms_of_tensor_cores_fit_memory_and_rows(length: int, item_bytes: int, rows: int, activation: str) -> None:
    work = Work(rows, length, (512, 512), item_bytes, activation, row_bytes=max(item_bytes, 2))
    forms = list_forms(work)
    assert len(set(forms)) == len(forms) >= 1
    for form in forms:
        assert isinstance(form, DotForm)
        assert form.count_bytes(work.row_bytes, item_bytes * (2 if activation else 1)) <= MAX_SHARED
        assert MIN_TILE <= form.rows < 2 * max(rows, MIN_TILE), "no program has only rows that are not there"
        assert MIN_TILE <= form.width < 2 * max(length, MIN_TILE)
        blocks, parts = work.count_programs(form)
        assert blocks * form.block >= (512 if activation else 1024)
        assert parts * form.rows >= rows


class Model(nn.Module):
    """Calls a function with layers `a`, `b` and `c`, of which `b` has another width, and a layer `d` of two."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b, self.c = nn.Linear(LENGTH, 16), nn.Linear(LENGTH, 12), nn.Linear(LENGTH, 16)
        self.gate, self.up = (nn.Linear(LENGTH, 24, bias=False) for _ in range(2))
        self.down, self.wide = nn.Linear(24, LENGTH), nn.Parameter(draw(LENGTH, 6))
        self.register_buffer("fixed", draw(6, LENGTH))
        self.function = function

    def forward(self, *given: Tensor) -> Any:
        return self.function(self, *given)


def attend(model: Any, x: Tensor) -> tuple[Tensor, ...]:
    return tuple(layer(x).unflatten(-1, (-1, 4)) for layer in (model.a, model.b, model.c))


def use_gate_twice(model: Any, x: Tensor) -> Tensor:
    gate = functional.silu(model.gate(x))
    return gate * model.up(x) + gate


def write_between(model: Any, x: Tensor) -> tuple[Tensor, Tensor]:
    y = x * 1
    first = model.a(y)
    y.add_(1)
    return first, model.c(y)


def write_to_copied(model: Any, x: Tensor) -> tuple[Tensor, Tensor]:
    base = x * 1
    copied = base.flatten(1).contiguous()
    return base.mul_(2), model.a(copied)


GIVEN = draw(1, 1, LENGTH)
TAKEN: dict[str, tuple[Callable[..., Any], Products]] = {
    "attention": (attend, [(3, "")]),
    "one": (lambda model, x: model.a(x[0, 0]), [(1, "")]),
    "without a bias": (lambda model, x: model.up(x[0]) + 1, [(1, "")]),
    "gate": (lambda model, x: model.down(functional.silu(model.gate(x)) * model.up(x)), [(2, "silu"), (1, "")]),
    "gate, turned": (lambda model, x: model.up(x) * functional.relu(model.gate(x)), [(2, "relu")]),
    "gate of views": (lambda model, x: functional.silu(model.gate(x[0]).view(4, 6)) * model.up(x[0]).view(4, 6), None),
    "gate that is read twice": (use_gate_twice, [(2, "")]),
    "gate of another kind": (lambda model, x: functional.gelu(model.gate(x)) * model.up(x), [(2, "gelu")]),
    "gate that is unknown": (lambda model, x: torch.tanh(model.gate(x)) * model.up(x), [(2, "")]),
    "gate of itself": (lambda model, x: functional.silu(y := model.gate(x)) * y + model.up(x), [(2, "")]),
    "gate with sums": (lambda model, x: functional.silu(model.gate(x)) * model.up(x).sum(-1, keepdim=True), [(2, "")]),
    "gate that is spread": (
        lambda model, x: functional.silu(model.gate(y := x[0])) * model.up(y).view(24, 1),
        [(2, "")],
    ),
    "gate in place": (lambda model, x: functional.silu(model.gate(x), inplace=True) * model.up(x), [(1, ""), (1, "")]),
    "views of one input": (lambda model, x: (model.a(x.view(1, LENGTH)), model.c(x.reshape(-1, LENGTH))), [(2, "")]),
    "other rows": (lambda model, x: model.a(x) + model.c(x * 2), [(1, ""), (1, "")]),
    "written between": (write_between, [(1, ""), (1, "")]),
    "written to a copied input": (write_to_copied, [(1, "")]),
    "a product of a product": (lambda model, x: model.down(model.up(x)), [(1, ""), (1, "")]),
    "bias of a product": (lambda m, x: functional.linear(x, m.a.weight, m.c(x[0, 0])), [(1, ""), (1, "")]),
    "matmul": (lambda model, x: (x @ model.a.weight.t(), torch.mm(x[0], model.b.weight.T)), None),
    "addmm": (lambda model, x: torch.addmm(model.a.bias, x[0], model.a.weight.t()), [(1, "")]),
    "a buffer": (lambda model, x: functional.linear(x, model.fixed), [(1, "")]),
    "part of a weight": (lambda model, x: functional.linear(x, model.a.weight[4:8]), [(1, "")]),
    "eight rows": (lambda model, x: model.a(x.expand(2, 4, LENGTH)), [(1, "")]),
    "rows that lie apart": (lambda model, x: model.a(x.expand(LENGTH, 3, LENGTH)[:, :, 5].t()), [(1, "")]),
    "weights that lie columns first": (lambda model, x: x @ model.wide, [(1, "")]),
    "weights of both kinds": (lambda model, x: (x @ model.wide, model.a(x)), [(1, ""), (1, "")]),
    "as in a Conv1D of GPT-2": (lambda m, x: torch.addmm(m.a.bias[:6], x[0], m.wide), [(1, "")]),
    "weights with gaps": (lambda model, x: functional.linear(x[..., :24], model.a.weight[:, 8:32]), []),
    "as many rows as tensor cores take": (lambda model, x: model.a(x.expand(2, 64, LENGTH)), [(1, "")]),
    "more rows": (lambda model, x: model.a(x.expand(3, 43, LENGTH)), []),
    "no row": (lambda model, x: model.a(x[:0]), []),
    "attention scores": (lambda model, x: x @ model.a.weight.expand(2, -1, -1).mT, []),
    "wide numbers": (lambda model, x: functional.linear(x.double(), model.a.weight.double()), []),
    "autocast": (lambda model, x: autocast(model.a, x), []),
    "inputs by name": (lambda model, x: model.a(torch.reshape(input=x, shape=(1, LENGTH))), [(1, "")]),
    "convolution": (lambda model, x: functional.conv1d(x, model.fixed[:, None, :3]), []),
}
"""Functions of a model, and the calls of the operator that are put in, or None where either way is right."""


def autocast(layer: nn.Module, x: Tensor) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        found: Tensor = layer(x)
    return found


def run(model: Any, *inputs: Tensor) -> tuple[Any, Products]:
    """Return the answer of a rewritten model, and the calls of the operator in it."""
    calls: Products = []

    def rewrite(graph: torch.fx.Graph) -> int:
        places = products_of_few_rows.rewrite(graph)
        nodes = graph.find_nodes(op="call_function", target=operator.products_of_few_rows)
        calls.extend((len(node.args[1]), node.args[4]) for node in nodes)
        assert places == len(nodes)
        return places

    return rewrite_and_call(model, *inputs, rewrite=rewrite)[0], calls


@pytest.mark.parametrize("name", TAKEN)
def test_products_of_few_rows_are_taken_with_the_same_answers(name: str) -> None:
    function, expected = TAKEN[name]
    model = Model(function).eval()
    answer, calls = run(model, GIVEN)
    tolerance = {"rtol": 2e-2, "atol": 2e-2} if name == "autocast" else {}
    torch.testing.assert_close(answer, model(GIVEN), **tolerance)
    if expected is not None:
        assert calls == expected
        graph = record(lambda: model(GIVEN))
        assert bool(products_of_few_rows.rewrite(graph)) == bool(expected), "the trait is found in eager"


CELLS = {
    "GRU": nn.GRUCell(LENGTH, 16),
    "GRU without biases": nn.GRUCell(LENGTH, 16, bias=False),
    "LSTM": nn.LSTMCell(LENGTH, 16),
    "RNN": nn.RNNCell(LENGTH, 16),
    "RNN, relu": nn.RNNCell(LENGTH, 16, nonlinearity="relu"),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", CELLS)
def test_products_of_cells_are_taken(name: str, dtype: torch.dtype) -> None:
    cell, x, memory = copy.deepcopy(CELLS[name]).to(dtype), draw(3, LENGTH).to(dtype), draw(3, 16, seed=1).to(dtype)

    def call(model: Any, x: Tensor) -> Any:
        out = model.cell(x, (memory, memory) if name == "LSTM" else memory)
        return (out[0] + 1, out) if name == "LSTM" else out + 1

    model = Model(call)
    model.cell = cell
    (answer, calls), expected = run(model, x), model(x)
    assert calls == [(1, ""), (1, "")]
    torch.testing.assert_close(answer, expected, **({} if dtype is torch.float32 else {"rtol": 2e-2, "atol": 2e-2}))
    assert products_of_few_rows.rewrite(record(lambda: model(x))) == 2, "the trait is found in eager"


@pytest.mark.parametrize(
    ("rows", "dtype", "is_taken"), [(128, torch.float32, True), (129, torch.float32, False), (9, torch.float16, False)]
)
def test_cells_of_many_rows_stay(rows: int, dtype: torch.dtype, is_taken: bool) -> None:
    model = Model(lambda model, x: model.cell(x, x[:, :16]))
    model.cell = copy.deepcopy(CELLS["GRU"]).to(dtype)
    names: list[str] = []

    def rewrite(graph: torch.fx.Graph) -> int:
        places = products_of_few_rows.rewrite(graph)
        names.extend(map(name_of, graph.nodes))
        return places

    rewrite_and_call(model, draw(rows, LENGTH).to(dtype), rewrite=rewrite)
    assert ("gru_cell" not in names) is is_taken


@pytest.mark.parametrize("kind", [nn.GRU, nn.LSTM, nn.RNN])
def test_it_is_proposed_for_rnns_of_few_rows(kind: type[nn.RNNBase]) -> None:
    """Their products are in the graph only with `compiled_rnn`."""
    rnn = kind(LENGTH, 16)
    for rows, is_found in ((128, True), (129, False)):
        traits = detect_traits(rnn, lambda rows=rows: rnn(draw(2, rows, LENGTH)), Instruments(lambda: None))
        assert traits[Trait.FEW_ROWS] is is_found
    model = transform_model(rnn.eval(), ("compiled_rnn",))[0]
    answer, calls = run(model, x := draw(2, 20, LENGTH))
    # One of all inputs, and one of the memory for each step. On a CPU an LSTM is one operator.
    assert len(calls) == (0 if kind is nn.LSTM else 3)
    torch.testing.assert_close(answer, rnn(x))
    packed = nn.utils.rnn.pack_sequence([draw(2, LENGTH)])
    assert not detect_traits(rnn, lambda: rnn(packed), Instruments(lambda: None))[Trait.FEW_ROWS]


@pytest.mark.parametrize("change", [Tensor.bfloat16, Tensor.requires_grad_])
def test_cells_under_autocast_and_with_gradients_stay(change: Callable[[Tensor], Tensor]) -> None:
    """A GPU's autocast casts cells, and `record` keeps no gradients, so the value is changed by hand."""
    graph = record(lambda: CELLS["GRU"](draw(3, LENGTH), draw(3, 16)))
    (node,) = (one for one in graph.nodes if name_of(one) == "gru_cell")
    node.meta[VALUE] = change(node.meta[VALUE])
    assert products_of_few_rows.rewrite(graph) == 0
    assert "gru_cell" in map(name_of, graph.nodes)


def test_cells_with_small_weights_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products_of_few_rows, "MIN_BYTES", 1 << 17)
    graph = record(lambda: CELLS["GRU"](draw(3, LENGTH), draw(3, 16)))
    assert products_of_few_rows.rewrite(graph) == 0
    assert "gru_cell" in map(name_of, graph.nodes)


def score(model: Any, x: Tensor, keys: Tensor) -> Tensor:
    queries = model.a(x).view(2, 2, 4)
    return torch.relu(queries @ keys.mT) @ keys + torch.bmm(queries, keys[:, :4])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_products_of_few_rows_with_a_batch_are_sums_beside_them(dtype: torch.dtype) -> None:
    model, keys = Model(score).to(dtype).eval(), draw(2, 9, 4).to(dtype)
    names: list[str] = []

    def rewrite(graph: torch.fx.Graph) -> int:
        places = products_of_few_rows.rewrite(graph)
        names.extend(map(name_of, graph.nodes))
        return places

    answer, places, _ = rewrite_and_call(model, GIVEN.to(dtype), keys, rewrite=rewrite)
    expected = model(GIVEN.to(dtype), keys)
    assert places == 1
    assert names.count("sum") == 3
    assert "matmul" not in names
    assert answer.dtype is dtype
    torch.testing.assert_close(answer, expected, **({} if dtype is torch.float32 else {"rtol": 3e-2, "atol": 3e-2}))


@pytest.mark.parametrize("rows", [9, 0])
def test_products_of_many_rows_with_a_batch_stay(rows: int) -> None:
    def call(model: Any, x: Tensor, queries: Tensor) -> tuple[Tensor, Tensor]:
        return model.a(x), queries @ queries.mT

    model, queries = Model(call).eval(), draw(2, rows, 4)
    _, places, names = rewrite_and_call(model, GIVEN, queries, rewrite=products_of_few_rows.rewrite)
    assert places == 1
    assert "matmul" in names


def test_weights_of_few_bits_are_read_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Model(lambda model, x: model.down(functional.silu(model.gate(x)) * model.up(x)) + model.a(x * 2).sum())
    monkeypatch.setattr(formats.Float8Weights, "MULTIPLES", {"cpu": (1, 1)})
    multiply = formats.Float8Weights.multiply  # as a GPU multiplies by weights of 8 bits
    monkeypatch.setattr(formats.Int8Weights, "multiply", multiply)
    monkeypatch.setattr(formats.Int8Weights, "MULTIPLES", {"cpu": (1, 1)})
    read: list[torch.dtype] = []
    launch = operator._launch
    monkeypatch.setattr(operator, "_launch", lambda *given: read.append(given[3][0].dtype) or launch(*given))
    for name, dtype in (("int8_weights", torch.int8), ("fp8_weights", torch.float8_e4m3fn)):
        for precision in (torch.float32, torch.bfloat16):
            rounded = transform_model(model.to(precision).eval(), (name,))[0]
            read.clear()
            answer, calls = run(rounded, GIVEN.to(precision))
            expected = rounded(GIVEN.to(precision))
            assert calls == [(2, "silu"), (1, ""), (1, "")]
            assert read == [dtype] * 3
            torch.testing.assert_close(answer, expected, rtol=2e-2, atol=1e-5 if precision is torch.float32 else 2e-2)


def write_to_bytes(model: Any) -> Tensor:
    kept = model.bytes.clone()
    weight = kept.float() * model.scale[:, None]
    kept.zero_()
    return weight


def write_to_scales(model: Any) -> Tensor:
    scale = model.scale * 1
    weight = model.bytes.float() * scale[:, None]
    scale.mul_(3)
    return weight


LOW_BITS: dict[str, tuple[Callable[[Any], Tensor], bool]] = {
    "one": (lambda model: model.bytes.float() * model.scale[:, None], True),
    "scales in front": (lambda model: model.scale.view(16, 1).to(torch.float64).float() * model.bytes.float(), True),
    "rounded": (lambda model: (model.bytes.float() * model.scale[:, None]).to(torch.int32).float(), False),
    "rounded to 16 bits": (lambda model: (model.bytes.float() * model.scale[:, None]).bfloat16().float(), False),
    "a product of 16 bits": (lambda model: (model.bytes.half() * model.scale.half()[:, None]).float(), False),
    "bytes of 16 bits": (lambda model: model.bytes.bfloat16().float() * model.scale[:, None], True),
    "scales of 16 bits": (lambda model: model.bytes.float() * model.scale.bfloat16().float()[:, None], True),
    "of one bit": (lambda model: model.bytes.to(torch.bool).float() * model.scale[:, None], False),
    "of fewer bits": (lambda model: model.bytes.to(torch.float8_e4m3fn).float() * model.scale[:, None], False),
    "rounded scales": (lambda model: model.bytes.float() * (3 * model.scale).to(torch.int32).float()[:, None], False),
    "scales in another order": (lambda model: model.bytes.float() * model.scale[model.order][:, None], True),
    "scales by name": (lambda model: model.bytes.float() * torch.unsqueeze(input=model.scale, dim=1), False),
    "bytes that are written": (write_to_bytes, False),
    "scales that are written": (write_to_scales, False),
}
"""Weights made of bytes and scales, and whether the kernel may read these."""


@pytest.mark.parametrize("name", LOW_BITS)
def test_only_bytes_that_are_the_weight_are_read(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make, is_read = LOW_BITS[name]
    model = Model(lambda model, x: functional.linear(x, make(model))).eval()
    model.register_buffer("bytes", (99 * draw(16, LENGTH)).to(torch.int8))
    model.register_buffer("scale", draw(16).abs() + 0.5)
    model.register_buffer("order", torch.arange(15, -1, -1))
    read: list[torch.dtype] = []
    launch = operator._launch
    monkeypatch.setattr(operator, "_launch", lambda *given: read.append(given[3][0].dtype) or launch(*given))
    answer, _ = run(model, GIVEN)
    torch.testing.assert_close(answer, model(GIVEN), rtol=1e-4, atol=1e-2)
    assert (torch.int8 in read) is is_read


@pytest.mark.parametrize(("device", "is_passed"), [("cpu", True), ("meta", False)])
def test_a_copy_from_another_device_is_read_where_it_is(device: str, is_passed: bool) -> None:
    graph = torch.fx.Graph()
    there = graph.placeholder("there")
    here = graph.call_method("to", (there, "cpu"))
    there.meta[VALUE], here.meta[VALUE] = torch.empty(4, device=device), torch.empty(4)
    assert products_of_few_rows._strip(here, products_of_few_rows._is_cast) is (there if is_passed else here)


@pytest.mark.parametrize(("device", "is_passed"), [("cpu", True), ("meta", False)])
def test_a_product_that_goes_to_another_device_is_computed_where_it_is(device: str, is_passed: bool) -> None:
    graph = torch.fx.Graph()
    here = graph.placeholder("here")
    there = graph.call_method("to", (here, device))
    here.meta[VALUE], there.meta[VALUE] = torch.empty(4), torch.empty(4, device=device)
    assert follow(here) == ([here, there] if is_passed else [here])


def test_products_that_need_a_gradient_stay() -> None:
    model = Model(lambda model, x: model.a(x)).eval()
    with torch.enable_grad():
        answer, calls = run(model, GIVEN)
        answer.sum().backward()
    assert calls == []
    torch.testing.assert_close(model.a.weight.grad, GIVEN[0].expand(16, -1))


def test_weights_that_change_in_place_are_those_that_are_read() -> None:
    model = Model(attend).eval()
    compiled = []

    def take(module: torch.fx.GraphModule, _: Any) -> Any:
        compiled.append(products_of_few_rows.rewrite(module.graph))
        module.recompile()
        return module.forward

    call = torch.compile(model, backend=take)
    call(GIVEN)
    model.b.weight.mul_(-3)
    model.c.bias.add_(1)
    torch.testing.assert_close(call(GIVEN), model(GIVEN))
    assert compiled == [1]


def test_small_weights_are_left_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products_of_few_rows, "MIN_BYTES", 4 * LENGTH * (16 + 12 + 16))
    assert run(Model(attend).eval(), GIVEN)[1] == [(3, "")]
    monkeypatch.setattr(products_of_few_rows, "MIN_BYTES", 4 * LENGTH * (16 + 12 + 16) + 1)
    assert run(Model(attend).eval(), GIVEN)[1] == []


def test_many_products_of_one_input_are_several_kernels() -> None:
    def call(model: Any, x: Tensor) -> list[Tensor]:
        return [functional.linear(x, one.weight) for one in (model.a, model.b, model.c, model.gate, model.up)]

    model = Model(call).eval()
    answer, calls = run(model, GIVEN)
    torch.testing.assert_close(answer, model(GIVEN))
    assert calls == [(products_of_few_rows.MAX_JOINED, ""), (1, "")]


def test_a_product_with_one_matrix_is_no_sum() -> None:
    model = Model(lambda model, x: (model.a(x), x[0] @ model.wide[:, 1:5])).eval()
    _, places, names = rewrite_and_call(model, GIVEN, rewrite=products_of_few_rows.rewrite)
    assert places == 1
    assert "matmul" in names


def test_the_operator_says_how_its_answers_lie() -> None:
    x, weights = draw(2, 3, LENGTH), [draw(5, LENGTH), draw(7, LENGTH)]
    torch.library.opcheck(operator.products_of_few_rows, (x, weights, [], [], ""))
    torch.library.opcheck(operator.products_of_few_rows, (x, [weights[0]] * 2, [], [draw(5)] * 2, "silu"))
    around = (draw(2, 3, 5), draw(LENGTH), 1e-5)
    torch.library.opcheck(operator.products_of_few_rows, (x, weights[:1], [], [], "relu", *around))


@pytest.mark.parametrize("changed", ["weight", "scale", "bias", "rows"])
def test_tensors_that_the_kernel_cannot_read_are_answered_by_pytorch(
    changed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = {"rows": draw(2, LENGTH), "weight": draw(5, LENGTH), "scale": draw(5), "bias": draw(5)}
    given[changed] = draw(129, LENGTH) if changed == "rows" else torch.stack([given[changed]] * 2, -1)[..., 0]
    monkeypatch.setattr(operator, "_launch", None)
    (found,) = operator.multiply(given["rows"], [given["weight"]], [given["scale"]], [given["bias"]], "")
    torch.testing.assert_close(found, given["rows"] @ (given["weight"] * given["scale"][:, None]).t() + given["bias"])


def test_pytorch_rounds_no_more_than_the_kernel() -> None:
    rows, weight, scale = draw(2, LENGTH), (99 * draw(5, LENGTH)).to(torch.int8), draw(5).bfloat16()
    (found,) = operator.multiply_plainly(rows, [weight], [scale], [], "")
    torch.testing.assert_close(found, rows @ (weight.float() * scale.float()[:, None]).t())


def test_pytorchs_product_stays_where_it_is_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "_choose", lambda *_: None)
    monkeypatch.setattr(operator, "_launch", None)
    x, weight = draw(1, LENGTH), draw(5, LENGTH)
    torch.testing.assert_close(operator.multiply(x, [weight], [], [], ""), [x @ weight.t()])
    assert [*tuning._chosen.values()] == [None], "it is not chosen again"


def test_copies_for_timing_are_larger_than_a_cache_but_few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "MIN_COPIED", 1000)
    weights = (draw(5, 4), draw(3, 4))
    copies = tuning.copy_tensors(weights)
    assert all(one is other for one, other in zip(copies[0], weights, strict=True))
    assert len(copies) == 8
    assert all(torch.equal(one, other) for copy in copies for one, other in zip(copy, weights, strict=True))
    monkeypatch.setattr(tuning, "MAX_COPIES", 3)
    assert len(tuning.copy_tensors(weights)) == 3
    assert len(tuning.copy_tensors((draw(50, 50),))) == 1


def test_it_is_proposed_for_large_weights_that_meet_few_rows_on_a_gpu() -> None:
    model = Model(attend).eval()
    traits = detect_traits(model, lambda: model(GIVEN), Instruments(lambda: None))
    assert traits[Trait.FEW_ROWS]
    assert not detect_traits(model, lambda: model(draw(129, LENGTH)), Instruments(lambda: None))[Trait.FEW_ROWS]
    traits = frozenset({Trait.MODULE, Trait.GEMM, Trait.FEW_ROWS})
    plan = Plan(backend="inductor", transforms=("products_of_few_rows",))
    for device, known, is_open in (("cpu", traits, False), ("cuda", traits, True), ("cuda", {Trait.GEMM}, False)):
        space = PlanSpace(device, "inference", frozenset(known), Numerics.SAME_PRECISION, "quick")
        assert (plan in [one for one, _ in space.neighbours(Plan())]) is is_open
    with pytest.raises(PlanError, match="products_of_few_rows"):
        Plan(backend="eager", transforms=("products_of_few_rows",))


def test_a_form_is_known_by_its_numbers() -> None:
    assert Form(4, 4, 2).count_columns(2) == 2048
    assert Form(4, 4, 2).count_columns(1) == 4096


def test_attention_is_fused_first() -> None:
    """Otherwise there would be sums in place of the products that make it attention."""
    names = Plan(backend="inductor").with_choice("transforms", "products_of_few_rows")
    assert names.with_choice("transforms", "fused_attention").transforms == ("fused_attention", "products_of_few_rows")
