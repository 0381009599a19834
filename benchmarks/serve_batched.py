"""The requests per second that a model answers within a limit of latency, one by one and in batches.

Requests of one sample arrive at random (Poisson), whether earlier ones are answered or not. The rate rises until the
99th percentile of the latency passes the limit. A latency counts from the time at which the request was due, so that a
late sender hides nothing. The model is a chain of layers whose weights are far larger than a sample. So a call of one
sample mostly reads weights, and batching pays.

Each repetition searches both rates anew, one after the other, so that a drift of the machine meets both. Then batches
get four fifths of their rate once more: the highest rate that kept a limit may have kept it by luck. The ratio is the
median over the repetitions, with the interval of the sign test.

Run it: python benchmarks/serve_batched.py --limit-ms 50

With --tune, batch size and plan are those of `torchwise.tune(objective="throughput", latency_limit=…)`. It exits with 0
if batches surely answer at least twice the requests of batch 1 and keep the limit, with 1 if they surely do not, and
with 4 if that is inconclusive. With --out it keeps each repetition, and the same command goes on with the others. If
the --budget ends before the last one, it exits with 3.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import random
import threading
import time
from concurrent.futures import Future
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

import torchwise
from torchwise.records.statistics import median_interval, ratio_interval

STEP = 1.3
"""Ratio of one rate to the next."""
MISSES = 2
"""Rates in a row that must miss the limit to end the search, as one may be another program's fault."""
MAX_HALVINGS = 5
"""Rates that are tried, each half of the one before, until one keeps the limit."""
WANTED = 2.0
CONFIRMED_AT = 0.8
"""Share of the highest rate that is sent once more."""
INCONCLUSIVE = 4
UNFINISHED = 3


@dataclass(frozen=True)
class Load:
    """A rate, asked for and answered, in requests per second, and the latency of its requests in milliseconds."""

    asked: float
    answered: float
    p50_ms: float
    p99_ms: float
    batch: float


@dataclass(frozen=True)
class Repetition:
    """The highest loads that kept the limit, alone and in batches, and the one that was sent to confirm the latter."""

    alone: Load
    batched: Load
    confirmed: Load


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--limit-ms", type=float, default=50.0)
    parser.add_argument("--max-batch", type=int, default=32)
    parser.add_argument("--max-wait-ms", type=float, default=2.0)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each rate")
    parser.add_argument("--repetitions", type=int, default=6)
    parser.add_argument("--budget", type=float, default=float("inf"), help="seconds after which no repetition is begun")
    parser.add_argument("--out", type=Path, help="a file for the repetitions, to go on from")
    parser.add_argument("--tune", action="store_true", help="find batch size and plan first")
    parser.add_argument("--threads", type=int, help="of an operator on a CPU")
    parser.add_argument("--verbose", action="store_true", help="show each rate")
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    model, sample = make_model(options.width, options.layers, options.device)
    fast: Any = model
    if options.tune:
        limit = f"{options.limit_ms}ms"
        fast = torchwise.optimize(model, (sample,), objective="throughput", latency_limit=limit, calls=10**8)
        options.max_batch = fast.decision.workload.batch.size
        print(fast.decision.reason)
    warm_up(fast, sample, options.max_batch)
    with serve(fast, sample, options.max_batch, options.max_wait_ms):
        pass
    gc.collect()
    gc.freeze()  # as a service does once it has started: a collection through all of torch stops all threads
    print(
        f"{options.layers} layers of {options.width} on {options.device}, {torch.get_num_threads()} threads, torch "
        f"{torch.__version__}: p99 within {options.limit_ms:g} ms, batches up to {options.max_batch}"
    )
    found: list[Repetition | None] = read_repetitions(options.out)
    end = time.monotonic() + options.budget
    for number in range(len(found) + 1, options.repetitions + 1):
        if time.monotonic() > end:
            print("not ended: the same command goes on")
            return UNFINISHED
        found.append(repeat(number, model, fast, sample, options))
        if options.out:
            options.out.write_text(json.dumps([one and asdict(one) for one in found]) + "\n")
    return judge([one for one in found if one is not None], options)


def read_repetitions(file: Path | None) -> list[Repetition | None]:
    """Return the repetitions that an earlier run has kept."""
    known = json.loads(file.read_text()) if file and file.exists() else []
    return [one and Repetition(*(Load(**one[name]) for name in ("alone", "batched", "confirmed"))) for one in known]


def repeat(number: int, model: Any, fast: Any, sample: torch.Tensor, options: argparse.Namespace) -> Repetition | None:
    """Search both rates, and return them, or None if batch 1 kept the limit at no rate."""
    print(f"repetition {number}, load average {os.getloadavg()[0]:.1f} of {os.cpu_count()} cores", flush=True)
    alone = search("batch 1", model, sample, options, 1, 0.0)
    batched = search("batches", fast, sample, options, options.max_batch, options.max_wait_ms)
    if not alone.answered or not batched.answered:
        print("  too disturbed: no rate kept the limit")
        return None
    with serve(fast, sample, options.max_batch, options.max_wait_ms) as server:
        again = send(server, sample, CONFIRMED_AT * batched.asked, options.seconds)
    print(
        f"  ratio {batched.answered / alone.answered:.2f}; p99 at {again.asked:,.0f} requests/s: {again.p99_ms:.1f} ms"
    )
    return Repetition(alone, batched, again)


def judge(found: list[Repetition], options: argparse.Namespace) -> int:
    """Print the ratio with its interval, the share of repetitions that kept the limit, and what follows."""
    if len(found) < 2:
        print("inconclusive: too few repetitions were undisturbed")
        return INCONCLUSIVE
    alone, batched = [one.alone.answered for one in found], [one.batched.answered for one in found]
    ratio = ratio_interval(batched, alone)
    kept = sum(one.confirmed.p99_ms <= options.limit_ms for one in found)
    late = sorted(one.confirmed.p99_ms for one in found)
    print(f"batch 1: {median_interval(alone)} requests/s; batches: {median_interval(batched)} requests/s")
    print(f"ratio: {ratio} over {len(found)} of {options.repetitions} repetitions, of which {WANTED:g} is wanted")
    times = f"{late[0]:.1f} to {late[-1]:.1f} ms, {kept} of {len(found)} within {options.limit_ms:g} ms"
    print(f"p99 at {CONFIRMED_AT:.0%} of the rate of batches: {times}")
    if ratio.high < WANTED:
        print(f"result: batches answer less than {WANTED:g} times the requests of batch 1")
        return 1
    if ratio.low < WANTED or kept < len(found):
        print("result: inconclusive, on this machine at this time")
        return INCONCLUSIVE
    print(f"result: batches answer at least {WANTED:g} times the requests of batch 1, within the limit")
    return 0


def make_model(width: int, layers: int, device: str) -> tuple[torch.nn.Module, torch.Tensor]:
    """Return the chain of layers, and one sample."""
    torch.manual_seed(0)
    chain = [part for _ in range(layers) for part in (torch.nn.Linear(width, width), torch.nn.GELU())]
    return torch.nn.Sequential(*chain).eval().to(device), torch.randn(1, width, device=device)


def warm_up(fast: Any, sample: torch.Tensor, largest: int) -> None:
    """Call the model at sizes that will come, so that nothing compiles or grows under load."""
    with torch.no_grad():
        for size in sorted({1, 2, 4, largest // 2 or 1, largest}):
            for _ in range(3):
                fast(sample.expand(size, -1).contiguous())


def search(
    name: str, fast: Any, sample: torch.Tensor, options: argparse.Namespace, max_batch: int, max_wait_ms: float
) -> Load:
    """Return the load of the highest rate whose 99th percentile keeps the limit."""
    rate, best, misses = 0.5 / seconds_per_call(fast, sample), Load(0.0, 0.0, 0.0, 0.0, 0.0), 0
    while misses < (MISSES if best.answered else MAX_HALVINGS):
        with serve(fast, sample, max_batch, max_wait_ms) as server:
            found = send(server, sample, rate, options.seconds)
        is_kept = found.p99_ms <= options.limit_ms
        if options.verbose:
            print(f"    {describe(name, found)}{'' if is_kept else ', too late'}", flush=True)
        if is_kept and found.answered > best.answered:
            best = found
        misses = 0 if is_kept else misses + 1
        rate *= STEP if best.answered else 0.5
    print(f"  {describe(name, best)}", flush=True)
    return best


def serve(fast: Any, sample: torch.Tensor, max_batch: int, max_wait_ms: float) -> Any:
    """Return a server that has verified the model, so that no request waits for that."""
    example = (sample,) if max_batch > 1 else None
    return torchwise.serve_batched(fast, max_batch=max_batch, max_wait_ms=max_wait_ms, example=example)


def describe(name: str, load: Load) -> str:
    """Return a line about a load."""
    rates = f"{load.asked:8,.0f} requests/s asked, {load.answered:8,.0f} answered"
    return f"{name}: {rates}, p50 {load.p50_ms:.2f} ms, p99 {load.p99_ms:.2f} ms, {load.batch:.1f} samples a batch"


def seconds_per_call(fast: Any, sample: torch.Tensor) -> float:
    """Return the median seconds of a call of one sample."""
    took = []
    with torch.no_grad():
        for _ in range(21):
            start = time.perf_counter()
            fast(sample).cpu()
            took.append(time.perf_counter() - start)
    return sorted(took)[10]


def send(server: Any, sample: torch.Tensor, rate: float, seconds: float) -> Load:
    """Send requests at random times of a mean rate, and return how they were answered."""
    draw, took, lock = random.Random(0), [], threading.Lock()
    futures: list[Future[Any]] = []

    def note(due: float) -> Any:
        def done(_: Future[Any]) -> None:
            late = time.perf_counter() - due
            with lock:
                took.append(late)

        return done

    start = due = time.perf_counter()
    while (due := due + draw.expovariate(rate)) < start + seconds:
        if (ahead := due - time.perf_counter()) > 0:
            time.sleep(ahead)
        futures.append(server.submit(sample))
        futures[-1].add_done_callback(note(due))
    for future in futures:
        future.result()
    elapsed = time.perf_counter() - start
    took.sort()
    at = lambda share: 1e3 * took[min(int(share * len(took)), len(took) - 1)]  # noqa: E731
    counts = server.statistics
    return Load(rate, len(futures) / elapsed, at(0.5), at(0.99), counts.samples / max(counts.batches, 1))


if __name__ == "__main__":
    raise SystemExit(main())
