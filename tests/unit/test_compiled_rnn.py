"""RNNs in the compiled graph: one graph, the same answers, live weights, and calls that it is not for."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import prune

from torchwise.compile import aot, compile_plan
from torchwise.compile.programs.region_map import tell_regions
from torchwise.compile.transforms.compiled_rnn import CompiledRNN, compile_rnns, has_rnn
from torchwise.errors import PlanError, StalePlanError, UnsupportedError
from torchwise.plan import EAGER, Plan, PlanSpace
from torchwise.plan.trait import Trait
from torchwise.plan.words import read_words
from torchwise.trial.inspection import _compatible
from torchwise.workload import Example

COMPILED = Plan(backend="counting", transforms=("compiled_rnn",))


class Tagger(nn.Module):
    def __init__(self, kind: type[nn.RNNBase] = nn.LSTM, **options: Any) -> None:
        super().__init__()
        self.first = nn.Linear(4, 8)
        self.rnn = kind(8, 6, **options)
        width = options.get("proj_size") or 6
        self.last = nn.Linear(width * (2 if options.get("bidirectional") else 1), 4)

    def forward(self, x: Tensor) -> Tensor:
        self.rnn.flatten_parameters()
        out, state = self.rnn(torch.relu(self.first(x)))
        hidden, *cell = state if isinstance(state, tuple) else (state,)
        return torch.tanh(self.last(out)) + hidden.sum() + sum(one.mean() for one in cell)


STEPPED = (
    (nn.GRU, {}),
    (nn.GRU, {"num_layers": 2, "bidirectional": True, "bias": False}),
    (nn.GRU, {"batch_first": True, "num_layers": 3}),
    (nn.RNN, {"bidirectional": True, "batch_first": True}),
    (nn.RNN, {"nonlinearity": "relu", "num_layers": 2}),
    (nn.LSTM, {"proj_size": 2, "num_layers": 2, "bidirectional": True}),
)
"""RNNs of which oneDNN does not run a layer as a whole."""


@pytest.fixture
def x() -> Tensor:
    torch.manual_seed(0)
    return torch.randn(3, 2, 4)


def compile_call(call: Any, plan: Plan, *args: Any) -> Any:
    torch.compiler.reset()
    return compile_plan(call, plan, Example(args), device="cpu", mode="inference").call


@pytest.mark.parametrize(
    "options", [{}, {"num_layers": 2, "bidirectional": True}, {"batch_first": True, "bias": False}, {"dropout": 0.0}]
)
@torch.no_grad()
def test_the_whole_model_is_one_graph(options: dict[str, Any], graphs: list[Any], x: Tensor) -> None:
    model = Tagger(**options).eval()
    torch.testing.assert_close(compile_call(model, COMPILED, x)(x), model(x))
    assert len(graphs) == 1
    assert "lstm" in graphs[0]


@pytest.mark.usefixtures("graphs")
@pytest.mark.parametrize("batch_first", [True, False])
@torch.no_grad()
def test_an_lstm_by_itself_takes_states_and_one_sequence(batch_first: bool, x: Tensor) -> None:
    model = nn.LSTM(4, 6, 2, batch_first=batch_first).eval()
    batch = x.shape[0 if batch_first else 1]
    for args in ((x,), (x[0],), (x, (torch.ones(2, batch, 6), torch.ones(2, batch, 6))), (x[0], _ones(2, 6))):
        torch.testing.assert_close(compile_call(model, COMPILED, *args)(*args), model(*args))


def _ones(*sizes: int) -> tuple[Tensor, Tensor]:
    return torch.ones(sizes), torch.ones(sizes)


@pytest.mark.usefixtures("graphs")
@torch.no_grad()
def test_weights_are_live_and_another_structure_is_stale(x: Tensor) -> None:
    model = Tagger().eval()
    call = compile_call(model, COMPILED, x)
    call(x)
    model.rnn.weight_hh_l0.mul_(-2.0)
    torch.testing.assert_close(call(x), model(x))
    model.load_state_dict(Tagger().state_dict())
    torch.testing.assert_close(call(x), model(x))
    model.rnn = nn.LSTM(8, 6)
    with pytest.raises(StalePlanError, match="the model changed"):
        call(x)


@pytest.mark.usefixtures("graphs")
@torch.no_grad()
def test_hooks_run_once(x: Tensor) -> None:
    model, seen = Tagger().eval(), []
    model.rnn.register_forward_hook(lambda *_: seen.append(True))
    compile_call(model, COMPILED, x)(x)
    assert len(seen) == 1


def test_one_in_two_places_stays_one_and_the_original_stays() -> None:
    model = nn.Sequential(nn.LSTM(4, 4))
    model.add_module("again", model[0])
    copied, _ = compile_rnns(model)
    assert copied[0] is copied.again  # type: ignore[index]
    assert type(model[0]) is nn.LSTM
    assert list(copied.state_dict()) == list(model.state_dict())


@pytest.mark.parametrize(("kind", "options"), STEPPED)
@torch.no_grad()
def test_steps_are_operators_of_one_graph(
    kind: type[nn.RNNBase], options: dict[str, Any], graphs: list[Any], x: Tensor
) -> None:
    model = Tagger(kind, **options).eval()
    torch.testing.assert_close(compile_call(model, COMPILED, x)(x), model(x))
    assert len(graphs) == 1
    assert "linear" in graphs[0]
    assert not {"gru", "lstm", "rnn_tanh", "rnn_relu"} & set(graphs[0])


@pytest.mark.usefixtures("graphs")
@pytest.mark.parametrize(("kind", "options"), STEPPED)
@torch.no_grad()
def test_an_rnn_by_itself_takes_states_and_one_sequence(
    kind: type[nn.RNNBase], options: dict[str, Any], x: Tensor
) -> None:
    model = kind(4, 6, **options).eval()
    layers, batch = len(model.all_weights), x.shape[0 if model.batch_first else 1]
    widths = (model.proj_size or 6, 6)[: 2 if kind is nn.LSTM else 1]
    states = [torch.rand(layers, batch, width) for width in widths]
    whole = tuple(states) if kind is nn.LSTM else states[0]
    single = tuple(one[:, 0] for one in states) if kind is nn.LSTM else states[0][:, 0]
    for args in ((x,), (x[0],), (x, whole), (x[0], single)):
        torch.testing.assert_close(compile_call(model, COMPILED, *args)(*args), model(*args))


@pytest.mark.usefixtures("graphs")
@torch.no_grad()
def test_another_dtype_than_onednn_has_is_computed_by_steps(x: Tensor) -> None:
    model = nn.LSTM(4, 6).double().eval()
    torch.testing.assert_close(compile_call(model, COMPILED, x.double())(x.double()), model(x.double()))


@pytest.mark.usefixtures("graphs")
@pytest.mark.parametrize(
    ("model", "steps", "cells"), [(nn.GRU(4, 6), 65, 65), (nn.RNN(4, 6, 2, bidirectional=True), 17, 68)]
)
@torch.no_grad()
def test_a_long_sequence_is_refused(model: nn.RNNBase, steps: int, cells: int) -> None:
    long, most = torch.randn(steps, 2, 4), torch.randn(64 * steps // cells, 2, 4)
    with pytest.raises(Exception, match=f"at most 64 steps of all layers and directions one by one, .* has {cells}"):
        compile_call(model.eval(), COMPILED, long)(long)
    torch.testing.assert_close(compile_call(model.eval(), COMPILED, most)(most), model(most))


@pytest.mark.parametrize("kind", [nn.RNN, nn.GRU, nn.LSTM])
@pytest.mark.parametrize(
    ("size", "state", "what"),
    [
        ((3, 2, 5), None, "has size (3, 2, 5), but must be rows of 4 numbers"),
        ((1, 3, 2, 4), None, "has size (1, 3, 2, 4), but must be rows of 4 numbers"),
        ((0, 2, 4), None, "has 0 steps"),
        ((3, 2, 4), (1, 1, 6), "has size (1, 1, 6), but must have (1, 2, 6)"),
        ((3, 2, 4), (2, 2, 6), "has size (2, 2, 6), but must have (1, 2, 6)"),
        ((3, 2, 4), (2, 6), "has size (2, 6), but must have (1, 2, 6)"),
        ((3, 4), (1, 1, 6), "has size (1, 1, 1, 6), but must have (1, 1, 6)"),
    ],
)
@torch.no_grad()
def test_sizes_at_which_the_rnn_raises_are_refused(
    kind: type[nn.RNNBase], size: tuple[int, ...], state: tuple[int, ...] | None, what: str
) -> None:
    """A kernel would read beyond them."""
    rnn = kind(4, 6).eval()
    given = None if state is None else torch.zeros(state)
    args = (torch.randn(size), (given, given) if kind is nn.LSTM and state else given)
    with pytest.raises((RuntimeError, ValueError)):
        rnn(*args)
    with pytest.raises(UnsupportedError, match=re.escape(what)):
        CompiledRNN(rnn)(*args)


@pytest.mark.usefixtures("graphs")
def test_a_long_lstm_whose_input_needs_gradients_is_refused() -> None:
    """OneDNN's operator has none, and a compiler would be given all steps."""
    rnn = CompiledRNN(nn.LSTM(4, 6).eval())
    assert rnn(torch.randn(65, 2, 4))[0].shape == (65, 2, 6)
    with pytest.raises(UnsupportedError, match=r"at most 64 steps .* has 65: choose isolate_rnn"):
        rnn(torch.randn(65, 2, 4, requires_grad=True))


def test_it_has_the_weights_that_an_rnn_has() -> None:
    rnn = nn.GRU(4, 6, 2)
    assert [len(one) for one in CompiledRNN(rnn).all_weights] == [4, 4]
    assert CompiledRNN(rnn).all_weights[1][0] is rnn.weight_ih_l1


class OwnGRU(nn.GRU):
    """It may compute something else."""


@pytest.mark.parametrize(
    "model", [OwnGRU(4, 4), nn.LSTM(4, 4, 2, dropout=0.5), nn.GRUCell(4, 4), nn.Linear(4, 4), torch.tanh]
)
def test_what_is_no_rnn_or_draws_is_refused(model: Any, x: Tensor) -> None:
    assert not has_rnn(model)
    with pytest.raises(
        UnsupportedError, match=r"has no plain nn\.RNN, nn\.GRU or nn\.LSTM without dropout in training"
    ):
        compile_call(model, COMPILED, x)


@pytest.mark.parametrize("kind", [nn.RNN, nn.GRU, nn.LSTM])
@torch.no_grad()
def test_row_programs_take_all_steps_into_one_region(kind: type[nn.RNNBase], x: Tensor) -> None:
    model, found = Tagger(kind).eval(), []
    with tell_regions(found.append):
        call = compile_call(model, Plan(backend="row_programs"), x)
        torch.testing.assert_close(call(x), model(x))
    [boxes] = found
    assert [box.is_region for box in boxes] == [True]


@pytest.mark.parametrize(("kind", "name"), [(nn.RNN, "rnn_tanh"), (nn.GRU, "gru"), (nn.LSTM, "lstm")])
@torch.no_grad()
def test_a_long_rnn_stays_whole_in_row_programs(kind: type[nn.RNNBase], name: str) -> None:
    model, found, x = Tagger(kind, num_layers=3, batch_first=True).eval(), [], torch.randn(2, 67, 4)
    with tell_regions(found.append):
        call = compile_call(model, Plan(backend="row_programs"), x)
        torch.testing.assert_close(call(x), model(x))
    assert [box.operators for box in found[0] if not box.is_region] == [(name,)]


def test_dropout_that_is_off_is_no_obstacle() -> None:
    assert has_rnn(nn.LSTM(4, 4, 2, dropout=0.5).eval())
    assert has_rnn(nn.GRU(4, 4, dropout=0.5)), "PyTorch warns that one layer has no dropout"


@pytest.mark.usefixtures("graphs")
@torch.no_grad()
def test_a_packed_sequence_is_refused(x: Tensor) -> None:
    model = nn.LSTM(4, 4).eval()
    packed = nn.utils.rnn.pack_sequence([x[0], x[1]])
    with pytest.raises(Exception, match="no packed sequences"):
        compile_call(model, COMPILED, packed)(packed)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
@pytest.mark.parametrize("precision", ["native", "bf16"])
@torch.no_grad()
def test_it_is_compiled_ahead_in_every_precision(precision: str, kind: type[nn.RNNBase], x: Tensor) -> None:
    model, maker = kind(4, 4).eval(), aot.Maker()
    plan = Plan(backend="inductor", transforms=("compiled_rnn",), precision=precision)
    torch.compiler.reset()
    compile_plan(model, plan, Example((x,)), device="cpu", mode="inference", backend=maker).call(x)
    call = compile_plan(model, plan, Example((x,)), device="cpu", mode="inference", backend=aot.Loader(maker.made)).call
    torch.testing.assert_close(call(x), model(x), atol=1e-6 if precision == "native" else 0.02, rtol=0)


@pytest.mark.parametrize("backend", ["eager", "openvino", "row_programs"])
def test_backends_that_need_no_rewrite_refuse_it(backend: str) -> None:
    with pytest.raises(PlanError, match=r"which is for inductor|eager compiles nothing"):
        Plan(backend=backend, transforms=("compiled_rnn",))


def test_its_former_name_still_works() -> None:
    former = Plan(backend="inductor", transforms=("compiled_lstm",))
    assert former == Plan(backend="inductor", transforms=("compiled_rnn",))
    assert Plan.from_dict({**former.to_dict(), "transforms": ["compiled_lstm"]}) == former
    assert read_words("inductor + compiled_lstm") == former
    assert former.id == "1004e7d87b02", "stores know it by that"


def test_an_rnn_is_either_compiled_or_isolated_and_not_under_autocast() -> None:
    with pytest.raises(PlanError, match="compiled or isolated: leave one out"):
        Plan(backend="inductor", transforms=("compiled_rnn", "isolate_rnn"))
    with pytest.raises(PlanError, match="precision is 'autocast_bf16': choose bf16, or leave one out"):
        Plan(backend="inductor", transforms=("compiled_rnn",), precision="autocast_bf16")


@torch.no_grad()
def test_inductor_runs_all_steps_as_one_operator(x: Tensor) -> None:
    from torch._inductor.utils import run_and_get_code

    model = nn.LSTM(4, 4).eval()
    with torch._inductor.config.patch(force_disable_caches=True):
        call = compile_call(model, Plan(backend="inductor", transforms=("compiled_rnn",)), x)
        answer, code = run_and_get_code(call, x)
    torch.testing.assert_close(answer, model(x))
    assert "mkldnn_rnn_layer" in "".join(code)


@pytest.mark.usefixtures("graphs")
@torch.no_grad()
def test_weights_that_a_hook_computes_are_used(x: Tensor) -> None:
    model = Tagger().eval()
    prune.l1_unstructured(model.rnn, "weight_hh_l0", 0.5)
    torch.testing.assert_close(compile_call(model, COMPILED, x)(x), model(x))


@pytest.mark.parametrize(
    ("device", "more", "repeats"),
    [("cuda", {"compilable_rnn"}, True), ("cpu", {"compilable_rnn"}, False), ("cuda", set(), False)],
)
def test_what_repeats_around_an_rnn_may_be_rolled_on_a_gpu(device: str, more: set[str], repeats: bool) -> None:
    """There an RNN is one operator, whose own steps are not among those that repeat."""
    traits = frozenset(map(Trait, {"rnn", "repeats", "long", *more}))
    assert (Trait.REPEATS in _compatible(traits, device)) is repeats


def test_a_rolled_loop_around_an_rnn_has_it_compiled() -> None:
    traits = frozenset({Trait.RNN, Trait.COMPILABLE_RNN, Trait.REPEATS, Trait.MODULE})
    space = PlanSpace("cuda", "inference", traits, effort="quick")
    rolled = [plan for plan, choice in space.neighbours(EAGER) if choice.value == "rolled"]
    assert rolled[0] == Plan(backend="inductor", scope="rolled", transforms=("compiled_rnn",))


class Loop(nn.Module):
    """Steps of a controller with a memory."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.last = nn.GRU(4, 6), nn.Linear(6, 4)

    def forward(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        for _ in range(12):
            out, state = self.rnn(x[None], state)
            x = x + torch.tanh(self.last(out[0]))
        return x, state


@pytest.mark.slow
@torch.no_grad()
def test_a_loop_around_an_rnn_is_rolled() -> None:
    model, args = Loop().eval(), (torch.randn(3, 4), torch.randn(1, 3, 6))
    plan = Plan(backend="inductor", scope="rolled", transforms=("compiled_rnn",))
    torch.testing.assert_close(compile_call(model, plan, *args)(*args), model(*args))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.int64])
@torch.no_grad()
def test_a_conversion_of_a_dtype_leaves_no_check_beside_a_region(dtype: torch.dtype, x: Tensor) -> None:
    found: list[Any] = []

    def convert(x: Tensor) -> Tensor:
        return (3 * x).to(dtype).to(torch.float32) + torch.tanh(x)

    with tell_regions(found.append):
        torch.testing.assert_close(compile_call(convert, Plan(backend="row_programs"), x)(x), convert(x))
    assert not any("_assert_tensor_metadata" in box.operators for box in found[0])


def test_nothing_is_rolled_around_an_rnn_in_training() -> None:
    traits = frozenset({Trait.RNN, Trait.REPEATS, Trait.COMPILABLE_RNN})
    assert Trait.REPEATS not in _compatible(traits, "cuda", "training")
