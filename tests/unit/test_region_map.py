"""How `explain` shows the regions of row programs: as they were cut, with what stopped each, in text and drawing."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO

import pytest
import torch
from rich.console import Console

from explain_samples import explanation
from row_calls import compile_call
from torchwise.compile.programs.region_map import make_boxes, tell_regions
from torchwise.compile.programs.regions import CpuTarget, find_regions
from torchwise.records.explanation import Box, Explanation
from torchwise.report.explanation import render_explanation, render_explanation_html
from torchwise.report.plots.regions import KINDS, MAX_ROWS, OTHERS, kind_of, regions_plot
from torchwise.report.region_boxes import MAX_BOXES, list_sections, summarize


class Sorted(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(4, 8), torch.nn.Linear(8, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        ranked = self.first(x).tanh().sort(-1).values
        return self.second(ranked * 2).softmax(-1)


def cut(model: torch.nn.Module, *inputs: torch.Tensor) -> tuple[Box, ...]:
    program = torch.export.export(model, inputs).run_decompositions()
    graph = program.graph_module.graph
    return make_boxes(graph, *find_regions(graph, CpuTarget()))


def test_boxes_are_told_in_order_with_what_stopped_each() -> None:
    first, alone, last = cut(Sorted(), torch.ones(3, 4))
    assert (first.is_region, alone.is_region, last.is_region) == (True, False, True)
    assert alone.operators == ("sort",)
    assert alone.reasons == ("aten.sort.default is not known",)
    assert "tanh" in first.operators
    assert first.reasons == ("sort after it: aten.sort.default is not known",)
    assert "_softmax" in last.operators
    assert last.reasons == ("sort before it: aten.sort.default is not known",)
    assert (last.reads, last.writes) == (3, 1), "the sorted values, a matrix and a bias"


def test_an_operator_of_the_users_own_has_its_full_name() -> None:
    @torch.library.custom_op("torchwise_tests::halve", mutates_args=())
    def halve(x: torch.Tensor) -> torch.Tensor:
        return x / 2

    halve.register_fake(torch.empty_like)

    class Halved(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return halve(x.tanh() * 2).exp() + 1

    _, alone, _ = cut(Halved(), torch.ones(3))
    assert alone.operators == ("torchwise_tests.halve.default",)


def test_a_graph_that_is_one_region_ends_where_the_graph_does() -> None:
    (box,) = cut(torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh()), torch.ones(2, 4))
    assert box.is_region
    assert box.reasons == ()


@pytest.mark.slow
def test_graphs_are_told_while_somebody_listens() -> None:
    told: list[tuple[Box, ...]] = []
    model = Sorted().eval()
    with torch.no_grad():
        with tell_regions(told.append):
            compile_call(model, torch.ones(3, 4))(torch.ones(3, 4))
        compile_call(model, torch.ones(2, 4))(torch.ones(2, 4))
    assert [len(boxes) for boxes in told] == [3]


# ---- in a report


REGION = Box(("mm", "tanh", "mm", "mul"), True, 3, 1, ("sort after it: aten.sort.default is not known",))
ALONE = Box(("sort",), False, 1, 1, ("aten.sort.default is not known",))


def render_text(told: Explanation) -> str:
    out = StringIO()
    Console(file=out, width=160, no_color=True).print(render_explanation(told))
    return out.getvalue()


def test_a_report_has_each_box_and_a_sentence() -> None:
    told = replace(explanation(), regions=((REGION, ALONE),))
    text = " ".join(render_text(told).split())
    assert "1 region has 4 of 5 operators. 1 operator runs alone." in text
    assert "mm × 2, tanh, mul" in text
    assert "alone: sort" in text
    assert "aten.sort.default is not known" in text
    assert Explanation.from_json(told.to_json()) == told
    page = render_explanation_html(told)
    assert "Regions of row programs" in page
    assert 'id="regions-' in page
    for text in (render_text(explanation()), render_explanation_html(explanation())):
        assert "Regions of row programs" not in text


def test_a_long_graph_is_cut_on_a_terminal_and_whole_in_the_record() -> None:
    boxes = (REGION, ALONE) * MAX_BOXES
    told = replace(explanation(), regions=(boxes, (REGION,)))
    text = render_text(told)
    assert f"and {MAX_BOXES} more" in text
    assert "Graph 2: 1 region has 4 of 4 operators." in text
    plot = regions_plot(told.regions)
    assert plot is not None
    assert len(plot.table) == MAX_ROWS
    assert plot.summary == summarize(boxes), "the figures are of the whole graph"


def test_nothing_is_drawn_without_regions() -> None:
    assert regions_plot(()) is None
    assert regions_plot(((),)) is None
    assert list_sections(()) == ()


def test_kinds_of_operators() -> None:
    assert [kind_of(name) for name in ("mm", "_softmax", "embedding", "tanh")] == [*[*KINDS][:3], OTHERS]


def test_a_region_of_hundreds_of_operators_is_drawn() -> None:
    plot = regions_plot(((Box(("add",) * 300, True, 1, 1),),))
    assert plot is not None
    assert "+ 260" in plot.svg
