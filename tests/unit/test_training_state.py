"""Changes of optimizers and scalers that a recorded training step notices, and those it need not notice."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from torchwise.compile.cuda_graphs.training_state import TrainingState

Trained = tuple[torch.nn.Module, torch.optim.Optimizer, torch.amp.GradScaler]


@pytest.fixture
def trained() -> Trained:
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 2))
    optimizer = torch.optim.AdamW([{"params": model[0].parameters()}, {"params": model[1].parameters(), "lr": 0.5}])
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(model(torch.ones(1, 4)).sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    return model, optimizer, scaler


def state_of(optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = next(iter(optimizer.state.values()))
    return found


def move_data(tensor: torch.Tensor) -> None:
    tensor.data = tensor.data.clone()


def reload_state(optimizer: torch.optim.Optimizer) -> None:
    optimizer.load_state_dict(optimizer.state_dict())


CHANGES: dict[str, Callable[[torch.nn.Module, torch.optim.Optimizer, torch.amp.GradScaler], object]] = {
    "a rate": lambda _, o, __: o.param_groups[1].update(lr=0.25),
    "a flag": lambda _, o, __: o.param_groups[0].update(amsgrad=True),
    "a group that comes": lambda _, o, __: o.add_param_group({"params": [torch.nn.Parameter(torch.ones(1))]}),
    "a group in another's place": lambda _, o, __: o.param_groups.__setitem__(0, dict(o.param_groups[0])),
    "other groups": lambda _, o, __: setattr(o, "param_groups", list(map(dict, o.param_groups))),
    "a parameter that goes": lambda _, o, __: o.param_groups[0]["params"].pop(),
    "other parameters": lambda _, o, __: o.param_groups[0]["params"].reverse(),
    "a state that goes": lambda _, o, __: o.state.popitem(),
    "a part of a state that goes": lambda _, o, __: state_of(o).pop("exp_avg"),
    "a state in another's place": lambda _, o, __: state_of(o).update(exp_avg=state_of(o)["exp_avg"].clone()),
    "a state that moved": lambda _, o, __: move_data(state_of(o)["exp_avg"]),
    "all states in others' place": lambda _, o, __: reload_state(o),
    "a weight that is frozen": lambda m, _, __: m[0].weight.requires_grad_(False),
    "a weight that moved": lambda m, _, __: move_data(m[0].weight),
    "a scale": lambda _, __, s: setattr(s, "_scale", torch.ones(1)),
}


@pytest.mark.parametrize("what", CHANGES)
def test_a_change_is_noticed(what: str, trained: Trained) -> None:
    model, optimizer, scaler = trained
    state = TrainingState([model], [optimizer], [scaler])
    assert state.find_change() is None
    CHANGES[what](*trained)
    assert state.find_change() is not None
    state.take_snapshot()
    assert state.find_change() is None


def test_values_and_equal_numbers_are_no_change(trained: Trained) -> None:
    model, optimizer, scaler = trained
    state = TrainingState([model], [optimizer], [scaler])
    with torch.no_grad():
        model[0].weight.add_(1)
    state_of(optimizer)["exp_avg"].mul_(2)
    optimizer.param_groups[1]["lr"] = float("0.5")
    scaler.update(8.0)
    assert state.find_change() is None
