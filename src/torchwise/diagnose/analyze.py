"""`analyze`: examine one plan in full, phase by phase, each in processes of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from torchwise.diagnose.analyze_phases import LIMIT_S, AnalyzeRequest, Silent, run_analysis
from torchwise.diagnose.requests import make_spec, plan_of, sent
from torchwise.plan import Plan
from torchwise.plan.workload_spec import DEFAULT_CALLS
from torchwise.records import Decision, codec
from torchwise.records.analysis import Advice
from torchwise.records.analysis import Analysis as AnalysisRecord
from torchwise.trial import ProcessLauncher
from torchwise.workload import Example, Workload
from torchwise.workload.user_inputs import read_workload


class Analysis:
    """The findings about one plan, shown as text on a terminal and as a page in a notebook.

    Attributes:
        record: all findings, as `save_json` writes them.
    """

    def __init__(self, record: AnalysisRecord) -> None:
        self.record = record

    @property
    def advice(self) -> tuple[Advice, ...]:
        """The advice, the most important first."""
        return self.record.advice

    def to_dict(self) -> dict[str, Any]:
        """Return schema `torchwise.analysis/1`."""
        fields: dict[str, Any] = codec.to_builtins(self.record)
        return fields

    def save_json(self, path: str | Path) -> None:
        """Write schema `torchwise.analysis/1`."""
        from torchwise.report.json_export import write_json

        write_json(self.record, path)

    def save_html(self, path: str | Path) -> None:
        """Write a self-contained page."""
        from torchwise.report.analysis import write_analysis_html

        write_analysis_html(self.record, path)

    def __rich__(self) -> Any:
        from torchwise.report.analysis import render_analysis

        return render_analysis(self.record)

    def _repr_html_(self) -> str:
        from torchwise.report.analysis import render_analysis_html

        return render_analysis_html(self.record)

    def __repr__(self) -> str:
        return f"<Analysis of {self.record.plan} for {self.record.workload.target}: {self.advice[0].text}>"


def analyze(
    model: Callable[..., Any] | Workload | str,
    args: Any = None,
    kwargs: dict[str, Any] | None = None,
    *,
    examples: Sequence[Example] | None = None,
    plan: Plan | Decision | str | None = None,
    calls: int = DEFAULT_CALLS,
    restarts: int = 1,
    effort: str = "standard",
    mode: str = "inference",
    objective: str = "latency",
    device: str | None = None,
    batches: Sequence[int] = (),
    batch_dim: int | None = None,
    limit: float = LIMIT_S,
    store: str | None = None,
    progress: bool = True,
) -> Analysis:
    """Examine one plan in full: baseline, compile cost, consistency, economics, memory, correctness, scaling.

    Everything runs in separate processes. Nothing is compiled in this one, and the model is not changed.

    Args:
        model: an `nn.Module`, a function, a `Workload`, or a target such as "zoo:tutorial.fusion_demo".
        args: example arguments, a tuple (or one tensor).
        kwargs: example keyword arguments.
        examples: several example inputs with weights, in place of `args`.
        plan: a plan or a decision, "eager", a mode of `torch.compile` such as "max-autotune", a plan as JSON, or the id
            of a decided plan. The default is plain `torch.compile`.
        calls: expected calls over the lifetime of the deployment, from which the savings are calculated.
        restarts: process starts over that lifetime.
        effort: "quick", "standard" or "thorough".
        mode: "inference" or "training" (with a backward pass).
        objective: "latency", or "throughput" to issue calls back to back.
        device: "cpu" or "cuda", by default the device of the model and its inputs, and for a target "cuda" if
            available.
        batches: batch sizes to try the plan on as well, each compiled separately.
        batch_dim: the dimension of the batch, the same in every input. By default it is found.
        limit: seconds after which one phase is ended.
        store: URL or file of the store, for the id of a plan, by default in the user's data directory.
        progress: whether to show the progress.

    Raises:
        InputError: an argument cannot be used, or the model cannot be sent to a worker.
        BaselineError: the model raises on its own inputs.
    """
    from torchwise.report.analysis import AnalyzeProgress
    from torchwise.runtime import unwrap
    from torchwise.workload.identity import structure

    model = model if isinstance(model, (str, Workload)) else unwrap(model)
    workload = read_workload(model, args, kwargs, examples)
    options = {"mode": mode, "objective": objective, "calls": calls, "restarts": restarts}
    spec = make_spec(model, workload, device, **options)
    request = AnalyzeRequest(spec, plan_of(plan, store), effort, tuple(batches), batch_dim, limit)
    display: AbstractContextManager[Any] = AnalyzeProgress() if progress else nullcontext(Silent())
    with sent(workload, spec.target) as file, display as listener:
        # The structure is read here, in the process that has the model's source code.
        model_structure = structure(workload.call) if workload else None
        request = replace(request, source=file.source, settings=file.settings, structure=model_structure)
        return Analysis(run_analysis(request, ProcessLauncher(), listener))
