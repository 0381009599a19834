"""Pipelines of other libraries, tuned by one line each: right at sizes never seen, and given back bit by bit.

Each pipeline has random weights. It runs at a few sizes, which `torchwise.optimize` records, and then also at a size
that it did not record. Answers are compared with those before. Times of the tuned and the restored pipeline are the
medians of a few runs each, one after the other, so that they show no more than the order of magnitude.

It exits with 1 if an answer or the restored state differs, or the original answered a call of a module with a plan,
unless the report says that other sizes run as written.
With --out it keeps the lines of each pipeline, and the same command goes on with the others. No pipeline is begun after
--seconds, and the exit code is then 3.

Run it: python benchmarks/pipelines.py --budget 600 --out pipelines.json [text-generation] [diffusion] [...]
"""

from __future__ import annotations

import argparse
import json
import os
import runpy
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import torchwise
from torchwise import environment

EXAMPLES = Path(__file__).parents[1] / "examples" / "programs"
LEFT = "other sizes than these run as written"
WORDS = ["[PAD]", "[UNK]", *"abcdefghijklmn"]


@dataclass(frozen=True)
class Case:
    pipe: Any
    modules: list[torch.nn.Module]
    run: Callable[[Any, int], torch.Tensor]
    seen: tuple[int, ...]
    unseen: int


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("cases", nargs="*", choices=[[], *CASES], help="by default all")
    parser.add_argument("--budget", type=float, default=600.0, help="seconds for each")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="after which no pipeline is begun")
    parser.add_argument("--out", type=Path, help="a file for the lines, to go on from")
    options = parser.parse_args()
    print(f"{environment.detect('cpu').cpu}, {os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}")
    known = json.loads(options.out.read_text()) if options.out and options.out.exists() else {}
    end = time.monotonic() + options.seconds
    for name in options.cases or CASES:
        if name not in known:
            if time.monotonic() > end:
                return UNFINISHED
            lines, is_wrong = measure(name, CASES[name](), options)
            known[name] = {"lines": lines, "is_wrong": is_wrong}
            if options.out:
                options.out.write_text(json.dumps(known, indent=1) + "\n")
        print("", *known[name]["lines"], sep="\n", flush=True)
    return int(any(one["is_wrong"] for one in known.values()))


@torch.no_grad()
def measure(name: str, case: Case, options: argparse.Namespace) -> tuple[list[str], bool]:
    """Tune a pipeline, and return what became of it in lines, and whether anything is wrong."""
    sizes, before = (*case.seen, case.unseen), list_state(case.modules)
    answers = {size: case.run(case.pipe, size) for size in sizes}
    began = time.monotonic()
    fast = torchwise.optimize(case.pipe, run=lambda p: [case.run(p, size) for size in case.seen], budget=options.budget)
    lines = [f"{name}: tuned in {time.monotonic() - began:.0f} s of {options.budget:.0f}"]
    right = {size: is_close(case.run(fast, size), answer) for size, answer in answers.items()}
    tuned = {size: time_runs(case, fast, size, options.runs) for size in sizes}
    by_original = 0
    for module in fast.report.modules:
        if module.component is not None:
            counts = module.component.statistics
            leaves_others = any(LEFT in note for note in module.record.notes)  # no plan for other sizes was faster
            by_original += 0 if leaves_others else sum(counts.original.values())
            originals = {str(reason): count for reason, count in counts.original.items()}
            plan = f"{module.record.plan}, {counts.optimized} calls, by the original {originals}"
            lines.append(f"  {module.record.name}: {plan}")
        lines += [f"  {module.record.name}: {note}" for note in module.record.notes]
    is_back = fast.restore() is case.pipe and list_state(case.modules) == before
    for size in sizes:
        exact = torch.equal(case.run(case.pipe, size), answers[size])
        plain = time_runs(case, case.pipe, size, options.runs)
        seen = "seen" if size in case.seen else "never seen"
        lines.append(
            f"  size {size} ({seen}): {'right' if right[size] else 'WRONG'}, {tuned[size] * 1e3:.1f} ms, alone "
            f"{plain * 1e3:.1f} ms, restored {'bit by bit' if exact else 'WRONG'}"
        )
        is_back = is_back and exact
    return lines, not all(right.values()) or not is_back or by_original > 0


def list_state(modules: list[torch.nn.Module]) -> list[Any]:
    """List the classes of all modules, and the bits of their state."""
    parts = [type(part) for module in modules for part in module.modules()]
    return [parts, [(n, t.numpy().tobytes()) for module in modules for n, t in module.state_dict().items()]]


def is_close(answer: torch.Tensor, right: torch.Tensor) -> bool:
    """Whether tokens are equal, and images up to what is seen."""
    if not right.is_floating_point():
        return torch.equal(answer, right)
    return answer.shape == right.shape and torch.allclose(answer, right, atol=1e-3)


def time_runs(case: Case, pipe: Any, size: int, runs: int) -> float:
    def time_run() -> float:
        began = time.perf_counter()
        case.run(pipe, size)
        return time.perf_counter() - began

    return statistics.median(time_run() for _ in range(runs))


def make_text_generation() -> Case:
    """Return a pipeline of Transformers around a small Llama. The size is the number of words of the prompt."""
    import transformers
    from tokenizers import Tokenizer, models, pre_tokenizers

    torch.manual_seed(0)
    words = Tokenizer(models.WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=words, pad_token="[PAD]", unk_token="[UNK]")
    config = transformers.LlamaConfig(
        vocab_size=len(WORDS),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
    )
    model = transformers.LlamaForCausalLM(config).eval()
    pipe = transformers.pipeline("text-generation", model=model, tokenizer=tokenizer, device="cpu")

    def generate(pipe: Any, length: int) -> torch.Tensor:
        prompt = " ".join(WORDS[2 + place % 8] for place in range(length))
        (answer,) = pipe(prompt, max_new_tokens=12, do_sample=False, return_tensors=True)
        return torch.tensor(answer["generated_token_ids"])

    return Case(pipe, [model], generate, (4, 7, 9), 21)


def make_diffusion() -> Case:
    """Return the example's pipeline of diffusers. The size is the side of the image."""
    pipe = runpy.run_path(str(EXAMPLES / "diffusers_pipeline.py"))["build"]()

    def draw(pipe: Any, side: int) -> torch.Tensor:
        prompt = torch.linspace(-1, 1, 8 * 32).reshape(1, 8, 32)
        generator = torch.Generator().manual_seed(2)
        options = {"height": side, "width": side, "num_inference_steps": 5, "output_type": "pt"}
        negative = torch.zeros_like(prompt)
        return pipe(prompt_embeds=prompt, negative_prompt_embeds=negative, generator=generator, **options).images

    return Case(pipe, [pipe.unet, pipe.vae], draw, (32, 48), 64)


def make_sentence_encoder() -> Case:
    """Return the example's encoder, which pads sentences to the longest one. The size is its number of words."""
    encoder = runpy.run_path(str(EXAMPLES / "sentence_encoder.py"))["SentenceEncoder"]()

    def encode(encoder: Any, length: int) -> torch.Tensor:
        sentence = " ".join(WORDS[2 + place % 8] for place in range(length))
        vectors: torch.Tensor = encoder.encode([sentence, "a b"])
        return vectors

    return Case(encoder, [encoder.transformer], encode, (4, 12), 23)


CASES: dict[str, Callable[[], Case]] = {
    "text-generation": make_text_generation,
    "diffusion": make_diffusion,
    "sentence-encoder": make_sentence_encoder,
}
UNFINISHED = 3

if __name__ == "__main__":
    raise SystemExit(main())
