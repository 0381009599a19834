"""Row programs answer as PyTorch does, and leave to it all calls that they are not for."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from row_calls import compile_call, keep_regions
from torchwise.compile import programs as row_programs
from torchwise.compile.programs.kernels import merge_dims
from torchwise.errors import UnsupportedError

SPECIAL = [0.0, -0.0, 1.0, -1.0, math.inf, -math.inf, math.nan, 1e-42, -1e-42, 1e-20, 0.3, -0.61, 0.63, 4.5, -9.7]
SPECIAL += [88.5, 88.9, -87.0, -103.0, -110.0, 3e38, -3e38, 1e7, 12345.678, 0.5, 1.5, 2.5]


@pytest.fixture(autouse=True)
def forget() -> Iterator[None]:
    """Forget code that other tests compiled, and compute without gradients."""
    with torch.no_grad():
        yield
    torch.compiler.reset()


FUNCTIONS: list[Callable[[torch.Tensor], torch.Tensor]] = [
    *(torch.exp, torch.expm1, torch.log, torch.log1p, torch.tanh, torch.sigmoid, torch.erf, torch.sqrt, torch.rsqrt),
    *(torch.reciprocal, torch.floor, torch.ceil, torch.round, torch.trunc, torch.abs, torch.neg, torch.relu),
    *(F.silu, F.gelu, F.softplus, F.elu, F.leaky_relu, F.hardtanh, torch.square, torch.atan, torch.isnan, torch.isinf),
    *(lambda x: F.gelu(x, approximate="tanh"), lambda x: x**3, lambda x: x**-0.5, lambda x: x**1.7),
    *(lambda x: x.clamp(-1, 1), lambda x: torch.maximum(x, -x), lambda x: torch.where(x > 0.4, x, 2 * x)),
    *(lambda x: (x > 0) & ~(x >= 1), lambda x: 3 - 2 * x, lambda x: torch.add(x, x, alpha=3), lambda x: 1 / x),
    *(lambda x: (x > 1).float() + 1, lambda x: (x == x).long() * 3),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_functions_of_numbers_are_those_of_pytorch(dtype: torch.dtype) -> None:
    """NaN and infinity are where PyTorch has them, and errors are a few units in the last place."""
    random = torch.randn(200, generator=torch.Generator().manual_seed(0)) * 4
    x = torch.cat([torch.tensor(SPECIAL), random]).to(dtype)

    def call(x: torch.Tensor) -> list[torch.Tensor]:
        return [function(x) for function in FUNCTIONS]

    for number, (found, wanted, exact) in enumerate(
        zip(compile_call(call, x)(x), call(x), call(x.double()), strict=True)
    ):
        assert found.dtype is wanted.dtype
        if not found.is_floating_point():
            assert torch.equal(found, wanted), number
            continue
        close = 4 * torch.finfo(dtype).eps * exact.abs() + torch.finfo(dtype).tiny
        right = (
            (found == wanted)
            | (found.double() == exact)
            | (found.isnan() & wanted.isnan())
            | ((found.double() - exact).abs() <= close)
        )
        near = (found - wanted).abs() <= 2e-6 * (1 + wanted.abs())  # where eager itself is that far off
        assert bool((right | near).all()), (number, x[~(right | near)])


def test_angles_beyond_the_polynomials_are_left_to_pytorch() -> None:
    def call(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x.sin() + 0, x.cos() * 1

    given = [torch.tensor([0.0, -0.0, 1.0, -2.5, 3e5, largest]) for largest in (5.0, 3e6, 1e12, math.inf)]
    compiled = compile_call(call, given[0])
    for x in given:
        torch.testing.assert_close(compiled(x), call(x), equal_nan=True, rtol=1e-6, atol=1e-7)


def mix(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor, s: torch.Tensor) -> list[torch.Tensor]:
    """Use layouts, broadcasts, products and reductions of all kinds."""
    y = F.linear(x, w, b)
    n = F.layer_norm(y, (y.shape[-1],), b, b)
    return [
        *(y, n, y.softmax(-1), y.log_softmax(-1), x @ w.t(), w @ x.t(), x.t() @ x, y.sum(0), y.sum(), y.mean(-1)),
        *(y.amax(-1), y.amin(0), y.var(-1), y.std(0, correction=0), y.argmax(-1), (y > 0).any(1), y.t() + 1),
        *(torch.cat([x, y * 2, x[:, :1]], 1), torch.stack([y, n]), y[:, None] * y[..., None], x[:, ::2] + 1),
        *(y.unfold(0, 1, 1).squeeze(-1) - 1, y.view(-1)[1:] * s, s + y.new_ones(3, 1), y.chunk(2, 1)[1] * 1),
        torch.logsumexp(y, 1),
        torch.einsum("bi,oi->bo", x, w),
        torch.matmul(y[:, None, :], y[:, :, None]),
    ]


@pytest.mark.parametrize(("rows", "inner", "outputs"), [(1, 33, 21), (37, 70, 40)])
def test_layouts_products_and_reductions(rows: int, inner: int, outputs: int) -> None:
    torch.manual_seed(0)
    wide = torch.randn(inner, rows)
    x, w = wide.t() if rows == 37 else wide.t().contiguous(), torch.randn(outputs, inner)
    given = x, w, torch.randn(outputs), torch.tensor(2.5)
    exact = mix(*(one.double() for one in given))
    for found, wanted, right in zip(compile_call(mix, *given)(*given), mix(*given), exact, strict=True):
        assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape)
        assert found.squeeze().stride() == wanted.squeeze().stride()
        if found.is_floating_point():
            torch.testing.assert_close(found.double(), right, rtol=2e-5, atol=2e-5, equal_nan=True)
        else:
            assert torch.equal(found, wanted)


def test_long_sums_lose_no_digits() -> None:
    x = torch.full((1, 1_000_003), 0.1)
    total, mean, norm = compile_call(lambda x: (x.sum(-1) + 0, x.mean() + 0, F.layer_norm(x, x.shape[1:])), x)(x)
    assert total.item() == pytest.approx(1_000_003 * x[0, 0].item(), rel=3e-7)
    assert mean.item() == pytest.approx(x[0, 0].item(), rel=3e-7)
    assert norm.abs().max() < 1e-2


def look_up(table: torch.Tensor, index: torch.Tensor, offsets: torch.Tensor) -> tuple[torch.Tensor, ...]:
    bags = [F.embedding_bag(index, table, offsets, mode=mode) for mode in ("sum", "mean")]
    rows, columns = F.embedding(index, table), table.t().gather(1, index.expand(table.shape[1], -1))
    return (*bags, rows * 2, columns + 1, table[index] - 1, table.index_select(0, index) * 1)


def test_lookups_and_indices_out_of_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """They raise the error of PyTorch, and the next call is answered."""
    made = keep_regions(monkeypatch)
    table, index, offsets = torch.randn(6, 5), torch.tensor([0, 5, 2, 2, 1]), torch.tensor([0, 2, 2])
    call = compile_call(look_up, table, index, offsets)
    for _ in range(2):
        torch.testing.assert_close(call(table, index, offsets), look_up(table, index, offsets))
        for bad in (6, -7, 2**40, -(2**62)):
            with pytest.raises((IndexError, RuntimeError), match=r"(?i)out of (range|bounds)|index|expect"):
                call(table, torch.tensor([0, 1, bad, 2, 1]), offsets)
        for wrong in ([0, 9, 2], [1, 2, 2]):
            with pytest.raises(RuntimeError, match=r"offsets|index_size"):
                call(table, index, torch.tensor(wrong))
    assert len(made) == 1


def test_calls_that_a_region_is_not_for_are_left_to_the_operators(monkeypatch: pytest.MonkeyPatch) -> None:
    made = keep_regions(monkeypatch)
    x, w = torch.randn(4, 6), torch.randn(6, 6)
    compile_call(lambda x, w: torch.tanh(x @ w) + 1, x, w)(x, w)
    (region,) = made
    for given in (
        (x, w),
        (torch.randn(3, 6), w),
        (x.double(), w.double()),
        (x, w.t()),
        (x, torch.randn(12, 6)[::2]),
        (x[:, :6].clone().as_strided((4, 6), (1, 4)), w),
        (torch.randn(0, 6), w),
        (torch.nn.Parameter(x), w),
    ):
        torch.testing.assert_close(region(*given)[0], torch.tanh(given[0] @ given[1]) + 1)
    for wrong in ((x,), (x, None), (x, w, w), (x, 3)):
        with pytest.raises((TypeError, RuntimeError)):
            region(*wrong)


def test_other_operators_run_between_regions(monkeypatch: pytest.MonkeyPatch) -> None:
    made = keep_regions(monkeypatch)

    def call(x: torch.Tensor) -> torch.Tensor:
        values, places = torch.sort(torch.tanh(x * 2) + x, dim=-1)
        return torch.exp(values) * 2 + places.float() + x.as_strided((5, 9), (9, 1), 0)

    x = torch.randn(6, 9)[1:]
    torch.testing.assert_close(compile_call(call, x)(x), call(x))
    assert len(made) == 2


def test_inverses_are_right_and_singular_matrices_raise() -> None:
    x = torch.eye(3).repeat(4, 1, 1) + torch.randn(4, 3, 3, generator=torch.Generator().manual_seed(1)) / 4
    call = compile_call(lambda x: torch.linalg.inv(x * 2) @ x + 1, x)
    torch.testing.assert_close(call(x), torch.linalg.inv(x * 2) @ x + 1)
    with pytest.raises(RuntimeError, match="singular"):
        call(torch.ones(4, 3, 3))


def test_threads_have_workspaces_of_their_own() -> None:
    def call(x: torch.Tensor) -> torch.Tensor:
        y = torch.cat([torch.tanh(x), x * 2], 1)
        return torch.softmax(y, -1) @ y.t()

    inputs = [torch.randn(256, 300) for _ in range(4)]
    compiled = torch.no_grad()(compile_call(call, inputs[0]))
    compiled(inputs[0])
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(lambda x: [compiled(x) for _ in range(3)], inputs))
    torch.testing.assert_close(found, [[call(x)] * 3 for x in inputs], rtol=1e-4, atol=1e-4)


def test_integers_and_booleans() -> None:
    def call(x: torch.Tensor, flags: torch.Tensor) -> list[torch.Tensor]:
        y = x * 3 - torch.arange(6)
        return [y, y.sum(-1), (y > 2) ^ flags, torch.where(flags, y, 0), y.double() / 7, y.to(torch.int32) + 1]

    x, flags = torch.randint(-9, 9, (4, 6)), torch.rand(4, 6) > 0.5
    found = compile_call(call, x, flags)(x, flags)
    assert all(torch.equal(one, other) for one, other in zip(found, call(x, flags), strict=True))


@pytest.mark.parametrize("dtype", [torch.int32, torch.uint8, torch.int64])
def test_sums_of_integers_begin_again_when_they_overflow(dtype: torch.dtype) -> None:
    x = torch.full((3, 40), torch.iinfo(dtype).max - 1, dtype=dtype)

    def call(x: torch.Tensor) -> torch.Tensor:
        return (x * 1).sum(1, dtype=dtype) + 1

    assert torch.equal(compile_call(call, x)(x), call(x))


def test_unusual_reductions_types_and_constants() -> None:
    def call(x: torch.Tensor) -> list[torch.Tensor]:
        flags = x > 0
        far = torch.full((4, 6), math.inf).to(torch.int64)
        back = (x / 0).long().float() * 2
        return [
            *(flags.to(torch.uint8).any(1), torch.any(flags, dim=()), x.sum().sum(0), x**math.inf, far + flags, back),
            *(torch.tanh(-0.0 * x.abs()), torch.expm1(-0.0 * x.abs()), (-0.0 * x.abs()).clamp(0, 1), x * 2),
        ]

    x = torch.randn(4, 6)
    for found, wanted in zip(compile_call(call, x)(x), call(x), strict=True):
        torch.testing.assert_close(found, wanted)
        assert torch.equal(found.double().signbit(), wanted.double().signbit())


def test_an_operator_with_effects_runs_outside_of_regions() -> None:
    x = torch.randn(20, 20) + 9 * torch.eye(20)
    call = compile_call(lambda x: torch.linalg.inv(x.tanh() * 2) + 1, x)
    torch.testing.assert_close(call(x), torch.linalg.inv(x.tanh() * 2) + 1)
    with pytest.raises(RuntimeError, match="singular"):
        call(torch.zeros(20, 20))

    def check(x: torch.Tensor, flag: torch.Tensor) -> torch.Tensor:
        torch._assert_async(flag, "the flag is down")
        return (x * 2).tanh() * flag

    call = compile_call(check, x, torch.tensor(True))
    torch.testing.assert_close(call(x, torch.tensor(True)), check(x, torch.tensor(True)))
    with pytest.raises(RuntimeError, match="the flag is down"):
        call(x, torch.tensor(False))


def test_a_batch_of_nothing_is_answered() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2)).eval()
    call = compile_call(model, torch.randn(2, 3))
    assert call(torch.randn(2, 3)).shape == (2, 2)
    assert call(torch.randn(0, 3)).shape == (0, 2)


def test_gradients_are_refused() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh())
    with torch.enable_grad(), pytest.raises(UnsupportedError, match="gradients are enabled"):
        compile_call(model, torch.randn(2, 3))(torch.randn(2, 3))


def test_a_model_without_regions_is_refused_with_the_reason() -> None:
    x = torch.randn(4, 4)
    with pytest.raises(UnsupportedError, match=r"no two of its operators can run together.*sort"):
        compile_call(lambda x: torch.sort(x)[0], x)(x)


def test_dimensions_merge_where_all_accesses_allow_it() -> None:
    assert merge_dims((2, 3, 4), [(12, 4, 1), (12, 4, 1)]) == ([24], [[1], [1]])
    assert merge_dims((2, 3, 4), [(12, 4, 1), (0, 4, 1)]) == ([2, 12], [[12, 1], [0, 1]])
    assert merge_dims((1, 1), [(1, 1)]) == ([], [[]])


def test_a_check_of_errors_runs_beside_regions_with_all_of_its_arguments() -> None:
    """The inverse of a large matrix is left to PyTorch, with the operator that raises if it has none."""

    def call(x: torch.Tensor) -> torch.Tensor:
        return (torch.linalg.inv(x * 2 + 1) * x - 1).tanh()

    x = torch.randn(40, 40, generator=torch.Generator().manual_seed(0))
    compiled = compile_call(call, x)
    torch.testing.assert_close(compiled(x), call(x), rtol=1e-3, atol=1e-4)
    with pytest.raises(torch.linalg.LinAlgError, match="singular"):
        compiled(torch.ones(40, 40))


def test_a_long_loop_is_shared_among_threads_and_right(monkeypatch: pytest.MonkeyPatch) -> None:
    sources: list[str] = []
    load = row_programs.load_module
    monkeypatch.setattr(row_programs, "load_module", lambda source: sources.append(source) or load(source))

    def call(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        for _ in range(6):
            x = (x * y + 1).sin() * 0.5
        return x

    short = torch.randn(100), torch.randn(100)
    torch.testing.assert_close(compile_call(call, *short)(*short), call(*short))
    assert "parallel" not in sources[-1]
    for y in (torch.randn(300_000), torch.randn(3000, 100).t().reshape(300_000), torch.randn(1)):
        given = torch.randn(300_000), y
        compiled = compile_call(call, *given)
        torch.testing.assert_close(compiled(*given), call(*given))
    assert "parallel for simd reduction(| : flag)" in sources[-1]
    wide = given[0] * 1e12, y  # whose angles are left to PyTorch, by any thread that sees one
    torch.testing.assert_close(compiled(*wide), call(*wide))
    turned = torch.randn(500, 600).t()
    torch.testing.assert_close(compile_call(call, turned, y)(turned, y), call(turned, y))
    # One library has all threads, so that the number that PyTorch is told holds for regions, too.
    maps = Path("/proc/self/maps").read_text()
    assert len({line.split()[-1] for line in maps.splitlines() if "gomp" in line}) == 1
