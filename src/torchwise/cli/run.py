"""`torchwise run`: find the modules that matter in a program as it is, tune them, and run it by their plans."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from torchwise.cli import options as opt
from torchwise.errors import InputError
from torchwise.plan.workload_spec import DEFAULT_CALLS

if TYPE_CHECKING:
    from torchwise.records.recording import Recording
    from torchwise.report.document import Document, Step
    from torchwise.runtime.program.script import Script

MODULE_OPTIONS = ("-m", "--module")
NAMES_PROGRAM = {"allow_interspersed_args": False}


class RunCommand(TyperCommand):
    """A command whose arguments after `-m MODULE` belong to the module, as those after a script do."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the command's own options."""
        at = next((place for place, arg in enumerate(args) if arg in MODULE_OPTIONS), None)
        if at is not None and not self.make_parser(ctx).parse_args(args[:at])[1]:
            args = [*args[: at + 2], "--", *args[at + 2 :]]
        found: list[str] = super().parse_args(ctx, args)
        return found


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
    apply: Annotated[bool, typer.Option("--apply", help="Run the program by the plans of an earlier --tune.")] = False,
    budget: Annotated[
        float | None,
        typer.Option(help="Time budget in seconds of the search for all modules.", show_default="by effort, for each"),
    ] = None,
    compile_timeout: opt.CompileTimeout = None,
    calls: opt.Calls = DEFAULT_CALLS,
    restarts: opt.Restarts = 1,
    allow: opt.Allow = "same-precision",
    effort: opt.Effort = "standard",
    store: opt.Store = None,
    json: Annotated[Path | None, opt.json_option("Write the recording as JSON (schema torchwise.recording/1)")] = None,
    html: Annotated[Path | None, opt.html_option("Write the recording as a self-contained page.")] = None,
) -> None:
    """Run a program unchanged, and show which modules take its time. --tune tunes them, --apply uses the plans.

    The exit code is the program's own, and 2 for invalid input. Reports go to standard error.
    """
    if tune and apply:
        raise InputError("--tune and --apply are given, but a run is either recorded or uses plans: give one of them")
    from torchwise.runtime.program.script import Script

    script = _find_script(Script, program or [], module)
    if apply:
        raise SystemExit(_apply(script, store))
    options: dict[str, Any] = {
        "calls": calls,
        "restarts": restarts,
        "allow": allow,
        "effort": effort,
        "budget": budget,
        "compile_timeout": compile_timeout,
        "store": store,
    }
    raise SystemExit(_record(script, options if tune else None, store, json, html))


def _find_script(kind: type[Script], program: list[str], module: str | None) -> Script:
    if module is not None:
        return kind(module, program, is_module=True)
    if not program:
        raise InputError("no program is given: name a script, or a module with -m MODULE")
    return kind(program[0], program[1:], is_module=False)


def _record(
    script: Script, options: dict[str, Any] | None, store: str | None, json: Path | None, html: Path | None
) -> int:
    from torchwise.records.files import write_atomically, write_json
    from torchwise.report.html import render_page
    from torchwise.report.recording import recording_document
    from torchwise.runtime.program import CallRecorder
    from torchwise.runtime.program.tuning import check_options, tune_recorded

    if options is not None:
        check_options(options)  # type: ignore[arg-type]
    process, recorder = os.getpid(), CallRecorder(holds=options is not None)
    with recorder:
        code = script.run()
    if os.getpid() != process:  # a fork of the program that came to its end
        return code
    if options is not None and code == 0:
        recording = tune_recorded(recorder, script.name, options, places=False).record  # type: ignore[arg-type]
    else:
        recording = recorder.to_record(script.name)
    document = recording_document(
        recording, _next_steps(script, recording, store, tuned=options is not None and code == 0)
    )
    _show(document)
    if json:
        write_json(recording, json)
    if html:
        write_atomically(render_page(document), html)
    return code


def _next_steps(script: Script, recording: Recording, store: str | None, *, tuned: bool) -> tuple[Step, ...]:
    from torchwise.report.document import Step

    if tuned and not any(module.speedup for module in recording.modules):
        return ()
    flag, purpose = ("--apply", "run it by these plans") if tuned else ("--tune", "tune these modules")
    words = ["torchwise", "run", flag, *(["--store", store] if store else []), *script.words]
    return (Step(shlex.join(words), purpose),) if recording.modules else ()


def _apply(script: Script, store: str | None) -> int:
    from torchwise.report import document as doc
    from torchwise.runtime.program import StoredPlans

    process, plans = os.getpid(), StoredPlans(script.name, store)
    if not plans.count:
        raise InputError(
            f"the store has no plan for {script.name}: torchwise run --tune with the same program makes them"
        )
    with plans:
        code = script.run()
    if os.getpid() != process:
        return code
    rows = []
    for name, component in plans.placed:
        found = component.statistics
        reasons = "; ".join(f"{count} × {reason}" for reason, count in found.original.items())
        rows.append(doc.Row((name, found.plan, sum(found.original.values()), reasons or None, found.optimized)))
    columns = (*doc.text_columns("module", "plan"), *doc.figure_columns("as written"), *doc.text_columns("because"))
    blocks: tuple[doc.Block, ...] = (
        *([doc.Table("Calls", (*columns, *doc.figure_columns("by the plan")), tuple(rows))] if rows else []),
        *(doc.Text(note, "Note: ", doc.Tone.MUTED) for note in plans.notes),
    )
    _show(doc.Document(script.name, blocks, brand="Torchwise program"))
    return code


def _show(document: Document) -> None:
    from rich.console import Console

    from torchwise.report.terminal import render_terminal

    sys.stdout.flush()
    Console(stderr=True).print(render_terminal(document))
