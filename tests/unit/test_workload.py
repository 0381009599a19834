"""The user's request and its inputs: which are accepted, refused and kept."""

from __future__ import annotations

from dataclasses import FrozenInstanceError
from typing import Any

import pytest
import torch

from torchwise.errors import WorkloadError
from torchwise.plan.workload_spec import DEFAULT_CALLS, WorkloadSpec
from torchwise.workload import Example, Workload
from torchwise.workload.step_state import loss_of

X = torch.ones(2, 3)


def test_a_request_has_defaults_that_suit_most() -> None:
    spec = WorkloadSpec("zoo:tutorial.fusion_demo")
    assert (spec.device, spec.mode, spec.objective) == ("cpu", "inference", "latency")
    assert (spec.calls, spec.restarts, spec.seed) == (DEFAULT_CALLS, 1, 0)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("device", "tpu", "device is 'tpu', but must be one of cpu, cuda"),
        ("device", "cuda:1", "device is 'cuda:1', but must be one of cpu, cuda"),
        ("mode", "eval", "mode is 'eval', but must be one of inference, training"),
        ("objective", "speed", "objective is 'speed', but must be one of latency, throughput, memory"),
        ("calls", 0, "calls is 0, but must be a whole number of at least 1"),
        ("calls", -5, "calls is -5, but must be a whole number of at least 1"),
        ("calls", 1.5, "calls is 1.5, but must be a whole number of at least 1"),
        ("calls", "10", "calls is '10', but must be a whole number of at least 1"),
        ("calls", True, "calls is True, but must be a whole number of at least 1"),
        ("restarts", 0, "restarts is 0, but must be a whole number of at least 1"),
        ("restarts", None, "restarts is None, but must be a whole number of at least 1"),
    ],
)
def test_a_request_that_means_nothing_is_refused(field: str, value: object, message: str) -> None:
    with pytest.raises(WorkloadError) as error:
        WorkloadSpec("t", **{field: value})
    assert str(error.value) == message


@pytest.mark.parametrize("weight", [0, -1.0, float("nan")])
def test_an_example_must_occur(weight: float) -> None:
    with pytest.raises(WorkloadError, match=rf"weight is {weight!r}, but must be above 0"):
        Example((X,), weight=weight)


def test_an_example_is_cloned_apart() -> None:
    example = Example(([X],), {"mask": X}, weight=2.0)
    copy = example.clone()
    copy.args[0][0].fill_(7)
    copy.kwargs["mask"].fill_(7)
    assert torch.equal(X, torch.ones(2, 3))
    assert copy.weight == 2.0


def test_an_example_is_mapped_in_args_and_kwargs() -> None:
    doubled = Example((X, 5), {"mask": X, "flag": True}).map_tensors(lambda t: t * 2)
    assert (doubled.args[0][0, 0], doubled.args[1]) == (2, 5)
    assert (doubled.kwargs["mask"][0, 0], doubled.kwargs["flag"]) == (2, True)


@pytest.mark.parametrize(
    ("thing", "field"),
    [(WorkloadSpec("t"), "calls"), (Example((X,)), "args"), (Workload(abs, (Example((X,)),)), "call")],
)
def test_they_are_frozen(thing: object, field: str) -> None:
    with pytest.raises(FrozenInstanceError):
        setattr(thing, field, None)


def test_a_workload_is_read_from_what_people_write() -> None:
    assert Workload.of((abs, X)).examples[0].args == (X,)
    assert Workload.of((abs, [X, 1])).examples[0].args == (X, 1)
    assert Workload.of((abs, ())).examples[0].args == ()
    assert Workload.of((abs, (X,), {"k": 1}), name="n").examples[0].kwargs == {"k": 1}
    whole = Workload(abs, (Example((X,)),), name="mine")
    assert Workload.of(whole, name="other") is whole


def test_moving_keeps_what_is_no_tensor_and_the_weights_of_the_mix() -> None:
    workload = Workload(abs, (Example((X, "a"), weight=3.0), Example((X,), {"n": None})))
    moved = workload.to("meta")
    assert [example.weight for example in moved.examples] == [3.0, 1.0]
    assert moved.examples[0].args[1] == "a"
    assert moved.examples[0].args[0].device.type == "meta"
    assert workload.examples[0].args[0].device.type == "cpu"


def test_moving_keeps_leaves_leaves() -> None:
    x = torch.ones(2, requires_grad=True)
    moved = Workload(abs, (Example((x * 2, x)),)).to("cpu").examples[0]
    assert [t.is_leaf and t.requires_grad for t in moved.args] == [True, True]


@pytest.mark.parametrize(
    ("build", "why"),
    [("13.0", "sees no CUDA GPU here: use device 'cpu', or make one visible"), (None, "is built without CUDA: use")],
)
def test_a_gpu_that_is_not_there_is_refused_with_the_way_out(
    monkeypatch: pytest.MonkeyPatch, build: str | None, why: str
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.version, "cuda", build)
    with pytest.raises(WorkloadError) as error:
        Workload(abs, (Example((X,)),)).to("cuda")
    assert str(error.value).startswith("device is 'cuda', but PyTorch ")
    assert why in str(error.value)


@pytest.mark.parametrize(
    "x", [torch.ones(3).expand(2, 3), torch.ones(4, 8)[:, ::2], torch.ones(2, 3).t()], ids=["expanded", "gaps", "t"]
)
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_moving_keeps_strides(x: torch.Tensor, device: str) -> None:
    assert Workload(abs, (Example((x,)),)).to(device).examples[0].args[0].stride() == x.stride()


def test_moving_takes_sparse_tensors() -> None:
    moved = Workload(abs, (Example((torch.eye(2).to_sparse(),)),)).to("cpu").examples[0].args[0]
    assert moved.layout is torch.sparse_coo


def test_the_stand_in_for_a_loss_reaches_every_output_that_depends_on_a_parameter() -> None:
    w = torch.full((2,), 3.0, requires_grad=True)
    loss = loss_of({"a": w * 2, "b": [w + 1j], "constant": torch.ones(5)})
    assert loss is not None
    assert loss.item() == pytest.approx(36 + 10)
    loss.backward()
    assert w.grad is not None
    assert w.grad.abs().min() > 0


def test_a_lone_scalar_is_a_loss_already() -> None:
    w = torch.tensor(3.0, requires_grad=True)
    own = w * 2
    assert loss_of((own, torch.ones(3))) is own


def test_nothing_to_learn_is_no_loss() -> None:
    assert loss_of({"x": torch.ones(3), "n": 4}) is None


def refusal(seed: int) -> str:
    with pytest.raises(WorkloadError) as refused:
        WorkloadSpec("zoo:a.b", seed=seed)
    return str(refused.value)


@pytest.mark.parametrize("seed", [2**63, -(2**63) - 1, 10**23, 1.5, True])
def test_a_seed_that_cannot_be_drawn_from_is_refused(seed: Any) -> None:
    with pytest.raises(WorkloadError, match=r"seed is .*, but must be a whole number from -2\*\*63"):
        WorkloadSpec("zoo:a.b", seed=seed)
    assert "PyTorch draws the same numbers from -1" in refusal(2**64 - 1)
    assert "the same numbers" not in refusal(2**64)
    assert WorkloadSpec("zoo:a.b", seed=2**63 - 1).seed == 2**63 - 1
