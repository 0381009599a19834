"""Attention in many spellings: which of them Inductor fuses by itself, which Torchwise does, and the time of each.

Time is that of the thread on one core, so that other programs on the machine matter less:

    python benchmarks/attention_spellings.py            # 5 minutes on one core
    python benchmarks/attention_spellings.py --no-time  # without times
"""

from __future__ import annotations

import argparse
import functools
import math
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor
from torch._dynamo.utils import counters
from torch.nn import functional as F  # noqa: N812 - as everybody calls it

import torchwise as tw
from torchwise.compile import compile_plan
from torchwise.plan import Plan
from torchwise.workload import Example

BATCH, HEADS, LENGTH, FEATURES = 2, 4, 64, 32
SCALE = FEATURES**-0.5
PAIRS = 15
Spelling = Callable[[Tensor, Tensor, Tensor], Tensor]
SPELLINGS: dict[str, Spelling] = {}
"""Functions of queries, keys and values of (batch, heads, length, features)."""


def spelling(call: Spelling) -> Spelling:
    """Add a spelling to the list."""
    SPELLINGS[call.__name__] = call
    return call


def lower(tensor: Tensor) -> Tensor:
    """Return where a row may look: at itself and before."""
    length = tensor.shape[-2]
    return torch.ones(length, length, dtype=torch.bool, device=tensor.device).tril()


@spelling
def divided(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.softmax(q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1]), dim=-1) @ v


@spelling
def multiplied(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.matmul((torch.matmul(q, k.mT) * SCALE).softmax(-1), v)


@spelling
def scaled_queries(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return ((q * SCALE) @ k.transpose(-2, -1)).softmax(-1) @ v


@spelling
def without_scale(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.transpose(-2, -1)).softmax(-1) @ v


@spelling
def added_mask(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    mask = torch.zeros(q.shape[-2], k.shape[-2], dtype=q.dtype).masked_fill(~lower(q), -math.inf)
    return (q @ k.transpose(-2, -1) / math.sqrt(FEATURES) + mask).softmax(-1) @ v


@spelling
def filled(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = q @ k.transpose(-2, -1) * SCALE
    return scores.masked_fill(lower(q) == 0, float("-inf")).softmax(-1) @ v


@spelling
def filled_in_place(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = q @ k.transpose(-2, -1)
    scores *= SCALE
    return F.softmax(scores.masked_fill_(~lower(q), -1e9), dim=-1) @ v


@spelling
def where(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = torch.matmul(q, k.transpose(-1, -2)) / torch.full([], math.sqrt(FEATURES), dtype=q.dtype)
    lowest = torch.full([], torch.finfo(q.dtype).min, dtype=q.dtype)
    scores = torch.where(lower(q), scores, lowest)
    return torch.matmul(F.softmax(scores, dim=-1).type(v.dtype), v)


@spelling
def biased_and_masked(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    bias = torch.linspace(-1, 1, LENGTH, dtype=q.dtype).expand(HEADS, LENGTH, LENGTH)
    scores = q @ k.transpose(-2, -1) + bias
    return scores.masked_fill(~lower(q), torch.finfo(q.dtype).min).softmax(-1) @ v


@spelling
def einsum(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = torch.einsum("bhid,bhjd->bhij", q, k) * SCALE
    return torch.einsum("bhij,bhjd->bhid", scores.softmax(dim=-1), v)


@spelling
def einsum_of_rows(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k, v = (one.transpose(1, 2) for one in (q, k, v))
    scores = torch.einsum("blhd,bshd->bhls", q, k)
    return torch.einsum("bhls,bshd->blhd", torch.softmax(scores * SCALE, dim=-1), v)


@spelling
def three_dimensions(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k, v = (one.reshape(BATCH * HEADS, LENGTH, FEATURES) for one in (q, k, v))
    return torch.bmm((torch.bmm(q, k.transpose(1, 2)) * SCALE).softmax(-1), v)


@spelling
def added_product(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k, v = (one.reshape(BATCH * HEADS, LENGTH, FEATURES) for one in (q, k, v))
    bias = torch.zeros(LENGTH, LENGTH, dtype=q.dtype).masked_fill(~lower(q), -math.inf).expand(len(q), LENGTH, LENGTH)
    return torch.bmm(torch.baddbmm(bias, q, k.transpose(1, 2), beta=1, alpha=SCALE).softmax(-1), v)


@spelling
def viewed_for_the_mask(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k, v = (one.reshape(BATCH * HEADS, LENGTH, FEATURES) for one in (q, k, v))
    scores = torch.bmm(q, k.transpose(1, 2)).view(BATCH, HEADS, LENGTH, LENGTH)
    scores = (scores + torch.zeros(BATCH, 1, LENGTH, LENGTH, dtype=q.dtype)).view(BATCH * HEADS, LENGTH, LENGTH)
    return torch.bmm(F.dropout(F.softmax(scores, dim=-1), p=0.1, training=False), v)


@spelling
def float_softmax(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = q @ k.transpose(-2, -1) * SCALE
    return F.softmax(scores, dim=-1, dtype=torch.float32).to(q.dtype) @ v


@spelling
def float_scores(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = torch.matmul(q, k.transpose(3, 2))
    scores += torch.zeros(1, HEADS, LENGTH, LENGTH, dtype=q.dtype)
    return torch.matmul(F.softmax(scores.float(), dim=-1).type_as(scores), v)


@spelling
def one_head(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q[0, 0] @ k[0, 0].T * SCALE).softmax(-1) @ v[0, 0]


@spelling
def repeated_keys(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    k, v = (one[:, :2].repeat_interleave(2, dim=1) for one in (k, v))
    return (q @ k.transpose(-2, -1) * SCALE).softmax(-1) @ v


def draw(*sizes: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return queries, keys and values."""
    torch.manual_seed(0)
    return torch.randn(sizes), torch.randn(sizes), torch.randn(sizes)


def count_fused(call: Spelling) -> int:
    """Return how many attentions Inductor fuses by itself."""
    torch.compiler.reset()
    counters.clear()
    with torch._inductor.config.patch(force_disable_caches=True):  # what is read from a cache is not counted
        torch.compile(call)(*draw(BATCH, HEADS, LENGTH, FEATURES))
    return int(counters["inductor"]["fuse_attention"])


def compile_with(call: Callable[..., Tensor], *transforms: str, inputs: tuple[Tensor, ...]) -> Callable[..., Tensor]:
    """Return a function compiled by a plan."""
    plan = Plan(backend="inductor", transforms=transforms)
    compiled: Callable[..., Tensor] = compile_plan(call, plan, Example(inputs), device="cpu", mode="inference").call
    return compiled


def time_pair(call: Callable[[], object], other: Callable[[], object]) -> float:
    """Return the time of one call over that of another, both in this thread."""
    ratios = []
    for _ in range(PAIRS):
        spent = []
        for one in (call, other):
            start = time.thread_time()
            one()
            spent.append(time.thread_time() - start)
        ratios.append(spent[0] / spent[1])
    return statistics.median(ratios[2:])


def attend_long(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attend with a mask, as in a language model."""
    scores = (q * q.shape[-1] ** -0.5) @ k.transpose(-2, -1)
    return scores.masked_fill(~lower(q), float("-inf")).softmax(-1) @ v


def attend_grouped(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attend with keys that four heads share."""
    k, v = (one[:, :, None].expand(*one.shape[:2], 4, *one.shape[2:]).flatten(1, 2) for one in (k, v))
    return F.scaled_dot_product_attention(q, k, v)


def main() -> None:
    """Print which spellings are fused, and times."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--no-time", action="store_true", help="leave times out")
    times = not parser.parse_args().no_time
    torch.set_num_threads(1)
    print(f"torch {torch.__version__}, torchwise {tw.__version__}, CPU, one thread")
    with torch.no_grad():
        fused = {name: count_fused(call) for name, call in SPELLINGS.items()}
        print(f"Inductor fuses {sum(map(bool, fused.values()))} of {len(fused)} by itself, and not these:")
        print("  " + ", ".join(name for name, count in fused.items() if not count))
        for length in (64, 512, 1024) if times else ():
            inputs = draw(1, 6, length, 64)
            calls = [compile_with(attend_long, *names, inputs=inputs) for names in ([], ["fused_attention"])]
            plain, rewritten = (functools.partial(call, *inputs) for call in calls)
            print(f"fused_attention, {length} rows: {time_pair(rewritten, plain):.2f} of Inductor's time")
        for rows, keys in ((1, 1024), (256, 256)) if times else ():
            inputs = (torch.randn(1, 32, rows, 64), *draw(1, 8, keys, 64)[1:])
            calls = [compile_with(attend_grouped, *names, inputs=inputs) for names in ([], ["grouped_keys"])]
            plain, rewritten = (functools.partial(call, *inputs) for call in calls)
            print(f"grouped_keys, {rows} of {keys} rows: {time_pair(rewritten, plain):.2f} of Inductor's time")


if __name__ == "__main__":
    main()
