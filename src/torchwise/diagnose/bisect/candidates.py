"""The candidates within a stage for the cause of a fault, and how to turn each off."""

from __future__ import annotations

from dataclasses import dataclass

from torchwise.diagnose.bisect.job import Option
from torchwise.plan import Plan
from torchwise.plan.plan import OptionValue
from torchwise.plan.space import parts_of


@dataclass(frozen=True, slots=True)
class Suspect:
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


PASSES = tuple(Suspect(name) for name in ("post_grad_passes", "joint_graph_passes", "pre_grad_passes"))
"""Kinds of pass that PyTorch's own `torch._inductor.compiler_bisector` can leave out, in its words."""
DECOMPOSITIONS = Suspect("decomposition")
LOWERINGS = Suspect("lowerings")
"""The lowerings to code that Inductor generates.

Without them, operators run as in eager.
"""

OPTIONS = (
    Suspect("triton.cudagraphs", False),
    Suspect("freezing", False),
    Suspect("max_autotune", False),
    Suspect("max_autotune_gemm", False),
    Suspect("coordinate_descent_tuning", False),
    Suspect("cpp_wrapper", False),
    Suspect("pattern_matcher", False),
    Suspect("joint_graph_constant_folding", False),
    Suspect("constant_and_index_propagation", False),
    Suspect("split_cat_fx_passes", False),
    Suspect("epilogue_fusion", False),
    Suspect("prologue_fusion", False),
    Suspect("max_fusion_size", 1),
    Suspect("loop_ordering_after_fusion", False),
    Suspect("loop_index_inversion_in_fusion", False),
    Suspect("layout_optimization", False),
    Suspect("comprehensive_padding", False),
    Suspect("shape_padding", False),
    Suspect("inplace_padding", False),
    Suspect("cpp.simdlen", 1),
    Suspect("cpp.weight_prepack", False),
    Suspect("cpp.enable_loop_tail_vec", False),
    Suspect("cpp.enable_tiling_heuristics", False),
    Suspect("inplace_buffers", False),
    Suspect("allow_buffer_reuse", False),
    Suspect("memory_planning", False),
    Suspect("reorder_for_peak_memory", False),
    Suspect("reorder_for_locality", False),
    Suspect("split_reductions", False),
    Suspect("triton.persistent_reductions", False),
    Suspect("optimize_scatter_upon_const_tensor", False),
    Suspect("use_fast_math", False),
    Suspect("emulate_precision_casts", True),
    Suspect("fallback_random", True),
)
"""Fusion, layout, vectorisation, memory and tuning. Options that a version of PyTorch lacks are left alone there."""


def plan_of(choices: tuple[tuple[str, object], ...], backend: str) -> Plan:
    """Return the plan of these choices.

    Raises:
        PlanError: they do not go together, as one needs another that was removed.
    """
    fields: dict[str, object] = {name: value for name, value in choices if name not in ("transforms", "options")}
    transforms = tuple(str(value) for name, value in choices if name == "transforms")
    options: tuple[tuple[str, OptionValue], ...] = tuple(
        value  # type: ignore[misc]
        for name, value in choices
        if name == "options"
    )
    return Plan(backend=backend, transforms=transforms, options=options, **fields)  # type: ignore[arg-type]


def in_words(choice: tuple[str, object]) -> str:
    """Return a choice as a plan shows it, such as "capture call" or "epilogue_fusion=True"."""
    name, value = choice
    if name == "options" and isinstance(value, tuple):
        return f"{value[0]}={value[1]}"
    return str(value) if name == "transforms" else f"{name} {value}"


def is_plain(plan: Plan) -> bool:
    """Return whether a plan is nothing more than `torch.compile` with options."""
    here = {name for name, _ in parts_of(plan)}
    return plan.backend == "inductor" and here <= {"backend", "mode", "options", "shapes"}
