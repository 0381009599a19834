"""The candidates that Inductor timed are told as its own selector reports them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import torch
from torch._inductor.select_algorithm import get_algorithm_selector_cache

from torchwise._torch.autotuning import SELECTOR, tell_candidates
from torchwise._torch.private_name import PrivateName
from torchwise.diagnose.explain_worker import _note_candidates
from torchwise.records.explanation import AutotunedOperator, Candidate


def report() -> None:
    """Report what the selector reports for a matrix product after it was timed, in milliseconds."""
    sizes = ([32, 64], [64, 48])
    nodes = [SimpleNamespace(get_dtype=lambda: torch.float32, get_size=lambda s=size: s) for size in sizes]
    timed = {Choice("a"): 2.0, Choice("b"): 1.0, Choice("c"): math.inf}
    for tell in list(get_algorithm_selector_cache().feedback_saver_fns):
        tell(timed, "mm", nodes, [], None, {})


@dataclass(frozen=True)
class Choice:
    name: str


def test_candidates_are_told_in_seconds_with_their_inputs_and_only_in_the_block() -> None:
    found: list[AutotunedOperator] = []
    with tell_candidates(lambda *told: _note_candidates(found, *told)):
        report()
    report()
    times = (Candidate("b", 1e-3), Candidate("a", 2e-3), Candidate("c", None))
    assert found == [AutotunedOperator("mm", ("float32[32×64]", "float32[64×48]"), times)]


def test_an_error_in_the_telling_reaches_no_compilation() -> None:
    def fail(*_told: object) -> None:
        raise ValueError

    with tell_candidates(fail):
        report()


def test_a_torch_without_the_selector_tells_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torchwise._torch.autotuning.SELECTOR", PrivateName(SELECTOR.module, "gone"))
    with tell_candidates(lambda *_told: pytest.fail("told")):
        report()
