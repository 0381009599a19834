"""The form of answers: a plan in another precision or layout returns the original's form for each kind of call."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import nn

from live_decisions import make_decision
from torchwise.compile import compile_plan
from torchwise.compile.io_casts import ByForm, OutputForm, form_of
from torchwise.compile.transforms.eager_strides import order_of
from torchwise.errors import UnsupportedError
from torchwise.plan import Plan
from torchwise.records import Outcome
from torchwise.runtime.module import OptimizedModule
from torchwise.verify import Subject, verify
from torchwise.workload import Example, Workload, pytree
from torchwise.workload.identity import describe_example

pytestmark = pytest.mark.usefixtures("dynamo_afresh", "only_traced")

X = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))
EDGES = [Plan(memory_format="channels_last"), Plan(precision="bf16"), Plan(precision="autocast_bf16")]
PLANS = [*EDGES, *(replace(plan, backend="inductor") for plan in EDGES[:2])]


@dataclass
class Found:
    scores: torch.Tensor
    labels: torch.Tensor | None = None


class Net(nn.Module):
    """Answers in the requested form."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.head = nn.Conv2d(3, 4, 3), nn.Linear(6, 6)
        self.norm = nn.BatchNorm2d(4)
        self.returns_labels = False

    def forward(self, x: torch.Tensor, want: str = "scores", more: torch.Tensor | None = None) -> Any:
        y = self.head(self.norm(self.conv(x)).relu())
        labels = y.argmax(1)
        if self.returns_labels:
            return labels
        forms: dict[str, Callable[[], Any]] = {
            "scores": lambda: y,
            "labels": lambda: labels,
            "both": lambda: (y, labels),
            "turned": lambda: (labels, y),
            "nested": lambda: {"a": [y, None], "b": (labels > 0, y.mean())},
            "none": lambda: None,
            "number": lambda: (1, y),
            "permuted": lambda: y.permute(0, 2, 3, 1),
            "half": lambda: (y.half(), y.double()),
            "input": lambda: (y, x),
            "inputs": lambda: (more, x, y) if more is not None else x,
            "object": lambda: Found(y, labels),
            "part of an object": lambda: Found(y),
        }
        return forms[want]()


WANTED = [
    "scores",
    "labels",
    "both",
    "turned",
    "nested",
    "none",
    "number",
    "permuted",
    "half",
    "input",
    "object",
    "part of an object",
]


@pytest.fixture
def net() -> Net:
    return Net().eval()


def check(ours: Any, right: Any) -> None:
    """Assert that answers have the same form, and values as far as bfloat16 goes."""
    assert pytree.form(ours) == pytree.form(right)
    for one, other in zip(pytree.tensors(ours), pytree.tensors(right), strict=True):
        assert (one.dtype, order_of(one)) == (other.dtype, order_of(other))
        if one.is_floating_point():
            torch.testing.assert_close(one, other, atol=0.1, rtol=0.1)
        else:
            assert (one != other).float().mean() < 0.1


def compile_call(net: Net, plan: Plan) -> Callable[..., Any]:
    return compile_plan(net, plan, Example((X,)), device="cpu", mode="inference").call


@pytest.mark.parametrize("plan", PLANS, ids=str)
def test_each_call_is_answered_in_the_form_that_the_original_has_for_it(net: Net, plan: Plan) -> None:
    call = compile_call(net, plan)
    wanted = WANTED if plan.backend == "eager" else ["both", "labels", "permuted", "object", "none"]
    for want in (*wanted, *wanted[:2]):
        check(call(X, want=want), net(X, want=want))
    if plan.backend == "eager":
        check(call(X, "labels"), net(X, "labels"))


@pytest.mark.parametrize("plan", PLANS, ids=str)
def test_an_input_that_is_returned_is_that_very_tensor(net: Net, plan: Plan) -> None:
    call, more = compile_call(net, plan), torch.randn(2, 3, 4, 4)
    assert call(X, "input")[1] is X
    found = call(X, "inputs", more=more)
    assert found[0] is more
    assert found[1] is X
    check(found, net(X, "inputs", more=more))


@pytest.mark.parametrize("plan", EDGES, ids=str)
@pytest.mark.parametrize("first", ["both", "labels", "none"])
def test_a_right_plan_is_proven_on_examples_of_several_forms(net: Net, plan: Plan, first: str) -> None:
    examples = tuple(Example((X,), {"want": want}) for want in (first, "scores", "permuted"))
    call = compile_plan(net, plan, examples[0], device="cpu", mode="inference").call
    subject = Subject(Workload(net, examples), call, compile_call(net, plan), plan.precision)
    verdict = verify(subject, extra_draws=1)
    assert verdict.outcome is Outcome.PASS, verdict


@pytest.mark.parametrize("plan", [*EDGES, replace(EDGES[0], backend="inductor")], ids=str)
def test_whichever_form_is_asked_for_first_the_plan_serves_all(net: Net, plan: Plan) -> None:
    asked = [Example((X,), {"want": want}) for want in ("both", "scores", "labels")]
    decision = replace(make_decision(net, plan), inputs=tuple(map(describe_example, asked)))
    for order in (asked, asked[::-1]):
        fast = OptimizedModule(net, decision)
        for example in order * 2:
            check(fast(*example.args, **example.kwargs), net(*example.args, **example.kwargs))
        assert (fast.statistics.optimized, dict(fast.statistics.original)) == (6, {})


@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_sizes_that_a_dynamic_plan_was_not_proven_on_have_their_own_form(backend: str) -> None:
    def call(x: torch.Tensor) -> torch.Tensor:
        return (x * 2).transpose(-1, -2)

    shapes = "dynamic" if backend == "inductor" else "static"
    plan = Plan(memory_format="channels_last", backend=backend, shapes=shapes)
    made = compile_plan(call, plan, Example((X,)), device="cpu", mode="inference").call
    for shape in ((2, 3, 8, 8), (2, 3, 8, 1), (2, 3, 4, 5), (1, 1, 1, 7), (2, 3, 8, 8)):
        x = torch.randn(shape)
        check(made(x), call(x))


@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_a_form_that_is_another_for_the_same_call_is_refused_and_learnt_anew(net: Net, backend: str) -> None:
    call = compile_call(net, Plan(precision="autocast_bf16", backend=backend))
    check(call(X), net(X))
    net.returns_labels = True
    with pytest.raises(UnsupportedError, match=r"torch\.int64, but the original model returned torch\.float32"):
        call(X)
    check(call(X), net(X))

    def branch_on_sum(x: torch.Tensor) -> Any:
        return (x * 2, x.sum()) if x.sum() > 0 else x * 2

    made = compile_plan(branch_on_sum, Plan(precision="bf16"), Example((X,)), device="cpu", mode="inference").call
    check(made(X.abs()), branch_on_sum(X.abs()))
    for x, said in ((-X.abs(), "fewer tensors"), (X.abs(), "more tensors")):
        with pytest.raises(UnsupportedError, match=said):
            made(x)
        check(made(x), branch_on_sum(x))


def test_batch_norm_in_training_counts_each_batch_once() -> None:
    ours, right = Net().train(), Net().train()
    call = compile_plan(ours, Plan(precision="autocast_bf16"), Example((X,)), device="cpu", mode="training").call
    for want in ("scores", "labels"):
        call(X, want)
        right(X, want)
        assert ours.norm.num_batches_tracked == right.norm.num_batches_tracked
    ours.eval()
    right.eval()
    check(call(X), right(X))


def test_the_original_is_run_once_for_each_kind_of_call_and_leaves_no_trace() -> None:
    class Drawing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.calls: list[torch.Tensor] = []

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.calls.append(x)
            return x.mul_(2) + torch.randn(())

    original, answered = Drawing(), list[int]()
    made: Any = ByForm(original, lambda form: lambda x: answered.append(len(form.outputs)))
    state, x = torch.get_rng_state(), X.clone()
    for given in (x, x, x[:1], x):
        made(given)
    assert answered == [1, 1, 1, 1]
    assert len(made._forms) == 2
    assert original.calls == []
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(x, X)


def test_the_form_says_which_outputs_are_inputs_and_what_compilers_see() -> None:
    def call(x: torch.Tensor, y: torch.Tensor) -> Any:
        return y, x.t(), x

    a, b = torch.ones(2, 3), torch.ones(2)
    kind = torch.float32
    assert form_of(call, (a, b), {}) == OutputForm(((kind, (0,), 1), (kind, (1, 0), None), (kind, (0, 1), 0)), True)
    assert form_of(lambda x: Found(x + 1), (a,), {}) == OutputForm(((kind, (0, 1), None),), False)
    assert form_of(lambda x: (x[:, ::2], x[:1].expand(2, 3)), (a,), {}).outputs == ((kind, None, None),) * 2
