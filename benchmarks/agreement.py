"""Do runs agree? Tune one target ten times from scratch and compare the decisions.

Two runs agree if they decide for the same plan, or for plans whose speed-up intervals (95 %) overlap. The output also
shows the basis of each decision: the cost of compilation and all calls, as a share of eager's. If compilation barely
pays over these calls, two plans may cost the same and differ in speed.

Run it: python benchmarks/agreement.py zoo:tutorial.fusion_demo --device cpu --runs 10 --out .

With `--busy N`, N other processes compute meanwhile, each on its own core. With `--against FILE`, the JSON of earlier
runs on a quiet machine, each decision is judged as right, inconclusive or wrong. A plan is wrong if it is slower than
eager there. Eager is wrong if a plan is faster there by more than 2 % and would pay:

    python benchmarks/agreement.py zoo:tutorial.fusion_demo --runs 3 --label quiet
    python benchmarks/agreement.py zoo:tutorial.fusion_demo --runs 10 --label busy --busy 2 --budget 90 --against FILE

A plan of fewer threads may be right beside other programs and wrong without them. With `--among-themselves` each
decision is judged by the other runs, which were made under the same load.

With `--earlier FILE…`, runs from other such files are included. These may have run in parallel, each on its own cores
(`taskset`).
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

from torchwise.records import CostModel, Interval, Study, codec
from torchwise.records.answer import EXIT_INCONCLUSIVE
from torchwise.records.study import study_from_dict
from torchwise.study.history import TIE


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("target")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--calls", default="100000")
    parser.add_argument("--effort", default="standard")
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--busy", type=int, default=0, help="other processes that compute meanwhile")
    parser.add_argument("--budget", help="seconds of each search")
    parser.add_argument("--against", type=Path, help="JSON of earlier runs that tells what is right")
    parser.add_argument("--plan", action="append", default=[], help="plan of each search, as `torchwise tune` takes it")
    parser.add_argument("--earlier", type=Path, nargs="+", default=[], help="JSON of runs to take in")
    parser.add_argument("--among-themselves", action="store_true", help="judge each run by the others")
    parser.add_argument("--label", help="hardware, for the names of the files; the device where left out")
    parser.add_argument("--out", type=Path, default=Path("."))
    options = parser.parse_args()
    quiet = json.loads(options.against.read_text()) if options.against else []
    runs = [run for file in options.earlier for run in json.loads(file.read_text())]
    runs = runs if options.among_themselves else [add_judgement(run, quiet) for run in runs]
    with computing(options.busy if options.runs else 0):
        for number in range(options.runs):
            runs.append(add_judgement(tune(options), quiet))
            print(number, json.dumps(runs[-1]), flush=True)
            report(runs, options)  # after every run, so that an interrupted run keeps its results
    if options.among_themselves:
        runs = [add_judgement(run, [other for other in runs if other is not run]) for run in runs]
    print(report(runs, options))


def add_judgement(run: dict[str, object], quiet: list[dict[str, object]]) -> dict[str, object]:
    """Return a run with the judgement of its decision, if there are runs to judge it by."""
    return run | ({"judged": judge(run, quiet)} if quiet else {})


@contextlib.contextmanager
def computing(count: int, cores: Sequence[int] = ()) -> Iterator[None]:
    """Run `count` other processes that compute, each on one of these cores (or any), inside this context."""
    cores = cores or sorted(os.sched_getaffinity(0))
    code = "import os, sys; os.sched_setaffinity(0, {int(sys.argv[1])})\nwhile True: pass"
    others = [subprocess.Popen([sys.executable, "-c", code, str(cores[n % len(cores)])]) for n in range(count)]
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


def judge(run: dict[str, object], quiet: list[dict[str, object]]) -> str:
    """Judge a decision as right, inconclusive or wrong by the measurements of quiet runs, or unknown without any."""
    if run["answer"] == "inconclusive":
        return "inconclusive"
    known: dict[str, list[float]] = {}
    for earlier in quiet:
        for plan, speedup in earlier["speedups"].items():  # type: ignore[attr-defined]
            known.setdefault(plan, []).append(speedup["mid"])
    typical = {plan: statistics.median(speedups) for plan, speedups in known.items()}
    if run["answer"] == "yes":
        if (plan := str(run["plan"])) not in typical:
            return f"unknown: no quiet run timed {plan}"
        return "right" if typical[plan] > 1 else "wrong"
    pays = statistics.median(float(str(earlier["saved_s"])) for earlier in quiet) > 0
    return "wrong" if pays and max(typical.values(), default=1.0) > 1 + TIE else "right"


def tune(options: argparse.Namespace) -> dict[str, object]:
    """Tune once with an empty store, and return the decision."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "study.json")
        command = ["tune", options.target, "--device", options.device, "--calls", options.calls]
        command += ["--effort", options.effort, "--store", f"{folder}/store.db", "--json", str(file)]
        start = time.perf_counter()
        command += ["--budget", options.budget] if options.budget else []
        command += [word for plan in options.plan for word in ("--plan", plan)]
        ended = subprocess.run([sys.executable, "-m", "torchwise.cli", *command], capture_output=True, text=True)
        if ended.returncode not in (0, EXIT_INCONCLUSIVE):
            raise SystemExit(f"tune ended with {ended.returncode}: {ended.stderr[-2000:]}")
        seconds = time.perf_counter() - start
        study = json.loads(file.read_text())
    return summary(study_from_dict(study)) | {"seconds": round(seconds, 1)}


def summary(study: Study) -> dict[str, object]:
    """Return the decision, its cost, and every candidate with its speed-up."""
    decision = study.decision
    assert decision is not None
    economics = CostModel(decision.baseline_s, study.workload.calls, study.workload.restarts)
    costs = {str(t.plan): economics.cost(t) for t in study.trials if t.is_verified}
    cost = costs.get(str(decision.plan), Interval(*[economics.baseline_cost] * 3))
    return {
        "plan": str(decision.plan),
        "reason": decision.reason,
        "answer": decision.answer,
        "saved_s": decision.saved_s,
        "trust": study.trust.sentence,
        "speedups": {str(t.plan): asdict(t.speedup) for t in study.trials if t.is_verified and t.speedup},
        "speedup": asdict(decision.speedup or Interval(1.0, 1.0, 1.0)),
        "cost": {name: value / economics.baseline_cost for name, value in asdict(cost).items()},
        "tried": {str(t.plan): f"{t.speedup or ''} {t.reason}" for t in study.trials},
        "environment": codec.to_builtins(study.environment),
    }


def agree(one: dict[str, object], other: dict[str, object]) -> bool:
    first, second = one["speedup"], other["speedup"]
    assert isinstance(first, dict)
    assert isinstance(second, dict)
    return one["plan"] == other["plan"] or (first["low"] <= second["high"] and second["low"] <= first["high"])


def report(runs: list[dict[str, object]], options: argparse.Namespace) -> str:
    pairs = list(itertools.combinations(runs, 2))
    agreeing = sum(agree(one, other) for one, other in pairs)
    environment = runs[0]["environment"]
    assert isinstance(environment, dict)
    machine = f"{environment['gpu'] or environment['cpu']}, {environment['cpus']} CPUs, torch {environment['torch']}"
    lines = [f"{options.target} on {machine}, {datetime.date.today()}, {options.calls} calls, {options.effort}", ""]
    if options.busy:
        lines[:1] = [f"{lines[0]}, {options.busy} other processes computing"]
    lines += [
        "| run | plan | answer | speed-up over eager | cost, of eager's | search s |",
        "|---|---|---|---|---|---|",
    ]
    for number, run in enumerate(runs):
        cells = [f"{v['mid']:.3f} [{v['low']:.3f}, {v['high']:.3f}]" for v in (run["speedup"], run["cost"])]  # type: ignore[index]
        answer = f"{run['answer']}: {run['judged']}" if "judged" in run else run["answer"]
        lines.append(f"| {number} | {run['plan']} | {answer} | {' | '.join(cells)} | {run['seconds']} |")
    lines += ["", f"{agreeing} of {len(pairs)} pairs of runs agree."]
    if judged := [run["judged"] for run in runs if "judged" in run]:
        found = {word: judged.count(word) for word in ("right", "inconclusive", "wrong")}
        unknown = len(judged) - sum(found.values())
        counts = ", ".join(f"{times} {word}" for word, times in found.items())
        counts += f", {unknown} unknown" if unknown else ""
        beside = "the other runs" if options.among_themselves else "quiet runs"
        lines += ["", f"Beside {beside}: {counts}."]
    lines += ["", *(f"- run {number}: {run['trust']}" for number, run in enumerate(runs))]
    text = "\n".join(lines) + "\n"
    options.out.mkdir(parents=True, exist_ok=True)
    name = options.target.replace(":", "-").replace("@", "-")
    stem = f"{datetime.date.today()}-{options.label or options.device}-agreement-{name}"
    Path(options.out, f"{stem}.md").write_text(text)
    Path(options.out, f"{stem}.json").write_text(json.dumps(runs, indent=1))
    return text


if __name__ == "__main__":
    main()
