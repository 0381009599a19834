"""Transforms of the model: RNNs isolated from the compiler, and the static form that a model declares."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from torchwise.compile import compile_plan
from torchwise.compile.cuda_graphs import call_graph
from torchwise.compile.transforms.isolate_rnn import IsolatedRNN, has_rnn, isolate
from torchwise.compile.transforms.static_form import has_static_form, take_static_form
from torchwise.errors import NoEffectError, StalePlanError, UnsupportedError
from torchwise.plan import CHOICES, Choice, Numerics, Plan, Stage
from torchwise.plan.choice import list_values
from torchwise.verify import Subject, verify
from torchwise.workload import Example, Workload
from torchwise.zoo.registry import load

ISOLATED = Plan(backend="counting", transforms=("isolate_rnn",))
STATIC = Plan(transforms=("static_form",))


def compile_call(call: Any, plan: Plan, *args: Any, mode: str = "inference") -> Any:
    return compile_plan(call, plan, Example(args), device="cpu", mode=mode).call


# ---- isolated RNNs


class Tagger(nn.Module):
    """Work before and after an RNN, in one function, which Dynamo breaks at the mention of the RNN."""

    def __init__(self, kind: type[nn.RNNBase] = nn.GRU, dropout: float = 0.0) -> None:
        super().__init__()
        self.first = nn.Linear(4, 8)
        self.rnn = kind(8, 8, num_layers=2, dropout=dropout)
        self.last = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out, _ = self.rnn(torch.relu(self.first(x)))
        return torch.tanh(self.last(out))


@pytest.fixture
def x() -> torch.Tensor:
    torch.manual_seed(0)
    return torch.randn(3, 2, 4)


@pytest.mark.parametrize("kind", [nn.RNN, nn.GRU, nn.LSTM])
@torch.no_grad()
def test_what_follows_an_isolated_rnn_is_compiled(kind: type[nn.RNNBase], graphs: list[Any], x: torch.Tensor) -> None:
    model = Tagger(kind).eval()
    assert torch.equal(compile_call(model, Plan(backend="counting"), x)(x), model(x))
    # From 2.15 on PyTorch compiles beside an RNN by itself, so that isolating it gains nothing there.
    assert graphs == ([] if torch.__version__ < "2.15" else [["linear", "relu"], ["linear", "tanh"]])
    graphs.clear()
    torch.compiler.reset()  # Dynamo remembers the function as one that is not worth looking at
    assert torch.equal(compile_call(model, ISOLATED, x)(x), model(x))
    assert graphs == [["linear", "relu"], ["linear", "tanh"]]


def test_the_model_itself_is_left_as_it_was(graphs: list[Any], x: torch.Tensor) -> None:
    model = Tagger().eval()
    before = {name: (id(t), t.data_ptr(), t._version) for name, t in model.state_dict(keep_vars=True).items()}
    rnn, attributes = model.rnn, dict(vars(model.rnn))
    compile_call(model, ISOLATED, x)(x)
    assert graphs
    assert model.rnn is rnn
    assert vars(model.rnn) == attributes
    now = {name: (id(t), t.data_ptr(), t._version) for name, t in model.state_dict(keep_vars=True).items()}
    assert now == before


def test_an_isolated_model_has_the_names_and_the_very_parameters_of_the_model() -> None:
    model = Tagger()
    isolated, _ = isolate(model)
    ours, theirs = isolated.state_dict(keep_vars=True), model.state_dict(keep_vars=True)
    assert list(ours) == list(theirs)
    assert all(ours[name] is theirs[name] for name in ours)
    rnn: Any = isolated.rnn
    # PyTorch's RNNs keep a list of their weights apart, which cuDNN reads: it must be of the same tensors.
    assert all(ours is theirs for ours, theirs in zip(rnn._rnn._flat_weights, model.rnn._flat_weights, strict=True))


def test_isolating_moves_no_weight(monkeypatch: pytest.MonkeyPatch) -> None:
    flattened: list[nn.RNNBase] = []
    model = Tagger()
    # On a GPU it puts the weights in new memory, and here it does nothing.
    monkeypatch.setattr(nn.RNNBase, "flatten_parameters", flattened.append)
    isolate(model)
    assert flattened == []


@pytest.mark.usefixtures("graphs")
@torch.no_grad()
def test_weights_changed_in_place_are_followed_and_a_changed_structure_is_refused(x: torch.Tensor) -> None:
    model = Tagger().eval()
    call = compile_call(model, ISOLATED, x)
    call(x)
    for parameter in model.parameters():
        parameter.mul_(0.5)
    assert torch.equal(call(x), model(x))
    model.load_state_dict(Tagger().state_dict())
    assert torch.equal(call(x), model(x))
    model.rnn = nn.GRU(8, 8, num_layers=2)
    with pytest.raises(StalePlanError, match="the model changed"):
        call(x)


@pytest.mark.usefixtures("graphs")
@torch.no_grad()
def test_an_isolated_rnn_follows_weights_in_another_precision(x: torch.Tensor) -> None:
    model = Tagger().eval()
    call = compile_call(model, Plan(backend="counting", transforms=("isolate_rnn",), precision="bf16"), x)
    assert torch.allclose(call(x), model(x), atol=0.02)
    model.rnn.weight_ih_l0.mul_(-3.0)
    assert torch.allclose(call(x), model(x), atol=0.02)
    model.train()
    with pytest.raises(StalePlanError):
        call(x)


def test_gradients_go_through_an_isolated_rnn(graphs: list[Any], x: torch.Tensor) -> None:
    model = Tagger(nn.LSTM)
    call = compile_call(model, ISOLATED, x, mode="training")
    found = [torch.autograd.grad(answer.sum(), list(model.parameters())) for answer in (call(x), model(x))]
    assert len(graphs) == 2
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.usefixtures("graphs")
@pytest.mark.parametrize("training", [True, False])
def test_dropout_of_an_isolated_rnn_acts_in_training_only(training: bool, x: torch.Tensor) -> None:
    model = Tagger(dropout=0.5).train(training)
    call = compile_call(model, ISOLATED, x)
    torch.manual_seed(3)
    answer = call(x)
    torch.manual_seed(3)
    assert torch.equal(answer, model(x))
    assert torch.equal(call(x), answer) is not training


class Own(nn.GRU):
    """A user's own class, with work and methods that PyTorch's lacks."""

    def start(self, batch: int) -> torch.Tensor:
        return torch.ones(self.num_layers, batch, self.hidden_size)

    def forward(self, x: torch.Tensor, start: torch.Tensor | None = None) -> Any:  # type: ignore[override]
        return super().forward(x.sin(), start)


class Asking(Tagger):
    """Reads attributes and parameters of its RNN, and readies it for cuDNN, as models do."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.first(x)) * self.rnn.hidden_size + self.rnn.weight_hh_l0.sum()
        self.rnn.flatten_parameters()
        out, _ = self.rnn(x)
        return torch.tanh(self.last(out))


class Calling(Tagger):
    """Calls a method that only the class of its RNN has."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rnn: Any = self.rnn
        return torch.tanh(self.last(rnn(torch.relu(self.first(x)), rnn.start(x.shape[1]))[0]))


@torch.no_grad()
def test_a_model_may_ask_its_rnn_for_attributes_and_parameters(graphs: list[Any], x: torch.Tensor) -> None:
    model = Asking().eval()
    assert torch.equal(compile_call(model, ISOLATED, x)(x), model(x))
    assert graphs == [["linear", "relu", "mul", "add"], ["linear", "tanh"]]


@pytest.mark.usefixtures("graphs")
@torch.no_grad()
def test_a_model_may_call_methods_of_its_rnn(x: torch.Tensor) -> None:
    model = Calling(Own).eval()
    assert torch.equal(compile_call(model, ISOLATED, x)(x), model(x))


@torch.no_grad()
def test_all_that_an_isolated_rnn_does_runs_in_eager(graphs: list[Any], x: torch.Tensor) -> None:
    model = Tagger(Own).eval()
    with torch._dynamo.config.patch(allow_rnn=True):  # with which Dynamo would unroll it
        assert torch.equal(compile_call(model, ISOLATED, x)(x), model(x))
    assert graphs == [["linear", "relu"], ["linear", "tanh"]]


class Packing(Tagger):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        lengths = torch.tensor([2, 3])
        packed = nn.utils.rnn.pack_padded_sequence(torch.relu(self.first(x)), lengths, enforce_sorted=False)
        out, _ = nn.utils.rnn.pad_packed_sequence(self.rnn(packed)[0])
        return torch.tanh(self.last(out))


@pytest.mark.skipif(torch.__version__ < "2.13", reason="Dynamo of this version raises at pad_packed_sequence itself")
@torch.no_grad()
def test_packed_sequences_pass(graphs: list[Any], x: torch.Tensor) -> None:
    model = Packing(nn.LSTM).eval()
    assert torch.equal(compile_call(model, ISOLATED, x)(x), model(x))
    assert "tanh" in graphs[-1]


class Twice(nn.Module):
    """One RNN that hangs in two places."""

    def __init__(self) -> None:
        super().__init__()
        self.one = Tagger()
        self.other = self.one.rnn

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.other(self.one(x).repeat(1, 1, 2))[0]
        return out


@pytest.mark.usefixtures("graphs")
@torch.no_grad()
def test_an_rnn_that_hangs_in_two_places_stays_one(x: torch.Tensor) -> None:
    model = Twice().eval()
    isolated: Any = isolate(model)[0]
    assert isinstance(isolated.other, IsolatedRNN)
    assert isolated.other is isolated.one.rnn
    assert torch.equal(compile_call(model, ISOLATED, x)(x), model(x))


@pytest.mark.usefixtures("graphs")
@torch.no_grad()
def test_hooks_of_an_isolated_rnn_run_once(x: torch.Tensor) -> None:
    model = Tagger().eval()
    seen: list[type] = []
    model.rnn.register_forward_hook(lambda rnn, *_: seen.append(type(rnn)))
    compile_call(model, ISOLATED, x)(x)
    assert seen == [nn.GRU]


def test_an_isolated_model_can_be_copied() -> None:
    copied: Any = copy.deepcopy(isolate(Tagger())[0])
    assert copied.rnn._rnn._parameters is copied.rnn._parameters
    assert copied.rnn._rnn._flat_weights[0] is copied.rnn.weight_ih_l0


class Idle(Tagger):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.first(x)


@pytest.mark.usefixtures("graphs")
def test_isolating_what_is_not_there_or_not_called_is_refused(x: torch.Tensor) -> None:
    for call in (nn.Linear(4, 4), nn.GRU(4, 4), torch.tanh):
        assert not (isinstance(call, nn.Module) and has_rnn(call))
        with pytest.raises(UnsupportedError, match=r"has no nn\.RNN, nn\.GRU or nn\.LSTM inside it"):
            compile_call(call, ISOLATED, x)
    call = compile_call(Idle(), ISOLATED, x)
    for _ in range(2):
        with pytest.raises(NoEffectError, match="changes nothing here") as refused:
            call(x)
        assert refused.value.part == ("transforms", "isolate_rnn")


# ---- static forms


class Masked(nn.Module):
    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer
        self.register_buffer("one", torch.ones(()), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.where((x.sum(-1) > 0)[:, None], self.layer(x) * self.one, 0.0)


class Selecting(nn.Module):
    """Works on the rows that the data select, and declares the form that works on all and masks."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.make: Callable[[Selecting], Any] = lambda model: Masked(model.layer)

    def static_form(self) -> Any:
        return self.make(self)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = (x.sum(-1) > 0).nonzero()[:, 0]
        return torch.zeros_like(x).index_copy(0, rows, self.layer(x[rows]))


def make_selecting_model(make: Callable[[Selecting], Any]) -> Selecting:
    model = Selecting().eval()
    model.make = make
    return model


@pytest.fixture
def rows() -> torch.Tensor:
    torch.manual_seed(0)
    return torch.randn(6, 4)


@torch.no_grad()
def test_the_declared_form_runs_in_place_of_the_model(rows: torch.Tensor) -> None:
    ran = []
    model = Selecting().eval()
    model.layer.register_forward_hook(lambda _layer, args, _answer: ran.append(len(args[0])))
    call = compile_call(model, STATIC, rows)
    assert torch.allclose(call(rows), model(rows))
    assert ran == [6, int((rows.sum(-1) > 0).sum())]
    assert ran[0] > ran[1]


@torch.no_grad()
def test_a_static_form_is_compiled_in_one_graph(graphs: list[Any], rows: torch.Tensor) -> None:
    model = Selecting().eval()
    call = compile_call(model, Plan(backend="counting", transforms=("static_form",)), rows)
    assert torch.allclose(call(rows), model(rows))
    assert torch.allclose(call(-rows), model(-rows))
    assert len(graphs) == 1


@pytest.mark.usefixtures("graphs")
@pytest.mark.parametrize("backend", ["eager", "counting"])
@torch.no_grad()
def test_a_static_form_follows_weights_and_refuses_another_structure(backend: str, rows: torch.Tensor) -> None:
    model = Selecting().eval()
    call = compile_call(model, Plan(backend=backend, transforms=("static_form",)), rows)
    call(rows)
    model.layer.weight.mul_(2.0)
    assert torch.allclose(call(rows), model(rows))
    model.train()
    with pytest.raises(StalePlanError, match="the model changed"):
        call(rows)


@torch.no_grad()
def test_a_static_form_is_captured_without_a_compiler(monkeypatch: pytest.MonkeyPatch, rows: torch.Tensor) -> None:
    given: list[Any] = []

    class Captured:
        def __init__(self, call: Callable[..., Any], module: nn.Module, **_: Any) -> None:
            given.append(module)
            self.call = call

        def __call__(self, *args: Any) -> Any:
            return self.call(*args)

        def close(self) -> None:
            pass

    monkeypatch.setattr(call_graph, "CapturedCall", Captured)
    model = Selecting().eval()
    call = compile_call(model, Plan(transforms=("static_form",), capture="call"), rows)
    assert [type(module) for module in given] == [Masked]
    assert torch.allclose(call(rows), model(rows))
    model.layer = nn.Linear(4, 4)
    with pytest.raises(StalePlanError):
        call(rows)


@torch.no_grad()
def test_a_static_form_in_another_precision_follows_the_weights_of_the_model(rows: torch.Tensor) -> None:
    model = Selecting().eval()
    call = compile_call(model, Plan(transforms=("static_form",), precision="bf16"), rows)
    model.layer.weight.mul_(2.0)
    assert torch.allclose(call(rows), model(rows), atol=0.1)
    assert model.layer.weight.dtype is torch.float32


def test_gradients_reach_the_parameters_of_the_model(rows: torch.Tensor) -> None:
    model = Selecting()
    compile_call(model, STATIC, rows, mode="training")(rows).sum().backward()
    found = model.layer.weight.grad
    assert found is not None
    (expected,) = torch.autograd.grad(model(rows).sum(), [model.layer.weight])
    torch.testing.assert_close(found, expected)


def test_a_function_may_declare_one(rows: torch.Tensor) -> None:
    def dynamic(x: torch.Tensor) -> torch.Tensor:
        return x[x > 0].sum()

    assert not has_static_form(dynamic)
    dynamic.static_form = lambda: lambda x: x.clamp(min=0).sum()  # type: ignore[attr-defined]
    assert has_static_form(dynamic)
    assert torch.allclose(compile_call(dynamic, STATIC, rows)(rows), dynamic(rows))


REFUSED: dict[str, tuple[Callable[[Selecting], Any], str]] = {
    "itself": (lambda model: model, "has no method static_form, or returns itself"),
    "nothing": (lambda _: None, "has no method static_form, or returns itself"),
    "raises": (lambda _: 1 / 0, r"static_form\(\) of Selecting raised ZeroDivisionError"),
    "not callable": (lambda _: 5, "is of type int, but must be callable"),
    "copied weights": (lambda model: Masked(copy.deepcopy(model.layer)), "has its own tensor layer.weight"),
}


@pytest.mark.parametrize(("make", "message"), REFUSED.values(), ids=list(REFUSED))
def test_a_form_that_cannot_be_used_is_refused(
    make: Callable[[Selecting], Any], message: str, rows: torch.Tensor
) -> None:
    model = make_selecting_model(make)
    with pytest.raises(UnsupportedError, match=message):
        compile_call(model, STATIC, rows)
    assert has_static_form(model) is ("no method" not in message)


def test_hooks_that_the_form_would_leave_out_are_refused(rows: torch.Tensor) -> None:
    model = Selecting().eval()
    model.register_forward_hook(lambda *_: None)
    with pytest.raises(UnsupportedError, match="forward hooks"):
        take_static_form(model)
    compile_call(model.requires_grad_(False), Plan(threads=1), rows)(rows)


def test_a_form_that_answers_otherwise_does_not_pass(rows: torch.Tensor) -> None:
    def outcome(make: Callable[[Selecting], Any]) -> str:
        model = make_selecting_model(make)
        subject = Subject(Workload(model, (Example((rows,)),)), compile_call(model, STATIC, rows), model)
        return str(verify(subject).outcome)

    assert outcome(lambda model: Masked(model.layer)) == "pass"
    assert outcome(lambda model: model.layer) == "fail"


@pytest.mark.parametrize("operation", ["processor", "dynamic_rollout"])
def test_the_static_forms_of_the_zoo_pass(operation: str) -> None:
    workload = load(f"energy_flow.{operation}@small")
    call = compile_plan(workload.call, STATIC, workload.examples[0], device="cpu", mode="inference").call
    verdict = verify(Subject(workload, call, workload.call))
    assert verdict.outcome == "pass", verdict


# ---- together


class Recurrent(nn.Module):
    """Has both: rows that the data select, and an RNN."""

    def __init__(self, tagger: Tagger) -> None:
        super().__init__()
        self.tagger = tagger

    def static_form(self) -> nn.Module:
        return self.tagger

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = (x.sum((1, 2)) < 1e9).nonzero()[:, 0]
        out: torch.Tensor = self.tagger(x[rows])
        return out


@pytest.mark.parametrize("names", [("static_form", "isolate_rnn"), ("isolate_rnn", "static_form")])
@torch.no_grad()
def test_transforms_of_the_model_combine_in_either_order(names: Any, graphs: list[Any], x: torch.Tensor) -> None:
    model = Recurrent(Tagger()).eval()
    call = compile_call(model, Plan(backend="counting", transforms=names), x)
    assert torch.equal(call(x), model(x))
    assert graphs == [["linear", "relu"], ["linear", "tanh"]]
    assert isinstance(model.tagger.rnn, nn.GRU)


def test_a_block_of_the_model_is_not_compiled_in_place_by_way_of_its_form() -> None:
    blocks = [nn.Sequential(nn.Linear(4, 4), nn.Tanh()) for _ in range(3)]
    model = nn.Sequential(nn.Sequential(*blocks))
    model.static_form = lambda: model[0]  # type: ignore[assignment]
    compile_call(model, Plan(backend="inductor", scope="regional", transforms=("static_form",)), torch.ones(2, 4))
    assert not any("forward" in vars(block) for block in blocks)


@torch.no_grad()
def test_blocks_of_a_copy_refuse_to_answer_once_the_model_changed(graphs: list[Any]) -> None:
    model = nn.Sequential(*(nn.Sequential(nn.Linear(4, 4), nn.Tanh()) for _ in range(3))).eval()
    x = torch.ones(2, 4)
    call = compile_call(model, Plan(backend="counting", scope="regional"), x)
    assert torch.equal(call(x), model(x))
    assert graphs
    model[0] = nn.Identity()
    with pytest.raises(StalePlanError):
        call(x)


def test_a_rewrite_that_changes_the_number_of_modules_is_told_the_stage_for_that(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def put_inside(model: nn.Module) -> Any:
        return nn.Sequential(model), lambda inner: inner

    choice = Choice(
        "transforms", "wrap", Numerics.EXACT, complexity=1, summary="", realized_by=put_inside, stage=Stage.MODEL
    )
    monkeypatch.setitem(CHOICES, choice.key, choice)
    with pytest.raises(UnsupportedError, match=r"made 2 modules of 1, .* give it the stage 'form'"):
        compile_call(nn.Tanh().eval(), Plan(transforms=("wrap",)), torch.ones(1))
    monkeypatch.setitem(CHOICES, choice.key, replace(choice, stage=Stage.FORM))
    answer = compile_call(nn.Tanh().eval(), Plan(transforms=("wrap",)), torch.ones(1))(torch.ones(1))
    assert torch.equal(answer, torch.ones(1).tanh())


def test_the_transforms_are_named_where_one_is_unknown() -> None:
    by_stage = r"'nothing', but there are static_form, .*fp8_weights, group_norm, .*numbers_on_gpu"
    with pytest.raises(UnsupportedError, match=by_stage) as found:
        compile_call(torch.tanh, Plan(transforms=("nothing",)), torch.ones(1))
    named = str(found.value).partition("there are ")[2].split(", ")
    assert sorted(named) == sorted(list_values("transforms"))


# ---- with Inductor


@pytest.mark.slow
@torch.no_grad()
def test_inductor_compiles_both_sides_of_an_rnn_and_rewrites_complex_numbers_there(x: torch.Tensor) -> None:
    class Complex(Tagger):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            turned = torch.polar(torch.ones_like(x), x) * (1 + 2j)
            return super().forward(turned.real * turned.imag)

    model = Complex().eval()
    plan = Plan(backend="inductor", transforms=("isolate_rnn", "complex_to_real"))
    workload = Workload(model, (Example((x,)),))
    verdict = verify(Subject(workload, compile_call(model, plan, x), model))
    assert verdict.outcome == "pass", verdict
