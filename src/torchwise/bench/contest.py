"""The worker's side: one contender on one target, built, proven and timed against eager; or two against each other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from torchwise.bench.contenders import known
from torchwise.bench.contenders.torchwise import check_served
from torchwise.bench.job import Contest
from torchwise.measure import Clock, Precision, measure_pair, peak_memory
from torchwise.records import Costs, Measurement, Outcome
from torchwise.records.benchmark import Performance
from torchwise.trial.candidate import SETTLING_CALLS, held_beside_inputs, held_since
from torchwise.trial.inspection import mix_of
from torchwise.trial.loading import load, runner
from torchwise.verify import Subject, verify
from torchwise.verify.draws import draws
from torchwise.verify.held import check_held
from torchwise.workload import Workload, trees


def contend(contest: Contest, stage: Callable[[str], None]) -> Performance:
    """Build the contender with empty caches, verify it, time it against eager in alternation, and weigh it."""
    arena = _Arena(contest)
    with arena.gradients():
        eager = arena.runners(arena.workload.call)
        arena.settle(eager)
        stage("compile")
        before = held_beside_inputs(arena.workload, arena.device)
        call = arena.build(contest.contender)
        candidate = arena.runners(call)
        cold = arena.first_calls(candidate)
        held = held_since(before, arena.device)
        stage("verify")
        verdict, overwrites = arena.judge(call)
        stage("measure")
        measurement = arena.measure(candidate, eager)
        memory = [max(peak_memory(run, arena.device) or 0 for run in side) for side in (candidate, eager)]
        check_served(call)
    costs = Costs(cold, peak_memory=memory[0] + held, baseline_peak_memory=memory[1])
    return Performance(costs, verdict, measurement, overwrites, _dtype(arena.workload), arena.workload.roofline)


def warm(contest: Contest, stage: Callable[[str], None]) -> float:
    """Build the contender in this fresh process from the caches that are there; return the seconds it took."""
    arena = _Arena(contest)
    with arena.gradients():
        arena.settle(arena.runners(arena.workload.call))
        stage("warm compile")
        return arena.first_calls(arena.runners(arena.build(contest.contender)))


def duel(contest: Contest, stage: Callable[[str], None]) -> Measurement:
    """Time the contender against its rival in alternation."""
    arena = _Arena(contest)
    with arena.gradients():
        arena.settle(arena.runners(arena.workload.call))
        stage("compile")
        sides = [arena.runners(arena.build(name)) for name in (contest.contender, contest.rival)]
        for side in sides:
            arena.first_calls(side)
        stage("measure")
        return arena.measure(*sides)


class _Arena:
    """A workload in this process, with the clock."""

    def __init__(self, contest: Contest) -> None:
        self._contest = contest
        self._job = contest.job
        self.workload = load(contest.job)
        self.device, self._mode = contest.job.workload.device, contest.job.workload.mode
        self._clock = Clock(self.device, each=contest.job.workload.objective != "throughput")
        self._built_s = 0.0

    def gradients(self) -> Any:
        import torch

        return torch.set_grad_enabled(self._mode == "training")

    def runners(self, call: Callable[..., Any]) -> list[Callable[[], Any]]:
        restore = "writes_inputs" in self._job.traits
        return [runner(call, e, self._mode, restore_inputs=restore) for e in self.workload.examples]

    def settle(self, calls: list[Callable[[], Any]]) -> None:
        """Run eager first, so that the libraries' own start-up is not counted as compile time."""
        for call in calls:
            self._clock.once(call)

    def build(self, name: str) -> Callable[..., Any]:
        """Build a contender; what that takes counts as its first call."""
        built: list[Callable[..., Any]] = []
        make, setting = known()[name].build, self._contest.setting
        self._built_s = self._clock.once(lambda: built.append(make(self.workload, setting)))
        return built[0]

    def first_calls(self, calls: list[Callable[[], Any]]) -> float:
        """Return the seconds that building and the first calls took beyond steady calls."""
        rounds = [sum(self._clock.once(call) for call in calls) for _ in range(SETTLING_CALLS)]
        return self._built_s + sum(rounds) - SETTLING_CALLS * min(rounds)

    def judge(self, call: Callable[..., Any]) -> tuple[Any, bool]:
        """Verify copies of the answers; whether an answer may be held is found apart from whether it is right."""
        workload, effort = self.workload, self._job.effort
        verdict = verify(
            Subject(
                workload,
                _copying(call),
                workload.call,
                stochastic="stochastic" in self._job.traits,
                training=self._mode == "training",
            ),
            extra_draws=effort.extra_draws,
            noise_budget_s=effort.noise_s,
        )
        inputs = draws(workload, 1)
        held = check_held(call, workload.call, inputs[0], inputs[-1])
        return verdict, held.outcome is not Outcome.PASS

    def measure(self, candidate: list[Callable[[], Any]], baseline: list[Callable[[], Any]]) -> Measurement:
        effort = self._job.effort
        sides = mix_of(candidate, self.workload), mix_of(baseline, self.workload)
        found = measure_pair(*sides, self._clock, Precision(effort.half_width, effort.measure_s))
        return replace(found, candidate_device_s=(), baseline_device_s=())


def _copying(call: Callable[..., Any]) -> Callable[..., Any]:
    """Return `call` with its answers copied, before a later call can overwrite them."""

    def copied(*args: Any, **kwargs: Any) -> Any:
        return trees.map_tensors(lambda t: t.clone(), call(*args, **kwargs))

    return copied


def _dtype(workload: Workload) -> str:
    """Return the dtype that the workload computes in: of its weights, or else of its inputs, real parts counting."""
    import torch

    call, example = workload.call, workload.examples[0]
    tensors: list[torch.Tensor] = list(call.parameters()) if isinstance(call, torch.nn.Module) else []
    tensors += trees.tensors((example.args, dict(example.kwargs)))
    found = next((t for t in tensors if t.is_floating_point() or t.is_complex()), None)
    dtype = torch.get_default_dtype() if found is None else found.dtype
    return str(dtype.to_real()).removeprefix("torch.")
