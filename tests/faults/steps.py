"""Planted faults of training steps: a wrong update, a wrong loss, or a state that does not go along."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from torchwise import TrainStep
from torchwise.workload import Example, Workload


def make_model() -> torch.nn.Module:
    """Return the model to train."""
    torch.manual_seed(4)
    return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3))


def make_parts(**options: Any) -> tuple[Any, ...]:
    """Return model, loss and optimizer."""
    model = make_model()
    given = {"lr": 0.05, "momentum": 0.9, "weight_decay": 0.1, **options}
    return model, torch.nn.CrossEntropyLoss(), torch.optim.SGD(model.parameters(), **given)


def make_workload() -> Workload:
    """Return the reference with two batches."""
    generator = torch.Generator().manual_seed(2)
    batches = [
        Example((torch.randn(6, 4, generator=generator), torch.randint(0, 3, (6,), generator=generator)))
        for _ in range(2)
    ]
    return Workload(TrainStep(*make_parts()), tuple(batches))


class StepTakenTwice(TrainStep):
    def advance(self) -> None:
        super().advance()
        self.optimizer.step()


class WeightLeftOut(TrainStep):
    def __call__(self, *batch: Any) -> Tensor:
        before = self.model[2].bias.detach().clone()
        loss = super().__call__(*batch)
        with torch.no_grad():
            self.model[2].bias.copy_(before)
        return loss


class LossOfTheOldBatch(TrainStep):
    def __call__(self, *batch: Any) -> Tensor:
        loss = super().__call__(*batch)
        earlier, self.earlier = getattr(self, "earlier", loss), loss
        return earlier


class LossTooLarge(TrainStep):
    def __call__(self, *batch: Any) -> Tensor:
        return super().__call__(*batch) * 1.01


class HalfOfTheBatch(TrainStep):
    def __call__(self, *batch: Any) -> Tensor:
        return super().__call__(*(part[:3] for part in batch))


STEPS = {
    "weight decay forgotten": lambda: TrainStep(*make_parts(weight_decay=0.0)),
    "another learning rate": lambda: TrainStep(*make_parts(lr=0.051)),
    "another momentum": lambda: TrainStep(*make_parts(momentum=0.8)),
    "Nesterov's momentum": lambda: TrainStep(*make_parts(nesterov=True)),
    "gradients clipped": lambda: TrainStep(*make_parts(), clip_norm=0.1),
    "step taken twice": lambda: StepTakenTwice(*make_parts()),
    "weight left out": lambda: WeightLeftOut(*make_parts()),
    "loss of the old batch": lambda: LossOfTheOldBatch(*make_parts()),
    "loss too large": lambda: LossTooLarge(*make_parts()),
    "half of the batch": lambda: HalfOfTheBatch(*make_parts()),
}
"""Makers of wrong steps by name."""
