"""Put load on the service by several parallel clients, and print their results.

python examples/service/load.py --requests 2000 --clients 8
"""

from __future__ import annotations

import argparse
import json
import random
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from statistics import quantiles
from typing import Any


def main() -> None:
    """Send the requests, and print rates, latencies and the service's own report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--clients", type=int, default=8)
    options = parser.parse_args()
    start = time.perf_counter()
    with ThreadPoolExecutor(options.clients) as clients:
        took = list(clients.map(lambda seed: request(options.url, seed), range(options.requests)))
    elapsed = time.perf_counter() - start
    cuts = quantiles(took, n=100)
    print(f"{options.requests / elapsed:,.0f} requests a second, {options.clients} clients")
    print(f"p50 {cuts[49] * 1e3:.2f} ms, p95 {cuts[94] * 1e3:.2f} ms, p99 {cuts[98] * 1e3:.2f} ms")
    print(json.dumps(read(f"{options.url}/health"), indent=2))


def request(url: str, seed: int) -> float:
    """Request the score of one sequence, and return the duration in seconds."""
    draw = random.Random(seed).gauss
    sequence = [[draw(0, 1) for _ in range(64)] for _ in range(32)]
    body = json.dumps({"sequence": sequence}).encode()
    start = time.perf_counter()
    answer = read(urllib.request.Request(f"{url}/score", body, {"Content-Type": "application/json"}))
    took = time.perf_counter() - start
    assert 0 <= answer["score"] <= 1, answer
    return took


def read(request: str | urllib.request.Request) -> Any:
    """Return the JSON answer to a request."""
    with urllib.request.urlopen(request, timeout=30) as response:
        return json.load(response)


if __name__ == "__main__":
    main()
