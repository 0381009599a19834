"""Gather requests of many threads or coroutines into batches, and answer each with its own part.

A batch is due if it is full, or if its first request has waited long enough while the model was free.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import Any

import torch

from torchwise.alerts import OnceLog
from torchwise.errors import InputError, QueueFullError, is_count, is_positive
from torchwise.runtime.batch_calls import (
    BatchQueue,
    Request,
    find_preparation,
    inspect_call,
    merge_calls,
    pads_batch,
    split_answer,
)
from torchwise.runtime.served import served_of
from torchwise.runtime.statistics import BatchStatistics
from torchwise.workload import pytree

logger = logging.getLogger("torchwise")
_ONCE = OnceLog()


class BatchServer:
    """Answers requests in batches, from a thread of its own. `serve_batched` makes it and explains its arguments.

    Attributes:
        statistics: the counts so far.
    """

    def __init__(
        self, fast: Callable[..., Any], max_batch: int, max_wait_s: float, pad_to: Iterable[int], max_waiting: int
    ) -> None:
        self.statistics = BatchStatistics()
        self._fast, self._pad_to, self._max_batch, self._max_waiting = fast, sorted(pad_to), max_batch, max_waiting
        self._prepare = find_preparation(fast)
        self._queue = BatchQueue(max_batch, max_wait_s)
        self._changed = threading.Condition()
        self._is_closed = False
        self._pid, self._threads = os.getpid(), torch.get_num_threads()
        self._thread = threading.Thread(target=self._serve, name="torchwise-batches", daemon=True)
        self._thread.start()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Answer as the model does. The thread waits for the batch of its request."""
        return self.submit(*args, **kwargs).result()

    async def call_async(self, *args: Any, **kwargs: Any) -> Any:
        """Answer as the model does. The event loop goes on while the request waits."""
        return await asyncio.wrap_future(self.submit(*args, **kwargs))

    def submit(self, *args: Any, **kwargs: Any) -> Future[Any]:
        """Return the future answer. Until its batch begins, the request can be cancelled.

        Raises:
            InputError: the server is closed, or the request has no batch dimension or too many samples.
            QueueFullError: too many samples are waiting.
        """
        call, finish = self._prepare((args, kwargs))
        size, group = inspect_call(call)
        if size > self._max_batch:
            raise InputError(f"the request has {size} samples, but must have at most {self._max_batch}: split it")
        if self._pid != os.getpid():
            raise InputError("the server belongs to the process before the fork: call serve_batched in this one")
        with self._changed:
            if self._is_closed:
                raise InputError("the server is closed, but must be open: call serve_batched again")
            if (waiting := self._queue.samples) + size > self._max_waiting:
                self.statistics.refused += 1
                rule = f"at most {self._max_waiting} may: send the request again later"
                raise QueueFullError(f"{waiting} samples are waiting, but {rule}")
            request = Request((args, kwargs), call, size, group, time.monotonic(), finish)
            self._queue.put(request)
            self._changed.notify()
        return request.future

    def close(self, *, drain: bool = True, timeout_s: float | None = None) -> bool:
        """Refuse new requests, and return whether all waiting ones are answered within the timeout.

        Args:
            drain: whether waiting requests are answered. Otherwise they are cancelled.
            timeout_s: seconds to wait for that, or None for as long as it takes.
        """
        with self._changed:
            self._is_closed = True
            while not drain and (waiting := self._queue.take(0.0, at_once=True)):
                for request in waiting:
                    request.future.cancel()
            self._changed.notify()
        if self._thread is not threading.current_thread():  # which a callback of a future runs in
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def __enter__(self) -> BatchServer:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        counts, late = self.statistics, self.statistics.latency_s()
        p99 = "" if late is None else f", p99 {late * 1e3:.1f} ms"
        state = "closed" if self._is_closed else "open"
        return f"<BatchServer, {state}: {counts.requests} requests in {counts.batches} batches{p99}>"

    def _serve(self) -> None:
        torch.set_num_threads(self._threads)  # OpenMP has a number for each thread, by default that of all cores
        with torch.no_grad():
            while batch := self._wait_for_batch():
                if running := [request for request in batch if request.future.set_running_or_notify_cancel()]:
                    self._answer(running)

    def _wait_for_batch(self) -> list[Request]:
        """Return the next batch, or an empty list once the server is closed and nothing is left."""
        with self._changed:
            while not (batch := self._queue.take(time.monotonic(), at_once=self._is_closed)) and not self._is_closed:
                self._changed.wait(self._queue.wait_s(time.monotonic()))
            return batch

    def _answer(self, batch: list[Request]) -> None:
        rows = sum(request.size for request in batch)
        total = next((size for size in self._pad_to if size >= rows), rows)
        if len(batch) == 1 and total == rows and batch[0].call is batch[0].given:
            self._answer_alone(batch[0])
            return
        try:
            args, kwargs = merge_calls([request.call for request in batch], total - rows)
            answers = split_answer(self._call(args, kwargs), [request.size for request in batch], total)
            answers = [request.finish(answer) for request, answer in zip(batch, answers, strict=True)]
        except Exception as error:  # of any kind: one request's must not be another's, nor padding's anybody's
            if _ONCE.admit(f"{type(error).__name__}: {error}"):
                logger.warning("torchwise: a batch failed, so its requests run one by one", exc_info=error)
            self.statistics.split += 1
            for request in batch:
                self._answer_alone(request)
            return
        self.statistics.batches += 1
        self.statistics.padding += total - rows
        for request, answer in zip(batch, answers, strict=True):
            self._finish(request, answer)

    def _answer_alone(self, request: Request) -> None:
        """Answer a request as it came, by a call of its own."""
        self.statistics.batches += 1
        try:
            answer = self._call(*request.given)
        except BaseException as error:  # it belongs to this request, and the thread must go on
            self._finish(request, error=error)
        else:
            self._finish(request, answer)

    def _call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        answer = self._fast(*args, **kwargs)
        for device in {tensor.device for tensor in pytree.tensors(answer) if tensor.is_cuda}:
            torch.cuda.current_stream(device).synchronize()  # the next requests gather while the GPU works
        return answer

    def _finish(self, request: Request, answer: Any = None, error: BaseException | None = None) -> None:
        self.statistics.requests += 1
        self.statistics.samples += request.size
        self.statistics.latencies_s.append(time.monotonic() - request.arrived_s)
        if error is None:
            request.future.set_result(answer)
        else:
            self.statistics.failures += 1
            request.future.set_exception(error)


def serve_batched(
    fast: Callable[..., Any],
    *,
    max_batch: int | None = None,
    max_wait_ms: float = 2.0,
    pad_to: Iterable[int] | None = None,
    max_waiting: int = 10_000,
) -> BatchServer:
    """Return a server that gathers requests of threads or coroutines into batches for one model.

    Call it as the model, `await` its `call_async`, or take a future from `submit`. The first dimension of each tensor
    is the batch: of one sample or several in a request, and in the answer. A plan with buckets has requests of all
    sizes of a bucket share a batch. If a call of a batch fails, or the answer cannot be split, its requests run one by
    one. Models run without gradients, in a thread that does not share the caller's autocast.

    Args:
        fast: the model, best a result of `apply` or `optimize`.
        max_batch: samples of a batch. None stands for the size that a search with `latency_limit` found.
        max_wait_ms: milliseconds that a request may wait for others while the model is free.
        pad_to: batch sizes to fill batches up to, by repeating the last sample. None stands for `max_batch` if `fast`
            has a plan, as it answers sizes that it was verified for. Empty fills none.
        max_waiting: samples that may wait. Further requests are refused.

    Raises:
        InputError: an argument has no permitted value.
    """
    decision = served.decision if (served := served_of(fast)) else None
    if max_batch is None and decision is not None and decision.workload.batch is not None:
        max_batch = decision.workload.batch.size
    if not callable(fast):
        raise InputError(f"fast is of type {type(fast).__name__}, but must be a model or a function")
    if max_batch is None or not is_count(max_batch):
        way_out = "" if max_batch else ", as no search with latency_limit has found one"
        raise InputError(f"max_batch is {max_batch!r}, but must be a whole number of at least 1{way_out}")
    if max_wait_ms != 0 and not (is_positive(max_wait_ms) and max_wait_ms < math.inf):
        raise InputError(f"max_wait_ms is {max_wait_ms!r}, but must be a number of at least 0")
    if not is_count(max_waiting) or max_waiting < max_batch:
        raise InputError(f"max_waiting is {max_waiting!r}, but must be at least max_batch, which is {max_batch}")
    has_sizes = decision is not None and not decision.plan.is_eager and not pads_batch(fast)
    sizes = tuple(pad_to) if pad_to is not None else (max_batch,) if has_sizes else ()
    if bad := [size for size in sizes if not is_count(size)]:
        raise InputError(f"pad_to has {bad[0]!r}, but must hold whole numbers of at least 1")
    return BatchServer(fast, max_batch, max_wait_ms / 1e3, sizes, max_waiting)
