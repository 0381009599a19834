"""How many threads one operator uses on the CPU."""

from torchwise.environment import available_cpus
from torchwise.plan.choice import ANY, Choice, register
from torchwise.plan.legality import Legality


def _threads(value: int | str) -> Choice:
    return Choice(
        "threads",
        value,
        Legality.REORDERED,
        complexity=1,
        summary="another number of threads for each operator; small operators can lose time waking threads",
        devices=("cpu",),
        # Where compiling may take minutes, what takes none is tried before.
        quick_with=("repeats", "long"),
        compile_factor=0.0,
        carries_over=True,
    )


register(_threads(ANY))
for _count in sorted({1, available_cpus() // 2} - {0, available_cpus()}):
    register(_threads(_count))
