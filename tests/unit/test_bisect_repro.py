"""Repros by themselves: a fault reduced to operators is a program that needs only torch."""

from __future__ import annotations

import runpy
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from torchwise.diagnose.bisect.probe import Captured, capture, extract_subgraph, list_graphs
from torchwise.diagnose.bisect.probe_runner import Part, Probe
from torchwise.diagnose.bisect.repro import write
from torchwise.plan.workload_spec import WorkloadSpec
from torchwise.trial import Job
from torchwise.workload import Workload
from torchwise.workload.target import load

TARGETS = Path(__file__).parents[1] / "targets"
KINDS = ("arrays", "use_checkpoint", "nest_conditions", "autocast", "odd_constants", "several_sizes")
ALONE = """
import runpy, sys
sys.modules["torchwise"] = None
for file in sys.argv[1:]:
    sys.argv = [file]
    try:
        runpy.run_path(file, run_name="__main__")
    except SystemExit as ended:
        print("ENDED", file, ended.code)
"""


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    yield
    torch.compiler.reset()


def order(target: str, **more: Any) -> Probe:
    return Probe(Job("try", WorkloadSpec(target, device="cpu")), "dynamo", **more)


def ends(*files: Path) -> list[str]:
    """Run programs in processes without Torchwise. Return how each ended."""
    command = [sys.executable, "-c", ALONE, *map(str, files)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    found = [line for line in done.stdout.splitlines() if line.startswith("ENDED")]
    assert len(found) == len(files), done.stdout + done.stderr
    return [line.split()[-1] for line in found]


def test_a_part_stands_alone_once_it_was_reduced_to_operators(tmp_path: Path) -> None:
    files = []
    for kind in KINDS:
        target = f"{TARGETS / 'repro_models.py'}:{kind}"
        for number, operations in enumerate(list_graphs(order(target), lambda _: None).graphs):
            files.append(tmp_path / f"{kind}_{number}.py")
            part = Part(number, tuple(operation.name for operation in operations))
            assert write(order(target, file=str(files[-1]), part=part), lambda _: None).standalone
            torch.compiler.reset()
    assert len(files) >= len(KINDS)
    # torch 2.11 cannot compile this: its guards find that the autocast state changed meanwhile.
    wrong = {"autocast_0.py"} if torch.__version__ < "2.12" else set()
    assert ends(*files) == ["1" if file.name in wrong else "0" for file in files]


def test_a_part_that_is_wrong_says_so(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The same program, with another number for the compiled side than for eager."""
    target, file = f"{TARGETS / 'repro_models.py'}:several_sizes", tmp_path / "wrong.py"
    write(order(target, file=str(file), part=Part(0, ("linear",))), lambda _: None)
    text = file.read_text()
    wrong = "return torch.compile(lambda *given: tuple(t * 1.01 for t in call(*given)), "
    file.write_text(text.replace("return torch.compile(call, ", wrong))
    assert file.read_text() != text
    with pytest.raises(SystemExit, match="1"):
        runpy.run_path(str(file), run_name="__main__")
    assert "FAULT: value 0 of example 0 is off by" in capfd.readouterr().out


def test_a_whole_target_is_judged_by_everything_that_it_answers(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    module = tmp_path / "of_arrays.py"
    module.write_text(
        "import torch\n\n\ndef make():\n"
        "    return (lambda x: {'a': x.numpy() * (2 if torch.compiler.is_compiling() else 1)}), (torch.ones(3),)\n"
    )
    file = tmp_path / "repro.py"
    assert not write(order(f"{module}:make", file=str(file)), lambda _: None).standalone
    with pytest.raises(SystemExit, match="1"):
        runpy.run_path(str(file), run_name="__main__")
    assert "FAULT: value 0" in capfd.readouterr().out


def graphs_of(workload: Workload) -> list[Captured]:
    return [found for found in capture(workload, training=False) if found.calls]


def test_a_graph_of_arrays_is_captured_anew_as_one_graph_with_its_lines() -> None:
    workload = load(f"{TARGETS / 'repro_models.py'}:arrays", device="cpu", seed=0)
    (captured,) = graphs_of(workload)
    assert all("_dynamo" not in str(getattr(node.target, "__module__", "")) for node in captured.calls)
    assert any("np.cumsum" in str(node.meta.get("stack_trace")) for node in captured.calls)
    part = extract_subgraph(captured, Part(0, tuple(node.name for node in captured.calls)))
    assert len(graphs_of(part)) == 1
    given = part.examples[0].args
    torch.testing.assert_close(part.call(*given)[-1].numpy(), workload.call(*workload.examples[0].args))


def test_a_part_is_looked_at_on_every_example() -> None:
    workload = load(f"{TARGETS / 'repro_models.py'}:several_sizes", device="cpu", seed=0)
    parts = [extract_subgraph(one, Part(0, tuple(node.name for node in one.calls))) for one in graphs_of(workload)]
    rows = [example.args[-1].shape[0] for part in parts for example in part.examples if example.args[-1].dim() == 2]
    assert {2, 3, 4} <= {*rows, *(t.shape[0] for p in parts for e in p.examples for t in e.tensors())}
