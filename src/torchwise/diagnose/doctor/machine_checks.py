"""Check the GPU and its users, the CPU's threads, load and frequency, and the space that compilation writes to."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from torchwise.diagnose.doctor.probe import ThreadCost
from torchwise.diagnose.doctor.system_info import GIB, MIB, Finding, Folder, SystemInfo, bad, ok, warn
from torchwise.records import codec
from torchwise.records.measurement import describe_contention

BUSY_MIB = 2048
"""GPU memory in use, in MiB, from which another container must use the GPU if no process is visible."""
BUSY_PERCENT = 10
BUSY = 0.5
"""Load, as a share of all CPUs, above which timings on the CPU are unreliable."""
SLOW_GOVERNORS = ("powersave", "conservative", "ondemand")
MIN_RECOMMENDED, MIN_REQUIRED = 2 * GIB, 256 * MIB
"""Free bytes below which tuning may run out of space, and below which it will."""
MIN_SHARED = 128 * MIB


def check_gpu(facts: SystemInfo) -> Iterator[Finding]:
    """Judge the GPU, whether torch reaches it and can compile for it, and whether it is free."""
    if facts.gpu is None:
        yield _explain_no_gpu(facts)
        return
    gpu = facts.gpu
    found = f"{gpu['name']}, driver {gpu['driver_version']}, capability {gpu['compute_cap']}"
    if _number(gpu["compute_cap"]) < 7.0:
        yield bad("GPU", f"{found}, but Triton needs 7.0", "use a newer GPU for compiled plans, or --device cpu")
    else:
        yield ok("GPU", found)
    if facts.cuda_build is not None:
        yield from _check_torch_on_gpu(facts)
    yield _check_gpu_use(gpu, facts.gpu_processes)


def _explain_no_gpu(facts: SystemInfo) -> Finding:
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


def _check_torch_on_gpu(facts: SystemInfo) -> Iterator[Finding]:
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


def _check_gpu_use(gpu: Mapping[str, str], processes: tuple[Mapping[str, str], ...]) -> Finding:
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


def check_cpu(facts: SystemInfo) -> Iterator[Finding]:
    """Judge the number of threads, their waiting for cores, the load and the frequency policy."""
    yield _check_threads(facts)
    yield _check_load(facts)
    yield from _check_cores(facts)
    if facts.governor in SLOW_GOVERNORS:
        yield warn(
            "CPU frequency",
            f"governor {facts.governor}: the clock changes during timings",
            "sudo cpupower frequency-set --governor performance, while tuning",
        )
    elif facts.governor:
        yield ok("CPU frequency", f"governor {facts.governor}")


def _check_threads(facts: SystemInfo) -> Finding:
    topic, setting = "CPU threads", facts.environ.get("OMP_NUM_THREADS")
    usable = facts.cpus if facts.quota is None else min(facts.cpus, math.ceil(facts.quota))
    fix = f"set OMP_NUM_THREADS={usable}"
    if setting is not None and not (setting.isdecimal() and int(setting) > 0):
        return warn(topic, f"OMP_NUM_THREADS is {setting!r}, but must be a whole number of at least 1", fix)
    probed = facts.probe.get("threads")
    threads = int(setting) if setting else int(probed.detail) if probed and not probed.failed else facts.cpus
    if threads > usable and usable < facts.cpus:
        limit = f"the container may use {facts.quota:g} of {facts.cpus} CPUs"
        return warn(topic, f"{limit}, but torch starts {threads} threads and is throttled", fix)
    if threads > usable:
        return warn(topic, f"{threads} threads compete for {usable} CPUs", fix)
    if setting and threads < usable:
        advice = "unset it, unless it is also set in production"
        return warn(topic, f"OMP_NUM_THREADS={setting}: the model uses {setting} of {usable} CPUs", advice)
    return ok(topic, f"{threads} on {usable} CPU{'s' * (usable > 1)}")


def _check_cores(facts: SystemInfo) -> Iterator[Finding]:
    """Report the slow-down of a small model if its threads wait for cores, or that the cores are free."""
    timed = facts.probe.get("cores")
    if timed is None or timed.failed:
        return
    cost = codec.from_json(timed.detail, ThreadCost)
    found = describe_contention(cost.cores, cost.seconds, "a small model")
    if not cost.cores.is_contended:
        yield ok("CPU cores", found)
        return
    yield warn(
        "CPU cores",
        found,
        "set OMP_NUM_THREADS=1 for models with short calls, or run `torchwise tune`: it tries `threads` first, and "
        "a plan sets them only for its own calls",
    )


def _check_load(facts: SystemInfo) -> Finding:
    if facts.load is None:
        return ok("CPU load", "unknown on this system")
    found = f"{facts.load:.1f} processes run or wait on {facts.host_cpus} CPUs"
    if facts.load > BUSY * facts.host_cpus:
        return warn("CPU load", found, "stop other programs: CPU timings are unreliable while they run")
    return ok("CPU load", found)


def check_storage(facts: SystemInfo) -> Iterator[Finding]:
    """Judge each folder for compilation."""
    for topic, folder, variable in (
        ("compile cache", facts.cache, "TORCHINDUCTOR_CACHE_DIR"),
        ("temporary files", facts.temporary, "TMPDIR"),
    ):
        found, full = _describe_folder(folder), f"free space there, or set {variable} to a larger disk"
        if folder.error:
            yield bad(topic, found, f"set {variable} to a writable folder")
        elif folder.free < MIN_REQUIRED:
            yield bad(topic, found, full)
        else:
            yield warn(topic, found, full) if folder.free < MIN_RECOMMENDED else ok(topic, found)
    if facts.shared is not None:
        found = _describe_folder(facts.shared)
        advice = "start the container with more, such as docker run --shm-size=1g: processes exchange tensors there"
        is_low = facts.shared.error or facts.shared.free < MIN_SHARED
        yield warn("shared memory", found, advice) if is_low else ok("shared memory", found)


def _describe_folder(folder: Folder) -> str:
    if folder.error:
        return f"{folder.path} cannot be written: {folder.error}"
    return f"{folder.path}, {_show_size(folder.free)} free"


def _show_size(count: int) -> str:
    return f"{count / GIB:.1f} GiB" if count >= GIB else f"{count / MIB:.0f} MiB"
