"""One decoding step of a language model with the library's own cache objects, verified and served step by step."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import torchwise
import torchwise.trial as trial
from live_decisions import make_decision
from torchwise.compile import compile_plan
from torchwise.errors import UnsupportedError
from torchwise.plan import Plan
from torchwise.records import Failure, Outcome, codec
from torchwise.trial import Job, Limits, worker
from torchwise.trial.plain_call import run_plainly
from torchwise.verify import Subject, is_stochastic, verify
from torchwise.workload import Example, Workload
from torchwise.workload.identity import describe_example
from torchwise.workload.module_state import from_one_state

transformers = pytest.importorskip("transformers")

INDUCTOR, DYNAMIC = Plan(backend="inductor"), Plan(backend="inductor", shapes="dynamic")


@pytest.fixture(autouse=True)
def _without_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


def llama() -> Any:
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(vocab_size=64, **sizes))


def gpt2() -> Any:
    sizes = {"n_embd": 32, "n_layer": 1, "n_head": 2, "n_positions": 64}
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(vocab_size=64, bos_token_id=1, eos_token_id=2, **sizes))


def t5() -> Any:
    sizes = {"d_model": 32, "d_kv": 16, "d_ff": 64, "num_layers": 1, "num_heads": 2, "dropout_rate": 0.0}
    return transformers.T5ForConditionalGeneration(transformers.T5Config(vocab_size=64, **sizes))


def prompt_model(model: Any, kind: str, length: int) -> dict[str, Any]:
    """Return the inputs of every step of a conversation, above all its cache, after a prompt of some length."""
    is_encoder_decoder = model.config.is_encoder_decoder
    config = model.config.get_text_config(decoder=True)
    static = kind == "static"
    cache = (
        transformers.StaticCache(config=config, max_cache_len=24)
        if static
        else transformers.DynamicCache(config=config)
    )
    tokens = torch.arange(3, 3 + length)[None]
    if not is_encoder_decoder:
        model(tokens, past_key_values=cache)
        return {"past_key_values": cache}
    cache = transformers.EncoderDecoderCache(cache, transformers.DynamicCache(config=config))
    given = {"encoder_outputs": model.encoder(tokens), "past_key_values": cache}
    model(decoder_input_ids=tokens, **given)
    return given


def step(model: Any, token: int, given: dict[str, Any]) -> dict[str, Any]:
    name = "decoder_input_ids" if model.config.is_encoder_decoder else "input_ids"
    return {name: torch.tensor([[token]]), **given}


@pytest.fixture
def model(request: pytest.FixtureRequest) -> Any:
    torch.manual_seed(0)
    made: Callable[[], Any] = request.param
    return made().eval()


@pytest.mark.parametrize(
    ("model", "kind"),
    [
        (gpt2, "static"),
        pytest.param(gpt2, "dynamic", marks=pytest.mark.nightly),
        *(pytest.param(it, kind, marks=pytest.mark.nightly) for it in (t5, llama) for kind in ("static", "dynamic")),
    ],
    indirect=["model"],
)
@pytest.mark.usefixtures("dynamo_afresh", "plainly_compiled")
def test_a_step_is_proven_and_served(model: Any, kind: str) -> None:
    example = Example((), step(model, 7, prompt_model(model, kind, 5)))
    workload = Workload(model, (example,))
    once = run_plainly(workload, "inference")
    assert any("past_key_values" in path for path in once.moves)
    assert once.grows == (kind == "dynamic")
    again = example.clone()
    assert is_stochastic(from_one_state(model, model, (), dict(again.kwargs)), model) == (False, False)
    plan = DYNAMIC if kind == "dynamic" else INDUCTOR
    call = compile_plan(model, plan, example, device="cpu", mode="inference").call
    verdict = verify(Subject(workload, call, model, stateful=True), extra_draws=0)
    assert verdict.outcome is Outcome.PASS, verdict.reason
    assert any("the float64 reference" in check.detail for check in verdict.checks)
    plain = copy.deepcopy(model)
    fast = torchwise.apply(model, dataclasses.replace(make_decision(model, plan), inputs=(describe_example(example),)))
    same_lengths = kind == "static" and model.config.is_encoder_decoder  # the encoder's output is an input, too
    for length in (5, 5 if same_lengths else 7):  # a new prompt, with a cache of its own
        ours, theirs = prompt_model(plain, kind, length), prompt_model(plain, kind, length)
        for token in range(5):
            answer = fast(**step(model, 7 + token, ours)).logits
            torch.testing.assert_close(answer, plain(**step(model, 7 + token, theirs)).logits, rtol=1e-4, atol=1e-4)
    assert fast.statistics.optimized == 10
    if kind == "static" and not model.config.is_encoder_decoder:  # a reset
        ours["past_key_values"].reset()
        theirs["past_key_values"].reset()
        answer = fast(**step(model, 9, ours)).logits
        torch.testing.assert_close(answer, plain(**step(model, 9, theirs)).logits, rtol=1e-4, atol=1e-4)


class LauncherHere:
    """Runs each job in this process, where the compiler's stand-in is."""

    def run(self, job: Job, _limits: Limits, _on_stage: Callable[[str], None]) -> str | Failure:
        stage = ["load"]
        try:
            return codec.to_json(worker._run(job, lambda name: stage.__setitem__(0, name)))
        except UnsupportedError as error:
            return codec.from_json(worker._report(error, stage[0])[1], Failure)


@pytest.mark.usefixtures("brief_searches", "dynamo_afresh", "plainly_compiled")
def test_tune_finds_a_plan_for_a_step_with_a_cache_that_grows(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial, "ProcessLauncher", LauncherHere)
    torch.manual_seed(0)
    model = llama().eval()
    given = step(model, 7, prompt_model(model, "dynamic", 5))
    length = given["past_key_values"].get_seq_length()
    asked: dict[str, Any] = {"calls": 10**9, "effort": "quick", "plans": [INDUCTOR, DYNAMIC], "progress": False}
    study = torchwise.tune(model, (), given, store=str(tmp_path / "studies.db"), **asked)
    static, dynamic = study.trials
    assert static.failure is not None
    assert "every call compiles again, as each gives another shape to" in static.failure.message
    assert "['past_key_values'].layers[0].keys" in static.failure.message
    assert "shapes='dynamic'" in static.failure.message
    assert dynamic.is_verified, dynamic.reason
    assert given["past_key_values"].get_seq_length() == length, "the program's own cache is left as it was"
