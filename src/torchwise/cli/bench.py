"""`torchwise bench`: compare Torchwise with other compilers on many targets."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from torchwise.cli.common import check_writable, keep_report, resolve_plan
from torchwise.cli.options import (
    Allow,
    Budget,
    Calls,
    Cold,
    Device,
    Effort,
    Keep,
    Seed,
    Store,
    Tolerance,
    TryPlans,
    complete,
    complete_mode,
    complete_target,
    html_option,
    json_option,
)
from torchwise.plan.workload_spec import DEFAULT_CALLS

if TYPE_CHECKING:
    from torchwise.bench import BenchRequest, Suite
    from torchwise.records.benchmark import Benchmark

LIMIT_S = 300.0
"""The same as `torchwise.bench.request.LIMIT_S`, whose import would load all of the benchmark."""
CONTENDERS = (
    *("eager", "default", "reduce-overhead", "max-autotune", "aot-inductor", "onnxruntime", "openvino"),
    *("torch-tensorrt", "thunder", "int8-dynamic", "torchwise"),
)
"""The built-in ones of `torchwise.bench.contenders`, whose import takes longer than a completion may."""


def _complete_contenders(incomplete: str) -> list[str]:
    """Complete the last of several names, those of plug-ins included."""
    from importlib.metadata import entry_points

    before, comma, last = incomplete.rpartition(",")
    names = dict.fromkeys(["all", *CONTENDERS, *(one.name for one in entry_points(group="torchwise.contenders"))])
    return [f"{before}{comma}{name}" for name in names if name.startswith(last)]


Targets = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="TARGET",
        help="A family of the zoo, a workload of it, zoo for all, or any target.",
        autocompletion=complete_target,
    ),
]
SuiteFile = Annotated[
    Path | None, typer.Option(help="TOML file with targets. Options of the command line override it.")
]
Sizes = Annotated[
    list[str] | None,
    typer.Option(
        "--size",
        metavar="SIZE",
        help="small, medium, large or extreme. May be repeated. [default: medium]",
        autocompletion=complete("small", "medium", "large", "extreme"),
    ),
]
Contenders = Annotated[
    str | None,
    typer.Option(
        help="Comma-separated names, or all.",
        show_default="eager, three modes, torchwise",
        autocompletion=_complete_contenders,
    ),
]
SearchBudget = Annotated[
    float | None,
    typer.Option(
        "--search-budget",
        metavar="SECONDS",
        help="Seconds of each search of Torchwise.",
        show_default="those of the effort",
    ),
]
NoWarm = Annotated[
    bool, typer.Option("--no-warm", help="Skip the second start that measures the first call with warm caches.")
]
Export = Annotated[
    list[Path] | None,
    typer.Option("--export", metavar="FILE", help="Write the results to a .json, .csv or .md file. May be repeated."),
]
Resume = Annotated[
    Path | None,
    typer.Option(help="Continue from this .json file, which is written after every row. It need not exist yet."),
]


def bench(
    targets: Targets = None,
    suite: SuiteFile = None,
    size: Sizes = None,
    device: Device = "",
    contenders: Contenders = None,
    mode: Annotated[
        str,
        typer.Option(
            help="inference or training (with a backward pass).",
            show_default="inference",
            autocompletion=complete_mode,
        ),
    ] = "",
    objective: Annotated[
        str,
        typer.Option(
            help="Aim: latency or throughput (calls back to back).",
            show_default="latency",
            autocompletion=complete("latency", "throughput"),
        ),
    ] = "",
    effort: Effort = "standard",
    calls: Calls = DEFAULT_CALLS,
    allow: Allow = "same-precision",
    seed: Seed = 0,
    plan: TryPlans = None,
    limit: Annotated[float, typer.Option(help="Time limit in seconds for one contender on one target.")] = LIMIT_S,
    budget: Budget = None,
    search_budget: SearchBudget = None,
    tolerance: Tolerance = None,
    no_warm: NoWarm = False,
    cold: Cold = False,
    export: Export = None,
    json: Annotated[Path | None, json_option("Write the results as JSON (schema torchwise.bench/1)")] = None,
    plots: Annotated[Path | None, typer.Option(help="Folder for plots as PNG and SVG.")] = None,
    html: Annotated[Path | None, html_option("Write the results as a self-contained page.")] = None,
    resume: Resume = None,
    keep: Keep = True,
    store: Store = None,
) -> None:
    """Compare Torchwise with other ways to compile, on many targets.

    Each contender is verified and timed against eager in its own process.

    Exit codes: 0 done, or the budget is spent. 2 invalid input, also if only one target is invalid. 4 inconclusive:
    the measurements are too uncertain for most ratios, or the budget ended before a row was finished. 130 interrupted:
    finished rows are shown, and --resume saves them.
    """
    from torchwise.plan import Numerics
    from torchwise.report import read_benchmark

    if not targets and not suite:
        _refuse_no_targets()
    files = Files(tuple(dict.fromkeys([*(export or []), *([resume] if resume else [])])), plots, json, html, resume)
    files.check()
    earlier = read_benchmark(resume) if resume and resume.exists() else None

    from torchwise.bench import BenchRequest

    chosen = _load_suite(suite, contenders, targets=targets, sizes=size, device=device, mode=mode, objective=objective)
    resolved = tuple(_resolve_targets(chosen))
    request = BenchRequest(
        resolved,
        chosen.contenders,
        chosen.device,
        chosen.mode,
        chosen.objective,
        effort,
        calls,
        Numerics.of(allow),
        seed,
        limit,
        budget,
        warm=not no_warm,
        plans=tuple(resolve_plan(name, resolved, store) for name in plan or ()),
        cold=cold,
        search_s=search_budget,
        tolerance=tolerance,
    )
    _run(request, earlier, files, (lambda done: keep_report(done, store)) if keep else None)


@dataclass(frozen=True, slots=True)
class Files:
    """The output files of a benchmark.

    Attributes:
        exports: JSON, CSV or Markdown files.
        plots: a folder for plots.
        full_json: a JSON file, with any name.
        html: an HTML page.
        resume: a JSON file to continue from, written after every row. It is one of the exports.
    """

    exports: tuple[Path, ...]
    plots: Path | None
    full_json: Path | None
    html: Path | None
    resume: Path | None

    @property
    def json(self) -> str | None:
        """The first JSON file, which holds the complete benchmark, quoted for a shell."""
        from torchwise.records.files import STDOUT

        files = [file for file in self.exports if file.suffix == ".json"]
        files += [self.full_json] if self.full_json and self.full_json != STDOUT else []
        return shlex.quote(str(files[0])) if files else None

    def check(self) -> None:
        """Refuse files that cannot be written, before minutes are spent on their contents."""
        from torchwise.errors import InputError
        from torchwise.report.bench_files import check_exportable

        if self.resume and self.resume.suffix != ".json":
            raise InputError(f"{self.resume} cannot be resumed from: only a .json file holds a whole benchmark")
        for file in self.exports:
            check_exportable(file)
            check_writable(file)
        if self.plots and self.plots.exists() and not self.plots.is_dir():
            raise InputError(f"{self.plots} is a file, but plots go to a folder")
        if self.plots:  # created with its parents if it is missing
            folders = (self.plots.absolute(), *self.plots.absolute().parents)
            check_writable(next(folder for folder in folders if folder.exists()) / "speedup.png")


def _run(
    request: BenchRequest, earlier: Benchmark | None, files: Files, keep: Callable[[Benchmark], None] | None
) -> None:
    """Run, store every row as soon as it is done, and show and write all rows, even after an interrupt.

    `keep` saves the timed rows of a run to its end in the store, where they replace those of an earlier one. It is
    None if that is unwanted.
    """
    from torchwise._torch.native import ensure_compiled
    from torchwise.bench import run_benchmark
    from torchwise.errors import StorageError
    from torchwise.records.answer import EXIT_INCONCLUSIVE
    from torchwise.report import BenchProgress, export
    from torchwise.trial import ProcessLauncher

    resume = files.resume
    progress = BenchProgress(keep=lambda benchmark: export(benchmark, resume) if resume else None)
    try:
        with progress:
            ensure_compiled(progress.stage)  # so that a plan is called as programs will that serve it
            done: Benchmark | None = run_benchmark(request, ProcessLauncher(preloads=True), progress, earlier)
        interrupted = False
    except KeyboardInterrupt:  # caught here, as Typer would end silently
        done, interrupted = progress.benchmark or earlier, True
    except StorageError:  # a row could not be stored: still show the measurements
        if progress.benchmark:
            _print(progress.benchmark, request, files)
        raise
    if done:
        _show(done, request, files)
    if done and keep and not interrupted and any(row.performance for row in done.rows):
        keep(done)
    if interrupted:
        typer.echo(f"torchwise: interrupted; {_describe_interruption(done, files)}", err=True)
        raise typer.Exit(130)
    if done and any(row.refused and row.key in _row_keys(request) for row in done.rows):
        raise typer.Exit(2)
    if done and not _is_reliable(done):
        raise typer.Exit(EXIT_INCONCLUSIVE)


def _is_reliable(done: Benchmark) -> bool:
    """Return whether the timings can be trusted. If nothing was timed, the rows say why."""
    from torchwise.records.answer import Reliability
    from torchwise.records.scale import trust_of

    is_timed = any(row.performance for row in done.rows)
    return not is_timed or trust_of(done).reliability is not Reliability.UNUSABLE


def _describe_interruption(done: Benchmark | None, files: Files) -> str:
    """Return a message about the stored rows of an interrupted run, and how to continue it."""
    if not done:
        return "no row was finished"
    if files.resume:
        return f"finished rows are saved, and the same command continues from {files.resume}"
    if files.json:
        return f"finished rows are saved, and --resume {files.json} continues the run"
    return "finished rows are shown, but not saved: --resume FILE.json saves them, and continues from there"


def _print(done: Benchmark, request: BenchRequest, files: Files) -> None:
    from rich.console import Console

    from torchwise.report import render_benchmark

    Console(highlight=False).print(render_benchmark(done, _next(done, request, files)))


def _show(done: Benchmark, request: BenchRequest, files: Files) -> None:
    from torchwise.records.files import write_atomically, write_json
    from torchwise.records.scale import with_trust
    from torchwise.report import export, render_bench_html, write_plots

    _print(done, request, files)  # first, so that the table survives a full disk
    for file in files.exports:
        export(done, file)
    if files.full_json:
        write_json(with_trust(done), files.full_json)
    if files.plots:
        write_plots(done, files.plots)
    if files.html:
        write_atomically(render_bench_html(done), files.html)


def _next(done: Benchmark, request: BenchRequest, files: Files) -> list[str]:
    """Return useful next commands, the most useful first."""
    commands = []
    requested = _row_keys(request)
    if left := len(requested - {row.key for row in done.rows}):
        resumed = f"the same command with --resume {files.json or 'bench.json'}"
        again = "the same command again" if files.resume else resumed
        commands.append(f"{again}: {left} of {len(requested)} rows are not done")
    if any(row.performance for row in done.rows):  # otherwise there is nothing to compare another benchmark with
        after = "" if files.json else "  (after --export)"
        commands.append(f"torchwise compare {files.json or 'BEFORE.json'} AFTER.json{after}")
    return commands


def _row_keys(request: BenchRequest) -> set[tuple[str, str, str, str, str]]:
    """Return the keys of the requested rows."""
    from torchwise.bench.contenders import find

    settings = (request.device, request.mode, request.objective)
    return {(target, *settings, contender.name) for target in request.targets for contender in find(request.contenders)}


def _load_suite(file: Path | None, contenders: str | None, **options: list[str] | str | None) -> Suite:
    """Return the file's suite, or an empty one, with the command line's values instead of its own."""
    from dataclasses import replace

    from torchwise.bench import Suite, read_suite
    from torchwise.bench.contenders import DEFAULT
    from torchwise.environment import default_device
    from torchwise.errors import InputError

    suite = read_suite(file) if file else Suite(())
    names = tuple(name.strip() for name in (contenders or "").split(",") if name.strip())
    if contenders is not None and not names:
        raise InputError(
            f"contenders are {contenders!r}, but must be at least one name: leave the option out for the default"
        )
    given: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in options.items() if value
    }
    suite = replace(suite, **given)
    return replace(suite, device=suite.device or default_device(), contenders=names or suite.contenders or DEFAULT)


def _resolve_targets(suite: Suite) -> list[str]:
    from torchwise.bench import resolve_targets
    from torchwise.zoo.registry import load_zoo

    if "zoo" in suite.targets:
        for reason in load_zoo().explain_rest():
            typer.echo(f"torchwise: {reason}", err=True)
    return resolve_targets(suite.targets, suite.sizes)


def _refuse_no_targets() -> None:
    """Refuse a benchmark without targets."""
    from torchwise.errors import InputError
    from torchwise.zoo.registry import load_zoo

    zoo = load_zoo()
    problem = (
        f"no target is given, but a benchmark needs some: a family of the zoo ({', '.join(zoo.families)}), zoo for all "
        "of them, package.module:factory, path/file.py:factory, or --suite FILE"
    )
    raise InputError("; ".join([problem, *zoo.explain_rest()]))
