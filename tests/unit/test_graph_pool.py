"""Replays of one owner's graphs wait for each other across streams, and across GPUs whose streams look alike."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from torchwise.compile.cuda_graphs.graph_pool import GraphPool


class Stream:
    def __init__(self, address: int = 0) -> None:
        self.cuda_stream = address
        self.waited_for: list[Any] = []

    def wait_stream(self, other: Any) -> None:
        self.waited_for.append(other)


@pytest.fixture
def current(monkeypatch: pytest.MonkeyPatch) -> list[Stream]:
    """Return a list whose last stream is the current one."""
    streams = [Stream()]
    monkeypatch.setattr(torch.cuda, "current_stream", lambda *_: streams[-1])
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda _: streams[-1].cuda_stream, raising=False)
    return streams


def test_a_replay_waits_for_the_last_one_on_another_stream_alone(current: list[Stream]) -> None:
    pool = GraphPool()
    pool.wait_for_last_replay(0)
    pool.wait_for_last_replay(0)
    assert not current[0].waited_for
    current.append(Stream(7))
    pool.wait_for_last_replay(0)
    assert current[1].waited_for == [current[0]]


def test_the_default_streams_of_two_gpus_are_two(current: list[Stream]) -> None:
    pool = GraphPool()
    pool.wait_for_last_replay(0)
    current.append(Stream())  # of the same address
    pool.wait_for_last_replay(1)
    assert current[1].waited_for == [current[0]]


def test_the_first_replay_waits_for_the_stream_on_which_its_owner_was_made(current: list[Stream]) -> None:
    pool = GraphPool()
    pool.follow_current_stream()
    current.append(Stream(7))
    pool.wait_for_last_replay(0)
    assert current[1].waited_for == [current[0]]
