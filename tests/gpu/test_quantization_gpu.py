"""Linear layers with weights of fewer bits on a GPU."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from torchwise.compile import compile_plan  # noqa: E402
from torchwise.compile.transforms import quantization  # noqa: E402
from torchwise.plan import Plan  # noqa: E402
from torchwise.workload import Example  # noqa: E402

pytestmark = pytest.mark.gpu
ERRORS = {
    "int8_dynamic": 0.03,
    "int8_weights": 0.02,
    "int4_weights": 0.2,
    "fp8_weights": 0.08,
    "fp8_dynamic": 0.1,
    "fp8_per_tensor": 0.1,
}


def skip_without_float8(name: str, model: torch.nn.Module) -> None:
    if name.startswith("fp8") and not quantization.multiplies_float8(model):
        pytest.skip("this GPU does not multiply float8")


@pytest.mark.parametrize("name", [*ERRORS])
@pytest.mark.parametrize("rows", [1, 17, 256])
@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_a_layer_answers_nearly_as_the_original(name: str, rows: int, backend: str) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(512, 1024), torch.nn.GELU(), torch.nn.Linear(1024, 256))
    model = model.eval().cuda().bfloat16()
    skip_without_float8(name, model)
    x = torch.randn(rows, 512, device="cuda", dtype=torch.bfloat16)
    plan = Plan(transforms=(name,), backend=backend)
    with torch.no_grad():
        call = compile_plan(model, plan, Example((x,)), device="cuda", mode="inference").call
        found, expected = call(x).double(), model.double()(x.double())
    assert float((found - expected).square().mean().sqrt() / expected.square().mean().sqrt()) < ERRORS[name]


@pytest.mark.parametrize("name", [*ERRORS])
def test_a_layer_of_gpt2_answers_nearly_as_the_original(name: str) -> None:
    conv1d = pytest.importorskip("transformers.pytorch_utils").Conv1D
    torch.manual_seed(0)
    model = torch.nn.Sequential(conv1d(1024, 512)).eval().cuda().bfloat16()
    skip_without_float8(name, model)
    x = torch.randn(32, 512, device="cuda", dtype=torch.bfloat16)
    with torch.no_grad():
        call = compile_plan(model, Plan(transforms=(name,)), Example((x,)), device="cuda", mode="inference").call
        found, expected = call(x).double(), model.double()(x.double())
    assert float((found - expected).square().mean().sqrt() / expected.square().mean().sqrt()) < ERRORS[name]


@pytest.mark.parametrize("name", ["fp8_dynamic", "fp8_per_tensor"])
def test_a_product_of_float8_takes_a_transposed_input(name: str) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(512, 256)).eval().cuda().bfloat16()
    skip_without_float8(name, model)
    x = torch.randn(512, 32, device="cuda", dtype=torch.bfloat16)
    with torch.no_grad():
        call = compile_plan(model, Plan(transforms=(name,)), Example((x.t(),)), device="cuda", mode="inference").call
        torch.testing.assert_close(call(x.t()), call(x.t().contiguous()))


@pytest.mark.parametrize("name", ["fp8_dynamic", "fp8_per_tensor"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_product_of_float8_is_that_of_its_reference(name: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(512, 1024)).eval().cuda().to(dtype)
    skip_without_float8(name, model)
    x = torch.randn(32, 512, device="cuda").to(dtype)
    with torch.no_grad():
        copy, _ = getattr(quantization, f"use_{name}")(model)
        found, expected = copy(x).double(), copy.double()(x.double())
    assert float((found - expected).square().mean().sqrt() / expected.square().mean().sqrt()) < 0.01


@pytest.mark.parametrize("name", ["int8_weights", "fp8_weights"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_large_outputs_fit_into_their_dtype(name: str, dtype: torch.dtype, backend: str) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(512, 1024, bias=False)).eval().cuda().to(dtype)
    skip_without_float8(name, model)
    x = 400 * torch.randn(64, 512, device="cuda").to(dtype)
    with torch.no_grad():
        plan = Plan(transforms=(name,), backend=backend)
        call = compile_plan(model, plan, Example((x,)), device="cuda", mode="inference").call
        found, expected = call(x).double(), model.double()(x.double())
    assert float(expected.abs().max()) > 100
    assert bool(found.isfinite().all())
    assert float((found - expected).square().mean().sqrt() / expected.square().mean().sqrt()) < ERRORS[name]


def test_sizes_that_a_gpu_does_not_multiply_are_left_alone() -> None:
    odd = torch.nn.Sequential(torch.nn.Linear(20, 12)).cuda()
    for name in ("int8_dynamic", "int4_weights", "fp8_dynamic", "fp8_per_tensor"):
        assert getattr(quantization, f"list_{name}_layers")(odd) == {}
