"""Pipelines of other libraries are tuned by one line each: tiny models of random weights."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from test_program import Searches

import torchwise as tw
from torchwise.runtime.program import tuning


@pytest.fixture
def searches(monkeypatch: pytest.MonkeyPatch) -> Searches:
    found = Searches()
    monkeypatch.setattr(tuning, "search", found)
    return found


def counts(fast: Any) -> list[tuple[str, int, dict[str, int]]]:
    """Return for each module with a plan the calls of the plan, and those of the original by reason."""
    found = [(one.record.name, one.component.statistics) for one in fast.report.modules if one.component]
    return [(name, each.optimized, {str(reason): n for reason, n in each.original.items()}) for name, each in found]


def test_a_diffusion_pipeline(searches: Searches) -> None:
    diffusers = pytest.importorskip("diffusers")
    torch.manual_seed(0)
    unet = diffusers.UNet2DModel(
        sample_size=8,
        layers_per_block=1,
        block_out_channels=(16, 16),
        norm_num_groups=4,
        down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"),
    ).eval()
    pipe = diffusers.DDPMPipeline(unet, diffusers.DDIMScheduler(num_train_timesteps=50))
    pipe.set_progress_bar_config(disable=True)

    def draw(thing: Any, batch: int) -> Any:
        generator = torch.Generator().manual_seed(1)
        return thing(batch_size=batch, num_inference_steps=3, generator=generator, output_type="np").images

    expected = {batch: draw(pipe, batch) for batch in (1, 2, 3)}
    fast = tw.optimize(pipe, run=lambda p: [draw(p, 1), draw(p, 2)])
    ((_, workload),) = searches.asked
    assert [example.args[0].shape[0] for example in workload.examples] in ([1, 2], [2, 1])
    for batch, images in expected.items():  # one batch was never seen
        assert (draw(fast, batch) == images).all()
    assert counts(fast) == [("UNet2DModel", 6, {"inputs_not_verified": 3})]
    assert fast.restore() is pipe
    assert type(pipe.unet) is diffusers.UNet2DModel
    assert (draw(pipe, 2) == expected[2]).all()


def test_text_generation_with_a_cache(searches: Searches) -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=64,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=64,
    )
    model = transformers.LlamaForCausalLM(config).eval()

    def generate(thing: Any, length: int) -> Any:
        ids = torch.arange(length)[None] % 64
        mask = torch.ones_like(ids)
        return thing.generate(ids, attention_mask=mask, max_new_tokens=5, do_sample=False, pad_token_id=0)

    expected = {length: generate(model, length) for length in (4, 7, 9, 11)}
    fast = tw.optimize(model, run=lambda m: [generate(m, length) for length in (4, 7, 9)])
    ((_, workload),) = searches.asked
    assert {type(example.kwargs["past_key_values"]).__name__ for example in workload.examples} == {"DynamicCache"}
    assert max(workload.examples, key=lambda example: example.weight).kwargs["input_ids"].shape == (1, 1)
    for length, ids in expected.items():
        assert torch.equal(generate(fast, length), ids)
    ((_, by_plan, as_written),) = counts(fast)
    assert by_plan + sum(as_written.values()) == 20
    fast.restore()
    assert type(model) is transformers.LlamaForCausalLM
    assert torch.equal(generate(model, 7), expected[7])


def test_a_sentence_encoder(searches: Searches) -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=64, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32
    )

    class Encoder:
        def __init__(self) -> None:
            self.model = transformers.BertModel(config).eval()

        @torch.inference_mode()
        def encode(self, length: int) -> torch.Tensor:
            ids = torch.arange(length)[None] % 64
            mask = torch.ones_like(ids)
            found = self.model(
                transformers.BatchEncoding({"input_ids": ids, "attention_mask": mask})["input_ids"], mask
            )
            return (found.last_hidden_state * mask[..., None]).mean(1)

    encoder = Encoder()
    expected = {length: encoder.encode(length) for length in (3, 5, 8)}
    fast = tw.optimize(encoder, run=lambda e: [e.encode(3), e.encode(5)])
    for length, vector in expected.items():
        assert torch.equal(fast.encode(length), vector)
    assert counts(fast) == [("BertModel", 2, {"inputs_not_verified": 1})]
    fast.restore()
    assert torch.equal(encoder.encode(8), expected[8])
