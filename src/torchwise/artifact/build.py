"""From a decision to an artifact: its plan is compiled once more, in a process of its own, into an empty folder.

Then another process starts from the results, through the same layers that will answer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import torch

from torchwise import __version__, environment
from torchwise._torch import cpu_isa_cache, dynamo
from torchwise.artifact import package
from torchwise.artifact.package import Info, Manifest
from torchwise.artifact.remote_files import Folder, hide_password, is_folder, is_url
from torchwise.errors import InputError, StalePlanError, UnsupportedError
from torchwise.keywords import checked_keywords
from torchwise.plan import Plan
from torchwise.plan.rules import keeps_code
from torchwise.plan.workload_spec import check_form
from torchwise.records import Decision, Failure
from torchwise.trial import DerivedJob, Job, Launcher, Limits, ProcessLauncher, ask_worker, own_caches, send_model
from torchwise.workload import Example, Workload
from torchwise.workload.target import read_workload

LIMIT_S = 1800.0
LEFT_OUT = (".lock", ".tmp")


@checked_keywords()
def save(
    path: str | Path,
    model: Callable[..., Any] | Workload | str,
    decision: Decision,
    args: Any = None,
    kwargs: dict[str, Any] | None = None,
    *,
    examples: Sequence[Example] | None = None,
    limit_s: float = LIMIT_S,
    limit_bytes: int | None = None,
    launcher: Launcher | None = None,
) -> Info:
    """Write a decision and the code compiled for it to one file, or into a folder for a fleet.

    A worker compiles the plan as it will be used. Another worker then starts it once more from the first one's results,
    and the manifest holds the cost of that start. Nothing is compiled in this process, and the model is not changed.
    For compilers that compile in each process, such as TensorRT, the artifact has the decision alone.

    Args:
        path: the file, or the URL of a folder, such as s3://bucket/models, where each machine finds its own (`folder`).
            An existing artifact is replaced when the new one is complete.
        model: the subject of the decision: a module, a function, a `Workload`, or the target.
        decision: result of `tune`, on this machine.
        args: example arguments that the plan was verified on, a tuple (or one tensor), not for a target or Workload.
        kwargs: example keyword arguments.
        examples: several examples, in place of `args`.
        limit_s: seconds that each worker may take.
        limit_bytes: for a folder, the maximum total size of all artifacts in it. The least recently used are removed,
            but never the one just saved. None removes nothing.
        launcher: where the workers run; by default processes on this machine.

    Raises:
        InputError: an argument cannot be used, or the file cannot be written.
        StalePlanError: the decision was made for another machine, another software or another model.
        UnsupportedError: the plan cannot be compiled, or does not answer these examples. Or a library for the URL is
            missing.
    """
    folder = _folder(path, limit_bytes)
    Decision.from_json(decision.to_json())  # data that cannot be read again is refused before minutes are spent
    workload = _workload(model, args, kwargs, examples)
    _check_holds(workload, decision)
    if folder is not None:
        folder.prepare(decision)
    made, data = _make_artifact(workload, decision, launcher or ProcessLauncher(), limit_s)
    if folder is None:
        package.put(Path(path), data)
    else:
        folder.save(decision, data, limit_bytes)
    return made


def _folder(path: str | Path, limit_bytes: int | None) -> Folder | None:
    """Return the folder that a URL names, or None for a file."""
    if is_url(path):
        if not is_folder(path):
            raise InputError(
                f"{hide_password(path)} names a file, but must name a folder: in it, each machine has its own"
            )
        if limit_bytes is not None and limit_bytes < 1:
            raise InputError(f"limit_bytes is {limit_bytes}, but must be at least 1")
        return Folder(str(path))
    if limit_bytes is not None:
        raise InputError(f"limit_bytes is {limit_bytes}, but {path} is one file: a limit is for a folder, given by URL")
    if not (parent := Path(path).resolve().parent).is_dir():
        raise InputError(f"{path} cannot be written: there is no folder {parent}")
    return None


def _make_artifact(
    workload: Workload | str, decision: Decision, launcher: Launcher, limit_s: float
) -> tuple[Info, bytes]:
    live = workload if isinstance(workload, Workload) else None
    with send_model(live) as file, own_caches() as folder:
        job = Job("try", decision.workload, decision.plan, file.source, cache_dir=folder, settings=file.settings)
        if isinstance(workload, str):
            job = replace(job, workload=replace(decision.workload, target=workload))
        cold, warm = _compile_and_restart(job, decision, launcher, limit_s)
        manifest = Manifest(
            __version__,
            environment.detect(decision.workload.device),
            {},
            cold.checks,
            cold.seconds,
            warm.seconds if warm else None,
            warm.compiled if warm else 0,
        )
        return package.pack(manifest, decision, collect(Path(folder)) if _keeps_code(decision.plan) else {})


def _workload(
    model: Any, args: Any, kwargs: dict[str, Any] | None, examples: Sequence[Example] | None
) -> Workload | str:
    """Return a live workload, or the target. Raises as `read_workload` does."""
    from torchwise.runtime import unwrap

    plain = model if isinstance(model, (str, Workload)) else unwrap(model)
    return read_workload(plain, args, kwargs, examples) or plain


def _check_holds(workload: Workload | str, decision: Decision) -> None:
    if isinstance(workload, str):
        check_form(workload)
        stale = "; ".join(decision.list_changes(environment.detect(decision.workload.device)))
    else:
        from torchwise.runtime import stale_because

        stale = stale_because(workload.call, decision) or ""
    if stale:
        raise StalePlanError(f"the decision is stale ({stale}): tune again, here")


def _compile_and_restart(
    job: Job, decision: Decision, launcher: Launcher, limit_s: float
) -> tuple[BuildResult, BuildResult | None]:
    """Compile, and start once more.

    A plan that leaves the model's functions alone needs neither. One whose code no later process finds only has to
    answer.
    """
    if not decision.plan.is_traced:
        return BuildResult(0.0, {}, 0), None
    if not _keeps_code(decision.plan):
        return _run(Build("start", job, decision.to_json()), launcher, limit_s), None
    cold = _run(Build("compile", job, decision.to_json()), launcher, limit_s)
    return cold, _run(Build("start", job, decision.to_json(), cold.checks), launcher, limit_s)


def _keeps_code(plan: Plan) -> bool:
    """Whether a later process finds code. In eager a model's functions are rewritten in each process."""
    return plan.backend != "eager" and keeps_code(plan)


def _run(build: Build, launcher: Launcher, limit_s: float) -> BuildResult:
    answer = ask_worker(launcher, build, BuildResult, Limits.from_free_memory(limit_s), lambda _stage: None)
    if isinstance(answer, Failure):
        raise UnsupportedError(f"there is nothing to save, because in a worker the plan {answer}")
    return answer


def collect(folder: Path) -> dict[str, bytes]:
    """Return the files of compiled code in a worker's `Job.cache_dir` by their names in an artifact."""
    found = {}
    for file in sorted(folder.rglob("*")):
        if file.is_file() and not file.is_symlink() and file.suffix not in LEFT_OUT:
            place = file.relative_to(folder)
            found[str(place) if place.parts[0] == "triton" else f"inductor/{place}"] = file.read_bytes()
    return found


@dataclass(frozen=True, slots=True)
class Build(DerivedJob):
    """A worker's order: to compile into the job's empty folder, or to start from the results and checks of that."""

    FUNCTION = "torchwise.artifact.build:{0.step}"
    step: Literal["compile", "start"]
    job: Job
    decision: str
    checks: dict[str, bool] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class BuildResult:
    """A worker's answer.

    Attributes:
        seconds: time of the first calls beyond steady ones.
        compiled: number of graphs that were compiled because no code was found for them.
    """

    seconds: float
    checks: dict[str, bool]
    compiled: int


def compile(build: Build, stage: Callable[[str], None]) -> BuildResult:
    """Compile everything that the decision's plan needs for the workload's examples."""
    stage("compile")
    with cpu_isa_cache.recording() as checks:
        seconds = _first_calls(build)
    return BuildResult(seconds, checks, _count_compiled_graphs())


def start(build: Build, stage: Callable[[str], None]) -> BuildResult:
    """Answer the same calls in this fresh process."""
    stage("warm start")
    cpu_isa_cache.replay(build.checks)
    return BuildResult(_first_calls(build), build.checks, _count_compiled_graphs())


def _first_calls(build: Build) -> float:
    """Make the first calls, and return the seconds they took beyond steady ones."""
    from torchwise.runtime import OptimizedFunction, OptimizedModule
    from torchwise.trial.harness import Harness

    harness, decision = Harness(build.job), Decision.from_json(build.decision)
    call = harness.workload.call  # the caller has checked that the decision holds for it here
    fast: OptimizedModule | OptimizedFunction
    fast = OptimizedModule(call, decision) if isinstance(call, torch.nn.Module) else OptimizedFunction(call, decision)
    with harness.gradients():
        seconds = harness.first_calls(harness.runners(fast))
    if sentences := fast.statistics.sentences:
        raise UnsupportedError(f"the plan does not answer these examples: {next(iter(sentences.values()))}")
    return seconds


def _count_compiled_graphs() -> int:
    from torchwise.compile.backends import kept_models  # with all of the compilers, which a program that loads lacks
    from torchwise.compile.programs.build import MADE

    counts = dynamo.get_counters("inductor")
    return (
        counts.get("fxgraph_cache_miss", 0) + counts.get("fxgraph_cache_bypass", 0) + len(MADE) + len(kept_models.MADE)
    )
