"""Facts, sentences and commands that reports share: the machine, dates, checks, throughput, and what to type next."""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable
from dataclasses import asdict, fields
from datetime import UTC, datetime
from typing import Any

from torchwise.environment import Environment
from torchwise.plan import Numerics
from torchwise.plan.workload_spec import LIVE, WorkloadSpec
from torchwise.records import Inspection, Interval, Outcome, StepWork, Study, Trial, Verdict
from torchwise.records import format as show
from torchwise.records.analysis import Analysis
from torchwise.records.answer import Answer, exceeds
from torchwise.report import document as doc

OUTCOME_TONES = {Outcome.PASS: doc.Tone.GOOD, Outcome.FAIL: doc.Tone.BAD, Outcome.NOT_COMPARABLE: doc.Tone.WARNING}


def when(seconds: float) -> str:
    """Return a time as "2026-01-31 09:05 UTC", or an empty string if unknown."""
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M} UTC" if seconds > 0 else ""


def name_report(kind: str, created_at: float) -> str:
    """Return the line above the title of a page: the kind of report, and its date if that is known."""
    return ", ".join(filter(None, (f"Torchwise {kind}", when(created_at))))


def machine(here: Environment) -> list[doc.Fact]:
    """Return a machine and its software, as pairs of a name and a value."""
    limit = "" if here.cpu_limit is None else f", limited to {here.cpu_limit:g}"
    facts = [
        ("GPU", here.gpu),
        ("GPU memory", show.size(here.gpu_memory_mib * 2**20) if here.gpu_memory_mib else None),
        ("Compute capability", here.gpu_capability),
        ("Driver", here.driver),
        ("CUDA", here.cuda),
        ("CPU", f"{here.cpu}, {show.pluralize(here.cpus, 'logical CPU')} usable{limit}"),
        ("System", here.system),
        ("PyTorch", here.torch),
        ("Triton", here.triton),
        ("Other compilers", here.compilers),
        ("Python", here.python),
        ("Host", here.hostname),
        ("Fingerprint", here.fingerprint),
    ]
    return [(name, show.one_line(value)) for name, value in facts if value]


def environment_section(here: Environment) -> doc.Section:
    """Return the section with a machine and its software."""
    return doc.Section("Environment", (doc.Facts(tuple(machine(here))),))


def place(here: Environment, *more: str) -> str:
    """Return the device, the version of torch and further facts, in a line."""
    return show.one_line(", ".join(filter(None, (here.gpu or here.cpu, f"torch {here.torch}", *more))))


def describe_request(spec: WorkloadSpec, subject: str, *more: str) -> doc.Text:
    """Return a line with the subject of a report, the request, and more of it."""
    scale = f"{show.pluralize(spec.calls, 'call')} and {show.pluralize(spec.restarts, 'start')}"
    aim = f"for {spec.objective}"
    if spec.latency_limit is not None:
        aim += f" within {show.seconds(spec.latency_limit)}"
    aim += f" at batch {spec.batch.size}" if spec.batch else ""
    sizes = () if spec.sizes == "as-given" else (f"{spec.sizes} sizes",)
    required = (f"only {' and '.join(spec.require)}",) if spec.require else ()
    words = (subject, f"{spec.mode} on {spec.device}", aim, *sizes, *required, scale, *more, *_name_rule(spec))
    return doc.Text(show.one_line(", ".join(words)), tone=doc.Tone.MUTED)


def _name_rule(spec: WorkloadSpec) -> tuple[str, ...]:
    """Name the rule by which other operators and numbers of fewer bits are judged, if the request permits any."""
    if not spec.permits_change:
        return ()
    if spec.tolerance is None:
        return ("changes judged by the distribution of outputs",)
    allowed = f"{100 * spec.tolerance:g} %"
    by = f"{spec.metric}, of which they may lose {allowed}" if spec.metric else f"the error of outputs, up to {allowed}"
    return (f"changes judged by {by}",)


def describe_scope(spec: WorkloadSpec, here: Environment) -> doc.Text:
    """Return a line with the target and the machine that a result holds for."""
    return doc.Text(f"holds for {show.one_line(spec.target)} on {place(here)}", tone=doc.Tone.MUTED)


def check_table(about: str, verdict: Verdict | None) -> tuple[doc.Table, ...]:
    """Return a table of a verdict's checks, or nothing if there are none."""
    if verdict is None or not verdict.checks:
        return ()
    columns = (
        doc.Column("check"),
        doc.Column("outcome"),
        *doc.figure_columns("error", "noise floor"),
        doc.Column("detail", is_wrapped=True, medium=doc.Medium.PAGE),
    )
    rows = tuple(
        doc.Row(
            (
                show.one_line(one.name),
                doc.Cell(one.outcome.value, OUTCOME_TONES[one.outcome]),
                show.relative_error(one.error),
                show.relative_error(one.floor),
                one.detail,
            )
        )
        for one in verdict.checks
    )
    return (doc.Table(f"Checks of {about}", columns, rows),)


def hot_and_cold(hot: Interval | None, cold: Interval) -> list[str]:
    """Return the speed-ups with hot and cold processor caches, and a warning if the gain may be lost."""
    figures = f"with hot processor caches {show.speedup(hot)} eager's speed, with cold caches {show.speedup(cold)}"
    answer = exceeds(cold)
    if hot is None or hot.low <= 1 or answer is Answer.YES:
        return [figures]
    if answer is Answer.INCONCLUSIVE:
        return [figures, "With cold caches it may be no faster than eager: the measurements cannot tell."]
    return [figures, f"With cold caches it is {'slower' if cold.high < 1 else 'no faster'} than eager."]


def break_even(calls: Interval | float | None) -> str:
    """Return the number of calls after which a plan has saved more time than it took to compile, as text."""
    mid = calls.mid if isinstance(calls, Interval) else calls
    if mid is None:
        return show.NONE
    if math.isinf(mid):
        return "never"
    return "the first call" if mid < 1 else f"{show.count(mid)} calls"


def notes(record: Study | Analysis) -> list[str]:
    """Return the notes of the inspection. The record's trust has the reliability of times."""
    return [show.one_line(note) for note in dict.fromkeys(record.inspection.notes)]


def format_time_by_kind(inspection: Inspection) -> str:
    """Return the share of each kind of operation in an eager call, such as "convolutions 84 %, matrix products 1 %"."""
    names = {"gemm": "matrix products", "conv": "convolutions", "attention": "fused attention"}
    names["launch"] = "no kernel running"
    return ", ".join(f"{names.get(name, name)} {show.percent(part)}" for name, part in inspection.time_by_kind.items())


def drop_empty(facts: list[doc.Fact]) -> tuple[doc.Fact, ...]:
    """Return the facts that have a value, each on one line."""
    return tuple((name, show.one_line(value)) for name, value in facts if value and value != show.NONE)


def throughput(work: StepWork, seconds: float) -> str:
    """Return such as "5,210 samples/s, 667,000 tokens/s, 31 % of the peak of 210 TFLOP/s".

    The share is MFU as for PaLM (https://arxiv.org/abs/2204.02311, appendix B): the model's necessary operations over
    those that the hardware could do in that time. Additional operations of a plan do not count. The peak here is
    measured, and not the data sheet's.
    """
    words = [f"{show.count(work.samples / seconds)} samples/s"]
    if work.tokens is not None:
        words.append(f"{show.count(work.tokens / seconds)} tokens/s")
    if work.flops and work.peak_flops:
        share = show.percent(work.flops / seconds / work.peak_flops)
        words.append(f"{share} of the peak of {work.peak_flops / 1e12:.3g} TFLOP/s")
    return ", ".join(words)


def describe_loss(trial: Trial) -> str:
    """Say from where to where the loss went in a trial, or return "" if it is no training step, or was not trained."""
    checks = trial.verdict.checks if trial.verdict else ()
    return next(filter(None, (check.describe_loss() for check in checks)), "")


OPTION_COMMANDS = {
    "objective": ("tune", "analyze"),
    "calls": ("tune", "analyze", "explain"),
    "restarts": ("tune", "analyze"),
    "seed": ("tune", "analyze", "bisect"),
    "memory_limit": ("tune",),
    "latency_limit": ("tune",),
    "batch": ("tune",),
    "sizes": ("tune",),
    "tolerance": ("tune",),
    "metric": ("tune",),
    "require": ("tune",),
}
"""Commands that have an option of this name. All commands have the other options."""
_UNITS: dict[str, Callable[[float], str]] = {
    "memory_limit": lambda value: f"{value / 2**30:.6g}",  # the command line counts in GiB
    "latency_limit": lambda value: f"{value * 1e3:.6g}ms",
}
BREAK = " \\"
"""End of a line whose command continues on the next line."""


def is_live(spec: WorkloadSpec) -> bool:
    """Whether the workload exists only in a Python program."""
    return spec.target.startswith(LIVE)


def options(spec: WorkloadSpec, allow: str = Numerics.SAME_PRECISION) -> dict[str, Any]:
    """Return the options of the request that are not defaults, by the parameter names of `torchwise.tune`."""
    defaults = {field.name: field.default for field in fields(spec)} | {"allow": Numerics.SAME_PRECISION}
    defaults |= {"target": spec.target, "device": None}  # always named, as its default depends on the machine
    values = {**asdict(spec), "allow": str(allow), "require": tuple(map(str, spec.require))}
    del values["varying"]  # which the search finds
    is_found = spec.batch is not None and spec.objective == "throughput" and spec.latency_limit is None
    values["batch"] = "best" if is_found else None
    return {name: value for name, value in values.items() if value != defaults[name]}


def command_line(
    name: str, spec: WorkloadSpec, *more: str, allow: str = Numerics.SAME_PRECISION, store: str | None = None
) -> str:
    """Return `torchwise NAME TARGET …` with the options of the request that are not defaults, and the store."""
    words = []
    for option, value in options(spec, allow).items():
        if name in OPTION_COMMANDS.get(option, (name,)):
            several = value if isinstance(value, tuple) else (value,)
            texts = [_UNITS[option](each) if option in _UNITS else str(each) for each in several]
            words += [word for text in texts for word in (f"--{option.replace('_', '-')}", text)]
    words += (*more, *(() if store is None else ("--store", store)))
    # A target that looks like an option goes last, after the mark that ends the options.
    ordered = [*words, "--", spec.target] if spec.target.startswith("-") else [spec.target, *words]
    return shlex.join(["torchwise", name, *ordered])


def wrap_command(command: str, width: int) -> list[str]:
    """Return a shell command as lines that fit `width` if its words allow it. Pasted, they are one command."""
    if len(command) <= width or not command.startswith("torchwise "):
        return [command]
    units: list[str] = []
    for word in map(shlex.quote, shlex.split(command)):
        # An option stays with its value.
        if units and units[-1].startswith("--") and " " not in units[-1] and not word.startswith("-"):
            units[-1] += f" {word}"
        else:
            units.append(word)
    lines = [""]
    for unit in units:
        if len(lines[-1]) + 1 + len(unit) + len(BREAK) > width and lines[-1]:
            lines.append("   ")
        lines[-1] += f" {unit}" if lines[-1] else unit
    return [line + BREAK for line in lines[:-1]] + lines[-1:]
