"""A search while another program holds one core: the number of threads decides, at any load of the machine."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import torchwise as tw
from torchwise.environment import usable_cpus
from torchwise.plan import EAGER, Plan
from torchwise.study import history

FAR_FASTER = 2.0
"""Speed-up of one thread from which eager is no right answer."""


@pytest.fixture
def held_core() -> Iterator[None]:
    """Have another program compute on one of the cores all the time, and PyTorch use two threads."""
    if len(usable_cpus()) < 2:
        pytest.skip("a program can hold one core of several only where there are several")
    endless = f"import os\nos.sched_setaffinity(0, {{{min(usable_cpus())}}})\nprint(flush=True)\nwhile True: pass"
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    with subprocess.Popen([sys.executable, "-c", endless], stdout=subprocess.PIPE) as busy:
        assert busy.stdout is not None
        busy.stdout.readline()
        yield
        busy.kill()
    torch.set_num_threads(before)


@pytest.mark.nightly
@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="no program can be bound to a core here")
@pytest.mark.usefixtures("held_core")
def test_eager_stays_only_where_one_thread_is_not_far_faster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "BESIDE_S", 60.0)  # so that the first trial may take its time
    layers = [layer for _ in range(7) for layer in (torch.nn.Linear(256, 256), torch.nn.ReLU())]
    model = torch.nn.Sequential(*layers).eval()
    study = tw.tune(
        model,
        (torch.randn(1, 256),),
        calls=10_000_000,
        effort="quick",
        plans=[Plan(threads=1)],  # the first that a search would try
        store=str(tmp_path / "studies.db"),
        progress=False,
    ).record
    first = study.trials[0]
    assert "short_calls" in study.inspection.traits
    assert (study.inspection.measurement.cores or pytest.fail("not looked at")).threads == 2
    assert first.plan == Plan(threads=1)
    assert first.measurement is not None, first.reason
    assert study.decision is not None
    is_far_faster = first.measurement.speedup.mid > FAR_FASTER
    is_unsure = getattr(study.decision, "answer", None) == "inconclusive"
    assert study.decision.plan == Plan(threads=1) or is_unsure or not is_far_faster, study.decision.reason
    assert study.decision.plan in (EAGER, Plan(threads=1))
