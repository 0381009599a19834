"""A call that asks the GPU on its way, yes or no or how many, as one CUDA graph between each question and the next.

`if x.mean() > 0:` makes the host wait for the GPU, so that one graph cannot hold the call. But the work between two
such questions can be recorded. A path of pieces then answers every call with the same answers. A piece is replayed, its
question read, the next piece replayed, and no Python of the model runs. Another answer leads to another path, which is
recorded when it is first met. Paths share nothing but the inputs. A call that leaves one in its middle runs the other
from the start, whose first questions it has answered already. So the path of the last call is tried first.

Counts of elements (`x[mask]`, `nonzero`), and whole numbers that are read, are questions like these. The same count
leads to the same path. If nearly every call has its own number, there are too many paths. The model itself answers
then, and paths are looked for more and more seldom. A number that is no whole one is refused, unless it can stay on the
GPU (`transforms/numbers_on_gpu.py`).

Sources: PyTorch's CUDA-graph trees (`torch/_inductor/cudagraph_trees.py`), which cut where Dynamo breaks the graph and
run the Python in between. Trace trees (Gal & Franz, UCI ICS-TR-06-16), whose paths are recorded as they are met.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import torch

from torchwise.compile.cuda_graphs.call_graph import CapturedCall
from torchwise.compile.cuda_graphs.compile_freeze import is_in_frozen_call
from torchwise.compile.cuda_graphs.graph_key import Situation
from torchwise.compile.cuda_graphs.host_values import HostValues
from torchwise.compile.cuda_graphs.module_buffers import KeptBuffer, buffers_of
from torchwise.compile.cuda_graphs.recorded_graph import copy_each, copy_outputs, static_inputs, tensors_of, warm_up
from torchwise.compile.cuda_graphs.segments import Path, record_path
from torchwise.compile.noop_check import no_effect
from torchwise.errors import UnsupportedError
from torchwise.workload import pytree

logger = logging.getLogger("torchwise")

MAX_PATHS = 32
"""Paths that one signature may have. The model itself answers calls that would need another."""
MAX_REFUSED = 1024
"""Ways that are remembered because they cannot be recorded."""
MAX_PASSED = 255
"""Most calls in a row that the model answers at once, after as many had taken ways that have no graphs."""
_WRITES = (
    "the call writes to its inputs or its module, and asks the GPU on its way: what is replayed again after another "
    "answer would write twice"
)
_DRAWS = (
    "the call draws random numbers, and asks the GPU on its way: what is replayed again after another answer would "
    "draw others"
)


class SegmentedPaths:
    """The answers to calls of one signature: the paths that were met. It stands where `Replays` does.

    Args:
        inputs: the tensors that every path reads.
        first: the path that exists already.
        record: records the path of the values in the inputs, and leaves its answer in the outputs.
        call: answers if there are too many paths, or one cannot be recorded, or none may be.
        settled: tells whether PyTorch's settings are still those of the recording.
        borrow: whether outputs are those of the paths themselves, which a later call overwrites.

    Attributes:
        settled: likewise.
        dropped: whether it may not answer any more.
        written: positions of the inputs that calls write to. There are none, as such a call is refused.
    """

    written: Sequence[int] = ()

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
        self.settled = settled
        self.dropped = False
        self._inputs = inputs
        self._record = record
        self._call = call
        self._borrow = borrow
        self.paths = [first]  # the path of the last call comes first
        self._refused: set[tuple[Hashable, ...]] = set()
        self._passed = self._to_pass = 0

    def __call__(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], record: object = None) -> Any:  # noqa: ARG002
        """Answer by the path that the answers lead to, or by the call if no path exists and none can be made.

        A call that no path answers has replayed the pieces before its last question in vain. The more of them come in a
        row, the more are answered by the call at once before paths are tried again.
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
        return path.outputs if self._borrow else copy_outputs(path.outputs)

    def drop(self) -> None:
        """Free the paths, even if others still hold this object. It must not be called again."""
        self.dropped = True
        self.paths, self._inputs, self._record = [], [], _raise_freed

    def _follow(self) -> Path | None:
        """Replay, piece by piece, until a path is at its end. Return None if the needed path cannot be had."""
        path = self.paths[0]
        answers: tuple[Hashable, ...] = ()
        while (other_answers := _replay(path, answers)) is not None:
            answers = other_answers
            found = next((other for other in self.paths if other.answers[: len(answers)] == answers), None)
            if found is None:
                return self._new(answers)
            path = found
        if path is not self.paths[0]:
            self.paths.remove(path)
            self.paths.insert(0, path)
        return path

    def _new(self, answers: tuple[Hashable, ...]) -> Path | None:
        if is_in_frozen_call() or answers in self._refused:
            return None
        if len(self.paths) >= MAX_PATHS:
            self._give_up(answers, f"there are {MAX_PATHS} ways through it already")
            return None
        try:
            path = self._record()
        except UnsupportedError as error:  # the other paths go on as before
            self._give_up(answers, str(error))
            return None
        self.paths.insert(0, path)
        return path

    def _give_up(self, answers: tuple[Hashable, ...], why: str) -> None:
        if not self._refused:
            logger.warning("torchwise: calls that take another way are answered without a graph, because %s", why)
        if len(self._refused) < MAX_REFUSED:
            self._refused.add(answers)


def _replay(path: Path, known: tuple[Hashable, ...]) -> tuple[Hashable, ...] | None:
    """Replay a path with known first answers, and return the answers up to the first other one, or None at its end."""
    for place, piece in enumerate(path.pieces):
        piece()
        if place == len(path.answers) or (place < len(known) and place not in path.computing):
            continue
        answer = path.read[place]()
        if answer != path.answers[place]:
            return (*path.answers[:place], answer)
    return None


def _raise_freed() -> Path:
    raise UnsupportedError("the graphs of this signature are freed")


class SegmentedCall(CapturedCall):
    """Replays `call` from the CUDA graphs between its questions to the GPU. Otherwise it is as `CapturedCall`.

    Two things go unnoticed besides those of `CapturedCall`. The call may write to tensors in lists and dicts or closed
    over, and a piece that runs once more writes again. And it may copy to the CPU without waiting, and read the copy
    after a question has waited for it. Each way is recorded with the contents of globals, lists and dicts when it is
    first met.

    Raises (on call):
        UnsupportedError: as there, or the call asks nothing, reads a number from the GPU that is no whole one, draws
            random numbers, or writes to its inputs or its module.
    """

    kind = "branches"

    def _replays(
        self,
        key: Situation,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        settled: Callable[[], bool],
        warm: Callable[[], None],
    ) -> SegmentedPaths:
        args, kwargs, inputs = static_inputs(args, kwargs)

        def path(host: HostValues | None) -> Path:
            warm_up(self._call if host is None else host.wrap(self._call), args, kwargs, inputs)
            warm()
            return self._path(args, kwargs, inputs, host)

        first = self._record_with_fallback(key, path)
        if not first.answers:
            why = "the call asks the GPU nothing on its way: capture 'call' makes one graph of it"
            raise no_effect(("capture", self.kind), why)

        def record() -> Path:
            if torch.cuda.current_device() != self._device:
                raise UnsupportedError(f"its graphs are on GPU {self._device}, which is not the current one")
            with self._quietly():
                return self._record_with_fallback(key, path)

        return SegmentedPaths(inputs, first, record, self._call, settled, borrow=self._borrow)

    def _drop(self) -> None:
        torch.cuda.synchronize(self._device)  # an answer may be on its way to memory that somebody else then gets
        super()._drop()

    def _path(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], inputs: list[torch.Tensor], host: HostValues | None
    ) -> Path:
        before, buffers, drawn = self._versions(inputs), self._buffers(), _generators()
        if None in before:
            raise UnsupportedError(
                "weights or inputs are of inference mode, where PyTorch does not count what is written"
            )
        try:
            path = record_path(lambda: self._call(*args, **kwargs), pool=self._pool, stream=self._side, host=host)
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
        return [*(tensor._version for tensor in inputs), *self._watch.versions()]


def _generators() -> tuple[torch.Tensor, torch.Tensor]:
    """Return the states of PyTorch's random generators, of the CPU and of the GPU."""
    return torch.get_rng_state(), torch.cuda.get_rng_state()
