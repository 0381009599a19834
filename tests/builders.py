"""Records as a real study leaves them, drawn from a seed, for the tests of reports, stores and commands."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from torchwise.environment import Environment
from torchwise.plan import EAGER, Plan, Trait
from torchwise.plan.workload_spec import WorkloadSpec
from torchwise.records import (
    Check,
    Costs,
    Decision,
    Failure,
    FailureKind,
    Inspection,
    Interval,
    Measurement,
    Outcome,
    Study,
    StudyState,
    Trial,
    TrialState,
    Verdict,
)

EAGER_S = 12.4e-3
"""Seconds per call of the plain model."""
CREATED_AT = 1_772_000_000.0

PASSED = Verdict(
    (
        Check("values", Outcome.PASS, "3 outputs on 4 seeds agree", error=2.1e-7, floor=1.9e-7),
        Check("held outputs", Outcome.PASS, "outputs of 3 calls stay as they were"),
    )
)
WRONG = Verdict(
    (
        Check("values", Outcome.FAIL, "output[0] is off at (3, 17): -0.412 for 0.371", error=3.2e-1, floor=1.9e-7),
        Check("held outputs", Outcome.PASS, "outputs of 3 calls stay as they were"),
    )
)
UNCLEAR = Verdict((Check("distribution", Outcome.NOT_COMPARABLE, "eager differs from itself between two calls"),))

HERE = Environment(
    device="cuda",
    hostname="node-17",
    system="Linux x86_64",
    cpu="Intel(R) Xeon(R) Platinum 8480+",
    cpus=16,
    python="3.11.9",
    torch="2.13.0+cu130",
    triton="3.5.0",
    cuda="13.0",
    gpu="NVIDIA H200",
    gpu_memory_mib=143_771,
    gpu_capability="9.0",
    driver="580.65.06",
)


def a_plan(**changes: Any) -> Plan:
    """Return a plan, of "inductor" unless a backend is given."""
    return Plan(**{"backend": "inductor", **changes})


def samples(seconds: float, rounds: int = 60, *, noise: float = 0.02, seed: int = 0) -> tuple[float, ...]:
    """Return rounds around a median, skewed as latencies are, with a hard floor and an occasional hiccup."""
    draw = np.random.default_rng(seed)
    values = seconds * (1 + noise * draw.gamma(2.0, 0.5, rounds) - noise * 0.84)
    values[draw.random(rounds) < 0.02] *= 1.6
    return tuple(float(value) for value in values)


def a_measurement(speedup: float = 1.5, rounds: int = 60, *, seed: int = 0, **changes: Any) -> Measurement:
    """Return paired samples of a candidate this much faster than eager."""
    fields: dict[str, Any] = {
        "candidate_s": samples(EAGER_S / speedup, rounds, seed=seed + 1),
        "baseline_s": samples(EAGER_S, rounds, seed=seed + 2),
        "calls_per_round": 4,
    }
    return Measurement(**{**fields, **changes})


def a_trial(number: int = 0, plan: Plan | None = None, speedup: float | None = 1.5, **changes: Any) -> Trial:
    """Return a finished trial, verified unless changed. A trial without a speed-up was not timed."""
    fields: dict[str, Any] = {
        "state": TrialState.COMPLETE,
        "reason": f"verified, {speedup}× eager's speed",
        "measurement": None if speedup is None else a_measurement(speedup, seed=number),
        "verdict": PASSED,
        "costs": Costs(38.2, 4.1, 312 << 20, 280 << 20, 5 << 20),
        "seconds": 61.0,
        "started_at": CREATED_AT + 60 * number,
    }
    return Trial(number, plan or a_plan(), **{**fields, **changes})


def a_failure(kind: FailureKind = FailureKind.DIED, number: int = 0, plan: Plan | None = None, **changes: Any) -> Trial:
    """Return a trial whose worker ended without a result."""
    fields: dict[str, Any] = {"stage": "compile", "message": "SIGSEGV", "traceback": ""}
    failure = Failure(kind, **{**fields, **changes})
    return a_trial(
        number, plan, None, state=TrialState.FAIL, failure=failure, verdict=None, costs=None, reason=str(failure)
    )


def an_inspection(**changes: Any) -> Inspection:
    """Return the description of a plain ResNet-like model."""
    fields: dict[str, Any] = {
        "identity": "5f2d0c9a81b3",
        "structure": "a0b1c2d3e4f5",
        "description": "ResNet, 25.6 M parameters, float32",
        "inputs": ("float32[32, 3, 224, 224]",),
        "traits": frozenset(map(Trait, {"module", "floating", "float32", "gemm", "conv"})),
        "measurement": a_measurement(1.0, seed=90),
        "first_call_s": 0.31,
        "peak_memory": 280 << 20,
        "shares": {"gemm": 0.73, "conv": 0.62, "launch": 0.08},
        "notes": ("the model is in training mode: batch norm uses the statistics of the batch",),
    }
    return Inspection(**{**fields, **changes})


def a_decision(trial: Trial | None = None, workload: WorkloadSpec | None = None, **changes: Any) -> Decision:
    """Return the decision for a trial's plan, or for eager without a trial."""
    found = trial.speedup if trial else None
    costs = trial.costs if trial and trial.costs else Costs(0.0)
    workload = workload or WorkloadSpec("zoo:vision.resnet50", device="cuda")
    eager_s = an_inspection().measurement.baseline_time.mid
    gains = [eager_s * (1 - 1 / factor) for factor in (found.high, found.mid, found.low)] if found else []
    fields: dict[str, Any] = {
        "plan": trial.plan if trial else EAGER,
        "reason": f"Run {trial.plan}: {found} times eager's speed, verified."
        if trial
        else "Stay with eager: nothing pays back.",
        "speedup": found,
        "break_even_calls": Interval(*(costs.cold_s / gain for gain in gains)) if gains else None,
        "saved_s": workload.calls * gains[1] - costs.cold_s if gains else 0.0,
        "baseline_s": eager_s,
        "cold_s": costs.cold_s,
        "warm_s": costs.warm_s,
        "workload": workload,
        "identity": "5f2d0c9a81b3",
        "structure": "a0b1c2d3e4f5",
        "inputs": ("float32[32, 3, 224, 224]",),
        "environment": HERE,
        "error": 2.1e-7 if trial else None,
    }
    return Decision(**{**fields, **changes})


def some_trials() -> tuple[Trial, ...]:
    """Return one trial for each way in which a plan can win or lose. Number 3 is the best."""
    inductor = a_plan()
    slow = Costs(512.0, 18.0, 350 << 20, 280 << 20, 41 << 20)
    return (
        a_trial(0, inductor, 1.52),
        a_trial(1, Plan(memory_format="channels_last"), 0.83, costs=Costs(0.02, None, 301 << 20, 280 << 20)),
        a_trial(2, Plan(capture="call"), 1.002, costs=Costs(0.4, None, 560 << 20, 280 << 20)),
        a_trial(3, inductor.with_choice("memory_format", "channels_last"), 1.71),
        a_trial(4, inductor.with_choice("mode", "max-autotune-no-cudagraphs"), 1.74, costs=slow),
        a_trial(
            5, inductor.with_choice("options", ("freezing", True)), None, verdict=WRONG, reason="not proven: values"
        ),
        a_failure(FailureKind.DIED, 6, inductor.with_choice("mode", "reduce-overhead")),
        a_failure(
            FailureKind.TIMED_OUT,
            7,
            inductor.with_choice("mode", "max-autotune"),
            message="more than the limit of 600 s",
        ),
        a_trial(
            8,
            inductor.with_choice("scope", "regional"),
            None,
            state=TrialState.PRUNED,
            reason="stopped early",
            measurement=a_measurement(1.1, 12, seed=8, pruned=True, notes=("the clock of the GPU fell by 11 %",)),
        ),
        a_trial(9, inductor.with_choice("shapes", "dynamic"), None, verdict=UNCLEAR, reason="not comparable"),
    )


def a_study(
    trials: Sequence[Trial] | None = None,
    *,
    decided: int | None = 3,
    workload: WorkloadSpec | None = None,
    **changes: Any,
) -> Study:
    """Return a study of `trials` (by default one of each kind), decided for the trial of that number.

    If no trial has that number, the decision is for eager. With None there is no decision.
    """
    trials = some_trials() if trials is None else tuple(trials)
    workload = workload or WorkloadSpec("zoo:vision.resnet50", device="cuda")
    chosen = next((trial for trial in trials if trial.number == decided), None)
    fields: dict[str, Any] = {
        "id": 7,
        "workload": workload,
        "environment": HERE,
        "inspection": an_inspection(),
        "allow": "same-precision",
        "effort": "standard",
        "state": StudyState.RUNNING if decided is None else StudyState.DECIDED,
        "trials": tuple(trials),
        "excluded": (
            "tf32: it is lower-precision, and only up to same-precision is allowed",
            "inductor + regional: the workload has no repeated blocks",
        ),
        "decision": None if decided is None else a_decision(chosen, workload),
        "created_at": CREATED_AT,
        "seconds": 1_312.0,
    }
    return Study(**{**fields, **changes})
