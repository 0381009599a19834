"""A stochastic neural operator at its own size: one search, and its plan step by step, beside eager in float32.

The search is `torchwise tune zoo:spinlock.operator --allow substituted`. Then the plan that it found is built up from
eager, one change at a time. Each step is verified and timed against eager in processes of its own, as in the search.
Last comes the batch: samples per second of the plan at larger batches, in multiples of eager's at the given one.

Run it alone on its device. Finished trials are kept in OUT.db, so that the same command goes on where it ended:

    python benchmarks/spinlock.py --device cuda --budget 240 --out spinlock    # some 6 minutes
    python benchmarks/spinlock.py --target zoo:spinlock.operator@small --budget 60 --out small
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torchwise
from torchwise import environment
from torchwise.errors import TorchwiseError
from torchwise.records import format as show
from torchwise.records.scale import BatchFit
from torchwise.records.steps import PlanStep
from torchwise.report import document as doc
from torchwise.report.markdown import render_markdown
from torchwise.report.steps import make_steps_table, tell_rules
from torchwise.workload.target import load

GROWTH = 4
"""The largest batch, as a multiple of the given one."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default="zoo:spinlock.operator", help="the program (default: the paper's own size)")
    parser.add_argument("--device", default="cuda", choices=("cpu", "cuda"))
    parser.add_argument("--budget", type=float, default=240.0, help="seconds of the search (default 240)")
    parser.add_argument(
        "--calls", type=float, default=1e7, help="as of `torchwise tune` (default 1e7, a long training)"
    )
    parser.add_argument("--tolerance", type=float, help="as of `torchwise tune`; by default operators change nothing")
    parser.add_argument("--effort", default="standard", choices=("quick", "standard", "thorough"))
    parser.add_argument("--wanted", type=float, default=3.0, help="multiple of eager's throughput (default 3)")
    parser.add_argument("--out", type=Path, required=True, help="results: OUT.md, OUT.json, and the store OUT.db")
    options = parser.parse_args()
    given: dict[str, Any] = {
        "allow": "substituted",
        "effort": options.effort,
        "device": options.device,
        "calls": int(options.calls),
        "tolerance": options.tolerance,
        "store": str(options.out.with_suffix(".db")),
    }
    study = torchwise.tune(options.target, budget=options.budget, **given)
    study.save_json(options.out.with_suffix(".json"))
    plan, lines = study.decision.plan, describe_search(study, options)
    save(options.out, lines)  # kept if the rest fails
    if steps := study.steps():
        tried = torchwise.tune(options.target, plans=[step.plan for step in steps], budget=options.budget, **given)
        lines += ["", *describe_steps(tried.steps(plan))]
        save(options.out, lines)
    workload = load(options.target, device=options.device)
    size = len(workload.examples[0].tensors()[0])
    try:
        fit = torchwise.fit_batch(workload, plan=plan, largest=GROWTH * size)
    except TorchwiseError as error:
        print(f"no larger batch: {error}")
        return 1
    speedup = study.decision.speedup
    best, said = describe_batches(fit, size, speedup.mid if speedup else 1.0)
    save(options.out, [*lines, "", "## Larger batches", "", *said])
    return 0 if best >= options.wanted else 1


def describe_search(study: torchwise.Study, options: argparse.Namespace) -> list[str]:
    here, decision = environment.detect(options.device), study.decision
    return [
        f"# {options.target}, {datetime.now(UTC):%Y-%m-%d}",
        "",
        f"{here.gpu or here.cpu}, torch {here.torch}. `{Path(__file__).name}`, {options.budget:.0f} s of search, "
        f"{len(study.trials)} trials. Speed-ups are over eager in float32, with 95 % intervals.",
        "",
        f"Plan: {decision.plan}, {show.speedup(decision.speedup)}. {decision.reason}",
    ]


def describe_steps(steps: Sequence[PlanStep]) -> list[str]:
    """Return a table of the steps, and the checks of the last one's operators and random answers."""
    judged = tell_rules(steps[-1]) or ["No check of its noise was made."]
    sections = (
        doc.Section("Step by step", (make_steps_table(steps),)),
        doc.Section("Noise", (doc.Items(tuple(judged)),)),
    )
    return render_markdown(doc.Document("", sections)).splitlines()


def describe_batches(fit: BatchFit, size: int, speedup: float) -> tuple[float, list[str]]:
    """Return the best throughput as a multiple of eager's at the given batch, and a table of all batches.

    At the given batch it is the plan's speed-up, which was paired with eager. Other batches are on its scale, as
    eager's own time differs from process to process.
    """
    rows, best = ["| batch | samples a second | over eager at the given batch |", "|---|---|---|"], 0.0
    given = next((tried.samples_per_s for tried in fit.tried if tried.size == size), None)
    for tried in fit.tried:
        factor = speedup * tried.samples_per_s / given if tried.samples_per_s and given else None
        if factor is not None and not tried.problem:
            best = max(best, factor)
        said = tried.problem or show.count(tried.samples_per_s or 0.0)
        rows.append(f"| {tried.size} | {said} | {show.ratio(factor)} |")
    return best, [*rows, "", f"Best: {show.ratio(best)}, without an interval, as other sizes ran at other times."]


def save(out: Path, lines: Sequence[str]) -> None:
    """Write the results so far, and print them."""
    text = "\n".join(lines) + "\n"
    out.with_suffix(".md").write_text(text)
    print(text, flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
