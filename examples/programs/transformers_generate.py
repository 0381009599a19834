"""Generate text from prompts of three lengths with a small GPT-2.

python examples/programs/transformers_generate.py [ROUNDS]
"""

from __future__ import annotations

import sys

import torch
from transformers import GPT2Config, GPT2LMHeadModel

PROMPTS = [list(range(3, 3 + length)) for length in (4, 9, 17)]


def build() -> GPT2LMHeadModel:
    """Return a language model with random weights."""
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=256, n_embd=128, n_layer=4, n_head=4, n_positions=128, bos_token_id=0, eos_token_id=None
    )
    return GPT2LMHeadModel(config).eval()


def main(rounds: int = 5) -> None:
    """Continue every prompt in each round."""
    model = build()
    for _ in range(rounds):
        answers = [
            model.generate(torch.tensor([prompt]), max_new_tokens=16, do_sample=False, pad_token_id=0)
            for prompt in PROMPTS
        ]
    for answer in answers:
        print(*answer[0].tolist())


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
