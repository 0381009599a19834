"""Facts about a study besides its candidates, for all outputs: request, inspection, and warnings."""

from __future__ import annotations

from datetime import UTC, datetime

from torchwise.environment import Environment
from torchwise.records import Decision, Inspection, Interval, Study, Verdict
from torchwise.records.answer import Answer, exceeds
from torchwise.report import format as show
from torchwise.report.costs import workload_of
from torchwise.report.throughput import throughputs

Fact = tuple[str, str]


def describe_request(study: Study) -> str:
    """Return the request in a line."""
    spec = workload_of(study)
    words = [
        show.one_line(spec.target),
        f"{spec.mode} on {spec.device}",
        f"for {spec.objective}",
        f"{show.pluralize(spec.calls, 'call')} and {show.pluralize(spec.restarts, 'start')}",
        f"numerics up to {study.allow}",
        f"effort {study.effort}",
    ]
    return ", ".join(words)


def describe_costs(decision: Decision) -> str:
    """Return compile time, cold and warm, and the error, which the sentence of a decision lacks."""
    words = [f"the first call takes {show.seconds(decision.cold_s)} more"]
    if decision.warm_s is not None:
        words.append(f"{show.seconds(decision.warm_s)} with warm caches")
    if decision.error is not None:
        words.append(f"error {show.relative_error(decision.error)} against the reference")
    return ", ".join(words)


def caches(study: Study) -> list[str]:
    """Return the decided plan's speed with hot and with cold processor caches, if it was timed with both."""
    decision = study.decision
    trial = next((t for t in study.trials if decision and not decision.plan.is_eager and t.plan == decision.plan), None)
    if decision is None or trial is None or trial.cold_speedup is None:
        return []
    return hot_and_cold(decision.speedup, trial.cold_speedup)


def hot_and_cold(hot: Interval | None, cold: Interval) -> list[str]:
    """Return the speed-ups with hot and cold processor caches, and a warning if the gain may be lost."""
    figures = f"with hot processor caches {show.speedup(hot)} eager's speed, with cold caches {show.speedup(cold)}"
    answer = exceeds(cold)
    if hot is None or hot.low <= 1 or answer is Answer.YES:
        return [figures]
    if answer is Answer.INCONCLUSIVE:
        return [figures, "With cold caches it may be no faster than eager: the measurements cannot tell."]
    return [figures, f"With cold caches it is {'slower' if cold.high < 1 else 'no faster'} than eager."]


def format_saving(decision: Decision) -> str:
    """Return the saving of a decision, with "at least" if its speed-up is too uncertain."""
    least = "" if decision.speedup is None or decision.speedup.is_usable else "at least "
    return f"{least}{show.seconds(decision.saved_s)}"


def break_even(calls: Interval | None) -> str:
    """Return the number of calls after which a plan has saved more time than it took to compile, as text."""
    if calls is None:
        return show.NONE
    return "the first call" if calls.mid < 1 else f"{show.count(calls.mid)} calls"


def notes(study: Study) -> list[str]:
    """Return the notes of the inspection. `Study.trust` has the reliability of times."""
    return [show.one_line(note) for note in dict.fromkeys(study.inspection.notes)]


def inspection_facts(study: Study) -> list[Fact]:
    """Return the properties of the original model, as pairs of a name and a value."""
    inspection = study.inspection
    facts = [
        ("Model", inspection.description),
        *(
            (("Inputs" if len(inspection.inputs) == 1 else f"Inputs {i + 1}"), text)
            for i, text in enumerate(inspection.inputs)
        ),
        ("Time per call", show.seconds(study.eager.baseline_time.mid) if study.eager.baseline_s else show.NONE),
        *(("Throughput", line) for line in throughputs(study)),
        ("Eager against itself", _noise(study)),
        ("First call", f"{show.seconds(inspection.first_call_s)} longer than later calls"),
        ("Peak memory of a call", show.size(study.eager_peak_memory)),
        ("Time by kind of operation", format_time_by_kind(inspection)),
        ("Traits", ", ".join(sorted(trait.label for trait in inspection.traits))),
    ]
    return [(name, show.one_line(value) or show.NONE) for name, value in facts]


def environment(study: Study) -> list[Fact]:
    """Return the machine and software of a study, as pairs of a name and a value."""
    return machine(study.environment)


def machine(here: Environment) -> list[Fact]:
    """Return a machine and its software, as pairs of a name and a value."""
    limit = "" if here.cpu_limit is None else f", limited to {here.cpu_limit:g}"
    facts = [
        ("GPU", here.gpu),
        ("GPU memory", show.size(here.gpu_memory_mib * 2**20) if here.gpu_memory_mib else None),
        ("Compute capability", here.gpu_capability),
        ("Driver", here.driver),
        ("CUDA", here.cuda),
        ("CPU", f"{here.cpu}, {show.pluralize(here.cpus, 'logical CPU')} usable{limit}"),
        ("System", here.system),
        ("PyTorch", here.torch),
        ("Triton", here.triton),
        ("Python", here.python),
        ("Host", here.hostname),
        ("Fingerprint", here.fingerprint),
    ]
    return [(name, show.one_line(value)) for name, value in facts if value]


def place(here: Environment, *more: str) -> str:
    """Return the device, the version of torch and further facts, in a line."""
    return show.one_line(", ".join(filter(None, (here.gpu or here.cpu, f"torch {here.torch}", *more))))


def list_checks(verdict: Verdict | None) -> tuple[tuple[str, str, str, str, str], ...]:
    """Return the checks of a verdict: name, outcome, error, floor, detail."""
    return tuple(
        (c.name, c.outcome.value, show.relative_error(c.error), show.relative_error(c.floor), c.detail)
        for c in (verdict.checks if verdict else ())
    )


def when(seconds: float) -> str:
    """Return a time as "2026-01-31 09:05 UTC", or an empty string if unknown."""
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M} UTC" if seconds > 0 else ""


def _noise(study: Study) -> str:
    measurement = study.inspection.measurement
    return show.speedup(measurement.speedup) if measurement.candidate_s else show.NONE


def format_time_by_kind(inspection: Inspection) -> str:
    """Return the share of each kind of operation in an eager call, such as "convolutions 84 %, matrix products 1 %"."""
    names = {"gemm": "matrix products", "conv": "convolutions", "launch": "no kernel running"}
    return ", ".join(f"{names.get(name, name)} {show.percent(part)}" for name, part in inspection.time_by_kind.items())
