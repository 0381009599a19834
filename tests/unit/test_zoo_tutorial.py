"""The programs that teach: each follows its formula, and each shows the effect that it is there for."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch._dynamo.testing import CompileCounter
from torch.nn import functional

from torchwise.errors import WorkloadError
from torchwise.workload import Workload
from torchwise.zoo import load
from torchwise.zoo.registry import find, select
from torchwise.zoo.tutorial.breaks import CURVE, KNOTS
from torchwise.zoo.tutorial.transformer import Attention, TransformerBlock

NAMES = [entry.name for entry in select("tutorial")]
BROKEN = [name for name in NAMES if name.startswith("tutorial.break_") or name == "tutorial.branch"]


def exact(operation: str) -> Workload:
    return load(f"tutorial.{operation}@small", dtype=torch.float64)


def run(workload: Workload, example: int = 0) -> torch.Tensor:
    with torch.no_grad():
        return workload.call(*workload.examples[example].args)


def loss_of(workload: Workload) -> torch.Tensor:
    return workload.call(*workload.examples[0].args)


def compute_hidden(workload: Workload, example: int = 0) -> torch.Tensor:
    """Return the value between the two layers of a program in the gallery, before anything is done to it."""
    with torch.no_grad():
        return torch.tanh(workload.examples[example].args[0] @ workload.call.first.weight.T)


def recover_second_input(workload: Workload, example: int = 0) -> torch.Tensor:
    """Return the input of the second layer of a program in the gallery, worked out from the answer."""
    return torch.linalg.solve(workload.call.second.weight.detach(), run(workload, example).T).T


def test_fusion_demo_follows_its_formula() -> None:
    workload = exact("fusion_demo")
    x, norm = workload.examples[0].args[0], workload.call.norm
    centred = x - x.mean(-1, keepdim=True)
    normed = centred / (x.var(-1, unbiased=False, keepdim=True) + 1e-5).sqrt() * norm.weight + norm.bias
    expected = normed * 0.5 * (1 + torch.erf(normed / 2**0.5)) * 1.2 + 0.1
    torch.testing.assert_close(run(workload), expected.detach())


def test_elementwise_chain_follows_its_formula() -> None:
    workload = exact("elementwise_chain")
    x = workload.examples[0].args[0].numpy()
    expected = np.tanh(1.5 * np.sin(x) + 0.5 * x) / (1 + np.exp(-x))
    torch.testing.assert_close(run(workload), torch.from_numpy(expected))
    assert find("tutorial.elementwise_chain").sizes["medium"] == {"side": 4096}


def test_many_small_ops_depends_on_its_input_through_every_layer() -> None:
    workload = load("tutorial.many_small_ops")
    (x,) = workload.examples[0].args
    assert len(workload.call.layers) == 20
    assert x.shape == (8, 256)
    with torch.no_grad():
        difference = workload.call(x) - workload.call(-x)
    assert difference.abs().mean() > 0.05


def test_the_two_examples_of_branch_take_one_branch_each() -> None:
    workload = exact("branch")
    first, second = workload.call.first, workload.call.second
    taken = []
    for number, example in enumerate(workload.examples):
        (x,) = example.args
        assert x.shape[1:] == (10,)
        positive = bool(x.mean() > 0)
        bent = torch.relu(first(x)) if positive else torch.tanh(first(x))
        torch.testing.assert_close(run(workload, number), second(bent).detach())
        taken.append(positive)
    assert sorted(taken) == [False, True]
    assert (first.out_features, second.out_features) == (20, 5)


def test_attention_is_softmax_over_every_pair_of_tokens() -> None:
    torch.manual_seed(0)
    attention, x = Attention(12, heads=3).double(), torch.randn(2, 5, 12, dtype=torch.float64)
    q, k, v = (part.view(2, 5, 3, 4) for part in attention.qkv(x).chunk(3, dim=-1))
    weights = torch.einsum("blhd,bmhd->bhlm", q, k).div(2.0).softmax(dim=-1)
    mixed = torch.einsum("bhlm,bmhd->blhd", weights, v).reshape(2, 5, 12)
    torch.testing.assert_close(attention(x), attention.out(mixed))


def test_a_block_is_pytorchs_own_encoder_layer() -> None:
    torch.manual_seed(0)
    ours, x = TransformerBlock(12, heads=3).double(), torch.randn(2, 5, 12, dtype=torch.float64)
    theirs = torch.nn.TransformerEncoderLayer(12, 3, 48, 0.0, functional.gelu, batch_first=True, norm_first=True)
    names = {"self_attn.in_proj_": "attention.qkv.", "self_attn.out_proj.": "attention.out."}
    names |= {"norm1.": "attention_norm.", "norm2.": "hidden_norm.", "linear1.": "widen.", "linear2.": "narrow."}
    state = ours.state_dict()
    theirs.load_state_dict({f"{k}{end}": state[f"{v}{end}"] for k, v in names.items() for end in ("weight", "bias")})
    torch.testing.assert_close(ours(x), theirs.double()(x))


def test_the_block_is_as_large_as_it_is_said_to_be() -> None:
    workload = load("tutorial.transformer_block")
    assert workload.examples[0].args[0].shape == (32, 128, 768)
    assert sum(p.numel() for p in workload.call.parameters()) == 7_087_872  # as in BERT-base, per layer
    products = 2 * 32 * 128 * (12 * 768**2 + 2 * 128 * 768)
    assert products < workload.roofline.flops < 1.02 * products


def test_heads_that_do_not_divide_the_width_are_refused() -> None:
    with pytest.raises(WorkloadError, match="width is 10, but must be a multiple of heads, which is 4"):
        Attention(10, heads=4)


def test_the_loss_starts_near_that_of_a_guess_and_training_lowers_it() -> None:
    workload = load("tutorial.six_layer_transformer@small")
    x, labels = workload.examples[0].args
    assert workload.call.training
    assert len(workload.call.blocks) == 6
    assert labels.dtype is torch.int64
    optimiser = torch.optim.AdamW(workload.call.parameters(), lr=3e-3)
    losses = []
    for _ in range(10):
        loss = workload.call(x, labels)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert 0.5 * np.log(10) < losses[0] < 3 * np.log(10)
    assert losses[-1] < 0.5 * losses[0]


def test_the_gradient_of_the_loss_is_its_slope() -> None:
    workload = exact("six_layer_transformer")
    torch.manual_seed(0)
    parameters = list(workload.call.parameters())
    step = [torch.randn_like(p) for p in parameters]
    slope = sum((g * s).sum() for g, s in zip(torch.autograd.grad(loss_of(workload), parameters), step, strict=True))
    around = []
    with torch.no_grad():
        for sign in (1, -2):  # from +1 step to −1
            for parameter, direction in zip(parameters, step, strict=True):
                parameter += sign * 1e-6 * direction
            around.append(loss_of(workload))
    torch.testing.assert_close((around[0] - around[1]) / 2e-6, slope.detach(), rtol=1e-5, atol=0)


def test_labels_are_of_every_class_and_the_same_in_every_dtype() -> None:
    single, half = (load("tutorial.six_layer_transformer@small", dtype=t) for t in (torch.float32, torch.bfloat16))
    for seed in range(20):
        labels, narrow = (workload.reseed(seed)[0].args[1] for workload in (single, half))
        assert torch.equal(labels, narrow)
        assert labels.unique().numel() > 7
        assert not torch.equal(labels, single.reseed(seed + 1)[0].args[1])
        assert 0 <= labels.min() <= labels.max() <= 9


def test_print_changes_nothing_and_floods_nothing(capsys) -> None:
    workload = exact("break_print")
    torch.testing.assert_close(recover_second_input(workload), compute_hidden(workload))
    for _ in range(3):
        run(workload)
    assert workload.call.log.line == "hidden values: (4, 32)"
    assert capsys.readouterr() == ("", "")


def test_item_scales_to_a_mean_of_one() -> None:
    workload = exact("break_item")
    torch.testing.assert_close(
        recover_second_input(workload), compute_hidden(workload) / compute_hidden(workload).abs().mean()
    )


def test_branch_in_between_goes_one_way_for_each_example() -> None:
    workload = exact("break_branch")
    torch.testing.assert_close(compute_hidden(workload, 0), -compute_hidden(workload, 1))
    factors = {number: 2.0 if compute_hidden(workload, number).mean() > 0 else 0.5 for number in (0, 1)}
    assert sorted(factors.values()) == [0.5, 2.0]
    for number, factor in factors.items():
        torch.testing.assert_close(recover_second_input(workload, number), factor * compute_hidden(workload, number))


def test_numpy_reads_the_table() -> None:
    workload = exact("break_numpy")
    expected = np.interp(compute_hidden(workload).numpy(), KNOTS, CURVE)
    torch.testing.assert_close(recover_second_input(workload), torch.from_numpy(expected))


def test_numpy_has_no_bfloat16() -> None:
    with pytest.raises(WorkloadError, match=r"bfloat16, but tutorial.break_numpy@small must be torch.float16"):
        load("tutorial.break_numpy@small", dtype=torch.bfloat16)


def test_list_sums_a_geometric_series() -> None:
    workload = exact("break_list")
    h = compute_hidden(workload)
    torch.testing.assert_close(recover_second_input(workload), h / (1 - h / 2), rtol=0, atol=1e-3)


@pytest.fixture
def fresh_dynamo() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def graphs(workload: Workload) -> int:
    """Return the number of graphs in which PyTorch traces it."""
    counter = CompileCounter()
    with torch.no_grad():
        answer = torch.compile(workload.call, backend=counter)(*workload.examples[0].args)
    torch.testing.assert_close(answer, run(workload))
    return counter.frame_count


@pytest.mark.slow
@pytest.mark.usefixtures("fresh_dynamo")
@pytest.mark.parametrize("name", BROKEN)
def test_what_breaks_the_graph_does(name: str) -> None:
    assert graphs(load(f"{name}@small")) > 1


@pytest.mark.slow
@pytest.mark.usefixtures("fresh_dynamo")
@pytest.mark.parametrize("name", [name for name in NAMES if name not in BROKEN])
def test_what_does_not_break_the_graph_is_one(name: str) -> None:
    assert graphs(load(f"{name}@small")) == 1


@pytest.mark.slow
@pytest.mark.usefixtures("fresh_dynamo")
@pytest.mark.parametrize(
    ("operation", "reason"),
    [
        ("break_print", "builtin operator `print`"),
        ("break_item", r"Tensor.item\(\)"),
        ("break_branch", "Data-dependent branching"),
        ("break_numpy", "numpy function <function interp"),
        ("break_list", "Data-dependent branching"),
    ],
)
def test_the_first_break_has_the_cause_that_it_is_named_after(operation: str, reason: str) -> None:
    workload = load(f"tutorial.{operation}@small")
    explained = torch._dynamo.explain(workload.call)(*workload.examples[0].args)
    assert explained.graph_break_count >= 1
    assert re.search(reason, explained.break_reasons[0].reason)
