"""Other kernels for attention and convolutions on a real GPU: which one runs, and that its answers are right."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from torch.profiler import ProfilerActivity, profile  # noqa: E402

from torchwise.compile import compile_plan  # noqa: E402
from torchwise.plan import CHOICES, Plan  # noqa: E402
from torchwise.workload import Example  # noqa: E402

pytestmark = pytest.mark.gpu
OPERATORS = {
    "flash_attention": "_scaled_dot_product_flash_attention",
    "cudnn_attention": "_scaled_dot_product_cudnn_attention",
    "efficient_attention": "_scaled_dot_product_efficient_attention",
    "math_attention": "_scaled_dot_product_attention_math",
    "flash_attention_3": "_scaled_dot_product_flash_attention",
    "flash_attention_4": "_scaled_dot_product_flash_attention",
}


class Attention(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.project = torch.nn.Linear(128, 384)

    def forward(self, x):
        query, key, value = self.project(x).view(2, 64, 3, 2, 64).permute(2, 0, 3, 1, 4)
        return torch.nn.functional.scaled_dot_product_attention(query, key, value)


@pytest.mark.parametrize("backend", ["eager", "inductor"])
@pytest.mark.parametrize("name", OPERATORS)
def test_the_kernel_that_the_plan_names_runs(name: str, backend: str) -> None:
    model = Attention().cuda().bfloat16().eval()
    x = torch.randn(2, 64, 128, device="cuda", dtype=torch.bfloat16)
    plan = Plan(backend=backend, transforms=(name,))
    if lacking := CHOICES["transforms", name].tell_missing_package("cuda"):
        pytest.skip(lacking)
    with torch.no_grad():
        call = compile_plan(model, plan, Example((x,)), device="cuda", mode="inference").call
        call(x)
        with profile(activities=[ProfilerActivity.CPU]) as found:
            answer = call(x)
        torch.testing.assert_close(answer, model(x), rtol=2e-2, atol=2e-2)
    names = {event.name.removeprefix("aten::") for event in found.events()}
    if backend == "inductor" and name == "math_attention":  # its products are compiled one by one
        assert not names & set(OPERATORS.values())
    else:
        assert names & set(OPERATORS.values()) == {OPERATORS[name]}


def test_a_captured_call_keeps_the_kernel_of_its_recording() -> None:
    model = Attention().cuda().bfloat16().eval()
    x = torch.randn(2, 64, 128, device="cuda", dtype=torch.bfloat16)
    plan = Plan(transforms=("efficient_attention",), capture="call")
    with torch.no_grad():
        captured = compile_plan(model, plan, Example((x,)), device="cuda", mode="inference")
        for _ in range(4):
            answer = captured.call(x)
        torch.testing.assert_close(answer, model(x), rtol=2e-2, atol=2e-2)
    captured.close()


def test_convolutions_are_timed_during_the_call_alone() -> None:
    torch.manual_seed(0)
    model, x = torch.nn.Conv2d(16, 32, 3).cuda().eval(), torch.randn(4, 16, 40, 40, device="cuda")
    seen: list[bool] = []
    model.register_forward_hook(lambda *_: seen.append(torch.backends.cudnn.benchmark))
    with torch.no_grad():
        call = compile_plan(
            model, Plan(transforms=("cudnn_benchmark",)), Example((x,)), device="cuda", mode="inference"
        ).call
        torch.testing.assert_close(call(x), model(x), rtol=1e-3, atol=1e-3)
    assert seen == [True, False]
