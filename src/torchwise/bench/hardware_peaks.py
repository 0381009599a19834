"""The worker's side of a survey: measure the peaks of the hardware, for rooflines."""

from __future__ import annotations

from collections.abc import Callable

import torch

from torchwise.bench.job import HardwareSurvey
from torchwise.measure import device_lock
from torchwise.measure.profile import bandwidth, matrix_rate
from torchwise.records.benchmark import Peaks

DTYPES = {"cpu": ("float32", "bfloat16", "float64"), "cuda": ("float32", "bfloat16", "float16", "float64")}


def survey(job: HardwareSurvey, stage: Callable[[str], None]) -> Peaks:
    """Measure the device's bandwidth and matrix rates, with PyTorch's default settings."""
    device = job.job.workload.device
    device_lock.join(device)
    with device_lock.alone():
        stage("bandwidth")
        bytes_per_s = bandwidth(device)
        stage("matrix products")
        return Peaks(bytes_per_s, {name: matrix_rate(getattr(torch, name), device) for name in DTYPES[device]})
