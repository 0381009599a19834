"""Complex → real: each rule against eager in the same precision, the graph around rules, and the door to Inductor."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.fx.experimental.proxy_tensor import make_fx

from torchwise.compile import compile_plan
from torchwise.compile.backends.inductor import aot_backend
from torchwise.compile.transforms import complex_to_real
from torchwise.compile.transforms.complex_to_real import ComplexToReal, backend_for, passes, wrap_complex
from torchwise.compile.transforms.complex_to_real import aot as aot_module
from torchwise.compile.transforms.complex_to_real.rewrite import Rewriting, rewrite
from torchwise.errors import NoEffectError, UnsupportedError
from torchwise.plan import Plan
from torchwise.trial.inspection import _trace_operators
from torchwise.workload import Example, pytree
from torchwise.zoo.random_inputs import Request
from torchwise_models.zoo.ivhl import (
    build_field_superposition,
    field_superposition,
    gross_pitaevskii_step,
    mera_layer,
    vortex_field,
)

C64, C128 = torch.complex64, torch.complex128
PLAN = Plan(backend="inductor", transforms=("complex_to_real",))


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)
    torch._dynamo.reset()


def graph_of(fn: Callable[..., Any], args: tuple[Any, ...]) -> torch.fx.GraphModule:
    def flat(*tensors: Any) -> tuple[Any, ...]:
        result = fn(*tensors)
        return tuple(result) if isinstance(result, tuple | list) else (result,)

    with torch.no_grad():
        return make_fx(torch.func.functionalize(flat, remove="mutations"))(*args)


def rewritten(fn: Callable[..., Any], *args: Any) -> tuple[Rewriting, list[Any]]:
    """Rewrite and run `fn`, uncompiled. No complex operator may be left but views at the edge."""
    rewriting = rewrite(graph_of(fn, args), args)
    places = rewriting.complex_inputs, rewriting.complex_outputs
    with torch.no_grad():
        return rewriting, list(wrap_complex(lambda inputs: rewriting.module(*inputs), *places)(list(args)))


def operators(rewriting: Rewriting) -> set[str]:
    return {str(node.target) for node in rewriting.module.graph.nodes if node.op == "call_function"}


def complex_left(rewriting: Rewriting) -> list[str]:
    values = [(node, node.meta.get("val")) for node in rewriting.module.graph.nodes]
    return [str(node.target) for node, v in values if isinstance(v, torch.Tensor) and v.is_complex()]


def check(fn: Callable[..., Any], *args: Any, times: float = 16.0, strides: bool = True) -> None:
    """Compare with eager: shape, dtype, strides, and every number within `times` its rounding."""
    rewriting, ours = rewritten(fn, *args)
    assert complex_left(rewriting) == []
    theirs = fn(*args)
    theirs = list(theirs) if isinstance(theirs, tuple | list) else [theirs]
    for our, their in zip(ours, theirs, strict=True):
        assert (our.shape, our.dtype) == (their.shape, their.dtype)
        assert not strides or long_strides(our) == long_strides(their)
        close(our, their, times)


def long_strides(tensor: torch.Tensor) -> list[int]:
    return [stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if size > 1 and tensor.numel()]


def close(our: torch.Tensor, their: torch.Tensor, times: float) -> None:
    if not (their.is_floating_point() or their.is_complex()):
        assert torch.equal(our, their)
        return
    eps = torch.finfo(their.dtype).eps
    bounds = {"rtol": times * eps, "atol": times * eps, "equal_nan": True}
    torch.testing.assert_close(our.resolve_conj(), their.resolve_conj(), **bounds)


def z(*shape: int, dtype: torch.dtype = C128, scale: float = 1.0) -> torch.Tensor:
    return scale * torch.randn(shape, dtype=dtype)


# ---- rules: elementwise

UNARY: dict[str, Callable[[torch.Tensor], Any]] = {
    name: getattr(torch, name)
    for name in (  # noqa: SIM905
        "exp expm1 log log2 log10 log1p sqrt rsqrt square reciprocal neg sgn abs angle sin cos tan sinh cosh tanh asin "
        "acos atan asinh acosh atanh sigmoid real imag isnan isinf isfinite logical_not view_as_real conj_physical exp2"
    ).split()
}
UNARY |= {
    "conj then more": lambda x: x.conj() * 2,
    "imag of conj": lambda x: x.conj().imag * 2,
    "one minus": lambda x: 1 - x,
    "squared modulus": lambda x: x.abs() ** 2 + x.abs().square() + x.abs() * x.abs() + x.abs(),
    "over a number": lambda x: x / (0.3 - 2j),
    "a number over": lambda x: (1 + 2j) / x,
    "times i": lambda x: 1j * x,
    "alpha": lambda x: torch.add(x, x, alpha=2 - 1j) + torch.sub(x, 3, alpha=2),
    "addcmul": lambda x: torch.addcmul(x, x, x.conj(), value=0.5),
    "addcdiv": lambda x: torch.addcdiv(x, x, x + 5, value=2j),
    "eq": lambda x: (x == x) & (x != 0) & (x.real == x),
}


@pytest.mark.parametrize("dtype", [C64, C128])
@pytest.mark.parametrize("function", UNARY.values(), ids=list(UNARY))
def test_functions_of_one_number(function: Callable[..., Any], dtype: torch.dtype) -> None:
    def also(x: torch.Tensor) -> Any:
        return function(x), x * x  # so that there is arithmetic, also where the function only moves

    check(also, z(7, 5, dtype=dtype), times=64)
    if dtype is C128:  # forms are treated alike in both precisions
        forms = z(), z(0, 3), z(4, 6).t()[::2]
        check(lambda *given: [answer for x in given for answer in also(x)], *forms, times=64, strides=False)


BINARY: dict[str, Callable[..., Any]] = {
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "div": torch.div,
    "pow": torch.pow,
    "eq": torch.eq,
    "ne": torch.ne,
    "rsub": torch.rsub,
    "logical_and": torch.logical_and,
}
OPERANDS: dict[str, tuple[Any, Any]] = {
    "complex, complex": (z(3, 4), z(3, 4)),
    "broadcast": (z(3, 1), z(4)),
    "real, complex": (torch.rand(3, 4, dtype=torch.float64), z(4)),
    "complex, real": (z(3, 1), torch.rand(3, 4, dtype=torch.float64)),
    "of two precisions": (z(3, 4, dtype=C64), z(3, 4)),
    "complex64, float64 number": (z(3, 4, dtype=C64), torch.tensor(0.3, dtype=torch.float64)),
    "complex64, half": (z(3, dtype=C64), torch.rand(3).half()),
    "integer": (z(3, dtype=C64), torch.tensor([1, 2, 3])),
    "scalar": (z(3, 4), 1.5),
    "complex scalar": (z(3, 4), 0.5 - 1.5j),
    "real, complex scalar": (torch.rand(3, 4), 1j),
}


@pytest.mark.parametrize("operands", OPERANDS.values(), ids=list(OPERANDS))
def test_functions_of_two_numbers(operands: tuple[Any, Any]) -> None:
    first, second = operands
    if isinstance(second, torch.Tensor):
        check(lambda x, y: [function(x, y) + 0.5j for function in BINARY.values()], first, second, times=64)
    else:
        of_a_number = [function for function in BINARY.values() if function is not torch.logical_and]
        check(lambda x: [function(x, second) + 0.5j for function in of_a_number], first, times=64)


@pytest.mark.parametrize("exponent", [0, 1, 2, 3, -1, -2, 7, 40, 0.5, -0.5, 1.7, 0.3 - 2j])
@pytest.mark.parametrize("dtype", [C64, C128])
def test_powers(exponent: Any, dtype: torch.dtype) -> None:
    check(lambda x: x**exponent, z(50, dtype=dtype), times=400 if exponent == 40 else 64)


def test_powers_of_and_to_numbers() -> None:
    check(lambda x: 2.0**x, z(9))
    check(lambda x: (1 - 2j) ** x, z(9))
    x = torch.tensor([0, 0, 2, 0], dtype=C128)
    y = torch.tensor([0, 2, 0, 1 + 1j], dtype=C128)
    check(torch.pow, x, y)


SIZES = [0.0, 1e-30, 1e-18, 1e-3, 1.0, 2.5, 1e3, 1e18, 1e30]
PARTS = [sign * size for size in SIZES for sign in (1.0, -1.0)]
EDGE = torch.tensor([complex(a, b) for a in PARTS for b in PARTS], dtype=C64)


def relative(our: torch.Tensor, their: torch.Tensor) -> torch.Tensor:
    """The distance over the modulus, both in complex128, and 0 if both are 0."""
    our, their = our.to(C128), their.to(C128)
    return (our - their).abs() / their.abs().clamp_min(1e-45)


@pytest.mark.parametrize(
    "function", [torch.abs, torch.sqrt, torch.log, torch.reciprocal, torch.sgn, torch.angle, torch.atanh, torch.acosh]
)
def test_no_overflow_and_no_loss_at_the_edges(function: Callable[..., Any]) -> None:
    x = EDGE[EDGE != 0]
    _, (ours, _) = rewritten(lambda x: (function(x), x * 1j), x)
    exact = function(x.to(C128))
    representable = exact.abs().float().isfinite() & (exact.abs() > 1e-37)
    assert torch.isfinite(ours[representable]).all()
    assert relative(ours, exact)[representable].max() < 1e-5


def test_division_scales_as_eager_does() -> None:
    a, b = EDGE[EDGE != 0][:, None], EDGE[EDGE != 0][None, :]
    _, (ours,) = rewritten(torch.div, a, b)
    exact = a.to(C128) / b.to(C128)
    representable = (exact.abs() < 1e37) & (exact.abs() > 1e-36)
    assert relative(ours, exact)[representable].max() < 1e-5


def test_tanh_saturates() -> None:
    x = torch.tensor([50 + 1j, -200 + 0.3j, 1000 - 2j, 11.9 + 1j, 12.1 + 1j, 0, 0.1j], dtype=C64)
    check(torch.tanh, x)
    check(torch.tan, x * 1j)


def test_logarithms_near_one_and_expm1_near_zero_keep_their_digits() -> None:
    small = z(200, dtype=C64, scale=1e-4)
    for function, x in ((torch.log, 1 + small), (torch.log1p, small), (torch.expm1, small)):
        _, (ours,) = rewritten(function, x)
        theirs = function(x.to(C128))
        assert (relative(ours.real + 0j, theirs.real + 0j)).median() < 1e-3
        assert relative(ours, theirs).max() < 1e-6


finite = st.floats(-1e6, 1e6, allow_subnormal=False)
numbers = st.lists(st.builds(complex, finite, finite), min_size=1, max_size=6)


@settings(max_examples=10, deadline=None)
@given(numbers, numbers)
def test_arithmetic_of_any_numbers(first: list[complex], second: list[complex]) -> None:
    a = torch.tensor(first, dtype=C128)[:, None]
    b = torch.tensor(second, dtype=C128)
    b = torch.where(b.abs() < 1e-6, 1.0, b)
    _, ours = rewritten(lambda a, b: (a * b, a / b, a + b, a - b, a.abs(), a.sqrt()), a, b)
    for our, their in zip(ours, (a * b, a / b, a + b, a - b, a.abs(), a.sqrt()), strict=True):
        bound = 1e-14 * max(float((a.abs() * b.abs()).max()), float(their.abs().max()), 1e-300)
        assert float((our - their).abs().max()) <= bound


# ---- rules: reductions, products, shapes, conversions

MOVES: dict[str, Callable[[torch.Tensor], Any]] = {
    "sum": lambda x: (x.sum(), x.sum(0), x.sum((0, 2), keepdim=True), x.real.sum(dtype=C128)),
    "mean": lambda x: (x.mean(), x.mean(1, keepdim=True)),
    "cumsum": lambda x: x.cumsum(1),
    "prod": lambda x: (x.prod(), x.prod(1), x.prod(2, keepdim=True)),
    "cumprod": lambda x: (x.cumprod(0), x.cumprod(2)),
    "norm": lambda x: (torch.linalg.vector_norm(x), torch.linalg.vector_norm(x, dim=1), x.norm(p=1)),
    "any": lambda x: (x.any(), (x * 0).any(1), x.all(0)),
    "view": lambda x: (x.reshape(-1) * 2, x.flatten(1) + 1, x.reshape(2, 2, -1) * 2, x.view(x.shape) * 2),
    "axes": lambda x: (x.permute(2, 0, 1) * 2, x.transpose(0, 1).contiguous(), x.mT + 1j, x.movedim(0, 2) * 1),
    "sizes": lambda x: (x.unsqueeze(1) * 2, x[:, :1].squeeze(1) * 2, x[:1].expand(5, 3, 4) * 2, x.repeat(2, 1, 3)),
    "index": lambda x: (x[1] * 2, x[:, 1:3, ::2] * 2, x[:, torch.tensor([0, 2])], x[torch.tensor([1, 0]), 1]),
    "picks": lambda x: (x.index_select(1, torch.tensor([2, 0])), x.gather(0, torch.ones(1, 3, 4, dtype=torch.long))),
    "roll flip": lambda x: (x.roll(1, 0), x.roll((1, -2), (1, 2)), x.flip(2), x.roll(1)),
    "cat": lambda x: (torch.cat([x, x.real], 1), torch.stack([x, x * 1j], 1), torch.hstack([x.real + 0j, x])),
    "split": lambda x: (*x.split(2, 2), *x.unbind(0), *x.chunk(3, 1)),
    "where": lambda x: (
        torch.where(x.real > 0, x, 0),
        torch.where(x.imag > 0, x.real, x),
        x.masked_fill(x.real > 0, 2j),
    ),
    "writes": lambda x: write_slices(x),
    "pad": lambda x: (torch.nn.functional.pad(x, (1, 2)), torch.constant_pad_nd(x, (0, 1, 2, 0), 3.0)),
    "triangle": lambda x: (x.triu(), x.tril(1), torch.diagonal(x, dim1=1, dim2=2) * 2, torch.diag_embed(x)),
    "scatter": lambda x: (
        x.scatter(0, torch.zeros(1, 3, 4, dtype=torch.long), 1j),
        x.scatter_add(0, torch.ones(1, 3, 4, dtype=torch.long), x[:1]),
        x.index_add(1, torch.tensor([2, 0]), x[:, :2]),
        x.index_put((torch.tensor([1, 1]),), x[:1], accumulate=True),
    ),
    "makes": lambda x: (
        torch.zeros_like(x) + x,
        torch.ones_like(x) * x,
        torch.full_like(x, 2 - 1j) + x,
        x.new_zeros(2) + 1,
        torch.full((3,), 1j, dtype=x.dtype) * 2,
        x.new_full((2,), 3.0) * 1j,
    ),
    "converts": lambda x: (x.to(C64), x.real.to(C128), x.bool(), x.real.to(C64) * 2, x.to(C128).clone()),
    "made of parts": lambda x: (torch.complex(x.real, x.imag * 2), torch.polar(x.abs(), x.angle())),
    "views": lambda x: (torch.view_as_complex(torch.view_as_real(x) * 2), torch.view_as_real(x)[..., 1].sum()),
}


def write_slices(x: torch.Tensor) -> torch.Tensor:
    y = x.clone()
    y[:, 1] = 2j
    y[0, :, 1:3] *= y[1, :, :2]
    y.fill_(1j) if y.numel() == 0 else y.add_(x)
    return y


@pytest.mark.parametrize("function", MOVES.values(), ids=list(MOVES))
def test_what_moves_and_adds_numbers(function: Callable[..., Any]) -> None:
    def also(x: torch.Tensor) -> Any:
        result = function(x)
        return (*(result if isinstance(result, tuple | list) else (result,)), x * x)

    check(also, z(2, 3, 4))
    check(also, z(4, 3, 2).permute(2, 1, 0), strides=False)


PRODUCTS: dict[str, Callable[..., Any]] = {
    "mm": lambda a, b: a @ b,
    "hermitian": lambda a, b: a.mH @ a,
    "times i": lambda a, b: (a.real * 1j) @ b + a @ (b.real * 1j),
    "row": lambda a, b: a[:1] @ b,
    "column": lambda a, b: a @ b[:, :1],
    "mv": lambda a, b: (a @ b[:, 0], torch.vdot(a[0], a[1]), torch.dot(a[0], a[1])),
    "bmm": lambda a, b: a.unsqueeze(0).expand(3, -1, -1) @ b.expand(3, -1, -1),
    "bmv": lambda a, b: torch.einsum("nij,nj->ni", a.expand(3, -1, -1), a[:3]),
    "addmm": lambda a, b: torch.addmm(b[0], a, b, beta=2j, alpha=0.5),
    "baddbmm": lambda a, b: torch.baddbmm(b[None, :1], a[None], b[None], beta=2, alpha=1j),
    "addmv": lambda a, b: torch.addmv(a[:, 0], a, b[:, 0], beta=2, alpha=1j),
    "einsum": lambda a, b: torch.einsum("ij,jk,kl->il", a, b, b.mH),
    "outer": lambda a, b: torch.outer(a[0], b[0].conj()),
}


@pytest.mark.parametrize("dtype", [C64, C128])
@pytest.mark.parametrize("function", PRODUCTS.values(), ids=list(PRODUCTS))
def test_products(function: Callable[..., Any], dtype: torch.dtype) -> None:
    a, b = z(4, 5, dtype=dtype), z(5, 6, dtype=dtype)
    also = lambda a, b: (*(r if isinstance(r := function(a, b), tuple) else (r,)), a * 1j)  # noqa: E731
    _, ours = rewritten(also, a, b)
    for our, their in zip(ours, also(a, b), strict=True):
        assert long_strides(our) == long_strides(their)
        close(our, their, 64)


@pytest.mark.parametrize("name", ["row", "column", "mv", "bmv", "real matrix", "addmv"])
def test_products_that_are_fused_or_real(name: str) -> None:
    products = {**PRODUCTS, "real matrix": lambda a, b: (a.real.to(C128) @ b, a @ b.real.to(C128))}
    check(products[name], z(4, 5), z(5, 6), times=64, strides=False)


# ---- the graph


def test_outputs_keep_their_strides() -> None:
    x = z(3, 4, 5)
    check(lambda x: ((x * 2).permute(2, 0, 1), (x * 2).transpose(0, 2), x.abs().t() if x.dim() == 2 else x.abs().mT), x)
    check(lambda x: ((x.sum(0) * 2).expand(6, 4, 5),), x)
    check(lambda x: (x.mT * 2, (x.mT * 2).abs(), x.mT.exp().real), x)


def test_outputs_keep_gaps_and_repetitions() -> None:
    x = z(3, 4, 6)
    check(lambda x: ((x * 2)[:, ::2], (x * 2)[..., 1:3], (x * 2)[:, :, ::3].transpose(0, 2), (x * 2)[:1, :, :2]), x)
    check(lambda x: ((x * 2).abs()[:, 1:3], (x * 2).imag, (x * 2)[0].real.t(), torch.view_as_real(x * 2)), x)
    check(lambda x: ((x * 2)[0].expand(2, 4, 6), (x * 2)[:, :1, ::2].expand(3, 5, 3)), x)


def test_an_output_whose_elements_overlap_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="padding does not give"):
        rewritten(lambda x: (x * 2).unfold(0, 3, 1), z(6))


def test_fft_and_linear_algebra_run_between_rewritten_regions() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.fft.ifft(torch.fft.fft(x * 2j) * x.exp()) + torch.linalg.solve(x, x.conj() + 1)

    x = z(4, 4)
    rewriting, (ours,) = rewritten(function, x)
    close(ours, function(x), 64)
    found = operators(rewriting)
    assert {"aten._fft_c2c.default", "aten.view_as_complex.default", "aten.view_as_real.default"} <= found
    assert "aten.complex.default" not in found


def test_complex_results_of_real_operators_and_several_results() -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        values, _ = torch.linalg.eig(x)
        return (values * 1j).abs(), torch.fft.rfft(x) * 2

    check_values(function, torch.randn(4, 4, dtype=torch.float64))


def check_values(function: Callable[..., Any], *args: torch.Tensor) -> None:
    _, ours = rewritten(function, *args)
    for our, their in zip(ours, function(*args), strict=True):
        close(our, their, 64)


@pytest.mark.parametrize(
    ("function", "x", "reason"),
    [
        (lambda x: x * 2, torch.randn(3), "it has no complex arithmetic"),
        (torch.fft.fft, z(4), "none can be rewritten with profit: aten._fft_c2c.default"),
        (lambda x: x.reshape(-1).clone(), z(2, 2), "none can be rewritten with profit: none computes"),
        (lambda x: x * 2, z(3).to(torch.complex32), "it has no complex arithmetic"),
    ],
)
def test_nothing_to_gain(function: Callable[..., Any], x: torch.Tensor, reason: str) -> None:
    with pytest.raises(UnsupportedError, match=re.escape(reason)):
        rewrite(graph_of(function, (x,)), (x,))


def test_the_graph_itself_is_left_as_it_was() -> None:
    x = z(3)
    graph = graph_of(lambda x: x * x, (x,))
    before = graph.code
    rewrite(graph, (x,))
    assert graph.code == before


def test_exact_zeros_cost_nothing() -> None:
    rewriting, _ = rewritten(lambda p: torch.exp(1j * p) * p, torch.rand(5))
    assert "aten.exp.default" not in operators(rewriting)
    names = [str(n.target) for n in rewriting.module.graph.nodes]
    assert names.count("aten.mul.Tensor") == 2
    rewriting, _ = rewritten(lambda x: (x * 2).real, z(5))
    assert "aten.cat.default" not in operators(rewriting)
    rewriting, _ = rewritten(lambda x: x.abs() ** 2, z(5))
    assert "aten.hypot.default" not in operators(rewriting)


SUMS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "a sum": lambda x: (x * 1j).sum(-1),
    "what is done to a sum": lambda x: (x.exp().mean(-1) * (2 - 1j)).reshape(2, -1),
}


@pytest.mark.parametrize("function", SUMS.values(), ids=SUMS.keys())
def test_what_a_large_reduction_gives_on_a_gpu_is_interleaved_apart(
    function: Callable[[torch.Tensor], torch.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    x = z(6, 5)
    assert "aten.where.self" not in operators(rewritten(function, x)[0]), "on a CPU it is not"
    monkeypatch.setattr(passes, "DEVICE", "cpu")
    assert "aten.where.self" not in operators(rewritten(function, x)[0]), "a small one is not"
    monkeypatch.setattr(passes, "MIN_ELEMENTS", x.numel())
    rewriting, _ = rewritten(function, x)
    assert "aten.where.self" in operators(rewriting)
    assert "aten.cat.default" not in operators(rewriting)
    check(function, x, times=64)


@pytest.mark.parametrize(
    "function", [lambda x: x * 1j, lambda x: x.sum(-1, keepdim=True) * x, lambda x: (x @ x.mT) * 1j]
)
def test_what_no_reduction_gives_is_interleaved_as_it_is_written(
    function: Callable[[torch.Tensor], torch.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(passes, "DEVICE", "cpu")
    monkeypatch.setattr(passes, "MIN_ELEMENTS", 1)
    assert "aten.where.self" not in operators(rewritten(function, z(6, 5))[0])


def test_a_field_of_halved_angles_is_as_near_to_complex128(monkeypatch: pytest.MonkeyPatch) -> None:
    request = Request("ivhl.field_superposition@4096x100", "cpu", torch.float32, 0)
    workload = build_field_superposition(request, grid=4096, sources=100)
    example = workload.examples[0]
    tensors = pytree.tensors(example.args)

    def field(*given: torch.Tensor) -> Any:
        rest = iter(given)
        return workload.call(*pytree.map_tensors(lambda _: next(rest), example.args))

    def error() -> tuple[float, set[str]]:
        rewriting, [answer] = rewritten(field, *tensors)
        return float((answer - right).abs().square().mean().sqrt()), operators(rewriting)

    right = field(*(tensor.double() for tensor in tensors))
    whole, _ = error()
    monkeypatch.setattr(passes, "DEVICE", "cpu")
    monkeypatch.setattr(passes, "MIN_ANGLES", 1)
    half, used = error()
    assert "aten.tan.default" in used
    assert half < 1.02 * whole


def test_a_halved_angle_is_right_to_2e_7_of_the_unit_circle(monkeypatch: pytest.MonkeyPatch) -> None:
    x = 100 * torch.randn(1_000_000)

    def error() -> float:
        _, [answer] = rewritten(lambda x: (1j * x).exp(), x)
        return float((answer - (1j * x.double()).exp()).abs().max())

    assert error() < 6e-8
    monkeypatch.setattr(passes, "DEVICE", "cpu")
    monkeypatch.setattr(passes, "MIN_ANGLES", 1)
    assert 6e-8 < error() < 2e-7


ON_THE_CIRCLE = {
    "exp": lambda x: (1j * x).exp(),
    "polar": lambda x: torch.polar(torch.ones_like(x), x),
    "both twice": lambda x: (1j * x).exp() + torch.polar(x, x),
    "cosh": lambda x: torch.complex(0 * x, x).cosh() + torch.complex(0 * x, x).sinh(),
}


@pytest.mark.parametrize("function", ON_THE_CIRCLE.values(), ids=ON_THE_CIRCLE.keys())
def test_large_angles_on_a_gpu_are_halved(
    function: Callable[[torch.Tensor], torch.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    x = torch.cat([30 * torch.randn(400), torch.tensor([0.0, -0.0, torch.pi, torch.pi / 2, 1e6, -3e8, torch.inf])])
    assert "aten.tan.default" not in operators(rewritten(function, x)[0]), "on a CPU they are not"
    monkeypatch.setattr(passes, "DEVICE", "cpu")
    assert "aten.tan.default" not in operators(rewritten(function, x)[0]), "few are not"
    monkeypatch.setattr(passes, "MIN_ANGLES", x.numel())
    rewriting, [answer] = rewritten(function, x)
    assert "aten.tan.default" in operators(rewriting)
    assert not {"aten.cos.default", "aten.sin.default"} & operators(rewriting)
    wide = x.double()
    torch.testing.assert_close(answer, function(wide).to(answer.dtype), rtol=5e-7, atol=2e-7, equal_nan=True)
    assert "aten.tan.default" not in operators(rewritten(function, wide)[0]), "in float64 they are not"


@pytest.mark.parametrize(
    "function",
    [
        lambda x: (1j * x).exp().real,
        lambda x: torch.complex(x, x).exp().real,  # whose sine was multiplied before nobody asked for it
        lambda x: torch.complex(x.cos(), x.sin()) * 1j,
        lambda x: x.sin() * 1j,
        lambda x: [(w := torch.complex(x, x) * x).real.cos() / (w.real.sin() + 2), w],  # parts that lie otherwise
    ],
)
def test_what_is_one_part_alone_or_the_models_own_is_not_halved(
    function: Callable[[torch.Tensor], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(passes, "DEVICE", "cpu")
    monkeypatch.setattr(passes, "MIN_ANGLES", 1)
    assert "aten.tan.default" not in operators(rewritten(function, torch.randn(5))[0])


def test_a_rewritten_graph_may_fuse_more_before_it_is_written_to_memory() -> None:
    from torch._inductor import config

    seen, backend = [], make_eager_backend()
    compiles = backend._inner

    def inner(*args: Any, **kwargs: Any) -> Any:
        seen.append((config.realize_acc_reads_threshold, config.realize_opcount_threshold))
        return compiles(*args, **kwargs)

    backend._inner = inner
    before = (config.realize_acc_reads_threshold, config.realize_opcount_threshold)
    torch.compile(lambda x: x * 2, backend=backend)(z(3))
    torch.compile(lambda x: x * 3, backend=backend)(torch.randn(3))
    assert seen == [(32, 120), before], "and no other graph"


@pytest.mark.parametrize(
    ("function", "x", "in_vectors"),
    [
        (lambda x: x.exp() * 2, z(3), True),
        (lambda x: x.abs().log(), z(3), True),
        (lambda x: x.angle() * x, z(3), True),
        (lambda x: x * x + 1, z(3), False),
        (lambda x: (x * 2j).abs(), z(3), False),
        (lambda x: (x * 2j).exp(), torch.randn(3), False),
    ],
    ids=["exp", "log", "angle", "product", "modulus", "of real numbers"],
)
def test_functions_of_interleaved_numbers_are_computed_in_vectors(
    function: Callable[..., Any], x: torch.Tensor, in_vectors: bool
) -> None:
    from torch._inductor import config

    seen, backend = [], make_eager_backend()
    compiles = backend._inner

    def inner(*args: Any, **kwargs: Any) -> Any:
        seen.append(config.cpp.enable_tiling_heuristics)
        return compiles(*args, **kwargs)

    backend._inner = inner
    before = config.cpp.enable_tiling_heuristics
    torch.compile(function, backend=backend)(x)
    assert seen == [before and not in_vectors]
    assert config.cpp.enable_tiling_heuristics is before


# ---- below AOTAutograd, uncompiled


def make_eager_backend() -> ComplexToReal:
    def inner(module: torch.fx.GraphModule, _inputs: Any, **_kwargs: Any) -> Any:
        def run_boxed(args: list[Any]) -> Any:
            with torch._C._DisableAutocast():  # compiled code calls no operator that autocast could change
                return module(*args)

        run_boxed._boxed_call = True  # type: ignore[attr-defined]
        return run_boxed

    return ComplexToReal({}, inner)


def gradients(function: Callable[..., Any], args: list[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    result = function(*args)
    loss = (result.abs() if result.is_complex() else result).square().sum() + result.real.sum()
    return torch.autograd.grad(loss, args)


DIFFERENTIABLE: dict[str, Callable[..., torch.Tensor]] = {
    "step": lambda x: gross_pitaevskii_step(x.reshape(2, 2, 3)),
    "quotient": lambda x: (x + 3) / (x * x - 5j) + (x.exp() * 1j).sum(),
    "functions": lambda x: x.sin() * x.tanh() + (x + 4).log() * (x + 3).sqrt() + x**3 + (x + 4) ** 0.3,
    "parts": lambda x: torch.polar(x.abs(), x.angle()) + torch.complex(x.imag, x.real) * x.sgn(),
    "matrix": lambda x: x.reshape(3, 4) @ x.reshape(4, 3).conj(),
    "product": lambda x: x.reshape(3, 4).prod(1) * x.cumprod(0)[:3],
    "moves": lambda x: torch.cat([x.roll(1)[:4], x[2:].flip(0)]).reshape(2, -1).transpose(0, 1) * 1j,
    "fft": lambda x: torch.fft.fft(x * 2) * x,
    "real inside": lambda x: x.abs().square() + x.real * x.imag,
    "norm": lambda x: x / torch.linalg.vector_norm(x),
}


@pytest.mark.parametrize("function", DIFFERENTIABLE.values(), ids=list(DIFFERENTIABLE))
def test_gradients(function: Callable[..., torch.Tensor]) -> None:
    door = make_eager_backend()
    x = z(12).requires_grad_()
    ours = gradients(torch.compile(function, backend=door, fullgraph=True), [x])
    close(ours[0], gradients(function, [x])[0], 256)
    assert door.rewritten >= 1
    assert door.reasons == [] or function is DIFFERENTIABLE["real inside"]


def test_gradients_of_real_and_complex_operands_together() -> None:
    def function(a: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.exp(1j * a) @ w * a.sum()

    args = [torch.rand(3, 3, dtype=torch.float64).requires_grad_(), z(3, 3).requires_grad_()]
    door = make_eager_backend()
    ours, theirs = gradients(torch.compile(function, backend=door), args), gradients(function, args)
    for our, their in zip(ours, theirs, strict=True):
        close(our, their, 64)
    assert (door.rewritten, door.reasons) == (2, [])


@pytest.mark.parametrize(
    "given", [z(3, 4), z(4, 3).t(), z(3, 8)[:, ::2], z(3, 1).squeeze(1), z()], ids=["plain", "t", "gaps", "1", "0-dim"]
)
def test_writing_to_an_input(given: torch.Tensor) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        x.mul_(2j).add_(1)
        return x.abs() + x.real

    expected, x = given.clone(), given.clone() if given.is_contiguous() else given
    answer = function(expected)
    door = make_eager_backend()
    close(torch.compile(function, backend=door)(x), answer, 16)
    close(x, expected, 16)
    assert (door.rewritten, door.reasons) == (1, [])


def test_writing_a_view_and_returning_the_input() -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x[0] = 1j
        x.real.mul_(3)
        return x, x[1]

    x, y = z(3, 2), z(3, 2)
    y.copy_(x)
    ours, theirs = torch.compile(function, backend=make_eager_backend())(x), function(y)
    assert ours[0] is x
    close(ours[1], theirs[1], 4)
    close(x, y, 4)


def test_conjugate_inputs_parameters_and_constants() -> None:
    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(z(3, 3))
            self.register_buffer("shift", z(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            constant = torch.tensor([1j, 2.0, 3 - 1j], dtype=C128)
            return x @ self.weight * constant + self.shift

    model, x = Model(), z(2, 3)
    door = make_eager_backend()
    compiled = torch.compile(model, backend=door)
    close(compiled(x), model(x), 16)
    close(compiled(x.conj()), model(x.conj()), 16)
    loss = compiled(x).abs().sum()
    loss.backward()
    ours = model.weight.grad
    model.weight.grad = None
    model(x).abs().sum().backward()
    close(ours, model.weight.grad, 64)
    assert door.reasons == []


def test_constants_in_a_graph() -> None:
    constant = z(3)
    check(lambda x: x * constant + constant.conj(), z(3))


def superpose(points: torch.Tensor, sources: torch.Tensor, size: torch.Tensor, phase: torch.Tensor) -> torch.Tensor:
    r = (points[:, None, :] - sources[None]).norm(dim=-1)
    return (size * torch.exp(1j * (2 * r + phase)) / (r + 0.1)).sum(1)


VARIED: dict[str, tuple[Callable[..., Any], Callable[[int, int], tuple[torch.Tensor, ...]]]] = {
    "a field": (superpose, lambda n, m: (torch.randn(n, 3), torch.randn(m, 3), torch.randn(m), torch.randn(m))),
    "a size as a number": (lambda x: x * 1j / x.shape[0] + x.shape[0], lambda n, _: (z(n),)),
    "a size as an output": (lambda x: (x * 1j, 2 * x.shape[0]), lambda n, _: (z(n),)),
    "a size of a complex tensor": (lambda x: (x * 1j).repeat(x.shape[0], 1), lambda n, _: (z(n),)),
    "views": (lambda x: (x * 1j).view(x.shape[0] // 2, 2, x.shape[1]).sum(1), lambda n, m: (z(2 * n, m),)),
    "a view as real": (lambda x: torch.view_as_real(x * 1j)[..., 0] * x.shape[1], lambda n, m: (z(n, m),)),
    "expanded": (lambda x: x.unsqueeze(0).expand(x.shape[0], x.shape[0]) * 1j, lambda n, _: (z(n),)),
    "made inside": (lambda x: torch.exp(1j * torch.arange(x.shape[0], dtype=torch.float64)) * x, lambda n, _: (z(n),)),
    "zeros": (lambda x: torch.where(x.abs() > 1, x * 1j, torch.zeros_like(x)), lambda n, m: (z(n, m),)),
    "padded": (lambda x: torch.nn.functional.pad(x * 1j, (1, 2)), lambda n, m: (z(n, m),)),
    "rolled around": (lambda x: torch.roll(x, 1, 0) * 1j + torch.roll(x, -1, 0), lambda n, _: (z(n),)),
    "sliced by sizes": (lambda x, y: (x * 1j)[: max(2, x.shape[0] // 2)].sum() + y.sum(), lambda n, m: (z(n), z(m))),
    "an outer product": (lambda x, y: x[:, None] * y[None], lambda n, m: (z(n), z(m))),
    "a product of matrices": (lambda x, y: x @ y * 1j, lambda n, m: (z(n, m), z(m, n))),
    "a transposed output": (lambda x: (x * 1j).t(), lambda n, m: (z(n, m),)),
    "a transposed input": (lambda x: x * 1j, lambda n, m: (z(m, n).t(),)),
    "joined": (lambda x, y: torch.cat([x * 1j, y], 0), lambda n, m: (z(n), z(m))),
    "an operator without a rule": (lambda x: torch.fft.ifft(torch.fft.fft(x) * 1j), lambda n, _: (z(n),)),
    "a product along a known length": (lambda x: (x * 1j).prod(0), lambda n, _: (z(4, n),)),
    "a product along a length that varies": (lambda x: (x * 1j).prod(0) * 2, lambda n, m: (z(n, m),)),
    "a cumulative product": (lambda x: (x * 1j).cumprod(0) * 2, lambda n, m: (z(n, m),)),
    "written in place": (lambda x: x.mul_(2j), lambda n, _: (z(n),)),
}


@pytest.mark.parametrize("name", VARIED)
def test_one_graph_serves_all_sizes(name: str) -> None:
    function, draw = VARIED[name]
    torch._dynamo.reset()
    door = make_eager_backend()
    compiled = torch.compile(function, backend=door, dynamic=True)
    for sizes in ((5, 7), (8, 3), (13, 11), (6, 20)):
        args = draw(*sizes)
        ours = compiled(*[arg.clone() for arg in args])
        theirs = function(*[arg.clone() for arg in args])
        for our, their in zip(*((x if isinstance(x, tuple) else (x,)) for x in (ours, theirs)), strict=True):
            if not isinstance(their, torch.Tensor):
                assert our == their
                continue
            assert (our.shape, our.dtype, our.stride()) == (their.shape, their.dtype, their.stride())
            close(our, their, 1e3)
    assert (door.rewritten, door.reasons) == (1, [])


def test_sizes_are_read_from_inputs_where_the_graph_takes_none() -> None:
    def body(x: torch.Tensor) -> tuple[torch.Tensor]:
        return (torch.roll(x, 1, 0) * 1j + x.shape[0],)

    traced = make_fx(body, tracing_mode="symbolic")(z(5))
    inputs = [node.meta["val"] for node in traced.graph.find_nodes(op="placeholder")]
    assert len(inputs) == 1
    rewriting = rewrite(traced, inputs)
    for size in (5, 9):
        x = z(size)
        close(torch.view_as_complex(rewriting.module(torch.view_as_real(x))[0]), body(x)[0], 16)


def test_a_backward_serves_all_sizes() -> None:
    door = make_eager_backend()
    compiled = torch.compile(lambda x: (x * x.conj() * 1j).imag.sum(), backend=door, dynamic=True)
    for size in (5, 8, 13):
        x = z(size).requires_grad_()
        compiled(x).backward()
        close(x.grad, 2 * x.detach(), 16)
    assert door.rewritten == 2, "one forward and one backward"


def test_autocast_around_a_backward_changes_nothing() -> None:
    door = make_eager_backend()
    x = z(4, 4, dtype=C64).requires_grad_()
    result = torch.compile(lambda x: (x @ x).abs().sum(), backend=door)(x)
    with torch.autocast("cpu", torch.bfloat16):
        result.backward()
    close(x.grad, torch.autograd.grad((x @ x).abs().sum(), x)[0], 64)  # type: ignore[arg-type]


# ---- reasons


def test_failing_leaves_the_graph_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def raise_error(*_args: Any) -> Any:
        raise ValueError("no luck")

    monkeypatch.setattr(complex_to_real, "rewrite_graph", raise_error)
    door, x = make_eager_backend(), z(3)
    reason = "changes nothing here: rewriting failed with ValueError: no luck"
    with pytest.raises(NoEffectError, match=reason) as refused, door.assert_applied():
        close(torch.compile(lambda x: x * 2j, backend=door)(x), x * 2j, 4)
    assert refused.value.part == ("transforms", "complex_to_real")


def test_what_changes_nothing_says_so_every_time() -> None:
    door, x = make_eager_backend(), z(3)
    compiled = torch.compile(torch.fft.fft, backend=door)
    for _ in range(2):  # Dynamo knows it the second time
        with pytest.raises(UnsupportedError, match="none can be rewritten with profit"), door.assert_applied():
            compiled(x)
    with pytest.raises(UnsupportedError, match="no graph was compiled"), make_eager_backend().assert_applied():
        pass
    with door.assert_applied():
        torch.compile(lambda x: x * 2j, backend=door)(x)
    with door.assert_applied():
        pass


def test_a_missing_name_is_told_with_the_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("torch._inductor.compile_fx.fake_tensor_prop")
    with pytest.raises(UnsupportedError, match=rf"fake_tensor_prop, which torch {re.escape(torch.__version__)}"):
        backend_for((("never", 1),))


def test_what_only_code_for_another_process_needs_is_looked_up_before_that_is_compiled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    backend_for((("never", 2),))  # loads Inductor, which itself needs the parts that are taken away
    monkeypatch.delitem(sys.modules, aot_module.__name__)  # looked up as it is imported
    monkeypatch.delattr("torch._inductor.codecache.FxGraphCache")
    with pytest.raises(UnsupportedError, match=r"codecache\.FxGraphCache, which torch"):
        aot_backend(PLAN)
    backend_for((("never", 3),))


# ---- the trait that asks for it


def test_complex_numbers_are_found_where_real_ones_go_in_and_out() -> None:
    x = torch.rand(3)
    assert "complex" in _trace_operators(lambda: torch.exp(1j * x).abs())[0]
    assert "complex" not in _trace_operators(lambda: x.exp().abs())[0]
    found = _trace_operators(lambda: x.exp() + torch.ones(4))
    assert found == (frozenset(), None), "what raises is no reason to fail, and what was counted is not all"


# ---- compiled


def compile_call(call: Callable[..., Any], *args: Any, plan: Plan = PLAN) -> Any:
    return compile_plan(call, plan, Example(args), device="cpu", mode="inference").call


def test_a_transform_that_nobody_has_is_refused() -> None:
    with pytest.raises(UnsupportedError, match=r"transforms has 'sorcery', but there are .*complex_to_real"):
        compile_call(torch.exp, z(3), plan=Plan(backend="inductor", transforms=("sorcery",)))


@pytest.mark.slow
def test_a_plan_that_changes_nothing_says_so() -> None:
    for function, x, reason in (
        (lambda x: x * 2 + 1, torch.randn(3), "complex_to_real changes nothing here: it has no complex arithmetic"),
        (lambda x: torch.fft.fft(x), z(4), "none can be rewritten"),
    ):
        with pytest.raises(UnsupportedError, match=reason):
            compile_call(function, x)(x)


FIELD = (torch.rand(64, 3), torch.rand(5, 3), *(torch.rand(5) for _ in range(3)), 12.5, torch.tensor(0.3))
COMPILED: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "field": (field_superposition, FIELD),
    "step": (gross_pitaevskii_step, (z(4, 5, 6, dtype=C64),)),
    "mera": (mera_layer, (z(4, 2, 2, dtype=C64), z(2, 8, 8, dtype=C64), z(2, 8, 3, dtype=C64))),
    "vortices": (vortex_field, (torch.rand(16, 2), torch.rand(5, 2), torch.tensor([1.0, -1, 1, 1, -1]), 0.125)),
}


@pytest.mark.slow
@pytest.mark.parametrize(("function", "args"), COMPILED.values(), ids=list(COMPILED))
def test_generated_code_has_no_complex_operator_left(function: Callable[..., Any], args: tuple[Any, ...]) -> None:
    from torch._inductor.utils import run_and_get_code

    with torch.no_grad():
        answer, sources = run_and_get_code(compile_call(function, *args), *args)
    expected = function(*args)
    assert (answer.dtype, answer.stride()) == (expected.dtype, expected.stride())
    assert torch.allclose(answer, expected, rtol=1e-5, atol=1e-5)
    assert sources
    assert not [line for source in sources for line in source.splitlines() if re.search(r"torch\.ops\.aten\.\w+", line)]


@pytest.mark.slow
def test_training_strides_mutation_and_fft_compiled() -> None:
    def function(x: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        state.add_(x.detach() * 1j)
        return torch.fft.fft(x.mT * x.mT).abs().square() + (x.exp().mT * 2).real

    x, state = z(4, 3, dtype=C64).requires_grad_(), z(4, 3, dtype=C64)
    other = state.clone()
    answer, expected = compile_call(function, x, state)(x, state), function(x, other)
    assert answer.stride() == expected.stride()
    close(answer, expected, 64)
    close(state, other, 16)
    (ours,), (theirs,) = (torch.autograd.grad(y.sum(), x) for y in (answer, expected))
    close(ours, theirs, 256)


@pytest.mark.slow
def test_frozen_complex_weights() -> None:
    class Waves(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.exp() * 1j

    layer = torch.nn.Linear(3, 3, dtype=C64)
    model = torch.nn.Sequential(layer, Waves(), torch.nn.Linear(3, 2, dtype=C64)).eval()
    x = z(2, 3, dtype=C64)
    plan = PLAN.with_choice("options", ("freezing", True))
    with torch.no_grad():
        close(compile_call(model, x, plan=plan)(x), model(x), 64)
