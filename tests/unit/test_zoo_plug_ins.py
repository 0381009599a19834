"""Families of the zoo and schemes that packages bring: used where they are installed, and named where they are not."""

from __future__ import annotations

import ast
import importlib.metadata
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

import torchwise
from torchwise import cli
from torchwise.bench import Suite, resolve_targets
from torchwise.cli.bench import _resolve_targets
from torchwise.diagnose.messages import is_library
from torchwise.errors import InputError, TargetError
from torchwise.installation import suggest_models_package
from torchwise.plan.workload_spec import SCHEMES_OF_MODELS, check_form
from torchwise.workload.target import load as load_target
from torchwise.zoo import Entry, Family, list_workloads, load
from torchwise.zoo.registry import KNOWN, find_program_folders, load_zoo

ROOT = Path(__file__).parents[2]
PLUG_IN = ROOT / "plugins" / "models"
FAMILIES_OF_MODELS = tuple(name for name in KNOWN if name != "tutorial")
FROM_MODELS = suggest_models_package()
PUBLIC = {
    *("torchwise", "torchwise.errors", "torchwise.installation", "torchwise.workload", "torchwise.workload.roofline"),
    *("torchwise.zoo", "torchwise.zoo.random_inputs", "torchwise.zoo.tutorial"),
}
"""Modules of Torchwise that the pages on targets and on the zoo offer to plug-ins."""
GARDEN = """
import torch
from torchwise import Example, Workload
from torchwise.zoo import Entry, Family
FAMILY = Family("garden", __name__, (Entry(
    "garden.rose", "a rose", {size: {"petals": n} for n, size in enumerate(("small", "medium", "large", "extreme"), 3)}
),))
def build_rose(request, *, petals):
    return Workload(torch.sin, (Example((request.draws().normal(petals),)),), name=request.name)
"""


@pytest.fixture
def without_models(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide the entry points of torchwise-models."""
    found = importlib.metadata.entry_points

    def entry_points(*, group: str) -> list[importlib.metadata.EntryPoint]:
        return [entry for entry in found(group=group) if entry.dist is None or entry.dist.name != "torchwise-models"]

    monkeypatch.setattr(importlib.metadata, "entry_points", entry_points)


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Install a package that offers a family, whose catalogue has this code."""
    monkeypatch.syspath_prepend(tmp_path)

    def install(package: str, family: str = "garden", code: str = GARDEN) -> None:
        module = package.replace("-", "_")
        (tmp_path / f"{module}.py").write_text(code)
        info = tmp_path / f"{module}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[torchwise.zoo_families]\n{family} = {module}:FAMILY\n")
        monkeypatch.delitem(sys.modules, module, raising=False)
        importlib.invalidate_caches()

    return install


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int | str | None:
    monkeypatch.setenv("COLUMNS", "400")
    monkeypatch.setattr(sys, "argv", ["torchwise", *arguments])
    with pytest.raises(SystemExit) as left:
        cli.main()
    return left.value.code


def families() -> set[str]:
    return {entry.family for entry in list_workloads()}


# ---- torchwise-models is not installed


@pytest.mark.usefixtures("without_models")
def test_the_tutorial_is_there_without_any_package() -> None:
    assert families() == {"tutorial"}
    assert load("tutorial.branch@small").name == "tutorial.branch@small"
    assert resolve_targets(["zoo"], ["small"]) == [f"zoo:{entry.name}@small" for entry in list_workloads()]


@pytest.mark.usefixtures("without_models")
@pytest.mark.parametrize("family", FAMILIES_OF_MODELS)
@pytest.mark.parametrize("name", ["{}", "{}.anything", "{}.anything@small"])
def test_a_family_says_which_package_brings_it(family: str, name: str) -> None:
    message = f"^the zoo family '{family}' comes with {FROM_MODELS}$"
    for find in (load_target, lambda target: resolve_targets([target], ["small"])):
        with pytest.raises(InputError, match=message):
            find(f"zoo:{name.format(family)}")


@pytest.mark.usefixtures("without_models")
@pytest.mark.parametrize("scheme", SCHEMES_OF_MODELS)
def test_a_scheme_says_which_package_brings_it(scheme: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / f"{scheme}.py").write_text("raise RuntimeError('a library of that name is no target')")
    monkeypatch.chdir(tmp_path)
    for find in (check_form, load_target, lambda target: resolve_targets([target], ["small"])):
        with pytest.raises(TargetError, match=f"^target is '{scheme}:net', but {scheme}: comes with {FROM_MODELS}$"):
            find(f"{scheme}:net")


@pytest.mark.usefixtures("without_models")
def test_lists_say_where_the_rest_comes_from(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    rest = f"he zoo families energy_flow, ivhl, spinlock, arr_coc, training come with {FROM_MODELS}"
    assert run(monkeypatch, "zoo") == 0
    shown = capsys.readouterr().out
    assert "tutorial.fusion_demo" in shown
    assert shown.endswith(f"\nT{rest}\n")
    assert run(monkeypatch, "zoo", "tutorial") == 0
    assert rest not in capsys.readouterr().out
    for arguments, message in (
        (["zoo", "nothing"], f"its families: tutorial; t{rest}"),
        (["bench"], f"a family of the zoo (tutorial), zoo for all of them, package.module:factory, .*; t{rest}"),
        (["bench", "nothing"], f"Families are tutorial; t{rest}; other targets are"),
        (["zoo", "ivhl"], f"the zoo family 'ivhl' comes with {FROM_MODELS}"),
    ):
        assert run(monkeypatch, *arguments) == 2
        shown = " ".join(capsys.readouterr().err.split())
        assert all(part in shown for part in message.split(".*")), shown


@pytest.mark.usefixtures("without_models")
def test_a_benchmark_of_the_whole_zoo_says_what_it_leaves_out(capsys) -> None:
    assert _resolve_targets(Suite(("zoo",))) == resolve_targets(["tutorial"], ["medium"])
    assert capsys.readouterr().err.startswith("torchwise: the zoo families energy_flow, ivhl, ")
    _resolve_targets(Suite(("tutorial",)))
    assert capsys.readouterr().err == ""


def test_nothing_is_said_to_be_missing_where_all_is_there() -> None:
    assert tuple(load_zoo().families) == KNOWN
    assert load_zoo().explain_rest() == []


# ---- other packages


def test_a_package_brings_a_family(install) -> None:
    install("our-garden")
    assert tuple(load_zoo().families) == (*KNOWN, "garden")
    assert load_target("zoo:garden.rose", seed=3).examples[0].args[0].shape == (4,)
    assert resolve_targets(["garden"], ["large"]) == ["zoo:garden.rose@large"]


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("raise RuntimeError('no spade')", r"cannot be loaded \(RuntimeError: no spade\): repair or uninstall"),
        ("import no_such_spade", r"cannot be loaded \(ModuleNotFoundError: No module named 'no_such_spade'\)"),
        ("", r"cannot be loaded \(AttributeError: module 'our_garden' has no attribute 'FAMILY'\)"),
        ("FAMILY = ()", r"is of type tuple, but must be a torchwise\.zoo\.Family"),
        (GARDEN.replace('"garden', '"gardens'), "is called 'gardens', but must be called as its entry point is"),
        (
            GARDEN.replace('"garden.', '"gardens.'),
            r"cannot be loaded \(ValueError: gardens.rose is in family 'garden', but its name must",
        ),
    ],
)
def test_a_broken_package_costs_its_own_family_alone(install, code: str, message: str, monkeypatch, capsys) -> None:
    install("our-garden", code=code)
    assert "garden" not in families()
    assert load("tutorial.branch@small").name
    assert load("ivhl.gru_step@small").name
    with pytest.raises(TargetError, match=f"^the zoo family 'garden' of our-garden {message}"):
        load("garden.rose")
    assert run(monkeypatch, "zoo") == 0
    assert "\nThe zoo family 'garden' of our-garden " in capsys.readouterr().out


def test_a_family_of_two_packages_is_neithers(install) -> None:
    install("our-garden")
    install("their-garden")
    assert "garden" not in families()
    message = "^the zoo family 'garden' comes from .*(our|their)-garden, but must come from one package: uninstall"
    with pytest.raises(TargetError, match=message):
        load("garden.rose")
    assert load("tutorial.branch@small").name


def test_no_package_takes_the_place_of_the_tutorial(install) -> None:
    install("our-garden", "tutorial", GARDEN.replace("garden", "tutorial"))
    assert load("tutorial.branch@small").name
    with pytest.raises(TargetError, match="zoo family 'tutorial' has no operation 'rose'"):
        load("tutorial.rose")
    (reason,) = load_zoo().explain_rest()
    assert reason.startswith("the zoo family 'tutorial' of our-garden is left out, as Torchwise has one of that name")


def test_programs_of_the_zoo_count_as_a_users_code(install) -> None:
    install("our-garden")
    folders = find_program_folders()
    from torchwise.zoo.tutorial import breaks
    from torchwise_models.zoo import spinlock
    from torchwise_models.zoo.ivhl import field

    assert all(str(Path(module.__file__).parent) in folders for module in (breaks, spinlock, field))
    assert not is_library(breaks.__file__)


def test_an_entry_of_another_family_is_refused() -> None:
    sizes = {size: {} for size in ("small", "medium", "large", "extreme")}
    with pytest.raises(ValueError, match=r"its name must begin with 'garden\.'"):
        Family("garden", "anything", (Entry("park.rose", "a rose", sizes),))


# ---- the package torchwise-models itself


def test_the_names_that_torchwise_knows_are_those_of_the_package() -> None:
    given = tomllib.loads((PLUG_IN / "pyproject.toml").read_text())["project"]
    core = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert tuple(given["entry-points"]["torchwise.zoo_families"]) == FAMILIES_OF_MODELS
    assert tuple(given["entry-points"]["torchwise.targets"]) == SCHEMES_OF_MODELS
    for field in ("version", "license", "requires-python"):
        assert given[field] == core[field]


def test_the_package_uses_public_names_alone() -> None:
    used = set()
    for file in (PLUG_IN / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module:
                used.add(node.module)
            elif isinstance(node, ast.Import):
                used |= {alias.name for alias in node.names}
    assert {name for name in used if name.partition(".")[0] == "torchwise"} <= PUBLIC
    assert [name for name in used if any(part.startswith("_") for part in name.split("."))] == ["__future__"]


def run_python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_former_modules_are_those_of_the_package_and_warn_once() -> None:
    said = run_python("""
import pickle, warnings
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    from torchwise.zoo import ivhl
    from torchwise.zoo.ivhl.trajectories import TrajectoryStep
    import torchwise.zoo.spinlock, torchwise.zoo.training
    from torchwise import model_libraries
    from torchwise.model_libraries.denoisers import FirstOutput
    found = pickle.loads(b"ctorchwise.zoo.tutorial.branch\\nSimpleBranchModel\\n.")
import torchwise_models.zoo.ivhl, torchwise_models.libraries.wrappers
assert ivhl is torchwise_models.zoo.ivhl and TrajectoryStep is ivhl.TrajectoryStep
assert model_libraries is torchwise_models.libraries
assert FirstOutput is torchwise_models.libraries.wrappers.FirstOutput
from torchwise.zoo.tutorial import basics
assert found is basics.SimpleBranchModel
print(*(one.message for one in said), sep="\\n")
""").splitlines()
    assert sorted(said) == [
        "torchwise.model_libraries is called torchwise_models.libraries now",
        "torchwise.zoo.ivhl is called torchwise_models.zoo.ivhl now",
        "torchwise.zoo.spinlock is called torchwise_models.zoo.spinlock now",
        "torchwise.zoo.training is called torchwise_models.zoo.training now",
        "torchwise.zoo.tutorial.branch is called torchwise.zoo.tutorial.basics now",
    ]


@pytest.mark.parametrize("name", ["model_libraries", "foreign", "model_libraries.text", "zoo.ivhl", "zoo.ivhl.field"])
def test_former_modules_without_the_package_say_what_brings_them(name: str) -> None:
    said = run_python(f"""
import sys
sys.modules["torchwise_models"] = None
try:
    import torchwise.{name}
except ModuleNotFoundError as error:
    print(error)
""")
    assert said.startswith(f"torchwise.{name.removesuffix('.text').removesuffix('.field')} is called torchwise_models.")
    assert said.endswith(f" now, and comes with {FROM_MODELS}\n")


def test_the_version_is_torchwises_own() -> None:
    assert importlib.metadata.version("torchwise-models") == torchwise.__version__
