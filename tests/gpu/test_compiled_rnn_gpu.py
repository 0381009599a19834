"""RNNs of few steps on a GPU: parts of the compiled graph, with cuDNN's answers, captured, and in a loop."""

from __future__ import annotations

import copy
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torchwise.compile import compile_plan  # noqa: E402
from torchwise.plan import Plan  # noqa: E402
from torchwise.workload import Example  # noqa: E402

pytestmark = pytest.mark.gpu
COMPILED = Plan(backend="inductor", transforms=("compiled_rnn",), capture="call")


def compile_call(call: Any, plan: Plan, *args: Any) -> Any:
    torch.compiler.reset()
    return compile_plan(call, plan, Example(args), device="cuda", mode="inference").call


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("GRU", {"num_layers": 2}),
        ("LSTM", {"bidirectional": True, "batch_first": True}),
        ("LSTM", {"proj_size": 8}),
        ("RNN", {"nonlinearity": "relu", "bias": False}),
    ],
)
@torch.no_grad()
def test_answers_are_those_of_cudnn(kind: str, options: dict[str, Any], dtype: Any) -> None:
    torch.manual_seed(0)
    exact = getattr(torch.nn, kind)(32, 64, **options).eval()
    x = torch.randn(5, 3, 32)
    right = exact.double()(x.double())[0]
    model = exact.to(dtype).cuda()
    x = x.to(dtype).cuda()
    own = (model(x)[0].double().cpu() - right).abs().max().item()
    call = compile_call(model, COMPILED, x)
    for _ in range(3):
        found = (call(x)[0].double().cpu() - right).abs().max().item()
        assert found <= max(2 * own, {torch.float32: 1e-5}.get(dtype, 0.02))


class Loop(torch.nn.Module):
    """Steps of a controller with a memory."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.last = torch.nn.GRU(8, 64, 2), torch.nn.Linear(64, 8)

    def forward(self, x: Any, state: Any) -> Any:
        """Return the last place and memory."""
        for _ in range(24):
            out, state = self.rnn(x[None], state)
            x = x + torch.tanh(self.last(out[0]))
        return x, state


@pytest.mark.parametrize("scope", ["whole", "rolled"])
@torch.no_grad()
def test_a_loop_around_an_rnn_is_one_captured_graph(scope: str) -> None:
    """Eager is no measure of exact answers here: cuDNN's RNNs multiply in TF32 unless they are told not to."""
    torch.manual_seed(0)
    model = Loop().eval()
    exact = copy.deepcopy(model).double()
    model.cuda()
    args = (torch.randn(16, 8, device="cuda"), torch.randn(2, 16, 64, device="cuda"))
    call = compile_call(
        model, Plan(backend="inductor", transforms=("compiled_rnn",), capture="call", scope=scope), *args
    )
    for given in [args] * 3 + [tuple(torch.randn_like(one) for one in args)]:
        right = exact(*(one.double().cpu() for one in given))
        for found, true in zip(call(*given), right, strict=True):
            torch.testing.assert_close(found.double().cpu(), true, atol=1e-5, rtol=1e-4)
