"""Which libraries of models may a process import before it forks workers that use the GPU?

The workers' server imports them once for all workers. A library that sets the driver up would leave a process whose
forks cannot use it, and the server would end and start anew. Here each library is imported in a process of its own,
after all that the server needs. Then the process forks, and the child computes on the GPU. A row tells the seconds of
the import, the threads and the files of the driver that came with it, and whether the child succeeded.

Run it on a machine with a GPU: python benchmarks/imports_and_forks.py
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path

from torchwise.trial.launcher import SERVER_VARIABLES
from torchwise.trial.preload import LIBRARIES

MODELS = {
    "transformers": ("transformers.models.llama.modeling_llama",),
    "diffusers": ("diffusers.models.unets.unet_2d_condition",),
    "sentence_transformers": ("sentence_transformers.models",),
}
"""Modules with models, for libraries that import them late."""
LIMIT_S = 120


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("libraries", nargs="*", default=list(LIBRARIES), metavar="LIBRARY")
    parser.add_argument("--import", dest="name", help=argparse.SUPPRESS)  # the process of one library
    options = parser.parse_args()
    if options.name:
        print(json.dumps(try_library(options.name)))
        return
    print("| library | import | threads | files of the driver | child computes on the GPU |")
    print("|---|---|---|---|---|")
    for name in options.libraries:
        print(f"| {name} | {describe(name)} |", flush=True)


def describe(name: str) -> str:
    """Import a library in a process of its own, and return the other cells of its row."""
    command = [sys.executable, __file__, "--import", name]
    environment = {**os.environ, **SERVER_VARIABLES}
    try:
        done = subprocess.run(command, check=True, env=environment, capture_output=True, text=True, timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        return f"over {LIMIT_S} s | – | – | –"
    except subprocess.CalledProcessError as error:
        return f"{(error.stderr.strip().splitlines() or ['failed'])[-1][:80]} | – | – | –"
    found = json.loads(done.stdout.strip().splitlines()[-1])
    return f"{found['seconds']:.1f} s | {found['threads']:+d} | {found['files']:+d} | {found['child']}"


def try_library(name: str) -> dict[str, object]:
    """Import a library after all that the server needs, fork, and have the child compute on the GPU."""
    from torchwise.trial.server import NEEDED

    for needed in NEEDED:
        importlib.import_module(needed)
    threads, files, begun = count_threads(), count_files(), time.monotonic()
    for module in (name, *MODELS.get(name, ())):
        importlib.import_module(module)
    found: dict[str, object] = {
        "seconds": time.monotonic() - begun,
        "threads": count_threads() - threads,
        "files": count_files() - files,
    }
    return {**found, "child": compute_in_child()}


def count_threads() -> int:
    return len(os.listdir("/proc/self/task"))


def count_files() -> int:
    """Count the open files of a driver."""
    found = 0
    for one in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # that of this listing is gone
            found += os.readlink(one).startswith(("/dev/nvidia", "/dev/kfd", "/dev/dri"))
    return found


def compute_in_child() -> str:
    """Fork, have the child compute on the GPU, and return "yes" or its error."""
    import torch

    reader, writer = os.pipe()
    if (child := os.fork()) == 0:
        try:
            answer = "yes" if torch.ones(4, device="cuda").sum().item() == 4 else "no"
        except Exception as error:  # whatever the driver or PyTorch says
            answer = str(error).splitlines()[0][:80]
        os.write(writer, answer.encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as file:
        answer = file.read()
    os.waitpid(child, 0)
    return answer or "it died"


if __name__ == "__main__":
    main()
