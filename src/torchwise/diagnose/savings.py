"""Measure the saving of a fix: time the run with and without it, in alternation, in the same process.

Savings are shares and not seconds: the speed of a machine changes from minute to minute, so seconds of two measurements
cannot be compared. All savings of an explanation are shares of the call that it shows.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import torch

from torchwise._torch import dynamo
from torchwise.compile import compile_plan
from torchwise.diagnose.code_copies import copy_with_fresh_code
from torchwise.diagnose.evidence import Fix, place_of_line
from torchwise.diagnose.fix_trials import NOTHING, Checked, patched, settle
from torchwise.diagnose.kernels import profiler_options, with_profiler
from torchwise.errors import first_line, format_error
from torchwise.measure.clock import Clock
from torchwise.measure.paired_timing import PAUSE_S, Mix, Precision, measure_pair
from torchwise.plan import Plan
from torchwise.records import Interval, Measurement
from torchwise.records.answer import Answer
from torchwise.records.compile_events import Break
from torchwise.records.explanation import FixTrial, Saving, make_saving
from torchwise.records.statistics import median_interval
from torchwise.trial.harness import Calls, Harness

T = TypeVar("T")
SPENT = "the budget was spent. Raise it with --budget"
"""Why a fix is not measured."""
BREAKS = 2
"""Graph breaks in the function that measures the cost of one."""
BATCHES = 8
"""Consecutive parts of a measurement from which its interval is calculated.

A disturbance of a machine lasts for many rounds, so that rounds say less than as many independent ones would. Source:
the method of batch means, Law, Simulation Modeling and Analysis, chapter 9.
"""
BLOCK_S = 0.02
"""Seconds of one side before the other runs: a saving describes a program that calls the model in a loop.

In shorter blocks between other callables, 15 µs of a small model's guards were measured as 25 µs.
"""
BETWEEN_PROCESSES = 0.03
"""Share of a call's time by which the saving of one callable over another differs from process to process.

The cause is the placement of code and data (Mytkowicz et al., Producing wrong data without doing anything obviously
wrong, ASPLOS 2009). Thirteen processes timed one pair of 220 µs on two CPU cores: the savings had a standard deviation
of 1.3 % of the call.
"""


class Savings:
    """Times the explained run with and without a fix. A saving that cannot be measured is None.

    Attributes:
        notes: why a saving is unknown.
        failures: how tried fixes failed, by fix. The texts do not name the fix.

    Args:
        run: the explained calls, already compiled.
        call_s: seconds of one of these calls. Savings are shares of it.
        budget_s: seconds after which no further fix is tried.
        suggested: the suggested code against graph breaks that was run.
        fix_s: seconds that a fix is expected to take, which must be left of the budget.
        spent: why fixes are left out, for the notes.
    """

    def __init__(
        self,
        harness: Harness,
        run: Calls,
        call_s: float,
        budget_s: float,
        stage: Callable[[str], None],
        suggested: Checked = NOTHING,
        fix_s: float = 0.0,
        spent: str = SPENT,
    ) -> None:
        self.notes: list[str] = []
        self.failures: dict[Plan | str, str] = {}
        self._harness, self._run, self._stage, self._suggested = harness, run, stage, suggested
        self._call_s, self._end = call_s, time.perf_counter() + budget_s - fix_s
        self._known: dict[Plan | str | Fix, Any] = {}
        self._spent = spent

    def measure_plan(self, plan: Plan) -> Saving | None:
        """Return the plan's saving over the run."""
        return self._get_saving(plan, lambda: self._make_plan_calls(plan))

    def measure_without_guards(self) -> Saving | None:
        """Return the same code's saving without guards on modules and their weights.

        Both sides are compiled as by a user. Code that reports to the profiler takes longer itself, and a saving of
        some microseconds was measured half as large again.
        """
        skip = torch.compiler.skip_guard_on_all_nn_modules_unsafe
        return self._get_saving(
            "no guards of modules", lambda: self._compile_model(guard_filter_fn=skip), self._compile_model
        )

    def measure_setting(self, setting: str) -> Saving | None:
        """Return the saving under a setting of PyTorch, written as one assigns it."""
        return self._get_saving(setting, lambda: self._set(setting))

    def measure_line(self, graph_break: Break) -> Saving | None:
        """Return the model's saving with the line from a break's fix, if that line was run."""
        copied = self._suggested.rewritten.get(graph_break)
        if copied is None or graph_break.fix is None:
            return None
        options = profiler_options(self._harness.device)
        return self._get_saving(place_of_line(graph_break), lambda: self._compile_model(copied, **options))

    def try_fix(self, fix: Fix) -> FixTrial | None:
        """Try a fix on a copy of the model: count its compilations, compare its answers, and measure its saving."""
        return self._find_once(fix, fix.code, lambda: self._try(fix))

    def measure_break(self) -> Interval | None:
        """Return the seconds that one graph break costs here, with hardly any guards and nothing to fuse."""
        return self._find_once("a graph break", "a graph break", self._measure_break)

    def _measure_break(self) -> Interval | None:
        self._stage("measure: a graph break by itself")
        if (cost := cost_of_a_break(self._harness.device)) is None:
            self.notes.append("a graph break by itself: its cost could not be measured")
        return cost

    def _get_saving(
        self, fix: Plan | str, make: Callable[[], Calls], base: Callable[[], Calls] | None = None
    ) -> Saving | None:
        """Return the saving of a fix over `base`, or over the run if `base` is None."""
        words = f"plan {fix}" if isinstance(fix, Plan) else fix
        return self._find_once(fix, words, lambda: self._measure(fix, words, make, base))

    def _find_once(self, key: Plan | str | Fix, words: str, find: Callable[[], T]) -> T | None:
        """Return the result of `find`, which runs once, and not at all if the budget is spent."""
        if key not in self._known:
            self._known[key] = None if self._is_over(words) else find()
        found: T | None = self._known[key]
        return found

    def _is_over(self, words: str) -> bool:
        if time.perf_counter() < self._end:
            return False
        self.notes.append(f"{words}: not measured, because {self._spent}")
        return True

    def _measure(
        self, fix: Plan | str, words: str, make: Callable[[], Calls], base: Callable[[], Calls] | None
    ) -> Saving | None:
        self._stage(f"measure: {words}")
        try:
            with _more_compilations():
                fixed, run = make(), base() if base else self._run
            # PyTorch's own limit applies again: code that would be recompiled on every call runs in eager, as for the
            # user.
            return self._time_saving(fixed, run, words)
        except Exception as error:  # with a fix, any model may raise anything: the saving is then unknown
            self.failures[fix] = f"not measured, because it failed with {first_line(format_error(error))}"
            self.notes.append(f"{words}: {self.failures[fix]}")
            return None

    def _time_saving(self, fixed: Calls, run: Calls, words: str) -> Saving:
        """Return the saving of the fixed calls over the run, which was compiled alike except for the fix."""

        def to_saving(measured: Measurement) -> Saving:
            how = f"timed in alternation, {len(measured.candidate_s)} rounds: {words}"
            return make_saving(share_saved_anywhere(measured), self._call_s, how)

        measured = measure_with_retry(
            lambda: self._harness.measure(fixed, run, block_s=BLOCK_S),
            lambda measurement: to_saving(measurement).answer is not Answer.INCONCLUSIVE,
        )
        return to_saving(measured)

    def _try(self, fix: Fix) -> FixTrial:
        self._stage(f"try: {fix.code}")
        try:
            settled = settle(fix, self._harness)
            if not settled.is_steady:
                return FixTrial(fix.code, False, settled.in_words, compilations=settled.compilations)
            saving = self._time_saving(settled.calls, self._run, fix.code)
        except Exception as error:  # with a fix, any model may raise anything: the fix then does not help
            return FixTrial(fix.code, False, f"failed with {first_line(format_error(error))}")
        return FixTrial(fix.code, settled.is_alike, settled.in_words, saving, settled.compilations)

    def _make_plan_calls(self, plan: Plan) -> Calls:
        """Return the calls of a plan, compiled in the same way as by `torchwise.apply`."""
        harness, workload = self._harness, self._harness.workload
        model, profiled = copy_with_fresh_code(workload.call), with_profiler(plan, harness.device)
        compiled = compile_plan(
            model,
            profiled,
            workload.examples[0],
            device=harness.device,
            mode=harness.mode,
            inputs=workload.inputs,
        )
        calls = self._warm_up(harness.runners(compiled.call))
        if harness.mode == "training":
            return calls
        bypasses = [compiled.bypass(example.args, example.kwargs) for example in workload.examples]
        return self._warm_up([harness.runners(bypass)[place] for place, bypass in enumerate(bypasses)])

    def _set(self, setting: str) -> Calls:
        with patched(setting, self._suggested.names.get(setting)):
            return self._compile_model(**profiler_options(self._harness.device))

    def _warm_up(self, calls: Calls) -> Calls:
        self._harness.first_calls(calls)
        return calls

    def _compile_model(self, model: Callable[..., Any] | None = None, **options: Any) -> Calls:
        """Return the calls compiled as a user compiles them, under options of Inductor."""
        model = model or copy_with_fresh_code(self._harness.workload.call)
        return self._warm_up(self._harness.runners(torch.compile(model, options=options or None)))


def cost_of_a_break(device: str) -> Interval | None:
    """Measure the cost of a graph break: a chain of small operators, compiled with breaks between them and without.

    Returns:
        Seconds of each break, or None if the machine was too busy to tell.
    """

    def chain(x: torch.Tensor) -> torch.Tensor:
        return x.sin().sin().sin()

    break_graph = dynamo.GRAPH_BREAK.get()

    def chain_with_breaks(x: torch.Tensor) -> torch.Tensor:
        x = x.sin()
        break_graph()  # not in a loop, where a break makes the whole function run in eager
        x = x.sin()
        break_graph()
        return x.sin()

    x = torch.ones(16, device=device)
    with _more_compilations():
        whole, parts = torch.compile(chain), torch.compile(chain_with_breaks)
        for call in (whole, parts):
            for _ in range(3):
                call(x)

    def compute_saving(measurement: Measurement) -> Saving:
        return make_saving(share_saved(measurement), measurement.baseline_time.mid / BREAKS, "")

    saving = compute_saving(
        measure_with_retry(
            lambda: _pair(lambda: whole(x), lambda: parts(x), device),
            lambda measurement: compute_saving(measurement).answer is not Answer.INCONCLUSIVE,
        )
    )
    return None if saving.answer is Answer.INCONCLUSIVE else saving.per_call_s


def _pair(candidate: Callable[[], Any], baseline: Callable[[], Any], device: str) -> Measurement:
    sides = Mix((candidate,), (1.0,)), Mix((baseline,), (1.0,))
    return measure_pair(*sides, Clock(device), Precision(0.03, 1.5, BLOCK_S))


def _more_compilations() -> Any:
    """Raise the limit of compilations for one code object: all fixes count towards it."""
    return dynamo.patch_config(recompile_limit=1 << 16, accumulated_recompile_limit=1 << 16)


def share_saved_anywhere(measured: Measurement) -> Interval:
    """Return the candidate's saving as a share of the baseline's call, in any process. See `share_saved`."""
    here = share_saved(measured)
    return Interval(here.low - BETWEEN_PROCESSES, here.mid, here.high + BETWEEN_PROCESSES)


def share_saved(measured: Measurement) -> Interval:
    """Return the candidate's saving as a share of the baseline's call, at most 1, and below 0 if it takes longer."""
    saved = 1 - np.divide(measured.candidate_s, measured.baseline_s)
    return median_interval([float(np.median(batch)) for batch in np.array_split(saved, min(BATCHES, len(saved)))])


def measure_with_retry(measure: Callable[[], Measurement], is_conclusive: Callable[[Measurement], bool]) -> Measurement:
    """Measure, and if noise left it inconclusive, measure once more and return the narrower of the two."""
    first = measure()
    if is_conclusive(first):
        return first
    time.sleep(PAUSE_S)
    return min(first, measure(), key=lambda measured: measured.speedup.half_width)
