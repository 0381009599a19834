"""Lay out the measurements of programs and pipelines, from the lines that the benchmarks of them print.

The tables of docs/benchmarks/programs.md are made with it, from the texts in `results/current.toml`: those of
`run_programs.py`, `run_examples.py` and `pipelines.py`. A line that looks like theirs and cannot be read is an error,
so that no result is left out because a benchmark prints in another way.

Run it: python benchmarks/program_tables.py > tables.md
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from summary import current_texts

RATIO = r"[\d.]+×(?: \[[\d.]+, [\d.]+\]| to [\d.]+×)"
PROGRAM = re.compile(r"(?P<program>\w+): tuned in (?P<tuned>[^,]+), (?P<plan>.+)")
CONTENDER = re.compile(
    r"  (?P<name>[\w -]+): (?P<run>[\d.]+ s) a run, (?P<round>[\d.]+ m?s) a round"
    rf"(?:; (?P<by_run>{RATIO}) and (?P<by_round>{RATIO}))?; answer (?P<off>[\d.e-]+) off"
)
OVER = re.compile(
    rf"  --apply over (?P<mode>[\w-]+): (?P<by_run>{RATIO}) by the run, (?P<by_round>{RATIO}) by the round"
)
MACHINE = re.compile(r"(?P<hardware>[^,]+), torch [\w.+]+, (?P<size>tiny|medium|large), \w+, load [\d.]+")
SPEED = r"[\d.]+ \[[\d.]+, [\d.]+\]"
EXAMPLE = re.compile(
    r"(?P<name>\w+): (?P<output>same output|OUTPUT DIFFERS), alone (?P<alone>[\d.]+ s), with --tune (?P<tune>[\d.]+ s)"
    rf"(?: TOO LATE)?, own work (?P<own>[\d.]+ s), with --apply (?P<speed>{SPEED}) times as fast, by processor time "
    rf"(?P<busy>{SPEED}), start-up (?P<start>[\d.]+ s); (?P<plans>.+)"
)
PIPELINE = re.compile(r"(?P<name>[\w-]+): tuned in (?P<tuned>\d+) s of (?P<budget>\d+)")
MODULE = re.compile(r"  (?P<name>\w+): (?P<plan>[^,]+), (?P<calls>\d+) calls, by the original (?P<original>\{.*\})")
NOTE = re.compile(r"  (?P<name>\w+): (?P<note>.+)")
SIZE = re.compile(
    r"  size (?P<size>\d+) \((?P<seen>seen|never seen)\): (?P<answer>right|WRONG), (?P<tuned>[\d.]+ ms), alone "
    r"(?P<alone>[\d.]+ ms), restored (?P<back>bit by bit|WRONG)"
)
NONE = "–"


@dataclass
class Search:
    """One search of `run_programs.py`: its contenders, and `--apply` over the best mode."""

    program: str
    size: str
    tuned: str
    plan: str
    contenders: list[re.Match[str]] = field(default_factory=list)
    over: re.Match[str] | None = None


def main() -> None:
    for title, table in (
        ("Programs", programs_table()),
        ("Contenders", contenders_table()),
        ("Examples", examples_table()),
        ("Pipelines", pipelines_table()),
        ("Sizes", sizes_table()),
    ):
        print(f"## {title}\n\n{table}\n")


def programs_table() -> str:
    """Return one line for each search: the plan, and `--apply` over the program as it is, and over the best mode."""
    over_original, over_mode = (
        "over as it is, by the run | by the round",
        "over the best mode by the run, by the run | by the round",
    )
    lines = [f"| program | search | plan | {over_original} | {over_mode} |", "|---" * 7 + "|"]
    for number, search in enumerate(read_searches(current_texts("run-programs")), 1):
        ours = next((one for one in search.contenders if one["name"] == "--apply"), None)
        over = search.over
        mode = f"{over['mode']}: {over['by_run']}" if over else NONE
        cells = [
            f"{number}. {search.program}, {search.size}",
            search.tuned,
            search.plan,
            (ours["by_run"] if ours else None) or NONE,
            (ours["by_round"] if ours else None) or NONE,
            mode,
            over["by_round"] if over else NONE,
        ]
        lines.append(to_row(cells))
    return "\n".join(lines)


def contenders_table() -> str:
    """Return one line for each contender of each search."""
    lines = ["| program | contender | a run | a round | answers off by |", "|---" * 5 + "|"]
    for number, search in enumerate(read_searches(current_texts("run-programs")), 1):
        name = f"{number}. {search.program}, {search.size}"
        lines += [to_row([name, one["name"], one["run"], one["round"], one["off"]]) for one in search.contenders]
    return "\n".join(lines)


def read_searches(texts: Mapping[str, str]) -> Iterator[Search]:
    """Yield the searches of texts, in their order.

    Raises:
        ValueError: a line looks like one of a contender, but cannot be read.
    """
    for name, text in texts.items():
        size, found = "", None
        for line in text.splitlines():
            if machine := MACHINE.fullmatch(line):
                size = machine["size"]
            elif program := PROGRAM.fullmatch(line):
                if found is not None:
                    yield found
                found = Search(program["program"], size, program["tuned"], program["plan"])
            elif found is not None and (over := OVER.fullmatch(line)):
                found.over = over
            elif found is not None and (contender := CONTENDER.fullmatch(line)):
                found.contenders.append(contender)
            elif line.startswith("  ") and not line.startswith("    "):
                raise ValueError(f"{name} has the line {line!r}, but lines of contenders have the form {OVER.pattern}")
        if found is not None:
            yield found


def examples_table() -> str:
    """Return one line for each example program and machine."""
    head = "| program | on | alone | with `--tune` | own work | with `--apply` | by processor time | decision |"
    lines = [head, "|---" * 8 + "|"]
    for name, text in current_texts("run-examples").items():
        date, machine = name[:10], ""
        for line in text.splitlines():
            if load := re.fullmatch(r"(.+?), (\d+) CPUs, load ([\d.]+), torch .+", line):
                machine = f"{'EPYC' if 'EPYC' in load[1] else 'Xeon'}, load {load[3]}, {date}"
            elif found := EXAMPLE.fullmatch(line):
                cells = [found[key] for key in ("alone", "tune", "own", "speed", "busy", "plans")]
                lines.append(to_row([found["name"], machine, *cells]))
            elif "same output" in line or "OUTPUT DIFFERS" in line:
                raise ValueError(f"{name} has the line {line!r}, but lines of programs have the form {EXAMPLE.pattern}")
    return "\n".join(lines)


def pipelines_table() -> str:
    """Return one line for each module of each pipeline: its plan, or the reason that it has none."""
    lines = ["| pipeline | search | module | its plan, or why it has none |", "|---" * 4 + "|"]
    for pipeline, line in iter_pipeline_lines():
        if module := MODULE.fullmatch(line):
            said = f"{module['plan']}; {module['calls']} calls by the plan, by the original {module['original']}"
        elif SIZE.fullmatch(line) or not (module := NOTE.fullmatch(line)):
            continue
        else:
            said = module["note"]
        search = f"{pipeline['tuned']} s of {pipeline['budget']}"
        lines.append(to_row([pipeline["name"], search, module["name"], said]))
    return "\n".join(lines)


def sizes_table() -> str:
    """Return one line for each size of each pipeline."""
    lines = ["| pipeline | size | answers | by its plans | alone | after `restore()` |", "|---" * 6 + "|"]
    for pipeline, line in iter_pipeline_lines():
        if size := SIZE.fullmatch(line):
            given = f"{size['size']}, {size['seen']}"
            lines.append(to_row([pipeline["name"], given, size["answer"], size["tuned"], size["alone"], size["back"]]))
        elif line.startswith("  size "):
            raise ValueError(f"the line is {line!r}, but lines of sizes have the form {SIZE.pattern}")
    return "\n".join(lines)


def iter_pipeline_lines() -> Iterator[tuple[re.Match[str], str]]:
    """Yield each line about a pipeline with the one that names it."""
    for text in current_texts("pipelines").values():
        pipeline = None
        for line in text.splitlines():
            if found := PIPELINE.fullmatch(line):
                pipeline = found
            elif pipeline is not None and line.startswith("  "):
                yield pipeline, line


def to_row(cells: list[str]) -> str:
    """Return a line of a table, whose cells keep their characters."""
    return "| " + " | ".join(cell.replace("_", r"\_").replace("|", r"\|") for cell in cells) + " |"


if __name__ == "__main__":
    main()
