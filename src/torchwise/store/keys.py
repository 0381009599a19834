"""The key of a study, and a study in one line."""

from __future__ import annotations

from dataclasses import dataclass

from torchwise.plan import Numerics
from torchwise.records import Interval, Study, StudyState


@dataclass(frozen=True, slots=True)
class StudyKey:
    """The key of a study. A second request with an equal key resumes the study of the first.

    The key lacks the target's name, the number of calls and restarts, and the effort. They change the decision or the
    number of trials, but not the measurements.

    Attributes:
        identity: the model and inputs, as in `torchwise.workload.identity`.
        fingerprint: the machine and software, as in `Environment.fingerprint`.
        device: "cpu" or "cuda".
        mode: "inference" or "training".
        objective: "latency", "throughput" or "memory".
        allow: the loosest numerics allowed, by `Numerics.former_name`.
    """

    identity: str
    fingerprint: str
    device: str
    mode: str
    objective: str
    allow: str

    @classmethod
    def from_study(cls, study: Study) -> StudyKey:
        """Return the key of `study`."""
        workload = study.workload
        return cls(
            identity=study.inspection.identity,
            fingerprint=study.environment.fingerprint,
            device=workload.device,
            mode=workload.mode,
            objective=workload.objective,
            allow=Numerics.of(study.allow).former_name,
        )


@dataclass(frozen=True, slots=True)
class StudySummary:
    """A study in one line, without its samples.

    Attributes:
        id: the id of the study in the store.
        target: the target of the last request. In a list of one target's studies, it is that target.
        device: device of the study.
        mode: "inference" or "training".
        state: whether the search has ended. In a list of one target's studies, it is that target's state.
        trials: number of trials, running ones included.
        plan: the decided plan as text, or None while undecided.
        speedup: of the decided plan, or None while undecided, and for eager.
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
