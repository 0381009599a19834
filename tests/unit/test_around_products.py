"""What is computed in the kernel of products of few rows beside them: activations, residuals and norms."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from dynamo_graphs import rewrite_and_call
from few_rows_here import draw, kernels_on_cpu
from torchwise.compile.few_rows import operator
from torchwise.compile.transforms.function_graphs import products_of_few_rows

WIDTH = 24
Around = tuple[int, str, bool, bool]
"""Of a call of the operator: its weights, its activation, whether it adds a residual, and whether it has a norm."""
PLAIN: Around = (1, "", False, False)


@pytest.fixture(autouse=True)
def use_kernels(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with kernels_on_cpu(monkeypatch):
        yield


class Model(nn.Module):
    """Calls a function with square layers `a`, `b` and `c`, a gain, and norms."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b, self.c = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.gain, self.turned = nn.Parameter(draw(WIDTH, seed=3)), nn.Parameter(draw(WIDTH, 7, seed=5))
        self.norm, self.plain_norm = nn.RMSNorm(WIDTH, eps=1e-3), nn.RMSNorm(WIDTH, eps=0.1, elementwise_affine=False)
        self.unset_norm, self.layer_norm = nn.RMSNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.norm.weight.data.copy_(draw(WIDTH, seed=4))
        self.function = function

    def forward(self, x: Tensor) -> Any:
        return self.function(self, x)


def norm_as_transformers(model: Any, x: Tensor) -> Tensor:
    wide = x.to(torch.float32)
    variance = wide.pow(2).mean(-1, keepdim=True)
    wide = wide * torch.rsqrt(variance + 0.01)
    return model.gain * wide.to(x.dtype)


def norm_as_llama(model: Any, x: Tensor) -> Tensor:
    wide = x.float()
    return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 0.01)).type_as(x) * model.gain


def norm_by_division(model: Any, x: Tensor) -> Tensor:
    return x / torch.sqrt(torch.mean(x * x, dim=x.dim() - 1, keepdim=True) + 0.5)


def norm_by_another_mean(model: Any, x: Tensor) -> Tensor:
    return x * torch.rsqrt(x.square().mean((-2, -1), keepdim=True) + 0.01)


def norm_of_another(model: Any, x: Tensor) -> Tensor:
    return x * torch.rsqrt((x + 1).square().mean(-1, keepdim=True) + 0.01)


def write_between(model: Any, x: Tensor) -> Tensor:
    y = x * 1
    normed = model.norm(y)
    y.mul_(3)
    return model.a(normed) + y.sum()


def write_before_the_sum(model: Any, x: Tensor) -> Tensor:
    y = x * 1
    z = model.a(x)
    y.mul_(3)
    return y + z


def layer(model: Any, x: Tensor) -> Tensor:
    x = x + model.a(norm_as_transformers(model, x))
    y = model.norm(x)
    return model.plain_norm(x + functional.silu(model.b(y)) * model.c(y)) @ model.a.weight.t()


TAKEN: dict[str, tuple[Callable[..., Any], list[Around]]] = {
    "activation": (lambda m, x: torch.relu(m.a(x)), [(1, "relu", False, False)]),
    "activation of a view": (lambda m, x: torch.sigmoid(m.a(x).view(8, 6)), [(1, "sigmoid", False, False)]),
    "tanh": (lambda m, x: torch.tanh(m.a(x)), [PLAIN]),
    "gelu": (lambda m, x: functional.gelu(m.a(x)), [(1, "gelu", False, False)]),
    "gelu by tanh": (lambda m, x: functional.gelu(m.a(x), approximate="tanh"), [(1, "gelu_tanh", False, False)]),
    "activation in place": (lambda m, x: m.a(x).relu_(), [PLAIN]),
    "activation of a sum": (lambda m, x: torch.relu(m.a(x) + x), [(1, "", True, False)]),
    "activation that is read twice": (lambda m, x: torch.relu(y := m.a(x)) + y, [PLAIN]),
    "a chain": (lambda m, x: torch.relu(m.b(torch.relu(m.a(x)))), [(1, "relu", False, False)] * 2),
    "residual": (lambda m, x: x + m.a(x * 2), [(1, "", True, False)]),
    "residual, turned": (lambda m, x: torch.add(m.a(x * 2), x), [(1, "", True, False)]),
    "residual of an activation": (lambda m, x: x + functional.silu(m.a(x)), [(1, "silu", True, False)]),
    "residual of a gate": (
        lambda m, x: x + functional.silu(m.a(x)) * m.b(x),
        [(2, "silu", True, False)],
    ),
    "residual that comes later": (lambda m, x: m.a(x * 2) + torch.tanh(x), [PLAIN]),
    "residual in place": (lambda m, x: (x * 1).add_(m.a(x)), [PLAIN]),
    "residual with a factor": (lambda m, x: torch.add(x, m.a(x * 2), alpha=3), [PLAIN]),
    "residual that is spread": (lambda m, x: x[..., :1] + m.a(x), [PLAIN]),
    "residual of another type": (lambda m, x: x.double() + m.a(x), [PLAIN]),
    "residual of several products": (lambda m, x: (x + m.a(x), m.b(x)), [(2, "", False, False)]),
    "residual that is written": (write_before_the_sum, [PLAIN]),
    "a sum of two products": (lambda m, x: m.a(x) + m.b(x * 2), [PLAIN, (1, "", True, False)]),
    "a product twice": (lambda m, x: (y := m.a(x)) + y, [PLAIN]),
    "norm": (lambda m, x: m.a(m.norm(x)), [(1, "", False, True)]),
    "norm without a gain": (lambda m, x: m.a(m.plain_norm(x)), [(1, "", False, True)]),
    "norm with the least epsilon": (lambda m, x: m.a(m.unset_norm(x)), [(1, "", False, True)]),
    "norm of Transformers": (lambda m, x: m.a(norm_as_transformers(m, x)), [(1, "", False, True)]),
    "norm of Llama": (lambda m, x: m.a(norm_as_llama(m, x)), [(1, "", False, True)]),
    "norm by division": (lambda m, x: m.a(norm_by_division(m, x)), [(1, "", False, True)]),
    "norm of views": (lambda m, x: (m.a((y := m.norm(x)).view(2, WIDTH)), m.b(y)), [(2, "", False, True)]),
    "norm that others read": (lambda m, x: m.a(y := m.norm(x)) + y.sum(), [PLAIN]),
    "norm that another kernel reads": (
        lambda m, x: [layer(y) for y in (m.norm(x),) for layer in (m.a, m.b, m.c, m.a, m.b)],
        [(4, "", False, False), PLAIN],
    ),
    "norm with an epsilon of another form": (
        lambda m, x: m.a(torch.rms_norm(x, (WIDTH,), None, eps=0.5)),
        [(1, "", False, True)],
    ),
    "norm by names": (lambda m, x: m.a(x * torch.rsqrt(input=x.square().mean(-1, keepdim=True) + 0.5)), [PLAIN]),
    "norm by a square by name": (
        lambda m, x: m.a(x * torch.rsqrt(torch.square(input=x).mean(-1, keepdim=True) + 0.5)),
        [PLAIN],
    ),
    "norm in float64": (lambda m, x: m.a(norm_by_division(m, (x * 1e20).to(torch.float64)).float()), [PLAIN]),
    "norm of rounded numbers": (lambda m, x: m.a(norm_by_division(m, x.half().float())), [PLAIN]),
    "norm that is rounded": (lambda m, x: m.a(norm_by_division(m, x).half().float()), [PLAIN]),
    "norm with a gain for each number": (lambda m, x: m.a(norm_by_division(m, x) * x.relu()), [PLAIN]),
    "view of an activation": (
        lambda m, x: m.b(torch.relu(m.a(x)).view(2, WIDTH)),
        [(1, "relu", False, False), PLAIN],
    ),
    "view of an activation that is read twice": (
        lambda m, x: (y := torch.relu(m.a(x)).view(2, WIDTH)) + m.b(y),
        [(1, "relu", False, False), (1, "", True, False)],
    ),
    "norm of an activation": (
        lambda m, x: m.b(norm_as_transformers(m, torch.relu(m.a(x)))),
        [(1, "relu", False, False), (1, "", False, True)],
    ),
    "as in an MLP of GPT-2": (
        lambda m, x: torch.addmm(m.b.bias, functional.gelu(torch.addmm(m.a.bias, x[0], m.a.weight)), m.b.weight),
        [(1, "gelu", False, False), PLAIN],
    ),
    "norm with a mean": (lambda m, x: m.a(m.layer_norm(x)), [PLAIN]),
    "norm by another mean": (lambda m, x: m.a(norm_by_another_mean(m, x)), [PLAIN]),
    "norm by another's squares": (lambda m, x: m.a(norm_of_another(m, x)), [PLAIN]),
    "norm of two dimensions": (lambda m, x: m.a(functional.rms_norm(x, x.shape[-2:])), [PLAIN]),
    "norm of what is written": (write_between, [PLAIN]),
    "norm before weights that lie columns first": (lambda m, x: m.norm(x) @ m.turned, [PLAIN]),
    "a layer": (layer, [(1, "", True, True), (2, "silu", True, True), (1, "", False, True)]),
}
"""Functions of a model, and the calls of the operator that are put in."""


def run(model: Any, *inputs: Tensor) -> tuple[Any, list[Around], list[str]]:
    """Return the answer of a rewritten model, the calls of the operator in it, and the functions that are left."""
    calls: list[Around] = []

    def rewrite(graph: torch.fx.Graph) -> int:
        places = products_of_few_rows.rewrite(graph)
        for node in graph.find_nodes(op="call_function", target=operator.products_of_few_rows):
            _, weights, _, _, activation, added, _, epsilon = (*node.args, None, None, None)[:8]
            calls.append((len(weights), activation, added is not None, epsilon is not None))
        return places

    answer, _, names = rewrite_and_call(model, *inputs, rewrite=rewrite)
    return answer, calls, names


@pytest.mark.parametrize("name", TAKEN)
def test_what_is_around_a_product_is_computed_with_it(name: str) -> None:
    function, expected = TAKEN[name]
    model = Model(function).eval()
    x = draw(1, 2, WIDTH)
    answer, calls, _ = run(model, x)
    torch.testing.assert_close(answer, model(x), rtol=1e-4, atol=1e-5)
    assert calls == expected


def test_nothing_of_a_norm_is_left() -> None:
    model = Model(lambda m, x: m.a(norm_as_transformers(m, x))).eval()
    _, _, names = run(model, draw(1, WIDTH))
    assert not {"pow", "mean", "rsqrt", "mul"} & {*names}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_a_layer_of_16_bits_rounds_no_more_than_eager(dtype: torch.dtype) -> None:
    model = Model(layer).to(dtype).eval()
    x = draw(1, 1, WIDTH).to(dtype)
    answer, calls, _ = run(model, x)
    assert [call[3] for call in calls] == [True] * 3
    exact = Model(layer).to(dtype).double().eval()(x.double())
    assert (answer - exact).norm() <= 1.2 * (model(x) - exact).norm()


def test_a_norm_of_16_bits_with_an_epsilon_that_releases_differ_in_stays() -> None:
    model = Model(lambda m, x: m.a(m.unset_norm(x))).bfloat16().eval()
    assert run(model, draw(1, WIDTH).bfloat16())[1] == [PLAIN]


def test_a_norm_with_a_gain_of_another_type_stays() -> None:
    model = Model(lambda m, x: m.a((m.gain.float() * norm_by_division(m, x)).to(x.dtype))).bfloat16().eval()
    x = draw(1, WIDTH).bfloat16()
    answer, calls, _ = run(model, x)
    assert calls == [PLAIN]
    torch.testing.assert_close(answer, model(x), rtol=2e-2, atol=2e-2)


def test_an_epsilon_that_varies_stays() -> None:
    model = Model(lambda m, x: x).eval()

    def call(x: Tensor, epsilon: float) -> Tensor:
        found: Tensor = model.a(functional.rms_norm(x, (WIDTH,), model.gain, epsilon))
        return found

    def take(module: torch.fx.GraphModule, _: Any) -> Any:
        products_of_few_rows.rewrite(module.graph)
        module.recompile()
        return module.forward

    compiled, x = torch.compile(call, backend=take, dynamic=True), draw(1, WIDTH)
    for epsilon in (0.5, 0.25, 2.0):
        torch.testing.assert_close(compiled(x, epsilon), call(x, epsilon))


def test_a_gain_that_is_changed_is_read() -> None:
    model = Model(lambda m, x: m.a(m.norm(x))).eval()

    def take(module: torch.fx.GraphModule, _: Any) -> Any:
        products_of_few_rows.rewrite(module.graph)
        module.recompile()
        return module.forward

    call, x = torch.compile(model, backend=take), draw(1, WIDTH)
    call(x)
    model.norm.weight.mul_(-3)
    torch.testing.assert_close(call(x), model(x))
