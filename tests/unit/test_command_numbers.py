"""A value that is refused as no number is named on the command line, unlike in Typer's own messages."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

import torchwise
from torchwise.cli import app
from torchwise.cli.options import read_count
from torchwise.parsing import to_bytes
from torchwise.plan.workload_spec import TuneOptions, WorkloadSpec
from torchwise.study import Request
from torchwise.study.cluster import Task


@pytest.mark.parametrize(
    "words",
    [
        ["tune", "a.py:make", "--calls", "1.5"],
        ["tune", "a.py:make", "--calls", "many"],
        ["tune", "a.py:make", "--budget", "ten"],
        ["plans", "delete", "latest"],
        ["dashboard", "--port", "99999"],
    ],
)
def test_a_refused_number_is_named(words: list[str]) -> None:
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 2
    assert words[-1] in done.output, done.output


@pytest.mark.parametrize(("text", "count"), [("1e6", 10**6), ("100", 100), ("1_000", 1000), (1e6, 10**6)])
def test_a_count_is_read_as_people_write_it(text: str | float, count: int) -> None:
    assert read_count(text) == count  # type: ignore[arg-type]
    assert WorkloadSpec("a:b", calls=float(count)).calls == count  # type: ignore[arg-type]
    assert type(WorkloadSpec("a:b", calls=1e6).calls) is int  # type: ignore[arg-type]


@pytest.mark.parametrize("calls", [1.5, "1e6", 0, True, float("nan")])
def test_python_takes_only_numbers_as_calls(calls: object) -> None:
    with pytest.raises(torchwise.InputError, match=r"calls is .*, but must be a whole number of at least 1"):
        WorkloadSpec("a:b", calls=calls)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "size"),
    [
        *(("2GB", 2 * 10**9), ("2GiB", 2 * 2**30), ("1.5 MiB", 3 * 2**19), (" 2TiB ", 2**41), ("7B", 7)),
        *(("512", 512), (512, 512), ("1e3KB", 10**6)),
    ],
)
def test_a_size_has_one_meaning_everywhere(text: str | int, size: int) -> None:
    assert to_bytes(text, "size") == size
    if not str(text).isdecimal():  # a limit without a unit is in GiB in manifests and on the command line
        request = Request.from_options(TuneOptions(memory_limit=text), "a:b", "cpu")
        assert request.workload.memory_limit == Task("a:b", "cpu", memory_limit=text).request().workload.memory_limit
        assert request.workload.memory_limit == size


def test_a_limit_without_a_unit_is_in_gib_on_the_command_line() -> None:
    assert Task("a:b", "cpu", memory_limit="1.5").request().workload.memory_limit == 3 * 2**29
    assert Task("a:b", "cpu", memory_limit=1.5).request().workload.memory_limit == 3 * 2**29


@pytest.mark.parametrize("text", ["2 gigs", "10GiBB", "-1GB", "0", "inf", "1e400GB", "", True])
def test_a_size_that_is_none_is_refused_with_the_rule(text: object) -> None:
    with pytest.raises(torchwise.InputError, match=r"size is .*, but must be a finite size of at least one byte"):
        to_bytes(text, "size")


def test_former_names_of_limits_that_are_no_times_still_work(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["plans", "list", "--limit", "3", "--store", str(tmp_path / "no.db")])
    assert "--limit is called --max-count now" in done.output
