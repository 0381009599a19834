"""Models that are compiled in one process and called in another."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import torch

from torchwise.compile import compile_plan
from torchwise.compile.aot import Code, Maker
from torchwise.plan import Plan
from torchwise.workload import Example

SHIFT = 0.25
FACTORS = [2.0]

ROWS = Plan(backend="row_programs").with_choice("options", ("fallback_random", True))
CASES = {
    "module": Plan(backend="inductor"),
    "function": Plan(backend="inductor"),
    "complex": Plan(backend="inductor", transforms=("complex_to_real",)),
    "reduced": Plan(backend="inductor", precision="bf16"),
    "shapes": Plan(backend="inductor"),
    "patches": Plan(backend="inductor", transforms=("patch_matmul",)),
    "points": Plan(backend="inductor", transforms=("structure_of_arrays",)),
    "library": Plan(backend="inductor"),
    "laid out": Plan(backend="inductor", transforms=("eager_strides",)),
    "rows": ROWS,
    "rows apart": ROWS,
    "complex rows": ROWS,
}


class Model(torch.nn.Module):
    """A layer, and a number that is read on every call."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(8, 8)
        self.scale = 2.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.layer(x)) * self.scale


class Patches(torch.nn.Module):
    """Patches of a series, and something done to each."""

    def __init__(self) -> None:
        super().__init__()
        self.cut = torch.nn.Conv1d(2, 4, 4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.cut(x).flatten(1))


def function(x: torch.Tensor) -> torch.Tensor:
    return torch.sin(x) + SHIFT


def waves(x: torch.Tensor) -> torch.Tensor:
    return torch.exp(1j * x) * (x + 1)


def distances(points: torch.Tensor) -> torch.Tensor:
    return (points[:, None] - points[:8]).square().sum(dim=-1)


def begin_cache(x: torch.Tensor) -> torch.Tensor:
    """Join the first keys to an empty tensor, as caches of Transformers do. Inductor lays them out otherwise."""
    return torch.cat([x.new_empty(0), x.reshape(len(x), 4, 2).mT + 1], dim=-2)


def sort_between(x: torch.Tensor) -> list[torch.Tensor]:
    """Sort between two regions, with a constant of the graph, outputs that lie otherwise, and one as it was given."""
    values, places = torch.sort((x * torch.tensor(3.0) + 1).tanh(), -1)
    return [(values * 2 + x).exp(), places, (x.t() * 3).sin(), x]


def reads_a_list(x: torch.Tensor) -> torch.Tensor:
    return x * FACTORS[0]


def build(name: str, device: str = "cpu") -> tuple[Any, list[Example]]:
    """Return what is called, always the same, and its example inputs."""
    torch.manual_seed(0)
    functions = {"function": function, "complex": waves, "points": distances, "laid out": begin_cache}
    functions |= {"rows apart": sort_between, "complex rows": waves}
    call: Any = functions.get(name) or Model().eval().to(device)
    if name == "library":
        call = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU()).eval().to(device)
    if name == "patches":
        return Patches().eval().to(device), [Example((torch.randn(3, 2, 8).to(device),), {})]
    if name == "points":
        return call, [Example((torch.randn(64, 3).to(device),), {})]
    sizes = (3, 5) if name == "shapes" else (3,)
    return call, [Example((torch.randn(size, 8).to(device),), {}) for size in sizes]


def main(folder: str, device: str) -> None:
    """Compile every case in this process, each into a file of its name."""
    for name, plan in CASES.items():
        call, inputs = build(name, device)
        maker = Maker()
        realized = compile_plan(call, plan, inputs[0], device=device, mode="inference", backend=maker)
        with torch.no_grad():
            for example in inputs:
                realized.call(*example.args)
        Path(folder, name).write_bytes(msgspec.msgpack.encode(maker.made))


def compile_in_subprocess(folder: Path, device: str) -> dict[str, list[Code]]:
    """Have another process run `main`, and return what it compiled, by case."""
    program = f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r}); import ahead_models; "
    program += f"ahead_models.main({str(folder)!r}, {device!r})"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=300)
    return {file.name: msgspec.msgpack.decode(file.read_bytes(), type=list[Code]) for file in folder.iterdir()}
