"""The store's front door: one class, one transaction per method."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Self

from sqlalchemy.exc import IntegrityError

from torchwise.errors import StorageError
from torchwise.plan import Plan
from torchwise.records import Decision, Duel, Failure, Measurement, Ruling, Study, StudyState, Trial
from torchwise.records.explanation import Explanation
from torchwise.store import claims, copying, explanations, rulings, studies
from torchwise.store.copying import Copied
from torchwise.store.database import Database
from torchwise.store.explanations import ExplanationSummary
from torchwise.store.keys import StudyKey, StudySummary
from torchwise.store.location import check_exists, default_url, locate
from torchwise.store.migrate import bring_to_head, take_back
from torchwise.store.owner import Owner
from torchwise.store.schema import HEAD
from torchwise.store.trouble import UnreachableError
from torchwise.workload import WorkloadSpec


def open_storage(url: str | None = None, *, existing: bool = False) -> Storage:
    """Open the store at `url`, creating or migrating it where that is needed; by default `default_url()`.

    Args:
        url: a path ending in .db, a `sqlite:///PATH` or a `postgresql://USER@HOST/DATABASE` URL.
        existing: refuse a file that is not there, and create none: for whoever only looks things up.

    Raises:
        StorageError: it cannot be reached or read, is no store, has a newer schema, or its driver is missing.
    """
    location = locate(url or default_url())
    if existing:
        check_exists(location)
    database = Database(location)
    bring_to_head(database)
    return Storage(database)


def downgrade_storage(url: str | None, schema: str, *, lose: bool = False) -> str:
    """Take the store at `url` back to an older schema and return its place; see `migrate.take_back`.

    Raises:
        StorageError: it cannot be reached or written, has no such older schema, or would lose something without `lose`.
    """
    database = Database(locate(url or default_url()))
    take_back(database, schema, lose=lose)
    database.close()
    return database.place


class Storage:
    """Studies with trials and decisions, rulings and explanations, shared between processes, threads and forks.

    Each method is one transaction: when it returns, what it wrote survives `kill -9` and a power cut; when it
    raises, nothing of it was written. A store that may not be written can be read. A server that is lost in between
    is waited for, some minutes long (`outage`), with a message to the log.

    A process claims a trial before it runs it, keeps the claim by a heartbeat, and finishes or releases it. A plan
    has one trial per study at most, so that no two processes try the same one; whose owner has died is reclaimed.

    Every method raises `StorageError` where the database cannot be reached, stays locked or is damaged, where a
    study is asked for that there is not, and where a row to be read is of another format.
    """

    def __init__(self, database: Database) -> None:
        """Use a database that is at the schema of this version; `open_storage` sees to that."""
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
        """Return the study under `key`, or None; `target` as in `get_study`."""
        study_id = self._database.read(lambda c: studies.find(c, key))
        return None if study_id is None else self.get_study(study_id, target)

    def create_study(self, key: StudyKey, study: Study) -> Study:
        """Return the study under `key`, created from `study` where there is none yet.

        Of processes that call this at the same time one creates and all get the same. The id of `study`, its
        trials and its decision are not taken: the store gives the id, `finish_trial` and `conclude` the rest.
        """
        try:
            study_id = self._database.write(lambda c: studies.find_or_add(c, key, study))
        except IntegrityError:  # PostgreSQL: another process added it between our look and our insert
            found = self._database.read(lambda c: studies.find(c, key))
            if found is None:
                raise
            study_id = found
        return self.get_study(study_id)

    def import_study(self, study: Study) -> Study:
        """Add a study from elsewhere with its finished trials and its decision; return it with its new id.

        Raises:
            StorageError: the store holds a study under the same key, or the trials repeat a plan or a number.
        """
        records = [claims.record_of(trial) for trial in study.trials]
        try:
            study_id = self._database.write(lambda c: studies.add_whole(c, study, records))
        except IntegrityError:
            raise StorageError(
                f"the study of {study.workload.target} has two trials of one plan or number; export it anew"
            ) from None
        return self.get_study(study_id)

    def get_study(self, study_id: int, target: str | None = None) -> Study:
        """Return the study with this id, its trials in the order of their numbers.

        Targets of one structure share a study, in which each has a decision of its own.

        Args:
            study_id: the study.
            target: whose decision, workload and state are wanted; by default the last decision, and those of what was
                asked last.
        """
        return self._database.read(lambda c: studies.get(c, study_id, target))

    def list_studies(self, target: str | None = None, *, limit: int | None = None) -> list[StudySummary]:
        """List all studies, or those of `target`, newest first, without reading their samples.

        Args:
            target: only studies that were asked for this one, each with its decision for it and how that search ended.
            limit: at most so many.
        """
        return self._database.read(lambda c: studies.summaries(c, target, limit))

    def latest_study(self) -> Study | None:
        """Return the study that was decided last, the newest where none is decided, or None where there is no study."""
        study_id = self._database.read(studies.latest)
        return None if study_id is None else self.get_study(study_id)

    def claim_trial(
        self, study_id: int, plan: Plan, reason: str, owner: Owner, *, again: Trial | None = None
    ) -> Trial | None:
        """Return a RUNNING trial of `plan` that belongs to `owner` alone, or None where there is nothing to do.

        None says that the plan is finished, or RUNNING by an owner that lives, this one included. The number is
        the next one; a dead owner's trial is taken over under its own. So is `again`, a finished one
        that was stopped early, failed or was held up, unless another process had it again meanwhile: what it found is
        given up.
        """
        return self._database.write(lambda c: claims.claim(c, study_id, plan, reason, owner, again=again))

    def finish_trial(self, study_id: int, trial: Trial) -> None:
        """Store a finished trial in the place of its claim.

        Where the plan has a finished trial already, that one stays. Where the claim was taken away, as from a
        machine that slept, the trial is stored all the same, under another number if need be.
        """
        if not trial.state.is_finished:
            raise StorageError(f"trial {trial.number} is {trial.state}, but must be complete, pruned or fail to finish")
        record = claims.record_of(trial)
        self._database.write(lambda c: claims.finish(c, study_id, trial, record))

    def keep_duel(self, study_id: int, plan: Plan, duel: Duel) -> Duel:
        """Add a duel to the finished trial of a plan, where there is such a trial.

        Returns:
            The duel that counts: the one that the trial had already, where another process held it meanwhile.
        """
        return self._database.write(lambda c: claims.keep_duel(c, study_id, plan, duel))

    def keep_repeat(self, study_id: int, plan: Plan, found: Measurement | Failure) -> Trial | None:
        """Add what a further process found of a plan to its finished trial.

        Returns:
            The trial with all its measurements, failed where that process did; None where there is no such trial.
        """
        return self._database.write(lambda c: claims.keep_repeat(c, study_id, plan, found))

    def release_trial(self, study_id: int, number: int) -> None:
        """Take a claim back, as when its run was interrupted: the plan is as if never claimed.

        A finished trial stays, and that there is no such trial is no error.
        """
        self._database.write(lambda c: claims.release(c, study_id, number))

    def reclaim(self, study_id: int) -> list[Plan]:
        """Take back the claims of owners that have died and return their plans, so that they are tried again.

        An owner on this host is dead when its process is gone; one on another host when its heartbeat is older
        than 10 minutes.
        """
        return self._database.write(lambda c: claims.reclaim(c, study_id))

    def heartbeat(self, owner: Owner) -> None:
        """Say that `owner` lives, for all its RUNNING trials; to be called about once a minute.

        A server that cannot be reached at the moment is no error: the next call says it, and is early enough.
        """
        with contextlib.suppress(UnreachableError):
            self._database.write(lambda c: claims.touch(c, owner), patient=False)

    def conclude(
        self,
        study_id: int,
        *,
        state: StudyState,
        decision: Decision | None,
        excluded: Sequence[str],
        seconds: float,
        asked: tuple[WorkloadSpec, str] | None = None,
    ) -> None:
        """Store where a search has come to.

        Args:
            study_id: the study.
            state: replaces the stored one, and goes with the decision.
            decision: replaces the stored one for its target; None keeps it.
            excluded: replaces the stored list.
            seconds: time spent since the last call; added to what is stored.
            asked: the workload and the effort asked for by now; they replace the stored ones. None keeps those.
        """
        self._database.write(lambda c: studies.conclude(c, study_id, state, decision, excluded, seconds, asked))

    def decisions(self, *, target: str | None = None, identity: str | None = None) -> list[Decision]:
        """Return the decisions made for this target and this identity, or for any, newest first."""
        return self._database.read(lambda c: studies.read_decisions(c, target, identity))

    def delete_study(self, study_id: int) -> None:
        """Delete a study with its trials and its decisions. Its id is never given to another."""
        self._database.write(lambda c: studies.remove(c, study_id))

    def rule(self, ruling: Ruling) -> None:
        """Store what somebody decided about a plan, in the place of what was decided about it before.

        A target has one pin at most for a mode and a kind of hardware: by a new one the older becomes an approval. A
        ruling without a time gets that of the store.
        """
        self._database.write(lambda c: rulings.put(c, ruling))

    def withdraw(self, target: str, mode: str, hardware: str, plan_id: str) -> bool:
        """Delete the ruling on a plan, and return whether there was one."""
        return self._database.write(lambda c: rulings.remove(c, target, mode, hardware, plan_id))

    def rulings(self, target: str | None = None, mode: str | None = None, hardware: str | None = None) -> list[Ruling]:
        """Return the rulings on this target, mode and hardware, or on any, newest first."""
        return self._database.read(lambda c: rulings.read(c, target, mode, hardware))

    def keep_explanation(self, explanation: Explanation) -> int:
        """Store an explanation and return its id; it replaces the one of the same target, mode, machine and plan."""
        row = explanations.row_of(explanation)
        return self._database.write(lambda c: explanations.keep(c, row))

    def explanations(self, target: str | None = None, limit: int | None = None) -> list[ExplanationSummary]:
        """List the explanations of `target`, or all, newest first, and at most `limit`; no record is read."""
        return self._database.read(lambda c: explanations.summaries(c, target, limit))

    def get_explanation(self, explanation_id: int) -> Explanation:
        """Return the explanation with this id.

        Raises:
            StorageError: there is none.
        """
        return self._database.read(lambda c: explanations.get(c, explanation_id))

    def size(self) -> tuple[int, int]:
        """Return how many studies and how many trials there are, running ones included."""
        return self._database.read(studies.count)

    def copy_to(self, other: Storage) -> Iterator[Copied]:
        """Copy every study with its finished trials and its decisions, oldest first, and yield what was done for each.

        Each study is one transaction. What `other` holds already stays, so that a copy that was broken off, or that
        lies some time back, is gone on with by copying again. Of a study that both have, the trials are put together
        and the later decision for each target counts. Rulings and explanations come last, of one plan the later.
        """
        for study_id in self._database.read(copying.ids):
            if (found := self._database.read(partial(copying.read, study_id=study_id))) is not None:
                yield copying.write(other._database, found)
        copying.write_others(self._database, other._database)

    def close(self) -> None:
        """Give back what the store holds open; it must not be used afterwards."""
        self._database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()
