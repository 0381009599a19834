"""Training steps with graphs that need no GPU: equality with steps as written, and the changes that are noticed."""

from __future__ import annotations

import copy
import logging
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from tape import Machine

import torchwise
from torchwise.compile import signature
from torchwise.compile.cuda_graphs import recording_limit
from torchwise.compile.cuda_graphs.step_graph import CapturedStep
from torchwise.compile.recompiles import RecompileLimitError, Recompiles
from torchwise.compile.shared_copies import ModuleChangeGuard
from torchwise.errors import StalePlanError, UnsupportedError
from torchwise.workload import pytree

Step = Callable[..., Any]


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(monkeypatch)


class Net(torch.nn.Module):
    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.first, self.second = torch.nn.Linear(4, 8), torch.nn.Linear(8, 2)
        self.norm, self.dropout = torch.nn.BatchNorm1d(8), torch.nn.Dropout(dropout)
        self.unused = torch.nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.dropout(self.norm(torch.tanh(self.first(x)))))


OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, 0.1),
    "momentum": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, dampening=0.3, weight_decay=0.01),
    "adamw fused": lambda p: torch.optim.AdamW(p, 0.01, fused=True),
    "rprop": lambda p: torch.optim.Rprop(p, 0.01, capturable=False),
}


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """More threads gain nothing for small tensors, and wait for each other on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def _capturable_on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take the flag out of the groups' check: on the CPU optimizers refuse it, and keep their counts there."""
    from torchwise.compile.cuda_graphs.training_state import TrainingState

    check = TrainingState.check

    def check_without_flags(self: TrainingState) -> None:
        flags = [(g, g.pop("capturable", None)) for o in self._optimizers for g in o.param_groups]
        try:
            check(self)
        finally:
            for group, flag in flags:
                if flag is not None:
                    group["capturable"] = flag

    monkeypatch.setattr(TrainingState, "check", check_without_flags)


def zero_first(model: Net, optimizer: torch.optim.Optimizer) -> Step:
    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(x), y)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5, foreach=False)
        optimizer.step()
        return loss

    return step


def zero_in_place(model: Net, optimizer: torch.optim.Optimizer) -> Step:
    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad(set_to_none=False)
        loss = torch.nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    return step


def zero_last(model: Net, optimizer: torch.optim.Optimizer) -> Step:
    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        loss = torch.nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return step


def accumulate_gradients(model: Net, _optimizer: torch.optim.Optimizer) -> Step:
    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        loss = torch.nn.functional.mse_loss(model(x), y)
        loss.backward()
        return loss

    return step


STEPS = [zero_first, zero_in_place, zero_last, accumulate_gradients]


def batch(rows: int = 6) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(rows, 4), torch.randn(rows, 2)


def collect_tensors(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> list[torch.Tensor | None]:
    states = [value for state in optimizer.state.values() for value in state.values()]
    return [*model.state_dict().values(), *states, *(p.grad for p in model.parameters())]


def equal(a: list[Any], b: list[Any]) -> bool:
    if len(a) != len(b):
        return False
    return all(
        (x is None and y is None) or (x is not None and y is not None and pytree.equal(x, y))
        for x, y in zip(a, b, strict=True)
    )


def pair(make: Any, optimizer: str = "momentum", dropout: float = 0.0) -> Any:
    """Return our side and theirs, alike, each with model, optimizer and step."""
    found = []
    for _ in range(2):
        model = Net(dropout)
        stepper = OPTIMIZERS[optimizer](model.parameters())
        found.append((model, stepper, make(model, stepper)))
    (model, stepper, step), theirs = found
    return (model, stepper, torchwise.captured_step(step, model, stepper)), theirs


def check_alike(ours: Any, theirs: Any, given: tuple[torch.Tensor, ...]) -> None:
    numbers = torch.get_rng_state()
    answer = ours[2](*given)
    after = torch.get_rng_state()
    torch.set_rng_state(numbers)
    expected = theirs[2](*given)
    assert torch.equal(torch.get_rng_state(), after)
    assert torch.equal(answer, expected)
    assert not answer.requires_grad
    assert equal(collect_tensors(*ours[:2]), collect_tensors(*theirs[:2]))


# ---- equality, with any handling of gradients


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("make", STEPS)
def test_ten_steps_are_those_as_written(machine: Machine, make: Any, optimizer: str) -> None:
    ours, theirs = pair(make, optimizer)
    for _ in range(10):
        check_alike(ours, theirs, batch())
    assert (machine.recorded, machine.replayed) == (1, 9)


def test_copies_of_the_weights_are_told_of_each_replay(machine: Machine) -> None:
    (model, _, step), _ = pair(zero_first, "adamw fused")
    model.norm.eval()  # which would count its own calls
    for _ in range(2):
        step(*batch())
    frozen = ModuleChangeGuard(model, values=True).wrap(model)
    with torch.no_grad():
        frozen(batch()[0])
    step(*batch())
    assert machine.replayed == 2
    with pytest.raises(StalePlanError, match="weights changed"):
        frozen(batch()[0])


def test_noise_is_that_of_the_steps_as_written(machine: Machine) -> None:
    ours, theirs = pair(zero_first, dropout=0.5)
    for _ in range(5):
        check_alike(ours, theirs, batch())
    assert machine.replayed == 4


def test_shapes_of_batches_beyond_the_limit_run_as_written_until_all_make_room(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recording_limit, "MAX_SIGNATURES", 2)
    monkeypatch.setattr(recording_limit, "FLUSH_AFTER", 3)
    ours, theirs = pair(zero_first)

    def step(*rows: int) -> int:
        before = machine.recorded
        for each in rows:
            check_alike(ours, theirs, batch(each))
            assert len(ours[2]._graphs) <= 2
        return machine.recorded - before

    assert step(3, 3, 4, 4) == 2
    assert step(5, 5, 6, 6, 3, 4) == 0, "graphs of shapes that go on coming are kept"
    assert step(5) == 1, "shapes that come now got the room"


def test_what_a_step_remembers_of_batches_is_bounded(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signature, "MAX_SIGNATURES", 3)
    ours, _ = pair(zero_first)
    for rows in range(2, 8):
        ours[2](*batch(rows))
    assert len(ours[2]._seen_keys) == 3
    assert machine.recorded == 0


def test_each_shape_of_batch_has_its_graph_and_its_gradients(machine: Machine) -> None:
    ours, theirs = pair(zero_first)
    for rows in (6, 6, 3, 3, 6, 3, 5):
        check_alike(ours, theirs, batch(rows))
    assert (machine.recorded, machine.replayed) == (2, 4)


def test_graphs_share_a_pool_and_a_pool_whose_graphs_are_gone_is_left(machine: Machine) -> None:
    ours, theirs = pair(zero_first)
    for rows in (6, 6, 3, 3):
        check_alike(ours, theirs, batch(rows))
    for model, _, _ in (ours, theirs):
        other_weight(model, None)
    for _ in range(2):
        check_alike(ours, theirs, batch())
    assert machine.pools == [0, 0, 1]


def test_nested_batches_and_outputs_are_copied(machine: Machine) -> None:
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def step(data: dict[str, torch.Tensor], *, scale: float) -> dict[str, Any]:
        optimizer.zero_grad()
        loss = (model(data["x"]) * scale).square().mean()
        loss.backward()
        optimizer.step()
        return {"loss": loss, "parts": [loss * 2, None]}

    captured = torchwise.captured_step(step, model, optimizer)
    answers = [captured({"x": torch.randn(6, 4)}, scale=2.0) for _ in range(4)]
    losses = [answer["loss"].item() for answer in answers]
    assert len(set(losses)) == 4, "held answers are not overwritten"
    assert all(answer["parts"][0] == 2 * answer["loss"] for answer in answers)


# ---- changes by the user between the calls


def steps_outside(ours: Any, theirs: Any, given: tuple[torch.Tensor, ...], act: Callable[[Any, Any], object]) -> None:
    for model, optimizer, _ in (ours, theirs):
        act(model, optimizer)
    check_alike(ours, theirs, given)


def own_gradients(model: torch.nn.Module, _optimizer: Any) -> None:
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, 0.25)


def unfreeze(model: Net, _optimizer: Any) -> None:
    model.first.requires_grad_(not model.first.weight.requires_grad)


def reload(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    model.load_state_dict({name: value * 0.9 for name, value in model.state_dict().items()})


def other_weight(model: Net, _optimizer: Any) -> None:
    model.first.weight.data = model.first.weight.data * 0.5


def slower(_model: Any, optimizer: torch.optim.Optimizer) -> None:
    optimizer.param_groups[0]["lr"] *= 0.5


def update(_model: Any, optimizer: torch.optim.Optimizer) -> None:
    optimizer.step()
    optimizer.zero_grad()


BETWEEN: dict[str, Callable[[Any, Any], object]] = {
    "own gradients": own_gradients,
    "no gradients": lambda _, optimizer: optimizer.zero_grad(),
    "zeroed gradients": lambda _, optimizer: optimizer.zero_grad(set_to_none=False),
    "gradients in place": lambda model, _: [p.grad.mul_(2) for p in model.parameters() if p.grad is not None],
    "frozen": unfreeze,
    "loaded": reload,
    "moved": other_weight,
    "learning rate": slower,
    "evaluation": lambda model, _: model.train(not model.training),
    "update": update,
    "written in place": lambda model, _: model.load_state_dict({k: v * 0.5 for k, v in model.state_dict().items()}),
}


@pytest.mark.parametrize("act", BETWEEN.values(), ids=list(BETWEEN))
@pytest.mark.parametrize("make", STEPS)
def test_what_is_done_between_the_calls_has_its_effect(machine: Machine, make: Any, act: Any) -> None:
    ours, theirs = pair(make)
    for _ in range(3):
        check_alike(ours, theirs, batch())
    for _ in range(2):
        steps_outside(ours, theirs, batch(), act)
        check_alike(ours, theirs, batch())
        check_alike(ours, theirs, batch())
    assert machine.replayed >= 2


def test_what_is_captured_anew_all_the_time_is_counted_bounded_and_named(machine: Machine) -> None:
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    told: list[str] = []
    recompiles = Recompiles(2, told=told.append)
    step = CapturedStep(zero_first(model, optimizer), [model], [optimizer], recompiles=recompiles)
    for _ in range(3):
        for _ in range(3):
            step(*batch())
        optimizer.param_groups[0]["lr"] /= 2
    assert (machine.recorded, len(told)) == (3, 2)
    with pytest.raises(RecompileLimitError, match=r"lr of group 0 of optimizers\[0\] changes from call to call"):
        step(*batch())
    assert machine.recorded == 3


def test_a_method_put_in_a_class_is_captured_anew(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = pair(zero_first)
    for _ in range(3):
        check_alike(ours, theirs, batch())
    forward = Net.forward
    monkeypatch.setattr(Net, "forward", lambda model, x: forward(model, 2 * x))
    for _ in range(3):
        check_alike(ours, theirs, batch())
    assert machine.recorded == 2


def test_evaluation_in_between_costs_no_recording(machine: Machine) -> None:
    ours, theirs = pair(zero_first)
    for _ in range(3):
        check_alike(ours, theirs, batch())
        for model, _, _ in (ours, theirs):
            model.eval()
            with torch.no_grad():
                model(torch.ones(2, 4))
            model.train()
    assert machine.recorded == 1


def test_a_scheduler_that_writes_to_a_tensor_needs_no_new_recording(machine: Machine) -> None:
    losses = []
    for captured in (True, False):
        model = Net()
        optimizer = torch.optim.AdamW(model.parameters(), torch.tensor(0.1), fused=True)
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
        step = zero_first(model, optimizer)
        step = torchwise.captured_step(step, model, optimizer) if captured else step
        torch.manual_seed(0)
        for _ in range(6):
            losses.append(step(*batch()).item())
            scheduler.step()
    assert losses[:6] == losses[6:]
    assert machine.recorded == 1


def test_a_number_that_changes_on_every_step_is_named_and_costs_no_recordings(
    machine: Machine, caplog: pytest.LogCaptureFixture
) -> None:
    ours, theirs = pair(zero_first)
    check_alike(ours, theirs, batch())
    check_alike(ours, theirs, batch())
    for _ in range(4):
        steps_outside(ours, theirs, batch(), slower)
    assert machine.recorded == 1
    assert "lr of group 0 of optimizers[0] was 0.1 and is 0.05. To avoid that, use a tensor on CUDA" in caplog.text
    assert len([r for r in caplog.records if r.levelno >= logging.WARNING]) == 1


# ---- a failed capture leaves everything as it was


def make_broken_step(model: Net, optimizer: torch.optim.Optimizer, spoil: Callable[[torch.Tensor], Any]) -> Step:
    def step(x: torch.Tensor, y: torch.Tensor) -> Any:
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        return spoil(loss)

    return step


class Box:
    def __init__(self, value: Any) -> None:
        self.value = value


SPOILT: dict[str, tuple[Callable[[torch.Tensor], Any], str]] = {
    "item": (lambda loss: loss.item(), r"test_captured_step.py:\d+, in .*loss.item\(\).*waits for the GPU"),
    "branch": (lambda loss: loss if loss > 0 else -loss, r"waits for the GPU"),
}


@pytest.mark.parametrize("name", SPOILT)
def test_a_step_that_cannot_be_captured_is_named_and_takes_nothing(machine: Machine, name: str) -> None:
    spoil, message = SPOILT[name]
    model = Net(0.5)
    optimizer = OPTIMIZERS["momentum"](model.parameters())
    step = torchwise.captured_step(make_broken_step(model, optimizer, spoil), model, optimizer)
    step(*batch())
    grads = [p.grad for p in model.parameters()]
    before = [None if t is None else t.clone() for t in collect_tensors(model, optimizer)]
    given = batch()
    numbers = torch.get_rng_state()
    for _ in range(2):
        with pytest.raises(UnsupportedError, match=message):
            step(*given)
        assert equal(collect_tensors(model, optimizer), before)
        assert all(p.grad is g for p, g in zip(model.parameters(), grads, strict=True))
        assert torch.equal(torch.get_rng_state(), numbers)


def test_waiting_for_the_gpu_is_named_before_anything_is_recorded(machine: Machine) -> None:
    def waits(loss: torch.Tensor) -> torch.Tensor:
        if machine.mode == "warn":
            warnings.warn("called a synchronizing CUDA operation", stacklevel=1)
        return loss

    model = Net()
    optimizer = OPTIMIZERS["momentum"](model.parameters())
    step = torchwise.captured_step(make_broken_step(model, optimizer, waits), model, optimizer)
    step(*batch())
    before = [None if t is None else t.clone() for t in collect_tensors(model, optimizer)]
    with pytest.raises(UnsupportedError, match=r"training step cannot .*test_captured_step.py:\d+, in waits"):
        step(*batch())
    assert equal(collect_tensors(model, optimizer), before)
    assert machine.replayed == 0


def test_a_count_kept_in_python_is_told(machine: Machine, caplog: pytest.LogCaptureFixture) -> None:
    model, count = Net(), 0
    optimizer = OPTIMIZERS["sgd"](model.parameters())
    written = zero_first(model, optimizer)

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        nonlocal count
        count += 1
        return written(x, y)

    captured = torchwise.captured_step(step, model, optimizer)
    for _ in range(3):
        captured(*batch())
    assert "count changes in Python from step to step, but a replay" in caplog.text


def test_autocast_around_the_step_casts_the_weights_of_each_step(machine: Machine) -> None:
    ours, theirs = pair(zero_first)
    for _ in range(5):
        with torch.autocast("cpu", torch.bfloat16):
            check_alike(ours, theirs, batch())
    assert machine.replayed == 4


def test_a_scheduler_within_the_step_is_refused(machine: Machine) -> None:
    model = Net()
    for rate in (0.1, torch.tensor(0.1)):
        optimizer = torch.optim.SGD(model.parameters(), rate)
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
        step = torchwise.captured_step(
            make_broken_step(model, optimizer, lambda loss, scheduler=scheduler: scheduler.step()), model, optimizer
        )
        step(*batch())
        with pytest.raises(UnsupportedError, match=r"sets lr of group 0 of optimizers\[0\].*schedulers outside"):
            step(*batch())
        assert float(optimizer.param_groups[0]["lr"]) == pytest.approx(0.05)


def test_random_numbers_of_the_cpu_are_refused(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    model = Net()
    optimizer = OPTIMIZERS["sgd"](model.parameters())
    drawn = [0]

    def state() -> torch.Tensor:
        drawn[0] += 1  # as if something drew between any two looks
        return torch.tensor(drawn[0])

    step = torchwise.captured_step(make_broken_step(model, optimizer, torch.Tensor.detach), model, optimizer)
    step(*batch())
    monkeypatch.setattr(torch, "get_rng_state", state)
    monkeypatch.setattr(torch, "set_rng_state", lambda _: None)
    with pytest.raises(UnsupportedError, match="draws random numbers on the CPU"):
        step(*batch())


def test_a_batch_that_requires_gradients_is_refused(machine: Machine) -> None:
    ours, _ = pair(zero_first)
    x, y = batch()
    ours[2](x.requires_grad_(), y)
    with pytest.raises(UnsupportedError, match="requires gradients"):
        ours[2](x, y)
    ours[2](x.detach(), y)
    with pytest.raises(UnsupportedError, match="requires gradients"):
        ours[2](x, y)


def test_what_is_written_to_a_tensor_given_twice_is_read_there(machine: Machine) -> None:
    def make(model: Net, optimizer: torch.optim.Optimizer) -> Step:
        def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            optimizer.zero_grad()
            x.mul_(2)
            loss = torch.nn.functional.mse_loss(model(x), y[:, :2])
            loss.backward()
            optimizer.step()
            return loss

        return step

    ours, theirs = pair(make)
    for _ in range(4):
        whole = torch.randn(6, 8)
        mine, other = whole[:, :4], whole.clone()[:, :4]
        assert torch.equal(ours[2](mine, mine), theirs[2](other, other))
        assert torch.equal(mine, other)
        assert equal(collect_tensors(*ours[:2]), collect_tensors(*theirs[:2]))


def test_state_that_comes_into_being_late_is_refused(machine: Machine) -> None:
    model = Net()
    optimizer = OPTIMIZERS["sgd"](model.parameters())
    calls = [0]

    def late(loss: torch.Tensor) -> torch.Tensor:
        calls[0] += 1
        if calls[0] > 2:
            optimizer.state[model.first.weight]["average"] = torch.zeros(2)
        return loss

    step = torchwise.captured_step(make_broken_step(model, optimizer, late), model, optimizer)
    step(*batch())
    with pytest.raises(UnsupportedError, match="changes its own state, as an optimizer or a scaler has other"):
        step(*batch())


# ---- steps that are refused at once, and the CPU


def test_an_optimizer_that_is_not_capturable_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()  # the check as it is
    Machine(monkeypatch)
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters())
    step = torchwise.captured_step(zero_first(model, optimizer), model, optimizer)
    weights = model.first.weight.clone()
    with pytest.raises(UnsupportedError, match=r"optimizers\[0\] is AdamW with capturable=False.*capturable=True"):
        step(*batch())
    assert torch.equal(model.first.weight, weights)


def test_a_learning_rate_elsewhere_is_named(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    optimizer.param_groups[0]["lr"] = torch.empty((), device="meta")
    step = torchwise.captured_step(zero_first(model, optimizer), model, optimizer)
    with pytest.raises(UnsupportedError, match=r"lr of group 0 of optimizers\[0\] is on meta.*put it on CUDA"):
        step(*batch())


def test_on_the_cpu_every_call_runs_as_written() -> None:
    ours, theirs = pair(zero_first)
    for _ in range(4):
        check_alike(ours, theirs, batch())


def test_within_somebody_elses_capture_it_runs_as_written(machine: Machine) -> None:
    ours, theirs = pair(zero_first)
    machine.capturing = True
    for _ in range(3):
        check_alike(ours, theirs, batch())
    assert machine.recorded == 0


def test_a_scaler_is_put_back_and_follows(machine: Machine) -> None:
    losses: list[float] = []
    for captured in (True, False):
        model = Net()
        optimizer = torch.optim.AdamW(model.parameters(), 0.01, fused=True)
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=2)

        def step(
            x: torch.Tensor, y: torch.Tensor, model: Any = model, optimizer: Any = optimizer, scaler: Any = scaler
        ) -> torch.Tensor:
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(model(x), y)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            return loss

        run: Any = torchwise.captured_step(step, model, optimizer, scaler) if captured else step
        torch.manual_seed(0)
        losses += [run(*batch()).item() for _ in range(7)]
        losses.append(scaler.get_scale())
    assert losses[:8] == losses[8:]
    assert losses[7] == 4.0 * 2**3
    assert machine.replayed == 6
