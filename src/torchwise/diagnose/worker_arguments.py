"""Send the arguments of a diagnosis to its workers."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torchwise.environment import default_device
from torchwise.plan.workload_spec import WorkloadSpec
from torchwise.trial import ProcessSettings
from torchwise.workload import Workload
from torchwise.workload.target import device_of, name_of


@dataclass(frozen=True, slots=True)
class Sent:
    """The file of a live model for the workers, and its settings. Both are None for a target."""

    source: str | None = None
    settings: ProcessSettings | None = None


def make_spec(model: Any, workload: Workload | None, device: str | None, **options: Any) -> WorkloadSpec:
    """Return the specification of the run.

    Args:
        model: the model or the name of a target.
        workload: of a live model, or None for a target.
        device: by default the device of a live model and its inputs, and for a target "cuda" if available.
        **options: other fields of the spec.

    Raises:
        InputError: one of them cannot be used.
    """
    device_name = device or (device_of(workload) if workload else default_device())
    return WorkloadSpec(name_of(model), device=device_name, **options)  # type: ignore[arg-type]


@contextlib.contextmanager
def sent(workload: Workload | None, name: str) -> Iterator[Sent]:
    """Write a live model to a file, for as long as the workers need it.

    Raises:
        WorkloadError: it cannot be pickled.
    """
    if workload is None:
        yield Sent()
        return
    from torchwise.trial.loading import save

    with tempfile.TemporaryDirectory(prefix="torchwise-model-") as folder:
        source = str(Path(folder, "model.pt"))
        save(replace(workload, name=name), source)
        yield Sent(source, ProcessSettings.from_this_process())
