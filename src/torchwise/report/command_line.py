"""A command about the same workload, quoted so that it can be pasted."""

from __future__ import annotations

import shlex

from torchwise.workload import DEFAULT_CALLS, WorkloadSpec

TAKEN_BY = {
    "objective": ("tune", "analyze"),
    "calls": ("tune", "analyze", "explain"),
    "restarts": ("tune", "analyze"),
    "seed": ("tune", "analyze", "bisect"),
}
"""Commands that have an option of this name; all have the others."""


def command_line(name: str, spec: WorkloadSpec, *more: str) -> str:
    """Return `torchwise NAME TARGET …` with what was asked before, without what is so by default."""
    given: list[tuple[str, str | int, str | int]] = [
        ("mode", spec.mode, "inference"),
        ("objective", spec.objective, "latency"),
        ("calls", spec.calls, DEFAULT_CALLS),
        ("restarts", spec.restarts, 1),
        ("seed", spec.seed, 0),
    ]
    words = ["--device", spec.device]
    for option, value, usual in given:
        if value != usual and name in TAKEN_BY.get(option, (name,)):
            words += [f"--{option}", str(value)]
    words += more
    # A target that looks like an option goes last, after the mark that ends the options.
    ordered = [*words, "--", spec.target] if spec.target.startswith("-") else [spec.target, *words]
    return shlex.join(["torchwise", name, *ordered])
