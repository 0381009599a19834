"""Loops over independent samples that run at once: which, with which answers, and why others stay as they are."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from dynamo_graphs import rewrite_and_call
from torchwise.compile import compile_plan
from torchwise.compile.transforms.function_graphs import Rewriting, batched_loop, independent_loops, loop_inputs
from torchwise.compile.transforms.function_graphs.batched_loop import has_loops
from torchwise.compile.transforms.function_graphs.nodes import value_of
from torchwise.compile.transforms.function_graphs.record import record
from torchwise.errors import NoEffectError, PlanError, UnsupportedError
from torchwise.plan import EAGER, Plan, PlanSpace, Trait
from torchwise.plan.workload_spec import WorkloadSpec
from torchwise.runtime.background import search
from torchwise.trial import Job
from torchwise.workload import Example

Loop = Callable[[Tensor], Any]
BATCHED = Plan(transforms=("batched_loop",))
X = torch.randn(6, 8, generator=torch.Generator().manual_seed(0))


def make_net(*, inplace: bool = False, bias: bool = True) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 8, bias), nn.ReLU(inplace), nn.Linear(8, 4, bias)).eval()


NET, INPLACE = make_net(), make_net(inplace=True)
HEADS = nn.ModuleList(nn.Linear(8, 3) for _ in range(5))
IMAGES = torch.randn(6, 3, 8, 8, generator=torch.Generator().manual_seed(1))
CONVOLVE = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.Flatten()).eval()


def sum_up(x: Tensor) -> Tensor:
    total = torch.zeros(4)
    for row in x:
        total = total + NET(row)
    return total


def fill(x: Tensor) -> Tensor:
    out = torch.zeros(6, 4)
    for place in range(6):
        out[place] = NET(x[place])
    return out


def fill_in_place(x: Tensor) -> Tensor:
    out = torch.zeros(6, 4)
    for place in range(6):
        out[place] = NET(x[place]).relu_()
    return out


def add_neighbours(x: Tensor) -> Tensor:
    hidden = [NET(row) for row in x]
    return torch.stack([(one - other).square().sum() for one in hidden for other in hidden])


def follow(x: Tensor) -> Tensor:
    hidden = [NET(row) for row in x]
    return torch.stack([one.softmax(-1).square() for one in hidden]) + sum(hidden)


def attend(x: Tensor) -> Tensor:
    q, k, v = (part.unflatten(-1, (4, 2)) for part in (x, x + 1, x * 2))
    return torch.cat(
        [(q[:, h] @ k[:, h].T).div(2**0.5).softmax(-1) @ v[:, h] for h in range(4)],
        dim=-1,
    )


def collect(x: Tensor) -> dict[str, Any]:
    moves = [{"place": NET(row), "energy": row.square().sum()} for row in x.unbind()]
    return {"moves": moves, "last": moves[-1]["place"] * 2}


def walk_columns(x: Tensor) -> Tensor:
    return torch.stack([functional.softmax(x[:, place] * 2, 0).cumsum(0) for place in range(2, 7)], dim=1)


def relate(x: Tensor) -> Tensor:
    return torch.stack([NET(x[place] - x[(place + 1) % 6]) for place in range(6)])


AXIS: Any = {"axis": 1}
"""PyTorch's other name for `dim`, of which its types do not know."""
LOOPS: dict[str, Loop] = {
    "stack": lambda x: torch.stack([NET(x[place]) for place in range(6)]),
    "list": lambda x: [NET(row) for row in x],
    "slices": lambda x: torch.cat([NET(x[place : place + 2]) for place in range(0, 6, 2)] + [NET(x[:2])]),
    "parts": lambda x: torch.cat([NET(part) for part in x.split(1)]),
    "chunks": lambda x: torch.cat([NET(part) for part in x.chunk(6)], 0).sum(0),
    "transposed": lambda x: torch.stack([NET(row)[None].T for row in x], dim=-1),
    "columns": walk_columns,
    "axis": lambda x: torch.stack([NET(row) for row in x], **AXIS),
    "axis of rows": lambda x: torch.stack([row.sin() * 2 for row in torch.unbind(x[:, :6], **AXIS)]),
    "axis of parts": lambda x: torch.cat([part.sin() * 2 for part in torch.chunk(x, 8, **AXIS)], -1),
    "one function": lambda x: torch.stack([functional.linear(row, NET[0].weight) for row in x]),  # type: ignore[index]
    "heads": lambda x: torch.cat([head(x) for head in HEADS], -1),
    "attention": attend,
    "sum": sum_up,
    "buffer": fill,
    "buffer and work in place": fill_in_place,
    "in place": lambda x: torch.stack([INPLACE(row * 2) for row in x]),
    "pairs": add_neighbours,
    "two loops": follow,
    "tree": collect,
    "other order": lambda x: torch.stack([NET(x[place]) for place in (3, 1, 0, 2, 5, 4)]),
    "two inputs": relate,
    "twice": lambda x: (torch.stack(h := [NET(row) for row in x]), torch.stack(h, 1), h[0]),
    "numbers": lambda x: torch.stack([(row.sum() * torch.ones(3, dtype=torch.float64)).sin() for row in x]),
    "shared work": lambda x: torch.stack([NET(row) @ NET(x).T.softmax(0) for row in x]),
}


@pytest.mark.parametrize("name", LOOPS)
def test_a_loop_over_samples_runs_at_once_with_the_same_answer(name: str) -> None:
    call = LOOPS[name]
    with torch.no_grad():
        answer, places, _ = rewrite_and_call(call, X.clone(), rewrite=batched_loop.rewrite)
        assert places >= 1
        torch.testing.assert_close(answer, call(X.clone()))
        assert has_loops(record(lambda: call(X.clone()))), "the trait is found in eager"


def test_images_run_at_once() -> None:
    with torch.no_grad():

        def call(x: Tensor) -> Tensor:
            return torch.cat([CONVOLVE(image[None]) for image in x])

        answer, places, names = rewrite_and_call(call, IMAGES, rewrite=batched_loop.rewrite)
        assert places == 1
        assert "relu" not in names
        torch.testing.assert_close(answer, call(IMAGES))


@pytest.mark.parametrize("name", ["stack", "list", "slices", "columns", "sum", "buffer", "in place", "tree"])
def test_strides_and_memory_are_those_of_the_loop(name: str) -> None:
    with torch.no_grad():
        answer, _, _ = rewrite_and_call(LOOPS[name], X.clone(), rewrite=batched_loop.rewrite)
        expected = LOOPS[name](X.clone())
    found, wanted = (torch.utils._pytree.tree_leaves(one) for one in (answer, expected))
    assert [one.stride() for one in found] == [one.stride() for one in wanted]
    assert len({one.untyped_storage().data_ptr() for one in found}) == len(found)
    assert all(one.untyped_storage().nbytes() == one.nbytes for one in found)


@pytest.mark.parametrize("name", ["stack", "parts", "chunks", "attention", "columns", "two loops"])
def test_rows_of_one_tensor_are_not_stacked_again(name: str) -> None:
    with torch.no_grad():
        _, _, names = rewrite_and_call(LOOPS[name], X.clone(), rewrite=batched_loop.rewrite)
    assert names.count("stack") + names.count("cat") == 0
    assert names.count("select") == (6 if name == "two loops" else 0)


def test_weights_of_heads_are_stacked_and_learn() -> None:
    x = X.clone().requires_grad_()
    answer, _, names = rewrite_and_call(LOOPS["heads"], x, rewrite=batched_loop.rewrite)
    assert names.count("stack") == 2, "weights and biases"
    found = torch.autograd.grad(answer.square().sum(), [x, *HEADS.parameters()])
    wanted = torch.autograd.grad(LOOPS["heads"](x).square().sum(), [x, *HEADS.parameters()])
    torch.testing.assert_close(found, wanted)


def carry(x: Tensor) -> Tensor:
    hidden = torch.zeros(8)
    for row in x:
        hidden = torch.tanh(hidden * row + 1)
    return hidden


def write_inputs(x: Tensor) -> Tensor:
    for place in range(6):
        x[place].mul_(2)
    return x + 1


def write_what_others_read(x: Tensor) -> Tensor:
    rows = []
    for place in range(5):
        rows.append(x[place + 1].sin() * 2)
        x[place + 1] = x[place]
    return torch.stack(rows)


def read_first(x: Tensor) -> Tensor:
    total, rows = torch.zeros(8), []
    for row in x:
        hidden = row.sin() * 2
        total = total + hidden
        rows.append(hidden.relu_())
    return torch.stack(rows) + total


def write_between(x: Tensor) -> Tensor:
    rows = []
    for place in range(6):
        hidden = x[place].sin() * 2
        rows.append(hidden + 1)
        hidden.add_(x.sum())
        rows.append(hidden.cos())
        x[0] = x[1]
    return torch.stack(rows)


def train_norm(x: Tensor) -> Tensor:
    norm = nn.BatchNorm1d(8)
    return torch.stack([norm(x * row).mean(0) for row in x])


def switch_gradients(x: Tensor) -> Tensor:
    rows = []
    for row in x:
        with torch.enable_grad():
            wave = row.sin()
        rows.append(wave.cos() * 2)
    return torch.stack(rows)


def return_views_of_one(x: Tensor) -> list[Any]:
    rows = []
    for row in x:
        hidden = row.sin() * 2
        rows.append((hidden, hidden.view(2, 4)))
    return rows


def sort_uneven(x: Tensor) -> Tensor:
    return torch.cat([x[: place + 1].sin() * 2 for place in range(6)])


def select_positive(x: Tensor) -> Tensor:
    return torch.cat([row[row > 0] * 2 for row in x])


def write_to_a_row_first(x: Tensor) -> list[Tensor]:
    rows = [NET(row) for row in x]
    rows[1].mul_(2)
    return [torch.stack(rows), rows[1]]


def return_columns(x: Tensor) -> list[Tensor]:
    return [(row[:, None] * row).T[1] for row in x]


def stack_without_gradients(x: Tensor) -> Tensor:
    rows = [row.sin() * 2 for row in x]
    with torch.no_grad():
        return torch.stack(rows)


def transpose_first(x: Tensor) -> Tensor:
    turned = x.clone()
    turned.t_()
    return torch.stack([turned[place].sin() * 2 for place in range(6)])


OTHERS: dict[str, tuple[Loop, str]] = {
    "changes its shape": (transpose_first, "t_ changes the shape or strides of a tensor in place"),
    "carried": (carry, "do not wait for another one"),
    "three": (lambda x: torch.stack([NET(row) for row in x[:3]]), "it repeats 3 times"),
    "no loop": (lambda x: NET(x).softmax(-1), "none repeat"),
    "inputs": (write_inputs, "of a repetition do not wait"),
    "read later": (write_what_others_read, "writes in place to a tensor that it reads"),
    "between": (write_between, "writes in place"),
    "statistics": (train_norm, "running statistics"),
    "dropout": (lambda x: torch.stack([functional.dropout(row * 2) for row in x]), "draws random numbers"),
    "parts": (lambda x: torch.stack([functional.dropout(x[i] * 2) for i in range(6)]), "draws random numbers"),
    "noise": (lambda x: torch.stack([row + torch.randn(8) for row in x]), "draws random numbers"),
    "slow": (lambda x: torch.stack([torch.histc(row * 2, 4) for row in x]), "batching rule for aten::histc"),
    "read first": (read_first, "before the repeated part has written"),
    "mode": (switch_gradients, "a mode of PyTorch changes"),
    "views of one": (return_views_of_one, "share memory"),
    "uneven": (sort_uneven, "none repeat"),
    "the same": (lambda x: torch.stack([x.sin() * 2 for _ in range(6)]), "the same from the same inputs"),
    "parts alone": (lambda x: torch.stack([row.view(2, 4).T for row in x]), "only takes parts"),
    "columns": (return_columns, "otherwise in memory"),
    "little": (lambda x: [sum_series(x), *(row * 2 for row in x[:4])], "less than 25%"),
}


def sum_series(x: Tensor) -> Tensor:
    return x.sin().cos().exp().tanh().sigmoid().relu().sum().sqrt().abs().neg().square().log1p().erf().sinh().cosh()


def find_reason(call: Loop) -> str:
    reasons: list[str] = []

    def rewrite(graph: torch.fx.Graph) -> int:
        before = list(graph.nodes)
        try:
            return batched_loop.rewrite(graph)
        except UnsupportedError as reason:
            reasons.append(str(reason))
            assert list(graph.nodes) == before, "nothing was moved"
            return 0

    torch.manual_seed(7)
    answer, places, _ = rewrite_and_call(call, X.clone(), rewrite=rewrite)
    torch.manual_seed(7)
    torch.testing.assert_close(answer, call(X.clone()))
    assert places == 0
    return "; ".join(reasons)


@pytest.mark.parametrize("name", OTHERS)
def test_other_loops_stay_and_say_why(name: str) -> None:
    call, reason = OTHERS[name]
    with torch.no_grad():
        assert reason in find_reason(call)


def test_a_row_that_is_written_to_is_joined_afterwards() -> None:
    with torch.no_grad():
        answer, places, _ = rewrite_and_call(write_to_a_row_first, X, rewrite=batched_loop.rewrite)
        assert places == 1
        torch.testing.assert_close(answer, write_to_a_row_first(X))


def test_a_join_without_gradients_has_none() -> None:
    answer, places, _ = rewrite_and_call(stack_without_gradients, X.clone().requires_grad_(), rewrite=count_loops)
    assert places == 1
    assert not answer.requires_grad


@torch.library.custom_op("torchwise_tests::put", mutates_args=("target",))
def put(source: Tensor, target: Tensor) -> None:
    target.copy_(source)


@put.register_fake
def _(source: Tensor, target: Tensor) -> None:
    pass


def write_in_a_later_loop(x: Tensor) -> list[Tensor]:
    joined = torch.stack(rows := [NET(row) for row in x])
    return [joined, torch.stack([row.view(2, 2).add_(1).sin() for row in rows])]


def write_to_a_view_of_a_later_loop(x: Tensor) -> list[Tensor]:
    rows, views, waves = [NET(row) for row in x], [], []
    for row in rows:
        views.append(row.view(2, 2))
        waves.append(views[-1].sin())
    views[0].add_(1)
    return [rows[0] * 2, torch.stack(waves)]


def write_to_a_list(x: Tensor) -> Tensor:
    joined = torch.stack(rows := [NET(row) for row in x])
    torch._foreach_mul_(rows, 2)
    return joined


def write_to_two(x: Tensor) -> Tensor:
    joined = torch.stack(rows := [NET(row) for row in x])
    torch.frexp(x[0, :4], out=(rows[1], torch.zeros(4, dtype=torch.int32)))
    return joined


def write_to_a_later_argument(x: Tensor) -> Tensor:
    joined = torch.stack(rows := [NET(row) for row in x])
    put(x[0, :4], rows[1])
    return joined


WRITES = (
    write_in_a_later_loop,
    write_to_a_view_of_a_later_loop,
    write_to_a_list,
    write_to_two,
    write_to_a_later_argument,
)


@pytest.mark.parametrize("call", WRITES)
def test_writes_to_rows_reach_all_that_share_their_memory_and_no_others(call: Loop) -> None:
    with torch.no_grad():
        answer, _, _ = rewrite_and_call(call, X.clone(), rewrite=count_loops)
        torch.testing.assert_close(answer, call(X.clone()))


def return_a_view_of_a_join(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    joined, views, waves = torch.stack([NET(row) for row in x]), [], []
    for row in x:
        views.append(joined.view(-1))
        waves.append(views[-1] * row.sum())
    return joined, views[0], torch.stack(waves)


def test_a_view_of_a_join_stays_one() -> None:
    with torch.no_grad():
        (joined, view, waves), _, _ = rewrite_and_call(return_a_view_of_a_join, X, rewrite=batched_loop.rewrite)
        torch.testing.assert_close(waves, return_a_view_of_a_join(X)[2])
    assert joined.data_ptr() == view.data_ptr()


def take_parts_without_gradients(x: Tensor) -> Tensor:
    with torch.no_grad():
        rows = [x[place] for place in range(6)]
    return torch.stack([row.sin() * 2 for row in rows])


def take_parts_of_results_without_gradients(x: Tensor) -> Tensor:
    rows = [row.sin() * 2 for row in x]
    product = rows[0] * rows[1] + rows[2]
    with torch.no_grad():
        firsts = [row[0] for row in rows]
    return firsts[0] * firsts[1] + firsts[2] - firsts[3] / firsts[4] + firsts[5].cos() + product.detach().sum()


@pytest.mark.parametrize("call", [take_parts_without_gradients, take_parts_of_results_without_gradients])
def test_parts_that_are_taken_without_gradients_lead_to_none(call: Loop) -> None:
    x = X.clone().requires_grad_()
    answer, _, _ = rewrite_and_call(call, x, rewrite=count_loops)
    torch.testing.assert_close(answer, call(x))
    answer.sum().backward()
    assert x.grad is None


def test_a_join_in_another_order_of_memory_is_refused() -> None:
    reasons: list[str] = []

    def call(x: Tensor) -> Tensor:
        return torch.cat([part.sin() * 2 for part in x.split(1)], 1)

    def rewrite(graph: torch.fx.Graph) -> int:
        with pytest.raises(UnsupportedError, match="otherwise in memory, joined at once") as caught:
            batched_loop.rewrite(graph)
        reasons.append(str(caught.value))
        return 0

    images = IMAGES.to(memory_format=torch.channels_last)
    answer, _, _ = rewrite_and_call(call, images, rewrite=rewrite)
    assert answer.stride() == call(images).stride()
    assert len(reasons) == 1


def test_a_loop_that_depends_on_data_stays_right() -> None:
    with torch.no_grad():
        answer, _, _ = rewrite_and_call(
            lambda x: torch.stack([row * 2 if row.sum() > 0 else row.sin() for row in x]), X, rewrite=count_loops
        )
        torch.testing.assert_close(answer, torch.stack([row * 2 if row.sum() > 0 else row.sin() for row in X]))
        answer, _, _ = rewrite_and_call(select_positive, X, rewrite=count_loops)
        torch.testing.assert_close(answer, select_positive(X))


def count_loops(graph: torch.fx.Graph) -> int:
    try:
        return batched_loop.rewrite(graph)
    except UnsupportedError:
        return 0


def test_inputs_that_would_be_copied_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_inputs, "MAX_COPIED", 5 * 8 * 3 * 4 - 1)
    assert "1 MiB of inputs would be copied on every call, and at most 0 may: rows of" in find_reason(LOOPS["heads"])


def test_values_that_would_exist_at_once_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    def call(x: Tensor) -> Tensor:
        return torch.stack([row.sin().relu_() * 2 for row in x])

    size = 6 * 2 * 8 * 4  # the sine and the product
    monkeypatch.setattr(independent_loops, "MAX_HELD", size)
    _, places, _ = rewrite_and_call(call, X, rewrite=batched_loop.rewrite)
    assert places == 1
    monkeypatch.setattr(independent_loops, "MAX_HELD", 4 * 8 * 4 - 1)  # one value of the least loop
    assert "1 MiB of values would be held at once, and at most 0 may" in find_reason(call)


def test_sizes_that_vary_count_as_in_the_call() -> None:
    sizes: list[int] = []

    def rewrite(graph: torch.fx.Graph) -> int:
        values = [value for node in graph.nodes if (value := value_of(node)) is not None]
        assert not all(isinstance(size, int) for size in values[0].shape)
        sizes.extend(map(independent_loops.count_bytes, values))
        return 0

    x = X.clone()
    torch._dynamo.mark_dynamic(x, 1)
    rewrite_and_call(torch.sin, x, rewrite=rewrite)
    assert sizes == [6 * 8 * 4] * 2


class Counted(list[Any]):
    reads = 0

    def __getitem__(self, place: Any) -> Any:
        self.reads += 1
        return super().__getitem__(place)


def test_a_search_without_writes_looks_at_each_function_a_few_times() -> None:
    graph = torch.fx.Graph()
    for _ in range(20):
        value = graph.placeholder("x")
        for _ in range(40):
            value = graph.call_function(torch.sin, (value,))
    nodes = Counted(node for node in graph.nodes if node.op == "call_function")
    search = independent_loops._Search(nodes)
    search._is_independent(independent_loops.Repetition(0, len(nodes), 40), 39, set(range(39)))
    assert nodes.reads <= 2 * 20, "not all functions for each place"


MODELS: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
    "layers": (nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), nn.ReLU()) for _ in range(8))), (4, 8)),
    "transformer": (
        nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16), 4, enable_nested_tensor=False),
        (3, 2, 8),
    ),
    "convolutions": (CONVOLVE, (2, 3, 8, 8)),
}


@pytest.mark.parametrize("name", MODELS)
def test_models_without_such_loops_have_no_trait(name: str) -> None:
    model, sizes = MODELS[name]
    assert not has_loops(record(lambda: model.train()(torch.randn(sizes))))
    model.eval()


@pytest.mark.parametrize("name", ["dropout", "noise", "statistics", "parts alone"])
def test_loops_that_cannot_run_at_once_have_no_trait(name: str) -> None:
    assert not has_loops(record(lambda: OTHERS[name][0](X.clone())))


def test_reasons_of_earlier_calls_are_forgotten() -> None:
    rewriting, graph = Rewriting(("batched_loop",)), torch.fx.Graph()
    graph.output(())
    for _ in range(3):
        with pytest.raises(NoEffectError, match="of 0 functions none repeat"), rewriting.assert_applied():
            rewriting(graph)
    assert len(rewriting.reasons["batched_loop"]) == 1


# ---- plans


class Samples(nn.Module):
    def __init__(self, *, bias: bool = True) -> None:
        super().__init__()
        self.net = make_net(bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([self.net(row) for row in x])


def compile_loop(model: Any, plan: Plan, mode: str = "inference", *args: Any) -> Any:
    return compile_plan(model, plan, Example(args or (X,)), device="cpu", mode=mode).call


def test_it_runs_in_eager_and_follows_weights_and_sizes() -> None:
    model = Samples().eval()
    call = compile_loop(model, BATCHED)
    with torch.no_grad():
        torch.testing.assert_close(call(X), model(X))
        model.net[0].weight.mul_(2)  # type: ignore[index]
        torch.testing.assert_close(call(X), model(X))
        torch.testing.assert_close(call(X[:5]), model(X[:5]))
        torch.testing.assert_close(call(X[:2]), model(X[:2]))


def test_it_trains_in_eager() -> None:
    model = Samples()
    answer = compile_loop(model, BATCHED, "training")(X)
    found = torch.autograd.grad(answer.square().sum(), list(model.parameters()))
    torch.testing.assert_close(found, torch.autograd.grad(model(X).square().sum(), list(model.parameters())))


# By day each loop in one mode.
COMPILED = [
    pytest.param(name, mode, marks=() if mode == by_day else pytest.mark.nightly)
    for name, by_day in {
        "stack": "inference",
        "list": "training",
        "heads": "training",
        "buffer and work in place": "inference",
        "tree": "inference",
        "sum": "training",
    }.items()
    for mode in ("inference", "training")
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "mode"), COMPILED)
def test_inductor_compiles_the_batch(name: str, mode: str) -> None:
    call = LOOPS[name]
    with torch.set_grad_enabled(mode == "training"):
        compiled = compile_loop(call, Plan(backend="inductor", transforms=("batched_loop",)), mode)
        torch.testing.assert_close(compiled(X), call(X))
        torch.testing.assert_close(compiled(X + 1), call(X + 1))


@pytest.mark.parametrize("precision", ["bf16", "autocast_bf16"])
def test_it_goes_with_a_precision(precision: str) -> None:
    model = Samples(bias=False).eval()
    with torch.no_grad():
        answer = compile_loop(model, Plan(precision=precision, transforms=("batched_loop",)))(X)
        torch.testing.assert_close(answer, model(X), rtol=0.05, atol=0.05, check_dtype=False)


def test_autocast_that_vmap_leaves_out_is_refused() -> None:
    with torch.no_grad(), pytest.raises(NoEffectError, match=r"would be torch\.float32 at once, not torch\.bfloat16"):
        compile_loop(Samples().eval(), Plan(precision="autocast_bf16", transforms=("batched_loop",)))(X)


@torch._inductor.config.patch(force_disable_caches=True)  # code from a cache is not examined again
@pytest.mark.parametrize("backend", ["eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_a_model_without_such_a_loop_is_refused_with_the_reason(backend: str) -> None:
    plan = Plan(backend=backend, transforms=("batched_loop",))
    with (
        torch.no_grad(),
        pytest.raises(
            NoEffectError, match="nothing here: the repeated part writes to its inputs, or to running statistics"
        ),
    ):
        compile_loop(train_norm, plan)(X)


def test_only_eager_and_inductor_take_it() -> None:
    with pytest.raises(PlanError, match="must be eager or inductor"):
        Plan(backend="openvino", transforms=("batched_loop",))
    with pytest.raises(PlanError, match="numbers_on_gpu"):
        Plan(capture="call", transforms=("batched_loop", "numbers_on_gpu"))


def test_it_is_tried_with_both_backends_for_models_with_the_trait_alone() -> None:
    for traits, found in ((), set()), ((Trait.INDEPENDENT_REPEATS,), {"eager", "inductor"}):
        space = PlanSpace("cpu", "inference", frozenset({Trait.FLOATING, *traits}), effort="quick")
        plans = [plan for plan, choice in space.neighbours(EAGER) if choice.value == "batched_loop"]
        assert {plan.backend for plan in plans} == found


def test_the_plan_is_traced_in_eager_and_so_not_prepared_for_a_program_that_serves() -> None:
    assert BATCHED.is_traced
    assert not EAGER.is_traced
    job = Job("try", WorkloadSpec("live:model"), BATCHED)
    request: Any = SimpleNamespace(make_job=lambda _: job, make_limits=lambda _: None, trial_s=1.0)
    study: Any = SimpleNamespace(inspection=SimpleNamespace(traits=frozenset()))
    launcher: Any = None
    found = search._compile_and_verify(request, study, BATCHED, Path("code"), launcher)
    assert "rewritten on the first call" in str(found)
