"""`--plan` takes names, ids, JSON and studies alike in every command, and refuses the plan of another target."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from builders import a_study
from torchwise.cli.common import resolve_plan
from torchwise.errors import InputError
from torchwise.plan import EAGER, Plan
from torchwise.plan.workload_spec import WorkloadSpec
from torchwise.store import open_storage

STUDY = a_study()
TARGET = STUDY.workload.target


@pytest.fixture
def store(tmp_path: Path) -> str:
    url = str(tmp_path / "store.db")
    with open_storage(url) as storage:
        storage.import_study(STUDY)
    (tmp_path / "study.json").write_text(STUDY.to_json())
    return url


def test_all_names_of_a_decided_plan_mean_it(store: str, tmp_path: Path) -> None:
    assert STUDY.decision is not None
    plan = STUDY.decision.plan
    for name in ("latest", "1", plan.id, plan.id[:6], plan.to_json(), str(tmp_path / "study.json")):
        assert resolve_plan(name, (TARGET,), store) == plan, name


def test_latest_is_the_newest_decision_for_the_target(store: str) -> None:
    assert STUDY.decision is not None
    with open_storage(store) as storage:
        for target, decided in (("my:model", 3), ("my:model", 99), ("my:other", None)):  # 99 is eager
            mine = a_study(decided=decided, workload=WorkloadSpec(target, device="cuda"))
            unlike = replace(mine.inspection, identity=f"{target} {decided}", structure=f"{target} {decided}")
            storage.import_study(replace(mine, inspection=unlike))
    assert resolve_plan("latest", (TARGET,), store) == STUDY.decision.plan, "although another was decided later"
    assert resolve_plan("latest", ("my:model",), store) == EAGER, "the newer of two"
    with pytest.raises(InputError, match="must be of my:other"):
        resolve_plan("latest", ("my:other",), store)


def test_latest_in_a_store_without_a_decision_says_so(tmp_path: Path) -> None:
    url = str(tmp_path / "store.db")
    with open_storage(url) as storage:
        storage.import_study(a_study(decided=None))
    with pytest.raises(InputError, match="has no decision yet"):
        resolve_plan("latest", (TARGET,), url)


def test_a_workload_of_the_zoo_without_a_size_is_that_of_the_default_size(store: str) -> None:
    assert STUDY.decision is not None
    bare, size = TARGET.removesuffix("@medium"), "@medium"
    assert TARGET.startswith("zoo:")
    for target in (bare, bare + size):
        assert resolve_plan("1", (target,), store) == STUDY.decision.plan
    with pytest.raises(InputError, match="which was decided for"):
        resolve_plan("1", (f"{bare}@small",), store)


def test_modes_and_eager_are_names_too() -> None:
    assert resolve_plan("eager", (TARGET,), None) == EAGER
    assert resolve_plan("max-autotune", (TARGET,), None) == Plan(backend="inductor", mode="max-autotune")


@pytest.mark.parametrize("name", ["latest", "1", "id"])
def test_the_plan_of_another_target_is_refused(store: str, name: str) -> None:
    assert STUDY.decision is not None
    name = STUDY.decision.plan.id if name == "id" else name
    with pytest.raises(InputError, match=f"which was decided for {TARGET}, but must be of my:model"):
        resolve_plan(name, ("my:model",), store)


@pytest.mark.parametrize(
    ("name", "said"), [("fast", "plan is 'fast', but must be a plan's words"), ("abcdef123456", "no decision in this")]
)
def test_an_unknown_name_is_refused_with_those_that_are_known(store: str, name: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        resolve_plan(name, (TARGET,), store)
