"""Row programs: all operators between two that must run by themselves, as one function of C++ or kernel of Triton."""

from torchwise.plan.choice import Choice, register
from torchwise.plan.numerics import Numerics
from torchwise.plan.rules import find_export_problems
from torchwise.plan.trait import Trait

register(
    Choice(
        "backend",
        "row_programs",
        Numerics.SAME_PRECISION,
        complexity=4,
        summary="regions of short operators (products, norms, softmax, lookups, work on single numbers) are one C++ "
        "function each, on a GPU one kernel, which reads the weights where they are",
        devices=("cpu", "cuda"),
        modes=("inference",),
        # Another call is spent in products that libraries do as well, and on a CPU with threads.
        required_traits=(Trait.ROW_REGIONS,),
        excluded_by=((Trait.WRITES_INPUTS, "the model writes to its inputs, and row programs only compute values"),),
        # 3.0 times the speed of the best other way on 28 small programs, and ahead on all (`benchmarks/results/
        # 2026-11-29-xeon-2cpu-small-programs.md`). It is also the first to be compiled.
        effort="quick",
        # A policy of three layers takes 3 s, most of it PyTorch's export, where Inductor takes 10 s.
        compile_factor=0.3,
        realized_by="torchwise.compile.programs:compile",
        # A capture copies inputs and outputs: one kernel of Heston's paths takes 0.82 of the time without it.
        may_be_one_kernel=True,
        find_problems=find_export_problems,
        ahead_instead=(("backend", "inductor"),),
    ),
)
