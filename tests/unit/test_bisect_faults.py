"""Planted faults, found by real workers: one for each stage, and the real one of torch 2.11."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
import typer
from typer.testing import CliRunner

from torchwise.cli.bisect import bisect as command
from torchwise.diagnose.bisect import bisect
from torchwise.errors import BaselineError, InputError
from torchwise.records.bisection import Bisection, Symptom

FAULTS = Path(__file__).parents[1] / "targets" / "bisect_faults.py"


def bisect_fault(name: str, tmp_path: Path, **options: object) -> Bisection:
    repro = tmp_path / "repro.py"
    return bisect(f"{FAULTS}:{name}", repro=repro, progress=False, **options)  # type: ignore[arg-type]


def check_repro(found: Bisection) -> str:
    """Check that the repro showed the fault when it was run. Return its text."""
    assert found.repro is not None
    assert found.repro.confirmed
    return Path(found.repro.file).read_text()


def rerun_repro(found: Bisection) -> str:
    """Check that the repro shows the fault once more, from another folder. Return its text."""
    text = check_repro(found)
    assert found.repro is not None
    done = subprocess.run([sys.executable, found.repro.file], cwd="/", capture_output=True, check=False, timeout=300)
    assert done.returncode not in (0, 2)
    return text


@pytest.mark.parametrize("name", ["eager_raises", "eager_nan", "eager_dies"])
def test_a_model_that_fails_by_itself_is_told_from_one_that_compiling_breaks(name: str, tmp_path: Path) -> None:
    with pytest.raises(BaselineError, match=r"does not agree with|run without a plan|the model raised"):
        bisect_fault(name, tmp_path)


def test_a_model_that_is_never_compiled_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="nothing of the model is compiled"):
        bisect_fault("disable_compile", tmp_path)


@pytest.mark.slow
@pytest.mark.nightly
def test_an_exception_while_tracing_is_followed_by_the_command_to_its_operation_and_line(tmp_path: Path) -> None:
    told, repro = tmp_path / "found.json", tmp_path / "repro.py"
    code, output = run(f"{FAULTS}:aot_raises", "--device", "cpu", "--repro", str(repro), "--json", str(told))
    assert code == 1
    assert "reproducer confirmed" in output
    found = Bisection.from_json(told.read_text())
    assert (found.observation.symptom, found.stage) == (Symptom.CRASH, "aot_eager")
    assert found.subgraph is not None
    assert len(found.subgraph.operations) == 1
    assert "_raises" in found.subgraph.operations[0].operator
    assert found.subgraph.operations[0].source.startswith(f"{FAULTS}:")
    assert found.repro is not None
    assert not found.repro.standalone
    rerun_repro(found)


@pytest.mark.slow
def test_a_death_of_the_process_costs_one_look_and_is_followed() -> None:
    found = bisect(f"{FAULTS}:aot_dies", what="crash", progress=False)
    assert (found.observation.kind, found.stage) == ("SIGSEGV", "aot_eager")
    assert found.subgraph is not None
    assert "_dies" in found.subgraph.operations[0].operator


@pytest.mark.slow
@pytest.mark.nightly
def test_a_hang_is_ended_and_placed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torchwise.diagnose.bisect.probe_runner.MIN_PATIENCE_S", 2.0)
    found = bisect(f"{FAULTS}:aot_hangs", what="hang", limit=6, budget=7, progress=False)
    assert found.observation.symptom is Symptom.HANG
    assert "_hangs" in found.observation.detail


@pytest.mark.slow
@pytest.mark.nightly
def test_what_dynamo_takes_for_something_else_is_dynamos(tmp_path: Path) -> None:
    found = bisect_fault("dynamo_wrong", tmp_path)
    assert (found.observation.symptom, found.stage, found.subgraph) == (Symptom.WRONG, "dynamo", None)
    assert "load_target" in check_repro(found)


@pytest.mark.slow
def test_what_is_not_finite_is_told_from_what_is_wrong() -> None:
    found = bisect(f"{FAULTS}:dynamo_nan", progress=False)
    assert (found.observation.symptom, found.stage, found.subgraph) == (Symptom.NAN, "dynamo", None)


@pytest.mark.slow
@pytest.mark.nightly
def test_a_wrong_decomposition_is_named_with_the_operation_it_spoils(tmp_path: Path) -> None:
    found = bisect_fault("decomposition_wrong", tmp_path)
    assert found.stage == "aot_eager_decomp_partition"
    assert found.cause is not None
    assert (found.cause.kind, found.cause.name) == ("decomposition", "aten.sigmoid.default")
    assert found.subgraph is not None
    assert [operation.operator for operation in found.subgraph.operations] == ["torch.sigmoid"]
    assert any("target's own code" in note for note in found.notes)
    check_repro(found)


@pytest.mark.slow
@pytest.mark.nightly
def test_a_wrong_pass_is_named_and_left_out() -> None:
    found = bisect(f"{FAULTS}:post_grad_wrong", progress=False)
    assert found.stage == "inductor"
    assert found.cause is not None
    assert (found.cause.kind, found.cause.name) == ("pass", "post_grad_custom_post_pass")
    assert found.cause.workaround == {"disabled_passes": "post_grad_custom_post_pass"}


@pytest.mark.slow
@pytest.mark.nightly
def test_a_crash_of_vectorised_code_is_brought_down_to_that_option(tmp_path: Path) -> None:
    found = bisect_fault("code_dies", tmp_path)
    assert (found.stage, found.observation.kind) == ("inductor", "SIGSEGV")
    assert found.cause is not None
    assert found.cause.workaround == {"cpp.simdlen": 1}
    check_repro(found)


class BroadcastAdd(torch.nn.Module):
    """pytorch/pytorch#174891."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.cos(x) * 2
        return torch.exp(x + torch.ones(2, 1, dtype=torch.complex64)).sum(0)


@pytest.mark.slow
def test_the_complex_broadcast_of_torch_2_11_is_found_and_later_versions_have_none(tmp_path: Path) -> None:
    x = torch.full((2, 2), 1.0, dtype=torch.complex64)
    found = bisect(BroadcastAdd(), (x,), repro=tmp_path / "repro.py", progress=False)
    if not torch.__version__.startswith("2.11."):
        assert not found.found
        return
    assert (found.observation.symptom, found.stage) == (Symptom.WRONG, "inductor")
    assert found.cause is not None
    assert found.cause.name == "constant_fold_uniform_value"
    assert found.subgraph is not None
    assert [operation.operator for operation in found.subgraph.operations] == ["torch.ones", "add"]
    assert found.repro is not None
    assert found.repro.standalone
    assert "torchwise" not in rerun_repro(found).partition('"""\n')[2]


def run(*arguments: str) -> tuple[int, str]:
    app = typer.Typer(pretty_exceptions_enable=False)
    app.command()(command)
    result = CliRunner().invoke(app, arguments)
    return (getattr(result.exception, "exit_code", result.exit_code), f"{result.output} {result.exception or ''}")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("nowhere.py:make",), "no file"),
        ((f"{FAULTS}:healthy", "--what", "odd"), "must be one of auto"),
        ((f"{FAULTS}:healthy", "--mode", "odd"), "mode is 'odd'"),
        ((f"{FAULTS}:healthy", "--repro", "/no/such/folder/r.py"), "no folder"),
        ((f"{FAULTS}:healthy", "--repro", "r.txt"), "must be a .py file"),
        ((f"{FAULTS}:healthy", "--plan", "{}"), "schema"),
        ((f"{FAULTS}:healthy", "--plan", '{"schema":"torchwise.plan/1"}'), "the plan is eager, so there is nothing"),
        ((f"{FAULTS}:healthy", "--plan", "odd"), "must be a plan's words"),
    ],
)
def test_bad_input_ends_with_exit_code_2(arguments: tuple[str, ...], message: str) -> None:
    code, output = run(*arguments)
    assert code == 2
    assert message in output


@pytest.mark.slow
def test_the_command_exits_with_0_where_nothing_is_found(tmp_path: Path) -> None:
    file = tmp_path / "found.json"
    code, output = run(f"{FAULTS}:healthy", "--device", "cpu", "--no-repro", "--json", str(file))
    assert code == 0
    assert "No fault found" in output
    assert not Bisection.from_json(file.read_text()).found


@pytest.mark.slow
def test_a_wrong_array_is_found() -> None:
    found = bisect(f"{FAULTS}:dynamo_wrong_arrays", progress=False)
    assert (found.observation.symptom, found.stage) == (Symptom.WRONG, "dynamo")
    assert "output['sums']" in found.observation.detail


@pytest.mark.slow
def test_the_command_exits_with_5_where_nothing_can_be_compared() -> None:
    code, output = run(f"{FAULTS}:opaque", "--device", "cpu", "--no-repro")
    assert code == 5
    assert "Not comparable" in output
    assert "lock" in output


def test_an_interrupted_command_exits_with_130(monkeypatch: pytest.MonkeyPatch) -> None:
    def raise_interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("torchwise.diagnose.bisect.run_bisection", raise_interrupt)
    code, output = run(f"{FAULTS}:healthy", "--device", "cpu", "--no-repro")
    assert code == 130
    assert "interrupted" in output
