"""Every kind of file that is read: samples of it, its reader, and the data that was read."""

from __future__ import annotations

import io
import json
import tomllib
import zipfile
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
from lock_samples import an_entry

import store_samples as stored
from analysis_samples import an_analysis
from bench_samples import a_benchmark, some_rows
from explain_samples import COMPILATION, make_finding, price
from torchwise import environment
from torchwise.artifact import package
from torchwise.artifact.package import Manifest
from torchwise.bench.request import read_suite
from torchwise.parsing import parse_json
from torchwise.plan import EAGER, Plan
from torchwise.records import Approval, Decision, Duel, Interval, Study, Trial, codec
from torchwise.records.analysis import Analysis
from torchwise.records.benchmark import Benchmark
from torchwise.records.bisection import Bisection, Cause, Observation, Operation, Repro, Step, Subgraph, Symptom
from torchwise.records.codec import Document
from torchwise.records.comparison import Comparison, compare
from torchwise.records.compile_events import (
    Break,
    CodeFix,
    CompileEvents,
    Frame,
    Recompile,
    UncompiledKind,
    UncompiledPart,
)
from torchwise.records.explanation import Explanation, Limits, SourceLocation
from torchwise.records.missed_calls import MissedCalls, MissedKind, MissedModule
from torchwise.records.scale import BatchFit, SizeTried
from torchwise.report import read_benchmark
from torchwise.runtime.components.config import CompileConfig
from torchwise.runtime.dynamo.decide import Options
from torchwise.store.schema import dump, load
from torchwise.study.cluster.manifest import read_manifest
from torchwise.study.lock import file as lock_file
from torchwise.study.lock.check_results import Check, Checked, State
from torchwise.study.lock.entry import _digest
from torchwise.study.lock.file import format_header, format_pair

TUNED = Plan(backend="inductor", transforms=("isolate_rnn", "complex_to_real"), options=(("freezing", True),))


@dataclass(frozen=True)
class Kind:
    """One kind of file.

    Attributes:
        name: the kind's name.
        samples: whole files.
        read: its reader.
        told: gives the data that was read in plain form, in which everything in the file must be found. None if that
            is not to be had.
        plain: the plain data in a file, by a reader of Python's own.
        written: a file with given plain data.
        of_python: whether a program gives it, and no file: a message may then repeat all that was given.
    """

    name: str
    samples: tuple[bytes, ...]
    read: Callable[[bytes], Any]
    told: Callable[[Any], Any] | None
    plain: Callable[[bytes], Any] = json.loads
    written: Callable[[Any], bytes] = lambda data: json.dumps(data).encode(errors="surrogatepass")
    of_python: bool = False


def kinds(folder: Path) -> list[Kind]:
    """Return all kinds. `folder` takes the files of readers that read from a disk."""
    documents = [_document(kind, *samples) for kind, samples in _documents().items()]
    return [
        _plan(), *documents, _study(), _benchmark_file(folder), _lock(folder), _manifest(folder), _suite(folder),
        _artifact(), _backend_options(), _parts_config(), *_rows(),
    ]  # fmt: skip


def _plan() -> Kind:
    def to_plain(plan: Plan) -> Any:
        return {"schema": "torchwise.plan/1", **codec.to_builtins(plan), "options": dict(plan.options)}

    plans = (
        TUNED,
        Plan(capture="step", optimizer="fused", microbatches=4),
        Plan(threads=2, memory_format="channels_last"),
    )
    return Kind("plan", tuple(plan.to_json().encode() for plan in plans), Plan.from_json, to_plain)


def _documents() -> dict[type[Document], tuple[Document, ...]]:
    here, spec = stored.HERE, stored.a_study().workload
    frame = Frame("model.py", 12, "forward")
    watched = CompileEvents(
        9.0,
        (
            Break(
                "model.py",
                12,
                "forward",
                "GB0059",
                "print",
                hints=("do not",),
                stack=(frame,),
                fix=CodeFix("print", "go"),
            ),
        ),
        (Recompile("forward", "model.py", 3, "L['x'].size()[0] == 8", stack=(frame,), compile_ids=("0/1",)),),
        (replace(COMPILATION, phases={"inductor": 2.0}, guard_us=3.0),),
        (UncompiledPart(UncompiledKind.COMPLEX, "aten.mul"),),
    )
    explained = stored.an_explanation(
        TUNED, findings=(replace(make_finding(found=price(1e-3)),
        places=(SourceLocation("a.py", 3),), plan=TUNED),), compile_events=watched,
        limits=Limits(1e12, 1e13),
    )  # fmt: skip
    bisected = Bisection(
        spec, here, Observation(Symptom.CRASH, "died", "SIGSEGV"), TUNED, stage="inductor",
        cause=Cause("pass", "fuse", place=3, of=9, workaround={"epilogue_fusion": False, "max_fusion_size": 1}),
        subgraph=Subgraph(0, (Operation("add", "torch.add", "add = torch.add(x, y)"),), 12),
        repro=Repro("repro.py", confirmed=True, standalone=True), notes=("nothing else",), seconds=60.0,
        steps=(Step("eager", Observation(Symptom.NONE), 2.5),),
    )  # fmt: skip
    checked = Checked("a.py:make", "inference", "8 × CPU", State.SLOWER, "slower", locked=Interval(1.9, 2.0, 2.1))
    analysed = an_analysis(batches=())
    few = replace(
        analysed.steady,
        plan=replace(analysed.steady.plan, calls_s=(1e-3, 2e-3)),
        baseline=replace(analysed.steady.baseline, calls_s=(2e-3,)),
    )  # type: ignore[union-attr,type-var]
    sizes = (SizeTried(8, 9.5, 2**20), SizeTried(16, problem="out of memory"))
    missed = MissedKind("float32[7, 4]", "[0][0] float32[7, 4] (4, 1)", 12.5, 0.25, 3, autocast="bfloat16")
    compared = compare(a_benchmark(some_rows()[:2]), a_benchmark(some_rows()[:2]))
    return {
        Decision: (stored.a_decision(TUNED, error=1e-7), stored.a_decision(EAGER, speedup=None, break_even_calls=None)),
        Benchmark: (_few_samples(a_benchmark(some_rows()[:3])),),
        Explanation: (explained,),
        Bisection: (bisected,),
        Analysis: (_few_samples(replace(analysed, steady=few)),),
        CompileEvents: (watched,),
        BatchFit: (BatchFit("a.py:make", TUNED, sizes, 2**30),),
        Comparison: (compared,),
        Check: (Check((checked,), 0.05, 0.99),),
        Approval: (stored.a_ruling(TUNED),),
        MissedCalls: (MissedCalls("a.py", (MissedModule("Net", "5f", 3, (missed,), 2),)),),
    }  # fmt: skip


def _few_samples(record: Any) -> Any:
    """Return a record whose measurements have three pairs each, so that mutations do not hit samples alone."""
    data = codec.to_builtins(record)

    def cut(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: cut(item) for name, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [cut(item) for item in (value[:3] if value and isinstance(value[0], float) else value)]
        return value

    return codec.from_builtins(cut(json.loads(json.dumps(data))), type(record))


def _document(kind: type[Document], *samples: Document) -> Kind:
    texts = tuple(sample.to_json().encode() for sample in samples)
    return Kind(kind.__name__.lower(), texts, kind.from_json, codec.to_builtins)


def _study() -> Kind:
    trial = stored.complete_trial(Trial(0, TUNED))
    duel = Duel(EAGER, stored.FASTER, seconds=3.0)
    trials = (replace(trial, duel=duel), stored.fail_trial(Trial(1, Plan(threads=2))), Trial(2, Plan(capture="call")))
    study = stored.a_study(trials=trials, excluded=("tf32: it is for cuda",), decision=stored.a_decision(TUNED))
    samples = (study.to_json().encode(), stored.a_study().to_json().encode())
    return Kind("study", samples, Study.from_json, Study.to_dict)


def _benchmark_file(folder: Path) -> Kind:
    def read(data: bytes) -> Any:
        file = folder / "bench.json"
        file.write_bytes(data)
        return read_benchmark(file)

    sample = _few_samples(a_benchmark(some_rows()[:1])).to_json().encode()
    return Kind("benchmark file", (sample,), read, codec.to_builtins)


def _lock(folder: Path) -> Kind:
    entries = (an_entry("a.py:make"), an_entry("b.py:make", EAGER), an_entry("c.py:make", TUNED, mode="training"))

    def read(data: bytes) -> Any:
        file = folder / "torchwise.lock"
        file.write_bytes(data)
        return lock_file.read(file)

    def to_plain(lock: Any) -> Any:
        return tomllib.loads(lock.to_toml())

    def to_bytes(data: Any) -> bytes:
        """Write a lock as somebody would who knows how its sections are signed."""
        lines = [format_pair("schema", data["schema"])] if isinstance(data, dict) and "schema" in data else []
        for target, modes in data.items():
            if target == "schema":
                continue
            for mode, machines in modes.items():
                for machine, found in machines.items():
                    key, plain = (target, mode, machine), {n: v for n, v in found.items() if n != "digest"}
                    lines += [format_header(key), *(format_pair(name, value) for name, value in plain.items())]
                    lines += [format_pair("digest", _digest(key, tomllib.loads("\n".join(lines[-len(plain) :]))))]
        return "\n".join(lines).encode(errors="surrogatepass")

    return Kind("lock", (lock_file.Lock().with_entries(entries).to_toml().encode(),), read, to_plain, _toml, to_bytes)


def _toml(data: bytes) -> Any:
    return tomllib.loads(data.decode())


def _tables(data: Any) -> bytes:
    """Write TOML of pairs, and of lists of tables."""
    tables = data.get("studies")
    lines = [format_pair(name, value) for name, value in data.items() if name != "studies" or not _are_tables(tables)]
    for table in tables if _are_tables(tables) else ():
        lines += ["[[studies]]", *(format_pair(name, value) for name, value in table.items())]
    return "\n".join(lines).encode(errors="surrogatepass")


def _are_tables(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(table, dict) for table in value)


def _manifest(folder: Path) -> Kind:
    texts = (
        f"""calls = 1000
effort = "quick"
plan = ['{TUNED.to_json()}']
[[studies]]
targets = ["zoo:tutorial.fusion_demo", "app.models:make"]
sizes = ["small", "large"]
devices = ["cpu"]
[[studies]]
targets = ["app:make"]
modes = ["training"]
budget = 60.0
memory_limit = 1.5
seed = 3
""",
        'targets = ["zoo:tutorial.fusion_demo"]\nobjective = "throughput"\nrestarts = 2\nallow = "reduced"\n',
    )

    def read(data: bytes) -> Any:
        file = folder / "sweep.toml"
        file.write_bytes(data)
        tasks = [msgspec.structs.asdict(task) for task in read_manifest(file).tasks]
        _check_tasks(tomllib.loads(data.decode()), tasks)
        return tasks

    return Kind("sweep", tuple(map(str.encode, texts)), read, None, _toml, _tables)


def _check_tasks(head: dict[str, Any], tasks: list[dict[str, Any]]) -> None:
    """Refuse tasks that lack a value that their manifest gives."""
    tables = head.pop("studies", []) or [{}]
    for table in ({**head, **table} for table in tables):
        sized = [target for target in table["targets"] if target.startswith("zoo:") and "@" not in target]
        for name, value in table.items():
            for one in value if name in ("targets", "sizes", "devices", "modes") else [value]:
                if name == "sizes":  # which mean nothing for others
                    assert not (one and sized) or any(task["target"].endswith(f"@{one}") for task in tasks), one
                elif name == "targets":
                    assert any(task["target"].startswith(one) for task in tasks), one
                else:
                    field = name.removesuffix("s") if name in ("devices", "modes") else name
                    given = tuple(one) if isinstance(one, list) else float(one) if type(one) is int else one
                    assert any(task[field] == given for task in tasks), name


def _suite(folder: Path) -> Kind:
    text = """targets = ["tutorial", "ivhl.mera_layer@small", "app.models:make"]
sizes = ["small"]
contenders = ["eager", "default", "torchwise"]
device = "cpu"
mode = "inference"
objective = "throughput"
about = "nightly"
"""

    def read(data: bytes) -> Any:
        file = folder / "suite.toml"
        file.write_bytes(data)
        return read_suite(file)

    return Kind("suite", (text.encode(), b'targets = ["zoo"]\n'), read, asdict, _toml, _tables)


def _artifact() -> Kind:
    made = Manifest("0.1.0", environment.detect("cpu"), {}, {"avx2": True}, 12.0, 1.5, 0)
    code = {"inductor/ab/cab.py": b"import torch\n" * 9, "triton/ab/kernel.json": b"{}"}
    _, sample = package.pack(made, stored.a_decision(TUNED), code)

    def plain(data: bytes) -> Any:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            return {name: json.loads(archive.read(f"{name}.json")) for name in ("manifest", "decision")}

    def to_bytes(data: Any) -> bytes:
        """Pack the changed data, and tell its true size and digest."""
        decision = json.dumps(data.get("decision")).encode(errors="surrogatepass")
        manifest = data.get("manifest")
        members = manifest.get("members") if isinstance(manifest, dict) else None
        if isinstance(members, dict) and isinstance(members.get("decision.json"), dict):
            members["decision.json"] = {"size": len(decision), "sha256": package._digest(decision)}
        packed = io.BytesIO()
        with zipfile.ZipFile(packed, "w") as archive:
            archive.writestr("manifest.json", json.dumps(manifest).encode(errors="surrogatepass"))
            archive.writestr("decision.json", decision)
            for name, content in code.items():
                archive.writestr(name, content)
        return packed.getvalue()

    def to_plain(found: Any) -> Any:
        return {name: codec.to_builtins(getattr(found.info, name)) for name in ("manifest", "decision")}

    return Kind("artifact", (sample,), lambda data: package.unpack("a.tw", data), to_plain, plain, to_bytes)


def _backend_options() -> Kind:
    sample = {
        "effort": "standard",
        "calls": 1000,
        "allow": "lower-precision",
        "store": "s.db",
        "budget": 9.5,
        "progress": False,
    }
    return Kind(
        "backend options",
        (json.dumps(sample).encode(),),
        _wrap_reader(lambda d: Options.read(d, None)),
        asdict,
        of_python=True,
    )


def _parts_config() -> Kind:
    sample = {
        "enabled": True, "mode": "max-autotune", "lazy": False, "minimum_speedup": 1.5, "effort": "quick", "calls": 9,
        "budget_s": 5.0, "allow": "same-precision",
        "restarts": 2, "training": None, "autocast": "bfloat16", "device": "cpu",
    }  # fmt: skip
    read = _wrap_reader(lambda data: CompileConfig().changed(**data))
    return Kind("parts config", (json.dumps(sample).encode(),), read, asdict, of_python=True)


def _wrap_reader(read: Callable[[dict[str, Any]], Any]) -> Callable[[bytes], Any]:
    def parse_mapping(data: bytes) -> Any:
        found = parse_json(data)
        return read(found if isinstance(found, dict) else {"data": found})

    return parse_mapping


def _rows() -> list[Kind]:
    records = {
        "trial": stored.complete_trial(Trial(0, TUNED)), "study": stored.a_study(),
        "decision": stored.a_decision(TUNED),
        "ruling": stored.a_ruling(TUNED), "explanation": stored.an_explanation(TUNED),
    }  # fmt: skip

    def row(name: str, record: Any) -> Kind:
        def read(data: bytes) -> Any:
            return load(data.decode(errors="replace"), type(record), row=f"{name} 1", written="1", known="1")

        return Kind(f"row: {name}", (dump(record).encode(),), read, None)

    return [row(name, record) for name, record in records.items()]
