"""Families, names and suites become targets. Messages name those that do not exist."""

from __future__ import annotations

from pathlib import Path

import pytest

from torchwise.bench import BenchRequest, Suite, read_suite, resolve_targets
from torchwise.errors import InputError
from torchwise.zoo import list_workloads


def test_a_family_is_all_of_its_workloads_in_every_size() -> None:
    names = [entry.name for entry in list_workloads() if entry.family == "tutorial"]
    expected = [f"zoo:{name}@{size}" for name in names for size in ("small", "large")]
    assert resolve_targets(["tutorial"], ["small", "large"]) == expected
    assert resolve_targets(["zoo:tutorial"], ["small", "large"]) == expected


def test_the_zoo_is_all_of_it() -> None:
    answering = [entry.name for entry in list_workloads() if not entry.is_step]
    assert resolve_targets(["zoo"], ["medium"]) == [f"zoo:{name}@medium" for name in answering]
    steps = [entry.name for entry in list_workloads() if entry.is_step]
    assert resolve_targets(["training"], ["small"]) == [f"zoo:{name}@small" for name in steps]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("tutorial.fusion_demo", "zoo:tutorial.fusion_demo@small"),
        ("zoo:tutorial.fusion_demo", "zoo:tutorial.fusion_demo@small"),
        ("tutorial.fusion_demo@large", "zoo:tutorial.fusion_demo@large"),
        ("package.module:factory", "package.module:factory"),
        ("hf:bert", "hf:bert"),
    ],
)
def test_names_are_taken_with_and_without_scheme_and_size(name: str, expected: str) -> None:
    assert resolve_targets([name], ["small"]) == [expected]


def test_each_target_comes_once_in_order() -> None:
    names = ["a.b:c", "tutorial.fusion_demo", "zoo:tutorial.fusion_demo@small", "a.b:c"]
    assert resolve_targets(names, ["small"]) == ["a.b:c", "zoo:tutorial.fusion_demo@small"]


@pytest.mark.parametrize(
    ("name", "sizes", "message"),
    [
        ("tutorail", ["small"], "'tutorail' is no family or workload of the zoo; did you mean tutorial"),
        ("zoo:nothing.like_it", ["small"], "Families are .*tutorial"),
        ("tutorial", ["tiny"], "size is 'tiny', but must be one of small, medium, large, extreme"),
        ("tutorial@tiny", ["small"], "size is 'tiny', but must be one of"),
        ("nowhere.py:factory", ["small"], "there is no file 'nowhere.py'"),
        ("module:", ["small"], "which names no factory"),
    ],
)
def test_what_does_not_exist_is_refused(name: str, sizes: list[str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        resolve_targets([name], sizes)


def write_suite(folder: Path, text: str) -> Path:
    file = folder / "suite.toml"
    file.write_text(text)
    return file


def test_a_suite_is_read_with_every_field(tmp_path: Path) -> None:
    text = """
    targets = ["tutorial", "a.b:c"]
    sizes = ["small", "large"]
    contenders = ["eager", "torchwise"]
    device = "cpu"
    mode = "training"
    objective = "throughput"
    about = "nightly"
    """
    contenders = ("eager", "torchwise")
    expected = Suite(
        ("tutorial", "a.b:c"), "cpu", ("small", "large"), "training", contenders, "throughput", about="nightly"
    )
    assert read_suite(write_suite(tmp_path, text)) == expected
    assert read_suite(write_suite(tmp_path, 'targets = ["zoo"]')) == Suite(("zoo",))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("targets = [", r"suite\.toml: it is no TOML"),
        (
            'target = ["zoo"]',
            "lacks the field 'targets'; did you mean 'targets' in place of 'target'",
        ),
        ('targets = "zoo"', r"\$\.targets is 'zoo', but must be a list"),
        ("targets = [1]", r"\$\.targets\[0\] is 1, but must be text"),
        ('targets = ["zoo"]\ndevice = 1', r"\$\.device is 1, but must be text"),
        ('device = "cpu"', "lacks the field 'targets'"),
        ("targets = []", r"\$\.targets is \[\], but must be a list of length >= 1"),
        ('targets = ["zoo"]\ncontender = ["eager"]', "unknown field 'contender'; did you mean contenders"),
        ('targets = ["zoo"]\ncontenders = ["eger"]', "contender is 'eger', but there are .*did you mean eager"),
        ('targets = ["tutorail"]', "'tutorail' is no family .*did you mean tutorial"),
        ('targets = ["zoo"]\nsizes = ["smal"]', "size is 'smal', but must be one of small"),
        ('targets = ["zoo"]\ndevice = "gpu"', "device is 'gpu', but must be one of cpu, cuda"),
        ('targets = ["zoo"]\nmode = "train"', "mode is 'train', but must be one of inference, training"),
        ('targets = ["zoo"]\nobjective = "memory"', "objective is 'memory', but must be latency"),
    ],
)
def test_a_suite_that_means_nothing_is_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_suite(write_suite(tmp_path, text))


def test_a_suite_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"suite\.toml cannot be read: No such file"):
        read_suite(tmp_path / "suite.toml")
    (tmp_path / "suite.toml").write_bytes(b"\xff")
    with pytest.raises(InputError, match="it is not UTF-8: line 1 has the byte 0xff"):
        read_suite(tmp_path / "suite.toml")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"targets": ()}, "no target is given"),
        ({"effort": "great"}, "effort is 'great', but must be one of quick, standard, thorough"),
        ({"objective": "memory"}, "objective is 'memory', but must be latency or throughput"),
        ({"limit_s": 0.0}, "limit is 0.0 s, but must be above 0"),
        ({"budget_s": -1.0}, r"budget is -1.0 s, but must be above 0"),
        ({"budget_s": float("nan")}, "budget is nan s, but must be above 0"),
    ],
)
def test_a_request_that_means_nothing_is_refused(given: dict[str, object], message: str) -> None:
    fields = {"targets": ("zoo:a.b",), "contenders": ("eager",), **given}
    with pytest.raises(InputError, match=message):
        BenchRequest(**fields)  # type: ignore[arg-type]
