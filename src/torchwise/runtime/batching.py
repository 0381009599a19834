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
from torchwise.keywords import checked_keywords
from torchwise.records import Decision
from torchwise.records.format import seconds
from torchwise.runtime.batch_calls import (
    BatchQueue,
    JoinRules,
    Preparation,
    Request,
    inspect_call,
    list_verified_sizes,
    pads_batch,
)
from torchwise.runtime.fallback_reason import FallbackReason
from torchwise.runtime.served import Served, served_of, unwrap
from torchwise.runtime.statistics import BatchStatistics
from torchwise.verify import verify_samples
from torchwise.workload import Example, pytree
from torchwise.workload.samples import Call, merge_calls, split_answer
from torchwise.workload.workload import as_args

logger = logging.getLogger("torchwise")
_ONCE = OnceLog()
MAX_WAIT_MS = 2.0
"""Milliseconds that a request waits for others by default, if its limit of latency does not leave less."""
WAIT_SHARE = 0.25
"""Share of the limit of latency that a request waits for others by default. Two calls take the rest."""


class BatchServer:
    """Answers requests in batches, from a thread of its own. `serve_batched` makes it and explains its arguments.

    Attributes:
        statistics: the counts so far.
    """

    def __init__(
        self, fast: Callable[..., Any], queue: BatchQueue, max_batch: int, pad_to: Iterable[int], rules: JoinRules
    ) -> None:
        self.statistics = BatchStatistics()
        self._fast, self._pad_to, self._max_batch = fast, sorted(pad_to), max_batch
        self._borrows = getattr(served_of(fast), "borrow", False)
        self._preparation, self._queue, self._rules = Preparation(fast), queue, rules
        self._changed = threading.Condition()
        self._is_closed = False
        self._pid, self._threads = os.getpid(), torch.get_num_threads()
        self._thread = threading.Thread(target=self._serve, name="torchwise-batches", daemon=True)
        self._thread.start()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Answer as the model does. The thread waits for the batch of its request."""
        if threading.current_thread() is self._thread:
            raise InputError("the server is called in its own thread, where it would wait for itself: use submit")
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
        call, finish = self._preparation.pad(given := (args, kwargs))
        size, group = inspect_call(call)
        if size > self._max_batch:
            raise InputError(f"the request has {size} samples, but must have at most {self._max_batch}: split it")
        if self._pid != os.getpid():
            raise InputError("the server belongs to the process before the fork: call serve_batched in this one")
        with self._changed:
            if self._is_closed or not self._thread.is_alive():
                raise InputError("the server is closed, but must be open: call serve_batched again")
            request = Request(given, call, size, group, time.monotonic(), finish)
            try:
                self._queue.put(request)
            except QueueFullError:
                self.statistics.refused += 1
                raise
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
        _, _, counts = repr(self.statistics).partition(": ")
        return f"<BatchServer, {'closed' if self._is_closed else 'open'}: {counts}"

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
            args, kwargs = call = merge_calls([request.call for request in batch], total - rows)
            is_padded = any(request.call is not request.given for request in batch)
            why = "" if is_padded and self._preparation.refuses(call) else self._rules.find_dependence(call)
            if why is None:
                answers = split_answer(self._fast(*args, **kwargs), [request.size for request in batch], total)
                answers = [request.finish(answer) for request, answer in zip(batch, answers, strict=True)]
                _wait_for_devices(answers)
        except BaseException as error:  # of any kind: one request's must not be another's, nor padding's anybody's
            if _ONCE.admit(f"{type(error).__name__}: {error}"):
                logger.warning("torchwise: a batch failed, so its requests run one by one", exc_info=error)
            self.statistics.split += 1
            for request in batch:
                self._answer_alone(request)
            return
        if why is not None:
            self._answer_apart(batch, call, why)
            return
        self.statistics.batches += 1
        self.statistics.padding += total - rows
        for request, answer in zip(batch, answers, strict=True):
            self._finish(request, answer)

    def _answer_apart(self, batch: list[Request], call: Call, why: str) -> None:
        """Answer requests that may not share a batch, and say why the first time."""
        before = self.statistics.failures
        for request in batch:
            self._answer_alone(request)
        if self.statistics.failures > before:
            self._rules.forget(call)
        elif why:
            logger.warning("torchwise: requests run one by one, as they may not share a batch: %s", why)

    def _answer_alone(self, request: Request) -> None:
        """Answer a request as it came, by a call of its own."""
        self.statistics.batches += 1
        args, kwargs = request.given
        try:
            answer = self._fast(*args, **kwargs)
            if self._borrows:
                answer = pytree.clone(answer)  # before the next call overwrites it
            _wait_for_devices(answer)
        except BaseException as error:  # it belongs to this request, and the thread must go on
            self._finish(request, error=error)
        else:
            self._finish(request, answer)

    def _finish(self, request: Request, answer: Any = None, error: BaseException | None = None) -> None:
        self.statistics.requests += 1
        self.statistics.samples += request.size
        self.statistics.latencies_s.append(time.monotonic() - request.arrived_s)
        self.statistics.failures += error is not None
        try:
            if error is None:
                request.future.set_result(answer)
            else:
                request.future.set_exception(error)
        except BaseException as raised:  # a callback's, such as SystemExit, which must not end the thread
            logger.warning("torchwise: a callback of a request failed", exc_info=raised)


def _wait_for_devices(answer: Any) -> None:
    for device in {tensor.device for tensor in pytree.tensors(answer) if tensor.is_cuda}:
        torch.cuda.current_stream(device).synchronize()  # the next requests gather while the GPU works


@checked_keywords()
def serve_batched(
    fast: Callable[..., Any],
    *,
    max_batch: int | None = None,
    max_wait_ms: float | None = None,
    pad_to: Iterable[int] | None = None,
    max_waiting: int = 10_000,
    example: Any = None,
    verify: bool = True,
) -> BatchServer:
    """Return a server that gathers requests of threads or coroutines into batches for one model.

    Call it as the model, `await` its `call_async`, or take a future from `submit`. The first dimension of each tensor
    is the batch: of one sample or several in a request, and in the answer. A plan with buckets has requests of all
    sizes of a bucket share a batch. Models run without gradients, in a thread that does not share the caller's
    autocast.

    Samples share a batch only if they do not depend on each other. A search with `latency_limit` has verified that for
    requests like its example. Otherwise the server does, by `example` at once, or by the first requests of each form.
    Requests that may not share a batch run one by one. So do those of a batch that fails, so that an error reaches only
    its own request.

    Args:
        fast: the model, best a result of `apply` or `optimize`.
        max_batch: samples of a batch. None stands for the size that a plan was tuned at.
        max_wait_ms: milliseconds that a request may wait for others while the model is free. None stands for 2, or less
            under a short limit of latency.
        pad_to: batch sizes to fill batches up to, by repeating the last sample. None stands for those that the plan of
            `fast` was verified for. Empty fills none.
        max_waiting: samples that may wait. Further requests are refused.
        example: arguments of a request, to verify the model at once. Otherwise the first requests of each form wait
            for that.
        verify: whether samples are verified not to depend on each other.

    Raises:
        InputError: an argument has no permitted value, or the samples of the example depend on each other.
    """
    if not callable(fast):
        raise InputError(f"fast is of type {type(fast).__name__}, but must be a model or a function")
    served = served_of(fast)
    decision = served.decision if served else None
    sizes = list_verified_sizes(decision) if decision else ()
    max_batch = _check_max_batch(max_batch, sizes, decision)
    if not is_count(max_waiting) or max_waiting < max_batch:
        raise InputError(f"max_waiting is {max_waiting!r}, but must be at least max_batch, which is {max_batch}")
    wait_s = _read_wait_s(max_wait_ms, decision.workload.latency_limit if decision else None)
    if pad_to is None:
        pad_to = _list_padded_sizes(served, sizes, max_batch)
    pad_to = tuple(pad_to)
    if bad := [size for size in pad_to if not is_count(size)]:
        raise InputError(f"pad_to has {bad[0]!r}, but must hold whole numbers of at least 1")
    rules = JoinRules(unwrap(fast), _list_verified_inputs(served) if verify else None)
    if verify and example is not None:
        given = example if isinstance(example, Example) else Example(as_args(example))
        verify_samples(unwrap(fast), given)
        rules.accept((given.args, dict(given.kwargs)))  # so that the first requests do not wait for the same again
    return BatchServer(fast, BatchQueue(max_batch, wait_s, max_waiting), max_batch, pad_to, rules)


def _check_max_batch(max_batch: int | None, sizes: tuple[int, ...], decision: Decision | None) -> int:
    found = max_batch
    if found is None and sizes and sizes[-1] > 1:
        found = sizes[-1]
    if found is None and decision is not None and decision.workload.batch is not None:
        found = decision.workload.batch.size  # which a search may have found to be 1
    if found is None or not is_count(found):
        way_out = "" if found is not None else ", as fast has no plan that was tuned at a larger batch"
        raise InputError(f"max_batch is {found!r}, but must be a whole number of at least 1{way_out}")
    return found


def _read_wait_s(max_wait_ms: float | None, limit_s: float | None) -> float:
    """Return the seconds that a request may wait for others."""
    if max_wait_ms is None:
        return min(MAX_WAIT_MS / 1e3, math.inf if limit_s is None else WAIT_SHARE * limit_s)
    if max_wait_ms != 0 and not (is_positive(max_wait_ms) and max_wait_ms < math.inf):
        raise InputError(f"max_wait_ms is {max_wait_ms!r}, but must be a number of at least 0")
    if limit_s is not None and max_wait_ms / 1e3 > limit_s / 2:
        rule = f"must be at most {limit_s / 2 * 1e3:g}, half of the limit of {seconds(limit_s)} of the search"
        raise InputError(f"max_wait_ms is {max_wait_ms!r}, but {rule}")
    return max_wait_ms / 1e3


def _list_padded_sizes(served: Served | None, sizes: tuple[int, ...], max_batch: int) -> tuple[int, ...]:
    """Return the sizes to fill batches up to, so that a plan answers them: none if it answers any size, or pads itself.

    Raises:
        InputError: no size of the plan is as large as the largest batch.
    """
    plan = served.decision.plan if served else None
    if plan is None or plan.is_eager or plan.shapes == "dynamic" or pads_batch(served) or not sizes:
        return ()
    if sizes[-1] < max_batch:
        raise InputError(
            f"max_batch is {max_batch}, but the plan was verified for batches of at most {sizes[-1]}: ask for at most "
            "that, or tune at a larger batch"
        )
    return sizes


def _list_verified_inputs(served: Served | None) -> tuple[str, ...]:
    """Return the inputs whose samples the search for a decision that still holds has verified to be independent."""
    if served is None or served.decision.workload.latency_limit is None:
        return ()
    holds = served.refusal is None or served.refusal.reason is FallbackReason.EAGER_DECISION
    return served.decision.inputs if holds else ()
