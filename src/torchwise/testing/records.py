"""Small records for the suites that store or judge some, and the steps to store them. No torch here."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torchwise.environment import Environment
from torchwise.plan import Numerics, Plan, Trait
from torchwise.plan.workload_spec import WorkloadSpec
from torchwise.records import (
    Approval,
    Check,
    CheckName,
    Costs,
    Decision,
    Failure,
    FailureKind,
    Inspection,
    Interval,
    Measurement,
    Outcome,
    Standing,
    Study,
    StudyState,
    Trial,
    TrialState,
    Verdict,
    WorkerStage,
)
from torchwise.records.compile_events import CompileEvents
from torchwise.records.explanation import Capturable, Execution, Explanation, Finding, Kernel, Stage
from torchwise.store import LeaseOwner, Storage, StudyKey

HERE = Environment(
    device="cpu",
    hostname="here",
    system="Linux x86_64",
    cpu="Example CPU @ 3.00 GHz",
    cpus=8,
    python="3.11.9",
    torch="2.13.0+cpu",
)
INDUCTOR = Plan(backend="inductor")
TUNED = Plan(backend="inductor", options=(("max_autotune", True), ("coordinate_descent_tuning", True)))
FASTER = Measurement((0.5, 0.5, 0.5), (1.0, 1.0, 1.0), notes=("the machine was busy",))
PASSED = Verdict((Check(CheckName.VALUES, Outcome.PASS, "agrees", error=1e-7, floor=1e-7),))


def make_study(identity: str = "1d" * 8, target: str = "zoo:tutorial.fusion_demo", **changes: Any) -> Study:
    """Return a study without trials, for the storage to number."""
    inspection = Inspection(
        identity=identity,
        structure="57" * 8,
        description="Net, 25.6 M parameters, float32",
        inputs=("[0][0] float32[8, 16] (16, 1)",),
        traits=frozenset(map(Trait, {"module", "floating", "gemm"})),
        measurement=Measurement((1.0, 1.25, 1.5), (1.0, 1.25, 1.5)),
        first_call_s=0.01,
        shares={"gemm": 0.75},
    )
    return replace(Study(0, WorkloadSpec(target), HERE, inspection, Numerics.SAME_PRECISION, "quick"), **changes)


def make_decision(plan: Plan = INDUCTOR, **changes: Any) -> Decision:
    """Return a decision for a plan of that study."""
    decision = Decision(
        plan=plan,
        reason="2 times as fast, verified by 1 check",
        speedup=Interval(1.75, 2.0, 2.25),
        break_even_calls=Interval(10.0, 20.0, float("inf")),
        saved_s=100.0,
        baseline_s=1.0,
        cold_s=10.0,
        warm_s=None,
        workload=WorkloadSpec("zoo:tutorial.fusion_demo"),
        identity="1d" * 8,
        structure="57" * 8,
        inputs=("[0][0] float32[8, 16] (16, 1)",),
        environment=HERE,
    )
    return replace(decision, **changes)


def make_approval(plan: Plan = INDUCTOR, standing: Standing = Standing.APPROVED, **changes: Any) -> Approval:
    """Return an approval of a plan for the target of that study."""
    ruling = Approval(
        "zoo:tutorial.fusion_demo", "inference", HERE.hardware, plan, standing, "bob", "it is calm", at=1e9
    )
    return replace(ruling, **changes)


def make_explanation(plan: Plan | None = None, **changes: Any) -> Explanation:
    """Return an explanation of that target."""
    told = Explanation(
        workload=WorkloadSpec("zoo:tutorial.fusion_demo"),
        environment=HERE,
        plan=plan,
        measurement=FASTER,
        stages=(Stage("graph capture", 0.25, "4 lines", "1 graph"),),
        execution=Execution(Interval(0.5, 0.5, 0.5), 0.25, guards=7),
        kernels=(Kernel("h\u00f6he", 2.0, 0.125),),
        findings=(Finding("guards", "7 guards", "they are checked", "leave them out"),),
        capturable=Capturable(None),
        compile_events=CompileEvents(0.5),
        created_at=1e9,
    )
    return replace(told, **changes)


def complete_trial(trial: Trial) -> Trial:
    """Return the trial, measured and verified."""
    costs = Costs(10.0, warm_s=2.5, peak_memory=1 << 40)
    return replace(
        trial, state=TrialState.COMPLETE, measurement=FASTER, verdict=PASSED, costs=costs, seconds=12.5, started_at=1e9
    )


def fail_trial(trial: Trial) -> Trial:
    """Return the trial as one whose worker died."""
    failure = Failure(FailureKind.DIED, WorkerStage.COMPILE, "SIGSEGV", "line 1\nline 2 with \u00e9 and \x00")
    return replace(trial, state=TrialState.FAIL, failure=failure, started_at=1e9)


def create_study(storage: Storage, study: Study | None = None) -> Study:
    """Store a study, and return it as the storage has it."""
    study = study or make_study()
    return storage.create_study(StudyKey.from_study(study), study)


def claim_trial(storage: Storage, study_id: int, plan: Plan = INDUCTOR, owner: LeaseOwner | None = None) -> Trial:
    """Claim a trial, by default for this process."""
    trial = storage.claim_trial(study_id, plan, "it is worth a try", owner or LeaseOwner.current())
    assert trial is not None
    return trial


def conclude_study(storage: Storage, study_id: int, plan: Plan = INDUCTOR, **changes: Any) -> None:
    """Store the decision for a plan as the outcome of a study."""
    decision = make_decision(plan, **changes)
    storage.store_outcome(
        study_id, state=StudyState.DECIDED, decision=decision, excluded=["bf16: not allowed"], seconds=2.5
    )
