"""Compile kernels of few rows for a GPU, which need not be there, and print their text for the processor.

Triton's interpreter must not be chosen here, so this runs in a process of its own.
"""

from __future__ import annotations

import json
import os
import pkgutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

COMPUTE_CAPABILITY = 90
FEW_ROWS = "torchwise.compile.few_rows."


def compile_kernels(kernels: Sequence[dict[str, Any]], folder: Path) -> list[str]:
    """Return the PTX of kernels, compiled in another process.

    Args:
        kernels: each with its `name` in `few_rows`, the `types` of its arguments by their names, each a list if the
            argument is one, its `constants`, and its `warps`.
        folder: for files.

    Raises:
        subprocess.CalledProcessError: Triton refuses one of them.
    """
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, __file__],
        input=json.dumps(kernels),
        env={**environment, "TRITON_CACHE_DIR": str(folder / "cache")},
        text=True,
        check=True,
        stdout=subprocess.PIPE,
    )
    texts: list[str] = json.loads(done.stdout.splitlines()[-1])
    return texts


def main() -> None:
    """Compile the kernels that the input lists."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    found = []
    for one in json.load(sys.stdin):
        types, constants = (_to_tuples(one[name]) for name in ("types", "constants"))
        places = []
        for place, given in enumerate(types.values()):
            places += [(place, part) for part in range(len(given))] if isinstance(given, tuple) else [(place,)]
        pointers = [place for place in places if "*" in str(_pick(tuple(types.values()), place))]
        source = ASTSource(
            pkgutil.resolve_name(FEW_ROWS + one["name"]),
            types | dict.fromkeys(constants, "constexpr"),
            constants,
            {place: [["tt.divisibility", 16]] for place in pointers},
        )
        target = GPUTarget("cuda", COMPUTE_CAPABILITY, 32)
        found.append(triton.compile(source, target=target, options={"num_warps": one["warps"]}).asm["ptx"])
    print(json.dumps(found))


def _pick(types: tuple[Any, ...], place: tuple[int, ...]) -> Any:
    return types[place[0]] if len(place) == 1 else types[place[0]][place[1]]


def _to_tuples(given: Any) -> Any:
    if isinstance(given, dict):
        return {name: _to_tuples(one) for name, one in given.items()}
    return tuple(map(_to_tuples, given)) if isinstance(given, list) else given


if __name__ == "__main__":
    main()
