"""Check the GPU, its driver, Triton, and other users of the GPU."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from torchwise.doctor.finding import Finding, bad, ok, warn
from torchwise.doctor.system_info import SystemInfo

BUSY_MIB = 2048
"""GPU memory in use, in MiB, from which another container must use the GPU if no process is visible."""
BUSY_PERCENT = 10


def check(facts: SystemInfo) -> Iterator[Finding]:
    """Judge the GPU, whether torch reaches it and can compile for it, and whether it is free."""
    if facts.gpu is None:
        yield _no_gpu(facts)
        return
    gpu = facts.gpu
    found = f"{gpu['name']}, driver {gpu['driver_version']}, capability {gpu['compute_cap']}"
    if _number(gpu["compute_cap"]) < 7.0:
        yield bad("GPU", f"{found}, but Triton needs 7.0", "use a newer GPU for compiled plans, or --device cpu")
    else:
        yield ok("GPU", found)
    if facts.cuda_build is not None:
        yield from _torch_on_gpu(facts)
    yield _use(gpu, facts.gpu_processes)


def _no_gpu(facts: SystemInfo) -> Finding:
    hidden = facts.environ.get("CUDA_VISIBLE_DEVICES")
    if facts.driver and hidden is not None:
        return warn("GPU", f"hidden by CUDA_VISIBLE_DEVICES={hidden!r}", "unset it to use the GPU")
    if facts.driver:
        return bad(
            "GPU",
            "an NVIDIA driver is loaded, but nvidia-smi shows no GPU",
            "run nvidia-smi and fix the problem that it reports; start a container with GPU access",
        )
    return ok("GPU", "none; everything runs on the CPU")


def _torch_on_gpu(facts: SystemInfo) -> Iterator[Finding]:
    for step_name, topic, advice in (
        ("cuda", "CUDA", "update the driver, or install a torch built for an older CUDA"),
        ("triton", "Triton", "reinstall torch with its dependencies: pip install --force-reinstall torch"),
        ("inductor_cuda", "Inductor on the GPU", "install a C compiler (apt install gcc) if there is none"),
    ):
        step = facts.probe.get(step_name)
        if step is None:
            continue
        if step.failed:
            yield bad(topic, step.detail, advice)
        else:
            yield ok(topic, step.detail + (f", in {step.seconds:.1f} s" if step_name == "inductor_cuda" else ""))


def _use(gpu: Mapping[str, str], processes: tuple[Mapping[str, str], ...]) -> Finding:
    advice = "stop them, or choose another GPU with CUDA_VISIBLE_DEVICES: timings are unreliable while they run"
    if processes:
        names = ", ".join(f"{process.get('process_name')} ({process.get('pid')})" for process in processes[:4])
        return warn("GPU use", f"{len(processes)} other process{'es' * (len(processes) > 1)}: {names}", advice)
    used, busy = _number(gpu["memory.used"]), _number(gpu["utilization.gpu"])
    if used > BUSY_MIB or busy > BUSY_PERCENT:
        return warn("GPU use", f"{busy:.0f} % busy, {used:.0f} MiB in use by processes not visible here", advice)
    return ok("GPU use", "free")


def _number(text: str) -> float:
    """Read a number of nvidia-smi, or return 0 for "[N/A]"."""
    try:
        return float(text)
    except ValueError:
        return 0.0
