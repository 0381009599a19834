"""How much faster is a sweep on several devices than on one, and are the decisions the same?

    python benchmarks/sweep_scaling.py RESULT.json --devices 4 [--manifest FILE] [--launcher ray]

It runs the sweep on that many devices and then on one, each with its own store, so that nothing is reused. RESULT.json
is written after each. Runs in it are not repeated, so the two may run at different times on one machine. Then it
reports the ratio of the two wall times, and whether both sweeps chose the same plan for each study. Each wall time is
of a single run. The ratio of a study's time in parallel to its time alone has an interval over the studies.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from torchwise.environment import default_device, detect
from torchwise.plan import Plan
from torchwise.records import codec
from torchwise.records.statistics import median_interval
from torchwise.study.history import TIE

MANIFEST = Path(__file__).parent / "sweeps" / "zoo.toml"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("result", type=Path)
    parser.add_argument("--devices", type=int, required=True)
    parser.add_argument("--manifest", type=Path, default=MANIFEST)
    parser.add_argument("--launcher", default="process")
    parser.add_argument("--now", type=int, help="run only the sweep on so many devices; the other when called again")
    options = parser.parse_args()
    if options.devices < 2 or options.now not in (None, 1, options.devices):
        parser.error(
            f"--devices must be 2 or more, and --now {options.devices} or 1: one device is compared with several"
        )
    record = json.loads(options.result.read_text()) if options.result.exists() else {"runs": {}}
    conditions = {"manifest": options.manifest.read_text(), "launcher": options.launcher, **_here()}
    if other := [name for name, value in conditions.items() if name != "date" and record.get(name, value) != value]:
        parser.error(f"{options.result} was started with another {other[0]}: pass another file")
    record |= conditions
    for devices in (options.devices, 1):
        if str(devices) not in record["runs"] and options.now in (None, devices):
            record["runs"][str(devices)] = _swept(options.manifest, devices, options.launcher)
            options.result.write_text(json.dumps(record, indent=1) + "\n")
    if {str(options.devices), "1"} <= record["runs"].keys():
        print(report(record["runs"][str(options.devices)], record["runs"]["1"], options.devices))


def _swept(manifest: Path, devices: int, launcher: str) -> dict[str, Any]:
    """Run a sweep on `devices` devices, and return its wall seconds and a short form of its studies."""
    with tempfile.TemporaryDirectory(prefix="torchwise-sweep-") as folder:
        told, store = Path(folder, "sweep.json"), Path(folder, "store.db")
        command = [sys.executable, "-m", "torchwise.cli", "sweep", str(manifest), "--parallel", str(devices)]
        command += ["--launcher", launcher, "--store", str(store), "--json", str(told)]
        start = time.monotonic()
        code = subprocess.run(command, check=False).returncode
        seconds = time.monotonic() - start
        if not told.exists():
            sys.exit(f"the sweep ended with exit code {code} and no result")
        studies = [_figures(study) for study in json.loads(told.read_text())["studies"]]
    return {"seconds": seconds, "exit_code": code, "studies": studies}


def _figures(swept: dict[str, Any]) -> dict[str, Any]:
    study = swept["study"] or {}
    decision = study.get("decision") or {}
    trials = study.get("trials", [])
    return {
        "target": swept["task"]["target"],
        "seconds": swept["seconds"],
        "plan": decision.get("plan"),
        "speedup": decision.get("speedup"),
        "trials": len(trials),
        "proven": {
            json.dumps(trial["plan"], sort_keys=True): trial["speedup"] for trial in trials if trial.get("speedup")
        },
        "reason": swept["reason"],
    }


def report(several: dict[str, Any], one: dict[str, Any], devices: int) -> str:
    """Return a Markdown table of the two sweeps, and their comparison."""
    lines = [
        f"| study | s, {devices} at once | s, alone | decided, {devices} at once | decided, alone | |",
        "|---" * 6 + "|",
    ]
    verdicts = []
    for a, b in zip(several["studies"], one["studies"], strict=True):
        verdicts.append(agreement(a, b))
        times = f"{a['seconds']:.0f} | {b['seconds']:.0f}"
        lines.append(f"| {a['target']} | {times} | {_decision_text(a)} | {_decision_text(b)} | {verdicts[-1]} |")
    ratio = one["seconds"] / several["seconds"]
    slower = median_interval(
        [a["seconds"] / b["seconds"] for a, b in zip(several["studies"], one["studies"], strict=True)]
    )
    same, tied = verdicts.count("same"), verdicts.count("tied")
    return "\n".join(
        [
            f"{len(verdicts)} studies: {one['seconds']:.0f} s on one device, {several['seconds']:.0f} s on {devices}: "
            f"{ratio:.2f} times as fast. A study took {slower} times as long in parallel as alone.",
            f"Decisions: {same} the same, {tied} tied, {len(verdicts) - same - tied} different.",
            "",
            *lines,
        ]
    )


def agreement(a: dict[str, Any], b: dict[str, Any]) -> str:
    """Say whether two studies agree: on one plan, or on two that neither sweep distinguishes.

    Two plans are not distinguished if their speed-ups do not differ surely, or by no more than `TIE`. Within `TIE`,
    decisions are for the simpler plan.
    """
    if a["plan"] is None or b["plan"] is None:
        return "undecided"
    if a["plan"] == b["plan"]:
        return "same"
    plans = [json.dumps(study["plan"], sort_keys=True) for study in (a, b)]
    for proven in (a["proven"], b["proven"]):
        found = [proven.get(plan, {"low": 1.0, "high": 1.0}) for plan in plans]
        if any(one["low"] > (1 + TIE) * other["high"] for one, other in (found, reversed(found))):
            return "different"
    return "tied"


def _decision_text(study: dict[str, Any]) -> str:
    if study["plan"] is None:
        return "–"
    plan, speedup = codec.from_builtins(study["plan"], Plan), study["speedup"]
    return f"{plan}, {speedup['mid']:.2f} [{speedup['low']:.2f}, {speedup['high']:.2f}]" if speedup else str(plan)


def _here() -> dict[str, Any]:
    here = detect(default_device())
    return {
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "hardware": here.hardware,
        "torch": here.torch,
        "python": platform.python_version(),
    }


if __name__ == "__main__":
    main()
