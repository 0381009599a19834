"""Attention of few rows by a kernel of our own, which Triton's interpreter runs here: answers, and which is taken."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from dynamo_graphs import rewrite_and_call
from torchwise.compile.few_rows import attention, tuning
from torchwise.compile.few_rows.attention import Form, Work, list_forms
from torchwise.compile.transforms.function_graphs import attention_of_few_rows
from torchwise.compile.transforms.function_graphs.nodes import value_of

FEATURES, OUTPUTS = 24, 20
"""No power of two."""


@pytest.fixture(autouse=True)
def use_kernels(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Have the kernel answer on a CPU."""
    monkeypatch.setattr(attention, "runs_kernels", lambda _device: True)
    monkeypatch.setattr(tuning, "_chosen", {})
    with torch.no_grad():
        yield
    torch.compiler.reset()


def draw(*sizes: int, seed: int = 0) -> Tensor:
    return torch.randn(*sizes, generator=torch.Generator().manual_seed(seed))


def compute_exactly(
    query: Tensor, keys: list[Tensor], values: list[Tensor], masks: list[Tensor | None], scale: float
) -> Tensor:
    scores = []
    for key, mask in zip(keys, masks, strict=True):
        score = query.double() @ key.double().mT * scale
        if mask is not None:
            score = score.masked_fill(~mask, -math.inf) if mask.dtype is torch.bool else score + mask.double()
        scores.append(score)
    return torch.cat(scores, -1).softmax(-1).nan_to_num() @ torch.cat(values, -2).double()


def make_mask(kind: str, batch: tuple[int, ...], rows: int, length: int, dtype: torch.dtype) -> Tensor | None:
    if kind == "keep":
        return draw(rows, length) > -0.3
    return draw(*batch[:1], *[1] * (len(batch) - 1), 1, length).to(dtype) if kind == "add" else None


# The interpreter has no bfloat16. A GPU test has.
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize(
    ("batch", "rows", "lengths", "kind"),
    [
        ((3,), 1, (37,), ""),
        ((2, 3), 1, (70, 1), "keep"),
        ((2,), 5, (65, 3), "add"),
        ((2, 2), 16, (40,), "add"),
        ((1,), 4, (1, 33, 2), "keep"),
    ],
)
def test_all_forms_have_the_answer(
    batch: tuple[int, ...], rows: int, lengths: tuple[int, ...], kind: str, dtype: torch.dtype
) -> None:
    query = draw(*batch, rows, FEATURES).to(dtype)
    keys = [draw(*batch, length, FEATURES, seed=length).to(dtype) for length in lengths]
    values = [draw(*batch, length, OUTPUTS, seed=length + 1).to(dtype) for length in lengths]
    masks = [make_mask(kind, batch, rows, lengths[0], dtype), *[None] * (len(lengths) - 1)]
    expected = compute_exactly(query, keys, values, masks, 0.3)
    work = Work(math.prod(batch), rows, FEATURES, OUTPUTS, lengths, tuple(map(attention._name_kind, masks)))
    forms = list_forms(work)
    assert any(work.count_parts(form) == 1 for form in forms)
    tolerance = {"rtol": 1e-5, "atol": 1e-5} if dtype is torch.float32 else {"rtol": 1e-2, "atol": 1e-2}
    for form in (forms[0], forms[-1], Form(16, 2, 4)):
        found = attention._launch(form, work, query, keys, values, masks, 0.3)
        torch.testing.assert_close(found.double(), expected, **tolerance)
    plain = attention.attend_plainly(query, keys, values, masks, 0.3)
    torch.testing.assert_close(plain.double(), expected, **tolerance)


def test_keys_are_read_where_they_lie() -> None:
    cache = draw(2, 9, 3, FEATURES)  # with the length before the heads, as some caches have it
    query, keys = draw(2, 3, 1, FEATURES), cache.transpose(1, 2)[:, :, 1:8]
    found = attention.attend(query, [keys], [keys], [None], 0.2)
    torch.testing.assert_close(
        found.double(), compute_exactly(query, [keys], [keys], [None], 0.2), rtol=1e-5, atol=1e-5
    )
    assert found.is_contiguous()


@pytest.mark.parametrize("length", [5, 70])
def test_hidden_rows_are_zero_and_nothing_that_is_no_number_is_lost(length: int) -> None:
    query, key, value = draw(2, 2, FEATURES), draw(2, length, FEATURES), draw(2, length, OUTPUTS)
    hidden = torch.ones(2, length, dtype=torch.bool)
    hidden[1] = False
    work = Work(2, 2, FEATURES, OUTPUTS, (length,), ("keep",))
    key[0, 3, 2] = math.nan
    for form in (Form(16, 1, 4), Form(16, 5, 4)):
        found = attention._launch(form, work, query, [key], [value], [hidden], 1.0)
        assert found[:, 1].abs().max() == 0
        assert found[0, 0].isnan().all()
        assert found[1, 0].isfinite().all()


def test_forms_have_as_many_programs_as_a_gpu_has_room_for() -> None:
    work = Work(8, 4, 64, 64, (512, 1), ("keep", ""))
    forms = list_forms(work)
    counts = [8 * work.count_parts(form) for form in forms]
    assert len(set(forms)) == len(forms) >= 4
    assert counts[0] >= 64
    assert counts[-1] == 8
    assert all(form.tiles * work.count_parts(form) >= work.count_tiles(form.block) for form in forms)
    wide = Work(4096, 1, 64, 64, (512,), ("",))
    assert {wide.count_parts(form) for form in list_forms(wide)} == {1}, "enough programs without parts"


def test_pytorchs_attention_stays_where_it_is_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "_choose", lambda *_: None)
    monkeypatch.setattr(attention, "_launch", None)
    query, key = draw(2, 1, 8), draw(2, 5, 8)
    expected = compute_exactly(query, [key], [key], [None], 1.0)
    torch.testing.assert_close(
        attention.attend(query, [key], [key], [None], 1.0).double(), expected, rtol=1e-5, atol=1e-5
    )


def repeat(shared: Tensor) -> Tensor:
    batch, heads, length, features = shared.shape
    return shared[:, :, None].expand(batch, heads, 2, length, features).reshape(batch, 2 * heads, length, features)


def attend_to_blocks(
    query: Tensor, keys: Tensor, values: Tensor, own: Tensor, hidden: Tensor, *, last: float = 1.0, from_end: int = 1
) -> Tensor:
    """Attend to a cache and to one more key, as a step of decoding does."""
    before = (query @ keys.mT).masked_fill(hidden, -math.inf)
    weights = torch.cat([before, query @ own.mT * last], -1).softmax(-1)
    return weights[..., :-from_end] @ values[..., : values.shape[-2] + 1 - from_end, :] + weights[..., -1:] * own


def write_between(query: Tensor, keys: Tensor, values: Tensor, own: Tensor, hidden: Tensor) -> Tensor:
    kept = values * 1
    weights = torch.cat([query @ keys.mT, query @ own.mT], -1).softmax(-1)
    first = weights[..., :-1] @ kept
    kept.zero_()
    return first + weights[..., -1:] * own + kept.sum()


def return_weights(query: Tensor, keys: Tensor, values: Tensor, own: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
    weights = torch.cat([query @ keys.mT, query @ own.mT], -1).softmax(-1)
    return weights[..., :-1] @ values + weights[..., -1:] * own, weights


def turn_blocks(query: Tensor, keys: Tensor, values: Tensor, own: Tensor, hidden: Tensor) -> Tensor:
    weights = torch.softmax(torch.cat([query @ own.mT, (query @ keys.mT).masked_fill(hidden, -math.inf)], -1), -1)
    return own * weights[:, :, :1] + torch.matmul(weights[:, :, 1:], values)


def join_three(query: Tensor, keys: Tensor, values: Tensor, own: Tensor, hidden: Tensor) -> Tensor:
    weights = torch.cat([query @ keys.mT, query @ own.mT, query @ values.mT], -1).softmax(-1)
    return weights[..., :9] @ keys + weights[..., 9:10] * own + weights[..., 10:] @ values


def hide_blocks(
    query: Tensor, keys: Tensor, values: Tensor, own: Tensor, hidden: Tensor, *, first: float, last: float | None
) -> Tensor:
    """Attend to blocks of which a batch is hidden whole: its weights are those of scores that are filled alike."""
    whole = WHOLE
    before = (query @ keys.mT).masked_fill(whole, first)
    score = query @ own.mT
    score = score.masked_fill(whole, first) if last is None else score + whole * last
    weights = torch.cat([before, score], -1).softmax(-1)
    return weights[..., :-1] @ values + weights[..., -1:] * own


def view_scores(query: Tensor, keys: Tensor, values: Tensor, own: Tensor, hidden: Tensor) -> Tensor:
    after = (query @ keys.mT).view(2, 3, 1, 9).masked_fill(ADDED > 0, -math.inf)
    weights = torch.cat([(query @ own.mT).view(2, 3, 1, 1), after], -1).softmax(-1)
    return weights[..., :1] @ own.view(2, 1, 1, 8) + weights[..., 1:] @ values.view(2, 1, 9, 8)


def share_batch(query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Attend with queries or keys of fewer dimensions than the scores."""
    weights = torch.cat([query @ keys.mT, query @ keys[..., :1, :].mT], -1).softmax(-1)
    return weights[..., :-1] @ values + weights[..., -1:] * values[..., :1, :]


def use_vectors(query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    weights = torch.cat([query @ keys.mT, query @ keys.mT], -1).softmax(-1)
    return weights[..., :4] @ values + weights[..., 4:] @ values


def copy_groups(query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    mixed = fused(query, keys, values).transpose(1, 2)
    return mixed.reshape(2, 3, -1)


def turn_keys(query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    return fused(query, keys.mT.contiguous().mT, values)


fused = functional.scaled_dot_product_attention
BLOCKS = (draw(2, 3, 8), draw(2, 9, 8), draw(2, 9, 8, seed=1), draw(2, 1, 8), draw(9) > 0.5)
HEADS = (draw(2, 4, 1, 8), draw(2, 4, 9, 8), draw(2, 4, 9, 8, seed=1))
GROUPS = (draw(2, 4, 1, 8), draw(2, 2, 9, 8), draw(2, 2, 9, 8, seed=1))
WHOLE = torch.tensor([[[True]], [[False]]])
KEPT, ADDED, OF_HEADS = draw(1, 9) > -0.5, draw(2, 1, 1, 9), draw(2, 4, 1, 9)
CASES: dict[str, tuple[Callable[..., Any], tuple[Tensor, ...], int | None]] = {
    "fused": (fused, HEADS, 1),
    "fused, by name": (lambda q, k, v: fused(query=q, key=k, value=v, scale=0.5), HEADS, 1),
    "with booleans": (lambda q, k, v: fused(q, k, v, KEPT), HEADS, 1),
    "with a mask that is added": (lambda q, k, v: fused(q, k, v, ADDED), HEADS, 1),
    "repeated keys": (lambda q, k, v: fused(q, repeat(k), repeat(v), ADDED), GROUPS, 1),
    "groups": (lambda q, k, v: fused(q, k, v, enable_gqa=True), GROUPS, 1),
    "groups with masks of their own": (
        lambda q, k, v: fused(q, k, v, OF_HEADS, enable_gqa=True),
        GROUPS,
        0,
    ),
    "three dimensions": (lambda q, k, v: fused(q[0], k[0], v[0]), HEADS, 1),
    "two dimensions": (lambda q, k, v: fused(q[0, 0], k[0, 0], v[0, 0]), HEADS, 0),
    "causal": (lambda q, k, v: fused(q, k, v, is_causal=True), HEADS, 0),
    "17 rows": (lambda q, k, v: fused(q.expand(2, 4, 17, 8), k, v), HEADS, 0),
    "16 rows": (lambda q, k, v: fused(q.expand(2, 4, 16, 8), k, v), HEADS, 1),
    "no key": (lambda q, k, v: fused(q, k[:, :, :0], v[:, :, :0]), HEADS, 0),
    "one batch for several": (lambda q, k, v: fused(q, k[:1], v[:1]), HEADS, 0),
    "wide numbers": (lambda q, k, v: fused(q.double(), k.double(), v.double()), HEADS, 0),
    "written out": (lambda q, k, v: ((q @ k.mT) / 3).masked_fill(~KEPT, -math.inf).softmax(-1) @ v, HEADS, 1),
    "written out, weights returned": (lambda q, k, v: ((w := (q @ k.mT).softmax(-1)) @ v, w), HEADS, 0),
    "blocks": (attend_to_blocks, BLOCKS, 1),
    "blocks, turned": (turn_blocks, BLOCKS, 1),
    "three blocks": (join_three, BLOCKS, 1),
    "blocks of other scales": (lambda *given: attend_to_blocks(*given, last=2.0), BLOCKS, 0),
    "blocks with a gap": (lambda *given: attend_to_blocks(*given, from_end=2), BLOCKS, 0),
    "blocks, written between": (write_between, BLOCKS, 0),
    "blocks, weights returned": (return_weights, BLOCKS, 0),
    "blocks that are filled alike": (lambda *given: hide_blocks(*given, first=-1e9, last=None), BLOCKS, 1),
    "blocks of which one is filled": (lambda *given: hide_blocks(*given, first=-1e9, last=-1e9), BLOCKS, 0),
    "blocks whose scores are viewed": (view_scores, BLOCKS, None),
    "a query of fewer dimensions": (share_batch, (draw(1, 1, 8), draw(1, 1, 9, 8), draw(1, 1, 9, 8)), 0),
    "a query for several batches": (share_batch, (draw(3, 2, 8), draw(2, 3, 9, 8), draw(2, 3, 9, 8)), 0),
    "keys for several batches": (share_batch, (draw(8, 3, 1, 8), draw(3, 9, 8), draw(3, 9, 8)), 0),
    "values that are vectors": (use_vectors, (draw(1, 1, 1, 8), draw(1, 1, 4, 8), draw(4)), 0),
    "answers in another layout": (copy_groups, (draw(2, 4, 3, 8), *HEADS[1:]), None),
    "keys that lie columns first": (turn_keys, HEADS, 0),
    "heads before batches": (
        lambda q, k, v: fused(q.transpose(0, 1).contiguous().transpose(0, 1), k, v).transpose(0, 1).reshape(8, 8),
        HEADS,
        None,
    ),
    "repeated keys with masks of their own": (
        lambda q, k, v: fused(q, repeat(k), repeat(v), OF_HEADS),
        GROUPS,
        1,
    ),
    "repeated keys with a mask of fewer dimensions": (lambda q, k, v: fused(q, repeat(k), repeat(v), KEPT), GROUPS, 1),
    "a sum of two": (lambda q, k, v: fused(q, k, v) + q @ k.mT @ v, HEADS, 1),
}


@pytest.mark.parametrize("name", CASES)
def test_attention_of_few_rows_is_taken_with_the_same_answers(name: str) -> None:
    call, given, expected = CASES[name]
    calls: list[torch.fx.Node] = []

    def rewrite(graph: torch.fx.Graph) -> int:
        places = attention_of_few_rows.rewrite(graph)
        calls.extend(graph.find_nodes(op="call_function", target=attention.attention_of_few_rows))
        return places

    answer, places, _ = rewrite_and_call(call, *given, rewrite=rewrite)
    torch.testing.assert_close(answer, call(*given), rtol=1e-5, atol=1e-5)
    assert places == len(calls)
    if given is GROUPS and calls:  # keys that several heads share are read once, if no mask tells these apart
        key: Any = value_of(calls[0].args[1][0])  # type: ignore[index]
        assert key.shape[1] == (4 if name.endswith("of their own") else 2)
    assert expected in (places, None), "None: either way is right"


def test_copies_for_timing_lie_as_the_tensors_do() -> None:
    gaps, repeated = draw(2, 9, 3, 8).transpose(1, 2)[:, :, 1:8], draw(2, 1, 9, 8).expand(2, 3, 9, 8)
    copies = tuning.copy_tensors((gaps, repeated))
    for copied in copies:
        for one, other in zip(copied, (gaps, repeated), strict=True):
            assert one.stride() == other.stride()
            assert torch.equal(one, other)
    assert copies[1][0].data_ptr() != gaps.data_ptr()


def test_no_dropout_is_left_out() -> None:
    call = lambda q, k, v: fused(q, k, v, dropout_p=0.5)  # noqa: E731
    _, places, names = rewrite_and_call(call, *HEADS, rewrite=attention_of_few_rows.rewrite)
    assert places == 0
    assert "scaled_dot_product_attention" in names


def test_what_needs_gradients_is_left_alone() -> None:
    query = HEADS[0].clone().requires_grad_()
    with torch.enable_grad():
        _, places, _ = rewrite_and_call(fused, query, *HEADS[1:], rewrite=attention_of_few_rows.rewrite)
    assert places == 0


def test_inductor_takes_the_operator_with_and_without_masks() -> None:
    def call(query: Tensor, keys: Tensor, values: Tensor, own: Tensor, kept: Tensor) -> Tensor:
        given = ([keys[:, 1:], own], [values[:, 1:], own], [kept[1:], None], 0.5)
        found: Tensor = torch.ops.torchwise.attention_of_few_rows(2 * query, *given)
        return found.reshape(1, -1) + 1

    torch.testing.assert_close(torch.compile(call)(*BLOCKS), call(*BLOCKS))
