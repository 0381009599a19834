"""Loops and training steps in CUDA graphs, on a real GPU: equality with eager, and every hazard of replaying them."""

from __future__ import annotations

import copy
import itertools
import logging
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torchwise  # noqa: E402
from torchwise.errors import UnsupportedError  # noqa: E402
from torchwise.workload import pytree  # noqa: E402

pytestmark = pytest.mark.gpu


def plain(step: Callable[[Any], Any], state: Any, steps: int, every: int) -> tuple[Any, list[Any]]:
    kept = []
    for done in range(1, steps + 1):
        state = step(state)
        if done % every == 0:
            kept.append(pytree.map_tensors(torch.Tensor.clone, state))
    return state, kept


def same(a: Any, b: Any) -> bool:
    pairs = zip(pytree.tensors(a), pytree.tensors(b), strict=True)
    return all(torch.equal(x, y) for x, y in pairs)


# ---- loops


def field(*shape: int) -> Any:
    return torch.linspace(0, 1, max(1, torch.Size(shape).numel()), device="cuda").reshape(shape)


LOOPS: dict[str, tuple[Callable[[Any], Any], Callable[[], Any]]] = {
    "tensor": (lambda u: torch.sin(u) * 0.9 + u.roll(1), lambda: field(64)),
    "in place": (lambda u: u.mul_(0.9).add_(0.1), lambda: field(64)),
    "swap": (lambda s: (s[1], s[0] * 0.5 + s[1]), lambda: (field(8), field(8) + 1)),
    "dict": (lambda s: {"u": s["u"] @ s["w"], "w": s["w"]}, lambda: {"u": field(8, 8), "w": torch.eye(8).cuda() / 2}),
    "complex": (lambda z: torch.fft.ifft(torch.fft.fft(z) * 0.99), lambda: field(64).to(torch.complex64)),
}


@pytest.mark.parametrize("every", [1, 7, 130])
@pytest.mark.parametrize("name", LOOPS)
def test_a_loop_answers_as_eager_does(name: str, every: int) -> None:
    step, make = LOOPS[name]
    loop = torchwise.captured_loop(step, every)
    with torch.no_grad():
        for steps in (300, 300, 4):
            state = make()
            last, kept = loop(state, steps)
            assert same(state, make()), "the state given is left as it is"
            expected, expected_kept = plain(step, make(), steps, every)
            assert same(last, expected)
            assert same(kept, expected_kept)
    assert loop.reason is None


def test_one_rollout_answers_as_eager_does() -> None:
    step, make = LOOPS["tensor"]
    with torch.no_grad():
        assert same(torchwise.rollout(step, make(), 500), plain(step, make(), 500, 1)[0])
    with torch.inference_mode():
        assert same(torchwise.rollout(step, make(), 500), plain(step, make(), 500, 1)[0])


def test_each_iteration_and_each_replay_draws_its_own_noise() -> None:
    def walk(u: Any) -> Any:
        return u + torch.randn_like(u)

    loop = torchwise.captured_loop(walk, 1)
    start = torch.zeros(16, device="cuda")
    with torch.no_grad():
        loop(start, 250)
        torch.manual_seed(1)
        _, kept = loop(start, 250)
        torch.manual_seed(1)
        _, expected = plain(walk, start, 250, 1)
    noise = [b - a for a, b in itertools.pairwise(kept)]
    assert len({tuple(n.tolist()) for n in noise}) == len(noise)
    assert same(kept, expected)


def test_a_loop_sees_weights_that_changed_and_records_anew_for_others() -> None:
    model = torch.nn.Linear(8, 8, bias=False).cuda()
    loop = torchwise.captured_loop(model)
    start = torch.ones(2, 8, device="cuda")
    with torch.no_grad():
        for change in (
            lambda: None,
            lambda: model.weight.mul_(0.5),
            lambda: setattr(model, "weight", torch.nn.Parameter(torch.randn(8, 8, device="cuda") / 4)),
            lambda: None,
        ):
            change()
            assert torch.allclose(loop(start, 40), plain(model, start, 40, 1)[0], atol=1e-6)
    assert loop.reason is None


def test_gradients_flow_through_a_loop() -> None:
    weight = torch.tensor(0.9, device="cuda", requires_grad=True)
    torchwise.rollout(lambda u: u * weight, torch.ones(2, device="cuda"), 30).sum().backward()
    assert weight.grad is not None
    assert weight.grad.item() == pytest.approx(2 * 30 * 0.9**29, rel=1e-4)


def test_a_compiled_step_is_captured() -> None:
    step = torch.compile(lambda u: torch.sin(u) * 0.9 + 0.1)
    loop = torchwise.captured_loop(step)
    with torch.no_grad():
        assert torch.allclose(loop(field(64), 300), plain(step, field(64), 300, 1)[0])
    assert loop.reason is None


def test_a_stream_waits_for_the_last() -> None:
    def slow(u: Any) -> Any:
        return u @ u / 300

    loop = torchwise.captured_loop(slow)
    starts = [torch.rand(512, 512, device="cuda") for _ in range(2)]
    with torch.no_grad():
        expected = [plain(slow, start, 30, 1)[0] for start in starts]
        loop(starts[0], 30)
        torch.cuda.synchronize()
        answers = []
        for start, stream in zip(starts, (torch.cuda.Stream(), torch.cuda.Stream()), strict=True):
            with torch.cuda.stream(stream):
                answers.append(loop(start, 30))
        torch.cuda.synchronize()
    assert torch.allclose(answers[0], expected[0])
    assert torch.allclose(answers[1], expected[1])


def nonzero(u: Any) -> Any:
    return u + u.nonzero().shape[0]


def explicit(u: Any) -> Any:
    torch.cuda.synchronize()
    return u + 1


GENERATOR: list[Any] = []


def own_generator(u: Any) -> Any:
    if not GENERATOR:
        GENERATOR.append(torch.Generator("cuda").manual_seed(0))
    return u + torch.randn(4, device="cuda", generator=GENERATOR[0])


@pytest.mark.parametrize(
    ("step", "message"),
    [
        (lambda u: u + u.sum().item() * 0, "in <lambda>.*waits for the GPU"),
        (nonzero, r"test_loop_and_step.py:\d+, in nonzero: `return u \+ u.nonzero"),
        (explicit, r"in explicit: `torch.cuda.synchronize\(\)`"),
        (own_generator, "in own_generator"),
        (lambda u: u + torch.ones(4).cuda(), "waits for the GPU"),
    ],
)
def test_a_step_that_cannot_be_captured_is_named_and_runs_step_by_step(
    step: Any, message: str, caplog: pytest.LogCaptureFixture
) -> None:
    GENERATOR.clear()
    loop = torchwise.captured_loop(step)
    with torch.no_grad(), caplog.at_level(logging.WARNING):
        answer = loop(torch.ones(4, device="cuda"), 30)
        GENERATOR.clear()
        assert same(answer, plain(step, torch.ones(4, device="cuda"), 30, 1)[0])
        loop(torch.ones(4, device="cuda"), 30)
    assert loop.reason is not None
    with pytest.raises(UnsupportedError, match=message):
        raise UnsupportedError(loop.reason)
    assert len([r for r in caplog.records if r.name == "torchwise"]) == 1
    fine = torchwise.captured_loop(lambda u: u + torch.rand_like(u))
    with torch.no_grad():
        fine(torch.ones(4, device="cuda"), 30)
    assert fine.reason is None, "other work goes on"


def test_a_state_on_two_devices_runs_step_by_step() -> None:
    loop = torchwise.captured_loop(lambda s: (s[0] + 1, s[1] + 1))
    with torch.no_grad():
        last = loop((torch.zeros(2, device="cuda"), torch.zeros(2)), 30)
    assert last[0].tolist() == last[1].tolist() == [30, 30]
    assert loop.reason is not None
    assert "is on cpu" in loop.reason


# ---- training steps


class Net(torch.nn.Module):
    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.body = torch.nn.Sequential(
            torch.nn.Linear(16, 32), torch.nn.BatchNorm1d(32), torch.nn.GELU(), torch.nn.Dropout(dropout)
        )
        self.head = torch.nn.Linear(32, 4)
        self.unused = torch.nn.Linear(2, 2)

    def forward(self, x: Any) -> Any:
        return self.head(self.body(x))


OPTIMIZERS: dict[str, Callable[[Any], Any]] = {
    "sgd momentum": lambda p: torch.optim.SGD(p, 0.05, momentum=0.9, dampening=0.1),
    "adamw fused": lambda p: torch.optim.AdamW(p, 0.01, fused=True, capturable=True),
    "adamw foreach": lambda p: torch.optim.AdamW(p, 0.01, foreach=True, capturable=True),
    "adamw single": lambda p: torch.optim.AdamW(p, 0.01, foreach=False, capturable=True),
    "nadam": lambda p: torch.optim.NAdam(p, 0.01, capturable=True),
}
KINDS = ("plain", "clipped", "bf16", "scaler", "scaler unscaled", "in place", "accumulating", "zero last")


def make_step(kind: str, model: Any, optimizer: Any, scaler: Any) -> Callable[..., Any]:
    dtype = torch.bfloat16 if kind == "bf16" else torch.float16

    def step(x: Any, y: Any) -> Any:
        if kind not in ("accumulating", "zero last"):
            optimizer.zero_grad(set_to_none=kind != "in place")
        with torch.autocast("cuda", dtype, enabled=kind in ("bf16", "scaler", "scaler unscaled")):
            loss = torch.nn.functional.cross_entropy(model(x).float(), y)
        if kind.startswith("scaler"):
            scaler.scale(loss).backward()
            if kind == "scaler unscaled":
                scaler.unscale_(optimizer)
                torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            scaler.step(optimizer)
            scaler.update()
            return loss
        loss.backward()
        if kind == "clipped":
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        if kind == "zero last":
            optimizer.zero_grad()
        return loss

    return step


class Training:
    """A model, its optimizer and its step, as written or captured."""

    def __init__(self, kind: str, optimizer: str, *, captured: bool, dropout: float = 0.2) -> None:
        torch.manual_seed(0)
        self.model = Net(dropout).cuda()
        self.optimizer = OPTIMIZERS[optimizer](self.model.parameters())
        self.scaler = torch.amp.GradScaler("cuda", init_scale=2.0**24, growth_interval=3)
        self.step = make_step(kind, self.model, self.optimizer, self.scaler)
        if captured:
            self.step = torchwise.captured_step(self.step, self.model, self.optimizer, self.scaler)

    def collect_state(self) -> list[Any]:
        states = [value for state in self.optimizer.state.values() for value in state.values()]
        grads = [p.grad for p in self.model.parameters()]
        scale = [t for t in (self.scaler._scale, self.scaler._growth_tracker) if t is not None]
        found = [*self.model.state_dict().values(), *states, *grads, *scale]
        return [None if t is None else t.detach().clone() for t in found]


def batches(count: int, rows: int = 8) -> list[tuple[Any, Any]]:
    generator = torch.Generator("cuda").manual_seed(7)
    return [
        (
            torch.randn(rows, 16, device="cuda", generator=generator),
            torch.randint(0, 4, (rows,), device="cuda", generator=generator),
        )
        for _ in range(count)
    ]


def assert_alike(ours: Training, theirs: Training) -> None:
    for a, b in zip(ours.collect_state(), theirs.collect_state(), strict=True):
        assert (a is None) == (b is None)
        if a is not None:
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5, equal_nan=True)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("kind", KINDS)
def test_ten_steps_train_as_eager_does(kind: str, optimizer: str) -> None:
    if kind.startswith("scaler") and optimizer != "adamw fused":
        pytest.skip("a scaler needs a fused optimizer under capture")
    ours, theirs = Training(kind, optimizer, captured=True), Training(kind, optimizer, captured=False)
    losses = []
    for training in (ours, theirs):
        torch.manual_seed(1)
        losses.append([training.step(*batch) for batch in batches(10)])
    assert torch.allclose(torch.stack(losses[0]), torch.stack(losses[1]).detach(), rtol=1e-4, atol=1e-6)
    assert not losses[0][0].requires_grad
    assert_alike(ours, theirs)


def test_a_plain_step_is_bit_equal() -> None:
    ours, theirs = (Training("plain", "adamw foreach", captured=captured) for captured in (True, False))
    for training in (ours, theirs):
        torch.manual_seed(1)
        for batch in batches(10):
            training.step(*batch)
    assert all(
        a is None or torch.equal(a, b) for a, b in zip(ours.collect_state(), theirs.collect_state(), strict=True)
    )


def test_each_replay_drops_others() -> None:
    training = Training("plain", "sgd momentum", captured=True, dropout=0.5)
    training.optimizer.param_groups[0]["lr"] = 0.0
    batch = batches(1)[0]
    losses = [training.step(*batch).item() for _ in range(8)]
    assert len(set(losses[1:])) == 7


def test_recording_takes_no_step() -> None:
    training = Training("scaler", "adamw fused", captured=True)
    first, second = batches(2)
    training.step(*first)
    before, numbers = training.collect_state(), torch.cuda.get_rng_state()
    seen: list[list[Any]] = []
    capture = training.step._capture  # type: ignore[attr-defined]

    def capture_and_record(*given: Any) -> Any:
        recorded = capture(*given)
        seen.append(training.collect_state())
        assert torch.equal(torch.cuda.get_rng_state(), numbers)
        return recorded

    training.step._capture = capture_and_record  # type: ignore[attr-defined]
    training.step(*second)
    parameters = len(list(training.model.parameters()))
    (after,) = seen
    for number, (a, b) in enumerate(zip(before, after, strict=True)):
        of_gradients = (
            len(before) - 2 - parameters <= number < len(before) - 2
        )  # whose memory is the graph's from now on
        assert of_gradients or torch.equal(a, b), number


def test_every_shape_of_batch_and_evaluation_in_between() -> None:
    ours, theirs = (Training("plain", "adamw fused", captured=captured, dropout=0.0) for captured in (True, False))
    for training in (ours, theirs):
        for rows in (8, 8, 4, 4, 8, 4, 6):
            training.step(*batches(1, rows)[0])
            training.model.eval()
            with torch.no_grad():
                training.model(torch.ones(2, 16, device="cuda"))
            training.model.train()
    assert_alike(ours, theirs)


BETWEEN: dict[str, Callable[[Training], object]] = {
    "gradients": lambda t: [setattr(p, "grad", torch.ones_like(p)) for p in t.model.parameters()],
    "none": lambda t: t.optimizer.zero_grad(),
    "loaded": lambda t: t.optimizer.load_state_dict(copy.deepcopy(t.optimizer.state_dict())),
    "moved": lambda t: setattr(t.model.head.weight, "data", t.model.head.weight.data * 0.5),
    "frozen": lambda t: t.model.head.requires_grad_(not t.model.head.weight.requires_grad),
    "rate": lambda t: t.optimizer.param_groups[0].update(lr=t.optimizer.param_groups[0]["lr"] / 2),
}


@pytest.mark.parametrize("act", BETWEEN.values(), ids=list(BETWEEN))
@pytest.mark.parametrize("kind", ["plain", "in place", "accumulating", "zero last"])
def test_what_is_done_between_the_calls_has_its_effect(kind: str, act: Callable[[Training], object]) -> None:
    ours, theirs = (Training(kind, "adamw foreach", captured=captured, dropout=0.0) for captured in (True, False))
    for training in (ours, theirs):
        for number, batch in enumerate(batches(9)):
            if number in (3, 6):
                act(training)
            training.step(*batch)
    assert_alike(ours, theirs)


def test_a_scheduler_writes_to_a_rate_on_the_gpu() -> None:
    trainings = [Training("plain", "adamw fused", captured=captured, dropout=0.0) for captured in (True, False)]
    for training in trainings:
        for group in training.optimizer.param_groups:
            group["lr"] = torch.tensor(0.05, device="cuda")
        scheduler = torch.optim.lr_scheduler.ExponentialLR(training.optimizer, 0.5)
        for batch in batches(8):
            training.step(*batch)
            scheduler.step()
    assert_alike(*trainings)


def test_a_compiled_model_trains_alike() -> None:
    trainings = [Training("bf16", "adamw fused", captured=captured, dropout=0.0) for captured in (True, False)]
    for training in trainings:
        training.model.forward = torch.compile(training.model.forward)
        for batch in batches(6):
            training.step(*batch)
    for a, b in zip(trainings[0].collect_state(), trainings[1].collect_state(), strict=True):
        assert a is None or torch.allclose(a.float(), b.float(), atol=2e-2)


def test_autocast_around_the_step_casts_the_weights_of_each_step() -> None:
    trainings = [Training("plain", "sgd momentum", captured=captured, dropout=0.0) for captured in (True, False)]
    for training in trainings:
        for batch in batches(8):
            with torch.autocast("cuda", torch.bfloat16):
                training.step(*batch)
    assert_alike(*trainings)


def step_with_item(training: Training, x: Any, y: Any) -> float:
    training.optimizer.zero_grad()
    loss = torch.nn.functional.cross_entropy(training.model(x), y)
    loss.backward()
    training.optimizer.step()
    return loss.item()


def test_a_step_that_waits_is_named_and_takes_nothing() -> None:
    training = Training("plain", "adamw foreach", captured=False)
    step = torchwise.captured_step(lambda x, y: step_with_item(training, x, y), training.model, training.optimizer)
    first, second = batches(2)
    step(*first)
    before, numbers = training.collect_state(), torch.cuda.get_rng_state()
    for _ in range(2):
        with pytest.raises(
            UnsupportedError, match=r"test_loop_and_step.py:\d+, in step_with_item: `return loss.item\(\)`"
        ):
            step(*second)
        assert all(a is None or torch.equal(a, b) for a, b in zip(before, training.collect_state(), strict=True))
        assert torch.equal(torch.cuda.get_rng_state(), numbers)


@pytest.mark.parametrize(
    ("optimizer", "message"),
    [
        (lambda p: torch.optim.AdamW(p), "AdamW with capturable=False"),
        (
            lambda p: torch.optim.AdamW(p, torch.tensor(0.1), fused=True, capturable=True),
            "lr of group 0 .* is on cpu",
        ),
        (lambda p: torch.optim.Adagrad(p), "the state 'step' of optimizers.0. is on cpu"),
    ],
)
def test_an_optimizer_that_cannot_be_captured_is_named(optimizer: Any, message: str) -> None:
    model = Net(0.0).cuda()
    stepper = optimizer(model.parameters())
    step = torchwise.captured_step(make_step("plain", model, stepper, None), model, stepper)

    def two_steps() -> None:
        for batch in batches(2):
            step(*batch)

    with pytest.raises(UnsupportedError, match=message):
        two_steps()


def test_a_scaler_without_a_fused_optimizer_is_named() -> None:
    training = Training("scaler", "adamw foreach", captured=True)
    training.step(*batches(1)[0])
    with pytest.raises(UnsupportedError, match="fused=True"):
        training.step(*batches(1)[0])
