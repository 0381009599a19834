"""Calls that ask the GPU on their way, captured between their questions, on a real GPU."""

from __future__ import annotations

import math
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torchwise.compile import compile_plan  # noqa: E402
from torchwise.compile.cuda_graphs import segmented as captured  # noqa: E402
from torchwise.errors import UnsupportedError  # noqa: E402
from torchwise.plan import Plan  # noqa: E402
from torchwise.workload import Example  # noqa: E402
from torchwise.zoo import load  # noqa: E402

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def _without_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


def capture_call(call: Callable[..., Any], *args: torch.Tensor, capture: str = "branches", **fields: Any) -> Any:
    plan = Plan(capture=capture, **fields)
    return compile_plan(call, plan, Example(args), device="cuda", mode="inference").call


class Asks(torch.nn.Module):
    """Doubles or halves the output of a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(32, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.tanh(self.layer(x))
        return hidden * 2 if x.mean() > 0 else hidden / 2


def series(x: torch.Tensor) -> torch.Tensor:
    terms = [x]
    while terms[-1].abs().max() > 1e-2:
        terms.append(terms[-1] * x / 2)
    return torch.stack(terms).sum(dim=0)


def draw(scale: float = 1.0) -> torch.Tensor:
    return torch.randn(8, 32, device="cuda") * scale


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> list[captured.Path]:
    """List the paths that are recorded."""
    paths: list[captured.Path] = []
    record = captured.record_path

    def append_path(*args: Any, **options: Any) -> captured.Path:
        paths.append(record(*args, **options))
        return paths[-1]

    monkeypatch.setattr(captured, "record_path", append_path)
    return paths


@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_both_ways_answer_as_eager_does_and_are_recorded_once(backend: str, recorded: list[captured.Path]) -> None:
    torch.manual_seed(0)
    net = Asks().cuda().eval()
    call = capture_call(net, draw(), backend=backend)
    for sign in (1, 1, -1, 1, -1, -1, 1):
        given = draw().abs() * sign
        torch.testing.assert_close(call(given), net(given))
    assert len(recorded) == 2


def test_a_series_of_questions_takes_as_many_ways_as_it_is_long(recorded: list[captured.Path]) -> None:
    torch.manual_seed(0)
    call = capture_call(series, draw())
    draws = [draw().clamp(-1, 1) * scale for scale in (0.001, 0.1, 0.4, 0.7, 0.9) for _ in range(3)]
    for given in draws + draws[::-1]:
        assert torch.equal(call(given), series(given))
    lengths = [len(path.answers) for path in recorded]
    assert len(lengths) == len(set(lengths)) >= 4


@pytest.mark.parametrize("target", ["branch", "break_branch", "break_list"])
def test_programs_of_the_zoo(target: str, recorded: list[captured.Path]) -> None:
    workload = load(f"tutorial.{target}@medium", device="cuda")
    call = capture_call(workload.call, *workload.examples[0].args)
    for seed in range(4):
        for example in workload.reseed(seed):
            assert torch.equal(call(*example.args), workload.call(*example.args))
    assert len(recorded) > (target != "break_list")


def test_answers_that_are_held_are_not_overwritten() -> None:
    net = Asks().cuda().eval()
    call = capture_call(net, draw())
    inputs = [draw().abs() * sign for sign in (1, -1, 1, -1, 1)]
    answers = [call(given) for given in inputs]
    for given, answer in zip(inputs, answers, strict=True):
        assert torch.equal(answer, net(given))


def test_weights_changed_in_place_are_seen_and_those_that_moved_are_recorded_anew(
    recorded: list[captured.Path],
) -> None:
    net = Asks().cuda().eval()
    call = capture_call(net, draw())
    up, down = draw().abs(), -draw().abs()
    call(up), call(down)
    net.layer.weight.mul_(0.5)
    assert torch.equal(call(up), net(up))
    assert len(recorded) == 2
    net.layer.weight = torch.nn.Parameter(net.layer.weight * 3)
    for given in (down, up):
        assert torch.equal(call(given), net(given))
    assert len(recorded) == 4


def test_nothing_between_two_questions_warns_of_nothing() -> None:
    def early(x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        if y.sum() > 0:
            return y
        return y * 2

    call = capture_call(early, draw())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for given in (draw().abs(), -draw().abs() - 2, draw().abs()):
            assert torch.equal(call(given), early(given))


def test_calls_of_threads_and_streams_take_turns() -> None:
    net = Asks().cuda().eval()
    call = capture_call(net, draw())
    wrong: list[int] = []

    def work(seed: int) -> None:
        generator = torch.Generator("cuda").manual_seed(seed)
        with torch.no_grad(), torch.cuda.stream(torch.cuda.Stream()):
            for number in range(100):
                given = torch.randn(8, 32, device="cuda", generator=generator)
                if not torch.equal(call(given), net(given)):
                    wrong.append(number)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_an_error_of_the_model_is_its_own_and_other_ways_are_recorded_afterwards() -> None:
    def picky(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        if x.max() > 100 and torch.cuda.is_current_stream_capturing():
            raise ValueError("not while it is recorded")
        return y if x.mean() > 0 else -y

    given = draw().abs()
    call = capture_call(picky, given)
    assert torch.equal(call(given), given * 2)
    with pytest.raises(ValueError, match="not while it is recorded"):
        call(given + 200)
    for other in (given, -given, given):
        assert torch.equal(call(other), picky(other))
    assert torch.randn(3, device="cuda").shape == (3,)  # the generator is as it was, too


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda x: x * x.mean().item() if x.mean() > 0 else x, "waits for the GPU"),
        (lambda x: x + torch.randn_like(x) if x.mean() > -9 else x, "draws random numbers"),
        (lambda x: x.add_(1) if x.mean() > -9 else x, "writes to its inputs"),
        (lambda x: x * 2, "reads no value from the GPU"),
    ],
    ids=["number", "noise", "written", "none"],
)
def test_what_pieces_cannot_replay_is_refused(call: Callable[..., Any], said: str) -> None:
    given = draw().abs()
    before = given.clone()
    torch.manual_seed(3)
    expected = torch.randn(4, device="cuda")
    torch.manual_seed(3)
    with pytest.raises(UnsupportedError, match=said):
        capture_call(call, given)(given)
    assert torch.equal(given, before)
    assert torch.equal(torch.randn(4, device="cuda"), expected)
    again = capture_call(lambda x: x * 2 if x.mean() > 0 else x, given)  # on a stream that the refused one had
    assert torch.equal(again(given), given * 2)


def test_a_buffer_that_is_written_is_refused_and_put_back() -> None:
    norm = torch.nn.BatchNorm1d(32).cuda().train()
    before = norm.running_mean.clone()

    def forward(x: torch.Tensor) -> torch.Tensor:
        return norm(x) if x.mean() > -9 else x

    class Counts(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = norm

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return forward(x)

    with pytest.raises(UnsupportedError, match="writes to its inputs or its module"):
        capture_call(Counts(), draw())(draw())
    assert torch.equal(norm.running_mean, before)


def test_numbers_that_stay_are_others_on_every_replay() -> None:
    def scale_by_mean(x: torch.Tensor) -> torch.Tensor:
        return x / x.abs().mean().item() + x.max().item()

    call = capture_call(scale_by_mean, draw(), capture="call", transforms=("numbers_on_gpu",))
    for scale in (1.0, 10.0, 0.1, 3.0):
        given = draw(scale)
        torch.testing.assert_close(call(given), scale_by_mean(given))
    assert "item" not in vars(torch.Tensor)


def test_the_zoo_s_program_that_reads_a_number() -> None:
    workload = load("tutorial.break_item@medium", device="cuda")
    call = capture_call(workload.call, *workload.examples[0].args, capture="call", transforms=("numbers_on_gpu",))
    for seed in range(3):
        for example in workload.reseed(seed):
            torch.testing.assert_close(call(*example.args), workload.call(*example.args))


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda x: x * x.mean().item() ** 2, "Python needs the value of a number"),
        (lambda x: x * math.sqrt(x.abs().mean().item()), "Python needs the value of a number"),
        (lambda x: x * x.mean().item() * x.int().sum().item(), "waits for the GPU"),
        (lambda x: torch.full_like(x, x.max().item()), "waits for the GPU"),
        (lambda x: torch.add(x, x, alpha=x.max().item()), "waits for the GPU"),
        (lambda x: x * 2, "reads no number"),
    ],
    ids=["power", "math", "integer", "filled", "alpha", "none"],
)
def test_numbers_that_python_needs_are_refused(call: Callable[..., Any], said: str) -> None:
    given = draw()
    with pytest.raises(UnsupportedError, match=said):
        capture_call(call, given, capture="call", transforms=("numbers_on_gpu",))(given)
    again = capture_call(lambda x: x / x.max().item(), given, capture="call", transforms=("numbers_on_gpu",))
    torch.testing.assert_close(again(given), given / given.max())
