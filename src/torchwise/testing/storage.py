"""The contract of a storage (`torchwise.store.Storage`), for another database or another way to reach one."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from torchwise.errors import StorageError
from torchwise.plan import EAGER, Plan
from torchwise.plan.workload_spec import WorkloadSpec
from torchwise.records import Approval, Standing, Study
from torchwise.store import ExplanationSummary, Storage
from torchwise.testing.records import HERE, INDUCTOR, TUNED, create_study, make_approval, make_explanation
from torchwise.testing.storage_decisions import DecisionContract
from torchwise.testing.storage_studies import StudyContract
from torchwise.testing.storage_trials import TrialContract


class StorageContract(StudyContract, DecisionContract, TrialContract):
    """Records come back as they were stored, and every method is one transaction.

    Whatever raises has written nothing. A target has at most one pin, also if several are set at once. Of explanations,
    the last one of a plan on a machine is kept.
    """

    @pytest.fixture
    def storage(self) -> Storage:
        """Override it: return an open storage that holds nothing."""
        raise NotImplementedError("define a fixture `storage` that returns an open storage that holds nothing")

    @pytest.fixture
    def study(self, storage: Storage) -> Study:
        """Return a study of the storage, without trials."""
        return create_study(storage)

    def test_rulings_come_back_as_they_were_newest_first(self, storage: Storage) -> None:
        rulings = [
            make_approval(),
            make_approval(TUNED, Standing.REJECTED, at=3e9, by="h\u00f6he", reason="\x00"),
            make_approval(EAGER, target="app:factory", at=2e9),
            make_approval(EAGER, mode="training", at=1.5e9, reason=""),
            make_approval(EAGER, hardware="another machine", at=1.25e9),
        ]
        for ruling in rulings:
            storage.store_approval(ruling)
        assert storage.approvals() == sorted(rulings, key=lambda ruling: -ruling.at)
        assert storage.approvals(target="app:factory") == [rulings[2]]
        assert storage.approvals(mode="training") == [rulings[3]]
        assert storage.approvals(hardware="another machine") == [rulings[4]]
        assert storage.approvals("zoo:tutorial.fusion_demo", "inference", HERE.hardware) == [rulings[1], rulings[0]]
        assert storage.approvals("app:none") == []

    def test_a_ruling_without_a_time_gets_the_store_s(self, storage: Storage) -> None:
        before = time.time()
        storage.store_approval(make_approval(at=0.0))
        (ruling,) = storage.approvals()
        assert before - 60 <= ruling.at <= time.time() + 60  # a server has a clock of its own

    def test_a_ruling_replaces_the_one_on_the_same_plan(self, storage: Storage) -> None:
        storage.store_approval(make_approval())
        storage.store_approval(make_approval(TUNED))
        rejected = make_approval(standing=Standing.REJECTED, by="ann", at=2e9)
        storage.store_approval(rejected)
        assert storage.approvals() == [rejected, make_approval(TUNED)]

    def test_a_new_pin_makes_the_older_an_approval(self, storage: Storage) -> None:
        elsewhere = make_approval(INDUCTOR, Standing.PINNED, hardware="another machine")
        storage.store_approval(elsewhere)
        storage.store_approval(make_approval(INDUCTOR, Standing.PINNED))
        storage.store_approval(make_approval(EAGER, Standing.REJECTED))
        storage.store_approval(make_approval(TUNED, Standing.PINNED, at=2e9))
        assert standings(storage.approvals(hardware=HERE.hardware)) == {
            INDUCTOR: "approved",
            EAGER: "rejected",
            TUNED: "pinned",
        }
        assert storage.approvals(hardware="another machine") == [elsewhere]

    def test_a_ruling_is_withdrawn_once(self, storage: Storage) -> None:
        ruling = make_approval()
        storage.store_approval(ruling)
        for other in (("app:none", "inference", HERE.hardware), (ruling.target, "training", HERE.hardware)):
            assert not storage.withdraw_approval(*other, INDUCTOR.id)
        assert not storage.withdraw_approval(ruling.target, ruling.mode, ruling.hardware, TUNED.id)
        assert storage.approvals() == [ruling]
        assert storage.withdraw_approval(ruling.target, ruling.mode, ruling.hardware, INDUCTOR.id)
        assert not storage.withdraw_approval(ruling.target, ruling.mode, ruling.hardware, INDUCTOR.id)
        assert storage.approvals() == []

    def test_of_pins_that_come_at_once_one_stays(self, storage: Storage) -> None:
        plans = [Plan(threads=count) for count in range(1, 9)]
        with ThreadPoolExecutor(len(plans)) as pool:
            list(pool.map(lambda plan: storage.store_approval(make_approval(plan, Standing.PINNED)), plans))
        assert sorted(standings(storage.approvals()).values()) == [*["approved"] * 7, "pinned"]

    def test_an_explanation_comes_back_as_it_was(self, storage: Storage) -> None:
        told = make_explanation(TUNED, notes=("\x00 and \u00e9",))
        kept = storage.keep_explanation(told)
        assert storage.get_explanation(kept) == told
        assert storage.explanations() == [
            ExplanationSummary(
                kept, told.workload.target, "cpu", "inference", TUNED.id, str(TUNED), HERE.fingerprint, 1e9
            )
        ]

    def test_the_last_explanation_of_a_plan_on_a_machine_is_kept(self, storage: Storage) -> None:
        other = replace(HERE, torch="2.14.0")
        for told in (make_explanation(), make_explanation(TUNED, created_at=3e9), make_explanation(environment=other)):
            storage.keep_explanation(told)
        first, second = storage.keep_explanation(make_explanation()), storage.keep_explanation(make_explanation())
        assert first < second
        found = [(summary.plan, summary.fingerprint) for summary in storage.explanations()]
        assert found == [(str(TUNED), HERE.fingerprint), (None, HERE.fingerprint), (None, other.fingerprint)]
        assert storage.explanations()[1].id == second
        assert storage.explanations()[1].plan_id is None

    def test_explanations_are_listed_by_target_and_up_to_a_limit(self, storage: Storage) -> None:
        app = make_explanation(workload=WorkloadSpec("app:factory", mode="training"), created_at=0.5e9)
        kept = storage.keep_explanation(app)
        storage.keep_explanation(make_explanation())
        assert [summary.id for summary in storage.explanations("app:factory")] == [kept]
        assert [summary.mode for summary in storage.explanations(limit=1)] == ["inference"]
        assert storage.explanations("app:none") == []

    def test_a_missing_explanation_is_named_with_those_there_are(self, storage: Storage) -> None:
        with pytest.raises(StorageError, match="there is no explanation 7; the store holds none yet: torchwise expl"):
            storage.get_explanation(7)
        kept = storage.keep_explanation(make_explanation())
        with pytest.raises(StorageError, match=f"there is no explanation 4711; the newest are {kept}"):
            storage.get_explanation(4711)


def standings(rulings: list[Approval]) -> dict[Plan, str]:
    """Return the standing of each plan."""
    return {ruling.plan: ruling.standing.value for ruling in rulings}
