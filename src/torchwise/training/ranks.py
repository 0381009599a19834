"""Synchronise the ranks of a job: rank 0 computes a result, all receive it, and ranks wait for each other.

They use their own process group, over gloo, for three reasons. Its time-out can be long even if that of the training's
collectives is short. It needs no device. A rank that ends closes its connections, which the others notice at once.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from torchwise import errors
from torchwise.errors import InputError, TorchwiseError

PATIENCE_S = 3 * 3600.0
"""Seconds for ranks to wait for each other, longer than the most thorough search, and than any compilation."""
_OF_RANKS = re.compile(r"(RANK|WORLD_SIZE)$|(LOCAL|GROUP|ROLE|MASTER|TORCHELASTIC)_")
"""Environment variables by which a launcher sets a process's rank."""


class Ranks:
    """All ranks of this job. A process without other ranks waits for nobody.

    Every rank must create one at the same place of its program, and call the same methods in the same order.

    Args:
        patience: seconds to wait for the others, after which their absence is an error.

    Raises:
        InputError: `patience` is not above 0.
    """

    def __init__(self, patience: float = PATIENCE_S) -> None:
        if not patience > 0:
            raise InputError(f"patience is {patience!r} s, but must be above 0")
        self._patience = patience
        self._group: Any = None
        if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
            with self._together("meet"):
                self._group = dist.new_group(backend="gloo", timeout=timedelta(seconds=patience))

    @property
    def are_several(self) -> bool:
        """Whether there are other ranks."""
        return self._group is not None

    def broadcast_from_rank0(self, find: Callable[[], str]) -> str:
        """Call `find` on rank 0 only, and return its result, a text, on every rank.

        Raises:
            TorchwiseError: (on every rank) `find` raised, or a rank ended meanwhile.
        """
        if self._group is None:
            return find()
        if dist.get_rank() != 0:
            return _read_message(json.loads(self._broadcast("")))
        try:
            said = {"found": find()}
        except BaseException as error:  # raised again: the other ranks must know, or they would wait
            self._broadcast(json.dumps({"error": type(error).__name__, "message": str(error)}))
            raise
        self._broadcast(json.dumps(said))
        return said["found"]

    def everywhere(self, *holds: bool) -> tuple[bool, ...]:
        """Return whether each of `holds` is true on every rank.

        Raises:
            TorchwiseError: a rank ended meanwhile.
        """
        if self._group is None:
            return holds
        flags = torch.tensor(holds, dtype=torch.int32)
        with self._together("agree"):
            dist.all_reduce(flags, dist.ReduceOp.MIN, group=self._group)
        return tuple(bool(flag) for flag in flags)

    def close(self) -> None:
        """Close the connections. No method may be called afterwards."""
        if self._group is not None:
            dist.destroy_process_group(self._group)
            self._group = None

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def _broadcast(self, text: str) -> str:
        words = torch.tensor(list(text.encode()), dtype=torch.uint8)
        length = torch.tensor([len(words)])
        with self._together("wait for the decision of rank 0"):
            dist.broadcast(length, 0, group=self._group)
            words = words if dist.get_rank() == 0 else torch.empty(int(length), dtype=torch.uint8)
            dist.broadcast(words, 0, group=self._group)
        return bytes(words.tolist()).decode()

    @contextlib.contextmanager
    def _together(self, what: str) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:  # gloo's error for a closed connection, and for a time-out
            raise TorchwiseError(
                f"a rank ended, or was away for more than {self._patience:.0f} s, while the ranks of this job {what}: "
                f"read the log of that rank, and start the job again ({error})"
            ) from error


def _read_message(said: dict[str, str]) -> str:
    if "found" in said:
        return said["found"]
    kind = getattr(errors, said["error"], TorchwiseError)
    raise kind(f"rank 0, which decides for all, failed ({said['error']}): {said['message']}")


@contextlib.contextmanager
def without_rank() -> Iterator[None]:
    """Hide this process's rank from processes that start meanwhile, as they work alone."""
    hidden = {name: value for name, value in os.environ.items() if _OF_RANKS.match(name)}
    for name in hidden:
        del os.environ[name]
    try:
        yield
    finally:
        os.environ.update(hidden)
