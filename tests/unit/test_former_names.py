"""Names of earlier versions still work: packages, fields, arguments, levels, and every kind of stored file."""

from __future__ import annotations

import importlib
import json
import pickle
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

import torchwise
from fuzz import kinds
from live_decisions import make_decision
from torchwise import former_names, former_packages
from torchwise.artifact import package
from torchwise.cli import app, main
from torchwise.plan import Choice, Numerics, Plan
from torchwise.records import Failure, codec
from torchwise.records.bisection import Bisection
from torchwise.records.compile_events import Break
from torchwise.records.decision import DECISION_SCHEMA
from torchwise.records.explanation import Explanation, Finding
from torchwise.records.trial import WorkerStage
from torchwise.runtime import bucketing, module
from torchwise.runtime import step as runtime_step
from torchwise.runtime.fallback_reason import Fallback, FallbackReason, read_fallback
from torchwise.runtime.served import served_of
from torchwise.store import open_storage
from torchwise.study.lock import file as lock_file

OLD = Path(__file__).parents[1] / "fixtures" / "formats_0.1"
PICKLES = OLD.with_name("pickles_0.1")


@pytest.fixture(autouse=True)
def said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(former_packages, "_said", set())


def read_old(name: str) -> bytes:
    return (OLD / name).read_bytes()


@pytest.mark.parametrize("path", sorted(OLD.iterdir()), ids=lambda path: str(path.name))
def test_every_kind_of_file_of_the_version_before_is_read(path: Path, tmp_path: Path) -> None:
    name = path.stem.rpartition("_")[0].replace("_", " ").replace("row ", "row: ")
    former = {"watched": "compileevents", "ruling": "approval", "parts config": "components config"}
    known = {kind.name: kind for kind in kinds.kinds(tmp_path)}
    kind = known.get(name) or known[former[name]]
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # reading data is no use of an old name
        found = kind.read(path.read_bytes())
    if path.suffix == ".json" and kind.told is not None:
        assert json.dumps(kind.told(found))


def test_an_old_plan_keeps_its_id() -> None:
    plan = Plan.from_json(read_old("plan_3.json"))
    assert plan == Plan(activation_checkpointing="blocks", microbatches=2)
    assert plan.id == "3444d699c3e3"  # as the version before computed it
    assert Plan.from_json(plan.to_json()) == plan


def test_renamed_fields_of_old_records_hold_what_they_held() -> None:
    told = json.loads(read_old("explanation_0.json"))
    found = Explanation.from_json(read_old("explanation_0.json"))
    assert found.findings[0].fix == told["findings"][0]["mend"]
    assert codec.to_builtins(found.findings[0].saving) == told["findings"][0]["price"]
    assert codec.to_builtins(found.compile_events)["seconds"] == told["watched"]["seconds"]
    steps = json.loads(read_old("bisection_0.json"))
    bisected = Bisection.from_json(read_old("bisection_0.json"))
    assert codec.to_builtins(bisected.cause) == steps["culprit"]
    assert codec.to_builtins(bisected.observation) == steps["sighting"]


def test_an_old_lock_is_taken_and_written_in_new_words(tmp_path: Path) -> None:
    path = tmp_path / "torchwise.lock"
    path.write_bytes(read_old("lock_0.toml"))
    lock = lock_file.read(path)
    assert len(lock.entries) == read_old("lock_0.toml").count(b"\nlegality = ")
    written = lock.to_toml()
    assert "legality" not in written
    assert 'allow = "same-precision"' in written
    path.write_text(written)
    assert lock_file.read(path) == lock


def test_an_old_lock_that_was_edited_is_still_refused(tmp_path: Path) -> None:
    path = tmp_path / "torchwise.lock"
    path.write_bytes(read_old("lock_0.toml").replace(b'legality = "reordered"', b'legality = "exact"', 1))
    with pytest.raises(torchwise.TorchwiseError, match="it was edited"):
        lock_file.read(path)


def test_an_old_artifact_is_unpacked() -> None:
    found = package.unpack("a.tw", read_old("artifact_0.tw"))
    assert found.code


def test_a_former_field_is_an_argument_and_an_attribute_that_warns_once() -> None:
    with pytest.warns(FutureWarning, match=r"Plan.recompute is called activation_checkpointing now"):
        plan = Plan(recompute="blocks")  # type: ignore[call-arg]
    assert plan.activation_checkpointing == "blocks"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert Plan(recompute="blocks") == plan  # type: ignore[call-arg]
    with pytest.warns(FutureWarning, match=r"Plan.pieces is called microbatches now"):
        assert plan.pieces == 1  # type: ignore[attr-defined]


def test_a_plug_in_may_describe_a_choice_by_the_former_words() -> None:
    with pytest.warns(FutureWarning):
        choice = Choice(  # type: ignore[call-arg]
            "scope", "mine", legality=Numerics.EXACT, complexity=1, summary="mine", needs=("gemm",), keeps=0.5
        )
    assert (choice.numerics, choice.required_traits, choice.min_remaining_fraction) == ("exact", ("gemm",), 0.5)


@pytest.mark.parametrize(
    ("former", "now"), [("reordered", "same-precision"), ("reduced", "lower-precision"), ("swapped", "substituted")]
)
def test_a_level_by_its_former_name_is_the_same_level(former: str, now: str) -> None:
    level = Numerics.of(former)
    assert (level, level.former_name) == (now, former)
    assert Numerics.of(now) is level


def test_a_package_by_its_former_name_is_the_same_package_and_warns_once() -> None:
    code = """
import warnings
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    from torchwise import shapes, artefact
    from torchwise.shapes import Padding
    import torchwise.realize.signature
    import torchwise.foreign
    from torchwise import parts
    from torchwise import Legality
import torchwise, torchwise.runtime.bucketing, torchwise.runtime.components, torchwise.compile.signature as signature
assert shapes is torchwise.runtime.bucketing is torchwise.bucketing and Padding is torchwise.runtime.bucketing.Padding
assert parts.CompileManager is torchwise.runtime.components.CompileManager is torchwise.CompileManager
assert torchwise.realize.signature is signature and signature.__spec__.name == "torchwise.compile.signature"
assert Legality is torchwise.Numerics
words = [str(one.message) for one in said]
assert len(words) == len(set(words)) == 6, words
assert all(one.category is FutureWarning for one in said)
print(*words, sep="\\n")
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert ran.returncode == 0, ran.stderr
    assert "torchwise.shapes is called torchwise.bucketing now" in ran.stdout


def test_a_former_argument_or_function_warns_and_works() -> None:
    with pytest.warns(FutureWarning, match=r"choose\(proven=...\) is called verified= now"):
        former = bucketing.choose(range(1, 101), proven=True)
    assert former == bucketing.choose(range(1, 101), verified=True)
    with pytest.warns(
        FutureWarning,
        match=r"torchwise.runtime.bucketing.prove is called torchwise.runtime.bucketing.verify_padding now",
    ):
        assert bucketing.prove is bucketing.verify_padding
    with pytest.warns(FutureWarning, match=r"torchwise.plan.Legality is called torchwise.plan.Numerics now"):
        assert torchwise.plan.Legality is Numerics
    with pytest.warns(FutureWarning, match=r"torchwise.store.ExplanationSummary is called torchwise.store.ReportSum"):
        assert torchwise.store.ExplanationSummary is torchwise.store.ReportSummary
    manager = torchwise.CompileManager()
    with pytest.warns(FutureWarning, match=r"CompileManager.parts is called components now"):
        assert manager.parts == {}
    with pytest.raises(AttributeError, match="no attribute 'proof'"):
        _ = bucketing.proof


@torch.no_grad()
def test_old_pickles_of_what_is_served_are_read_as_it_is_now() -> None:
    """They hold a function that makes a wrapper again, and its arguments."""
    x, call, closed = torch.ones(2, 3), torch.nn.Linear(3, 3).eval(), "it was closed by hand"
    decision = make_decision(call, Plan(threads=torch.get_num_threads() + 1), x)
    padded = bucketing.verify_padding(call, (x,), padding=bucketing.Padding({0: 0}), buckets=(2,))
    for refusal in (None, closed):
        pickled = [
            module._rebuilt(module.OptimizedModule, call, decision),
            module._rebuilt(module.OptimizedModule, call, decision, False, None, refusal, {"_forward_hooks": {}}),
            bucketing.module._rebuilt(call, (decision,), padded, None, (refusal, None)),
        ]
        for fast in pickled[refusal is not None :]:
            assert torch.equal(fast(x), call(x))
            assert (fast.statistics.optimized == 1) is (refusal is None)
            assert list(fast.statistics.sentences.values()) == ([refusal] if refusal else [])
    step = torchwise.TrainStep(call, torch.nn.functional.mse_loss, torch.optim.SGD(call.parameters(), lr=0.1))
    decision = make_decision(step, Plan(optimizer="fused"), x, x)
    assert served_of(runtime_step._rebuilt(step, decision)).refusal is None  # type: ignore[union-attr]
    assert str(served_of(runtime_step._rebuilt(step, decision, closed)).refusal) == closed  # type: ignore[union-attr]


def load_old_pickle(name: str) -> Any:
    """Read a pickle that the version before wrote."""
    return pickle.loads((PICKLES / f"{name}.pickle").read_bytes())


@pytest.mark.filterwarnings("ignore:torchwise.runtime.latency is called:FutureWarning")
def test_pickles_of_counts_of_the_version_before_are_read() -> None:
    statistics, counts = load_old_pickle("Statistics"), load_old_pickle("Counts")
    assert (statistics.optimized, sum(statistics.original.values()), statistics.at_freeze) == (0, 3, (0, 0))
    assert statistics.snapshot()["latency"]["calls"] == 1
    assert statistics.compiles >= 0
    assert (counts.calls, counts.beyond, counts.padding, counts.computed) == ({2: 2}, 1, 1, 4)
    assert counts.snapshot()["compiles_since_freeze"] == counts.first_calls == 0


@torch.no_grad()
@pytest.mark.parametrize("name", ["OptimizedModule", "OptimizedFunction", "BucketedModule", "BucketedFunction"])
def test_a_pickle_of_a_wrapper_of_the_version_before_is_read(name: str) -> None:
    fast = load_old_pickle(name)
    assert type(fast).__name__ == name
    assert fast.decision.plan == Plan(threads=2)
    decision = fast.decision
    assert (decision.schema, decision.price, decision.weights) == (DECISION_SCHEMA, None, "")
    assert (decision.environment.compilers, decision.workload.require, decision.workload.tolerance) == (None, (), None)
    assert pickle.loads(pickle.dumps(decision)) == decision
    for rows in (1, 2, 4):
        x = torch.ones(rows, 3)
        torch.testing.assert_close(fast(x), torchwise.unwrap(fast)(x))
    assert fast.statistics.calls == 3


def test_a_pickle_of_a_step_of_the_version_before_is_read() -> None:
    step = load_old_pickle("OptimizedStep")
    assert (type(step).__name__, step.decision.plan) == ("OptimizedStep", Plan(optimizer="fused"))
    before = step.model.weight.detach().clone()
    step(torch.ones(2, 3), torch.ones(2, 3))
    assert not torch.equal(step.model.weight, before)
    assert step.statistics.calls == 1


def test_an_old_pickle_of_a_plan_keeps_its_fields() -> None:
    plan = Plan(activation_checkpointing="blocks", microbatches=2)
    old = object.__new__(Plan)
    state = {**vars(Plan()), "recompute": "blocks", "pieces": 2, "_canonical": "of former names", "id": "000000000000"}
    del state["activation_checkpointing"], state["microbatches"]
    old.__setstate__(state)  # type: ignore[attr-defined]
    assert (old, old.id, hash(old)) == (plan, plan.id, hash(plan))
    assert pickle.loads(pickle.dumps(plan)) == plan


@pytest.mark.parametrize(
    ("module", "name"),
    [("shapes.proof", "Proof"), ("workload.step", "TrainStep"), ("parts.config", "CompileConfig")],
)
def test_a_class_is_found_where_old_pickles_say_it_is(module: str, name: str) -> None:
    assert isinstance(getattr(importlib.import_module(f"torchwise.{module}"), name), type)


@pytest.mark.parametrize(
    ("arguments", "note", "error"),
    [
        (["explain", "nothing", "--artefacts", "f"], "--artefacts is called --artifacts now", "names no factory"),
        (["bisect", "nothing", "--what", "wrong"], "--what is called --symptom now", "names no factory"),
        (["store", "downgrade", "none", "--lose"], "--lose is called --delete-data now", "'none'"),
    ],
)
def test_a_former_option_works_and_says_so(
    arguments: list[str], note: str, error: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    store = ["--store", str(tmp_path / "s.db")] if arguments[0] == "store" else []
    if store:
        open_storage(store[1]).close()
    with pytest.raises(SystemExit) as ended:
        main(lambda: app([*arguments, *store], standalone_mode=False))
    said = capsys.readouterr().err
    assert ended.value.code == 2
    assert note in said
    assert error in said


def test_an_old_pickle_of_an_eager_decision_stays_with_eager() -> None:
    assert read_fallback("the decision is to stay with eager") == Fallback(FallbackReason.EAGER_DECISION)
    assert read_fallback("it was closed") == Fallback(FallbackReason.CLOSED, "it was closed")


def test_members_of_legality_are_those_of_numerics() -> None:
    with pytest.warns(FutureWarning, match=r"Legality.REDUCED is called Numerics.LOWER_PRECISION now"):
        assert torchwise.plan.Numerics.REDUCED is Numerics.LOWER_PRECISION
    assert [level.name for level in Numerics] == [
        "EXACT",
        "SAME_PRECISION",
        "LOWER_PRECISION",
        "QUANTIZED",
        "SUBSTITUTED",
    ]
    with pytest.raises(AttributeError, match="no member 'SWOPPED'"):
        _ = Numerics.SWOPPED


def test_an_argument_by_both_names_is_refused() -> None:
    with pytest.raises(TypeError, match="got 'verified', and its former name 'proven'"):
        bucketing.choose(range(9), verified=True, proven=True)


def test_a_stage_of_an_earlier_version_is_read_by_the_name_that_it_has_now() -> None:
    failure = codec.from_builtins({"kind": "raised", "stage": "look", "message": "odd"}, Failure)
    assert (failure.stage, str(failure.stage)) == (WorkerStage.INSPECT, "inspect the model")


def test_a_package_that_never_was_is_refused() -> None:
    with pytest.raises(ImportError):
        import torchwise.shapes.nothing_of_the_kind  # noqa: F401


def test_data_of_another_class_with_an_equal_name_stay_as_they_are() -> None:
    other: dict[str, Any] = {"price": 3, "mend": "x", "anything": []}
    assert former_names.with_current_names({"a": [other], "b": [1.0, 2.0]}) == {"a": [other], "b": [1.0, 2.0]}
    finding = {"kind": "guards", "title": "t", "cause": "c", "mend": "m"}
    assert former_names.with_current_names([finding])[0]["fix"] == "m"
    assert Finding("guards", "t", "c", "m").fix == "m"
    assert Break.__dataclass_fields__["fix"] is not None
