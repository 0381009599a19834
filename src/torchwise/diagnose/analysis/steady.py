"""Run the plan in a fresh process with full caches: the cost of its start, its memory, and how steady its calls are."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from torchwise.compile import compile_plan
from torchwise.diagnose.analysis.job import SteadyRun
from torchwise.measure import Clock, device_lock, peak_memory
from torchwise.records.analysis import CALLS_PER_TURN, Consistency, Memory, Steady
from torchwise.trial.harness import Harness
from torchwise.workload import Workload, pytree
from torchwise.workload.layouts import size_of

MIN_TURNS, MAX_CALLS = 3, 4000


def measure_steady(told: SteadyRun, stage: Callable[[str], None]) -> Steady:
    """Start the plan from the caches of an earlier process, and time each call by itself."""
    arena, plan = Harness(told.job), told.job.plan
    with arena.gradients():
        example = arena.workload.examples[0]
        realized = compile_plan(arena.workload.call, plan, example, device=arena.device, mode=arena.mode)
        calls = arena.runners(realized.call)
        stage("warm compile")
        warm: list[float] = []
        start = peak_memory(lambda: warm.append(arena.first_calls(calls)), arena.device)
        stage("measure")
        common = _commonest(arena.workload)
        own, eager = _time_alternately(calls[common], arena.eager[common], arena.device, told.job.effort.measure_s)
        stage("memory")
        call, baseline = arena.memory(calls)
    memory = replace(_static_memory(arena.workload), start=start, call=call, baseline_call=baseline)
    return Steady(warm[0], own, eager, memory)


def _time_alternately(
    plan: Callable[[], Any], eager: Callable[[], Any], device: str, budget_s: float
) -> tuple[Consistency, Consistency]:
    """Time single calls of both sides, some of one and then some of the other, until the budget is spent.

    Garbage is collected as in any program: the measurement looks for its pauses, too.
    """
    clock, sides = Clock(device), (plan, eager)
    seconds: tuple[list[float], list[float]] = ([], [])
    with device_lock.alone():
        for side in sides:  # the first call after a pause is not a steady one
            clock.once(side)
        deadline = time.perf_counter() + budget_s
        while len(seconds[0]) < MAX_CALLS and (
            len(seconds[0]) < MIN_TURNS * CALLS_PER_TURN or time.perf_counter() < deadline
        ):
            for side, found in zip(sides, seconds, strict=True):
                found += [clock.once(side) for _ in range(CALLS_PER_TURN)]
    return Consistency(tuple(seconds[0])), Consistency(tuple(seconds[1]))


def _commonest(workload: Workload) -> int:
    """Return the position of the most frequent example: across a mix, calls would differ by their shapes alone."""
    weights = [example.weight for example in workload.examples]
    return weights.index(max(weights))


def _static_memory(workload: Workload) -> Memory:
    module, inputs = workload.module, [_bytes((e.args, dict(e.kwargs))) for e in workload.examples]
    own = () if module is None else (*module.parameters(), *module.buffers())
    return Memory(sum(map(size_of, {id(t): t for t in own}.values())), max(inputs))


def _bytes(tree: Any) -> int:
    return sum(map(size_of, pytree.tensors(tree)))
