"""Kernels of regions: compiled from their text by Triton, tuned on their first call, and launched."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.metadata
import importlib.util
import json
import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch

from torchwise._torch import inductor
from torchwise._torch.hopper import is_hopper
from torchwise.compile.programs.build import write_whole
from torchwise.compile.programs.gpu import direct
from torchwise.compile.programs.gpu.clusters import launch_cluster
from torchwise.compile.programs.gpu.forms import Form, Work, list_forms
from torchwise.compile.programs.gpu.kernel import KernelText, Writer
from torchwise.compile.programs.gpu.program import Program
from torchwise.errors import UnsupportedError, first_line, format_error

logger = logging.getLogger("torchwise")

NAME = "torchwise_tiles"
TUNING_S = 20.0
"""Seconds after which no further form of a kernel is compiled, once one works. Of several kernels each has a share, the
second half of it, the third a third, as a program of many would otherwise be tuned for minutes."""
MOST_SEED = 2**63 - 1
BY_TRITON = "torchwise: Triton starts each call of a kernel: %s"
Prototype = tuple[tuple[int, ...], tuple[int, ...], torch.dtype]
"""Sizes, strides and type of a tensor."""
CALLS, ROWS = 10, 5
"""Timed calls of each form in a row, and rows of them."""


class Launch:
    """A form of a kernel. It takes the inputs, launches the kernel by Triton, and returns its outputs.

    Args:
        kernel: a function of Triton.
        text: that of the function.
        form: it.
        rows: of the program.
        outputs: sizes, strides and type of each output.
        device: of all tensors.
    """

    def __init__(
        self, kernel: Any, text: KernelText, form: Form, rows: int, outputs: Sequence[Prototype], device: torch.device
    ) -> None:
        self._kernel, self._form, self._outputs, self._device = kernel, form, outputs, device
        self._programs = -(-rows // form.block)
        self._tables = [torch.tensor(one, dtype=torch.float64, device=device) for one in text.tables]
        self._draws, self._work = text.draws, text.work * form.block * self._programs
        self._draw_seed = functools.partial(torch.randint, MOST_SEED, (1,), device=device)

    def __call__(self, args: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        """Return the outputs."""
        return self.run(args)[0]

    def run(self, args: Sequence[torch.Tensor]) -> tuple[tuple[torch.Tensor, ...], Any]:
        """Return the outputs, and the kernel as Triton compiled it for such inputs."""
        device, form, grid = self._device, self._form, (self._programs, 1, 1)
        made = tuple(
            torch.empty_strided(shape, strides, dtype=dtype, device=device) for shape, strides, dtype in self._outputs
        )
        constants = {"BLOCK": form.block, "PRECISION": form.precision}
        settings = {**constants, "num_warps": form.warps, "num_stages": 1}
        with torch.cuda.device(device if device.type == "cuda" else -1):  # on which Triton launches
            seeds = [self._draw_seed()] if self._draws else []
            shared = [allocate_work(self._work, device)] if self._work else []
            given = (*args, *made, *self._tables, *seeds, *shared)
            if form.cluster > 1:
                compiled = launch_cluster(self._kernel, form.cluster, grid, given, constants, settings)
            else:
                compiled = self._kernel[grid](*given, **settings)
        return made, compiled

    def start_directly(self, region: Any, compiled: Any, args: Sequence[torch.Tensor]) -> None:
        """Have a region start the kernel without Triton, which is faster.

        Args:
            region: of `direct.make_region`.
            compiled: the kernel, of `run`.
            args: the inputs of that run.

        Raises:
            UnsupportedError: that cannot be with this kernel, or on this machine.
        """
        driver, device = direct.find_driver(self._device), self._device
        given = len(args) + len(self._outputs) + len(self._tables) + self._draws + bool(self._work)
        kernel = direct.read_compiled(compiled, self._programs, self._form.cluster, given)
        prototypes = [direct.make_prototype(*one, device) for one in self._outputs]
        if self._work:
            prototypes.append(direct.make_prototype((self._work,), (1,), torch.float32, device))
        draw = self._draw_seed if self._draws else None
        direct.set_kernel(region, driver, kernel, args, prototypes, len(self._outputs), self._tables, draw)


class Kernel:
    """A region's kernel. It is tuned on its first call, and that choice is kept in the cache of compiled code.

    Args:
        program: the region.
        inputs: tensors like its inputs, which may be without memory.
        outputs: tensors like its outputs.
        device: of both.
        tuned: counts the kernels of its program that are tuned.
    """

    def __init__(
        self,
        program: Program,
        inputs: Sequence[torch.Tensor],
        outputs: Sequence[torch.Tensor],
        device: torch.device,
        tuned: Iterator[int],
    ) -> None:
        self._program, self._device, self._tuned = program, device, tuned
        self._wanted = [(tuple(one.shape), tuple(one.stride()), one.dtype) for one in inputs]
        self._outputs = [(tuple(one.shape), tuple(one.stride()), one.dtype) for one in outputs]
        self._lock = threading.Lock()
        self._refusal: UnsupportedError | None = None
        self._launch: Launch | None = None
        self._is_tried = False  # whether a direct start was attempted
        self._texts: dict[tuple[int, bool, int], KernelText] = {}
        first = self._write(64, True)  # refuses what has no code, before any call
        passed = max((program.labels.axes.size(one.axis) for one in program.passes.values()), default=0)
        self.work = Work(first.rows, program.width, *program.count_weights(), passed)

    def bind(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Return a callable, which has `original` answer calls whose inputs lie otherwise in memory.

        It also answers those that are captured in a CUDA graph before the kernel is tuned: nothing can be timed then,
        and Triton would compile during the capture.
        """
        region: Any = None

        def call(*args: torch.Tensor) -> Any:
            if not (self._fits(args) and self._is_ready()):
                return original(*args)
            launch = self._find_launch(args)
            found, compiled = launch.run(args)
            if region is not None and not self._is_tried:
                self._start_directly(region, launch, compiled, args)
            return found

        try:
            disable: Any = torch.compiler.disable  # compiled code may call the region as Python, by other arguments
            region = direct.make_region(disable(call))
        except UnsupportedError as error:
            logger.info(BY_TRITON, error)
        bound: Callable[..., Any] = call if region is None else region
        return bound

    def _start_directly(self, region: Any, launch: Launch, compiled: Any, args: Sequence[torch.Tensor]) -> None:
        with self._lock:  # two threads may have made the first call
            if self._is_tried:
                return
            self._is_tried = True
        try:
            launch.start_directly(region, compiled, args)
        except (UnsupportedError, torch.OutOfMemoryError) as error:  # the call itself is answered
            logger.info(BY_TRITON, error)

    def _is_ready(self) -> bool:
        return self._launch is not None or not is_capturing(self._device)

    def _fits(self, args: Sequence[torch.Tensor]) -> bool:
        return all(
            one.shape == shape and one.stride() == strides and one.dtype is dtype and one.device == self._device
            for one, (shape, strides, dtype) in zip(args, self._wanted, strict=True)
        )

    def _find_launch(self, args: Sequence[torch.Tensor]) -> Launch:
        if self._launch is None:
            with self._lock:
                if self._refusal is not None:
                    raise self._refusal
                if self._launch is None:
                    self._launch = self._tune(args)
        return self._launch

    def _write(self, most: int, uses_dot: bool, cluster: int = 1) -> KernelText:
        key = most, uses_dot, cluster
        if key not in self._texts:
            self._texts[key] = Writer(self._program, *key).write()
        return self._texts[key]

    def _tune(self, args: Sequence[torch.Tensor]) -> Launch:
        """Return the fastest form on these inputs.

        Raises:
            UnsupportedError: Triton refuses all forms.
        """
        device = self._device
        allows_tf32 = device.type == "cuda" and torch.backends.cuda.matmul.allow_tf32
        forms = list_allowed(self.work, device, allows_tf32=allows_tf32)
        file = self._cache_file(device, allows_tf32)

        def attempt(form: Form) -> Launch:
            launch = self._make_launch(form, device)
            launch(args)
            return launch

        def measure(form: Form) -> tuple[float, Launch]:
            launch = attempt(form)
            return time_calls(functools.partial(launch, args), device), launch

        forms = forms if device.type == "cuda" else forms[:1]
        # The call that follows draws the random numbers that it would draw without the trials.
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            with contextlib.suppress(UnsupportedError):
                return try_kept(file, lambda kept: attempt(Form(**kept)))
            try:
                form, launch = pick_fastest(forms, measure, TUNING_S / next(self._tuned))
            except UnsupportedError as error:
                self._refusal = error
                raise
        with contextlib.suppress(OSError):  # the next process chooses again
            write_whole(file, json.dumps(vars(form)).encode())
        return launch

    def _cache_file(self, device: torch.device, allows_tf32: bool) -> Path:
        name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
        triton = importlib.metadata.version("triton")
        words = (self._write(64, True).source, name, str(allows_tf32), triton, torch.__version__)
        key = hashlib.sha256("\0".join(words).encode()).hexdigest()[:40]
        return find_folder() / f"{key}.json"

    def _make_launch(self, form: Form, device: torch.device) -> Launch:
        text = self._write(form.most, form.uses_dot, form.cluster)
        return Launch(load_kernel(text.source), text, form, self.work.rows, self._outputs, device)


def list_allowed(work: Work, device: torch.device, *, allows_tf32: bool) -> list[Form]:
    """Return the forms of a kernel that a device may have, the likeliest first."""
    forms = list_forms(work, allows_tf32=allows_tf32)
    if device.type == "cuda" and not is_hopper(device):  # Triton would print the code of each kernel that it refuses
        forms = [one for one in forms if one.cluster == 1]
    return forms


def allocate_work(numbers: int, device: torch.device) -> torch.Tensor:
    """Return memory by which the programs of a cluster share numbers."""
    return torch.empty(numbers, dtype=torch.float32, device=device)


_Form = TypeVar("_Form")
_Made = TypeVar("_Made")


def pick_fastest(
    forms: Sequence[_Form], measure: Callable[[_Form], tuple[float, _Made]], limit_s: float
) -> tuple[_Form, _Made]:
    """Return the fastest form. Once one works, no other is begun after a time.

    Args:
        forms: the likeliest first.
        measure: returns the seconds of a call, and the launch or anything else that was made for it.
        limit_s: that time.

    Raises:
        UnsupportedError: Triton refuses all forms.
    """
    began, best, problem = time.monotonic(), None, ""
    for form in forms:
        if best is not None and time.monotonic() - began > limit_s:
            break
        try:
            taken_s, launch = measure(form)
        except torch.OutOfMemoryError:  # which no other form would have
            raise
        except Exception as error:  # Triton raises errors of many kinds
            problem = first_line(format_error(error))
            logger.info("torchwise: %s is no form of a kernel: %s", form, problem)
            continue
        logger.info("torchwise: %s: %.1f us", form, 1e6 * taken_s)
        if best is None or taken_s < best[0]:
            best = (taken_s, form, launch)
    if best is None:
        raise UnsupportedError(f"Triton compiles no form of a kernel: {problem}")
    return best[1:]


def try_kept(file: Path, attempt: Callable[[Any], _Made]) -> _Made:
    """Return what is made of the form that a file keeps, as another process chose it.

    Args:
        file: which may be missing, cut short, or of a GPU with more memory for each program.
        attempt: takes the form as it was written, launches it, and returns what was made for it.

    Raises:
        UnsupportedError: there is no such form, or it cannot be launched. So one must be chosen.
    """
    try:
        return attempt(json.loads(file.read_text()))
    except torch.OutOfMemoryError:  # which no other form would have
        raise
    except Exception as error:  # Triton raises errors of many kinds
        raise UnsupportedError(f"{file} keeps no form: {first_line(format_error(error))}") from error


def load_kernel(source: str) -> Any:
    """Return the function `kernel` of a module with this text, from a file, as Triton reads it there."""
    file = find_folder() / f"rows_{hashlib.sha256(source.encode()).hexdigest()[:40]}.py"
    if not file.exists() or file.read_text() != source:
        write_whole(file, source.encode())
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.kernel


def find_folder() -> Path:
    """Return the folder of texts and chosen forms, in the cache of compiled code."""
    return Path(inductor.CACHE_DIR.get("row programs")()) / NAME


def time_calls(call: Callable[[], object], device: torch.device, calls: int = CALLS) -> float:
    """Return the seconds of a call on the GPU, as the quickest of some rows of calls.

    The calls of a row are captured in a graph, as the host takes longer to begin a short kernel than that runs.
    """
    if device.type != "cuda":
        return 0.0
    with torch.cuda.device(device):  # whose stream the graph and the events are on
        graph, found = torch.cuda.CUDAGraph(), []
        # Other threads may use the GPU meanwhile.
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            for _ in range(calls):
                call()
        for _ in range(ROWS):
            start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            graph.replay()
            stop.record()
            stop.synchronize()
            found.append(start.elapsed_time(stop) / 1e3 / calls)
    return float(min(found))


def is_capturing(device: torch.device) -> bool:
    """Whether work on a device becomes part of a CUDA graph, so that nothing can be timed or compiled."""
    if device.type != "cuda":
        return False
    with torch.cuda.device(device):
        return torch.cuda.is_current_stream_capturing()
