"""Attention written out in many ways becomes fused attention, in graphs of functions, and other code stays as it is."""

from __future__ import annotations

import functools
import math
import pickle
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import dynamo_graphs
from torchwise.compile import compile_plan
from torchwise.compile.backends import inductor
from torchwise.compile.backends.graphs import CheckedOnce
from torchwise.compile.transforms import function_graphs
from torchwise.compile.transforms.function_graphs import OPTION, fused_attention, graph_pass, grouped_keys
from torchwise.compile.transforms.function_graphs.record import record
from torchwise.errors import NoEffectError, PlanError, UnsupportedError
from torchwise.plan import Numerics, Plan, PlanSpace
from torchwise.plan.trait import Trait
from torchwise.records import Outcome
from torchwise.trial.detected_traits import detect_traits
from torchwise.trial.error_origin import Instruments
from torchwise.verify import Subject, verify
from torchwise.workload import Example, Workload

SPELLINGS: dict[str, Callable[..., Tensor]] = runpy.run_path(
    str(Path(__file__).parents[2] / "benchmarks" / "attention_spellings.py")
)["SPELLINGS"]
PLAN = Plan(backend="inductor", transforms=("fused_attention",))


def draw(*sizes: int, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(sizes or (2, 4, 64, 32), generator=generator).to(dtype) for _ in range(3)]


rewrite_and_call = functools.partial(dynamo_graphs.rewrite_and_call, rewrite=fused_attention.rewrite)


@pytest.mark.parametrize(
    ("name", "dtype"),
    [*((name, torch.float32) for name in SPELLINGS), ("float_scores", torch.bfloat16), ("filled", torch.bfloat16)],
)
def test_every_spelling_is_fused_and_answers_alike(name: str, dtype: torch.dtype) -> None:
    call, inputs = SPELLINGS[name], draw(dtype=dtype)
    answer, places, names = rewrite_and_call(call, *inputs)
    assert places == 1
    assert names.count("scaled_dot_product_attention") == 1
    assert not {"softmax", "matmul", "einsum", "baddbmm"} & set(names), "nothing is computed twice"
    exact = call(*(one.double() for one in inputs))
    error = (call(*inputs).double() - exact).abs().max()
    assert answer.dtype is dtype
    assert answer.shape == exact.shape
    assert (answer.double() - exact).abs().max() <= 2 * error + 1e-6
    assert fused_attention.rewrite(record(lambda: call(*inputs))) == 1, "the trait is found in eager"


def keep_weights(q: Tensor, k: Tensor, v: Tensor) -> Any:
    weights = (q @ k.mT).softmax(-1)
    return weights @ v, weights


def keep_scores(q: Tensor, k: Tensor, v: Tensor) -> Any:
    scores = q @ k.mT
    return scores.softmax(-1) @ v, scores


def normalize_columns(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.mT).softmax(-2) @ v


def drop_weights(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return functional.dropout((q @ k.mT).softmax(-1), 1e-9, training=True) @ v


def fill_with_a_score(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.mT).masked_fill(torch.ones(64, 64, dtype=torch.bool).triu(1), -3.0).softmax(-1) @ v


def scale_the_mask(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return ((q @ k.mT + torch.linspace(-1, 1, 64)) * 2).softmax(-1) @ v


def write_to_keys(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    k = k * 1
    scores = q @ k.mT
    k.mul_(2)
    return scores.softmax(-1) @ v + k.sum()


def write_to_values(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    v = v * 1
    weights = (q @ k.mT).softmax(-1)
    v[:, :, 0] = 1.0
    return weights @ v


def fill_scores_that_are_read(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = q @ k.mT
    scores.mul_(2)
    return scores.softmax(-1) @ v


def repeat_scores_for_masks(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    masks = torch.linspace(-1, 1, 64).expand(3, 1, 1, 1, 64)
    return (q @ k.mT + masks).softmax(-1) @ v


def add_wider_mask(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.mT + torch.linspace(-1, 1, 64, dtype=torch.float64)).softmax(-1).float() @ v


def sum_over_rows(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.einsum("bhij,bhid->bhjd", (q @ k.mT).softmax(-1), v)


def share_keys_by_broadcast(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k[:, :1].mT).softmax(-1) @ v[:, :1]


def spread_over_values(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q[:, :1] @ k[:, :1].mT).softmax(-1) @ v[:1, :2]


def name_all_inputs(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = torch.matmul(input=q, other=k.mT)
    return torch.matmul(input=torch.softmax(input=torch.mul(input=scores, other=0.5), dim=-1), other=v)


def multiply_by_a_tensor(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.mT * v.sum()).softmax(-1) @ v


def softmax_by_another_library(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.masked.softmax(q @ k.mT, -1, mask=torch.ones(64, 64, dtype=torch.bool).tril()) @ v


def multiply_by_a_vector(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q[0, 0] @ k[0, 0].mT).softmax(-1) @ v[0, 0, :, 0]


def write_to_values_by_relu(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    k = k * 1
    scores = q @ k.mT
    return scores.softmax(-1) @ functional.relu(k, inplace=True)


def write_to_values_by_place(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    k = k * 1
    scores = q @ k.mT
    return scores.softmax(-1) @ functional.relu(k, True)


def write_to_the_mask(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    mask = torch.ones(64, 64, dtype=torch.bool).triu(1)
    weights = (q @ k.mT).masked_fill(mask, -math.inf).softmax(-1)
    mask |= torch.eye(64, dtype=torch.bool)
    return weights @ v + mask.sum()


def write_the_answer(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    answer = torch.zeros_like(v)
    torch.matmul((q @ k.mT).softmax(-1), v, out=answer)
    return answer + 0


def write_to_the_bias(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    bias = torch.zeros(2, 4, 64, 64)
    bias += q @ k.mT
    return bias.softmax(-1) @ v + bias.sum()


@pytest.mark.parametrize(
    "call",
    [
        keep_weights, keep_scores, normalize_columns, drop_weights, fill_with_a_score, scale_the_mask, write_to_keys,
        write_to_values, fill_scores_that_are_read, repeat_scores_for_masks, add_wider_mask, sum_over_rows,
        share_keys_by_broadcast, multiply_by_a_tensor, spread_over_values, name_all_inputs, softmax_by_another_library,
        multiply_by_a_vector, write_to_values_by_relu, write_to_values_by_place, write_to_the_mask, write_the_answer,
        write_to_the_bias,
    ],
)  # fmt: skip
def test_what_fused_attention_does_not_compute_stays(call: Callable[..., Any]) -> None:
    inputs = draw()
    torch.manual_seed(1)
    answer, places, _ = rewrite_and_call(call, *inputs)
    torch.manual_seed(1)
    assert places == 0
    torch.testing.assert_close(answer, call(*draw()))
    # A recorded tensor is the same before and after it is written to. And recording looks into torch.masked.
    if call not in (fill_scores_that_are_read, softmax_by_another_library):
        assert fused_attention.rewrite(record(lambda: call(*inputs))) == 0


def test_sizes_that_vary_are_no_obstacle() -> None:
    call, inputs = SPELLINGS["filled"], draw()
    for one in inputs:
        torch._dynamo.mark_dynamic(one, 2)
    answer, places, _ = rewrite_and_call(call, *inputs)
    assert places == 1
    torch.testing.assert_close(answer, call(*inputs))


def test_gradients_are_those_of_the_written_form() -> None:
    found = []
    for fused in (True, False):
        inputs = [one.requires_grad_() for one in draw(1, 2, 8, 4)]
        call = SPELLINGS["divided"]
        answer = rewrite_and_call(call, *inputs)[0] if fused else call(*inputs)
        found.append(torch.autograd.grad(answer.square().sum(), inputs))
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_autocast_keeps_its_dtype() -> None:
    with torch.autocast("cpu", torch.bfloat16):
        inputs, call = draw(dtype=torch.bfloat16), SPELLINGS["scaled_queries"]
        answer, places, _ = rewrite_and_call(call, *inputs)
        assert places == 1
        assert answer.dtype is call(*inputs).dtype
        single = draw()  # products of these are rounded by autocast
        answer, places, _ = rewrite_and_call(call, *single)
        assert places == 0
        torch.testing.assert_close(answer, call(*single))


@pytest.mark.parametrize(("training", "dropout", "expected"), [(False, 0.5, 1), (True, 0.0, 1), (True, 0.5, 0)])
def test_multihead_attention_gives_no_weights_that_nobody_reads(training: bool, dropout: float, expected: int) -> None:
    model = nn.MultiheadAttention(8, 2, dropout=dropout, batch_first=True).train(training)
    x = draw(2, 5, 8)[0]
    torch.manual_seed(0)
    answer, places, _ = rewrite_and_call(lambda x: model(x, x, x)[0], x)
    assert places == expected
    assert fused_attention.rewrite(record(lambda: model(x, x, x)[0])) == expected
    torch.manual_seed(0)
    torch.testing.assert_close(answer, model(x, x, x)[0])
    _, places, _ = rewrite_and_call(lambda x: model(x, x, x), x)
    assert places == 0, "the weights are read"


def hide_all(q: Tensor, k: Tensor, v: Tensor, fill: float = -math.inf) -> Tensor:
    return (q @ k.mT).masked_fill(torch.ones(64, 64, dtype=torch.bool), fill).softmax(-1) @ v


@pytest.mark.parametrize(
    ("fill", "dtype", "expected"),
    [
        (-1e9, torch.float32, 1), (torch.finfo(torch.float32).min, torch.float32, 1), (-1e4, torch.float32, 0),
        (-1e8, torch.float64, 1), (-1e9, torch.bfloat16, 1), (-6e4, torch.float16, 0),
    ],
)  # fmt: skip
def test_rows_that_a_mask_hides_whole_have_equal_weights(fill: float, dtype: torch.dtype, expected: int) -> None:
    inputs = [one * 5 for one in draw(dtype=dtype)]  # with scores of hundreds
    answer, places, _ = rewrite_and_call(lambda *inputs: hide_all(*inputs, fill=fill), *inputs)
    assert places == expected
    rounding = {"atol": 0.05, "rtol": 0.02} if dtype is torch.bfloat16 else {}
    torch.testing.assert_close(answer, hide_all(*inputs, fill=fill), **rounding)


@pytest.mark.parametrize(("fill", "expected"), [(-1e9, 0), (torch.finfo(torch.float32).min, 1)])
def test_a_number_that_hides_is_kept_beside_another_mask(fill: float, expected: int) -> None:
    def call(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        bias = torch.zeros(64).masked_fill(torch.arange(64) > 9, -1e30)
        return (q @ k.mT + bias).masked_fill(torch.arange(64) < 20, fill).softmax(-1) @ v

    answer, places, _ = rewrite_and_call(call, *draw())
    assert places == expected
    torch.testing.assert_close(answer, call(*draw()))


def test_half_precision_whose_scores_are_float_keeps_its_fill() -> None:
    def call(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        hidden = torch.ones(64, 64, dtype=torch.bool)
        return (q @ k.mT).float().masked_fill(hidden, -1e9).softmax(-1).to(v.dtype) @ v

    assert fused_attention.rewrite(record(lambda: call(*draw(dtype=torch.float16)))) == 0


def test_long_sums_are_read_once() -> None:
    def call(x: Tensor, mask: Tensor, v: Tensor) -> Tensor:
        for _ in range(60):  # 2 to the power of 60 paths
            x = x + x * 0.1
        return (x + mask).softmax(-1) @ v

    assert fused_attention.rewrite(record(lambda: call(*draw(8, 8)))) == 0


def test_weights_that_only_dead_code_reads_are_not_made() -> None:
    model, x = nn.MultiheadAttention(8, 2, batch_first=True).eval(), draw(2, 5, 8)[0]

    def call(x: Tensor) -> Tensor:
        answer, weights = model(x, x, x)
        weights.sum(-1)
        return answer

    answer, places, names = rewrite_and_call(call, x)
    assert places == 1
    assert "sum" not in names
    torch.testing.assert_close(answer, call(x))


def test_a_mask_counts_more_than_the_word_that_it_is_causal() -> None:
    model, (x, *_), (y, *_) = nn.MultiheadAttention(8, 2, batch_first=True).eval(), draw(2, 3, 8), draw(2, 5, 8)
    mask = torch.ones(3, 5, dtype=torch.bool).triu(3)

    def call(x: Tensor, y: Tensor) -> Tensor:
        return model(x, y, y, attn_mask=mask, is_causal=True)[0]

    answer, places, _ = rewrite_and_call(call, x, y)
    assert places == 1
    torch.testing.assert_close(answer, call(x, y))


def test_rows_without_an_answer_are_seen_by_verification() -> None:
    def fused(q: Tensor, k: Tensor, v: Tensor) -> Any:
        answer, places, _ = rewrite_and_call(hide_all, q, k, v)
        assert places == 1
        return answer

    workload = Workload(hide_all, (Example(tuple(draw())),))
    outcome = verify(Subject(workload, fused, hide_all), extra_draws=0).outcome
    assert hide_all(*draw()).isnan().all()
    assert (outcome is Outcome.PASS) is bool(fused(*draw()).isnan().all())


# ---- shared keys


def repeat(x: Tensor, times: int = 4) -> Tensor:
    return x[:, :, None, :, :].expand(*x.shape[:2], times, *x.shape[2:]).reshape(2, 8, -1, 16)


MASKS = {"none": None, "keys": torch.linspace(-1, 1, 7).expand(2, 1, 1, 7), "rows": torch.eye(5, 7)[None, None]}


@pytest.mark.parametrize(
    ("spelling", "mask"),
    [
        ("expand", "none"),
        ("expand", "rows"),
        ("repeat_interleave", "keys"),
        ("written out", "none"),
        ("written out", "rows"),
    ],
)
def test_keys_are_shared_in_every_spelling(spelling: str, mask: str) -> None:
    def call(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        k, v = (repeat(x) if spelling != "repeat_interleave" else x.repeat_interleave(4, dim=1) for x in (k, v))
        given = MASKS[mask]
        if spelling != "written out":
            return functional.scaled_dot_product_attention(q, k, v, attn_mask=given, scale=0.3)
        scores = q @ k.mT * 0.3
        return (scores if given is None else scores + given).softmax(-1) @ v

    q, k, v = draw(2, 8, 5, 16)[0], *draw(2, 2, 7, 16)[:2]
    answer, places, names = rewrite_and_call(call, q, k, v, rewrite=grouped_keys.has_repeated_keys)
    assert places == 1
    assert not {"expand", "repeat_interleave", "reshape"} & set(names)
    torch.testing.assert_close(answer, call(q, k, v))
    assert grouped_keys.has_repeated_keys(record(lambda: call(q, k, v)))


@pytest.mark.parametrize("causal", [True, False])
def test_a_causal_mask_and_dropout_leave_rows_where_they_are(causal: bool) -> None:
    def call(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        dropout = 0.0 if causal else 1e-9
        return functional.scaled_dot_product_attention(q, repeat(k), repeat(v), None, dropout, causal)

    inputs = draw(2, 8, 5, 16)[0], *draw(2, 2, 5, 16)[:2]
    answer, places, names = rewrite_and_call(call, *inputs, rewrite=grouped_keys.rewrite)
    assert places == 1
    assert "unflatten" not in names
    torch.testing.assert_close(answer, call(*inputs))


@pytest.mark.parametrize(
    "change",
    [lambda x: x.repeat(1, 4, 1, 1), lambda x: x[:, None].expand(2, 4, 2, 7, 16).reshape(2, 8, 7, 16), lambda x: x * 1],
)
def test_keys_that_are_repeated_in_another_order_stay(change: Callable[[Tensor], Tensor]) -> None:
    def call(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return functional.scaled_dot_product_attention(q, change(k), repeat(v))

    k = draw(2, 2, 7, 16)[0]
    keys = k if change(k).shape[1] == 8 else k.repeat(1, 4, 1, 1)
    inputs = draw(2, 8, 5, 16)[0], keys, draw(2, 2, 7, 16)[1]
    answer, places, _ = rewrite_and_call(call, *inputs, rewrite=grouped_keys.rewrite)
    assert places == 0
    torch.testing.assert_close(answer, call(*inputs))


def write_after_repeating(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    k = k * 1
    repeated = k.repeat_interleave(4, 1)
    k.mul_(2)
    return functional.scaled_dot_product_attention(q, repeated, v.repeat_interleave(4, 1)) + k.sum()


def test_keys_that_are_written_to_after_they_were_repeated_stay() -> None:
    inputs = draw(2, 8, 5, 16)[0], *draw(2, 2, 7, 16)[:2]
    answer, places, _ = rewrite_and_call(write_after_repeating, *inputs, rewrite=grouped_keys.rewrite)
    assert places == 0
    torch.testing.assert_close(answer, write_after_repeating(*inputs))


def test_keys_are_shared_that_are_given_by_name() -> None:
    def call(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        k = torch.repeat_interleave(input=k, repeats=4, dim=1)
        v = torch.reshape(input=torch.unsqueeze(input=v, dim=2).expand(2, 2, 4, 7, 16), shape=(2, 8, 7, 16))
        return functional.scaled_dot_product_attention(q, k, v)

    inputs = draw(2, 8, 5, 16)[0], *draw(2, 2, 7, 16)[:2]
    answer, places, _ = rewrite_and_call(call, *inputs, rewrite=grouped_keys.rewrite)
    assert places == 1
    torch.testing.assert_close(answer, call(*inputs))


# ---- as a choice


class Attending(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.all = nn.Linear(8, 24)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.all(x).chunk(3, dim=-1)
        return (q @ k.mT).softmax(-1) @ v


def compile_call(call: Any, plan: Plan, *args: Any) -> Any:
    torch.compiler.reset()
    return compile_plan(call, plan, Example(args), device="cpu", mode="inference").call


@torch._inductor.config.patch(force_disable_caches=True)  # a graph whose code is in a cache is not rewritten again
@torch.no_grad()
def test_inductor_runs_the_rewrite_and_follows_weights() -> None:
    model, x = Attending().eval(), draw(2, 16, 8)[0]
    changed = graph_pass(("fused_attention",)).changed["fused_attention"]
    call = compile_call(model, PLAN, x)
    torch.testing.assert_close(call(x), model(x))
    model.all.weight.mul_(0.5)
    torch.testing.assert_close(call(x), model(x))
    assert graph_pass(("fused_attention",)).changed["fused_attention"] == changed + 1
    with pytest.raises(NoEffectError, match="changes nothing here: no graph has a place for it") as refused:
        compile_call(nn.Linear(8, 8), PLAN, x)(x)
    assert refused.value.part == ("transforms", "fused_attention")


def test_rewrites_of_a_plan_are_one_pass_with_a_key_of_its_own() -> None:
    both = Plan(backend="inductor", transforms=("fused_attention", "grouped_keys"))
    one, two = (inductor._options(plan)[OPTION] for plan in (PLAN, both))
    assert inductor._options(PLAN)[OPTION] is one
    assert one.uuid() != two.uuid()
    own = torch._inductor.config.patch({OPTION: lambda _: None})
    with own, pytest.raises(UnsupportedError, match="Inductor takes one pre_grad_custom_pass"):
        inductor._options(PLAN)


def test_passes_are_pickled_by_their_names_and_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = graph_pass(("fused_attention",)), graph_pass(("fused_attention", "grouped_keys"))
    written = pickle.dumps(one)  # PyTorch 2.11 compares these bytes to find compiled code
    assert pickle.loads(written) is one
    assert pickle.dumps(two) != written
    one(record(lambda: SPELLINGS["divided"](*draw())))  # its counts are no part of the key
    assert pickle.dumps(one) == written
    monkeypatch.setattr(function_graphs, "__version__", "of other code")
    assert pickle.dumps(one) != written


def test_a_pass_is_asked_until_it_was_applied() -> None:
    passed = graph_pass(("fused_attention",))
    once, plain = CheckedOnce(passed), record(lambda: torch.ones(2).sin())
    with pytest.raises(NoEffectError), once.assert_applied():
        passed(plain)
    with once.assert_applied():
        passed(record(lambda: SPELLINGS["divided"](*draw())))
    with once.assert_applied():
        passed(plain)
    with CheckedOnce(passed).assert_applied():
        passed(plain)
        torch._dynamo.utils.counters["aot_autograd"]["autograd_cache_hit"] += 1


def test_the_source_of_every_kind_of_rewrite_is_found() -> None:
    found = function_graphs._find_source
    assert found(functools.partial(functools.partial(draw))) == __file__
    assert found(Attending()) == __file__
    assert found(len) is None


def test_a_plan_that_cannot_have_it_is_refused() -> None:
    with pytest.raises(PlanError, match="which rewrites functions, but scope is 'rolled', of operators"):
        Plan(backend="inductor", scope="rolled", transforms=("fused_attention",))
    with pytest.raises(PlanError, match="eager compiles nothing"):
        Plan(transforms=("fused_attention",))


def test_only_models_that_write_attention_out_have_the_choice() -> None:
    q, k, v = draw(2, 8, 5, 16)[0], *draw(2, 2, 5, 16)[:2]

    def traits(call: Callable[[], Any]) -> dict[Trait, bool]:
        return detect_traits(call, call, Instruments(lambda: None))

    written = traits(lambda: (q @ repeat(k).mT).softmax(-1) @ repeat(v))
    fused = traits(lambda: functional.scaled_dot_product_attention(q, repeat(k), repeat(v)))
    assert written[Trait.WRITTEN_ATTENTION]
    assert written[Trait.REPEATED_KEYS]
    assert not fused[Trait.WRITTEN_ATTENTION]
    assert fused[Trait.REPEATED_KEYS]
    assert not any(traits(lambda: q @ q.mT).values())
    space = PlanSpace("cpu", "inference", frozenset({Trait.WRITTEN_ATTENTION}), Numerics.SAME_PRECISION, "quick")
    assert PLAN in [plan for plan, _ in space.neighbours(Plan())]
