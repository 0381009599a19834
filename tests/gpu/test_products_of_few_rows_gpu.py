"""Products of few rows by a kernel of our own on a GPU: its answers, its plan, and its choice of a form."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.nn import functional  # noqa: E402

from torchwise._torch.inductor import CONFIG  # noqa: E402
from torchwise.compile import compile_plan  # noqa: E402
from torchwise.compile.few_rows import operator, tuning  # noqa: E402
from torchwise.compile.few_rows.forms import MAX_SUMMED_ROWS, Form, Work, list_forms  # noqa: E402
from torchwise.compile.transforms import transform_model  # noqa: E402
from torchwise.plan import Plan  # noqa: E402
from torchwise.records import Outcome  # noqa: E402
from torchwise.verify import Subject, verify  # noqa: E402
from torchwise.workload import Example, Workload  # noqa: E402

pytestmark = pytest.mark.gpu
PLAN = Plan(backend="inductor", transforms=("products_of_few_rows",))
NAME = "multiply"
"""Of the kernel."""


@pytest.fixture(autouse=True)
def use_empty_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(tuning, "_chosen", {})
    monkeypatch.setattr(tuning, "_tuned", itertools.count(1))


def make(sizes: tuple[int, ...], length: int, dtype: Any, kept: Any) -> tuple[list[Any], list[Any]]:
    torch.manual_seed(0)
    drawn = [torch.randn(size, length, device="cuda") for size in sizes]
    if kept is None:
        return [one.to(dtype) for one in drawn], []
    # Small scales: float16 ends at 65,504, and a gate multiplies two products.
    return [(9 * one).to(kept) for one in drawn], [torch.rand(size, device="cuda").to(dtype) / 16 for size in sizes]


BF16, F16, F32, INT8, F8 = torch.bfloat16, torch.float16, torch.float32, torch.int8, torch.float8_e4m3fn


@pytest.mark.parametrize(
    ("number", "length", "sizes", "activation", "dtype", "kept"),
    [
        (1, 2048, (2048, 512, 512), "", BF16, None),
        (1, 2048, (2048, 512, 512), "", BF16, INT8),
        (1, 2048, (512, 512), "silu", F16, INT8),
        (1, 2048, (640, 640), "silu", BF16, None),
        (1, 1000, (640, 640), "relu", BF16, F8),
        (1, 8192, (513,), "", BF16, None),
        (1, 8192, (513,), "", F32, None),
        (1, 2050, (77,), "", F16, None),
        (3, 2048, (512, 130), "", BF16, INT8),
        (8, 1024, (512, 512), "relu", F32, None),
        (8, 1024, (512,), "", BF16, F8),
        (9, 1024, (512, 512), "relu", F32, None),
        (32, 1024, (3072, 130), "", F32, None),
        (128, 49, (3072,), "", F32, None),
        (70, 1000, (640,), "", BF16, F8),
        (16, 2048, (512, 512), "silu", F16, INT8),
        (100, 2050, (77,), "", BF16, None),
        (64, 768, (768,), "", F32, INT8),
    ],
)
def test_forms_have_the_answer(
    number: int, length: int, sizes: tuple[int, ...], activation: str, dtype: Any, kept: Any
) -> None:
    weights, scales = make(sizes, length, dtype, kept)
    rows = torch.randn(number, length, device="cuda").to(dtype)
    biases = [torch.randn(size, device="cuda").to(dtype) for size in sizes]
    wide = [one.double() for one in weights]
    wide = [one * scale.double()[:, None] for one, scale in zip(wide, scales, strict=True)] if scales else wide
    expected = operator.multiply_plainly(rows.double(), wide, [], [one.double() for one in biases], activation)
    work = Work(number, length, sizes, weights[0].element_size(), activation, row_bytes=dtype.itemsize)
    forms = list_forms(work)
    for form in forms[:3] if number <= MAX_SUMMED_ROWS else forms:
        found = operator._launch(form, work, rows, tuple(weights), tuple(scales), tuple(biases))
        for one, other in zip(found, expected, strict=True):
            error = (one.double() - other).norm() / other.norm()
            assert error < (1e-5 if dtype is F32 else 5e-3), form


@pytest.mark.parametrize(
    ("number", "length", "sizes", "activation", "dtype", "kept"),
    [
        (1, 768, (2304,), "", BF16, None),
        (1, 3072, (768,), "", F32, None),
        (2, 1000, (1016, 40), "", F16, None),
        (1, 768, (3072,), "", BF16, INT8),
        (8, 768, (640, 640), "silu", BF16, None),
        (33, 1000, (1016, 40), "", F32, None),
        (64, 768, (640, 640), "silu", BF16, None),
    ],
)
def test_turned_weights_have_the_answer_in_all_forms(
    number: int, length: int, sizes: tuple[int, ...], activation: str, dtype: Any, kept: Any
) -> None:
    weights, scales = make(sizes, length, dtype, kept)
    weights = [one.t().contiguous().t() for one in weights]
    rows = torch.randn(number, length, device="cuda").to(dtype)
    wide = [one.double() for one in weights]
    wide = [one * scale.double()[:, None] for one, scale in zip(wide, scales, strict=True)] if scales else wide
    expected = operator.multiply_plainly(rows.double(), wide, [], [], activation)
    work = Work(number, length, sizes, weights[0].element_size(), activation, True, dtype.itemsize)
    close = {"rtol": 1e-4, "atol": 1e-3} if dtype is F32 else {"rtol": 2e-2, "atol": 0.2}
    for form in list_forms(work):
        found = operator._launch(form, work, rows, tuple(weights), tuple(scales), ())
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one.double(), other, **close)


@pytest.mark.parametrize(
    ("number", "length", "sizes", "activation", "dtype", "has_norm"),
    [
        (1, 2048, (512, 512), "silu", BF16, True),
        (1, 8192, (2048,), "", BF16, True),
        (8, 256, (256,), "relu", F32, True),
        (2, 1000, (333,), "gelu", F32, True),
        (3, 768, (640,), "gelu_tanh", F16, False),  # of turned weights
        (40, 256, (256,), "gelu", F32, True),
        (16, 2048, (512, 512), "silu", BF16, True),
    ],
)
def test_what_is_around_products_has_the_answer_in_all_forms(
    number: int, length: int, sizes: tuple[int, ...], activation: str, dtype: Any, has_norm: bool
) -> None:
    weights, _ = make(sizes, length, dtype, None)
    weights = weights if has_norm else [one.t().contiguous().t() for one in weights]
    rows, added = (3 * torch.randn(number, size, device="cuda").to(dtype) for size in (length, sizes[0]))
    gain = torch.randn(length, device="cuda").to(dtype) / 16
    x = rows.double()
    if has_norm:
        x = x / (x.square().mean(-1, keepdim=True) + 0.5).sqrt() * gain.double()
    norm = (gain, 0.5) if has_norm else ()
    wide = [one.double() for one in weights]
    expected = operator.multiply_plainly(x, wide, [], [], activation, added.double())[0]
    work = Work(number, length, sizes, weights[0].element_size(), activation, not has_norm, dtype.itemsize)
    for form in list_forms(work):
        (found,) = operator._launch(form, work, rows, tuple(weights), (), (), added, *norm)
        assert (found.double() - expected).norm() / expected.norm() < (1e-5 if dtype is F32 else 5e-3), form


class Layer(torch.nn.Module):  # type: ignore[misc,name-defined]
    """Queries, keys and values, and a gate with a norm before it and a residual beside it, of large weights."""

    def __init__(self, dtype: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.q, self.k, self.v = (torch.nn.Linear(1024, size) for size in (1024, 256, 256))
        self.gate, self.up = (torch.nn.Linear(1024, 4096, bias=False) for _ in range(2))
        self.down, self.norm = torch.nn.Linear(4096, 1024, bias=False), torch.nn.RMSNorm(1024, eps=1e-5)
        self.cuda().to(dtype).eval()

    def forward(self, x: Any) -> Any:
        q, k, v = self.q(x), self.k(x), self.v(x)
        x = x + q * k.tanh().repeat(1, 1, 4) + v.repeat(1, 1, 4)
        y = self.norm(x)
        return x + self.down(functional.silu(self.gate(y)) * self.up(y))


@pytest.fixture
def first_forms(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time no forms."""
    monkeypatch.setattr(tuning, "_choose", lambda _key, _kernel, _device, forms, *_: forms[0])


@pytest.mark.parametrize(
    ("changed", "dtype"),
    [
        ({}, BF16),
        ({"capture": "call"}, F32),
        ({"mode": "reduce-overhead"}, BF16),
        ({"capture": "call", "options": (("triton.enable_pdl", True),)}, BF16),
        ({"capture": "call", "options": (("split_reductions", False),)}, BF16),
        ({"capture": "call", "transforms": ("joined_products", "products_of_few_rows")}, BF16),
    ],
    ids=str,
)
@pytest.mark.usefixtures("first_forms")
def test_a_plan_passes_and_follows_changed_weights(changed: dict[str, Any], dtype: Any) -> None:
    model = Layer(dtype)
    example = Example((torch.randn(1, 1, 1024, device="cuda").to(dtype),))
    plan = Plan(**{"backend": "inductor", "transforms": ("products_of_few_rows",), **changed})
    with torch.no_grad(), CONFIG.get().patch(force_disable_caches=True):
        made = compile_plan(model, plan, example, device="cuda", mode="inference")
        for _ in range(3):
            made.call(*example.args)
        verdict = verify(Subject(Workload(model, (example,)), made.call, model))
        assert verdict.outcome is Outcome.PASS, verdict.reason
        if len(plan.transforms) == 1:
            for _ in range(20):  # a kernel that starts early reads what the one before it has written
                model.k.weight.mul_(-1.01)
                model.q.bias.add_(0.1)
                torch.testing.assert_close(made.call(*example.args), model(*example.args), rtol=5e-2, atol=5e-2)
        made.close()


@pytest.mark.parametrize("name", ["int8_weights", "fp8_weights"])
@pytest.mark.usefixtures("first_forms")
def test_weights_of_few_bits_are_read_as_such(name: str) -> None:
    model, x = Layer(BF16), torch.randn(1, 1, 1024, device="cuda").bfloat16()
    plan = Plan(backend="inductor", transforms=(name, "products_of_few_rows"))
    with torch.no_grad(), CONFIG.get().patch(force_disable_caches=True):
        call = compile_plan(model, plan, Example((x,)), device="cuda", mode="inference").call
        found, expected = call(x), transform_model(model, (name,))[0](x)
        assert count_products(call, x) == 3
    assert (found.double() - expected.double()).norm() / expected.double().norm() < 2e-2


def count_products(call: Any, *args: Any) -> int:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        call(*args)
        torch.cuda.synchronize()
    names = [event.name for event in profile.events() if event.device_type.name == "CUDA"]
    return sum(name.startswith(NAME) for name in names)


@pytest.mark.usefixtures("first_forms")
def test_products_of_a_layer_are_three_kernels() -> None:
    model, x = Layer(BF16), torch.randn(1, 1, 1024, device="cuda").bfloat16()
    with torch.no_grad(), CONFIG.get().patch(force_disable_caches=True):
        call = compile_plan(model, PLAN, Example((x,)), device="cuda", mode="inference").call
        call(x)
        assert count_products(call, x) == 3


def test_the_fastest_form_is_chosen_once_and_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    weight, x = torch.randn(4096, 2048, device="cuda").bfloat16(), torch.randn(1, 2048, device="cuda").bfloat16()
    tried: list[Form] = []
    launch = operator._launch
    monkeypatch.setattr(operator, "_launch", lambda form, *given: tried.append(form) or launch(form, *given))
    operator.multiply(x, [weight], [], [], "")
    (chosen,) = tuning._chosen.values()
    assert len(set(tried)) >= 2
    tuning._chosen.clear()
    tried.clear()
    (found,) = operator.multiply(x, [weight], [], [], "")
    assert [*tuning._chosen.values()] == [chosen], "a later process reads it from a file"
    assert set(tried) <= {chosen}
    torch.testing.assert_close(found.double(), x.double() @ weight.double().t(), rtol=1e-2, atol=1e-1)


def test_nothing_is_timed_while_a_graph_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    weight, x = torch.randn(1024, 2048, device="cuda").bfloat16(), torch.randn(1, 2048, device="cuda").bfloat16()
    work = Work(1, 2048, (1024,), 2)
    operator._launch(list_forms(work)[0], work, x, (weight,), (), ())  # compiles it
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        (found,) = operator.multiply(x, [weight], [], [], "")
    graph.replay()
    assert not tuning._chosen
    torch.testing.assert_close(found.double(), x.double() @ weight.double().t(), rtol=1e-2, atol=1e-1)


def test_infinite_numbers_of_many_rows_stay() -> None:
    x, weight = torch.randn(20, 72, device="cuda"), torch.randn(40, 72, device="cuda").sign()
    x[0, 5], x[1, 6] = float("inf"), float("nan")
    weight[3, 7] = -float("inf")
    work = Work(20, 72, (40,), 4)
    for form in list_forms(work):
        (found,) = operator._launch(form, work, x, (weight,), (), ())
        torch.testing.assert_close(found, x @ weight.t(), equal_nan=True, rtol=1e-4, atol=1e-4)


class Layers(torch.nn.Module):  # type: ignore[misc,name-defined]
    """A cell, layers one after the other, and small heads."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.cell = torch.nn.GRUCell(5, 256)
        self.layers = torch.nn.ModuleList(torch.nn.Linear(256, 256) for _ in range(40))
        self.head = torch.nn.Linear(256, 3)
        self.cuda().eval()

    def forward(self, x: Any, state: Any) -> Any:
        state = self.cell(x, state)
        y = state
        for layer in self.layers:
            y = y + torch.tanh(layer(y))
        return self.head(y), state


@pytest.mark.parametrize("rows", [16, 128])
def test_a_cell_and_many_layers_of_many_rows_pass(rows: int) -> None:
    model = Layers()
    example = Example((torch.randn(rows, 5, device="cuda"), torch.randn(rows, 256, device="cuda")))
    plan = Plan(backend="inductor", transforms=("products_of_few_rows",), capture="call")
    with torch.no_grad(), CONFIG.get().patch(force_disable_caches=True):
        made = compile_plan(model, plan, example, device="cuda", mode="inference")
        for _ in range(3):
            made.call(*example.args)
        verdict = verify(Subject(Workload(model, (example,)), made.call, model))
        assert verdict.outcome is Outcome.PASS, verdict.reason
        made.close()
