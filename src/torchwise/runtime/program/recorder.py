"""Record the calls of a live program: which modules it calls, with which inputs, how often, and for how long.

Only the outermost call of a thread counts, so that no recorded module is part of another one's call. Memory and time
are bounded. A module's calls are looked at as long as that takes little of their time. All others are only counted and
timed. The first inputs of a kind are copied, or replaced by stand-ins if they are too large.
"""

from __future__ import annotations

import functools
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from typing import Any, Self

import psutil
import torch

from torchwise._torch.call_hook import CallHook, answer_by_hook, call_with_parts_apart, set_call_hook, take_all_calls
from torchwise._torch.dispatch import NO_FUNCTIONS, is_observed, is_transforming
from torchwise.compile import signature_of
from torchwise.plan.workload_spec import Mode
from torchwise.records import format as show
from torchwise.records.recording import Kept, Recording
from torchwise.runtime.components.program import count_parameters
from torchwise.runtime.program.calls import Calls, Kind, device_type_of, is_capturing, record_event
from torchwise.workload import pytree
from torchwise.workload.module_state import State
from torchwise.workload.stand_in import with_values, without_values
from torchwise.workload.workload import Example

MAX_MODULES = 256
MAX_KINDS = 48
"""Maximum kinds of inputs of a module."""
MAX_HELD = 16
"""Maximum modules that are kept alive for a search."""
KEPT_BYTES = 150_000_000
"""Maximum memory of inputs that are kept, so that a recording takes below 200 MB."""
OVERHEAD = 0.002
"""Maximum share of the time of a module's calls for looking at them."""
GRACE_S = 0.005
"""Seconds of a processor that looking at a module's calls may take in any case."""
MIN_FREE = 0.1
"""Share of the memory that must be free to keep a module alive beside others."""
MAX_EVENTS = 64
MAX_TEXTS = 4
PLAIN_TENSORS = frozenset({torch.Tensor, torch.nn.Parameter})
"""Tensors that are copied alike without functions of their class."""
_no_functions = NO_FUNCTIONS.get()


class CallRecorder:
    """Records the calls of modules, and of functions that `torch.compile` made, from `start` to `stop`.

    An error here never reaches the program, and is a note in the record. A forked process records nothing.

    Args:
        holds: whether the modules with the most seconds are kept alive, so that they can be tuned afterwards.
        kept_bytes: maximum memory for inputs that are kept.
    """

    def __init__(self, *, holds: bool = False, kept_bytes: int = KEPT_BYTES) -> None:
        self.calls: list[Calls] = []
        self.seconds = 0.0
        self.kept_bytes = 0
        self._room = kept_bytes
        self._holds = holds
        self._by_id: dict[int, Calls] = {}
        self._names: dict[str, int] = {}
        self._lock = threading.RLock()
        self._former: CallHook | None = None
        self._compile: Any = None
        self._watched: Any = None
        self._begun = 0.0
        self._lost = 0

    def start(self) -> Self:
        """Begin to record."""
        self._former = set_call_hook(CallHook(self._answer))
        self._compile = torch.compile
        self._watched = torch.compile = watched_compile(torch.compile)
        self._begun = time.perf_counter()
        return self

    def stop(self) -> None:
        """Stop recording. The records stay."""
        self.seconds += time.perf_counter() - self._begun
        if torch.compile is self._watched:  # and not what a library has put in its place
            torch.compile = self._compile
        set_call_hook(self._former)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_error: object) -> None:
        self.stop()

    def ranked(self) -> list[Calls]:
        """List what was called, with the most seconds first."""
        with self._lock:
            return sorted((one for one in self.calls if one.calls), key=lambda one: one.seconds, reverse=True)

    def to_record(self, program: str) -> Recording:
        """Return what was recorded so far."""
        notes = (f"{self._lost} calls of further modules were not recorded",) if self._lost else ()
        ranked = self.ranked()
        overhead = sum(one.looked_s for one in ranked)
        records = tuple(one.to_record() for one in ranked)
        return Recording(program, self.seconds, records, overhead, float(self.kept_bytes), notes)

    def _answer(self, thing: Any, run: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        calls = kind = begin = None
        try:
            with self._lock:
                calls = self._find(thing)
                if calls is not None and not calls.is_open and calls.looked_s <= GRACE_S + OVERHEAD * calls.timed_s:
                    kind = self._look(calls, thing, args, kwargs)
            if kind is not None and len(kind.events) < MAX_EVENTS:
                begin = record_event(thing)
        except Exception as error:  # inputs may be of any kind, and the program must not notice
            if calls is not None:
                calls.notes[f"some inputs could not be recorded ({show.truncate(repr(error), 120)})"] = None
        begun = time.perf_counter()
        if calls is not None and calls.is_open:
            self._count(calls, None, 0.0, None)
            return call_with_parts_apart(run, args, kwargs)
        try:
            return run(*args, **kwargs)
        finally:
            if calls is not None:
                self._count(calls, kind, time.perf_counter() - begun, begin)

    def _count(self, calls: Calls, kind: Kind | None, seconds: float, begin: Any) -> None:
        with self._lock:
            if kind is None:
                calls.others += 1
                calls.others_s += seconds
                return
            end = None if begin is None else record_event(calls.live)
            kind.count(seconds, None if end is None else (begin, end))

    def _autocast_of(self, thing: Any) -> torch.dtype | None:
        """Return the dtype of the autocast that the program's call of a module is under, or None."""
        return autocast_dtype(thing)

    def _may_open(self, calls: Calls) -> bool:
        """Whether the calls of a module's parts can be recorded in place of its own."""
        return isinstance(calls.live, torch.nn.Module) and any(True for _ in calls.live.children())

    def _find(self, thing: Any) -> Calls | None:
        found = self._by_id.get(id(thing))
        if found is not None and found.live is thing:
            return found
        if len(self.calls) >= MAX_MODULES and not self._drop_dead():
            self._lost += 1
            return None
        is_module = isinstance(thing, torch.nn.Module)
        named = getattr(thing, "_orig_mod", thing) if is_module else thing
        qualname = getattr(named, "__qualname__", None) or type(named).__qualname__
        number = self._names[qualname] = self._names.get(qualname, 0) + 1
        found = Calls(qualname if number == 1 else f"{qualname}#{number}", qualname, weakref.ref(thing))
        found.parameters = 0 if is_module else -1
        self._by_id[id(thing)] = found
        self.calls.append(found)
        if self._holds:
            self._hold(found, thing)
        return found

    def _drop_dead(self) -> bool:
        """Drop modules that are gone, those with the least time, and return whether there were any.

        Several go at once, so that a program that makes a module for each call is not held up at each.
        """
        dead = sorted((one for one in self.calls if one.live is None), key=lambda one: one.timed_s)
        dropped = {id(one) for one in dead[: max(MAX_MODULES // 4, 1)]}
        for one in dead[: len(dropped)]:
            self._lost += one.calls
            copies = [kind.example for kind in one.kinds.values() if kind.example and kind.kept == "real"]
            self.kept_bytes -= sum(map(bytes_of, map(tensors_of, copies)))
        self.calls = [one for one in self.calls if id(one) not in dropped]
        self._by_id = {key: one for key, one in self._by_id.items() if id(one) not in dropped}
        return bool(dropped)

    def _hold(self, found: Calls, thing: Any) -> None:
        """Keep a module alive, in place of the one with the least time if there are many or memory is short."""
        found.held = thing
        held = [one for one in self.calls if one.held is not None]
        if len(held) > MAX_HELD or (len(held) > 1 and is_memory_short()):
            min(held[:-1], key=lambda one: one.timed_s).held = None

    def _look(self, calls: Calls, thing: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Kind | None:
        if is_transforming() or is_observed() or torch.compiler.is_compiling() or is_capturing():
            return None
        begun = time.thread_time()
        try:
            with _no_functions():
                if not calls.kinds and calls.parameters >= 0:  # not before, as a trace would see it
                    calls.parameters = count_parameters(thing)
                mode: Mode = "training" if _trains(thing, args, kwargs) else "inference"
                autocast = self._autocast_of(thing)
                key = (signature_of(args, kwargs), mode, getattr(thing, "training", False), autocast)
        finally:
            calls.looked_s += time.thread_time() - begun
        if (kind := calls.kinds.get(key)) is not None:
            return kind
        if len(calls.kinds) >= MAX_KINDS:
            calls.unlike += 1
            return None
        example, kept = self._keep(Example(args, kwargs), calls)
        if calls.is_open:
            calls.notes["the calls of its parts were recorded instead"] = None
            return None
        with _no_functions():
            text = describe_inputs(args, kwargs)
        kind = calls.kinds[key] = Kind(key, text, mode, autocast, example, kept)
        return kind

    def _keep(self, example: Example, calls: Calls) -> tuple[Example | None, Kept]:
        """Copy inputs before the call, which may write to them. That happens once for each kind."""
        with _no_functions():
            tensors = tensors_of(example)
            size = bytes_of(tensors)
        unseen = _no_functions if all(type(each) in PLAIN_TENSORS for each in tensors) else nullcontext
        try:
            with unseen(), torch.inference_mode(False), torch.no_grad():
                if self.kept_bytes + size <= self._room:
                    copied = example.clone()
                    self.kept_bytes += size
                    return copied, "real"
                if len(tensors) == len(example.tensors()):
                    return without_values(example), "stand-in"
            calls.notes["inputs in objects were too large to keep"] = None
        except Exception as error:  # an input may be of any kind: it is named, and the program goes on
            calls.notes[f"some inputs cannot be copied ({show.truncate(str(error), 300)})"] = None
            calls.is_open = self._may_open(calls) and not any(kind.example for kind in calls.kinds.values())
        return None, "none"


def tensors_of(example: Example) -> list[torch.Tensor]:
    """Return the tensors of inputs, also those in objects."""
    leaves = State({"": (example.args, dict(example.kwargs))}).leaves().values()
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]


def bytes_of(tensors: list[torch.Tensor]) -> int:
    """Return the memory of tensors. A copy has the strides of its original, and so what lies between its values."""
    return sum(_count_spanned(tensor) * tensor.element_size() for tensor in tensors)


def _count_spanned(tensor: torch.Tensor) -> int:
    if tensor.is_nested or tensor.layout is not torch.strided or not tensor.numel():
        return tensor.numel()
    if any(stride == 0 and size > 1 for size, stride in zip(tensor.shape, tensor.stride(), strict=True)):
        tensor = pytree.base_of(tensor)
    return 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))


def is_memory_short() -> bool:
    """Return whether little memory is free, on this machine or on its GPU."""
    machine = psutil.virtual_memory()
    shares = [machine.available / machine.total]
    if torch.cuda.is_initialized():
        free, total = torch.cuda.mem_get_info()
        shares.append(free / total)
    return min(shares) < MIN_FREE


def list_examples(kinds: list[Kind], weights: list[float]) -> tuple[Example, ...]:
    """Return the inputs of some kinds, stand-ins with values, each with its weight."""
    found = zip(kinds, weights, strict=True)
    return tuple(replace(with_values(k.example), weight=w) for k, w in found if k.example is not None and w > 0)


def watched_compile(compile: Any, is_watched: Callable[[Any], bool] = lambda _: True) -> Any:
    """Return `torch.compile` whose results go by the hook, if `is_watched` of what they are made from."""

    @functools.wraps(compile)
    def watched(model: Any = None, *args: Any, **kwargs: Any) -> Any:
        if model is None:
            return functools.partial(watched, **kwargs)
        compiled = compile(model, *args, **kwargs)
        if isinstance(model, type) or not callable(compiled) or not is_watched(model):
            return compiled
        if isinstance(model, torch.nn.Module):  # its result has a class of PyTorch's
            take_all_calls()
            return compiled

        def run(*args: Any, **kwargs: Any) -> Any:
            placed = call.placed
            return compiled(*args, **kwargs) if placed is None else placed.answer(compiled, args, kwargs)

        @functools.wraps(compiled)
        def call(*args: Any, **kwargs: Any) -> Any:
            return answer_by_hook(call, run, args, kwargs)

        call.placed = None  # type: ignore[attr-defined]
        call.compiled_from = (call, model)  # type: ignore[attr-defined]
        return call

    return watched


def original_of(thing: Any) -> Any:
    """Return what a module or function was before `torch.compile`: exactly the one that it was given."""
    if isinstance(thing, torch.nn.Module):
        return getattr(thing, "_orig_mod", thing)
    made, model = getattr(thing, "compiled_from", (None, None))  # a decorator may have copied it from its function
    return model if made is thing else thing


def autocast_dtype(thing: Any) -> torch.dtype | None:
    """Return the dtype of the autocast that a call of a module would be under now, or None."""
    device = device_type_of(thing)
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None


def describe_inputs(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """Describe the tensors and objects that a call gets in a line: "float32[2, 8], mask bool[2]"."""
    texts = list(_texts(args, kwargs))
    more = [f"{len(texts) - MAX_TEXTS} more"] if len(texts) > MAX_TEXTS else []
    return ", ".join([*texts[:MAX_TEXTS], *more]) or "no inputs"


def _texts(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[str]:
    positional = [("", leaf) for _, leaf in pytree.list_named_leaves(args)]
    named = [(f"{pytree.readable(path)} ", leaf) for path, leaf in pytree.list_named_leaves(kwargs)]
    for name, leaf in [*positional, *named]:
        if isinstance(leaf, torch.Tensor):
            yield f"{name}{str(leaf.dtype).removeprefix('torch.')}{[*leaf.shape] if not leaf.is_nested else ''}"
        elif type(leaf) not in pytree.PLAIN:
            yield f"{name}{type(leaf).__qualname__}"


def _trains(thing: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    if not torch.is_grad_enabled():
        return False
    if isinstance(thing, torch.nn.Module) and any(p.requires_grad for p in thing.parameters()):
        return True
    return any(tensor.requires_grad for tensor in pytree.tensors((args, kwargs)))
