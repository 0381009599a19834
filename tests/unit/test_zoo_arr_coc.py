"""Relevance scorers, their balance, the allocation of tokens, and the vision model around them."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch.autograd import gradcheck

from torchwise.errors import WorkloadError
from torchwise.workload import Workload
from torchwise.workload.step_state import loss_of
from torchwise.zoo import load
from torchwise_models.zoo.arr_coc import allocate
from torchwise_models.zoo.arr_coc.detail import MAX_TOKENS, MEAN, MIN_TOKENS, blend
from torchwise_models.zoo.arr_coc.scorers import InformationScorer, QueryScorer, SalienceScorer
from torchwise_models.zoo.arr_coc.tension import TensionBalance
from torchwise_models.zoo.catalogue.arr_coc import ENTRIES

NAMES = [entry.name for entry in ENTRIES]
TRAINED = [entry.name for entry in ENTRIES if entry.trains]
F64 = torch.float64


def run(workload: Workload) -> torch.Tensor:
    with torch.no_grad():
        return workload.call(*workload.examples[0].args)


def normal(*shape: int, seed: int = 0, scale: float = 1.0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=F64) * scale


@pytest.mark.parametrize(
    ("operation", "shape"),
    [
        ("information_scorer", (2, 16)),
        ("salience_scorer", (2, 16)),
        ("query_scorer", (2, 16)),
        ("scorers", (2, 3, 16)),
        ("tension", (2, 16)),
        ("detail", (2, 16)),
        ("model", (2, 16, 64)),
    ],
)
def test_the_answer_has_the_stated_shape(operation: str, shape: tuple[int, ...]) -> None:
    workload = load(f"arr_coc.{operation}@small")
    out = run(workload)
    assert (tuple(out.shape), out.dtype) == (shape, torch.float32)
    assert torch.isfinite(out).all()
    assert out.std() > 0.01, "all patches are equally relevant: nothing would be seen of a mistake"
    assert torch.equal(out, run(workload)), "nothing is random"


@pytest.mark.parametrize("name", NAMES)
def test_float32_agrees_with_float64(name: str) -> None:
    single, double = load(f"{name}@small"), load(f"{name}@small", dtype=F64)
    call = copy.deepcopy(single.call)
    call = call.double() if isinstance(call, torch.nn.Module) else call
    raised = Workload(call, (single.examples[0].map_tensors(torch.Tensor.double),))
    for reference in (run(double), run(raised)):
        assert reference.dtype is F64
        assert 0 < (run(single) - reference).norm() / reference.norm() < 1e-5


@pytest.mark.parametrize("name", TRAINED)
def test_every_parameter_and_input_gets_a_gradient(name: str) -> None:
    workload = load(f"{name}@small", dtype=F64)
    example = workload.examples[0].map_tensors(lambda t: t.clone().requires_grad_())
    loss = loss_of(workload.call(*example.args))
    assert loss is not None
    loss.backward()
    learned = dict(workload.call.named_parameters()) | {f"input {i}": t for i, t in enumerate(example.args)}
    for which, tensor in learned.items():
        assert torch.isfinite(tensor.grad).all(), which
        assert tensor.grad.norm() > 1e-5 * tensor.norm(), which


@pytest.mark.parametrize("name", NAMES)
def test_images_of_a_batch_do_not_see_each_other(name: str) -> None:
    workload = load(f"{name}@small", dtype=F64)
    second = workload.examples[0].map_tensors(lambda t: t[1:])
    with torch.no_grad():
        torch.testing.assert_close(run(workload)[1:], workload.call(*second.args))


def test_entropy_is_between_that_of_one_feature_and_that_of_equal_ones() -> None:
    equal, one = torch.full((1, 1, 48), 0.7, dtype=F64), torch.zeros(1, 1, 48, dtype=F64)
    one[..., 5] = 1e4
    uneven = torch.tensor([[[math.log(0.5), math.log(0.25), math.log(0.25)]]], dtype=F64)
    for features, expected in ((equal, math.log(48)), (one, 0.0), (uneven, 1.5 * math.log(2))):
        entropy = InformationScorer()(features)
        torch.testing.assert_close(entropy, torch.tensor([[expected]], dtype=F64))


def test_entropy_has_the_gradient_of_finite_differences_even_where_a_share_vanishes() -> None:
    patches = normal(1, 2, 6)
    patches[0, 0, 0] = 800.0
    assert gradcheck(InformationScorer(), (patches.requires_grad_(),))


def test_salience_of_a_constant_image_is_zero_and_of_one_odd_patch_is_its_contrast() -> None:
    scorer = SalienceScorer(4)
    constant = normal(1, 1, 8).expand(1, 16, 8).clone()
    assert scorer(constant).max() < 1e-14
    constant[0, 5] += 3.0  # row 1, column 1: it has 8 neighbours, three of which lie on the border of the image
    salience = scorer(constant)[0].reshape(4, 4)
    expected = torch.zeros(4, 4, dtype=F64)
    expected[1, 1] = 3.0
    expected[0, 0] = 3.0 / 3
    expected[0, 1] = expected[0, 2] = expected[1, 0] = expected[2, 0] = 3.0 / 5
    expected[1, 2] = expected[2, 1] = expected[2, 2] = 3.0 / 8
    torch.testing.assert_close(salience, expected)


def test_salience_follows_its_formula_patch_by_patch() -> None:
    patches = normal(2, 9, 5)
    salience = SalienceScorer(3)(patches)
    for i in range(9):
        near = [j for j in range(9) if j != i and max(abs(j // 3 - i // 3), abs(j % 3 - i % 3)) == 1]
        contrast = patches[:, i] - patches[:, near].mean(dim=1)
        torch.testing.assert_close(salience[:, i], contrast.square().mean(dim=-1).sqrt())


def test_salience_turns_with_the_image() -> None:
    plane = normal(1, 4, 4, 6)
    turned, mirrored = plane.rot90(1, (1, 2)), plane.flip(1)
    scorer = SalienceScorer(4)
    salience = scorer(plane.flatten(1, 2)).unflatten(-1, (4, 4))
    torch.testing.assert_close(scorer(turned.flatten(1, 2)).unflatten(-1, (4, 4)), salience.rot90(1, (1, 2)))
    torch.testing.assert_close(scorer(mirrored.flatten(1, 2)).unflatten(-1, (4, 4)), salience.flip(1))


def test_query_scores_sum_to_one_and_follow_the_scaled_dot_product() -> None:
    workload = load("arr_coc.query_scorer@small", dtype=F64)
    patches, query = workload.examples[0].args
    scores = run(workload)
    torch.testing.assert_close(scores.sum(dim=-1), torch.ones(2, dtype=F64))
    assert (scores > 0).all()
    projected = query @ workload.call.projection.weight.T + workload.call.projection.bias
    attention = torch.einsum("bd,bnd->bn", projected, patches) / math.sqrt(64)
    torch.testing.assert_close(scores, attention.softmax(dim=-1).detach())


def test_the_patch_that_answers_the_query_scores_highest() -> None:
    scorer = QueryScorer(8).double()
    query = normal(1, 8)
    patches = normal(1, 10, 8, scale=0.1)
    with torch.no_grad():
        patches[0, 7] = 3 * scorer.projection(query)[0]
        assert scorer(patches, query).argmax().item() == 7


def test_all_scorers_together_are_each_by_itself() -> None:
    workload = load("arr_coc.scorers@small", dtype=F64)
    patches, query = workload.examples[0].args
    model = workload.call
    alone = (InformationScorer()(patches), SalienceScorer(4)(patches), model.query(patches, query).detach())
    for index, scores in enumerate(alone):
        torch.testing.assert_close(run(workload)[:, index], scores)


@pytest.mark.parametrize("operation", ["information_scorer", "query_scorer", "tension", "detail"])
def test_the_order_of_patches_does_not_matter(operation: str) -> None:
    workload = load(f"arr_coc.{operation}@small", dtype=F64)
    first, *others = workload.examples[0].args
    order = torch.randperm(16, generator=torch.Generator().manual_seed(1))
    of_patches = 2 if operation == "tension" else 1
    with torch.no_grad():
        permuted = workload.call(first.index_select(of_patches, order), *others)
    torch.testing.assert_close(permuted, run(workload)[:, order])


def test_balancing_weights_sum_to_one_and_the_balance_is_their_sum() -> None:
    workload = load("arr_coc.tension@small", dtype=F64)
    (scores,) = workload.examples[0].args
    standard = (scores - scores.mean(-1, keepdim=True)) / (scores.var(-1, correction=0, keepdim=True) + 1e-8).sqrt()
    logits = torch.einsum("kj,bjn->bkn", workload.call.coupling.weight, standard)
    weights = (logits + workload.call.coupling.bias[:, None]).softmax(dim=1).detach()
    found = workload.call.weights(standard.transpose(1, 2)).detach()
    torch.testing.assert_close(found, weights.transpose(1, 2))
    torch.testing.assert_close(found.sum(-1), torch.ones(2, 16, dtype=F64))
    torch.testing.assert_close(run(workload), (weights * standard).sum(dim=1))


def test_balance_does_not_depend_on_the_units_of_a_score_and_scores_that_agree_stay_as_they_are() -> None:
    balance = TensionBalance().double()
    one = normal(2, 1, 16)
    agreeing = torch.cat((one, 5 * one + 3, 0.1 * one - 1), dim=1)
    standard = (one - one.mean(-1, keepdim=True)) / one.std(-1, correction=0, keepdim=True)
    with torch.no_grad():
        torch.testing.assert_close(balance(agreeing), standard[:, 0], rtol=1e-5, atol=1e-5)
        assert balance(torch.ones(1, 3, 16, dtype=F64)).abs().max() < 1e-3, "constant scores prefer no patch"


@pytest.mark.parametrize("scale", [0.0, 0.3, 1.0, 5.0, 300.0])
@pytest.mark.parametrize("mean", [MIN_TOKENS, 65, 200, 317, 399, MAX_TOKENS])
@pytest.mark.parametrize(("dtype", "rounding"), [(torch.float32, 1e-6), (F64, 1e-12)])
def test_budgets_are_within_bounds_and_sum_to_the_total(
    scale: float, mean: int, dtype: torch.dtype, rounding: float
) -> None:
    budgets = allocate(normal(6, 196, scale=scale).to(dtype), mean * 196)
    assert budgets.min() >= MIN_TOKENS
    assert budgets.max() <= MAX_TOKENS
    assert (budgets.sum(dim=-1, dtype=F64) / (mean * 196) - 1).abs().max() < rounding


def test_budgets_rise_with_relevance_and_surplus_is_shared_in_proportion() -> None:
    relevance = normal(3, 196, scale=1.2)
    budgets = allocate(relevance, MEAN * 196)
    order = relevance.argsort(dim=-1)
    assert (budgets.gather(-1, order).diff(dim=-1) >= 0).all()
    full = budgets == MAX_TOKENS
    assert 5 < full.sum() < 300, "the cap must matter for some patches, and not for most"
    for image in range(3):
        factor = ((budgets[image] - MIN_TOKENS) / relevance[image].exp())[~full[image]]
        torch.testing.assert_close(factor, factor[:1].expand_as(factor))
        assert (factor[0] * relevance[image].exp()[full[image]] >= MAX_TOKENS - MIN_TOKENS).all()


def test_budgets_depend_on_differences_of_relevance_alone() -> None:
    relevance = normal(2, 40)
    torch.testing.assert_close(allocate(relevance + 1000.0, 8000), allocate(relevance, 8000))
    equal = allocate(torch.zeros(1, 40), 8000)
    torch.testing.assert_close(equal, torch.full((1, 40), 200.0))


def test_budgets_have_the_gradient_of_finite_differences() -> None:
    relevance = normal(2, 12, scale=1.5).requires_grad_()
    assert (allocate(relevance, 12 * MEAN) == MAX_TOKENS).any(), "with a patch at its cap"
    assert gradcheck(lambda r: allocate(r, 12 * MEAN), (relevance,))


def test_budgets_of_narrow_types_are_allocated_in_float32() -> None:
    budgets = allocate(normal(1, 196).to(torch.bfloat16), MEAN * 196)
    assert budgets.dtype is torch.float32
    assert abs(budgets.sum().item() / (MEAN * 196) - 1) < 1e-6


@pytest.mark.parametrize("total", [16 * MIN_TOKENS - 1, 16 * MAX_TOKENS + 1])
def test_a_total_that_cannot_be_shared_is_refused(total: int) -> None:
    with pytest.raises(ValueError, match=f"total is {total}, but must be from 1024 to 6400"):
        allocate(normal(1, 16), total)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_detail_refuses_a_dtype_that_does_not_hold_its_numbers(dtype: torch.dtype) -> None:
    with pytest.raises(WorkloadError, match=r"arr_coc.detail@small must be torch.float32 or torch.float64"):
        load("arr_coc.detail@small", dtype=dtype)


def test_a_patch_with_all_tokens_is_seen_as_it_is_and_one_with_few_through_its_neighbours() -> None:
    features = normal(1, 25, 3)
    plane = features.reshape(5, 5, 3)
    for tokens, distance in ((400.0, 0), (100.0, 1)):  # half the samples in both directions are one level
        blended = blend(features, torch.full((1, 25), tokens, dtype=F64), 5)[0, 12]
        window = plane[2 - distance : 3 + distance, 2 - distance : 3 + distance]
        torch.testing.assert_close(blended, window.mean(dim=(0, 1)))
    level = 0.5 * math.log2(400 / 64)
    least = blend(features, torch.full((1, 25), 64.0, dtype=F64), 5)[0, 12]
    expected = (2 - level) * plane[1:4, 1:4].mean(dim=(0, 1)) + (level - 1) * plane.mean(dim=(0, 1))
    torch.testing.assert_close(least, expected)


def test_blending_keeps_a_constant_image_and_weighs_patches_by_their_tokens() -> None:
    constant = normal(2, 1, 7).expand(2, 16, 7)
    budgets = allocate(normal(2, 16), MEAN * 16)
    torch.testing.assert_close(blend(constant, budgets, 4), constant * budgets[..., None] / MEAN)


def test_blending_has_the_gradient_of_finite_differences() -> None:
    budgets = (64 + 336 * torch.rand(1, 9, generator=torch.Generator().manual_seed(3), dtype=F64)).requires_grad_()
    assert gradcheck(lambda f, b: blend(f, b, 3), (normal(1, 9, 2).requires_grad_(), budgets))


def test_the_model_is_its_stages_in_order() -> None:
    workload = load("arr_coc.model@small", dtype=F64)
    image, query = workload.examples[0].args
    model = workload.call
    with torch.no_grad():
        features = model.encoder(image)
        relevance = model.tension(model.scorers(features, query))
        expected = blend(features, allocate(relevance, MEAN * 16), 4)
        assert (model.budgets(features, query) == MAX_TOKENS).sum() > 0
    torch.testing.assert_close(run(workload), expected)


def test_the_query_moves_tokens_towards_what_it_asks_for() -> None:
    model = load("arr_coc.model@small", dtype=F64).call
    features, queries = normal(1, 16, 64), normal(2, 64, seed=9)
    with torch.no_grad():
        one, other = (model.budgets(features, query[None]) for query in queries)
    assert (one - other).abs().max() > 5.0
    torch.testing.assert_close(one.sum(), other.sum())


def test_attention_follows_its_formula() -> None:
    model = load("arr_coc.model@small", dtype=F64).call
    attention, x = model.encoder.blocks[0].attention, normal(2, 16, 64)
    with torch.no_grad():
        q, k, v = (part.unflatten(-1, (4, 16)) for part in attention.qkv(x).chunk(3, dim=-1))
        weights = (torch.einsum("bihd,bjhd->bhij", q, k) / math.sqrt(16)).softmax(dim=-1)
        expected = attention.projection(torch.einsum("bhij,bjhd->bihd", weights, v).flatten(2))
        torch.testing.assert_close(attention(x), expected)


def test_the_model_is_the_same_in_training_mode() -> None:
    workload = load("arr_coc.model@small")
    before = run(workload)
    workload.call.train()
    assert torch.equal(run(workload), before)


def test_the_table_has_the_model_of_the_reference() -> None:
    sizes = {entry.name: entry.sizes for entry in ENTRIES}["arr_coc.model"]
    assert [sizes[size]["batch"] for size in ("medium", "large", "extreme")] == [1, 16, 64]
    workload = load("arr_coc.model")
    image, query = workload.examples[0].args
    assert (image.shape, query.shape) == ((1, 3, 224, 224), (1, 768))
    assert len(workload.call.encoder.blocks) == 12
    assert 85e6 < sum(p.numel() for p in workload.call.parameters()) < 88e6
    assert workload.roofline is not None
    assert workload.roofline.flops == pytest.approx(2 * 17.5e9, rel=0.03), "a ViT-B/16 has 17.5 G multiply-adds"


@pytest.mark.parametrize("name", NAMES)
def test_the_roofline_counts_what_must_be_moved(name: str) -> None:
    workload = load(f"{name}@small")
    roofline = workload.roofline
    assert roofline is not None
    weights = list(workload.call.parameters()) if isinstance(workload.call, torch.nn.Module) else []
    inputs = [t for t in workload.examples[0].args if isinstance(t, torch.Tensor)]
    moved = sum(t.numel() * t.element_size() for t in (*weights, *inputs, run(workload)))
    assert roofline.bytes == moved
    double = load(f"{name}@small", dtype=F64).roofline
    assert double is not None
    assert (double.flops, double.bytes) == (roofline.flops, 2 * roofline.bytes)
