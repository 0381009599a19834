"""Rolling: repetitions are found, only truly equal ones are shared, and the answer stays the same."""

from __future__ import annotations

import copy
import gc
import itertools
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from torchwise.compile import compile_plan
from torchwise.compile.backends import graphs
from torchwise.compile.loop_rolling import LONG, LoopRolling, inductor, wrap_backend
from torchwise.compile.loop_rolling.repetitions import MIN_TIMES, Repetition, covers, repetitions
from torchwise.errors import NoEffectError, UnsupportedError
from torchwise.plan import Plan
from torchwise.trial.inspection import _trace_operators
from torchwise.workload import Example
from torchwise_models.zoo.ivhl.condensate import gross_pitaevskii

ROLLED = Plan(backend="inductor", scope="rolled")
COMPLEX = Plan(backend="inductor", scope="rolled", transforms=("complex_to_real",))
patient = settings(deadline=None)


# ---- repetitions in a sequence


@pytest.mark.parametrize(
    ("labels", "found"),
    [
        ("", []),
        ("ab", []),
        ("abab", []),
        ("abcdefgh", []),
        ("ababab", [(0, 6, 2)]),
        ("abababa", [(0, 6, 2)]),
        ("aaaaaa", [(0, 6, 2)]),
        ("xyabcabcabcz", [(2, 11, 3)]),
        ("abcabcabcdefdefdefdef", [(0, 9, 3), (9, 21, 3)]),
        ("abab" * 5, [(0, 20, 2)]),  # not 4: the shortest period that tells all
        ("aab" * 4, [(0, 12, 3)]),
    ],
)
def test_repetitions_are_found(labels: str, found: list[tuple[int, int, int]]) -> None:
    assert repetitions(labels) == [Repetition(*numbers) for numbers in found]


@patient
@given(
    before=st.lists(st.integers(100, 110), max_size=12, unique=True),
    body=st.lists(st.integers(0, 9), min_size=2, max_size=8),
    times=st.integers(MIN_TIMES, 12),
    after=st.lists(st.integers(200, 210), max_size=12, unique=True),
)
def test_a_body_among_other_things_is_found_whole(
    before: list[int], body: list[int], times: int, after: list[int]
) -> None:
    labels = [*before, *body * times, *after]
    found = repetitions(labels)
    if len(body) * times >= 0.5 * len(labels):
        assert covers(found, len(labels))
        assert sum(s.stop - s.start for s in found) >= len(body) * (times - 1)
        assert min(s.period for s in found) <= len(body)
        assert min(s.start for s in found) >= len(before)
        assert max(s.stop for s in found) <= len(labels) - len(after)


@patient
@given(st.lists(st.integers(0, 3), max_size=60))
def test_whatever_is_found_repeats_and_nothing_overlaps(labels: list[int]) -> None:
    found = repetitions(labels)
    for stretch in found:
        assert stretch.times >= MIN_TIMES
        assert stretch.period >= 2
        assert stretch == stretch.whole_periods
        body = labels[stretch.start : stretch.start + stretch.period]
        assert labels[stretch.start : stretch.stop] == body * stretch.times
    assert all(one.stop <= other.start for one, other in itertools.pairwise(found))


def test_what_a_proof_refuses_is_not_found_and_a_longer_period_may_pass() -> None:
    assert repetitions("ab" * 12, lambda stretch: None) == []
    doubled = repetitions("ab" * 12, lambda stretch: stretch.whole_periods if stretch.period == 4 else None)
    assert doubled == [Repetition(0, 24, 4)]


def test_a_short_repetition_in_a_long_sequence_is_left_out() -> None:
    labels: list[Any] = [*range(100), *"ababab", *range(100, 200)]
    assert repetitions(labels) == []
    assert not covers([Repetition(0, 6, 2)], 100)
    assert not covers([], 0)


# ---- graphs, with a compiler that compiles nothing


class Counting:
    """A compiler that runs each graph as it is, and takes note of how large it is."""

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self.graphs: list[torch.fx.GraphModule] = []

    def __call__(self, module: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        self.sizes.append(sum(node.op.startswith("call_") for node in module.graph.nodes))
        self.graphs.append(module)
        call: Callable[..., Any] = module.forward
        return call


@pytest.fixture(autouse=True)
def _anew() -> Iterator[None]:
    torch._dynamo.reset()
    torch.manual_seed(0)
    yield
    torch._dynamo.reset()


def check(function: Callable[..., Any], *args: Any) -> tuple[list[int], LoopRolling]:
    """Run a function rolled and as it is, both of which must do the same to everything.

    Return the sizes of the compiled graphs.
    """
    inner = Counting()
    backend = LoopRolling(inner)
    compiled = torch.compile(function, backend=backend, fullgraph=True, dynamic=False)
    for _ in range(2):  # compiling, and calling again
        ours, theirs = copy.deepcopy(args), copy.deepcopy(args)
        state = torch.get_rng_state()
        answer = compiled(*ours)
        torch.set_rng_state(state)
        expected = function(*theirs)
        torch.testing.assert_close((answer, ours), (expected, theirs), rtol=0, atol=0)
    return inner.sizes, backend


def loop(x: torch.Tensor, steps: int = 6) -> torch.Tensor:
    for _ in range(steps):
        x = x.sin() + 0.1 * x.cos()
    return x


def test_a_loop_is_one_body() -> None:
    sizes, backend = check(loop, torch.randn(4))
    assert sizes == [4]
    assert (backend.rolled, backend.reasons) == (1, [])


def log_usage(x: torch.Tensor) -> torch.Tensor:
    for _ in range(6):
        torch._C._log_api_usage_once("torchwise.test")  # as PyTorch's and other libraries' modules do
        x = x.sin() + 0.1 * x.cos()
    return x


def test_a_count_of_usage_is_no_part_of_a_loop() -> None:
    sizes, backend = check(log_usage, torch.randn(4))
    assert (sizes, backend.rolled, backend.reasons) == ([4], 1, [])


def divide(x: torch.Tensor) -> torch.Tensor:
    for _ in range(6):
        x = torch.tanh(x.reshape(2 * x.shape[0], -1)).reshape(x.shape) + x / x.size(0)
    return x


def roll_around(x: torch.Tensor) -> torch.Tensor:
    for _ in range(6):
        x = x + 0.1j * (torch.roll(x, 1, 0) - x) * x.abs()
    return x


@pytest.mark.parametrize("function", [loop, divide, roll_around])
def test_a_body_serves_all_sizes(function: Callable[..., Any]) -> None:
    inner = Counting()
    backend = LoopRolling(inner)
    compiled = torch.compile(function, backend=backend, fullgraph=True, dynamic=True)
    for size in (6, 10, 7):
        x = torch.randn(size, 4, dtype=torch.complex64 if function is roll_around else torch.float32)
        torch.testing.assert_close(compiled(x), function(x))
    assert (backend.rolled, backend.reasons) == (1, []), "one compilation for all sizes"
    assert len(inner.sizes) <= 3, "one body, and what stands before and after it"


def test_a_loop_of_the_zoo_is_one_body_that_begins_where_a_step_begins() -> None:
    field = torch.randn(4, 4, 4, dtype=torch.complex64)
    inner = Counting()
    answer = torch.compile(gross_pitaevskii, backend=LoopRolling(inner))(field, 20)
    assert inner.sizes == [22]
    assert len(inner.graphs[0].graph.find_nodes(op="placeholder")) == 1
    assert len(inner.graphs[0].graph.output_node().args[0]) == 1  # type: ignore[arg-type]
    assert torch.equal(answer, gross_pitaevskii(field, 20))


def test_a_body_begins_where_the_fewest_values_cross() -> None:
    def model(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x = y.cos() + x  # as every step ends
        for _ in range(6):
            sine = x.sin()
            x = x.cos() + sine
        return x

    inner = Counting()
    torch.compile(model, backend=LoopRolling(inner))(torch.randn(4), torch.randn(4))
    body = inner.graphs[inner.sizes.index(3)].graph
    assert len(body.find_nodes(op="placeholder")) == 1


def test_what_stands_before_and_after_is_compiled_apart() -> None:
    def model(x: torch.Tensor) -> torch.Tensor:
        return (loop(x.exp() - 1) * 3).tanh().sum()

    assert sorted(check(model, torch.randn(4))[0]) == [2, 3, 4]


def test_each_layers_weights_are_inputs_of_the_body() -> None:
    layers = nn.Sequential(*(nn.Sequential(nn.Linear(4, 4), nn.ReLU()) for _ in range(5)))
    with torch.no_grad():
        assert check(layers, torch.randn(2, 4))[0] == [2]
        odd = nn.Sequential(nn.Linear(4, 8), *layers, nn.Linear(4, 2))
        odd[0] = nn.Linear(4, 4, bias=False)
        assert sorted(check(odd, torch.randn(2, 4))[0]) == [1, 1, 2]


def test_values_of_two_steps_ago_and_of_before_the_loop_are_inputs_too() -> None:
    def leapfrog(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        force = a.cos()
        for _ in range(7):
            a, b = b, 2 * b - a + force * b.sin()
        return a + b

    sizes, _ = check(leapfrog, torch.randn(4), torch.randn(4))
    assert 5 in sizes
    assert sum(sizes) < 5 * 7


WALKS: dict[str, Callable[[torch.Tensor, int], torch.Tensor]] = {
    "index": lambda x, t: x[:, t],
    "several indices": lambda x, t: x[:, t, None, :2],
    "range": lambda x, t: x[:, t : t + 2],
    "select": lambda x, t: x.select(1, t),
    "narrow": lambda x, t: torch.narrow(x, 1, t, 1),
    "of what is computed": lambda x, t: x.exp()[:, t] if t == 0 else x[:, t].exp(),
    "from the end": lambda x, t: x[:, -1 - t],
    "a part of a part": lambda x, t: x[:, t][..., 1:],
}


@pytest.mark.parametrize("part", WALKS.values(), ids=list(WALKS))
def test_a_loop_along_a_sequence_is_one_body_that_is_given_its_part(
    part: Callable[[torch.Tensor, int], torch.Tensor],
) -> None:
    def scan(x: torch.Tensor) -> torch.Tensor:
        state, found = torch.zeros(2, 1, 1), []
        for t in range(8):
            now = part(x, t)
            state = (now.mean() * 0.1 - state).tanh() + now.sum() * state.cos()
            found.append(state.sum(-1))
        return torch.stack(found, 1)

    sizes, backend = check(scan, torch.randn(2, 9, 4))
    assert backend.rolled == 1
    assert sum(sizes) < 8 * 9, "every step would be compiled"


def test_a_loop_along_what_is_unbound_is_one_body() -> None:
    def scan(x: torch.Tensor) -> torch.Tensor:
        state = torch.zeros(2, 4)
        for now in x.unbind(1):
            state = (now * 0.1 - state).tanh() + now.sum() * state.cos()
        return state

    sizes, backend = check(scan, torch.randn(2, 9, 4))
    assert backend.rolled == 1
    assert sum(sizes) < 8 * 6


@pytest.mark.parametrize("index", [lambda x, t: x[:, t], lambda x, t: x[t], lambda x, t: x.narrow(1, t, 1)])
def test_the_inspection_sees_that_a_loop_along_a_sequence_repeats(index: Callable[[torch.Tensor, int], Any]) -> None:
    def scan(x: torch.Tensor, steps: int) -> torch.Tensor:
        state = torch.zeros(1)
        for t in range(steps):
            state = (index(x, t) * 0.1 - state).tanh().cos()
        return state

    x = torch.randn(24, 24)
    assert "repeats" in _trace_operators(lambda: scan(x, 24))[0]
    assert "repeats" not in _trace_operators(lambda: scan(x, 5))[0], "which is compiled whole in seconds"


def test_a_part_that_is_taken_early_sees_what_is_written_later() -> None:
    def fills(x: torch.Tensor) -> torch.Tensor:
        kept = x * 1
        for t in range(6):
            kept.mul_(1.5)
            x = x.sin() + 0.1 * kept[t].cos()
        return x

    check(fills, torch.randn(6, 4))


@pytest.mark.parametrize("view", [lambda c: c[:, None], lambda c: c[:], lambda c: c[..., None, :], lambda c: c[None]])
def test_layers_that_write_to_caches_of_their_own_are_one_body(view: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """As in a step of decoding: a view of the whole cache stays in the body that writes to it."""

    def decode(x: torch.Tensor, place: torch.Tensor, *caches: torch.Tensor) -> torch.Tensor:
        for cache in caches:
            cache.index_copy_(0, place, x[None])
            x = (x + view(cache).sin().reshape(5, 4).mean(0)).tanh()
        return x

    caches = [torch.randn(5, 4) for _ in range(6)]
    sizes, backend = check(decode, torch.randn(4), torch.tensor([2]), *caches)
    assert backend.rolled == 1
    assert max(sizes) < 16, "one layer"


@pytest.mark.parametrize(
    "same",
    [lambda x: x.to(x.device), lambda x: x.to(x.dtype), lambda x: x.float(), lambda x: x.contiguous()],
    ids=["device", "type", "float", "contiguous"],
)
def test_a_counter_that_stays_where_it_is_is_passed_through(same: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """As the first call of an empty cache of Transformers does it, which makes its memory, too."""

    def fill(x: torch.Tensor, *counters: torch.Tensor) -> tuple[torch.Tensor, ...]:
        found = []
        for counter in counters:
            cache, own = torch.zeros(5, 4), same(counter)
            own.add_(1)
            cache.index_copy_(0, torch.tensor([2]), x[None])
            x = torch.tanh(x + cache.sum(0) * own)
            found += [cache, own]
        return x, *found

    counters = [torch.zeros(()) for _ in range(6)]
    sizes, backend = check(fill, torch.randn(4), *counters)
    assert backend.rolled == 1
    assert len(set(sizes)) <= 3


def test_values_of_every_step_that_are_used_later_are_outputs() -> None:
    def history(x: torch.Tensor) -> torch.Tensor:
        found = []
        for _ in range(7):
            y = x.sin()
            found.append(y)
            x = y + 0.1 * x.cos()
        return torch.stack(found)

    check(history, torch.randn(4))


def test_values_that_only_late_steps_give_are_outputs_too() -> None:
    def late(x: torch.Tensor) -> torch.Tensor:
        found = []
        for step in range(7):
            y = x.sin()
            x = y + 0.1 * x.cos()
            if step > 4:
                found.append(y)
        return torch.stack(found)

    assert check(late, torch.randn(4))[1].rolled == 1


def test_weights_that_lie_differently_in_memory_are_not_shared() -> None:
    def model(x: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
        for weight in weights:
            x = torch.tanh(x @ weight)
        return x

    weights = [torch.randn(4, 4) for _ in range(6)]
    inner = Counting()
    every_other = [w.t() if place % 2 else w for place, w in enumerate(weights)]
    torch.compile(model, backend=LoopRolling(inner), dynamic=False)(torch.randn(2, 4), *every_other)
    assert inner.sizes == [4]


def test_the_first_step_may_differ() -> None:
    def model(x: torch.Tensor) -> torch.Tensor:
        return loop(x.t(), 7)

    x = torch.randn(3, 5)
    sizes, _ = check(lambda x: loop(x + torch.zeros(2, 4), 7), torch.randn(4))  # grows by broadcasting
    assert 4 in sizes
    assert 4 in check(model, x)[0]
    with torch.enable_grad():
        weights = nn.ModuleList(nn.Linear(4, 4) for _ in range(6))

        def layers(x: torch.Tensor) -> torch.Tensor:
            for one in weights:
                x = torch.tanh(one(x))
            return x

        sizes, backend = check(layers, torch.randn(2, 4))  # the input of the first layer needs no gradient
        assert backend.rolled == 1
        assert sum(sizes) <= 4


def test_steps_that_mix_up_values_differently_are_not_shared() -> None:
    def cross_values(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        for step in range(9):
            c = a.sin()
            d = b.cos()
            a, b = (c - d, d * c) if step % 3 else (d - c, c * d)
        return a - b

    # Labels repeat every 4 nodes. Their inputs repeat every 12.
    assert 12 in check(cross_values, torch.randn(4), torch.randn(4))[0]


def test_two_inputs_that_are_one_are_told_from_two() -> None:
    def model(x: torch.Tensor, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        for one, other in ((a, b), (c, c), (b, a), (a, a), (c, b), (b, b)):
            x = (x * one - other).tanh()
        return x

    check(model, *(torch.randn(4) for _ in range(4)))


def test_inputs_that_take_each_others_place_are_told_apart() -> None:
    def model(x: torch.Tensor, a: torch.Tensor) -> torch.Tensor:
        for i in range(8):
            x = (x * a).tanh() - (x if i % 2 else a)
        return x

    assert check(model, torch.randn(4), torch.randn(4))[0] == [6]


@pytest.mark.parametrize(
    "constant", [lambda i: i + 1, lambda i: float(i == 0), lambda i: bool(i % 2), lambda i: 0.1 * i]
)
def test_constants_that_differ_are_not_shared(constant: Callable[[int], float]) -> None:
    def model(x: torch.Tensor) -> torch.Tensor:
        for i in range(5):
            x = x.sin() * constant(i) + 1
        return x

    check(model, torch.randn(4))


def reasons(function: Callable[..., Any], *args: Any) -> str:
    """Return why a function is not rolled. It must answer all the same."""
    _, backend = check(function, *args)
    assert backend.rolled == 0
    return backend.reasons[-1]


def test_a_graph_without_repetitions_says_so() -> None:
    def vary_factors(x: torch.Tensor) -> torch.Tensor:
        for i in range(9):
            x = x.sin() * (i + 2)
        return x

    assert reasons(vary_factors, torch.randn(4)) == "of 18 operations none repeat 3 times in the same way"
    assert reasons(lambda x: loop(x, 2), torch.randn(4)) == "of 8 operations none repeat 3 times in the same way"

    def little(x: torch.Tensor) -> torch.Tensor:
        return vary_factors(loop(x, 3))

    assert reasons(little, torch.randn(4)).startswith("only 12 of 30 operations repeat 3 times")


# ---- writes in place, views, settings


def test_writes_in_place_to_what_a_step_makes_are_rolled() -> None:
    def model(x: torch.Tensor) -> torch.Tensor:
        for _ in range(5):
            x = x * 2
            x += 1
            x = x.relu_().sin()
            x[0] = 3
        return x

    assert check(model, torch.randn(4))[1].rolled == 1


def test_writes_in_place_to_an_input_are_not_rolled() -> None:
    def model(x: torch.Tensor) -> torch.Tensor:
        for _ in range(5):
            x += 1
            x.mul_(0.5)
            x.sin_()
        return x * 1

    reasons(model, torch.randn(4))


def test_writes_in_place_through_a_view_of_another_step_are_not_rolled() -> None:
    def model(x: torch.Tensor) -> torch.Tensor:
        y = x * 1
        for _ in range(5):
            z = y.sin()
            y[0] = z[1] + 1
            y = y[:]
        return y

    reasons(model, torch.randn(4))


def test_a_buffer_of_one_layer_may_be_written_to_and_one_of_all_layers_not() -> None:
    own = nn.Sequential(*(nn.Sequential(nn.BatchNorm1d(4), nn.Tanh()) for _ in range(5)))
    shared = nn.Sequential(*[nn.BatchNorm1d(4), nn.Tanh()] * 5)
    ours = copy.deepcopy(own)
    inner = Counting()
    backend = LoopRolling(inner)
    compiled = torch.compile(ours, backend=backend, fullgraph=True)
    x = torch.randn(3, 4)
    for _ in range(2):
        assert torch.equal(compiled(x), own(x))
    torch.testing.assert_close(ours.state_dict(), own.state_dict(), rtol=0, atol=0)
    assert backend.rolled == 1
    lone = LoopRolling(Counting())
    compiled = torch.compile(copy.deepcopy(shared), backend=lone, fullgraph=True)
    assert torch.equal(compiled(x), shared(x))
    assert lone.rolled == 0


def test_batch_norm_writes_to_its_statistics() -> None:
    def model(x: torch.Tensor, mean: torch.Tensor, var: torch.Tensor) -> torch.Tensor:
        for _ in range(5):
            x = nn.functional.batch_norm(x, mean, var, training=True).tanh()
        return x

    reasons(model, torch.randn(3, 4), torch.zeros(4), torch.ones(4))


def test_views_made_and_used_up_in_a_step_are_rolled_and_no_view_of_what_comes_in_goes_out() -> None:
    def model(x: torch.Tensor) -> torch.Tensor:
        for _ in range(6):
            y = x.t().sin() * 2
            x = y.t()
        return x

    _, backend = check(model, torch.randn(4, 4))
    assert backend.rolled == 1

    def slides(x: torch.Tensor) -> torch.Tensor:
        total = x.sum()
        for _ in range(6):
            x = x.t().view_as(x).t()
            total = total + x[0, 1]
        return total, x  # type: ignore[return-value]

    reasons(slides, torch.randn(4, 4))


def test_tuples_do_not_cross_a_border() -> None:
    def model(x: torch.Tensor) -> torch.Tensor:
        for _ in range(7):
            value, index = x.max(0)
            x = x - value.unsqueeze(0) * index
        return x

    inner = Counting()
    x = torch.randn(4, 4)
    assert torch.equal(torch.compile(model, backend=LoopRolling(inner))(x), model(x))
    assert inner.graphs
    for graph in inner.graphs:
        returned = graph.graph.output_node().args[0]
        assert all(node.target != "max" for node in returned)  # type: ignore[union-attr]


def test_a_step_begins_elsewhere_where_a_tuple_would_cross() -> None:
    def model(x: torch.Tensor) -> torch.Tensor:
        found = x.max(dim=0)
        for _ in range(7):
            x = found[0].unsqueeze(0) + 0.5 * found[1].unsqueeze(1)
            found = x.max(0)
        return found[0]

    assert check(model, torch.randn(4, 4))[1].rolled == 1


def test_what_changes_settings_in_between_is_not_rolled() -> None:
    def loop_without_grad(x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return loop(x)

    def cast(x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            for _ in range(5):
                x = (x @ x).sin()
            return x

    assert (
        reasons(loop_without_grad, torch.randn(4))
        == "_set_grad_enabled in the graph changes how PyTorch computes the following operators"
    )
    assert "autocast" in reasons(cast, torch.randn(4, 4))
    assert torch.autocast_increment_nesting() == 1, "looking at the graph has left no autocast entered"
    torch.autocast_decrement_nesting()
    with torch.no_grad():
        assert check(loop_without_grad, torch.randn(4))[1].rolled == 1  # it changes nothing then


# ---- random numbers, gradients, memory, several graphs


def test_every_step_draws_anew() -> None:
    def noisy(x: torch.Tensor) -> torch.Tensor:
        found = []
        for _ in range(6):
            x = nn.functional.dropout(x * 1.5, 0.5) + torch.randn_like(x)
            found.append(x)
        return torch.stack(found)

    sizes, backend = check(noisy, torch.randn(50))
    assert backend.rolled == 1
    assert sum(sizes) < 4 * 6


def test_gradients_flow_through_every_step() -> None:
    def model(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        for _ in range(6):
            x = torch.tanh(x @ w) + 0.1 * x
        return x.sum()

    inner = Counting()
    compiled = torch.compile(model, backend=LoopRolling(inner))
    found = []
    for call in (compiled, model):
        torch.manual_seed(0)
        x, w = torch.randn(3, 4, requires_grad=True), torch.randn(4, 4, requires_grad=True)
        found.append((call(x, w), *torch.autograd.grad(call(x, w), (x, w))))
    torch.testing.assert_close(*found, rtol=0, atol=0)
    assert min(inner.sizes) < 5
    assert sum(inner.sizes) < 4 * 6


def test_values_are_dropped_after_their_last_use() -> None:
    alive: list[weakref.ref[Any]] = []
    most = 0

    def inner(module: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        gc.freeze()  # or each collection would go through all of PyTorch

        def call(*args: Any) -> Any:
            nonlocal most
            results = module.forward(*args)
            alive.extend(weakref.ref(result) for result in results)
            gc.collect()  # of what came since `freeze`
            most = max(most, sum(ref() is not None for ref in alive))
            return results

        return call

    try:
        with torch.no_grad():
            torch.compile(loop, backend=LoopRolling(inner))(torch.randn(4), 20)
    finally:
        gc.unfreeze()
    assert len(alive) == 20
    assert most <= 2  # the input of a step, and its output


def test_a_body_that_comes_again_elsewhere_is_compiled_once() -> None:
    def model(x: torch.Tensor) -> torch.Tensor:
        return loop((loop(x, 6).exp() - 1).neg(), 6)

    with torch.no_grad():
        assert sorted(check(model, torch.randn(4))[0]) == [3, 4]


def test_a_long_graph_that_repeats_nothing_is_not_compiled_at_all() -> None:
    def vary_factors(x: torch.Tensor) -> torch.Tensor:
        for i in range(LONG // 2 + 1):
            x = x.sin() * (i + 2)
        return x

    inner = Counting()
    backend = LoopRolling(inner)
    x = torch.randn(4)
    with pytest.raises(UnsupportedError, match="scope 'rolled' changes nothing here: of 502 operations none"):  # noqa: SIM117
        with backend.assert_applied():
            assert torch.equal(torch.compile(vary_factors, backend=backend)(x), vary_factors(x))
    assert inner.sizes == []


def compile_rolled(call: Callable[..., Any]) -> tuple[Counting, Callable[..., Any]]:
    """Return a callable that is compiled as by a plan, with a compiler that counts."""
    inner = Counting()
    backend = LoopRolling(inner)
    return inner, torch.no_grad()(graphs.compile_call(call, ROLLED, lambda _is_alone: (backend, [backend])))


def test_a_backend_can_be_copied() -> None:
    """Lightning copies the arguments of every `torch.compile`, once it is imported."""
    backend = copy.deepcopy(LoopRolling(Counting()))
    with backend.assert_applied():
        torch.compile(loop, backend=backend)(torch.randn(4))
    assert copy.deepcopy(backend).rolled == 1


def test_the_only_graph_is_compiled_again_only_if_its_refused_plan_goes_on() -> None:
    inner, compiled = compile_rolled(lambda x: loop(x, 2))
    x = torch.randn(4)
    with pytest.raises(UnsupportedError, match="scope 'rolled' changes nothing here"):
        compiled(x)
    assert inner.sizes == []
    with pytest.raises(UnsupportedError, match="scope 'rolled' changes nothing here"):
        compiled(x)
    assert inner.sizes == [8], "another call of the same code"


def break_graph(x: torch.Tensor, before: int, after: int) -> torch.Tensor:
    x = loop(x, before)
    torch._dynamo.graph_break()
    return loop(x, after)


def skip_frame(x: torch.Tensor, before: int, after: int) -> torch.Tensor:
    """Break the graph in a loop, by which Dynamo leaves this function to Python and compiles those that it calls."""
    for steps in (before, after):
        x = loop(x, steps)
        torch._dynamo.graph_break()
    return x


def disable_outside(x: torch.Tensor, before: int, after: int) -> torch.Tensor:
    @torch.compiler.disable(recursive=False)
    def outside() -> torch.Tensor:
        return loop(loop(x, before), after)

    return outside()


@pytest.mark.parametrize("call", [break_graph, skip_frame, disable_outside])
@pytest.mark.parametrize(("before", "after"), [(1, 6), (6, 1)])
def test_a_graph_that_repeats_nothing_is_compiled_beside_one_that_does(
    call: Callable[..., torch.Tensor], before: int, after: int
) -> None:
    inner, compiled = compile_rolled(lambda x: call(x, before, after))
    x = torch.randn(4)
    for _ in range(2):
        assert torch.equal(compiled(x), call(x, before, after))
        assert inner.sizes == [4, 4], "one step by itself, and the body of the others, both by the first call"


@pytest.mark.parametrize(("before", "after"), [(1, 6), (6, 1)])
def test_a_graph_that_ends_at_a_break_is_compiled_at_once(before: int, after: int) -> None:
    def breaks(x: torch.Tensor) -> torch.Tensor:
        x = loop(x, before)
        torch._dynamo.graph_break()
        return loop(x, after)

    inner, compiled = compile_rolled(breaks)
    assert torch.equal(compiled(x := torch.randn(4)), breaks(x))
    assert inner.sizes == [4, 4]


def test_effective_asks_once_for_what_is_compiled() -> None:
    backend = LoopRolling(Counting())
    compiled = torch.compile(loop, backend=backend, dynamic=False)
    with backend.assert_applied():
        compiled(torch.randn(4), 6)
    with backend.assert_applied():
        compiled(torch.randn(4), 6)  # nothing is compiled, which is no fault
    with pytest.raises(UnsupportedError, match="none repeat"), backend.assert_applied():
        compiled(torch.randn(4), 1)
    with pytest.raises(UnsupportedError, match="no graph was compiled"), LoopRolling(Counting()).assert_applied():
        pass


def test_the_inner_backend_says_whether_it_was_effective_too() -> None:
    inner = wrap_backend(Counting())
    with pytest.raises(UnsupportedError, match="no graph was compiled"), LoopRolling(inner).assert_applied():
        pass
    seen = []

    class Inner(Counting):
        def assert_applied(self) -> Any:
            seen.append(True)
            return torch.no_grad()

    with pytest.raises(UnsupportedError), LoopRolling(Inner()).assert_applied():
        pass
    assert seen == [True]


def test_equal_plans_share_one_backend() -> None:
    assert wrap_backend(inductor((("max_autotune", True),))) is wrap_backend(inductor((("max_autotune", True),)))
    assert wrap_backend(inductor(())) is not wrap_backend(inductor((("max_autotune", True),)))


def test_a_missing_private_name_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("torch._guards.TracingContext")
    with pytest.raises(UnsupportedError, match=r"scope 'rolled' needs torch\._guards\.TracingContext, which torch"):
        wrap_backend(Counting())


# ---- with Inductor


def compile_call(call: Callable[..., Any], plan: Plan, *args: Any, mode: str = "inference") -> Callable[..., Any]:
    return compile_plan(call, plan, Example(args), device="cpu", mode=mode).call


def test_a_model_without_repetitions_is_unsupported() -> None:
    """Here one graph is compiled: other tests of this process may have rolled others by the same backend."""
    call = compile_call(torch.sin, ROLLED, torch.randn(4))
    with pytest.raises(NoEffectError, match="scope 'rolled' changes nothing here") as refused:
        call(torch.randn(4))
    assert refused.value.part == ("scope", "rolled")


@pytest.mark.slow
@torch.no_grad()
@pytest.mark.nightly
def test_complex_steps_are_rolled_and_rewritten() -> None:
    field = torch.randn(6, 6, 6, dtype=torch.complex64)
    exact = gross_pitaevskii(field.to(torch.complex128), 12)
    call = compile_call(gross_pitaevskii, COMPLEX, field, 12)
    floor = (gross_pitaevskii(field, 12) - exact).abs().max()
    for _ in range(2):
        assert (call(field, 12) - exact).abs().max() <= 4 * floor


@pytest.mark.slow
def test_a_module_is_trained_rolled() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.enter, self.leave = nn.Linear(5, 8), nn.Linear(8, 2)
            self.layers = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.GELU()) for _ in range(6))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.enter(x)
            for layer in self.layers:
                x = x + layer(x)
            y: torch.Tensor = self.leave(x)
            return y

    model = Model()
    x = torch.randn(3, 5, requires_grad=True)
    call = compile_call(model, ROLLED, x, mode="training")
    wanted = [x, *model.parameters()]
    for _ in range(2):
        ours = torch.autograd.grad(call(x).square().sum(), wanted)
        theirs = torch.autograd.grad(model(x).square().sum(), wanted)
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@torch.no_grad()
def test_every_step_draws_anew_with_inductor() -> None:
    def walk(x: torch.Tensor) -> torch.Tensor:
        found = []
        for _ in range(8):
            x = x * 0 + torch.randn_like(x)
            found.append(x)
        return torch.stack(found)

    x = torch.zeros(4000)
    call = compile_call(walk, ROLLED, x)
    steps = torch.cat([call(x), call(x)])
    correlated = torch.corrcoef(steps) - torch.eye(16)
    assert correlated.abs().max() < 6 / 4000**0.5
    assert abs(steps.mean()) < 0.03
    assert abs(steps.std() - 1) < 0.03
