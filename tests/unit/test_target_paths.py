"""Targets whose path holds colons, and the places that a message about a target names."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from test_target import own_imports as own_imports

from torchwise.diagnose.bisect.probe_runner import Probe
from torchwise.diagnose.bisect.repro import _describe_target
from torchwise.errors import TargetError, WorkloadError
from torchwise.plan.workload_spec import WorkloadSpec, check_form, split
from torchwise.trial import Job
from torchwise.workload.target import load

MODEL = "import torch\ndef make(): return torch.nn.Linear(4, 2), (torch.randn(3, 4),)\n"


@pytest.mark.parametrize(
    ("target", "parts"),
    [
        ("model.py:make", ("model.py", "make")),
        ("sp ace:ü/ñ/phüsics.py:make", ("sp ace:ü/ñ/phüsics.py", "make")),
        ("C:\\models\\net.py:Net.example", ("C:\\models\\net.py", "Net.example")),
        ("model.py:make:more", ("model.py", "make:more")),
        ("package.module:make", ("package.module", "make")),
        ("hf:org/model@task=a:b", ("hf", "org/model@task=a:b")),
        ("zoo:file.py:make", ("zoo", "file.py:make")),
    ],
)
def test_the_last_colon_divides_where_a_file_stands_before_it(target: str, parts: tuple[str, str]) -> None:
    assert split(target) == (parts[0], ":", parts[1])


def test_schemes_are_looked_up_only_where_they_decide(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda *, group: asked.append(group) or [])
    for target in ("model.py:make", "package.module:make", "hf:org/model@task=a:b"):
        split(target)
    assert asked == []
    split("a:model.py:make")
    assert asked == ["torchwise.targets"]


def test_a_file_in_a_folder_with_a_colon_is_loaded() -> None:
    path = Path("sp ace:ü/ñ/phüsics.py")
    path.parent.mkdir(parents=True)
    path.write_text(MODEL)
    check_form(f"{path}:make")
    assert isinstance(load(f"{path}:make").call, torch.nn.Linear)
    with pytest.raises(TargetError, match=r"sp ace:ü/ñ/phüsics\.py has no 'maek'; did you mean make\?"):
        load(f"{path}:maek")
    with pytest.raises(TargetError, match=r"there is no file 'sp ace:ü/other\.py'"):
        check_form("sp ace:ü/other.py:make")
    path.write_text("raise RuntimeError('no licence')\n")
    with pytest.raises(TargetError, match=r"importing sp ace:ü/ñ/phüsics\.py raised RuntimeError"):
        load(f"{path}:make")


def test_a_scheme_may_take_files(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = SimpleNamespace(name="garden", load=lambda: lambda name, **_: (torch.sin, (torch.ones(len(name)),)))
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda *, group: [entry])
    check_form("garden:rose.py:make")
    assert load("garden:rose.py:make").examples[0].args[0].shape == (12,)


@pytest.mark.parametrize("form", ["user_bad.py", "user_bad"])
def test_a_syntax_error_names_the_users_file_alone(form: str) -> None:
    Path("user_bad.py").write_text("def broken(:\n")
    with pytest.raises(TargetError) as error:
        load(f"{form}:make")
    assert str(error.value).endswith("(user_bad.py, line 1)")


def test_an_error_within_torchwise_names_the_users_line() -> None:
    Path("user_model.py").write_text("import torchwise\ndef make():\n    return torchwise.Workload.of(1, 2, 3, 4)\n")
    with pytest.raises(WorkloadError, match=r"raised TypeError: .* \(user_model\.py:3\)$"):
        load("user_model.py:make")
    Path("user_model.py").write_text(
        "from torchwise.former_packages import load_attributes\ndef make(): load_attributes('a', {'b': 'c'})('b')\n"
    )
    with pytest.raises(WorkloadError, match=r"raised ModuleNotFoundError: .* \(user_model\.py:2\)$"):
        load("user_model.py:make")


def test_a_factory_that_is_not_given_what_it_needs_says_what_is() -> None:
    Path("user_model.py").write_text("def needs(n): ...\ndef make(): return int('a', n=1)\n")
    with pytest.raises(WorkloadError) as error:
        load("user_model.py:needs")
    assert str(error.value) == (
        "the factory of user_model.py:needs raised TypeError: needs() missing 1 required positional argument: 'n'. "
        "A factory is called with those of the keywords device, dtype and seed that it names"
    )
    with pytest.raises(WorkloadError, match=r"\(user_model\.py:2\)$"):
        load("user_model.py:make")


def test_a_repro_loads_such_a_file_by_its_whole_path() -> None:
    job = Job("inspect", WorkloadSpec("sp ace:ü/phüsics.py:make"))
    found = _describe_target(Probe(job, "plan"))
    assert found["target"] == repr(f"{Path.cwd()}/sp ace:ü/phüsics.py:make")
