"""Prove that a candidate may take the place of a reference: `torchwise.verify` and the request behind the command."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from torchwise import environment
from torchwise.diagnose.requests import make_spec
from torchwise.errors import BaselineError, InputError, WorkloadError, format_error, is_positive
from torchwise.keywords import checked_keywords
from torchwise.parsing import parse_json, parse_toml
from torchwise.plan import Numerics
from torchwise.plan.effort import EFFORTS
from torchwise.plan.requirements import Property
from torchwise.plan.workload_spec import WorkloadSpec
from torchwise.records import Check, CheckName, Failure, FailureKind, Outcome, Verdict
from torchwise.records.listener import Listener
from torchwise.records.pair import PairVerdict
from torchwise.trial import Job, Launcher, Limits, ProcessLauncher, ProcessSettings, ask_worker
from torchwise.trial.interpreter_launcher import is_program
from torchwise.trial.pair_job import PairJob, PairJudgement, PairTiming
from torchwise.verify.input_description import InputDescription
from torchwise.workload import Example, Workload

LIMIT_S = 60.0
"""Seconds for each answer of the candidate."""
WHOLE_LIMIT_S = 1800.0
"""Seconds for all of them."""
REPRO_LIMIT_S = 300.0
PRECISIONS = {
    Numerics.EXACT: "native",
    Numerics.SAME_PRECISION: "native",
    Numerics.LOWER_PRECISION: "bf16",
    Numerics.QUANTIZED: "native",
    Numerics.SUBSTITUTED: "native",
}
"""The lowest precision that each level of numerics lets a candidate compute in."""


@dataclass(frozen=True, slots=True)
class PairRequest:
    """One request to prove a candidate.

    Attributes:
        workload: the reference, with the device, the seed of its weights, and "training" to compare gradients, too.
        candidate: the candidate's target.
        inputs: descriptions of the inputs, or nothing for those of the reference's factory.
        recorded: file with recorded inputs, or "".
        allow: the permitted numerics.
        properties: promises to check.
        stochastic: whether answers are random, or None to find out.
        trains: whether models are put into training mode.
        times: whether to time the candidate against the reference, too.
        limit_s: seconds for each answer of the candidate.
        repro: .py file for a program that shows a difference, or "".
        sources: files with the live reference and candidate, or None for targets.
        settings: PyTorch's settings in the user's process, or None for its defaults.
        python: the interpreter that runs the candidate, or "" for this one.
    """

    workload: WorkloadSpec
    candidate: str
    inputs: tuple[str, ...] = ()
    recorded: str = ""
    allow: Numerics = Numerics.SAME_PRECISION
    properties: tuple[Property, ...] = ()
    stochastic: bool | None = None
    trains: bool = False
    times: bool = False
    limit_s: float = LIMIT_S
    repro: str = ""
    effort: str = "standard"
    sources: tuple[str | None, str | None] = (None, None)
    settings: ProcessSettings | None = field(default=None)
    python: str = ""

    def __post_init__(self) -> None:
        if self.python and not is_program(self.python):
            raise InputError(f"python is {self.python!r}, but must be an interpreter that can be run")
        if self.python and self.times:
            raise InputError(
                f"python is {self.python!r}, and timing is asked for, but both sides are timed in one process: leave "
                "one of them out"
            )
        if not is_positive(self.limit_s):
            raise InputError(f"limit is {self.limit_s!r} s, but must be above 0")
        if self.repro and not self.repro.endswith(".py"):
            raise InputError(f"the repro is {self.repro!r}, but must be a .py file")
        if self.allow.is_judged_by_user and self.workload.tolerance is None:
            raise InputError(f"allow is {self.allow.value!r}, but no tolerance is given: give one, such as 0.01")
        if self.workload.tolerance is not None and not self.allow.is_judged_by_user:
            raise InputError(
                "a tolerance is given, but only a quantized candidate, or one of substituted operators, may use it: "
                "allow quantized or substituted"
            )
        if self.inputs:
            InputDescription.parse(self.inputs)

    def make_job(self) -> PairJob:
        """Return the order for a worker."""
        effort = EFFORTS[self.effort]
        job = Job("try", self.workload, effort=effort, settings=self.settings)
        properties = self.properties
        if self.allow is Numerics.EXACT and Property.BITWISE not in properties:
            properties = (*properties, Property.BITWISE)
        return PairJob(
            job,
            self.candidate,
            sources=self.sources,
            inputs=self.inputs,
            recorded=self.recorded,
            properties=properties,
            precision=PRECISIONS[self.allow],
            stochastic=self.stochastic,
            trains=self.trains,
            limit_s=self.limit_s,
            repro=self.repro,
            python=self.python,
        )


@checked_keywords()
def verify(
    reference: Callable[..., Any] | Workload | str,
    candidate: Callable[..., Any] | Workload | str,
    inputs: Any = None,
    *,
    allow: Numerics | str = Numerics.SAME_PRECISION,
    tolerance: float | None = None,
    grad: bool = False,
    training: bool = False,
    stochastic: bool | None = None,
    bitwise: bool = False,
    deterministic: bool = False,
    batch_invariant: bool = False,
    time: bool = False,
    device: str | None = None,
    seed: int = 0,
    limit: float = LIMIT_S,
    repro: str | Path | None = None,
    python: str | Path | None = None,
    progress: bool = True,
) -> PairVerdict:
    """Prove that a candidate may take the place of a reference, or find the smallest inputs on which it is wrong.

    The candidate runs in a process of its own, which holds neither the reference nor its answers.

    Args:
        reference: the model or function that is right, a `Workload`, or a target such as "path/file.py:factory".
        candidate: the one to prove, in any of these forms.
        inputs: a tuple of arguments (or one tensor), a list of `Example`s, one description for each input such as
            "x: float32[n, 64] n=1..4096", or None for those of the reference's factory.
        allow: permitted numerics: "exact", "same-precision", "lower-precision", "quantized" or "substituted".
        tolerance: relative error of each output that "quantized" and "substituted" permit.
        grad: compare the gradients of inputs and weights, too.
        training: put models into training mode, and compare gradients. Training steps are always compared as such.
        stochastic: whether answers are random, so that distributions are compared, or None to find out.
        bitwise: require the reference's bits.
        deterministic: require the same bits in every call.
        batch_invariant: require the same bits for a sample in a batch of any size.
        time: also time the candidate against the reference, once it is right.
        device: "cpu" or "cuda", by default the device of the reference and its inputs, or "cuda" if available.
        seed: seed of the weights that factories draw.
        limit: seconds for each answer of the candidate.
        repro: .py file for a program that shows a difference, or None for no program. A file that exists is kept, and
            another name is taken.
        python: the interpreter that runs the candidate, which may have another PyTorch, or None for this one.
        progress: whether to show the progress.

    Raises:
        InputError: an argument cannot be used, or a side cannot be loaded.
        BaselineError: the reference fails on the given inputs.
    """
    from torchwise.report.progress import Progress

    workload = _live_workload(reference, inputs)
    mode = "training" if grad or training else "inference"
    spec = make_spec(reference, workload, device, mode=mode, seed=seed, tolerance=tolerance)
    request = PairRequest(
        spec,
        name_side(candidate),
        tuple(read_descriptions(inputs)),
        allow=Numerics.of(str(allow)),
        properties=list_properties(bitwise=bitwise, deterministic=deterministic, batch_invariant=batch_invariant),
        stochastic=stochastic,
        trains=training,
        times=time,
        limit_s=limit,
        repro=str(repro) if repro is not None else "",
        python=str(python) if python is not None else "",
    )
    display: AbstractContextManager[Any] = Progress() if progress else nullcontext(Listener())
    with _send_sides(request, reference, candidate, inputs, workload) as sent, display as listener:
        return run_verification(sent, ProcessLauncher(), listener)


def list_properties(**wanted: bool) -> tuple[Property, ...]:
    """List the properties that are required by name, such as `batch_invariant=True`."""
    return tuple(Property(name.replace("_", "-")) for name, is_wanted in wanted.items() if is_wanted)


def name_side(side: Any) -> str:
    """Return the name of one side."""
    from torchwise.workload.target import name_of

    return name_of(side)


def read_descriptions(inputs: Any) -> list[str]:
    """Return the descriptions among the inputs of a call, or nothing if they are values."""
    if isinstance(inputs, str):
        return [inputs]
    is_described = isinstance(inputs, (list, tuple)) and bool(inputs) and all(isinstance(one, str) for one in inputs)
    return list(inputs) if is_described else []


def read_input_file(file: Path) -> tuple[tuple[str, ...], str]:
    """Read a file of inputs: descriptions in TOML or JSON under the key "inputs", or recorded ones in a .pt file.

    Returns:
        The descriptions, and the file of recorded inputs or "".

    Raises:
        InputError: the file has another form.
    """
    if file.suffix == ".pt":
        return (), str(file)
    if file.suffix not in (".toml", ".json"):
        raise InputError(f"the file of inputs is {str(file)!r}, but must be a .toml, .json or .pt file")
    try:
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(f"{file} cannot be read: {error.strerror}") from error
    data = parse_toml(text) if file.suffix == ".toml" else parse_json(text)
    found = data.get("inputs") if isinstance(data, dict) else data
    if not isinstance(found, list) or not found or not all(isinstance(line, str) for line in found):
        raise InputError(f'{file} has no list "inputs" of descriptions, such as inputs = ["x: float32[n, 64]"]')
    return tuple(found), ""


def _live_workload(reference: Any, inputs: Any) -> Workload | None:
    """Return a live reference with its inputs, or None for a target."""
    if isinstance(reference, Workload):
        if inputs is not None and not read_descriptions(inputs):
            raise InputError("the reference is a Workload, which has examples of its own: leave inputs out")
        return reference
    if isinstance(reference, str) or read_descriptions(inputs):
        return None
    if inputs is None:
        raise InputError('no inputs are given: pass a tuple of arguments, or such as "x: float32[n, 64]"')
    return Workload(reference, _read_examples(inputs))


def _read_examples(inputs: Any) -> tuple[Example, ...]:
    if isinstance(inputs, list) and inputs and all(isinstance(one, Example) for one in inputs):
        return tuple(inputs)
    return (Example((inputs,) if isinstance(inputs, torch.Tensor) else tuple(inputs)),)


@contextmanager
def _send_sides(
    request: PairRequest, reference: Any, candidate: Any, inputs: Any, workload: Workload | None
) -> Iterator[PairRequest]:
    """Write live sides and inputs to files while the workers need them."""
    with tempfile.TemporaryDirectory(prefix="torchwise-pair-") as folder:
        sources: list[str | None] = []
        for name, side in (("reference", reference), ("candidate", candidate)):
            if isinstance(side, str):
                sources.append(None)
                continue
            call = side.call if isinstance(side, Workload) else side
            sources.append(str(Path(folder, f"{name}.pt")))
            _save((call, workload if name == "reference" else None), name, sources[-1])
        recorded = request.recorded
        if isinstance(reference, str) and inputs is not None and not request.inputs:
            recorded = str(Path(folder, "inputs.pt"))
            torch.save([(example.args, dict(example.kwargs)) for example in _read_examples(inputs)], recorded)
        settings = ProcessSettings.from_this_process() if any(sources) else None
        first, second = sources
        yield replace(request, sources=(first, second), recorded=recorded, settings=settings)


def _save(side: Any, name: str, file: str | None) -> None:
    from torchwise.trial import pickling

    assert file is not None
    try:
        torch.save(side, file, pickle_module=pickling)
    except Exception as error:  # pickling runs the user's own hooks, which may raise anything
        raise WorkloadError(
            f"the {name} cannot be sent to a worker process ({format_error(error)}); give a target instead, such as "
            "path/file.py:function"
        ) from error


def run_verification(request: PairRequest, launcher: Launcher, listener: Listener) -> PairVerdict:
    """Judge the pair in a worker, and time it in another one. Raises as `verify` does."""
    start = time.monotonic()
    job = request.make_job()
    limits = Limits.from_free_memory(WHOLE_LIMIT_S)
    listener.start_step(f"verify {request.candidate}")
    answer = ask_worker(launcher, job, PairJudgement, limits, listener.stage)
    if isinstance(answer, Failure):
        answer = _explain_failure(answer)
    found = PairVerdict(
        request.workload.target,
        request.candidate,
        environment.detect(request.workload.device),
        Verdict(answer.checks),
        answer.cases,
        answer.failing,
        notes=answer.notes,
    )
    if found.failing is not None and found.failing.repro:
        listener.start_step(f"run {found.failing.repro}")
        found = replace(found, failing=replace(found.failing, confirmed=_is_confirmed(found.failing.repro)))
    if request.times and found.is_equal:
        listener.start_step(f"time {request.candidate}")
        timing = ask_worker(
            launcher,
            replace(job, step="time_job", verified_error=found.verdict.error or 0.0),
            PairTiming,
            limits,
            listener.stage,
        )
        found = _add_timing(found, timing)
    return replace(found, seconds=time.monotonic() - start)


def _explain_failure(failure: Failure) -> PairJudgement:
    """Return the judgement if the judge's own process failed: nothing is known of the candidate then.

    Time and memory are those of both sides together, so that neither is to blame.

    Raises:
        BaselineError: the process died while it ran the reference.
    """
    if failure.kind in (FailureKind.TIMED_OUT, FailureKind.OUT_OF_MEMORY):
        return PairJudgement((Check(CheckName.ANSWER, Outcome.NOT_COMPARABLE, f"the comparison {failure}"),))
    if failure.kind is FailureKind.RAISED:
        raise BaselineError(f"the pair cannot be compared: {failure}\n{failure.traceback}")
    raise BaselineError(f"the judge of the pair, which runs the reference, {failure}")


def _add_timing(found: PairVerdict, timing: PairTiming | Failure) -> PairVerdict:
    if isinstance(timing, Failure):  # of either side: the largest inputs may be too large for both
        return replace(found, notes=(*found.notes, f"the pair was not timed: the process {timing}"))
    checks = (*found.verdict.checks, timing.check)
    return replace(found, verdict=Verdict(checks), measurement=timing.measurement)


def _is_confirmed(file: str) -> bool:
    """Run the program in a fresh process, as a user would. It ends with 1 and says so if it shows the difference."""
    from torchwise.trial.pair_repro import MARK

    try:
        done = subprocess.run(
            [sys.executable, file], capture_output=True, text=True, timeout=REPRO_LIMIT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 1 and MARK in done.stdout
