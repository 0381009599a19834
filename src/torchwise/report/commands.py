"""Commands about the same workload, quoted for a shell."""

from __future__ import annotations

import shlex
from dataclasses import asdict, fields
from typing import Any

from torchwise.plan import Numerics
from torchwise.plan.workload_spec import LIVE, WorkloadSpec

OPTION_COMMANDS = {
    "objective": ("tune", "analyze"),
    "calls": ("tune", "analyze", "explain"),
    "restarts": ("tune", "analyze"),
    "seed": ("tune", "analyze", "bisect"),
    "memory_limit": ("tune",),
}
"""Commands that have an option of this name. All commands have the other options."""
BREAK = " \\"
"""End of a line whose command continues on the next line."""


def is_live(spec: WorkloadSpec) -> bool:
    """Whether the workload exists only in a Python program."""
    return spec.target.startswith(LIVE)


def options(spec: WorkloadSpec, allow: str = Numerics.SAME_PRECISION) -> dict[str, Any]:
    """Return the options of the request that are not defaults, by the parameter names of `torchwise.tune`."""
    defaults = {field.name: field.default for field in fields(spec)} | {"allow": Numerics.SAME_PRECISION}
    defaults |= {"target": spec.target, "device": None}  # always named, as its default depends on the machine
    values = {**asdict(spec), "allow": str(allow)}
    return {name: value for name, value in values.items() if value != defaults[name]}


def command_line(name: str, spec: WorkloadSpec, *more: str, allow: str = Numerics.SAME_PRECISION) -> str:
    """Return `torchwise NAME TARGET …` with the options of the request that are not defaults."""
    words = []
    for option, value in options(spec, allow).items():
        if name in OPTION_COMMANDS.get(option, (name,)):
            text = f"{value / 2**30:.6g}" if option == "memory_limit" else str(value)  # the command line counts in GiB
            words += [f"--{option.replace('_', '-')}", text]
    words += more
    # A target that looks like an option goes last, after the mark that ends the options.
    ordered = [*words, "--", spec.target] if spec.target.startswith("-") else [spec.target, *words]
    return shlex.join(["torchwise", name, *ordered])


def wrap_command(command: str, width: int) -> list[str]:
    """Return a shell command as lines that fit `width` if its words allow it. Pasted, they are one command."""
    if len(command) <= width or not command.startswith("torchwise "):
        return [command]
    units: list[str] = []
    for word in map(shlex.quote, shlex.split(command)):
        # An option stays with its value.
        if units and units[-1].startswith("--") and " " not in units[-1] and not word.startswith("-"):
            units[-1] += f" {word}"
        else:
            units.append(word)
    lines = [""]
    for unit in units:
        if len(lines[-1]) + 1 + len(unit) + len(BREAK) > width and lines[-1]:
            lines.append("   ")
        lines[-1] += f" {unit}" if lines[-1] else unit
    return [line + BREAK for line in lines[:-1]] + lines[-1:]
