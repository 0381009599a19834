"""The interface of the store: one class, with one transaction per method."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Self

from sqlalchemy import Connection
from sqlalchemy.exc import IntegrityError

from torchwise.errors import StorageError
from torchwise.plan import Plan
from torchwise.plan.workload_spec import WorkloadSpec
from torchwise.records import Approval, Decision, Duel, Failure, Measurement, Study, StudyState, Trial
from torchwise.records.explanation import Explanation
from torchwise.store import approvals, claims, copy, reports, studies
from torchwise.store.claims import LeaseOwner
from torchwise.store.copy import CopyResult
from torchwise.store.database import Database
from torchwise.store.db_errors import UnreachableError
from torchwise.store.location import check_exists, default_url, locate
from torchwise.store.migrate import bring_to_head, revision_of, take_back
from torchwise.store.reports import Report, ReportKind, ReportSummary
from torchwise.store.schema import HEAD, StudyKey, StudySummary

PROMPT_S = 3.0
"""Maximum wait in seconds for a connection to a server or for a lock on a file."""

APPROVALS_SINCE = "0003"
"""The schema that introduced approvals."""

READABLE_SINCE = "0004"
"""The oldest schema whose approvals, studies and decisions are those of this version."""


def open_storage(url: str | None = None, *, existing: bool = False) -> Storage:
    """Open the store at `url`, by default `default_url()`. Create or migrate it if needed.

    Args:
        url: a path ending in .db, a `sqlite:///PATH` or a `postgresql://USER@HOST/DATABASE` URL.
        existing: whether to refuse a missing file instead of creating it, for callers that only read.

    Raises:
        StorageError: it cannot be reached or read, is no store, has a newer schema, or its driver is missing.
    """
    location = locate(url or default_url())
    if existing:
        check_exists(location)
    database = Database(location)
    bring_to_head(database)
    return Storage(database)


def read_storage(url: str | None = None) -> Storage | None:
    """Open the store at `url` without changing it, or raise at once. Return None if its schema has no approvals.

    Args:
        url: as in `open_storage`.

    Raises:
        StorageError: it does not exist, cannot be reached within `PROMPT_S`, or its schema is newer or too old.
    """
    location = locate(url or default_url())
    check_exists(location)
    database = Database(location, prompt_s=PROMPT_S)
    revision = database.read(revision_of)
    if revision is not None and READABLE_SINCE <= revision <= HEAD:
        return Storage(database)
    database.close()
    if revision is None or revision < APPROVALS_SINCE:
        return None
    way_out = "update Torchwise" if revision > HEAD else "torchwise store info migrates it"
    raise StorageError(f"store {database.place} has schema {revision!r}, but must have {HEAD!r} to be read: {way_out}")


def downgrade_storage(url: str | None, schema: str, *, lose: bool = False) -> str:
    """Convert the store at `url` to an older schema, and return its location. See `migrate.take_back`.

    Raises:
        StorageError: it cannot be reached or written, has no such older schema, or would lose data and `lose` is
            False.
    """
    database = Database(locate(url or default_url()))
    take_back(database, schema, lose=lose)
    database.close()
    return database.place


class Storage:
    """Studies with trials and decisions, approvals and reports, shared between processes, threads and forks.

    Each method is one transaction. When it returns, its changes survive `kill -9` and a power failure. When it raises,
    it has written nothing. A store without write permission can be read. If a server is lost, methods wait for some
    minutes (`db_errors`), with a message in the log.

    A process claims a trial before it runs it, renews the claim by heartbeats, and finishes or releases it. A plan has
    at most one trial per study, so that no two processes run the same one. A trial of a dead owner is reclaimed.

    Every method raises `StorageError` if the database cannot be reached, stays locked or is damaged. It also raises it
    if a requested study does not exist, or a row has another format.

    `torchwise.testing.storage` has this contract as tests.
    """

    def __init__(self, database: Database) -> None:
        """Use a database with the schema of this version, which `open_storage` ensures."""
        self._database = database
        database.leaves_tokens = True

    @property
    def place(self) -> str:
        """The file or the URL without its password, for messages."""
        return self._database.place

    @property
    def schema(self) -> str:
        """The schema of the tables, which is that of this version."""
        return HEAD

    def find_study(self, key: StudyKey, target: str | None = None) -> Study | None:
        """Return the study under `key`, or None. `target` is as in `get_study`."""
        study_id = self._database.read(lambda c: studies.find(c, key))
        return None if study_id is None else self.get_study(study_id, target)

    def create_study(self, key: StudyKey, study: Study) -> Study:
        """Return the study under `key`, created from `study` if there is none yet.

        If several processes call this at the same time, one creates the study, and all get the same one. The id, the
        trials and the decision of `study` are ignored. The store assigns the id. `finish_trial` and `store_outcome` add
        the rest.
        """
        try:
            study_id = self._database.write(lambda c: studies.find_or_add(c, key, study))
        except IntegrityError:  # PostgreSQL: another process added it between our query and our insert
            found = self._database.read(lambda c: studies.find(c, key))
            if found is None:
                raise
            study_id = found
        return self.get_study(study_id)

    def import_study(self, study: Study) -> Study:
        """Add a study from elsewhere with its finished trials and its decision, and return it with its new id.

        Raises:
            StorageError: the store holds a study under the same key, or the trials repeat a plan or a number.
        """
        records = [claims.record_of(trial) for trial in study.trials]
        try:
            study_id = self._database.write(lambda c: studies.insert_study(c, study, records))
        except IntegrityError:
            raise StorageError(
                f"the study of {study.workload.target} has two trials of one plan or number; export it again"
            ) from None
        return self.get_study(study_id)

    def get_study(self, study_id: int, target: str | None = None) -> Study:
        """Return the study with this id, its trials in the order of their numbers.

        Targets of one structure share a study, in which each has a decision of its own.

        Args:
            study_id: the study.
            target: the target whose decision, workload and state are returned. By default, the last decision, with the
                workload and state of the last request.
        """
        return self._database.read(lambda c: studies.get(c, study_id, target))

    def list_studies(self, target: str | None = None, *, limit: int | None = None) -> list[StudySummary]:
        """List all studies, or those of `target`, newest first, without reading their samples.

        Args:
            target: only studies with requests for this target, each with the decision and the search's state for it.
            limit: maximum number of studies.
        """
        return self._database.read(lambda c: studies.summaries(c, target, limit))

    def latest_study(self) -> Study | None:
        """Return the study that was decided last, or the newest if none is decided, or None if there is no study."""
        study_id = self._database.read(studies.latest)
        return None if study_id is None else self.get_study(study_id)

    def claim_trial(
        self, study_id: int, plan: Plan, reason: str, owner: LeaseOwner, *, again: Trial | None = None
    ) -> Trial | None:
        """Return a RUNNING trial of `plan` that belongs to `owner` alone, or None if there is nothing to do.

        None means that the plan is finished, or that a living owner runs it, possibly this one. The trial gets the next
        free number. A dead owner's trial is taken over under its own number. So is `again`, a finished trial that was
        stopped early, failed, was disturbed or lacks its warm start. Its results are discarded. It is not taken over if
        another process has repeated it meanwhile.
        """
        return self._database.write(lambda c: claims.claim(c, study_id, plan, reason, owner, again=again))

    def finish_trial(self, study_id: int, trial: Trial) -> None:
        """Store a finished trial in the place of its claim.

        If the plan already has a finished trial, that one stays. The trial is stored even if its claim has expired, as
        on a machine that was suspended. It may then get another number.
        """
        if not trial.state.is_finished:
            raise StorageError(f"trial {trial.number} is {trial.state}, but must be complete, pruned or fail to finish")
        record = claims.record_of(trial)
        self._database.write(lambda c: claims.finish(c, study_id, trial, record))

    def keep_duel(self, study_id: int, plan: Plan, duel: Duel) -> Duel:
        """Add a duel to the finished trial of a plan, if there is such a trial.

        Returns:
            The duel that counts: the trial's own duel, if another process added one meanwhile.
        """
        return self._database.write(lambda c: claims.keep_duel(c, study_id, plan, duel))

    def keep_repeat(
        self, study_id: int, plan: Plan, found: Measurement | Failure, warm_s: float | None = None
    ) -> Trial | None:
        """Add the result of another process for a plan to its finished trial.

        `warm_s` are the seconds of its first calls from warm caches, which count if the trial has none yet.

        Returns:
            The trial with all its measurements, failed if that process failed, or None if there is no such trial.
        """
        return self._database.write(lambda c: claims.keep_repeat(c, study_id, plan, found, warm_s))

    def release_trial(self, study_id: int, number: int) -> None:
        """Release a claim, such as after an interruption, as if the plan had never been claimed.

        A finished trial stays. A missing trial is no error.
        """
        self._database.write(lambda c: claims.release(c, study_id, number))

    def release_dead_claims(self, study_id: int) -> list[Plan]:
        """Release the claims of dead owners, and return their plans, so that they are tried again.

        An owner on this host is dead if its process is gone. An owner on another host is dead if its last heartbeat is
        older than 10 minutes.
        """
        return self._database.write(lambda c: claims.reclaim(c, study_id))

    def heartbeat(self, owner: LeaseOwner) -> None:
        """Record that `owner` is alive, for all its RUNNING trials. Call it about once a minute.

        An unreachable server is no error, since the next call is early enough.
        """
        with contextlib.suppress(UnreachableError):
            self._database.write(lambda c: claims.touch(c, owner), patient=False)

    def store_outcome(
        self,
        study_id: int,
        *,
        state: StudyState,
        decision: Decision | None,
        excluded: Sequence[str],
        seconds: float,
        asked: tuple[WorkloadSpec, str] | None = None,
    ) -> None:
        """Store the state of a search.

        Args:
            state: replaces the stored one, and goes with the decision.
            decision: replaces the stored one for its target, or None to keep it.
            excluded: replaces the stored list.
            seconds: time spent since the last call, added to the stored time.
            asked: the current workload and effort of the request, to replace the stored ones, or None to keep those.
        """

        def write(connection: Connection) -> None:
            claims.require(connection, study_id, lock=True)
            if asked is not None:
                studies.update_request(connection, study_id, *asked)
            if decision is not None:
                studies.decide(connection, study_id, decision, state)
            studies.update_search(connection, study_id, state, excluded, seconds)

        self._database.write(write)

    def decisions(self, *, target: str | None = None, identity: str | None = None) -> list[Decision]:
        """Return the decisions made for this target and this identity, or for any, newest first."""
        return self._database.read(lambda c: studies.read_decisions(c, target, identity))

    def delete_study(self, study_id: int) -> None:
        """Delete a study with its trials and its decisions. Its id is never given to another."""
        self._database.write(lambda c: studies.remove(c, study_id))

    def store_approval(self, approval: Approval) -> None:
        """Store an approval of a plan, and replace an earlier one.

        A target has at most one pin for a mode and a kind of hardware. With a new pin, the older one becomes approved.
        An approval without a time gets that of the store.
        """
        self._database.write(lambda c: approvals.put(c, approval))

    def withdraw_approval(self, target: str, mode: str, hardware: str, plan_id: str) -> bool:
        """Delete the approval of a plan, and return whether there was one."""
        return self._database.write(lambda c: approvals.remove(c, target, mode, hardware, plan_id))

    def approvals(
        self, target: str | None = None, mode: str | None = None, hardware: str | None = None
    ) -> list[Approval]:
        """Return the approvals for this target, mode and hardware, or for any, newest first."""
        return self._database.read(lambda c: approvals.read(c, target, mode, hardware))

    def keep_report(self, report: Report) -> int:
        """Store an explanation, an analysis or a benchmark, and return its id.

        It replaces the one of its kind with the same target (or targets), mode, machine and plan.
        """
        row = reports.row_of(report)
        return self._database.write(lambda c: reports.keep(c, row))

    def reports(self, kind: ReportKind, target: str | None = None, limit: int | None = None) -> list[ReportSummary]:
        """List the reports of a kind, of `target` or all, newest first, and at most `limit`. No record is read."""
        return self._database.read(lambda c: reports.summaries(c, kind, target, limit))

    def get_report(self, kind: ReportKind, report_id: int) -> Report:
        """Return the report of a kind with this id.

        Raises:
            StorageError: there is none.
        """
        return self._database.read(lambda c: reports.get(c, kind, report_id))

    def keep_explanation(self, explanation: Explanation) -> int:
        """Store an explanation and return its id. See `keep_report`."""
        return self.keep_report(explanation)

    def explanations(self, target: str | None = None, limit: int | None = None) -> list[ReportSummary]:
        """List explanations. See `reports`."""
        return self.reports(ReportKind.EXPLANATION, target, limit)

    def get_explanation(self, explanation_id: int) -> Explanation:
        """Return the explanation with this id. See `get_report`."""
        found = self.get_report(ReportKind.EXPLANATION, explanation_id)
        assert isinstance(found, Explanation)
        return found

    def size(self) -> tuple[int, int]:
        """Return the numbers of studies and of trials, running ones included."""
        return self._database.read(studies.count)

    def copy_to(self, other: Storage) -> Iterator[CopyResult]:
        """Copy every study with its finished trials and decisions, oldest first, and yield the result for each.

        Each study is one transaction. Existing data of `other` stay, so copying again continues an interrupted or an
        old copy. If both stores have a study, its trials are merged, and the later decision for each target counts.
        Approvals and reports are copied last, and the later one of each plan counts.
        """
        for study_id in self._database.read(copy.ids):
            if (found := self._database.read(partial(copy.read, study_id=study_id))) is not None:
                yield copy.write(other._database, found)
        copy.write_others(self._database, other._database)

    def close(self) -> None:
        """Release the store's resources. It must not be used afterwards."""
        self._database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()
