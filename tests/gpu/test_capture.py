"""Every hazard of replaying a CUDA graph, on a real GPU. Each test fails when its protection is taken out."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torchwise.compile import compile_plan  # noqa: E402
from torchwise.compile.cuda_graphs import capture_stream  # noqa: E402
from torchwise.compile.cuda_graphs.call_graph import CapturedCall  # noqa: E402
from torchwise.compile.cuda_graphs.segmented import SegmentedCall  # noqa: E402
from torchwise.errors import UnsupportedError  # noqa: E402
from torchwise.measure.memory import measure_memory_use  # noqa: E402
from torchwise.plan import Plan  # noqa: E402
from torchwise.testing.cuda_graph import Capture, CudaGraphContract  # noqa: E402
from torchwise.trial.harness import measure_memory_with_inputs, memory_growth  # noqa: E402
from torchwise.workload import Example, Workload  # noqa: E402

pytestmark = pytest.mark.gpu

CAPTURE = Plan(capture="call")


def capture_call(call: object, *args: torch.Tensor) -> object:
    return compile_plan(call, CAPTURE, Example(args), device="cuda", mode="inference").call  # type: ignore[arg-type]


@pytest.fixture
def net() -> torch.nn.Module:
    torch.manual_seed(0)
    layers = [torch.nn.Linear(32, 32), torch.nn.ReLU()] * 4
    return torch.nn.Sequential(*layers).cuda().eval()


@pytest.fixture(autouse=True)
def _without_gradients() -> object:
    with torch.no_grad():
        yield


def x(rows: int = 4) -> torch.Tensor:
    return torch.randn(rows, 32, device="cuda")


class TestCapturedCall(CudaGraphContract):
    @pytest.fixture
    def capture(self) -> Capture:
        return lambda call, module: CapturedCall(call, module, device="cuda", mode="inference")


def ask_first(call: Callable[..., Any]) -> Callable[..., Any]:
    """Have a call read a bool from the GPU, as it is captured in segments for that."""
    return lambda x, *args, **kwargs: call(x, *args, **kwargs) if x.abs().max() >= 0 else None


class TestSegmentedCall(CudaGraphContract):
    @pytest.fixture
    def capture(self) -> Capture:
        return lambda call, module: SegmentedCall(ask_first(call), module, device="cuda", mode="inference")


def test_it_answers_as_eager_does_on_fresh_inputs(net: torch.nn.Module) -> None:
    call = capture_call(net, x())
    for rows in (4, 8, 4, 1):
        given = x(rows)
        assert torch.equal(call(given), net(given))  # type: ignore[operator]


def test_held_outputs_are_not_overwritten(net: torch.nn.Module) -> None:
    call = capture_call(net, x())
    first_input = x()
    first = call(first_input)  # type: ignore[operator]
    call(x())  # type: ignore[operator]
    assert torch.equal(first, net(first_input))


def test_noise_is_fresh_on_every_replay_and_follows_the_seed() -> None:
    call = capture_call(torch.nn.Dropout(0.5).train(), x())
    ones = torch.ones(4, 32, device="cuda")
    call(ones)  # type: ignore[operator]
    torch.manual_seed(1)
    first, second = call(ones), call(ones)  # type: ignore[operator]
    torch.manual_seed(1)
    again = call(ones)  # type: ignore[operator]
    assert not torch.equal(first, second)
    assert torch.equal(first, again)


def test_capturing_uses_up_no_random_numbers() -> None:
    given = x()
    torch.manual_seed(5)
    expected = [given + torch.randn_like(given), torch.randn(3, device="cuda")]
    call = capture_call(lambda t: t + torch.randn_like(t), given)
    torch.manual_seed(5)
    assert torch.equal(call(given), expected[0])  # type: ignore[operator]
    assert torch.equal(torch.randn(3, device="cuda"), expected[1])


def test_weights_changed_in_place_are_seen(net: torch.nn.Module) -> None:
    call = capture_call(net, x())
    given = x()
    call(given)  # type: ignore[operator]
    net[0].weight.mul_(2.0)
    assert torch.equal(call(given), net(given))  # type: ignore[operator]


def test_weights_that_moved_lead_to_a_new_capture(net: torch.nn.Module) -> None:
    call = capture_call(net, x())
    given = x()
    call(given)  # type: ignore[operator]
    net[0].weight = torch.nn.Parameter(torch.randn(32, 32, device="cuda"))
    assert torch.equal(call(given), net(given))  # type: ignore[operator]


def test_inputs_that_the_call_writes_are_written_back() -> None:
    def writes(t: torch.Tensor) -> torch.Tensor:
        t.add_(1.0)
        return t * 2

    call = capture_call(writes, x())
    for _ in range(2):
        given = x()
        expected = given + 1
        answer = call(given)  # type: ignore[operator]
        assert torch.equal(given, expected)
        assert torch.equal(answer, expected * 2)


def test_inputs_written_in_inference_mode_are_written_back() -> None:
    def writes(t: torch.Tensor) -> torch.Tensor:
        return t.add_(1.0)

    call = capture_call(writes, x())
    with torch.inference_mode():
        given = x()
        expected = given + 1
        call(given)  # type: ignore[operator]
        assert torch.equal(given, expected)


def test_batch_norm_statistics_move_once_per_call() -> None:
    def fresh() -> torch.nn.Module:
        return torch.nn.BatchNorm1d(32).cuda().train()

    ours, theirs = fresh(), fresh()
    call = capture_call(ours, x())
    for _ in range(3):
        given = x()
        call(given)  # type: ignore[operator]
        theirs(given)
    assert torch.allclose(ours.running_mean, theirs.running_mean, atol=1e-6)
    assert int(ours.num_batches_tracked) == int(theirs.num_batches_tracked) == 3


def test_threads_take_turns(net: torch.nn.Module) -> None:
    """Threads replay and record graphs beside eager calls. Answers from before show which of the two is wrong.

    On one CPU core one call of 200 once differed (H200, torch 2.11), with no word of which side was wrong.
    """
    call = capture_call(net, x())
    call(x())  # type: ignore[operator]
    wrong: list[str] = []
    given = [[torch.randn(4, 32, device="cuda") for _ in range(50)] for _ in range(4)]
    expected = [[net(one) for one in several] for several in given]
    torch.cuda.synchronize()

    def work(number: int) -> None:
        with torch.no_grad():
            for turn, (one, answer) in enumerate(zip(given[number], expected[number], strict=True)):
                for side, found in (("replay", call(one.clone())), ("eager", net(one))):  # type: ignore[operator]
                    if not torch.equal(found, answer):
                        wrong.append(f"{side} {number}.{turn}: {(found - answer).abs().max().item():.2g}")

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong, wrong


@pytest.mark.slow
@pytest.mark.parametrize("core", ["all", "one"])
def test_recording_leaves_products_of_other_threads_alone(core: str) -> None:
    """Products that are split along the inner dimension keep partial sums in a workspace of one thread and stream.

    A recording needs a workspace that stays. PyTorch's own recordings clear everybody's workspaces for that, but a
    recording here must not: a product under way in another thread would lose its partial sums.
    """
    a, b = torch.randn(64, 1 << 16, device="cuda"), torch.randn(1 << 16, 64, device="cuda")
    expected = a @ b
    torch.cuda.synchronize()
    done, wrong, turns = threading.Event(), [0, 0], [0, 0]

    def work(number: int) -> None:
        with torch.no_grad():
            while not done.is_set():
                wrong[number] += not torch.equal(a @ b, expected)
                turns[number] += 1

    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)} if core == "one" else before)
    threads = [threading.Thread(target=work, args=(number,)) for number in range(2)]
    try:
        for thread in threads:
            thread.start()
        for _ in range(100):
            fresh = capture_call(torch.nn.Linear(32, 32).cuda(), x())
            fresh(x())  # type: ignore[operator]
    finally:
        done.set()
        for thread in threads:
            thread.join()
        os.sched_setaffinity(0, before)
    assert min(turns) > 10
    assert wrong == [0, 0], turns


def split_along_the_inner_dimension(bias: bool) -> tuple[torch.nn.Module, torch.Tensor]:
    """Few rows and many columns: products whose partial sums lie in a workspace, in cuBLASLt's if there is a bias."""
    model = torch.nn.Linear(1 << 16, 64, bias=bias).cuda().eval()
    return model, torch.randn(64, 1 << 16, device="cuda")


def check_after_others_cleared(call: object, given: torch.Tensor, expected: torch.Tensor) -> None:
    """Clear everybody's workspaces, as PyTorch's own graphs do, take the memory, and replay."""
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.empty_cache()
    others = [torch.full((2**20,), 7.0, device="cuda") for _ in range(64)]
    for _ in range(3):
        assert torch.equal(call(given), expected)  # type: ignore[operator]
    torch.cuda.synchronize()
    assert all(bool((other == 7.0).all()) for other in others), "a replay wrote to memory that is somebody else's"


@pytest.mark.slow
@pytest.mark.parametrize("bias", [False, True])
def test_plans_replay_beside_each_other_in_workspaces_of_their_own(bias: bool) -> None:
    torch.manual_seed(0)
    plans = []
    for _ in range(3):
        model, given = split_along_the_inner_dimension(bias)
        plans.append((capture_call(model, given), given))
        plans[-1][0](given)  # type: ignore[operator]
    expected = [call(given) for call, given in plans]  # type: ignore[operator]
    wrong = [0] * len(plans)

    def work(number: int) -> None:
        call, given = plans[number]
        with torch.no_grad(), torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(500):
                wrong[number] += not torch.equal(call(given), expected[number])  # type: ignore[operator]

    torch.cuda.synchronize()
    threads = [threading.Thread(target=work, args=(number,)) for number in range(len(plans))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == [0] * len(plans)


def test_a_thread_that_never_multiplied_matrices_records() -> None:
    """Its recording asks for a workspace all the same, and so for a handle of cuBLAS, which must exist by then."""
    given = x()
    answers: list[torch.Tensor] = []

    def work() -> None:
        with torch.no_grad():
            answers.append(capture_call(torch.relu, given)(given))  # type: ignore[operator]

    threads = [threading.Thread(target=work) for _ in range(3)]  # at once: a thread takes the handle of one that ended
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(answers) == 3
    assert all(torch.equal(answer, torch.relu(given)) for answer in answers)


@pytest.mark.parametrize("bias", [False, True])
def test_a_plan_that_dies_leaves_its_workspace_to_the_next(bias: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        capture_stream, "_free", capture_stream.defaultdict(list)
    )  # those of other threads lack some workspaces
    torch.manual_seed(0)
    model, given = split_along_the_inner_dimension(bias)
    expected = capture_call(model, given)(given)  # type: ignore[operator]
    gc.collect()
    held = []
    for turn in range(6):
        call = capture_call(model, given)
        assert torch.equal(call(given), expected)  # type: ignore[operator]
        if turn % 2:
            check_after_others_cleared(call, given, expected)
        del call
        gc.collect()
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        held.append(torch.cuda.memory_reserved())
    assert max(held[-2:]) <= max(held[:2]), held


@pytest.mark.parametrize("bias", [False, True])
def test_what_is_recorded_anew_finds_workspaces_that_stay(bias: bool) -> None:
    torch.manual_seed(0)
    model, given = split_along_the_inner_dimension(bias)
    call = capture_call(model, given)
    for _ in range(2):
        call(given)  # type: ignore[operator]
        model.weight.data = torch.randn_like(model.weight)  # the next call records anew, in a pool of its own
    expected = call(given)  # type: ignore[operator]
    assert torch.allclose(expected, model(given), atol=1e-2)
    gc.collect()
    check_after_others_cleared(call, given, expected)


class Forces(torch.nn.Module):
    """Gives the gradient of an energy, while no gradients are asked for.

    The backward pass, in autograd's own thread, has the product that is split along its inner dimension.
    """

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(64, 1 << 16)

    def forward(self, places: torch.Tensor) -> torch.Tensor:
        with torch.enable_grad():
            places = places.detach().requires_grad_()
            return torch.autograd.grad(self.layer(places).square().sum(), places)[0]


def test_forces_are_captured_and_replayed_after_the_workspaces_were_cleared() -> None:
    torch.manual_seed(0)
    model, given = Forces().cuda().eval(), torch.randn(64, 64, device="cuda")
    for _ in range(2):  # the second plan takes the first one's stream
        call = capture_call(model, given)
        expected = call(given)  # type: ignore[operator]
        torch.testing.assert_close(expected, model(given), rtol=1e-4, atol=1e-2)  # of numbers about 1000
        check_after_others_cleared(call, given, expected)
        del call
        gc.collect()


def test_streams_wait_for_each_other() -> None:
    def slow(t: torch.Tensor) -> torch.Tensor:
        for _ in range(20):
            t = t @ t / 1000
        return t

    big = [torch.randn(1024, 1024, device="cuda") for _ in range(2)]
    call = capture_call(slow, big[0])
    expected = [slow(t) for t in big]
    call(big[0])  # type: ignore[operator]
    torch.cuda.synchronize()
    answers = []
    for given, stream in zip(big, (torch.cuda.Stream(), torch.cuda.Stream()), strict=True):
        with torch.cuda.stream(stream):
            answers.append(call(given))  # type: ignore[operator]
    torch.cuda.synchronize()
    for answer, right in zip(answers, expected, strict=True):
        assert torch.allclose(answer, right)


def test_autocast_and_plain_calls_do_not_share_a_graph(net: torch.nn.Module) -> None:
    call = capture_call(net, x())
    given = x()
    plain = call(given)  # type: ignore[operator]
    with torch.autocast("cuda", torch.bfloat16):
        cast = call(given)  # type: ignore[operator]
    assert plain.dtype is torch.float32
    assert cast.dtype is torch.bfloat16


def test_a_recurrent_net_is_captured() -> None:
    gru = torch.nn.GRU(16, 32, 2, batch_first=True).cuda().eval()
    given = torch.randn(2, 5, 16, device="cuda")
    call = capture_call(gru, given)
    ours, theirs = call(given), gru(given)  # type: ignore[operator]
    assert torch.allclose(ours[0], theirs[0], atol=1e-6)
    assert torch.allclose(ours[1], theirs[1], atol=1e-6)


def test_inputs_on_the_cpu_are_refused(net: torch.nn.Module) -> None:
    with pytest.raises(UnsupportedError, match="is on cpu"):
        capture_call(lambda t, index: t * index.cuda(), x(), torch.ones(1))(x(), torch.ones(1))  # type: ignore[operator]


def test_gradients_are_refused(net: torch.nn.Module) -> None:
    call = capture_call(net, x())
    with torch.enable_grad(), pytest.raises(UnsupportedError, match="requires gradients"):
        call(x().requires_grad_())  # type: ignore[operator]


def test_other_work_goes_on_after_a_call_that_cannot_be_captured(net: torch.nn.Module) -> None:
    def synchronises(t: torch.Tensor) -> torch.Tensor:
        return t * float(t.sum().item())

    with pytest.raises(UnsupportedError, match=r"the call cannot be captured, because of .*in synchronises: `.*item"):
        capture_call(synchronises, x())(x())  # type: ignore[operator]
    given = x()
    torch.cuda.synchronize()
    assert torch.equal(capture_call(net, given)(given), net(given))  # type: ignore[operator]


def test_a_signature_that_cannot_be_captured_leaves_the_others_and_the_current_stream_alone() -> None:
    """After a failed end of a capture, torch 2.11 keeps the stream as the current one, and the pool open."""

    def picky(t: torch.Tensor) -> torch.Tensor:
        return t * float(t.sum().item()) if len(t) == 3 else t * 2

    call, first, stream = capture_call(picky, x()), x(), torch.cuda.current_stream()
    assert torch.equal(call(first), first * 2)  # type: ignore[operator]
    for _ in range(2):
        with pytest.raises(UnsupportedError, match="item"):
            call(x(3))  # type: ignore[operator]
        assert torch.cuda.current_stream() == stream
    for given in (x(8), x(16), first):
        assert torch.equal(call(given), given * 2)  # type: ignore[operator]
    noisy = capture_call(lambda t: t + torch.randn_like(t), first)
    assert not torch.equal(noisy(first), noisy(first))  # type: ignore[operator]


def test_memory_used_on_two_streams_is_given_out_again_after_a_capture_that_failed() -> None:
    with pytest.raises(UnsupportedError):
        capture_call(lambda t: t * float(t.sum().item()), x())(x())  # type: ignore[operator]
    other = torch.cuda.Stream()
    for _ in range(2):
        torch.cuda.synchronize()
        before = torch.cuda.memory_reserved()
        for _ in range(64):
            used = torch.empty(1 << 24, dtype=torch.uint8, device="cuda")
            used.record_stream(other)
            del used
            torch.cuda.synchronize()
    assert torch.cuda.memory_reserved() <= before


def test_deterministic_programs_are_captured_and_replayed_after_the_workspaces_were_cleared() -> None:
    torch.manual_seed(0)
    model, given = split_along_the_inner_dimension(bias=True)
    torch.use_deterministic_algorithms(True)
    try:
        call = capture_call(model, given)
        expected = call(given)  # type: ignore[operator]
        check_after_others_cleared(call, given, expected)
    finally:
        torch.use_deterministic_algorithms(False)


def test_calls_are_captured_under_anomaly_detection() -> None:
    with torch.enable_grad():
        torch.ones(1, requires_grad=True).sum().backward()  # so that this thread has differentiated
    given = x()
    with pytest.warns(UserWarning, match="Anomaly Detection"), torch.autograd.detect_anomaly():
        assert torch.equal(capture_call(torch.relu, given)(given), torch.relu(given))  # type: ignore[operator]


# ---- a module that changes after it was captured


class Net(torch.nn.Module):
    """Deterministic in both modes, and different in each."""

    def __init__(self) -> None:
        super().__init__()
        self.body = torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.Linear(32, 32, bias=False))
        self.norm = torch.nn.BatchNorm1d(32, track_running_stats=True)
        self.register_buffer("shift", torch.zeros(32))
        self.extra = None

    def forward(self, t: torch.Tensor) -> torch.Tensor:
        t = self.norm(self.body(t)) + self.shift
        if hasattr(self, "late"):
            t = t * self.late
        return t if self.extra is None else self.extra(t)


@pytest.fixture
def changing() -> Net:
    torch.manual_seed(0)
    return Net().cuda().eval()


def draw_tensor(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, device="cuda")


CHANGES = {
    "submodule replaced": lambda m: m.body.__setitem__(0, torch.nn.Linear(32, 32).cuda()),
    "submodule added": lambda m: setattr(m, "extra", torch.nn.Tanh()),
    "submodule removed": lambda m: m.body.__delitem__(1),
    "parameter registered": lambda m: m.register_parameter("late", torch.nn.Parameter(draw_tensor(32))),
    "parameter where None was": lambda m: setattr(m.body[1], "bias", torch.nn.Parameter(draw_tensor(32))),
    "parameter set to None": lambda m: setattr(m.body[0], "bias", None),
    "buffer registered": lambda m: m.register_buffer("late", draw_tensor(32)),
    "buffer replaced": lambda m: setattr(m, "shift", draw_tensor(32)),
    "plain attribute rebound": lambda m: setattr(m.norm, "eps", 1.0),
    "hook registered": lambda m: m.norm.register_forward_hook(lambda _m, _i, out: out + 1),
    "weights moved": lambda m: setattr(m.body[0].weight, "data", draw_tensor(32, 32)),
    "one submodule to training": lambda m: m.norm.train(),
    "all to training": lambda m: m.train(),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=list(CHANGES))
def test_a_changed_module_is_captured_again(changing: Net, change: object) -> None:
    call = capture_call(changing, x())
    given = x()
    before = call(given)  # type: ignore[operator]
    assert torch.allclose(before, changing(given), atol=1e-5)
    change(changing)  # type: ignore[operator]
    expected = changing(given)
    assert not torch.allclose(before, expected, atol=1e-5), "the change must show"
    for _ in range(2):
        assert torch.allclose(call(given), expected, atol=1e-5)  # type: ignore[operator]


def test_what_was_removed_and_what_came_are_followed_in_turn(changing: Net) -> None:
    call = capture_call(changing, x())
    given = x()
    for _ in range(2):
        changing.register_buffer("late", draw_tensor(32))
        assert torch.allclose(call(given), changing(given), atol=1e-5)  # type: ignore[operator]
        del changing.late
        assert torch.allclose(call(given), changing(given), atol=1e-5)  # type: ignore[operator]


def test_an_unchanged_module_is_captured_once(changing: Net) -> None:
    call = capture_call(changing, x())
    given = x()
    call(given)  # type: ignore[operator]
    graphs = list(map(id, call._graphs.values()))  # type: ignore[attr-defined]
    changing.body[0].weight.mul_(2.0)
    changing.eval()
    assert torch.allclose(call(given), changing(given), atol=1e-5)  # type: ignore[operator]
    assert list(map(id, call._graphs.values())) == graphs  # type: ignore[attr-defined]


def test_a_replay_that_is_thrown_away_has_written_nothing() -> None:
    class Counting(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", torch.zeros((), device="cuda"))
            self.scale = 1.0

        def forward(self, t: torch.Tensor) -> torch.Tensor:
            self.count.add_(1)
            return t * self.scale

    module = Counting()
    call = capture_call(module, x())
    given = x()
    for scale in (1.0, 1.0, 2.0, 3.0):
        module.scale = scale
        assert torch.equal(call(given), given * scale)  # type: ignore[operator]
    assert module.count.item() == 4


def test_an_input_is_written_once_also_when_the_module_changed() -> None:
    class Adding(torch.nn.Module):
        step = 1.0

        def forward(self, t: torch.Tensor) -> torch.Tensor:
            return t.add_(self.step)

    module = Adding()
    module.step = 1.0
    given = torch.zeros(4, device="cuda")
    call = capture_call(module, given.clone())
    for step, expected in ((1.0, 1.0), (1.0, 2.0), (5.0, 7.0)):
        module.step = step
        call(given)  # type: ignore[operator]
        assert given.tolist() == [expected] * 4


def test_memory_of_replaced_weights_is_not_read_by_others_meanwhile(net: torch.nn.Module) -> None:
    call = capture_call(net, x())
    given = x()
    call(given)  # type: ignore[operator]
    for layer in net[::2]:
        layer.weight.data = torch.randn(32, 32, device="cuda")
    torch.cuda.empty_cache()
    assert torch.allclose(call(given), net(given), atol=1e-5)  # type: ignore[operator]


def test_the_lean_way_answers_alike_and_follows_changes(changing: Net) -> None:
    realized = compile_plan(changing, CAPTURE, Example((x(),)), device="cuda", mode="inference")
    given = x()
    realized.call(given)
    lean = realized.bypass((given,), {})
    assert torch.allclose(lean(given), changing(given), atol=1e-5)
    changing.norm.eps = 1.0
    assert torch.allclose(lean(given), changing(given), atol=1e-5)
    realized.close()
    assert torch.allclose(lean(given), changing(given), atol=1e-5)


def test_others_may_clear_the_workspaces_of_matrix_products() -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(*(torch.nn.Linear(512, 512, bias=False) for _ in range(3))).cuda().half().eval()
    # Few rows and many columns: products that are split and summed in the workspace.
    given = torch.randn(8, 512, device="cuda").half()
    call = capture_call(model, given)
    expected = call(given)  # type: ignore[operator]
    check_after_others_cleared(call, given, expected)


def test_a_captured_graph_and_those_of_torch_compile_live_side_by_side(net: torch.nn.Module) -> None:
    given = x()
    expected = net(given)
    call = capture_call(net, given)
    call(given)  # type: ignore[operator]
    compiled = torch.compile(net, mode="reduce-overhead")
    for _ in range(10):
        assert torch.allclose(call(given), expected, atol=1e-4)  # type: ignore[operator]
        assert torch.allclose(compiled(given), expected, atol=1e-4)
    torch.cuda.synchronize()


def test_the_inputs_of_a_candidate_are_not_its_own_memory() -> None:
    given = torch.randn(2**24, device="cuda")
    workload = Workload(torch.relu, (Example((given,)),))
    before = measure_memory_with_inputs(workload, "cuda")
    kept = [example.clone() for example in workload.examples]
    assert memory_growth(before, "cuda") < 2**20
    kept += [example.clone() for example in workload.examples]
    assert memory_growth(before, "cuda") >= given.nbytes


def test_memory_that_a_graph_keeps_is_counted() -> None:
    given = torch.randn(256, 1024, device="cuda")
    call = capture_call(lambda t: (t.repeat(64, 1) * 2).sum(0), given)
    before = measure_memory_use("cuda")
    call(given)  # type: ignore[operator]
    after = measure_memory_use("cuda")
    assert before is not None
    assert after is not None
    assert after - before >= 64 * given.nbytes, "an intermediate result stays reserved between replays"


def test_outputs_in_nested_containers_are_copied() -> None:
    call = capture_call(lambda t: {"a": [t * 2, (t * 3, None)], "b": 4}, x())
    given = x()
    first = call(given)  # type: ignore[operator]
    call(x())  # type: ignore[operator]
    assert torch.equal(first["a"][0], given * 2)
    assert torch.equal(first["a"][1][0], given * 3)
    assert first["a"][1][1] is None
    assert first["b"] == 4


def test_a_buffer_that_took_shape_on_the_first_call_is_read() -> None:
    class Cached(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("table", torch.zeros(0, device="cuda"), persistent=False)

        def forward(self, t: torch.Tensor) -> torch.Tensor:
            if self.table.numel() < t.shape[0]:
                self.table = torch.arange(t.shape[0], device="cuda") * 1.0
            return t * self.table[: t.shape[0], None]

    module = Cached()
    call = capture_call(module, x())
    for rows in (4, 8, 4, 8):
        given = x(rows)
        assert torch.equal(call(given), module(given))  # type: ignore[operator]


def test_a_call_that_rebinds_its_own_buffer_is_refused() -> None:
    class Rebinding(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", torch.zeros(32, device="cuda"))

        def forward(self, t: torch.Tensor) -> torch.Tensor:
            self.count = self.count + 1
            return t + self.count

    with pytest.raises(UnsupportedError, match="replaces tensors"):
        capture_call(Rebinding(), x())(x())  # type: ignore[operator]


# ---- outputs that cannot be copied, and inputs that hold tensors


class Opaque:
    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor


@dataclass
class Batch:
    values: torch.Tensor
    scale: float = 1.0


@pytest.mark.parametrize("wrap", [Opaque, lambda t: [t, Opaque(t)], lambda t: Batch(Opaque(t))])  # type: ignore[arg-type]
def test_an_output_that_cannot_be_copied_is_refused(wrap: object) -> None:
    with pytest.raises(UnsupportedError, match="an object of type Opaque"):
        capture_call(lambda t: wrap(t * 2), x())(x())  # type: ignore[operator]


def test_outputs_in_dataclasses_are_copied() -> None:
    call = capture_call(lambda t: Batch(t * 2, 3.0), x())
    given = x()
    first = call(given)  # type: ignore[operator]
    call(x())  # type: ignore[operator]
    assert torch.equal(first.values, given * 2)
    assert first.scale == 3.0


def test_inputs_in_dataclasses_are_captured_by_shape_and_value() -> None:
    def scale_batch(batch: Batch) -> torch.Tensor:
        return batch.values * batch.scale

    call = capture_call(scale_batch, Batch(x()))  # type: ignore[arg-type]
    for rows, scale in ((4, 1.0), (8, 1.0), (4, 2.0), (4, 1.0)):
        batch = Batch(x(rows), scale)
        assert torch.equal(call(batch), scale_batch(batch))  # type: ignore[operator]
    assert len(call._graphs) == 3  # type: ignore[attr-defined]


def test_derived_weights_are_refreshed_under_capture(net: torch.nn.Module) -> None:
    plan = Plan(precision="bf16", capture="call")
    call = compile_plan(net, plan, Example((x(),)), device="cuda", mode="inference").call
    given = x()
    call(given)
    net[0].weight.mul_(2.0)
    assert torch.allclose(call(given), net(given), atol=0.1)
    net[2].weight.data = torch.randn(32, 32, device="cuda") / 6  # so that numbers stay near 1
    assert torch.allclose(call(given), net(given), atol=0.1)


@pytest.mark.slow
@pytest.mark.parametrize("capture", ["none", "call"])
def test_weights_that_are_frozen_anew_are_what_answers(net: torch.nn.Module, capture: str) -> None:
    """Dynamo tells compiled code apart by backend and module, and not by the values of frozen weights."""
    given = torch.randn(8, 32, device="cuda")
    unfrozen = Plan(backend="inductor")
    frozen = unfrozen.with_choice("options", ("freezing", True)).with_choice("capture", capture)
    for plan in (frozen, frozen, unfrozen, frozen):
        with torch.no_grad():
            for weight in net.parameters():
                weight.normal_(std=0.2)
        answer = compile_plan(net, plan, Example((given,)), device="cuda", mode="inference").call(given)
        torch.testing.assert_close(answer, net(given), rtol=1e-4, atol=1e-5)
