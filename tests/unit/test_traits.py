"""Traits are an enum: each is found by something, each choice names known ones, and former values are read."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from tests.builders import an_inspection

import torchwise
from torchwise.errors import PlanError
from torchwise.measure.profile import Profile
from torchwise.plan import Choice, Numerics, PlanSpace, Trait
from torchwise.plan.choice import TRAIT_FIELDS, load_choices
from torchwise.plan.trait import DIVISIBLE_BY
from torchwise.records import Inspection
from torchwise.records.codec import from_builtins, to_builtins

SOURCE = Path(torchwise.__file__).parent
FINDERS = (
    *("trial/inspection.py", "trial/step_inspection.py", "trial/plain_call.py", "compile/optimizer.py"),
    *("study/history.py", "study/search_loop.py"),
)
"""The files that find traits: those of the plain model, of a training step, and those that trials show."""


def named_in(file: Path) -> set[Trait]:
    """Return the members of `Trait` that a file names."""
    nodes = [node for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Attribute)]
    names = [node.attr for node in nodes if isinstance(node.value, ast.Name) and node.value.id == "Trait"]
    return {Trait[name] for name in names if name in Trait.__members__}


def a_choice(**traits: object) -> Choice:
    return Choice("transforms", "fold", Numerics.EXACT, complexity=1, summary="of a plug-in", **traits)  # type: ignore[arg-type]


def test_every_trait_can_be_found_in_a_workload() -> None:
    found = set[Trait]().union(*(named_in(SOURCE / name) for name in FINDERS), DIVISIBLE_BY.values())
    found |= {trait for choice in load_choices().values() for trait, _ in choice.detectors}
    assert found == set(Trait)


def test_every_trait_has_a_sentence() -> None:
    assert all(trait.summary and not trait.summary.endswith(".") for trait in Trait)
    assert len({trait.summary for trait in Trait}) == len(Trait)


def test_choices_name_known_traits() -> None:
    for choice in load_choices().values():
        named = [trait for trait, _ in (*choice.excluded_by, *choice.implies_for)]
        named += [trait for field in TRAIT_FIELDS for trait in getattr(choice, field)]
        assert all(trait.is_known for trait in named), choice


@pytest.mark.parametrize(
    "traits",
    [
        {"required_traits": ("gem",)},
        {"quick_with": ("gem",)},
        {"standard_with": ("gem",)},
        {"excluded_by": (("gem", "it is slower"),)},
        {"implies_for": (("gem", ("backend", "inductor")),)},
    ],
)
def test_a_misspelt_trait_is_refused(traits: dict[str, object]) -> None:
    with pytest.raises(PlanError, match=f"{next(iter(traits))} has 'gem', .* such trait.*; did you mean gemm"):
        a_choice(**traits)


def test_a_plug_in_names_traits_by_value_and_its_own_with_a_dot() -> None:
    choice = a_choice(required_traits=("gemm", "theirs.sparse"))
    assert choice.required_traits == (Trait.GEMM, "theirs.sparse")
    dense, sparse = frozenset({Trait.GEMM}), frozenset({Trait.GEMM, Trait("theirs.sparse")})
    assert PlanSpace("cpu", "inference", dense).excludes(choice) == "the workload has no theirs.sparse"
    assert PlanSpace("cpu", "inference", sparse).excludes(choice) is None
    assert a_choice(required_traits=("questions",)).required_traits == (Trait.READS_BOOL,), "as in earlier versions"


def test_a_stored_inspection_is_read_with_former_and_later_traits() -> None:
    stored = to_builtins(an_inspection()) | {"traits": ["gemm", "questions", "numbers", "of_a_later_version"]}
    found = from_builtins(stored, Inspection, stored=True)
    assert found.traits == {Trait.GEMM, Trait.READS_BOOL, Trait.READS_SCALAR, "of_a_later_version"}
    assert [trait for trait in found.traits if not trait.is_known] == ["of_a_later_version"]
    assert from_builtins(to_builtins(found), Inspection) == found


@pytest.mark.parametrize(
    ("busy_s", "shares"),
    [(None, {"gemm": 0.5}), (0.75, {"gemm": 0.5, "launch": 0.25}), (3.0, {"gemm": 0.5, "launch": 0.0})],
)
def test_the_share_without_a_kernel_is_known_on_a_gpu_alone(busy_s: float | None, shares: dict[str, float]) -> None:
    assert Profile({"gemm": 0.5}, busy_s).list_shares(1.0) == shares
