"""The reader of a page: the names that its snippets take for granted, and a hurry that lets no search compile."""

from __future__ import annotations

import functools
import itertools
import logging
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from doc_pages import ROOT
from torch import nn

import torchwise
from brief import BRIEF
from live_decisions import make_decision
from torchwise import bucketing
from torchwise.plan import CHOICES, Plan
from torchwise.plan.effort import EFFORTS

ONE_THREAD = Plan(threads=1)


def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have searches try one plan that compiles nothing, briefly, and analyses run the plain model alone."""
    # Times that say little suffice, and loss curves that give no sure comparison.
    monkeypatch.setitem(EFFORTS, "quick", replace(BRIEF, measure_s=0.2, extra_draws=0))
    for module, name, changes in (
        (torchwise, "tune", {"plans": [ONE_THREAD], "effort": "quick"}),
        (torchwise, "optimize", {"plans": [ONE_THREAD], "effort": "quick"}),
        (torchwise, "analyze", {"plan": "eager", "effort": "quick"}),
        (torchwise, "explain", {"fixes": False}),
        (bucketing, "fit", {"plans": [ONE_THREAD], "effort": "quick"}),
    ):
        monkeypatch.setattr(module, name, override_keywords(getattr(module, name), changes))


def override_keywords(function: Callable[..., Any], changes: dict[str, Any]) -> Callable[..., Any]:
    """Return the function with these keywords in place of the given ones."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **{**kwargs, **changes})

    return call


def names(page: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Return the names that a page takes for granted."""
    torch.manual_seed(0)
    common = {
        "torch": torch,
        "nn": nn,
        "torchwise": torchwise,
        "tw": torchwise,
        "model": small(),
        "x": torch.randn(4, 8),
    }
    return {**common, **OF_PAGE.get(page, lambda _monkeypatch: {})(monkeypatch)}


def small() -> nn.Module:
    """Return a model of two layers."""
    return nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8)).eval()


class Masked(nn.Module):
    """The mean of the embeddings of all tokens that the mask keeps."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(32, 8)

    def forward(self, tokens: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Return (batch, 8) for tokens and mask of (batch, length)."""
        weight = mask[..., None].to(torch.float32)
        return (self.table(tokens) * weight).sum(1) / weight.sum(1)


def prepare_bucketing(_monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    tokens = torch.randint(1, 32, (2, 32))
    sizes = dict.fromkeys(range(1, 33), 1)
    return {"model": Masked().eval(), "tokens": tokens, "mask": torch.ones_like(tokens), "seen": sizes}


def prepare_components(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.setenv("TORCHWISE_DISABLE", "1")  # plain code: the search for parts is tested elsewhere

    class Program(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.neuron, self.storage = nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.storage(self.neuron(x))

    return {"program": Program(), "carry": lambda x: x + 1, "stream": [torch.randn(2, 8)]}


def prepare_tutorial(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    only_captured(monkeypatch)
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "slow_model", raising=False)
    return {}


def only_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have `torch.compile` capture graphs and not compile them. Breaks and recompilations come from the capture."""
    monkeypatch.setattr(torch, "compile", override_keywords(torch.compile, {"backend": "eager"}))


def prepare_watch(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    only_captured(monkeypatch)
    step, sizes = torch.compile(lambda x: print(x + 1), dynamic=False), itertools.count(4)
    return {"train": lambda: step(torch.ones(next(sizes)))}  # compiled anew, and broken by `print`, each time


def prepare_serving(_monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    import pytorch_lightning as lightning

    class Lit(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = small()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.net(x)

        def predict_step(self, batch: torch.Tensor, _index: int) -> torch.Tensor:
            return self.net(batch)

    model, x = Lit().eval(), torch.randn(4, 8)
    trainer = lightning.Trainer(
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    decision = torchwise.tune(model.net, (x,)).decision
    loader = torch.utils.data.DataLoader([x, x], batch_size=None)
    return {"model": model, "x": x, "trainer": trainer, "decision": decision, "loader": loader, "page_somebody": print}


def prepare_artifacts(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    study = torchwise.tune(model := small(), (x := torch.randn(4, 8),))
    return {"model": model, "x": x, "study": study, "log": logging.getLogger("service")}


def prepare_fallback_reasons(_monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    fast = torchwise.optimize(small(), (torch.randn(4, 8),))
    with torch.no_grad():
        fast(torch.randn(3, 8))  # another signature: the original answers
    return {"fast": fast}


def prepare_monitoring(_monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    model, x = small(), torch.randn(4, 8)
    return {"fast": torchwise.apply(model, make_decision(model, Plan(threads=2), x)), "x": x}


def prepare_plug_ins(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    for key in (("backend", "interpreted"), ("transforms", "drop_dropout")):  # known after the page no more than before
        monkeypatch.setitem(CHOICES, key, None)
        del CHOICES[key]
    return {}


OF_PAGE: dict[str, Callable[[pytest.MonkeyPatch], dict[str, Any]]] = {
    "docs/artifacts.md": prepare_artifacts,
    "docs/loops.md": lambda _monkeypatch: {"starts": [torch.rand(64, 64)]},
    "docs/components.md": prepare_components,
    "docs/monitoring.md": prepare_monitoring,
    "docs/howto/plug-ins.md": prepare_plug_ins,
    "docs/reference/fallback-reasons.md": prepare_fallback_reasons,
    "docs/serving.md": prepare_serving,
    "docs/bucketing.md": prepare_bucketing,
    "docs/tutorial.md": prepare_tutorial,
    "docs/watch.md": prepare_watch,
}
