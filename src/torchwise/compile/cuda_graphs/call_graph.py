"""Capture a whole call in one CUDA graph: one launch replays every kernel."""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

import torch

from torchwise._torch import dispatch, native
from torchwise._torch.dynamo import make_settings_check
from torchwise.compile.cuda_graphs.call_state import kept_buffers
from torchwise.compile.cuda_graphs.capture_errors import capture_error, is_of_capture
from torchwise.compile.cuda_graphs.compile_freeze import FrozenError, is_in_frozen_call
from torchwise.compile.cuda_graphs.graph_pool import GraphPool
from torchwise.compile.cuda_graphs.host_values import HostValues
from torchwise.compile.cuda_graphs.in_place_replay import Recorded, RecordedAnswers, Replays
from torchwise.compile.cuda_graphs.recorded_graph import Graph, GraphKey, flat_places, graph_key_of
from torchwise.compile.cuda_graphs.recording_limit import RecordingLimit
from torchwise.compile.guards.module_guard import ModuleGuard, Reads
from torchwise.compile.recompiles import Recompiles
from torchwise.compile.signature import overlap_in, signature_of
from torchwise.errors import UnsupportedError
from torchwise.workload import pytree

T = TypeVar("T")


class CapturedCall:
    """Replays `call` from one CUDA graph per signature, for a limited number of them.

    Outputs are new tensors, which the caller may keep, unless they are borrowed. Inputs are copied to the memory that
    the graph reads, and inputs that it writes to are copied back. Both copies end when inputs come a second time from
    the same memory (`Replays`). Random numbers are fresh on each replay, because PyTorch registers the default
    generator with every graph.

    Weights changed in place take effect, as the graph reads the same memory. Other changes in the module lead to a new
    capture: moved, added or removed weights, replaced submodules, rebound plain attributes, hooks, and a switch between
    training and evaluation. So do settings of PyTorch that differ from those of the recording (TF32, determinism,
    default dtype). Calls from several threads wait for each other, and so do calls from several streams, as they share
    the graph's memory. A discarded replay has drawn its random numbers. Replaced weights stay in memory until the next
    call, which is the first to notice.

    Some changes go unnoticed, and the replay continues as before. These are contents of lists and dicts of a module,
    global variables, and variables that a function closes over, including rebound tensors there. A module that computes
    on CUDA streams itself should use streams of its own. Other work on them may share a workspace with a replay.

    Args:
        call: the callable to record.
        module: the module behind it, if it is one.
        device: must be "cuda".
        mode: must be "inference".
        borrow: whether the graph's own outputs are returned, which the next call overwrites.
        recompiles: counts new captures after changes, and limits them.
        reads: returns the plain attributes that the call depends on, if they are known after compiling.

    Raises (on call):
        UnsupportedError: gradients are enabled and an input requires them (weights are not checked), a tensor is not on
            the GPU, an input is sparse or nested, an output is in an object that cannot be copied, or the call replaces
            parts of its own module.
    """

    kind = "call"
    """The value of a plan's `capture` for this class."""

    def __init__(
        self,
        call: Callable[..., Any],
        module: torch.nn.Module | None,
        *,
        device: str,
        mode: str,
        borrow: bool = False,
        recompiles: Recompiles | None = None,
        reads: Callable[[], Reads | None] | None = None,
    ) -> None:
        if device != "cuda":
            raise UnsupportedError(f"capture is {self.kind!r}, but device is {device!r}: CUDA graphs need 'cuda'")
        if mode != "inference":
            raise UnsupportedError(f"capture is {self.kind!r}, but mode is {mode!r}: a graph has no backward pass")
        self._call = call
        self._module = module
        self._borrow = borrow
        self._graphs: dict[GraphKey, RecordedAnswers] = {}
        self._pool = GraphPool()
        self._lock = threading.Lock()
        self._holder: list[int | None] = [None]  # the thread that holds the lock
        self._pool.follow_current_stream()
        self._device = torch.cuda.current_device()
        self._capturing = dispatch.IS_CAPTURING.get()
        self._recompiles = recompiles
        self._guard = ModuleGuard(module, reads or (lambda: None))
        self._writes_state = False
        self._host: dict[GraphKey, HostValues] = {}
        self._limit = RecordingLimit()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Answer as `call` does, by replay."""
        if torch.is_grad_enabled() and any(t.requires_grad for t in pytree.tensors((args, kwargs))):
            raise UnsupportedError("an input requires gradients, but a captured call computes none")
        key = graph_key_of(args, kwargs)
        return self._answer(key, self._graphs.get(key), args, kwargs)

    def get_bypass(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Callable[..., Any]:
        """Return a faster callable for calls of this signature, valid while gradients and autocast are disabled."""
        bypass = _Bypass(self, (signature_of(args, dict(kwargs)), None, False))
        compiled = native.make_replay(
            bypass, bypass.replay_again, self._guard, self._lock, self._holder, tuple(self._list_facts())
        )
        if compiled is None:
            return bypass
        bypass.get_compiled = weakref.ref(compiled)  # which holds the bypass
        bypass.find_replays()
        return compiled

    def _list_facts(self) -> Iterator[native.Fact]:
        """List the conditions of a replay other than the module: the stream, the GPU, and that nobody records."""
        yield self._capturing, (), [False]
        yield self._pool.get_raw_stream, (self._device,), self._pool.last_raw
        yield dispatch.CURRENT_DEVICE.get(), (), [self._device]

    def close(self) -> None:
        """Free the graphs and their memory."""
        with self._lock:
            self._drop()

    def _answer(
        self, key: GraphKey, replays: RecordedAnswers | None, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Any:
        """Replay first, and check for changes of the module while the GPU works.

        After a change the result is discarded, and computed again. The guard keeps everything alive that a replay may
        have read. The check comes first only if the replay would write to an input or to the module.
        """
        me = threading.get_ident()
        if self._holder[0] == me or self._capturing():  # the model calls itself, or a graph of it is recorded
            return self._call(*args, **kwargs)
        with self._lock:
            self._holder[0] = me
            try:
                return self._answer_locked(key, replays, args, kwargs)
            finally:
                self._holder[0] = None

    def _answer_locked(
        self, key: GraphKey, replays: RecordedAnswers | None, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Any:
        self._pool.wait_for_last_replay(self._device)
        if replays is None or replays.dropped or not replays.settled():
            return self._check_and_replay(key, args, kwargs)
        if replays.written or self._writes_state:
            if self._guard.has_changed():
                return self._check_and_replay(key, args, kwargs)
            return self._replay(replays, key, args, kwargs)
        result = replays(args, kwargs, self._capture_in_place)
        if not self._guard.has_changed():
            return result
        return self._check_and_replay(key, args, kwargs)

    def _check_and_replay(self, key: GraphKey, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        replays = self._graphs.get(key)
        if is_in_frozen_call() and (replays is None or not replays.settled() or self._guard.has_changed()):
            raise FrozenError("the plan is frozen, but this call needs a new capture")  # a change may be undone later
        self._forget_if_changed()
        replays = self._graphs.get(key)
        if replays is not None and not replays.settled():
            self._graphs.pop(key).drop()
            replays = None
        if replays is None:
            if not self._limit.has_room(self._graphs, self._drop):
                return self._call(*args, **kwargs)
            replays = self._graphs[key] = self._capture(key, args, kwargs)
        return self._replay(replays, key, args, kwargs)

    def _replay(self, replays: RecordedAnswers, key: GraphKey, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        if replays.written and overlap_in(key[0]) is not None:
            return self._call(*args, **kwargs)  # inputs share memory, and a graph has copies of each
        return replays(args, kwargs, self._capture_in_place)

    def _capture(self, key: GraphKey, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> RecordedAnswers:
        versions: list[int | None] = []
        settings, hosts = make_settings_check(), self._host
        hosts.pop(key, None)
        self._pool.renew(self._graphs)
        others = list(self._graphs.values())  # these keep the pool alive until this graph is in it

        def warm() -> None:
            if self._guard.has_changed():  # lazy modules and caches were initialized
                self._graphs.clear()
                self._take_snapshot()
            versions[:] = self._guard.versions()

        def is_valid() -> bool:  # captures few names, as a cycle would leave graphs to the garbage collector
            host = hosts.get(key)
            return settings() and (host is None or host.has_same_tensors())

        try:
            with self._recording_state():
                replays = self._replays(key, args, kwargs, is_valid, warm)
                now = self._guard.versions()
        finally:
            if not self._graphs:
                _drop_all(others)
        if self._guard.has_changed():
            self._drop()
            self._take_snapshot()
            raise UnsupportedError(
                "the call replaces tensors, submodules, attributes or the training mode of its own module, and a "
                "replay would not do so"
            )
        if key not in hosts and isinstance(replays, Replays):  # others record more later, perhaps with such values
            replays.settled = settings  # which is in C++
        self._writes_state = self._writes_state or now != versions or None in now
        self._guard.take_snapshot()  # limited to the attributes that the call reads, which are known by now
        return replays

    def _replays(
        self,
        key: GraphKey,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        settled: Callable[[], bool],
        warm: Callable[[], None],
    ) -> RecordedAnswers:
        """Warm up, call `warm`, and record the replays for calls like this one, valid while `settled` returns True."""

        def graph(host: HostValues | None) -> Graph:
            return self._pool.record(self._with_values(host), args, kwargs, warm)

        return Replays(self._record_with_fallback(key, graph), settled, flat_places(args, kwargs), borrow=self._borrow)

    def _record_with_fallback(self, key: GraphKey, record: Callable[[HostValues | None], T]) -> T:
        """Record the call unchanged, or, if that fails, with the values that it copies from the CPU."""
        host = self._host.get(key)
        while True:
            known = 0 if host is None else len(host.learnt)
            try:
                return record(host)
            except RuntimeError as error:
                if not is_of_capture(error):
                    raise
                if host is not None and len(host.learnt) == known:
                    raise capture_error(error) from error
            host = self._host.setdefault(key, HostValues())
            self._pool.renew()  # the other one may be released, but not free yet

    def _capture_in_place(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], wanted: list[torch.Tensor] | None
    ) -> Recorded:
        """Record again, for calls with inputs and outputs at exactly these addresses."""
        call = self._with_values(self._host.get(graph_key_of(args, kwargs)))
        with self._recording_state():
            return self._pool.record_in_place(call, args, kwargs, wanted)

    def _with_values(self, host: HostValues | None) -> Callable[..., Any]:
        return self._call if host is None else host.wrap(self._call)

    @contextlib.contextmanager
    def _recording_state(self) -> Iterator[None]:
        """Record outside inference mode, as its tensors keep no version counter that shows writes.

        Buffers are restored, so that recording does not count as calls (batch-norm statistics).
        """
        with torch.inference_mode(False), torch.no_grad(), kept_buffers(self._module):
            yield

    def _forget_if_changed(self) -> None:
        if self._guard.has_changed():
            if self._graphs and self._recompiles is not None:
                self._recompiles.again([self._guard.difference()], at_start=True)
            self._drop()
            self._take_snapshot()

    def _take_snapshot(self) -> None:
        self._writes_state = False
        self._guard.take_snapshot()

    def _drop(self) -> None:
        _drop_all(self._graphs.values())
        self._graphs.clear()
        self._host.clear()  # or sizes that came before each of many changes would add up


class _Bypass:
    """Answers calls of one signature. Where there is compiled code, it answers those that the code leaves."""

    def __init__(self, captured: CapturedCall, key: GraphKey) -> None:
        self._captured, self._key = captured, key
        self._replays: RecordedAnswers | None = None
        self.get_compiled: Callable[[], native.Replay | None] = lambda: None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        replays = self._replays
        if replays is None or replays.dropped:
            replays = self.find_replays()
        return self._captured._answer(self._key, replays, args, kwargs)

    def find_replays(self) -> RecordedAnswers | None:
        """Return the answers to such calls, and have compiled code give them, if it may."""
        captured, key = self._captured, self._key
        self._replays = replays = captured._graphs.get(key)
        compiled = self.get_compiled()
        shares = overlap_in(key[0]) is not None  # inputs share memory, and a graph has copies of each
        if compiled is not None and isinstance(replays, Replays) and not (replays.written and shares):
            replays.hand_over(compiled, writes=captured._writes_state, device=captured._device)
        return replays

    def replay_again(self, *args: Any) -> Any:
        """Answer a call whose replay is void because the module changed. The caller holds the lock."""
        return self._captured._check_and_replay(self._key, args, {})


def _drop_all(several: Iterable[RecordedAnswers]) -> None:
    for replays in several:
        replays.drop()
