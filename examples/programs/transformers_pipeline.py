"""Classify sentences of three lengths with a pipeline of Transformers.

python examples/programs/transformers_pipeline.py [ROUNDS]
"""

from __future__ import annotations

import sys

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import BertConfig, BertForSequenceClassification, PreTrainedTokenizerFast, pipeline

SENTENCES = ["the film is good", "the film was long and bad", "the film was not short but very very good and not bad"]
WORDS = ["[PAD]", "[UNK]", *dict.fromkeys(" ".join(SENTENCES).split())]


def build() -> pipeline:
    """Return a pipeline around a small classifier with random weights."""
    torch.manual_seed(0)
    words = Tokenizer(models.WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="[PAD]", unk_token="[UNK]")
    config = BertConfig(
        vocab_size=len(WORDS),
        hidden_size=128,
        num_hidden_layers=4,
        num_attention_heads=4,
        intermediate_size=512,
        max_position_embeddings=64,
    )
    model = BertForSequenceClassification(config).eval()
    return pipeline("text-classification", model=model, tokenizer=tokenizer, device="cpu")


def main(rounds: int = 20) -> None:
    """Classify every sentence in each round."""
    classify = build()
    for _ in range(rounds):
        answers = [classify(sentence)[0] for sentence in SENTENCES]
    for sentence, answer in zip(SENTENCES, answers, strict=True):
        print(f"{answer['label']} {answer['score']:.4f}  {sentence}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
