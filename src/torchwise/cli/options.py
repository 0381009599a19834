"""Arguments and options that several commands share."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from torchwise.cli.common import check_writable
from torchwise.errors import to_count
from torchwise.plan.numerics import Numerics
from torchwise.plan.workload_spec import DEFAULT_TOLERANCE

if TYPE_CHECKING:
    from torchwise.store.schema import StudySummary


def complete(*values: str) -> Callable[[str], list[str]]:
    """Return a function for the shell that completes one of these values."""
    return lambda incomplete: [value for value in values if value.startswith(incomplete)]


def complete_target(incomplete: str) -> list[str]:
    """Complete the name of a reference workload, or the beginning of it."""
    from torchwise.zoo import list_workloads

    return [name for name in (f"zoo:{entry.name}" for entry in list_workloads()) if name.startswith(incomplete)]


def complete_study(incomplete: str) -> list[tuple[str, str]]:
    """Complete `latest` or the number of a study in the default store, with its target as the help."""
    found = [("latest", "decided last"), *((str(study.id), study.target) for study in _list_stored())]
    return [pair for pair in found if pair[0].startswith(incomplete)]


def complete_number(incomplete: str) -> list[tuple[str, str]]:
    """Complete the number of a study in the default store, with its target as the help."""
    return [pair for pair in complete_study(incomplete) if pair[0] != "latest"]


def complete_stored_target(incomplete: str) -> list[str]:
    """Complete the name of a target that has a study in the default store."""
    found = dict.fromkeys(study.target for study in _list_stored())
    return [target for target in found if target.startswith(incomplete)]


def complete_plan(incomplete: str) -> list[tuple[str, str]]:
    """Complete a name of a plan that `resolve_choice` reads, but JSON: eager, a mode, or a study."""
    from torchwise.plan.rules import list_allowed

    modes = [("eager", "as written"), *((mode, "a mode of torch.compile") for mode in list_allowed("mode"))]
    return [*(pair for pair in modes if pair[0].startswith(incomplete)), *complete_study(incomplete)]


def _list_stored() -> list[StudySummary]:
    """List the newest studies of the default store. There are none if it cannot be read."""
    from torchwise.errors import StorageError
    from torchwise.store import open_storage

    with contextlib.suppress(StorageError), open_storage(existing=True) as storage:
        return storage.list_studies(limit=50)
    return []


Target = Annotated[
    str,
    typer.Argument(
        help="zoo:family.name[@size], a model of timm:, torchvision:, hf: or diffusers:, package.module:factory or "
        "path/file.py:factory",
        autocompletion=complete_target,
    ),
]
Study = Annotated[
    str,
    typer.Argument(
        help="Number of a stored study, `latest` (decided last), or a .json file.", autocompletion=complete_study
    ),
]


def read_count(text: str | int) -> int:
    """Read a whole number, which may be written as 1e6."""
    found = to_count(text)
    if not isinstance(found, int):
        raise typer.BadParameter(f"{text!r} is no whole number, such as 1000 or 1e6")
    return found


def count_option(name: str, help: str, show_default: bool | str = True) -> Any:
    """Return an option of this name for a whole number."""
    return typer.Option(name, help=help, parser=read_count, metavar="N", show_default=show_default)


Calls = Annotated[int, count_option("--calls", "Expected number of calls over the lifetime, such as 1e6.")]
Restarts = Annotated[
    int, count_option("--restarts", "Expected process starts over the lifetime. Each takes the time of a warm compile.")
]
Allow = Annotated[
    str,
    typer.Option(
        help="Permitted numerics: exact, same-precision, lower-precision, quantized (fewer bits) or substituted.",
        autocompletion=complete(*Numerics),
    ),
]
Tolerance = Annotated[
    float | None,
    typer.Option(
        help="With --allow quantized or substituted: relative error that numbers of fewer bits and other operators may "
        "cause, or share of the metric that may be lost.",
        show_default=f"{DEFAULT_TOLERANCE:g}",
    ),
]
Metric = Annotated[
    str | None,
    typer.Option(
        "--metric",
        metavar="FUNCTION",
        help="Judge them by module:function or file.py:function, which takes the model and returns its quality. Or by "
        "distribution, without --tolerance: the outputs of a model that draws random numbers keep theirs.",
        show_default="by the error",
    ),
]
Require = Annotated[
    list[str] | None,
    typer.Option(
        "--require",
        metavar="PROPERTY",
        help="Choose only a plan with this property of its answers' bits: deterministic (equal calls give equal bits, "
        "also in another process), batch-invariant (a sample's answer depends neither on the other samples nor on "
        "their number) or bitwise (the original model's bits). Several are possible. The decision says what they cost.",
        show_default="none",
        autocompletion=complete("deterministic", "batch-invariant", "bitwise"),
    ),
]
Effort = Annotated[
    str, typer.Option(help="quick, standard or thorough.", autocompletion=complete("quick", "standard", "thorough"))
]
Wait = Annotated[
    bool, typer.Option("--wait", help="Do not count time in which another Torchwise process has the device.")
]
Sizes = Annotated[
    str,
    typer.Option(
        help="Sizes of the inputs to come: as-given, varying (no plan is chosen that holds for the given sizes alone), "
        "or fixed (no plan for dynamic shapes is tried).",
        autocompletion=complete("as-given", "varying", "fixed"),
    ),
]
complete_mode = complete("inference", "training")
Mode = Annotated[str, typer.Option(help="inference or training (with a backward pass).", autocompletion=complete_mode)]
Device = Annotated[
    str,
    typer.Option(help="cpu or cuda.", show_default="cuda where there is one", autocompletion=complete("cpu", "cuda")),
]
complete_objective = complete("latency", "throughput", "memory")
Objective = Annotated[
    str,
    typer.Option(help="Aim: latency, throughput (calls back to back) or memory.", autocompletion=complete_objective),
]
Seed = Annotated[int, typer.Option(help="Random seed of the weights and inputs that the factory makes.")]
Cold = Annotated[
    bool, typer.Option("--cold", help="Also time with cold processor caches, which are emptied before each call.")
]


def budget_option(default: str) -> Any:
    """Return the option `--budget`, whose default is told in words."""
    about = "Time budget in seconds for the whole command, also for waiting until the device is free. Work that takes "
    return typer.Option(help=f"{about}longer is ended, and results so far are kept.", show_default=default)


Budget = Annotated[float | None, budget_option("none")]
Launcher = Annotated[
    str,
    typer.Option(
        help="process (this machine) or ray (one device of a Ray cluster).", autocompletion=complete("process", "ray")
    ),
]
Address = Annotated[
    str | None,
    typer.Option(
        help="Address of the Ray cluster: HOST:PORT, ray://HOST:PORT or auto.",
        show_default="RAY_ADDRESS, or this machine",
    ),
]
Store = Annotated[
    str | None, typer.Option(help="URL or file of the store.", show_default="in the user's data directory")
]
Keep = Annotated[
    bool, typer.Option("--keep/--no-keep", help="Save the result in the store, where the dashboard finds it.")
]
CompileTimeout = Annotated[
    float | None,
    typer.Option(
        help="Seconds that one candidate may compile, such as 60. The others are still tried.",
        show_default="all of a trial's limit: 120, 600 or 1800 by effort",
    ),
]
Iterations = Annotated[
    int | None,
    typer.Option(
        help="How many times a candidate and eager are timed in each process, from 5 to 400.",
        show_default="until the interval is tight",
    ),
]
Workers = Annotated[
    int,
    typer.Option(
        help="How many plans are tried at once at the most, on a GPU: compiles overlap, each on cores of its own, and "
        "whoever measures has the device alone.",
    ),
]
Fresh = Annotated[
    bool,
    typer.Option("--fresh", help="Delete the stored study and measure again. Targets of one structure share a study."),
]
FullGraph = Annotated[
    bool, typer.Option("--fullgraph", help="Fail if PyTorch cannot capture the model as one graph, and say where.")
]
PLAN_HELP = (
    "A plan's words, such as 'inductor + freezing', a mode of torch.compile, a plan as JSON, the id of a decided plan, "
    "or a study's number or latest."
)
TryPlans = Annotated[
    list[str] | None,
    typer.Option(
        "--plan",
        metavar="PLAN",
        help=f"Plan to try instead of searching: {PLAN_HELP} May be repeated.",
        autocompletion=complete_plan,
    ),
]
LockFile = Annotated[Path, typer.Option("--lock", help="The lock file.")]


def html_option(help: str) -> Any:
    """Return the option `--html FILE`, which refuses a file that cannot be written."""
    return typer.Option("--html", help=help, callback=_checked)


def json_option(help: str) -> Any:
    """Return the option `--json FILE`, which refuses a file that cannot be written.

    With -, JSON goes to standard output, and all messages of the command go to standard error.
    """
    return typer.Option("--json", help=f"{help}. With -, it goes to standard output.", callback=_stream)


def former_option(former: str, now: str) -> Any:
    """Return an option by its former name. It is hidden, and says by which name it goes now."""

    def note(value: Any) -> Any:
        if value is not None:
            note_former_name(former, now)
        return value

    return typer.Option(former, hidden=True, callback=note)


def note_former_name(former: str, now: str) -> None:
    """Print a note that a command or an option has another name now."""
    typer.echo(f"torchwise: {former} is called {now} now", err=True)


def _checked(file: Path | None) -> Path | None:
    check_writable(file)
    return file


def _stream(ctx: typer.Context, file: Path | None) -> Path | None:
    if file != Path("-"):
        return _checked(file)
    from torchwise.records.files import STDOUT, reserve_stdout

    ctx.with_resource(reserve_stdout())  # otherwise no program could read the output
    return STDOUT
