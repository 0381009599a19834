"""Programs that run as they are, and do what instruments of others may not stand."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn.functional import mse_loss
from torch.utils import _pytree
from torch.utils.checkpoint import checkpoint

from torchwise import TrainStep

WIDTH = 8


def a_step(model: nn.Module, loss: Callable[..., torch.Tensor] = mse_loss) -> Any:
    """Return a step of the model on a batch of one input and one target."""
    step = TrainStep(model, loss, torch.optim.Adam(model.parameters(), 1e-3))
    return step, (torch.randn(16, WIDTH), torch.randn(16, WIDTH))


def a_net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.SiLU(), nn.Linear(WIDTH, WIDTH))


class Around(nn.Module):
    """Calls a net in some way."""

    def __init__(self, way: Callable[[nn.Module, torch.Tensor], torch.Tensor], net: nn.Module | None = None) -> None:
        super().__init__()
        self.net = net or a_net()
        self.way = way

    def forward(self, x: torch.Tensor) -> Any:
        return self.way(self.net, x)


# ---- gradients that are taken within a step


def _force(net: nn.Module, x: torch.Tensor) -> torch.Tensor:
    x = x.detach().requires_grad_()
    return -torch.autograd.grad(net(x).sum(), x, create_graph=True)[0]


def forces() -> Any:
    return a_step(Around(_force))


def penalty() -> Any:
    model = a_net()

    def loss(out: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return mse_loss(out, y) + _force(model, y).square().sum(-1).sub(1).square().mean()

    return a_step(model, loss)


def functional() -> Any:
    model = a_net()

    def loss(out: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        weights = dict(model.named_parameters())

        def energy(row: torch.Tensor) -> torch.Tensor:
            return torch.func.functional_call(model, weights, (row,)).sum()  # type: ignore[no-any-return]

        return mse_loss(out, y) + torch.func.vmap(torch.func.grad(energy))(y).square().mean()

    return a_step(model, loss)


def _equilibrium(net: nn.Module, x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        z = torch.zeros_like(x)
        for _ in range(5):
            z = (0.1 * net(z) + x).tanh()
    z = (0.1 * net(z) + x).tanh()
    if not z.requires_grad:
        return z
    start = z.detach().requires_grad_()
    again = (0.1 * net(start) + x).tanh()

    def solve(gradient: torch.Tensor) -> torch.Tensor:
        found = gradient
        for _ in range(5):
            found = torch.autograd.grad(again, start, found, retain_graph=True)[0] + gradient
        return found

    z.register_hook(solve)
    return z


def equilibrium() -> Any:
    return a_step(Around(_equilibrium))


class Adjoint(torch.autograd.Function):
    """Solves backwards in its backward pass, as adjoint solvers do."""

    @staticmethod
    def forward(ctx: Any, net: nn.Module, x: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
        ctx.net = net
        with torch.no_grad():
            y = x + 0.1 * net(x)
        ctx.save_for_backward(x, *weights)
        return y

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        x, *weights = ctx.saved_tensors
        with torch.enable_grad():
            start = x.detach().requires_grad_()
            y = start + 0.1 * ctx.net(start)
            found = torch.autograd.grad(y, [start, *weights], gradients[0], allow_unused=True)
        return None, *found


def adjoint() -> Any:
    return a_step(Around(lambda net, x: Adjoint.apply(net, x, *net.parameters())))  # type: ignore[no-untyped-call]


def use_checkpoint() -> Any:
    return a_step(Around(lambda net, x: checkpoint(net, x, use_reentrant=False)))


def reentrant() -> Any:
    return a_step(Around(lambda net, x: checkpoint(net, x.requires_grad_(), use_reentrant=True)))


# ---- what a step leaves on its model


def old_weight_norm() -> Any:
    return a_step(nn.Sequential(nn.utils.weight_norm(nn.Linear(WIDTH, WIDTH)), nn.Tanh()))


def old_spectral_norm() -> Any:
    return a_step(nn.Sequential(nn.utils.spectral_norm(nn.Linear(WIDTH, WIDTH)), nn.Tanh()))


def new_spectral_norm() -> Any:
    return a_step(nn.Sequential(nn.utils.parametrizations.spectral_norm(nn.Linear(WIDTH, WIDTH)), nn.Tanh()))


class Experts(nn.Module):
    """Keeps what its auxiliary loss is made of."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.out = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.aux: Any = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights = self.gate(x).softmax(-1)
        self.aux = weights.mean(0).square().sum()
        return self.out(x) * weights


class WithAux(nn.Module):
    """Reads what the model keeps, and keeps its own last value."""

    def __init__(self, model: Experts) -> None:
        super().__init__()
        self.model, self.last = model, []

    def forward(self, out: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        loss = mse_loss(out, y) + 0.01 * self.model.aux
        self.last = [loss]
        return loss


def store_loss() -> Any:
    model = Experts()
    return a_step(model, WithAux(model))


class Recorder:
    """A hook that keeps activations."""

    def __init__(self) -> None:
        self.kept: dict[str, torch.Tensor] = {}
        self.lock = threading.Lock()

    def __call__(self, module: nn.Module, args: Any, out: torch.Tensor) -> None:
        with self.lock:
            self.kept["out"] = out


def activation_hook() -> Any:
    model = a_net()
    model[0].register_forward_hook(Recorder())
    return a_step(model)


def activation_closure() -> Any:
    model, kept = a_net(), []

    def keep(module: nn.Module, args: Any, out: torch.Tensor) -> None:
        kept[:] = [out]

    model[0].register_forward_hook(keep)
    return a_step(model, lambda out, y: mse_loss(out, y) + 0.1 * kept[0].square().mean())


def patch_forward() -> Any:
    """Return a step of a model one of whose layers has had its forward wrapped, as libraries for adapters do."""
    model = a_net()
    before, scale = model[0].forward, nn.Parameter(torch.ones(WIDTH))
    model.register_parameter("scale", scale)
    model[0].forward = lambda x: before(x) * scale
    return a_step(model)


def add_locks() -> Any:
    model = a_net()
    model.lock, model.ready, model.noise = threading.RLock(), threading.Condition(), torch.Generator()
    return a_step(model)


def sparse() -> Any:
    matrix = torch.eye(16).to_sparse_csr()
    return a_step(Around(lambda net, x: matrix @ net(x)))


def twice() -> Any:
    """Return a step whose batch has one tensor as input and target."""
    step, (x, _) = a_step(a_net())
    return step, (x, x)


# ---- answers


class Output:
    """Registered with pytree in the usual way, which names no parts."""

    def __init__(self, sample: torch.Tensor) -> None:
        self.sample = sample


_pytree.register_pytree_node(Output, lambda o: ([o.sample], None), lambda parts, _: Output(*parts))


def keyless() -> Any:
    return Around(lambda net, x: Output(net(x))), (torch.randn(4, WIDTH),)  # type: ignore[arg-type,return-value]


def sparse_answer() -> Any:
    return Around(lambda net, x: net(x).relu().to_sparse_csr()).eval(), (torch.randn(4, WIDTH),)


# ---- what is the model's own fault


def break_backward() -> Any:
    """Return a step that raises as it is."""

    def spoil(net: nn.Module, x: torch.Tensor) -> torch.Tensor:
        y = net(x).exp()
        z = y * 2
        y.add_(1)
        return z

    return a_step(Around(spoil))
