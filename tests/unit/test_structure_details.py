"""The words of a stale decision about the model: the part that differs, by name."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from lock_samples import a_study
from torch import nn

import torchwise
from live_decisions import make_decision
from torchwise.errors import StalePlanError
from torchwise.plan import EAGER
from torchwise.records import Decision
from torchwise.records.structure_differences import DetailKind, DetailName, another_model, pack_details, unpack_details
from torchwise.study.lock import entry
from torchwise.study.lock.entry import entry_in, section_of
from torchwise.workload.identity import structure
from torchwise.workload.structure_details import details_of

X = torch.ones(2, 4)


class Net(nn.Module):
    def __init__(self, width: int = 8, scale: float = 1.0, bias: bool = True) -> None:
        super().__init__()
        self.fc = nn.Linear(4, width, bias=bias)
        self.drop = nn.Dropout(0.1)
        self.scale = scale

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.drop(self.fc(x)) * self.scale


def with_other_code() -> nn.Module:
    """A class of the same name, as after an edit of the file."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(4, 8)
            self.drop = nn.Dropout(0.1)
            self.scale = 1.0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.drop(self.fc(x)) * self.scale + 1.0

    Net.__qualname__ = "Net"
    return Net().eval()


def apply_change(change: Callable[[Any], Any], model: nn.Module | None = None) -> nn.Module:
    model = model or Net().eval()
    change(model)
    return model


def function(factor: int) -> Callable[[torch.Tensor], torch.Tensor]:
    def multiply(x: torch.Tensor) -> torch.Tensor:
        return x * factor

    return multiply


def step(loss: Any = nn.functional.mse_loss, optimizer: Any = torch.optim.SGD, **options: Any) -> Any:
    model = Net()
    return torchwise.TrainStep(model, loss, optimizer(model.parameters(), lr=0.1), **options)


def sparse(layout: torch.layout | None) -> nn.Module:
    model = Net().eval()
    matrix = torch.eye(4)
    model.register_buffer("matrix", matrix if layout is None else matrix.to_sparse(layout=layout))
    return model


CASES: dict[str, tuple[Any, Any, str]] = {
    "sparse": (sparse(None), sparse(torch.sparse_coo), "buffer matrix is float32[4, 4] torch.sparse_coo, and was"),
    "layout": (sparse(torch.sparse_csr), sparse(torch.sparse_coo), "and was float32[4, 4] torch.sparse_csr"),
    "weight": (Net().eval(), Net(16).eval(), "weight fc.weight is float32[16, 4], and was float32[8, 4]"),
    "dtype": (Net().eval(), Net().eval().double(), "weight fc.weight is float64[8, 4], and was float32[8, 4]"),
    "no bias": (Net().eval(), Net(bias=False).eval(), "weight fc.bias was removed (float32[8])"),
    "mode": (Net().eval(), Net().train(), "the model is in training mode, but was in eval mode"),
    "mode of a part": (
        Net().eval(),
        apply_change(lambda net: net.drop.train()),
        "part drop is in training mode, but was in eval mode",
    ),
    "attribute": (Net().eval(), Net(scale=2.0).eval(), "attribute scale is 2.0, and was 1.0"),
    "new attribute": (Net().eval(), apply_change(lambda net: setattr(net, "more", 3)), "attribute more is new (3)"),
    "rate": (
        Net().eval(),
        apply_change(lambda net: setattr(net.drop, "p", 0.5)),
        "part drop is Dropout(p=0.5, inplace=False), and was Dropout(p=0.1, inplace=False)",
    ),
    "part": (
        Net().eval(),
        apply_change(lambda net: setattr(net, "drop", nn.Identity())),
        "part drop is Identity(), and was Dropout(p=0.1, inplace=False)",
    ),
    "code": (Net().eval(), with_other_code(), "the code of Net changed"),
    "closure": (function(2), function(3), "factor in function.<locals>.multiply is 3, and was 2"),
    "bound": (functools.partial(torch.add, alpha=2), functools.partial(torch.add, alpha=3), "what is bound as alpha"),
    "function": (function(2), lambda x: x * 2, "the code of function.<locals>.multiply was removed"),
    "loss": (step(), step(nn.functional.l1_loss), "the code of l1_loss is new"),
    "optimizer": (step(), step(optimizer=torch.optim.Adam), "what trains is Adam, and was SGD"),
    "clipping": (step(), step(clip_norm=1.0), "clip_norm is 1.0, and was None"),
    "nested": (nn.Sequential(Net().eval()), nn.Sequential(Net(16).eval()), "weight 0.fc.weight is float32[16, 4]"),
}


@pytest.mark.parametrize("name", CASES)
def test_what_differs_is_named(name: str) -> None:
    before, now, said = CASES[name]
    assert structure(before) != structure(now)
    told = another_model(pack_details(details_of(before)), pack_details(details_of(now)))
    assert told.startswith("the model's code, mode or structure of weights changed: ")
    assert said in told


def test_many_differences_are_counted_and_what_follows_from_one_is_not_told() -> None:
    before, now = nn.Sequential().eval(), nn.Sequential(*(nn.Linear(2, 2) for _ in range(9))).eval()
    told = another_model(pack_details(details_of(before)), pack_details(details_of(now)))
    assert "part 0 is new (Linear(in_features=2, out_features=2, bias=True)); part 1 is new" in told
    assert told.endswith("; 6 more")
    assert "weight" not in told.partition(": ")[2]
    told = another_model(pack_details(details_of(now)), pack_details(details_of(now.train())))
    assert told.endswith(": the model is in training mode, but was in eval mode")


def test_equal_models_have_equal_details() -> None:
    assert details_of(Net()) == details_of(Net())
    assert unpack_details(pack_details(details_of(Net()))) == details_of(Net())


def test_a_stale_decision_names_it_where_it_is_applied() -> None:
    model = Net().eval()
    kept = make_decision(model, EAGER, X, structure_details=pack_details(details_of(model)))
    kept = Decision.from_json(kept.to_json())
    assert torchwise.apply(model, kept, strict=True) is not None
    with pytest.raises(StalePlanError, match=r"weight fc\.weight is float32\[16, 4\], and was float32\[8, 4\]"):
        torchwise.apply(Net(16).eval(), kept, strict=True)


@pytest.mark.parametrize("word", ["", "odd", "eJw=", pack_details({})], ids=["of old", "no base64", "cut", "empty"])
def test_where_the_details_are_not_known_the_rest_is_said(word: str) -> None:
    kept = make_decision(Net().eval(), EAGER, X, structure_details=word)
    with pytest.raises(StalePlanError, match=r"\(the model's code, mode or structure of weights changed\): tune again"):
        torchwise.apply(Net(16).eval(), kept, strict=True)


def test_a_decision_of_an_earlier_version_is_read() -> None:
    text = make_decision(Net(), EAGER, X).to_json()
    assert '"structure_details":"",' in text
    assert Decision.from_json(text.replace('"structure_details":"",', "")).structure_details == ""


def test_a_lock_keeps_them_and_one_without_is_read() -> None:
    for details in (pack_details(details_of(Net())), ""):
        study = a_study()
        assert study.decision is not None
        written = entry.entry_of(replace(study, decision=replace(study.decision, structure_details=details)))
        data = section_of(written)
        assert ("structure_details" in data) is bool(details)
        assert entry_in(written.key, data).decision.structure_details == details


def test_a_large_model_has_few_details_and_soon() -> None:
    block = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)
    model = nn.TransformerEncoder(block, 24)
    start = time.perf_counter()
    word = pack_details(details_of(model))
    assert len(word) < 8_000
    assert time.perf_counter() - start < 5.0


@pytest.mark.parametrize(
    ("text", "kind", "path", "is_mode"),
    [
        ("part a.b", DetailKind.PART, "a.b", False),
        ("part a.b's mode", DetailKind.PART, "a.b", True),
        ("the model's mode", DetailKind.OTHER, "the model", True),
        ("net's mode", DetailKind.OTHER, "net", True),
        ("attribute a.scale", DetailKind.ATTRIBUTE, "a.scale", False),
        ("weight a.weight", DetailKind.WEIGHT, "a.weight", False),
        ("the code of part a", DetailKind.OTHER, "the code of part a", False),
        ("autocast", DetailKind.OTHER, "autocast", False),
    ],
)
def test_a_name_is_taken_apart_in_one_place(text: str, kind: DetailKind, path: str, is_mode: bool) -> None:
    name = DetailName.from_text(text)
    assert (name.kind, name.path, name.is_mode) == (kind, path, is_mode)
    assert name.owner == text.removesuffix("'s mode")


def test_a_detail_is_inside_a_part_by_its_whole_path() -> None:
    inside = ("part a.b", "part a's mode", "weight a.weight", "attribute a.b.scale")
    assert all(DetailName.from_text(text).is_inside("a") for text in inside)
    assert not any(DetailName.from_text(text).is_inside("a") for text in ("part ab", "part a", "the code of a.b"))
