"""Pipelines of other libraries are tuned by one line each, answer sizes never seen, and are given back as they were."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from test_capture_objects import capture_with_objects
from test_program import THREADS, Searches, decide_at_once

import torchwise as tw
from torchwise.compile.backends import inductor
from torchwise.runtime.bucketing.bucketed import DYNAMIC


@pytest.fixture
def searches(monkeypatch: pytest.MonkeyPatch) -> Searches:
    monkeypatch.setattr(inductor, "compile", lambda call, *_args, **_options: call)  # tracing such models takes long
    return decide_at_once(monkeypatch)


def count_calls(fast: Any) -> dict[str, tuple[int, dict[str, int]]]:
    """Return for each module with a plan the calls of the plan, and those of the original by reason."""
    found = {one.record.name: one.component.statistics for one in fast.report.modules if one.component}
    return {name: (each.optimized, {str(k): n for k, n in each.original.items()}) for name, each in found.items()}


def describe_modules(modules: list[torch.nn.Module]) -> list[Any]:
    """Describe all that a plan could have left behind: classes, attributes by identity, and the bits of the state."""
    parts = [part for module in modules for part in module.modules()]
    attributes = [(type(part), {name: id(value) for name, value in vars(part).items()}) for part in parts]
    bits = [{name: t.numpy().tobytes() for name, t in module.state_dict().items()} for module in modules]
    return [attributes, bits]


def check_pipeline(
    pipe: Any, modules: list[torch.nn.Module], call: Callable[[Any, int], torch.Tensor], seen: list[int], unseen: int
) -> Any:
    """Tune by one line, compare the answers at all sizes, and restore. Return the report."""
    before = describe_modules(modules)
    expected = {size: call(pipe, size) for size in (*seen, unseen)}
    fast = tw.optimize(pipe, run=lambda p: [call(p, size) for size in seen])
    for size, answer in expected.items():
        torch.testing.assert_close(call(fast, size), answer)
    counts = count_calls(fast)
    assert counts
    assert all(optimized > 0 and not others for optimized, others in counts.values()), counts
    assert fast.restore() is pipe
    assert describe_modules(modules) == before
    assert all(torch.equal(call(pipe, size), answer) for size, answer in expected.items())
    return fast.report


def test_a_diffusion_pipeline_at_other_resolutions(searches: Searches) -> None:
    diffusers, transformers = pytest.importorskip("diffusers"), pytest.importorskip("transformers")
    torch.manual_seed(0)
    unet = diffusers.UNet2DConditionModel(
        sample_size=8,
        layers_per_block=1,
        block_out_channels=(8,),
        norm_num_groups=4,
        cross_attention_dim=8,
        attention_head_dim=4,
        down_block_types=("CrossAttnDownBlock2D",),
        mid_block_type=None,
        up_block_types=("UpBlock2D",),
    )
    vae = diffusers.AutoencoderKL(
        block_out_channels=(8,), norm_num_groups=4, latent_channels=4, mid_block_add_attention=False
    )
    text = transformers.CLIPTextConfig(
        vocab_size=16, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2
    )
    encoder = transformers.CLIPTextModel(text)
    parts: list[torch.nn.Module] = [unet.eval(), vae.eval(), encoder.eval()]
    scheduler = diffusers.DDIMScheduler(num_train_timesteps=50, steps_offset=1, clip_sample=False)
    pipe = diffusers.StableDiffusionPipeline(
        vae, encoder, None, unet, scheduler, None, None, requires_safety_checker=False
    )
    pipe.set_progress_bar_config(disable=True)

    def draw(pipe: Any, side: int) -> torch.Tensor:
        prompt = torch.linspace(-1, 1, 24).reshape(1, 3, 8)
        return pipe(  # type: ignore[no-any-return]
            prompt_embeds=prompt,
            height=side,
            width=side,
            guidance_scale=1.0,
            num_inference_steps=2,
            generator=torch.Generator().manual_seed(1),
            output_type="pt",
        ).images

    report = check_pipeline(pipe, parts, draw, [8, 16], 24)
    assert {module.record.name: module.record.calls for module in report.modules} == {
        "UNet2DConditionModel": 4,
        "Decoder": 2,
        "Conv2d": 2,
    }


def make_tokenizer(transformers: Any) -> Any:
    tokenizers = pytest.importorskip("tokenizers")
    words = {word: number for number, word in enumerate(["[PAD]", "[UNK]", *"abcdefgh"])}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]")


def test_text_generation_at_other_lengths(searches: Searches) -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=16,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=64,
    )
    model = transformers.LlamaForCausalLM(config).eval()
    pipe = transformers.pipeline("text-generation", model=model, tokenizer=make_tokenizer(transformers), device="cpu")

    def generate(pipe: Any, length: int) -> torch.Tensor:
        prompt = " ".join("abcdefgh"[place % 8] for place in range(length))
        (answer,) = pipe(prompt, max_new_tokens=3, do_sample=False, return_tensors=True)
        return torch.tensor(answer["generated_token_ids"])

    report = check_pipeline(pipe, [model], generate, [4, 7, 9], 11)
    examples = searches.asked[0][1].examples
    assert {type(example.kwargs["past_key_values"]).__name__ for example in examples} == {"DynamicCache"}
    assert report.modules[0].record.name == "LlamaForCausalLM"


def test_a_sentence_encoder_at_other_lengths(searches: Searches) -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=16, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32
    )

    class Encoder:
        def __init__(self) -> None:
            self.model, self.tokenizer = transformers.BertModel(config).eval(), make_tokenizer(transformers)

        @torch.inference_mode()
        def encode(self, texts: list[str]) -> torch.Tensor:
            given = self.tokenizer(texts, padding=True, return_tensors="pt", return_token_type_ids=False)
            assert type(given) is transformers.BatchEncoding
            states = self.model(**given).last_hidden_state
            mask = given["attention_mask"][..., None]
            return torch.nn.functional.normalize((states * mask).sum(1) / mask.sum(1))

    def encode(encoder: Any, length: int) -> torch.Tensor:
        return encoder.encode(["a b", " ".join("abcdefgh"[place % 8] for place in range(length))])  # type: ignore[no-any-return]

    encoder = Encoder()
    check_pipeline(encoder, [encoder.model], encode, [3, 5], 8)
    assert [request.plans for request, _ in searches.asked] == [None, (replace(*DYNAMIC, threads=THREADS.threads),)]


def test_captured_decoding_reads_the_cache_of_its_own_conversation() -> None:
    """The first prompt fills an empty cache, and each step returns the cache that it is given."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=64, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2
    )
    model = transformers.LlamaForCausalLM(config).eval()
    fast, graph = capture_with_objects(model)

    @torch.no_grad()
    def talk(call: Callable[..., Any]) -> list[torch.Tensor]:
        caches = [transformers.StaticCache(config=config, max_cache_len=16) for _ in range(2)]
        tokens, answers = [torch.tensor([[3, 4, 5]]), torch.tensor([[9, 8, 7]])], []
        for _ in range(4):
            for one in range(2):
                answer = call(tokens[one], past_key_values=caches[one], use_cache=True)
                assert answer.past_key_values is caches[one]
                tokens[one] = answer.logits[:, -1:].argmax(-1)
                answers.append(answer.logits)
        return answers

    torch.testing.assert_close(talk(fast), talk(model))
    assert len(graph.recorded) == 1, "the decoding step"
