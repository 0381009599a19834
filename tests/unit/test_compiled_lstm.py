"""LSTMs in the compiled graph: one graph, the same answers, live weights, and calls that it is not for."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import prune

from torchwise.compile import aot, compile_plan
from torchwise.compile.transforms.compiled_lstm import compile_lstms, has_lstm
from torchwise.errors import PlanError, StalePlanError, UnsupportedError
from torchwise.plan import Plan
from torchwise.workload import Example

COMPILED = Plan(backend="counting", transforms=("compiled_lstm",))


class Tagger(nn.Module):
    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.first = nn.Linear(4, 8)
        self.rnn = nn.LSTM(8, 6, **options)
        self.last = nn.Linear(6 * (2 if options.get("bidirectional") else 1), 4)

    def forward(self, x: Tensor) -> Tensor:
        self.rnn.flatten_parameters()
        out, (hidden, _) = self.rnn(torch.relu(self.first(x)))
        return torch.tanh(self.last(out)) + hidden.sum()


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
    copied, _ = compile_lstms(model)
    assert copied[0] is copied.again  # type: ignore[index]
    assert type(model[0]) is nn.LSTM
    assert list(copied.state_dict()) == list(model.state_dict())


@pytest.mark.parametrize(
    "model",
    [
        nn.GRU(4, 4),
        nn.LSTM(4, 4, proj_size=2),
        nn.LSTM(4, 4, 2, dropout=0.5),
        nn.LSTM(4, 4).double(),
        nn.Linear(4, 4),
        torch.tanh,
    ],
)
def test_what_onednn_does_not_run_is_refused(model: Any, x: Tensor) -> None:
    assert not has_lstm(model)
    with pytest.raises(UnsupportedError, match=r"has no nn\.LSTM in float32 or bfloat16"):
        compile_call(model, COMPILED, x)


def test_dropout_that_is_off_is_no_obstacle() -> None:
    assert has_lstm(nn.LSTM(4, 4, 2, dropout=0.5).eval())


@pytest.mark.usefixtures("graphs")
@torch.no_grad()
def test_a_packed_sequence_is_refused(x: Tensor) -> None:
    model = nn.LSTM(4, 4).eval()
    packed = nn.utils.rnn.pack_sequence([x[0], x[1]])
    with pytest.raises(Exception, match="no packed sequences"):
        compile_call(model, COMPILED, packed)(packed)


@pytest.mark.parametrize("precision", ["native", "bf16"])
@torch.no_grad()
def test_it_is_compiled_ahead_in_every_precision(precision: str, x: Tensor) -> None:
    model, maker = nn.LSTM(4, 4).eval(), aot.Maker()
    plan = Plan(backend="inductor", transforms=("compiled_lstm",), precision=precision)
    torch.compiler.reset()
    compile_plan(model, plan, Example((x,)), device="cpu", mode="inference", backend=maker).call(x)
    call = compile_plan(model, plan, Example((x,)), device="cpu", mode="inference", backend=aot.Loader(maker.made)).call
    torch.testing.assert_close(call(x), model(x), atol=1e-6 if precision == "native" else 0.02, rtol=0)


def test_an_lstm_is_either_compiled_or_isolated_and_not_under_autocast() -> None:
    with pytest.raises(PlanError, match="either compiled or isolated"):
        Plan(backend="inductor", transforms=("compiled_lstm", "isolate_rnn"))
    with pytest.raises(PlanError, match="precision is 'autocast_bf16': choose bf16, or leave one out"):
        Plan(backend="inductor", transforms=("compiled_lstm",), precision="autocast_bf16")


@torch.no_grad()
def test_inductor_runs_all_steps_as_one_operator(x: Tensor) -> None:
    from torch._inductor.utils import run_and_get_code

    model = nn.LSTM(4, 4).eval()
    with torch._inductor.config.patch(force_disable_caches=True):
        call = compile_call(model, Plan(backend="inductor", transforms=("compiled_lstm",)), x)
        answer, code = run_and_get_code(call, x)
    torch.testing.assert_close(answer, model(x))
    assert "mkldnn_rnn_layer" in "".join(code)


@pytest.mark.usefixtures("graphs")
@torch.no_grad()
def test_weights_that_a_hook_computes_are_used(x: Tensor) -> None:
    model = Tagger().eval()
    prune.l1_unstructured(model.rnn, "weight_hh_l0", 0.5)
    torch.testing.assert_close(compile_call(model, COMPILED, x)(x), model(x))
