"""A recording of a program: where its time goes, module by module, and what plans save."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torchwise.records import format as show
from torchwise.records.answer import Answer
from torchwise.records.missed_calls import MissedKind
from torchwise.records.recording import RecordedModule, Recording
from torchwise.report import document as doc

EXAMPLE = 1.5
"""The speed-up for which a table without decisions gives the saving, if none is to be expected."""
MAX_INPUTS = 3
MAX_ROWS = 12


def recording_document(recording: Recording, commands: tuple[doc.Step, ...] = ()) -> doc.Document:
    """Return the report of a recording, with commands that continue from it."""
    blocks: list[doc.Block] = [doc.Text(sentence(recording), tone=doc.Tone.STRONG)]
    if recording.modules:
        blocks.append(_table(recording))
    if recording.modules and not _is_tuned(recording):
        blocks.append(doc.Text(_explain_saving(recording), "Note: ", doc.Tone.MUTED))
    blocks += [doc.Text(show.one_line(note), "Note: ", doc.Tone.MUTED) for note in recording.notes]
    if commands:
        blocks.append(doc.Section("Next", (doc.Commands(commands),)))
    return doc.Document(recording.program, tuple(blocks), brand="Torchwise program")


def sentence(recording: Recording) -> str:
    """Summarize a recording in a sentence."""
    if not recording.modules:
        return f"{recording.program} called no module and no compiled function."
    total = min(sum(module.seconds for module in recording.modules), recording.seconds)
    share = show.percent(total / recording.seconds if recording.seconds else None)
    text = (
        f"{recording.program} ran for {show.seconds(recording.seconds)}, {share} of it in "
        f"{show.pluralize(len(recording.modules), 'module')}"
    )
    tuned = [module for module in recording.modules if module.plan is not None]
    if not tuned:
        return f"{text}."
    saved = sum(module.net_saving_s for module in tuned)
    if not any(module.speedup for module in tuned):
        return f"{text}. No plan surely pays: {'the notes say' if len(tuned) > 1 else 'the note says'} why."
    return f"{text}. The plans save about {show.seconds(saved)} over the expected calls, compiling included."


def _is_tuned(recording: Recording) -> bool:
    return any(module.plan is not None for module in recording.modules)


def _expected_speedup(recording: Recording) -> float:
    return recording.expected_speedup or EXAMPLE


def _explain_saving(recording: Recording) -> str:
    """Say where the speed-up for the expected saving comes from."""
    speedup = f"{_expected_speedup(recording):.3g}×"
    if recording.expected_speedup is None:
        return f"{speedup} is an example: too few models were tuned on this machine to expect anything of others"
    models = show.pluralize(recording.expected_from, "model")
    return f"{speedup} is the geometric mean of {models} tuned on this machine: another one may gain more or less"


def _table(recording: Recording) -> doc.Table:
    is_tuned = _is_tuned(recording)
    tuned = (doc.speedup_column(), *doc.figure_columns("expected calls", "saves"))
    columns = (
        *doc.text_columns("module"),
        *doc.figure_columns("share", "calls", "a call"),
        *doc.text_columns("inputs", *["plan"] * is_tuned),
        *(tuned if is_tuned else doc.figure_columns(f"saves at {_expected_speedup(recording):.3g}×")),
    )
    rows = tuple(_row(recording, module, is_tuned=is_tuned) for module in recording.modules)
    return doc.Table("Modules", columns, rows, limit=MAX_ROWS, more="modules")


def _row(recording: Recording, module: RecordedModule, *, is_tuned: bool) -> doc.Row:
    average = module.seconds / module.calls if module.calls and module.seconds else None
    figures = (show.percent(recording.share(module)), show.count(module.calls), show.seconds(average))
    last: tuple[str, ...] = (show.seconds(module.saved_s(_expected_speedup(recording))),)
    if is_tuned:
        last = (_plan(module), *([show.NONE] * 3))
    if module.speedup is not None:
        saved = show.seconds(module.net_saving_s)
        last = (_plan(module), show.speedup(module.speedup), show.count(module.expected_calls), saved)
    notes = tuple(map(show.one_line, module.notes))
    return doc.Row((module.name, *figures, _inputs(module), *last), name=module.name, notes=notes)


def _plan(module: RecordedModule) -> str:
    if module.plan is None:
        return show.NONE
    return "inconclusive: eager" if module.answer is Answer.INCONCLUSIVE else module.plan


def _inputs(module: RecordedModule) -> str:
    texts = []
    for one in module.inputs[:MAX_INPUTS]:
        more = [one.mode] * (one.mode == "training") + [f"autocast {one.autocast}"] * bool(one.autocast)
        kind = f" ({', '.join(more)})" if more else ""
        texts.append(f"{one.inputs}{kind} × {show.count(one.calls)}")
    rest = len(module.inputs) - MAX_INPUTS
    return "; ".join([*texts, *([f"{show.pluralize(rest, 'further kind')}"] if rest > 0 else [])]) or show.NONE


def applied_document(
    program: str,
    placed: Iterable[tuple[str, str | None, int, Mapping[Any, int]]],
    notes: Iterable[str],
    missed: Sequence[tuple[str, MissedKind]] = (),
    seconds: float = 0.0,
    commands: tuple[doc.Step, ...] = (),
) -> doc.Document:
    """Return the report of a run by stored plans.

    Args:
        program: its name.
        placed: for each module with a plan its name, the plan, the calls that the plan answered, and the calls that the
            original answered, by reason.
        notes: why other modules ran as written.
        missed: the calls whose inputs no plan was verified on, by kinds, each with the name of its module.
        seconds: wall-clock time of the run.
        commands: commands that continue from it.
    """
    rows = []
    for name, plan, optimized, original in placed:
        reasons = "; ".join(f"{count} × {reason}" for reason, count in original.items())
        rows.append(doc.Row((name, plan, sum(original.values()), reasons or None, optimized)))
    columns = (*doc.text_columns("module", "plan"), *doc.figure_columns("as written"), *doc.text_columns("because"))
    blocks: tuple[doc.Block, ...] = (
        *([doc.Table("Calls", (*columns, *doc.figure_columns("by the plan")), tuple(rows))] if rows else []),
        *([_missed_table(missed, seconds)] if missed else []),
        *(doc.Text(show.one_line(note), "Note: ", doc.Tone.MUTED) for note in notes),
        *([doc.Section("Next", (doc.Commands(commands),))] if commands else []),
    )
    return doc.Document(program, blocks, brand="Torchwise program")


def _missed_table(missed: Sequence[tuple[str, MissedKind]], seconds: float) -> doc.Table:
    columns = (*doc.text_columns("module", "inputs"), *doc.figure_columns("calls", "share"), *doc.text_columns("kept"))
    rows = []
    for name, kind in missed:
        more = [kind.mode] * (kind.mode == "training") + [f"autocast {kind.autocast}"] * bool(kind.autocast)
        inputs = f"{kind.inputs} ({', '.join(more)})" if more else kind.inputs
        share = show.percent(min(kind.seconds / seconds, 1.0) if seconds else None)
        kept = {"real": "as they were", "stand-in": "their statistics", "none": "no"}[kind.kept]
        rows.append(doc.Row((name, inputs, show.count(round(kind.calls)), share, kept)))
    return doc.Table("Inputs that no plan was tuned for", columns, tuple(rows), limit=MAX_ROWS, more="kinds of inputs")
