"""The number of processes that the tests run on, and which tests stay together."""

from __future__ import annotations

import contextlib
import getpass
import os
import tempfile
from pathlib import Path
from typing import Any

import psutil
import pytest
from xdist.scheduler import LoadFileScheduling

from torchwise.environment import available_cpus

MEMORY = 4 * 2**30
"""Bytes that are left for each process of tests: PyTorch, and the workers and compilers that a test starts."""


def workers(config: pytest.Config, cores: int | None = None, memory: int | None = None) -> int:
    """Return the number of processes for `-n auto`: one a core, as long as there are files and memory for them.

    0 stands for pytest's own process alone: for one file, and with `-s` or `--trace`, when somebody looks on.
    """
    cores = cores or available_cpus()
    memory = memory or psutil.virtual_memory().available
    looked_at = config.getoption("capture") == "no" or config.getoption("trace")
    count = min(cores, _files(config.args), max(memory // MEMORY, 1))
    if count < 2 or looked_at:
        return 0
    # A call on two threads waits for the slower one: several times as long where other tests have the cores.
    os.environ.setdefault("OMP_NUM_THREADS", str(cores // count))
    return count


def _files(arguments: list[str]) -> int:
    paths = {Path(argument.partition("::")[0]) for argument in arguments}
    return sum(len(list(path.rglob("test_*.py"))) if path.is_dir() else 1 for path in paths)


def use_own_folder(worker: str) -> None:
    """Give this process of tests temporary files of its own, where the workers that it starts take turns on the device.

    A trial would else wait until those of another process have compiled, while the cores idle.
    """
    folder = Path(tempfile.gettempdir(), f"torchwise-tests-{os.getuid()}", worker)
    folder.mkdir(parents=True, exist_ok=True)
    for each in (folder, folder.parent):
        each.chmod(0o711)  # tests of rights enter it as another user: an old folder or a umask may not let them
    os.environ["TMPDIR"] = tempfile.tempdir = str(folder)
    _share_headers(folder)


def _share_headers(folder: Path) -> None:
    """Have Inductor keep its precompiled headers, six seconds of CPU time each, once for all processes of tests.

    It keeps them in the folder for temporary files, and takes a lock on each.
    """
    shared, own = folder.parent / "precompiled_headers", folder / f"torchinductor_{getpass.getuser()}"
    shared.mkdir(exist_ok=True)
    own.mkdir(exist_ok=True)
    with contextlib.suppress(FileExistsError):
        (own / "precompiled_headers").symlink_to(shared)


LONG = ("tests/unit/test_complex_to_real.py", "tests/faults/test_faults.py", "tests/unit/test_zoo.py")
"""Files of very many tests that take long together: at the end a process would run one beside an idle core."""


class GpuTogether(LoadFileScheduling):  # type: ignore[misc]
    """Runs a file's tests in one process, one after another, and so all tests on the GPU: there is one GPU, too."""

    def _assign_work_unit(self, node: Any) -> None:
        """Give a process the file with the fewest tests: as a rule they take longest, and quick ones fill the end.

        The exceptions in `LONG` come first.
        """
        long = next((file for file in LONG if file in self.workqueue), None)
        self.workqueue.move_to_end(long or next(reversed(self.workqueue)), last=False)
        super()._assign_work_unit(node)

    def _split_scope(self, nodeid: str) -> str:
        file = str(super()._split_scope(nodeid))
        return "tests/gpu" if file.startswith("tests/gpu/") else file


def scheduler(config: Any, log: Any) -> GpuTogether | None:
    """Return the scheduler for `--dist loadfile`, or None for another, which xdist has itself."""
    return GpuTogether(config, log) if config.getoption("dist") == "loadfile" else None
