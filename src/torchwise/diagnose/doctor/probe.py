"""Test in child processes whether the C++ compiler works, and whether torch imports, compiles and reaches the GPU.

`python -m torchwise.diagnose.doctor.probe` runs the steps one by one, and prints a line before and after each. So the
parent knows the step in which the child crashed or hung.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torchwise.records import CoreUse, codec

LIMIT_S = 300.0
PREFIX = "torchwise-probe "

REMOVED_VARIABLES = ("TORCH_COMPILE_DISABLE", "TORCHDYNAMO_DISABLE", "TORCH_COMPILE_DEBUG", "TORCH_LOGS", "TORCH_TRACE")
"""Variables that would prevent the probe from compiling, or fill the disk. `check_variables` reports them."""
LAYERS, FEATURES = 7, 256
CALLS = 10
"""Consecutive calls with one number of threads: enough for some of them to wait, if threads wait for cores."""
TIMED_S, MIN_ROUNDS = 1.0, 3
BUILD_LIMIT_S = 60.0

PLAIN = """\
#include <vector>
extern "C" int answer() {
  std::vector<int> numbers(42, 1);
  int sum = 0;
  for (int n : numbers) sum += n;
  return sum;
}
"""

OPENMP = """\
#include <omp.h>
extern "C" int answer() {
  int sum = 0;
  #pragma omp parallel for reduction(+ : sum)
  for (int i = 0; i < 42; i++) sum += omp_get_num_threads() > 0;
  return sum;
}
"""

# In a separate process: this one may load torch later, and must not have a second OpenMP runtime.
LOAD = "import ctypes, sys; sys.exit(ctypes.CDLL(sys.argv[1]).answer() != 42)"


@dataclass(frozen=True, slots=True)
class Ended:
    """The exit status of a command, or None if it did not start or ended too late, its output, and the error or ""."""

    code: int | None
    out: str
    error: str


def run_command(command: Sequence[str], limit_s: float, environ: Mapping[str, str] | None = None) -> Ended:
    """Run `command` for at most `limit_s` seconds, in its own session so that its children end with it."""
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            env=environ,
            start_new_session=True,
        )
    except OSError as error:
        return Ended(None, "", f"{command[0]} does not start: {error.strerror or error}")
    try:
        out, err = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        out, _ = process.communicate()
        return Ended(None, out, f"it exceeded {limit_s:g} s")
    except BaseException:  # such as Ctrl-C, which does not reach the child
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        raise
    return Ended(process.returncode, out, _reason(process.returncode, err))


def _reason(code: int, err: str) -> str:
    if code == 0:
        return ""
    if code < 0:
        return f"it was killed by {signal.Signals(-code).name}"
    return find_error_line(err) or f"it exited with status {code}"


def find_error_line(text: str) -> str:
    """Return the most informative line of an error text: the first that mentions an error, or else the last."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    informative = [line for line in lines if "error:" in line.lower() or "not found" in line.lower()]
    return (informative or lines[-1:] or [""])[0][:300]


@dataclass(frozen=True, slots=True)
class Compiler:
    """The compiler that Inductor calls, and why a plain program and one with OpenMP fail with it, or ""."""

    command: str
    error: str = ""
    openmp_error: str = ""


def try_compiler(environ: Mapping[str, str] | None = None) -> Compiler:
    """Build and run both programs with the compiler that Inductor would call."""
    environ = os.environ if environ is None else environ
    command = environ.get("CXX") or ("clang++" if sys.platform == "darwin" else "g++")
    try:
        with tempfile.TemporaryDirectory(prefix="torchwise-doctor-") as folder:
            error = _build(command, Path(folder), PLAIN)
            openmp_error = error or _build(command, Path(folder), OPENMP, "-fopenmp")
    except OSError as problem:
        error = openmp_error = f"no temporary folder can be created: {problem}"
    return Compiler(command, error, openmp_error)


def _build(command: str, folder: Path, source: str, *flags: str) -> str:
    """Build and call a library from `source`, and return the error, or ""."""
    name = folder / f"program{len(flags)}"
    name.with_suffix(".cpp").write_text(source)
    library = str(name.with_suffix(".so"))
    build = [command, "-O1", "-shared", "-fPIC", *flags, str(name.with_suffix(".cpp")), "-o", library]
    built = run_command(build, BUILD_LIMIT_S)
    if built.error:
        return built.error
    loaded = run_command([sys.executable, "-I", "-c", LOAD, library], BUILD_LIMIT_S)
    return f"the built library does not load: {loaded.error}" if loaded.error else ""


@dataclass(frozen=True, slots=True)
class Step:
    """The result of one step: a detail such as a version, or why it raised, crashed or exceeded its limit."""

    detail: str
    failed: bool = False
    seconds: float = 0.0


Probe = Mapping[str, Step]
"""The started steps by name: import, threads, cores, inductor_cpu, cuda, triton, inductor_cuda."""


def run_probe() -> Probe:
    """Run the probe in a child, with empty compile caches, so that it compiles."""
    variables = {name: value for name, value in os.environ.items() if name not in REMOVED_VARIABLES}
    try:
        with tempfile.TemporaryDirectory(prefix="torchwise-doctor-", ignore_cleanup_errors=True) as folder:
            caches = {"TORCHINDUCTOR_CACHE_DIR": folder, "TRITON_CACHE_DIR": folder}
            threads = {"TORCHINDUCTOR_COMPILE_THREADS": "1"}  # no pool of compile workers for one kernel
            command = [sys.executable, "-P", "-m", "torchwise.diagnose.doctor.probe"]
            ended = run_command(command, LIMIT_S, {**variables, **caches, **threads})
    except OSError as error:
        return {"import": Step(f"no temporary folder can be created: {error}", failed=True)}
    return read(ended)


def read(ended: Ended) -> Probe:
    """Read the child's output. A step without an end crashed."""
    steps: dict[str, Step] = {}
    current = "import"
    for line in ended.out.splitlines():
        if not line.startswith(PREFIX):
            continue
        fields = json.loads(line.removeprefix(PREFIX))
        current = fields.pop("step")
        if fields:
            steps[current] = Step(**fields)
    if ended.error and not (current in steps and steps[current].failed):
        steps[current] = Step(ended.error, failed=True)
    return steps


def main() -> None:
    """Run the steps, in the child."""
    if not _step("import", lambda: _read_version("torch")):
        return
    import torch

    _step("threads", lambda: str(torch.get_num_threads()))
    _step("cores", time_threads)
    _step("inductor_cpu", lambda: _compile("cpu"))
    if torch.version.cuda is None:
        return
    triton = _step("triton", lambda: _read_version("triton"))
    if _step("cuda", _reach_gpu) and triton:
        _step("inductor_cuda", lambda: _compile("cuda"))


def _step(name: str, action: Callable[[], str]) -> bool:
    _report(step=name)
    start = time.perf_counter()
    try:
        step = Step(action(), seconds=time.perf_counter() - start)
    except Exception as error:  # the probe exists to find such errors
        step = Step(f"{type(error).__name__}: {find_error_line(str(error))}", failed=True)
    _report(step=name, **asdict(step))
    return not step.failed


def _report(**fields: Any) -> None:
    print(PREFIX + json.dumps(fields), flush=True)


def _read_version(package: str) -> str:
    return str(importlib.import_module(package).__version__)


def _reach_gpu() -> str:
    import torch

    torch.zeros(1, device="cuda").add_(1).item()
    return torch.cuda.get_device_name()


def _compile(device: str) -> str:
    """Compile and run three fused operations, and fail if the result is wrong or was not compiled."""
    import torch

    from torchwise._torch import inductor

    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x * 2 + 1)

    x = torch.linspace(-1, 1, 4096, device=device)
    exact = function(x.double())
    compiled, eager = ((call(x) - exact).abs().max().item() for call in (torch.compile(function), function))
    if not compiled < 1e-5:
        raise RuntimeError(f"the compiled function has an error of {compiled:.2g}, eager of {eager:.2g}")
    if inductor.generated_kernels() < 1:
        raise RuntimeError("torch.compile ran, but compiled nothing")
    return "compiled and agrees"


@dataclass(frozen=True, slots=True)
class ThreadCost:
    """The timings of a small model: seconds per call by number of threads, PyTorch's own number first."""

    cores: CoreUse
    seconds: dict[int, float]


def time_threads() -> str:
    """Time a small model with PyTorch's own number of threads and with one, in turn, as a `ThreadCost` in JSON."""
    import torch

    from torchwise.measure.quality import CoreWatch  # here, as it imports torch

    default = torch.get_num_threads()
    layers = [torch.nn.Linear(FEATURES, FEATURES) for _ in range(LAYERS)]
    model, x = torch.nn.Sequential(*layers), torch.ones(1, FEATURES)
    totals = dict.fromkeys((default, 1), 0.0)
    rounds, watch, end = 0, CoreWatch(), time.perf_counter() + TIMED_S
    with torch.no_grad():
        while rounds < MIN_ROUNDS or time.perf_counter() < end:
            rounds += 1
            for threads in totals:
                torch.set_num_threads(threads)
                totals[threads] += _time_calls(lambda: model(x))
    torch.set_num_threads(default)
    seconds = {threads: total / rounds / CALLS for threads, total in totals.items()}
    return codec.to_json(ThreadCost(watch.read_use(default), seconds))


def _time_calls(call: Callable[[], Any]) -> float:
    call()  # the start of new threads does not count
    start = time.perf_counter()
    for _ in range(CALLS):
        call()
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
