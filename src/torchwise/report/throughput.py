"""Throughput of a training step per second: samples, tokens, and the share of the hardware's peak (MFU).

MFU is defined as for PaLM (https://arxiv.org/abs/2204.02311, appendix B): the model's necessary operations over those
that the hardware could do in that time. Additional operations of a plan do not count. The peak here is measured, and
not the data sheet's.
"""

from __future__ import annotations

from torchwise.records import StepWork, Study, Trial
from torchwise.report import format as show


def throughput(work: StepWork, seconds: float) -> str:
    """Return such as "5,210 samples/s, 667,000 tokens/s, 31 % of the peak of 210 TFLOP/s"."""
    words = [f"{show.count(work.samples / seconds)} samples/s"]
    if work.tokens is not None:
        words.append(f"{show.count(work.tokens / seconds)} tokens/s")
    if work.flops and work.peak_flops:
        share = show.percent(work.flops / seconds / work.peak_flops)
        words.append(f"{share} of the peak of {work.peak_flops / 1e12:.3g} TFLOP/s")
    return ", ".join(words)


def describe_loss(trial: Trial) -> str:
    """Say from where to where the loss went in a trial, or return "" if it is no training step, or was not trained."""
    checks = trial.verdict.checks if trial.verdict else ()
    return next(filter(None, (check.describe_loss() for check in checks)), "")


def throughputs(study: Study) -> list[str]:
    """Return the throughput of eager and of the decided plan, or nothing if no training step was tuned."""
    inspection, decision = study.inspection, study.decision
    if inspection.work is None or not study.eager.baseline_s:
        return []
    each = study.eager.baseline_time.mid
    lines = [f"eager: {throughput(inspection.work, each)}"]
    if decision is not None and decision.speedup is not None:
        lines.append(f"{decision.plan}: {throughput(inspection.work, each / decision.speedup.mid)}")
    return [show.one_line(line) for line in lines]
