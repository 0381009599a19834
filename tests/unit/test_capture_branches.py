"""Which paths a call that asks the GPU takes, records and leaves: the logic, with pieces that need no GPU."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from typing import Any

import pytest
import torch
from torch._dynamo.testing import CompileCounter
from torch._subclasses.fake_tensor import FakeTensorMode

from torchwise.errors import PlanError, UnsupportedError
from torchwise.plan import Plan, PlanSpace
from torchwise.realize.capture import CAPTURES
from torchwise.realize.capture.branches import MOST_PATHS, Branches, Path, _asking
from torchwise.realize.capture.frozen import FrozenError, hold
from torchwise.trial.inspection import _compatible, _watched

Program = Callable[[torch.Tensor], Generator[torch.Tensor, bool, torch.Tensor]]
"""A model that yields its questions and is sent the answers."""


def doubles_or_halves(x: torch.Tensor) -> Generator[torch.Tensor, bool, torch.Tensor]:
    positive = yield x.sum() > 0
    return x * 2 if positive else x / 2


def series(x: torch.Tensor) -> Generator[torch.Tensor, bool, torch.Tensor]:
    """Ask once for each term, and once more on the way if the first one is large."""
    total, term = x.clone(), x
    if (yield x.abs().max() > 2):
        total = total + 1
    while (yield term.abs().max() > 0.1):
        term = term / 2
        total = total + term
    return total


def way_of(program: Program, x: torch.Tensor) -> tuple[list[bool], torch.Tensor]:
    """Return the answers that a call is given, and what it returns."""
    answers: list[bool] = []
    running = program(x)
    question = next(running)
    while True:
        answers.append(bool(question))
        try:
            question = running.send(answers[-1])
        except StopIteration as end:
            return answers, end.value


def plainly(program: Program, x: torch.Tensor) -> torch.Tensor:
    return way_of(program, x)[1]


class Machine:
    """Records paths of a program whose pieces compute all that lies before their question once more."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.inputs = [torch.zeros(4)]
        self.recorded, self.original = 0, 0
        self.log: list[str] = []

    def branches(self, **options: Any) -> Branches:
        return Branches(self.inputs, self.record, self.call, lambda: True, **options)

    def call(self, x: torch.Tensor) -> torch.Tensor:
        self.original += 1
        return plainly(self.program, x)

    def record(self) -> Path:
        self.recorded += 1
        number, answers, questions, outputs = self.recorded, [], [], torch.empty(4)
        running = self.program(self.inputs[0])
        try:
            questions.append(next(running).clone())
            while True:
                answers.append(bool(questions[-1]))
                questions.append(running.send(answers[-1]).clone())
        except StopIteration as end:
            outputs.copy_(end.value)

        def piece(place: int) -> None:
            self.log.append(f"{number}.{place}")
            running = self.program(self.inputs[0])
            question = next(running)
            for answer in answers[:place]:
                try:
                    question = running.send(answer)
                except StopIteration as end:
                    outputs.copy_(end.value)
                    return
            questions[place].copy_(question)

        def read(place: int) -> bool:
            self.log.append("read")
            return bool(questions[place])

        places = range(len(answers))
        pieces = [lambda place=place: piece(place) for place in range(len(answers) + 1)]
        return Path(tuple(answers), pieces, [lambda place=place: read(place) for place in places], outputs)


UP, DOWN = torch.tensor([1.0, 2.0, 3.0, 4.0]), torch.tensor([-1.0, -2.0, -3.0, -4.0])


def test_each_way_is_recorded_once_and_answers_by_its_own_inputs() -> None:
    machine = Machine(doubles_or_halves)
    branches = machine.branches()
    for x in (UP, DOWN, DOWN * 3, UP * 5, UP, DOWN):
        assert torch.equal(branches((x,), {}), plainly(doubles_or_halves, x))
    assert machine.recorded == 2
    assert machine.original == 0


def test_the_path_of_the_last_call_is_tried_first_and_what_is_known_is_not_read_again() -> None:
    machine = Machine(doubles_or_halves)
    branches = machine.branches()
    branches((UP,), {})  # the first path is that of zeros, which halves, and number 2 doubles
    branches((DOWN,), {})
    machine.log.clear()
    branches((DOWN,), {})
    assert machine.log == ["1.0", "read", "1.1"]
    machine.log.clear()
    branches((UP,), {})
    assert machine.log == ["1.0", "read", "2.0", "2.1"]
    machine.log.clear()
    branches((UP,), {})
    assert machine.log == ["2.0", "read", "2.1"]


def test_paths_that_part_late_are_found_by_all_of_their_answers() -> None:
    machine = Machine(series)
    branches = machine.branches()
    torch.manual_seed(0)
    draws = [torch.randn(4) * scale for scale in (0.01, 0.3, 1.0, 3.0, 10.0) for _ in range(6)]
    for x in draws + draws[::-1]:
        assert torch.equal(branches((x,), {}), plainly(series, x))
    ways = {tuple(way_of(series, x)[0]) for x in (*draws, torch.zeros(4))}  # zeros lay there at first
    assert machine.recorded == len(ways) > 5
    assert machine.original == 0


def test_answers_may_be_held_unless_they_are_borrowed() -> None:
    kept = Machine(doubles_or_halves).branches()
    first = kept((UP,), {})
    kept((UP * 7,), {})
    assert torch.equal(first, UP * 2)
    lent = Machine(doubles_or_halves).branches(borrow=True)
    assert lent((UP,), {}) is lent((UP * 7,), {})


def test_where_there_are_too_many_ways_the_model_answers() -> None:
    def counts(x: torch.Tensor) -> Generator[torch.Tensor, bool, torch.Tensor]:
        for place in range(10):
            if (yield (x[0].int() >> place) % 2 == 1):
                x = x + place
        return x

    machine = Machine(counts)
    branches = machine.branches()
    for number in range(MOST_PATHS + 5):
        x = torch.full((4,), float(number))
        assert torch.equal(branches((x,), {}), plainly(counts, x))
    assert len(branches.paths) == machine.recorded == MOST_PATHS
    assert machine.original == 5


def test_a_frozen_plan_takes_the_ways_that_it_has_and_records_no_other() -> None:
    branches = Machine(doubles_or_halves).branches()
    branches((DOWN,), {})
    held = hold(lambda x: branches((x,), {}))
    assert torch.equal(held(DOWN), DOWN / 2)
    with pytest.raises(FrozenError, match="another way"):
        held(UP)
    assert torch.equal(branches((UP,), {}), UP * 2)


def test_what_was_freed_answers_no_more() -> None:
    branches = Machine(doubles_or_halves).branches()
    branches.drop()
    assert branches.dropped
    assert branches.paths == []


@pytest.fixture
def gpu() -> FakeTensorMode:
    return FakeTensorMode()


def test_only_questions_to_the_gpu_in_this_thread_are_asked(gpu: FakeTensorMode) -> None:
    asked: list[torch.Tensor] = []

    def ask(question: torch.Tensor) -> bool:
        asked.append(question)
        return len(asked) % 2 == 1

    def elsewhere(answer: list[bool]) -> None:
        answer.append(bool(torch.ones(())))

    with gpu:
        there, number, several = (torch.ones(n, device="cuda") for n in ((), (1,), (2,)))
    with _asking(ask):
        assert bool(there > 0)
        assert not number  # of any dtype, as Python asks it
        assert (there > 0).item() is True
        assert len(asked) == 3
        assert bool(torch.ones(())), "the CPU's is there already"
        with pytest.raises(Exception, match="_local_scalar_dense"):
            there.item()  # a number is no question
        with pytest.raises(RuntimeError, match=r"(?i)ambiguous"):
            bool(several)
        found: list[bool] = []
        thread = threading.Thread(target=elsewhere, args=(found,))
        thread.start()
        thread.join()
        assert found == [True]
    assert len(asked) == 3
    assert "__bool__" not in vars(torch.Tensor)
    assert "item" not in vars(torch.Tensor)


def test_a_question_at_which_dynamo_breaks_the_graph_is_asked_and_nothing_is_compiled_for_it() -> None:
    asked: list[torch.Tensor] = []

    def ask(question: torch.Tensor) -> bool:
        asked.append(question.clone())
        return True

    def asks(x: torch.Tensor) -> torch.Tensor:
        return x * 2 if x.sum() > 0 else x / 2

    counter = CompileCounter()
    compiled = torch.compile(asks, backend=counter)
    compiled(UP), compiled(DOWN)
    frames = counter.frame_count
    with _asking(ask, "cpu"):
        assert torch.equal(compiled(DOWN), DOWN * 2)
    assert len(asked) == 1
    assert counter.frame_count == frames


@pytest.mark.parametrize(
    ("device", "mode", "said"), [("cpu", "inference", "only CUDA"), ("cuda", "training", "backward")]
)
def test_it_is_for_inference_on_a_gpu(device: str, mode: str, said: str) -> None:
    with pytest.raises(UnsupportedError, match=f"capture is 'branches'.*{said}"):
        CAPTURES["branches"](torch.relu, None, device=device, mode=mode)


def test_a_training_step_is_not_captured_in_branches() -> None:
    with pytest.raises(PlanError, match="do not train"):
        Plan(capture="branches", optimizer="fused")


@pytest.mark.parametrize(
    ("call", "asks"),
    [
        (lambda x: x * 2 if x.sum() > 0 else x, True),
        (lambda x: x * 2 if x.any().item() else x, True),
        (lambda x: x * x.sum().item(), False),
        (lambda x: x * x.int().sum().item(), False),
        (lambda x: x * 2, False),
    ],
    ids=["if", "item of a bool", "number", "integer", "none"],
)
def test_the_inspection_finds_questions_to_the_gpu(
    call: Callable[[torch.Tensor], object], asks: bool, gpu: FakeTensorMode
) -> None:
    with gpu:
        there = torch.ones(3, device="cuda")
        here = torch.ones(3)
        assert ("questions" in _watched(lambda: call(there))[0]) is asks
        assert "questions" not in _watched(lambda: call(here))[0], "what the CPU has is no question to the GPU"


def test_a_search_captures_in_branches_what_asks_and_whole_what_does_not() -> None:
    def captures(*traits: str) -> list[str]:
        space = PlanSpace("cuda", "inference", frozenset(traits), effort="quick")
        return [choice.value for choice in space.choices() if choice.field == "capture"]

    assert captures("floating") == ["call"]
    assert captures("questions") == ["branches"]
    assert captures("questions", "stochastic") == captures("questions", "writes_inputs") == []
    assert captures("questions", "prints") == []
    assert _compatible(frozenset({"questions", "static_form"})) == {"static_form"}
