"""`objective="throughput"` with a limit of latency: batch size and plan are found together, and found again."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from test_study import GOOD, INDUCTOR, samples
from torch import nn

from torchwise.errors import BaselineError, InputError
from torchwise.plan import EAGER, Numerics, Plan, Trait
from torchwise.plan.requirements import Property
from torchwise.plan.workload_spec import BatchDim, TuneOptions, WorkloadSpec
from torchwise.records import (
    Check as VerdictCheck,
)
from torchwise.records import (
    CheckName,
    Costs,
    Failure,
    FailureKind,
    Inspection,
    Measurement,
    Outcome,
    Study,
    Verdict,
    codec,
)
from torchwise.records.answer import Answer
from torchwise.records.listener import Listener
from torchwise.report.facts import command_line, describe_request
from torchwise.report.study import next_steps
from torchwise.runtime.program.tuning import check_options
from torchwise.store import Storage, open_storage
from torchwise.study import Request, run_study
from torchwise.study.batch_search import SampleCheck
from torchwise.study.cluster.manifest import Task
from torchwise.trial import ProcessLauncher, sample_check
from torchwise.trial.job import Attempt, Job, Restart
from torchwise.workload import Example, Workload


class Server:
    """A launcher whose eager takes 1 ms a call and 0.1 ms a sample. Inductor is `speedup` times as fast."""

    def __init__(self, speedup: float = 2.0, holds: int = 10_000) -> None:
        self.speedup, self.holds, self.code = speedup, holds, "code"
        self.ran: list[tuple[str, Plan, int]] = []
        self.checks, self.are_random = 0, False
        self.traits: set[frozenset[Trait]] = set()
        self.spread = 1.0
        self.waits: list[float] = []
        self.fails_above = 10_000

    def run(self, job: Job | SampleCheck, limits: Any, on_stage: Any) -> str | Failure:
        self.waits.append(limits.end_s)
        if isinstance(job, SampleCheck):
            self.checks += 1
            return codec.to_json(self.are_random)
        batch = job.batch or job.workload.batch
        assert batch is not None, "every worker runs at a batch size"
        self.ran.append((job.task, job.plan, batch.size))
        self.traits |= {job.traits} if job.task == "try" and job.plan == EAGER else set()
        eager = samples(1e-3 + 1e-4 * batch.size)
        eager = (*eager[:3], *(second * self.spread for second in eager[3:]))
        if batch.size > self.holds:
            return Failure(FailureKind.RAISED, "load", "the inputs differ in dimension 0")
        if job.task == "inspect":
            timed = Measurement(eager, eager)
            name = f"identity of {self.code} at {batch.size}"
            return codec.to_json(Inspection(name, self.code, "Net", ("x",), frozenset({"module"}), timed, 0.1))
        speed = self.speedup if job.plan == INDUCTOR else 1.0 if job.plan == EAGER else 0.5
        if batch.size > self.fails_above and job.baseline_s is not None:  # in a study, and not among other sizes
            speed = 0.1
        timed = Measurement(tuple(second / speed for second in eager), eager)
        if job.task in ("warm", "duel"):
            return codec.to_json(Restart(0.1, timed) if job.task == "warm" else timed)
        return codec.to_json(Attempt(Costs(0.1), GOOD, timed))

    def sizes(self, task: str, plan: Plan) -> list[int]:
        return [size for which, tried, size in self.ran if (which, tried) == (task, plan)]


@pytest.fixture
def storage(tmp_path: Path) -> Iterator[Storage]:
    with open_storage(str(tmp_path / "store.db")) as opened:
        yield opened


def search(storage: Storage, server: Server, limit_s: float = 10.2e-3, **options: Any) -> Study:
    workload = WorkloadSpec("zoo:any", objective="throughput", latency_limit=limit_s, calls=10**7)
    return run_study(Request(workload, **options), storage, server, Listener())


def test_a_compile_time_out_holds_at_every_batch_size(storage: Storage) -> None:
    heard: list[tuple[str, float]] = []

    class Notes(Server):
        def run(self, job: Any, limits: Any, on_stage: Any) -> str | Failure:
            heard.append((getattr(job, "task", ""), limits.compile_s))
            return super().run(job, limits, on_stage)

    search(storage, Notes(), compile_timeout_s=7.0)
    assert {seconds for task, seconds in heard if task == "try"} == {7.0}


def test_a_batch_size_is_found_though_eager_lacks_a_required_property(storage: Storage) -> None:
    lack = VerdictCheck(CheckName.DETERMINISTIC, Outcome.FAIL, "on input 1 output differs")
    required: dict[bool, set[tuple[Property, ...]]] = {True: set(), False: set()}

    class Varying(Server):
        def run(self, job: Any, limits: Any, on_stage: Any) -> str | Failure:
            answer = super().run(job, limits, on_stage)
            if isinstance(job, SampleCheck) or job.task not in ("inspect", "try"):
                return answer
            required[job.batch is not None].add(job.workload.require)
            if job.task == "inspect":
                inspection = codec.from_json(answer, Inspection)  # type: ignore[arg-type]
                return codec.to_json(replace(inspection, properties=(lack,)))
            if job.plan == EAGER and job.workload.require:
                verdict = Verdict((*GOOD.checks, lack))
                return codec.to_json(replace(codec.from_json(answer, Attempt), verdict=verdict))  # type: ignore[arg-type]
            return answer

    require = (Property.DETERMINISTIC,)
    workload = WorkloadSpec("zoo:any", objective="throughput", latency_limit=10.2e-3, calls=10**7, require=require)
    study = run_study(Request(workload), storage, Varying(), Listener())
    assert batch_of(study) == (INDUCTOR, 80)
    assert required == {True: {()}, False: {require}}


def batch_of(study: Study) -> tuple[Plan, int]:
    assert study.decision is not None
    assert study.decision.workload.batch is not None
    assert study.workload.batch == study.decision.workload.batch
    return study.decision.plan, study.decision.workload.batch.size


def test_the_faster_plan_gets_the_larger_batch(storage: Storage) -> None:
    server = Server()
    study = search(storage, server)
    assert batch_of(study) == (INDUCTOR, 80)
    assert server.checks == 1, "that samples are independent is verified once"
    eager = [1, 2, 4, 8, 16, 32, 64, 64, 48, 48, 40]
    assert server.sizes("try", EAGER) == eager, "a call of 40 takes 5.0 ms, and two of them fit"
    assert server.sizes("inspect", EAGER) == [40, 80]
    assert study.decision is not None
    assert "it keeps the latency limit, which eager passes" in study.decision.reason
    assert study.decision.reason.endswith(
        " A call of batch 80 takes 4.50 ms, 17,800 samples a second. The limit of 10.2 ms leaves 5.10 ms, as a request "
        "may wait for the batch before its own."
    )


def test_the_gain_of_a_batch_over_a_lone_sample_is_said(storage: Storage) -> None:
    notes: list[str] = []
    listener = Listener()
    listener.note = notes.append  # type: ignore[method-assign]
    workload = WorkloadSpec("zoo:any", objective="throughput", latency_limit=10.2e-3, calls=10**7)
    run_study(Request(workload), storage, Server(), listener)
    assert notes[0] == "verifying that samples of a batch do not depend on each other"
    assert "batch 40 is best: 8,000 samples a second, 8.80× that of batch 1" in notes
    assert any(re.fullmatch("batch 80 is best: 17,[78].. samples a second, 1.11× that of batch 40", n) for n in notes)


@pytest.mark.parametrize("factor", [1.01, 4.0])
def test_a_call_whose_time_is_uncertain_gets_no_figure(storage: Storage, factor: float) -> None:
    server = Server(0.9)
    server.spread = factor
    decision = search(storage, server, limit_s=1.0).decision
    assert decision is not None
    [said] = re.findall(r"A call of batch \d+ takes (.*?), (.*?) samples", decision.reason)
    assert all((" to " in text) == (factor > 2) for text in said)


def test_where_no_plan_is_faster_eager_gets_its_own_batch(storage: Storage) -> None:
    assert batch_of(search(storage, Server(speedup=0.9))) == (EAGER, 40)


def test_a_stored_decision_is_found_by_profiling_at_its_batch_alone(storage: Storage) -> None:
    found = search(storage, Server())
    again = Server()
    assert batch_of(search(storage, again)) == batch_of(found)
    assert again.ran == [("inspect", EAGER, 80)]
    assert again.checks == 0


def test_an_inconclusive_decision_leaves_the_batch_open(storage: Storage) -> None:
    found = search(storage, Server()).decision
    assert found is not None
    latest = replace(found, answer=Answer.INCONCLUSIVE)
    study = storage.latest_study()
    assert study is not None
    storage.store_outcome(study.id, state=study.state, decision=latest, excluded=(), seconds=0.0)
    again = Server()
    search(storage, again)
    assert len(again.sizes("try", EAGER)) > 5


@pytest.mark.parametrize("how", ["fresh", "code", "limit"])
def test_what_the_stored_decision_does_not_hold_for_is_searched_anew(storage: Storage, how: str) -> None:
    search(storage, Server())
    again = Server()
    again.code = "other" if how == "code" else "code"
    study = search(storage, again, 20.2e-3 if how == "limit" else 10.2e-3, fresh=how == "fresh")
    assert len(again.sizes("try", EAGER)) > 5
    assert batch_of(study) == (INDUCTOR, 160 if how == "limit" else 80)


SLOW = Plan(threads=1)


@pytest.mark.parametrize(
    "options",
    [
        {"allow": Numerics.LOWER_PRECISION},
        {"effort": "quick"},
        {"plans": (SLOW,)},
        {"plans": (INDUCTOR, Plan(threads=3))},
    ],
)
def test_a_decision_of_other_rules_leaves_the_batch_open(storage: Storage, options: dict[str, Any]) -> None:
    search(storage, Server())
    again, same = Server(), Server()
    search(storage, again, **options)
    assert len(again.sizes("try", EAGER)) > 5
    search(storage, same, **options)
    assert same.sizes("try", EAGER) == [], "the second time it is known"


def test_a_decision_among_named_plans_leaves_the_batch_open_for_all(storage: Storage) -> None:
    search(storage, Server(), plans=(SLOW,))
    again = Server()
    assert batch_of(search(storage, again)) == (INDUCTOR, 80)
    assert len(again.sizes("try", EAGER)) > 5


def test_a_limit_that_nothing_keeps_is_said(storage: Storage) -> None:
    study = search(storage, Server(), 1e-3)
    assert batch_of(study) == (EAGER, 1)
    assert study.decision is not None
    assert "Stay with eager, which passes the latency limit: no verified plan keeps it either." in study.decision.reason


def test_a_limit_that_a_plan_alone_keeps_is_kept(storage: Storage) -> None:
    assert batch_of(search(storage, Server(), 2e-3)) == (INDUCTOR, 10)


def test_inputs_without_a_batch_are_refused(storage: Storage) -> None:
    with pytest.raises(InputError, match=r"batch 1 fails: .*the inputs differ in dimension 0"):
        search(storage, Server(holds=0))


@pytest.mark.parametrize(
    ("model", "error", "said"),
    [
        ("BatchNorm1d(3)", InputError, r"a call changes buffer running_mean: call model.eval\(\) first"),
        ("Flatten(0)", InputError, r"the output is of shape \(12,\), but must be a tensor with 4 samples"),
        ("Linear(7, 7)", BaselineError, "the model raised RuntimeError"),
    ],
)
def test_models_that_cannot_be_batched_are_refused_before_any_size_is_tried(
    tmp_path: Path, storage: Storage, model: str, error: type[Exception], said: str
) -> None:
    file = tmp_path / "given.py"
    file.write_text(f"import torch\n\ndef make():\n    return torch.nn.{model}, (torch.randn(2, 3),)\n")
    workload = WorkloadSpec(f"{file}:make", objective="throughput", latency_limit=1.0)
    with pytest.raises(error, match=said):
        run_study(Request(workload), storage, ProcessLauncher(), Listener())


def test_the_latest_decision_of_the_target_is_the_one_returned(storage: Storage) -> None:
    study = search(storage, Server())
    assert storage.decisions(target="zoo:any")[0] == study.decision


def test_if_the_larger_batch_disappoints_the_smaller_one_is_decided_last(storage: Storage) -> None:
    server = Server()
    server.fails_above = 40
    study = search(storage, server)
    assert server.sizes("inspect", EAGER) == [40, 80]
    assert batch_of(study) == (INDUCTOR, 40)
    assert storage.decisions(target="zoo:any")[0] == study.decision


@pytest.mark.parametrize("fails", ["inspect", "try"])
def test_if_the_larger_batch_raises_the_smaller_one_stays_decided(storage: Storage, fails: str) -> None:
    class Broken(Server):
        def run(self, job: Any, limits: Any, on_stage: Any) -> str | Failure:
            if isinstance(job, Job) and job.task == fails:
                is_fit = job.plan == INDUCTOR and job.baseline_s is None  # and no trial of a study
                if is_fit if fails == "try" else job.workload.batch != BatchDim(0, 40):
                    raise BaselineError("the model runs out of memory")
            return super().run(job, limits, on_stage)

    notes: list[str] = []
    listener = Listener()
    listener.note = notes.append  # type: ignore[method-assign]
    workload = WorkloadSpec("zoo:any", objective="throughput", latency_limit=10.2e-3, calls=10**7)
    study = run_study(Request(workload), storage, Broken(), listener)
    assert batch_of(study) == (INDUCTOR, 40)
    assert any(note == "the search ends with the batch sizes so far: the model runs out of memory" for note in notes)


@pytest.mark.parametrize("wait", [False, True])
def test_the_budget_is_named_as_it_was_given_in_each_part_of_the_search(storage: Storage, wait: bool) -> None:
    class Slow(Server):
        def run(self, job: Any, limits: Any, on_stage: Any) -> str | Failure:
            if getattr(job, "task", "") == "inspect":
                time.sleep(max(limits.time_s, 0))
            return super().run(job, limits, on_stage)

    study = search(storage, Slow(), budget_s=0.5, wait=wait)
    assert any("the budget of 500 ms is spent" in reason for reason in study.excluded), study.excluded


@pytest.mark.parametrize("budget_s", [None, 500.0])
def test_waiting_for_others_counts_only_against_a_budget_of_the_user(storage: Storage, budget_s: float | None) -> None:
    server = Server()
    assert batch_of(search(storage, server, budget_s=budget_s)) == (INDUCTOR, 80)
    assert all(wait == math.inf if budget_s is None else wait <= budget_s for wait in server.waits)


@pytest.mark.parametrize(
    ("given", "seconds"), [("20ms", 0.02), ("0.5s", 0.5), ("250 us", 250e-6), (0.02, 0.02), ("1", 1.0)]
)
def test_a_limit_is_a_duration(given: float | str, seconds: float) -> None:
    options = TuneOptions(objective="throughput", latency_limit=given)
    assert Request.from_options(options, "zoo:any", "cpu").workload.latency_limit == pytest.approx(seconds)
    task = Task("zoo:any", "cpu", objective="throughput", latency_limit=given)
    assert task.request().workload.latency_limit == pytest.approx(seconds)
    assert f"--latency-limit={given}" in task.arguments()


@pytest.mark.parametrize(
    ("limit", "objective", "said"),
    [
        ("fast", "throughput", "latency limit is 'fast', but must be a positive duration such as 20ms"),
        ("20", "latency", "a latency limit is given with objective 'latency', but is only for throughput"),
        (0, "throughput", "latency limit is 0, but must be a positive duration"),
        ("-3ms", "throughput", "latency limit is '-3ms', but must be a positive duration"),
        ("nan", "throughput", "latency limit is 'nan', but must be a positive duration"),
        (float("inf"), "throughput", "latency limit is inf, but must be a positive duration"),
    ],
)
def test_a_limit_that_is_none_is_refused(limit: Any, objective: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        Request.from_options(TuneOptions(objective=objective, latency_limit=limit), "zoo:any", "cpu")


def test_a_limit_is_refused_with_sizes_that_vary() -> None:
    options = TuneOptions(objective="throughput", latency_limit=0.02, sizes="varying")
    with pytest.raises(InputError, match=r"sizes is 'varying', but must be .* with a latency limit.*: leave --sizes"):
        Request.from_options(options, "zoo:any", "cpu")
    fixed = Request.from_options(replace(options, sizes="fixed"), "zoo:any", "cpu")
    assert fixed.workload.latency_limit == 0.02


def test_reports_name_the_limit_and_the_command_leaves_the_batch_to_the_search(storage: Storage) -> None:
    spec = search(storage, Server()).workload
    assert "for throughput within 10.2 ms at batch 80" in str(describe_request(spec, "Net"))
    assert "--latency-limit 10.2ms" in command_line("tune", spec)
    assert "batch" not in command_line("tune", spec)
    assert not replace(spec, latency_limit=None).times_each_call
    assert spec.times_each_call, "a server waits for each call"


def test_other_load_at_two_sizes_does_not_end_the_doubling(storage: Storage) -> None:
    class Disturbed(Server):
        def run(self, job: Any, limits: Any, on_stage: Any) -> str | Failure:
            answer = super().run(job, limits, on_stage)
            size = 0 if isinstance(job, SampleCheck) or job.batch is None else job.batch.size
            if size not in (2, 4) or self.sizes("try", EAGER).count(size) != 1:
                return answer
            attempt = codec.from_json(answer, Attempt)
            slow = Measurement(*(tuple(100 * s for s in of) for of in (samples(1e-3), samples(1e-3))))
            return codec.to_json(replace(attempt, measurement=slow))

    options = TuneOptions(objective="throughput", batch="best", calls=10**7)
    server = Disturbed()
    study = run_study(Request.from_options(options, "zoo:any", "cpu"), storage, server, Listener())
    assert batch_of(study) == (INDUCTOR, 512)
    assert server.sizes("try", EAGER)[:6] == [1, 2, 2, 4, 4, 8]


@pytest.mark.parametrize(
    ("speedup", "memory_limit", "expected"),
    [(2.0, None, (INDUCTOR, 512)), (0.9, None, (EAGER, 512)), (2.0, 40 * 2**20, (INDUCTOR, 40))],
    ids=["a faster plan", "no faster plan", "a limit of memory"],
)
def test_without_a_limit_of_latency_the_batch_grows_while_throughput_does(
    storage: Storage, speedup: float, memory_limit: int | None, expected: tuple[Plan, int]
) -> None:
    class Measured(Server):
        def run(self, job: Any, limits: Any, on_stage: Any) -> str | Failure:
            answer = super().run(job, limits, on_stage)
            batch = None if isinstance(job, SampleCheck) else job.batch or job.workload.batch
            if batch is None or job.task != "try":
                return answer
            attempt = codec.from_json(answer, Attempt)
            return codec.to_json(replace(attempt, costs=replace(attempt.costs, peak_memory=batch.size * 2**20)))

    server = Measured(speedup)
    options = TuneOptions(objective="throughput", batch="best", memory_limit=memory_limit, calls=10**7)
    study = run_study(Request.from_options(options, "zoo:any", "cpu"), storage, server, Listener())
    assert batch_of(study) == expected
    assert study.decision is not None
    if memory_limit is None:  # the two sizes after 256 gain 3 % together
        assert server.sizes("try", EAGER)[:11] == [2**power for power in range(11)]
        assert max(server.sizes("try", EAGER)) == 1024
    assert re.search(r" A call of batch \d+ takes [\d.]+ ms, [\d,]+ samples a second\.$", study.decision.reason)
    assert f"for throughput at batch {expected[1]}" in str(describe_request(study.workload, "Net"))
    assert "--objective throughput" in command_line("tune", study.workload)
    assert "--batch best" in command_line("tune", study.workload)
    again = Measured(speedup)
    request = Request.from_options(options, "zoo:any", "cpu")
    assert batch_of(run_study(request, storage, again, Listener())) == expected
    assert again.ran == [("inspect", EAGER, expected[1])], "a stored decision is found"


def test_a_batch_as_given_is_kept_and_the_report_says_how_to_find_one(storage: Storage) -> None:
    class Given(Server):
        def run(self, job: Any, limits: Any, on_stage: Any) -> str | Failure:
            assert (job.batch, job.workload.batch) == (None, None)
            given = replace(job, workload=replace(job.workload, batch=BatchDim(0, 4)))
            return super().run(given, limits, on_stage)

    options = TuneOptions(objective="throughput", calls=10**7)
    study = run_study(Request.from_options(options, "zoo:any", "cpu"), storage, Given(), Listener())
    assert study.workload.batch is None
    (step,) = [step for step in next_steps(study) if "batch" in step.command]
    assert {"--objective throughput", "--batch best"} == {*re.findall("--(?:objective|batch) [a-z]+", step.command)}
    assert step.purpose == "also finds the batch size of most samples per second, instead of this one alone"
    for changes in ({"objective": "latency"}, {"mode": "training"}, {"batch": BatchDim(0, 8)}, {"sizes": "varying"}):
        other = replace(study, workload=replace(study.workload, **changes))  # type: ignore[arg-type]
        assert not any("--batch best" in s.command and "finds" in s.purpose for s in next_steps(other))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"batch": "largest"}, "batch is 'largest', but must be one of as-given, best"),
        ({"objective": "latency"}, "batch is 'best' with objective 'latency', but only throughput tells"),
        ({"mode": "training"}, "batch is 'best' with mode 'training', but a step learns otherwise"),
        ({"sizes": "varying"}, "sizes is 'varying', but must be 'as-given' or 'fixed' with batch 'best'"),
    ],
)
def test_a_batch_that_cannot_be_found_is_refused(options: dict[str, Any], said: str) -> None:
    given = TuneOptions(**{"objective": "throughput", "batch": "best", **options})
    with pytest.raises(InputError, match=said):
        Request.from_options(given, "zoo:any", "cpu")


def test_a_sweep_finds_batches_too() -> None:
    task = Task("zoo:any", "cpu", objective="throughput", batch="best")
    assert task.request().finds_batch
    assert "--batch=best" in task.arguments()


def test_the_batches_of_a_program_are_its_own() -> None:
    with pytest.raises(InputError, match="batch is given, but the recorded calls show it"):
        check_options({"objective": "throughput", "batch": "best"})


def test_sizes_of_a_model_that_draws_are_verified_by_distribution(storage: Storage) -> None:
    server = Server(speedup=0.9)
    server.are_random = True
    search(storage, server)
    assert frozenset({Trait.STOCHASTIC}) in server.traits


class Sampler(nn.Module):
    """Adds noise of its own to each sample, or the same to all."""

    def __init__(self, *, shared: bool) -> None:
        super().__init__()
        self.shared = shared

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.randn(x.shape[1:] if self.shared else x.shape)


@pytest.mark.parametrize("training", [False, True], ids=["evaluation", "training"])
@pytest.mark.parametrize("shared", [False, True])
def test_a_model_that_draws_passes_if_each_sample_has_noise_of_its_own(
    shared: bool, training: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    workload = Workload(Sampler(shared=shared).train(training), (Example((torch.randn(1, 8),)),))
    monkeypatch.setattr(sample_check, "load", lambda _: workload)
    order = SampleCheck(Request(WorkloadSpec("zoo:any")).make_job("try"))
    if not shared:
        assert sample_check.check_samples(order, lambda _: None)
        return
    with pytest.raises(InputError, match="random samples of a batch are not those of single calls"):
        sample_check.check_samples(order, lambda _: None)
