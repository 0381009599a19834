"""What each rank of a test does: `python -m torch.distributed.run --nproc-per-node 2 loops_ranks.py SCENE,… FOLDER`.

Each rank writes what it saw to FOLDER/SCENE.RANK.json.
"""

from __future__ import annotations

import dataclasses
import datetime
import itertools
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, str(Path(__file__).parents[1]))

import torchwise.runtime.training
from conftest import compile_by
from live_decisions import make_decision
from torchwise.plan import Plan
from torchwise.plan.effort import EFFORTS
from torchwise.records import Decision
from torchwise.runtime.step import StepDispatcher

COMPILE = StepDispatcher.compile
EXACT = Plan(activation_checkpointing="blocks")
TIMEOUT_S = 3
"""What the collectives of the training may take: less than a rank is away for in these scenes."""


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(16)
        self.linear = torch.nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.nn.functional.gelu(self.linear(self.norm(x)))


def model(norm: bool = True, blocks: int = 3) -> torch.nn.Sequential:
    torch.manual_seed(0)
    first = torch.nn.BatchNorm1d(16) if norm else torch.nn.Identity()
    return torch.nn.Sequential(torch.nn.Linear(4, 16), first, *[Block() for _ in range(blocks)], torch.nn.Linear(16, 3))


def step_of(net: torch.nn.Module, **options: Any) -> torchwise.TrainStep:
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    return torchwise.TrainStep(net, torch.nn.functional.cross_entropy, optimizer, clip_norm=1.0, **options)


def batches(count: int = 5) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return batches of this rank alone."""
    draw = torch.Generator().manual_seed(100 + dist.get_rank())
    return [(torch.randn(8, 4, generator=draw), torch.randint(0, 3, (8,), generator=draw)) for _ in range(count)]


def whole(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def train(step: Any) -> dict[str, Any]:
    """Train; return the losses and what the weights are on this rank."""
    losses = [step(*batch).item() for batch in batches()]
    weights = [whole(p.detach()).flatten().tolist() for p in step.model.parameters()]
    return {"losses": losses, "weights": [value for weight in weights for value in weight]}


def both(
    plan: Plan, wrap: Any = DistributedDataParallel, norm: bool = True, blocks: int = 3, **options: Any
) -> dict[str, Any]:
    """Train as written and by the plan, from the same start."""
    eager = train(step_of(wrap(model(norm, blocks)), **options))
    decision = make_decision(step_of(model(norm, blocks), **options), plan, *batches(1)[0])
    step = torchwise.runtime.training.apply(step_of(wrap(model(norm, blocks)), **options), decision, patience=60)
    planned = train(step)
    counts = step.statistics
    return {
        "eager": eager,
        "planned": planned,
        "optimized": counts.optimized,
        "original": counts.snapshot()["original"],
        "original_sentences": counts.snapshot()["original_sentences"],
        "plan": str(step.decision.plan),
    }


def exact() -> dict[str, Any]:
    return both(EXACT)


def accumulate_gradients() -> dict[str, Any]:
    return both(EXACT, accumulate=2)


def fuse_optimizer() -> dict[str, Any]:
    return both(Plan(optimizer="fused"), norm=False)


def compile_step() -> dict[str, Any]:
    return both(Plan(backend="inductor"), norm=False, blocks=1)


def shard_model(net: torch.nn.Module) -> torch.nn.Module:
    for block in net[2:-1]:  # type: ignore[index]
        fully_shard(block)
    fully_shard(net)
    return net


def shard_and_train() -> dict[str, Any]:
    return both(EXACT, shard_model, norm=False, accumulate=2)


def shard_and_compile() -> dict[str, Any]:
    with pytest.MonkeyPatch.context() as patch:
        compile_by("aot_eager", patch)
        return both(Plan(backend="inductor", scope="regional"), shard_model, norm=False)


def shard_too_early() -> dict[str, Any]:
    try:
        torchwise.runtime.training.tune(step_of(shard_model(model(False))), batches(1)[0])
    except torchwise.TorchwiseError as error:
        return {"error": str(error)}
    return {}


def slow() -> dict[str, Any]:
    """Rank 1 takes longer for its first planned step than collectives may."""

    def slowly(self: Any, batch: Any) -> Any:
        if self.active_plan is None and dist.get_rank() == 1:
            time.sleep(TIMEOUT_S + 2)
        return COMPILE(self, batch)

    StepDispatcher.compile = slowly  # type: ignore[method-assign]
    return both(EXACT)


def slow_sharded() -> dict[str, Any]:
    """As `slow`, but in the midst of the exchanges of sharded weights."""
    forward = torch.nn.Linear.forward
    calls = itertools.count(1)  # a list would be state of the model, put back after the rehearsal

    def slowly(self: Any, x: torch.Tensor) -> torch.Tensor:
        if next(calls) == 3 and dist.get_rank() == 1:
            time.sleep(TIMEOUT_S + 2)
        return forward(self, x)

    eager = train(step_of(shard_model(model(False))))
    decision = make_decision(step_of(model(False)), EXACT, *batches(1)[0])
    step = torchwise.runtime.training.apply(step_of(shard_model(model(False))), decision, patience=60)
    torch.nn.Linear.forward = slowly  # type: ignore[method-assign]
    try:
        planned = train(step)
    finally:
        torch.nn.Linear.forward = forward  # type: ignore[method-assign]
    return {"eager": eager, "planned": planned, "optimized": step.statistics.optimized}


def fail_on_one_rank() -> dict[str, Any]:
    """The plan fails on rank 1 alone."""

    def fail(self: Any, batch: Any) -> Any:
        if dist.get_rank() == 1:
            raise RuntimeError("no such luck")
        return COMPILE(self, batch)

    StepDispatcher.compile = fail  # type: ignore[method-assign]
    return both(EXACT)


def stale() -> dict[str, Any]:
    """The decision does not hold on rank 1 alone."""
    eager = train(step_of(DistributedDataParallel(model())))
    decision = make_decision(step_of(model()), EXACT, *batches(1)[0])
    step = step_of(DistributedDataParallel(model()))
    if dist.get_rank() == 1:
        step.clip_norm = 2.0
    applied = torchwise.runtime.training.apply(step, decision, patience=60)
    step.clip_norm = 1.0
    planned, counts = train(applied), applied.statistics.snapshot()
    return {
        "eager": eager,
        "planned": planned,
        "original": counts["original"],
        "original_sentences": counts["original_sentences"],
        "optimized": 0,
    }


def different() -> dict[str, Any]:
    """Each rank has a decision of its own."""
    plan = EXACT if dist.get_rank() else Plan(optimizer="fused")
    return both(plan)


def odd_batch() -> dict[str, Any]:
    """Rank 1 begins with a batch of another size than was proven."""
    decision = make_decision(step_of(model()), EXACT, *batches(1)[0])
    step = torchwise.runtime.training.apply(step_of(DistributedDataParallel(model())), decision, patience=60)
    for number, (x, y) in enumerate(batches()):
        cut = 6 if (dist.get_rank() == 1 and number == 0) or number == 4 else 8
        step(x[:cut], y[:cut])
    weights = [value for p in step.model.parameters() for value in p.flatten().tolist()]
    return {"optimized": step.statistics.optimized, "weights": weights}


def tune() -> dict[str, Any]:
    """Rank 0 tunes for all, in a hurry: what it decides for does not matter here."""
    EFFORTS["quick"] = dataclasses.replace(EFFORTS["quick"], measure_s=0.2, extra_draws=0, noise_s=0.2)
    os.environ["LOOPS_KEPT"] = "1"
    step = step_of(DistributedDataParallel(model()))
    options = {"plans": [EXACT], "effort": "quick", "store": sys.argv[2] + "/store.db", "progress": False}
    decision = torchwise.runtime.training.tune(step, batches(1)[0], patience=120, allow="exact", **options)
    assert isinstance(decision, Decision)
    return {"decision": decision.to_json(), "rank": os.environ["RANK"], **train(step)}


def tune_long() -> dict[str, Any]:
    """Rank 0 tunes what takes for ever in its worker."""
    folder = Path(sys.argv[2])
    (folder / f"rank{dist.get_rank()}").write_text(str(os.getpid()))
    net = torch.nn.Sequential(Sleeper(os.getpid(), str(folder / "worker")), model())
    step = step_of(DistributedDataParallel(net))
    torchwise.runtime.training.tune(step, batches(1)[0], store=f"{folder}/store.db", progress=False)
    return {}


class Sleeper(torch.nn.Module):
    """Sleeps wherever it is called but in its own process, and says so in a file."""

    def __init__(self, home: int, sign: str) -> None:
        super().__init__()
        self.home, self.sign = home, sign

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if os.getpid() != self.home:
            Path(self.sign).write_text(str(os.getpid()))
            time.sleep(600)
        return x


def wrong() -> dict[str, Any]:
    """What rank 0 is asked cannot be answered."""
    try:
        torchwise.runtime.training.tune(
            step_of(DistributedDataParallel(model())), batches(1)[0], effort="heroic", patience=60
        )
    except torchwise.TorchwiseError as error:
        return {"error": f"{type(error).__name__}: {error}"}
    return {}


def main(scenes: str, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=TIMEOUT_S))
    for name in scenes.split(","):
        begun = time.monotonic()
        seen = {**globals()[name](), "seconds": time.monotonic() - begun}
        Path(folder, f"{name}.{dist.get_rank()}.json").write_text(json.dumps(seen))
        StepDispatcher.compile = COMPILE  # type: ignore[method-assign]
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
