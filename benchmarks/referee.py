"""Who catches which planted fault: Torchwise's referee beside the checks that harnesses use, and their false alarms.

The faults are those of `tests/faults`. The other checks compare outputs on one input of usual size, as harnesses do,
and once more on all inputs that the referee draws. Of backward faults they compare gradients too, of training steps
the loss and the weights after a step, and of random numbers one draw from the same seed. The true candidates are other
algorithms of the same operators, with other inputs for each seed.

Run it: python benchmarks/referee.py --seeds 9 --out referee.md
"""

from __future__ import annotations

import argparse
import copy
import functools
import multiprocessing
import platform
import sys
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from torch._dynamo.utils import same

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from faults import backward, edges, effects, forward, given, memory, noise, process, steps  # noqa: F401  which plant their faults
from faults.fault import FAULTS, Fault, reset_settings
from faults.true_candidates import FAMILIES, Family
from torchwise.compile import compile_plan
from torchwise.plan import EAGER
from torchwise.plan.effort import EFFORTS
from torchwise.plan.workload_spec import WorkloadSpec
from torchwise.records import Outcome
from torchwise.trial import Job
from torchwise.trial.pair import PairJob, judge_job
from torchwise.verify.input_cases import (
    Case,
    cases_of_description,
    cases_of_examples,
    with_gradients,
)
from torchwise.verify.input_description import InputDescription
from torchwise.verify.kept_answers import check_timed_answers
from torchwise.verify.pair import judge_pair
from torchwise.verify.pair_steps import judge_steps
from torchwise.verify.pair_subject import PairSubject
from torchwise.verify.shared_weights import share_weights
from torchwise.verify.surroundings import Surroundings
from torchwise.verify.witness import LocalWitness
from torchwise.workload import Example, pytree
from torchwise.workload.step_state import loss_of

Call = Callable[..., Any]
Check = Callable[[list[Any], list[Any], list[Any]], bool]
TIME_S = 5.0
"""Seconds after which a candidate counts as hanging in every harness."""
OURS = "Torchwise"


def has_right_form(right: list[Any], own: list[Any], _wide: list[Any]) -> bool:
    """Check shapes, and that nothing is NaN where the reference is not."""
    return len(right) == len(own) and all(
        a.shape == b.shape and not bool((b.isnan() & ~a.isnan()).any()) for a, b in zip(right, own, strict=True)
    )


def is_loosely_close(right: list[Any], own: list[Any], _wide: list[Any]) -> bool:
    """Check with rtol = atol = 1e-2."""
    pairs = zip(right, own, strict=True)
    return all(torch.allclose(b, a.to(b.dtype), 1e-2, 1e-2, equal_nan=True) for a, b in pairs)


def passes_assert_close(right: list[Any], own: list[Any], _wide: list[Any]) -> bool:
    """Check with PyTorch's own test function."""
    torch.testing.assert_close(own, right, equal_nan=True)
    return True


def passes_same(right: list[Any], own: list[Any], wide: list[Any]) -> bool:
    """Check as PyTorch's benchmarks do, with a float64 reference and their largest multiplier, 10."""
    options = {"tol": 1e-3, "equal_nan": True, "force_max_multiplier": True, "log_error": lambda *_args: None}
    return bool(same(right, own, wide, **options))


CHECKS: dict[str, Check] = {
    "NaN and shape": has_right_form,
    "allclose 1e-2": is_loosely_close,
    "assert_close": passes_assert_close,
    "same, fp64, ×10": passes_same,
}


def passes(check: Check, *sides: list[Any]) -> bool:
    """Say whether a check passes. One that raises does not."""
    try:
        return check(*sides)
    except (Exception, AssertionError):
        return False


def run_side(call: Call, example: Example, *, training: bool) -> list[Any]:
    """Return outputs, and gradients in training, of one call from one seed."""
    copied = example.clone()
    torch.manual_seed(0)
    with torch.set_grad_enabled(training):
        outputs = call(*copied.args, **copied.kwargs)
    leaves = [leaf for _, leaf in pytree.list_named_leaves(outputs)]
    numbers = [torch.tensor(leaf) for leaf in leaves if isinstance(leaf, (bool, int, float, complex))]
    found = [t.detach().clone() for t in [*pytree.tensors(outputs), *numbers]]
    wanted = [t for t in copied.tensors() if t.requires_grad]
    if training and wanted:
        loss = loss_of(outputs)
        if loss is None:
            raise RuntimeError("no output requires a gradient")
        found += list(torch.autograd.grad(loss, wanted, allow_unused=False))
    return found


def compare_on(cases: list[Case], reference: Call, candidate: Call, *, training: bool) -> set[str]:
    """Return the checks that refuse a candidate on some inputs. Those that the reference refuses do not count."""
    refused: set[str] = set()
    for case in cases:
        try:
            right = run_side(reference, case.example, training=training)
            wide = run_side(as_float64(reference), case.example.clone(widen), training=training)
        except Exception:  # the reference refuses it
            continue
        try:
            own = run_side(candidate, case.example, training=training)
        except Exception:  # every harness notices an error
            return set(CHECKS)
        refused |= {name for name, check in CHECKS.items() if not passes(check, right, own, wide)}
    return refused


def widen(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor in float64."""
    return tensor.double() if tensor.is_floating_point() else tensor


def as_float64(call: Call) -> Call:
    """Return a call in float64."""
    return copy.deepcopy(call).double() if isinstance(call, torch.nn.Module) else call


def judge_fault(fault: Fault, seed: int) -> dict[str, bool]:
    """Say by name which ways catch a fault."""
    reference = fault.make_reference()
    cases = cases_of_fault(fault, seed)
    found = {}
    for suffix, part in (("", cases[:1]), (" on all inputs", cases)):
        candidate = fault.make_candidate()
        refused = compare_on(part, fault.make_reference(), candidate, training=fault.training)
        found |= {f"{name}{suffix}": name in refused for name in CHECKS}
    reset_settings()
    witness = LocalWitness(fault.make_candidate(), before())
    subject = PairSubject(
        reference,
        witness,
        reference,
        training=fault.training,
        properties=fault.properties,
        shares_weights=share_weights(reference, witness, seed),
    )
    checks = judge_pair(subject, cases).checks
    reset_settings()
    return {**found, OURS: checks[-1].outcome is Outcome.FAIL}


@functools.cache
def before() -> Surroundings:
    """Return the surroundings of this process, which are listed once."""
    return Surroundings()


def cases_of_fault(fault: Fault, seed: int) -> list[Case]:
    """Return the inputs of a fault."""
    if fault.make_workload:
        return cases_of_examples(fault.make_workload(), seed)
    cases = cases_of_description(InputDescription.parse(fault.inputs), seed)
    return with_gradients(cases, seed) if fault.training else cases


def judge_step(name: str) -> dict[str, bool]:
    """Say which ways catch a wrong training step: by loss and weights after one step on one batch, and after two."""
    found = {}
    for suffix, count in (("", 1), (" on all inputs", 2)):
        sides = []
        for make, dtype in (
            (lambda: steps.TrainStep(*steps.make_parts()), torch.float32),
            (steps.STEPS[name], torch.float32),
            (lambda: steps.TrainStep(*steps.make_parts()), torch.float64),
        ):
            step = make()
            step.model.to(dtype)
            batches = steps.make_workload().examples[:count]
            losses = [step(*(t.to(dtype) if t.is_floating_point() else t for t in b.args)) for b in batches]
            sides.append([*losses, *(p.detach().clone() for p in step.model.parameters())])
        found |= {f"{check}{suffix}": not passes(run, *sides) for check, run in CHECKS.items()}
    checks = judge_steps(steps.make_workload(), steps.STEPS[name](), before(), EFFORTS["quick"])
    return {**found, OURS: any(one.outcome is Outcome.FAIL for one in checks)}


def judge_trick(name: str) -> dict[str, bool]:
    """Say which ways catch a trick. The others run in the candidate's own process, as harnesses do."""
    is_example = name == "example_answered_beforehand"
    cases = (
        [Case("", Example(process.as_example()[1]))]
        if is_example
        else cases_of_description(InputDescription.parse([process.MATRIX]), 1)
    )
    context, found = multiprocessing.get_context("fork"), {}
    for suffix, part in (("", cases[:1]), (" on all inputs", cases)):
        receiver, sender = context.Pipe(duplex=False)
        child = context.Process(target=send_refusals, args=(sender, part, getattr(process, name)))
        child.start()
        sender.close()
        try:
            refused = receiver.recv() if receiver.poll(TIME_S) else set(CHECKS)
        except EOFError:  # it died, which every harness notices
            refused = set(CHECKS)
        child.kill()
        found |= {f"{check}{suffix}": check in refused for check in CHECKS}
    file = str(Path(process.__file__).resolve())
    target = f"{file}:{'as_example' if is_example else 'softmax'}"
    job = PairJob(
        Job("try", WorkloadSpec(target)),
        f"{file}:{name}",
        inputs=() if is_example else (process.MATRIX,),
        limit_s=TIME_S,
        shrink_s=0.0,
    )
    return {**found, OURS: judge_job(job, lambda _stage: None).checks[-1].outcome is Outcome.FAIL}


def send_refusals(sender: Any, cases: list[Case], candidate: Call) -> None:
    """Compare in this process, and send the checks that refuse."""
    sender.send(compare_on(cases, process.softmax, candidate, training=False))


def judge_kept(name: str) -> dict[str, bool]:
    """Say which ways catch a candidate that is right until it is timed, or fast because it keeps answers."""
    fresh = [Example((torch.randn(120, 120),)) for _ in range(2)]
    cases, found = [Case("", example) for example in fresh], {}
    for suffix, part in (("", cases[:1]), (" on all inputs", cases)):
        refused = compare_on(part, torch.linalg.svdvals, getattr(process, name)(), training=False)
        found |= {f"{check}{suffix}": check in refused for check in CHECKS}
    candidate = getattr(process, name)()
    for _ in range(200):  # as a timer calls it
        candidate(*fresh[0].args)
    check = check_timed_answers(candidate, torch.linalg.svdvals, fresh, "cpu")
    return {**found, OURS: check.outcome is Outcome.FAIL}


def iter_faults() -> Iterator[tuple[str, str, dict[str, bool]]]:
    """Yield kind, name and catchers of every fault."""
    for number, fault in enumerate(FAULTS):
        yield fault.kind, fault.name, judge_fault(fault, 100 + number)
    for name in steps.STEPS:
        yield "training step", name, judge_step(name)
    for name in process.TRICKS:
        yield "process", name.replace("_", " "), judge_trick(name)
    for name in ("make_keeper", "make_tired"):
        title = {"make_keeper": "answers kept by value", "make_tired": "wrong after 200 calls"}[name]
        yield "process", title, judge_kept(name)


def iter_true_candidates(seeds: int) -> Iterator[tuple[str, dict[str, bool]]]:
    """Yield the name of every true candidate, and which ways refuse it."""
    for seed in range(seeds):
        for family in FAMILIES:
            for candidate in family.others:
                yield family.name, judge_true(family, candidate, 1000 + seed)


def judge_true(family: Family, candidate: Call, seed: int) -> dict[str, bool]:
    """Say which ways refuse a true candidate."""
    cases = cases_of_description(InputDescription.parse(family.inputs), seed)
    cases = with_gradients(cases, seed) if family.training else cases
    found = {}
    for suffix, part in (("", cases[:1]), (" on all inputs", cases)):
        refused = compare_on(part, family.reference, candidate, training=family.training)
        found |= {f"{name}{suffix}": name in refused for name in CHECKS}
    floor = family.reference
    if family.precision != "native":
        plan = replace(EAGER, precision=family.precision)
        floor = compile_plan(floor, plan, cases[0].example, device="cpu", mode="inference").call
    witness = LocalWitness(candidate, before())
    subject = PairSubject(family.reference, witness, floor, family.precision, training=family.training)
    outcomes = {check.outcome for check in judge_pair(subject, cases).checks}
    return {**found, OURS: outcomes != {Outcome.PASS}}


def make_page(faults: list[tuple[str, str, dict[str, bool]]], true: list[tuple[str, dict[str, bool]]], s: float) -> str:
    """Return the page."""
    ways = list(faults[0][2])
    kinds: dict[str, list[dict[str, bool]]] = defaultdict(list)
    for kind, _, found in faults:
        kinds[kind].append(found)
    kinds["all"] = [found for *_, found in faults]
    lines = [
        f"# A referee beside other checks, {datetime.now(UTC):%Y-%m-%d}",
        "",
        f"{platform.machine()}, torch {torch.__version__}, {torch.get_num_threads()} threads, {s:.0f} s.",
        "`referee.py`: caught planted faults by kind, and refused true candidates.",
        "",
        f"| | {' | '.join(ways)} |",
        f"|---|{'---|' * len(ways)}",
    ]
    for kind, found in kinds.items():
        counts = " | ".join(f"{sum(one[way] for one in found)}" for way in ways)
        lines.append(f"| {kind}, of {len(found)} | {counts} |")
    refused = " | ".join(f"{sum(found[way] for _, found in true)}" for way in ways)
    lines += [f"| true candidates refused, of {len(true)} | {refused} |", "", "## Fault by fault", ""]
    lines += [f"| kind | fault | {' | '.join(ways)} |", f"|---|---|{'---|' * len(ways)}"]
    for kind, name, found in faults:
        lines.append(f"| {kind} | {name} | {' | '.join('caught' if found[way] else '' for way in ways)} |")
    wrong = sorted({name for name, found in true if found[OURS]})
    lines += ["", f"True candidates that Torchwise refused: {', '.join(wrong) or 'none'}.", ""]
    return "\n".join(lines)


def main() -> None:
    """Run everything, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=9, help="seeds for each true candidate")
    parser.add_argument("--out", type=Path, default=None, help="Markdown file, or none to print the page alone")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    start = time.monotonic()
    faults = list(iter_faults())
    true = list(iter_true_candidates(options.seeds))
    page = make_page(faults, true, time.monotonic() - start)
    print(page)
    if options.out:
        options.out.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
