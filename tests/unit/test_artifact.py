"""An artifact is taken as a whole or refused before anything of it is used. A good one needs no compiler."""

from __future__ import annotations

import hashlib
import json
import os
import stat
import subprocess
import sys
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import torchwise
from live_decisions import make_decision
from torchwise import artifact, environment
from torchwise._torch import cpu_isa_cache
from torchwise.artifact import build, package
from torchwise.artifact.build import Build, BuildResult
from torchwise.artifact.package import SCHEMA, Manifest
from torchwise.cli.cache import _describe_artifact
from torchwise.errors import InputError, StalePlanError, UnsupportedError
from torchwise.plan import CHOICES, EAGER, Plan
from torchwise.plan.workload_spec import WorkloadSpec
from torchwise.records import Decision, Failure, FailureKind, codec
from torchwise.trial import Job, Limits

LOADING = sys.modules["torchwise.artifact.load"]  # the package's own name `load` is the function
X = torch.randn(3, 4)
NET = torch.nn.Linear(4, 4).eval()
INDUCTOR = Plan(backend="inductor")
CODE = {"inductor/ab/cabc.so": b"code", "triton/key/kernel.cubin": b"more code"}


class Recorded:
    """A launcher whose workers leave two files of code, or fail."""

    def __init__(self, failure: Failure | None = None) -> None:
        self.builds: list[Build] = []
        self.failure = failure

    def run(self, job: Any, limits: Limits, on_stage: Callable[[str], None]) -> str | Failure:
        self.builds.append(job)
        for name, data in CODE.items():
            file = Path(job.job.cache_dir, name.removeprefix("inductor/"))
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(data)
        Path(job.job.cache_dir, "ab", "cabc.lock").touch()
        return self.failure or codec.to_json(BuildResult(20.0 if job.step == "compile" else 1.0, {"avx2": True}, 0))


@pytest.fixture
def decision() -> Decision:
    return make_decision(NET, INDUCTOR, X)


@pytest.fixture
def file(tmp_path: Path, decision: Decision) -> Path:
    artifact.save(tmp_path / "model.tw", NET, decision, X, launcher=Recorded())
    return tmp_path / "model.tw"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "caches"
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(folder))
    monkeypatch.delenv("TRITON_CACHE_DIR", raising=False)
    monkeypatch.setattr(cpu_isa_cache, "replay", lambda known: None)
    return folder


def read_files(folder: Path) -> dict[str, bytes]:
    return {str(f.relative_to(folder)): f.read_bytes() for f in folder.rglob("*") if f.is_file()}


def rewritten(
    file: Path,
    change: Callable[[dict[str, bytes]], object] = lambda members: None,
    manifest: Callable[[dict[str, Any]], object] = lambda manifest: None,
    attributes: int = 0,
) -> Path:
    """Change an artifact as somebody could who knows the format, but not the sources."""
    with zipfile.ZipFile(file) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    change(members)
    if "manifest.json" in members:
        described = json.loads(members["manifest.json"])
        manifest(described)
        members["manifest.json"] = json.dumps(described).encode()
    with zipfile.ZipFile(file, "w") as archive:
        for name, data in members.items():
            entry = zipfile.ZipInfo(name)
            entry.external_attr = attributes << 16 if name.endswith(".so") else 0
            archive.writestr(entry, data)
    return file


def add_file(name: str, data: bytes = b"code") -> Callable[[Path], Path]:
    """Return a function that puts one more file in an artifact, properly described."""
    described = {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    return lambda file: rewritten(
        file, lambda members: members.update({name: data}), lambda m: m["members"].update({name: described})
    )


def test_what_is_saved_is_what_is_loaded(file: Path, place: Path, decision: Decision) -> None:
    assert artifact.load(file, trust=True) == decision
    assert read_files(place) == {"ab/cabc.so": b"code", "triton/0/key/kernel.cubin": b"more code"}


def test_it_is_readable_by_whomever_the_umask_lets(file: Path, tmp_path: Path) -> None:
    (tmp_path / "plain").touch()
    assert stat.S_IMODE(file.stat().st_mode) == stat.S_IMODE((tmp_path / "plain").stat().st_mode)
    assert not list(tmp_path.glob(".*"))


@pytest.mark.nightly
def test_the_compiler_is_imported_by_loading_and_not_by_the_first_call(file: Path, tmp_path: Path) -> None:
    code = (
        "import sys; from torchwise import artifact; from torchwise._torch import cpu_isa_cache\n"
        "cpu_isa_cache.replay = lambda known: 0\n"
        f"artifact.load({str(file)!r}, trust=True); before = set(sys.modules); import torch; "
        "torch.compile(lambda x: x.unsqueeze(0))(torch.ones(3)); new = set(sys.modules) - before; "
        "print(len([name for name in new if name.startswith('torch')]))"
    )
    variables = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "caches")}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=variables, check=False)
    assert int(done.stdout or 999) < 50, done.stderr  # of some 200, half of them imported by a first graph alone


def test_loading_leaves_a_gpu_untouched_as_the_program_may_be_about_to_fork(
    file: Path, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    used: list[Any] = []
    monkeypatch.setattr(torch, "compile", lambda call: lambda x: used.append(x.device.type))
    LOADING._set_up_compiler.cache_clear()
    LOADING._set_up_compiler("cuda")
    LOADING._set_up_compiler.cache_clear()
    assert used == ["cpu"]


def test_a_compiler_that_cannot_be_set_up_is_left_to_the_first_call(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(_: Any) -> None:
        raise RuntimeError("it is forbidden here")

    monkeypatch.setattr(torch, "compile", refuses)
    LOADING._set_up_compiler.cache_clear()
    assert artifact.load(file, trust=True)
    LOADING._set_up_compiler.cache_clear()


def test_triton_has_its_folder_where_its_variable_says(
    file: Path, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "own"))
    artifact.load(file, trust=True)
    assert read_files(tmp_path / "own") == {"key/kernel.cubin": b"more code"}


def test_what_lies_in_the_cache_already_stays(file: Path, place: Path) -> None:
    (place / "ab").mkdir(parents=True)
    (place / "ab/cabc.so").write_bytes(b"mine")
    artifact.load(file, trust=True)
    assert (place / "ab/cabc.so").read_bytes() == b"mine"


def test_code_is_not_loaded_unless_it_is_trusted(file: Path, place: Path) -> None:
    with pytest.raises(InputError, match="trust is False: give trust=True"):
        artifact.load(file)
    assert read_files(place) == {}


def test_info_reads_everything_and_runs_nothing(file: Path, place: Path, decision: Decision) -> None:
    found = artifact.info(file)
    assert found.decision == decision
    assert (found.manifest.cold_s, found.manifest.warm_s, found.manifest.checks) == (20.0, 1.0, {"avx2": True})
    assert found.sha256 == hashlib.sha256(file.read_bytes()).hexdigest()
    assert read_files(place) == {}
    assert Decision.from_json(zipfile.ZipFile(file).read("decision.json")) == decision


def test_a_file_that_hashes_to_what_is_known_is_loaded(file: Path, place: Path) -> None:
    artifact.load(file, trust=True, sha256=artifact.info(file).sha256.upper())
    assert read_files(place)


def test_a_file_that_hashes_to_something_else_is_refused(file: Path, place: Path) -> None:
    with pytest.raises(InputError, match="but must be " + "0" * 64):
        artifact.load(file, trust=True, sha256="0" * 64)
    assert read_files(place) == {}


def write_list_manifest(file: Path) -> None:
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("manifest.json", b"[{}]")


LINK, PIPE = stat.S_IFLNK | 0o777, stat.S_IFIFO | 0o666


def repack_with_lzma(file: Path) -> None:
    with zipfile.ZipFile(file) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(file, "w", zipfile.ZIP_LZMA) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    spoilt = bytearray(file.read_bytes())
    spoilt[60:200] = bytes(byte ^ 0x5A for byte in spoilt[60:200])
    file.write_bytes(spoilt)


BAD: dict[str, tuple[Callable[[Path], object], str]] = {
    "truncated": (lambda f: f.write_bytes(f.read_bytes()[:-40]), "is no artifact, or is damaged .*: copy it again"),
    "by another method": (repack_with_lzma, "is packed by method 14, but must be deflated"),
    "less than nothing": (
        lambda f: rewritten(f, manifest=lambda m: m["members"]["inductor/ab/cabc.so"].update(size=-2)),
        "says that 'inductor/ab/cabc.so' has -2 bytes",
    ),
    "empty": (lambda f: f.write_bytes(b""), "is no artifact, or is damaged"),
    "no zip": (lambda f: f.write_bytes(b"x" * 400), "is no artifact, or is damaged"),
    "a flipped bit": (
        lambda f: f.write_bytes((d := f.read_bytes())[:45] + bytes([d[45] ^ 255]) + d[46:]),
        "is no artifact, or is damaged",
    ),
    "other code": (
        lambda f: rewritten(f, lambda m: m.update({"inductor/ab/cabc.so": b"evil"})),
        "SHA-256 of 'inductor/ab/cabc.so' is .*, but the manifest says",
    ),
    "another decision": (
        lambda f: rewritten(
            f, lambda m: m.update({"decision.json": m["decision.json"].replace(b"because", b"trustme")})
        ),
        "SHA-256 of 'decision.json'",
    ),
    "more bytes": (
        lambda f: rewritten(f, lambda m: m.update({"inductor/ab/cabc.so": b"code and more"})),
        "'inductor/ab/cabc.so' has more than 4 bytes",
    ),
    "fewer bytes": (
        lambda f: rewritten(f, lambda m: m.update({"inductor/ab/cabc.so": b"co"})),
        "has 2 bytes, but the manifest says 4",
    ),
    "a file too many": (lambda f: rewritten(f, lambda m: m.update({"inductor/x.py": b""})), "must be in both"),
    "a file too few": (lambda f: rewritten(f, lambda m: m.pop("inductor/ab/cabc.so")), "must be in both"),
    "no manifest": (lambda f: rewritten(f, lambda m: m.pop("manifest.json")), "it has no manifest.json"),
    "a parent": (add_file("inductor/../../evil.so"), "only plain paths under inductor and triton"),
    "a parent at once": (add_file("../evil.so"), "only plain paths"),
    "a root": (add_file("/etc/evil.so"), "only plain paths"),
    "a root below": (add_file("inductor//etc/evil.so"), "only plain paths"),
    "a drive": (add_file("inductor/c:evil.so"), "only plain paths"),
    "a backslash": (add_file("inductor/..\\evil.so"), "only plain paths"),
    "another folder": (add_file("site-packages/evil.py"), "only plain paths"),
    "a link": (lambda f: rewritten(f, attributes=LINK), "is a link or a device"),
    "a pipe": (lambda f: rewritten(f, attributes=PIPE), "is a link or a device"),
    "another schema": (
        lambda f: rewritten(f, manifest=lambda m: m.update(schema="torchwise.artifact/9")),
        f"schema is 'torchwise.artifact/9', but this version reads '{SCHEMA}'",
    ),
    "a manifest of a list": (
        write_list_manifest,
        "manifest.json: this is no Manifest: it is .*, but must be an object; build",
    ),
    "a missing field": (lambda f: rewritten(f, manifest=lambda m: m.pop("environment")), "this is no Manifest"),
    "far too large": (
        lambda f: rewritten(f, manifest=lambda m: m["members"]["decision.json"].update(size=2**40)),
        "unpacks to .* bytes, but at most",
    ),
}


@pytest.mark.parametrize("fault", BAD)
def test_a_bad_file_is_refused_before_anything_is_written(file: Path, place: Path, fault: str) -> None:
    break_it, message = BAD[fault]
    break_it(file)
    with pytest.raises(InputError, match=message) as raised:
        artifact.load(file, trust=True)
    assert str(file) in str(raised.value)
    assert read_files(place) == {}
    with pytest.raises(InputError, match=message):
        artifact.info(file)


def test_a_name_that_is_in_it_twice_is_refused(file: Path) -> None:
    with zipfile.ZipFile(file, "a") as archive, pytest.warns(UserWarning, match="Duplicate"):
        archive.writestr("inductor/ab/cabc.so", b"evil")
    with pytest.raises(InputError, match="a name is in it twice"):
        artifact.info(file)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none\.tw cannot be read: No such file"):
        artifact.load(tmp_path / "none.tw", trust=True)


@pytest.mark.parametrize(
    ("change", "factor"),
    [
        (lambda m: m["environment"].update(torch="1.0"), r"torch: 1.0 there, \S+ here"),
        (lambda m: m["environment"].update(cpu="i386"), "cpu: i386 there"),
        (lambda m: m.update(torchwise="0.0.1"), f"torchwise: 0.0.1 there, {torchwise.__version__} here"),
    ],
    ids=["torch", "cpu", "torchwise"],
)
def test_code_for_elsewhere_is_refused_with_the_factor(
    file: Path, place: Path, change: Callable[[dict[str, Any]], None], factor: str
) -> None:
    rewritten(file, manifest=change)
    with pytest.raises(StalePlanError, match=factor):
        artifact.load(file, trust=True)
    assert read_files(place) == {}
    assert artifact.info(file).decision.plan == INDUCTOR


def test_a_plan_that_compiles_nothing_needs_neither_worker_nor_trust(tmp_path: Path) -> None:
    decision, launcher = make_decision(NET, EAGER, X), Recorded()
    made = artifact.save(tmp_path / "eager.tw", NET, decision, X, launcher=launcher)
    assert launcher.builds == []
    assert made.manifest.warm_s is None
    assert artifact.load(tmp_path / "eager.tw") == decision


def test_a_plan_that_rewrites_in_eager_must_answer_and_has_no_code(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    decision, launcher = make_decision(NET, Plan(transforms=("batched_loop",)), X), Recorded()
    made = artifact.save(tmp_path / "rewritten.tw", NET, decision, X, launcher=launcher)
    assert [build.step for build in launcher.builds] == ["start"]
    assert (made.manifest.cold_s, made.manifest.members.keys()) == (1.0, {"decision.json"})
    with caplog.at_level("INFO", "torchwise"):
        assert artifact.load(tmp_path / "rewritten.tw") == decision
    assert "no code: the model is rewritten on the first calls of each process, in some 1 s" in caplog.text


def save_without_code(tmp_path: Path) -> tuple[Path, Decision, Recorded]:
    decision, launcher = make_decision(NET, Plan(backend="aot-inductor"), X), Recorded()
    artifact.save(tmp_path / "model.tw", NET, decision, X, launcher=launcher)
    return tmp_path / "model.tw", decision, launcher


def test_a_plan_that_compiles_in_each_process_is_stored_without_code(
    tmp_path: Path, place: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file, decision, launcher = save_without_code(tmp_path)
    assert [build.step for build in launcher.builds] == ["start"], "it must answer, and is compiled once"
    assert artifact.info(file).manifest.members.keys() == {"decision.json"}
    told = _describe_artifact(artifact.info(file))
    assert told.endswith("no code: aot-inductor compiles in each process, on its first calls, which took 1.00 s.")
    with caplog.at_level("INFO", "torchwise"):
        assert artifact.load(file) == decision, "without code there is nothing to trust"
    assert "no code: aot-inductor compiles on the first calls of each process, in some 1 s" in caplog.text


@pytest.mark.parametrize("backend", ["aot-inductor", "openvino"])
def test_an_artifact_whose_compiler_is_not_here_says_who_answers(
    backend: str, tmp_path: Path, place: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    decision = make_decision(NET, Plan(backend=backend), X)
    artifact.save(tmp_path / "model.tw", NET, decision, X, launcher=Recorded())
    monkeypatch.setitem(CHOICES, (key := ("backend", backend)), replace(CHOICES[key], packages=("not_there",)))
    assert artifact.load(tmp_path / "model.tw", trust=True) == decision
    assert f"your model itself answers here: backend is '{backend}', but it needs not_there" in caplog.text


def test_code_of_another_compiler_is_for_its_version(
    tmp_path: Path, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there, compilers = environment.detect, "openvino 1.0"
    monkeypatch.setattr(environment, "detect", lambda device: replace(there(device), compilers=compilers))
    for plan in (Plan(backend="openvino"), INDUCTOR):
        decision = make_decision(NET, plan, X)
        artifact.save(tmp_path / f"{plan.backend}.tw", NET, decision, X, launcher=Recorded())
    compilers = "openvino 2.0"
    with pytest.raises(InputError, match="holds compiled code, which runs in this process when it is loaded"):
        artifact.load(tmp_path / "openvino.tw")
    with pytest.raises(StalePlanError, match=r"compilers: openvino 1.0 there, openvino 2.0 here"):
        artifact.load(tmp_path / "openvino.tw", trust=True)
    assert artifact.load(tmp_path / "inductor.tw", trust=True).plan == INDUCTOR


def test_it_is_compiled_once_and_started_once_more_from_what_that_left(tmp_path: Path, decision: Decision) -> None:
    launcher = Recorded()
    artifact.save(tmp_path / "model.tw", NET, decision, X, launcher=launcher)
    cold, warm = launcher.builds
    assert (cold.step, warm.step) == ("compile", "start")
    assert cold.job.cache_dir == warm.job.cache_dir
    assert warm.checks == {"avx2": True}
    assert not Path(cold.job.cache_dir).exists()


def test_it_is_compiled_under_the_variables_of_this_process(
    tmp_path: Path, decision: Decision, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server of the workers may have started before the variables were set."""
    monkeypatch.setenv("TORCHINDUCTOR_MAX_AUTOTUNE", "1")
    launcher = Recorded()
    artifact.save(tmp_path / "model.tw", NET, decision, X, launcher=launcher)
    assert {build.variables()["TORCHINDUCTOR_MAX_AUTOTUNE"] for build in launcher.builds} == {"1"}


def test_what_fails_in_the_worker_is_said_and_the_old_file_stays(file: Path, decision: Decision) -> None:
    before = file.read_bytes()
    failure = Failure(FailureKind.RAISED, "compile", "RuntimeError: no such kernel")
    with pytest.raises(UnsupportedError, match="no such kernel"):
        artifact.save(file, NET, decision, X, launcher=Recorded(failure))
    assert file.read_bytes() == before


def test_a_decision_for_another_model_or_machine_is_not_saved(tmp_path: Path, decision: Decision) -> None:
    with pytest.raises(StalePlanError, match="structure of weights changed"):
        artifact.save(tmp_path / "x.tw", torch.nn.Linear(4, 5).eval(), decision, X, launcher=Recorded())
    elsewhere = replace(decision, environment=replace(environment.detect("cpu"), python="2.7"))
    with pytest.raises(StalePlanError, match=r"python: 2\.7 there"):
        artifact.save(tmp_path / "x.tw", "zoo:tutorial.fusion_demo", elsewhere, launcher=Recorded())


@pytest.mark.parametrize(
    ("model", "given", "message"),
    [
        (NET, {}, "no example inputs are given"),
        (NET, {"args": X, "examples": []}, "pass only one of them"),
        ("zoo:tutorial.fusion_demo", {"args": X}, "has its own inputs"),
        ("nothing", {}, "target is 'nothing'"),
    ],
)
def test_bad_arguments_are_refused(
    tmp_path: Path, decision: Decision, model: Any, given: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        artifact.save(tmp_path / "x.tw", model, decision, launcher=Recorded(), **given)


def test_a_folder_that_is_not_there_is_named_before_anything_is_compiled(tmp_path: Path, decision: Decision) -> None:
    launcher = Recorded()
    with pytest.raises(InputError, match="there is no folder"):
        artifact.save(tmp_path / "none" / "x.tw", NET, decision, X, launcher=launcher)
    assert launcher.builds == []


def test_what_cannot_be_written_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "model.tw"
    file.write_bytes(b"old")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(InputError, match=r"cannot be written: No space left on device; nothing was changed"):
        package.put(file, b"new")
    assert read_files(tmp_path) == {"model.tw": b"old"}


def test_a_cache_that_cannot_be_written_is_an_error_of_its_own(file: Path, tmp_path: Path, place: Path) -> None:
    place.mkdir()
    (place / "ab").write_bytes(b"a file in the folder's place")
    with pytest.raises(InputError, match=r"ab cannot be made: File exists"):
        artifact.load(file, trust=True)


def test_the_same_input_makes_the_same_bytes(decision: Decision) -> None:
    manifest = Manifest("1", environment.detect("cpu"), {}, {}, 1.0, 1.0, 0)
    (_, one), (_, other) = (package.pack(manifest, decision, CODE) for _ in range(2))
    assert one == other


def test_locks_links_and_halves_are_left_out(tmp_path: Path) -> None:
    for name in ("ab/c.so", "ab/c.so.tmp", "locks/c.lock"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "ab/link").symlink_to(tmp_path / "ab/c.so")
    assert build.collect(tmp_path) == {"inductor/ab/c.so": b""}


def test_instruction_sets_are_checked_once_and_then_known(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._inductor import cpu_vec_isa

    class Set:
        def __str__(self) -> str:
            return "avx2"

        def build_arch_flags(self) -> str:
            return "-mavx2"

        def check_build(self, code: str) -> bool:
            asked.append(code)
            return True

    asked: list[str] = []
    monkeypatch.setattr(cpu_vec_isa, "VecISA", Set)
    monkeypatch.setattr(cpu_vec_isa, "valid_vec_isa_list", lambda: [Set().check_build("one")])
    with cpu_isa_cache.recording() as known:
        assert cpu_vec_isa.valid_vec_isa_list() == [True]
    assert list(known.values()) == [True]
    cpu_isa_cache.replay(known)
    assert asked == ["one"]
    cpu_isa_cache.replay({"another": True})
    assert asked == ["one", "one"]
    cpu_isa_cache.replay({})
    assert asked == ["one", "one"]
    assert Set.check_build.__qualname__.endswith("Set.check_build")


def test_what_inductor_itself_finds_out_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._inductor import config, cpu_vec_isa

    monkeypatch.setattr(build, "_first_calls", lambda given: float(bool(cpu_vec_isa.VecAVX2())))
    compiling = Build("compile", Job("try", WorkloadSpec("m:f")), "")
    with config.patch({"cpp.vec_isa_ok": None}):  # which the tests set, so that no worker finds it out
        told = build.compile(compiling, lambda stage: None)
    assert list(told.checks.values()) == [bool(told.seconds)]


def test_a_torch_without_the_check_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._inductor import cpu_vec_isa

    monkeypatch.delattr(cpu_vec_isa, "VecISA")
    with pytest.raises(UnsupportedError, match=r"torch\._inductor\.cpu_vec_isa\.VecISA, which torch"):
        cpu_isa_cache.replay({"avx2": True})


MODEL = """
import torch

def make():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.GELU(), torch.nn.Linear(8, 4))
    return model.eval(), (torch.ones(3, 4),)
"""
START = """
import sys, torch, torchwise
from torchwise import artifact
decision = artifact.load(sys.argv[1], trust=True)
from torchwise.workload import target
workload = target.load(sys.argv[2])
fast, args = torchwise.apply(workload.call, decision, strict=True), workload.examples[0].args
with torch.no_grad():
    same = torch.allclose(fast(*args), workload.call(*args), atol=1e-5)
from torch._dynamo.utils import counters
found = counters["inductor"]
print(same, fast.statistics.optimized, found["fxgraph_cache_miss"], found["fxgraph_cache_hit"])
"""


@pytest.mark.slow
@pytest.mark.parametrize("live", [False, pytest.param(True, marks=pytest.mark.nightly)], ids=["target", "live"])
def test_another_process_finds_everything_compiled(tmp_path: Path, live: bool) -> None:
    from torchwise.workload import target

    (tmp_path / "model.py").write_text(MODEL)
    name = f"{tmp_path / 'model.py'}:make"
    workload = target.load(name)
    decision = make_decision(workload.call, INDUCTOR, *workload.examples[0].args)
    made = artifact.save(tmp_path / "model.tw", workload if live else name, decision)
    assert made.manifest.compiled_anew == 0  # which a process of its own finds out
    if live:
        return
    variables = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "caches")}
    command = [sys.executable, "-c", START, str(tmp_path / "model.tw"), name]
    done = subprocess.run(command, capture_output=True, text=True, env=variables, check=False)
    assert done.stdout.split() == ["True", "1", "0", "1"], done.stdout + done.stderr


@pytest.mark.slow
def test_another_process_finds_the_models_of_other_compilers(tmp_path: Path) -> None:
    from torchwise.workload import target

    (tmp_path / "model.py").write_text(MODEL)
    name = f"{tmp_path / 'model.py'}:make"
    workload = target.load(name)
    decision = make_decision(workload.call, Plan(backend="openvino"), *workload.examples[0].args)
    made = artifact.save(tmp_path / "model.tw", name, decision)
    assert made.manifest.compiled_anew == 0
    assert [file for file in made.manifest.members if file.startswith("inductor/torchwise_models/")]
