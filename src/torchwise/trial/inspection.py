"""Inspect the plain model or training step: the worker's side of the first job of every study."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from torchwise._torch.dispatch import EagerMode
from torchwise._torch.hopper import is_hopper
from torchwise.compile import is_plain
from torchwise.compile.cuda_graphs.host_operators import reads_numbers, waits
from torchwise.compile.cuda_graphs.recorded_graph import DEVICE
from torchwise.compile.forward_entry import find_repeated_blocks, find_stages
from torchwise.compile.loop_rolling.repetitions import covers, repetitions
from torchwise.compile.tensor_reads import answering
from torchwise.compile.transforms.patch_matmul import has_patches
from torchwise.compile.transforms.static_form import has_static_form
from torchwise.compile.transforms.structure_of_arrays import reads_across
from torchwise.measure.clock import Clock
from torchwise.measure.memory import measure_reserved_memory, peak_memory
from torchwise.measure.paired_timing import Mix, Precision, measure_pair
from torchwise.measure.profile import profile_of
from torchwise.plan.effort import EffortProfile
from torchwise.plan.trait import DIVISIBLE_BY, Trait
from torchwise.plan.workload_spec import VaryingDim, WorkloadSpec
from torchwise.records import Inspection, Measurement, WorkerStage
from torchwise.records.structure_differences import pack_details
from torchwise.trial.detected_traits import describe_model, detect_traits
from torchwise.trial.error_origin import Instruments, check_plainly
from torchwise.trial.job import Job
from torchwise.trial.loaded_model import LoadedModel
from torchwise.trial.loading import is_read_by_cpp, load, runner, with_optimizer_state
from torchwise.trial.loading_reads import LoadingReads
from torchwise.trial.matrix_rows import MatrixRows
from torchwise.trial.plain_call import PlainCall, prints, run_plainly
from torchwise.trial.required_properties import check_original
from torchwise.trial.step_inspection import step_traits, work_of
from torchwise.trial.varying_dims import describe_varying, find_varying_dims
from torchwise.verify import is_stochastic
from torchwise.verify.leaves import unread_note
from torchwise.verify.step_runner import StepRunner
from torchwise.workload import Workload, pytree
from torchwise.workload.identity import identity, structure
from torchwise.workload.other_sizes import add_other_sizes, strip_marks
from torchwise.workload.structure_details import details_of
from torchwise.workload.weights import digest_if_judged

SIGNIFICANT = 0.02
"""Share of time from which a kind of work counts as a trait."""
MIN_OPERATORS = 60
"""Operators in a call from which repetitions are a trait: a call with fewer is compiled whole in seconds."""
MANY_OPERATORS = 1000
"""Operators in a call from which it is long: compiling it whole may take minutes."""
MAX_OPERATORS = 20_000
"""Operators of a call that are searched for repetitions."""
SHORT_S = 0.003
"""Seconds of a CPU call below which it is short: waking threads for each operator may cost more than it saves."""
MEASURE_S = 2.0
"""Seconds in which the plain model is timed, unless it is disturbed: every trial times it again, beside its plan."""
FEW, MANY = 0.2, 10
"""A call computes mostly number by number with a smaller share of matrix products, and at least so many operators."""
MAX_ROW_WEIGHTS = 1 << 20
"""Numbers of a model's weights up to which whole kernels may hold them on a GPU. Libraries do larger ones as well."""
LEAST_ROW_OPERATORS = 4
"""Operators of a GPU's call from which joining them may gain something."""
SHORT_KERNEL_S = 200e-6
"""Seconds of a GPU's call for each of its operators below which beginning them may be most of it."""
MAX_NAMED = 3
"""Pieces of state that a note names."""
_REDUCTION, _MEAN = 3, 1
"""Place of the reduction among the arguments of cross entropy in ATen, and its value for the mean."""


def inspect(job: Job, stage: Callable[[str], None]) -> Inspection:
    """Inspect the plain model: whether it runs, its structure, where its time goes, and how steady the clock is.

    Raises:
        InputError: the target cannot be loaded.
        BaselineError: the model raises on its own inputs.
    """
    mode, reads = job.workload.mode, LoadingReads()
    with reads.watch() if job.reads else contextlib.nullcontext():
        workload = load(job)
        loaded = LoadedModel(workload) if job.stays else None
        # Before the first call: a model that counts its calls in an attribute has another identity after it.
        model = job.structure or structure(workload.call)
        details = job.structure_details or pack_details(details_of(workload.call))
        named = job.identity_of(
            identity(workload, mode, model, weights := digest_if_judged(workload.call, job.workload))
        )
    if job.reads and not is_read_by_cpp(workload):
        reads.keep(job.reads, named)
    varying = job.workload.varying
    if job.workload.sizes == "varying" and not varying:
        varying = find_varying_dims(workload)
        workload = add_other_sizes(strip_marks(workload), varying)
    others = find_varying_dims(workload) if job.tries_sizes and not varying else varying
    clock = Clock(job.workload.device, each=job.workload.times_each_call)
    stage(WorkerStage.RUN_EAGER)
    instruments = Instruments(lambda: check_plainly(workload))
    with torch.set_grad_enabled(mode == "training"):
        plain_call = run_plainly(workload, mode)
        taken, how = (workload.step.copy(), "inference") if workload.step else (workload.call, mode)
        restores = plain_call.writes or bool(plain_call.moves)
        original = None if workload.step else workload.call
        calls = [runner(taken, e, how, original=original, restores=restores) for e in workload.examples]
        first = sum(clock.once(call) for call in calls)
        steady = sum(min(clock.once(call) for _ in range(2)) for call in calls)
        stage(WorkerStage.INSPECT)
        stochastic, unsteady = instruments.use(
            "whether it draws random numbers", lambda: _is_stochastic(workload, calls[0]), (False, False)
        )
        does_print = instruments.use("whether it prints", lambda: any(prints(call) for call in calls), False)
        operator_traits, operator_count = _trace_operators(calls[0])
        counts = [operator_count, *(_trace_operators(call)[1] for call in calls[1:])]
        called = workload.call if workload.module is None else workload.module
        detected = detect_traits(called, lambda: [call() for call in calls], instruments)
        work = work_of(workload, calls[0], instruments) if workload.step else None
        stage(WorkerStage.MEASURE)
        mix = mix_of(calls, workload)
        measurement = _time_plain(mix, clock, job.effort)
        memory = peak_memory(calls[0], job.workload.device)
        stage(WorkerStage.PROFILE)
        profile = profile_of(calls[0], job.workload.device)
    if loaded and not (workload.step or restores or plain_call.grows):
        loaded.keep(instruments.notes)
    shares = profile.list_shares(measurement.baseline_time.mid)
    return Inspection(
        identity=named,
        structure=model,
        structure_details=details,
        description=describe_model(workload),
        inputs=workload.inputs,
        traits=_compatible(
            operator_traits.union(
                _traits(workload, detected, shares, plain_call, instruments, stochastic=stochastic),
                instruments.use("how its batch may be cut", lambda: step_traits(workload), frozenset()),
                [Trait.PRINTS] if does_print else [],
                _requested_traits(job.workload, varying),
                _core_traits(job.workload.device, measurement, steady / len(calls), shares, operator_count),
                _gpu_row_traits(workload, job.workload.device, measurement, shares, operator_count),
            ),
            job.workload.device,
            job.workload.mode,
        ),
        measurement=measurement,
        first_call_s=max(first - steady, 0.0),
        peak_memory=memory,
        shares=shares,
        operators=None if None in counts else max(count for count in counts if count is not None),
        notes=(
            *_notes(workload, mode, plain_call, stochastic=stochastic, unsteady=unsteady),
            *([describe_varying(varying)] if job.workload.sizes == "varying" else []),
            *instruments.notes,
        ),
        work=work,
        varying=varying,
        properties=check_original(job.workload, workload),
        weights=weights,
        takes_other_sizes=bool(others) if job.tries_sizes or job.workload.sizes == "varying" else None,
        device_memory=measure_reserved_memory(),
    )


def _time_plain(mix: Mix, clock: Clock, effort: EffortProfile) -> Measurement:
    """Time the plain model for a moment, and as long as a plan if something disturbs it: that decides what is tried."""
    for seconds in sorted({min(effort.measure_s, MEASURE_S), effort.measure_s}):
        found = measure_pair(mix, mix, clock, Precision(effort.half_width, seconds))
        if not found.is_contended and found.speedup.is_usable:
            break
    return found


def _requested_traits(spec: WorkloadSpec, varying: Sequence[VaryingDim]) -> list[Trait]:
    """Return the traits that the user's request gives a workload."""
    found = {
        Trait.SIZES_VARY: bool(varying),
        Trait.SIZES_FIXED: spec.sizes == "fixed",
        Trait.TOLERANT: spec.permits_change,
    }
    return [trait for trait, present in found.items() if present]


def _core_traits(
    device: str, measurement: Measurement, steady_s: float, shares: Mapping[str, float], operators: int | None
) -> list[Trait]:
    """Return the traits of a model on the CPU by which threads, or regions of operators, are worth a trial at once.

    If threads wait for cores, a call's time varies widely: the quickest call shows the amount of work.
    """
    if device != "cpu":
        return []
    is_short = min(steady_s, *measurement.baseline_s) < SHORT_S
    is_by_number = shares.get("gemm", 1.0) < FEW and (operators or 0) >= MANY
    found = {
        Trait.SHORT_CALLS: is_short,
        Trait.ROW_REGIONS: is_short or is_by_number,
        Trait.CONTENDED_CORES: measurement.is_contended,
    }
    return [trait for trait, present in found.items() if present]


def _gpu_row_traits(
    workload: Workload, device: str, measurement: Measurement, shares: Mapping[str, float], operators: int | None
) -> list[Trait]:
    """Return the trait of a call on a GPU that kernels of whole regions may serve: many operators, and few weights."""
    if device != "cuda" or (operators or 0) < LEAST_ROW_OPERATORS:
        return []
    weights = sum(one.numel() for one in workload.module.parameters()) if workload.module is not None else 0
    is_short = min(measurement.baseline_s) < SHORT_KERNEL_S * (operators or 0)
    is_other = shares.get("conv", 0.0) + shares.get("attention", 0.0) >= FEW
    return [Trait.ROW_REGIONS] if is_short and weights <= MAX_ROW_WEIGHTS and not is_other else []


def mix_of(calls: list[Callable[[], Any]], workload: Workload) -> Mix:
    """Return the calls with the workload's weights, scaled to sum to 1."""
    total = sum(example.weight for example in workload.examples)
    return Mix(tuple(calls), tuple(example.weight / total for example in workload.examples))


def _is_stochastic(workload: Workload, call: Callable[[], Any]) -> tuple[bool, bool]:
    """Return whether a call draws random numbers, and whether it is unsteady, starting a step from one state."""
    if workload.step is None:
        return is_stochastic(call, workload.call)
    step_runner = StepRunner(with_optimizer_state(workload).step)  # type: ignore[arg-type]
    return is_stochastic(lambda: step_runner.answer(workload.examples[0]))


def _trace_operators(call: Callable[[], Any]) -> tuple[frozenset[Trait], int | None]:
    """Return the traits that show only in the operators of a call, and the number of operators.

    The traits are:

    - It computes with complex numbers somewhere, although inputs and outputs may be real.
    - The same operators repeat.
    - Rows of a few elements are read again and again.
    - A mean is taken over labels of which some may be ignored, or weigh more than others.
    - Matrices are multiplied by one row each.
    - Python reads a value from the GPU: a yes or no, a count, or numbers.
    """
    is_complex = has_short_rows = has_uneven_mean = reads_bool = reads_scalar = is_whole = False
    operators, rows = 0, MatrixRows()
    labels: list[int] = []

    class Watch(EagerMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            nonlocal is_complex, has_short_rows, has_uneven_mean, reads_bool, operators
            operators += 1
            reads_bool = reads_bool or (waits(func, args, kwargs or {}, DEVICE) and not reads_numbers(func, args))
            result = func(*args, **(kwargs or {}))
            is_complex |= any(t.is_complex() for t in pytree.tensors((args, result)))
            has_short_rows = has_short_rows or any(reads_across(func, t, result) for t in pytree.tensors(args))
            has_uneven_mean = has_uneven_mean or _is_uneven_mean(func, args)
            rows.count(func, args)
            if len(labels) < MAX_OPERATORS and not func.is_view:  # each step takes another part of a sequence
                labels.append(hash((func, _form((args, kwargs)))))
            return result

    def record_read(tensor: torch.Tensor) -> Any:
        nonlocal reads_bool
        reads_bool = reads_bool or not tensor.is_cpu
        return NotImplemented

    def read(tensor: torch.Tensor) -> Any:
        nonlocal reads_scalar
        reads_scalar = reads_scalar or (not tensor.is_cpu and tensor.is_floating_point())
        return record_read(tensor) if tensor.dtype is torch.bool else NotImplemented

    # Some operators refuse to be watched, with any error. The model itself ran before, and its traits so far count.
    with contextlib.suppress(Exception), answering(record_read, read), Watch():
        call()
        is_whole = True
    found = {
        Trait.COMPLEX: is_complex,
        Trait.SHORT_ROWS: has_short_rows,
        Trait.UNEVEN_MEAN: has_uneven_mean,
        Trait.ONE_ROW: rows.are_single,
        Trait.REPEATS: _repeats(labels),
        Trait.LONG: operators >= MANY_OPERATORS,
        Trait.READS_BOOL: reads_bool,
        Trait.READS_SCALAR: reads_scalar,
    }
    return frozenset(trait for trait, present in found.items() if present), operators if is_whole else None


def _is_uneven_mean(func: Any, args: tuple[Any, ...]) -> bool:
    """Return whether an operator is a cross entropy's mean, in which labels may be ignored or have weights.

    The labels of this example may all count alike, but the next batch's need not (-100 is padding in most texts).
    """
    means = torch.ops.aten.nll_loss_forward, torch.ops.aten.nll_loss2d_forward
    return getattr(func, "overloadpacket", None) in means and len(args) > _REDUCTION and args[_REDUCTION] == _MEAN


def _compatible(traits: frozenset[Trait], device: str, mode: str = "inference") -> frozenset[Trait]:
    """Drop traits that a model only seems to have.

    Repeated steps in an RNN, however many, are its own. Dynamo does not see them, unless the RNN is compiled, which is
    for short ones. On a GPU cuDNN runs an RNN whole, so what repeats is around it, and compiled with it. A batch is
    divisible, but an uneven mean over it is not the mean of its pieces' means. In its static form, a model with static
    shapes reads no values from the GPU.
    """
    is_compiled = device == "cuda" and mode == "inference" and Trait.COMPILABLE_RNN in traits
    if Trait.RNN in traits and not is_compiled:
        traits -= {Trait.REPEATS, Trait.LONG}
    if Trait.STATIC_FORM in traits:
        traits -= {Trait.READS_BOOL, Trait.READS_SCALAR}
    if Trait.UNEVEN_MEAN in traits:
        traits -= set(DIVISIBLE_BY.values())
    return traits


def _repeats(labels: list[int]) -> bool:
    return len(labels) >= MIN_OPERATORS and covers(repetitions(labels), len(labels))


def _form(arguments: Any) -> str:
    """Return arguments as text: tensors by their metadata, objects by type, as a storage prints all its bytes."""

    def form(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            return leaf.dtype, tuple(leaf.shape)
        return leaf if is_plain(leaf) else type(leaf)

    return repr([form(leaf) for _, leaf in pytree.list_named_leaves(arguments)])


def _traits(
    workload: Workload,
    detected: Mapping[Trait, bool],
    shares: dict[str, float],
    once: PlainCall,
    instruments: Instruments,
    *,
    stochastic: bool,
) -> list[Trait]:
    def has(what: str, find: Callable[[Any], Any]) -> bool:
        return instruments.use(f"whether it has {what}", lambda: bool(find(module)), False)

    module = workload.module
    tensors = [t for example in workload.examples for t in example.tensors()]
    tensors += [*module.parameters(), *module.buffers()] if module is not None else []
    dtypes = {t.dtype for t in tensors if t.is_floating_point()}
    of_weights = {t.dtype for t in module.parameters() if t.is_floating_point()} if module is not None else set()
    has_autocast = bool(workload.step and workload.step.autocast)
    ranks = {t.dim() for t in tensors}
    has_convolutions = shares.get("conv", 1.0) > SIGNIFICANT
    is_on_gpu = any(t.is_cuda for t in tensors)
    found = {
        Trait.MODULE: module is not None,
        Trait.FLOATING: bool(dtypes),
        Trait.FLOAT32: torch.float32 in dtypes and not has_autocast,
        Trait.HALF: bool(dtypes) and (of_weights or dtypes) <= {torch.bfloat16, torch.float16},
        Trait.GEMM: shares.get("gemm", 1.0) > SIGNIFICANT,
        Trait.BUSY_PRODUCTS: is_on_gpu and _is_busy_with_products(shares),
        Trait.CONV: has_convolutions and 4 in ranks,
        Trait.CONV3D: has_convolutions and 5 in ranks,
        Trait.REPEATED_BLOCKS: module is not None and has("repeated blocks", find_repeated_blocks),
        Trait.STAGES: module is not None and has("stages", find_stages),
        Trait.PATCHES: module is not None and has_convolutions and has("patches", has_patches),
        Trait.DEPENDENT_LAUNCH: is_on_gpu and is_hopper(),
        Trait.STATIC_FORM: has("a static form", lambda _: has_static_form(workload.call)),
        Trait.GROWS: once.grows,
        Trait.SEVERAL_SHAPES: once.grows or len(set(workload.inputs)) > 1,
        Trait.STOCHASTIC: stochastic,
    }
    for trait, present in detected.items():
        found[trait] = found.get(trait, False) or present
    return [*once.traits, *(trait for trait, present in found.items() if present)]


def _is_busy_with_products(shares: Mapping[str, float]) -> bool:
    """Whether matrix products alone keep the GPU busy for a good part of a call, as far as a profile tells."""
    products = shares.get("gemm", 1.0) - shares.get("conv", 0.0) - shares.get("attention", 0.0)
    return products * (1 - shares.get("launch", 0.0)) > FEW


def _notes(workload: Workload, mode: str, once: PlainCall, *, stochastic: bool, unsteady: bool) -> list[str]:
    notes = [note] if (note := unread_note(workload.call)) else []
    if once.moves:
        named = ", ".join(once.moves[:MAX_NAMED]) + (", …" if len(once.moves) > MAX_NAMED else "")
        notes.append(
            f"a call changes what the next one starts from ({named}): candidates are verified over several calls in a "
            "row, and timed from one state, which is put back before each call on both sides"
        )
    if not once.answers:
        notes.append("the model returns no number (no tensor, or NaN alone): so no plan can be verified")
    trains = getattr(workload.module, "training", False)  # which no frozen module of TorchScript has
    if trains and mode == "inference":
        notes.append("the model is in training mode: dropout and batch-norm act as in training; eval() changes that")
    if stochastic:
        notes.append("the model draws random numbers: candidates are verified in distribution as well")
    if unsteady:
        notes.append("eager's own answers differ under one seed: the model is not reproducible run to run")
    if workload.step and not trains:
        notes.append("the model is in eval mode while it is trained: train() turns dropout and batch-norm on")
    return notes
