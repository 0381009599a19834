"""Compile the kernel of products of few rows for a GPU, which need not be there, and print its text for the processor.

Triton's interpreter must not be chosen here, so this runs in a process of its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

COMPUTE_CAPABILITY = 90
NAMES = ("rows", "weights", "scales", "biases", "outputs")


def compile_products(kernels: Sequence[dict[str, Any]], folder: Path) -> list[str]:
    """Return the PTX of kernels, compiled in another process.

    Args:
        kernels: each with the `types` of the arguments in `NAMES`, a list for all but the first, `constants`, and
            `warps`.
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
    texts: list[str] = json.loads(done.stdout)
    return texts


def main() -> None:
    """Compile the kernels that the input lists."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from torchwise.compile.few_rows.kernel import multiply

    found = []
    for one in json.load(sys.stdin):
        types = [tuple(given) if isinstance(given, list) else given for given in one["types"]]
        constants = {**one["constants"], "SIZES": tuple(one["constants"]["SIZES"])}
        aligned = [["tt.divisibility", 16]]
        places = [(0,), *((place, part) for place in range(1, 5) for part in range(len(types[place])))]
        source = ASTSource(
            multiply,
            dict(zip(NAMES, types, strict=True)) | dict.fromkeys(constants, "constexpr"),
            constants,
            dict.fromkeys(places, aligned),
        )
        target = GPUTarget("cuda", COMPUTE_CAPABILITY, 32)
        found.append(triton.compile(source, target=target, options={"num_warps": one["warps"]}).asm["ptx"])
    print(json.dumps(found))


if __name__ == "__main__":
    main()
