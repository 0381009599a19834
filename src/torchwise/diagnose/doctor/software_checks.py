"""Check Python, PyTorch, the compilers and environment variables, and known problems of their combinations."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from torchwise._torch import dynamo, inductor
from torchwise.diagnose.doctor.system_info import Finding, Status, SystemInfo, bad, ok, warn

OLDEST_PYTHON, NEWEST_PYTHON = (3, 11), (3, 14)
OLDEST_TORCH, NEWEST_TORCH = (2, 11), (2, 15)
SUPPORTED = "Torchwise supports 2.11 to 2.15"
INSTALL = "apt install g++ (Debian, Ubuntu), dnf install gcc-c++ (Fedora, RHEL) or xcode-select --install (macOS)"
OFF = ("", "0", "false", "False")


def check_python(facts: SystemInfo) -> Iterator[Finding]:
    """Judge the version of Python and the presence of Python.h."""
    version = ".".join(map(str, facts.python))
    if facts.python[:2] < OLDEST_PYTHON:
        yield bad("Python", version, "use Python 3.11 or later")
    elif facts.python[:2] > NEWEST_PYTHON:
        yield warn(
            "Python", f"{version} is newer than all tested versions", "use Python 3.11 to 3.14 if something fails"
        )
    else:
        yield ok("Python", version)
    path, exists = facts.headers
    if exists:
        yield ok("Python headers", path)
    else:
        yield bad(
            "Python headers",
            f"{path} is missing, but compiled kernels need it",
            "install python3-dev (Debian, Ubuntu) or python3-devel (Fedora, RHEL) for this version of Python",
        )


def release(version: str) -> tuple[int, int]:
    """Return major and minor of a version such as "2.13.0+cpu", or (0, 0) if it has none."""
    found = re.match(r"(\d+)\.(\d+)", version)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def check_torch(facts: SystemInfo) -> Iterator[Finding]:
    """Judge the version, the build, and the probe's results."""
    yield _check_version(facts)
    if facts.torch == "absent":
        return
    yield _check_build(facts)
    step = facts.probe.get("inductor_cpu")
    if step is not None and step.failed:
        yield bad(
            "Inductor on the CPU",
            f"compiling a small function fails: {step.detail}",
            "fix the C++ compiler, OpenMP or Python headers first if they have findings, too; "
            "otherwise run again with TORCHDYNAMO_VERBOSE=1 and search for the message",
        )
    elif step is not None:
        yield ok("Inductor on the CPU", f"{step.detail}, in {step.seconds:.1f} s")


def _check_version(facts: SystemInfo) -> Finding:
    imported = facts.probe.get("import")
    if facts.torch == "absent":
        return bad("torch", "it is not installed for this Python", "pip install 'torch>=2.11'")
    if imported is not None and imported.failed:
        return bad(
            "torch",
            f"{facts.torch} is installed, but importing it fails: {imported.detail}",
            "reinstall it: pip install --force-reinstall torch",
        )
    if release(facts.torch) < OLDEST_TORCH:
        return bad("torch", f"{facts.torch} is too old; {SUPPORTED}", "pip install --upgrade torch")
    if release(facts.torch) > NEWEST_TORCH:
        return warn(
            "torch",
            f"{facts.torch} is newer than all tested versions; {SUPPORTED}",
            "update Torchwise if possible; every plan is still verified before its use",
        )
    return ok("torch", facts.torch)


def _check_build(facts: SystemInfo) -> Finding:
    if facts.cuda_build is not None:
        return ok("torch build", f"for CUDA {facts.cuda_build}" + ("" if facts.gpu else "; it also runs on the CPU"))
    if facts.gpu is not None:
        return warn(
            "torch build",
            f"for the CPU only, but there is a GPU ({facts.gpu['name']})",
            "install a CUDA build to use it: https://pytorch.org/get-started/locally",
        )
    return ok("torch build", "for the CPU")


def check_call_checks(facts: SystemInfo) -> Iterator[Finding]:
    """Say whether compiled code checks the calls of served plans."""
    if facts.torch == "absent" or facts.compiler.error:
        return  # which has a finding of its own
    if facts.call_checks is None:
        yield ok("checks of calls", "compiled")
    elif facts.call_checks_intended:
        yield ok("checks of calls", f"by Python, as {facts.call_checks}")
    else:
        yield warn(
            "checks of calls",
            f"by Python, as {facts.call_checks}",
            "each call of a served plan takes some microseconds more until they are compiled",
        )


def check_compiler(facts: SystemInfo) -> Iterator[Finding]:
    """Judge the attempts to build, load and run a program."""
    compiler = facts.compiler
    if not compiler.error:
        yield ok("C++ compiler", f"{compiler.command} works")
    elif "does not load" in compiler.error or "temporary folder" in compiler.error:
        yield bad(
            "C++ compiler",
            f"{compiler.command}: {compiler.error}",
            "set TMPDIR to a folder that is writable and not mounted noexec",
        )
    elif "CXX" in facts.environ:
        yield bad("C++ compiler", f"CXX={compiler.command}: {compiler.error}", f"unset CXX, or {INSTALL}")
    else:
        yield bad("C++ compiler", f"{compiler.command}: {compiler.error}", INSTALL)
    if compiler.error:
        return
    if compiler.openmp_error:
        yield bad(
            "OpenMP",
            f"{compiler.command} -fopenmp: {compiler.openmp_error}",
            "install libgomp (apt install libgomp1), or libomp-dev for clang",
        )
    else:
        yield ok("OpenMP", f"{compiler.command} supports it")


@dataclass(frozen=True, slots=True)
class Variable:
    """An environment variable, and when it has its effect: "on", "off" (`OFF`), or "set" to any value at all."""

    name: str
    effect: str
    status: Status = Status.WARN
    when: str = "on"

    def matters(self, value: str) -> bool:
        """Return whether this value has the effect."""
        return {"on": value not in OFF, "off": value in OFF and value != "", "set": value != ""}[self.when]


NOTHING = "torch.compile does nothing, so every compiled plan is eager"
NO_CACHE = "compiled code is not cached, so every restart compiles again"
FIXED = "is on for every plan, so Torchwise cannot compare plans with and without it"

VARIABLES = (
    Variable("TORCH_COMPILE_DISABLE", NOTHING, Status.BAD),
    Variable("TORCHDYNAMO_DISABLE", NOTHING, Status.BAD),
    Variable("TORCHDYNAMO_SUPPRESS_ERRORS", "a failed compilation falls back to eager without an error"),
    Variable("TORCH_COMPILE_OVERRIDE_BACKENDS", "another backend runs instead of the plan's", Status.BAD),
    Variable("TORCHINDUCTOR_FORCE_DISABLE_CACHES", NO_CACHE),
    Variable("TORCH_COMPILE_FORCE_DISABLE_CACHES", NO_CACHE),
    Variable("TORCHINDUCTOR_FX_GRAPH_CACHE", NO_CACHE, when="off"),
    Variable("TORCHINDUCTOR_AUTOGRAD_CACHE", NO_CACHE, when="off"),
    Variable("TORCH_LOGS", "logging slows compilation, and fills the output", when="set"),
    Variable("TORCH_TRACE", "every compilation writes traces to disk", when="set"),
    Variable("TORCH_COMPILE_DEBUG", "every compilation writes its graphs and code to disk"),
    Variable(
        "CUDA_LAUNCH_BLOCKING",
        "every kernel waits for the one before: GPU times are useless, and CUDA graphs cannot be captured",
        Status.BAD,
    ),
    Variable("PYTORCH_NO_CUDA_MEMORY_CACHING", "every allocation goes to the driver, which is slow", Status.BAD),
    Variable("TRITON_INTERPRET", "GPU kernels are interpreted instead of compiled", Status.BAD),
    Variable("NVIDIA_TF32_OVERRIDE", "forces TF32 off, against the choice of a plan", when="off"),
    Variable("NVIDIA_TF32_OVERRIDE", "forces TF32 on, against the choice of a plan, and also in the original model"),
    Variable("TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", "TF32 is on in the original model, too"),
    Variable("TORCHINDUCTOR_USE_FAST_MATH", "Inductor trades precision for speed in every plan"),
    Variable("TORCHINDUCTOR_MAX_AUTOTUNE", FIXED),
    Variable("TORCHINDUCTOR_COORDINATE_DESCENT_TUNING", FIXED),
    Variable("TORCHINDUCTOR_FREEZING", FIXED),
    Variable("TORCHINDUCTOR_CPP_WRAPPER", FIXED),
    Variable("TORCHINDUCTOR_CUDAGRAPHS", FIXED),
    Variable("ATEN_CPU_CAPABILITY", "limits the vector instructions of the original model on the CPU", when="set"),
    Variable("ONEDNN_MAX_CPU_ISA", "limits the vector instructions of convolutions and matrix products", when="set"),
    Variable("MKL_CBWR", "forces reproducible, slower kernels for matrix products", when="set"),
)


def check_variables(facts: SystemInfo) -> Iterator[Finding]:
    """Report each variable whose value affects a study."""
    found = [
        Finding(
            "environment variable",
            variable.status,
            f"{variable.name}={value}: {variable.effect}",
            f"unset {variable.name}, unless it is also set in production on purpose",
        )
        for variable in VARIABLES
        if (value := facts.environ.get(variable.name)) is not None and variable.matters(value)
    ]
    yield from found or [ok("environment variables", "none that changes results or speed")]


PROBLEMS: tuple[tuple[Callable[[SystemInfo], bool], Finding], ...] = (
    (
        lambda facts: release(facts.torch) == (2, 11),
        warn(
            "known problem",
            "torch 2.11 miscompiles the broadcast addition of complex tensors (pytorch/pytorch#174891)",
            "use torch 2.13 or later for complex models; verification rejects wrong plans",
        ),
    ),
    (
        lambda facts: (
            release(facts.torch) == (2, 11)
            and (facts.cuda_build or "").startswith("13.")
            and "H200" in (facts.gpu or {}).get("name", "")
        ),
        warn(
            "known problem",
            f"{inductor.AOTI_LOAD} ended the process with SIGSEGV on an H200, with torch 2.11 for CUDA 13.0",
            "load no AOTInductor packages in important processes; use the caches of torch.compile instead",
        ),
    ),
    (  # It is all right, as the crash needs a rare option.
        lambda facts: (2, 11) <= release(facts.torch) <= (2, 13),
        Finding(
            "known problem",
            Status.OK,
            f"training an LSTM with {dynamo.CONFIG}.allow_rnn=True crashes",
            "leave allow_rnn at its default, False",
        ),
    ),
)
"""Combinations of software and hardware with a problem. Add a row for a new one, with the source of the report."""


def check_known_issues(facts: SystemInfo) -> Iterator[Finding]:
    """Report each known problem of this machine."""
    if facts.torch == "absent":
        return
    problems = [problem for applies, problem in PROBLEMS if applies(facts)]
    yield from problems or [ok("known problems", f"none with torch {facts.torch}")]
