"""Products of one input as one product on a GPU: joined once, also within CUDA graphs, which read them in place."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.nn import functional  # noqa: E402

from torchwise._torch.inductor import CONFIG  # noqa: E402
from torchwise.compile import compile_plan  # noqa: E402
from torchwise.errors import StalePlanError  # noqa: E402
from torchwise.plan import Plan  # noqa: E402
from torchwise.records import Outcome  # noqa: E402
from torchwise.verify import Subject, verify  # noqa: E402
from torchwise.workload import Example, Workload  # noqa: E402

pytestmark = pytest.mark.gpu
WIDTH = 256


class Block(torch.nn.Module):  # type: ignore[misc,name-defined]
    """Attention whose queries share keys, and a SwiGLU."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.q, self.k, self.v = (torch.nn.Linear(WIDTH, size, bias=size < WIDTH) for size in (WIDTH, 64, 64))
        self.gate, self.up = (torch.nn.Linear(WIDTH, 512, bias=False) for _ in range(2))
        self.down = torch.nn.Linear(512, WIDTH, bias=False)
        self.cuda().eval()

    def forward(self, x: Any) -> Any:
        q, k, v = (layer(x).unflatten(-1, (-1, 64)).transpose(1, 2) for layer in (self.q, self.k, self.v))
        x = x + functional.scaled_dot_product_attention(q, k, v, enable_gqa=True).transpose(1, 2).flatten(2)
        return x + self.down(functional.silu(self.gate(x)) * self.up(x))


@pytest.mark.parametrize(
    "changed",
    [{}, {"capture": "call"}, {"mode": "reduce-overhead"}],
    ids=str,
)
def test_joined_products_pass_and_notice_changed_weights(changed: dict[str, Any]) -> None:
    model = Block()
    example = Example((torch.randn(2, 16, WIDTH, device="cuda"),))
    plan = Plan(backend="inductor", transforms=("joined_products",), **changed)
    with torch.no_grad():
        made = compile_plan(model, plan, example, device="cuda", mode="inference")
        for _ in range(3):
            made.call(*example.args)
        verdict = verify(Subject(Workload(model, (example,)), made.call, model))
        assert verdict.outcome is Outcome.PASS, verdict.reason
        model.k.weight.mul_(2)
        with pytest.raises(StalePlanError):
            made.call(*example.args)
        made.close()


def test_a_step_has_two_products_less_than_without() -> None:
    model, x = Block(), torch.randn(1, 1, WIDTH, device="cuda")

    def count(plan: Plan) -> int:
        torch.compiler.reset()
        # Without them Inductor may write products of one row itself, with other kernels.
        with torch.no_grad(), CONFIG.get().patch(force_disable_caches=True):
            call = compile_plan(model, plan, Example((x,)), device="cuda", mode="inference").call
            call(x)
            with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
                call(x)
                torch.cuda.synchronize()
        return sum(event.count for event in profile.key_averages() if event.device_type.name == "CUDA")

    plain = Plan(backend="inductor")
    assert count(plain.with_choice("transforms", "joined_products")) <= count(plain) - 2
