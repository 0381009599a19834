"""Functions that a model's code calls, replaced by others: GELU, instance norms and dropout."""

from __future__ import annotations

import copy
import functools
import gc
import pickle
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.functional import gelu as activate
from torch.utils.checkpoint import checkpoint

from brief import BRIEF
from torchwise.compile import compile_plan
from torchwise.compile.aot import Loader, Maker
from torchwise.compile.transforms import swapped_functions
from torchwise.compile.transforms.function_graphs.record import record
from torchwise.compile.transforms.other_modules import leave_dropout_out, use_group_norm, use_tanh_gelu
from torchwise.compile.transforms.swapped_functions import (
    TanhGelu,
    WithGroupNorm,
    WithoutDropout,
    calls_dropout,
    calls_exact_gelu,
    calls_instance_norm,
    calls_some_of,
)
from torchwise.errors import StalePlanError, UnsupportedError
from torchwise.plan import Numerics, Plan, PlanSpace, Trait
from torchwise.plan.choice import load_choices
from torchwise.plan.workload_spec import WorkloadSpec
from torchwise.trial import Job
from torchwise.trial.inspection import inspect
from torchwise.workload import Example
from torchwise.zoo.registry import load

IMAGE = 3 * torch.randn(2, 4, 6, 5, generator=torch.Generator().manual_seed(0)) + 1


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(5, 5)


class Gelu(Model):
    def forward(self, x: Tensor) -> Tensor:
        return F.gelu(self.layer(x))


class NamedGelu(Model):
    def forward(self, x: Tensor) -> Tensor:
        return next(activate(one) for one in [self.layer(x)])


class GeluOfHelper(Model):
    def forward(self, x: Tensor) -> Tensor:
        return self.activate(self.layer(x))

    def activate(self, x: Tensor) -> Tensor:
        return torch.nn.functional.gelu(x, approximate="none")


TABLE = {"gelu": F.gelu}


class GeluOfAttribute(Model):
    def __init__(self) -> None:
        super().__init__()
        self.activation = TABLE["gelu"]

    def forward(self, x: Tensor) -> Tensor:
        return self.activation(self.layer(x))


class GeluOfBoth(Model):
    def __init__(self) -> None:
        super().__init__()
        self.activation = nn.GELU()

    def forward(self, x: Tensor) -> Tensor:
        return self.activation(self.layer(x)) + F.gelu(x)


class Norm(Model):
    def forward(self, x: Tensor) -> Tensor:
        return F.instance_norm(self.layer(x), weight=self.layer.bias[:4], eps=1e-3)


class OwnNorm(Model):
    """Keeps statistics, which a group norm does not."""

    def forward(self, x: Tensor) -> Tensor:
        return F.instance_norm(self.layer(x), torch.zeros(4), torch.ones(4), use_input_stats=False)


class Dropout(Model):
    def forward(self, x: Tensor) -> Tensor:
        return F.dropout(self.layer(x), 0.3) + F.dropout2d(x, p=0.2, training=True)


class Noisy(Model):
    def forward(self, x: Tensor) -> Tensor:
        return F.dropout(F.gelu(self.layer(x)))


class DropoutOfAttention(Model):
    def forward(self, x: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(x, self.layer(x), x, dropout_p=0.4)


class NoDropout(Model):
    def __init__(self) -> None:
        super().__init__()
        self.dropout = nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        return F.dropout(self.dropout(self.layer(x)), 0.5, self.training)


def activate_later(x: Tensor) -> Tensor:
    return F.gelu(x)


LATER = functools.partial(activate_later)


class GeluOfPartial(Model):
    def __init__(self) -> None:
        super().__init__()
        self.later = LATER

    def forward(self, x: Tensor) -> Tensor:
        return self.later(self.layer(x))


class GeluOfStaticMethod(Model):
    @staticmethod
    def activate(x: Tensor) -> Tensor:
        return F.gelu(x)

    def forward(self, x: Tensor) -> Tensor:
        return self.activate(self.layer(x))


class GeluOfTable(Model):
    def forward(self, x: Tensor) -> Tensor:
        return TABLE["gelu"](self.layer(x))


class GeluOfDefault(Model):
    def forward(self, x: Tensor, activate: Any = F.gelu) -> Tensor:
        return activate(self.layer(x))


class GeluOfNamedDefault(Model):
    def forward(self, x: Tensor, *, activate: Any = F.gelu) -> Tensor:
        return activate(self.layer(x))


class GeluOfList(Model):
    def __init__(self) -> None:
        super().__init__()
        self.functions = [(1, F.gelu)]

    def forward(self, x: Tensor) -> Tensor:
        return self.functions[0][1](self.layer(x))


GELUS = (
    *(GeluOfTable, GeluOfDefault, GeluOfNamedDefault, GeluOfList),
    *(GeluOfPartial, GeluOfStaticMethod, Gelu, NamedGelu, GeluOfHelper, GeluOfAttribute, GeluOfBoth),
)
NOISY = (Dropout, DropoutOfAttention)
Use = Callable[[Any], Any]


def list_calls(call: Callable[..., Any]) -> list[str]:
    return [str(getattr(node.target, "__name__", node.target)) for node in record(lambda: call(IMAGE)).nodes]


@pytest.mark.parametrize("kind", GELUS)
def test_gelu_is_approximated_where_functions_are_called(kind: type[Model]) -> None:
    model = kind().eval()
    changed, layer = use_tanh_gelu(model)
    expected = model.layer(IMAGE)
    right = F.gelu(expected, approximate="tanh") + (F.gelu(IMAGE, approximate="tanh") if kind is GeluOfBoth else 0)
    assert torch.equal(changed(IMAGE), right)
    assert not torch.equal(model(IMAGE), right), "the model keeps its own"
    assert type(model) is kind
    assert isinstance(changed, kind)
    assert layer(changed) is changed
    assert list(changed.state_dict()) == list(model.state_dict())
    assert calls_exact_gelu(record(lambda: model(IMAGE)))


def test_models_of_the_zoo_are_no_library() -> None:
    workload = load("tutorial.fusion_demo")
    changed, _ = use_tanh_gelu(workload.call)  # type: ignore[arg-type]
    inputs = workload.examples[0].args
    off = (changed(*inputs) - workload.call(*inputs)).abs().max()
    assert 0 < off < 2e-3


@pytest.mark.parametrize("sizes", [(2, 4, 6), (2, 4, 6, 5), (2, 4, 3, 2, 5)])
def test_an_instance_norm_is_a_group_norm(sizes: tuple[int, ...]) -> None:
    x = 3 * torch.randn((*sizes[:-1], 5)) + 1
    model = Norm().eval()
    changed, _ = use_group_norm(model)
    torch.testing.assert_close(changed(x), model(x), rtol=1e-5, atol=1e-5)
    assert "group_norm" in list_calls(lambda _: changed(x))
    assert calls_instance_norm(record(lambda: model(x)))


def test_other_norms_stay() -> None:
    single = torch.ones(2, 4, 1, 1)
    errors = []
    for call in (
        lambda: F.instance_norm(single),
        lambda: WithGroupNorm().__torch_function__(F.instance_norm, (), (single,)),
    ):
        with pytest.raises(ValueError, match="Expected more than 1 spatial element") as raised:
            call()
        errors.append(str(raised.value))
    assert errors[0] == errors[1]
    model = OwnNorm().eval()
    changed, _ = use_group_norm(model)
    assert torch.equal(changed(IMAGE), model(IMAGE))
    assert not calls_instance_norm(record(lambda: model(IMAGE)))
    assert not calls_instance_norm(record(lambda: F.instance_norm(IMAGE, torch.zeros(4), torch.ones(4))))


def test_dropout_is_left_out_where_functions_are_called() -> None:
    model = Dropout().eval()
    changed, _ = leave_dropout_out(model)
    assert torch.equal(changed(IMAGE), model.layer(IMAGE) + IMAGE)
    attending = DropoutOfAttention().eval()
    changed, _ = leave_dropout_out(attending)
    right = F.scaled_dot_product_attention(IMAGE, attending.layer(IMAGE), IMAGE)
    torch.testing.assert_close(changed(IMAGE), right)
    assert all(calls_dropout(record(lambda kind=kind: kind().eval()(IMAGE))) for kind in NOISY)
    assert not calls_dropout(record(lambda: NoDropout().eval()(IMAGE)))
    assert calls_dropout(record(lambda: NoDropout().train()(IMAGE)))


@pytest.mark.parametrize("function", WithoutDropout.FUNCTIONS[:-1], ids=lambda one: f"{one.__module__}.{one.__name__}")
def test_each_function_of_dropout_is_left_out(function: Any) -> None:
    x = torch.ones(2, 4, 6)
    with WithoutDropout():
        assert torch.equal(function(x, 0.5, True), x)
        assert function(x, 0.5, True) is not x, "the caller may write to it"
        assert function(x, 0.5, False) is x
        assert function(x, 0.0, True) is x
        if function.__module__ == "torch.nn.functional":
            assert function(x, 0.5, True, inplace=True) is x
            assert (function(x) is x) is ("alpha" in function.__name__), "their default is off"
        else:
            assert function(x, p=0.5, train=False) is x


def test_defaults_are_those_of_each_function_in_compiled_code() -> None:
    def call(x: Tensor) -> list[Tensor]:
        with WithoutDropout():
            found = [F.alpha_dropout(x), F.feature_alpha_dropout(x), F.dropout(x), torch.dropout(x, p=0.5, train=True)]
            return [one.add_(place) for place, one in enumerate(found)]

    torch.compiler.reset()
    x, y = torch.ones(2, 4, 6), torch.ones(2, 4, 6)
    torch.testing.assert_close(torch.compile(call, backend="eager")(x), call(y))
    assert torch.equal(x, y)


@pytest.mark.parametrize("kind", [nn.Dropout, nn.Dropout2d, nn.AlphaDropout, nn.FeatureAlphaDropout])
def test_writes_to_the_result_of_dropout_leave_its_input(kind: type[nn.Module]) -> None:
    class Adds(nn.Module):
        def __init__(self, inplace: bool) -> None:
            super().__init__()
            self.dropout = kind(0.5, inplace)

        def forward(self, x: Tensor) -> Tensor:
            y = F.dropout(x, 0.5, True)
            y += 1
            z = self.dropout(x)
            z += 1
            return z

    for inplace in (False, True):
        model, x = Adds(inplace).train(), IMAGE.clone()
        assert torch.equal(leave_dropout_out(model)[0](x), IMAGE + 1)
        writes = inplace and "Alpha" not in kind.__name__  # these ignore it
        assert torch.equal(x, IMAGE + 1 if writes else IMAGE)
        assert leave_dropout_out(model)[0].eval().dropout(x) is x


@pytest.mark.parametrize("use", [use_tanh_gelu, use_group_norm, leave_dropout_out])
def test_a_model_whose_code_calls_no_such_function_is_refused(use: Use) -> None:
    class Other(Model):
        def forward(self, x: Tensor) -> Tensor:
            return F.relu(self.layer(x)).gelu if x is None else F.relu(self.layer(x))

    class OfItsOwn(Model):
        def gelu(self, x: Tensor) -> Tensor:
            return x

        dropout = instance_norm = gelu

        def forward(self, x: Tensor) -> Tensor:
            return self.gelu(self.dropout(self.instance_norm(x)))

    for model in (Other().eval(), OfItsOwn().eval()):
        with pytest.raises(UnsupportedError, match="and its code calls no such function"):
            use(model)


def test_a_forward_that_cannot_be_replaced_is_left_alone() -> None:
    class Static(Model):
        @staticmethod
        def forward(x: Tensor) -> Tensor:
            return F.gelu(x)

    model = Gelu()
    model.forward = lambda x: F.gelu(x)  # type: ignore[method-assign]
    for call in (model, Static(), activate_later):
        with pytest.raises(UnsupportedError, match="calls no such function, or calls it where it cannot be replaced"):
            use_tanh_gelu(call)


def test_functions_alone_have_none_of_the_choices() -> None:
    traits = frozenset({Trait.EXACT_GELU, Trait.INSTANCE_NORM, Trait.DROPOUT, Trait.TOLERANT})
    for found, is_open in ((traits, False), (traits | {Trait.MODULE}, True)):
        space = PlanSpace("cpu", "inference", found, Numerics.SUBSTITUTED, "standard")
        for name in ("tanh_gelu", "group_norm", "no_dropout"):
            assert (space.excludes(load_choices()["transforms", name]) is None) is is_open


def test_a_table_that_only_the_constructor_reads_is_not_the_calls() -> None:
    class Chosen(Model):
        def __init__(self) -> None:
            super().__init__()
            self.function = {**TABLE, "relu": F.relu}["relu"]

        def forward(self, x: Tensor) -> Tensor:
            return self.function(x)

    assert not calls_some_of(Chosen(), TanhGelu.FUNCTIONS)


def test_a_class_that_is_given_another_forward_is_followed_and_freed() -> None:
    class Changed(Model):
        def forward(self, x: Tensor) -> Tensor:
            return F.gelu(x)

    first = use_tanh_gelu(Changed())[0]
    assert type(use_tanh_gelu(Changed())[0]) is type(first), "its code is compiled once"
    Changed.forward = lambda self, x: F.gelu(x) + 1  # type: ignore[method-assign]
    assert torch.equal(use_tanh_gelu(Changed())[0](IMAGE), F.gelu(IMAGE, approximate="tanh") + 1)
    known = weakref.ref(Changed)
    del first, Changed
    for _ in range(2):  # the class that is derived, and then its base
        gc.collect()
    assert known() is None


class Checkpointed(Model):
    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(self.norm, self.layer(x), use_reentrant=False)

    def norm(self, x: Tensor) -> Tensor:
        return F.instance_norm(F.gelu(F.dropout(x)))


@pytest.mark.parametrize("use", [use_tanh_gelu, use_group_norm, leave_dropout_out])
def test_functions_that_are_called_again_in_the_backward_pass_are_refused_in_eager(use: Use) -> None:
    changed, _ = use(Checkpointed())
    with pytest.raises(RuntimeError, match="calls them again in the backward pass"):
        changed(IMAGE)
    with torch.no_grad():
        changed(IMAGE)


def test_a_checkpoint_around_the_model_calls_the_other_functions_again() -> None:
    model = Norm()
    changed, _ = use_group_norm(model)
    found = []
    for call in (changed, lambda x: checkpoint(changed, x, use_reentrant=False)):
        call(IMAGE).square().sum().backward()
        found.append(model.layer.weight.grad)
        model.zero_grad()
    torch.testing.assert_close(found[0], found[1])


def test_compiled_code_has_checkpoints(graphs: list[list[str]]) -> None:
    model, plan = Checkpointed(), Plan(backend="counting", transforms=("group_norm",))
    call = compile_plan(model, plan, Example((IMAGE,)), device="cpu", mode="training").call
    call(IMAGE).square().sum().backward()
    assert model.layer.weight.grad is not None
    assert graphs


def test_two_rewrites_go_together_and_copies_of_them_work() -> None:
    class Both(Model):
        def forward(self, x: Tensor) -> Tensor:
            return F.dropout(F.gelu(self.layer(F.instance_norm(x))))

    model = Both().eval()
    changed = use_group_norm(leave_dropout_out(use_tanh_gelu(model)[0])[0])[0]
    right = F.gelu(model.layer(F.group_norm(IMAGE, 4)), approximate="tanh")
    assert isinstance(changed, Both)
    assert torch.equal(changed(IMAGE), right)
    assert torch.equal(copy.deepcopy(changed)(IMAGE), right)
    torch.testing.assert_close(copy.deepcopy(changed).double()(IMAGE.double()).float(), right)


def test_a_derived_class_is_found_by_its_name() -> None:
    for use in (use_tanh_gelu, lambda model: leave_dropout_out(use_tanh_gelu(model)[0])):
        changed, _ = use(Noisy().eval())
        again = pickle.loads(pickle.dumps(changed))
        assert type(again) is type(changed)
        assert torch.equal(again(IMAGE), changed(IMAGE)) is (use is not use_tanh_gelu)
    both = swapped_functions._derive_class(swapped_functions._derive_class(nn.Linear, TanhGelu), WithoutDropout)
    assert getattr(swapped_functions, both.__name__) is both
    with pytest.raises(AttributeError, match="has no attribute 'other'"):
        swapped_functions.other  # noqa: B018 - it is a name that pickle looks for


CASES = [
    (Gelu, "tanh_gelu", "gelu"),
    (GeluOfBoth, "tanh_gelu", "gelu"),
    (Norm, "group_norm", "group_norm"),
    (Dropout, "no_dropout", "linear"),
    (DropoutOfAttention, "no_dropout", "scaled_dot_product_attention"),
]


@torch.no_grad()
@pytest.mark.parametrize(("kind", "name", "called"), CASES)
def test_compilers_are_given_the_other_function_and_follow_the_model(
    kind: type[Model], name: str, called: str, graphs: list[list[str]]
) -> None:
    model, plan = kind().eval(), Plan(backend="counting", transforms=(name,))
    call = compile_plan(model, plan, Example((IMAGE,)), device="cpu", mode="inference").call
    eager = compile_plan(model, Plan(transforms=(name,)), Example((IMAGE,)), device="cpu", mode="inference").call
    torch.testing.assert_close(call(IMAGE), eager(IMAGE))
    (functions,) = graphs
    assert called in functions
    assert not {"instance_norm", "dropout", "dropout2d"} & set(functions)
    model.layer.weight.mul_(2)
    torch.testing.assert_close(call(IMAGE), eager(IMAGE))
    assert len(graphs) == 1
    model.layer = nn.Linear(5, 5)
    with pytest.raises(StalePlanError):
        call(IMAGE)


def test_gradients_are_those_of_the_group_norm(graphs: list[list[str]]) -> None:
    model, plan = Norm(), Plan(backend="counting", transforms=("group_norm",))
    call = compile_plan(model, plan, Example((IMAGE,)), device="cpu", mode="training").call
    found = []
    for one in (model, call):
        one(IMAGE).square().sum().backward()
        found.append([parameter.grad for parameter in model.parameters()])
        model.zero_grad()
    torch.testing.assert_close(found[0], found[1], rtol=1e-3, atol=1e-3)
    assert "group_norm" in graphs[0]


@torch.no_grad()
@pytest.mark.usefixtures("graphs")
def test_it_goes_with_another_precision() -> None:
    model, plan = Gelu().eval(), Plan(backend="counting", precision="bf16", transforms=("tanh_gelu",))
    call = compile_plan(model, plan, Example((IMAGE,)), device="cpu", mode="inference").call
    torch.testing.assert_close(call(IMAGE), model(IMAGE), rtol=0.05, atol=0.05)
    model.layer.weight.mul_(2)
    torch.testing.assert_close(call(IMAGE), model(IMAGE), rtol=0.05, atol=0.05)


@torch.no_grad()
@pytest.mark.slow
def test_inductor_compiles_the_other_function() -> None:
    model, plan = Gelu().eval(), Plan(backend="inductor", transforms=("tanh_gelu",))
    call = compile_plan(model, plan, Example((IMAGE,)), device="cpu", mode="inference").call
    right = F.gelu(model.layer(IMAGE), approximate="tanh")
    for _ in range(2):
        torch.testing.assert_close(call(IMAGE), right)


@torch.no_grad()
@pytest.mark.slow
def test_it_is_compiled_ahead() -> None:
    model, plan, maker = Gelu().eval(), Plan(backend="inductor", transforms=("tanh_gelu",)), Maker()
    right = F.gelu(model.layer(IMAGE), approximate="tanh")

    def compile_by(backend: Any) -> Any:
        made = compile_plan(model, plan, Example((IMAGE,)), device="cpu", mode="inference", backend=backend)
        return made.call(IMAGE)

    compile_by(maker)
    assert maker.made
    torch.testing.assert_close(compile_by(Loader(maker.made)), right)


@pytest.mark.parametrize(
    ("kind", "trait"), [(Gelu, Trait.EXACT_GELU), (Norm, Trait.INSTANCE_NORM), (Dropout, Trait.DROPOUT)]
)
def test_an_inspection_finds_functions(kind: type[Model], trait: Trait) -> None:
    job = Job("inspect", WorkloadSpec(f"{__file__}:make_{kind.__name__.lower()}"), effort=BRIEF)
    found = inspect(job, lambda _: None).traits & {Trait.EXACT_GELU, Trait.INSTANCE_NORM, Trait.DROPOUT}
    assert found == {trait}


def make_gelu() -> tuple[nn.Module, tuple[Tensor]]:
    return Gelu().eval(), (IMAGE,)


def make_norm() -> tuple[nn.Module, tuple[Tensor]]:
    return Norm().eval(), (IMAGE,)


def make_dropout() -> tuple[nn.Module, tuple[Tensor]]:
    return Dropout().eval(), (IMAGE,)
