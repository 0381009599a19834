"""A workload in a worker, with its clock: run candidates, time them and compare them with eager.

It compiles while others measure: on the CPU's cores, and on the GPU only to time kernels or fold weights. This module
has all the private use of Dynamo and Inductor that this needs. The rest of a call, which runs or records a finished
graph, uses the GPU, and so keeps the worker's share of it. Only two functions step aside: one traces a single frame
with fake tensors, the other turns a single graph into code. They take their share again for each timed kernel and for
folded weights. Kernels whose settings are tuned on their first run are in that share.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import torch

from torchwise._torch import cpu_isa_cache, inductor
from torchwise._torch.dynamo import COMPILE_FRAME
from torchwise._torch.private_name import check
from torchwise.errors import UnsupportedError
from torchwise.measure import device_lock
from torchwise.measure.clock import Clock
from torchwise.measure.memory import make_eviction, measure_memory_use, peak_memory
from torchwise.measure.paired_timing import MIN_ROUND_S, MIN_ROUNDS, STOPPING_ROUNDS, Precision, measure_pair
from torchwise.plan import Trait
from torchwise.records import Measurement
from torchwise.trial.inspection import mix_of
from torchwise.trial.job import Job
from torchwise.trial.loading import load, runner, with_optimizer_state
from torchwise.workload import Workload
from torchwise.workload.bounds import takes_within_bounds
from torchwise.workload.layouts import size_of
from torchwise.workload.module_state import State, Turns

SETTLING_CALLS = 4
"""First calls of each example that count towards the cost of compiling: CUDA graphs record on the second and third."""

Calls = list[Callable[[], Any]]
"""One call for each example."""


class Harness:
    """Builds and runs candidates, whether plans or contenders.

    Attributes:
        workload: the job's, on its device.
        device: "cpu" or "cuda".
        mode: "inference" or "training".
        eager: the plain model's calls, run once already, since the libraries' own start-up is not compile time.

    Args:
        job: the task. Its traits say whether calls change the starting state of the next ones.
        goes_on: whether such calls go on as in a program, which shows their recompilations. By default they are timed
            from one state.
    """

    _state: State | None = None
    """The state of the model that calls start from, or None if they change none."""
    _turns: dict[int, tuple[Any, Turns]]
    """The turns of each model that goes on, by its address, with the model itself."""

    def __init__(self, job: Job, *, goes_on: bool = False) -> None:
        self._job, self._goes_on = job, goes_on
        self._turns = {}
        self.workload = with_optimizer_state(load(job))
        self.device, self.mode = job.workload.device, job.workload.mode
        self._clock = Clock(self.device, each=job.workload.times_each_call)
        with self.gradients():
            self._state = _make_start_state(self.workload) if Trait.STATEFUL in job.traits and not goes_on else None
        self.eager = self.runners(self.subject())
        with self.gradients():
            for call in self.eager:
                self._clock.once(call)
        self.rewind()
        self._held_before, self._held = measure_memory_with_inputs(self.workload, self.device), 0

    def gradients(self) -> AbstractContextManager[Any]:
        """Enable gradients in training alone."""
        return torch.set_grad_enabled(self.mode == "training")

    def subject(self) -> Callable[..., Any]:
        """Return the subject of a candidate: the model, or a copy of a training step, whose state changes."""
        step = self.workload.step
        return step.copy() if step else self.workload.call

    def runners(self, call: Callable[..., Any], model: Any = None) -> Calls:
        """Return the calls of `call` in the form that is timed.

        `model` is the copy of the workload's model whose state they change, or None if it is that one itself.
        """
        restores = not self._job.traits.isdisjoint([Trait.WRITES_INPUTS, Trait.STATEFUL])
        mode = "inference" if self.workload.step else self.mode  # a step runs its own backward pass
        original = self.workload.call if model is None else model
        original = None if self.workload.step else original  # a step puts its state back by itself
        turns = self._turns.setdefault(id(original), (original, Turns()))[1] if restores and self._goes_on else None
        made = functools.partial(runner, call, mode=mode, original=original, restores=restores, turns=turns)
        return [made(example) for example in self.workload.examples]

    def rewind(self) -> None:
        """Restore the model's state as it was when loaded, after calls that changed it."""
        if self._state is not None:
            self._state.restore()

    def once(self, call: Callable[[], Any]) -> float:
        """Run `call` once, waiting for the device, and return the seconds."""
        return self._clock.once(call)

    def first_calls(self, calls: Calls) -> float:
        """Make the first calls, compilation included, and return the seconds they took beyond steady ones.

        The largest example comes first: graphs of smaller ones then fit into the memory that they share with it. Time
        in which a compiler waits for the device while others measure is not part of the cost. The seconds of checks
        that earlier workers made for this one are.
        """
        calls = [calls[place] for place in _largest_first(self.workload)]
        with compiling_aside():
            rounds = [sum(map(self.own_seconds, calls)) for _ in range(SETTLING_CALLS)]
        self.rewind()
        self._held = memory_growth(self._held_before, self.device)
        return sum(rounds) - SETTLING_CALLS * min(rounds)

    def own_seconds(self, call: Callable[[], Any]) -> float:
        """Run `call` once, and return its seconds, without waits for the device and with checks made for it before."""
        waited, owed = device_lock.total_wait_s(), cpu_isa_cache.SHARED.owed_s
        seconds = self._clock.once(call)
        return seconds - (device_lock.total_wait_s() - waited) + (cpu_isa_cache.SHARED.owed_s - owed)

    def measure(
        self,
        candidate: Calls,
        baseline: Calls,
        *,
        prune_below: float | None = None,
        expected_s: tuple[float | None, float | None] = (None, None),
        block_s: float = MIN_ROUND_S,
        evict: Callable[[], None] | None = None,
    ) -> Measurement:
        """Time two sides in alternation, over the shape mix. See `measure_pair`, `Precision` and `Clock`."""
        sides = mix_of(candidate, self.workload), mix_of(baseline, self.workload)
        effort = self._job.effort
        is_unsteady = {Trait.CONTENDED_CORES, Trait.SHORT_CALLS} <= self._job.traits
        rounds = STOPPING_ROUNDS if is_unsteady else MIN_ROUNDS
        budget_s = 0.0 if effort.rounds else effort.measure_s
        precision = Precision(effort.half_width, budget_s, block_s, effort.rounds or rounds)
        clock = replace(self._clock, evict=evict)
        return measure_pair(*sides, clock, precision, prune_below=prune_below, expected_s=expected_s)

    def with_cold(self, found: Measurement, candidate: Calls, baseline: Calls) -> Measurement:
        """Return a measurement of two sides with their times from cold processor caches, measured now.

        If the caches cannot be emptied, `not_cold` says why.
        """
        try:
            evict = make_eviction(self.device)
        except UnsupportedError as error:
            return replace(found, not_cold=f"not timed with cold processor caches: {error}")
        cold = self.measure(candidate, baseline, evict=evict)
        return replace(found, cold_candidate_s=cold.candidate_s, cold_baseline_s=cold.baseline_s)

    def memory(self, candidate: Calls) -> tuple[int | None, int | None]:
        """Return peak memory of the candidate and of eager: the largest over the examples.

        Memory that the candidate holds between calls counts as its own: copies of weights, graphs' pools, frozen
        constants.
        """
        found = [[peak_memory(call, self.device) for call in calls] for calls in (candidate, self.eager)]
        own, eager = (max((m for m in side if m is not None), default=None) for side in found)
        return (None if own is None else own + self._held), eager


def _make_start_state(workload: Workload) -> State:
    """Return the state that a model's calls start from, with the lasting effects of its first call, such as a cache.

    If a second call fails, as the first one filled something, they start from the model as it was loaded.
    """
    fresh = State.from_call(workload.call)
    example = workload.examples[0].clone()
    workload.call(*example.args, **example.kwargs)
    settled = State.from_call(workload.call)
    example = workload.examples[0].clone()
    try:
        is_done = takes_within_bounds(workload.call, example.args, example.kwargs)
    except Exception:  # a model may raise anything, and may allow only one call
        is_done = False
    if not is_done:
        fresh.restore()
        return fresh
    settled.restore()
    return settled


def _largest_first(workload: Workload) -> list[int]:
    """Return the positions of the examples in order of the bytes of their inputs."""
    sizes = [sum(map(size_of, e.tensors())) for e in workload.examples]
    return sorted(range(len(sizes)), key=lambda place: -sizes[place])


def measure_memory_with_inputs(workload: Workload, device: str) -> int | None:
    """Return the bytes held with one more copy of the inputs, as every candidate's calls have one."""
    copies = [example.clone() for example in workload.examples]
    used = measure_memory_use(device)
    del copies
    return used


def memory_growth(before: int | None, device: str) -> int:
    """Return the bytes held now beyond `before`, or 0 if unknown."""
    now = measure_memory_use(device)
    return 0 if now is None or before is None else max(now - before, 0)


WHO = "compiling while another process measures"
NAMES = (COMPILE_FRAME, inductor.GENERATE_CODE, inductor.FREEZE, inductor.BENCHMARKER, inductor.CONFIG)
TIMES = "benchmark_gpu"
"""Method of the benchmarker that times on the GPU, on its own or for its others."""
ALSO_RUNS = "benchmark_gpu_with_cuda_graph"
"""Since torch 2.13: runs and records a callable before it hands it to `TIMES`."""
ELSEWHERE = ("autotune_in_subproc", "pipeline_max_autotune_gemm", "profile_bandwidth_with_do_bench_using_profiling")
"""Settings under which Inductor times kernels in another process, or past its benchmarker, as always for CUTLASS."""


@contextlib.contextmanager
def compiling_aside() -> Iterator[None]:
    """Step aside from the device while Dynamo traces, and Inductor or Triton compiles, except when they use it.

    It has no effect if `device_lock.may_step_aside` returns False, or if this torch lacks a name that this needs.
    """
    if not (device_lock.may_step_aside() and _is_known()):
        yield
        return
    benchmarker = inductor.BENCHMARKER.get(WHO)
    with contextlib.ExitStack() as wrapped:
        for method in (TIMES, ALSO_RUNS):
            if hasattr(benchmarker, method):
                wrapped.enter_context(_within(device_lock.share_temporarily, benchmarker, method))
        for context, name in (
            (_release_for_trace, COMPILE_FRAME),
            (_release_for_compile, inductor.GENERATE_CODE),
            (device_lock.share_temporarily, inductor.FREEZE),
        ):
            wrapped.enter_context(_within(context, importlib.import_module(name.module), name.attribute))
        for owner in _list_triton_compilers():
            wrapped.enter_context(_within(_release_for_trace, owner, "compile"))
        yield


def _list_triton_compilers() -> list[Any]:
    """Return the modules by whose function `compile` Triton compiles a kernel, or none without Triton.

    Kernels of Torchwise, those that a model has of its own, and Inductor's when it tunes on a first call are compiled
    outside of frames and graphs. Row programs of an H200's zoo kept others waiting for two minutes so.
    """
    try:
        import triton
    except ImportError:
        return []
    return [one for one in (triton, triton.compiler) if hasattr(one, "compile")]


def _is_known() -> bool:
    try:
        check(WHO, NAMES)
    except UnsupportedError:
        return False
    return hasattr(inductor.BENCHMARKER.get(WHO), TIMES)


def _release_for_trace() -> AbstractContextManager[None]:
    """Step aside for one frame, after the queued work on the GPU, such as the graph before this one, has ended."""
    if torch.cuda.is_initialized() and not torch.cuda.is_current_stream_capturing():
        torch.cuda.synchronize()
    return device_lock.aside()


def _release_for_compile() -> AbstractContextManager[None]:
    """Step aside for one graph, unless its options let Inductor time kernels elsewhere. They are set meanwhile."""
    config = inductor.CONFIG.get(WHO)
    elsewhere = any(getattr(config, name, False) for name in ELSEWHERE)
    elsewhere |= bool(getattr(config.triton, "autotune_at_compile_time", False))  # torch 2.11, with cpp_wrapper
    elsewhere |= "CUTLASS" in getattr(config, "max_autotune_gemm_backends", "").upper()
    return device_lock.share_temporarily() if elsewhere else _release_for_trace()


@contextlib.contextmanager
def _within(context: Callable[[], AbstractContextManager[None]], owner: Any, name: str) -> Iterator[None]:
    """Run each call of `owner`'s function within a context of its own for a while."""
    original, is_own = getattr(owner, name), name in vars(owner)

    @functools.wraps(original)
    def call_in_context(*args: Any, **kwargs: Any) -> Any:
        with context():
            return original(*args, **kwargs)

    setattr(owner, name, call_in_context)
    try:
        yield
    finally:
        setattr(owner, name, original) if is_own else delattr(owner, name)
