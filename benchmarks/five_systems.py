"""Lay out the answers for the programs of five systems: on each machine, the fastest mode of PyTorch and Torchwise.

The tables of docs/benchmarks/five-systems.md are made with it, from the results in `results/current.toml`. Of a program
in several results of a list, those of the last count. The suite measures the CPU anew, in 8 minutes on two cores:

    python benchmarks/run_suite.py benchmarks/suites/five-systems-cpu.toml RESULTS.json \
        --effort quick --calls 10000000 --no-warm --budget 400

Name the file at the end of the list `five-systems-cpu`, and make the page again (CONTRIBUTING.md).

Run it: python benchmarks/five_systems.py results.json [more.json] > tables.md
"""

from __future__ import annotations

import sys
from collections.abc import Iterable

from summary import OURS, current, current_texts, read

from torchwise.records.benchmark import Benchmark, Row

PROGRAMS = {
    "energy_flow": (
        *("neuron", "carrier", "fused_step", "storage", "processor", "padded_processor", "rollout"),
        *("dynamic_rollout", "embedding_mapper", "storage_in_place"),
    ),
    "ivhl": (
        *("field_superposition", "vortex_field", "intensity", "mera_layer", "tensor_network", "gft_network"),
        *("entanglement_entropy", "condensate_potential", "gross_pitaevskii_step", "gross_pitaevskii", "gru_step"),
        "pachner_moves",
    ),
    "spinlock": ("operator", "operator_single", "operator_groupnorm", "operator_groupnorm_single"),
    "arr_coc": ("scorers", "information_scorer", "salience_scorer", "query_scorer", "tension", "detail", "model"),
    "tutorial": (
        *("branch", "fusion_demo", "many_small_ops", "transformer_block", "six_layer_transformer"),
        *("elementwise_chain", "break_branch", "break_item", "break_list", "break_numpy", "break_print"),
    ),
}
SIZES = ("small", "medium", "large", "extreme")
PAGES = ("five-systems-cpu", "zoo-h200")
HEAD = "| program | machine | fastest mode of `torch.compile` | Torchwise | its plan |\n|---|---|---|---|---|"
NO_SYNTAX = str.maketrans({"_": r"\_"})


def main() -> None:
    benchmarks = read(*sys.argv[1:])
    print("\n\n".join(f"## {system}\n\n{table(system, benchmarks)}" for system in PROGRAMS))


def table(system: str, benchmarks: Iterable[Benchmark] = ()) -> str:
    """Return one line for each measured size of a system's programs, by default of the current results."""
    found: dict[tuple[str, str], tuple[str, str]] = {}
    for benchmark in benchmarks or [one for page in PAGES for one in current(page)]:
        for target in dict.fromkeys(row.workload.target for row in benchmark.rows):
            rows = [row for row in benchmark.rows if row.workload.target == target and row.precision == "native"]
            ours = next((row for row in rows if row.contender == OURS and row.is_right), None)
            if ours is not None:
                here = benchmark.environment
                machine = here.gpu or f"{here.cpu}, {here.cpus} cores"
                found[target, here.device] = machine, list_cells(rows, ours)
    wanted = [f"zoo:{system}.{program}" for program in PROGRAMS[system]]
    lines = [
        f"| {target.removeprefix('zoo:').translate(NO_SYNTAX)} | {machine} | {cells} |"
        for program in wanted
        for (target, _device), (machine, cells) in sorted(found.items(), key=lambda item: rank(item[0][0]))
        if target.partition("@")[0] == program
    ]
    return "\n".join([HEAD, *lines])


def quote(page: str, title: str) -> str:
    """Return a section of the current results for a page, which are written as Markdown, without its heading."""
    (text,) = current_texts(page).values()
    _, found, rest = text.partition(f"\n## {title}\n")
    if not found:
        raise ValueError(f"title is {title!r}, but the results for {page!r} have no such section")
    return rest.partition("\n## ")[0].strip()


def rank(target: str) -> int:
    """Return the place of a target's size."""
    return SIZES.index(target.partition("@")[2])


def list_cells(rows: list[Row], ours: Row) -> str:
    """Return the fastest mode with right answers, Torchwise's speed-up over eager, and its plan."""
    modes = [row for row in rows if row.contender not in ("eager", OURS) and row.is_right and row.speedup]
    best = max(modes, key=lambda row: row.speedup.mid if row.speedup else 0.0, default=None)
    other = f"{best.contender} {best.speedup}×" if best is not None else "none with right answers"
    assert ours.plan is not None
    plan = "stays with eager" if ours.plan.is_eager else str(ours.plan).translate(NO_SYNTAX)
    return f"{other} | {1 if ours.plan.is_eager else ours.speedup}× | {plan}"


if __name__ == "__main__":
    main()
