"""The pip commands that messages name: pip can run each, wherever Torchwise was installed from."""

from __future__ import annotations

import importlib.metadata
import json
import re
import shlex
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from packaging.requirements import Requirement

import torchwise
from torchwise import installation

SOURCE = Path(torchwise.__file__).parent
MODELS = SOURCE.parents[1] / "plugins" / "models"


def test_every_extra_that_a_message_names_is_given_as_requirements() -> None:
    called = re.compile(r"suggest_extra\(['\"](\w+)['\"]\)")
    named = {extra for file in SOURCE.rglob("*.py") for extra in called.findall(file.read_text())}
    assert named >= {"dashboard", "lightning", "metrics", "postgres", "ray", "redis", "remote", "s3", "trainer"}
    for extra in named:
        pip, install, *requirements = shlex.split(installation.suggest_extra(extra))
        assert (pip, install) == ("pip", "install")
        assert requirements
        assert all(Requirement(text).name != "torchwise" for text in requirements), extra


def test_no_message_names_torchwise_as_if_it_were_on_an_index() -> None:
    files = [file for folder in (SOURCE, MODELS / "src") for file in folder.rglob("*.py")]
    by_name = re.compile(r"pip install (-U )?['\"]?torchwise")
    assert [str(file) for file in files if by_name.search(file.read_text()) and file.name != "installation.py"] == []


@pytest.mark.parametrize(
    ("origin", "expected"),
    [
        ({"url": "file:///w/torchwise-0.1.0.whl", "archive_info": {}}, "file:///w/torchwise_models-0.1.0.whl"),
        (
            {"url": "https://host/tw", "vcs_info": {"vcs": "git", "commit_id": "abc"}},
            "git+https://host/tw@abc#subdirectory=plugins/models",
        ),
        ({"url": MODELS.parents[1].as_uri(), "dir_info": {}}, str(MODELS)),
        (None, "./plugins/models"),
    ],
    ids=["wheel", "repository", "folder", "unknown"],
)
def test_the_models_come_from_where_torchwise_came_from(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, origin: dict[str, Any] | None, expected: str
) -> None:
    monkeypatch.setattr(installation, "CHECKOUT", tmp_path)
    record = SimpleNamespace(read_text=lambda _name: origin and json.dumps(origin))
    monkeypatch.setattr(importlib.metadata, "distribution", lambda _name: record)
    said = installation.suggest_models_package()
    end = f": {shlex.join(['pip', 'install', expected])}"
    assert said.endswith(end if origin else f"{end} in the checkout of Torchwise, or its wheel")


def test_a_checkout_may_have_a_space_in_its_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    models = tmp_path / "my code" / "plugins" / "models"
    models.mkdir(parents=True)
    origin = {"url": models.parents[1].as_uri(), "dir_info": {}}
    monkeypatch.setattr(installation, "_read_origin", lambda: origin)
    assert installation.suggest_models_package().endswith(f": pip install '{models}'")


def test_a_checkout_that_was_never_installed_is_named_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_name: str) -> None:
        raise importlib.metadata.PackageNotFoundError

    for name in ("distribution", "requires"):
        monkeypatch.setattr(importlib.metadata, name, fail)
    assert installation.suggest_extra("redis") == f"pip install '{SOURCE.parents[1]}[redis]'"
    assert installation.suggest_extra("libraries", "torchwise-models") == f"pip install '{MODELS}[libraries]'"
    assert installation.suggest_models_package().endswith(f"pip install {shlex.quote(str(MODELS))}")


def test_wheels_on_the_pages_have_this_version_and_no_page_asks_an_index_for_torchwise() -> None:
    root = SOURCE.parents[1]
    pages = [
        root / "README.md",
        *root.glob("docs/**/*.md"),
        *root.glob("plugins/*/*.md"),
        *root.glob("examples/**/*.py"),
    ]
    text = "\n".join(page.read_text() for page in pages)
    versions = re.findall(r"torchwise(?:_models)?-([\d.]+)-py3", text)
    assert versions
    assert set(versions) == {torchwise.__version__}
    installs = re.findall(r"pip install [^\n`]*", text)
    assert [line for line in installs if re.search(r"(?<![/\w-])torchwise(?![\w-]*\.whl)", line.split("#")[0])] == []


@pytest.mark.parametrize("project", [MODELS.parents[1], MODELS], ids=["torchwise", "torchwise-models"])
def test_an_index_would_show_who_made_it_and_where_it_lives(project: Path) -> None:
    said = tomllib.loads((project / "pyproject.toml").read_text())["project"]
    assert said["authors"]
    assert said["version"] == torchwise.__version__
    assert {"Homepage", "Documentation", "Repository"} <= said["urls"].keys()
    assert "Typing :: Typed" in said["classifiers"]
