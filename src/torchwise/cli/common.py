"""Functions that several commands share: files that are checked first, Ctrl-C, uncut help, and studies by name."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from typer.core import TyperGroup

from torchwise.errors import InputError

if TYPE_CHECKING:
    from torchwise.plan import Plan
    from torchwise.records import Decision, Study
    from torchwise.store import Report

MIN_ID = 6
"""Digits of the id of a plan from which they name it, so that a short number is that of a study."""
UNCUT = 10_000
"""More characters than any sentence has, and than any line of a table."""


class Group(TyperGroup):
    """A group that lists its commands with their complete first sentences, on as many lines as needed."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the list. Typer's own list cuts each sentence at the end of the line."""
        found = ((name, self.get_command(ctx, name)) for name in self.list_commands(ctx))
        with formatter.section("Commands"):
            formatter.write_dl([(name, one.get_short_help_str(UNCUT)) for name, one in found if one and not one.hidden])


@contextlib.contextmanager
def interruptible(kept: Callable[[], str] = str) -> Iterator[None]:
    """End with exit code 130 on Ctrl-C, and print the stored results. Typer would end silently."""
    try:
        yield
    except KeyboardInterrupt:
        typer.echo(f"torchwise: interrupted{kept()}", err=True)
        raise typer.Exit(130) from None


def check_writable(file: Path | None) -> None:
    """Refuse a path that cannot be written, before minutes are spent on its contents."""
    if file is None:  # loads nothing, so that `torchwise zoo` is instant
        return
    import os
    import secrets

    from torchwise.records.files import STDOUT

    if file == STDOUT:
        return
    if file == Path("-"):
        raise InputError("- cannot be written: only --json can use standard output; give a file")
    if file.is_dir():
        raise InputError(f"{file} is a folder, but must be a file to write to")
    if not file.resolve().parent.is_dir():
        raise InputError(f"{file} cannot be written: there is no folder {file.resolve().parent}; create it first")
    if file.exists() and not file.is_file():  # a pipe or a device
        if not os.access(file, os.W_OK):
            raise InputError(f"{file} cannot be written: permission denied; give another path")
        return
    # Reading permissions is not enough, as file systems may be read-only. The name is like that of a draft of
    # `write_atomically`.
    probe = file.resolve().with_name(f".{file.resolve().name}.{secrets.token_hex(4)}.tmp")
    try:
        probe.touch(exist_ok=False)
        probe.unlink()
    except OSError as error:
        raise InputError(f"{file} cannot be written: {error.strerror or error}; give another path") from None


def write_document(path: Path, schema: str, contents: dict[str, Any], indent: int = 2) -> None:
    """Write contents with their schema as JSON."""
    import json

    from torchwise.records.files import write_atomically

    write_atomically(f"{json.dumps({'schema': schema, **contents}, indent=indent)}\n", path)


def show_study(study: Study, json: Path | None, html: Path | None, **named: str | None) -> None:
    """Print a study, and write it to files."""
    from rich.console import Console

    from torchwise.records.files import write_atomically, write_json
    from torchwise.report import render_html, render_study

    Console().print(render_study(study, has_page=html is not None, **named))
    if json:
        write_json(study, json)
    if html:
        write_atomically(render_html(study, **named), html)


def keep_report(report: Report, store: str | None) -> None:
    """Save a result in the store, where the dashboard finds it. If that fails, it is still shown."""
    from torchwise.errors import StorageError
    from torchwise.store import open_storage
    from torchwise.store.reports import row_of

    try:
        with open_storage(store) as storage:
            storage.keep_report(report)
    except StorageError as error:
        typer.echo(f"torchwise: this {row_of(report)['kind']} is not saved: {error}", err=True)


def find_study(name: str, store: str | None) -> Study:
    """Return the study that `name` refers to. `latest` is the one with the newest decision."""
    if name.endswith(".json"):
        return read_study(Path(name))
    from torchwise.store import open_storage

    if name != "latest" and not name.isdecimal():
        raise InputError(f"study is {name!r}, but must be a number, `latest` or a .json file")
    with open_storage(store, existing=True) as storage:
        if name == "latest":
            study = storage.latest_study()
            if study is None:
                raise InputError("the store holds no study yet: torchwise tune TARGET creates one")
            return study
        return storage.get_study(int(name))


def find_decided(name: str, store: str | None) -> tuple[Study, Decision]:
    """Return the study that `name` refers to, and its decision."""
    study = find_study(name, store)
    if study.decision is None:
        raise InputError(f"study {name} is {study.state}, and has no decision yet: tune it again to continue")
    return study, study.decision


def find_plan(name: str | None, study: Study, others: Sequence[Plan] = ()) -> Plan:
    """Return the plan of `study` that `name` refers to.

    Args:
        name: `eager`, or the id of a plan or the beginning of one, or None for the decided plan.
        study: the study with the plans.
        others: plans that `name` may refer to, besides eager and those of the study.
    """
    from torchwise.plan import EAGER

    if name is None:
        if study.decision is None:
            raise InputError(f"study {study.id} is {study.state} and has no decision yet, so a plan must be named")
        return study.decision.plan
    plans = dict.fromkeys((EAGER, *(trial.plan for trial in study.trials), *others))
    matches = [plan for plan in plans if name and plan.id.startswith(name)] or [p for p in plans if str(p) == name]
    if len(matches) == 1:
        return matches[0]
    shown = "".join(f"\n  {plan.id}  {plan}" for plan in matches or plans)
    if matches:
        raise InputError(f"plan is {name!r}, but must be the beginning of exactly one id:{shown}")
    raise InputError(f"plan is {name!r}, but must be an id, or its beginning, of study {study.id}:{shown}")


def resolve_plan(name: str, targets: Sequence[str], store: str | None) -> Plan:
    """Return the plan that `--plan` names, as `resolve_choice` reads it."""
    from torchwise.plan import Plan

    chosen = resolve_choice(name, targets, store)
    return chosen if isinstance(chosen, Plan) else chosen.plan


def resolve_choice(name: str, targets: Sequence[str], store: str | None) -> Plan | Decision:
    """Return the plan that `--plan` names, or the decision that chose it: the same in every command.

    Args:
        name: a plan's words, such as "inductor + freezing", a mode of `torch.compile`, a plan as JSON, the id of a
            decided plan or its beginning, or a study.
            `latest` is the newest that was decided for one of the targets.
        targets: those that the plan is for. A plan that was decided for another target is refused.
        store: URL or file of the store, or None for the default one.
    """
    from torchwise.plan import Plan
    from torchwise.plan.rules import list_allowed
    from torchwise.plan.words import is_words, read_words

    if is_words(name):
        return read_words(name)
    if name in list_allowed("mode"):
        return Plan(backend="inductor", mode=name)
    if name.lstrip().startswith("{"):
        return Plan.from_json(name)
    if name == "latest":
        decisions = _read_decisions(store) or [find_decided(name, store)[1]]  # which says that there is none
    elif name.endswith(".json") or (name.isdecimal() and len(name) < MIN_ID):
        decisions = [find_decided(name, store)[1]]
    elif len(name) >= MIN_ID and not set(name) - set("0123456789abcdef"):
        decisions = _find_decisions(name, store)
    else:
        raise InputError(
            f"plan is {name!r}, but must be a plan's words, such as eager or 'inductor + freezing', a mode of "
            f"torch.compile ({', '.join(list_allowed('mode'))}), a plan as JSON, the id of a decided plan or its first "
            f"{MIN_ID} digits, or a study: its number, latest or .json file"
        )
    named = set(map(_with_size, targets))  # `bench` names the size of a workload of the zoo, which others may leave out
    own = [decision for decision in decisions if _with_size(decision.workload.target) in named]
    own = own[:1] if name == "latest" else own
    plans = list(dict.fromkeys(decision.plan for decision in own))
    if not plans:
        other = decisions[0].workload.target
        raise InputError(
            f"plan is {name!r}, which was decided for {other}, but must be of {' or '.join(targets)}: "
            "torchwise plans list shows the studies of each target. A plan in words or JSON is for any target"
        )
    if len(plans) > 1:
        raise InputError(f"plan is {name!r}, but must be the beginning of one id: {', '.join(p.id for p in plans)}")
    return own[0]


def _with_size(target: str) -> str:
    """Return a target with the default size if it is a workload of the zoo without one."""
    from torchwise.zoo.registry import DEFAULT_SIZE

    return f"{target}@{DEFAULT_SIZE}" if target.startswith("zoo:") and "@" not in target else target


def _read_decisions(store: str | None) -> list[Decision]:
    """Read all decisions, newest first."""
    from torchwise.store import open_storage

    with open_storage(store, existing=True) as storage:
        return storage.decisions()


def _find_decisions(plan_id: str, store: str | None) -> list[Decision]:
    found = [decision for decision in _read_decisions(store) if decision.plan.id.startswith(plan_id)]
    if not found:
        raise InputError(
            f"no decision in this store chose a plan with id {plan_id}: list them with `torchwise plans list`"
        )
    return found


def read_study(file: Path) -> Study:
    """Read a study from JSON."""
    from torchwise import parsing
    from torchwise.records import Study

    return parsing.read(file, Study.from_json)
