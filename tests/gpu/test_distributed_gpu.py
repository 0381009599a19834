"""Two GPUs under torchrun, over NCCL: one plan, and the loss that eager trains to."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

SCRIPT = Path(__file__).parents[1] / "targets" / "loops_nccl.py"
LIMIT_S = 280.0

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="there are fewer than two CUDA devices"),
]


@pytest.mark.parametrize("ranks", [2, 4])
def test_ranks_pick_one_plan_and_train_to_the_loss_of_eager(ranks: int, tmp_path: Path) -> None:
    if torch.cuda.device_count() < ranks:
        pytest.skip(f"there are fewer than {ranks} CUDA devices")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    found = subprocess.run(
        [*command, str(SCRIPT), str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=LIMIT_S,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=False,
    )
    assert found.returncode == 0, found.stdout
    seen = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(ranks)]
    for rank in seen:
        assert rank["decision"] == seen[0]["decision"]
        assert rank["weights"] == seen[0]["weights"]
        assert rank["optimized"] == 5
        assert rank["planned"] == pytest.approx(rank["eager"], rel=1e-3)
