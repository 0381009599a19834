"""An optimised module in the hands of other libraries: Transformers, and PyTorch's own data loaders."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    GPT2Config,
    GPT2LMHeadModel,
    PreTrainedTokenizerFast,
    pipeline,
)

import torchwise
from live_decisions import make_decision
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


def apply_plan(model: torch.nn.Module, *args: torch.Tensor, **kwargs: torch.Tensor) -> Any:
    decision = make_decision(model, PLAN, *args)
    return torchwise.apply(model, replace(decision, inputs=(describe_example(Example(args, kwargs)),)))


def test_a_pipeline_takes_it_for_the_model_and_is_answered_by_the_plan(
    tokenizer: Any, caplog: pytest.LogCaptureFixture
) -> None:
    config = BertConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64, vocab_size=len(WORDS)
    )
    model = BertForSequenceClassification(config).eval()
    fast = apply_plan(model, **tokenizer("a b c", return_tensors="pt"))
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
    fast = apply_plan(model, prompt)
    ours, theirs = (one.generate(prompt, max_new_tokens=6, do_sample=False) for one in (fast, model))
    assert torch.equal(ours, theirs)
    spoken = pipeline("text-generation", model=fast, tokenizer=tokenizer)("a b c", max_new_tokens=3)
    assert spoken[0]["generated_text"].startswith("a b c")


SCRIPT = """
import sys

import torch
from torch.utils.data import DataLoader, Dataset

import torchwise
from live_decisions import make_decision
from torchwise.plan import Plan


class Scored(Dataset):  # a data set whose items a model computes, in a worker of the loader
    def __init__(self, model):
        self.model = model

    def __len__(self):
        return 6

    def __getitem__(self, index):
        with torch.no_grad():
            return self.model(torch.full((1, 4), float(index)))


if __name__ == "__main__":
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 2), torch.nn.Tanh()).eval()
    plan = Plan(threads=torch.get_num_threads() + 1)
    scored = Scored(torchwise.apply(model, make_decision(model, plan, torch.zeros(1, 4))))
    loader = DataLoader(scored, batch_size=3, num_workers=1, multiprocessing_context=sys.argv[1])
    with torch.no_grad():
        expected = torch.stack([model(torch.full((1, 4), float(index))) for index in range(6)])
    torch.testing.assert_close(torch.cat(list(loader)), expected)
    print("all alike")
"""


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_it_works_in_a_worker_of_a_data_loader(start: str, tmp_path: Path) -> None:
    """Runs in a program of its own, as spawned workers begin by running the script of their parent."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    paths = [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    command = [sys.executable, str(script), start]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=200, check=False)
    assert done.stdout == "all alike\n", done.stderr
