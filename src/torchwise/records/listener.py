"""Hear about the progress of long work: one protocol for studies, benchmarks, analyses, bisections and checks."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torchwise.plan import Plan
    from torchwise.plan.workload_spec import WorkloadSpec
    from torchwise.records.benchmark import Benchmark, Row
    from torchwise.records.bisection import Step
    from torchwise.records.measurement import Inspection
    from torchwise.records.statistics import Interval
    from torchwise.records.trial import Trial


class Listener:
    """Told of each step as it begins or ends. A method that is not overridden does nothing. None may raise.

    A search that tries several plans at once has a thread for each, which tells of its own trials and their stages. So
    the steps of several threads go on side by side, and a method may be called while another one runs.
    """

    def stage(self, name: str) -> None:
        """A worker entered a stage."""

    def note(self, text: str) -> None:
        """A note for the user, such as a stored decision that was reused or is stale."""

    def start_step(self, name: str) -> None:
        """A step begins: a phase of an analysis, a section of a check, a probe, or a part of a contender's work."""

    # A study

    def start_search(self, limit_s: float, max_trials: int | None) -> None:
        """A search begins. It ends after so many seconds and trials, and sooner if nothing more can pay."""

    def expect_trials(self, count: int, seconds: float) -> None:
        """The next trial and others that are worth it now are about so many, in about so many seconds."""

    def start_inspection(self) -> None:
        """The inspection of the plain model begins."""

    def finish_inspection(self, inspection: Inspection) -> None:
        """The plain model was inspected."""

    def start_trial(self, number: int, plan: Plan, reason: str) -> None:
        """A trial begins."""

    def finish_trial(self, trial: Trial) -> None:
        """A trial ended."""

    def change_leader(self, plan: Plan, speedup: Interval | None) -> None:
        """Another plan leads."""

    def start_comparison(self, plan: Plan, rival: Plan) -> None:
        """Two plans that their trials may not tell apart are being timed beside each other."""

    def finish_comparison(self, trial: Trial) -> None:
        """Two plans were timed: the trial has the duel."""

    def finish_repeat(self, trial: Trial) -> None:
        """A plan was timed beside eager in one more process: the trial has the measurement, or failed."""

    # A benchmark

    def start_target(self, workload: WorkloadSpec, number: int, total: int) -> None:
        """Target `number` of `total`, counted from 1, begins."""

    def start_contender(self, name: str) -> None:
        """A contender begins."""

    def finish_row(self, benchmark: Benchmark, row: Row) -> None:
        """A row is done, and is part of the benchmark."""

    def update_row(self, benchmark: Benchmark, row: Row) -> None:
        """A finished row was timed again in another process. The benchmark has its new form."""

    # A bisection

    def finish_probe(self, step: Step) -> None:
        """A probe is done."""
