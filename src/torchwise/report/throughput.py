"""How much a training step gets done in a second: samples, tokens, and the share of the hardware's peak (MFU).

MFU as PaLM has it (https://arxiv.org/abs/2204.02311, appendix B): the operations that the model needs, whatever a plan
computes besides, over what the hardware could do in that time. The peak here is measured, not the data sheet's.
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


def learnt(trial: Trial) -> str:
    """Return where a trial's loss curves went, in words; empty where it is no training step, or was not trained."""
    details = [
        check.detail for check in (trial.verdict.checks if trial.verdict else ()) if check.name == "trajectories"
    ]
    return show.one_line(details[0].rpartition("; ")[2]) if details and "; " in details[0] else ""


def throughputs(study: Study) -> list[str]:
    """Return what eager gets done, and the decided plan; nothing where no training step was tuned."""
    inspection, decision = study.inspection, study.decision
    if inspection.work is None or not study.eager.baseline_s:
        return []
    each = study.eager.baseline_time.mid
    lines = [f"eager: {throughput(inspection.work, each)}"]
    if decision is not None and decision.speedup is not None:
        lines.append(f"{decision.plan}: {throughput(inspection.work, each / decision.speedup.mid)}")
    return [show.one_line(line) for line in lines]
