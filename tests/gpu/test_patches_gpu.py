"""Patches as matrix products on a GPU, and kernels that start before the previous one has ended."""

from __future__ import annotations

import re
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch._inductor.utils import run_and_get_code  # noqa: E402

import torchwise  # noqa: E402
from torchwise.compile import compile_plan  # noqa: E402
from torchwise.plan import Plan  # noqa: E402
from torchwise.records import Outcome  # noqa: E402
from torchwise.verify import StepSubject, Subject, verify, verify_step  # noqa: E402
from torchwise.verify.step_runner import StepRunner  # noqa: E402
from torchwise.workload import Example, Workload  # noqa: E402
from torchwise.zoo import load  # noqa: E402

pytestmark = pytest.mark.gpu
EARLY = (("triton.enable_pdl", True),)


@pytest.mark.parametrize("capture", ["none", "call"])
def test_the_vision_model_passes_with_patches_as_products(capture: str) -> None:
    workload = load("arr_coc.model@small", device="cuda")
    plan = Plan(backend="inductor", transforms=("patch_matmul",), capture=capture)
    with torch.no_grad():
        realized = compile_plan(workload.call, plan, workload.examples[0], device="cuda", mode="inference")
        _, [code] = run_and_get_code(realized.call, *workload.examples[0].args)
        verdict = verify(Subject(workload, realized.call, workload.call))
        realized.close()
    assert "convolution" not in code.partition("def call")[2]
    assert verdict.outcome is Outcome.PASS, verdict.reason


class Encoder(torch.nn.Module):  # type: ignore[misc,name-defined]
    """Patches as rows, and work on each."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.patches = torch.nn.Conv2d(3, 64, 8, 8)
        self.layers = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(3)))
        self.norm = torch.nn.LayerNorm(64)
        self.cuda()

    def forward(self, image: Any) -> Any:
        return self.norm(torch.tanh(self.layers(self.patches(image).flatten(2).transpose(1, 2)))).mean(1)


def test_a_step_that_trains_patches_as_products_passes() -> None:
    model = Encoder()
    step = torchwise.TrainStep(model, torch.nn.functional.mse_loss, torch.optim.AdamW(model.parameters(), 1e-3))
    examples = tuple(Example((torch.randn(8, 3, 32, 32).cuda(), torch.randn(8, 64).cuda())) for _ in range(2))
    step(*examples[0].clone().args)  # so that the optimizer has its state
    plan = Plan(backend="inductor", transforms=("patch_matmul",), capture="step", optimizer="fused", options=EARLY)

    def make(copy: Any) -> Any:
        return compile_plan(copy, plan, examples[0], device="cuda", mode="training").call

    verdict = verify_step(StepSubject(Workload(step, examples), StepRunner(step, make), make), noise_budget_s=2.0)
    assert verdict.outcome is Outcome.PASS, verdict.reason


@pytest.mark.parametrize("operation", ["gross_pitaevskii_step", "field_superposition", "vortex_field"])
def test_kernels_that_start_early_answer_the_same(operation: str) -> None:
    workload = load(f"ivhl.{operation}@medium", device="cuda")
    plan = Plan(backend="inductor", transforms=("complex_to_real",), capture="call", options=EARLY)
    with torch.no_grad():
        realized = compile_plan(workload.call, plan, workload.examples[0], device="cuda", mode="inference")
        _, [code, *_] = run_and_get_code(realized.call, *workload.examples[0].args)
        verdict = verify(Subject(workload, realized.call, workload.call))
        realized.close()
    assert ("gdc_wait" in code) is (torch.cuda.get_device_capability() >= (9, 0))
    assert verdict.outcome is Outcome.PASS, verdict.reason


KERNEL = re.compile(r"async_compile\.triton\('\w+', '''(.*?)'''", re.DOTALL)


def sum_rows(x: Any, index: Any) -> Any:
    """Sum rows into places.

    A kernel that fills them with zeros runs between the one that sums and the one that adds.
    """
    summed = torch.softmax(x, dim=1).square().sum(1)
    return x.new_zeros(1000).index_add(0, index, summed * summed.max())


def test_a_kernel_that_loads_nothing_waits_as_the_others_do() -> None:
    if torch.cuda.get_device_capability() < (9, 0):
        pytest.skip("kernels start early from Hopper on")
    index = torch.arange(3000, device="cuda") % 1000
    draws = torch.Generator("cuda").manual_seed(0)
    examples = [Example((torch.rand(3000, 3000, device="cuda", generator=draws), index)) for _ in range(2)]
    with torch.no_grad():
        made = compile_plan(
            sum_rows, Plan(backend="inductor", options=EARLY), examples[0], device="cuda", mode="inference"
        )
        _, [code] = run_and_get_code(made.call, *examples[0].args)
        right = [sum_rows(example.args[0].double(), index) for example in examples]
        for number in range(200):
            which = number % 2  # so that a value read too soon is the other's
            torch.testing.assert_close(made.call(*examples[which].args).double(), right[which], rtol=1e-4, atol=0)
        made.close()
    bodies = [text.split("@triton.jit")[1] for text in KERNEL.findall(code)]
    firsts = [re.search(r"gdc_wait|tl\.load|tl\.store|atomic_add", body) for body in bodies]
    assert len(bodies) >= 3
    assert {first.group() for first in firsts if first} == {"gdc_wait"}
