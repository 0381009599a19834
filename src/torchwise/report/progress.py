"""Live displays of studies, benchmarks, analyses and bisections.

Each is one live line on a terminal, and one line per event in a log.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.spinner import Spinner
from rich.text import Text

from torchwise.plan import Plan
from torchwise.plan.workload_spec import WorkloadSpec
from torchwise.records import Inspection, Interval, StepWork, Trial
from torchwise.records import format as show
from torchwise.records.benchmark import Benchmark, Row
from torchwise.records.bisection import Step
from torchwise.records.candidates import verdict_word
from torchwise.records.listener import Listener
from torchwise.records.reasons import own_fault
from torchwise.records.trial import WAITING
from torchwise.report.bench import Line, line_of
from torchwise.report.bisection import describe_symptom
from torchwise.report.facts import describe_loss, throughput

REFRESHES_PER_SECOND = 8
MIN_STAGE_S = 0.05
"""Duration of a stage from which a log names it."""
LOADING = "load"
"""Name of the time before the first stage, in which a process starts and loads the model."""
LONG_WAIT_S = 10.0
"""Duration of a wait from which a message explains the delay."""
NO_FAULT = "no fault found yet"


@dataclass(slots=True)
class _Task:
    """The current task of one thread, or "", with its stage, and the seconds of its stages before."""

    name: str
    begun: float
    stage: str = ""
    stage_begun: float = 0.0
    stages: dict[str, float] = field(default_factory=dict)
    spinner: Spinner = field(default_factory=lambda: Spinner("dots"))


class Progress(Listener):
    """Context manager and listener of a study that shows the current trials, their durations, and the leader.

    On a terminal the current state is redrawn in place, and finished trials scroll above it. Elsewhere (a file, a CI
    log, a dumb terminal) each event is one plain line. It writes to standard error, so that results can be piped.

    Each thread has a task of its own, as each lane of a search tries another plan.
    """

    def __init__(self, console: Console | None = None, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._console = console or Console(stderr=True)
        self._clock = clock
        self._is_live = self._console.is_terminal and not self._console.is_dumb_terminal
        self._live: Live | None = None
        self._start = clock()
        self._tasks: dict[int, _Task] = {}
        self._leader = "eager leads"
        self._work: StepWork | None = None
        self._places: dict[int, int] = {}  # of the trials begun so far, by number: one may begin again
        self._ahead, self._end = (0, 0.0), math.inf
        self._eager_s = 0.0

    def __enter__(self) -> Self:
        self._start = self._here.begun = self._clock()
        if self._is_live:
            self._live = Live(
                get_renderable=self._state,
                console=self._console,
                refresh_per_second=REFRESHES_PER_SECOND,
                transient=True,
            )
            self._live.start()
        return self

    def __exit__(self, *_error: object) -> None:
        if self._live:
            self._live.stop()
            self._live = None

    @property
    def _here(self) -> _Task:
        """The calling thread's task."""
        thread = threading.get_ident()
        if thread not in self._tasks:
            self._tasks[thread] = _Task("", self._clock(), stage_begun=self._clock())
        return self._tasks[thread]

    def start_search(self, limit_s: float, max_trials: int | None) -> None:
        """Say how long the search may take."""
        self._places.clear()  # each search numbers its trials from 0
        at_most = "" if math.isinf(limit_s) else f" and {show.tick(limit_s)}"
        trials = "" if max_trials is None else f"up to {show.pluralize(max_trials, 'trial')}{at_most}"
        self._say(f"the search takes {trials}, and ends sooner if nothing more can pay")

    def expect_trials(self, count: int, seconds: float) -> None:
        """Note how many trials are ahead, and for how long."""
        self._ahead, self._end = (count, seconds), self._clock() + seconds

    def start_inspection(self) -> None:
        """Start profiling the original model."""
        self._begin("profiling the model")

    def finish_inspection(self, inspection: Inspection) -> None:
        """Finish profiling the original model."""
        self.stage("")
        measurement = inspection.measurement
        each = ""
        if measurement.baseline_s:
            seconds = self._eager_s = measurement.baseline_time.mid
            work = f", {throughput(inspection.work, seconds)}" if inspection.work else ""
            each = f", {show.seconds(seconds)} per call{work}"
        self._work = inspection.work
        self._say(f"eager: {show.one_line(inspection.description)}{each}{self._describe_stages()}")
        for text in (*inspection.notes, *measurement.caveats[:1]):
            self.note(text)

    def start_trial(self, number: int, plan: Plan, reason: str) -> None:
        """Start a trial."""
        because = f" ({show.one_line(reason)})" if reason else ""
        place = self._places.setdefault(number, len(self._places) + 1)
        count, seconds = self._ahead
        left = f", about {show.tick(max(round(seconds), 1))} left"
        ahead = f"; {place} of about {len(self._places) + count - 1}{left}" if count else ""
        self._begin(f"trial {number}: {show.one_line(str(plan))}", f"{because}{ahead}")

    def stage(self, name: str) -> None:
        """Enter a stage of the worker. A log has a line for it only after a long wait."""
        here, now = self._here, self._clock()
        if name == here.stage == WAITING:
            return
        here.stages[here.stage] = here.stages.get(here.stage, 0.0) + now - here.stage_begun
        waited_s = now - here.stage_begun if here.stage == WAITING else 0.0
        here.stage, here.stage_begun = show.one_line(name), now
        if waited_s >= LONG_WAIT_S:
            self._say(f"waited {show.seconds(waited_s)} for another Torchwise process on this device")

    def finish_trial(self, trial: Trial) -> None:
        """Finish a trial."""
        self.stage("")
        throughput_text = self._describe_throughput(trial)
        result = f"{outcome(trial)}{throughput_text}{self._describe_stages()}"
        self._say(f"trial {trial.number}: {show.one_line(str(trial.plan))}: {result}")
        self._here.name = ""

    def change_leader(self, plan: Plan, speedup: Interval | None) -> None:
        """Announce a new leading plan."""
        figures = f" at {show.speedup(speedup)}" if speedup else ""
        self._leader = f"{show.one_line(str(plan))} leads{figures}"
        self._say(self._leader)

    def start_comparison(self, plan: Plan, rival: Plan) -> None:
        """Start timing two plans against each other, since their trials may not show which is faster."""
        self._begin(f"{_name_pair(plan, rival)}, since their trials may not show which is faster")

    def finish_comparison(self, trial: Trial) -> None:
        """Finish timing the two plans."""
        self.stage("")
        if duel := trial.duel:
            result = f"{show.speedup(duel.measurement.speedup)} its speed" if duel.measurement else f"it {duel.failure}"
            self._say(show.one_line(f"{_name_pair(trial.plan, duel.rival)}: {result}"))
        self._here.name = ""

    def finish_repeat(self, trial: Trial) -> None:
        """Finish timing a plan against eager in another process."""
        self.stage("")
        cold = f"; with cold caches {show.speedup(trial.cold_speedup)}" if trial.cold_speedup else ""
        self._say(f"{show.one_line(str(trial.plan))} in {len(trial.processes)} processes: {outcome(trial)}{cold}")
        self._here.name = ""

    def note(self, text: str) -> None:
        """Show a note for the user."""
        self._say(f"note: {show.one_line(text)}")

    def _describe_throughput(self, trial: Trial) -> str:
        """Return the throughput of the trial's plan, or an empty string if the model has none."""
        if self._work is None or trial.speedup is None:
            return ""
        seconds = self._eager_s / trial.speedup.mid
        words = [throughput(self._work, seconds) if self._eager_s else "", describe_loss(trial)]
        return "".join(f"; {word}" for word in words if word)

    def _begin(self, task: str, because: str = "") -> None:
        self.stage("")
        here = self._here
        here.name, here.begun = task, self._clock()
        here.stages.clear()
        if not self._live:
            self._say(f"{task}{because}")

    def _describe_stages(self) -> str:
        """Return the seconds of each stage of the task, for a log. On a terminal they were seen to pass."""
        long = {name or LOADING: s for name, s in self._here.stages.items() if s >= MIN_STAGE_S}
        if self._is_live or not long:
            return ""
        return f" ({', '.join(f'{name} {show.tick(round(s, 1))}' for name, s in long.items())})"

    def _say(self, line: str) -> None:
        elapsed = f"[{show.clock(self._clock() - self._start):>7}] "
        # On a terminal a long line may wrap. In a log it must stay one line, even at a narrow assumed width.
        self._console.print(Text.assemble((elapsed, "dim"), line), soft_wrap=not self._is_live)

    def _state(self) -> RenderableType:
        """Return the current display, each line cut to the terminal's width."""
        now, tasks = self._clock(), list(self._tasks.values())
        shown = [task for task in tasks if task.name] or tasks[:1]
        left = "" if math.isinf(self._end) else f"about {show.clock(max(self._end - now, 0))} left, "
        own = f"{show.clock(now - shown[0].begun)} on this, " if len(shown) == 1 else ""
        elapsed = f"  {own}{show.clock(now - self._start)} in total, {left}"
        return Group(*(self._draw(task, len(shown) > 1) for task in shown), _cut(elapsed + self._leader, "dim"))

    def _draw(self, task: _Task, is_one_of_several: bool) -> Spinner:
        """Return the line of a task, with its own seconds if there are several."""
        stage = f", {task.stage}" if task.stage else ""
        seconds = f" ({show.clock(self._clock() - task.begun)})" if is_one_of_several else ""
        task.spinner.update(text=_cut(f"{task.name or 'choosing the next plan'}{stage}{seconds}"))
        return task.spinner


class BenchProgress(Progress):
    """Listener of a benchmark that shows target, contender, stage and time spent, and each finished row."""

    def __init__(
        self,
        console: Console | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        keep: Callable[[Benchmark], object] = lambda _: None,
    ) -> None:
        """Show on `console` (standard error if None), and give every new state of the benchmark to `keep`."""
        super().__init__(console, clock=clock)
        self.benchmark: Benchmark | None = None
        self._keep = keep
        self._target, self._leader = "", "no row is done yet"
        self._here.name = "measuring the peaks of the hardware"

    def start_target(self, workload: WorkloadSpec, number: int, total: int) -> None:
        """Start target `number` of `total`."""
        self._target = f"{number}/{total} {show.one_line(workload.target)}"
        self._begin(f"{self._target}: profiling the model")

    def start_step(self, name: str) -> None:
        """Start a contender, or its next step: a trial of its search, or a comparison in one process."""
        self._begin(f"{self._target}: {show.one_line(name)}")

    start_contender = start_step

    def finish_row(self, benchmark: Benchmark, row: Row) -> None:
        """Keep a finished row first, and then report it."""
        self.update_row(benchmark, row)
        self._say(f"{show.one_line(row.workload.target)}: {to_log_line(line_of(row, benchmark))}")
        self._leader = f"{show.pluralize(len(benchmark.rows), 'row')} done"
        self._here.name = self._target

    def update_row(self, benchmark: Benchmark, row: Row) -> None:  # noqa: ARG002 - the final table shows it
        """Keep a row that was timed in another process."""
        self.benchmark = benchmark
        self._keep(benchmark)
        self.stage("")


class AnalyzeProgress(Progress):
    """Listener of an analysis that shows the phase, its stage, and the time spent in it, in place of a leading plan."""

    leader = "one plan, phase by phase"

    def start_step(self, name: str) -> None:
        """Start a phase."""
        self._leader = self.leader
        self._begin(show.one_line(name))


class BisectProgress(Progress):
    """Listener of a bisection that shows the current probe, its duration, and each observation so far."""

    steps: tuple[Step, ...] = ()

    def start_step(self, name: str) -> None:
        """Start a probe."""
        if not self.steps:
            self._leader = NO_FAULT
        here = self._here
        here.name, here.stage, here.begun = show.one_line(name), "", self._clock()

    def finish_probe(self, step: Step) -> None:
        """Finish a probe."""
        self.steps = (*self.steps, step)
        if step.observation.is_fault and self._leader == NO_FAULT:
            self._leader = f"the fault: {describe_symptom(step.observation)}"
        self._say(f"{show.one_line(step.what)}: {describe_symptom(step.observation)} ({show.seconds(step.seconds)})")
        self._here.name = self._here.stage = ""


def outcome(trial: Trial) -> str:
    """Describe a finished trial's outcome: speed and cost if verified and faster, else the reason against it."""
    if fault := own_fault(trial):
        return fault
    speedup = show.speedup(trial.speedup) if trial.speedup else ""
    cold = f", first call +{show.seconds(trial.costs.cold_s)}" if trial.costs else ""
    return f"{speedup}, {verdict_word(trial.verdict)}{cold}"


def _name_pair(plan: Plan, rival: Plan) -> str:
    return show.one_line(f"{plan} against {rival}")


def _cut(text: str, style: str = "") -> Text:
    return Text(text, style=style, no_wrap=True, overflow="ellipsis")


def to_log_line(line: Line) -> str:
    """Return a finished row as one log line, without times per call. Further processes may change its figures."""
    answers = f"{line.answers} ({line.why})" if line.why else line.answers
    if not line.row.is_timed:
        return f"{line.contender}: {answers}"
    precision = "" if line.precision == "native" else f" in {line.precision}"
    parts = [f"{line.contender}, so far: {line.speedup}{precision}", f"first call +{line.cold}"]
    return ", ".join([*parts, answers, *filter(None, [line.choice])])
