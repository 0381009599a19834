"""The CPU cores of each GPU, without an import that takes seconds."""

from __future__ import annotations


def shares_of(cores: list[int], parts: int) -> list[set[int]]:
    """Divide the CPU cores evenly among GPUs, or among lanes on them.

    Then no benchmark disturbs another. One on a GPU of a large host also has the same cores as one on a smaller host.
    So results from hosts with one, two or four GPUs may be merged, if they have as many cores per GPU.
    """
    each = max(len(cores) // parts, 1)
    return [set(cores[number * each : (number + 1) * each] or cores) for number in range(parts)]
