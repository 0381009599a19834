"""The benchmarks of programs on a GPU: plans are kept one by one, and one without a time is told as such."""

from __future__ import annotations

import importlib
import json
from argparse import Namespace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from sketches import FAILED, NOT_COMPARABLE, a_trial

from torchwise.errors import BaselineError
from torchwise.plan import Numerics, Plan
from torchwise.plan.choices import quantization
from torchwise.plan.space import numerics_of
from torchwise.records import Failure, FailureKind, TrialState, WorkerStage
from torchwise.workload.target import find_factory, load

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
OPTIONS = Namespace(timeout=60.0)
WHOLE = ["inductor, captured", "reduce-overhead", "max-autotune", "max-autotune, captured"]


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("gpu_programs")


@pytest.fixture
def decode(gpu: ModuleType) -> ModuleType:
    assert gpu
    return importlib.import_module("decode")


def timed(speedup: float, **more: Any) -> dict[str, Any]:
    times = {"time_s": [0.9e-3, 1e-3, 1.1e-3], "busy_s": None, "cold_s": 5.0, "error": 1e-7, "processes": 2}
    return {"speedup": [speedup * 0.98, speedup, speedup * 1.02], **times, **more}


def cut_off(timeout_s: float = 60.0) -> dict[str, Any]:
    return {"said": "cut off", "why": "took too long in compile", "timeout_s": timeout_s}


def a_failure(kind: FailureKind, stage: WorkerStage = WorkerStage.COMPILE) -> Failure:
    return Failure(kind, stage, "a reason")


def answer(gpu: ModuleType, monkeypatch: pytest.MonkeyPatch, cells: dict[str, Any]) -> list[str]:
    """Have each plan measured as its cell in `cells`, by its name, and return the names of those that were."""
    measured: list[str] = []

    def measure(_target: str, plan: Plan, options: Namespace, _store: Path) -> tuple[dict[str, Any], float]:
        plans = gpu.list_plans("cuda", getattr(options, "allow", "same-precision"))
        measured.append(next(name for name, one in plans.items() if one == plan))
        return dict(cells.get(measured[-1], timed(2.0))), 1e-3

    monkeypatch.setattr(gpu, "measure", measure)
    return measured


def run(program: ModuleType, monkeypatch: pytest.MonkeyPatch, folder: Path, *words: str) -> None:
    given = ["--label", "x", "--date", "2026-11-29", "--out", str(folder), *words]
    monkeypatch.setattr("sys.argv", ["program.py", *given])
    program.main()


@pytest.mark.parametrize("allow", ["same-precision", "lower-precision"])
def test_all_plans_are_within_the_numerics_and_lower_ones_multiply_in_tf32(gpu: ModuleType, allow: str) -> None:
    plans = gpu.list_plans("cuda", allow)
    assert all(Numerics.of(allow).allows(numerics_of(plan)) for plan in plans.values())
    others = {gpu.BFLOAT16: "autocast_bf16", gpu.MODE_IN_FLOAT32: "native"}
    assert {name for name in others if name in plans} == (set(others) if allow == "lower-precision" else set())
    rest = "tf32" if allow == "lower-precision" else "native"
    assert {name: plan.precision for name, plan in plans.items()} == {name: others.get(name, rest) for name in plans}
    assert len(set(plans.values())) == len(plans) == (18 if allow == "lower-precision" else 17)
    assert gpu.choose_plans(None, plans) == list(plans)


def test_a_cpu_has_the_plans_without_cuda_graphs(gpu: ModuleType) -> None:
    plans = gpu.list_plans("cpu", "same-precision")
    assert plans["row programs"] == Plan(backend="row_programs")
    assert "captured" not in plans
    assert len(set(plans.values())) == len(plans)
    assert "coordinate descent, captured" not in plans
    assert {(plan.capture, plan.is_eager) for plan in plans.values()} == {("none", False)}
    assert {plan.mode for plan in plans.values()} == {"default", "max-autotune-no-cudagraphs"}


def test_all_programs_exist_and_have_the_asked_device(gpu: ModuleType) -> None:
    for name in (*gpu.KNOWN, "neuron@small"):
        assert callable(find_factory(gpu.find_target(name)))
    workload = load(gpu.find_target("policy"), device="cpu")
    assert {tensor.device.type for tensor in workload.examples[0].tensors()} == {"cpu"}
    assert gpu.find_target("neuron@large") == "zoo:energy_flow.neuron@large"


def test_programs_without_products_are_left_out_of_lower_precision_unless_named(gpu: ModuleType) -> None:
    assert gpu.choose_programs(None, "same-precision") == list(gpu.KNOWN)
    lower = gpu.choose_programs(None, "lower-precision")
    assert [name for name in gpu.KNOWN if name not in lower] == ["scan", "monte_carlo", "particles"]
    assert gpu.choose_programs(["scan"], "lower-precision") == ["scan"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--programs", "policy", "polish"], "programs has 'polish', but there are neural_ode"),
        (["--programs", "policy@large"], "programs has 'policy@large'"),
        (["--plans", "compiled"], "plans has 'compiled', but on this device there are row-programs"),
        (["--plans", "captured", "--device", "cpu"], "plans has 'captured', but on this device there are row-programs"),
        (["--allow", "quantized"], "invalid choice: 'quantized'"),
    ],
)
def test_a_wrong_name_is_refused_with_those_there_are(
    gpu: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    message: str,
) -> None:
    with pytest.raises(SystemExit):
        run(gpu, monkeypatch, tmp_path, *words)
    assert message in capsys.readouterr().err


def test_a_plain_compile_that_is_cut_off_spares_others_of_the_same_graph(
    gpu: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured = answer(gpu, monkeypatch, {"inductor, captured": cut_off()})
    row: dict[str, Any] = {"eager_s": None, "plans": {}}
    plans = gpu.list_plans("cuda", "same-precision")
    assert list(gpu.measure_missing("zoo:a", row, plans, OPTIONS, float("inf"))) == list(plans)
    own = ["row programs", "row programs, not captured"]
    assert measured == [*own, "captured", "inductor, captured", "compiled RNN, rolled, captured", "rolled, captured"]
    assert row["plans"]["max-autotune"]["said"] == "not begun"
    assert "inductor, captured was cut off" in row["plans"]["max-autotune"]["why"]
    assert row["eager_s"] == 1e-3
    del row["plans"]["max-autotune"]
    assert list(gpu.measure_missing("zoo:a", row, plans, OPTIONS, float("inf"))) == ["max-autotune"]
    assert row["eager_s"] == 1e-3, "a plan that is not begun has no time of eager"


def test_a_plan_is_tried_under_the_numerics_and_the_time_that_were_asked_for(
    gpu: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    given: dict[str, Any] = {}
    plan, eager = Plan(capture="call", precision="tf32"), SimpleNamespace(standing="baseline", plan=Plan())
    trial = a_trial(plan, 2.0)
    row = SimpleNamespace(plan=plan, standing="decided", trial=trial, speedup=trial.speedup, cold_s=1.0, error=0.0)
    eager.time = SimpleNamespace(mid=3e-3)
    monkeypatch.setattr(
        gpu.torchwise, "tune", lambda target, **how: given.update(how) or SimpleNamespace(record=target)
    )
    monkeypatch.setattr(gpu, "rows", lambda _: [row, eager])
    options = Namespace(device="cuda", allow="lower-precision", effort="quick", iterations=7, timeout=42.0)
    cell, eager_s = gpu.measure("zoo:a", plan, options, tmp_path)
    assert (cell["speedup"][1], eager_s) == (pytest.approx(2.0), 3e-3)
    asked = ("plans", "device", "allow", "effort", "iterations", "compile_timeout", "tolerance")
    assert [given[name] for name in asked] == [[plan], "cuda", "lower-precision", "quick", 7, 42.0, None]
    gpu.measure("zoo:a", plan, Namespace(**vars(options), tolerance=0.1), tmp_path)
    assert given["tolerance"] == 0.1


def test_a_longer_compile_that_is_cut_off_spares_nothing(gpu: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    row: dict[str, Any] = {"eager_s": None, "plans": {"max-autotune": cut_off()}}
    measured = answer(gpu, monkeypatch, {})
    list(gpu.measure_missing("zoo:a", row, gpu.list_plans("cuda", "same-precision"), OPTIONS, float("inf")))
    assert "max-autotune" not in measured
    assert set(WHOLE) - set(measured) == {"max-autotune"}


def test_more_time_tries_again_those_that_were_cut_off_and_no_others(
    gpu: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = {
        "row programs": timed(9.0),
        "captured": {"said": "refused", "why": "a reason", "timeout_s": 60.0},
        "inductor, captured": cut_off(),
        "reduce-overhead": {"said": "not begun", "why": "as another", "timeout_s": 60.0},
        "max-autotune": {"said": "disturbed", "why": "not tried"},
    }
    plans = {name: plan for name, plan in gpu.list_plans("cuda", "same-precision").items() if name in kept}
    measured, row = answer(gpu, monkeypatch, {}), {"eager_s": 1e-3, "plans": dict(kept)}
    list(gpu.measure_missing("zoo:a", row, plans, Namespace(timeout=60.0), float("inf")))
    assert (measured, row["plans"]["max-autotune"]["said"]) == ([], "not begun"), "it compiles what was cut off"
    list(gpu.measure_missing("zoo:a", row, plans, Namespace(timeout=120.0), float("inf")))
    assert measured == ["inductor, captured", "reduce-overhead", "max-autotune"]


def test_a_plan_that_was_disturbed_is_tried_again(gpu: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    plans = {"captured": gpu.PLANS["captured"]}
    measured, row = answer(gpu, monkeypatch, {}), {"eager_s": 1e-3, "plans": {"captured": {"said": "disturbed"}}}
    list(gpu.measure_missing("zoo:a", row, plans, OPTIONS, float("inf")))
    assert (measured, "speedup" in row["plans"]["captured"]) == (["captured"], True)


def test_nothing_starts_after_the_end(gpu: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    measured, row = answer(gpu, monkeypatch, {}), {"eager_s": None, "plans": {}}
    assert list(gpu.measure_missing("zoo:a", row, gpu.list_plans("cuda", "same-precision"), OPTIONS, 0.0)) == []
    assert (measured, row["plans"]) == ([], {})


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"failure": a_failure(FailureKind.TIMED_OUT)}, "cut off"),
        ({"failure": a_failure(FailureKind.TIMED_OUT, WorkerStage.WARM_COMPILE)}, "cut off"),
        ({"failure": a_failure(FailureKind.TIMED_OUT, WorkerStage.VERIFY)}, "timed out"),
        ({"failure": a_failure(FailureKind.UNSUPPORTED)}, "refused"),
        ({"failure": a_failure(FailureKind.INTERFERED, WorkerStage.MEASURE)}, "disturbed"),
        ({"failure": a_failure(FailureKind.OUT_OF_MEMORY)}, "out of memory"),
        ({"verdict": FAILED, "state": TrialState.COMPLETE}, "wrong"),
        ({"verdict": NOT_COMPARABLE, "state": TrialState.COMPLETE}, "not comparable"),
        ({"state": TrialState.RUNNING}, "disturbed"),
    ],
)
def test_a_plan_that_is_not_verified_has_no_time_but_a_word(
    gpu: ModuleType, changes: dict[str, Any], said: str
) -> None:
    trial = a_trial(Plan(capture="call"), 3.0, **{"state": TrialState.FAIL, **changes})  # although it was timed
    row = SimpleNamespace(trial=trial, speedup=trial.speedup, why="a reason", cold_s=1.0, error=None)
    assert gpu.read_row(row, 60.0) == {"said": said, "why": "a reason", "timeout_s": 60.0}


def test_a_verified_plan_has_its_own_times_over_all_processes(gpu: ModuleType) -> None:
    trial = a_trial(Plan(capture="call"), 2.0)
    row = SimpleNamespace(trial=trial, speedup=trial.speedup, why="", cold_s=1.0, error=1e-7)
    found = gpu.read_row(row, 60.0)
    assert found["speedup"] == pytest.approx([trial.speedup.low, 2.0, trial.speedup.high])
    assert found["time_s"][1] == pytest.approx(0.5)
    assert found["processes"] == 5


def test_the_table_names_each_plan_without_a_time(gpu: ModuleType) -> None:
    plans = {"row programs": timed(12.0), "captured": timed(3.0), "reduce-overhead": cut_off(90.0)}
    row, names = {"eager_s": 2e-3, "plans": plans}, [*plans, "max-autotune"]
    line = gpu.write_row("neural_ode", row, names)
    assert line.startswith(
        "| neural_ode | 2000 | 12.0× [11.8, 12.2] | 3.00× [2.94, 3.06] | cut off at 90 s | not tried |"
    )
    assert line.endswith("(captured, 2 of 3 others without a time) | – |")
    assert "slower" not in line
    lines = gpu.summarize(
        {"neural_ode": row}, names, Namespace(device="cpu", date="2026-11-29", allow="same-precision")
    )
    assert "- neural_ode, reduce-overhead: took too long in compile" in lines
    assert any("may be faster" in line for line in lines)


def test_no_ratio_is_told_without_a_time_of_row_programs(gpu: ModuleType) -> None:
    plans = {"row programs": cut_off(), "captured": timed(3.0)}
    assert gpu.write_row("gru", {"eager_s": 1e-3, "plans": plans}, [*plans]).endswith("| 3.00× [2.94, 3.06] | – | – |")


def test_the_best_of_own_kernels_is_compared_with_all_ways_and_with_the_modes(gpu: ModuleType) -> None:
    plans = {"row programs, not captured": timed(12.0), "row programs": timed(6.0), "captured": timed(4.0)}
    plans |= {"reduce-overhead": timed(3.0), "max-autotune": timed(2.0)}
    cells = gpu.write_row("policy", {"eager_s": 1e-3, "plans": plans}, list(plans)).split("|")
    assert cells[-3].startswith(" 3.00× ")
    assert cells[-3].endswith("(captured) ")
    assert cells[-2].startswith(" 4.00× ")
    assert cells[-2].endswith("(reduce-overhead) ")
    plans["products of few rows, captured"] = timed(16.0)
    assert gpu.write_row("policy", {"eager_s": 1e-3, "plans": plans}, list(plans)).split("|")[-3].startswith(" 4.00× ")


def test_a_mode_that_is_slower_than_eager_is_still_the_mode(gpu: ModuleType) -> None:
    row = {"eager_s": 1e-3, "plans": {"row programs": timed(3.0), "reduce-overhead": timed(0.5)}}
    assert gpu.compare_with_modes(row).startswith("6.00× ")
    assert gpu.compare_with_modes(row).endswith("(reduce-overhead, 1 of 2 modes without a time)")
    assert gpu.compare(row, list(row["plans"])).endswith("(eager)")
    del row["plans"]["reduce-overhead"]
    assert gpu.compare_with_modes(row) == "–"


def test_a_later_run_adds_plans_to_a_row_and_each_numerics_has_its_file(
    gpu: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    measured = answer(gpu, monkeypatch, {"row programs": timed(8.0)})
    run(gpu, monkeypatch, tmp_path, "--programs", "policy", "--plans", "row-programs", "captured")
    run(gpu, monkeypatch, tmp_path, "--programs", "policy", "--plans", "captured", "max-autotune-captured")
    assert measured == ["row programs", "captured", "max-autotune, captured"]
    file = tmp_path / "2026-11-29-x-gpu-programs-same-precision"
    assert list(json.loads(file.with_suffix(".json").read_text())["policy"]["plans"]) == measured
    assert "| policy | 1000 | 8.00×" in file.with_suffix(".md").read_text()
    run(gpu, monkeypatch, tmp_path, "--programs", "policy", "--plans", "captured", "--allow", "lower-precision")
    assert measured[3:] == ["captured"], "other numerics, so it is another result"
    lower = tmp_path / "2026-11-29-x-gpu-programs-lower-precision.md"
    assert "products in TF32" in lower.read_text()


def test_a_program_that_fails_is_told_and_the_others_are_measured(
    gpu: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def measure(target: str, *_: object) -> tuple[dict[str, Any], float]:
        if target.endswith(":policy"):
            raise BaselineError("no memory")
        return timed(2.0), 1e-3

    monkeypatch.setattr(gpu, "measure", measure)
    with pytest.raises(SystemExit) as exited:
        run(gpu, monkeypatch, tmp_path, "--programs", "policy", "gru")
    assert exited.value.code == 1
    assert "policy: no memory" in capsys.readouterr().err
    assert list(json.loads(next(tmp_path.glob("*.json")).read_text())) == ["gru"]


# ---- decoding


def test_weights_are_counted_as_the_model_has_them(decode: ModuleType) -> None:
    size = decode.SIZES["tiny"]
    model = load(f"{decode.TARGETS}:tiny", device="cpu").call
    row_of_a_token = size.width
    assert size.linear + size.others == sum(p.numel() for p in model.parameters()) + row_of_a_token
    assert size.count_weight_bytes() == 2 * (size.linear + size.others)
    assert size.count_weight_bytes(8) == size.linear + 2 * size.others
    assert 1.2e9 < decode.SIZES["billion"].linear < 1.3e9


@torch.no_grad()
def test_a_step_reads_its_cache_up_to_its_place(decode: ModuleType) -> None:
    workload, size = load(f"{decode.TARGETS}:tiny", device="cpu"), decode.SIZES["tiny"]
    model, (token, place, cache) = workload.call.double(), workload.examples[0].args
    cache = cache.double()
    logits, own = model(token, place, cache)
    assert (logits.shape, own.shape) == ((1, 1, size.vocabulary), (size.layers, 2, size.shared, 1, size.head))
    later, first = cache.clone(), cache.clone()
    later[..., size.place :, :] = 1e3
    first[..., 0, :] = 1.0
    assert torch.equal(model(token, place, later)[0], logits)
    assert not torch.allclose(model(token, place, first)[0], logits)
    assert not torch.allclose(model(token, place - 1, cache)[0], logits)


@torch.no_grad()
def test_attention_is_pytorchs_over_a_cache_with_the_steps_own_keys_and_values(decode: ModuleType) -> None:
    workload, size = load(f"{decode.TARGETS}:tiny", device="cpu"), decode.SIZES["tiny"]
    attention, cache = workload.call.layers[0].attention.double(), workload.examples[0].args[2][0].double()
    x, still = torch.randn(1, 1, size.width).double(), (torch.ones(1, size.head), torch.zeros(1, size.head))
    step = importlib.import_module("decode_targets").Step(*still, torch.arange(size.length) < size.place)
    found, own = attention(x, cache, step)
    written = torch.cat([cache[:, :, : size.place], own], 2)[:, None]
    query = attention.query(x).view(1, size.heads, 1, size.head)
    mixed = torch.nn.functional.scaled_dot_product_attention(query, *written.unbind(0), enable_gqa=True)
    assert torch.allclose(found, attention.output(mixed.reshape(1, 1, size.width)))


@torch.no_grad()
def test_equal_distances_of_places_turn_alike(decode: ModuleType) -> None:
    targets = importlib.import_module("decode_targets")
    model, size = load(f"{decode.TARGETS}:tiny", device="cpu").call.float(), decode.SIZES["tiny"]
    one, other = torch.randn(1, 1, size.head), torch.randn(1, 1, size.head)

    def turn_to(x: torch.Tensor, place: int) -> torch.Tensor:
        step = targets.Step(model.cosines[[place]], model.sines[[place]], model.places < place)
        return targets.turn(x, step)

    products = [float((turn_to(one, place) * turn_to(other, place + 4)).sum()) for place in (0, 3, 20)]
    assert products == pytest.approx([products[0]] * 3, abs=0.05), "angles are rounded to bfloat16"
    assert float((turn_to(one, 0) * turn_to(other, 5)).sum()) != pytest.approx(products[0], abs=0.05)


def test_plans_of_fewer_bits_come_with_their_numerics_alone(gpu: ModuleType, decode: ModuleType) -> None:
    plain, quantized = (decode.list_plans("cuda", allow) for allow in ("same-precision", "quantized"))
    assert set(quantized) - set(plain) == {
        "int8 weights, captured",
        "float8, captured",
        "int8 weights, products of few rows, captured",
        "int8 weights, products of few rows, combined, captured",
        "int8 weights, products of few rows, combined, early, captured",
        "float8 weights, products of few rows, captured",
    }
    for plans in (decode.list_plans("cpu", "quantized"), gpu.list_plans("cpu", "same-precision")):
        assert not any("few rows" in name for name in plans), "a CPU has not their kernel"
    for allow, plans in (("same-precision", plain), ("quantized", quantized)):
        assert all(Numerics.of(allow).allows(numerics_of(plan)) for plan in plans.values())


def test_shares_are_of_the_bytes_that_a_plan_reads(decode: ModuleType) -> None:
    size = decode.SIZES["billion"]
    copy = size.count_weight_bytes() / 1e-3  # which moves the weights in a millisecond
    cell = timed(5.0, time_s=[1.9e-3, 2e-3, 2.1e-3], busy_s=1.25e-3, copy_bytes_per_s=copy)
    assert decode.write_line("captured", cell, size) == (
        "| captured | 2.000 [1.900, 2.100] | 1.250 | 5.00× [4.90, 5.10] | 50% | 80% |"
    )
    for name in ("int8 weights, captured", "float8 weights, products of few rows, captured"):
        assert decode.write_line(name, cell, size).endswith("| 25% | 40% |")
    assert set(decode.BITS) == set(quantization.NAMES), "a search may choose any"
    found = {**cell, "plan": "inductor + int8_weights", "rewrites": ["int8_weights"]}
    assert decode.write_line("the search", found, size).startswith("| the search: inductor + int8_weights | 2.000")
    assert decode.write_line("the search", found, size).endswith("| 25% | 40% |")
    assert (
        decode.write_line("max-autotune", cut_off(150.0), size) == "| max-autotune | cut off at 150 s | – | – | – | – |"
    )


def test_results_of_decoding_are_kept_plan_by_plan_and_the_search_comes_last(
    decode: ModuleType, gpu: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    measured = answer(gpu, monkeypatch, {"reduce-overhead": cut_off(150.0)})
    monkeypatch.setattr(decode, "bandwidth", lambda _: 3e12)
    searched: list[str] = []

    def search(target: str, options: Namespace) -> tuple[dict[str, Any], float]:
        searched.append(target.rpartition(":")[2])
        told = {"said": "eager", "plan": "eager", "rewrites": [], "why": "nothing pays"}
        return {**told, "budget_s": options.budget}, 1e-3

    monkeypatch.setattr(decode, "search", search)
    run(decode, monkeypatch, tmp_path, "--size", "tiny", "--plans", "captured", "--budget", "0")
    assert (measured, searched) == (["captured"], [])
    run(decode, monkeypatch, tmp_path, "--size", "tiny", "--plans", "captured", "reduce-overhead")
    run(decode, monkeypatch, tmp_path, "--size", "tiny", "--plans", "captured", "reduce-overhead")
    assert (measured, searched) == (["captured", "reduce-overhead"], ["tiny"])
    with pytest.raises(SystemExit) as exited:
        run(decode, monkeypatch, tmp_path, "--size", "tiny", "--plans", "--budget", "500", "--seconds", "499")
    assert exited.value.code == 75, "there is more to do"
    assert searched == ["tiny"], "too little time was left"
    run(decode, monkeypatch, tmp_path, "--size", "tiny", "--plans", "--budget", "500")
    assert (measured, searched) == (["captured", "reduce-overhead"], ["tiny", "tiny"]), "it had more time"
    file = tmp_path / "2026-11-29-x-decode-tiny-same-precision"
    found = json.loads(file.with_suffix(".json").read_text())
    assert list(found["plans"]) == ["captured", "reduce-overhead", "the search"]
    assert found["plans"]["captured"]["copy_bytes_per_s"] == 3e12
    text = file.with_suffix(".md").read_text()
    assert "| the search: eager | eager | – | – | – | – |" in text
    assert "A copy moves 3,000 GB/s, read and written" in text


@pytest.mark.parametrize("is_eager", [False, True])
def test_a_search_tells_its_decision_with_the_time_of_its_trial(
    decode: ModuleType, monkeypatch: pytest.MonkeyPatch, is_eager: bool
) -> None:
    plan = Plan() if is_eager else Plan(transforms=("int8_weights",), capture="call")
    eager = SimpleNamespace(standing="baseline", is_decided=is_eager, trial=None, time=SimpleNamespace(mid=3e-3))
    trial = a_trial(plan, 2.0)
    row = SimpleNamespace(
        standing="decided", is_decided=True, trial=trial, speedup=trial.speedup, time=None, cold_s=1.0, error=0.01
    )
    decision = SimpleNamespace(plan=plan, reason="it saves most")
    study = SimpleNamespace(decision=decision, seconds=200.0, trials=(trial,))
    given: dict[str, Any] = {}
    monkeypatch.setattr(decode.torchwise, "tune", lambda _, **how: given.update(how) or SimpleNamespace(record=study))
    monkeypatch.setattr(decode, "rows", lambda _: [eager] if is_eager else [row, eager])
    options = Namespace(device="cuda", allow="quantized", tolerance=0.05, effort="standard", budget=240.0)
    cell, eager_s = decode.search("zoo:a", options)
    assert (given["budget"], given["allow"], given["tolerance"], eager_s) == (240.0, "quantized", 0.05, 3e-3)
    assert (cell["plan"], cell["why"], cell["budget_s"]) == (str(plan), "it saves most", 240.0)
    assert cell["rewrites"] == list(plan.transforms)
    assert cell.get("said") == ("eager" if is_eager else None)
    assert ("speedup" in cell) is not is_eager


def test_a_tolerance_is_for_fewer_bits_alone(
    decode: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        run(decode, monkeypatch, tmp_path, "--tolerance", "0.1")
    assert "tolerance is 0.1, but is for numbers of fewer bits: add --allow quantized" in capsys.readouterr().err
