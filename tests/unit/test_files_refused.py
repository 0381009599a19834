"""Files that somebody edited: each reader refuses with file or kind, place, value and rule, and near misses."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from analysis_samples import an_analysis
from bench_samples import a_benchmark
from store_samples import a_decision, a_ruling, a_study, an_explanation, create
from torchwise.artifact.package import Manifest, Member
from torchwise.cli import app
from torchwise.environment import detect
from torchwise.errors import InputError, StorageError, TorchwiseError
from torchwise.plan import Plan
from torchwise.records import Decision, Study, Trial
from torchwise.records.analysis import Analysis
from torchwise.records.benchmark import Benchmark
from torchwise.records.decision import Approval
from torchwise.records.explanation import Explanation
from torchwise.runtime.components.config import CompileConfig
from torchwise.runtime.dynamo.decide import Options
from torchwise.store import open_storage

STUDY = a_study(trials=(Trial(0, Plan(threads=2)),), decision=a_decision())
MANIFEST = Manifest("0.1.0", detect("cpu"), {"decision.json": Member(3, "ab")}, {}, 1.0, None, 0)


def change_value(text: str, path: str, change: Callable[[Any], Any] | None) -> str:
    """Return JSON with the value at a path changed, or taken out."""
    data = json.loads(text)
    *steps, last = [int(step) if step.isdigit() else step for step in path.split(".")]
    holder = data
    for step in steps:
        holder = holder[step]
    if change is None:
        del holder[last]
    else:
        holder[last] = change(holder.get(last) if isinstance(holder, dict) else holder[last])
    return json.dumps(data)


def to(value: Any) -> Callable[[Any], Any]:
    return lambda _found: value


@pytest.mark.parametrize(
    ("record", "kind", "path", "change", "said"),
    [
        (a_decision(), Decision, "reason", None, "this is no Decision: $ lacks the field 'reason'"),
        (a_decision(), Decision, "reasn", to("x"), "$ has an unknown field 'reasn'; did you mean reason?"),
        (a_decision(), Decision, "schema", None, 'this is no Decision: it names no schema, such as "schema":"torchwis'),
        (a_decision(), Decision, "schema", to("torchwise.decision/2"), "schema is 'torchwise.decision/2', but this ve"),
        (a_decision(), Decision, "baseline_s", to(-1.0), "$.baseline_s is -1.0, but must be a number >= -1e-06"),
        (a_decision(), Decision, "cold_s", to("10"), "$.cold_s is '10', but must be a number"),
        (a_decision(), Decision, "error", to(-1e-3), "error is -0.001, but must be at least 0 (in $)"),
        (a_decision(), Decision, "speedup.low", to(9.0), "an interval is 9.0, 2.0, 2.25, but must be low, middle and"),
        (a_decision(), Decision, "speedup.low", to(None), "an interval is inf, 2.0, 2.25, but must be low, middle and"),
        (a_decision(), Decision, "workload.calls", to(0), "calls is 0, but must be a whole number of at least 1 (in $"),
        (a_decision(), Decision, "workload.calls", to(2**64), "$.workload.calls is 18446744073709551616, but must be"),
        (a_decision(), Decision, "workload.device", to("cudo"), "$.workload.device is 'cudo', but must be one of cpu,"),
        (a_decision(), Decision, "environment.cpus", to(-1), "cpus is -1, but must be at least 0 (in $.environment)"),
        (a_decision(), Decision, "environment.cores_allowed", to(0.0), "cores_allowed is 0.0, but must be above 0"),
        (a_decision(), Decision, "plan.scope", to("hole"), "scope is 'hole', but must be one of whole, regional"),
        (STUDY, Study, "trials.0.state", to("compleet"), "$.trials[0].state is 'compleet', but must be one of waiting"),
        (STUDY, Study, "trials.0.number", to(-1), "$.trials[0].number is -1, but must be a whole number >= 0"),
        (STUDY, Study, "trials.0.plan_id", to("0" * 12), "$.trials.0.plan_id is '000000000000', but must follow from"),
        (STUDY, Study, "baseline.traits", to(["gemm", "gemm"]), "$.inspection.traits holds something twice"),
        (STUDY, Study, "baseline.measurement.baseline_s", to([1.0]), "candidate_s has 3 samples and baseline_s 1, but"),
        (STUDY, Study, "allow", to("everything"), "allow is 'everything', but must be one of exact, same-precision"),
        (STUDY, Study, "effort", to("quik"), "effort is 'quik', but must be one of quick, standard, thorough"),
        (STUDY, Study, "decision.schema", to("torchwise.decision/9"), "schema is 'torchwise.decision/9', but must be"),
        (a_benchmark(), Benchmark, "rows.0.contnder", to("eager"), "$.rows[0] has an unknown field 'contnder'; did yo"),
        (a_benchmark(), Benchmark, "peaks.bandwidth", to(0.0), "$.peaks.bandwidth is 0.0, but must be a number > 0.0"),
        (a_benchmark(), Benchmark, "peaks.flops.float32", to("fast"), "but must be a number"),
        (an_explanation(), Explanation, "stages.0.seconds", to(-2), "$.stages[0].seconds is -2, but must be a number "),
        (an_explanation(), Explanation, "kernels", to({}), "$.kernels is {}, but must be a list"),
        (an_analysis(), Analysis, "steady.plan.calls_s", to([]), "$.steady.plan.calls_s is [], but must be a list of "),
        (a_ruling(), Approval, "standing", to("rejekted"), "$.standing is 'rejekted', but must be one of pinned, "),
        (MANIFEST, Manifest, "compiled_anew", to(-1), "$.compiled_anew is -1, but must be a whole number >= 0"),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else str(value) if isinstance(value, str) else "",
)  # fmt: skip
def test_what_was_edited_is_refused_with_place_value_and_rule(
    record: Any, kind: Any, path: str, change: Callable[[Any], Any] | None, said: str
) -> None:
    assert kind.from_json(record.to_json()) == record
    with pytest.raises(InputError) as refused:
        kind.from_json(change_value(record.to_json(), path, change))
    assert said in str(refused.value)


def test_a_value_of_a_mapping_is_named_by_what_is_around_it() -> None:
    text = change_value(MANIFEST.to_json(), "members", to({"decision.json": {"size": 1, "sha256": 5}}))
    with pytest.raises(InputError, match=r"\$\.members\[\.\.\.\]\.sha256 is .*, but must be text"):
        Manifest.from_json(text)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["report", "{file}"], "{file}: this is no Study: $ has an unknown field 'trails'; did you mean trials?"),
        (["compare", "{file}", "{file}"], "{file}: schema is 'torchwise.study/1', but this version reads 'torchwise.b"),
        (["bench", "--suite", "{file}", "--no-warm"], "{file}: it is no TOML: Invalid statement"),
        (["sweep", "{file}"], "{file}: it is no TOML: Invalid statement"),
        (["bisect", "zoo:tutorial.fusion_demo", "--plan", "{file}"], "{file}: this is no Study"),
        (["tune", "zoo:tutorial.fusion_demo", "--plan", '{{"schema":"torchwise.plan/1","bakend":"x"}}'], "did you mea"),
        (["explain", "zoo:tutorial.fusion_demo", "--plan", '{{"schema":"torchwise.plan/1","backend":"inducter"}}'], ""),
    ],
    ids=lambda words: words[0] if isinstance(words, list) else "",
)  # fmt: skip
def test_commands_name_the_file(tmp_path: Path, words: list[str], said: str) -> None:
    file = tmp_path / "study.json"
    file.write_text(change_value(STUDY.to_json(), "trails", to([])))
    done = CliRunner().invoke(app, [word.format(file=file) for word in words])
    assert isinstance(done.exception, TorchwiseError), done.output
    assert said.format(file=file) in str(done.exception)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"efort": "quick"}, "options has 'efort', but the backend torchwise has .*; did you mean effort"),
        ({"progress": "no"}, "progress is 'no', but must be True or False"),
        ({"store": 3}, "store is 3, but must be the URL or file of a store"),
        ({"budget": float("nan")}, "budget is nan, but must be seconds"),
    ],
)
def test_options_of_the_backend_are_refused_with_near_misses(given: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        Options.read(given, None)


def test_fields_of_a_config_are_refused_with_near_misses() -> None:
    with pytest.raises(
        InputError, match=r"minimum_speed is no field of CompileConfig, .*; did you mean minimum_speedup"
    ):
        CompileConfig().changed(minimum_speed=2.0)


@pytest.mark.parametrize(
    ("column", "value", "said"),
    [
        ("state", "asleep", "the state of study 1 is 'asleep', but this version knows running, decided, interrupted"),
        ("excluded", "[1", "the list of excluded plans of study 1 cannot be read: it is no JSON"),
        ("excluded", '{"a": 1}', "the list of excluded plans of study 1 cannot be read: "),
        ("record", '{"a": ' + "[" * 9999, "study 1 cannot be read: it is nested too deeply"),
        ("record", "\ufeff{}", "study 1 cannot be read: it is no JSON"),
    ],
)
def test_a_row_that_was_damaged_is_named(tmp_path: Path, column: str, value: str, said: str) -> None:
    import sqlite3

    file = tmp_path / "store.db"
    with open_storage(str(file)) as storage:
        create(storage)
    with sqlite3.connect(file) as connection:
        connection.execute(f"UPDATE torchwise_studies SET {column} = ?", (value,))
    with open_storage(str(file)) as storage, pytest.raises(StorageError) as refused:
        storage.get_study(1)
    assert str(refused.value).startswith(said)


def test_what_earlier_versions_wrote_is_read() -> None:
    results = Path(__file__).parents[2] / "benchmarks/results"
    read = {"torchwise.bench/1": Benchmark.from_json, "torchwise.study/1": Study.from_json}
    found = []
    for file in results.glob("*.json"):
        head = file.read_text()[-40:] + file.read_text()[:60]
        found += [read[schema](file.read_bytes()) for schema in read if schema in head]
    assert len(found) > 20


def test_a_record_that_lacks_what_has_a_default_is_read() -> None:
    text = change_value(replace(a_decision(), error=None).to_json(), "error", None)
    assert Decision.from_json(text) == a_decision()
