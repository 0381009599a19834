"""The tables of programs and pipelines have every line that the benchmarks printed, and leave out no unknown form."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
PROGRAM = """NVIDIA H200, torch 2.11.0+cu130, large, bfloat16, load 0.2

llama: tuned in 1 min 59 s, LlamaForCausalLM: eager + capture call
  as it is: 52.1 s a run, 1.75 s a round; 1.00× [1.00, 1.00] and 1.00× [1.00, 1.00]; answer 0 off
  max-autotune: 45.3 s a run, 212 ms a round; answer 0.4 off
  --apply: 24.1 s a run, 422 ms a round; 2.16× [2.02, 2.30] and 3.98× to 9.32×; answer 0 off
  --apply over max-autotune: 1.13× [1.08, 1.18] by the run, 0.583× [0.571, 0.594] by the round
"""
EXAMPLE = """AMD EPYC, 2 CPUs, load 2.9, torch 2.13.0+cpu, ray 2.60.0
fit: same output, alone 4.9 s, with --tune 7.4 s, own work 0.08 s, with --apply 0.95 [0.95, 0.98] times as fast, by \
processor time 0.96 [0.95, 0.99], start-up 0.35 s; Net: eager
"""
PIPELINE = """text: tuned in 82 s of 300
  Llama: inductor + dynamic, 288 calls, by the original {}
  Decoder: Inconclusive: eager may be faster
  size 21 (never seen): right, 10.9 ms, alone 14.6 ms, restored bit by bit
"""


@pytest.fixture
def tables(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("program_tables")


@pytest.fixture
def give(tables: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    return lambda text: monkeypatch.setattr(tables, "current_texts", lambda _page: {"2026-11-29-it.txt": text})


def test_a_search_has_its_ratios_and_its_contenders(tables: ModuleType, give: Callable[[str], None]) -> None:
    give(PROGRAM)
    assert tables.programs_table().splitlines()[2:] == [
        "| 1. llama, large | 1 min 59 s | LlamaForCausalLM: eager + capture call | 2.16× [2.02, 2.30] | 3.98× to 9.32× "
        "| max-autotune: 1.13× [1.08, 1.18] | 0.583× [0.571, 0.594] |"
    ]
    assert tables.contenders_table().splitlines()[3] == "| 1. llama, large | max-autotune | 45.3 s | 212 ms | 0.4 |"


def test_an_example_is_told_with_its_machine_and_date(tables: ModuleType, give: Callable[[str], None]) -> None:
    give(EXAMPLE)
    assert tables.examples_table().splitlines()[2:] == [
        "| fit | EPYC, load 2.9, 2026-11-29 | 4.9 s | 7.4 s | 0.08 s "
        "| 0.95 [0.95, 0.98] | 0.96 [0.95, 0.99] | Net: eager |"
    ]


def test_a_pipeline_has_its_modules_and_its_sizes(tables: ModuleType, give: Callable[[str], None]) -> None:
    give(PIPELINE)
    assert tables.pipelines_table().splitlines()[2:] == [
        "| text | 82 s of 300 | Llama | inductor + dynamic; 288 calls by the plan, by the original {} |",
        "| text | 82 s of 300 | Decoder | Inconclusive: eager may be faster |",
    ]
    assert tables.sizes_table().splitlines()[2:] == [
        "| text | 21, never seen | right | 10.9 ms | 14.6 ms | bit by bit |"
    ]


@pytest.mark.parametrize(
    ("text", "table"),
    [
        (PROGRAM.replace("a run", "each run"), "programs_table"),
        (EXAMPLE.replace("start-up", "start"), "examples_table"),
        (PIPELINE.replace("alone", "by itself"), "sizes_table"),
    ],
)
def test_a_line_of_another_form_is_not_left_out(
    text: str, table: str, tables: ModuleType, give: Callable[[str], None]
) -> None:
    give(text)
    with pytest.raises(ValueError, match="have the form"):
        getattr(tables, table)()


def test_every_result_of_these_benchmarks_is_named_by_a_page() -> None:
    pages = "".join(page.read_text() for page in (BENCHMARKS.parent / "docs").rglob("*.md"))
    kinds = ("run-programs", "run-examples", "pipelines", "h200-spinlock.md")
    found = [file.name for file in (BENCHMARKS / "results").iterdir() if any(kind in file.name for kind in kinds)]
    assert len(found) >= 8
    assert [name for name in found if name not in pages] == []


def test_a_section_that_the_results_lack_is_refused(tables: ModuleType) -> None:
    five_systems = importlib.import_module("five_systems")
    assert "\n- distribution: pass." in five_systems.quote("spinlock-steps", "Noise")
    assert "## " not in five_systems.quote("spinlock-steps", "Step by step")
    with pytest.raises(ValueError, match="title is 'Steps', but the results for 'spinlock-steps' have no such section"):
        five_systems.quote("spinlock-steps", "Steps")
