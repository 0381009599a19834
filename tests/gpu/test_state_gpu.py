"""Programs that keep state, captured on a GPU: served step by step as the plain model answers, and timed.

Decoding with cache objects is the job that people compile most. One step is given its cache again and again, and a
new conversation brings a new one.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torchwise  # noqa: E402
from live_decisions import make_decision  # noqa: E402
from torchwise.environment import detect  # noqa: E402
from torchwise.plan import Plan  # noqa: E402
from torchwise.plan.workload_spec import WorkloadSpec  # noqa: E402
from torchwise.workload import Example  # noqa: E402
from torchwise.workload.identity import describe_example  # noqa: E402
from torchwise.workload.module_state import State  # noqa: E402

pytestmark = pytest.mark.gpu

CAPTURED = [Plan(capture="call"), Plan(backend="inductor", capture="call")]


@pytest.fixture(autouse=True)
def _without_gradients() -> object:
    with torch.no_grad():
        yield


def serve_plan(model: Any, plan: Plan, example: Example) -> Any:
    found = make_decision(model, plan)
    found = dataclasses.replace(
        found,
        inputs=(describe_example(example),),
        environment=detect("cuda"),
        workload=WorkloadSpec("live:test", device="cuda"),
    )
    return torchwise.apply(model, found)


class Cache:
    def __init__(self) -> None:
        self.k = torch.zeros(1, 64, 32, device="cuda")
        self.v = torch.zeros(1, 64, 32, device="cuda")
        self.at = torch.tensor([0], device="cuda")


class Step(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (torch.nn.Linear(32, 32) for _ in range(3))
        self.register_buffer("places", torch.arange(64)[None])

    def forward(self, x: torch.Tensor, cache: Cache) -> torch.Tensor:
        cache.k.index_copy_(1, cache.at, self.k(x))
        cache.v.index_copy_(1, cache.at, self.v(x))
        cache.at += 1
        seen = self.places < cache.at[:, None]
        return torch.nn.functional.scaled_dot_product_attention(self.q(x), cache.k, cache.v, attn_mask=seen)


@pytest.mark.parametrize("plan", CAPTURED, ids=str)
def test_a_decoding_step_with_a_cache_of_ones_own(plan: Plan) -> None:
    torch.manual_seed(0)
    model = Step().cuda().eval()
    plain = copy.deepcopy(model)
    fast = serve_plan(model, plan, Example((torch.randn(1, 1, 32, device="cuda"), Cache())))
    kept = []
    for conversation in range(3):
        ours, theirs = Cache(), Cache()
        for step in range(12):
            if step == 8:  # a reset
                for cache in (ours, theirs):
                    cache.k.zero_()
                    cache.at.zero_()
            x = torch.randn(1, 1, 32, device="cuda")
            kept.append((fast(x, ours), plain(x, theirs)))
            assert not _list_differences({"cache": ours}, {"cache": theirs}), (conversation, step)
    for ours, theirs in kept:  # outputs are held meanwhile
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
    assert fast.statistics.optimized == 36
    assert not fast.statistics.failures


def _list_differences(ours: dict[str, Any], theirs: dict[str, Any]) -> list[str]:
    """List the differences between two objects beyond rounding."""
    one, other = (State(things).leaves() for things in (ours, theirs))
    assert one.keys() == other.keys()
    tensors = [path for path in one if isinstance(one[path], torch.Tensor)]
    return [path for path in tensors if not torch.allclose(one[path], other[path], rtol=1e-3, atol=1e-4)]


def _language_model(name: str) -> Any:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    if name == "llama":
        sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
        return transformers.LlamaForCausalLM(transformers.LlamaConfig(vocab_size=128, **sizes)).cuda().eval()
    sizes = {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 64}
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(vocab_size=128, **sizes)).cuda().eval()


def _static_cache(model: Any, prompt: int) -> dict[str, Any]:
    from transformers import StaticCache

    cache = StaticCache(config=model.config, max_cache_len=40)
    tokens = torch.arange(3, 3 + prompt, device="cuda")[None]
    where = torch.arange(prompt, device="cuda")
    model(tokens, past_key_values=cache, cache_position=where)
    return {"past_key_values": cache}


@pytest.mark.parametrize("name", ["llama", "gpt2"])
@pytest.mark.parametrize("plan", CAPTURED, ids=str)
def test_decoding_with_a_static_cache_of_transformers(name: str, plan: Plan) -> None:
    model = _language_model(name)
    plain = copy.deepcopy(model)

    def step(token: int, at: int, given: dict[str, Any]) -> dict[str, Any]:
        ids, where = torch.tensor([[token]], device="cuda"), torch.tensor([at], device="cuda")
        return {"input_ids": ids, "cache_position": where, **given}

    fast = serve_plan(model, plan, Example((), step(7, 5, _static_cache(model, 5))))
    for prompt in (5, 9, 5):
        ours, theirs = _static_cache(plain, prompt), _static_cache(plain, prompt)
        for number in range(10):
            answer = fast(**step(7 + number, prompt + number, ours)).logits
            right = plain(**step(7 + number, prompt + number, theirs)).logits
            torch.testing.assert_close(answer, right, rtol=1e-3, atol=1e-3)
    print(name, plan, fast.statistics.snapshot())
    assert fast.statistics.optimized + sum(fast.statistics.original.values()) == 30


class Streaming(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell = torch.nn.GRUCell(32, 32)
        self.h = torch.zeros(4, 32, device="cuda")
        self.items = [torch.zeros(4, 32, device="cuda")]
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.h = self.cell(x, self.h)
        return self.h


class Counting(Streaming):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return x * self.calls


class Appending(Streaming):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.items.append(x * 2)
        self.items.pop(0)
        return self.items[-1] + x


class InPlace(Streaming):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.h.mul_(0.5).add_(x)
        return self.h * 2


@pytest.mark.parametrize("kind", [Streaming, Counting, Appending, InPlace])
@pytest.mark.parametrize("plan", CAPTURED, ids=str)
def test_state_of_a_model_is_served_right_whatever_the_plan_makes_of_it(
    kind: Callable[[], Streaming], plan: Plan
) -> None:
    torch.manual_seed(0)
    model = kind().cuda().eval()
    plain = copy.deepcopy(model)
    fast = serve_plan(model, plan, Example((torch.randn(4, 32, device="cuda"),)))
    held = []
    for number in range(10):
        x = torch.randn(4, 32, device="cuda")
        held.append((fast(x), plain(x), model.h, plain.h, model.h.clone()))
        if number == 5:
            model.h, plain.h = torch.ones(4, 32, device="cuda"), torch.ones(4, 32, device="cuda")
    for ours, theirs, *_ in held:
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
    assert model.calls == plain.calls
    if kind is Streaming:  # the state that the program kept stays the same
        assert all(torch.equal(kept, values) for *_, kept, _, values in held)


def test_tune_finds_a_plan_for_a_decoding_step(tmp_path: Any) -> None:
    model = Step().cuda().eval()
    plans = [*CAPTURED, Plan(backend="inductor")]
    study = torchwise.tune(
        model,
        (torch.randn(1, 1, 32, device="cuda"), Cache()),
        plans=plans,
        calls=10**7,
        effort="quick",
        store=str(tmp_path / "studies.db"),
        progress=False,
    )
    print([(str(t.plan), t.state.value, t.reason) for t in study.trials])
    assert "stateful" in study.record.inspection.traits
    assert "stochastic" not in study.record.inspection.traits
    assert study.decision.plan.capture == "call"


def test_an_overlap_of_inputs_is_not_answered_by_a_plan_proven_on_inputs_apart() -> None:
    def wave(u: torch.Tensor, older: torch.Tensor) -> torch.Tensor:
        older.mul_(-1).add_(2 * u)
        return older.square().mean() + u.square().mean()

    apart = torch.rand(32, 32, device="cuda"), torch.rand(32, 32, device="cuda")
    for plan in CAPTURED:
        call = serve_plan(wave, plan, Example(apart))
        call(*(given.clone() for given in apart))
        for _ in range(4):
            whole = torch.rand(48, 32, device="cuda")
            ours, theirs = whole.clone(), whole.clone()
            torch.testing.assert_close(call(ours[:32], ours[16:]), wave(theirs[:32], theirs[16:]))
            torch.testing.assert_close(ours, theirs)
