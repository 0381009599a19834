"""What a mend saves: the run with and without it, in alternation, in the same process."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable
from typing import Any

import torch

from torchwise.diagnose.findings.evidence import Fix, place_of_line
from torchwise.diagnose.fix_trials import settle
from torchwise.diagnose.kernels import PROFILED
from torchwise.diagnose.saving import BLOCK_S, measure_until_told, share_saved, share_saved_anywhere
from torchwise.diagnose.settings import patched
from torchwise.diagnose.suggestions import NOTHING, Checked
from torchwise.diagnose.twin import twin
from torchwise.errors import first_line, raised
from torchwise.measure import Clock, Mix, Precision, measure_pair
from torchwise.plan import Plan
from torchwise.realize import realize
from torchwise.records import Interval, Measurement
from torchwise.records.answer import Answer
from torchwise.records.explanation import Price, Tried, price_of
from torchwise.records.watched import Break
from torchwise.trial.arena import Arena, Calls

BREAKS = 2
"""Graph breaks in the function on which the cost of one is measured."""


class PairedPrices:
    """Times mends against the run that is explained; see `findings.evidence.Prices`.

    Attributes:
        notes: why something has no price.
        failures: those of the notes that say how a mend failed, by the mend.

    Args:
        arena: with the workload.
        run: the calls that are explained, compiled already.
        call_s: seconds that a call of them takes, which savings are parts of.
        budget_s: seconds after which no further mend is tried.
        stage: told what is tried.
        suggested: the code that was run against graph breaks.
    """

    def __init__(
        self,
        arena: Arena,
        run: Calls,
        call_s: float,
        budget_s: float,
        stage: Callable[[str], None],
        suggested: Checked = NOTHING,
    ) -> None:
        self.notes: list[str] = []
        self.failures: dict[Plan | str, str] = {}
        self._arena, self._run, self._stage, self._suggested = arena, run, stage, suggested
        self._call_s, self._end = call_s, time.perf_counter() + budget_s
        self._known: dict[Plan | str, Price | None] = {}
        self._tried: dict[Fix, Tried | None] = {}
        self._break: list[Interval | None] = []

    def of_plan(self, plan: Plan) -> Price | None:
        """Return what this plan saves over the run."""
        return self._price(plan, lambda: self._planned(plan))

    def without_module_guards(self) -> Price | None:
        """Return what the same code saves where PyTorch asks nothing about modules and their weights.

        Both are compiled as a user would: beside code that reports to the profiler, which takes longer itself, a saving
        of some microseconds came out half as large again.
        """
        skip = torch.compiler.skip_guard_on_all_nn_modules_unsafe
        return self._price("no guards of modules", lambda: self._plain(guard_filter_fn=skip), self._plain)

    def under(self, setting: str) -> Price | None:
        """Return what compiling under a setting of PyTorch saves."""
        return self._price(setting, lambda: self._set(setting))

    def of_line(self, found: Break) -> Price | None:
        """Return what the model saves with the line that a break's mend gives."""
        copied = self._suggested.rewritten.get(found)
        if copied is None or found.mend is None:
            return None
        return self._price(place_of_line(found), lambda: self._plain(copied, **self._profiled))

    def tried(self, fix: Fix) -> Tried | None:
        """Try a fix on a copy of the model; None where the budget was spent."""
        if fix not in self._tried:
            self._tried[fix] = None if self._is_over(fix.code) else self._try(fix)
        return self._tried[fix]

    def of_a_break(self) -> Interval | None:
        """Return the seconds that one graph break costs here by itself."""
        if not self._break:
            self._stage("price: a graph break by itself")
            self._break.append(None if self._is_over("a graph break") else self._cost_of_a_break())
        return self._break[0]

    def _cost_of_a_break(self) -> Interval | None:
        if (cost := cost_of_a_break(self._arena.device)) is None:
            self.notes.append("a graph break by itself: what it costs could not be measured")
        return cost

    def _price(
        self, mend: Plan | str, make: Callable[[], Calls], base: Callable[[], Calls] | None = None
    ) -> Price | None:
        """Return what a mend saves over `base`; over the run where there is none."""
        if mend not in self._known:
            words = f"plan {mend}" if isinstance(mend, Plan) else mend
            self._known[mend] = None if self._is_over(words) else self._measured(mend, words, make, base)
        return self._known[mend]

    def _is_over(self, words: str) -> bool:
        if time.perf_counter() < self._end:
            return False
        self.notes.append(f"{words}: not priced, because the budget was spent; --budget grants more")
        return True

    def _measured(
        self, mend: Plan | str, words: str, make: Callable[[], Calls], base: Callable[[], Calls] | None
    ) -> Price | None:
        self._stage(f"price: {words}")
        try:
            with _more_compilations():
                mended, run = make(), base() if base else self._run
            # Under PyTorch's own limit again: what would be compiled anew on every call runs in eager, as for the user.
            return self._timed(mended, run, words)
        except Exception as error:  # what a mend does to somebody's model may raise anything: it then has no price
            self.failures[mend] = f"{words}: not priced, because it failed with {first_line(raised(error))}"
            self.notes.append(self.failures[mend])
            return None

    def _timed(self, mended: Calls, run: Calls, words: str) -> Price:
        """Return what calls save over others, which were compiled alike but for the mend."""

        def price(found: Measurement) -> Price:
            how = f"timed in alternation, {len(found.candidate_s)} rounds: {words}"
            return price_of(share_saved_anywhere(found), self._call_s, how)

        measured = measure_until_told(
            lambda: self._arena.measure(mended, run, block_s=BLOCK_S),
            lambda found: price(found).answer is not Answer.INCONCLUSIVE,
        )
        return price(measured)

    def _try(self, fix: Fix) -> Tried:
        self._stage(f"try: {fix.code}")
        try:
            settled = settle(fix, self._arena)
            if not settled.is_steady:
                return Tried(fix.code, False, settled.in_words, compilations=settled.compilations)
            price = self._timed(settled.calls, self._run, fix.code)
        except Exception as error:  # what a fix does to somebody's model may raise anything: it then does not help
            return Tried(fix.code, False, f"failed with {first_line(raised(error))}")
        return Tried(fix.code, settled.is_alike, settled.in_words, price, settled.compilations)

    def _planned(self, plan: Plan) -> Calls:
        """Return the calls of a plan, by the way that `torchwise.apply` takes for them."""
        arena, workload = self._arena, self._arena.workload
        profiled = plan if not profiles(plan, arena.device) else plan.with_choice("options", (PROFILED, True))
        made = realize(twin(workload.call), profiled, workload.examples[0], device=arena.device, mode=arena.mode)
        calls = self._settled(arena.runners(made.call))
        if arena.mode == "training":
            return calls
        ways = [made.lean(example.args, example.kwargs) for example in workload.examples]
        return self._settled([arena.runners(way)[place] for place, way in enumerate(ways)])

    def _set(self, setting: str) -> Calls:
        with patched(setting, self._suggested.names.get(setting)):
            return self._plain(**self._profiled)

    @property
    def _profiled(self) -> dict[str, Any]:
        """Options with which what is generated reports to the profiler, as the run's does."""
        return {PROFILED: True} if self._arena.device == "cpu" else {}

    def _settled(self, calls: Calls) -> Calls:
        self._arena.first_calls(calls)
        return calls

    def _plain(self, model: Callable[..., Any] | None = None, **options: Any) -> Calls:
        """Return the calls compiled as a user compiles them, under options of Inductor."""
        model = model or twin(self._arena.workload.call)
        return self._settled(self._arena.runners(torch.compile(model, options=options or None)))


def profiles(plan: Plan, device: str) -> bool:
    """Whether what a plan generates can report itself to the profiler, so that it shares its code with the run."""
    return device == "cpu" and plan.backend == "inductor"


def cost_of_a_break(device: str) -> Interval | None:
    """Measure what a graph break costs: a chain of small operators, compiled with breaks between them and without.

    Returns:
        Seconds of each break; None where the machine was too busy to tell.
    """

    def chain(x: torch.Tensor) -> torch.Tensor:
        return x.sin().sin().sin()

    def broken(x: torch.Tensor) -> torch.Tensor:
        x = x.sin()
        torch._dynamo.graph_break()  # written out: in a loop, a break has the whole function run in eager
        x = x.sin()
        torch._dynamo.graph_break()
        return x.sin()

    x = torch.ones(16, device=device)
    with _more_compilations():
        whole, parts = torch.compile(chain), torch.compile(broken)
        for call in (whole, parts):
            for _ in range(3):
                call(x)

    def saved(found: Measurement) -> Price:
        return price_of(share_saved(found), found.baseline_time.mid / BREAKS, "")

    told = saved(
        measure_until_told(
            lambda: _pair(lambda: whole(x), lambda: parts(x), device),
            lambda found: saved(found).answer is not Answer.INCONCLUSIVE,
        )
    )
    return None if told.answer is Answer.INCONCLUSIVE else told.per_call_s


def _pair(candidate: Callable[[], Any], baseline: Callable[[], Any], device: str) -> Measurement:
    mend, run = Mix((candidate,), (1.0,)), Mix((baseline,), (1.0,))
    return measure_pair(mend, run, Clock(device), Precision(0.03, 1.5, BLOCK_S))


def _more_compilations() -> Any:
    """Let one code object be compiled as often as there are mends: all of them count towards one limit."""
    return importlib.import_module("torch._dynamo.config").patch(
        recompile_limit=1 << 16, accumulated_recompile_limit=1 << 16
    )
