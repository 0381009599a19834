"""Calls that bring tensors from the CPU, or find out how many there are, captured on a real GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import numpy as np  # noqa: E402

from torchwise.compile import compile_plan  # noqa: E402
from torchwise.compile.cuda_graphs import segmented as captured  # noqa: E402
from torchwise.errors import UnsupportedError  # noqa: E402
from torchwise.plan import Plan  # noqa: E402
from torchwise.plan.workload_spec import WorkloadSpec  # noqa: E402
from torchwise.records import Outcome  # noqa: E402
from torchwise.records.listener import Listener  # noqa: E402
from torchwise.store import open_storage  # noqa: E402
from torchwise.study import Request, run_study  # noqa: E402
from torchwise.trial import ProcessLauncher  # noqa: E402
from torchwise.workload import Example  # noqa: E402

pytestmark = pytest.mark.gpu
TARGETS = Path(__file__).parents[2] / "benchmarks" / "data_targets.py"


@pytest.fixture(autouse=True)
def _without_gradients() -> Iterator[None]:
    torch.manual_seed(0)
    with torch.no_grad():
        yield


def capture_call(call: Callable[..., Any], *args: Any, capture: str = "call", **fields: Any) -> Any:
    plan = Plan(capture=capture, **fields)
    return compile_plan(call, plan, Example(args), device="cuda", mode="inference").call


def draw(*shape: int) -> torch.Tensor:
    return torch.randn(*(shape or (6, 8)), device="cuda")


TABLE = torch.arange(16.0)
BRINGS: dict[str, Callable[[torch.Tensor], Any]] = {
    "numbers": lambda x: x * torch.tensor([0.5, 2.0], device="cuda")[1],
    "a number copied over": lambda x: x * torch.tensor(0.1).to(x.device) + torch.tensor(2.0).cuda(),
    "a range": lambda x: x * torch.arange(8).to(x.device),
    "like another": lambda x: x + x.new_tensor([1.0] * 8) + torch.linspace(0, 1, 8).to(x),
    "from NumPy": lambda x: x * torch.from_numpy(np.arange(8.0)).cuda() + torch.as_tensor(np.ones(8), device="cuda"),
    "a list as index": lambda x: x[[0, 2]] + x[:, [1]][:2],
    "an index of the CPU": lambda x: x[torch.tensor([1, 3])],
    "a mask of the CPU": lambda x: x[torch.tensor([True, False, True, False, False, True])],
    "one of two": lambda x: torch.where(x > 0, x, torch.tensor(0.25)),
    "what the model keeps": lambda x: x[:, :4] * TABLE[:4].to(x.device),
    "written to": lambda x: torch.tensor([1.0, 2.0], device="cuda").mul_(x[0, 0]),
    "a number that is the same on every call": lambda x: x * torch.tensor(3.0, device="cuda").item(),
    "a size that is the same on every call": lambda x: x[:, torch.tensor([True, False] * 4, device="cuda")],
    "a default device": lambda x: x + _make_on_default_gpu(),
    "one value under a mask": lambda x: x.clone().index_put_((x > 0,), x[0, 0]) * torch.arange(8).to(x.device),
    "a number under a mask": lambda x: _write_masked(x.clone(), x > 0, 0.5) * torch.arange(8).to(x.device),
}


def _make_on_default_gpu() -> torch.Tensor:
    with torch.device("cuda"):
        return torch.tensor([3.0])


def check(call: Callable[..., Any], made: Callable[..., Any], *shape: int, calls: int = 4) -> None:
    held = []
    for _ in range(calls):
        given = draw(*shape)
        litter = [torch.full((k,), -7.0, device="cuda") for k in (1, 2, 8, 64)]  # where a copy lay that was not kept
        held.append((made(given), call(given)))
        del litter
    for answer, expected in held:
        torch.testing.assert_close(answer, expected, rtol=0, atol=0)


@pytest.mark.parametrize("call", BRINGS.values(), ids=list(BRINGS))
def test_what_is_copied_from_the_cpu_is_captured(call: Callable[..., Any]) -> None:
    check(call, capture_call(call, draw()))


def test_inductors_own_code_copies_from_the_cpu_too() -> None:
    def call(x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x * torch.arange(8).to(x.device)) + torch.tensor([0.5, 2.0], device=x.device)[0]

    made = capture_call(call, draw(), backend="inductor")
    for _ in range(3):
        torch.testing.assert_close(made(given := draw()), call(given))


def test_what_the_model_keeps_on_the_cpu_is_copied_anew_when_it_was_written_to() -> None:
    table = torch.arange(8.0)

    def call(x: torch.Tensor) -> torch.Tensor:
        return x * table.to(x.device)

    made = capture_call(call, draw())
    check(call, made)
    table.mul_(2)
    check(call, made)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda x: x * torch.rand(8).to(x.device), "random numbers on the CPU"),
        (lambda x: x * torch.tensor(np.random.rand(8)).cuda(), "random numbers on the CPU"),
        (lambda x: x * x.mean().item(), "waits for the GPU"),
        (lambda x: x[x > 0], "waits for the GPU"),
    ],
    ids=["torch", "numpy", "number", "size"],
)
def test_what_is_another_on_each_call_is_refused(call: Callable[..., Any], said: str) -> None:
    with pytest.raises(UnsupportedError, match=said):
        capture_call(call, given := draw())(given)
    assert torch.randn(3, device="cuda").shape == (3,), "nothing is left half recorded"


SIZES: dict[str, Callable[[torch.Tensor], Any]] = {
    "mask": lambda x: x[x > 0] * 2,
    "the same mask twice": lambda x: (x[x > 0].sort().values, x.abs()[x > 0]),
    "positions": lambda x: (x.relu() > 1).nonzero().sum(dim=0),
    "where": lambda x: torch.where(x > 0.5)[0] + 1,
    "selected": lambda x: torch.masked_select(x, x < 0).exp(),
    "unique": lambda x: torch.unique((x * 2).round(), return_counts=True),
    "repeated": lambda x: torch.repeat_interleave(x[:, 0], (x[:, 1] > 0).long() + 1) * 2,
    "as many as": lambda x: x.flatten()[: int((x > 0).sum())] * 2,
    "a whole number": lambda x: x * (x > 0).sum().item(),
    "several under a mask": lambda x: _write_masked(x.clone(), x > 0, x[x > 0] * 2) + 1,
    "and yes or no": lambda x: x[x > 0] if x.mean() > 0 else x[x < 0] * 2,
    "and from the CPU": lambda x: x[x > 0] * torch.tensor(0.5).to(x.device),
    "counted": lambda x: torch.bincount((x > 0).long().flatten()) * 2,
    "inverse": lambda x: torch.linalg.inv(x[:, :6]) * 2,
}


def _write_masked(x: torch.Tensor, mask: torch.Tensor, value: Any) -> torch.Tensor:
    x[mask] = value
    return x


@pytest.mark.parametrize("call", SIZES.values(), ids=list(SIZES))
def test_what_depends_on_how_many_there_are_is_captured_in_pieces(call: Callable[..., Any]) -> None:
    made = capture_call(call, draw(), capture="branches")
    draws = [draw() for _ in range(4)]
    for given in [*draws, *draws[::-1], *draws]:
        expected = call(given)
        torch.testing.assert_close(made(given), expected, rtol=0, atol=0)


def test_as_many_as_before_is_replayed_and_another_number_is_recorded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    recorded: list[Any] = []
    record = captured.record_path
    monkeypatch.setattr(captured, "record_path", lambda *a, **o: recorded.append(record(*a, **o)) or recorded[-1])

    def call(x: torch.Tensor) -> torch.Tensor:
        return x[x > 0].sort().values.cumsum(0)

    made = capture_call(call, draw(), capture="branches")
    for count in (3, 5, 3, 3, 5, 5, 3, 40, 5):
        given = -draw().abs().flatten()
        given[torch.randperm(48, device="cuda")[:count]] *= -1
        torch.testing.assert_close(made(given.view(6, 8)), call(given.view(6, 8)), rtol=0, atol=0)
    assert len(recorded) == 3


@pytest.mark.parametrize("greedy", ["while any are left", "torchvision"])
def test_other_ways_to_suppress_boxes(greedy: str) -> None:
    def while_any(boxes: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        left, kept = scores.argsort(descending=True), []
        while left.numel():
            kept.append(left[0])
            left = left[1:][(boxes[left[1:]] - boxes[left[0]]).abs().sum(1) > 1.5]
        return torch.stack(kept)

    def torchvision_nms(boxes: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        nms = pytest.importorskip("torchvision").ops.nms
        return nms(torch.cat([boxes, boxes + 1], dim=1), scores, 0.3)

    suppress = while_any if greedy.startswith("while") else torchvision_nms

    def call(x: torch.Tensor) -> torch.Tensor:
        boxes, scores = x[:, :2], x[:, 2]
        found = scores > 0
        return boxes[found][suppress(boxes[found], scores[found])]

    made = capture_call(call, draw(24, 8), capture="branches")
    draws = [draw(24, 8) for _ in range(3)]
    for given in draws * 3:
        torch.testing.assert_close(made(given), call(given), rtol=0, atol=0)


@pytest.mark.parametrize("name", ["detection", "adaptive", "torchdiffeq"])
@pytest.mark.parametrize("backend", ["eager"])
def test_programs_whose_work_depends_on_their_data(name: str, backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if name == "torchdiffeq":
        pytest.importorskip("torchdiffeq")
    monkeypatch.syspath_prepend(str(TARGETS.parent))
    import data_targets

    workload = getattr(data_targets, name)()
    model, (given,) = workload.call.cuda(), workload.examples[0].args
    made = capture_call(model, given.cuda(), capture="branches", backend=backend)
    draws = [torch.randn_like(given).cuda() for _ in range(3)]
    for x in draws * 3:
        torch.testing.assert_close(made(x), model(x), rtol=0, atol=0)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["detection", "adaptive"])
def test_a_search_captures_them_in_pieces_and_proves_it(name: str, tmp_path: Path) -> None:
    spec = WorkloadSpec(f"{TARGETS}:{name}", device="cuda", calls=10**7)
    with open_storage(str(tmp_path / "store.db")) as storage:
        study = run_study(Request(spec, effort="quick"), storage, ProcessLauncher(), Listener())
    assert "reads_bool" in study.inspection.traits
    tried = {trial.plan: trial for trial in study.trials}[Plan(capture="branches")]
    assert tried.verdict is not None, tried.reason
    assert tried.verdict.outcome is Outcome.PASS, tried.reason
    assert tried.measurement is not None
    assert tried.measurement.speedup.low > 1.5, "no Python of the model runs, and nothing waits but for its questions"
