"""The calls that are expected of a plan are those that it can answer."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from test_program import Searches, decide_at_once
from test_program_sizes import Rows, make, tune

import torchwise as tw
from torchwise.runtime.program import recorder, tuning


@pytest.fixture
def searches(monkeypatch: pytest.MonkeyPatch) -> Searches:
    return decide_at_once(monkeypatch)


def test_only_calls_that_a_plan_can_answer_are_expected_of_it(searches: Searches) -> None:
    tune(Rows().eval(), [*(50 * [3, 4, 5, 6]), 7, 8], calls=2020)
    (first, workload), (second, _) = searches.asked
    assert sorted(len(example.args[0]) for example in workload.examples) == [3, 4, 5, 6]
    assert (first.workload.calls, second.workload.calls) == (2000, 20)


def test_no_plan_is_searched_for_sizes_that_no_call_of_a_recording_had(searches: Searches) -> None:
    net = Rows().eval()
    with recorder.CallRecorder(holds=True) as recording, torch.no_grad():
        for rows in (3, 3, 5):
            net(make(rows))
    report = tuning.tune_recorded(recording, "program", {}, places=False, calls=None)
    assert [request.workload.calls for request, _ in searches.asked] == [3]
    assert report.modules[0].record.notes == ("other sizes than these run as written: no call had one",)


@pytest.mark.parametrize("limit", [recorder.MAX_KINDS, 20], ids=["all kinds recorded", "some kinds recorded"])
def test_calls_of_kinds_beyond_the_limit_are_noted(
    limit: int, searches: Searches, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Scaled(Rows):
        def forward(self, x: torch.Tensor, factor: Any = 1) -> torch.Tensor:
            return self.layer(x) * factor  # type: ignore[no-any-return]

    monkeypatch.setattr(recorder, "MAX_KINDS", limit)
    net = Scaled().eval()

    @torch.no_grad()
    def program() -> None:
        for factor in range(40):
            net(make(3), factor)

    report = tw.tune_program(program, calls=40)
    ((request, workload),) = searches.asked
    assert request.workload.calls == len(workload.examples) == 4
    assert f"{min(limit, 40) - 4} further kinds of calls run as written" in report.modules[0].record.notes[0]


def test_given_calls_are_those_of_all_blocks_that_share_a_plan(searches: Searches) -> None:
    blocks = [Rows().eval() for _ in range(20)]

    @torch.no_grad()
    def program() -> None:
        for block in blocks:
            block(make(3))

    report = tw.tune_program(program, calls=1000)
    assert [request.workload.calls for request, _ in searches.asked] == [1000]
    (decision,) = [study.decision for study in report.studies.values()]
    assert [module.record.expected_calls for module in report.modules] == [50] * 20, "together the 1000"
    assert sum(module.record.net_saving_s for module in report.modules) == pytest.approx(decision.saved_s)
    assert all(module.record.net_saving_s == decision.saved_s / 20 for module in report.modules)
