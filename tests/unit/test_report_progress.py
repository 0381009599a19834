"""Live progress: one line per event in a log, a redrawn state on a terminal."""

from __future__ import annotations

import io
import math
import threading
import time
from collections.abc import Callable

import pytest
from rich.console import Console

from builders import PASSED, WRONG, a_failure, a_measurement, a_plan, a_trial, an_inspection
from torchwise.records import Duel, Interval, Trial
from torchwise.records.listener import Listener
from torchwise.records.trial import WAITING
from torchwise.report import Progress
from torchwise.report.progress import AnalyzeProgress, BenchProgress, BisectProgress, outcome


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def a_run(progress: Progress, clock: Clock, trial: Trial) -> None:
    """Let a study of one trial go by."""
    with progress:
        progress.start_inspection()
        clock.now += 2
        progress.stage("run eager")
        clock.now += 5
        progress.finish_inspection(an_inspection())
        progress.start_trial(trial.number, trial.plan, "cheap to try")
        progress.stage("compile")
        clock.now += 60
        progress.finish_trial(trial)
        progress.change_leader(trial.plan, Interval(1.49, 1.52, 1.56))
        progress.note("another process helps")


def log(trial: Trial, width: int = 80) -> list[str]:
    file, clock = io.StringIO(), Clock()
    a_run(Progress(Console(file=file, width=width), clock=clock), clock, trial)
    return file.getvalue().splitlines()


def test_a_log_has_one_plain_line_for_each_event() -> None:
    assert log(a_trial(3, measurement=None, verdict=None)) == [
        "[   0:00] profiling the model",
        "[   0:07] eager: ResNet, 25.6 M parameters, float32, 12.4 ms per call (load 2 s, run eager 5 s)",
        "[   0:07] note: the model is in training mode: batch norm uses the statistics of the batch",
        "[   0:07] trial 3: inductor (cheap to try)",
        "[   1:07] trial 3: inductor: not verified, so it cannot be chosen (compile 1 min)",
        "[   1:07] inductor leads at 1.52× [1.49, 1.56]",
        "[   1:07] note: another process helps",
    ]


@pytest.mark.parametrize(
    "end", [lambda progress: progress.stage("measure"), lambda progress: progress.finish_comparison(a_trial())]
)
@pytest.mark.parametrize(("seconds", "said"), [(9.0, False), (55.0, True)])
def test_a_long_wait_for_others_is_told_once_it_is_over(
    seconds: float, said: bool, end: Callable[[Progress], None]
) -> None:
    file, clock = io.StringIO(), Clock()
    progress = Progress(Console(file=file, width=80), clock=clock)
    with progress:
        for stage, taken in (("compile", 60.0), (WAITING, seconds), (WAITING, 0.5)):
            progress.stage(stage)
            clock.now += taken
        end(progress)
        clock.now += 30.0
        progress.stage("warm")
    lines = ["[   1:55] waited 55.5 s for another Torchwise process on this device"] if said else []
    assert file.getvalue().splitlines() == lines


def test_a_duel_is_told_before_and_after() -> None:
    file, clock = io.StringIO(), Clock()
    progress = Progress(Console(file=file, width=80), clock=clock)
    trial = a_trial(1, a_plan(threads=1), duel=Duel(a_plan(), a_measurement(1.1)))
    with progress:
        progress.start_comparison(trial.plan, a_plan())
        clock.now += 12
        progress.finish_comparison(trial)
    first, second = file.getvalue().splitlines()
    assert first == "[   0:00] inductor + 1 thread against inductor, since their trials may not show which is faster"
    assert second.startswith("[   0:12] inductor + 1 thread against inductor: 1.1")
    assert second.endswith("] its speed")
    progress.finish_comparison(a_trial(1, a_plan(threads=1), duel=Duel(a_plan(), failure=a_failure().failure)))
    assert file.getvalue().endswith("inductor + 1 thread against inductor: it died in compile: SIGSEGV\n")


def test_a_log_line_is_never_wrapped_or_forged() -> None:
    lines = log(a_failure(message="first\nsecond\x1b[2J " + "x" * 100), width=40)
    assert len(lines) == 7
    assert "its process died in compile: first second x" in lines[4]
    assert not any("\x1b" in line for line in lines)


def test_a_terminal_shows_what_is_tried_and_what_leads_and_keeps_what_is_finished() -> None:
    file, clock = io.StringIO(), Clock()
    console = Console(file=file, width=80, force_terminal=True, color_system=None, _environ={"TERM": "xterm"})
    progress = Progress(console, clock=clock)
    with progress:
        progress.start_inspection()
        clock.now += 7
        progress.start_trial(2, a_plan(), "")
        progress.stage("compile")
        progress.change_leader(a_plan(scope="regional"), None)
        clock.now += 3
        wait_for(file, "3")
        progress.finish_trial(a_trial(2, verdict=WRONG))
    found = file.getvalue()
    assert "trial 2: inductor, compile" in found
    assert "0:03 on this, 0:10 in total, inductor + regional leads" in found
    assert "trial 2: inductor: wrong answer: values" in found
    assert "profiling the model\n" not in found  # that was a state, and no line of its own
    assert "\x1b[?25h" in found  # the cursor is given back


def test_a_log_tells_how_long_it_may_take_and_how_many_trials_are_ahead() -> None:
    file, clock = io.StringIO(), Clock()
    with Progress(Console(file=file, width=80), clock=clock) as progress:
        progress.start_search(900, 20)
        progress.start_search(math.inf, 2)
        progress.expect_trials(3, 71.2)
        progress.start_trial(5, a_plan(), "cheap")
        progress.expect_trials(3, 40)
        progress.start_trial(6, a_plan(), "")
    assert file.getvalue().splitlines() == [
        "[   0:00] the search takes up to 20 trials and 15 min, and ends sooner if nothing more can pay",
        "[   0:00] the search takes up to 2 trials, and ends sooner if nothing more can pay",
        "[   0:00] trial 5: inductor (cheap); 1 of about 3, about 71 s left",
        "[   0:00] trial 6: inductor; 2 of about 4, about 40 s left",
    ]


def test_a_trial_that_begins_again_is_counted_once() -> None:
    """Trial 1 ran out of memory beside trials 0 and 2, and is repeated alone. Another search counts anew."""
    file, clock = io.StringIO(), Clock()
    with Progress(Console(file=file, width=80), clock=clock) as progress:
        for number, ahead in ((0, 4), (1, 3), (2, 2), (1, 2), (3, 1)):
            progress.expect_trials(ahead, 60)
            progress.start_trial(number, a_plan(), "")
        progress.start_search(900, 20)
        progress.expect_trials(2, 60)
        progress.start_trial(1, a_plan(), "")
    told = [line.partition("; ")[2].partition(",")[0] for line in file.getvalue().splitlines()]
    assert told == ["1 of about 4", "2 of about 4", "3 of about 4", "2 of about 4", "4 of about 4", "", "1 of about 2"]


def test_a_terminal_counts_the_time_left_down() -> None:
    file, clock = io.StringIO(), Clock()
    console = Console(file=file, width=120, force_terminal=True, color_system=None, _environ={"TERM": "xterm"})
    with Progress(console, clock=clock) as progress:
        progress.expect_trials(2, 60)
        progress.start_trial(0, a_plan(), "")
        clock.now += 13
        wait_for(file, "0:47")
    assert "0:13 on this, 0:13 in total, about 0:47 left, eager leads" in file.getvalue()


def test_a_dumb_terminal_gets_a_log() -> None:
    file, clock = io.StringIO(), Clock()
    console = Console(file=file, width=80, force_terminal=True, _environ={"TERM": "dumb"})
    a_run(Progress(console, clock=clock), clock, a_trial())
    assert "profiling the model" in file.getvalue()
    assert "\x1b[?25l" not in file.getvalue()


def test_a_log_of_trials_side_by_side_has_the_stages_of_each() -> None:
    """Each lane of a search tells of its trials from a thread of its own."""
    file, clock = io.StringIO(), Clock()
    progress = Progress(Console(file=file, width=80), clock=clock)
    both_begun, one_ended = threading.Barrier(2), threading.Event()

    def try_other() -> None:
        progress.start_trial(4, a_plan(threads=1), "")
        progress.stage("load")
        both_begun.wait(30)
        one_ended.wait(30)
        progress.finish_trial(a_trial(4, a_plan(threads=1), measurement=None, verdict=None))

    with progress:
        progress.start_trial(3, a_plan(), "")
        other = threading.Thread(target=try_other)
        other.start()
        both_begun.wait(30)
        progress.stage("compile")
        clock.now += 5
        progress.finish_trial(a_trial(3, measurement=None, verdict=None))
        clock.now += 2
        one_ended.set()
        other.join()
    assert file.getvalue().splitlines() == [
        "[   0:00] trial 3: inductor",
        "[   0:00] trial 4: inductor + 1 thread",
        "[   0:05] trial 3: inductor: not verified, so it cannot be chosen (compile 5 s)",
        "[   0:07] trial 4: inductor + 1 thread: not verified, so it cannot be chosen (load 7 s)",
    ]


def test_a_terminal_has_a_line_for_each_trial_that_runs() -> None:
    file, clock = io.StringIO(), Clock()
    console = Console(file=file, width=100, force_terminal=True, color_system=None, _environ={"TERM": "xterm"})
    with Progress(console, clock=clock) as progress:
        progress.start_trial(3, a_plan(), "")
        progress.stage("compile")
        clock.now += 3
        other = threading.Thread(target=lambda: progress.start_trial(4, a_plan(threads=1), ""))
        other.start()
        other.join()
        clock.now += 10
        wait_for(file, "0:13 in total")
        progress.finish_trial(a_trial(3))
        wait_for(file, "0:10 on this, 0:13 in total, eager leads")
    found = file.getvalue()
    assert "trial 3: inductor, compile (0:13)" in found
    assert "trial 4: inductor + 1 thread (0:10)" in found


def test_the_cursor_comes_back_after_an_interruption() -> None:
    file = io.StringIO()
    console = Console(file=file, width=80, force_terminal=True, _environ={"TERM": "xterm"})
    with pytest.raises(KeyboardInterrupt), Progress(console):
        raise KeyboardInterrupt
    assert file.getvalue().count("\x1b[?25l") == file.getvalue().count("\x1b[?25h") == 1


def test_progress_goes_to_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    with Progress() as progress:
        progress.note("hello")
    out, err = capsys.readouterr()
    assert out == ""
    assert "note: hello" in err


def list_methods(kind: type) -> set[str]:
    return {name for name, value in vars(kind).items() if callable(value) and not name.startswith("_")}


@pytest.mark.parametrize("kind", [Progress, BenchProgress, AnalyzeProgress, BisectProgress])
def test_each_display_hears_only_what_a_listener_is_told(kind: type[Progress]) -> None:
    assert list_methods(kind) <= list_methods(Listener), "under another name it would show nothing"


@pytest.mark.parametrize(
    ("kind", "silent"),
    [
        (Progress, {"start_step", "start_target", "start_contender", "finish_row", "update_row", "finish_probe"}),
        (BenchProgress, {"finish_probe"}),
    ],
)
def test_a_display_leaves_out_only_what_is_not_its_own(kind: type[Progress], silent: set[str]) -> None:
    shown = {name for name in list_methods(Listener) if getattr(kind, name) is not getattr(Listener, name)}
    assert list_methods(Listener) - shown == silent


def test_a_proven_trial_is_told_by_its_speed_and_its_cost() -> None:
    assert outcome(a_trial(verdict=PASSED)).startswith("1.5")
    assert outcome(a_trial(verdict=PASSED)).endswith(", passed, first call +38.2 s")
    assert outcome(a_trial(speedup=0.7)).startswith("slower than eager")


def wait_for(file: io.StringIO, text: str, seconds: float = 5.0) -> None:
    """Wait until the thread that redraws has drawn at least once more and shows `text`."""
    start, drawn = time.monotonic(), len(file.getvalue())
    while text not in file.getvalue()[drawn:] and time.monotonic() - start < seconds:
        time.sleep(0.02)
