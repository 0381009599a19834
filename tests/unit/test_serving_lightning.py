"""An optimised LightningModule, and an optimised part of one, in the hands of Lightning's Trainer."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import torchwise
from live_decisions import make_decision
from torchwise.plan import Plan
from torchwise.runtime import OptimizedModule

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import pytorch_lightning as pl

PLAN = Plan(threads=torch.get_num_threads() + 1)
ROWS = torch.arange(24.0).reshape(6, 4) / 24
BATCH = ROWS[:3]

pytestmark = pytest.mark.filterwarnings("ignore")


class Scorer(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        answer: torch.Tensor = self.net(x)
        return answer

    def predict_step(self, batch: list[torch.Tensor], _index: int) -> torch.Tensor:
        answer: torch.Tensor = self(batch[0])
        return answer

    def training_step(self, batch: list[torch.Tensor], _index: int) -> torch.Tensor:
        loss: torch.Tensor = (self(batch[0]) - batch[0].sum(1, keepdim=True)).pow(2).mean()
        self.log("loss", loss)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def whole() -> Any:
    """Optimise the whole module."""
    model = Scorer().eval()
    return torchwise.apply(model, make_decision(model, PLAN, BATCH))


def part() -> Any:
    """Optimise the module that is called: Lightning's steps go through it."""
    model = Scorer().eval()
    model.net = torchwise.apply(model.net, make_decision(model.net, PLAN, BATCH))
    return model


@pytest.fixture(params=[whole, part], ids=["whole", "part"])
def optimized(request: pytest.FixtureRequest) -> Any:
    return request.param()


def loader() -> DataLoader[Any]:
    return DataLoader(TensorDataset(ROWS), batch_size=3)


def trainer(folder: Path, **options: Any) -> pl.Trainer:
    return pl.Trainer(
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
        default_root_dir=folder,
        **options,
    )


def train_model(model: Any, folder: Path) -> pl.Trainer:
    found = trainer(folder, max_epochs=2)
    found.fit(model.train(), loader())
    return found


def equal(ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> bool:
    return list(ours) == list(theirs) and all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_it_predicts_as_the_bare_one_does(optimized: Any, tmp_path: Path) -> None:
    assert isinstance(optimized, pl.LightningModule)
    found = trainer(tmp_path).predict(optimized, loader())
    expected = trainer(tmp_path).predict(Scorer().eval(), loader())
    assert torch.equal(torch.cat(found), torch.cat(expected))  # type: ignore[arg-type]


def test_the_plan_answers_within_lightnings_own_steps_where_a_part_is_optimised(tmp_path: Path) -> None:
    model = part()
    trainer(tmp_path).predict(model, loader())
    assert model.net.statistics.optimized == 2
    assert model.net.statistics.original == {}


def test_it_trains_as_the_bare_one_does(optimized: Any, tmp_path: Path) -> None:
    bare = Scorer()
    train_model(optimized, tmp_path)
    train_model(bare, tmp_path)
    assert equal(optimized.state_dict(), bare.state_dict())
    assert not equal(optimized.state_dict(), Scorer().state_dict())
    optimized.eval()
    bare.eval()
    with torch.no_grad():
        assert torch.equal(optimized(BATCH), bare(BATCH))


def test_its_checkpoints_load_into_the_bare_one_and_back(optimized: Any, tmp_path: Path) -> None:
    ours, theirs, bare = tmp_path / "ours.ckpt", tmp_path / "theirs.ckpt", Scorer()
    train_model(optimized, tmp_path).save_checkpoint(ours)
    assert equal(Scorer.load_from_checkpoint(ours).state_dict(), optimized.state_dict())
    train_model(bare, tmp_path).save_checkpoint(theirs)
    other = part()
    other.load_state_dict(torch.load(theirs, weights_only=False)["state_dict"])
    assert equal(other.state_dict(), bare.state_dict())
    again = trainer(tmp_path, max_epochs=3)
    again.fit(other.train(), loader(), ckpt_path=theirs, weights_only=False)
    assert again.current_epoch == 3


def test_a_part_that_is_optimised_looks_like_the_part() -> None:
    model, bare = part(), Scorer()
    assert isinstance(model.net, torch.nn.Sequential)
    assert issubclass(type(model.net), OptimizedModule)
    assert [name for name, _ in model.named_parameters()] == [name for name, _ in bare.named_parameters()]
    assert [name for name, _ in model.named_modules()] == [name for name, _ in bare.named_modules()]
    assert list(model.state_dict()) == list(bare.state_dict())
    model.double()
    assert {p.dtype for p in model.parameters()} == {torch.float64}
    assert model.net.training is False
    model.train()
    assert torchwise.unwrap(model.net).training is True
    model.apply(lambda module: module.eval())
    assert torchwise.unwrap(model.net)[1].training is False
