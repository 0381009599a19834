"""Compile kernels of Triton for a GPU, which need not be there.

The interpreter also runs kernels that a compiler refuses: those with a variable that changes its type in a loop, or
with sizes that are no power of two. It must not be chosen here, so this runs in a process of its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ABOUT = ("source", "types", "block", "warps", "precision")
"""The facts about each kernel."""
COMPUTE_CAPABILITY = 90


def compile_kernels(kernels: Sequence[dict[str, Any]], folder: Path) -> list[str]:
    """Return the PTX of kernels, compiled in another process.

    Args:
        kernels: each with the facts in `ABOUT`.
        folder: for files.

    Raises:
        subprocess.CalledProcessError: Triton refuses one of them.
    """
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, __file__, str(folder)],
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

    from torchwise.compile.programs.gpu.launch import load_kernel

    os.environ["TORCHINDUCTOR_CACHE_DIR"] = sys.argv[1]
    found = []
    for one in json.load(sys.stdin):
        function = load_kernel(one["source"])
        names = [name for name in function.arg_names if name not in ("BLOCK", "PRECISION")]
        signature = dict(zip(names, one["types"], strict=True)) | {"BLOCK": "constexpr", "PRECISION": "constexpr"}
        constants = {"BLOCK": one["block"], "PRECISION": one["precision"]}
        compiled = triton.compile(
            ASTSource(function, signature, constants),
            target=GPUTarget("cuda", COMPUTE_CAPABILITY, 32),
            options={"num_warps": one["warps"], "num_stages": 1},
        )
        found.append(compiled.asm["ptx"])
    print(json.dumps(found))


if __name__ == "__main__":
    main()
