"""`torchwise verify`: prove that a candidate may take the place of a reference."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from torchwise.cli.common import check_writable, interruptible
from torchwise.cli.options import Allow, Device, Seed, html_option, json_option

if TYPE_CHECKING:
    from torchwise.records.pair import PairVerdict

LIMIT_S = 60.0
"""The same as `torchwise.diagnose.pair.LIMIT_S`, whose import would load PyTorch."""
NOT_COMPARABLE = 5
"""Exit code if the answers cannot be compared. A script must not take that for "equal"."""
Side = "a function, a model, or a factory of one: package.module:name or path/file.py:name"


def verify(
    reference: Annotated[
        str, typer.Argument(help=f"The side that is right: {Side}. A factory may return inputs, too.")
    ],
    candidate: Annotated[str, typer.Argument(help=f"The side to prove: {Side}.")],
    inputs: Annotated[
        list[str] | None,
        typer.Option(
            "--input",
            metavar="TEXT",
            help='Description of one input, in the order of the arguments, such as "x: float32[n, 64] n=1..4096 '
            'in -1..1", or "p: 0.5" for a plain value. May be repeated.',
            show_default="those of the reference's factory",
        ),
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option("--inputs", help="File of descriptions (.toml, .json), or of recorded inputs (.pt)."),
    ] = None,
    allow: Allow = "same-precision",
    tolerance: Annotated[
        float | None,
        typer.Option(help="With --allow quantized or substituted: relative error of each output that is permitted."),
    ] = None,
    grad: Annotated[bool, typer.Option("--grad", help="Compare the gradients of inputs and weights, too.")] = False,
    training: Annotated[
        bool, typer.Option("--training", help="Put models into training mode, and compare gradients, too.")
    ] = False,
    stochastic: Annotated[
        bool | None,
        typer.Option(
            "--stochastic/--no-stochastic",
            help="Whether answers are random, so that distributions are compared.",
            show_default="found out",
        ),
    ] = None,
    bitwise: Annotated[bool, typer.Option("--bitwise", help="Require the reference's bits.")] = False,
    deterministic: Annotated[
        bool, typer.Option("--deterministic", help="Require the same bits in every call.")
    ] = False,
    batch_invariant: Annotated[
        bool, typer.Option("--batch-invariant", help="Require the same bits for a sample in a batch of any size.")
    ] = False,
    time: Annotated[bool, typer.Option("--time", help="Also time the candidate against the reference.")] = False,
    device: Device = "",
    seed: Seed = 0,
    python: Annotated[
        str | None,
        typer.Option(
            "--candidate-python",
            metavar="PATH",
            help="Run the candidate with this interpreter, which may have another PyTorch.",
            show_default="this interpreter",
        ),
    ] = None,
    limit: Annotated[float, typer.Option(help="Time limit in seconds for each answer of the candidate.")] = LIMIT_S,
    repro: Annotated[
        Path,
        typer.Option(
            help="Write the reproducer, a program that shows a difference, to this .py file. A file that exists is "
            "kept, and another name is taken. With --candidate-python there is none."
        ),
    ] = Path("verify_repro.py"),
    no_repro: Annotated[bool, typer.Option("--no-repro", help="Write no reproducer.")] = False,
    json: Annotated[Path | None, json_option("Write the verdict as JSON (schema torchwise.pair/1)")] = None,
    html: Annotated[Path | None, html_option("Write the verdict as a self-contained page.")] = None,
) -> None:
    """Prove that a candidate may take the place of a reference.

    The candidate runs in a process of its own. Its values, gradients and state are compared with a float64 reference on
    many inputs. Descriptions (--input) lead to edges of size, layout and value. With the inputs of a factory, or
    recorded ones, sizes and values stay those of the example, but for batches of 1, 3 and 7. Differences beyond its
    values are noted.
    If the candidate is wrong, the smallest inputs that fail are found. Inputs that it says it does not support make the
    two not comparable.

    Exit codes: 0 equal. 1 wrong. 2 invalid input. 3 the reference itself fails. 5 the answers cannot be compared. 130
    interrupted.
    """
    from rich.console import Console

    from torchwise.diagnose.pair import PairRequest, list_properties, read_input_file, run_verification
    from torchwise.diagnose.requests import make_spec
    from torchwise.errors import InputError
    from torchwise.plan import Numerics
    from torchwise.plan.workload_spec import check_form
    from torchwise.records.files import write_atomically, write_json
    from torchwise.report.pair import render_pair, render_pair_html
    from torchwise.report.progress import Progress
    from torchwise.trial import ProcessLauncher

    for target in (reference, candidate):
        check_form(target)
    if inputs and file:
        raise InputError("inputs are described with --input and in a file: use one of them")
    described, recorded = read_input_file(file) if file else (tuple(inputs or ()), "")
    mode = "training" if grad or training else "inference"
    request = PairRequest(
        make_spec(reference, None, device, mode=mode, seed=seed, tolerance=tolerance),
        candidate,
        described,
        recorded,
        Numerics.of(allow),
        list_properties(bitwise=bitwise, deterministic=deterministic, batch_invariant=batch_invariant),
        stochastic,
        training,
        time,
        limit,
        "" if no_repro or python else str(repro),
        python=python or "",
    )
    check_writable(None if no_repro else repro)
    progress = Progress()
    with interruptible(), progress:
        verdict = run_verification(request, ProcessLauncher(preloads=True), progress)
    if json:
        write_json(verdict, json)
    if html:
        write_atomically(render_pair_html(verdict), html)
    Console(highlight=False).print(render_pair(verdict))
    raise typer.Exit(exit_code(verdict))


def exit_code(verdict: PairVerdict) -> int:
    """Return 0 if the two are equal, 1 if the candidate is wrong, and 5 if that is unknown."""
    from torchwise.records import Outcome

    codes = {Outcome.PASS: 0, Outcome.FAIL: 1, Outcome.NOT_COMPARABLE: NOT_COMPARABLE}
    return codes[verdict.verdict.outcome]
