"""Capture a call that reads bools or counts from the GPU, in one CUDA graph for each segment between two reads.

`if x.mean() > 0:` makes the host wait for the GPU, so one graph cannot contain the call. But the work between two such
reads can be recorded. The segments of a path then answer every call that reads the same values: a segment is replayed,
its value is read, the next segment is replayed, and no Python of the model runs. Another value leads to another path,
which is recorded when it first occurs. Paths share only the inputs. A call that leaves a path in its middle runs the
other path from its start, with the values that were already read. So the path of the last call is tried first.

Counts of elements (`x[mask]`, `nonzero`) and whole numbers are such values, too. The same count leads to the same path.
If nearly every call has another number, there are too many paths. The original model then answers, and paths are tried
less and less often. Reading a fractional number is refused, unless it can stay on the GPU
(`transforms/numbers_on_gpu.py`).

Sources: PyTorch's CUDA-graph trees (`torch/_inductor/cudagraph_trees.py`), which split where Dynamo breaks the graph
and run the Python code in between. Trace trees (Gal & Franz, UCI ICS-TR-06-16), whose paths are recorded on demand.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Mapping
from typing import Any

import torch

from torchwise._torch.dispatch import copy_each
from torchwise.compile.cuda_graphs.call_graph import CapturedCall
from torchwise.compile.cuda_graphs.call_state import KeptBuffer, buffers_of
from torchwise.compile.cuda_graphs.compile_freeze import is_in_frozen_call
from torchwise.compile.cuda_graphs.graph_pool import warm_up
from torchwise.compile.cuda_graphs.host_values import HostValues
from torchwise.compile.cuda_graphs.in_place_replay import RecordedAnswers
from torchwise.compile.cuda_graphs.recorded_graph import GraphKey, copy_outputs, static_inputs, tensors_of
from torchwise.compile.cuda_graphs.segments import Path, record_path
from torchwise.compile.uncompiled_reason import no_effect
from torchwise.errors import UnsupportedError
from torchwise.workload import pytree

logger = logging.getLogger("torchwise")

MAX_PATHS = 32
"""Maximum number of paths for one signature. The original model answers calls that would need another."""
MAX_REFUSED = 1024
"""Maximum number of remembered paths that cannot be recorded."""
MAX_PASSED = 255
"""Maximum number of calls in a row that the model answers directly, after as many calls without a path."""
_WRITES = (
    "the call writes to its inputs or its module, and reads values from the GPU: a segment that is replayed again "
    "after another value would write twice"
)
_DRAWS = (
    "the call draws random numbers, and reads values from the GPU: a segment that is replayed again after another "
    "value would draw other numbers"
)


class SegmentedPaths(RecordedAnswers):
    """The recorded paths for calls of one signature. A call that writes to inputs is refused.

    `record` records the path for the values in the inputs, and leaves its results in the outputs. `call` answers if
    there are too many paths, or one cannot be recorded, or none may be.
    """

    def __init__(
        self,
        inputs: list[torch.Tensor],
        first: Path,
        record: Callable[[], Path],
        call: Callable[..., Any],
        settled: Callable[[], bool],
        *,
        borrow: bool = False,
    ) -> None:
        super().__init__(settled, borrow=borrow)
        self._inputs = inputs
        self._record = record
        self._call = call
        self.paths = [first]  # the path of the last call comes first
        self._refused: set[tuple[Hashable, ...]] = set()
        self._passed = self._to_pass = 0

    def __call__(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], record: object = None) -> Any:  # noqa: ARG002
        """Answer by the path of the read values, or by the call if no path exists and none can be recorded.

        A call without a path has replayed the segments before its last read in vain. So after each such call in a row,
        more of the next calls are answered directly before paths are tried again.
        """
        if self._to_pass:
            self._to_pass -= 1
            return self._call(*args, **kwargs)
        copy_each(self._inputs, tensors_of(args, kwargs))
        path = self._follow()
        if path is None:
            self._to_pass = self._passed
            self._passed = min(2 * self._passed + 1, MAX_PASSED)
            return self._call(*args, **kwargs)
        self._passed = 0
        return path.outputs if self.borrow else copy_outputs(path.outputs)

    def drop(self) -> None:
        """Free the paths. It must not be called afterwards."""
        super().drop()
        self.paths, self._inputs, self._record = [], [], _raise_freed

    def _follow(self) -> Path | None:
        """Replay, segment by segment, to the end of a path. Return None if the needed path cannot be recorded."""
        path = self.paths[0]
        answers: tuple[Hashable, ...] = ()
        while (other_answers := _replay(path, answers)) is not None:
            answers = other_answers
            match = next((other for other in self.paths if other.answers[: len(answers)] == answers), None)
            if match is None:
                return self._record_new(answers)
            path = match
        if path is not self.paths[0]:
            self.paths.remove(path)
            self.paths.insert(0, path)
        return path

    def _record_new(self, answers: tuple[Hashable, ...]) -> Path | None:
        if is_in_frozen_call() or answers in self._refused:
            return None
        if len(self.paths) >= MAX_PATHS:
            self._refuse(answers, f"the maximum of {MAX_PATHS} paths is reached")
            return None
        try:
            path = self._record()
        except UnsupportedError as error:  # the other paths stay in use
            self._refuse(answers, str(error))
            return None
        self.paths.insert(0, path)
        return path

    def _refuse(self, answers: tuple[Hashable, ...], reason: str) -> None:
        if not self._refused:
            logger.warning("torchwise: calls on other paths are answered without a CUDA graph, because %s", reason)
        if len(self._refused) < MAX_REFUSED:
            self._refused.add(answers)


def _replay(path: Path, known: tuple[Hashable, ...]) -> tuple[Hashable, ...] | None:
    """Replay a path whose first values are known.

    Return the values up to the first that differs from the path's, or None at its end.
    """
    for place, segment in enumerate(path.pieces):
        segment()
        if place == len(path.answers) or (place < len(known) and place not in path.computing):
            continue
        answer = path.read[place]()
        if answer != path.answers[place]:
            return (*path.answers[:place], answer)
    return None


def _raise_freed() -> Path:
    raise UnsupportedError("the CUDA graphs of this signature are freed")


class SegmentedCall(CapturedCall):
    """Replays `call` from the CUDA graphs between its reads of GPU data. Otherwise it works like `CapturedCall`.

    Two cases go unnoticed in addition to those of `CapturedCall`. The call may write to tensors in lists, dicts or
    closures, and a segment that is replayed again writes again. And it may copy to the CPU without waiting, and read
    the copy after a later read has waited for it. Each path is recorded with the contents of globals, lists and dicts
    at its first occurrence.

    Raises (on call):
        UnsupportedError: as for `CapturedCall`. Or the call reads nothing from the GPU, or a number that is not whole,
            draws random numbers, or writes to its inputs or its module.
    """

    kind = "branches"

    def _replays(
        self,
        key: GraphKey,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        settled: Callable[[], bool],
        warm: Callable[[], None],
    ) -> SegmentedPaths:
        args, kwargs, inputs = static_inputs(args, kwargs)

        def path(host: HostValues | None) -> Path:
            warm_up(self._with_values(host), args, kwargs, inputs)
            warm()
            return self._path(args, kwargs, inputs, host)

        first = self._record_with_fallback(key, path)
        if not first.answers:
            reason = "the call reads no value from the GPU: use capture 'call', which records one graph"
            raise no_effect(("capture", self.kind), reason)

        def record() -> Path:
            if torch.cuda.current_device() != self._device:
                raise UnsupportedError(f"its CUDA graphs are on GPU {self._device}, but another GPU is current")
            with self._recording_state():
                return self._record_with_fallback(key, path)

        return SegmentedPaths(inputs, first, record, self._call, settled, borrow=self._borrow)

    def _drop(self) -> None:
        torch.cuda.synchronize(self._device)  # a pending copy may still write to memory that would then be reused
        super()._drop()

    def _path(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], inputs: list[torch.Tensor], host: HostValues | None
    ) -> Path:
        before, buffers, drawn = self._versions(inputs), self._buffers(), _generators()
        if None in before:
            raise UnsupportedError(
                "weights or inputs were created in inference mode, where PyTorch keeps no version counters"
            )
        try:
            path = record_path(lambda: self._call(*args, **kwargs), self._pool, host)
            if self._versions(inputs) != before or any(not pytree.equal(b.tensor, b.values) for b in buffers):
                raise UnsupportedError(_WRITES)
            if not all(map(torch.equal, drawn, _generators())):
                raise UnsupportedError(_DRAWS)
        finally:
            torch.set_rng_state(drawn[0])
            torch.cuda.set_rng_state(drawn[1])
        return path

    def _buffers(self) -> list[KeptBuffer]:
        return [] if self._module is None else list(buffers_of(self._module))

    def _versions(self, inputs: list[torch.Tensor]) -> list[int | None]:
        return [*(tensor._version for tensor in inputs), *self._guard.versions()]


def _generators() -> tuple[torch.Tensor, torch.Tensor]:
    """Return the states of PyTorch's random generators, of the CPU and of the GPU."""
    return torch.get_rng_state(), torch.cuda.get_rng_state()
