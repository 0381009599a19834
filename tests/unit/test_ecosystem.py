"""An optimised module in the hands of other libraries: Transformers, and PyTorch's own data loaders."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from torch.utils.data import DataLoader, Dataset
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    GPT2Config,
    GPT2LMHeadModel,
    PreTrainedTokenizerFast,
    pipeline,
)

import torchwise
from live_decisions import decided
from torchwise.plan import Plan
from torchwise.runtime import OptimizedModule
from torchwise.workload import Example
from torchwise.workload.identity import describe_example

PLAN = Plan(threads=torch.get_num_threads() + 1)
WORDS = ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "[UNK]"]


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


@pytest.fixture
def tokenizer() -> Any:
    words = Tokenizer(models.WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=words, unk_token="[UNK]", pad_token="[UNK]")


def optimized(model: torch.nn.Module, *args: torch.Tensor, **kwargs: torch.Tensor) -> Any:
    decision = decided(model, PLAN, *args)
    return torchwise.apply(model, replace(decision, inputs=(describe_example(Example(args, kwargs)),)))


def test_a_pipeline_takes_it_for_the_model_and_is_answered_by_the_plan(
    tokenizer: Any, caplog: pytest.LogCaptureFixture
) -> None:
    config = BertConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64, vocab_size=len(WORDS)
    )
    model = BertForSequenceClassification(config).eval()
    fast = optimized(model, **tokenizer("a b c", return_tensors="pt"))
    assert isinstance(fast, BertForSequenceClassification)
    assert isinstance(fast, OptimizedModule)
    assert issubclass(type(fast), OptimizedModule)
    with caplog.at_level(logging.WARNING):
        found = pipeline("text-classification", model=fast, tokenizer=tokenizer)("a b c")
    assert found == pipeline("text-classification", model=model, tokenizer=tokenizer)("a b c")
    assert fast.statistics.optimized == 1
    assert not any("is not supported" in record.message for record in caplog.records)


def test_generate_gives_the_models_own_words(tokenizer: Any) -> None:
    config = GPT2Config(
        n_layer=2, n_head=2, n_embd=32, vocab_size=len(WORDS), n_positions=64, bos_token_id=0, eos_token_id=0
    )
    model = GPT2LMHeadModel(config).eval()
    prompt = torch.tensor([[1, 2, 3]])
    fast = optimized(model, prompt)
    ours, theirs = (one.generate(prompt, max_new_tokens=6, do_sample=False) for one in (fast, model))
    assert torch.equal(ours, theirs)
    spoken = pipeline("text-generation", model=fast, tokenizer=tokenizer)("a b c", max_new_tokens=3)
    assert spoken[0]["generated_text"].startswith("a b c")


class Scored(Dataset[torch.Tensor]):
    """A data set whose items a model computes, in the workers of the loader."""

    def __init__(self, model: Any) -> None:
        self.model = model

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> torch.Tensor:
        with torch.no_grad():
            answer: torch.Tensor = self.model(torch.full((1, 4), float(index)))
        return answer


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_it_works_in_the_workers_of_a_data_loader(start: str) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 2), torch.nn.Tanh()).eval()
    loader = DataLoader(
        Scored(optimized(model, torch.zeros(1, 4))), batch_size=3, num_workers=2, multiprocessing_context=start
    )
    with torch.no_grad():
        expected = torch.stack([model(torch.full((1, 4), float(index))) for index in range(6)])
    torch.testing.assert_close(torch.cat(list(loader)), expected)
