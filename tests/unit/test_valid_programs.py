"""Programs that do unusual things are run plainly, and eager is verified by its own reference: none is refused."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import forward_ad
from torch.nn.functional import cross_entropy, mse_loss
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from torchwise import TrainStep
from torchwise.records import Outcome
from torchwise.trial.plain_call import run_plainly
from torchwise.verify import Subject, verify
from torchwise.verify.step import StepSubject, verify_step
from torchwise.verify.step_runner import StepRunner
from torchwise.workload import Example, Workload

pytestmark = pytest.mark.filterwarnings("ignore")
WIDTH = 8


def x(*shape: int) -> torch.Tensor:
    return torch.randn(*(shape or (4, WIDTH)))


class Net(nn.Module):
    """Does something with its layer."""

    def __init__(self, what: Callable[..., Any], **held: Any) -> None:
        super().__init__()
        self.layer, self.what = nn.Linear(WIDTH, WIDTH), what
        for name, value in held.items():
            setattr(self, name, value)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.what(self, *args, **kwargs)


@dataclass
class Answer:
    dense: torch.Tensor
    sparse: torch.Tensor


def call_in_thread(net: Any, given: torch.Tensor) -> torch.Tensor:
    found: list[torch.Tensor] = []
    thread = threading.Thread(target=lambda: found.append(net.layer(given)))
    thread.start()
    thread.join()
    return found[0]


def call_in_float64_default(net: Any, given: torch.Tensor) -> torch.Tensor:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        return net.layer(given) + torch.ones(WIDTH, dtype=torch.float32)  # type: ignore[no-any-return]
    finally:
        torch.set_default_dtype(before)


def forward_mode(net: Any, given: torch.Tensor) -> Any:
    with forward_ad.dual_level():
        return forward_ad.unpack_dual(net.layer(forward_ad.make_dual(given, torch.ones_like(given)))).tangent


def force(net: Any, given: torch.Tensor) -> torch.Tensor:
    with torch.enable_grad():
        given = given.detach().requires_grad_()
        return torch.autograd.grad(net.layer(given).pow(2).sum(), given)[0]


def call_in_inference_mode(net: Any, given: torch.Tensor) -> Any:
    with torch.inference_mode():
        return net.layer(given)


class Passes(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


class Watches(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


def wrap_in_mode(mode: Callable[[], Any]) -> Callable[..., Any]:
    def call(net: Any, given: torch.Tensor) -> Any:
        with mode():
            return net.layer(given)

    return call


def shape_by_fakes(net: Any, given: torch.Tensor) -> Any:
    with FakeTensorMode() as fakes:
        width = fakes.from_tensor(given).matmul(torch.empty(WIDTH, 3)).shape[1]
    return net.layer(given) * width


def pack_sequence(net: Any, given: torch.Tensor) -> Any:
    return nn.utils.rnn.pack_padded_sequence(net.layer(given), torch.tensor([3, 2]), batch_first=True)


def nest_jagged(net: Any, given: torch.Tensor) -> Any:
    y = net.layer(given)
    return torch.nested.as_nested_tensor([y[:2], y[:3]], layout=torch.jagged)


def flat_parameters() -> Net:
    net = Net(lambda net, given: nn.functional.linear(given, net.weight) + net.bias)
    flat = torch.randn(WIDTH * WIDTH + WIDTH)
    net.weight = nn.Parameter(flat[: WIDTH * WIDTH].view(WIDTH, WIDTH))
    net.bias = nn.Parameter(flat[WIDTH * WIDTH :])
    return net


def conjugate_buffer() -> Net:
    net = Net(lambda net, given: (given.to(torch.complex64) @ net.weight).abs())
    net.register_buffer("weight", torch.randn(WIDTH, WIDTH, dtype=torch.complex64).conj())
    return net


def make_keeping_net() -> Net:
    net, kept = Net(lambda net, given: net.layer(given)), []
    net.layer.register_forward_hook(lambda _module, _args, answer: kept.append(answer))
    return net


def positive() -> torch.Tensor:
    half = x(4, 4)
    return half @ half.T + 4 * torch.eye(4)


SAME = x()
INFERENCE: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "packed sequence": (Net(pack_sequence), (x(2, 3, WIDTH),)),
    "distribution": (Net(lambda net, a: torch.distributions.Normal(net.layer(a), 1.0)), (x(),)),
    "sparse in a dataclass": (Net(lambda net, a: Answer(net.layer(a), net.layer(a).relu().to_sparse())), (x(),)),
    "jagged": (Net(nest_jagged), (x(),)),
    "vmap of jacrev": (Net(lambda net, a: torch.vmap(torch.func.jacrev(lambda row: net.layer(row).sin()))(a)), (x(),)),
    "jvp": (Net(lambda net, a: torch.func.jvp(net.layer, (a,), (torch.ones_like(a),))), (x(),)),
    "forward mode": (Net(forward_mode), (x(),)),
    "force": (Net(force), (x(),)),
    "inference mode": (Net(call_in_inference_mode), (x(),)),
    "default dtype": (Net(call_in_float64_default), (x(),)),
    "thread": (Net(call_in_thread), (x(),)),
    "dispatch mode": (Net(wrap_in_mode(Passes)), (x(),)),
    "function mode": (Net(wrap_in_mode(Watches)), (x(),)),
    "fake tensors": (Net(shape_by_fakes), (x(),)),
    "quantized": (torch.ao.quantization.quantize_dynamic(nn.Sequential(nn.Linear(WIDTH, WIDTH))).eval(), (x(),)),
    "lazy": (nn.Sequential(nn.LazyLinear(WIDTH)), (x(),)),
    "flat parameters": (flat_parameters(), (x(),)),
    "conjugate buffer": (conjugate_buffer(), (x(),)),
    "orthogonal": (nn.utils.parametrizations.orthogonal(nn.Linear(WIDTH, WIDTH)), (x(),)),
    "hook that keeps": (make_keeping_net(), (x(),)),
    "lock": (Net(lambda net, a: net.layer(a), lock=threading.RLock(), noise=torch.Generator()), (x(),)),
    "sparse input": (Net(lambda net, m, a: m @ net.layer(a)), (torch.eye(4).to_sparse_csr(), x())),
    "the same twice": (Net(lambda net, a, b: (a.add_(1), net.layer(b), a is b)), (SAME, SAME)),
    "shared memory": (Net(lambda net, a, b: (a.add_(1), net.layer(b))), (SAME, SAME[:2])),
    "positive definite": (Net(lambda net, a, p: net.layer(a).sum() * torch.linalg.cholesky(p)), (x(), positive())),
    "function as input": (Net(lambda net, a, f: f(net.layer(a))), (x(), torch.sin)),
    "module as input": (Net(lambda net, a, f: f(net.layer(a))), (x(), nn.Linear(WIDTH, WIDTH))),
    "traced graph": (torch.fx.symbolic_trace(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU())), (x(),)),
    "data parallel": (nn.DataParallel(nn.Linear(WIDTH, WIDTH)), (x(),)),
}


@pytest.mark.parametrize(("call", "args"), INFERENCE.values(), ids=INFERENCE)
def test_a_call_is_proven(call: Any, args: tuple[Any, ...]) -> None:
    workload = Workload(call, (Example(args),))
    with torch.no_grad():
        assert run_plainly(workload, "inference").answers
        verdict = verify(Subject(workload, call, call), extra_draws=1)
    assert verdict.outcome is Outcome.PASS, verdict.reason


def second_derivative(net: Any, given: torch.Tensor) -> torch.Tensor:
    given = given.detach().requires_grad_()
    first = torch.autograd.grad(net.layer(given).tanh().sum(), given, create_graph=True)[0]
    return net.layer(given) + torch.autograd.grad(first[:, 0].sum(), given, create_graph=True)[0]  # type: ignore[no-any-return]


def inner_step(net: Any, given: torch.Tensor) -> torch.Tensor:
    weight = net.layer.weight
    (gradient,) = torch.autograd.grad((given @ weight).square().mean(), weight, create_graph=True)
    return given @ (weight - 0.1 * gradient)


def save_by_hooks(net: Any, given: torch.Tensor) -> Any:
    with torch.autograd.graph.saved_tensors_hooks(torch.clone, lambda tensor: tensor):
        return net.layer(given).sin()


def probability_loss(answer: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    if not torch.allclose(target.sum(-1), torch.ones(())):
        raise ValueError("probabilities must sum to 1")
    return cross_entropy(answer, target)


def dirichlet(answer: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return -torch.distributions.Dirichlet(answer.exp()).log_prob(target).mean()


def linear() -> Net:
    return Net(lambda net, given: net.layer(given))


MATRIX = torch.eye(4).to_sparse_csr()
HALVES = x(8, WIDTH)
STEPS: dict[str, tuple[nn.Module, Any, tuple[Any, ...]]] = {
    "sparse gradients": (
        nn.Embedding(10, WIDTH, sparse=True),
        mse_loss,
        (torch.randint(0, 10, (4, 3)), x(4, 3, WIDTH)),
    ),
    "second derivative": (Net(second_derivative), mse_loss, (x(), x())),
    "inner step": (Net(inner_step), mse_loss, (x(), x())),
    "saved elsewhere": (Net(save_by_hooks), mse_loss, (x(), x())),
    "old spectral norm": (
        nn.Sequential(nn.utils.spectral_norm(nn.Linear(WIDTH, WIDTH)), nn.Tanh()),
        mse_loss,
        (x(), x()),
    ),
    "probabilities": (linear(), probability_loss, (x(), x().softmax(-1))),
    "distribution": (linear(), dirichlet, (x(), x().softmax(-1))),
    "the same twice": (linear(), mse_loss, (SAME, SAME)),
    "shared memory": (linear(), mse_loss, (HALVES[:4], HALVES[2:6])),
    "sparse input": (Net(lambda net, m, a: m @ net.layer(a)), mse_loss, ((MATRIX, x()), x())),
}


@pytest.mark.parametrize(("model", "loss", "batch"), STEPS.values(), ids=STEPS)
def test_a_step_is_proven(model: nn.Module, loss: Any, batch: tuple[Any, ...]) -> None:
    kind = torch.optim.SparseAdam if isinstance(model, nn.Embedding) else torch.optim.Adam
    step = TrainStep(model, loss, kind(model.parameters(), 1e-3))
    workload = Workload(step, (Example(batch),))
    assert run_plainly(workload, "training").answers
    step(*batch)
    subject = StepSubject(workload, StepRunner(step), lambda copy: copy)
    verdict = verify_step(subject, extra_draws=1, noise_budget_s=0.05)
    assert verdict.outcome is Outcome.PASS, verdict.reason
