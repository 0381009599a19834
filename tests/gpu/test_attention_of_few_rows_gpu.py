"""Attention of few rows by a kernel of our own on a GPU: its answers, its plan, and its choice of a form."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.nn import functional  # noqa: E402

from torchwise.compile import compile_plan  # noqa: E402
from torchwise.compile.few_rows import attention, tuning  # noqa: E402
from torchwise.compile.few_rows.attention import Form, Work, list_forms  # noqa: E402
from torchwise.plan import Plan  # noqa: E402
from torchwise.workload import Example  # noqa: E402

pytestmark = pytest.mark.gpu
BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32


@pytest.fixture(autouse=True)
def use_empty_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(tuning, "_chosen", {})
    monkeypatch.setattr(tuning, "_tuned", itertools.count(1))


def draw(*sizes: int, dtype: Any = F32, seed: int = 0) -> Any:
    generator = torch.Generator(device="cuda").manual_seed(seed)
    return torch.randn(*sizes, device="cuda", generator=generator).to(dtype)


def compute_exactly(query: Any, keys: list[Any], values: list[Any], masks: list[Any], scale: float) -> Any:
    scores = []
    for key, mask in zip(keys, masks, strict=True):
        score = query.double() @ key.double().mT * scale
        if mask is not None:
            score = score.masked_fill(~mask, -math.inf) if mask.dtype is torch.bool else score + mask.double()
        scores.append(score)
    return torch.cat(scores, -1).softmax(-1) @ torch.cat(values, -2).double()


@pytest.mark.parametrize(
    ("batch", "rows", "lengths", "features", "outputs", "kind", "dtype"),
    [
        ((8,), 4, (512, 1), 64, 64, "keep", BF16),
        ((2, 8), 1, (1500,), 128, 128, "add", BF16),
        ((1, 4), 16, (77, 3), 80, 48, "", F16),
        ((6,), 5, (300,), 64, 96, "keep", F32),
        ((1,), 1, (1,), 16, 8, "", F32),
        ((3,), 2, (257, 1, 64), 256, 256, "keep", BF16),
    ],
)
def test_all_forms_have_the_answer(
    batch: tuple[int, ...],
    rows: int,
    lengths: tuple[int, ...],
    features: int,
    outputs: int,
    kind: str,
    dtype: Any,
) -> None:
    query = draw(*batch, rows, features, dtype=dtype)
    keys = [draw(*batch, length, features, dtype=dtype, seed=length) for length in lengths]
    values = [draw(*batch, length, outputs, dtype=dtype, seed=length + 1) for length in lengths]
    masks = [None] * len(lengths)
    if kind == "keep":
        masks[0] = draw(rows, lengths[0]) > -0.5
    elif kind == "add":
        masks[0] = draw(*batch[:1], *[1] * (len(batch) - 1), 1, lengths[0], dtype=dtype)
    scale = features**-0.5
    expected = compute_exactly(query, keys, values, masks, scale)
    kinds = tuple(attention._name_kind(mask) for mask in masks)
    work = Work(math.prod(batch), rows, features, outputs, lengths, kinds)
    tolerance = {"rtol": 1e-5, "atol": 1e-5} if dtype is F32 else {"rtol": 2e-2, "atol": 1e-2}
    for form in list_forms(work):
        found = attention._launch(form, work, query, keys, values, masks, scale)
        torch.testing.assert_close(found.double(), expected, **tolerance, msg=lambda text, form=form: f"{form}: {text}")


class Step(torch.nn.Module):
    """A step of decoding over a cache, with two heads for each key, or several blocks of keys."""

    def __init__(self, has_blocks: bool) -> None:
        super().__init__()
        self.has_blocks = has_blocks
        self.q, self.k, self.v, self.o = (
            torch.nn.Linear(1024, size, bias=False, device="cuda", dtype=BF16) for size in (1024, 512, 512, 1024)
        )

    def forward(self, x: Any, keys: Any, values: Any, seen: Any) -> Any:
        query, key, value = self.q(x).view(1, 16, 1, 64), self.k(x).view(1, 8, 1, 64), self.v(x).view(1, 8, 1, 64)
        if not self.has_blocks:
            repeated = [one[:, :, None].expand(1, 8, 2, 300, 64).reshape(1, 16, 300, 64) for one in (keys, values)]
            mixed = functional.scaled_dot_product_attention(query, *repeated, attn_mask=seen[None, None])
        else:
            query = query.view(1, 8, 2, 64) / 8
            before = (query @ keys.mT).masked_fill(~seen, -math.inf)
            weights = torch.cat([before, query @ key.mT], -1).softmax(-1)
            mixed = weights[..., :-1] @ values + weights[..., -1:] * value
        return x + self.o(mixed.reshape(1, 1, 1024)), key, value


@pytest.mark.parametrize("capture", ["none", "call"])
@pytest.mark.parametrize("has_blocks", [True, False])
def test_a_plan_attends_by_the_kernel(has_blocks: bool, capture: str) -> None:
    torch.manual_seed(0)
    model, x = Step(has_blocks), draw(1, 1, 1024, dtype=BF16)
    keys, values = (draw(1, 8, 300, 64, dtype=BF16, seed=seed) for seed in (1, 2))
    seen = (torch.arange(300, device="cuda") < 250)[None]
    plan = Plan(backend="inductor", transforms=("products_of_few_rows",), capture=capture)
    given = (x, keys, values, seen)
    with torch.no_grad():
        compiled = compile_plan(model, plan, Example(given), device="cuda", mode="inference")
        for _ in range(3):
            found = compiled.call(*given)
        exact = Step(has_blocks).double()
        exact.load_state_dict({name: one.double() for name, one in model.state_dict().items()})
        expected = exact(x.double(), keys.double(), values.double(), seen)
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one.double(), other, rtol=2e-2, atol=2e-2)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiled:
            compiled.call(*given)
            torch.cuda.synchronize()
    names = [event.key for event in profiled.key_averages()]
    (chosen,) = [form for (_, key), form in tuning._chosen.items() if key[0] == "attention"]
    assert any(name.startswith("attend") for name in names) is (chosen is not None), names
    compiled.close()


def test_the_fastest_form_is_chosen_once_and_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    query, key = draw(8, 4, 64, dtype=BF16), draw(8, 4096, 64, dtype=BF16)
    tried: list[Form] = []
    launch = attention._launch
    monkeypatch.setattr(attention, "_launch", lambda form, *given: tried.append(form) or launch(form, *given))
    attention.attend(query, [key], [key], [None], 0.125)
    (chosen,) = tuning._chosen.values()
    assert len(set(tried)) >= 2
    assert chosen is not None, "PyTorch has no such kernel for a length of 4096"
    tuning._chosen.clear()
    tried.clear()
    found = attention.attend(query, [key], [key], [None], 0.125)
    assert [*tuning._chosen.values()] == [chosen], "a later process reads it from a file"
    assert set(tried) <= {chosen}
    expected = compute_exactly(query, [key], [key], [None], 0.125)
    torch.testing.assert_close(found.double(), expected, rtol=2e-2, atol=1e-2)


def test_a_captured_call_answers_for_new_keys() -> None:
    query, key = draw(8, 4, 64, dtype=BF16), draw(8, 700, 64, dtype=BF16)
    work = Work(8, 4, 64, 64, (700,), ("",))
    form = list_forms(work)[0]
    attention._launch(form, work, query, [key], [key], [None], 0.125)  # compiles it
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = attention._launch(form, work, query, [key], [key], [None], 0.125)
    for seed in (1, 2):
        key.copy_(draw(8, 700, 64, dtype=BF16, seed=seed))
        graph.replay()
        expected = compute_exactly(query, [key], [key], [None], 0.125)
        torch.testing.assert_close(found.double(), expected, rtol=2e-2, atol=1e-2)
