"""The cost of starting a plan in a run of a program, when it is put in place, and which plan answers until then."""

from __future__ import annotations

import contextlib
import math
import os
import secrets
import shutil
from collections.abc import Iterable
from dataclasses import dataclass, replace

from torchwise._torch.inductor import DEFAULT_CACHE_DIR
from torchwise.plan.known_names import find_unusable_part
from torchwise.records import Decision
from torchwise.records import format as show
from torchwise.runtime.components.config import CompileConfig
from torchwise.runtime.components.statistics import ComponentStatistics
from torchwise.store import Storage
from torchwise.study.apply_approvals import ApprovalPolicy, find_studies
from torchwise.study.decision import decide
from torchwise.study.history import History

MIN_TOLD_S = 1.0
"""Seconds of a start from which it is told that they did not pay."""


@dataclass(slots=True)
class WaitingPlan:
    """A plan that holds for a module, and the calls that are made before it is in place.

    Attributes:
        calls: the calls so far by the plan before, or as written if there is none.
        before: the decision for a plan that starts sooner, and answers until this one is in place, once that has been
            put in place.
        later: the plan that takes this one's place once that one would have saved as much as it takes to start.
        is_begun: whether a thread has begun to put it in the place of the plan before.
    """

    decision: Decision
    others: Decision | None
    config: CompileConfig
    calls: int = 0
    before: Decision | None = None
    later: WaitingPlan | None = None
    is_begun: bool = False

    @property
    def start_s(self) -> float:
        """The seconds that the plan takes to start.

        A search keeps the compile caches of the plan that it decides for. One that answers before that has none.
        """
        cold = self.decision.warm_s is None or self.later is not None
        return self.decision.cold_s if cold else (self.decision.warm_s or 0.0)

    @property
    def missed_s(self) -> float:
        """The seconds that the plan would have saved on the calls so far."""
        each_s = seconds_per_call(self.before) if self.before else self.decision.baseline_s
        return self.calls * max(each_s - seconds_per_call(self.decision), 0.0)

    @property
    def is_due(self) -> bool:
        """Whether the plan would have saved as much on the calls so far as it takes to start, or is needed at once.

        Without knowing how many calls come, this costs at most twice as much as the best choice for their number
        (Karlin et al., Competitive Snoopy Caching, 1988: renting or buying skis).
        """
        return self.decision.is_needed or self.missed_s >= self.start_s

    def explain(self, name: str) -> str:
        """Say why the module ran as written, or by the plan before."""
        when = "Its next call would use it" if self.is_due else "It is used once that is as long as its start"
        return (
            f"{name} ran {f'by {self.before.plan}' if self.before else 'as written'}: {self.decision.plan} takes "
            f"{show.seconds(self.start_s)} to start, and would have saved about {show.seconds(self.missed_s)} on "
            f"{show.pluralize(self.calls, 'call')}. {when}"
        )


def seconds_per_call(decision: Decision) -> float:
    """Return the seconds of a call by a decision's plan."""
    return decision.baseline_s / (decision.speedup.mid if decision.speedup else 1.0)


def find_first_decision(decision: Decision, start_s: float, storage: Storage) -> Decision | None:
    """Return the decision for the calls before a plan is in place, or None if no plan pays within so few.

    It is made among the plans that the same search has verified and nobody has forbidden, as if no more calls came than
    those on which the decided plan saves as much as it takes to start. So it starts sooner, such as a CUDA graph of the
    model's own kernels, for which nothing is compiled.

    Args:
        decision: the decision.
        start_s: the seconds that its plan takes to start.
        storage: the store with its search.
    """
    study = next((one for one in find_studies(decision, storage) if one.decision == decision), None)
    saved_s = decision.baseline_s - seconds_per_call(decision)
    if study is None or saved_s <= 0:
        return None
    policy = ApprovalPolicy.from_storage(decision, storage)
    others = [t for t in study.trials if t.plan != decision.plan and find_unusable_part(t.plan) is None]
    trials = tuple(t for t in others if policy.find_refusal(t.plan) is None)
    calls = max(math.ceil(start_s / saved_s), 1)
    workload = replace(decision.workload, calls=calls, restarts=1)
    found = decide(History(workload, study.inspection, trials), decision.environment)
    return None if found.plan.is_eager else found


def keep_caches(folders: Iterable[str]) -> None:
    """Add compile caches of a plan's trial to those of this user, so that the plan starts from them in a program.

    Files that are there already stay, and other programs never see half a file. What cannot be copied is compiled
    again.
    """
    inductor = os.environ.get("TORCHINDUCTOR_CACHE_DIR") or DEFAULT_CACHE_DIR.get()()
    triton = os.environ.get("TRITON_CACHE_DIR") or os.path.join(inductor, "triton", "0")  # as Inductor sets it
    for folder in folders:
        for source, target in ((os.path.join(folder, "triton"), triton), (folder, inductor)):
            with contextlib.suppress(OSError):
                shutil.copytree(source, target, dirs_exist_ok=True, copy_function=_copy_new, ignore=_leave_triton)


def _leave_triton(_folder: str, names: list[str]) -> list[str]:
    return [name for name in names if name == "triton"]


def _copy_new(source: str, target: str) -> None:
    if os.path.exists(target):
        return
    folder, name = os.path.split(target)
    draft = os.path.join(folder, f".{name}.{secrets.token_hex(4)}.tmp")  # an end amid the copy leaves no half of it
    try:
        shutil.copy2(source, draft)
        os.replace(draft, target)
    finally:
        with contextlib.suppress(OSError):
            os.unlink(draft)


def explain_loss(name: str, statistics: ComponentStatistics, decision: Decision) -> str | None:
    """Say that a plan took longer to start than its calls saved in this run, or return None if it did not."""
    if decision.speedup is None or decision.speedup.mid <= 1:
        return None
    saved_s = statistics.optimized * decision.baseline_s * (1 - 1 / decision.speedup.mid)
    if statistics.compile_s <= max(saved_s, MIN_TOLD_S):
        return None
    return (
        f"the plan of {name} took {show.seconds(statistics.compile_s)} to start in this run, and its calls saved about "
        f"{show.seconds(saved_s)}: it pays in longer runs"
    )
