"""Row programs on a real GPU: each program is one kernel, with eager's answer, alone and captured."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

torch = pytest.importorskip("torch")

from row_cases import CASES, check  # noqa: E402
from torchwise.compile import compile_plan  # noqa: E402
from torchwise.compile.programs.gpu import launch  # noqa: E402
from torchwise.compile.programs.gpu.forms import Form  # noqa: E402
from torchwise.compile.programs.gpu.launch import Kernel  # noqa: E402
from torchwise.plan import Plan  # noqa: E402
from torchwise.workload import Example  # noqa: E402

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("capture", ["none", "call"])
@pytest.mark.parametrize("name", CASES)
def test_a_program_is_few_kernels_with_eagers_answer(name: str, capture: str, monkeypatch) -> None:
    made = []
    bind = Kernel.bind
    monkeypatch.setattr(Kernel, "bind", lambda self, original: made.append(self) or bind(self, original))
    case = CASES[name]
    inputs = tuple(one.cuda() for one in case.inputs(torch.Generator().manual_seed(0)))
    plan = Plan(backend="row_programs", capture=capture).with_choice("options", ("fallback_random", True))
    with torch.no_grad():
        call = compile_plan(case.call, plan, Example(inputs), device="cuda", mode="inference").call
        for _ in range(3):
            check(call, case, inputs)
    assert len(made) == case.kernels


@pytest.mark.parametrize("capture", ["none", "call"])
@pytest.mark.parametrize("rows", [1, 5, 100])
@pytest.mark.parametrize(("cluster", "warps"), [(8, 8), (16, 4)])
def test_a_cluster_shares_the_products_of_few_rows(
    cluster: int, warps: int, rows: int, capture: str, monkeypatch, tmp_path
) -> None:
    def multiply(x: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
        for weight in weights:
            x = torch.tanh(torch.nn.functional.linear(x, weight)) + 0.5 * x
        for _ in range(6):  # one product, whose answers have two places
            x = torch.sin(torch.nn.functional.linear(x, weights[0]))
        return x

    launched = []
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(
        launch, "list_forms", lambda *_, **__: [Form(8 if rows > 1 else 1, warps, 128, "ieee", cluster)]
    )
    launch_cluster = launch.launch_cluster
    monkeypatch.setattr(launch, "launch_cluster", lambda *given: launched.append(given[1]) or launch_cluster(*given))
    generator = torch.Generator().manual_seed(0)
    weights = [torch.randn(200, 200, generator=generator).div(12).cuda() for _ in range(5)]
    inputs = torch.randn(rows, 200, generator=generator).cuda(), *weights
    plan = Plan(backend="row_programs", capture=capture)
    with torch.no_grad():
        call = compile_plan(multiply, plan, Example(inputs), device="cuda", mode="inference").call
        wanted = multiply(*(one.double() for one in inputs))
        for _ in range(50):  # one that does not wait for another would read old numbers at times
            assert (call(*inputs) - wanted).abs().max() < 1e-4
            inputs[0].mul_(-1)
            wanted = multiply(*(one.double() for one in inputs))
    assert set(launched) == {cluster}


def count_starts_by_triton(monkeypatch, tmp_path) -> list[int]:
    """Return a list that gets the number of inputs of each kernel that Triton starts."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    found: list[int] = []
    run = launch.Launch.run
    monkeypatch.setattr(launch.Launch, "run", lambda self, args: found.append(len(args)) or run(self, args))
    return found


def test_calls_after_the_first_are_started_by_the_driver(monkeypatch, tmp_path) -> None:
    """On any stream and thread, and in a graph. Other inputs are left to Triton."""
    by_triton = count_starts_by_triton(monkeypatch, tmp_path)

    def call(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x @ weight) @ weight

    x, weight = torch.randn(4, 64, device="cuda"), torch.randn(64, 64, device="cuda").div(8)
    with torch.no_grad():
        compiled = compile_plan(
            call, Plan(backend="row_programs"), Example((x, weight)), device="cuda", mode="inference"
        )
        fast = compiled.call
        fast(x, weight)
        by_triton.clear()

        def check_one(given: torch.Tensor) -> None:
            assert (fast(given, weight) - call(given.double(), weight.double())).abs().max() < 1e-4

        for _ in range(5):
            x.mul_(-0.9)
            check_one(x)
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            check_one(x)
        assert by_triton == []
        with ThreadPoolExecutor(1) as pool:
            pool.submit(torch.no_grad()(check_one), x).result()
        assert len(by_triton) <= 1  # a thread has no context before its first work on a GPU
        by_triton.clear()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            found = fast(x, weight)
        for _ in range(3):
            x.mul_(0.9)
            graph.replay()
            assert (found - call(x.double(), weight.double())).abs().max() < 1e-4
        assert by_triton == []
        check_one(torch.randn(4 * 64 + 1, device="cuda")[1:].view(4, 64))
        assert len(by_triton) == 1
    compiled.close()


def test_a_kernel_that_the_driver_starts_draws_other_numbers_each_time(tmp_path, monkeypatch) -> None:
    """Also in a graph that is replayed."""
    by_triton = count_starts_by_triton(monkeypatch, tmp_path)

    def call(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        first = torch.tanh(x) + torch.randn_like(x)
        return first, torch.tanh(first) + torch.randn_like(x)

    x = torch.zeros(20_000, device="cuda")
    with torch.no_grad():
        plan = Plan(backend="row_programs")
        compiled = compile_plan(call, plan, Example((x,)), device="cuda", mode="inference")
        fast = compiled.call
        fast(x)
        by_triton.clear()
        answers = [[one.clone() for one in fast(x)] for _ in range(3)]
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            found = fast(x)
        for _ in range(3):
            graph.replay()
            answers.append([one.clone() for one in found])
        noise = torch.stack([one for first, second in answers for one in (first, second - torch.tanh(first))])
    assert (torch.corrcoef(noise) - torch.eye(len(noise), device="cuda")).abs().max() < 0.05
    assert ((noise.std(1) - 1).abs() < 0.05).all()
    assert by_triton == []
    compiled.close()
