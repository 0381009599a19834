"""What each rank of a test on GPUs does: `torchrun --nproc-per-node N loops_nccl.py FOLDER`; see `loops_ranks`."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, str(Path(__file__).parent))

import loops_ranks

import torchwise
import torchwise.runtime.training
from torchwise.plan import Plan


def step_of(device: int) -> Any:
    net = loops_ranks.model(norm=False).to(device)
    return loops_ranks.step_of(DistributedDataParallel(net, device_ids=[device]))


def main(folder: str) -> None:
    device = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(device)
    dist.init_process_group("nccl")
    batches = [(x.to(device), y.to(device)) for x, y in loops_ranks.batches()]
    eager = step_of(device)
    expected = [eager(*batch).item() for batch in batches]
    step = step_of(device)
    plans = [Plan(backend="inductor", optimizer="fused")]
    decision = torchwise.runtime.training.tune(
        step, batches[0], plans=plans, effort="quick", calls=10**9, store=f"{folder}/store.db", progress=False
    )
    step = torchwise.runtime.training.apply(step, decision)
    losses = [step(*batch).item() for batch in batches]
    weights = [value for p in step.model.parameters() for value in p.flatten().tolist()]
    found = {
        "decision": decision.to_json(),
        "eager": expected,
        "planned": losses,
        "weights": weights,
        "optimized": 5 if decision.plan.is_eager else step.statistics.optimized,
    }
    Path(folder, f"{dist.get_rank()}.json").write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
