"""From trials to one decision, and the sentence that explains it."""

from __future__ import annotations

from dataclasses import replace

from torchwise.environment import Environment
from torchwise.errors import first_line
from torchwise.plan import EAGER, Numerics, Plan
from torchwise.plan.space import complexity_of, numerics_of
from torchwise.records import Decision, FailureKind, Outcome, Trial
from torchwise.records.answer import Answer
from torchwise.records.format import count, pluralize, seconds, span, time
from torchwise.records.measurement import describe_contention
from torchwise.records.trial import CostModel, first_graph_break, relative_speeds
from torchwise.study.history import TIE, History, sets_threads_alone
from torchwise.study.pairwise import cheapest
from torchwise.study.requirement_price import describe_eager_lack, describe_price, find_price

SHORT = 3.0
"""How many times as long as compiling the expected calls may take if that is the reason that nothing was tried."""
LESS_MEMORY = 0.95
"""With the objective "memory", a plan must need less than this share of eager's peak."""


def decide(history: History, environment: Environment) -> Decision:
    """Choose among the verified plans, or eager if none certainly pays."""
    chosen = _lightest(history) if history.workload.objective == "memory" else cheapest(history)
    economics = history.economics
    stay = Decision(
        plan=EAGER,
        reason="",
        speedup=None,
        break_even_calls=None,
        saved_s=0.0,
        baseline_s=economics.baseline_s,
        cold_s=0.0,
        warm_s=None,
        workload=history.workload,
        identity=history.inspection.identity,
        structure=history.inspection.structure,
        structure_details=history.inspection.structure_details,
        inputs=history.inspection.inputs,
        environment=environment,
        weights=history.inspection.weights,
        eager_fails=not history.eager_fits,
    )
    price = find_price(history, chosen)
    stay = replace(stay, price=price)
    if chosen is None and (untold := _untold(history)) is not None:
        reason = _why_inconclusive(untold) + _name_break(history) + _describe_batch(history, EAGER) + _waits(history)
        return replace(stay, reason=reason, answer=Answer.INCONCLUSIVE)
    if chosen is None and (unfinished := _explain_end(history)):
        return replace(stay, reason=unfinished + _waits(history), answer=Answer.INCONCLUSIVE)
    if chosen is None:
        reason = _why_eager(history) + describe_price(history, price) + _name_cut(history) + _name_break(history)
        reason += _describe_batch(history, EAGER) + _waits(history)
        return replace(stay, reason=reason, answer=Answer.NO)
    plan = chosen.plan
    reasons = [_why(chosen, history), _compare_with_closest(chosen, history), _loss(chosen)]
    reasons += [describe_price(history, price)]
    reasons += [_describe_batch(history, plan), _waits(history, plan)]
    return replace(choose(stay, chosen, economics, "".join(reasons)), answer=Answer.YES)


def choose(decision: Decision, trial: Trial, economics: CostModel, reason: str) -> Decision:
    """Return a decision with a trial's plan and figures in place of its own."""
    assert trial.costs is not None
    return replace(
        decision,
        plan=trial.plan,
        reason=reason,
        speedup=trial.speedup,
        break_even_calls=economics.break_even_calls(trial),
        saved_s=economics.compute_saving(trial),
        baseline_s=economics.baseline_s,
        cold_s=trial.costs.cold_s,
        warm_s=trial.costs.warm_s,
        error=trial.verdict.error if trial.verdict else None,
    )


def _lightest(history: History) -> Trial | None:
    """Return the verified plan of least peak memory that is certainly lighter than eager and not slower.

    If eager itself does not fit, every plan that fits is a candidate.
    """

    def share(trial: Trial) -> float:
        costs, eager = trial.costs, history.eager_peak_memory
        if costs is None or costs.peak_memory is None or not eager:
            return 1.0
        return costs.peak_memory / eager

    def is_better(trial: Trial) -> bool:
        return share(trial) < LESS_MEMORY and economics.cost(trial).mid <= economics.baseline_cost * (1 + TIE)

    economics = history.economics
    fitting = [
        t for t in history.trials if t.is_verified and history.fits(t) and (not history.eager_fits or is_better(t))
    ]
    return min(fitting, key=lambda t: (share(t), complexity_of(t.plan)), default=None)


def _untold(history: History) -> Trial | None:
    """Return the verified plan that may pay most, if no measurement can tell whether any pays, or else None.

    With the objective "memory", and if eager exceeds a limit, time does not decide.
    """
    if history.workload.objective == "memory" or not history.eager_fits:
        return None
    economics = history.economics
    timed = [t for t in history.trials if t.is_verified and history.fits(t)]
    untold = [
        t
        for t in timed
        if t.is_faster is Answer.INCONCLUSIVE and economics.cost(t).low < economics.baseline_cost * (1 - TIE)
    ]
    return min(untold, key=lambda t: economics.cost(t).low, default=None)


def _explain_end(history: History) -> str:
    """Say that time ended before any plan was tried to its end, or return "" if one was, or none was tried at all."""
    finished = [t for t in history.trials if t.state.is_finished]
    if not all(map(_was_cut, finished)) or (history.left_s > 0 and not finished):
        return ""
    return (
        "Inconclusive: time ended before a plan was tried to its end. Eager goes on serving. Run this again with a "
        "larger budget or effort, or while the machine is quieter."
    )


def _was_cut(trial: Trial) -> bool:
    """Return whether a trial ended without a result because its time was up."""
    cut = (FailureKind.OUT_OF_BUDGET, FailureKind.TIMED_OUT, FailureKind.INTERFERED)
    return trial.failure is not None and trial.failure.kind in cut


def _why_inconclusive(best: Trial) -> str:
    return (
        f"Inconclusive: {best.plan} may be faster than eager ({best.speedup} times its speed), but the "
        "measurements are too uncertain to tell. Eager goes on serving. Run this again while the machine is quieter, "
        "or with a larger budget."
    )


def _why(chosen: Trial, history: History) -> str:
    economics = history.economics
    assert chosen.costs is not None
    speed = f"Run {chosen.plan}: {chosen.speedup} times eager's speed"
    break_even = economics.break_even_calls(chosen)
    if history.workload.objective == "memory" and chosen.costs.peak_memory is not None:
        needs = f"{chosen.costs.peak_memory / 2**20:.0f} MiB at its peak"
        return f"{speed}, with {needs} against eager's {(history.eager_peak_memory or 0) / 2**20:.0f} MiB."
    if lack := describe_eager_lack(history):
        return f"{speed}, verified, and it has the required properties. Eager is not {lack}."
    if not history.eager_fits:
        limit = "latency" if history.eager_fits_memory else "memory"
        return f"{speed}, verified, and it keeps the {limit} limit, which eager passes."
    if break_even is None or break_even.mid < 1:
        paid = "with nothing to pay back"
    else:
        paid = f"paid back after {count(break_even.mid)} of your {history.workload.calls:,} calls"
    least = "about" if chosen.speedup and chosen.speedup.is_usable else "at least"
    return f"{speed}, verified, {paid}; it saves {least} {seconds(economics.compute_saving(chosen))}."


def _compare_with_closest(chosen: Trial, history: History) -> str:
    """Compare the plan with the closest of the plans that it was timed beside in one process."""
    ratios = relative_speeds(history.trials, chosen.plan)
    held = [t for t in history.trials if t.duel and t.duel.measurement]
    met = {t.plan for t in held if t.duel and t.duel.rival == chosen.plan}
    met |= {chosen.duel.rival} if chosen.duel and chosen.duel.measurement else set()
    rival = min(met & set(ratios), key=lambda plan: ratios[plan].mid, default=None)
    if rival is None:
        return ""
    return f" Timed beside {rival} in one process, it has {ratios[rival]} times its speed."


def _describe_batch(history: History, plan: Plan) -> str:
    """Say what a call takes at the batch size that was chosen, and its samples per second."""
    batch, limit_s = history.workload.batch, history.workload.latency_limit
    if batch is None:
        return ""
    trial = history.find_trial(plan)
    timed = trial if trial and trial.measurement else None
    call_s = history.economics.seconds_per_call(timed) if timed else history.baseline_time
    rate = call_s.inverse.times(batch.size)
    text = f" A call of batch {batch.size} takes {time(call_s)}, {span(rate)} samples a second."
    if limit_s is None:
        return text
    return (
        f"{text} The limit of {seconds(limit_s)} leaves {seconds(history.workload.call_limit_s)}, as a request may "
        "wait for the batch before its own."
    )


def _waits(history: History, chosen: Plan = EAGER) -> str:
    """Say why threads wait for a core, and how long a call then takes.

    If eager stays and so leaves it at that, name a remedy. If a plan has fewer threads because other programs hold
    cores, say how long that holds: without them it may be slower than eager (`docs/benchmarks/search.md`).
    """
    cores = history.inspection.measurement.cores
    if cores is None or not cores.is_contended:
        return ""
    by_threads = {cores.threads: history.economics.baseline_s}
    if best := max((t for t in history.iter_timed() if sets_threads_alone(t.plan)), key=_speed, default=None):
        assert best.measurement is not None
        threads = best.plan.threads or cores.threads
        if best.speedup is not None and best.speedup.is_usable:
            by_threads[threads] = history.seconds_of(best.plan)
        else:  # its middle is no figure to divide another one by, so the times side by side are used
            pair = best.measurement
            by_threads = {cores.threads: pair.baseline_time.mid, threads: pair.candidate_time.mid}
    way_out = ""
    if chosen.is_eager and cores.threads > 1:
        way_out = " Fewer threads wait less: set OMP_NUM_THREADS, or approve a plan with `threads`."
    elif chosen.threads is not None and cores.has_other_load:
        way_out = " When those programs have ended, tune again: more threads may be faster then."
    return f" {describe_contention(cores, by_threads)}.{way_out}"


def _speed(trial: Trial) -> float:
    return trial.speedup.mid if trial.speedup else 0.0


def _loss(chosen: Trial) -> str:
    """Say how far the answers change, if the plan may lower the precision or substitute an operator."""
    level = numerics_of(chosen.plan)
    error = chosen.verdict.error if chosen.verdict else None
    if Numerics.SAME_PRECISION.allows(level) or error is None:
        return ""
    return f" It is {level}: its answers are {error:.1e} off float64, relative and root mean square, at the most."


def _why_eager(history: History) -> str:
    economics = history.economics
    verified = [t for t in history.trials if t.is_verified and history.fits(t)]
    if lack := describe_eager_lack(history):
        return f"Stay with eager, which is itself not {lack}: no verified plan is either."
    if history.eager_fits_memory and not history.eager_fits:
        return "Stay with eager, which passes the latency limit: no verified plan keeps it either."
    if not history.eager_fits:
        limit = f"the limit of {(history.workload.memory_limit or 0) / 2**20:.0f} MiB"
        took = f"{(history.eager_peak_memory or 0) / 2**20:.0f} MiB"
        return f"Stay with eager, which takes {took} a call and passes {limit}: no verified plan keeps it either."
    if history.workload.objective == "memory":
        return f"Stay with eager: of {len(verified)} verified plans none needs surely less memory and is not slower."
    faster = [t for t in verified if t.speedup and t.speedup.low > 1]
    if faster:
        best = max(faster, key=_speed)
        reasons = [_shortfall(best, economics)]
        if tied := [t for t in faster if economics.surely_pays(t)]:
            cheapest = min(tied, key=lambda t: economics.cost(t).mid)
            assert best.speedup is not None
            assert cheapest.speedup is not None
            is_clearly_faster = best.speedup.low > cheapest.speedup.high
            reasons = [_describe_tie(cheapest, economics), *(reasons if is_clearly_faster else [])]
        return f"Stay with eager: {'; '.join(reasons)}."
    if verified and not _too_few_calls(history):
        best = max(verified, key=_speed)
        return (
            f"Stay with eager: no verified plan was surely faster; the best, {best.plan}, "
            f"reached {best.speedup} times its speed."
        )
    if unseen := _not_comparable(history):
        return f"Stay with eager: no candidate's answer could be compared with eager's, so none is verified ({unseen})."
    if any(t.speedup and t.speedup.low > 1 for t in history.list_lacking()):
        return "Stay with eager: no plan that has the required properties was surely faster."
    if failed := _name_failure(history):
        return f"Stay with eager: {failed}{_too_few_calls(history)}"
    if any(t.state.is_finished for t in history.trials):
        return f"Stay with eager: no candidate was both right and faster.{_too_few_calls(history)}"
    return f"Stay with eager: nothing is worth a trial.{_too_few_calls(history, SHORT)}"


def _name_cut(history: History) -> str:
    """Name the plan that was not tried to its end, and the way out, or return "" if there is none."""
    cut = [t for t in history.trials if _was_cut(t)]
    if not cut:
        return ""
    more = f" and {len(cut) - 1} more were" if len(cut) > 1 else " was"
    return (
        f" {cut[0].plan}{more} not tried to the end, for lack of time: run this again with a larger budget or effort, "
        "or while the machine is quieter."
    )


def _name_break(history: History) -> str:
    """Name the first graph break of the compiled plans, and the command that lists all of them, or return ""."""
    if found := first_graph_break(history.trials):
        return f" The graph breaks: {found}. torchwise explain lists every break with its fix."
    return ""


def _name_failure(history: History) -> str:
    """Say that nothing is known of any candidate because each raised an error or died, or return ""."""
    finished = [t for t in history.trials if t.state.is_finished]
    broken = [t for t in finished if t.failure and t.failure.kind in (FailureKind.RAISED, FailureKind.DIED)]
    if not finished or len(broken) < len(finished):
        return ""
    message = broken[0].failure.message if broken[0].failure else ""
    more = f", and so did {pluralize(len(broken) - 1, 'other')}" if broken[1:] else ""
    of_whom = "their" if broken[1:] else "its"
    return f"{broken[0].plan} failed{more}, so nothing is known of {of_whom} speed: {first_line(message).rstrip('.')}."


def _not_comparable(history: History) -> str:
    """Say why no candidate's answers could be compared, so that nothing is known of any, or return ""."""
    verdicts = [t.verdict for t in history.trials if t.verdict and t.verdict.checks]
    if any(verdict.outcome is not Outcome.NOT_COMPARABLE for verdict in verdicts):
        return ""
    return next((verdict.reason for verdict in verdicts), "")


def _too_few_calls(history: History, times: float = 1.0) -> str:
    """Say that too few calls are expected, if that is why nothing was compiled.

    They are too few if they take at most `times` as long as compiling.
    """
    overhead = history.predict_overhead_s(Plan(backend="inductor"))
    total = history.economics.baseline_cost
    if total > times * overhead or any(t.plan.backend != "eager" for t in history.trials):
        return ""
    calls = f"{history.workload.calls:,} calls take" if history.workload.calls > 1 else "one call takes"
    return f" Compiling would take about {seconds(overhead)}, and {calls} {seconds(total)} altogether."


def _shortfall(best: Trial, economics: CostModel) -> str:
    break_even = economics.break_even_calls(best)
    needed = "may never pay back"
    if break_even:
        needed = f"pays back after {count(break_even.mid)} calls, at worst after {count(break_even.high)}"
    return (
        f"{best.plan} runs at {best.speedup} times its speed, but compiles for "
        f"{seconds(economics.overhead(best))} and {needed}, and {economics.calls:,} are expected"
    )


def _describe_tie(best: Trial, economics: CostModel) -> str:
    saved = seconds(economics.compute_saving(best))
    return (
        f"{best.plan} runs at {best.speedup} times its speed, and saves {saved} over {economics.calls:,} "
        f"calls: less than the {TIE:.0%} from which a plan is worth having"
    )
