"""Live models reach a worker whole, with parts that cloudpickle refuses.

These are locks, references, TorchScript and parametrizations.
"""

from __future__ import annotations

import contextvars
import threading
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from torchwise import TrainStep
from torchwise.errors import WorkloadError
from torchwise.plan.workload_spec import WorkloadSpec
from torchwise.trial.job import Job
from torchwise.trial.loading import load, save
from torchwise.workload import Example, Workload
from torchwise.workload.identity import structure

X = torch.randn(3, 4)
pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.*", "ignore:.*deprecated.*")


def send_and_load(call: Any, folder: Path, *args: Any) -> Any:
    path = str(folder / "model.pt")
    workload = Workload(call, (Example(args or (X,)),))
    save(workload, path)
    mode = "training" if workload.step else "inference"
    return load(Job("inspect", WorkloadSpec("live:test", mode=mode, device="cpu"), source=path)).call  # type: ignore[arg-type]


class Busy(nn.Module):
    """Holds locks that guard it, and references to itself."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.lock, self.again, self.ready = threading.Lock(), threading.RLock(), threading.Condition()
        self.apart = threading.local()
        self.apart.scale = torch.ones(4) * 2
        self.variable = contextvars.ContextVar[int]("variable")
        self.owner, self.lost = weakref.ref(self), weakref.ref(nn.Module())
        self.noise = torch.default_generator

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with self.lock, self.again, self.ready:
            return self.layer(x) * self.apart.scale


def test_a_model_with_locks_and_references_is_sent(tmp_path: Path) -> None:
    model = Busy()
    found = send_and_load(model, tmp_path)
    assert torch.equal(found(X), model(X))
    assert found.owner() is found
    assert found.lost() is None
    assert found.noise is torch.default_generator


MADE = {
    "traced": lambda m: torch.jit.trace(m, X),
    "scripted": torch.jit.script,
    "frozen": lambda m: torch.jit.freeze(torch.jit.script(m)),
    "within": lambda m: nn.Sequential(torch.jit.script(m), nn.Linear(4, 2)).eval(),
    "spectral norm": lambda m: nn.Sequential(nn.utils.parametrizations.spectral_norm(m[0]), nn.ReLU()).eval(),
    "weight norm": lambda m: nn.Sequential(nn.utils.parametrizations.weight_norm(m[0]), nn.ReLU()),
    "old weight norm": lambda m: nn.Sequential(nn.utils.weight_norm(m[0]), nn.ReLU()),
}


@pytest.mark.parametrize("make", MADE.values(), ids=MADE)
def test_so_is_one_of_unusual_modules(make: Any, tmp_path: Path) -> None:
    model = make(nn.Sequential(nn.Linear(4, 4), nn.Tanh()).eval())
    found = send_and_load(model, tmp_path)
    assert torch.allclose(found(X), model(X))
    assert structure(found) == structure(model)
    assert [name for name, _ in found.named_parameters()] == [name for name, _ in model.named_parameters()]


def double(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def test_so_is_a_scripted_function(tmp_path: Path) -> None:
    assert torch.equal(send_and_load(torch.jit.script(double), tmp_path)(X), X * 2)


def test_a_step_of_a_parametrized_model_still_trains_it(tmp_path: Path) -> None:
    model = nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(4, 4)))
    step = TrainStep(model, nn.functional.mse_loss, torch.optim.SGD(model.parameters(), 0.1))
    found = send_and_load(step, tmp_path, X, X)
    assert {id(p) for p in found.trained()} == {id(p) for p in found.model.parameters()}
    assert torch.equal(found(X, X), step(X, X))


def test_a_step_of_a_scripted_model_is_refused_and_the_way_out_named(tmp_path: Path) -> None:
    model = torch.jit.script(nn.Sequential(nn.Linear(4, 4)))
    step = TrainStep(model, nn.functional.mse_loss, torch.optim.SGD(model.parameters(), 0.1))
    with pytest.raises(WorkloadError, match=r"TorchScript is written apart from the optimizer.*give a factory"):
        send_and_load(step, tmp_path, X, X)
