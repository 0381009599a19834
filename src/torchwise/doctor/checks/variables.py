"""Check for environment variables that change results or speed without a warning."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torchwise.doctor.finding import Finding, Status, ok
from torchwise.doctor.system_info import SystemInfo

OFF = ("", "0", "false", "False")


@dataclass(frozen=True, slots=True)
class Variable:
    """An environment variable that affects a study.

    Attributes:
        name: its name.
        effect: its effect on a study.
        status: the severity.
        when: "on" for any value but `OFF`, "off" for one of them, "set" for any value at all.
        advice: advice for the user, by default to unset it.
    """

    name: str
    effect: str
    status: Status = Status.WARN
    when: str = "on"
    advice: str = ""

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


def check(facts: SystemInfo) -> Iterator[Finding]:
    """Report each variable whose value affects a study."""
    has_none = True
    for variable in VARIABLES:
        value = facts.environ.get(variable.name)
        if value is not None and variable.matters(value):
            has_none = False
            found = f"{variable.name}={value}: {variable.effect}"
            advice = variable.advice or f"unset {variable.name}, unless it is also set in production on purpose"
            yield Finding("environment variable", variable.status, found, advice)
    if has_none:
        yield ok("environment variables", "none that changes results or speed")
