"""Random numbers that row programs draw by themselves: their distribution, streams, seeds and speed of vectors."""

from __future__ import annotations

import math
import subprocess
import sysconfig
from pathlib import Path

import pytest
import torch

from row_calls import compile_call, keep_regions
from torchwise.compile import programs
from torchwise.compile.programs import build
from torchwise.errors import UnsupportedError
from torchwise.plan import Plan

OWN = Plan(backend="row_programs")


def walk(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Return four steps of a walk, each of noise of its own."""
    found = []
    for _ in range(4):
        x = x * 0.5 + torch.randn_like(x)
        found.append(x)
    return tuple(found)


def is_normal(noise: torch.Tensor) -> bool:
    """Whether numbers may be normal, by five standard errors of their moments, and by their tails."""
    n, noise = noise.numel(), noise.double().flatten()
    moments = [float((noise**power).mean()) for power in (1, 2, 3, 4)]
    errors = [math.sqrt(variance / n) for variance in (1, 2, 15, 96)]
    near = all(abs(m - w) < 5 * e for m, w, e in zip(moments, (0, 1, 0, 3), errors, strict=True))
    beyond = float((noise.abs() > 1.959964).double().mean())
    return near and abs(beyond - 0.05) < 5 * math.sqrt(0.05 * 0.95 / n)


def test_each_step_number_and_call_has_noise_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    regions = keep_regions(monkeypatch)
    x = torch.zeros(50, 400)
    call = compile_call(walk, x, plan=OWN)
    torch.manual_seed(0)
    first, second = call(x), call(x)
    torch.manual_seed(0)
    assert all(map(torch.equal, call(x), first)), "the seeds are PyTorch's"
    assert len(regions) == 1
    noise = [first[0], *(first[n] - 0.5 * first[n - 1] for n in range(1, 4)), second[0]]
    assert all(map(is_normal, noise))
    together = torch.corrcoef(torch.stack([one.flatten() for one in noise]).double())
    assert float((together - torch.eye(5)).abs().max()) < 5 / math.sqrt(20_000)
    neighbours = torch.corrcoef(torch.stack([noise[0].flatten()[:-1], noise[0].flatten()[1:]]))
    assert abs(float(neighbours[0, 1])) < 5 / math.sqrt(20_000)


def test_noise_that_nothing_reads_stays_only_where_later_numbers_are_pytorchs() -> None:
    def call(x: torch.Tensor) -> torch.Tensor:
        for _ in range(3):
            first, second = torch.randn_like(x), torch.randn_like(x)
            x, y = (x + first).tanh(), second  # the last one is not read
            x = x * 0.5 + y.exp() if x.dim() == 9 else x * 0.5
        return x

    x = torch.zeros(2000)
    drawn = compile_call(call, x, plan=OWN)(x)
    assert abs(float(drawn.mean() - call(x).mean())) < 0.1
    with pytest.raises(UnsupportedError, match="that nothing reads"):
        compile_call(call, x, plan=OWN.with_choice("options", ("fallback_random", True)))(x)


def test_uniform_numbers_fill_their_range() -> None:
    def call(x: torch.Tensor) -> torch.Tensor:
        return x + torch.rand_like(x) * 4

    drawn = compile_call(call, torch.zeros(20_000), plan=OWN)(torch.zeros(20_000))
    assert 0 <= float(drawn.min()) < 0.01
    assert 3.99 < float(drawn.max()) < 4
    counts = torch.histc(drawn, 16, 0, 4)
    assert float(((counts - 1250) ** 2 / 1250).sum()) < 45, "chi-squared of 15 degrees of freedom, p below 1e-4"


def test_layouts_and_sizes_do_not_repeat_numbers() -> None:
    def call(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x + torch.randn(3, 5), (y + torch.randn(7, 1)) * 2

    one, other = compile_call(call, torch.zeros(3, 5), torch.zeros(1, 4), plan=OWN)(
        torch.zeros(3, 5), torch.zeros(1, 4)
    )
    assert len(torch.cat([one.flatten(), other[:, 0] / 2]).unique()) == 22
    assert torch.equal(other, other[:, :1].expand(7, 4)), "one number a row"


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_numbers_of_other_types_are_pytorchs(dtype: torch.dtype) -> None:
    def call(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x * 2) + y + torch.randn(8, dtype=dtype).float()

    given = torch.zeros(8), torch.zeros(8)
    compiled = compile_call(call, *given, plan=OWN)
    compiled(*given)
    torch.manual_seed(1)
    found = compiled(*given)
    torch.manual_seed(1)
    assert torch.allclose(found, call(*given))


def test_a_plan_that_asks_for_pytorchs_numbers_has_them() -> None:
    x = torch.zeros(20)
    call = compile_call(walk, x)
    call(x)
    torch.manual_seed(5)
    found = call(x)
    torch.manual_seed(5)
    assert all(map(torch.allclose, found, walk(x)))


def test_loops_of_many_functions_are_vectorized(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """GCC stops inlining after some fifteen calls, and a loop with a call in it is not vectorized."""
    texts: list[str] = []
    load = programs.load_module
    monkeypatch.setattr(programs, "load_module", lambda text: (texts.append(text), load(text))[1])

    def call(x: torch.Tensor) -> torch.Tensor:
        for _ in range(24):
            x = torch.tanh(x.exp() + torch.randn_like(x)) + torch.erf(x) * torch.sigmoid(x)
        return x

    compile_call(call, torch.zeros(1024), plan=OWN)(torch.zeros(1024))
    compiler, version = build._find_compiler()
    if "g++" not in version.lower() and "gcc" not in version.lower():
        pytest.skip("NOT TESTED: only GCC tells so in these words")
    told = _compile_and_tell(compiler, texts[0], tmp_path)
    assert "regions.cpp" in told, "its loop is vectorized"


def _compile_and_tell(compiler: str, text: str, folder: Path) -> str:
    """Compile a text as row programs are, and return the compiler's remarks on vectors."""
    file = folder / "regions.cpp"
    file.write_text(text)
    includes = (build.NATIVE, Path(torch.__file__).parent / "include", sysconfig.get_path("include"))
    vectors = build._VECTORS.get(torch.backends.cpu.get_cpu_capability(), ())
    command = [compiler, *build._OPTIONS, "-fopenmp-simd", *vectors, *(f"-I{one}" for one in includes)]
    command += ["-fopt-info-vec-optimized", str(file), "-o", str(folder / "regions.so")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return done.stderr + done.stdout
