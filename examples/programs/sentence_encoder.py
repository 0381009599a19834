"""Encode sentences as vectors and rank them, in the way of sentence-transformers.

python examples/programs/sentence_encoder.py [ROUNDS]
"""

from __future__ import annotations

import sys
import zlib

import torch
from torch import nn
from transformers import BertConfig, BertModel

VOCABULARY = 1000
SENTENCES = [
    "a cat sleeps",
    "the cat is asleep on the sofa",
    "stocks fell",
    "shares lost a tenth of their value in a day",
]


class SentenceEncoder:
    """Has `encode`: tokens, a transformer, the mean over tokens, and unit length."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.transformer = BertModel(
            BertConfig(
                vocab_size=VOCABULARY,
                hidden_size=128,
                num_hidden_layers=4,
                num_attention_heads=4,
                intermediate_size=512,
            ),
            add_pooling_layer=False,
        ).eval()

    def tokenize(self, sentences: list[str]) -> dict[str, torch.Tensor]:
        """Return padded numbers of words, and the mask of those that are none."""
        rows = [[1 + zlib.crc32(word.encode()) % (VOCABULARY - 1) for word in one.split()] for one in sentences]
        ids = nn.utils.rnn.pad_sequence([torch.tensor(row) for row in rows], batch_first=True)
        return {"input_ids": ids, "attention_mask": (ids > 0).long()}

    @torch.inference_mode()
    def encode(self, sentences: list[str]) -> torch.Tensor:
        """Return one vector of length 1 for each sentence."""
        given = self.tokenize(sentences)
        mask = given["attention_mask"][..., None]
        states = self.transformer(**given).last_hidden_state * mask
        return nn.functional.normalize(states.sum(1) / mask.sum(1), dim=-1)


def main(rounds: int = 20) -> None:
    """Encode the query alone and all sentences at once in each round."""
    encoder = SentenceEncoder()
    for _ in range(rounds):
        scores = encoder.encode(["a cat is asleep"]) @ encoder.encode(SENTENCES).T
    for score, sentence in zip(scores[0].tolist(), SENTENCES, strict=True):
        print(f"{score:.4f}  {sentence}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
