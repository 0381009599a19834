"""The contract of a storage for the ends of searches: decisions, and the states of studies."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torchwise.plan import EAGER
from torchwise.plan.workload_spec import WorkloadSpec
from torchwise.records import Study, StudyState
from torchwise.store import Storage, StudyKey
from torchwise.testing.records import INDUCTOR, TUNED, conclude_study, create_study, make_decision, make_study


class DecisionContract:
    """Each target of a study keeps its own decision and the state of its own search. The last one counts."""

    def test_a_conclusion_adds_time_and_replaces_the_rest(self, storage: Storage, study: Study) -> None:
        conclude_study(storage, study.id)
        found = storage.get_study(study.id)
        assert (found.state, found.excluded, found.seconds) == (StudyState.DECIDED, ("bf16: not allowed",), 2.5)
        assert found.decision == make_decision()
        storage.store_outcome(study.id, state=StudyState.INTERRUPTED, decision=None, excluded=[], seconds=1.5)
        found = storage.get_study(study.id)
        assert (found.state, found.excluded, found.seconds) == (StudyState.INTERRUPTED, (), 4.0)
        assert found.decision == make_decision()
        conclude_study(storage, study.id, TUNED)
        assert storage.get_study(study.id).decision == make_decision(TUNED)

    def test_decisions_are_newest_first_and_by_target_and_identity(self, storage: Storage, study: Study) -> None:
        other = create_study(storage, make_study("2d" * 8))
        app: dict[str, Any] = {"workload": WorkloadSpec("app:factory"), "identity": "2d" * 8}
        conclude_study(storage, other.id, **app)
        conclude_study(storage, study.id)
        assert storage.decisions() == [make_decision(), make_decision(**app)]
        conclude_study(storage, other.id, TUNED, **app)
        assert storage.decisions() == [make_decision(TUNED, **app), make_decision()]
        assert storage.decisions(target="app:factory") == [make_decision(TUNED, **app)]
        assert storage.decisions(identity="1d" * 8) == [make_decision()]
        assert storage.decisions(target="app:factory", identity="1d" * 8) == []

    def test_each_target_of_a_study_keeps_its_decision(self, storage: Storage, study: Study) -> None:
        app = WorkloadSpec("app:factory", calls=7)
        conclude_study(storage, study.id)
        asked = (app, "quick")
        mine = make_decision(TUNED, workload=app)
        storage.store_outcome(study.id, state=StudyState.DECIDED, decision=mine, excluded=[], seconds=0, asked=asked)
        assert storage.decisions(target="zoo:tutorial.fusion_demo") == [make_decision()]
        assert storage.decisions() == [mine, make_decision()]
        last, first = storage.get_study(study.id), storage.get_study(study.id, "zoo:tutorial.fusion_demo")
        assert (last.workload, last.decision) == (app, mine)
        assert (first.workload, first.decision) == (make_decision().workload, make_decision())
        assert storage.get_study(study.id, "app:none") == replace(last, decision=None)
        assert storage.find_study(StudyKey.from_study(study), "zoo:tutorial.fusion_demo") == first
        listed = [storage.list_studies(target) for target in (None, "app:factory", "zoo:tutorial.fusion_demo")]
        assert [[(row.id, row.target, row.plan) for row in rows] for rows in listed] == [
            [(study.id, "app:factory", str(TUNED))],
            [(study.id, "app:factory", str(TUNED))],
            [(study.id, "zoo:tutorial.fusion_demo", str(INDUCTOR))],
        ]
        conclude_study(storage, study.id, EAGER)
        assert storage.decisions() == [make_decision(EAGER), mine]
        assert storage.get_study(study.id).decision == make_decision(EAGER)
        storage.delete_study(study.id)
        assert storage.decisions() == []

    def test_each_target_of_a_study_keeps_how_its_search_ended(self, storage: Storage, study: Study) -> None:
        mine, app = make_decision(), WorkloadSpec("app:factory")
        other = make_decision(TUNED, workload=app)
        ended, stopped = StudyState.DECIDED, StudyState.INTERRUPTED
        for decision, workload, state, states in (
            (mine, mine.workload, stopped, None),
            (other, app, ended, [ended, stopped, ended]),
            (mine, mine.workload, ended, [ended, ended, ended]),
            (other, app, stopped, [stopped, ended, stopped]),
            (None, mine.workload, stopped, [stopped, ended, stopped]),  # it left the earlier decision
        ):
            asked = (workload, "quick")
            storage.store_outcome(study.id, state=state, decision=decision, excluded=[], seconds=0, asked=asked)
            targets = (None, mine.workload.target, "app:factory")
            assert states in (None, [storage.get_study(study.id, target).state for target in targets])
            assert states in (None, [row.state for target in targets for row in storage.list_studies(target)])
