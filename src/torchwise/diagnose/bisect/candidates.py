"""The candidates within a stage for the cause of a fault, and how to turn each off."""

from __future__ import annotations

from dataclasses import dataclass

from torchwise.diagnose.bisect.job import Option
from torchwise.plan import Plan
from torchwise.plan.plan import OptionValue
from torchwise.plan.rules import iter_changes


@dataclass(frozen=True, slots=True)
class Candidate:
    """An option of Inductor with the value that disables it, or a kind of pass with no applications."""

    name: str
    value: Option | None = None

    @property
    def is_option(self) -> bool:
        """Whether it is an option."""
        return self.value is not None

    def __str__(self) -> str:
        """Return how to turn it off."""
        return f"{self.name}={self.value}" if self.is_option else f"without {self.name.replace('_', ' ')}"


PASSES = tuple(Candidate(name) for name in ("post_grad_passes", "joint_graph_passes", "pre_grad_passes"))
"""Kinds of pass that PyTorch's own `CompilerBisector` can leave out, in its words."""
DECOMPOSITIONS = Candidate("decomposition")
LOWERINGS = Candidate("lowerings")
"""The lowerings to code that Inductor generates.

Without them, operators run as in eager.
"""

OPTIONS = (
    Candidate("triton.cudagraphs", False),
    Candidate("freezing", False),
    Candidate("max_autotune", False),
    Candidate("max_autotune_gemm", False),
    Candidate("coordinate_descent_tuning", False),
    Candidate("cpp_wrapper", False),
    Candidate("pattern_matcher", False),
    Candidate("joint_graph_constant_folding", False),
    Candidate("constant_and_index_propagation", False),
    Candidate("split_cat_fx_passes", False),
    Candidate("epilogue_fusion", False),
    Candidate("prologue_fusion", False),
    Candidate("max_fusion_size", 1),
    Candidate("loop_ordering_after_fusion", False),
    Candidate("loop_index_inversion_in_fusion", False),
    Candidate("layout_optimization", False),
    Candidate("comprehensive_padding", False),
    Candidate("shape_padding", False),
    Candidate("inplace_padding", False),
    Candidate("cpp.simdlen", 1),
    Candidate("cpp.weight_prepack", False),
    Candidate("cpp.enable_loop_tail_vec", False),
    Candidate("cpp.enable_tiling_heuristics", False),
    Candidate("inplace_buffers", False),
    Candidate("allow_buffer_reuse", False),
    Candidate("memory_planning", False),
    Candidate("reorder_for_peak_memory", False),
    Candidate("reorder_for_locality", False),
    Candidate("split_reductions", False),
    Candidate("triton.persistent_reductions", False),
    Candidate("optimize_scatter_upon_const_tensor", False),
    Candidate("use_fast_math", False),
    Candidate("emulate_precision_casts", True),
    Candidate("fallback_random", True),
)
"""Fusion, layout, vectorisation, memory and tuning. Options that a version of PyTorch lacks are skipped there."""


def plan_of(choices: tuple[tuple[str, object], ...], backend: str) -> Plan:
    """Return the plan of these choices.

    Raises:
        PlanError: a choice needs another one that was removed.
    """
    fields: dict[str, object] = {name: value for name, value in choices if name not in ("transforms", "options")}
    transforms = tuple(str(value) for name, value in choices if name == "transforms")
    options: tuple[tuple[str, OptionValue], ...] = tuple(
        value  # type: ignore[misc]
        for name, value in choices
        if name == "options"
    )
    return Plan(backend=backend, transforms=transforms, options=options, **fields)  # type: ignore[arg-type]


def describe_choice(choice: tuple[str, object]) -> str:
    """Return a choice as a plan shows it, such as "capture call" or "epilogue_fusion=True"."""
    name, value = choice
    if name == "options" and isinstance(value, tuple):
        return f"{value[0]}={value[1]}"
    return str(value) if name == "transforms" else f"{name} {value}"


def is_plain(plan: Plan) -> bool:
    """Return whether a plan is only `torch.compile` with options."""
    changed = {name for name, _ in iter_changes(plan)}
    return plan.backend == "inductor" and changed <= {"backend", "mode", "options", "shapes"}
