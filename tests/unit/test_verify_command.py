"""`torchwise verify` and `torchwise.verify`: requests, reports, reproducers, exit codes, and bad input."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import torchwise
from torchwise.cli import app
from torchwise.cli.verify import exit_code
from torchwise.diagnose import pair
from torchwise.errors import BaselineError, InputError
from torchwise.plan.workload_spec import WorkloadSpec
from torchwise.records import Failure, FailureKind, WorkerStage, codec
from torchwise.records.listener import Listener
from torchwise.records.pair import PairVerdict
from torchwise.report.pair import describe_verdict, render_pair_html

SIDES = '''
import torch

def softmax(x):
    """Right."""
    return torch.softmax(x, dim=-1)

def shifted(x):
    e = (x - x.amax(dim=-1, keepdim=True)).exp()
    return e / e.sum(dim=-1, keepdim=True)

def edge(x):
    found = softmax(x)
    if x.shape[-1] == 3:
        found[..., -1] *= 1.01
    return found

def unwritten(x):
    out = torch.empty_like(x)
    out[..., :-1] = softmax(x)[..., :-1]
    return out

def in_bf16(x):
    return torch.softmax(x.bfloat16(), dim=-1).float()

def drop(x):
    return torch.nn.functional.dropout(x, 0.25)

def no_gradient(x):
    return softmax(x).detach()

def raises(x):
    raise RuntimeError("out of order")

def make():
    return softmax, (torch.randn(4, 3),)

class Layer(torch.nn.Linear):
    def __init__(self):
        super().__init__(3, 2)

class Biased(Layer):
    def forward(self, x):
        return super().forward(x) + 1e-3
'''
MATRIX = "x: float32[n, m] n=0..5 m=1..5"


class Inline:
    """A launcher that does the work in this process."""

    def __init__(self, **_options: bool) -> None:
        pass

    def run(self, job: Any, _limits: Any, on_stage: Callable[[str], None]) -> str:
        module, _, function = job.task.partition(":")
        return codec.to_json(getattr(importlib.import_module(module), function)(job, on_stage))


@pytest.fixture
def sides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, one_thread: None) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(torchwise.trial, "ProcessLauncher", Inline)
    monkeypatch.setattr(pair, "ProcessLauncher", Inline)
    (tmp_path / "sides.py").write_text(SIDES)
    (tmp_path / "junk.pt").write_bytes(b"junk")
    return tmp_path


def verify(
    candidate: str, reference: str = "softmax", inputs: tuple[str, ...] = (MATRIX,), **options: Any
) -> PairVerdict:
    spec = WorkloadSpec(f"sides.py:{reference}", mode=options.pop("mode", "inference"))
    request = pair.PairRequest(spec, f"sides.py:{candidate}", inputs, **options)
    return pair.run_verification(request, Inline(), Listener())


def invoke(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["verify", *arguments, "--device", "cpu"])


def test_another_algorithm_is_equal_and_a_wrong_one_is_not(sides: Path) -> None:
    good = invoke("sides.py:softmax", "sides.py:shifted", "--input", MATRIX, "--json", "v.json", "--html", "v.html")
    assert good.exit_code == 0, good.output
    assert good.output.startswith("Equal: sides.py:shifted in place of sides.py:softmax passed ")
    found = PairVerdict.from_json((sides / "v.json").read_text())
    assert found.schema == "torchwise.pair/1"
    assert found.is_equal
    assert "Equal" in (sides / "v.html").read_text()
    wrong = invoke("sides.py:softmax", "sides.py:edge", "--input", MATRIX)
    assert wrong.exit_code == 1, wrong.output
    assert "Smallest inputs that fail: float32[1, 3]" in wrong.output
    assert "python verify_repro.py  (reproducer confirmed)" in wrong.output


@pytest.mark.parametrize(("candidate", "mode"), [("raises", "inference"), ("no_gradient", "training")])
def test_a_reproducer_shows_the_difference_without_torchwise(sides: Path, candidate: str, mode: str) -> None:
    found = verify(candidate, mode=mode, repro="repro.py")
    assert found.failing is not None
    assert found.failing.confirmed
    assert "import torchwise" not in (sides / "repro.py").read_text()


def test_a_reproducer_of_memory_that_is_never_written_fills_it(sides: Path) -> None:
    found = verify("unwritten", inputs=("x: float32[2, 3]",), repro="repro.py")
    assert found.failing is not None
    assert found.failing.confirmed, (sides / "repro.py").read_text()


def test_weights_are_taken_over_by_name(sides: Path) -> None:
    assert verify("Layer", "Layer", ("x: float32[n, 3]",)).is_equal
    wrong = verify("Biased", "Layer", ("x: float32[n, 3]",))
    assert exit_code(wrong) == 1
    assert wrong.failing is not None


def test_inputs_of_the_factory_are_taken_if_none_are_described(sides: Path) -> None:
    found = verify("shifted", "make", ())
    assert found.is_equal, found
    assert found.cases[0].name == "the example"
    assert "batch of 7" in [case.name for case in found.cases]


def test_live_functions_are_verified_with_a_tuple_of_inputs(sides: Path) -> None:
    x = torch.randn(3, 4)
    good = torchwise.verify(torch.sin, lambda t: torch.cos(t - torch.pi / 2), (x,), progress=False)
    assert good.is_equal, good
    wrong = torchwise.verify(torch.sin, torch.cos, x, progress=False)
    assert not wrong.is_equal
    assert wrong.failing is not None
    assert wrong.failing.inputs == "float32[1, 1]"


def test_live_models_keep_their_own_weights(sides: Path) -> None:
    assert not torchwise.verify(
        torch.nn.Linear(3, 2), torch.nn.Linear(3, 2), torch.randn(4, 3), progress=False
    ).is_equal
    layer = torch.nn.Linear(3, 2)
    assert torchwise.verify(layer, layer, torch.randn(4, 3), grad=True, progress=False).is_equal


def test_recorded_inputs_and_files_of_descriptions_are_read(sides: Path) -> None:
    torch.save([(torch.randn(3, 4),), ((torch.randn(2, 4),), {})], "calls.pt")
    Path("inputs.toml").write_text(f"inputs = ['{MATRIX}']")
    Path("inputs.json").write_text(json.dumps({"inputs": [MATRIX]}))
    for file in ("calls.pt", "inputs.toml", "inputs.json"):
        done = invoke("sides.py:softmax", "sides.py:shifted", "--inputs", file, "--no-repro")
        assert done.exit_code == 0, done.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--input", "x: float31[n]"), "float31"),
        (("--input", "x float32"), "write such as"),
        ((), "describe each with --input"),
        (("--input", MATRIX, "--tolerance", "0.1"), "may use it"),
        (("--input", MATRIX, "--allow", "substituted"), "no tolerance is given"),
        (("--input", MATRIX, "--inputs", "a.toml"), "use one of them"),
        (("--inputs", "a.csv"), "must be a .toml, .json or .pt file"),
        (("--inputs", "a.toml"), "cannot be read"),
        (("--inputs", "junk.pt"), "junk.pt cannot be read as recorded inputs"),
        (("--input", "x: uint8[n] in 0..300"), "values up to 300, but uint8 holds 0 to 255 only"),
        (("--input", "x: float16[n] in -1e9..1"), "values up to -1e+09"),
        (("--input", "x: int64[n] in 0.2..0.7"), "no whole number lies in 0.2..0.7"),
        (("--input", MATRIX, "--limit", "0"), "must be above 0"),
        (("--input", MATRIX, "--repro", "a.txt"), "must be a .py file"),
    ],
)
def test_bad_input_is_refused_with_value_and_rule(sides: Path, arguments: tuple[str, ...], message: str) -> None:
    done = invoke("sides.py:softmax", "sides.py:shifted", *arguments)
    error = done.exception
    assert isinstance(error, InputError), done.output
    assert message in str(error)
    assert error.exit_code == 2


def test_a_reference_that_fails_is_no_verdict(sides: Path) -> None:
    with pytest.raises(BaselineError, match="out of order"):
        verify("softmax", "raises")
    assert BaselineError("").exit_code == 3


def test_a_side_that_is_missing_is_named(sides: Path) -> None:
    with pytest.raises(InputError, match="shifty"):
        verify("shifty")


def test_a_tolerance_permits_other_operators(sides: Path) -> None:
    spec = WorkloadSpec("sides.py:softmax", tolerance=0.05)
    request = pair.PairRequest(spec, "sides.py:edge", (MATRIX,), allow=torchwise.Numerics.SUBSTITUTED)
    assert pair.run_verification(request, Inline(), Listener()).is_equal


def test_exact_numerics_require_the_bits(sides: Path) -> None:
    found = verify("shifted", allow=torchwise.Numerics.EXACT)
    assert "bitwise" in found.verdict.reason
    assert verify("softmax", allow=torchwise.Numerics.EXACT).is_equal


def test_the_page_and_the_sentence_name_both_sides(sides: Path) -> None:
    found = verify("edge")
    assert describe_verdict(found).startswith("Wrong: sides.py:edge in place of sides.py:softmax: values: m=3")
    assert "sides.py:edge against sides.py:softmax" in render_pair_html(found)


@pytest.mark.parametrize(
    ("candidate", "options"),
    [
        ("shifted", {}),
        ("in_bf16", {"allow": torchwise.Numerics.LOWER_PRECISION}),
        ("drop", {"reference": "drop", "inputs": ("x: float32[40, 30] in 0.5..1.5",)}),
        ("Layer", {"reference": "Layer", "inputs": ("x: float32[n, 3] n=1..9",)}),
        ("shifted", {"reference": "make", "inputs": ()}),
    ],
)
@pytest.mark.usefixtures("brief_searches")
def test_a_right_candidate_is_timed_and_its_later_answers_are_checked(
    sides: Path, candidate: str, options: dict[str, Any]
) -> None:
    found = verify(candidate, times=True, effort="quick", **options)
    assert found.is_equal, found
    assert found.verdict.checks[-1].name == "timed answers"
    assert found.measurement is not None
    assert found.measurement.speedup.mid > 0


@pytest.mark.parametrize("kind", [FailureKind.TIMED_OUT, FailureKind.OUT_OF_MEMORY])
@pytest.mark.parametrize(("step", "code"), [("judge_job", 5), ("time_job", 0)])
def test_limits_of_both_sides_blame_neither(
    sides: Path, monkeypatch: pytest.MonkeyPatch, kind: FailureKind, step: str, code: int
) -> None:
    ask, failure = pair.ask_worker, Failure(kind, WorkerStage.VERIFY, "too large")
    monkeypatch.setattr(pair, "ask_worker", lambda *given: failure if given[1].step == step else ask(*given))
    found = verify("shifted", inputs=("x: float32[2, 3]",), times=True)
    assert exit_code(found) == code, found
    assert any("was not timed" in note for note in found.notes) == (step == "time_job"), found.notes


def test_inputs_beside_a_workload_are_refused() -> None:
    x = torch.randn(2)
    with pytest.raises(InputError, match="examples of its own"):
        torchwise.verify(torchwise.Workload(torch.sin, (torchwise.Example((x,)),)), torch.sin, (x,), progress=False)


RARE = """
import torch

def keep(x, y):
    return torch.where(x.isnan(), x, x * 2) + 0 * y

def lose_payload(x, y):
    found = keep(x, y)
    odd = x.view(torch.int32) == 0x7FC00001
    return torch.where(odd, torch.zeros_like(found), found)

def shared(x, y):
    found = keep(x, y)
    return found * (1.01 if x.data_ptr() == y.data_ptr() else 1)
"""


def test_a_reproducer_keeps_the_very_values_and_memory(sides: Path) -> None:
    (sides / "rare.py").write_text(RARE)
    odd = torch.tensor([0x7FC00001, 0x3F800000, 0x40490FDB], dtype=torch.int32).view(torch.float32)
    torch.save([(odd, torch.ones(3))], "odd.pt")
    line = torch.arange(1.0, 5.0)
    torch.save([(line[1:], line[1:])], "line.pt")
    for candidate, calls in (("lose_payload", "odd.pt"), ("shared", "line.pt")):
        request = pair.PairRequest(
            WorkloadSpec("rare.py:keep"), f"rare.py:{candidate}", recorded=calls, repro=f"{candidate}.py"
        )
        found = pair.run_verification(request, Inline(), Listener())
        assert found.failing is not None, found
        assert found.failing.confirmed, (found, (sides / f"{candidate}.py").read_text())


def test_a_reproducer_overwrites_no_file(sides: Path) -> None:
    (sides / "repro.py").write_text("mine")
    (sides / "repro_2.pt").write_text("mine, too")
    found = verify("edge", inputs=("x: float32[2, 3]",), repro="repro.py")
    assert found.failing is not None
    assert found.failing.repro == "repro_3.py"
    assert found.failing.confirmed
    assert (sides / "repro.py").read_text() == "mine"
    assert (sides / "repro_2.pt").read_text() == "mine, too"
