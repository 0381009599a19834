from __future__ import annotations

import pytest
import torch

from torchwise.errors import StalePlanError, UnsupportedError
from torchwise.plan import EAGER, Plan
from torchwise.realize import realize, signature_of
from torchwise.realize.scope import repeated_blocks
from torchwise.realize.weights import WeightsWatch, share
from torchwise.workload import Example


def made(call: object, plan: Plan, *args: torch.Tensor, device: str = "cpu", mode: str = "inference") -> object:
    return realize(call, plan, Example(args), device=device, mode=mode).call  # type: ignore[arg-type]


@pytest.fixture
def conv() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.ReLU()).eval()


def test_eager_is_the_original_itself(conv: torch.nn.Module) -> None:
    assert made(conv, EAGER, torch.randn(1, 3, 8, 8)) is conv


@pytest.mark.parametrize(
    "plan", [Plan(precision="bf16"), Plan(memory_format="channels_last"), Plan(precision="autocast_bf16")]
)
def test_the_edge_keeps_dtype_and_strides_and_leaves_the_original_alone(conv: torch.nn.Module, plan: Plan) -> None:
    x = torch.randn(2, 3, 8, 8)
    before = {k: (v.dtype, v.stride(), v.data_ptr()) for k, v in conv.state_dict().items()}
    expected = conv(x)
    with torch.no_grad():
        answer = made(conv, plan, x)(x)  # type: ignore[operator]
    assert (answer.dtype, answer.stride()) == (expected.dtype, expected.stride())
    assert torch.allclose(answer, expected, atol=0.05)
    assert {k: (v.dtype, v.stride(), v.data_ptr()) for k, v in conv.state_dict().items()} == before


def test_channels_last_really_runs_in_channels_last() -> None:
    seen = []

    class Spy(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            seen.append(x.is_contiguous(memory_format=torch.channels_last))
            return x * 2

    x = torch.randn(2, 3, 8, 8)
    made(Spy(), Plan(memory_format="channels_last"), x)(x)  # type: ignore[operator]
    assert seen[-1]


@pytest.mark.parametrize("plan", [Plan(precision="bf16"), Plan(memory_format="channels_last")])
def test_derived_weights_follow_the_original(conv: torch.nn.Module, plan: Plan) -> None:
    x = torch.randn(2, 3, 8, 8)
    call = made(conv, plan, x)
    with torch.no_grad():
        conv[0].weight.mul_(3.0)
        assert torch.allclose(call(x), conv(x), atol=0.1)  # type: ignore[operator]
        conv.load_state_dict({k: v * 0 for k, v in conv.state_dict().items()})
        assert torch.allclose(call(x), conv(x), atol=0.1)  # type: ignore[operator]


def test_tied_weights_stay_tied_in_a_copy() -> None:
    module = torch.nn.ModuleDict({"a": torch.nn.Linear(4, 4), "b": torch.nn.Linear(4, 4)})
    module["b"].weight = module["a"].weight
    copy = share(module, lambda t: torch.nn.Parameter(t.detach().clone()))
    assert copy["b"].weight is copy["a"].weight
    assert copy["a"].weight is not module["a"].weight
    assert share(module)["a"].weight is module["a"].weight


def test_a_module_that_cannot_be_copied_is_refused_with_the_reason() -> None:
    class Stubborn(torch.nn.Module):
        def __deepcopy__(self, memo: object) -> object:
            raise TypeError("I am one")

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x

    with pytest.raises(UnsupportedError, match="I am one"):
        made(Stubborn(), Plan(precision="bf16"), torch.randn(3))


def test_frozen_weights_that_changed_are_noticed() -> None:
    module = torch.nn.Linear(4, 4)
    guarded = WeightsWatch(module).guarding(module)
    guarded(torch.randn(2, 4))
    with torch.no_grad():
        module.weight.add_(1.0)
    with pytest.raises(StalePlanError, match="weights changed"):
        guarded(torch.randn(2, 4))


def test_threads_hold_only_during_the_call_and_also_when_it_raises() -> None:
    before = torch.get_num_threads()
    seen = []

    def call(x: torch.Tensor) -> torch.Tensor:
        seen.append(torch.get_num_threads())
        if x.numel() == 1:
            raise ValueError("too small")
        return x

    threaded = made(call, Plan(threads=before + 1), torch.ones(2))
    threaded(torch.ones(2))  # type: ignore[operator]
    with pytest.raises(ValueError, match="too small"):
        threaded(torch.ones(1))  # type: ignore[operator]
    assert seen == [before + 1, before + 1]
    assert torch.get_num_threads() == before


def test_tf32_holds_only_during_the_call() -> None:
    seen = []

    def call(x: torch.Tensor) -> torch.Tensor:
        seen.append(torch.get_float32_matmul_precision())
        return x

    made(call, Plan(precision="tf32"), torch.ones(2))(torch.ones(2))  # type: ignore[operator]
    assert seen == ["high"]
    assert torch.get_float32_matmul_precision() == "highest"


def test_repeated_blocks_are_the_ones_that_dominate() -> None:
    block = torch.nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
    model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.TransformerEncoder(block, 4), torch.nn.Linear(32, 2))
    found = repeated_blocks(model)
    assert len(found) == 4
    assert all(isinstance(b, torch.nn.TransformerEncoderLayer) for b in found)
    assert repeated_blocks(torch.nn.Sequential(*[torch.nn.Linear(8, 8) for _ in range(20)])) == []


def test_what_cannot_be_realised_is_refused_with_the_value() -> None:
    x = torch.randn(2, 4)
    with pytest.raises(UnsupportedError, match="no repeated blocks"):
        made(torch.nn.Linear(4, 4), Plan(backend="inductor", scope="regional"), x)
    with pytest.raises(UnsupportedError, match="a function has no repeated blocks"):
        made(torch.tanh, Plan(backend="inductor", scope="regional"), x)
    with pytest.raises(UnsupportedError, match="'nonesuch'"):
        made(torch.tanh, Plan(backend="nonesuch"), x)
    with pytest.raises(UnsupportedError, match="only CUDA has graphs"):
        made(torch.tanh, Plan(capture="call"), x)
    with pytest.raises(UnsupportedError, match="'no_such_option'"):
        made(torch.tanh, Plan(backend="inductor", options=(("no_such_option", True),)), x)
    with pytest.raises(UnsupportedError, match="transforms"):
        made(torch.tanh, Plan(transforms=("nothing",)), x)


def test_signatures_tell_apart_what_must_be_told_apart() -> None:
    x = torch.randn(2, 4)
    same = signature_of((torch.randn(2, 4),), {})
    assert signature_of((x,), {}) == same
    assert signature_of((x.double(),), {}) != same
    assert signature_of((x.t().contiguous().t(),), {}) != same
    assert signature_of((torch.randn(3, 4),), {}) != same
    assert signature_of((x, 1), {}) != signature_of((x, 2), {})
    assert signature_of((x,), {"flag": True}) != signature_of((x,), {"flag": False})
    assert signature_of(([x],), {}) != signature_of((x,), {})
