"""The lock file: it is read as written, always the same bytes, and nothing edited or malformed is taken."""

from __future__ import annotations

import math
import re
import subprocess
import sys
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from lock_samples import FAR, HERE, INDUCTOR, TARGET, a_study, an_entry

import torchwise
from live_decisions import make_decision
from torchwise.environment import Environment
from torchwise.errors import InputError, PlanError, StalePlanError
from torchwise.plan import EAGER, Plan
from torchwise.study.lock import Entry, Lock, decision, read, write
from torchwise.study.lock.entry import entry_of, section_of
from torchwise.study.lock.file import format_header, format_pair

H200 = replace(
    HERE,
    device="cuda",
    gpu="NVIDIA H200",
    gpu_memory_mib=143771,
    gpu_capability="9.0",
    driver="580.65.06",
    triton="3.6",
    cuda="13.0",
)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]))
SCALARS = st.one_of(TEXTS, st.integers(-(2**62), 2**62), st.booleans(), st.floats(allow_nan=False))
VALUES = st.one_of(SCALARS, st.lists(SCALARS, max_size=4), st.dictionaries(TEXTS, SCALARS, max_size=4))


def write_lock(folder: Path, *entries: Entry) -> Path:
    return write(Lock().with_entries(entries), folder / "torchwise.lock")


# TOML.


@given(TEXTS, VALUES)
def test_any_value_is_read_as_it_was_written(name: str, value: object) -> None:
    assert tomllib.loads(format_pair(name, value)) == {name: value}


@given(st.lists(TEXTS, min_size=1, max_size=3))
def test_any_heading_is_read_as_it_was_written(path: list[str]) -> None:
    found = tomllib.loads(format_header(path))
    for name in path:
        found = found[name]
    assert found == {}


def test_what_toml_does_not_have_is_refused() -> None:
    with pytest.raises(TypeError, match="None is of type NoneType"):
        format_pair("a", None)


# Writing.


@pytest.mark.parametrize(
    "entry",
    [
        an_entry(),
        an_entry(plan=EAGER),
        an_entry(mode="training", calls=7, restarts=3, seed=5, memory_limit=2**31, objective="memory"),
        an_entry(plan=Plan(backend="inductor", transforms=("complex_to_real",), threads=2)),
        an_entry(here=H200, device="cuda"),
        an_entry('a "quoted" \\ é\n\x7f.py:make'),
    ],
    ids=["plan", "eager", "asked", "transforms", "gpu", "odd name"],
)
def test_what_is_written_is_read(entry: Entry, tmp_path: Path) -> None:
    assert read(write_lock(tmp_path, entry)).entries == (entry,)


def test_the_same_decisions_are_the_same_bytes_in_whatever_order(tmp_path: Path) -> None:
    entries = [an_entry(), an_entry("b:c", here=FAR), an_entry(mode="training"), an_entry(here=FAR)]
    first = Lock().with_entries(entries).to_toml()
    assert Lock().with_entries(reversed(entries)).to_toml() == first
    path = write_lock(tmp_path, *entries)
    assert write(read(path), path).read_text() == first


def test_nothing_that_changes_by_itself_is_written() -> None:
    elsewhere = a_study(here=replace(HERE, hostname="a-name-of-a-host"))
    later = replace(elsewhere, id=9, created_at=5e9, seconds=77.0)
    assert section_of(entry_of(later)) == section_of(an_entry())
    assert "a-name-of-a-host" not in Lock((entry_of(later),)).to_toml()


def test_a_reviewer_reads_plan_worth_proof_and_machine(tmp_path: Path) -> None:
    text = write_lock(tmp_path, an_entry(here=H200, device="cuda", calls=12345)).read_text()
    for line in (
        'plan = {backend = "inductor", options = {coordinate_descent_tuning = true}}',
        'verdict = "1 checks passed"',
        'numerics = "same-precision"',
        'allow = "same-precision"',
        "calls = 12345",
        "baseline_s = 0.01001",
        "error = 1.235e-07",
        "break_even_calls = [10.0, 20.0, inf]",
        '  "the machine was busy",',
    ):
        assert line in text.splitlines()
    assert re.search(r'^reason = "Run inductor \+ coordinate_descent_tuning: 2 \[', text, re.MULTILINE)
    assert re.search(r'^software = \{python = ".*", torch = ".*", triton = "3.6", cuda = "13.0"', text, re.MULTILINE)
    assert f'["app.py:make".inference."NVIDIA H200, 143771 MiB; {HERE.hardware}"]' in text


# Several machines.


def test_a_machine_replaces_its_own_section_and_keeps_the_others() -> None:
    lock = Lock().with_entries([an_entry(), an_entry(here=FAR)])
    newer = an_entry(here=replace(HERE, torch="9.0.0"), speedup=3.0)
    changed = lock.with_entries([newer])
    assert set(changed.entries) == {newer, an_entry(here=FAR)}


def test_what_one_machine_changes_is_in_its_own_section() -> None:
    before = Lock().with_entries([an_entry(), an_entry(here=FAR), an_entry("b:c")])
    after = before.with_entries([an_entry(here=FAR, speedup=3.0)])
    sections = [lock.to_toml().split("\n\n") for lock in (before, after)]
    changed = [a for a, b in zip(*sections, strict=True) if a != b]
    assert [section.splitlines()[0] for section in changed] == [format_header(an_entry(here=FAR).key)]


def test_the_section_of_this_hardware_is_taken(tmp_path: Path) -> None:
    path = write_lock(tmp_path, an_entry(here=replace(FAR, cpus=0)), an_entry(here=FAR), an_entry(), an_entry("b:c"))
    assert decision(TARGET, path, device="cpu") == an_entry().decision


def test_machines_with_and_without_a_limit_on_their_cpus_have_a_section_each(tmp_path: Path) -> None:
    limited = replace(HERE, cores_allowed=HERE.cpus / 4)
    path = write_lock(tmp_path, an_entry(here=limited, speedup=3.0), an_entry())
    assert {entry.decision.environment.cpu_limit for entry in read(path).entries} == {None, limited.cores_allowed}
    assert decision(TARGET, path, device="cpu") == an_entry().decision


def test_the_section_of_the_device_is_taken_before_a_more_similar_one(tmp_path: Path) -> None:
    path = write_lock(tmp_path, an_entry(), an_entry(here=replace(H200, torch="1.0"), device="cuda"))
    assert decision(TARGET, path, device="cuda").environment.gpu == "NVIDIA H200"


def test_without_one_the_most_similar_is_and_apply_refuses_it(tmp_path: Path) -> None:
    model = torch.nn.Linear(4, 4).eval()
    study = a_study(here=FAR, plan=Plan(threads=1))
    assert study.decision is not None
    live = make_decision(model, study.decision.plan, x := torch.randn(2, 4))
    study = replace(study, decision=replace(study.decision, structure=live.structure, inputs=live.inputs))
    path = write_lock(tmp_path, entry_of(study), an_entry(here=replace(FAR, cpus=0, torch="1.0")))
    found = decision(TARGET, path, device="cpu")
    assert found.environment == replace(FAR, hostname="")
    with pytest.raises(StalePlanError, match=r"cpu: Other CPU @ 9.00 GHz there"):
        torchwise.apply(model, found, strict=True)
    assert torch.equal(torchwise.apply(model, found)(x), model(x))


def test_apply_runs_by_what_is_locked(tmp_path: Path) -> None:
    model = torch.nn.Linear(4, 4).eval()
    live = make_decision(model, Plan(threads=1), x := torch.randn(2, 4))
    study = a_study(plan=Plan(threads=1))
    assert study.decision is not None
    study = replace(study, decision=replace(study.decision, structure=live.structure, inputs=live.inputs))
    fast = torchwise.apply(model, decision(TARGET, write_lock(tmp_path, entry_of(study)), device="cpu"), strict=True)
    with torch.no_grad():
        assert torch.allclose(fast(x), model(x))
    assert fast.statistics.optimized == 1


def test_of_two_modes_one_must_be_given(tmp_path: Path) -> None:
    path = write_lock(tmp_path, an_entry(), an_entry(mode="training"))
    with pytest.raises(InputError, match=r"for inference and for training: pass the mode"):
        decision(TARGET, path)
    assert decision(TARGET, path, mode="training", device="cpu").workload.mode == "training"


def test_a_mode_or_target_that_is_not_locked_is_refused(tmp_path: Path) -> None:
    path = write_lock(tmp_path, an_entry())
    with pytest.raises(InputError, match=r"mode is 'training', but .* only for inference"):
        decision(TARGET, path, mode="training")
    with pytest.raises(InputError, match=r"no section for 'app.py:made' \(it has app.py:make\): torchwise lock"):
        decision("app.py:made", path)


def test_an_empty_lock_has_no_target(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no section for 'a:b' \(it is empty\)"):
        decision("a:b", write_lock(tmp_path))


def test_reading_needs_no_torch_and_runs_nothing(tmp_path: Path) -> None:
    path = write_lock(tmp_path, an_entry("no_such_module:make"))
    code = (
        "import sys; sys.modules['torch'] = None\nfrom torchwise import lock\n"
        f"print(lock.decision('no_such_module:make', {str(path)!r}, device='cpu').plan)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == f"{INDUCTOR}\n", done.stderr


# Refused files.


def change_lock(folder: Path, old: str, new: str, *entries: Entry) -> Path:
    path = write_lock(folder, *(entries or (an_entry(),)))
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    return path


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("coordinate_descent_tuning = true", "coordinate_descent_tuning = false"),
        ("speedup = [1.", "speedup = [11."),
        ("allow = ", 'extra = ""\nallow = '),
        ('"1 checks passed"', '"99 checks passed"'),
        ("python = ", 'driver = "1", python = '),
        ("digest = ", "lost = "),
        ("calls = 100000", "calls = 1979-05-27"),
        ('["app.py:make".inference', '["other.py:make".inference'),
        (f"{HERE.hardware}", f"{FAR.hardware}"),
    ],
    ids=["plan", "figure", "new line", "proof", "software", "no digest", "date", "target", "machine"],
)
def test_an_edited_section_is_refused_with_its_line_and_the_way_out(old: str, new: str, tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match=r"torchwise.lock, line 5: section .*: it was edited: .*torchwise lock .*.py:make"
    ):
        read(change_lock(tmp_path, old, new))


def test_the_line_is_that_of_the_edited_section(tmp_path: Path) -> None:
    path = change_lock(tmp_path, "restarts = 9", "restarts = 8", an_entry(), an_entry("b:c", restarts=9))
    line = 1 + path.read_text().splitlines().index(format_header(an_entry("b:c").key))
    with pytest.raises(InputError, match=f"line {line}: section b:c, inference"):
        read(path)


def forge_section(folder: Path, **changes: object) -> Path:
    """Write a section with a digest that fits the changed data, as a forger would."""
    from torchwise.study.lock.entry import _digest

    entry = an_entry()
    data = {**section_of(entry), **changes}
    data = {name: value for name, value in data.items() if value is not None and name != "digest"}
    lines = [format_pair(name, value) for name, value in data.items()]
    lines += [format_pair("digest", _digest(entry.key, data))]
    path = write_lock(folder)
    path.write_text("\n".join([path.read_text(), format_header(entry.key), *lines, ""]))
    return path


def test_a_section_forged_to_the_last_digit_is_checked_by_the_rules(tmp_path: Path) -> None:
    assert read(forge_section(tmp_path)).entries == (an_entry(),)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"plan": {"backend": "inductor", "speed": 9}}, "unknown plan field 'speed'"),
        (
            {"plan": {"transforms": ["of_another_version"]}},
            "transforms has 'of_another_version', but there are ",
        ),
        ({"plan": {"precision": "bf16"}}, "is lower-precision, but must be at most same-precision"),
        ({"allow": "everything"}, "allow is 'everything', but must be one of"),
        ({"speedup": [0.0, 1.0, 2.0]}, r"speedup is \[0.0, 1.0, 2.0\]"),
        ({"speedup": None}, "its plan is inductor .*, but eager must have no speedup"),
        ({"plan": {}}, "its plan is eager, but eager must have no speedup"),
        ({"plan_s": [3.0, 2.0, 1.0]}, r"plan_s is \[3.0, 2.0, 1.0\]"),
        ({"break_even_calls": [math.nan, 2.0, 3.0]}, "break_even_calls is"),
        ({"calls": 0}, "calls is 0"),
        ({"calls": "many"}, r"\$\.calls is 'many', but must be a whole number"),
        ({"identity": None}, "lacks the field 'identity'"),
        ({"hardware": {"cpu": "x"}}, r"\$\.device is null, but must be one of cpu, cuda"),
        ({"objective": "glory"}, "glory"),
        ({"numerics": "exact"}, "differs from the output of `torchwise lock`, by which .* is same-precision"),
        ({"cold_s": 10}, "differs from the output of `torchwise lock`"),
        ({"error": math.nan}, "error is nan, but must be finite"),
        ({"baseline_s": math.inf}, "baseline_s is inf, but must be finite"),
        ({"speedup": [1.0, 2.0, math.inf]}, r"speedup is \[1.0, 2.0, inf\]"),
        ({"speed": 9.0}, r"\$ has an unknown field 'speed'; did you mean seed or speedup"),
        (
            {"hardware": {"device": "cpu", "system": "Y", "cpu": "X", "cpus": 3}},
            "its hardware is '3 × X, Y', but its heading has",
        ),
    ],
)
def test_a_forged_section_is_refused_by_the_rules(changes: dict[str, object], why: str, tmp_path: Path) -> None:
    with pytest.raises((InputError, PlanError), match=why) as refused:
        read(forge_section(tmp_path, **changes))
    assert "line 5" in str(refused.value)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "schema is None, but this version reads 'torchwise.lock/1'"),
        ('# …\nschema = "torchwise.lock/9"', "line 2: schema is 'torchwise.lock/9'"),
        ("schema = ", r"it is no TOML: Invalid value \(at .*restore it from version control"),
        (f"a = {'[' * 9999}", "it is nested too deeply"),
        ("<<<<<<< HEAD\n[a]\n=======\n>>>>>>> theirs", "line 1 has markers of a merge conflict"),
        ('schema = "torchwise.lock/1"\nmodel = 3', "line 2: 'model' is not a section"),
        ('schema = "torchwise.lock/1"\n["a:b"]\ninference = 3', "line 3: 'inference' is not a section"),
        ('schema = "torchwise.lock/1"\n["a:b"]', "'a:b' is not a section of target, mode and hardware"),
        ('schema = "torchwise.lock/1"\n["a:b".inference]', "'inference' is not a section"),
        ("\x80", "it is not UTF-8: line 1 has the byte 0x80 at its byte 1"),
    ],
)
def test_what_is_no_lock_is_refused(text: str, why: str, tmp_path: Path) -> None:
    path = tmp_path / "torchwise.lock"
    path.write_bytes(text.encode("latin-1" if text == "\x80" else "utf-8"))
    with pytest.raises(InputError, match=why) as refused:
        read(path)
    assert str(refused.value).startswith(str(path))


def test_no_file_says_what_makes_one(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"cannot be read: No such file .*; torchwise lock TARGET creates one"):
        read(tmp_path / "none.lock")


def test_hardware_is_told_apart_by_what_it_is_and_not_by_its_software(tmp_path: Path) -> None:
    def name(environment: Environment) -> str:
        return environment.hardware

    other = {"torch": "1", "python": "2", "driver": "3", "cuda": "4", "triton": "5", "hostname": "6"}
    assert name(replace(H200, **other)) == name(H200)
    others = [HERE, FAR, H200, replace(H200, gpu="NVIDIA H100"), replace(H200, gpu_memory_mib=1), replace(H200, cpus=3)]
    assert len({name(environment) for environment in others}) == len(others)
