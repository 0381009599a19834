"""Tune the modules that matter in a program, each on its recorded inputs, and put the plans in place."""

from __future__ import annotations

import logging
import sys
import time
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from typing import Any, TypeVar, Unpack

import torch

from torchwise.errors import InputError, TorchwiseError
from torchwise.keywords import checked_keywords
from torchwise.plan import Numerics, Plan
from torchwise.plan.requirements import Property, read_properties
from torchwise.plan.workload_spec import DEFAULT_CALLS, LIVE, ProgramKeywords, TuneOptions
from torchwise.records import Decision
from torchwise.records.recording import Recording
from torchwise.report.recording import sentence
from torchwise.runtime.api import Study, make_request, search
from torchwise.runtime.components.program import is_component
from torchwise.runtime.program.calls import Calls, merge_calls
from torchwise.runtime.program.decisions import OTHER_SIZES
from torchwise.runtime.program.missed_calls import add_missed
from torchwise.runtime.program.missed_files import Stored
from torchwise.runtime.program.placement import config_of, place_decision, workload_of
from torchwise.runtime.program.recorder import CallRecorder, original_of
from torchwise.runtime.program.sizes import SizeMix, choose_mix, make_dynamic, select_alike
from torchwise.runtime.program.start_costs import keep_caches
from torchwise.runtime.program.stored import name_of, target_of
from torchwise.runtime.program.tuned import OptimizedProgram, TunedModule, TunedProgram
from torchwise.runtime.served import unwrap
from torchwise.study import Caches, Request
from torchwise.study.history import History
from torchwise.study.request import NotRandomError
from torchwise.workload import Example
from torchwise.workload.identity import structure

logger = logging.getLogger("torchwise")
T = TypeVar("T")

MIN_SHARE = 0.03
"""Minimum share of the time of all modules for a module to be tuned."""
MAX_TUNED = 8
MIN_BUDGET_S = 5.0
OF_ALL_SIZES: dict[str, Any] = {"sizes": "varying"}
"""The options of a search for one plan that answers every size: it is verified at sizes that nobody gave."""
NO_OTHERS = "no call had one"
NO_SIZES = "the model was tried at some, and takes none of them"
ONE_PLAN = "by another plan, a sample could have other bits in a batch of another size"


@checked_keywords(ProgramKeywords)
def tune_program(fn: Callable[..., Any], *args: Any, **options: Unpack[ProgramKeywords]) -> TunedProgram:
    """Run `fn(*args)`, tune the modules that took its time on the inputs they got, and put the plans in place.

    The modules stay the same objects. They answer other calls as before, as `apply` says.

    Args:
        fn: the program: it calls modules in any way, with representative inputs.
        *args: its arguments.
        **options: as for `tune`, without `examples` and `mode`, which the calls show. `budget` is for all modules.
            `sizes` "as-given" chooses by the sizes of the calls whether a plan for all sizes is searched for, too.

    Returns:
        The report. Its `restore()` takes the plans away.

    Raises:
        InputError: an option is unknown or has no permitted value.
        Exception: `fn` raised it.
    """
    if not callable(fn):
        raise InputError(f"fn is of type {type(fn).__name__}, but must be a function that runs the program")
    check_options(options)
    with CallRecorder(holds=True) as recorder:
        returned = fn(*args)
    return tune_recorded(recorder, getattr(fn, "__qualname__", type(fn).__qualname__), options, returned)


def optimize_program(thing: T, run: Callable[[T], Any], **options: Unpack[ProgramKeywords]) -> OptimizedProgram[T]:
    """Tune the modules that an object calls during `run(thing)`, and put the plans in place. See `optimize`."""
    if not callable(run):
        raise InputError(
            f"run is of type {type(run).__name__}, but must be a function, such as lambda p: p('a prompt')"
        )
    check_options(options)
    with CallRecorder(holds=True) as recorder:
        run(thing)
    tuned = tune_recorded(recorder, type(thing).__qualname__, options)
    if options.get("progress", True):
        print(f"torchwise: {sentence(tuned.record)}", file=sys.stderr)
    return OptimizedProgram(thing, tuned)


def check_options(options: ProgramKeywords) -> None:
    """Refuse options of `tune` that the calls show, and values that are not permitted.

    Raises:
        InputError: there is one.
    """
    if given := [name for name in ("examples", "mode", "batch") if name in options]:
        raise InputError(f"{given[0]} is given, but the recorded calls show it: leave it out")
    Request.from_options(_split(options)[0], f"{LIVE}program", "cpu")


def tune_recorded(
    recorder: CallRecorder,
    program: str,
    options: ProgramKeywords,
    returned: Any = None,
    *,
    places: bool = True,
    calls: float | None = DEFAULT_CALLS,
    missed: Stored | None = None,
) -> TunedProgram:
    """Tune the modules that matter in a recording, and put their plans in place if `places`.

    A module that cannot be tuned stays as it is, and its record says why. `calls` are those of the module with the most
    time, unless the options name them, and the others get theirs in proportion. None stands for those of the recording.
    `missed` are calls of earlier runs that no plan was verified on. They count beside those of the recording.
    """
    recording = recorder.to_record(program)
    records = {record.name: record for record in recording.modules}
    modules = [TunedModule(calls, records[calls.name]) for calls in recorder.ranked()]
    chosen = select(group_alike(modules), recording)
    calls = options.get("calls", calls)
    scale = float(options.get("restarts", 1))  # of the calls of this run
    if calls is not None and chosen:
        scale = calls / sum(one.record.calls for one in (chosen[0], *chosen[0].alike))
    end = None if options.get("budget") is None else time.monotonic() + float(options["budget"] or 0)
    waits: list[float] = []
    for number, module in enumerate(chosen):
        left_s = sum(one.seconds for one in chosen[number:])
        budget = None if end is None else (end + sum(waits) - time.monotonic()) * module.seconds / left_s
        if budget is not None and budget < MIN_BUDGET_S and number:
            _note(module, "the budget ended before it could be tuned")
            continue
        try:
            own = {**options, "budget": budget}
            asked = {"places": places, "as_recorded": calls is None, "missed": missed or {}}
            _tune(module, program, own, scale, waits, **asked)  # type: ignore[arg-type]
        except TorchwiseError as error:
            _note(module, f"not tuned: {error}")
        except Exception as error:  # a module may raise anything when it is described or copied: the others go on
            _note(module, f"not tuned: {type(error).__name__}: {error}")
            logger.warning("torchwise: %s is not tuned", module.record.name, exc_info=error)
    for module in modules:
        module.calls.forget()
    return TunedProgram(recording, modules, returned)


def select(modules: Sequence[TunedModule], recording: Recording) -> list[TunedModule]:
    """Return the modules to tune, with the most time first, and note about each other one why it is none of them."""
    chosen: list[TunedModule] = []
    for module in modules:
        reason = find_reason_against(module, recording, chosen)
        if reason is None and module.calls.live is None:
            reason = "it was deleted before it could be tuned"
        if reason is None:
            chosen.append(module)
        elif reason:
            _note(module, reason)
    return chosen


def group_alike(modules: Sequence[TunedModule]) -> list[TunedModule]:
    """Return the modules without those that are like an earlier one, which holds them from now on.

    So are the blocks of a model that the program calls one by one. The group with the most time is first.
    """
    counts = Counter(_class_of(module) for module in modules)
    leaders: dict[Hashable, TunedModule] = {}
    for module in modules:
        is_one_of_several = counts[_class_of(module)] > 1
        leader = leaders.setdefault(_structure_of(module) if is_one_of_several else id(module), module)
        if leader is not module:
            leader.alike.append(module)
    return sorted(leaders.values(), key=lambda module: module.seconds, reverse=True)


def merge_group(module: TunedModule, missed: Stored) -> tuple[Calls, str]:
    """Return the calls of a module and of those that are like it, for which one plan is searched, and a note or "".

    `missed` are calls of earlier runs. Those of such a module count beside the others, which the note then says.
    """
    calls, live = merge_calls([module.calls, *(one.calls for one in module.alike)]), module.calls.live
    name = name_of(live)
    if not any(name == other for other, _ in missed):
        return calls, ""
    workload = workload_of(live, config_of(live, select_alike(calls)[0][0].autocast))
    return add_missed(calls, missed.get((name, structure(workload))))


def _class_of(module: TunedModule) -> Hashable:
    return module.calls.qualname, module.calls.parameters


def _structure_of(module: TunedModule) -> Hashable:
    """Return the structure of a module that is alive, or else something that no other one has."""
    live = module.calls.live
    if not isinstance(live, torch.nn.Module) or is_component(live):
        return id(module)
    try:
        return _class_of(module), structure(original_of(live))
    except Exception:  # an attribute may raise when it is described: the module then stands for itself
        return id(module)


def find_reason_against(module: TunedModule, recording: Recording, chosen: Sequence[TunedModule]) -> str | None:
    """Return why a module is not tuned, or None. It is empty for one that takes too little time to be mentioned.

    Args:
        chosen: the modules that take more time, and are tuned.
    """
    live = module.calls.live
    if module.seconds < MIN_SHARE * sum(one.seconds for one in recording.modules):
        return ""
    if live is not None and (is_component(live) or unwrap(live) is not live):
        return "it runs by a plan of Torchwise already"
    if not any(kind.example is not None for kind in module.calls.kinds.values()):
        return "no inputs could be kept"
    for other in chosen:
        if _contains(other.calls.live, live) or _contains(live, other.calls.live):
            return f"it shares modules with {other.record.name}, which takes more time"
    return "" if len(chosen) >= MAX_TUNED else None


def _contains(outer: Any, inner: Any) -> bool:
    if not isinstance(outer, torch.nn.Module):
        return False
    return any(part is inner for part in outer.modules())


def _tune(
    module: TunedModule,
    program: str,
    options: ProgramKeywords,
    scale: float,
    waits: list[float],
    *,
    places: bool,
    as_recorded: bool,
    missed: Stored,
) -> None:
    """Tune a module, and add to `waits` the seconds of waiting that are no part of its budget, even if it raises."""
    live, store, sizes = module.calls.live, options.get("store"), options.get("sizes", "as-given")
    calls, more = merge_group(module, {} if sizes == "fixed" else missed)
    config = config_of(live, select_alike(calls)[0][0].autocast, store)
    workload = workload_of(live, config)
    mix = choose_mix(calls, workload, pads=places, sizes=sizes)
    expected = max(round(scale * mix.calls), 1)
    of_others = round(scale * mix.others) or (0 if as_recorded else expected)
    options = {**options, "calls": expected, "mode": mix.kinds[0].mode}
    searches = _Searches(workload, options, mix.list_examples(workload), waits)
    module.study, others, failure = searches.run_all(target_of(program, live), mix, of_others)
    decision = module.study.decision
    together = sum(one.record.calls for one in (module, *module.alike))
    for one in (module, *module.alike):
        thing, padded = one.calls.live, mix.padded
        if padded is not None and one is not module and thing is not None:  # padding may do more with other weights
            padded = mix.pad_alike(workload_of(thing, config))
            if padded is None:
                _note(one, f"it is like {module.record.name}, but runs as written: padding may change its answers")
                continue
        if places and thing is not None:
            one.component = place_decision(thing, one.record.name, decision, config, others=others, padded=padded)
        share = one.record.calls / together
        one.record = replace(
            one.record,
            plan=str(decision.plan),
            speedup=decision.speedup,
            answer=decision.answer,
            expected_calls=round(expected * share),
            net_saving_s=decision.saved_s * share,
        )
        if one is not module:
            _note(one, f"it is like {module.record.name}, and has the same plan")
    reason = decision.reason if decision.plan.is_eager else ""
    for note in filter(None, (more, searches.note, mix.note, mix.describe(decision, others, failure), reason)):
        _note(module, note)


class _Searches:
    """Searches for plans of one module, all on the same inputs and within one budget."""

    def __init__(
        self, workload: Any, options: ProgramKeywords, examples: tuple[Example, ...], waits: list[float]
    ) -> None:
        self._workload, self._options, self._examples, self._waits = workload, options, examples, waits
        self.note = ""
        budget = options.get("budget")
        self._end = None if budget is None else time.monotonic() + budget - sum(waits)

    def run_all(self, name: str, mix: SizeMix, of_others: int) -> tuple[Study, Decision | None, str]:
        """Return the study for the sizes of a mix, the decision for all others, if there is one, and why not.

        `of_others` is the expected number of calls of other sizes.
        """
        if self._options.get("sizes", "as-given") != "as-given":
            return self._run(name), None, ""
        may_be_dynamic = self._options.get("plans") is None and self._allowed is not Numerics.EXACT
        if mix.is_dynamic and may_be_dynamic:
            return self._run(name, **OF_ALL_SIZES), None, ""
        if Property.BATCH_INVARIANT in read_properties(self._options.get("require", ())):
            return self._run(name), None, ONE_PLAN
        has_second = may_be_dynamic and mix.is_static and bool(of_others)
        study = self._run(name, successor=make_dynamic if has_second else None)
        if not mix.needs_others(study.decision) or not may_be_dynamic:
            return study, None, ""
        if not of_others:
            return study, None, NO_OTHERS
        if study.record.inspection.takes_other_sizes is False:
            return study, None, NO_SIZES
        found = study.record
        history = History(found.workload, found.inspection, found.trials)
        dynamic = history.refine(make_dynamic(study.decision.plan))
        changed: dict[str, Any] = {"calls": of_others, "plans": [dynamic], **self._find_left_budget()}
        try:  # verified and timed at sizes that nobody gave
            return study, self._run(name + OTHER_SIZES, **{**OF_ALL_SIZES, **changed}).decision, ""
        except TorchwiseError as error:  # the first plan holds all the same
            return study, None, f"{error}"

    @property
    def _allowed(self) -> Numerics:
        return Numerics.of(self._options.get("allow", Numerics.SAME_PRECISION))

    def _find_left_budget(self) -> dict[str, Any]:
        """Return the budget that is left for one more search, as an option, if there is one."""
        if self._end is None:
            return {}
        return {"budget": max(self._end + sum(self._waits) - time.monotonic(), MIN_BUDGET_S)}

    def _run(self, name: str, successor: Callable[[Plan], Plan] | None = None, **changed: Any) -> Study:
        """Search for a plan. A module without random numbers is compared by value, also where others are by metric.

        Its distribution is a point. No tolerance says how far other operators may move that, so it gets none of these.
        """
        try:
            return self._search(name, successor, **changed)
        except NotRandomError:
            self.note = "it draws no random numbers, so its outputs are compared by value instead of by distribution"
            allowed = min(self._allowed, Numerics.LOWER_PRECISION, key=lambda level: level.rank)
            self._options = {**self._options, "metric": None, "allow": allowed}
            return self._search(name, successor, **{**changed, **self._find_left_budget()})

    def _search(self, name: str, successor: Callable[[Plan], Plan] | None, **changed: Any) -> Study:
        options, store, progress = _split({**self._options, **changed})  # type: ignore[typeddict-item]
        request, sent = make_request(self._workload, None, None, self._examples, options, name)
        request = replace(request, successor=successor)
        note_wait = self._waits.append if request.wait else None
        with Caches() as caches:
            study = search(request, sent, store, progress=progress, note_wait=note_wait, caches=caches)
            keep_caches(caches.list_folders(study.decision.plan))
        return study


def _split(options: ProgramKeywords) -> tuple[TuneOptions, str | None, bool]:
    given: dict[str, Any] = dict(options)
    store, progress = given.pop("store", None), given.pop("progress", True)
    return TuneOptions(**given), store, progress


def _note(module: TunedModule, text: str) -> None:
    module.record = replace(module.record, notes=(*module.record.notes, text))
