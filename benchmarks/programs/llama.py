"""Continue prompts with a Llama of random weights and a static cache, token by token.

python benchmarks/programs/llama.py --device cuda --width 2048 --layers 16 --heads 32 --dtype bfloat16 --tokens 256

--compile MODE puts torch.compile in by hand, around the step of one token. --save FILE keeps the tokens, and the
seconds of each round.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM, StaticCache

Step = Callable[..., Any]


def parse_options() -> argparse.Namespace:
    """Return the sizes. Those by default are tiny."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--vocabulary", type=int, default=256)
    parser.add_argument("--prompt", type=int, default=8, help="tokens of a prompt")
    parser.add_argument("--tokens", type=int, default=24, help="tokens to add")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--compile", metavar="MODE", help="a mode of torch.compile")
    parser.add_argument("--save", metavar="FILE")
    return parser.parse_args()


def build(options: argparse.Namespace) -> LlamaForCausalLM:
    """Return the model, with weights that are large enough for tokens to differ."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=options.vocabulary,
        hidden_size=options.width,
        intermediate_size=4 * options.width,
        num_hidden_layers=options.layers,
        num_attention_heads=options.heads,
        num_key_value_heads=max(options.heads // 4, 1),
        max_position_embeddings=options.prompt + options.tokens,
        initializer_range=0.2 if options.width < 512 else 0.02,
    )
    with torch.device(options.device):  # a CPU takes most of a minute to draw a billion numbers
        model = LlamaForCausalLM(config)
    return model.eval().to(getattr(torch, options.dtype))


@torch.inference_mode()
def continue_prompt(model: LlamaForCausalLM, step: Step, prompt: torch.Tensor, cache: Any, tokens: int) -> torch.Tensor:
    """Return the prompt with the likeliest tokens added. `model` reads the prompt, and `step` each token after it."""
    cache.reset()
    places = torch.arange(prompt.shape[1], device=prompt.device)
    answer = model(prompt, position_ids=places[None], past_key_values=cache, use_cache=True)
    found = [prompt, answer.logits[:, -1:].argmax(-1)]
    for place in range(prompt.shape[1], prompt.shape[1] + tokens - 1):
        at = torch.tensor([[place]], device=prompt.device)
        answer = step(found[-1], position_ids=at, past_key_values=cache, use_cache=True)
        found.append(answer.logits[:, -1:].argmax(-1))
    return torch.cat(found, 1)


def main() -> None:
    """Continue a prompt in each round, and print the first tokens of the last one."""
    options = parse_options()
    model = build(options)
    step: Step = torch.compile(model, mode=options.compile) if options.compile else model
    cache = StaticCache(config=model.config, max_cache_len=options.prompt + options.tokens)
    generator = torch.Generator().manual_seed(1)
    prompt = torch.randint(options.vocabulary, (1, options.prompt), generator=generator).to(options.device)
    rounds = []
    for _ in range(options.rounds):
        began = time.perf_counter()
        tokens = continue_prompt(model, step, prompt, cache, options.tokens).tolist()[0]
        rounds.append(time.perf_counter() - began)
    print(*tokens[: options.prompt + 8])
    if options.save:
        torch.save({"answer": torch.tensor(tokens), "rounds_s": rounds}, options.save)


if __name__ == "__main__":
    main()
