"""A few of the random programs of short operators. `tests/fuzz/rows.py` runs as many as one likes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "fuzz"))

import rows

from torchwise.compile.programs import pointwise

BY_NIGHT = [pytest.param(seed, marks=pytest.mark.nightly) for seed in range(2, 40)]


@pytest.mark.parametrize("seed", [*range(2), *BY_NIGHT])
@pytest.mark.usefixtures("dynamo_afresh", "one_thread")
def test_a_random_program_is_right(seed: int) -> None:
    counts = rows.Counts()
    rows.check_program(seed, counts)
    assert counts["regions"]
    assert not counts["calls with other layouts"]


@pytest.mark.usefixtures("dynamo_afresh", "one_thread")
def test_a_wrong_operator_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(pointwise.NUMBERS, "mul", lambda x, kind: f"({kind})({x[0]} * {x[1]} * 1.00001)")
    monkeypatch.setattr(rows, "make_program", lambda seed: rows.Program(seed, INPUTS, LINES, frozenset()))
    with pytest.raises(rows.Failed, match=r"v1 = v0 \* x0, on normal data"):
        rows.check_program(0, rows.Counts())


INPUTS = [rows.Input("x0", (3, 5), rows.torch.float32, "turned", None)]
LINES = {"v0": "v0 = torch.tanh(x0)", "v1": "v1 = v0 * x0"}


@pytest.mark.nightly
def test_no_access_to_memory_is_wrong() -> None:
    command = [sys.executable, rows.__file__, "--sanitize", "--count", "10"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=900)
    assert ended.returncode == 0, ended.stdout[-2000:] + ended.stderr[-4000:]
