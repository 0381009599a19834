"""What makes two requests the same study, and a study in one line."""

from __future__ import annotations

from dataclasses import dataclass

from torchwise.records import Interval, Study, StudyState


@dataclass(frozen=True, slots=True)
class StudyKey:
    """What makes two requests the same study, so that the second resumes the first.

    Never in the key: the target's name, the number of calls and restarts, the effort. They change what is decided
    or how much is tried, but not what was measured.

    Attributes:
        identity: the model and inputs, as `torchwise.workload.identity` has them.
        fingerprint: the machine and software, as `Environment.fingerprint` has them.
        device: "cpu" or "cuda".
        mode: "inference" or "training".
        objective: "latency", "throughput" or "memory".
        allow: the furthest legality allowed.
    """

    identity: str
    fingerprint: str
    device: str
    mode: str
    objective: str
    allow: str

    @classmethod
    def of(cls, study: Study) -> StudyKey:
        """Return the key under which `study` is kept."""
        workload = study.workload
        return cls(
            identity=study.inspection.identity,
            fingerprint=study.environment.fingerprint,
            device=workload.device,
            mode=workload.mode,
            objective=workload.objective,
            allow=study.allow,
        )


@dataclass(frozen=True, slots=True)
class StudySummary:
    """A study in one line, without its samples.

    Attributes:
        id: the store's key of the study.
        target: what was asked to be tuned last; in a list of one target's studies, that target.
        device: where.
        mode: "inference" or "training".
        state: whether the search has ended; in a list of one target's studies, that for this target.
        trials: how many trials there are, running ones included.
        plan: the decided plan in a few words; None while undecided.
        speedup: of the decided plan; None while undecided, and for eager.
        created_at: seconds since the epoch.
    """

    id: int
    target: str
    device: str
    mode: str
    state: StudyState
    trials: int
    plan: str | None
    speedup: Interval | None
    created_at: float
