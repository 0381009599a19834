"""The time of a new process to its first optimised answer, with an artifact, without one, and with eager.

    python benchmarks/cold_start.py [TARGET] [--device cuda] [--starts N] [--plan JSON] [--json FILE]

Every start is a new process with an empty compile cache. The output shows the seconds of four stages. `imports` is for
torch and torchwise. `load` is for the artifact, with the import of the compiler. `model` builds the model. `first` is
from then to its first answer. Arms alternate, so that a change in the machine's load affects all of them.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

ARMS = ("eager", "without", "with")
STAGES = ("imports", "load", "model", "first")


def start(arm: str, target: str, device: str, file: str) -> None:
    """Run one new process, and print the seconds of its stages."""
    clock = [time.perf_counter()]
    import torch

    import torchwise
    from torchwise import artifact
    from torchwise.workload import target as targets

    clock.append(time.perf_counter())
    decision = artifact.load(file, trust=True) if arm == "with" else artifact.info(file).decision
    clock.append(time.perf_counter())
    workload = targets.load(target, device=device)
    if device == "cuda":
        torch.cuda.synchronize()
    clock.append(time.perf_counter())
    call = workload.call if arm == "eager" else torchwise.apply(workload.call, decision, strict=True)
    with torch.no_grad():
        call(*workload.examples[0].args, **workload.examples[0].kwargs)
    if device == "cuda":
        torch.cuda.synchronize()
    clock.append(time.perf_counter())
    assert arm == "eager" or call.statistics.optimized == 1, call.statistics
    print(json.dumps({stage: end - begin for stage, (begin, end) in zip(STAGES, pairwise(clock), strict=True)}))


def time_start(arm: str, options: argparse.Namespace, file: str) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        variables = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": folder, "TRITON_CACHE_DIR": f"{folder}/triton"}
        command = [sys.executable, __file__, options.target, "--device", options.device, "--start", arm, "--file", file]
        done = subprocess.run(command, capture_output=True, text=True, env=variables, check=False)
    if done.returncode:
        sys.exit(done.stderr)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", nargs="?", default="zoo:tutorial.fusion_demo")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--starts", type=int, default=5)
    parser.add_argument("--plan", default='{"backend":"inductor"}', help="fields of the plan that is started")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--start", choices=ARMS, help=argparse.SUPPRESS)
    parser.add_argument("--file", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.start:
        start(options.start, options.target, options.device, options.file)
        return
    import torchwise
    from torchwise import artifact

    plan = torchwise.Plan(**json.loads(options.plan))
    with tempfile.TemporaryDirectory() as folder:
        tuned = torchwise.tune(
            options.target, device=options.device, plans=[plan], effort="quick", store=f"{folder}/s.db", progress=False
        )
        file = f"{folder}/model.tw"
        made = artifact.save(file, options.target, replace(tuned.decision, plan=plan))  # even if eager would win
        arms: dict[str, list[dict[str, float]]] = {arm: [] for arm in ARMS}
        for _ in range(options.starts):
            for arm in ARMS:
                arms[arm].append(time_start(arm, options, file))
    print(f"{options.target} on {options.device}, plan {plan}, torch {made.manifest.environment.torch}")
    print(f"medians (largest) of {options.starts} starts, seconds; load average {os.getloadavg()[0]:.1f}")
    for arm, runs in arms.items():
        cells = [
            f"{stage} {statistics.median(r[stage] for r in runs):.2f} ({max(r[stage] for r in runs):.2f})"
            for stage in STAGES
        ]
        print(f"  {arm:8}", "  ".join(cells))
    if options.json:
        options.json.write_text(json.dumps({"target": options.target, "plan": str(plan), "arms": arms}, indent=1))


if __name__ == "__main__":
    main()
