from __future__ import annotations

import sys

import pytest
import torch

from torchwise.compile import compile_plan
from torchwise.plan import Plan
from torchwise.records import Outcome, Verdict
from torchwise.verify import Observation, Subject, verify
from torchwise.verify.compare import check_structure
from torchwise.workload import Example, Workload


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 8, 3)
        self.norm = torch.nn.BatchNorm2d(8)
        self.head = torch.nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        y = self.conv(x)
        return {"logits": self.head(torch.relu(self.norm(y)).mean((2, 3))), "map": y}


@pytest.fixture
def net() -> Workload:
    torch.manual_seed(0)
    return Workload(Net().eval(), (Example((torch.randn(2, 3, 12, 12),)),))


def judge(workload: Workload, candidate: object, **options: object) -> Verdict:
    floor = options.pop("floor", workload.call)
    return verify(Subject(workload, candidate, floor, **options))  # type: ignore[arg-type]


def failure_reason(verdict: Verdict) -> str:
    assert verdict.outcome is Outcome.FAIL, verdict.reason
    return verdict.reason


def test_the_model_itself_passes(net: Workload) -> None:
    verdict = judge(net, net.call)
    assert verdict.outcome is Outcome.PASS
    assert {check.name for check in verdict.checks} == {"structure", "values", "held outputs"}
    assert verdict.error is not None
    assert 0 < verdict.error < 1e-5


@pytest.mark.parametrize("precision", ["bf16", "autocast_bf16"])
def test_lower_precision_passes_against_its_own_floor_and_fails_against_float32(net: Workload, precision: str) -> None:
    plan = Plan(precision=precision)
    candidate = compile_plan(net.call, plan, net.examples[0], device="cpu", mode="inference").call
    passed = judge(net, candidate, floor=candidate, precision=precision)
    assert passed.outcome is Outcome.PASS, passed.reason
    assert passed.error is not None
    assert passed.error > 1e-4
    assert "values" in failure_reason(judge(net, candidate))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda out: {**out, "logits": out["logits"] * (1 + 1e-4)}, "off by"),
        (lambda out: {**out, "logits": out["logits"].double()}, "dtype"),
        (lambda out: {**out, "logits": out["logits"][:1]}, "shape"),
        (lambda out: {**out, "map": out["map"].to(memory_format=torch.channels_last)}, "strides"),
        (lambda out: {"logits": out["logits"]}, "structure"),
        (lambda out: {**out, "logits": torch.full_like(out["logits"], float("nan"))}, "not finite"),
        (lambda out: (out["logits"], out["map"]), "structure"),
    ],
)
def test_a_wrong_answer_is_caught(net: Workload, change: object, said: str) -> None:
    assert said in failure_reason(judge(net, lambda x: change(net.call(x))))  # type: ignore[operator]


def test_an_answer_that_lies_otherwise_and_is_else_eagers_is_told_apart(net: Workload) -> None:
    def to_channels_last(out: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {**out, "map": out["map"].to(memory_format=torch.channels_last)}

    verdict = judge(net, lambda x: to_channels_last(net.call(x)))
    assert [check.name for check in verdict.checks if check.outcome is Outcome.FAIL] == ["strides"]
    wrong = judge(net, lambda x: {**to_channels_last(net.call(x)), "logits": net.call(x)["logits"].double()})
    assert "strides" not in {check.name for check in wrong.checks}, "its dtype is what is wrong first"


class Above(torch.nn.Module):
    """Returns all numbers above a threshold. In float64 there are more or fewer of them."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("least", torch.linspace(0.5, 3, 64) * 0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scaled = x * 0.1
        return scaled[scaled >= self.least]


def test_where_float64_finds_another_number_of_elements_only_eagers_own_answer_is_right() -> None:
    workload = Workload(above := Above(), (Example((torch.linspace(0.5, 3, 64),)),))
    own = judge(workload, lambda x: above(x))
    assert own.outcome is Outcome.PASS
    (values,) = {check.detail for check in own.checks if check.name == "values" and "bit by bit" in check.detail}
    assert "has no counterpart in the reference" in values
    near = judge(workload, lambda x: above(x) * (1 + 1e-7))
    assert near.outcome is Outcome.NOT_COMPARABLE
    assert "counterpart" in near.reason
    assert "shape" in failure_reason(judge(workload, lambda x: above(x)[1:]))


@pytest.mark.parametrize(("name", "check"), [("output[1]", "strides"), ("buffer cache after the call", "structure")])
def test_only_outputs_can_be_laid_out_anew(name: str, check: str) -> None:
    none = frozenset()
    ours, theirs = (
        Observation(((name, t),), none, none, ("*",), outputs=frozenset({"output[1]"}))
        for t in (torch.ones(2, 3).t(), torch.ones(3, 2))
    )
    found = check_structure(ours, theirs)
    assert (found.name, found.outcome) == (check, Outcome.FAIL)
    assert "strides (1, 3), in eager (2, 1)" in found.detail


def test_one_wrong_element_in_a_hundred_thousand_is_caught() -> None:
    workload = Workload(torch.tanh, (Example((torch.randn(100_000),)),))

    def candidate(x: torch.Tensor) -> torch.Tensor:
        out = torch.tanh(x)
        out[500] += 1e-4
        return out

    assert "worst element" in failure_reason(judge(workload, candidate))


def test_wrong_only_on_other_inputs_is_caught(net: Workload) -> None:
    seen = net.call(*net.examples[0].args)
    shown = net.examples[0].args[0]

    def remembers(x: torch.Tensor) -> object:
        return seen if torch.equal(x, shown) else {k: v * 1.01 for k, v in net.call(x).items()}

    failure_reason(judge(net, remembers))


def test_a_write_to_the_inputs_that_eager_does_not_make_is_caught(net: Workload) -> None:
    def writes(x: torch.Tensor) -> object:
        out = net.call(x)
        x.add_(1.0)
        return out

    assert "input after the call" in failure_reason(judge(net, writes))


def test_a_write_to_the_inputs_that_eager_makes_must_be_made() -> None:
    def eager(x: torch.Tensor) -> torch.Tensor:
        return x.mul_(2).sum()

    workload = Workload(eager, (Example((torch.randn(8),)),))
    assert judge(workload, eager).outcome is Outcome.PASS
    assert "input after the call" in failure_reason(judge(workload, lambda x: (x * 2).sum()))


def test_buffers_must_move_as_in_eager_and_are_put_back() -> None:
    torch.manual_seed(0)
    module = Net().train()
    before = module.norm.running_mean.clone()
    workload = Workload(module, (Example((torch.randn(4, 3, 12, 12),)),))
    assert judge(workload, module).outcome is Outcome.PASS

    def forgets(x: torch.Tensor) -> object:
        kept = module.norm.running_mean.clone()
        out = module(x)
        module.norm.running_mean.copy_(kept)
        return out

    assert "running_mean" in failure_reason(judge(workload, forgets))
    assert torch.equal(module.norm.running_mean, before)


def test_outputs_overwritten_by_the_next_call_are_caught(net: Workload) -> None:
    static = {k: v.clone() for k, v in net.call(*net.examples[0].args).items()}

    def reuses(x: torch.Tensor) -> object:
        for name, value in net.call(x).items():
            static[name].copy_(value)
        return dict(static)

    assert "held outputs" in failure_reason(judge(net, reuses))


def test_outputs_reused_are_caught_even_where_every_draw_is_the_same() -> None:
    static = torch.zeros(4, dtype=torch.int64)
    workload = Workload(lambda x: x + 1, (Example((torch.arange(4),)),))
    assert "same memory" in failure_reason(judge(workload, lambda x: static.copy_(x + 1)))


def test_an_output_that_aliases_an_input_must_go_on_doing_so() -> None:
    workload = Workload(lambda x: x.view(-1), (Example((torch.randn(2, 3),)),))
    assert "share memory" in failure_reason(judge(workload, lambda x: x.reshape(-1).clone()))


def test_a_constant_that_eager_returns_each_time_is_no_fault() -> None:
    constant = torch.ones(3)
    workload = Workload(lambda x: (x * 2, constant), (Example((torch.randn(3),)),))
    assert judge(workload, lambda x: (x * 2, constant)).outcome is Outcome.PASS


def test_whole_numbers_must_be_equal() -> None:
    workload = Workload(lambda x: x.argsort(), (Example((torch.randn(64),)),))
    assert judge(workload, workload.call).outcome is Outcome.PASS
    assert "differs in" in failure_reason(judge(workload, lambda x: x.argsort().flip(0)))


def test_nan_where_eager_has_nan_is_right() -> None:
    x = torch.tensor([1.0, -1.0, 4.0])
    workload = Workload(torch.sqrt, (Example((x,)),))
    assert judge(workload, torch.sqrt).outcome is Outcome.PASS
    failure_reason(judge(workload, lambda t: torch.sqrt(t) * float("nan")))


def test_without_a_float64_reference_eager_stands_in() -> None:
    weight = torch.randn(8, 8)  # float32 for any inputs, so float64 inputs are refused
    workload = Workload(lambda x: x @ weight, (Example((torch.randn(4, 8),)),))
    verdict = judge(workload, lambda x: (weight.T @ x.T).T.contiguous())
    assert verdict.outcome is Outcome.PASS, verdict.reason
    assert "no float64 reference" in next(c.detail for c in verdict.checks if c.name == "values")
    failure_reason(judge(workload, lambda x: x @ weight * 1.001))


def test_complex_answers_are_compared() -> None:
    def field(x: torch.Tensor) -> torch.Tensor:
        return torch.exp(1j * x) * x

    workload = Workload(field, (Example((torch.randn(64),)),))
    assert judge(workload, field).outcome is Outcome.PASS
    failure_reason(judge(workload, lambda x: torch.exp(1j * x * (1 + 1e-4)) * x))


def test_gradients_are_compared_in_training() -> None:
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    workload = Workload(module, (Example((torch.randn(4, 8),)),))
    assert judge(workload, module, training=True).outcome is Outcome.PASS

    class Skewed(torch.autograd.Function):
        @staticmethod
        def forward(ctx: object, x: torch.Tensor) -> torch.Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: object, g: torch.Tensor) -> torch.Tensor:
            return g * 1.01

    def skew_gradients(x: torch.Tensor) -> torch.Tensor:
        return module[2](Skewed.apply(module[1](module[0](x))))

    assert "gradient of 0.weight" in failure_reason(judge(workload, skew_gradients, training=True))


def test_eager_that_fails_on_its_own_example_is_not_comparable() -> None:
    def refuses(x: torch.Tensor) -> torch.Tensor:
        raise ValueError("no")

    workload = Workload(refuses, (Example((torch.randn(3),)),))
    verdict = judge(workload, lambda x: x)
    assert verdict.outcome is Outcome.NOT_COMPARABLE
    assert "eager fails on its own example: ValueError: no" in verdict.reason


def test_eager_that_cannot_be_looked_at_is_not_said_to_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    def breaks(*_args: object, **_named: object) -> object:
        raise ValueError("the instrument broke")

    workload = Workload(torch.sin, (Example((torch.randn(3),)),))
    monkeypatch.setattr(sys.modules["torchwise.verify.verify"], "observe", breaks)
    verdict = judge(workload, torch.sin)
    assert verdict.outcome is Outcome.NOT_COMPARABLE
    assert "eager runs on its own example, but cannot be observed on it: ValueError: the instrument" in verdict.reason


@pytest.mark.parametrize("factor", [0.0, 0.8, 0.95, -5.0])
def test_half_precision_grants_no_wrong_answer(factor: float) -> None:
    torch.manual_seed(0)
    model = torch.nn.Linear(32, 32).bfloat16()
    workload = Workload(model, (Example((torch.randn(8, 32).bfloat16(),)),))
    assert judge(workload, model).outcome is Outcome.PASS
    failure_reason(judge(workload, lambda x: model(x) * factor))
    hard = Workload(lambda x: model(x.to(torch.bfloat16)), (Example((torch.randn(8, 32),)),))  # no float64 reference
    assert judge(hard, hard.call).outcome is Outcome.PASS
    failure_reason(judge(hard, lambda x: hard.call(x) * factor))


@pytest.mark.parametrize("fill", [0.0, float("inf"), float("nan")])
def test_a_mask_of_infinities_must_be_the_same(fill: float) -> None:
    def mask_negatives(x: torch.Tensor) -> torch.Tensor:
        return torch.where(x > 0, x, float("-inf"))

    workload = Workload(mask_negatives, (Example((torch.randn(64),)),))
    assert judge(workload, mask_negatives).outcome is Outcome.PASS
    failure_reason(judge(workload, lambda x: torch.where(x > 0, x, fill)))
