"""Graphs that read inputs where they lie and write outputs where they are wanted, on a real GPU."""

from __future__ import annotations

import gc
import threading
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torchwise.compile import compile_plan  # noqa: E402
from torchwise.compile.cuda_graphs.in_place_replay import MAX_GRAPHS, SETTLING_CALLS  # noqa: E402
from torchwise.measure.memory import measure_memory_use  # noqa: E402
from torchwise.plan import Plan  # noqa: E402
from torchwise.workload import Example, pytree  # noqa: E402

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def _without_gradients() -> object:
    torch.manual_seed(0)
    with torch.no_grad():
        yield


def capture_call(call: Any, *args: torch.Tensor, backend: str = "eager", borrow: bool = False) -> Any:
    plan = Plan(capture="call", backend=backend)
    return compile_plan(call, plan, Example(args), device="cuda", mode="inference", borrow=borrow).call


def call_until_recorded(call: Any, *args: torch.Tensor) -> Any:
    """Call until nothing is recorded any more, and check that something was."""
    for _ in range(SETTLING_CALLS + 1):
        call(*args)
    [replays] = call._graphs.values()
    assert 1 <= len(replays._in_place) <= MAX_GRAPHS
    return replays


def net() -> torch.nn.Module:
    return torch.nn.Sequential(*[torch.nn.Linear(32, 32), torch.nn.ReLU()] * 4).cuda().eval()


def x() -> torch.Tensor:
    return torch.randn(4, 32, device="cuda")


@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_values_that_changed_in_their_place_are_read(backend: str) -> None:
    model, given = net(), x()
    call = capture_call(model, given, backend=backend)
    replays = call_until_recorded(call, given)
    for tensor in replays.graph.inputs:
        tensor.fill_(float("nan"))
    for _ in range(4):
        given.copy_(x())
        assert torch.allclose(call(given), model(given), atol=1e-5)
    assert replays.graph.inputs[0].isnan().all(), "nothing was copied there"


def test_held_outputs_stay_and_new_inputs_are_read() -> None:
    model, given = net(), x()
    call = capture_call(model, given)
    call_until_recorded(call, given)
    inputs = [x() for _ in range(8)]
    held = [call(one) for one in inputs]
    again = [call(given) for _ in range(8)]
    assert all(torch.equal(answer, model(one)) for answer, one in zip(held, inputs, strict=True))
    assert all(torch.equal(answer, model(given)) for answer in again)
    assert len({answer.data_ptr() for answer in held + again}) == 16


def test_noise_is_fresh_and_follows_the_seed() -> None:
    given = torch.zeros(64, device="cuda")
    call = capture_call(lambda x: x + torch.randn_like(x), given)
    call_until_recorded(call, given)
    answers = [call(given) for _ in range(6)]
    assert len({float(answer[0]) for answer in answers}) == 6
    torch.manual_seed(5)
    first = call(given)
    torch.manual_seed(5)
    assert torch.equal(call(given), first)


def test_weights_that_changed_or_moved_are_seen() -> None:
    model, given = net(), x()
    call = capture_call(model, given)
    call_until_recorded(call, given)
    model[0].weight.mul_(2)
    assert torch.equal(call(given), model(given))
    model[0].weight = torch.nn.Parameter(torch.randn(32, 32, device="cuda"))
    for _ in range(4):
        assert torch.equal(call(given), model(given))


@pytest.mark.parametrize("inference", [True, False])
def test_inputs_are_written_once_per_call_in_their_place(inference: bool) -> None:
    with torch.inference_mode(inference):
        given = torch.zeros(16, device="cuda")
        call = capture_call(lambda x: x.add_(1) * 2, given)
        for number in range(1, SETTLING_CALLS + 4):
            answer = call(given)
            assert torch.equal(given, torch.full_like(given, number))
            assert torch.equal(answer, torch.full_like(given, 2 * number))
        [replays] = call._graphs.values()
        assert replays._in_place


def test_compiled_code_takes_inputs_of_inference_mode() -> None:
    model = net()
    with torch.inference_mode():
        given = x()
        call = capture_call(model, given, backend="inductor")
        call_until_recorded(call, given)
        assert torch.allclose(call(given), model(given), atol=1e-5)


def test_outputs_may_be_read_on_another_stream() -> None:
    given = torch.randn(1 << 20, device="cuda")
    call = capture_call(torch.sin, given)
    call_until_recorded(call, given)
    other = torch.cuda.Stream()
    copies = []
    for number in range(12):
        given.fill_(number)
        answer = call(given)
        other.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(other):
            copies.append(answer * 1)
        answer.record_stream(other)
        del answer
    torch.cuda.synchronize()
    for number, copied in enumerate(copies):
        assert torch.equal(copied, torch.full_like(copied, number).sin())


def test_calls_from_two_streams_wait_for_each_other() -> None:
    given = torch.randn(1 << 20, device="cuda")
    call = capture_call(lambda x: (x * 2 + 1).sin(), given)
    call_until_recorded(call, given)
    streams, answers = [torch.cuda.Stream() for _ in range(2)], []
    torch.cuda.synchronize()
    for number in range(10):
        with torch.cuda.stream(streams[number % 2]):
            mine = given + number
            answers.append((mine, call(mine)))
    torch.cuda.synchronize()
    assert all(torch.equal(answer, (mine * 2 + 1).sin()) for mine, answer in answers)


def test_shapes_take_turns_in_the_same_memory() -> None:
    call = capture_call(lambda x: (x * 2, {"sum": x.sum(0)}), torch.randn(8, 8, device="cuda"))
    for number in range(3 * SETTLING_CALLS):
        given = torch.full((8, 4 + 4 * (number % 3)), float(number), device="cuda")
        twice, sums = call(given)
        assert torch.equal(twice, given * 2)
        assert torch.equal(sums["sum"], given.sum(0))
        del given, twice, sums


def test_graphs_in_place_share_their_memory() -> None:
    def heavy(x: Any) -> Any:
        return (x.expand(4096, -1) * 2).sin().sum(0)

    given = torch.randn(4096, device="cuda")
    call = capture_call(heavy, given)
    call(given)
    torch.cuda.empty_cache()
    once = measure_memory_use("cuda") or 0
    call_until_recorded(call, given)
    torch.cuda.empty_cache()
    assert 0 < (measure_memory_use("cuda") or 0) <= once + (16 << 20), "the intermediate values take 128 MiB"


def test_borrowed_outputs_are_right_until_the_next_call() -> None:
    def call(x: Any) -> Any:
        return x * 2, x.sum()

    given = x()
    borrowed = capture_call(call, given, borrow=True)
    places = set()
    for number in range(SETTLING_CALLS + 4):
        given.fill_(number)
        answers = borrowed(given)
        assert all(torch.equal(*both) for both in zip(pytree.tensors(answers), call(given), strict=True))
        places.add(answers[0].data_ptr())
    assert len(places) == 2, "the memory of the graph that copies, and of that in place"


def test_weights_that_an_outer_autocast_has_cast_are_cast_in_the_graph() -> None:
    model, given = net(), x()
    call = capture_call(model, given)
    for _ in range(3):  # leaving the context frees its casts
        with torch.autocast("cuda", torch.bfloat16):
            for _ in range(4):
                answer, right = call(given), model(given)
                assert torch.equal(answer, right)
        model[0].weight.mul_(1.5)
        filler = [torch.full((32, 32), float("nan"), dtype=torch.bfloat16, device="cuda") for _ in range(64)]
        with torch.autocast("cuda", torch.bfloat16):
            assert torch.equal(call(given), model(given))
        del filler


def test_a_module_that_changed_while_borrowed_outputs_live_is_captured_again() -> None:
    model, given = net(), x()
    call = capture_call(model, given, borrow=True)
    for _ in range(4):
        held = call(given)
    model[0].weight = torch.nn.Parameter(torch.randn(32, 32, device="cuda"))
    for _ in range(4):
        assert torch.equal(call(given), model(given))
    assert held.shape == (4, 32)


def test_another_thread_may_use_the_gpu_while_a_call_is_recorded() -> None:
    given, stop = x(), threading.Event()
    call = capture_call(lambda x: x * 2, given)

    def pin() -> None:
        while not stop.is_set():
            torch.empty(1 << 16).pin_memory()

    thread = threading.Thread(target=pin)
    thread.start()
    try:
        for rows in range(1, 30):
            other = torch.randn(rows, 32, device="cuda")
            assert torch.equal(call(other), other * 2)
    finally:
        stop.set()
        thread.join()


def test_a_graph_in_the_hands_of_the_garbage_collector_spoils_no_recording() -> None:
    def leave_cycle() -> None:
        model, given = net(), x()
        call = capture_call(model, given)
        cycle = [call]
        cycle.append(cycle)
        for _ in range(4):
            call(given)

    def collects(x: Any) -> Any:
        for _ in range(200):
            loop: list[Any] = []
            loop.append(loop)
        return x * 2

    threshold = gc.get_threshold()
    gc.set_threshold(10)
    try:
        for _ in range(5):
            leave_cycle()
            given = x()
            call = capture_call(collects, given)
            for _ in range(4):
                assert torch.equal(call(given), given * 2)
    finally:
        gc.set_threshold(*threshold)


class Keys:
    """A cache of keys, and the place of the next one, as that of a language model."""

    def __init__(self) -> None:
        self.keys, self.place = torch.zeros(64, 32, device="cuda"), torch.zeros(1, dtype=torch.long, device="cuda")


class Decoder(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(32, 32)

    def forward(self, token: Any, cache: Keys) -> dict[str, Any]:
        cache.keys.index_copy_(0, cache.place, self.layer(token))
        cache.place.add_(1)
        return {"scores": token @ cache.keys.mT, "cache": cache}


@pytest.mark.parametrize("backend", ["eager", "inductor"])
@pytest.mark.parametrize("without_gradients", [torch.no_grad, torch.inference_mode])
def test_a_cache_is_read_and_written_where_it_lies_and_tokens_are_copied(backend: str, without_gradients: Any) -> None:
    model = Decoder().cuda().eval()
    with without_gradients():
        ours, right = Keys(), Keys()
        tokens = [torch.randn(1, 32, device="cuda") for _ in range(SETTLING_CALLS + 8)]  # each at a place of its own
        call = compile_plan(
            model, Plan(capture="call", backend=backend), Example((tokens[0], ours)), device="cuda", mode="inference"
        )
        answer_quickly = None
        for token in tokens:
            answer, wanted = (answer_quickly or call.call)(token, ours), model(token, right)
            assert torch.allclose(answer["scores"], wanted["scores"], atol=1e-5)
            assert torch.allclose(ours.keys, right.keys, atol=1e-5)
            assert torch.equal(ours.place, right.place)
            assert answer["cache"] is ours
            answer_quickly = answer_quickly or call.bypass((token, ours), {})
        [replays] = call.call._captured._graphs.values()
        assert replays._mixed is not None, "the cache stayed where it is"
        for tensor in replays.graph.inputs[:2]:
            tensor.fill_(0)  # of the graph that copies: nothing reads them
        other, right = Keys(), Keys()
        for token in tokens[:4]:  # another conversation: the graph that copies answers
            assert torch.allclose(answer_quickly(token, other)["scores"], model(token, right)["scores"], atol=1e-5)
            assert torch.allclose(other.keys, right.keys, atol=1e-5)
        call.close()


def test_a_cache_that_nobody_holds_is_freed_while_its_graph_is_kept() -> None:
    def step(keys: Any, token: Any) -> Any:
        keys.add_(token)
        return keys.sum(0)

    keys = torch.zeros(1 << 24, 2, device="cuda")
    call = capture_call(step, keys, torch.ones(2, device="cuda"))
    tokens = [torch.ones(2, device="cuda") for _ in range(SETTLING_CALLS + 2)]
    for token in tokens:
        call(keys, token)
    [replays] = call._graphs.values()
    assert replays._mixed is not None
    before = torch.cuda.memory_allocated()
    del keys
    gc.collect()
    assert before - torch.cuda.memory_allocated() >= (1 << 24) * 2 * 4
    fresh = torch.zeros(1 << 24, 2, device="cuda")
    assert torch.equal(call(fresh, tokens[0]), fresh.sum(0))
