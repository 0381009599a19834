"""The verification of a training step: faults that it must catch, and steps that it must let pass."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from step_samples import Blocks, Net, a_step, batches, collect_step_state, make_step_workload, same

import torchwise
from torchwise.compile import compile_plan
from torchwise.plan import Plan
from torchwise.records import Check, Outcome, Verdict
from torchwise.verify import StepSubject, verify_step
from torchwise.verify.gradients import Gradients, GradientScales
from torchwise.verify.observe import Observation
from torchwise.verify.step import _weights
from torchwise.verify.step_runner import Maker, ReferenceStepRunner, StateAfter, StepRunner
from torchwise.verify.updates import FALSE_ALARM_RATE, Sides, check_trajectories, compare_updates
from torchwise.workload import Workload

BUDGET_S = 0.2


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def plan_maker(plan: Plan, workload: Workload) -> Maker:
    return lambda step: compile_plan(step, plan, workload.examples[0], device="cpu", mode="training").call


def verify_candidate(
    workload: Workload, make: Maker, precision: str = "native", *, stochastic: bool = False
) -> Verdict:
    step: Any = workload.call
    floor = None if precision == "native" else plan_maker(Plan(precision=precision), workload)
    subject = StepSubject(workload, StepRunner(step, make), make, floor, precision, stochastic)
    return verify_step(subject, noise_budget_s=BUDGET_S)


def failure_name(verdict: Verdict) -> str:
    """Return the name of the check that failed, or "" if all passed."""
    found = [check for check in verdict.checks if check.outcome is not Outcome.PASS]
    return f"{found[0].name}: {found[0].detail}" if found else ""


class Attention(torch.nn.Module):
    """Two layers whose keys have biases. The true gradient of these is zero."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.enter, self.leave = torch.nn.Linear(4, width), torch.nn.Linear(width, 3)
        names = ("query", "key", "value", "out")
        self.layers = torch.nn.ModuleList(
            [torch.nn.ModuleDict({name: torch.nn.Linear(width, width) for name in names}) for _ in range(2)]
        )
        self.norm = torch.nn.LayerNorm(width)
        self.register_buffer("mask", torch.full((16, 16), -torch.inf).triu(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.enter(x)
        for layer in self.layers:
            given: Any = layer
            q, k, v = (given[name](x).view(-1, 2, 8).transpose(0, 1) for name in ("query", "key", "value"))
            weights = (q @ k.transpose(1, 2) / 3 + self.mask).softmax(-1)
            x = self.norm(x + given["out"]((weights @ v).transpose(0, 1).flatten(1)))
        found: torch.Tensor = self.leave(x)
        return found


MODELS: dict[str, Callable[[], torch.nn.Module]] = {"blocks": Blocks, "frozen + norm": Net, "attention": Attention}


# ---- right steps pass


@pytest.mark.parametrize(
    ("model", "optimizer"),
    [*((model, "AdamW") for model in MODELS), *(("attention", name) for name in ("SGD", "RMSprop", "Adafactor"))],
)
def test_eager_against_itself_passes(model: str, optimizer: str) -> None:
    step = a_step(MODELS[model](), lambda p: getattr(torch.optim, optimizer)(p, lr=0.01))
    assert failure_name(verify_candidate(make_step_workload(step), lambda copied: copied)) == ""


@pytest.mark.parametrize(
    ("plan", "model"),
    [
        *((Plan(optimizer="fused"), model) for model in MODELS),
        *((Plan(precision="autocast_bf16"), model) for model in MODELS),
        (Plan(optimizer="foreach"), "attention"),
        (Plan(precision="autocast_fp16"), "attention"),
        (Plan(precision="autocast_bf16", optimizer="fused"), "attention"),
    ],
    ids=str,
)
def test_plans_that_only_round_otherwise_pass(plan: Plan, model: str) -> None:
    workload = make_step_workload(a_step(MODELS[model](), clip_norm=1.0))
    assert failure_name(verify_candidate(workload, plan_maker(plan, workload), plan.precision)) == ""


class Convolutions(torch.nn.Module):
    """Convolutions whose biases batch-norm removes, so that their true gradients are zero."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = torch.nn.Conv1d(1, 8, 3), torch.nn.Conv1d(8, 8, 2)
        self.first, self.second = torch.nn.BatchNorm1d(8), torch.nn.BatchNorm1d(8)
        self.head = torch.nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.first(self.one(x[:, None])))
        found: torch.Tensor = self.head(torch.relu(self.second(self.two(x))).mean(-1))
        return found


def reorder_sums(step: Any) -> Any:
    """Sum in another order wherever that can be had without another result but for roundings."""

    def shuffle_features(linear: torch.nn.Linear) -> Callable[[torch.Tensor], torch.Tensor]:
        order = torch.randperm(linear.in_features)
        return lambda x: torch.nn.functional.linear(x[:, order], linear.weight[:, order], linear.bias)

    def flip_batch(forward: Any) -> Callable[[torch.Tensor], torch.Tensor]:
        return lambda x: forward(x.flip(0)).flip(0)

    for part in list(step.model.modules()):
        if isinstance(part, torch.nn.Linear):
            part.forward = shuffle_features(part)  # type: ignore[method-assign]
        elif isinstance(part, torch.nn.BatchNorm1d):
            part.forward = flip_batch(part.forward)  # type: ignore[method-assign]
    return step


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("model", [Attention, Convolutions], ids=lambda model: model.__name__)
def test_roundings_of_gradients_that_should_be_zero_are_no_fault(model: Any, seed: int) -> None:
    made = model()
    torch.manual_seed(seed)
    for parameter in made.parameters():
        torch.nn.init.uniform_(parameter, -0.3, 0.3)
    assert failure_name(verify_candidate(make_step_workload(a_step(made)), reorder_sums)) == ""


def test_pieces_and_recomputation_pass() -> None:
    workload = make_step_workload(a_step())
    for plan in (Plan(microbatches=4), Plan(activation_checkpointing="blocks")):
        assert failure_name(verify_candidate(workload, plan_maker(plan, workload))) == ""


@pytest.mark.parametrize("plan", [Plan(optimizer="fused"), Plan(activation_checkpointing="blocks")], ids=str)
def test_dropout_passes(plan: Plan) -> None:
    workload = make_step_workload(a_step(Blocks(dropout=0.3)))
    verdict = verify_candidate(workload, plan_maker(plan, workload), stochastic=True)
    assert failure_name(verdict) == ""
    assert {"gradients", "state", "distribution", "independence", "held loss"} <= {c.name for c in verdict.checks}


def test_a_scaler_that_begins_too_high_is_no_fault_of_a_candidate() -> None:
    step = a_step(scaler=torch.amp.GradScaler("cpu"))
    workload = make_step_workload(step)
    assert step.scaler is not None
    step.scaler.update(2.0**126)
    assert failure_name(verify_candidate(workload, plan_maker(Plan(optimizer="fused"), workload))) == ""
    plain = make_step_workload(a_step())

    def make(copied: Any) -> Any:
        made = plan_maker(Plan(precision="autocast_fp16"), plain)(copied)
        copied.scaler.load_state_dict({**copied.scaler.state_dict(), "scale": 2.0**40})
        return made

    assert failure_name(verify_candidate(plain, make, "autocast_fp16")) == ""


def test_an_optimizer_that_keeps_lists_of_tensors_passes() -> None:
    step = a_step(optimizer=lambda p: torch.optim.LBFGS(p, 0.1, max_iter=2, history_size=3))
    assert failure_name(verify_candidate(make_step_workload(step), lambda copied: copied)) == ""


def test_gradients_of_what_no_optimizer_trains_do_not_add_up() -> None:
    model = Blocks()
    step = torchwise.TrainStep(
        model, torch.nn.functional.cross_entropy, torch.optim.SGD([*model.leave.parameters()], 0.1)
    )
    workload = make_step_workload(step)
    candidate = StepRunner(step, lambda copied: copied)
    for _ in range(3):
        candidate.take(workload.examples[0])
    assert failure_name(verify_step(StepSubject(workload, candidate, lambda s: s), noise_budget_s=BUDGET_S)) == ""


# ---- wrong steps are caught


def with_gradient(change: Callable[[str, torch.Tensor], torch.Tensor]) -> Maker:
    """Return a function that changes each gradient on its way."""

    def make(step: Any) -> Any:
        for name, parameter in step.model.named_parameters():
            if parameter.requires_grad:
                parameter.register_hook(lambda g, name=name: change(name, g))
        return step

    return make


def one_percent(name: str, gradient: torch.Tensor) -> torch.Tensor:
    return gradient * 1.01 if name.startswith("blocks.1.linear") else gradient


def skip_parameter(step: Any) -> Any:
    step.optimizer.param_groups[0]["params"].pop(2)
    return step


def wrong_state(step: Any) -> Any:
    def call(*given: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor = step(*given)
        for state in step.optimizer.state.values():
            state["exp_avg_sq"].mul_(1.05)
        return loss

    return call


def skip_tail(step: Any) -> Any:
    """Update all but the last element of each tensor, as a kernel does that forgets the rest behind its last block."""

    def call(*given: torch.Tensor) -> torch.Tensor:
        kept = [p.detach().flatten()[-1].clone() for p in step.trained()]
        loss: torch.Tensor = step(*given)
        with torch.no_grad():
            for parameter, value in zip(step.trained(), kept, strict=True):
                parameter.view(-1)[-1] = value
        return loss

    return call


def disable_clipping(step: Any) -> Any:
    step.clip_norm = None
    return step


def wrong_scale(step: Any) -> Any:
    loss_of = step.loss_of
    step.loss_of = lambda *given: loss_of(*given) * 2
    return step


def other_weights(step: Any) -> Any:
    return step.copy()


def poison_weight(step: Any) -> Any:
    def call(*given: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor = step(*given)
        with torch.no_grad():
            step.model.leave.bias[0] = torch.nan
        return loss

    return call


def overwritten(step: Any) -> Any:
    loss = torch.zeros(())

    def call(*given: torch.Tensor) -> torch.Tensor:
        return loss.copy_(step(*given))

    return call


def thaws(step: Any) -> Any:
    def call(*given: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor = step(*given)
        with torch.no_grad():
            step.model.enter.weight.add_(1e-6)
        return loss

    return call


def stale_rate(step: Any) -> Any:
    rates = [group["lr"] for group in step.optimizer.param_groups]

    def call(*given: torch.Tensor) -> torch.Tensor:
        now = [group["lr"] for group in step.optimizer.param_groups]
        for group, rate in zip(step.optimizer.param_groups, rates, strict=True):
            group["lr"] = rate
        loss: torch.Tensor = step.compute(step.parts(), *given)
        for group, rate in zip(step.optimizer.param_groups, now, strict=True):
            group["lr"] = rate
        step.advance()
        return loss

    return call


def drop_average(step: Any) -> Any:
    step.ema.update_parameters = lambda _: step.ema.n_averaged.add_(1)
    return step


def slow(optimizer: Any) -> Any:
    return torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 1_000_000)


def make_frozen_model() -> Blocks:
    model = Blocks()
    model.enter.requires_grad_(False)
    return model


def shift_key_bias(name: str, gradient: torch.Tensor) -> torch.Tensor:
    return gradient + 1e-5 if name == "layers.0.key.bias" else gradient


PLANTED: dict[str, tuple[Maker, str, dict[str, Any]]] = {
    "1 % of a gradient": (with_gradient(one_percent), "gradients", {}),
    "nan in a gradient": (with_gradient(lambda n, g: g * torch.nan if "leave" in n else g), "gradients: ", {}),
    "a zero that is none": (with_gradient(shift_key_bias), "gradients: gradient of", {"model": Attention}),
    "skipped parameter": (skip_parameter, "state: leave.weight, which is not trained, is there on one side alone", {}),
    "wrong state": (wrong_state, "state: ", {}),
    "missing tail": (skip_tail, "state: after 4 steps update of", {}),
    "no clipping": (disable_clipping, "gradients: ", {"clip_norm": 0.1}),
    "wrong scale": (wrong_scale, "gradients: loss", {}),
    "other weights": (other_weights, "gradients' structure", {}),
    "nan in a weight": (poison_weight, "state: ", {}),
    "overwritten loss": (overwritten, "held loss", {}),
    "frozen part moves": (thaws, "state: enter.weight, which is not trained, is moved", {"model": make_frozen_model}),
    "rate that stands still": (stale_rate, "state: after 4 steps update of", {"scheduler": slow}),
}


@pytest.mark.parametrize("fault", PLANTED)
def test_a_planted_fault_is_caught_by_the_check_that_should(fault: str) -> None:
    make, where, how = PLANTED[fault]
    how = {**how, "model": how["model"]()} if "model" in how else how
    assert failure_name(verify_candidate(make_step_workload(a_step(**how)), make)).startswith(where)


@pytest.mark.parametrize("optimizer", ["AdamW", "SGD"])
def test_one_percent_of_a_gradient_is_caught_under_bf16_too(optimizer: str) -> None:
    step = a_step(Blocks(width=32), lambda p: getattr(torch.optim, optimizer)(p, lr=0.01), autocast=torch.bfloat16)
    workload = make_step_workload(step)
    assert failure_name(verify_candidate(workload, with_gradient(one_percent))).startswith(
        "gradients' scale: gradient of blocks.1"
    )
    plain = make_step_workload(a_step(Blocks(width=32)))

    def make(copied: Any) -> Any:
        with_gradient(one_percent)(copied)
        return plan_maker(Plan(precision="autocast_bf16"), plain)(copied)

    assert failure_name(verify_candidate(plain, make, "autocast_bf16")).startswith(
        "gradients' scale: gradient of blocks.1"
    )


def test_averages_that_stand_still_are_caught() -> None:
    model = Blocks()
    ema = torch.optim.swa_utils.AveragedModel(model)
    workload = make_step_workload(a_step(model, ema=ema))
    assert failure_name(verify_candidate(workload, drop_average)).startswith("state: after 4 steps update of ema.")


@pytest.mark.parametrize(("factor", "outcome"), [(1.0, Outcome.PASS), (1.01, Outcome.FAIL)])
def test_a_loss_that_the_plain_model_does_not_have_is_caught(factor: float, outcome: Outcome) -> None:
    workload = make_step_workload(a_step())
    step: Any = workload.call

    def make(copied: Any) -> Any:
        return lambda *given: copied(*given) * factor

    candidate = StepRunner(step, make)
    assert _weights(StepSubject(workload, candidate, make), candidate, workload.examples).outcome is outcome


def other_rate(step: Any) -> Any:
    for module in step.model.modules():
        if isinstance(module, torch.nn.Dropout) and module.p > 0:
            module.p = 0.5
    return step


def same_mask(step: Any) -> Any:
    def call(*given: torch.Tensor) -> torch.Tensor:
        numbers = torch.get_rng_state()
        torch.manual_seed(len(history) // 2)  # each mask twice in a row
        history.append(0)
        loss: torch.Tensor = step(*given)
        torch.set_rng_state(numbers)
        return loss

    history: list[int] = []
    return call


@pytest.mark.parametrize(
    ("make", "where"), [(other_rate, "distribution: "), (same_mask, "independence: ")], ids=["rate", "mask"]
)
def test_noise_of_another_kind_is_caught(make: Maker, where: str) -> None:
    workload = make_step_workload(a_step(Blocks(dropout=0.2)))
    assert failure_name(verify_candidate(workload, make, stochastic=True)).startswith(where)


def test_a_relu_before_a_dropout_may_be_silent_for_many_calls() -> None:
    model = torch.nn.Sequential(
        torch.nn.Linear(4, 64), torch.nn.ReLU(), torch.nn.Dropout(0.1), torch.nn.Linear(64, 64), torch.nn.ReLU(),
        torch.nn.Dropout(0.5), torch.nn.Linear(64, 3),
    )  # fmt: skip
    workload = make_step_workload(a_step(model))
    assert (
        failure_name(verify_candidate(workload, plan_maker(Plan(optimizer="foreach"), workload), stochastic=True)) == ""
    )
    assert failure_name(verify_candidate(workload, other_rate, stochastic=True))


def test_one_percent_of_a_gradient_is_caught_behind_dropout() -> None:
    workload = make_step_workload(a_step(Blocks(dropout=0.2)))
    assert failure_name(verify_candidate(workload, with_gradient(one_percent), stochastic=True)).startswith("gradients")


# ---- the parts of the verification


def scales(ours: float, floor: float, noise: float = 0.0, size: int = 64, draws: int = 3) -> Check:
    found = GradientScales()
    generator = torch.Generator().manual_seed(0)
    for _ in range(draws):
        exact = torch.randn(size, generator=generator)
        rounding = noise * torch.randn(size, generator=generator)
        found.add({"w": exact * ours + rounding}, {"w": exact * floor - rounding}, {"w": exact})
    return found.check()


@pytest.mark.parametrize(
    ("ours", "floor", "noise", "outcome"),
    [
        (1.01, 1.0, 0.0, Outcome.FAIL),
        (0.99, 1.0, 0.0, Outcome.FAIL),
        (1.001, 1.0, 0.0, Outcome.PASS),
        (1.01, 1.004, 0.0, Outcome.PASS),
        (1.01, 1.0, 0.01, Outcome.FAIL),
        (1.0, 1.0, 0.1, Outcome.PASS),
        (3.0, 1.0, 2.0, Outcome.PASS),
        (float("nan"), 1.0, 0.0, Outcome.FAIL),
    ],
)
def test_the_scale_of_a_gradient(ours: float, floor: float, noise: float, outcome: Outcome) -> None:
    assert scales(ours, floor, noise).outcome is outcome


@pytest.mark.parametrize(
    ("planted", "of_all", "outcome"),
    [(1.0, 1.0, Outcome.PASS), (1.01, 1.0, Outcome.FAIL), (1.0, 1.5, Outcome.FAIL)],
)
def test_what_moves_all_gradients_of_a_step_alike_hides_no_factor_in_one(
    planted: float, of_all: float, outcome: Outcome
) -> None:
    found, generator = GradientScales(), torch.Generator().manual_seed(0)
    for ours, eagers in ((0.99, 0.85), (1.02, 0.99), (0.96, 1.03)):  # as bfloat16 rounds a loss, on either side
        exact = {name: torch.randn(4096, generator=generator) for name in "abcdefgh"}
        factors = {"d": ours * planted * of_all}
        mine = {n: t * factors.get(n, ours * of_all) for n, t in exact.items()}
        found.add(
            mine, {n: t * eagers + 0.05 * torch.randn(4096, generator=generator) for n, t in exact.items()}, exact
        )
    assert found.check().outcome is outcome, found.check().detail


def update(
    ours: torch.Tensor,
    floor: torch.Tensor,
    exact: torch.Tensor,
    quiet: torch.Tensor | None = None,
    rounding: tuple[str, ...] = (),
) -> Outcome:
    marks = {} if quiet is None else {"weight": quiet}
    sides = [StateAfter({"w": value}, {"w": "weight"}, marks) for value in (ours, floor, exact)]
    return compare_updates(Sides(*sides), 4, rounding)[0].outcome


def test_zeros_for_weights_that_the_loss_does_not_use_are_no_missing_gradients() -> None:
    def make_observation(gradient: torch.Tensor | None) -> Observation:
        return Observation((("loss", torch.ones(())), ("gradient of head", gradient)), frozenset())

    for ours, outcome in ((None, Outcome.PASS), (torch.zeros(2), Outcome.FAIL)):
        found, eager = Gradients(None), make_observation(None)
        found.add(make_observation(ours), eager, eager, eager)
        assert found.checks()[-1].outcome is outcome
    assert "weights that the loss does not use" in found.checks()[-1].detail


@pytest.mark.parametrize(("taken", "outcome"), [(1.0, Outcome.PASS), (0.0, Outcome.FAIL), (0.3, Outcome.FAIL)])
def test_an_update_left_out_is_caught_where_eager_is_far_off_too(taken: float, outcome: Outcome) -> None:
    generator = torch.Generator().manual_seed(0)
    exact, mine, theirs = (torch.randn(4096, generator=generator) for _ in range(3))
    sides = [
        StateAfter({"update of w": value}, {"update of w": "w"}, {}, updates=frozenset({"update of w"}))
        for value in (taken * (exact + 0.3 * mine), exact + 0.3 * theirs, exact)
    ]
    assert compare_updates(Sides(*sides), 4)[0].outcome is outcome


def test_what_is_infinite_in_the_reference_must_be_so_alike() -> None:
    mask = torch.full((3, 3), -torch.inf).triu(1)
    assert update(mask, mask, mask) is Outcome.PASS
    assert update(mask.tril(), mask, mask) is Outcome.FAIL
    assert update(-mask, mask, mask) is Outcome.FAIL
    nan = torch.tensor([1.0, torch.nan])
    assert update(nan, nan, nan) is Outcome.PASS
    assert update(nan, nan.nan_to_num(0.0), nan.nan_to_num(0.0)) is Outcome.FAIL


def test_the_sign_of_an_update_whose_gradient_is_a_rounding_is_nobodys_fault() -> None:
    exact = torch.full((10,), 1e-3)
    ours = exact.clone()
    ours[4] = -1e-3
    assert update(ours, exact, exact) is Outcome.FAIL
    assert update(ours, exact, exact, torch.arange(10) == 4) is Outcome.PASS
    assert update(ours, exact, exact, torch.arange(10) == 5) is Outcome.FAIL
    assert update(exact[:9], exact, exact) is Outcome.FAIL


def test_state_on_one_side_alone_is_told() -> None:
    one, two = StateAfter({"a": torch.ones(1)}, {}, {}), StateAfter({"a": torch.ones(1), "b": 1}, {}, {})
    check, _ = compare_updates(Sides(one, two, two), 4)
    assert check.detail == "b is there on one side alone"
    assert (
        compare_updates(Sides(*(StateAfter({"a": value}, {}, {}) for value in (2, 1, 1))), 4)[0].outcome is Outcome.FAIL
    )


def test_an_update_that_is_all_rounding_in_eager_too_need_only_be_finite() -> None:
    exact, floor, ours = torch.full((4,), 1e-12), torch.full((4,), 1e-6), torch.full((4,), 1e-4)
    large = [t * 1e6 for t in (ours, floor, exact)]
    assert update(*large) is Outcome.FAIL
    assert update(*large, rounding=("weight",)) is Outcome.PASS
    assert update(large[0] * torch.nan, *large[1:], rounding=("weight",)) is Outcome.FAIL
    assert update(large[0], large[2], large[2], rounding=("weight",)) is Outcome.FAIL, "eager has it right"


def test_the_reference_is_in_float64_and_draws_eagers_numbers() -> None:
    step = a_step(Blocks(dropout=0.3))
    workload = make_step_workload(step)
    reference, eager = ReferenceStepRunner(step), StepRunner(step)
    example = workload.examples[0]
    exact, plain = (dict(who.gradients(example, seed=3).leaves) for who in (reference, eager))
    for name, gradient in exact.items():
        assert gradient.dtype is torch.float64
        torch.testing.assert_close(plain[name].double(), gradient, rtol=1e-3, atol=1e-5)


def test_the_step_itself_is_not_touched_by_its_proof() -> None:
    step = a_step(Net(), scheduler=slow, scaler=torch.amp.GradScaler("cpu"))
    workload = make_step_workload(step)
    before = copy.deepcopy(collect_step_state(step))
    assert failure_name(verify_candidate(workload, plan_maker(Plan(optimizer="fused"), workload))) == ""
    assert same(collect_step_state(step), before)


# ---- curves


def curves(rng: np.random.Generator, shift: float = 0.0, seeds: int = 6, steps: int = 12) -> tuple[Any, Any]:
    """Return curves of two trainings that differ by noise of their own, and by a factor."""
    fall = np.exp(-np.arange(steps) / 20)
    eager = fall * (1 + 0.05 * rng.standard_normal((seeds, steps)))
    spread = rng.uniform(1e-4, 0.05)
    ours = eager * (1 + shift + spread * rng.standard_normal((seeds, 1)))
    return ours.tolist(), eager.tolist()


@pytest.mark.parametrize("reduced", [False, True])
def test_false_alarms_are_as_rare_as_stated(reduced: bool) -> None:
    rng = np.random.default_rng(11)
    pairs = 2000
    alarms = sum(check_trajectories(*curves(rng), reduced=reduced).outcome is Outcome.FAIL for _ in range(pairs))
    assert alarms <= FALSE_ALARM_RATE * pairs


def test_at_the_margin_itself_alarms_are_as_rare_as_stated() -> None:
    """The worst case that is granted: the true difference equals the margin."""
    rng = np.random.default_rng(12)
    found = []
    for _ in range(2000):
        differences = 0.01 + 0.02 * rng.standard_normal(6)
        ours = (1 + differences)[:, None] * np.ones((6, 8))
        found.append(check_trajectories(ours.tolist(), np.ones((6, 8)).tolist(), reduced=False).outcome)
    assert found.count(Outcome.FAIL) <= 8  # 2 expected. More than 8 has a chance of 2 in 10,000


def test_curves_that_differ_are_told() -> None:
    rng = np.random.default_rng(13)
    caught = 0
    for _ in range(50):
        ours, eager = curves(rng)
        caught += check_trajectories((np.array(ours) * 1.3).tolist(), eager, reduced=True).outcome is Outcome.FAIL
    assert caught > 40
    check = check_trajectories([[1.0, 2.0]] * 4, [[1.0, 1.0]] * 4, reduced=False)
    assert "the mean loss differs from eager's by +100.00% ± 0.00%, and 1% is granted (false alarms: 0.001)" in (
        check.detail
    )


def test_losses_that_are_not_finite() -> None:
    fine, nan = [[1.0, 1.0]] * 4, [[1.0, float("nan")]] * 4
    assert check_trajectories(nan, fine, reduced=False).outcome is Outcome.FAIL
    assert check_trajectories(nan, nan, reduced=False).outcome is Outcome.NOT_COMPARABLE
    assert check_trajectories(fine, nan, reduced=False).outcome is Outcome.NOT_COMPARABLE


# ---- tuning


@pytest.mark.slow
@pytest.mark.usefixtures("brief_searches")
def test_tuning_leaves_everything_bit_by_bit_as_it_was(tmp_path: Any) -> None:
    step = a_step(Blocks(dropout=0.1), scheduler=slow, scaler=torch.amp.GradScaler("cpu", init_scale=4.0))
    (x, y), *_ = batches(1, 16)
    step(x, y)
    before, numbers = copy.deepcopy(collect_step_state(step)), torch.get_rng_state()
    study = torchwise.tune(
        step,
        (x, y),
        plans=[Plan(optimizer="fused")],
        calls=1000,
        effort="quick",
        store=str(tmp_path / "kept.db"),
        progress=False,
    )
    assert same(collect_step_state(step), before)
    assert torch.equal(torch.get_rng_state(), numbers)
    assert [trial.plan for trial in study.trials] == [Plan(optimizer="fused")]
    verdict = study.trials[0].verdict
    assert verdict is not None
    assert failure_name(verdict) == ""
