"""Which handler answers when Python reads a tensor, and that none is left behind."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch

from torchwise.compile.tensor_reads import METHODS, answering

YES = torch.ones(())


def find_patched_methods() -> list[str]:
    return [name for name in METHODS if name in vars(torch.Tensor)]


def decline(_: torch.Tensor) -> Any:
    return NotImplemented


def test_the_last_who_answers_is_asked_first_and_leaves_the_rest_to_others() -> None:
    with answering(lambda _: False, lambda _: "outer"), answering(decline, lambda t: "inner" if t > 1 else decline(t)):
        assert not YES
        assert YES.item() == "outer"
    with answering(decline, decline):
        assert YES
        assert YES.item() == 1.0
    assert find_patched_methods() == []


def test_nothing_is_left_where_what_runs_raises() -> None:
    with pytest.raises(ValueError, match="broken"), answering(decline, decline):
        raise ValueError("broken")
    assert find_patched_methods() == []


def test_threads_that_begin_and_end_in_any_order_answer_for_themselves() -> None:
    found: dict[str, Any] = {}
    began, ended = threading.Event(), threading.Event()

    def other() -> None:
        with answering(decline, lambda _: "other"):
            began.set()
            assert ended.wait(10)
            found["other"] = YES.item()

    thread = threading.Thread(target=other)
    with answering(decline, lambda _: "mine"):
        thread.start()
        assert began.wait(10)
        found["mine"] = YES.item()
    found["plain"] = YES.item()
    ended.set()
    thread.join()
    assert found == {"mine": "mine", "other": "other", "plain": 1.0}
    assert find_patched_methods() == []


def test_parameters_are_asked_too() -> None:
    with answering(lambda _: False, decline):
        assert not torch.nn.Parameter(torch.ones(1))


def test_what_somebody_else_put_there_is_asked_last_and_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    def theirs(_: torch.Tensor) -> str:
        return "theirs"

    monkeypatch.setattr(torch.Tensor, "item", theirs, raising=False)
    with answering(decline, lambda t: "mine" if t > 1 else decline(t)):
        assert (YES * 2).item() == "mine"
        assert YES.item() == "theirs"
    assert vars(torch.Tensor)["item"] is theirs
