"""How soon is the search as good as trying everything?

The search runs alone, and then every plan of its space is tried. Each begins with empty caches of compiled code.

For both, "the best" is by the exhaustive run's own measurements, as the search must not be judged by its own luck with
the clock. Trials have separate processes, between which the same plan may differ by more than the required 2 %. The
best of many is also the luckiest. So plans near the best are timed again in one process, each in alternation with the
best. Time is that of one process running the trials one after the other. The number of calls is unlimited, so the best
plan is the fastest, regardless of its compile time.

The exhaustive run is shared between GPUs. Each has a process that takes trials from one store. With --beside there are
several processes, each with its own cores, which wait for each other to measure. The search has as many cores as one of
them, and no trial's time includes its waits. The same command continues a stopped run. On another day it needs --date,
as file names contain the day.

Everything is the plans that a search of the same effort could try, or with --space those of another effort. If that is
too much, --choices leaves out plans with more choices than its number, except those that the search tried.

The results also have the wall time after which the search first had a verified plan that is faster than eager. It
includes the profile of the plain model, which the time of trials leaves out. It is unknown for a search that was
continued before it had one.

Run it: python benchmarks/time_to_decide.py zoo:spinlock.operator --device cuda --gpus 0,1,2,3 --budget 500 --out .
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
import os
import re
import sys
import tempfile
import time
from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

from run_suite import Lane, lanes_on, start_on

from torchwise.plan import EAGER, Numerics, Plan, PlanSpace
from torchwise.plan.effort import EFFORTS
from torchwise.plan.space import choices_of
from torchwise.records import Study, StudyState, Trial
from torchwise.store import open_storage
from torchwise.study.history import History
from torchwise.trial.experiment import PlanCandidate, start_candidate
from torchwise.trial.harness import Harness
from torchwise.trial.job import Job

CALLS = 10**12
"""Expected calls, so many that compile time does not matter."""
CACHES = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")
"""Variables that name the folders of compiled code."""
NEAR = 0.06
"""Maximum distance from the best speed-up, as a share of it, of plans that are timed against it."""
MAX_NEAR = 6
FINALS = replace(EFFORTS["thorough"], half_width=0.005, measure_s=30.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("target")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--gpus", default="", help="GPUs that share the exhaustive run, as 0,1,2")
    parser.add_argument("--beside", type=int, default=1, help="processes of the exhaustive run on each GPU")
    parser.add_argument("--choices", type=int, help="leave out plans of more choices than this")
    parser.add_argument("--effort", default="standard", choices=[*EFFORTS], help="of the search, and of each trial")
    parser.add_argument(
        "--space", choices=[*EFFORTS], help="effort whose plans are all tried, such as thorough (default: the search's)"
    )
    parser.add_argument("--budget", type=float, default=3600.0, help="seconds after which nothing further starts")
    parser.add_argument("--label", help="hardware, for the names of the files; the device where left out")
    parser.add_argument("--out", type=Path, default=Path("."))
    parser.add_argument("--date", default=str(datetime.date.today()), help="in the names of the files")
    parser.add_argument("--try-all", action="store_true", help=argparse.SUPPRESS)  # one process of the exhaustive run
    parser.add_argument("--finals", action="store_true", help=argparse.SUPPRESS)  # the process for plans near the best
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    options.stem = options.out / name_stem(
        options.target, options.effort, options.date, options.label or options.device, options.space
    )
    if options.try_all:
        tune(options, "all", plans=plans_to_try(options, load_study(options, "search")))
        return
    if options.finals:
        finals(options)
        return
    gpus = options.gpus.split(",") if options.gpus else [""]
    lanes = lanes_on(gpus, sorted(os.sched_getaffinity(0)), options.beside)
    if options.beside > 1 and not lanes[0].own:
        parser.error(f"--beside {options.beside} needs a GPU, and two CPU cores for each: or compilers disturb")
    os.sched_setaffinity(0, lanes[0].cores)
    if gpus[0]:
        os.environ["CUDA_VISIBLE_DEVICES"] = gpus[0]
    with tempfile.TemporaryDirectory() as folder:
        run_parts(options, lanes, Path(folder))
    print(report(options))


def run_parts(options: argparse.Namespace, lanes: list[Lane], folder: Path) -> None:
    """Run the search and then everything, each with caches of its own: neither finds code that the other compiled."""
    begun = time.monotonic()
    if not has_decided(options):  # a finished search has its time, to which a look at it would add
        note_begin(options)
        use_caches(folder / "search")
        tune(options, "search")
    use_caches(folder / "all")
    run_again("--try-all", options.date, lanes, options.budget - (time.monotonic() - begun))
    if not run_again("--finals", options.date, lanes[:1]):
        raise SystemExit("the plans near the best could not be timed in one process")


def use_caches(folder: Path) -> None:
    """Have this process, and those that it starts, keep compiled code in a folder."""
    for name in CACHES:
        os.environ[name] = str(folder / name)


def name_stem(target: str, effort: str, date: str, label: str, space: str | None = None) -> str:
    """Return the name of a program's files, without their endings."""
    name = re.sub("[:@,/=]", "-", target) + ("" if effort == "standard" else f"-{effort}")
    name += f"-of-{space}" if space else ""
    return f"{date}-{label}-time-to-decide-{name}"


def tune(options: argparse.Namespace, store: str, plans: list[Plan] | None = None) -> None:
    import torchwise

    torchwise.tune(
        options.target,
        device=options.device,
        calls=CALLS,
        effort=options.effort,
        budget=options.budget,
        plans=plans,
        workers=1,
        store=str(path_of(options, store)),
        progress=False,
    )


def has_decided(options: argparse.Namespace) -> bool:
    """Whether the search has ended in an earlier run of this command."""
    file = path_of(options, "search")
    if not file.exists():
        return False
    with open_storage(str(file)) as storage:  # which has no study yet if the run ended in the inspection
        return any(study.state is StudyState.DECIDED for study in storage.list_studies())


def note_begin(options: argparse.Namespace) -> None:
    """Keep the time at which the search began, and each at which it was continued, in seconds since the epoch."""
    path_of(options, "begun", "json").write_text(json.dumps([*read_begins(options), time.time()]))


def read_begins(options: argparse.Namespace) -> list[float]:
    """Return the times that `note_begin` kept."""
    file = path_of(options, "begun", "json")
    begins: list[float] = json.loads(file.read_bytes()) if file.exists() else []
    return begins


def find_first_wall(trials: Iterable[Trial], speeds: dict[Plan, float], begins: list[float]) -> float | None:
    """Return the seconds from the begin of a search to its first verified plan that is faster than eager.

    It is None without such a plan, and if the search was continued before, as nobody knows how long it stood still.
    """
    good = [trial for trial in trials if trial.is_verified and speeds.get(trial.plan, 0.0) > 1]
    first = min(good, key=lambda trial: trial.started_at, default=None)
    if first is None or not begins or any(begins[0] < begin <= first.started_at for begin in begins):
        return None
    return first.started_at + first.seconds - begins[0]


def path_of(options: argparse.Namespace, part: str, kind: str = "db") -> Path:
    return Path(f"{options.stem}.{part}.{kind}")


def load_study(options: argparse.Namespace, store: str) -> Study:
    with open_storage(str(path_of(options, store))) as storage:
        [study] = storage.list_studies()
        return storage.get_study(study.id)


def plans_to_try(options: argparse.Namespace, search: Study) -> list[Plan]:
    """List the plans that are everything: those of at most --choices choices, simple ones first, and the search's."""
    most = math.inf if options.choices is None else options.choices
    plans = [plan for plan in space_of(search, options.space) if len(choices_of(plan)) <= most]
    tried = [trial.plan for trial in search.trials if not trial.plan.is_eager]
    return list(dict.fromkeys([*plans, *tried]))


def space_of(study: Study, effort: str | None) -> list[Plan]:
    """List every plan that a search at this effort, or at its own, could reach, simple ones first."""
    traits = History(study.workload, study.inspection, study.trials).traits
    numerics = Numerics.of(study.allow)
    space = PlanSpace(study.workload.device, study.workload.mode, traits, numerics, effort or study.effort)
    found, border = {EAGER: None}, [EAGER]
    while border:
        border = [plan for each in border for plan, _ in space.neighbours(each) if plan not in found]
        found |= dict.fromkeys(border)
    return [plan for plan in found if not plan.is_eager]


def run_again(part: str, date: str, lanes: list[Lane], budget: float = 1.0) -> bool:
    """Start this again on each lane, with the same options and the given date, as the day may change meanwhile.

    Returns:
        Whether all of them finished.
    """
    command = [sys.executable, *sys.argv, part, "--date", date, "--budget", f"{max(budget, 1):.0f}"]
    runs = [start_on(lane, command) for lane in lanes]
    ended = [run.wait() for run in runs]
    return not any(ended)


def finals(options: argparse.Namespace) -> None:
    """Time the plans near the best against it, in this process, and write their relative speeds."""
    search, everything = load_study(options, "search"), load_study(options, "all")
    speeds = speeds_of(everything)
    best = max(speeds, key=speeds.__getitem__)
    near = sorted((p for p in speeds if speeds[p] >= (1 - NEAR) * speeds[best]), key=lambda p: -speeds[p])[:MAX_NEAR]
    decided = search.decision.plan if search.decision else EAGER
    near += [decided] if decided in speeds and decided not in near else []
    harness = Harness(Job("try", everything.workload, effort=FINALS, traits=everything.inspection.traits))
    ratios = {str(best): 1.0}
    with harness.gradients():
        calls = {plan: start_candidate(PlanCandidate(plan), harness) for plan in near}
        for plan in near[1:]:
            ratios[str(plan)] = harness.measure(calls[plan], calls[best]).speedup.mid
    path_of(options, "finals", "json").write_text(json.dumps({"best": str(best), "ratios": ratios}, indent=1))


def speeds_of(everything: Study) -> dict[Plan, float]:
    """Return the speed-up over eager of each right plan, from its trial."""
    return {EAGER: 1.0} | {trial.plan: speed_of(trial) for trial in everything.trials if trial.is_verified}


def once_more(speeds: dict[Plan, float], ratios: dict[str, float]) -> dict[Plan, float]:
    """Return the speed-ups over eager of the plans that were timed against the best, from their ratios to it.

    If eager is one of them, no trial is needed for the speed of the best, and eager stays 1.
    """
    best = 1 / ratios[str(EAGER)] if str(EAGER) in ratios else max(speeds.values())
    return {plan: best * ratios[str(plan)] for plan in speeds if str(plan) in ratios}


def report(options: argparse.Namespace) -> str:
    search, everything = load_study(options, "search"), load_study(options, "all")
    speeds = speeds_of(everything)
    again = json.loads(path_of(options, "finals", "json").read_text())
    speeds |= once_more(speeds, again["ratios"])
    space, known = space_of(search, options.space), {trial.plan for trial in everything.trials}
    to_try = plans_to_try(options, search)
    unfinished = [plan for plan in to_try if plan not in known]
    best = max(speeds.values())
    curves = {"search": curve(search.trials, speeds), "everything": curve(everything.trials, speeds)}
    whole, own = curves["everything"][-1][0], curves["search"][-1][0]
    decided = speeds.get(search.decision.plan, 1.0) if search.decision else 1.0
    reached = next((seconds for seconds, speed in curves["search"] if speed >= 0.98 * best), None)
    first_wall_s = find_first_wall(search.trials, speeds, read_begins(options))
    machine = f"{search.environment.gpu or search.environment.cpu}, torch {search.environment.torch}"
    lines = [
        f"{options.target} on {machine}, {options.date}, effort {options.effort}",
        "",
        f"- everything, of effort {options.space or options.effort}: {len(everything.trials)} plans in {whole:.0f} s; "
        f"the best is {best:.3f} times eager",
        f"- the search: {search.seconds:.0f} s from its start to its decision",
        f"- its trials: {len(search.trials)} plans in {own:.0f} s ({own / max(whole, 1e-9):.0%}); the decision, "
        f"{search.decision.plan if search.decision else '-'}, is {decided:.3f} times eager ({decided / best:.1%})",
        f"- within 2 % of the best after {reached:.0f} s ({reached / whole:.0%})"
        if reached is not None
        else "- the search never came within 2 % of the best",
    ]
    if first_wall_s is not None:
        lines += [f"- a verified plan faster than eager {first_wall_s:.0f} s after the search began, profile included"]
    lines += [f"- the {len(again['ratios'])} plans near the best were timed in one process, against {again['best']}"]
    if len(to_try) < len(space):
        lines += [f"- {len(to_try)} of {len(space)} plans were to be tried: those of at most {options.choices} choices"]
    lines += [f"- {len(unfinished)} plans are left to try: run the same command again"] if unfinished else []
    lines += ["", "| plan | times eager | seconds |", "|---|---|---|"]
    ranked = sorted(everything.trials, key=lambda trial: -speeds.get(trial.plan, 0.0))
    lines += [f"| {t.plan} | {speeds.get(t.plan, 0.0):.3f} | {t.seconds:.0f} |" for t in ranked]
    text = "\n".join(lines) + "\n"
    Path(f"{options.stem}.md").write_text(text)
    found = {"best": best, "decided": decided, "wall_s": search.seconds, "curves": curves}
    found |= {"first_wall_s": first_wall_s, "unfinished": len(unfinished)}
    Path(f"{options.stem}.json").write_text(json.dumps(found, indent=1))
    draw(curves, best, options)
    return text


def speed_of(trial: Trial) -> float:
    return trial.measurement.speedup.mid if trial.measurement else 0.0


def curve(trials: Iterable[Trial], speeds: dict[Plan, float]) -> list[tuple[float, float]]:
    """Return the speed of the best plan so far by seconds of trials, one after the other."""
    points = [(0.0, 1.0)]
    for trial in sorted(trials, key=lambda trial: trial.started_at):
        seconds, best = points[-1]
        points.append((seconds + trial.seconds, max(best, speeds.get(trial.plan, 0.0))))
    assert all(one[0] <= other[0] for one, other in pairwise(points))
    return points


def draw(curves: dict[str, list[tuple[float, float]]], best: float, options: argparse.Namespace) -> None:
    import matplotlib as mpl

    mpl.use("svg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 3.6), layout="constrained")
    for name, style in (("search", "-"), ("everything", "--")):
        axes.step(*zip(*curves[name], strict=True), style, where="post", label=name)
    axes.axhline(0.98 * best, color="gray", linewidth=0.8, label="2 % below the best")
    axes.set(xlabel="seconds of trials", ylabel="times eager", title=options.target)
    axes.legend()
    figure.savefig(f"{options.stem}.svg")


if __name__ == "__main__":
    main()
