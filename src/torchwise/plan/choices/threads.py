"""How many threads one operator uses on the CPU."""

from torchwise.environment import available_cpus, cpu_quota
from torchwise.plan.choice import ANY, Choice, register
from torchwise.plan.numerics import Numerics
from torchwise.plan.trait import Trait

# If compiling may take minutes, choices that compile nothing are tried before.
LONG = (Trait.REPEATS, Trait.LONG)
# Where an operator does little, waking threads may cost more than they save; and the one that waits for a core which
# another program holds, or for a control group's next period, has all others wait.
WAITING = (Trait.SHORT_CALLS, Trait.CONTENDED_CORES)


def _threads(value: int | str, quick_with: tuple[Trait, ...] = LONG) -> Choice:
    return Choice(
        "threads",
        value,
        Numerics.SAME_PRECISION,
        complexity=1,
        summary="another number of threads for each operator, as small operators can lose time waking threads",
        devices=("cpu",),
        quick_with=quick_with,
        compile_factor=0.0,
        carries_over=True,
    )


def count_within_quota(cpus: int, quota: float | None) -> int | None:
    """Return the whole number of CPUs that a quota below `cpus` allows, at least one, or None without such a quota."""
    return None if quota is None or quota >= cpus else max(int(quota), 1)


register(_threads(ANY, LONG + WAITING))
_cpus = available_cpus()
for _count in sorted({_cpus // 2} - {0, _cpus}):
    register(_threads(_count))
for _count in sorted({1, count_within_quota(_cpus, cpu_quota()) or 1} - {_cpus}):
    register(_threads(_count, LONG + WAITING))
