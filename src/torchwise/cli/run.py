"""`torchwise run`: find the modules that matter in a program as it is, tune them, and run it by their plans."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from torchwise.cli import options as opt
from torchwise.cli.search_words import list_words
from torchwise.errors import InputError, StorageError, TorchwiseError

if TYPE_CHECKING:
    from torchwise.cli.run_report import Report
    from torchwise.records.recording import Recording
    from torchwise.report.document import Step
    from torchwise.runtime.program.script import Script

MODULE_OPTION = re.compile("-m(.+)?|--module(=.*)?", re.DOTALL)
"""The option that names a module, in its next word or, as in -mMODULE, in the same one."""
NAMES_PROGRAM = {"allow_interspersed_args": False}


class RunCommand(TyperCommand):
    """A command whose arguments after `-m MODULE` belong to the module, as those after a script do."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the command's own options."""
        found = ((place, MODULE_OPTION.fullmatch(arg)) for place, arg in enumerate(args))
        at, option = next((pair for pair in found if pair[1]), (len(args), None))
        if option is not None and not self.make_parser(ctx).parse_args(args[:at])[0].get("program"):
            end = at + (1 if option.lastindex else 2)
            args = [*args[:end], "--", *args[end:]]
        left: list[str] = super().parse_args(ctx, args)
        return left


def run(
    program: Annotated[
        list[str] | None, typer.Argument(help="The script, and its arguments.", metavar="SCRIPT [ARGS]...")
    ] = None,
    module: Annotated[
        str | None, typer.Option("-m", "--module", help="Run a module in place of a script, as python -m does.")
    ] = None,
    tune: Annotated[
        bool, typer.Option("--tune", help="Afterwards, tune the modules that took most of the time.")
    ] = False,
    apply: Annotated[
        bool,
        typer.Option(
            "--apply",
            help="Run the program by the plans of an earlier --tune. Calls that no plan was tuned for are counted, and "
            "kept for the next --tune.",
        ),
    ] = False,
    keep_memory: Annotated[
        bool,
        typer.Option(
            "--keep-memory",
            help="Keep memory that the program frees, instead of returning it to the kernel (glibc on Linux). Calls "
            "that make large tensors need not fetch it again, and the process stays as large as it once was.",
        ),
    ] = False,
    budget: Annotated[
        float | None,
        typer.Option(help="Time budget in seconds of the search for all modules.", show_default="by effort, for each"),
    ] = None,
    wait: opt.Wait = False,
    compile_timeout: opt.CompileTimeout = None,
    iterations: opt.Iterations = None,
    fullgraph: opt.FullGraph = False,
    workers: opt.Workers = 1,
    objective: opt.Objective = "latency",
    calls: Annotated[
        int | None,
        opt.count_option(
            "--calls",
            "Expected number of calls over the lifetime, such as 1e6, of the module with the most time. The others get "
            "theirs in proportion.",
            show_default="as in this run, at each start",
        ),
    ] = None,
    restarts: opt.Restarts = 1,
    allow: opt.Allow = "same-precision",
    effort: opt.Effort = "standard",
    sizes: opt.Sizes = "as-given",
    tolerance: opt.Tolerance = None,
    metric: opt.Metric = None,
    require: opt.Require = None,
    plan: opt.TryPlans = None,
    fresh: opt.Fresh = False,
    store: opt.Store = None,
    json: Annotated[Path | None, opt.json_option("Write the recording as JSON (schema torchwise.recording/1)")] = None,
    html: Annotated[Path | None, opt.html_option("Write the recording as a self-contained page.")] = None,
) -> None:
    """Run a program unchanged, and show which modules take its time. --tune tunes them, --apply uses the plans.

    The exit code is the program's own, 130 after Ctrl-C, and 2 for invalid input. Reports go to standard error.
    """
    if tune and apply:
        raise InputError("--tune and --apply are given, but a run is either recorded or uses plans: give one of them")
    if apply and json:
        raise InputError("--json and --apply are given, but only a recording is written as JSON: leave one of them out")
    options: dict[str, Any] = {
        "restarts": restarts,
        "allow": allow,
        "effort": effort,
        "budget": budget,
        "compile_timeout": compile_timeout,
        "iterations": iterations,
        "fullgraph": fullgraph,
        "workers": workers,
        "objective": objective,
        "sizes": sizes,
        "tolerance": tolerance,
        "metric": metric and _find_metric(metric),
        "require": tuple(require or ()),
        "plan": tuple(plan or ()),
        "fresh": fresh,
        "wait": wait,
    }
    if calls is not None:
        options["calls"] = calls
    if not tune and (given := list_words(options)):
        raise InputError(f"{given[0]} is given without --tune, but only a search uses it: add --tune or leave it out")
    from torchwise.cli.run_report import Report
    from torchwise.runtime.program.script import Script
    from torchwise.store.location import VARIABLE, make_absolute

    script = _find_script(Script, program or [], module)
    if keep_memory:
        from torchwise.cli.kept_memory import keep_freed_memory

        keep_freed_memory()
    report = Report(sys.stderr, *(file and file.absolute() for file in (json, html)))
    words = ["--store", store] if store else []
    named = store or os.environ.get(VARIABLE)
    store = make_absolute(named) if named else None  # the program may change folders, and its environment
    words += ["--keep-memory"] if keep_memory else []
    if apply:
        raise SystemExit(_apply(script, store, words, report))
    options["store"] = store
    raise SystemExit(_record(script, options if tune else None, store, words, report))


def _find_metric(place: str) -> str:
    """Return the place of a function from anywhere, as the program may change folders before the search.

    It is not imported: that might change how the program runs.

    Raises:
        InputError: it names no function, or there is no such file.
    """
    from torchwise.plan.workload_spec import DISTRIBUTION, check_form, split

    if place == DISTRIBUTION:
        return place
    try:
        check_form(place)
    except InputError as error:
        raise InputError(f"--metric: {error}") from None
    head, colon, name = split(place)
    return f"{os.path.abspath(head)}{colon}{name}" if head.endswith(".py") else place


def _make_search(options: dict[str, Any], program: str) -> dict[str, Any]:
    """Return the options of a search as `tune_program` takes them.

    Raises:
        InputError: an option has no permitted value.
    """
    from torchwise.cli.common import resolve_plan
    from torchwise.runtime.program.decisions import read_decisions
    from torchwise.runtime.program.tuning import check_options

    search = {**options}
    if names := search.pop("plan"):
        targets = [program]
        with contextlib.suppress(StorageError):  # there is no store yet: then a plan is none of its studies
            decided = read_decisions(program, options["store"]).values()
            targets += [decision.workload.target for several in decided for decision in several]
        search["plans"] = [resolve_plan(name, targets, options["store"]) for name in names]
    check_options(search)  # type: ignore[arg-type]
    return search


def _find_script(kind: type[Script], program: list[str], module: str | None) -> Script:
    if module is not None:
        return kind(module, program, is_module=True)
    if not program:
        raise InputError("no program is given: name a script, or a module with -m MODULE")
    return kind(program[0], program[1:], is_module=False)


def _record(script: Script, options: dict[str, Any] | None, store: str | None, words: list[str], report: Report) -> int:
    from torchwise.cli.run_report import read_stored_calls
    from torchwise.report.recording import recording_document
    from torchwise.runtime.program import CallRecorder
    from torchwise.runtime.program.size_proposals import propose_sizes
    from torchwise.runtime.program.tuning import tune_recorded
    from torchwise.store import open_storage

    search: Any = None
    if options is not None:
        search = _make_search(options, script.name)
        open_storage(options["store"]).close()  # before minutes are spent
    process, recorder = os.getpid(), CallRecorder(holds=options is not None)
    with recorder:
        code = script.run()
    if os.getpid() != process:  # a fork of the program that came to its end
        return code
    missed, failure = read_stored_calls(script.name, store)
    ended_well = code == 0 or script.was_interrupted  # as a server ends
    if options is not None and ended_well:
        found = tune_recorded(recorder, script.name, search, places=False, calls=None, missed=missed)
        recording = found.record
    else:
        recording = _add_expectation(propose_sizes(recorder, recorder.to_record(script.name), missed), store)
    if failure:
        recording = replace(recording, notes=(*recording.notes, failure))
    if options is not None and not ended_well:
        note = f"nothing was tuned, as the program ended with exit code {code}"
        recording = replace(recording, notes=(*recording.notes, note))
    report.show(recording_document(recording, _next_steps(script, recording, options, words)), recording)
    return code


def _add_expectation(recording: Recording, store: str | None) -> Recording:
    """Return a recording with the speed-up that earlier studies let expect."""
    from torchwise import environment
    from torchwise.runtime.program.decisions import find_expected_speedup

    torch: Any = sys.modules.get("torch")
    device = "cuda" if torch is not None and torch.cuda.is_initialized() else "cpu"
    found = find_expected_speedup(environment.detect(device).hardware, store)
    return recording if found is None else replace(recording, expected_speedup=found[0], expected_from=found[1])


def _next_steps(
    script: Script, recording: Recording, options: dict[str, Any] | None, words: list[str]
) -> tuple[Step, ...]:
    """Return the command that continues: after a recording --tune, and after that --apply, or --tune for more calls."""
    from torchwise.report.document import Step

    def step(purpose: str, *flags: str) -> tuple[Step, ...]:
        return (Step(shlex.join(["torchwise", "run", *flags, *words, *script.words]), purpose),)

    if not recording.modules:
        return ()
    if options is None or not any(module.plan for module in recording.modules):
        return step("tunes these modules", "--tune")
    if any(module.speedup for module in recording.modules):
        return step("runs it by these plans", "--apply")
    if "calls" not in options:
        again = list_words({**options, "fresh": False})  # the study is kept, as it goes on from there
        return step("if far more calls follow, as in a server", "--tune", *again, "--calls", "1e6")
    return ()


def _apply(script: Script, store: str | None, words: list[str], report: Report) -> int:
    from torchwise.cli.run_report import report_plans
    from torchwise.report.recording import applied_document
    from torchwise.runtime.program.decisions import explain_eager, read_decisions, stays_as_written

    decisions = read_decisions(script.name, store)
    if not decisions:
        raise InputError(
            f"the store has no plan for {script.name}: torchwise run --tune with the same program makes them"
        )
    if stays_as_written(decisions):
        notes = [explain_eager(name, newest) for name, (newest, *_) in decisions.items() if newest.plan.is_eager]
        try:
            report.show(applied_document(script.name, [], notes))
        except (TorchwiseError, OSError) as error:  # the program runs all the same
            report.say(f"torchwise: {error}")
        script.replace_process()
        return script.run()
    from torchwise.runtime.program import StoredPlans

    process = os.getpid()
    with StoredPlans(script.name, store) as plans:
        code = script.run()
    if os.getpid() == process:
        report_plans(script, plans, store, words, report)
    return code
