"""The model that an inspection leaves in its worker, for the first trial, which need not load it again.

It is kept only if nothing tells it from a model that was just loaded: its calls change nothing, no instrument failed,
nothing was compiled, and the settings of the process are as they were. Random numbers start over from where loading had
left them. This is the worker's side. `kept_worker` is the parent's.
"""

from __future__ import annotations

import gc
import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from torchwise._torch.cpu_isa_cache import SHARED
from torchwise._torch.dynamo import count_compiled_graphs, count_graph_breaks
from torchwise.verify.settings import read_settings
from torchwise.workload import Workload


class LoadedModel:
    """A workload that was just loaded, and the state of the process then."""

    def __init__(self, workload: Workload) -> None:
        self.workload = workload
        self._settings = read_settings()
        self._versions = self._read_versions()
        numpys: Any = np.random.get_state(legacy=False)
        self._numbers = torch.get_rng_state(), random.getstate(), numpys
        self._notes: Sequence[str] = ()

    def keep(self, notes: Sequence[str]) -> None:
        """Keep it for the next job of this worker. `notes` tell which instruments have failed, now or later."""
        global _kept
        self._notes = notes
        _kept = self

    @property
    def is_as_loaded(self) -> bool:
        """Whether a job would find this model, and the process, as if it had loaded the model itself."""
        has_compiled = count_compiled_graphs() or count_graph_breaks() or SHARED.made or SHARED.owed_s
        versions = self._read_versions()
        is_same = versions is not None and versions == self._versions and read_settings() == self._settings
        return is_same and not (has_compiled or self._notes)

    def take(self) -> Workload:
        """Return the workload, with the generators of random numbers as loading left them."""
        numbers, pythons, numpys = self._numbers
        torch.set_rng_state(numbers)
        random.setstate(pythons)
        np.random.set_state(numpys)
        gc.collect()
        return self.workload

    def _read_versions(self) -> list[int] | None:
        """Return how many times each weight and input was written, or None if a tensor does not count that."""
        module = self.workload.module
        weights = [] if module is None else [*module.parameters(), *module.buffers()]
        inputs = [tensor for example in self.workload.examples for tensor in example.tensors()]
        try:
            return [tensor._version for tensor in [*weights, *inputs]]
        except RuntimeError:  # a tensor made in inference mode
            return None


_kept: LoadedModel | None = None


def can_go_on() -> bool:
    """Return whether this worker has a model for one more job."""
    return _kept is not None and _kept.is_as_loaded


def take_kept() -> Workload | None:
    """Return the kept workload, which only one job has, or None."""
    global _kept
    kept, _kept = _kept, None
    return None if kept is None else kept.take()
