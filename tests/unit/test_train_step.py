"""A training step as written against the loop by hand, bit by bit: checkpoints, copies, and refusals."""

from __future__ import annotations

import contextlib
import copy
import pickle
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from step_samples import Blocks, Net, a_step, batch, batches, collect_step_state, same
from torch.optim import lr_scheduler
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import torchwise
from torchwise.compile.optimizer import TunedOptimizer
from torchwise.errors import WorkloadError

Loop = Callable[..., Any]


@pytest.fixture(autouse=True)
def _one_thread() -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def two_groups(model: torch.nn.Module) -> torch.optim.Optimizer:
    trained = [p for p in model.parameters() if p.requires_grad]
    groups = [{"params": trained[:2], "lr": 3e-2}, {"params": trained[2:], "weight_decay": 0.1}]
    return torch.optim.AdamW(groups, 1e-2)


SCHEDULERS: dict[str, Callable[[Any], Any]] = {
    "step": lambda o: lr_scheduler.StepLR(o, 2, 0.5),
    "restarts": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 3),
    "sequential": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.LinearLR(o, 0.1, total_iters=2), lr_scheduler.ExponentialLR(o, 0.9)], [2]
    ),
    "one cycle": lambda o: lr_scheduler.OneCycleLR(o, 0.1, total_steps=20),
}


def make_plain_loop(model: torch.nn.Module, optimizer: Any, scheduler: Any = None, ema: Any = None, **how: Any) -> Loop:
    """Return the loop's body as PyTorch's notes have it."""
    autocast, scaler, pieces = how.get("autocast"), how.get("scaler"), how.get("accumulate", 1)

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        total = torch.zeros(())
        for part, target in zip(x.chunk(pieces), y.chunk(pieces), strict=True):
            with torch.autocast("cpu", autocast, enabled=autocast is not None):
                loss = torch.nn.functional.cross_entropy(model(part), target)
                loss = loss / pieces
            (scaler.scale(loss) if scaler else loss).backward()
            total = total + loss.detach()
        if scaler:
            scaler.unscale_(optimizer)
        if "clip_norm" in how:
            torch.nn.utils.clip_grad_norm_([p for p in model.parameters() if p.requires_grad], how["clip_norm"])
        if "clip_value" in how:
            torch.nn.utils.clip_grad_value_([p for p in model.parameters() if p.requires_grad], how["clip_value"])
        if scaler:
            scaler.step(optimizer)
            scaler.update()
        else:
            optimizer.step()
        if scheduler:
            scheduler.step()
        if ema:
            ema.update_parameters(model)
        return total

    return step


def check_alike(how: dict[str, Any], scheduler: str | None = None, dropout: float = 0.0, steps: int = 6) -> None:
    sides = []
    for ours in (True, False):
        model = Net(dropout)
        optimizer = two_groups(model)
        given = dict(how)
        if "ema" in given:
            given["ema"] = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
        if "scaler" in given:
            given["scaler"] = torch.amp.GradScaler("cpu", **given["scaler"])
        plan = SCHEDULERS[scheduler](optimizer) if scheduler else None
        step = torchwise.TrainStep(model, torch.nn.functional.cross_entropy, optimizer, scheduler=plan, **given)
        run: Loop = step if ours else make_plain_loop(model, optimizer, plan, **given)
        torch.manual_seed(7)
        losses = [run(*given_batch) for given_batch in batches(steps)]
        sides.append([*losses, *collect_step_state(step), torch.get_rng_state()])
        assert not any(loss.requires_grad for loss in losses)
    assert same(*sides)


@pytest.mark.parametrize(
    "how",
    [
        {},
        {"clip_norm": 0.1},
        {"clip_value": 0.01},
        {"clip_norm": 0.1, "clip_value": 0.01},
        {"ema": True},
        {"accumulate": 4},
        {"autocast": torch.bfloat16},
        {"scaler": {"init_scale": 8.0, "growth_interval": 2}, "clip_norm": 0.1},
        {"autocast": torch.float16, "scaler": {"init_scale": 256.0}, "accumulate": 2, "ema": True},
        {"scaler": {"enabled": False}},
    ],
    ids=str,
)
def test_steps_are_those_by_hand_bit_by_bit(how: dict[str, Any]) -> None:
    check_alike(how)


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_schedulers_step_as_by_hand(scheduler: str) -> None:
    check_alike({"clip_norm": 1.0}, scheduler)


def test_dropout_draws_as_by_hand() -> None:
    check_alike({"accumulate": 2}, dropout=0.5)


class Distributed(torch.nn.Linear):
    """A model that is told when to exchange its gradients, as `DistributedDataParallel` is."""

    def __init__(self) -> None:
        super().__init__(4, 1)
        self.told: list[object] = []

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        self.told.append("alone")
        yield

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.told.append("forward")
        return super().forward(x)


class Sharded(Distributed):
    """The same, told as FSDP2 is."""

    def set_requires_gradient_sync(self, exchanges: bool) -> None:
        self.told.append(exchanges)


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        (Distributed, ["alone", "forward", "alone", "forward", "forward"]),
        (Sharded, [False, "forward", False, "forward", True, "forward"]),
    ],
)
def test_ranks_exchange_gradients_after_the_last_piece_alone(kind: type[Distributed], told: list[object]) -> None:
    model = kind()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    torchwise.TrainStep(model, torch.nn.functional.mse_loss, optimizer, accumulate=3)(
        torch.ones(6, 4), torch.ones(6, 1)
    )
    assert model.told == told


def test_accumulation_is_the_whole_batch_to_rounding() -> None:
    found = []
    for accumulate in (1, 4):
        step = a_step(optimizer=lambda p: torch.optim.SGD(p, 0.1), accumulate=accumulate)
        found.append([torch.stack([step(*given) for given in batches(3)]), *step.model.parameters()])
    for whole, cut in zip(*found, strict=True):
        torch.testing.assert_close(whole, cut)
    assert not all(torch.equal(whole, cut) for whole, cut in zip(*found, strict=True))


def test_a_frozen_part_stays_and_batch_norm_follows() -> None:
    step = a_step(Net())
    before = copy.deepcopy(step.model.state_dict())
    step(*batch())
    after = step.model.state_dict()
    assert torch.equal(before["stem.weight"], after["stem.weight"])
    assert not torch.equal(before["norm.running_mean"], after["norm.running_mean"])
    assert not torch.equal(before["first.weight"], after["first.weight"])


# ---- the loss, and kinds of batches


class Answering(torch.nn.Module):
    """Returns its loss as `form` says."""

    def __init__(self, form: str) -> None:
        super().__init__()
        self.inner, self.form = Blocks(), form

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:
        loss = torch.nn.functional.cross_entropy(self.inner(x), y)
        answers = {"tensor": loss, "dict": {"loss": loss}, "object": SimpleNamespace(loss=loss), "one": loss[None]}
        return answers[self.form]


@pytest.mark.parametrize("form", ["tensor", "dict", "object", "one"])
@pytest.mark.parametrize("kind", [tuple, list, dict])
def test_a_model_may_return_its_loss_and_take_any_inputs(form: str, kind: type) -> None:
    x, y = batch()
    plain = a_step()
    step = a_step(Answering(form), loss=None)
    for _ in range(2):
        given = {"x": x, "y": y} if kind is dict else kind((x, y))
        assert step(given).item() == plain(x, y).item()
    assert same([*step.model.parameters()], [*plain.model.parameters()])


def test_a_loss_with_weights_of_its_own_is_trained_saved_and_copied() -> None:
    class Weighted(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weights = torch.nn.Parameter(torch.ones(3))

        def forward(self, outputs: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.cross_entropy(outputs * self.weights, y)

    model, loss = Blocks(), Weighted()
    step = torchwise.TrainStep(model, loss, torch.optim.SGD([*model.parameters(), *loss.parameters()], 0.1))
    put_back = step.snapshot()
    step(*batch())
    moved = loss.weights.detach().clone()
    assert not torch.equal(moved, torch.ones(3))
    assert torch.equal(step.state_dict()["loss"]["weights"], moved)
    assert torch.equal(step.copy().loss.weights, moved)  # type: ignore[union-attr]
    put_back()
    assert torch.equal(loss.weights, torch.ones(3))


# ---- every optimizer


OPTIMIZERS = sorted(
    name
    for name, kind in vars(torch.optim).items()
    if isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer) and name not in ("Optimizer", "SparseAdam")
)


def an_optimizer(name: str, parameters: Any) -> torch.optim.Optimizer:
    found = [p for p in parameters if name != "Muon" or p.dim() == 2]
    made: torch.optim.Optimizer = getattr(torch.optim, name)(found, 0.05)
    return made


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_steps_as_by_hand_and_in_copies(name: str) -> None:
    step = a_step(optimizer=lambda p: an_optimizer(name, p))
    model = Blocks()
    optimizer = an_optimizer(name, model.parameters())

    def take_plain_step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(x), y)
            loss.backward()
            return loss

        loss = optimizer.step(closure)
        assert loss is not None
        return loss.detach()

    for given in batches(3):
        assert torch.equal(step(*given), take_plain_step(*given))
    assert same([*step.model.parameters()], [*model.parameters()])
    for other in (step.copy(), pickle.loads(pickle.dumps(step))):
        assert same(collect_step_state(other), collect_step_state(step))
        other(*batch(seed=5))
        assert not same(collect_step_state(other), collect_step_state(step)), "it shares nothing"
    again = step.copy()
    for given in batches(3):
        assert torch.equal(again(*given), step(*given))


def test_lbfgs_clips_every_gradient_that_it_takes() -> None:
    norms: list[float] = []
    step = a_step(optimizer=torch.optim.LBFGS, clip_norm=0.01)
    took = step._gradients

    def record_norm(*given: Any) -> torch.Tensor:
        loss = took(*given)
        norms.append(float(torch.nn.utils.get_total_norm([p.grad for p in step.trained() if p.grad is not None])))
        return loss

    step._gradients = record_norm  # type: ignore[method-assign]
    step(*batch())
    assert len(norms) > 1
    assert max(norms) < 0.0101


# ---- scaling


@pytest.mark.parametrize("fused", [None, True])
def test_a_step_that_overflows_is_skipped_as_by_hand(fused: bool | None) -> None:
    sides = []
    for ours in (True, False):
        model = Blocks()
        optimizer = torch.optim.AdamW(model.parameters(), 1e-2, fused=fused)
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=2)
        schedule = lr_scheduler.LinearLR(optimizer)
        step = torchwise.TrainStep(
            model, torch.nn.functional.cross_entropy, optimizer, scaler=scaler, scheduler=schedule, clip_norm=1.0
        )
        run: Loop = step if ours else make_plain_loop(model, optimizer, schedule, scaler=scaler, clip_norm=1.0)
        run(*batch(seed=0))
        weights, scale = model.enter.weight.detach().clone(), scaler.get_scale()
        x, y = batch(seed=1)
        x[0, 0] = torch.inf
        run(x, y)
        assert torch.equal(model.enter.weight, weights), "skipped"
        assert scaler.get_scale() == scale / 2
        run(*batch(seed=2))
        assert not torch.equal(model.enter.weight, weights)
        sides.append(collect_step_state(step))
    assert same(*sides)


# ---- snapshots and checkpoints


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_snapshot_puts_everything_back_bit_by_bit(name: str) -> None:
    step = a_step(Net(0.2), lambda p: an_optimizer(name, p), SCHEDULERS["step"])
    fresh = copy.deepcopy(collect_step_state(step))
    to_fresh = step.snapshot()
    addresses = [p.data_ptr() for p in step.model.parameters()]
    first = [step(*given) for given in batches(2)]
    middle, to_middle = copy.deepcopy(collect_step_state(step)), step.snapshot()
    for given in batches(3):
        step(*given)
    for _ in range(2):
        to_middle()
        assert same(collect_step_state(step), middle)
        step(*batch())
    to_fresh()
    assert same(collect_step_state(step), fresh)
    assert len(step.optimizer.state) in (0, len(step.trained()))
    assert addresses == [p.data_ptr() for p in step.model.parameters()]
    torch.manual_seed(0)
    again = [step(*given) for given in batches(2)]
    assert len(first) == len(again)


def test_a_snapshot_has_the_average_the_scale_and_a_tensor_as_rate() -> None:
    model = Net()
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], torch.tensor(0.1), momentum=0.9)
    step = torchwise.TrainStep(
        model,
        torch.nn.functional.cross_entropy,
        optimizer,
        scheduler=lr_scheduler.ExponentialLR(optimizer, 0.5),
        scaler=torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=1),
        ema=AveragedModel(model),
    )
    before, put_back = copy.deepcopy(collect_step_state(step)), step.snapshot()
    for given in batches(2):
        step(*given)
    assert step.scaler is not None
    assert step.scaler.get_scale() == 16.0
    put_back()
    assert same(collect_step_state(step), before)


def test_putting_back_keeps_the_form_that_a_plan_has_given_the_optimizer_meanwhile() -> None:
    step = a_step(Net(), lambda p: torch.optim.AdamW(p, 0.1), SCHEDULERS["step"])
    step(*batch())
    before, put_back = copy.deepcopy(collect_step_state(step)), step.snapshot()
    tuned = TunedOptimizer(step.optimizer, "fused", countable=True, rates=True)
    (group,) = step.optimizer.param_groups
    states = list(step.optimizer.state.values())
    counts, rate = [state["step"] for state in states], group["lr"]
    step(*batch())
    put_back()
    assert (group["fused"], group["capturable"]) == (True, True)
    assert group["lr"] is rate
    assert float(rate) == pytest.approx(0.1)
    assert all(state["step"] is count for state, count in zip(states, counts, strict=True))  # a graph knows them
    tuned.restore()
    assert same(collect_step_state(step), before)


def test_putting_back_forgets_a_step_that_broke_off_before_the_scaler_was_told() -> None:
    step = a_step(scaler=torch.amp.GradScaler("cpu"))
    step(*batch())
    put_back = step.snapshot()
    assert step.scaler is not None
    step.scaler.unscale_(step.optimizer)
    put_back()
    step(*batch())  # or: unscale_() has already been called


def test_an_update_that_breaks_off_leaves_a_scaler_that_takes_the_next() -> None:
    step = a_step(optimizer=lambda p: torch.optim.AdamW(p, 1e-2, fused=True), scaler=torch.amp.GradScaler("cpu"))
    attributes = set(vars(step.optimizer))
    breaks = step.optimizer.register_step_pre_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        step(*batch())
    breaks.remove()
    assert set(vars(step.optimizer)) == attributes
    step(*batch())  # or: unscale_() has already been called


def a_full_step() -> torchwise.TrainStep:
    model = Net()
    optimizer = two_groups(model)
    return torchwise.TrainStep(
        model,
        torch.nn.functional.cross_entropy,
        optimizer,
        scheduler=SCHEDULERS["restarts"](optimizer),
        scaler=torch.amp.GradScaler("cpu", growth_interval=2),
        clip_norm=1.0,
        ema=AveragedModel(model),
    )


def test_a_checkpoint_loads_with_torch_alone_and_training_goes_on_bit_by_bit(tmp_path: Any) -> None:
    straight = a_full_step()
    for given in batches(6):
        straight(*given)
    first = a_full_step()
    for given in batches(3):
        first(*given)
    torch.save(first.state_dict(), tmp_path / "kept.pt")
    kept = torch.load(tmp_path / "kept.pt", weights_only=True)
    assert not any(name.startswith("_") or "module" in name for name in kept["model"])
    resumed = a_full_step()
    resumed.model.load_state_dict(kept["model"])
    resumed.optimizer.load_state_dict(kept["optimizer"])
    resumed.schedulers[0].load_state_dict(kept["schedulers"][0])
    assert resumed.scaler is not None
    resumed.scaler.load_state_dict(kept["scaler"])
    assert resumed.ema is not None
    resumed.ema.load_state_dict(kept["ema"])
    other = a_full_step()
    other.load_state_dict(copy.deepcopy(kept))  # torch keeps the very tensors that it is given
    for given in batches(6)[3:]:
        resumed(*given)
        other(*given)
    assert same(collect_step_state(resumed), collect_step_state(straight))
    assert same(collect_step_state(other), collect_step_state(straight))


def test_the_rates_in_a_checkpoint_are_numbers() -> None:
    model = Blocks()
    optimizer = torch.optim.SGD(model.parameters(), torch.tensor(0.5))
    step = torchwise.TrainStep(
        model, torch.nn.functional.cross_entropy, optimizer, scheduler=SCHEDULERS["sequential"](optimizer)
    )
    step(*batch())
    kept = step.state_dict()["schedulers"][0]
    assert all(type(rate) is float for rate in kept["_last_lr"])
    assert all(type(rate) is float for part in kept["_schedulers"] for rate in part["_last_lr"])


def test_a_checkpoint_of_other_parts_is_refused() -> None:
    step = a_step()
    kept = step.state_dict()
    with pytest.raises(WorkloadError, match=r"holds ema, model, optimizer, schedulers, but this step has model, opt"):
        step.load_state_dict({**kept, "ema": {}})
    with pytest.raises(WorkloadError, match=r"with 0 scheduler\(s\)"):
        step.load_state_dict({**kept, "schedulers": [{}]})
    with pytest.raises(WorkloadError, match="the checkpoint holds model"):
        step.load_state_dict({"model": kept["model"]})


def test_all_of_it_moves() -> None:
    step = a_step(optimizer=torch.optim.LBFGS)
    step(*batch())
    step.to("meta")
    held = [leaf for leaf in collect_step_state(step) if isinstance(leaf, torch.Tensor)]
    assert {leaf.device.type for leaf in held} == {"meta"}
    step = a_step()
    step(*batch())
    step.to("meta")
    kept = next(iter(step.optimizer.state.values()))
    assert (kept["step"].device.type, kept["exp_avg"].device.type) == ("cpu", "meta")


# ---- refusals


def error_message(**changes: Any) -> str:
    model = Blocks()
    given: dict[str, Any] = {"model": model, "loss": None, "optimizer": torch.optim.SGD(model.parameters(), 0.1)}
    with pytest.raises(WorkloadError) as error:
        torchwise.TrainStep(**{**given, **changes})
    return str(error.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": print}, "model is of type builtin_function_or_method, but must be a torch.nn.Module"),
        ({"loss": 3}, "loss is 3, but must be a function of the outputs and the targets, or None"),
        ({"loss": torch.nn.MSELoss}, "loss is the class MSELoss, but must be a function or an instance: MSELoss()"),
        ({"optimizer": "adam"}, "optimizer is of type str, but must be a torch.optim.Optimizer"),
        ({"scaler": 2.0}, "scaler is of type float, but must be a torch.amp.GradScaler or None"),
        ({"ema": 0.9}, "ema is of type float, but must be a torch.optim.swa_utils.AveragedModel or None"),
        ({"autocast": torch.float64}, "autocast is torch.float64, but must be torch.bfloat16, torch.float16 or None"),
        ({"autocast": True}, "autocast is True, but must be torch.bfloat16, torch.float16 or None"),
        ({"accumulate": 0}, "accumulate is 0, but must be a whole number of at least 1"),
        ({"accumulate": True}, "accumulate is True, but must be a whole number"),
        ({"accumulate": 2.0}, "accumulate is 2.0, but must be a whole number"),
        ({"clip_norm": 0}, "clip_norm is 0, but must be above 0, or None"),
        ({"clip_norm": float("nan")}, "clip_norm is nan, but must be above 0"),
        ({"clip_norm": "1"}, "clip_norm is '1', but must be above 0"),
        ({"clip_value": -1.0}, "clip_value is -1.0, but must be above 0, or None"),
        ({"clip_value": True}, "clip_value is True, but must be above 0"),
        ({"scheduler": 5}, "scheduler is of type int, but its step() must need no arguments: leave it out, and"),
    ],
    ids=str,
)
def test_what_is_no_step_is_refused_with_the_value_and_the_rule(changes: dict[str, Any], message: str) -> None:
    assert error_message(**changes).startswith(message)


def test_a_scheduler_that_wants_to_be_told_something_is_refused() -> None:
    optimizer = torch.optim.SGD(Blocks().parameters(), 0.1)
    assert "ReduceLROnPlateau" in error_message(scheduler=lr_scheduler.ReduceLROnPlateau(optimizer))


def test_an_optimizer_of_other_parameters_is_refused() -> None:
    assert error_message(optimizer=torch.optim.SGD(Blocks().parameters(), 0.1)).startswith(
        "the optimizer trains 16 param"
    )
    empty = torch.optim.SGD([{"params": []}], 0.1)
    assert error_message(optimizer=empty).startswith(
        "the optimizer trains no parameters: create it with the parameters"
    )


def test_lbfgs_takes_no_scaler() -> None:
    model = Blocks()
    message = error_message(
        model=model, optimizer=torch.optim.LBFGS(model.parameters()), scaler=torch.amp.GradScaler("cpu")
    )
    assert message.startswith("scaler is given, but LBFGS computes several gradients a step")


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (lambda out, _: out, r"the loss is of shape \(8, 3\), but must be a tensor of one number: pass `loss`"),
        (lambda _, __: 1.5, "the loss is of float, but must be a tensor of one number"),
        (None, "the loss is of shape"),
    ],
)
def test_a_loss_that_is_no_number_is_refused(loss: Any, message: str) -> None:
    x, y = batch()
    with pytest.raises(WorkloadError, match=message):
        a_step(loss=loss)(*((x, y) if loss else (x,)))


def test_targets_that_nothing_takes_are_refused() -> None:
    with pytest.raises(WorkloadError, match=r"the batch has 1 item\(s\) after the inputs, but loss is None"):
        a_step(loss=None)(*batch())


def test_a_batch_that_cannot_be_cut_is_refused_and_takes_no_step() -> None:
    step = a_step(accumulate=4)
    before = copy.deepcopy(collect_step_state(step))
    with pytest.raises(
        WorkloadError, match=r"shape \(6, 4\), which cannot be split into 4 equal microbatches along its first"
    ):
        step(*batch(6))
    with pytest.raises(WorkloadError, match=r"shape \(\), which cannot be split"):
        step(batch()[0], torch.tensor(1))
    assert same(collect_step_state(step), before)
