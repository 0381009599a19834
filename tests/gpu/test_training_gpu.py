"""Training steps by a plan on a real GPU: capture, equality, verification, scaling, and the state that is put back."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torchwise  # noqa: E402
from torchwise.compile import CompiledPlan, compile_plan  # noqa: E402
from torchwise.compile.optimizer import TunedOptimizer  # noqa: E402
from torchwise.plan import Plan  # noqa: E402
from torchwise.records import Outcome, Verdict  # noqa: E402
from torchwise.verify import StepSubject, verify_step  # noqa: E402
from torchwise.verify.step_runner import Maker, StepRunner  # noqa: E402
from torchwise.workload import Example, Workload, pytree  # noqa: E402

pytestmark = pytest.mark.gpu

CAPTURED = Plan(optimizer="fused", capture="step")


class Block(torch.nn.Module):  # type: ignore[misc,name-defined]
    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.norm, self.linear = torch.nn.LayerNorm(width), torch.nn.Linear(width, width)
        self.dropout = torch.nn.Dropout(dropout)

    def forward(self, x: Any) -> Any:
        return x + self.dropout(torch.nn.functional.gelu(self.linear(self.norm(x))))


class Blocks(torch.nn.Module):  # type: ignore[misc,name-defined]
    def __init__(self, dropout: float = 0.0, width: int = 64) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.enter, self.leave = torch.nn.Linear(16, width), torch.nn.Linear(width, 4)
        self.blocks = torch.nn.ModuleList([Block(width, dropout) for _ in range(3)])
        self.cuda()

    def forward(self, x: Any) -> Any:
        x = self.enter(x)
        for block in self.blocks:
            x = block(x)
        return self.leave(x)


def batch(seed: int, rows: int = 32) -> tuple[Any, Any]:
    generator = torch.Generator().manual_seed(seed)
    x, y = torch.randn(rows, 16, generator=generator), torch.randint(0, 4, (rows,), generator=generator)
    return x.cuda(), y.cuda()


def exponential(optimizer: Any) -> Any:
    return torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)


def a_step(
    dropout: float = 0.0,
    scheduler: Callable[[Any], Any] | None = None,
    optimizer: Callable[[Any], Any] = lambda p: torch.optim.AdamW(p, 1e-3),
    *,
    ema: bool = False,
    **rest: Any,
) -> torchwise.TrainStep:
    model = Blocks(dropout)
    made = optimizer(model.parameters())
    average = torch.optim.swa_utils.AveragedModel(model) if ema else None
    loss = torch.nn.functional.cross_entropy
    return torchwise.TrainStep(model, loss, made, scheduler=scheduler(made) if scheduler else None, ema=average, **rest)


def compile_step(step: torchwise.TrainStep, plan: Plan) -> CompiledPlan:
    return compile_plan(step, plan, Example(batch(0)), device="cuda", mode="training")


def collect_state(step: Any) -> list[Any]:
    return [leaf for _, leaf in pytree.list_named_leaves(step.state_dict())]


def same(a: list[Any], b: list[Any]) -> bool:
    return len(a) == len(b) and all(
        pytree.equal(x, y) if isinstance(x, torch.Tensor) and isinstance(y, torch.Tensor) else x == y
        for x, y in zip(a, b, strict=True)
    )


def scaler() -> Any:
    return torch.amp.GradScaler("cuda", init_scale=256.0, growth_interval=3)


# ---- the whole step in one graph


@pytest.mark.parametrize(
    "how",
    [
        {},
        {"clip_norm": 0.1},
        {"clip_value": 0.01},
        {"scheduler": exponential},
        {"ema": True},
        {"accumulate": 2},
        {"autocast": torch.bfloat16},
        {"autocast": torch.float16, "scaler": True, "clip_norm": 1.0},
        {"autocast": torch.bfloat16, "scheduler": exponential, "clip_norm": 1.0, "ema": True},
    ],
    ids=str,
)
def test_a_captured_step_trains_as_the_one_as_written(how: dict[str, Any]) -> None:
    ours, theirs = (a_step(**{**how, **({"scaler": scaler()} if "scaler" in how else {})}) for _ in range(2))
    made = compile_step(ours, CAPTURED)
    for seed in range(8):
        torch.testing.assert_close(made.call(*batch(seed)), theirs(*batch(seed)), rtol=2e-3, atol=2e-3)
    for (name, one), other in zip(ours.model.named_parameters(), theirs.model.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=2e-3, atol=2e-3, msg=name)
    kept, written = ours.state_dict(), theirs.state_dict()
    for group, expected in zip(kept["optimizer"]["param_groups"], written["optimizer"]["param_groups"], strict=True):
        assert {k: v for k, v in group.items() if k != "lr"} == {k: v for k, v in expected.items() if k != "lr"}
        assert group["lr"] == pytest.approx(expected["lr"])
    assert len(kept["optimizer"]["state"]) == len(list(ours.model.parameters()))
    assert all(state["step"].device.type == "cpu" for state in kept["optimizer"]["state"].values())
    made.close()
    assert ours.optimizer.param_groups[0]["fused"] is None
    assert ours.optimizer.param_groups[0]["capturable"] is False
    assert type(ours.optimizer.param_groups[0]["lr"]) is float
    torch.testing.assert_close(ours(*batch(9)), theirs(*batch(9)), rtol=2e-3, atol=2e-3)


def test_a_scheduler_costs_no_recording(caplog: pytest.LogCaptureFixture) -> None:
    made = compile_step(a_step(scheduler=exponential), CAPTURED)
    for seed in range(8):
        made.call(*batch(seed))
    captured: Any = made.call
    assert len(captured._compute._graphs) == 1, "it is captured"
    assert "captured again" not in caplog.text


def test_noise_is_fresh_on_every_replay() -> None:
    made = compile_step(a_step(dropout=0.5, optimizer=lambda p: torch.optim.SGD(p, 0.0)), Plan(capture="step"))
    losses = {float(made.call(*batch(0))) for _ in range(6)}
    assert len(losses) == 6


def test_a_loss_that_is_held_stays() -> None:
    made = compile_step(a_step(), CAPTURED)
    held = [made.call(*batch(seed)) for seed in range(6)]
    kept = [float(loss) for loss in held]
    made.call(*batch(7))
    assert [float(loss) for loss in held] == kept
    assert len(set(kept)) == 6


# ---- checkpoints


@pytest.mark.parametrize("plan", [CAPTURED, Plan(optimizer="fused"), Plan(activation_checkpointing="blocks")], ids=str)
def test_training_that_is_resumed_is_bit_equal(plan: Plan) -> None:
    straight, first, resumed = (a_step(scheduler=exponential, clip_norm=1.0) for _ in range(3))
    all_of_it = compile_step(straight, plan)
    for seed in range(8):
        all_of_it.call(*batch(seed))
    half = compile_step(first, plan)
    for seed in range(4):
        half.call(*batch(seed))
    kept = copy.deepcopy(first.state_dict())
    resumed.load_state_dict(kept)
    rest = compile_step(resumed, plan)
    for seed in range(4, 8):
        rest.call(*batch(seed))
    # The rate is a float32 tensor within a captured plan, which a checkpoint holds as the number that it is.
    assert same(collect_state(resumed), collect_state(straight))


def test_a_checkpoint_is_seen_by_a_graph_that_is_there_already() -> None:
    step, other = a_step(), a_step()
    made = compile_step(step, CAPTURED)
    for seed in range(4):
        made.call(*batch(seed))
    for seed in range(2):
        other(*batch(seed))
    step.load_state_dict(copy.deepcopy(other.state_dict()))
    for seed in range(2, 6):
        torch.testing.assert_close(made.call(*batch(seed)), other(*batch(seed)), rtol=1e-3, atol=1e-4)


# ---- scaling


@pytest.mark.parametrize("plan", [Plan(optimizer="fused"), CAPTURED], ids=str)
def test_a_step_that_overflows_is_skipped_as_in_eager(plan: Plan) -> None:
    ours, theirs = (a_step(autocast=torch.float16, scaler=scaler()) for _ in range(2))
    made = compile_step(ours, plan)
    for seed in range(8):
        x, y = batch(seed)
        if seed in (1, 4):
            x[0, 0] = torch.inf
        before = ours.model.enter.weight.detach().clone()
        made.call(x, y)
        theirs(x, y)
        assert torch.equal(before, ours.model.enter.weight) is (seed in (1, 4))
        assert ours.scaler is not None
        assert theirs.scaler is not None
        assert ours.scaler.get_scale() == theirs.scaler.get_scale()
    for one, other in zip(ours.model.parameters(), theirs.model.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=2e-3, atol=2e-3)


# ---- the verification


def verify_plan(step: torchwise.TrainStep, plan: Plan, spoil: Callable[[Any], None] = lambda _: None) -> Verdict:
    examples = [Example(batch(seed)) for seed in range(2)]
    step(*examples[0].clone().args)
    workload = Workload(step, examples)

    def maker(plan: Plan) -> Maker:
        return lambda copied: compile_plan(copied, plan, examples[0], device="cuda", mode="training").call

    def make(copied: Any) -> Any:
        spoil(copied)
        return maker(plan)(copied)

    floor = None if plan.precision == "native" else maker(Plan(precision=plan.precision))
    return verify_step(StepSubject(workload, StepRunner(step, make), make, floor, plan.precision), noise_budget_s=2.0)


def first_failure(verdict: Verdict) -> str:
    found = [check for check in verdict.checks if check.outcome is not Outcome.PASS]
    return f"{found[0].name}: {found[0].detail}" if found else ""


PLANS = [
    Plan(optimizer="fused"),
    CAPTURED,
    Plan(optimizer="fused", capture="step", precision="tf32"),
    Plan(optimizer="fused", capture="step", precision="autocast_bf16"),
    Plan(optimizer="fused", capture="step", precision="autocast_fp16"),
    Plan(activation_checkpointing="blocks"),
]


@pytest.mark.parametrize("plan", PLANS, ids=str)
def test_a_right_plan_is_proven_trajectories_included(plan: Plan) -> None:
    verdict = verify_plan(a_step(clip_norm=1.0, scheduler=exponential), plan)
    assert first_failure(verdict) == ""
    assert {"gradients", "state", "held loss", "trajectories", "weights"} <= {check.name for check in verdict.checks}


class Steeper(torch.nn.Linear):
    """A layer whose own gradients are 1 % too large, and whose answer is right.

    It uses no hooks, as no replay runs them.
    """

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight, bias = (1.01 * p - 0.01 * p.detach() for p in (self.weight, self.bias))
        return torch.nn.functional.linear(x, weight, bias)


@pytest.mark.parametrize("plan", PLANS, ids=str)
def test_one_percent_of_a_gradient_is_caught(plan: Plan) -> None:
    def spoil(step: Any) -> None:
        step.model.blocks[1].linear.__class__ = Steeper

    assert first_failure(verify_plan(a_step(), plan, spoil)).startswith("gradients")


# ---- the optimizer


def test_steps_are_counted_on_the_gpu_for_a_graph_and_on_the_cpu_in_checkpoints() -> None:
    step = a_step(scheduler=exponential)
    step(*batch(0))
    rate = step.optimizer.param_groups[0]["lr"]
    tuned = TunedOptimizer(step.optimizer, "fused", countable=True, rates=True)
    assert all(state["step"].is_cuda for state in step.optimizer.state.values())
    assert step.optimizer.param_groups[0]["lr"].is_cuda
    assert step.optimizer.param_groups[0]["capturable"] is True
    kept = step.optimizer.state_dict()
    assert kept["param_groups"][0]["lr"] == rate
    assert all(state["step"].device.type == "cpu" for state in kept["state"].values())
    step(*batch(1))
    tuned.restore()
    assert all(state["step"].device.type == "cpu" for state in step.optimizer.state.values())
    assert step.optimizer.param_groups[0]["capturable"] is False
    step(*batch(2))


@pytest.mark.parametrize("name", ["Adam", "AdamW", "SGD", "RMSprop", "NAdam", "RAdam", "Adamax", "ASGD", "Adadelta"])
def test_optimizers_that_can_be_captured_are(name: str) -> None:
    ours, theirs = (a_step(optimizer=lambda p: getattr(torch.optim, name)(p, 1e-3)) for _ in range(2))
    made = compile_step(ours, Plan(capture="step"))
    for seed in range(5):
        torch.testing.assert_close(made.call(*batch(seed)), theirs(*batch(seed)), rtol=1e-3, atol=1e-4)
    made.close()
    torch.testing.assert_close(ours(*batch(9)), theirs(*batch(9)), rtol=1e-3, atol=1e-4)


# ---- in production


def test_tuning_leaves_everything_as_it_was_and_its_plan_trains(tmp_path: Any) -> None:
    step, written = a_step(scheduler=exponential), a_step(scheduler=exponential)
    before = copy.deepcopy(collect_state(step))
    numbers = torch.cuda.get_rng_state(), torch.get_rng_state()
    study = torchwise.tune(
        step,
        batch(0),
        plans=[CAPTURED],
        calls=1_000_000,
        effort="quick",
        store=str(tmp_path / "kept.db"),
        progress=False,
    )
    assert same(collect_state(step), before)
    assert torch.equal(numbers[0], torch.cuda.get_rng_state())
    assert torch.equal(numbers[1], torch.get_rng_state())
    assert study.decision is not None
    fast = torchwise.apply(step, study)
    for seed in range(6):
        torch.testing.assert_close(fast(*batch(seed)), written(*batch(seed)), rtol=1e-3, atol=1e-3)
    assert not fast.statistics.failures
