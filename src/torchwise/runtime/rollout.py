"""Simulation loops: a step over and over, on CUDA many iterations to a launch, elsewhere one by one."""

from __future__ import annotations

import logging
import operator
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.autograd import forward_ad

from torchwise._torch.dynamo import make_settings_check
from torchwise.alerts import OnceLog
from torchwise.compile.cuda_graphs.call_state import find_difference, read_python_state
from torchwise.compile.cuda_graphs.capture_errors import make_wait_error, record_waits
from torchwise.compile.cuda_graphs.graph_pool import GraphPool
from torchwise.compile.cuda_graphs.loop_graph import MAX_ITERATIONS, CapturedLoop, find_overlaps, iterations, span
from torchwise.compile.cuda_graphs.recorded_graph import GraphKey, graph_key_of, is_on_gpu, is_unavailable
from torchwise.compile.cuda_graphs.recording_limit import MAX_SIGNATURES
from torchwise.compile.guards.code_guard import CodeGuard
from torchwise.compile.guards.module_guard import ModuleGuard
from torchwise.compile.signature import forget_oldest, is_plain, is_strided, opaque_leaves, plain_key
from torchwise.errors import InputError, UnsupportedError
from torchwise.runtime.served import dispatcher_of
from torchwise.workload import pytree

logger = logging.getLogger("torchwise")

ALIGNMENT = 16
"""Bytes of the largest number, complex128. Memory copied from a multiple of it on keeps numbers aligned."""

WARM_UP_STEPS = 3
"""Steps run as written before recording: they are the rollout's own first ones, so that none is wasted."""
MIN_STEPS = 20
"""Minimum number of steps left for a loop that runs only once to be recorded: recording costs as much as some steps."""
REPLACE_STEPS = 8 * MAX_ITERATIONS
"""Minimum number of steps, in several calls, for a recording to take another one's place, which it may lose again."""


class Rollout:
    """Runs `step` over and over, and keeps recordings for later calls.

    If the state is on CUDA and no gradient is needed, the first steps run as written. Then up to a hundred iterations
    become one CUDA graph that reads and writes one static state. A step that cannot be captured runs step by step, as
    does a state whose tensors still share memory after the first step. `reason` says why, and the log does once.
    States of up to 64 shapes have recordings at once. Another shape then takes the place of the one that was used least
    recently, once its calls have taken `REPLACE_STEPS` steps without one.

    Python runs only in the steps taken as written. A step may keep numbers there from call to call. They are found in
    its closure, its globals and the object it is bound to, and keep it from being captured. In lists and dicts they are
    not found.

    A step that is an `nn.Module`, or a method of one, is watched. Weights changed in place are read again. Other
    weights in their place lead to a new recording, as does another method in a class. So do weights of a result of
    `apply` that changed in place, because a plan may answer from copies of them. The closures of other functions are
    not watched: make a new Rollout after replacing tensors there, or changing weights of a result of `apply`.

    Attributes:
        reason: why the last call ran step by step on CUDA, or None.
    """

    def __init__(self, step: Callable[[Any], Any], every: int | None = None, *, once: bool = False) -> None:
        """Prepare. If there will be one call only (`once`), recording must pay within it."""
        if every is not None and _to_int("every", every) < 1:
            raise InputError(f"every is {every}, but must be at least 1, or None to keep only the last state")
        self.reason: str | None = None
        self._step = step
        self._every = every
        self._once = once
        self._lock = threading.Lock()
        owner = step if isinstance(step, torch.nn.Module) else getattr(step, "__self__", None)
        parts = list(owner.modules()) if isinstance(owner, torch.nn.Module) else [step]
        self._applied = [served for part in parts if (served := dispatcher_of(part)) is not None]
        self._watch = ModuleGuard(owner if isinstance(owner, torch.nn.Module) else None)
        self._code = CodeGuard(step)
        self._standing = self._plans()
        self._loops: dict[GraphKey, tuple[CapturedLoop, Callable[[], bool]]] = {}  # the one used last is the last
        self._warm: dict[GraphKey, list[float]] = {}  # host seconds of the steps run as written
        self._refused: dict[GraphKey, str] = {}
        self._waiting: dict[GraphKey, int] = {}  # steps without a recording, as there was no room for it
        self._logged = OnceLog()
        self._pool = GraphPool()

    def __call__(self, state: Any, steps: int) -> Any:
        """Take `steps` steps from `state`, which is not changed.

        Returns:
            The last state, or with `every` the last state and the list of those kept.

        Raises:
            InputError: a number is out of range, or the step returns another kind of state than it receives.
        """
        if _to_int("steps", steps) < 0:
            raise InputError(f"steps is {steps}, but must be at least 0")
        gradients, graphs = torch.is_grad_enabled(), steps > 0 and any(map(is_on_gpu, pytree.tensors(state)))
        # Graphs are outside inference mode, whose tensors can neither be written elsewhere nor count their writes.
        with torch.inference_mode(torch.is_inference_mode_enabled() and not graphs), torch.set_grad_enabled(gradients):
            progress = LoopProgress(copies(state), steps, self._every)
            if graphs:
                self._run_on_gpu(progress)
            while progress.done < steps:
                progress.advance(self._step)
        return progress.state if self._every is None else (progress.state, progress.snapshots)

    def close(self) -> None:
        """Free the recordings and their memory."""
        with self._lock:
            self._loops.clear()

    def _run_on_gpu(self, progress: LoopProgress) -> None:
        """Go as far as graphs go. A rollout inside another one, or in another thread meanwhile, runs as written."""
        if is_unavailable() or not self._lock.acquire(blocking=False):
            return
        try:
            self.reason = None
            if self._plans() != self._standing:
                self._forget()
            key = graph_key_of((progress.state,), {})
            # Tensors that share memory, as in `(u, u)`, part with the first step.
            if torch.is_grad_enabled() or find_tied_tensors(progress.state):
                progress.advance(self._step)
                if any(t.requires_grad for t in pytree.tensors(progress.state)):
                    self.reason = "gradients flow through the steps"  # which is intended, and not for the log
                    return
            # In the grad mode that it is in, which a step may use within (forces).
            self._replay_or_record(key, progress)
        except UnsupportedError as error:
            self._refused[key] = self.reason = str(error)
            forget_oldest(self._refused)
            self._warn_once(self.reason)
        finally:
            self._standing = self._plans()
            self._lock.release()

    def _warn_once(self, reason: str) -> None:
        if self._logged.admit(reason):
            logger.warning("torchwise: the loop runs step by step, because %s", reason)

    def _plans(self) -> list[Any]:
        """Return the plans by which applied models answer. References keep their memory as long as the graphs."""
        return [*self._watch.versions(), *(served.active_plan for served in self._applied)] if self._applied else []

    def _replay_or_record(self, key: GraphKey, progress: LoopProgress) -> None:
        if self._watch.has_changed() or self._code.has_changed():
            self._forget()
        if key in self._refused:
            self.reason = self._refused[key]
            return
        found = self._loops.get(key)
        if found is None or not found[1]():
            self._warm_up(took := self._warm.setdefault(key, []), progress)
            forget_oldest(self._warm)
            to_go, is_full = progress.steps - progress.done, self._is_full(key)
            if is_full and self._count_waiting(key, to_go) < REPLACE_STEPS:
                taken = "too few steps are taken to replace one"
                self.reason = f"{MAX_SIGNATURES} other states have recordings, and {taken}"
                return
            if len(took) < WARM_UP_STEPS or to_go < (MIN_STEPS if self._once else 1):
                return
            found = None
            self._waiting.pop(key, None)
            self._make_room(key)
            found = self._record(min(took), progress), make_settings_check()
        self._loops.pop(key, None)
        self._loops[key] = found
        self._replay(found[0], progress)

    def _count_waiting(self, key: GraphKey, steps: int) -> int:
        """Count the steps that a state of such a form takes without a recording, in this call and those before."""
        self._waiting[key] = count = self._waiting.get(key, 0) + steps
        forget_oldest(self._waiting)
        return count

    def _is_full(self, key: GraphKey) -> bool:
        return key not in self._loops and len(self._loops) >= MAX_SIGNATURES

    def _make_room(self, key: GraphKey) -> None:
        """Free the recording that another one replaces before that is made, so that both never take memory at once."""
        if key in self._loops or self._is_full(key):
            self._pool.wait_for_last_replay(torch.cuda.current_device())  # which may still use the memory
            del self._loops[key if key in self._loops else next(iter(self._loops))]

    def _forget(self) -> None:
        self._loops.clear()
        self._warm.clear()
        self._refused.clear()
        self._waiting.clear()
        self._watch.take_snapshot()
        self._code.take_snapshot()

    def _warm_up(self, took: list[float], progress: LoopProgress) -> None:
        """Take the first steps as written, the last of them under watch."""
        if opaque := opaque_leaves(progress.state):
            raise UnsupportedError(f"the state holds {opaque[0]}, which no graph can carry on")
        while len(took) < WARM_UP_STEPS and progress.done < progress.steps:
            before = read_python_state(self._step)
            start = time.perf_counter()
            with record_waits() as places:
                progress.advance(self._step)
            took.append(time.perf_counter() - start)
            if len(took) == WARM_UP_STEPS and places:
                raise make_wait_error(places, "the step")
            if progress.varies:
                raise UnsupportedError("a number in the state changes from step to step: make it a tensor on CUDA")
            if len(took) == WARM_UP_STEPS and (name := find_difference(before, read_python_state(self._step))):
                raise UnsupportedError(f"{name} changes in Python from step to step: carry it in the state as a tensor")

    def _record(self, step_s: float, progress: LoopProgress) -> CapturedLoop:
        self._pool.renew(self._loops)
        if self._watch.has_changed():  # lazy modules and caches took shape
            self._watch.take_snapshot()
        most = (progress.steps - progress.done) // 8 if self._once else progress.steps
        length, inside = iterations(step_s, progress.state, self._every, min(most, MAX_ITERATIONS))
        loop = CapturedLoop(self._step, progress.state, length=length, inside=inside, pool=self._pool)
        if self._watch.has_changed():
            self._watch.take_snapshot()
            raise UnsupportedError("the step replaces tensors, attributes or the mode of its own module")
        return loop

    def _replay(self, loop: CapturedLoop, progress: LoopProgress) -> None:
        self._pool.wait_for_last_replay(torch.cuda.current_device())
        loop.enter(progress.state)
        while progress.done < progress.steps:
            inside: list[Any] = []
            if progress.fits(loop.length):
                inside = loop.many()
                progress.done += loop.length
            else:
                loop.one()
                progress.done += 1
            if progress.every and progress.done % progress.every == 0:
                progress.snapshots += [*inside, loop.state()]
        progress.state = loop.state()


def _to_int(name: str, number: Any) -> int:
    try:
        return operator.index(number)
    except TypeError:
        raise InputError(f"{name} is {number!r}, but must be a whole number") from None


@dataclass(slots=True)
class LoopProgress:
    """How far one rollout is, of so many `steps`.

    Attributes:
        snapshots: copies of the state after each `every` steps.
        varies: whether anything but tensors changed from step to step, such as a count kept as a number.
    """

    state: Any
    steps: int
    every: int | None
    done: int = 0
    snapshots: list[Any] = field(default_factory=list)
    varies: bool = False

    def advance(self, step: Callable[[Any], Any]) -> None:
        """Take one step as written.

        Raises:
            InputError: it returns another structure, shape, dtype or device than it received.
        """
        before = self.state
        expected = _list_layouts(before)  # first, for a step may change its state in place
        self.state = step(before)
        self.done += 1
        if (found := _list_layouts(self.state)) != expected:
            self._check(before, expected, found)
        if self.every and self.done % self.every == 0:
            self.snapshots.append(copies(self.state))

    def fits(self, length: int) -> bool:
        """Whether the next `length` steps end before the rollout does, and meet the snapshots as recorded."""
        if self.steps - self.done < length:
            return False
        if self.every is None:
            return True
        passed = self.done % self.every
        return passed == 0 if length % self.every == 0 else passed + length <= self.every

    def _check(self, before: Any, expected: list[Any], found: list[Any]) -> None:
        if (was := _container(before)) != (now := _container(self.state)):
            raise InputError(f"step {self.done} returns {now}, but was given {was}: return the state as it came")
        names, received = [name for name, _ in found], [name for name, _ in expected]
        if names != received:
            raise InputError(
                f"step {self.done} returns a state of {names}, but was given {received}: return the state as it came"
            )
        for (name, was), (_, now) in zip(expected, found, strict=True):
            if was != now and (isinstance(was, TensorLayout) or isinstance(now, TensorLayout)):
                raise InputError(
                    f"step {self.done} returns {now} {name and 'at ' + name + ' '}where it was given {was}: shapes, "
                    "dtypes and devices of the state must stay; cast or reshape in the step, or before the rollout"
                )
        self.varies = True


@dataclass(frozen=True, slots=True)
class TensorLayout:
    """The properties of a tensor that must stay from step to step."""

    shape: torch.Size
    dtype: torch.dtype
    device: torch.device

    def __str__(self) -> str:
        return f"a tensor of shape {list(self.shape)}, {self.dtype}, on {self.device}"


def _list_layouts(state: Any) -> list[Any]:
    """List each leaf with its path: a tensor's fixed properties, a plain value's key, or the type of any other leaf."""
    if isinstance(state, torch.Tensor):
        return [("", TensorLayout(state.shape, state.dtype, state.device))]
    return [(name, _layout_of(leaf)) for name, leaf in pytree.list_named_leaves(state)]


def _layout_of(leaf: Any) -> Any:
    if isinstance(leaf, torch.Tensor):
        return TensorLayout(leaf.shape, leaf.dtype, leaf.device)
    return plain_key(leaf) if is_plain(leaf) else type(leaf)


def _container(state: Any) -> str:
    return "a tensor" if isinstance(state, torch.Tensor) else f"a {type(state).__name__}"


def copies(state: Any) -> Any:
    """Copy every tensor, so that gradients flow through the copy.

    One tensor in two places stays one. Tensors that overlap do so in the copy: halves of a vector may be its views.
    Views that are differentiated, or mapped over by `torch.func`, are copied apart.
    """
    copied: dict[int, torch.Tensor] = {}
    for several in find_tied_tensors(state):
        copied |= zip(map(id, several), _copy_together(several), strict=True)

    def copy(tensor: torch.Tensor) -> torch.Tensor:
        if id(tensor) not in copied:
            copied[id(tensor)] = tensor.clone()
        return copied[id(tensor)]

    return pytree.map_tensors(copy, state)


def find_tied_tensors(state: Any) -> list[list[torch.Tensor]]:
    """List groups of tensors in a state whose memory overlaps, each in the order of memory."""
    return find_overlaps([tensor for tensor in pytree.tensors(state) if _lies_plainly(tensor)])


def _lies_plainly(tensor: torch.Tensor) -> bool:
    """Whether a tensor consists of the numbers in its memory alone: they have an address, and nothing else follows."""
    if not is_strided(tensor) or tensor.is_conj() or tensor.is_neg() or tensor.requires_grad:
        return False
    if forward_ad.unpack_dual(tensor).tangent is not None:
        return False
    try:
        address = tensor.data_ptr()
    except RuntimeError:  # `torch.func` wraps tensors, and has no address for them
        return False
    return address != 0 and address % tensor.element_size() == 0  # on the meta device, all have address 0


def _copy_together(several: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Copy the bytes that each reaches: they may lie in several storages, such as those of arrays of NumPy."""
    begin, end = several[0].data_ptr() // ALIGNMENT * ALIGNMENT, max(last for _, last in map(span, several))
    memory = torch.empty(end - begin, dtype=torch.uint8, device=several[0].device)
    for tensor in several:
        first, last = span(tensor)
        offset = int(tensor.storage_offset()) * tensor.element_size()
        memory[first - begin : last - begin] = _view(
            tensor.untyped_storage(), torch.uint8, offset, (last - first,), (1,)
        )
    whole = memory.untyped_storage()
    return [
        _view(whole, tensor.dtype, (tensor.data_ptr() - begin) // tensor.element_size(), tensor.size(), tensor.stride())
        for tensor in several
    ]


def _view(
    memory: torch.UntypedStorage, dtype: torch.dtype, offset: int, size: Sequence[int], stride: Sequence[int]
) -> torch.Tensor:
    return torch.empty(0, dtype=dtype, device=memory.device).set_(memory, offset, size, stride)
